/* Ferrite for programs in C. docs/c.md has the rules that all functions share.
 *
 * Made from the source by `FERRITE_UPDATE=1 cargo test -p ferrite-c header`; do not edit. */

#ifndef FERRITE_H
#define FERRITE_H



#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/*
 `nanoseconds` of a time that is to be the current one.
 */
#define FERRITE_TIME_NOW ((1 << 30) - 1)

/*
 `nanoseconds` of a time that is to stay.
 */
#define FERRITE_TIME_OMIT ((1 << 30) - 2)

/*
 Functions on a path change or show a symbolic link itself.
 */
#define FERRITE_NOFOLLOW 1

/*
 A directory that is being listed.
 */
typedef struct ferrite_dir ferrite_dir;

/*
 An open file.
 */
typedef struct ferrite_file ferrite_file;

/*
 Transfers under way, and those that have completed.
 */
typedef struct ferrite_queue ferrite_queue;

/*
 An open volume.
 */
typedef struct ferrite_volume ferrite_volume;

/*
 A time since 1970.
 */
typedef struct ferrite_time {
  /*
   Whole seconds; before 1970 negative.
   */
  int64_t seconds;
  /*
   The rest, 0 to 999,999,999; or `FERRITE_TIME_NOW` or `FERRITE_TIME_OMIT`.
   */
  int64_t nanoseconds;
} ferrite_time;

/*
 Attributes of a file.
 */
typedef struct ferrite_stat {
  /*
   The size of this struct, which the caller sets.
   */
  size_t struct_size;
  /*
   The inode's number.
   */
  uint64_t ino;
  /*
   Bytes of content.
   */
  uint64_t size;
  /*
   Space in use, in units of 512 bytes.
   */
  uint64_t blocks;
  /*
   The number of a device, else 0.
   */
  uint64_t rdev;
  /*
   Kind and permissions, as in stat(2).
   */
  uint32_t mode;
  /*
   Names of the inode.
   */
  uint32_t nlink;
  /*
   The owner.
   */
  uint32_t uid;
  /*
   The group.
   */
  uint32_t gid;
  /*
   Last access.
   */
  struct ferrite_time accessed;
  /*
   Last change of the content.
   */
  struct ferrite_time modified;
  /*
   Last change of content or attributes.
   */
  struct ferrite_time changed;
} ferrite_stat;

/*
 An entry of a directory.
 */
typedef struct ferrite_dirent {
  /*
   The inode's number.
   */
  uint64_t ino;
  /*
   The kind of the file, as the part `S_IFMT` of a mode.
   */
  uint32_t kind;
  /*
   The name. It is valid until the directory is read again, or closed.
   */
  const char *name;
} ferrite_dirent;

/*
 The end of a submitted transfer. Programs have arrays of it, so it never grows.
 */
typedef struct ferrite_completion {
  /*
   The tag that it was submitted with.
   */
  uint64_t tag;
  /*
   The bytes read or written, or the negative errno.
   */
  int64_t result;
  /*
   The offset at which it began; for an append, the one that the file system chose.
   */
  uint64_t offset;
  /*
   0.
   */
  uint64_t reserved;
} ferrite_completion;

/*
 The space of a volume.
 */
typedef struct ferrite_statfs {
  /*
   The size of this struct, which the caller sets.
   */
  size_t struct_size;
  /*
   Bytes of a block, in which the following are counted.
   */
  uint64_t block_bytes;
  /*
   Blocks for data and directories.
   */
  uint64_t blocks;
  /*
   Free ones, the reserve included.
   */
  uint64_t blocks_free;
  /*
   Free ones that new files can get.
   */
  uint64_t blocks_available;
  /*
   Inodes.
   */
  uint64_t inodes;
  /*
   Free inodes.
   */
  uint64_t inodes_free;
} ferrite_statfs;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Attributes of a file. `flags` is 0 or `FERRITE_NOFOLLOW`.
 */
int ferrite_stat_of(const struct ferrite_volume *volume,
                    const char *path,
                    struct ferrite_stat *stat,
                    int flags);

/*
 Attributes of an open file.
 */
int ferrite_fstat(const struct ferrite_file *file, struct ferrite_stat *stat);

