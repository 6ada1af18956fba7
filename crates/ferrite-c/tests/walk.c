/* Walks through all functions and their errors: walk create POOL, or walk open ADDRESS. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "ferrite.h"

static void check(int is_so, int line, const char *what) {
    if (is_so)
        return;
    fprintf(stderr, "line %d: %s; errno %d, %s\n", line, what, errno, ferrite_error());
    exit(1);
}

#define OK(what) check((what), __LINE__, #what)
/* The call fails with this errno, and leaves a text. */
#define FAILS(what, number) (errno = 0, check((what) && errno == (number) && ferrite_error()[0], __LINE__, #what))

static ferrite_volume *volume;

static ferrite_file *opened(const char *path, int flags) {
    ferrite_file *file = ferrite_open_file(volume, path, flags, 0644);
    OK(file != NULL);
    return file;
}

static void volumes(const char *address) {
    OK(strchr(ferrite_version(), '.') != NULL);
    FAILS(ferrite_open("/nowhere/pool", NULL) == NULL, ENOENT);
    FAILS(ferrite_open(NULL, NULL) == NULL, EFAULT);
    FAILS(ferrite_open(address, "no_such_option=1") == NULL, EINVAL);
    FAILS(ferrite_create("/dev/shm/ferrite-c-none", 1 << 20, "mapping=none") == NULL, EINVAL);
    FAILS(ferrite_create("/dev/shm/ferrite-c-none", 1 << 20, "speed=high") == NULL, EINVAL);
    ferrite_statfs space = {.struct_size = sizeof space};
    OK(ferrite_space(volume, &space) == 0 && space.block_bytes >= 512 && space.blocks >= space.blocks_free);
    FAILS(ferrite_space(NULL, &space) == -1, EFAULT);
    FAILS(ferrite_space(volume, NULL) == -1, EFAULT);
    space.struct_size = 0;
    FAILS(ferrite_space(volume, &space) == -1, EINVAL);
    OK(ferrite_close(NULL) == 0);
}

static void transfers(void) {
    char buffer[64];
    ferrite_file *file = opened("/file", O_RDWR | O_CREAT | O_EXCL);
    FAILS(ferrite_open_file(volume, "/file", O_RDWR | O_CREAT | O_EXCL, 0644) == NULL, EEXIST);
    FAILS(ferrite_open_file(volume, "/none", O_RDONLY, 0) == NULL, ENOENT);
    FAILS(ferrite_open_file(volume, "/file", O_RDONLY | O_DIRECTORY, 0) == NULL, EINVAL);
    FAILS(ferrite_open_file(volume, NULL, O_RDONLY, 0) == NULL, EFAULT);
    OK(ferrite_pwrite(file, "0123456789", 10, 0) == 10);
    OK(ferrite_pread(file, buffer, sizeof buffer, 4) == 6 && memcmp(buffer, "456789", 6) == 0);
    OK(ferrite_pread(file, buffer, sizeof buffer, 10) == 0);
    OK(ferrite_pread(file, NULL, 0, 0) == 0);
    FAILS(ferrite_pread(file, NULL, 1, 0) == -1, EFAULT);
    FAILS(ferrite_pread(file, buffer, sizeof buffer, -1) == -1, EINVAL);
    FAILS(ferrite_pread(file, buffer, (size_t)-1, 0) == -1, EINVAL);
    FAILS(ferrite_pwrite(NULL, "x", 1, 0) == -1, EFAULT);
    struct iovec out[2] = {{"ab", 2}, {"cde", 3}};
    OK(ferrite_pwritev(file, out, 2, 10) == 5);
    char first[3], second[9];
    struct iovec in[2] = {{first, 3}, {second, 9}};
    OK(ferrite_preadv(file, in, 2, 9) == 6 && memcmp(first, "9ab", 3) == 0 && memcmp(second, "cde", 3) == 0);
    FAILS(ferrite_preadv(file, in, -1, 0) == -1, EINVAL);
    FAILS(ferrite_preadv(file, NULL, 1, 0) == -1, EFAULT);
    uint64_t at = 0;
    OK(ferrite_append(file, "end", 3, &at) == 0 && at == 15);
    OK(ferrite_seek(file, -3, SEEK_END) == 15);
    OK(ferrite_read(file, buffer, sizeof buffer) == 3 && memcmp(buffer, "end", 3) == 0);
    OK(ferrite_seek(file, 0, SEEK_SET) == 0 && ferrite_write(file, "XY", 2) == 2);
    OK(ferrite_seek(file, 0, SEEK_CUR) == 2);
    FAILS(ferrite_seek(file, 0, 99) == -1, EINVAL);
    FAILS(ferrite_seek(file, -1, SEEK_SET) == -1, EINVAL);
    OK(ferrite_ftruncate(file, 1 << 20) == 0);
    OK(ferrite_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20) == 0);
    OK(ferrite_seek(file, 0, SEEK_HOLE) == 0);
    FAILS(ferrite_seek(file, 0, SEEK_DATA) == -1, ENXIO);
    FAILS(ferrite_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096) == -1, EOPNOTSUPP);
    OK(ferrite_fsync(file) == 0);
    OK(ferrite_close_file(file) == 0 && ferrite_close_file(NULL) == 0);
    ferrite_file *reader = opened("/file", O_RDONLY);
    FAILS(ferrite_pwrite(reader, "x", 1, 0) == -1, EBADF);
    ferrite_close_file(reader);
}

