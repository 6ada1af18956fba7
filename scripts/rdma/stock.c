/*
 * A verbs program with nothing of Ferrite in it: it writes and reads a file of a Ferrite server through libibverbs and
 * librdmacm, as any client with an adapter would. Built and run by `make rdma`, against the kernel's soft RDMA.
 *
 *   stock exchange HOST PORT DEVICE GID_INDEX SIZE IMAGE SEED light|full   keys and queue pairs as perftest tells them
 *   stock cm HOST PORT KEY PASS SIZE IMAGE SEED light|full                 queue pairs by rdma_cm; PASS in hexadecimal
 *
 * SIZE is the file's size, whose bytes are zeros at the beginning. IMAGE is made: it is what the file must be at the
 * end, for who compares it with the file as the server shows it. `light` leaves out the longest messages.
 *
 * It ends at the first thing that is not as it should be. It says what it has checked.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define APPEND_AT (UINT64_C(1) << 63)
#define RESERVE_AT (UINT64_C(1) << 62)
#define BUFFER_BYTES (8u << 20)
/* What the second half of the buffer is for: what comes back. */
#define BACK (BUFFER_BYTES / 2)
#define FILE_BYTES_MAX (64u << 20)
#define DEPTH 64
/* READs and atomics under way at a time. */
#define READS 16
/* Eight packets before the numbers begin anew. */
#define FIRST_PSN 0xfffff8u
#define LINE_BYTES 108
#define PAIRS 4
/* Under emulation, with losses, much takes long. */
#define PATIENCE_S 60

struct pair {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    uint8_t *buffer;
    uint32_t key;
    int socket;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
};

static bool by_cm, is_full;
static const char *host, *port, *device, *cm_key, *cm_pass;
static int gid_index;
static uint8_t *model;
static uint64_t size;
static uint64_t random_state;

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stock: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(1);
}

/* Of a call that sets errno. */
static void check(bool is_right, const char *what)
{
    if (!is_right)
        fail("%s: %s", what, strerror(errno));
}

/* Of what the server did. */
static void must(bool is_right, const char *what)
{
    if (!is_right)
        fail("%s: not as it must be", what);
}

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void fill(uint8_t *bytes, size_t count)
{
    for (size_t index = 0; index < count; index++)
        bytes[index] = (uint8_t)(draw() >> 56);
}

static int dial(void)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, port, &hints, &found), socket_ = -1;
    if (error)
        fail("%s: %s", host, gai_strerror(error));
    for (struct addrinfo *one = found; one; one = one->ai_next) {
        socket_ = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
        if (socket_ >= 0 && !connect(socket_, one->ai_addr, one->ai_addrlen))
            break;
        close(socket_);
        socket_ = -1;
    }
    check(socket_ >= 0, "connecting to the exchange");
    freeaddrinfo(found);
    return socket_;
}

/* Says something, and hears as much. */
static void trade(int socket_, const void *ours, void *theirs, size_t count)
{
    check(write(socket_, ours, count) == (ssize_t)count, "saying something in the exchange");
    for (size_t done = 0; done < count;) {
        ssize_t got = read(socket_, (char *)theirs + done, count - done);
        check(got > 0, "hearing something in the exchange");
        done += (size_t)got;
    }
}

static void make_verbs(struct pair *pair)
{
    pair->pd = ibv_alloc_pd(pair->context);
    check(pair->pd, "a protection domain");
    pair->cq = ibv_create_cq(pair->context, 2 * DEPTH, NULL, NULL, 0);
    check(pair->cq, "a completion queue");
    pair->buffer = calloc(1, BUFFER_BYTES);
    check(pair->buffer, "memory");
    pair->mr = ibv_reg_mr(pair->pd, pair->buffer, BUFFER_BYTES, IBV_ACCESS_LOCAL_WRITE);
    check(pair->mr, "registering memory");
}

