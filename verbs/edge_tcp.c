/* edge_tcp: an edge over TCP. Both sides stage: the producer's slots, records and counters are its
 * own, the consumer's are its own, and progress() carries steps one way and credits the other,
 * never blocking. All that travels on a connection is frames:
 *
 *   { what, bytes, tag, head } payload[bytes]
 *      what   STEP: a step of the edge whose producer is here, with its bytes and tag
 *             HEAD: the head of the edge whose consumer is here: credit. With every step of its
 *             twin, else alone, whenever half of the slots are free
 *
 * An edge has a connection of its own, or shares it with its twin, the edge of the other direction
 * (edge_config.shared): what two ranks tell each other then takes the acknowledgements of TCP and
 * the credits along, and a small message costs little more than half of what it costs alone.
 *
 *   one line, two edges   rank 0: producer of X, consumer of Y    steps of X, heads of Y ──►
 *                         rank 1: consumer of X, producer of Y    ◄── steps of Y, heads of X
 *
 * A step is sent only when the consumer has a slot for it (step < credit + S), so the consumer
 * reads a payload straight into its slot, or where the consumer's landing says, and a line never
 * stalls in mid-step for want of one. The producer's head moves when the kernel has taken the last
 * byte of a step: its source, slot or address, may then be reused. source: FIELD_NOTES §1.
 */
#include "verbs/transport.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "verbs/connection.h"

#define AHEAD_BYTES 8192 /* received at once where less is wanted: small steps take one call, or several one */
#define RUN_BYTES   1024 /* a payload up to this size is copied beside its frame */

enum frame_part { FRAME_STEP = 1, FRAME_HEAD = 2 };

struct tcp_frame {
    uint64_t what;  /* of enum frame_part, at least one */
    uint64_t bytes; /* of the payload; 0 without a step */
    uint64_t tag;
    uint64_t head;
};

/* What the edges of one connection share. */
struct tcp_line {
    struct connection connection;
    struct connection_offer offer; /* the listener's */
    bool listens, connected;
    struct edge *ends[2]; /* of this process, by enum edge_side; NULL: not open */

    bool sending; /* a frame is in hand, */
    struct tcp_frame out;
    size_t out_done; /* and so many bytes of it and its payload have been sent */

    struct tcp_frame in;
    size_t in_done; /* the same of the one that arrives */
    void *landing;  /* where its payload goes instead of the slot; NULL: the slot; EDGE_LATER: to be
                     * asked for again */
    bool dry;       /* the kernel had less than was asked for */
    unsigned char ahead[AHEAD_BYTES]; /* received, not yet taken: [ahead_begin, ahead_end) */
    size_t ahead_begin, ahead_end;
};

struct tcp_edge {
    struct tcp_line *line;
    uint64_t tail, head; /* what edge->fifo points at */
    struct span slots;
    struct fifo_record *records;
    uint64_t step;   /* producer: the oldest not yet sent; consumer: the next to arrive */
    uint64_t credit; /* the consumer's head, as last told (producer) or last said (consumer) */
};

static struct tcp_edge *end_of(const struct tcp_line *line, enum edge_side side)
{
    return line->ends[side] != NULL ? line->ends[side]->state : NULL;
}

/* ---- opening ---- */

static enum status line_open(struct tcp_line **out, const struct edge_config *config)
{
    struct tcp_line *line = calloc(1, sizeof *line);
    if (line == NULL) return FAIL(STATUS_SYSTEM, "no memory for a connection");
    *out = line;
    connection_begin(&line->connection, config->peer);
    bool consumer = config->side == EDGE_CONSUMER;
    line->listens = config->shared ? config->self < config->peer : consumer;
    if (!line->listens) return STATUS_OK;
    return connection_listen(&line->offer, &line->connection, bootstrap_address(config->bootstrap));
}

