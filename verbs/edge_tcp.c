/* edge_tcp: an edge over one TCP connection. Both sides stage: the producer's slots, records and counters are its own, the
 * consumer's are its own, and progress() carries steps one way and credits the other, never blocking.
 *
 *   producer ──► consumer   hello { magic, nonce }                               once, after connecting
 *                           frame { bytes, tag } payload[bytes]                  one per step, in order
 *   consumer ──► producer   credit: the consumer's head, u64                     whenever half of the slots are free
 *
 * All words are in host order: both ends run the same build (the bootstrap refuses another).
 *
 * A step is sent only when the consumer has a slot for it (step < credit + S), so the consumer reads a payload straight into
 * its slot, or where the consumer's landing says, and the connection never stalls in mid-step for want of one. The producer's head moves when the kernel has taken
 * the last byte of a step: its source, slot or address, may then be reused. source: FIELD_NOTES §1.
 */
#include "verbs/transport.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "verbs/address.h"
#include "verbs/clock.h"
#include "verbs/log.h"

#define TCP_MAGIC       0x72696e6774637031u /* "ringtcp1" */
#define STRANGERS       4                   /* accepted connections that have not said hello yet */
#define STRANGER_MS     5000                /* how long one may stay silent */
#define SCATTER_ENTRIES 2
#define AHEAD_BYTES     1024 /* received at once where less is wanted: a small step takes one call instead of two */

struct tcp_offer {
    uint64_t nonce;
    uint32_t port;
    char address[64]; /* numeric */
};
_Static_assert(sizeof(struct tcp_offer) <= EDGE_OFFER_BYTES, "the offer fits");

struct tcp_hello {
    uint64_t magic;
    uint64_t nonce;
};

struct tcp_frame {
    uint64_t bytes;
    uint64_t tag;
};

/* A connection that has not proved to be the producer. */
struct stranger {
    int fd; /* -1: free place */
    int64_t deadline_ns;
    size_t got;
    struct tcp_hello hello;
    char from[64];
};

struct tcp_edge {
    int fd;        /* the connection; -1 before */
    int listen_fd; /* consumer, until connected; else -1 */
    uint64_t nonce;
    struct stranger strangers[STRANGERS];

    uint64_t tail, head; /* what edge->fifo points at */
    struct span slots;
    struct fifo_record *records;

    /* The step being carried: producer: the oldest not yet sent; consumer: the next to arrive. */
    uint64_t step;
    struct tcp_frame frame;
    size_t frame_done; /* bytes of frame and payload already carried */
    void *landing;     /* consumer: where the payload goes instead of the slot; NULL: the slot */
    unsigned char ahead[AHEAD_BYTES]; /* consumer: received, not yet taken: [ahead_begin, ahead_end) */
    size_t ahead_begin, ahead_end;

    uint64_t credit;     /* producer: the consumer's head as last told. consumer: head as last sent, whole */
    size_t credit_done;  /* bytes of the credit in hand */
    uint64_t credit_word;
    bool hello_sent;
};

static bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

static enum status connection_lost(const struct edge *edge, const char *what, int error)
{
    return FAIL(STATUS_PEER, "tcp connection with rank %d: %s: %s", edge->config.peer, what,
        error == 0 ? "closed by the peer" : strerror(error));
}

/* Advice: without it small messages are slow, not wrong. */
static void connection_tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* Both ends at one address are on one machine: there is no line that could be congested, and an algorithm that paces (bbr) only
 * makes the sender wait. Between machines the choice is the system's. Call when connected. */
static void connection_tune_local(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_length = sizeof here, there_length = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_length) != 0) return;
    if (getpeername(fd, (struct sockaddr *)&there, &there_length) != 0) return;
    if (!address_equal(&here, &there)) return;
    static const char plain[] = "reno"; /* every kernel has it, every user may choose it */
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof plain - 1);
}

/* ---- connecting ---- */