static struct ibv_qp_init_attr queues(struct pair *pair)
{
    return (struct ibv_qp_init_attr){
        .send_cq = pair->cq,
        .recv_cq = pair->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
}

/* Moves a queue pair through its states, as ibv_rc_pingpong does. */
static void bring_up(struct pair *pair, uint32_t qpn, uint32_t psn, const union ibv_gid *gid, enum ibv_mtu mtu)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_qp_attr ready = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = qpn,
        .rq_psn = psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = gid_index, .hop_limit = 64}},
    };
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS,
        .timeout = 15,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .sq_psn = FIRST_PSN,
        .max_rd_atomic = READS,
    };
    errno = ibv_modify_qp(pair->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    check(!errno, "INIT");
    errno = ibv_modify_qp(pair->qp, &ready,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    check(!errno, "RTR");
    errno = ibv_modify_qp(pair->qp, &send,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                              IBV_QP_MAX_QP_RD_ATOMIC);
    check(!errno, "RTS");
}

static struct ibv_context *open_device(void)
{
    struct ibv_context *context = NULL;
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    for (int index = 0; index < count && !context; index++)
        if (!strcmp(ibv_get_device_name(devices[index]), device))
            context = ibv_open_device(devices[index]);
    check(context, "the device");
    ibv_free_device_list(devices);
    return context;
}

/* A queue pair whose ends are told to each other as perftest does. */
static void connect_by_exchange(struct pair *pair)
{
    char version[16] = "6.06", line[LINE_BYTES] = "", digits[2] = "", *field = line;
    uint32_t number = 0, qpn = 0, psn = 0;
    struct ibv_port_attr attributes;
    union ibv_gid gid;

    pair->context = open_device();
    make_verbs(pair);
    struct ibv_qp_init_attr wanted = queues(pair);
    pair->qp = ibv_create_qp(pair->pd, &wanted);
    check(pair->qp, "a queue pair");
    check(!ibv_query_port(pair->context, 1, &attributes), "the port");
    check(!ibv_query_gid(pair->context, 1, gid_index, &gid), "the GID");

    pair->socket = dial();
    trade(pair->socket, version, version, sizeof version);
    trade(pair->socket, &number, &number, sizeof number);
    trade(pair->socket, &number, &number, sizeof number);
    digits[0] = (char)('0' + attributes.active_mtu);
    trade(pair->socket, digits, digits, sizeof digits);
    int len = snprintf(line, sizeof line, "0000:%04x:%06x:%06x:00000000:0000000000000000:", READS, pair->qp->qp_num,
                       FIRST_PSN);
    for (int index = 0; index < 16; index++)
        len += snprintf(line + len, sizeof line - (size_t)len, "%02x:", gid.raw[index]);
    snprintf(line + len, sizeof line - (size_t)len, "00000000:");
    trade(pair->socket, line, line, sizeof line);
    for (int index = 0; index < 22; index++) {
        uint64_t value = strtoull(field, &field, 16);
        field++;
        if (index == 2)
            qpn = (uint32_t)value;
        else if (index == 3)
            psn = (uint32_t)value;
        else if (index == 4)
            pair->key = (uint32_t)value;
        else if (index >= 6)
            gid.raw[index - 6] = (uint8_t)value;
    }
    bring_up(pair, qpn, psn, &gid, (enum ibv_mtu)(digits[0] - '0'));
    printf("queue pair %06x for %06x, path MTU %d\n", qpn, pair->qp->qp_num, 128 << (digits[0] - '0'));
}

static void await(struct pair *pair, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event;
    check(!rdma_get_cm_event(pair->channel, &event), "an event of rdma_cm");
    if (event->event != wanted)
        fail("rdma_cm says %s (status %d), not %s", rdma_event_str(event->event), event->status,
             rdma_event_str(wanted));
    rdma_ack_cm_event(event);
}

static void connect_by_cm(struct pair *pair)
{
    uint8_t pass[16], ack_timeout = 15;
    struct rdma_addrinfo *found, hints = {.ai_port_space = RDMA_PS_TCP};
    struct rdma_conn_param parameters = {
        .private_data = pass,
        .private_data_len = sizeof pass,
        .responder_resources = READS,
        .initiator_depth = READS,
        .retry_count = 7,
        .rnr_retry_count = 7,
    };

    for (int index = 0; index < 16; index++)
        check(sscanf(cm_pass + 2 * index, "%2hhx", &pass[index]) == 1, "the pass");
    check(!rdma_getaddrinfo(host, port, &hints, &found), "the server's address");
    pair->channel = rdma_create_event_channel();
    check(pair->channel, "a channel for events");
    check(!rdma_create_id(pair->channel, &pair->id, NULL, RDMA_PS_TCP), "a connection");
    check(!rdma_resolve_addr(pair->id, NULL, found->ai_dst_addr, 5000), "the address");
    await(pair, RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_set_option(pair->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, sizeof ack_timeout),
          "the time for an acknowledgement");
    check(!rdma_resolve_route(pair->id, 5000), "the route");
    await(pair, RDMA_CM_EVENT_ROUTE_RESOLVED);
    pair->context = pair->id->verbs;
    make_verbs(pair);
    struct ibv_qp_init_attr wanted = queues(pair);
    check(!rdma_create_qp(pair->id, pair->pd, &wanted), "a queue pair");
    pair->qp = pair->id->qp;
    pair->key = (uint32_t)strtoul(cm_key, NULL, 0);
    check(!rdma_connect(pair->id, &parameters), "asking for a connection");
    await(pair, RDMA_CM_EVENT_ESTABLISHED);
    printf("queue pair %06x, by rdma_cm\n", pair->qp->qp_num);
    rdma_freeaddrinfo(found);
}

static void connect_pair(struct pair *pair)
{
    memset(pair, 0, sizeof *pair);
    pair->socket = -1;
    if (by_cm)
        connect_by_cm(pair);
    else
        connect_by_exchange(pair);
}

/* `is_over`: the other end has ended it already, or is about to. */
static void disconnect(struct pair *pair, bool is_over)
{
    if (by_cm) {
        rdma_disconnect(pair->id);
        if (!is_over)
            await(pair, RDMA_CM_EVENT_DISCONNECTED);
        rdma_destroy_qp(pair->id);
    } else {
        ibv_destroy_qp(pair->qp);
    }
    ibv_dereg_mr(pair->mr);
    ibv_destroy_cq(pair->cq);
    ibv_dealloc_pd(pair->pd);
    free(pair->buffer);
    if (by_cm) {
        rdma_destroy_id(pair->id);
        rdma_destroy_event_channel(pair->channel);
    } else {
        ibv_close_device(pair->context);
        close(pair->socket);
    }
}

static void post_with(struct pair *pair, enum ibv_wr_opcode opcode, uint64_t at, uint32_t here, uint32_t count,
                      uint64_t first, uint64_t second)
{
    struct ibv_sge sge = {.addr = (uintptr_t)pair->buffer + here, .length = count, .lkey = pair->mr->lkey};
    struct ibv_send_wr request = {
        .wr_id = at,
        .sg_list = &sge,
        .num_sge = count ? 1 : 0,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
    }, *refused;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        request.wr.atomic.remote_addr = at;
        request.wr.atomic.rkey = pair->key;
        request.wr.atomic.compare_add = first;
        request.wr.atomic.swap = second;
    } else {
        request.wr.rdma.remote_addr = at;
        request.wr.rdma.rkey = pair->key;
    }
    errno = ibv_post_send(pair->qp, &request, &refused);
    check(!errno, "posting");
}