/*
 Sets permissions. `flags` is 0 or `FERRITE_NOFOLLOW`.
 */
int ferrite_chmod(const struct ferrite_volume *volume, const char *path, uint32_t mode, int flags);

/*
 Sets the owner and the group; one that is the highest number, -1, stays. `flags` is 0 or `FERRITE_NOFOLLOW`.
 */
int ferrite_chown(const struct ferrite_volume *volume,
                  const char *path,
                  uint32_t uid,
                  uint32_t gid,
                  int flags);

/*
 Sets the times of access and of change. `flags` is 0 or `FERRITE_NOFOLLOW`.
 */
int ferrite_set_times(const struct ferrite_volume *volume,
                      const char *path,
                      const struct ferrite_time *accessed,
                      const struct ferrite_time *modified,
                      int flags);

/*
 Sets the size of a file.
 */
int ferrite_truncate(const struct ferrite_volume *volume, const char *path, int64_t size);

/*
 Reads an extended attribute. Returns the length of its value, which may be more than `size`: then the buffer has
 the beginning. `flags` is 0 or `FERRITE_NOFOLLOW`.
 */
ssize_t ferrite_getxattr(const struct ferrite_volume *volume,
                         const char *path,
                         const char *name,
                         void *buffer,
                         size_t size,
                         int flags);

/*
 Sets an extended attribute. `flags` is 0, `XATTR_CREATE` or `XATTR_REPLACE`.
 */
int ferrite_setxattr(const struct ferrite_volume *volume,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t len,
                     int flags);

/*
 Lists the names of extended attributes, each with a zero behind it. Returns their length, which may be more than
 `size`: then the buffer has the beginning.
 */
ssize_t ferrite_listxattr(const struct ferrite_volume *volume,
                          const char *path,
                          void *buffer,
                          size_t size);

/*
 Removes an extended attribute.
 */
int ferrite_removexattr(const struct ferrite_volume *volume, const char *path, const char *name);

/*
 The text of this thread's last error: what failed, on which path, and why. Empty if there was none.

 The library owns it; it is valid until another function of this library fails in this thread, or the thread ends.
 */
const char *ferrite_error(void);

/*
 Opens a file. `flags` are those of open(2): an access mode, `O_CREAT`, `O_EXCL`, `O_TRUNC`, `O_APPEND`,
 `O_NOFOLLOW`, `O_NOATIME`, `O_SYNC` and `O_DSYNC`; others are refused. With `O_TMPFILE`, `path` is a directory, and
 the file has no name until `ferrite_link_file` gives it one. `mode` is that of a new file; there is no umask.

 Returns a file to be closed by `ferrite_close_file`, or NULL.
 */
struct ferrite_file *ferrite_open_file(const struct ferrite_volume *volume,
                                       const char *path,
                                       int flags,
                                       uint32_t mode);

/*
 Gives an open file a name: its first, if it was opened with `O_TMPFILE`, or a further one.
 */
int ferrite_link_file(const struct ferrite_file *file, const char *path);

/*
 Closes a file, and releases its locks. NULL is accepted.
 */
int ferrite_close_file(struct ferrite_file *file);

/*
 Reads at the file's position, and moves it. Returns the bytes read; 0 at the end of the file.
 */
ssize_t ferrite_read(const struct ferrite_file *file, void *buffer, size_t len);

/*
 Writes at the file's position, or at its end with `O_APPEND`, and moves it. Returns the bytes written; fewer than
 `len` only if space is short.
 */
ssize_t ferrite_write(const struct ferrite_file *file,
                      const void *data,
                      size_t len);

/*
 Reads at an offset.
 */
ssize_t ferrite_pread(const struct ferrite_file *file, void *buffer, size_t len, int64_t at);

/*
 Writes at an offset, all or nothing: a crash leaves the old bytes or the new ones.
 */
ssize_t ferrite_pwrite(const struct ferrite_file *file, const void *data, size_t len, int64_t at);

/*
 Reads at an offset into the parts of a vector, as one read.
 */
ssize_t ferrite_preadv(const struct ferrite_file *file,
                       const struct iovec *vector,
                       int parts,
                       int64_t at);

/*
 Writes the parts of a vector at an offset, as one write.
 */
