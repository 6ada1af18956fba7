/* An engine of fio for Ferrite: measures a pool in the process of fio, or a server without a mount. docs/benchmarks.md
 * shows jobs, scripts/fio-engine.sh builds it.
 *
 * fio gives the main thread setup(), before it starts the threads of jobs, and each thread the rest. A pool belongs to
 * one process, so jobs are threads, and jobs with the same volume share it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include "ferrite.h"

struct options {
    void *pad; /* fio takes an offset of 0 for none. */
    char *volume;
    char *volume_options;
};

static struct fio_option options[] = {
    {
        .name = "volume",
        .lname = "Ferrite volume",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, volume),
        .help = "A pool, tcp://HOST:PORT/EXPORT, or nvme:FILE",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "volume_options",
        .lname = "Options of the Ferrite volume",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct options, volume_options),
        .help = "NAME=VALUE,... as ferrite_open() has them",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {.name = NULL},
};

struct shared {
    struct shared *next;
    char *address;
    ferrite_volume *volume;
    unsigned jobs;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared *volumes;

struct job {
    struct shared *shared;
    ferrite_queue *queue;
    ferrite_completion *completed;
};

static int failed(struct thread_data *td, const char *what) {
    int number = errno;
    log_err("ferrite: %s\n", ferrite_error());
    td_verror(td, number, what);
    return 1;
}

static struct shared *join_volume(const struct options *of) {
    pthread_mutex_lock(&lock);
    struct shared *found = volumes;
    while (found && strcmp(found->address, of->volume) != 0)
        found = found->next;
    if (!found) {
        ferrite_volume *volume = ferrite_open(of->volume, of->volume_options);
        if (volume) {
            found = calloc(1, sizeof *found);
            found->address = strdup(of->volume);
            found->volume = volume;
            found->next = volumes;
            volumes = found;
        }
    }
    if (found)
        found->jobs++;
    pthread_mutex_unlock(&lock);
    return found;
}

static int leave_volume(struct shared *left) {
    int result = 0;
    pthread_mutex_lock(&lock);
    if (--left->jobs == 0) {
        struct shared **at = &volumes;
        while (*at != left)
            at = &(*at)->next;
        *at = left->next;
        result = ferrite_close(left->volume);
        free(left->address);
        free(left);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static ferrite_volume *volume_of(struct thread_data *td) {
    return ((struct job *)td->io_ops_data)->shared->volume;
}

static int get_file_size(struct thread_data *td, struct fio_file *f) {
    ferrite_stat stat = {.struct_size = sizeof stat};
    f->filetype = FIO_TYPE_FILE;
    f->real_file_size = 0;
    if (ferrite_stat_of(volume_of(td), f->file_name, &stat, 0) == 0)
        f->real_file_size = stat.size;
    else if (errno != ENOENT)
        return failed(td, "stat");
    fio_file_set_size_known(f);
    return 0;
}

static int setup(struct thread_data *td) {
    const struct options *of = td->eo;
    struct fio_file *f;
    unsigned int i;
    if (!of->volume) {
        log_err("ferrite: volume= names a pool, or the export of a server\n");
        return 1;
    }
    td->o.use_thread = 1;
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return 1;
    job->shared = join_volume(of);
    if (!job->shared) {
        free(job);
        return failed(td, "open the volume");
    }
    td->io_ops_data = job;
    for_each_file(td, f, i)
        if (get_file_size(td, f))
            return 1;
    return 0;
}

/* Writes what a job will read, where the file is shorter. fio knows the sizes of jobs now. */
static int prepopulate_file(struct thread_data *td, struct fio_file *f) {
    enum { CHUNK = 1 << 20 };
    uint64_t end = f->file_offset + f->io_size, at = f->real_file_size;
    if (at >= end)
        return 0;
    /* fio makes no transfer beyond this. */
    f->real_file_size = end;
    if (!td_read(td) && !td->o.overwrite)
        return 0;
    if (read_only) {
        log_err("ferrite: %s is too short for its job, and fio is not to write\n", f->file_name);
        return 1;
    }
    char *chunk = malloc(CHUNK);
    ferrite_file *file = chunk ? ferrite_open_file(volume_of(td), f->file_name, O_WRONLY | O_CREAT, 0644) : NULL;
    int result = file ? 0 : failed(td, "lay out");
    while (result == 0 && at < end) {
        uint64_t len = end - at < CHUNK ? end - at : CHUNK;
        fill_random_buf(&td->buf_state, chunk, len);
        ssize_t written = ferrite_pwrite(file, chunk, len, at);
        if (written <= 0)
            result = failed(td, "lay out");
        else
            at += written;
    }
    ferrite_close_file(file);
    free(chunk);
    return result;
}

static int init(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (td->o.iodepth == 1)
        return 0;
    job->completed = calloc(td->o.iodepth, sizeof *job->completed);
    job->queue = job->completed ? ferrite_queue_open(td->o.iodepth) : NULL;
    return job->queue ? 0 : failed(td, "make a queue");
}

static void cleanup(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (!job)
        return;
    ferrite_queue_close(job->queue);
    if (leave_volume(job->shared) < 0)
        failed(td, "close the volume");
    free(job->completed);
    free(job);
    td->io_ops_data = NULL;
}

static int open_file(struct thread_data *td, struct fio_file *f) {
    int flags = td_write(td) || td_trim(td) ? O_RDWR | (td->o.allow_create ? O_CREAT : 0) : O_RDONLY;
    if (td->o.odirect == 0 && td->o.sync_io)
        flags |= O_SYNC;
    ferrite_file *file = ferrite_open_file(volume_of(td), f->file_name, flags, 0644);
    if (!file)
        return failed(td, "open");
    FILE_SET_ENG_DATA(f, file);
    return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f) {
    ferrite_file *file = FILE_ENG_DATA(f);
    FILE_SET_ENG_DATA(f, NULL);
    return ferrite_close_file(file) < 0 ? failed(td, "close") : 0;
}

static int unlink_file(struct thread_data *td, struct fio_file *f) {
    return ferrite_unlink(volume_of(td), f->file_name) < 0 ? errno : 0;
}

/* `result` is a count of bytes, or a negative errno. */
static void finish(struct io_u *io_u, int64_t result) {
    io_u->error = result < 0 ? (unsigned int)-result : 0;
    io_u->resid = result < 0 ? 0 : io_u->xfer_buflen - result;
}

/* The errno of a call that failed, as the result of a transfer. */
static int64_t numbered(int64_t result) {
    return result < 0 ? -(int64_t)errno : result;
}

static enum fio_q_status submit(struct job *job, struct io_u *io_u, ferrite_file *file) {
    uint64_t tag = (uintptr_t)io_u;
    int result = io_u->ddir == DDIR_READ
                     ? ferrite_submit_pread(job->queue, file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, tag)
                     : ferrite_submit_pwrite(job->queue, file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, tag);
    if (result == 0)
        return FIO_Q_QUEUED;
    if (errno == EAGAIN)
        return FIO_Q_BUSY;
    log_err("ferrite: %s\n", ferrite_error());
    finish(io_u, -(int64_t)errno);
    return FIO_Q_COMPLETED;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u) {
    enum { PUNCH = 0x02 | 0x01 /* FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE */ };
    struct job *job = td->io_ops_data;
    ferrite_file *file = FILE_ENG_DATA(io_u->file);
    int is_transfer = io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE;
    int64_t result = -EOPNOTSUPP;
    fio_ro_check(td, io_u);
    if (job->queue && is_transfer)
        return submit(job, io_u, file);
    if (io_u->ddir == DDIR_READ)
        result = numbered(ferrite_pread(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset));
    else if (io_u->ddir == DDIR_WRITE)
        result = numbered(ferrite_pwrite(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset));
    else if (io_u->ddir == DDIR_TRIM)
        result = numbered(ferrite_fallocate(file, PUNCH, io_u->offset, io_u->xfer_buflen));
    else if (ddir_sync(io_u->ddir))
        result = numbered(ferrite_fsync(file));
    finish(io_u, !is_transfer && result == 0 ? (int64_t)io_u->xfer_buflen : result);
    return FIO_Q_COMPLETED;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t) {
    struct job *job = td->io_ops_data;
    int64_t timeout_ms = t ? t->tv_sec * 1000LL + t->tv_nsec / 1000000 : -1;
    if (!job->queue)
        return 0;
    if (max > td->o.iodepth)
        max = td->o.iodepth;
    int count = ferrite_queue_wait(job->queue, job->completed, min, max, timeout_ms);
    return count < 0 ? -failed(td, "wait") : count;
}

static struct io_u *event(struct thread_data *td, int number) {
    struct job *job = td->io_ops_data;
    struct io_u *io_u = (struct io_u *)(uintptr_t)job->completed[number].tag;
    finish(io_u, job->completed[number].result);
    return io_u;
}

/* fio looks for this name. */
struct ioengine_ops ioengine = {
    .name = "ferrite",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NODISKUTIL,
    .setup = setup,
    .init = init,
    .cleanup = cleanup,
    .open_file = open_file,
    .close_file = close_file,
    .unlink_file = unlink_file,
    .get_file_size = get_file_size,
    .prepopulate_file = prepopulate_file,
    .queue = queue,
    .getevents = getevents,
    .event = event,
    .options = options,
    .option_struct_size = sizeof(struct options),
};