static void post(struct pair *pair, enum ibv_wr_opcode opcode, uint64_t at, uint32_t here, uint32_t count)
{
    post_with(pair, opcode, at, here, count, 0, 0);
}

static enum ibv_wc_status finish(struct pair *pair)
{
    struct ibv_wc completion;
    time_t until = time(NULL) + PATIENCE_S;
    int count;
    do
        count = ibv_poll_cq(pair->cq, 1, &completion);
    while (!count && time(NULL) < until);
    must(count, "a completion within a minute");
    check(count > 0, "polling");
    return completion.status;
}

static void succeed(struct pair *pair, const char *what)
{
    enum ibv_wc_status status = finish(pair);
    if (status != IBV_WC_SUCCESS)
        fail("%s: %s", what, ibv_wc_status_str(status));
}

static uint64_t fetched(struct pair *pair)
{
    uint64_t value;
    memcpy(&value, pair->buffer + BACK, sizeof value);
    return value;
}

static uint64_t fetch_add(struct pair *pair, uint64_t at, uint64_t add)
{
    post_with(pair, IBV_WR_ATOMIC_FETCH_AND_ADD, at, BACK, 8, add, 0);
    succeed(pair, "FETCH_ADD");
    return fetched(pair);
}

static uint64_t compare_swap(struct pair *pair, uint64_t at, uint64_t compare, uint64_t swap)
{
    post_with(pair, IBV_WR_ATOMIC_CMP_AND_SWP, at, BACK, 8, compare, swap);
    succeed(pair, "CMP_SWAP");
    return fetched(pair);
}

