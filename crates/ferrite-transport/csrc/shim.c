/*
 * libfabric, as `src/ofi.rs` calls it: one endpoint, one region of memory, plain types.
 *
 * libfabric's calls are inline functions of its headers, behind structures of function pointers. So they are wrapped
 * here, by the compiler that knows the headers. Every function returns zero or more, or a negative error of libfabric.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define API FI_VERSION(1, 17)

struct ferrite_ofi {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *mr;
};

struct ferrite_completion {
    uint64_t context;
    uint64_t len;
    int32_t error;
    int32_t is_receive;
};

/*
 * The library is loaded when it is first used. Debian's brings libraries of adapters that look for these for two tenths
 * of a second before `main`, which no command should wait for that uses no fabric; and it need not be installed.
 */
static struct {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*text)(int);
    uint32_t (*version)(void);
    int is_there;
} library;

static void load(void) {
    void *file = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!file)
        return;
    *(void **)&library.getinfo = dlsym(file, "fi_getinfo");
    *(void **)&library.freeinfo = dlsym(file, "fi_freeinfo");
    *(void **)&library.dupinfo = dlsym(file, "fi_dupinfo");
    *(void **)&library.fabric = dlsym(file, "fi_fabric");
    *(void **)&library.text = dlsym(file, "fi_strerror");
    *(void **)&library.version = dlsym(file, "fi_version");
    library.is_there = library.getinfo && library.freeinfo && library.dupinfo && library.fabric && library.text &&
                       library.version;
}

static int is_there(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return library.is_there;
}

#define OURS __attribute__((visibility("hidden")))

OURS int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **info) {
    return is_there() ? library.getinfo(version, node, service, flags, hints, info) : -FI_ENODATA;
}

OURS void fi_freeinfo(struct fi_info *info) {
    if (info && is_there())
        library.freeinfo(info);
}

OURS struct fi_info *fi_dupinfo(const struct fi_info *info) { return is_there() ? library.dupinfo(info) : NULL; }

OURS int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
    return is_there() ? library.fabric(attr, fabric, context) : -FI_ENODATA;
}

OURS const char *fi_strerror(int error) {
    return is_there() ? library.text(error) : "libfabric.so.1 is not installed (Debian package libfabric1)";
}

OURS uint32_t fi_version(void) { return is_there() ? library.version() : 0; }

uint32_t ferrite_ofi_version(void) { return fi_version(); }

const char *ferrite_ofi_text(int error) { return fi_strerror(error < 0 ? -error : error); }

static int find(const char *provider, const char *node, size_t depth, struct fi_info **found) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return -FI_ENOMEM;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = 0;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->av_type = FI_AV_UNSPEC;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->tx_attr->size = depth;
    hints->rx_attr->size = depth;
    hints->fabric_attr->prov_name = strdup(provider);
    int result = fi_getinfo(API, node, NULL, node ? FI_SOURCE : 0, hints, found);
    fi_freeinfo(hints);
    return result;
}

/*
 * Whether there is a device. `find` would not tell: without an address of this host, ofi_rxm asks for one of the host's
 * name, and that need not be an adapter's (127.0.1.1, on many a Debian).
 */
int ferrite_ofi_has(const char *provider) {
    struct fi_info *found = NULL, *hints = fi_allocinfo();
    if (!hints)
        return -FI_ENOMEM;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = ~0ULL;
    hints->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE);
    hints->fabric_attr->prov_name = strndup(provider, strcspn(provider, ";"));
    int result = fi_getinfo(API, NULL, NULL, 0, hints, &found);
    fi_freeinfo(hints);
    if (!result)
        fi_freeinfo(found);
    return result;
}

void ferrite_ofi_close(struct ferrite_ofi *it) {
    if (it->ep)
        fi_close(&it->ep->fid);
    if (it->mr)
        fi_close(&it->mr->fid);
    if (it->cq)
        fi_close(&it->cq->fid);
    if (it->av)
        fi_close(&it->av->fid);
    if (it->domain)
        fi_close(&it->domain->fid);
    if (it->fabric)
        fi_close(&it->fabric->fid);
    if (it->info)
        fi_freeinfo(it->info);
    free(it);
}

