/* limit: see limit.h.
 *
 * Wiring of the stream: every rank listens, tells its address by an all-gather, connects to the
 * next rank and says who it is {job id, rank}; what connects and says something else is a stranger
 * and is closed. Every wait is a poll() with a deadline (I5).
 *
 *   rank 0 ──► rank 1 ──► … ──► rank n−1 ──► rank 0
 */
#include "bench/limit.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/connection.h"

#define CALL_BYTES LIMIT_LEAST_BUFFER_BYTES
#define STREAM_BYTES                                                                               \
    ((size_t)16 << 20)         /* at least, of one pass: its beginning and end must not count */
#define WANTED_NS    150000000 /* of one measurement */
#define MOST_PASSES  100000
#define ADDRESS_TEXT 64

/* ---- one pass, and how many of them ---- */

/* Copies or streams `bytes` once. */
typedef enum status (*pass_function)(void *context, size_t bytes);

/* All ranks run the same number of passes: as many as fill the wanted time, judged by one that is
 * not counted. */
static enum status measure_passes(
    struct limit *limit, pass_function pass, void *context, size_t bytes, struct job *job)
{
    double ns = 0;
    for (int warm = 0; warm < 2; warm++) { /* the first also touches pages and opens windows */
        TRY(bootstrap_barrier(job->bootstrap));
        int64_t start = clock_ns();
        TRY(pass(context, bytes));
        ns = (double)(clock_ns() - start);
    }
    TRY(job_max(&ns, job));
    double wanted = WANTED_NS / (ns + 1);
    int passes = wanted < 1 ? 1 : wanted > MOST_PASSES ? MOST_PASSES : (int)wanted;
    TRY(bootstrap_barrier(job->bootstrap));
    int64_t start = clock_ns();
    for (int i = 0; i < passes; i++) TRY(pass(context, bytes));
    ns = (double)(clock_ns() - start);
    TRY(job_max(&ns, job));
    limit->bytes = bytes;
    limit->gbps = (double)bytes * passes / ns;
    limit->cached_gbps = 0;
    return STATUS_OK;
}

/* ---- memory copy ---- */

struct copy {
    struct span to, from;
    struct device *device;
};

static enum status copy_pass(void *context, size_t bytes)
{
    struct copy *copy = context;
    return span_copy(copy->to, span_part(copy->from, 0, bytes), NULL, copy->device);
}

/* ---- two-way TCP stream ---- */

struct stream_ends {
    int next, prev;           /* sockets; -1: none */
    int next_rank, prev_rank; /* for messages */
    char *out, *in;           /* buffer_bytes each, */
    size_t buffer_bytes;      /* again and again */
    int timeout_ms;
    bool sends, receives;
};

struct endpoint {
    char address[ADDRESS_TEXT];
    int port;
};

struct greeting {
    uint64_t job;
    int64_t rank;
};

/* Waits for events on up to two descriptors; a negative one is skipped. */
static enum status wait_for(
    struct pollfd *fds, nfds_t count, int timeout_ms, const char *what, int peer)
{
    int ready;
    do ready = poll(fds, count, timeout_ms);
    while (ready < 0 && errno == EINTR);
    if (ready > 0) return STATUS_OK;
    if (ready == 0)
        return FAIL(STATUS_TIMEOUT,
            "measuring the TCP limit: nothing moved for %d ms while %s rank %d; expected it at "
            "once",
            timeout_ms, what, peer);
    return FAIL(STATUS_SYSTEM, "measuring the TCP limit: poll failed: %s", strerror(errno));
}

/* A listening socket on the address by which this rank is known, at any free port. */
static enum status listen_here(int *fd, struct endpoint *mine, const char *address)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                        .ai_socktype = SOCK_STREAM,
                        .ai_flags = AI_NUMERICHOST},
                    *found = NULL;
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    snprintf(mine->address, sizeof mine->address, "%s", address);
    int failed = getaddrinfo(address, "0", &hints, &found);
    if (failed != 0)
        return FAIL(STATUS_SYSTEM, "measuring the TCP limit: own address \"%s\": %s", address,
            gai_strerror(failed));
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool listens = *fd >= 0 && bind(*fd, found->ai_addr, found->ai_addrlen) == 0 &&
                   listen(*fd, 16) == 0 &&
                   getsockname(*fd, (struct sockaddr *)&bound, &length) == 0;
    freeaddrinfo(found);
    if (!listens)
        return FAIL(STATUS_SYSTEM, "measuring the TCP limit: listening on %s: %s", address,
            strerror(errno));
    mine->port =
        ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port
                                          : ((struct sockaddr_in *)(void *)&bound)->sin_port);
    return STATUS_OK;
}