/* Reads a range, and compares it with what it should be. */
static void compare(struct pair *pair, uint64_t at, uint32_t count)
{
    memset(pair->buffer + BACK, 0xa5, count);
    post(pair, IBV_WR_RDMA_READ, at, BACK, count);
    succeed(pair, "READ");
    if (memcmp(pair->buffer + BACK, model + at, count))
        fail("%u bytes at %llu are not what was written", count, (unsigned long long)at);
}

static void write_at(struct pair *pair, uint64_t at, uint32_t count)
{
    fill(pair->buffer, count);
    memcpy(model + at, pair->buffer, count);
    post(pair, IBV_WR_RDMA_WRITE, at, 0, count);
    succeed(pair, "WRITE");
}

static void grow(const uint8_t *bytes, uint64_t count)
{
    must(size + count <= FILE_BYTES_MAX, "the file's size");
    memcpy(model + size, bytes, count);
    size += count;
}

static void append(struct pair *pair, uint32_t count)
{
    fill(pair->buffer, count);
    grow(pair->buffer, count);
    post(pair, IBV_WR_RDMA_WRITE, APPEND_AT, 0, count);
    succeed(pair, "WRITE that appends");
}

static void all_sizes(struct pair *pair)
{
    static const uint32_t sizes[] = {1,    2,    3,    7,     8,     63,     64,     65,      255,
                                     1023, 1024, 1025, 4095,  4096,  4097,   8191,   10000,   65535,
                                     65536, 262143, 1048577, 4194303, 4194304};
    for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        uint32_t count = sizes[index];
        if (count > BACK || (!is_full && count > 65536))
            continue;
        uint64_t at = draw() % (size - count);
        write_at(pair, at, count);
        compare(pair, at, count);
    }
    printf("WRITE and READ of 1 byte to %s at any offset\n", is_full ? "4 MiB" : "64 KiB");
}

static void many_under_way(struct pair *pair, int rounds)
{
    enum { COUNT = 32, BYTES = 5000 };
    for (int round = 0; round < rounds; round++) {
        for (int index = 0; index < COUNT; index++) {
            /* They may lie over each other: their order counts. */
            uint64_t at = draw() % 100000;
            uint32_t here = (uint32_t)index * BYTES, count = 1 + (uint32_t)(draw() % BYTES);
            fill(pair->buffer + here, count);
            memcpy(model + at, pair->buffer + here, count);
            post(pair, IBV_WR_RDMA_WRITE, at, here, count);
        }
        for (int index = 0; index < COUNT; index++)
            succeed(pair, "one of many WRITEs");
        for (int index = 0; index < COUNT; index++)
            post(pair, IBV_WR_RDMA_READ, (uint64_t)index * 3333, BACK + (uint32_t)index * BYTES, BYTES);
        for (int index = 0; index < COUNT; index++)
            succeed(pair, "one of many READs");
        for (int index = 0; index < COUNT; index++)
            if (memcmp(pair->buffer + BACK + index * BYTES, model + index * 3333, BYTES))
                fail("the READ %d of many is not what was written", index);
    }
    printf("32 WRITEs and 32 READs under way, %d times\n", rounds);
}