/* On failure `step` says what was being done. */
int ferrite_ofi_open(const char *provider, const char *node, size_t depth, void *base, size_t len, uint64_t key,
                     int is_remote, struct ferrite_ofi **opened, const char **step) {
    struct ferrite_ofi *it = calloc(1, sizeof *it);
    if (!it)
        return -FI_ENOMEM;
    struct fi_cq_attr cq = {.size = 4 * depth, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av = {.type = FI_AV_UNSPEC};
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | (is_remote ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
    int result;
#define TRY(what, call)                                                                                                \
    do {                                                                                                               \
        *step = what;                                                                                                  \
        result = (call);                                                                                               \
        if (result)                                                                                                    \
            goto failed;                                                                                               \
    } while (0)
    TRY("finding the provider", find(provider, node, depth, &it->info));
    TRY("opening the fabric", fi_fabric(it->info->fabric_attr, &it->fabric, NULL));
    TRY("opening the domain", fi_domain(it->fabric, it->info, &it->domain, NULL));
    av.type = it->info->domain_attr->av_type;
    TRY("making the table of addresses", fi_av_open(it->domain, &av, &it->av, NULL));
    TRY("making the queue of completions", fi_cq_open(it->domain, &cq, &it->cq, NULL));
    TRY("making the endpoint", fi_endpoint(it->domain, it->info, &it->ep, NULL));
    TRY("binding addresses", fi_ep_bind(it->ep, &it->av->fid, 0));
    TRY("binding completions", fi_ep_bind(it->ep, &it->cq->fid, FI_TRANSMIT | FI_RECV));
    TRY("registering memory", fi_mr_reg(it->domain, base, len, access, 0, key, 0, &it->mr, NULL));
    TRY("enabling the endpoint", fi_enable(it->ep));
    *opened = it;
    return 0;
failed:
    ferrite_ofi_close(it);
    return result;
}

/*
 * The first page of an endpoint's memory over shm, as libfabric 1.17 lays it out: at byte 4 its process, at byte 24 the
 * lock of all who send to it, and of itself. A process that is killed with it leaves it locked.
 */
enum { PAGE = 4096, PROCESS_AT = 4, LOCK_AT = 24 };

void *ferrite_ofi_watch(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return NULL;
    struct stat found;
    int is_one = !fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size >= PAGE;
    void *page = is_one ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    return page == MAP_FAILED ? NULL : page;
}

int ferrite_ofi_watched(const void *page) {
    int process;
    memcpy(&process, (const char *)page + PROCESS_AT, sizeof process);
    return process;
}

int ferrite_ofi_try_lock(void *page) { return pthread_spin_trylock((pthread_spinlock_t *)((char *)page + LOCK_AT)); }

void ferrite_ofi_unlock(void *page) { pthread_spin_unlock((pthread_spinlock_t *)((char *)page + LOCK_AT)); }

void ferrite_ofi_unwatch(void *page) { munmap(page, PAGE); }

uint64_t ferrite_ofi_key(struct ferrite_ofi *it) { return fi_mr_key(it->mr); }

/* Whether peers name memory by its address here, or by its offset in the region. */
int ferrite_ofi_is_virtual(struct ferrite_ofi *it) { return !!(it->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR); }

size_t ferrite_ofi_inject_size(struct ferrite_ofi *it) { return it->info->tx_attr->inject_size; }

int ferrite_ofi_name(struct ferrite_ofi *it, void *name, size_t *len) { return fi_getname(&it->ep->fid, name, len); }

int ferrite_ofi_insert(struct ferrite_ofi *it, const void *name, uint64_t *peer) {
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    int count = fi_av_insert(it->av, name, 1, &address, 0, NULL);
    if (count != 1 || address == FI_ADDR_NOTAVAIL)
        return count < 0 ? count : -FI_EADDRNOTAVAIL;
    *peer = address;
    return 0;
}

int ferrite_ofi_remove(struct ferrite_ofi *it, uint64_t peer) {
    fi_addr_t address = peer;
    return fi_av_remove(it->av, &address, 1, 0);
}

static void *descriptor(struct ferrite_ofi *it) { return fi_mr_desc(it->mr); }

ssize_t ferrite_ofi_receive(struct ferrite_ofi *it, void *buffer, size_t len, uint64_t context) {
    return fi_recv(it->ep, buffer, len, descriptor(it), FI_ADDR_UNSPEC, (void *)(uintptr_t)context);
}

ssize_t ferrite_ofi_send(struct ferrite_ofi *it, const void *buffer, size_t len, uint64_t peer, uint64_t context) {
    return fi_send(it->ep, buffer, len, descriptor(it), peer, (void *)(uintptr_t)context);
}

ssize_t ferrite_ofi_inject(struct ferrite_ofi *it, const void *bytes, size_t len, uint64_t peer) {
    return fi_inject(it->ep, bytes, len, peer);
}

ssize_t ferrite_ofi_read(struct ferrite_ofi *it, void *buffer, size_t len, uint64_t peer, uint64_t address,
                         uint64_t key, uint64_t context) {
    return fi_read(it->ep, buffer, len, descriptor(it), peer, address, key, (void *)(uintptr_t)context);
}

/* Completes when the data can be seen at the peer. */
ssize_t ferrite_ofi_write(struct ferrite_ofi *it, const void *buffer, size_t len, uint64_t peer, uint64_t address,
                          uint64_t key, uint64_t context) {
    struct iovec from = {.iov_base = (void *)buffer, .iov_len = len};
    struct fi_rma_iov to = {.addr = address, .len = len, .key = key};
    void *desc = descriptor(it);
    struct fi_msg_rma message = {
        .msg_iov = &from,
        .desc = &desc,
        .iov_count = 1,
        .addr = peer,
        .rma_iov = &to,
        .rma_iov_count = 1,
        .context = (void *)(uintptr_t)context,
    };
    return fi_writemsg(it->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* Drives the provider; returns how many completions there were. */
ssize_t ferrite_ofi_poll(struct ferrite_ofi *it, struct ferrite_completion *completions, size_t most) {
    struct fi_cq_msg_entry entries[16];
    ssize_t count = fi_cq_read(it->cq, entries, most < 16 ? most : 16);
    if (count == -FI_EAGAIN)
        return 0;
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry failed = {0};
        count = fi_cq_readerr(it->cq, &failed, 0);
        if (count == -FI_EAGAIN)
            return 0;
        if (count < 0)
            return count;
        completions[0].context = (uint64_t)(uintptr_t)failed.op_context;
        completions[0].len = 0;
        completions[0].error = failed.err ? failed.err : FI_EOTHER;
        completions[0].is_receive = !!(failed.flags & FI_RECV);
        return 1;
    }
    for (ssize_t i = 0; i < count; i++) {
        completions[i].context = (uint64_t)(uintptr_t)entries[i].op_context;
        completions[i].len = entries[i].len;
        completions[i].error = 0;
        completions[i].is_receive = !!(entries[i].flags & FI_RECV);
    }
    return count;
}