static void queues(void) {
    enum { DEPTH = 8, LEN = 4096 };
    static char data[DEPTH][LEN];
    ferrite_completion done[DEPTH + 1];
    ferrite_file *file = opened("/file", O_RDWR);
    FAILS(ferrite_queue_open(0) == NULL, EINVAL);
    FAILS(ferrite_queue_open(1 << 20) == NULL, EINVAL);
    ferrite_queue *queue = ferrite_queue_open(DEPTH);
    OK(queue != NULL && ferrite_queue_wait(queue, done, 1, 1, -1) == 0);
    for (int i = 0; i < DEPTH; i++) {
        memset(data[0], 'a' + i, LEN);
        OK(ferrite_submit_pwrite(queue, file, data[0], LEN, i * LEN, 100 + i) == 0);
    }
    FAILS(ferrite_submit_pwrite(queue, file, data[0], LEN, 0, 1) == -1, EAGAIN);
    FAILS(ferrite_submit_pread(queue, file, data[0], LEN, 0, 1) == -1, EAGAIN);
    FAILS(ferrite_submit_append(queue, file, data[0], LEN, 1) == -1, EAGAIN);
    int seen = 0;
    for (int count = 0; count < DEPTH;) {
        int found = ferrite_queue_wait(queue, done, 1, 3, -1);
        OK(found >= 1 && found <= 3);
        for (int i = 0; i < found; i++, count++) {
            OK(done[i].result == LEN && done[i].offset == (done[i].tag - 100) * LEN && done[i].reserved == 0);
            seen |= 1 << (done[i].tag - 100);
        }
    }
    OK(seen == (1 << DEPTH) - 1);
    memset(data, 0, sizeof data);
    for (int i = 0; i < DEPTH; i++)
        OK(ferrite_submit_pread(queue, file, data[i], LEN, i * LEN, i) == 0);
    OK(ferrite_queue_wait(queue, done, DEPTH, DEPTH + 1, 60000) == DEPTH);
    for (int i = 0; i < DEPTH; i++)
        OK(data[i][0] == 'a' + i && data[i][LEN - 1] == 'a' + i);
    ferrite_stat stat = {.struct_size = sizeof stat};
    OK(ferrite_fstat(file, &stat) == 0 && ferrite_submit_append(queue, file, "end", 3, 5) == 0);
    OK(ferrite_queue_wait(queue, done, 1, 1, -1) == 1 && done[0].tag == 5 && done[0].offset == stat.size);
    OK(ferrite_queue_wait(queue, done, 0, 1, -1) == 0);
    ferrite_file *reader = opened("/file", O_RDONLY);
    OK(ferrite_submit_pwrite(queue, reader, "x", 1, 0, 6) == 0);
    OK(ferrite_queue_wait(queue, done, 1, 1, -1) == 1 && done[0].tag == 6 && done[0].result == -EBADF);
    ferrite_close_file(reader);
    FAILS(ferrite_submit_pread(queue, file, NULL, 1, 0, 0) == -1, EFAULT);
    FAILS(ferrite_submit_pread(queue, NULL, data, 1, 0, 0) == -1, EFAULT);
    FAILS(ferrite_submit_pread(NULL, file, data, 1, 0, 0) == -1, EFAULT);
    FAILS(ferrite_submit_pread(queue, file, data, 1, -1, 0) == -1, EINVAL);
    FAILS(ferrite_submit_pwrite(queue, file, NULL, 1, 0, 0) == -1, EFAULT);
    FAILS(ferrite_queue_wait(queue, done, 2, 1, 0) == -1, EINVAL);
    FAILS(ferrite_queue_wait(queue, done, 0, 0, 0) == -1, EINVAL);
    FAILS(ferrite_queue_wait(queue, NULL, 0, 1, 0) == -1, EFAULT);
    /* Closed with what is under way, and the file before it. */
    OK(ferrite_submit_pread(queue, file, data[0], LEN, 0, 7) == 0);
    OK(ferrite_close_file(file) == 0 && ferrite_queue_close(queue) == 0 && ferrite_queue_close(NULL) == 0);
}