static void nothing_at_all(struct pair *pair)
{
    post(pair, IBV_WR_RDMA_WRITE, 5, 0, 0);
    succeed(pair, "WRITE of nothing");
    post(pair, IBV_WR_RDMA_READ, 5, 0, 0);
    succeed(pair, "READ of nothing");
    printf("WRITE and READ of no bytes\n");
}

static void atomics(struct pair *pair)
{
    uint64_t at = 4096 + 8, value, before;
    for (int index = 0; index < 20; index++) {
        uint64_t add = draw();
        memcpy(&value, model + at, 8);
        must(fetch_add(pair, at, add) == value, "what FETCH_ADD gives");
        value += add;
        memcpy(model + at, &value, 8);
        before = value;
        must(compare_swap(pair, at, value + 1, 7) == before, "what a CMP_SWAP that must not swap gives");
        value = draw();
        must(compare_swap(pair, at, before, value) == before, "what CMP_SWAP gives");
        memcpy(model + at, &value, 8);
    }
    compare(pair, at - 8, 24);
    printf("FETCH_ADD and CMP_SWAP\n");
}

static void appends(struct pair *pair)
{
    static const uint32_t sizes[] = {1, 100, 1024, 4096, 5000, 100000, 1};
    uint64_t start = size;
    for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        append(pair, sizes[index]);
        compare(pair, start, (uint32_t)(size - start));
    }
    for (int index = 0; index < 5; index++) {
        uint64_t count = 1 + draw() % 9000, at = size;
        must(fetch_add(pair, RESERVE_AT, count) == at, "what a reservation gives");
        memset(model + size, 0, count);
        size += count;
        write_at(pair, at, (uint32_t)count);
        compare(pair, at, (uint32_t)count);
    }
    printf("appends at 1<<63, reservations at 1<<62\n");
}

/* What is refused ends a queue pair; the next one is as good as new. */
static void refusals(void)
{
    struct pair pair;
    enum ibv_wc_status status;
    static const char *const what[] = {"a WRITE with another key", "a READ with another key",
                                       "a READ behind the end",    "a WRITE behind the end",
                                       "a FETCH_ADD behind the end"};
    for (int index = 0; index < 5; index++) {
        connect_pair(&pair);
        write_at(&pair, 100, 100);
        uint32_t key = pair.key;
        if (index < 2)
            pair.key ^= 0x5a5a5a5a;
        switch (index) {
        case 0:
            post(&pair, IBV_WR_RDMA_WRITE, 0, 0, 10000);
            break;
        case 1:
            post(&pair, IBV_WR_RDMA_READ, 0, BACK, 10000);
            break;
        case 2:
            post(&pair, IBV_WR_RDMA_READ, size - 10, BACK, 11);
            break;
        case 3:
            post(&pair, IBV_WR_RDMA_WRITE, size - 10, 0, 11);
            break;
        default:
            post_with(&pair, IBV_WR_ATOMIC_FETCH_AND_ADD, (size + 15) & ~UINT64_C(7), BACK, 8, 1, 0);
        }
        status = finish(&pair);
        if (status != IBV_WC_REM_ACCESS_ERR)
            fail("%s: %s", what[index], ibv_wc_status_str(status));
        pair.key = key;
        post(&pair, IBV_WR_RDMA_WRITE, 0, 0, 1);
        must(finish(&pair) == IBV_WC_WR_FLUSH_ERR, "a WRITE after an error");
        disconnect(&pair, true);
        printf("%s: %s\n", what[index], ibv_wc_status_str(status));
    }
}