ssize_t ferrite_pwritev(const struct ferrite_file *file,
                        const struct iovec *vector,
                        int parts,
                        int64_t at);

/*
 Writes at the end of the file, all or nothing, beside other appends. `at` is NULL, or gets the offset of the data.
 */
int ferrite_append(const struct ferrite_file *file,
                   const void *data,
                   size_t len,
                   uint64_t *at);

/*
 Moves the file's position: `SEEK_SET`, `SEEK_CUR`, `SEEK_END`, `SEEK_DATA` or `SEEK_HOLE`. Returns the new one.
 */
int64_t ferrite_seek(const struct ferrite_file *file,
                     int64_t by,
                     int whence);

/*
 Sets the size of a file.
 */
int ferrite_ftruncate(const struct ferrite_file *file, int64_t size);

/*
 Changes the space of a range, as fallocate(2) with the flags 0, `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` (with
 `FALLOC_FL_KEEP_SIZE`) and `FALLOC_FL_ZERO_RANGE`.
 */
int ferrite_fallocate(const struct ferrite_file *file,
                      int flags,
                      int64_t at,
                      int64_t len);

/*
 Makes all completed operations on a file durable. With `durability=strict` they are already.
 */
int ferrite_fsync(const struct ferrite_file *file);

/*
 Locks a file as a whole, as flock(2): `LOCK_SH`, `LOCK_EX` or `LOCK_UN`, with `LOCK_NB` to fail with `EWOULDBLOCK`
 instead of waiting. The lock belongs to this open file.
 */
int ferrite_flock(const struct ferrite_file *file,
                  int operation);

/*
 Locks a range of a file, of `len` bytes from `at`, or to its end if `len` is 0: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
 The lock belongs to this open file, and conflicts with those of other open files and programs. Waits up to
 `timeout_ms` milliseconds, without end if that is negative; then fails with `EWOULDBLOCK`.
 */
int ferrite_lock_range(const struct ferrite_file *file,
                       int kind,
                       int64_t at,
                       int64_t len,
                       int64_t timeout_ms);

/*
 Makes a directory. There is no umask.
 */
int ferrite_mkdir(const struct ferrite_volume *volume, const char *path, uint32_t mode);

/*
 Removes an empty directory.
 */
int ferrite_rmdir(const struct ferrite_volume *volume, const char *path);

/*
 Removes a name of a file. The file is freed when it has no name and nobody has it open.
 */
int ferrite_unlink(const struct ferrite_volume *volume, const char *path);

/*
 Gives a file or directory another name, in one step. `flags` are those of renameat2(2): 0, `RENAME_NOREPLACE` or
 `RENAME_EXCHANGE`, or leave a whiteout with `RENAME_WHITEOUT`.
 */
int ferrite_rename(const struct ferrite_volume *volume,
                   const char *from,
                   const char *to,
                   unsigned int flags);

/*
 Gives a file a further name.
 */
int ferrite_link(const struct ferrite_volume *volume, const char *from, const char *to);

/*
 Clones a file, or a directory with all below it, to a new name: one state of it, in one step, which shares its
 content instead of copying it.
 */
int ferrite_clone(const struct ferrite_volume *volume,
                  const char *from,
                  const char *to);

/*
 Makes a symbolic link.
 */
int ferrite_symlink(const struct ferrite_volume *volume, const char *target, const char *path);

/*
 Reads the target of a symbolic link, without a zero behind it. Returns its length, which may be more than `size`:
 then the buffer has the beginning.
 */
ssize_t ferrite_readlink(const struct ferrite_volume *volume,
                         const char *path,
                         void *buffer,
                         size_t size);

/*
 Whether this process, as root, could access a file: `F_OK`, or `R_OK`, `W_OK` and `X_OK`.
 */
int ferrite_access(const struct ferrite_volume *volume, const char *path, int mode);

/*
 Begins to list a directory. Returns a handle to be closed by `ferrite_closedir`, or NULL.
 */
struct ferrite_dir *ferrite_opendir(const struct ferrite_volume *volume, const char *path);

/*
 The next entry, without `.` and `..`. NULL at the end, with `errno` unchanged, and after an error. An entry that
 exists throughout comes exactly once. One thread at a time may use the handle.
 */