static void locks(void) {
    ferrite_file *one = opened("/file", O_RDWR), *other = opened("/file", O_RDWR);
    OK(ferrite_flock(one, LOCK_EX) == 0);
    FAILS(ferrite_flock(other, LOCK_SH | LOCK_NB) == -1, EWOULDBLOCK);
    OK(ferrite_flock(one, LOCK_UN) == 0 && ferrite_flock(other, LOCK_SH | LOCK_NB) == 0);
    FAILS(ferrite_flock(one, 77) == -1, EINVAL);
    OK(ferrite_lock_range(one, F_WRLCK, 0, 10, 0) == 0);
    FAILS(ferrite_lock_range(other, F_RDLCK, 5, 0, 0) == -1, EWOULDBLOCK);
    FAILS(ferrite_lock_range(other, F_RDLCK, 5, 0, 50) == -1, EWOULDBLOCK);
    OK(ferrite_lock_range(other, F_RDLCK, 10, 0, 0) == 0);
    OK(ferrite_lock_range(one, F_UNLCK, 0, 0, 0) == 0 && ferrite_lock_range(other, F_WRLCK, 0, 5, -1) == 0);
    FAILS(ferrite_lock_range(one, 99, 0, 0, 0) == -1, EINVAL);
    ferrite_close_file(one);
    ferrite_close_file(other);
}