static enum status listen_at(struct tcp_edge *tcp, const char *address, uint32_t *port)
{
    struct sockaddr_storage name;
    socklen_t length;
    if (!address_parse(&name, &length, address, 0))
        return FAIL(STATUS_INVALID, "\"%s\" is no numeric address to listen on", address);
    tcp->listen_fd = socket(name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (tcp->listen_fd < 0 || bind(tcp->listen_fd, (struct sockaddr *)&name, length) != 0 ||
        listen(tcp->listen_fd, 16) != 0 || getsockname(tcp->listen_fd, (struct sockaddr *)&name, &length) != 0)
        return FAIL(STATUS_SYSTEM, "cannot listen on %s: %s; raise ulimit -n or choose another RINGZERO_INTERFACE", address,
            strerror(errno));
    *port = (uint32_t)address_port(&name);
    return STATUS_OK;
}

static enum status tcp_offer(struct edge *edge, struct edge_offer *out)
{
    struct tcp_edge *tcp = calloc(1, sizeof *tcp);
    if (tcp == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->state = tcp;
    tcp->fd = tcp->listen_fd = -1;
    for (int i = 0; i < STRANGERS; i++) tcp->strangers[i].fd = -1;
    tcp->step = tcp->credit = tcp->tail = tcp->head = edge->config.start;

    const struct edge_config *config = &edge->config;
    TRY(memory_alloc(&tcp->slots, config->slot_bytes * config->slot_count, MEMORY_COMMUNICATION, config->device));
    tcp->records = calloc(config->slot_count, sizeof *tcp->records);
    if (tcp->records == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->fifo.slots = tcp->slots.ptr;
    edge->fifo.records = tcp->records;
    edge->fifo.tail = &tcp->tail;
    edge->fifo.head = &tcp->head;
    if (config->side == EDGE_PRODUCER) return STATUS_OK;

    struct tcp_offer offer = {0};
    if (getrandom(&offer.nonce, sizeof offer.nonce, 0) != (ssize_t)sizeof offer.nonce)
        return FAIL(STATUS_SYSTEM, "getrandom failed: %s", strerror(errno));
    tcp->nonce = offer.nonce;
    snprintf(offer.address, sizeof offer.address, "%s", bootstrap_address(config->bootstrap));
    TRY(listen_at(tcp, offer.address, &offer.port));
    memcpy(out->bytes, &offer, sizeof offer);
    return STATUS_OK;
}

static enum status producer_start_connecting(struct edge *edge, const struct tcp_offer *offer)
{
    struct tcp_edge *tcp = edge->state;
    struct sockaddr_storage name;
    socklen_t length;
    if (!address_parse(&name, &length, offer->address, (int)offer->port))
        return FAIL(STATUS_DATA, "rank %d offers no numeric address", edge->config.peer);
    tcp->fd = socket(name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (tcp->fd < 0) return FAIL(STATUS_SYSTEM, "no socket: %s; raise ulimit -n", strerror(errno));
    connection_tune(tcp->fd);
    if (connect(tcp->fd, (struct sockaddr *)&name, length) != 0 && errno != EINPROGRESS)
        return FAIL(STATUS_PEER, "cannot connect to rank %d at %s port %u: %s", edge->config.peer, offer->address,
            offer->port, strerror(errno));
    return STATUS_OK;
}

static enum status producer_connect(struct edge *edge, bool *ready)
{
    struct tcp_edge *tcp = edge->state;
    struct tcp_offer offer;
    memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
    offer.address[sizeof offer.address - 1] = 0;
    if (tcp->fd < 0) TRY(producer_start_connecting(edge, &offer));

    struct pollfd poll_fd = {tcp->fd, POLLOUT, 0};
    if (poll(&poll_fd, 1, 0) <= 0) return STATUS_OK;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(tcp->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0)
        return FAIL(STATUS_PEER, "cannot connect to rank %d at %s port %u: %s", edge->config.peer, offer.address,
            offer.port, strerror(error));
    connection_tune_local(tcp->fd);
    struct tcp_hello hello = {TCP_MAGIC, offer.nonce};
    ssize_t sent = send(tcp->fd, &hello, sizeof hello, MSG_NOSIGNAL); /* a new connection's buffer holds it whole */
    if (sent != (ssize_t)sizeof hello) return connection_lost(edge, "hello", sent < 0 ? errno : 0);
    *ready = true;
    return STATUS_OK;
}

static void stranger_drop(struct stranger *stranger, const struct edge *edge, const char *why)
{
    LOG_WARN("tcp", "connection from %s dropped while waiting for rank %d: %s", stranger->from, edge->config.peer, why);
    close(stranger->fd);
    stranger->fd = -1;
}

static void strangers_accept(struct edge *edge)
{
    struct tcp_edge *tcp = edge->state;
    for (int i = 0; i < STRANGERS; i++) {
        struct stranger *stranger = &tcp->strangers[i];
        if (stranger->fd >= 0) continue;
        struct sockaddr_storage name = {0};
        socklen_t length = sizeof name;
        int fd = accept4(tcp->listen_fd, (struct sockaddr *)&name, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return; /* none waiting; a real failure ends in the deadline of whoever waits, naming the peer */
        *stranger = (struct stranger){.fd = fd, .deadline_ns = clock_ns() + clock_ms_to_ns(STRANGER_MS)};
        const void *raw = name.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&name)->sin_addr
                                                    : (void *)&((struct sockaddr_in6 *)&name)->sin6_addr;
        inet_ntop(name.ss_family, raw, stranger->from, sizeof stranger->from);
    }
}

/* True when this stranger is the producer; a connection that closes, lies or stays silent is dropped with a warning. */
static bool stranger_listen(struct stranger *stranger, struct edge *edge)
{
    struct tcp_edge *tcp = edge->state;
    unsigned char *into = (unsigned char *)&stranger->hello + stranger->got;
    ssize_t got = recv(stranger->fd, into, sizeof stranger->hello - stranger->got, 0);
    if (got == 0) {
        stranger_drop(stranger, edge, "it closed without a hello");
    } else if (got < 0 && !would_block(errno)) {
        stranger_drop(stranger, edge, strerror(errno));
    } else if (got < 0) {
        if (clock_ns() > stranger->deadline_ns) stranger_drop(stranger, edge, "it stayed silent");
    } else {
        stranger->got += (size_t)got;
        if (stranger->got < sizeof stranger->hello) return false;
        if (stranger->hello.magic == TCP_MAGIC && stranger->hello.nonce == tcp->nonce) return true;
        stranger_drop(stranger, edge, "it is not of this job");
    }
    return false;
}

static enum status consumer_connect(struct edge *edge, bool *ready)
{
    struct tcp_edge *tcp = edge->state;
    strangers_accept(edge);
    for (int i = 0; i < STRANGERS; i++) {
        if (tcp->strangers[i].fd < 0 || !stranger_listen(&tcp->strangers[i], edge)) continue;
        tcp->fd = tcp->strangers[i].fd;
        tcp->strangers[i].fd = -1;
        connection_tune(tcp->fd);
        for (int j = 0; j < STRANGERS; j++)
            if (tcp->strangers[j].fd >= 0) stranger_drop(&tcp->strangers[j], edge, "the producer has come");
        close(tcp->listen_fd);
        tcp->listen_fd = -1;
        *ready = true;
        return STATUS_OK;
    }
    return STATUS_OK;
}

static enum status tcp_connect(struct edge *edge, bool *ready)
{
    return edge->config.side == EDGE_PRODUCER ? producer_connect(edge, ready) : consumer_connect(edge, ready);
}

/* ---- producer: steps out, credits in ---- */

static enum status producer_read_credits(struct edge *edge, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    uint64_t words[32];
    for (;;) {
        unsigned char *bytes = (unsigned char *)words;
        memcpy(bytes, &tcp->credit_word, tcp->credit_done);
        ssize_t got = recv(tcp->fd, bytes + tcp->credit_done, sizeof words - tcp->credit_done, 0);
        if (got == 0) return connection_lost(edge, "receiving credits", 0);
        if (got < 0) return would_block(errno) ? STATUS_OK : connection_lost(edge, "receiving credits", errno);
        size_t have = tcp->credit_done + (size_t)got, whole = have / sizeof *words;
        for (size_t i = 0; i < whole; i++) {
            if (words[i] - tcp->credit > tcp->step - tcp->credit)
                return FAIL(STATUS_DATA, "rank %d gives credit up to step %llu, but only %llu were sent", edge->config.peer,
                    (unsigned long long)words[i], (unsigned long long)tcp->step);
            tcp->credit = words[i];
        }
        tcp->credit_done = have - whole * sizeof *words;
        memcpy(&tcp->credit_word, bytes + whole * sizeof *words, tcp->credit_done);
        *moved = true;
        if (have < sizeof words) return STATUS_OK;
    }
}

static enum status producer_sent(struct edge *edge, ssize_t sent, bool *whole, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    if (sent < 0) return would_block(errno) ? STATUS_OK : connection_lost(edge, "sending", errno);
    *moved = *moved || sent > 0;
    tcp->frame_done += (size_t)sent;
    *whole = tcp->frame_done == sizeof tcp->frame + tcp->frame.bytes;
    return STATUS_OK;
}

/* A whole small step: copied beside its frame, since one run of bytes costs the system less than two. */
static enum status producer_send_small(struct edge *edge, const unsigned char *data, bool *whole, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    unsigned char run[sizeof tcp->frame + AHEAD_BYTES];
    memcpy(run, &tcp->frame, sizeof tcp->frame);
    memcpy(run + sizeof tcp->frame, data, tcp->frame.bytes);
    ssize_t sent = send(tcp->fd, run, sizeof tcp->frame + tcp->frame.bytes, MSG_NOSIGNAL);
    return producer_sent(edge, sent, whole, moved);
}

/* Sends what is left of the step in hand; *whole says that the kernel has all of it. */
static enum status producer_send_step(struct edge *edge, bool *whole, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    const struct fifo_record *record = &tcp->records[fifo_index(&edge->fifo, tcp->step)];
    unsigned char *data = record->address != 0
                              ? (unsigned char *)(uintptr_t)record->address
                              : edge->fifo.slots + fifo_index(&edge->fifo, tcp->step) * edge->fifo.slot_bytes;
    tcp->frame = (struct tcp_frame){record->bytes, record->tag};
    if (tcp->frame_done == 0 && record->bytes <= AHEAD_BYTES) return producer_send_small(edge, data, whole, moved);
    struct iovec parts[SCATTER_ENTRIES];
    int count = 0;
    size_t payload_done = 0;
    if (tcp->frame_done < sizeof tcp->frame)
        parts[count++] = (struct iovec){
            (unsigned char *)&tcp->frame + tcp->frame_done, sizeof tcp->frame - tcp->frame_done};
    else
        payload_done = tcp->frame_done - sizeof tcp->frame;
    if (payload_done < record->bytes)
        parts[count++] = (struct iovec){data + payload_done, record->bytes - payload_done};

    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    ssize_t sent = sendmsg(tcp->fd, &message, MSG_NOSIGNAL);
    return producer_sent(edge, sent, whole, moved);
}

static enum status producer_progress(struct edge *edge, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    while (tcp->step != tcp->tail) {
        if (tcp->step - tcp->credit >= edge->fifo.slot_count) {
            TRY(producer_read_credits(edge, moved));
            if (tcp->step - tcp->credit >= edge->fifo.slot_count) return STATUS_OK;
        }
        bool whole = false;
        TRY(producer_send_step(edge, &whole, moved));
        if (!whole) return STATUS_OK;
        tcp->frame_done = 0;
        tcp->step++;
        __atomic_store_n(&tcp->head, tcp->step, __ATOMIC_RELEASE); /* pairs with the acquire in fifo_room() */
    }
    return STATUS_OK;
}

/* ---- consumer: steps in, credits out ---- */

/* Half of the slots at a time: the producer always has the other half to go on with. */
static bool credit_is_due(const struct edge *edge)
{
    const struct tcp_edge *tcp = edge->state;
    uint64_t half = edge->fifo.slot_count > 1 ? edge->fifo.slot_count / 2 : 1;
    return tcp->head - tcp->credit >= half;
}

static enum status consumer_send_credit(struct edge *edge, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    if (tcp->credit_done == 0) {
        if (!credit_is_due(edge)) return STATUS_OK;
        tcp->credit_word = tcp->head;
    }
    ssize_t sent = send(tcp->fd, (unsigned char *)&tcp->credit_word + tcp->credit_done,
        sizeof tcp->credit_word - tcp->credit_done, MSG_NOSIGNAL);
    if (sent < 0) return would_block(errno) ? STATUS_OK : connection_lost(edge, "sending credit", errno);
    tcp->credit_done += (size_t)sent;
    if (tcp->credit_done < sizeof tcp->credit_word) return STATUS_OK;
    tcp->credit_done = 0;
    tcp->credit = tcp->credit_word;
    *moved = true;
    return STATUS_OK;
}

/* The frame is whole: its claims are checked, and the payload's place is chosen. */
static enum status consumer_frame_arrived(struct edge *edge)
{
    struct tcp_edge *tcp = edge->state;
    if (tcp->frame.bytes > edge->fifo.slot_bytes)
        return FAIL(STATUS_DATA, "rank %d sends a step of %llu bytes, expected at most %zu", edge->config.peer,
            (unsigned long long)tcp->frame.bytes, edge->fifo.slot_bytes);
    tcp->landing = NULL;
    if (edge->landing != NULL && tcp->frame.bytes > 0)
        tcp->landing = edge->landing(edge->landing_context, tcp->step, tcp->frame.bytes, tcp->frame.tag);
    return STATUS_OK;
}

/* As recv(), by way of `ahead` where little is wanted. */
static ssize_t receive(struct tcp_edge *tcp, unsigned char *into, size_t missing)
{
    if (tcp->ahead_begin == tcp->ahead_end) {
        if (missing >= AHEAD_BYTES) return recv(tcp->fd, into, missing, 0);
        ssize_t got = recv(tcp->fd, tcp->ahead, AHEAD_BYTES, 0);
        if (got <= 0) return got;
        tcp->ahead_begin = 0;
        tcp->ahead_end = (size_t)got;
    }
    size_t bytes = tcp->ahead_end - tcp->ahead_begin < missing ? tcp->ahead_end - tcp->ahead_begin : missing;
    memcpy(into, tcp->ahead + tcp->ahead_begin, bytes);
    tcp->ahead_begin += bytes;
    return (ssize_t)bytes;
}

/* Receives into what is missing of the frame, then of the payload, of the step in hand; *whole says that all of it is here,
 * *again that there may be more. */
static enum status consumer_receive_step(struct edge *edge, bool *whole, bool *moved, bool *again)
{
    struct tcp_edge *tcp = edge->state;
    unsigned char *into = (unsigned char *)&tcp->frame + tcp->frame_done;
    size_t missing = sizeof tcp->frame - tcp->frame_done;
    if (tcp->frame_done >= sizeof tcp->frame) {
        unsigned char *payload = tcp->landing != NULL
                                     ? tcp->landing
                                     : edge->fifo.slots + fifo_index(&edge->fifo, tcp->step) * edge->fifo.slot_bytes;
        into = payload + (tcp->frame_done - sizeof tcp->frame);
        missing = sizeof tcp->frame + tcp->frame.bytes - tcp->frame_done;
    }
    ssize_t got = receive(tcp, into, missing);
    if (got == 0) return connection_lost(edge, "receiving", 0);
    if (got < 0) return would_block(errno) ? STATUS_OK : connection_lost(edge, "receiving", errno);
    *moved = true;
    *again = (size_t)got == missing || tcp->ahead_begin < tcp->ahead_end;
    tcp->frame_done += (size_t)got;
    if (tcp->frame_done == sizeof tcp->frame) TRY(consumer_frame_arrived(edge));
    *whole = tcp->frame_done >= sizeof tcp->frame && tcp->frame_done == sizeof tcp->frame + tcp->frame.bytes;
    return STATUS_OK;
}

static enum status consumer_progress(struct edge *edge, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    TRY(consumer_send_credit(edge, moved));
    bool again = true;
    while (again && tcp->step - tcp->head < edge->fifo.slot_count) {
        bool whole = false;
        again = false;
        TRY(consumer_receive_step(edge, &whole, moved, &again));
        if (!whole) continue;
        tcp->records[fifo_index(&edge->fifo, tcp->step)] = (struct fifo_record){
            .bytes = tcp->frame.bytes, .tag = tcp->frame.tag, .address = (uint64_t)(uintptr_t)tcp->landing};
        tcp->frame_done = 0;
        tcp->landing = NULL;
        tcp->step++;
        __atomic_store_n(&tcp->tail, tcp->step, __ATOMIC_RELEASE); /* pairs with the acquire in fifo_ready() */
    }
    return STATUS_OK;
}

static enum status tcp_progress(struct edge *edge, bool *moved)
{
    return edge->config.side == EDGE_PRODUCER ? producer_progress(edge, moved) : consumer_progress(edge, moved);
}

static bool tcp_drained(const struct edge *edge)
{
    const struct tcp_edge *tcp = edge->state;
    if (edge->config.side == EDGE_PRODUCER) return tcp->head == tcp->tail;
    return !credit_is_due(edge) && tcp->credit_done == 0;
}

/* A producer with nothing to send waits for nothing: credits that it does not need yet must not keep poll() awake. */
static int tcp_descriptor(const struct edge *edge, short *events)
{
    const struct tcp_edge *tcp = edge->state;
    *events = POLLIN;
    if (edge->config.side == EDGE_CONSUMER) return tcp->fd;
    if (tcp->step == tcp->tail) return -1;
    if (tcp->step - tcp->credit < edge->fifo.slot_count) *events = POLLOUT;
    return tcp->fd;
}

static void tcp_close(struct edge *edge)
{
    struct tcp_edge *tcp = edge->state;
    if (tcp == NULL) return;
    if (tcp->fd >= 0) close(tcp->fd);
    if (tcp->listen_fd >= 0) close(tcp->listen_fd);
    for (int i = 0; i < STRANGERS; i++)
        if (tcp->strangers[i].fd >= 0) close(tcp->strangers[i].fd);
    memory_free(&tcp->slots, MEMORY_COMMUNICATION, edge->config.device);
    free(tcp->records);
    free(tcp);
    edge->state = NULL;
}

const struct transport transport_tcp = {
    .name = "tcp",
    .reads_address = true,
    .offer = tcp_offer,
    .connect = tcp_connect,
    .progress = tcp_progress,
    .drained = tcp_drained,
    .descriptor = tcp_descriptor,
    .close = tcp_close,
};