/* Appends of several queue pairs at once stay whole and in the order of each. */
static void together(void)
{
    enum { ROUNDS = 6, BYTES = 20011, COUNTER = 8192 };
    struct pair pairs[PAIRS];
    uint64_t start = size, value = 0;
    int next[PAIRS] = {0};

    for (int who = 0; who < PAIRS; who++)
        connect_pair(&pairs[who]);
    memset(model + COUNTER, 0, 8);
    memset(pairs[0].buffer, 0, 8);
    post(&pairs[0], IBV_WR_RDMA_WRITE, COUNTER, 0, 8);
    succeed(&pairs[0], "WRITE");
    for (int round = 0; round < ROUNDS; round++) {
        for (int who = 0; who < PAIRS; who++) {
            uint32_t here = (uint32_t)round * BYTES;
            uint64_t at = 200000 + (uint64_t)(who * ROUNDS + round) * 7001;
            memset(pairs[who].buffer + here, 16 * who + round + 1, BYTES);
            post(&pairs[who], IBV_WR_RDMA_WRITE, APPEND_AT, here, BYTES);
            memcpy(model + at, pairs[who].buffer + here, 7001);
            post(&pairs[who], IBV_WR_RDMA_WRITE, at, here, 7001);
            post_with(&pairs[who], IBV_WR_ATOMIC_FETCH_AND_ADD, COUNTER, BACK, 8, 1, 0);
        }
    }
    for (int who = 0; who < PAIRS; who++)
        for (int index = 0; index < 3 * ROUNDS; index++)
            succeed(&pairs[who], "one of several queue pairs at once");
    for (int index = 0; index < PAIRS * ROUNDS; index++) {
        struct pair *reader = &pairs[index % PAIRS];
        post(reader, IBV_WR_RDMA_READ, size, BACK, BYTES);
        succeed(reader, "READ of what was appended");
        uint8_t *bytes = reader->buffer + BACK;
        int who = (bytes[0] - 1) / 16, round = (bytes[0] - 1) % 16;
        must(bytes[0] && who < PAIRS && round == next[who], "the order of a queue pair's appends");
        next[who]++;
        must(!memcmp(bytes, bytes + 1, BYTES - 1), "an append in one piece");
        grow(bytes, BYTES);
    }
    value = PAIRS * ROUNDS;
    memcpy(model + COUNTER, &value, 8);
    must(fetch_add(&pairs[1], COUNTER, 0) == value, "the sum of all FETCH_ADDs");
    compare(&pairs[2], 200000, PAIRS * ROUNDS * 7001);
    must(size == start + (uint64_t)PAIRS * ROUNDS * BYTES, "the size");
    for (int who = 0; who < PAIRS; who++)
        disconnect(&pairs[who], false);
    printf("%d queue pairs at once: appends whole and in order, sums right\n", PAIRS);
}

static void usage(void)
{
    fprintf(stderr, "stock exchange HOST PORT DEVICE GID_INDEX SIZE IMAGE SEED light|full\n"
                    "stock cm HOST PORT KEY PASS SIZE IMAGE SEED light|full\n");
    exit(2);
}

int main(int count, char **arguments)
{
    struct pair pair;
    if (count != 10)
        usage();
    setvbuf(stdout, NULL, _IOLBF, 0);
    by_cm = !strcmp(arguments[1], "cm");
    host = arguments[2];
    port = arguments[3];
    if (by_cm) {
        cm_key = arguments[4];
        cm_pass = arguments[5];
    } else {
        device = arguments[4];
        gid_index = atoi(arguments[5]);
    }
    size = strtoull(arguments[6], NULL, 0);
    random_state = strtoull(arguments[8], NULL, 0);
    is_full = !strcmp(arguments[9], "full");
    model = calloc(1, FILE_BYTES_MAX);
    check(model, "memory");
    must(size <= FILE_BYTES_MAX, "the file's size");
    printf("seed %s\n", arguments[8]);

    connect_pair(&pair);
    nothing_at_all(&pair);
    all_sizes(&pair);
    many_under_way(&pair, is_full ? 4 : 1);
    atomics(&pair);
    appends(&pair);
    disconnect(&pair, false);
    refusals();
    together();

    FILE *image = fopen(arguments[7], "wb");
    check(image && fwrite(model, 1, size, image) == size && !fclose(image), "the image");
    printf("all is well; the file has %llu bytes\n", (unsigned long long)size);
    return 0;
}
