/*
 * A peer of remote clients: a client of an NFS server, through libnfs.
 *
 * It reads lines "OPERATION COUNT DEPTH" from its standard input, does so many operations with so many under way, and
 * answers each with a line: the nanoseconds that they took in all. What fails ends it, with a message.
 *
 * Writes are stable: the file is open with O_SYNC, so the server answers when the data is on its disk.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#include <nfsc/libnfs.h>

#define FILE_BYTES (64ull << 20)
#define LARGE_BYTES (4u << 20)
#define SMALL_BYTES 4096u

static struct nfs_context *nfs;
static struct nfsfh *file;
static char *data;
static uint64_t next_number;

static void fail(const char *what)
{
    fprintf(stderr, "NFS: %s: %s\n", what, nfs_get_error(nfs));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* The finalizer of splitmix64, for places in the file. */
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

static uint64_t page(uint64_t number)
{
    return mix(number) % (FILE_BYTES / SMALL_BYTES) * SMALL_BYTES;
}

/* Large transfers go in the pieces that the server allows. */
static void transfer(int is_write, uint64_t offset, size_t len)
{
    size_t most = is_write ? nfs_get_writemax(nfs) : nfs_get_readmax(nfs);
    for (size_t done = 0; done < len;) {
        size_t piece = len - done < most ? len - done : most;
        int count = is_write ? nfs_pwrite(nfs, file, offset + done, piece, data + done)
                             : nfs_pread(nfs, file, offset + done, piece, data + done);
        if (count <= 0)
            fail(is_write ? "write" : "read");
        done += count;
    }
}

struct many {
    uint64_t left, under_way;
    int is_write;
};

static void ask(struct many *many);

static void answered(int status, struct nfs_context *context, void *bytes, void *private)
{
    struct many *many = private;
    (void)context;
    (void)bytes;
    if (status != (int)SMALL_BYTES)
        fail("a request of many");
    many->under_way--;
    ask(many);
}

static void ask(struct many *many)
{
    if (many->left == 0)
        return;
    many->left--;
    many->under_way++;
    uint64_t at = page(next_number++);
    int failed = many->is_write ? nfs_pwrite_async(nfs, file, at, SMALL_BYTES, data, answered, many)
                                : nfs_pread_async(nfs, file, at, SMALL_BYTES, answered, many);
    if (failed)
        fail("a request of many");
}

static void at_depth(int is_write, uint64_t count, uint64_t depth)
{
    struct many many = { count, 0, is_write };
    for (uint64_t i = 0; i < depth; i++)
        ask(&many);
    while (many.under_way > 0) {
        struct pollfd waited = { nfs_get_fd(nfs), nfs_which_events(nfs), 0 };
        if (poll(&waited, 1, 10000) <= 0 || nfs_service(nfs, waited.revents) < 0)
            fail("waiting");
    }
}

/* What mdtest does: each to a directory or a file of its own. */
static void one_of_many(const char *operation, uint64_t step)
{
    char name[64];
    struct nfs_stat_64 attributes;
    struct nfsfh *opened;
    int failed = 1;
    snprintf(name, sizeof name, "/d/%c%" PRIu64, operation[0], step);
    if (!strcmp(operation, "dir_create"))
        failed = nfs_mkdir(nfs, name);
    else if (!strcmp(operation, "dir_remove"))
        failed = nfs_rmdir(nfs, name);
    else if (!strcmp(operation, "file_create"))
        failed = nfs_creat(nfs, name, 0644, &opened) || nfs_close(nfs, opened);
    else if (!strcmp(operation, "file_read"))
        failed = nfs_open(nfs, name, O_RDONLY, &opened) || nfs_pread(nfs, opened, 0, SMALL_BYTES, data) < 0 ||
                 nfs_close(nfs, opened);
    else if (!strcmp(operation, "file_remove"))
        failed = nfs_unlink(nfs, name);
    else if (strstr(operation, "_stat"))
        failed = nfs_stat64(nfs, name, &attributes);
    if (failed)
        fail(operation);
}

/* `step` counts the operations of a line, so that what one line creates another finds, and a third removes. */
static void once(const char *operation, uint64_t step)
{
    char name[64];
    struct nfs_stat_64 attributes;
    struct nfsfh *created;
    uint64_t number = next_number++;
    snprintf(name, sizeof name, "/d/new%" PRIu64, number);
    if (!strcmp(operation, "read_4k")) {
        transfer(0, page(number), SMALL_BYTES);
    } else if (!strcmp(operation, "write_4k")) {
        transfer(1, page(number), SMALL_BYTES);
    } else if (!strcmp(operation, "read_4m")) {
        transfer(0, number * LARGE_BYTES % FILE_BYTES, LARGE_BYTES);
    } else if (!strcmp(operation, "write_4m")) {
        transfer(1, number * LARGE_BYTES % FILE_BYTES, LARGE_BYTES);
    } else if (!strcmp(operation, "stat")) {
        if (nfs_stat64(nfs, "/d/data", &attributes))
            fail("stat");
    } else if (!strncmp(operation, "dir_", 4) || !strncmp(operation, "file_", 5)) {
        one_of_many(operation, step);
    } else if (!strcmp(operation, "create_unlink")) {
        if (nfs_creat(nfs, name, 0644, &created) || nfs_close(nfs, created) || nfs_unlink(nfs, name))
            fail("create and unlink");
    } else if (!strcmp(operation, "mkdir_rmdir")) {
        if (nfs_mkdir(nfs, name) || nfs_rmdir(nfs, name))
            fail("mkdir and rmdir");
    } else if (!strcmp(operation, "rename")) {
        static int is_there;
        if (nfs_rename(nfs, is_there ? "/d/there" : "/d/here", is_there ? "/d/here" : "/d/there"))
            fail("rename");
        is_there = !is_there;
    } else {
        fprintf(stderr, "no operation is called %s\n", operation);
        exit(1);
    }
}

int main(int count_of_arguments, char **arguments)
{
    char line[128], operation[32];
    uint64_t count, depth;
    nfs = nfs_init_context();
    struct nfs_url *url = count_of_arguments == 2 ? nfs_parse_url_dir(nfs, arguments[1]) : NULL;
    data = malloc(LARGE_BYTES);
    if (!url || !data || nfs_mount(nfs, url->server, url->path))
        fail("mount");
    memset(data, 7, LARGE_BYTES);
    if (nfs_creat(nfs, "/d/here", 0644, &file) || nfs_close(nfs, file))
        fail("create");
    if (nfs_creat(nfs, "/d/data", 0644, &file) || nfs_close(nfs, file) ||
        nfs_open(nfs, "/d/data", O_RDWR | O_SYNC, &file))
        fail("create");
    for (uint64_t offset = 0; offset < FILE_BYTES; offset += LARGE_BYTES)
        transfer(1, offset, LARGE_BYTES);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %" SCNu64 " %" SCNu64, operation, &count, &depth) != 3)
            return 1;
        uint64_t began = now_ns();
        if (depth > 1)
            at_depth(!strcmp(operation, "write_4k"), count, depth);
        else
            for (uint64_t i = 0; i < count; i++)
                once(operation, i);
        printf("%" PRIu64 "\n", now_ns() - began);
        fflush(stdout);
    }
    return 0;
}