static enum status tcp_offer(struct edge *edge, struct edge_offer *out)
{
    const struct edge_config *config = &edge->config;
    struct tcp_edge *tcp = calloc(1, sizeof *tcp);
    if (tcp == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->state = tcp;
    tcp->step = tcp->credit = tcp->tail = tcp->head = config->start;
    TRY(memory_alloc_kind(&tcp->slots, config->slot_bytes * config->slot_count, MEMORY_HOST_PINNED,
        MEMORY_COMMUNICATION, config->device));
    tcp->records = calloc(config->slot_count, sizeof *tcp->records);
    if (tcp->records == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->fifo.slots = tcp->slots.ptr;
    edge->slots_kind = tcp->slots.kind;
    edge->fifo.records = tcp->records;
    edge->fifo.tail = &tcp->tail;
    edge->fifo.head = &tcp->head;

    assert(config->twin == NULL || (config->shared && config->twin->config.side != config->side));
    if (config->twin != NULL) tcp->line = ((struct tcp_edge *)config->twin->state)->line;
    else TRY(line_open(&tcp->line, config));
    tcp->line->ends[config->side] = edge;
    _Static_assert(sizeof tcp->line->offer <= sizeof out->bytes, "the offer fits");
    memcpy(out->bytes, &tcp->line->offer, sizeof tcp->line->offer);
    return STATUS_OK;
}

static enum status tcp_connect(struct edge *edge, bool *ready)
{
    struct tcp_line *line = ((struct tcp_edge *)edge->state)->line;
    struct connection_offer offer;
    memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
    if (!line->connected && line->listens)
        TRY(connection_accept(&line->connected, &line->connection));
    else if (!line->connected) TRY(connection_call(&line->connected, &line->connection, &offer));
    *ready = line->connected;
    return STATUS_OK;
}

/* ---- sending ---- */

/* Half of the slots at a time: the producer always has the other half to go on with. */
static bool credit_is_due(const struct edge *consumer)
{
    if (consumer == NULL) return false;
    const struct tcp_edge *tcp = consumer->state;
    uint64_t half = consumer->fifo.slot_count > 1 ? consumer->fifo.slot_count / 2 : 1;
    return tcp->head - tcp->credit >= half;
}

static bool has_step(const struct tcp_edge *tcp)
{
    return tcp != NULL && tcp->step != tcp->tail;
}

static bool lacks_credit(const struct edge *producer)
{
    const struct tcp_edge *tcp = producer->state;
    return tcp->step - tcp->credit >= producer->fifo.slot_count;
}

/* Takes the next frame in hand; false: there is none. */
static bool frame_begin(struct tcp_line *line)
{
    struct tcp_edge *producer = end_of(line, EDGE_PRODUCER),
                    *consumer = end_of(line, EDGE_CONSUMER);
    bool step = has_step(producer) && !lacks_credit(line->ends[EDGE_PRODUCER]);
    if (!step && !credit_is_due(line->ends[EDGE_CONSUMER])) return false;
    line->out = (struct tcp_frame){0};
    if (step) {
        const struct fifo *fifo = &line->ends[EDGE_PRODUCER]->fifo;
        const struct fifo_record *record = &producer->records[fifo_index(fifo, producer->step)];
        line->out =
            (struct tcp_frame){.what = FRAME_STEP, .bytes = record->bytes, .tag = record->tag};
    }
    if (consumer != NULL) {
        line->out.what |= FRAME_HEAD;
        line->out.head = consumer->credit = consumer->head;
    }
    line->out_done = 0;
    line->sending = true;
    return true;
}

static const unsigned char *payload_of(const struct tcp_line *line)
{
    const struct edge *producer = line->ends[EDGE_PRODUCER];
    const struct tcp_edge *tcp = producer->state;
    uint64_t index = fifo_index(&producer->fifo, tcp->step);
    if (tcp->records[index].address != 0)
        return (const unsigned char *)(uintptr_t)tcp->records[index].address;
    return producer->fifo.slots + index * producer->fifo.slot_bytes;
}

/* As send(), of what is left of the frame in hand. */
static ssize_t frame_send(const struct tcp_line *line)
{
    const struct tcp_frame *frame = &line->out;
    int fd = line->connection.fd;
    if (line->out_done == 0 && frame->bytes <= RUN_BYTES) {
        /* A payload copied beside its frame: one run of bytes costs the system less than two. */
        unsigned char run[sizeof *frame + RUN_BYTES];
        memcpy(run, frame, sizeof *frame);
        if (frame->bytes > 0) memcpy(run + sizeof *frame, payload_of(line), frame->bytes);
        return send(fd, run, sizeof *frame + frame->bytes, MSG_NOSIGNAL);
    }
    struct iovec parts[2];
    size_t count = 0, payload_done = 0;
    if (line->out_done < sizeof *frame)
        parts[count++] = (struct iovec){
            (unsigned char *)(uintptr_t)frame + line->out_done, sizeof *frame - line->out_done};
    else payload_done = line->out_done - sizeof *frame;
    if (payload_done < frame->bytes)
        parts[count++] = (struct iovec){(unsigned char *)(uintptr_t)payload_of(line) + payload_done,
            frame->bytes - payload_done};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

static enum status line_send(struct tcp_line *line, bool *moved)
{
    while (line->sending || frame_begin(line)) {
        ssize_t sent = frame_send(line);
        if (sent < 0 && connection_must_wait(errno)) return STATUS_OK;
        if (sent < 0) return connection_lost(&line->connection, "sending", errno);
        *moved = *moved || sent > 0;
        line->out_done += (size_t)sent;
        if (line->out_done < sizeof line->out + line->out.bytes) return STATUS_OK;
        line->sending = false;
        if ((line->out.what & FRAME_STEP) == 0) continue;
        struct tcp_edge *producer = end_of(line, EDGE_PRODUCER);
        producer->step++;
        /* Pairs with the acquire in fifo_room(). */
        __atomic_store_n(&producer->head, producer->step, __ATOMIC_RELEASE);
    }
    return STATUS_OK;
}

/* ---- receiving ---- */

static enum status take_head(struct tcp_line *line)
{
    struct tcp_edge *producer = end_of(line, EDGE_PRODUCER);
    if (producer == NULL) return STATUS_OK; /* not open yet, so that head is where it began */
    if (line->in.head - producer->credit > producer->step - producer->credit)
        return FAIL(STATUS_DATA, "rank %d gives credit up to step %llu, but only %llu were sent",
            line->connection.peer, (unsigned long long)line->in.head,
            (unsigned long long)producer->step);
    producer->credit = line->in.head;
    return STATUS_OK;
}

/* On a line that is shared nothing waits: the twin's credits are behind it. */
static void choose_landing(struct tcp_line *line)
{
    struct edge *consumer = line->ends[EDGE_CONSUMER];
    const struct tcp_edge *tcp = consumer->state;
    line->landing = NULL;
    if (consumer->landing != NULL)
        line->landing = consumer->landing(
            consumer->landing_context, tcp->step, line->in.bytes, line->in.tag);
    if (line->landing == EDGE_LATER && line->ends[EDGE_PRODUCER] != NULL) line->landing = NULL;
}

/* The frame is whole: its claims are checked, and the payload's place is chosen. */
static enum status frame_arrived(struct tcp_line *line)
{
    const struct tcp_frame *frame = &line->in;
    int peer = line->connection.peer;
    if (frame->what == 0 || frame->what > (FRAME_STEP | FRAME_HEAD) ||
        (frame->what == FRAME_HEAD && frame->bytes > 0))
        return FAIL(STATUS_DATA,
            "rank %d sends a frame of kind %llu with %llu bytes, expected 1, 2 or 3, "
            "and none with 2",
            peer, (unsigned long long)frame->what, (unsigned long long)frame->bytes);
    if (frame->what & FRAME_HEAD) TRY(take_head(line));
    line->landing = NULL;
    if ((frame->what & FRAME_STEP) == 0) return STATUS_OK;
    struct edge *consumer = line->ends[EDGE_CONSUMER];
    if (consumer == NULL)
        return FAIL(
            STATUS_DATA, "rank %d sends a step, expected none: nothing is received from it", peer);
    const struct tcp_edge *tcp = consumer->state;
    if (frame->bytes > consumer->fifo.slot_bytes)
        return FAIL(STATUS_DATA, "rank %d sends a step of %llu bytes, expected at most %zu", peer,
            (unsigned long long)frame->bytes, consumer->fifo.slot_bytes);
    if (tcp->step - tcp->head >= consumer->fifo.slot_count)
        return FAIL(STATUS_DATA, "rank %d sends step %llu, expected none beyond its credit of %llu",
            peer, (unsigned long long)tcp->step,
            (unsigned long long)(tcp->credit + consumer->fifo.slot_count));
    if (frame->bytes > 0) choose_landing(line);
    return STATUS_OK;
}

/* As recv(), by way of `ahead` where little is wanted. */
static ssize_t receive(struct tcp_line *line, unsigned char *into, size_t missing)
{
    if (line->ahead_begin == line->ahead_end) {
        bool direct = missing >= AHEAD_BYTES;
        size_t room = direct ? missing : AHEAD_BYTES;
        if (line->dry) {
            errno = EAGAIN;
            return -1;
        }
        ssize_t got = recv(line->connection.fd, direct ? into : line->ahead, room, 0);
        line->dry = got > 0 && (size_t)got < room;
        if (got <= 0 || direct) return got;
        line->ahead_begin = 0;
        line->ahead_end = (size_t)got;
    }
    size_t bytes = line->ahead_end - line->ahead_begin;
    if (bytes > missing) bytes = missing;
    memcpy(into, line->ahead + line->ahead_begin, bytes);
    line->ahead_begin += bytes;
    return (ssize_t)bytes;
}

/* What is missing of the frame, then of its payload. */
static ssize_t frame_receive(struct tcp_line *line)
{
    size_t frame = sizeof line->in;
    if (line->in_done < frame)
        return receive(line, (unsigned char *)&line->in + line->in_done, frame - line->in_done);
    const struct edge *consumer = line->ends[EDGE_CONSUMER];
    const struct tcp_edge *tcp = consumer->state;
    unsigned char *payload = line->landing;
    if (payload == NULL)
        payload = consumer->fifo.slots +
                  fifo_index(&consumer->fifo, tcp->step) * consumer->fifo.slot_bytes;
    return receive(line, payload + (line->in_done - frame), frame + line->in.bytes - line->in_done);
}

static void step_arrived(struct tcp_line *line)
{
    struct edge *consumer = line->ends[EDGE_CONSUMER];
    struct tcp_edge *tcp = consumer->state;
    tcp->records[fifo_index(&consumer->fifo, tcp->step)] =
        (struct fifo_record){.bytes = line->in.bytes,
            .tag = line->in.tag,
            .address = (uint64_t)(uintptr_t)line->landing};
    tcp->step++;
    /* Pairs with the acquire in fifo_ready(). */
    __atomic_store_n(&tcp->tail, tcp->step, __ATOMIC_RELEASE);
}

static enum status line_receive(struct tcp_line *line, bool *moved)
{
    line->dry = false;
    if (line->landing == EDGE_LATER) choose_landing(line);
    while (line->landing != EDGE_LATER) {
        ssize_t got = frame_receive(line);
        if (got == 0) return connection_lost(&line->connection, "receiving", 0);
        if (got < 0 && connection_must_wait(errno)) return STATUS_OK;
        if (got < 0) return connection_lost(&line->connection, "receiving", errno);
        *moved = true;
        line->in_done += (size_t)got;
        if (line->in_done == sizeof line->in) TRY(frame_arrived(line));
        if (line->in_done < sizeof line->in || line->in_done < sizeof line->in + line->in.bytes)
            continue;
        line->in_done = 0;
        if (line->in.what & FRAME_STEP) step_arrived(line);
    }
    return STATUS_OK;
}

/* ---- the transport ---- */

/* A producer that cannot go on looks for credit, and takes what its twin is sent: the peer may be
 * held up by that. */
static enum status tcp_progress(struct edge *edge, bool *moved)
{
    struct tcp_edge *tcp = edge->state;
    struct tcp_line *line = tcp->line;
    if (edge->config.side == EDGE_CONSUMER) {
        if (line->sending || credit_is_due(edge)) TRY(line_send(line, moved));
        return line_receive(line, moved);
    }
    TRY(line_send(line, moved));
    if (!has_step(tcp)) return STATUS_OK;
    TRY(line_receive(line, moved));
    return line_send(line, moved);
}

static bool tcp_drained(const struct edge *edge)
{
    const struct tcp_edge *tcp = edge->state;
    if (edge->config.side == EDGE_PRODUCER) return !has_step(tcp);
    return !credit_is_due(edge) && (!tcp->line->sending || (tcp->line->out.what & FRAME_STEP) != 0);
}

/* A producer with nothing to send waits for nothing: credits that it does not need yet must not
 * keep poll() awake. */
static int tcp_descriptor(const struct edge *edge, short *events)
{
    const struct tcp_edge *tcp = edge->state;
    *events = POLLIN;
    if (edge->config.side == EDGE_CONSUMER && tcp->line->landing == EDGE_LATER) return -1;
    if (edge->config.side == EDGE_PRODUCER) {
        if (!has_step(tcp)) return -1;
        if (tcp->line->sending || !lacks_credit(edge)) *events = POLLOUT;
    }
    return tcp->line->connection.fd;
}

static void tcp_close(struct edge *edge)
{
    struct tcp_edge *tcp = edge->state;
    if (tcp == NULL) return;
    struct tcp_line *line = tcp->line;
    if (line != NULL) line->ends[edge->config.side] = NULL;
    if (line != NULL && line->ends[EDGE_PRODUCER] == NULL && line->ends[EDGE_CONSUMER] == NULL) {
        connection_close(&line->connection);
        free(line);
    }
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