static void names(void) {
    char buffer[8];
    OK(ferrite_mkdir(volume, "/dir", 0755) == 0);
    FAILS(ferrite_mkdir(volume, "/dir", 0755) == -1, EEXIST);
    OK(ferrite_link(volume, "/file", "/dir/link") == 0);
    ferrite_file *nameless = opened("/dir", O_RDWR | O_TMPFILE);
    FAILS(ferrite_open_file(volume, "/dir", O_RDONLY | O_TMPFILE, 0644) == NULL, EINVAL);
    FAILS(ferrite_open_file(volume, "/file", O_RDWR | O_TMPFILE, 0644) == NULL, ENOTDIR);
    OK(ferrite_append(nameless, "all", 3, NULL) == 0);
    FAILS(ferrite_link_file(nameless, "/file") == -1, EEXIST);
    FAILS(ferrite_link_file(NULL, "/file") == -1, EFAULT);
    OK(ferrite_link_file(nameless, "/dir/whole") == 0);
    OK(ferrite_close_file(nameless) == 0);
    nameless = opened("/dir", O_RDWR | O_TMPFILE | O_EXCL);
    FAILS(ferrite_link_file(nameless, "/dir/never") == -1, ENOENT);
    OK(ferrite_close_file(nameless) == 0);
    OK(ferrite_clone(volume, "/dir", "/dir/clone") == 0);
    ferrite_file *cloned = opened("/dir/clone/whole", O_RDONLY);
    OK(ferrite_pread(cloned, buffer, sizeof buffer, 0) == 3 && memcmp(buffer, "all", 3) == 0);
    OK(ferrite_close_file(cloned) == 0);
    FAILS(ferrite_clone(volume, "/dir", "/file") == -1, EEXIST);
    FAILS(ferrite_clone(volume, "/none", "/x") == -1, ENOENT);
    FAILS(ferrite_clone(volume, "/dir", NULL) == -1, EFAULT);
    OK(ferrite_unlink(volume, "/dir/clone/whole") == 0 && ferrite_unlink(volume, "/dir/clone/link") == 0);
    OK(ferrite_rmdir(volume, "/dir/clone") == 0 && ferrite_unlink(volume, "/dir/whole") == 0);
    OK(ferrite_symlink(volume, "dir/name", "/symbolic") == 0);
    OK(ferrite_readlink(volume, "/symbolic", buffer, 3) == 8 && memcmp(buffer, "dir", 3) == 0);
    FAILS(ferrite_readlink(volume, "/file", buffer, sizeof buffer) == -1, EINVAL);
    FAILS(ferrite_rename(volume, "/file", "/dir/link", RENAME_NOREPLACE) == -1, EEXIST);
    OK(ferrite_rename(volume, "/dir/link", "/dir/name", 0) == 0);
    OK(ferrite_rename(volume, "/dir/name", "/symbolic", RENAME_EXCHANGE) == 0);
    OK(ferrite_rename(volume, "/dir/name", "/symbolic", RENAME_EXCHANGE) == 0);
    FAILS(ferrite_rename(volume, "/file", "/x", 1 << 20) == -1, EINVAL);
    OK(ferrite_access(volume, "/file", R_OK | W_OK) == 0);
    FAILS(ferrite_access(volume, "/none", F_OK) == -1, ENOENT);
    FAILS(ferrite_rmdir(volume, "/dir") == -1, ENOTEMPTY);
    FAILS(ferrite_unlink(volume, "/dir") == -1, EISDIR);
    static char longest[70000];
    memset(longest, 'a', sizeof longest - 1);
    FAILS(ferrite_unlink(volume, longest) == -1, ENAMETOOLONG);
    ferrite_dir *dir = ferrite_opendir(volume, "/");
    const ferrite_dirent *entry;
    int files = 0, directories = 0, links = 0;
    for (int round = 0; round < 2; round++) {
        while (errno = 0, (entry = ferrite_readdir(dir))) {
            files += entry->kind == S_IFREG && strcmp(entry->name, "file") == 0;
            directories += entry->kind == S_IFDIR && strcmp(entry->name, "dir") == 0;
            links += entry->kind == S_IFLNK && entry->ino != 0;
        }
        OK(errno == 0 && ferrite_rewinddir(dir) == 0);
    }
    OK(files == 2 && directories == 2 && links == 2);
    OK(ferrite_closedir(dir) == 0);
    FAILS(ferrite_opendir(volume, "/file") == NULL, ENOTDIR);
    FAILS(ferrite_readdir(NULL) == NULL, EFAULT);
}