const struct ferrite_dirent *ferrite_readdir(struct ferrite_dir *directory);

/*
 Begins a listing anew, with the names of now.
 */
int ferrite_rewinddir(struct ferrite_dir *directory);

/*
 Ends a listing. NULL is accepted.
 */
int ferrite_closedir(struct ferrite_dir *directory);

/*
 Makes a queue of at most `depth` transfers, from 1 to 65,536, counted from their submission until they are reaped.
 Any thread may submit, and any may wait.

 Returns a queue to be closed by `ferrite_queue_close`, or NULL.
 */
struct ferrite_queue *ferrite_queue_open(unsigned int depth);

/*
 Closes a queue. Blocks until no transfer is under way. Completions that were not reaped are lost, and the memory of
 their reads is not touched. NULL is accepted.
 */
int ferrite_queue_close(struct ferrite_queue *queue);

/*
 Submits a read at an offset, of at most 4 MiB. `buffer` must stay as it is until its completion has been reaped, and
 has the data then. The completion has `tag`.

 Errors: `EAGAIN` if the queue is full; reap completions first. `EINVAL` for a longer read. Errors of the file
 system come with the completion.
 */
int ferrite_submit_pread(const struct ferrite_queue *queue,
                         const struct ferrite_file *file,
                         void *buffer,
                         size_t len,
                         int64_t at,
                         uint64_t tag);

/*
 Submits a write at an offset, of at most 4 MiB. `data` may change when this returns. The completion has `tag`, and
 comes when the write is durable, if the volume was opened with `durability=strict`.

 Errors: as `ferrite_submit_pread`.
 */
int ferrite_submit_pwrite(const struct ferrite_queue *queue,
                          const struct ferrite_file *file,
                          const void *data,
                          size_t len,
                          int64_t at,
                          uint64_t tag);

/*
 Submits an append, of at most 4 MiB. `data` may change when this returns. The completion has `tag` and the offset of
 the data.

 Errors: as `ferrite_submit_pread`.
 */
int ferrite_submit_append(const struct ferrite_queue *queue,
                          const struct ferrite_file *file,
                          const void *data,
                          size_t len,
                          uint64_t tag);

/*
 Reaps completions: blocks until there are `min`, or no more are under way, or `timeout_ms` milliseconds have passed
 (negative: without end), and stores `max` at most in `completions`. With a `min` of 0 it does not block.

 Returns how many were stored.
 */
int ferrite_queue_wait(const struct ferrite_queue *queue,
                       struct ferrite_completion *completions,
                       int min,
                       int max,
                       int64_t timeout_ms);

/*
 The version of the library, such as `0.1.0`.
 */
const char *ferrite_version(void);

/*
 Opens a volume: the path of a pool, `tcp://HOST:PORT/EXPORT`, or `nvme:FILE` if the library was built with it.

 `options` is NULL, or names options, separated by commas: `read_only=true|false`,
 `durability=strict|fsync|process`, `atime=relative|never|strict`; for servers `key=FILE`, `encrypt=auto|on|off`,
 `timeout_ms=N`. A pool belongs to one process at a time. Blocks while a pool recovers from a crash, and while a
 server cannot be reached, up to its timeout.

 Returns a volume to be closed by `ferrite_close`, or NULL. Errors: `EBUSY` if another process has the pool;
 `EINVAL` for an unknown option; those of opening a file.
 */
struct ferrite_volume *ferrite_open(const char *address,
                                    const char *options);

/*
 Makes a pool of `size_bytes` at a path, and opens it. A file that holds something is refused.

 `options` is NULL, or `mapping=hashfs|cuckoo|radix|extent|leaf`, `data_checksum=true|false`, separated by commas.

 Returns a volume to be closed by `ferrite_close`, or NULL.
 */
struct ferrite_volume *ferrite_create(const char *path,
                                      uint64_t size_bytes,
                                      const char *options);

/*
 Closes a volume. Its files and directories may stay open, but every further call on them fails; close them, too.

 The handle is gone even after an error. NULL is accepted.
 */
int ferrite_close(struct ferrite_volume *volume);

/*
 The space of a volume.
 */
int ferrite_space(const struct ferrite_volume *volume, struct ferrite_statfs *space);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERRITE_H */