/* Connects to the next rank and says who we are. Its kernel accepts before its process does, so no
 * two ranks wait for each other. */
static enum status connect_next(
    struct stream_ends *ends, const struct endpoint *next, const struct greeting *me)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                        .ai_socktype = SOCK_STREAM,
                        .ai_flags = AI_NUMERICHOST},
                    *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", next->port);
    int failed = getaddrinfo(next->address, port, &hints, &found);
    if (failed != 0)
        return FAIL(STATUS_SYSTEM, "measuring the TCP limit: address \"%s\" of rank %d: %s",
            next->address, ends->next_rank, gai_strerror(failed));
    ends->next = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (ends->next >= 0) connection_tune_caller(ends->next, found->ai_addr, found->ai_addrlen);
    int result = ends->next < 0 ? -1 : connect(ends->next, found->ai_addr, found->ai_addrlen);
    int error = result == 0 ? 0 : errno;
    freeaddrinfo(found);
    if (error == EINPROGRESS) {
        struct pollfd fd = {.fd = ends->next, .events = POLLOUT};
        socklen_t length = sizeof error;
        TRY(wait_for(&fd, 1, ends->timeout_ms, "connecting to", ends->next_rank));
        if (getsockopt(ends->next, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    }
    /* A new connection has room for so few bytes. */
    if (error == 0 && send(ends->next, me, sizeof *me, MSG_NOSIGNAL) != (ssize_t)sizeof *me)
        error = errno;
    if (error != 0)
        return FAIL(STATUS_PEER, "measuring the TCP limit: connecting to rank %d at %s port %d: %s",
            ends->next_rank, next->address, next->port, strerror(error));
    connection_tune(ends->next); /* as an edge's: else it is no mark for edges */
    return STATUS_OK;
}

/* Accepts until the rank before us is among those that came. */
static enum status accept_prev(
    struct stream_ends *ends, int listening, const struct greeting *expected)
{
    int64_t deadline = clock_ns() + clock_ms_to_ns(ends->timeout_ms);
    while (ends->prev < 0) {
        int left_ms = (int)((deadline - clock_ns()) / 1000000);
        struct pollfd fd = {.fd = listening, .events = POLLIN};
        TRY(wait_for(
            &fd, 1, left_ms > 0 ? left_ms : 0, "waiting for a connection from", ends->prev_rank));
        int came = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (came < 0) continue;
        struct greeting greeting = {0};
        struct pollfd from = {.fd = came, .events = POLLIN};
        bool spoke = poll(&from, 1, 1000) == 1 &&
                     recv(came, &greeting, sizeof greeting, 0) == (ssize_t)sizeof greeting;
        if (spoke && greeting.job == expected->job && greeting.rank == expected->rank) {
            ends->prev = came;
        } else {
            close(came);
        }
    }
    return STATUS_OK;
}

static enum status wire(
    struct stream_ends *ends, int *listening, struct endpoint *endpoints, struct job *job)
{
    struct greeting me = {bootstrap_job(job->bootstrap), job->rank};
    struct greeting before = {me.job, ends->prev_rank};
    TRY(listen_here(listening, &endpoints[job->rank], bootstrap_address(job->bootstrap)));
    TRY(bootstrap_all_gather(endpoints, sizeof *endpoints, job->bootstrap));
    TRY(connect_next(ends, &endpoints[ends->next_rank], &me));
    return accept_prev(ends, *listening, &before);
}

/* The result of send() or recv(): bytes moved, 0 when it has to wait, -1 when the connection is
 * gone. */
static ssize_t moved_bytes(ssize_t result, bool receiving)
{
    if (result > 0) return result;
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (result == 0 && receiving) errno = ECONNRESET;
    return -1;
}

/* Where in its buffer the next call begins, and its bytes. */
static size_t next_call(size_t *at, size_t done, size_t bytes, const struct stream_ends *ends)
{
    *at = done % ends->buffer_bytes;
    size_t call = bytes - done < CALL_BYTES ? bytes - done : CALL_BYTES;
    return call < ends->buffer_bytes - *at ? call : ends->buffer_bytes - *at;
}

/* How far a pass has come. */
struct stream_pass {
    size_t to_send, sent, to_receive, received; /* bytes */
};

/* Sends and receives what can be now; *moved says whether anything was. */
static enum status stream_move(struct stream_pass *pass, bool *moved, struct stream_ends *ends)
{
    size_t at;
    *moved = false;
    if (pass->received < pass->to_receive) {
        size_t call = next_call(&at, pass->received, pass->to_receive, ends);
        ssize_t got = moved_bytes(recv(ends->prev, ends->in + at, call, 0), true);
        if (got < 0)
            return FAIL(STATUS_PEER, "measuring the TCP limit: receiving from rank %d: %s",
                ends->prev_rank, strerror(errno));
        pass->received += (size_t)got;
        *moved = got > 0;
    }
    if (pass->sent < pass->to_send) {
        size_t call = next_call(&at, pass->sent, pass->to_send, ends);
        ssize_t put = moved_bytes(send(ends->next, ends->out + at, call, MSG_NOSIGNAL), false);
        if (put < 0)
            return FAIL(STATUS_PEER, "measuring the TCP limit: sending to rank %d: %s",
                ends->next_rank, strerror(errno));
        pass->sent += (size_t)put;
        *moved = *moved || put > 0;
    }
    return STATUS_OK;
}

/* Sends `bytes` to the next and receives as many from the one before, at once. Asks the kernel to wait only when
 * nothing moves: a limit must not be slowed by its own polling. */
static enum status stream_pass(void *context, size_t bytes)
{
    struct stream_ends *ends = context;
    struct stream_pass pass = {
        .to_send = ends->sends ? bytes : 0, .to_receive = ends->receives ? bytes : 0};
    for (;;) {
        bool moved, sends, receives;
        TRY(stream_move(&pass, &moved, ends));
        sends = pass.sent < pass.to_send;
        receives = pass.received < pass.to_receive;
        if (!sends && !receives) return STATUS_OK;
        if (moved) continue;
        struct pollfd fds[2] = {
            {.fd = sends ? ends->next : -1, .events = POLLOUT},
            {.fd = receives ? ends->prev : -1, .events = POLLIN},
        };
        TRY(wait_for(fds, 2, ends->timeout_ms, receives ? "receiving from" : "sending to",
            receives ? ends->prev_rank : ends->next_rank));
    }
}

/* Through all of the buffers, and through so little of them that it stays in the cache. */
static enum status measure_streams(
    struct limit *limit, struct stream_ends *ends, size_t bytes, struct job *job)
{
    size_t pass_bytes = bytes < STREAM_BYTES ? STREAM_BYTES : bytes;
    ends->buffer_bytes = CALL_BYTES;
    TRY(measure_passes(limit, stream_pass, ends, STREAM_BYTES, job));
    double cached_gbps = limit->gbps;
    ends->buffer_bytes = bytes;
    TRY(measure_passes(limit, stream_pass, ends, pass_bytes, job));
    limit->cached_gbps = cached_gbps;
    limit->bytes = bytes;
    return STATUS_OK;
}

enum status limit_measure_stream(
    struct limit *limit, bool one_way, struct span a, struct span b, size_t bytes, struct job *job)
{
    enum status status = STATUS_OK;
    int listening = -1, n = job->nranks;
    struct stream_ends ends = {
        .next = -1,
        .prev = -1,
        .next_rank = (job->rank + 1) % n,
        .prev_rank = (job->rank + n - 1) % n,
        .out = a.ptr,
        .in = b.ptr,
        .timeout_ms = bootstrap_timeout_ms(job->bootstrap),
        .sends = !one_way || job->rank == 0,
        .receives = !one_way || job->rank == 1,
    };
    limit->what = one_way ? "one-way TCP stream" : "two-way TCP stream";
    memset(a.ptr, 1, bytes); /* pages that nobody has written are all one page, and always cached */
    struct endpoint *endpoints = calloc((size_t)n, sizeof *endpoints);
    if (endpoints == NULL) return FAIL(STATUS_SYSTEM, "out of memory for %d addresses", n);
    TRY_GOTO(wire(&ends, &listening, endpoints, job));
    TRY_GOTO(measure_streams(limit, &ends, bytes, job));
fail:
    if (listening >= 0) close(listening);
    if (ends.next >= 0) close(ends.next);
    if (ends.prev >= 0) close(ends.prev);
    free(endpoints);
    return status;
}

enum status limit_measure_copy(
    struct limit *limit, struct span a, struct span b, size_t bytes, struct job *job)
{
    struct copy copy = {a, b, job->device};
    limit->what = a.kind == MEMORY_CUDA ? "device memory copy" : "memory copy";
    return measure_passes(limit, copy_pass, &copy, bytes, job);
}

enum status limit_measure(
    struct limit *limit, struct span a, struct span b, size_t bytes, struct job *job)
{
    assert(bytes >= LIMIT_LEAST_BUFFER_BYTES && a.bytes >= bytes && b.bytes >= bytes);
    uint64_t tcp_edges = strcmp(ring_comm_transport(job->comm), "tcp") == 0;
    TRY(job_sum(&tcp_edges, job));
    if (tcp_edges > 0 && a.kind != MEMORY_CUDA) return limit_measure_stream(limit, false, a, b, bytes, job);
    return limit_measure_copy(limit, a, b, bytes, job);
}