static void attributes(void) {
    ferrite_stat stat = {.struct_size = sizeof stat};
    OK(ferrite_stat_of(volume, "/symbolic", &stat, 0) == 0 && S_ISREG(stat.mode) && stat.nlink == 2);
    OK(ferrite_stat_of(volume, "/symbolic", &stat, FERRITE_NOFOLLOW) == 0 && S_ISLNK(stat.mode));
    FAILS(ferrite_stat_of(volume, "/file", &stat, 8) == -1, EINVAL);
    OK(ferrite_chmod(volume, "/file", 0600, 0) == 0 && ferrite_chown(volume, "/file", 5, -1, 0) == 0);
    ferrite_time then = {-5, 7}, stays = {0, FERRITE_TIME_OMIT}, now = {0, FERRITE_TIME_NOW}, wrong = {0, 2000000000};
    OK(ferrite_set_times(volume, "/file", &now, &then, 0) == 0);
    OK(ferrite_set_times(volume, "/file", &stays, &stays, 0) == 0);
    FAILS(ferrite_set_times(volume, "/file", &wrong, &stays, 0) == -1, EINVAL);
    FAILS(ferrite_set_times(volume, "/file", NULL, &stays, 0) == -1, EFAULT);
    ferrite_file *file = opened("/file", O_RDONLY);
    OK(ferrite_fstat(file, &stat) == 0 && (stat.mode & 07777) == 0600 && stat.uid == 5 && stat.gid == 0);
    OK(stat.modified.seconds == -5 && stat.modified.nanoseconds == 7 && stat.accessed.seconds > 0);
    ferrite_close_file(file);
    /* A program that was built with an earlier, shorter struct. */
    struct { size_t size; uint64_t ino, guard; } early = {16, 0, 77};
    OK(ferrite_stat_of(volume, "/file", (ferrite_stat *)&early, 0) == 0 && early.ino == stat.ino && early.guard == 77);
    OK(ferrite_truncate(volume, "/file", 3) == 0);
    FAILS(ferrite_truncate(volume, "/file", -3) == -1, EINVAL);
    char value[32];
    OK(ferrite_setxattr(volume, "/file", "user.a", "value", 5, XATTR_CREATE) == 0);
    FAILS(ferrite_setxattr(volume, "/file", "user.a", "value", 5, XATTR_CREATE) == -1, EEXIST);
    FAILS(ferrite_setxattr(volume, "/file", "user.b", "value", 5, XATTR_REPLACE) == -1, ENODATA);
    OK(ferrite_getxattr(volume, "/file", "user.a", value, sizeof value, 0) == 5 && memcmp(value, "value", 5) == 0);
    OK(ferrite_getxattr(volume, "/file", "user.a", NULL, 0, 0) == 5);
    OK(ferrite_listxattr(volume, "/file", value, sizeof value) == 7 && memcmp(value, "user.a", 7) == 0);
    OK(ferrite_removexattr(volume, "/file", "user.a") == 0);
    FAILS(ferrite_removexattr(volume, "/file", "user.a") == -1, ENODATA);
}

/* What a process opened is not its children's. */
static void forks(int is_pool) {
    ferrite_file *before = ferrite_open_file(volume, "/file", O_RDONLY, 0);
    OK(before != NULL);
    pid_t child = fork();
    if (child == 0) {
        ferrite_file *file = ferrite_open_file(volume, "/file", O_RDONLY, 0);
        int is_refused = file == NULL && errno == EBUSY;
        char byte;
        is_refused &= ferrite_pread(before, &byte, 1, 0) == -1 && errno == EBUSY;
        is_refused &= strstr(ferrite_error(), "/file") != NULL && strstr(ferrite_error(), "fork") != NULL;
        ferrite_close(volume);
        _exit(is_refused ? 0 : 1);
    }
    int status = 1;
    OK(child > 0 && waitpid(child, &status, 0) == child);
    OK(!is_pool || status == 0);
    OK(ferrite_close_file(before) == 0);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int is_pool = strcmp(argv[1], "create") == 0;
    volume = is_pool ? ferrite_create(argv[2], 64 << 20, "mapping=leaf,data_checksum") : ferrite_open(argv[2], NULL);
    OK(volume != NULL);
    volumes(argv[2]);
    transfers();
    queues();
    locks();
    names();
    attributes();
    forks(is_pool);
    OK(ferrite_unlink(volume, "/file") == 0 && ferrite_unlink(volume, "/dir/name") == 0);
    OK(ferrite_unlink(volume, "/symbolic") == 0 && ferrite_rmdir(volume, "/dir") == 0);
    OK(ferrite_close(volume) == 0);
    if (is_pool) {
        volume = ferrite_open(argv[2], "read_only,atime=never");
        FAILS(ferrite_mkdir(volume, "/x", 0755) == -1, EROFS);
        OK(ferrite_close(volume) == 0);
    }
    return 0;
}
