/* exchange: see exchange.h.
 *
 *   phase 0   send to every peer its part of the input; when all parts of all peers have come, add or copy them, free them
 *   phase 1   (all_reduce in two hops) send the own complete chunk to every peer; copy theirs as they come
 *
 * A cursor over peers in each direction, nothing blocks: what cannot be sent or has not come yet is tried in the next pass.
 * Parts wait in their slots until the last has come, so nothing is copied aside.
 */
#include "ring/exchange.h"

#include <stdio.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/roll_call.h"
#include "ring/trace.h"

enum phase { PHASE_PARTS, PHASE_RESULTS, PHASE_DRAINING };

/* ---- which operations, which parts ---- */

static bool in_one_hop(const struct operation *operation)
{
    size_t bytes = operation->count * dtype_bytes(operation->reduction.dtype);
    return bytes <= EXCHANGE_LINE_BYTES - LINES_HEADER_BYTES;
}

static size_t largest_part_bytes(const struct operation *operation)
{
    size_t element = dtype_bytes(operation->reduction.dtype), n = (size_t)operation->reduction.nranks;
    bool cut = operation->collective == COLLECTIVE_ALL_REDUCE && operation->stride == 0;
    return (cut ? (operation->count + n - 1) / n : operation->count) * element;
}

bool exchange_fits(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    if (comm->nranks < 2 || comm->nranks > EXCHANGE_MOST_RANKS || operation->begins != NULL) return false;
    if (operation->reduction.redop == REDOP_PREMUL_SUM) return false; /* every rank has a factor of its own: the ring */
    switch (operation->collective) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_BROADCAST: return largest_part_bytes(operation) <= comm->config.exchange_bytes;
    case COLLECTIVE_BARRIER: return true;
    default: return false;
    }
}

/* A run of elements in the caller's buffers. */
struct part {
    const unsigned char *from;
    size_t bytes;
};

static struct part whole(const unsigned char *buffer, const struct operation *operation)
{
    return (struct part){buffer, operation->count * dtype_bytes(operation->reduction.dtype)};
}

static struct part chunk(const unsigned char *buffer, bool is_chunk, int c, const struct operation *operation)
{
    size_t begin, count, element = dtype_bytes(operation->reduction.dtype);
    operation_chunk(&begin, &count, operation, c);
    if (count == 0) return (struct part){NULL, 0};
    return (struct part){is_chunk || buffer == NULL ? buffer : buffer + begin * element, count * element};
}

static bool gathers_whole(const struct operation *operation)
{
    return operation->stride == 0 && in_one_hop(operation) &&
           (operation->collective == COLLECTIVE_ALL_REDUCE || operation->collective == COLLECTIVE_BARRIER);
}

/* What `to` gets in a phase. */
static struct part part_for(int to, const struct operation *operation)
{
    int self = operation->comm->rank;
    if (operation->exchange.phase == PHASE_RESULTS) return chunk(operation->recv, operation->recv_is_chunk, self, operation);
    switch (operation->collective) {
    case COLLECTIVE_ALL_GATHER: return chunk(operation->send, true, self, operation);
    case COLLECTIVE_BROADCAST: return operation->root == self ? whole(operation->send, operation) : (struct part){NULL, 0};
    default: break;
    }
    return gathers_whole(operation) ? whole(operation->send, operation) : chunk(operation->send, false, to, operation);
}

static size_t expected_bytes(int from, const struct operation *operation)
{
    if (operation->collective == COLLECTIVE_BROADCAST && operation->root != from) return 0;
    if (operation->collective == COLLECTIVE_BROADCAST || gathers_whole(operation))
        return whole(NULL, operation).bytes;
    bool owners = operation->exchange.phase == PHASE_RESULTS || operation->collective == COLLECTIVE_ALL_GATHER;
    size_t begin, count;
    operation_chunk(&begin, &count, operation, owners ? from : operation->comm->rank);
    return count * dtype_bytes(operation->reduction.dtype);
}

/* A broadcast's other ranks take part in it, too, where roots are checked. */
static bool sends(const struct operation *operation)
{
    return operation->collective != COLLECTIVE_BROADCAST || operation->root == operation->comm->rank || roll_call_wanted(operation);
}

static bool receives_from(int peer, const struct operation *operation)
{
    return operation->collective != COLLECTIVE_BROADCAST || operation->root == peer || roll_call_wanted(operation);
}

static bool has_two_hops(const struct operation *operation)
{
    return operation->collective == COLLECTIVE_ALL_REDUCE && !gathers_whole(operation);
}

static int peer_at(int i, const struct operation *operation)
{
    return (operation->comm->rank + 1 + i) % operation->comm->nranks;
}

uint64_t exchange_sent_bytes(const struct operation *operation)
{
    struct operation described = *operation;
    uint64_t bytes = 0;
    for (int phase = PHASE_PARTS; phase <= (has_two_hops(operation) ? PHASE_RESULTS : PHASE_PARTS); phase++) {
        described.exchange.phase = phase;
        for (int i = 0; i < operation->comm->nranks - 1 && sends(operation); i++)
            bytes += part_for(peer_at(i, operation), &described).bytes;
    }
    return bytes;
}

/* ---- edges: of a pair of ranks, by lines where there are, else by slots ---- */

static struct edge *edge_of(int peer, enum edge_side side, const struct operation *operation)
{
    return *comm_edge_place(comm_exchange_channel(operation->comm), side, peer, operation->comm);
}

static bool by_lines(const struct edge *edge, size_t bytes)
{
    return edge->lines.entries != NULL && bytes <= edge->lines.entry_bytes - LINES_HEADER_BYTES;
}

/* Whether shared memory is what the edge is, known before it is connected: both sides must choose alike. */
static bool has_lines(const struct edge *edge) { return edge->transport->peer_reads_slots; }

static bool try_send(struct edge *edge, const struct part *part, uint64_t tag)
{
    if (has_lines(edge) && part->bytes <= EXCHANGE_LINE_BYTES - LINES_HEADER_BYTES) {
        if (!by_lines(edge, part->bytes) || !lines_room(&edge->lines)) return false;
        if (part->bytes > 0) memcpy(lines_entry(&edge->lines)->data, part->from, part->bytes);
        lines_post(&edge->lines, part->bytes, tag);
    } else {
        if (edge->phase != EDGE_READY || fifo_room(&edge->fifo) == 0) return false;
        if (part->bytes > 0) memcpy(fifo_slot(&edge->fifo), part->from, part->bytes);
        fifo_post(&edge->fifo, part->bytes, tag, 0);
    }
    edge_notify(edge);
    return true;
}

/* What is posted or freed has yet to leave this process: edge_progress() carries it. */
static bool is_staged(const struct edge *edge) { return edge->transport->drained != NULL; }

/* A message that has come and is still in its slot. */
struct arrival {
    const unsigned char *data;
    uint64_t tag, bytes;
};

static bool has_arrived(struct arrival *arrival, struct edge *edge, size_t bytes)
{
    if (has_lines(edge) && bytes <= EXCHANGE_LINE_BYTES - LINES_HEADER_BYTES) {
        if (edge->lines.entries == NULL || !lines_ready(&edge->lines)) return false;
        const struct line_entry *entry = lines_entry(&edge->lines);
        *arrival = (struct arrival){entry->data, entry->tag, entry->bytes};
    } else {
        if (fifo_ready(&edge->fifo) == 0) return false;
        const struct fifo_record *record = fifo_record(&edge->fifo);
        /* An address in shared memory would be another process's word: not to be followed. */
        const unsigned char *data = has_lines(edge) ? fifo_slot(&edge->fifo) : fifo_data(&edge->fifo);
        *arrival = (struct arrival){data, record->tag, record->bytes};
    }
    return true;
}

static void give_back(struct edge *edge, size_t bytes)
{
    if (has_lines(edge) && bytes <= EXCHANGE_LINE_BYTES - LINES_HEADER_BYTES) lines_free(&edge->lines);
    else fifo_free(&edge->fifo);
    edge_notify(edge);
}

bool exchange_tell(struct edge *edge, uint64_t tag) { return try_send(edge, &(struct part){NULL, 0}, tag); }

bool exchange_hear(uint64_t *tag, struct edge *edge)
{
    struct arrival arrival;
    if (!has_arrived(&arrival, edge, 0)) return false;
    *tag = arrival.tag;
    give_back(edge, 0);
    return true;
}

/* ---- adding ---- */

/* Where every rank's message begins: the own input, or what has come. */
static enum status find_messages(const unsigned char **messages, const struct operation *operation)
{
    int self = operation->comm->rank, n = operation->comm->nranks;
    for (int r = 0; r < n; r++) {
        struct arrival arrival = {0};
        if (r != self && !has_arrived(&arrival, edge_of(r, EDGE_CONSUMER, operation), expected_bytes(r, operation)))
            return FAIL(STATUS_DATA, "rank %d: rank %d took back what it had sent before it was read: its memory is damaged",
                comm_name(operation->comm, self), comm_name(operation->comm, r));
        messages[r] = arrival.data;
    }
    messages[self] = gathers_whole(operation) ? operation->send : chunk(operation->send, false, self, operation).from;
    return STATUS_OK;
}

/* out = the sum of `count` elements that begin `at` bytes into every message, in the order of the ring for the chunk of rank c. In
 * place, out is where this rank's part lies: the sum is built in pieces beside it. */
static void add_chunk(unsigned char *out, const unsigned char *const *messages, size_t at, size_t count, int c,
    const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    const struct reduction *reduction = &operation->reduction;
    size_t element = dtype_bytes(reduction->dtype);
    _Alignas(64) unsigned char sum[512];
    size_t piece_count = sizeof sum / reduce_partial_bytes(reduction);
    int last = 0;
    while (comm_rank_at(comm, 0, last) != c) last++;
    for (size_t i = 0; i < count; i += piece_count) {
        size_t piece = count - i < piece_count ? count - i : piece_count, skip = i * element;
        for (int j = 1; j <= comm->nranks; j++) {
            int position = last + j < comm->nranks ? last + j : last + j - comm->nranks;
            const unsigned char *own = messages[comm_rank_at(comm, 0, position)] + at + skip;
            if (j > 1) reduce_combine(sum, sum, own, piece, reduction);
            else if (reduce_scales(reduction)) reduce_scale(sum, own, piece, reduction);
            else memcpy(sum, own, piece * element);
        }
        if (reduce_finishes(reduction)) reduce_finish(out + skip, sum, piece, reduction);
        else memcpy(out + skip, sum, piece * element);
    }
}

/* All parts have come. */
static enum status combine_parts(struct operation *operation)
{
    int self = operation->comm->rank, n = operation->comm->nranks;
    size_t begin, count, element = dtype_bytes(operation->reduction.dtype);
    const unsigned char *messages[EXCHANGE_MOST_RANKS];
    if (operation->count == 0) return STATUS_OK;
    TRY(find_messages(messages, operation));
    if (!gathers_whole(operation)) {
        struct part out = chunk(operation->recv, operation->recv_is_chunk, self, operation);
        operation_chunk(&begin, &count, operation, self);
        if (count > 0) add_chunk((unsigned char *)(uintptr_t)out.from, messages, 0, count, self, operation);
        return STATUS_OK;
    }
    for (int c = 0; c < n; c++) {
        operation_chunk(&begin, &count, operation, c);
        if (count > 0) add_chunk(operation->recv + begin * element, messages, begin * element, count, c, operation);
    }
    return STATUS_OK;
}

/* What has come is complete as it is: all_gather, broadcast, results. */
static void keep_arrival(int from, const struct arrival *arrival, const struct operation *operation)
{
    unsigned char *to = operation->recv;
    if (operation->collective != COLLECTIVE_BROADCAST)
        to = (unsigned char *)(uintptr_t)chunk(operation->recv, operation->recv_is_chunk, from, operation).from;
    if (arrival->bytes > 0) memcpy(to, arrival->data, arrival->bytes);
}

static bool adds(const struct operation *operation)
{
    return operation->exchange.phase == PHASE_PARTS &&
           (collective_is_reduction(operation->collective) || operation->collective == COLLECTIVE_BARRIER);
}

/* ---- running ---- */

static void keep_own(const struct operation *operation)
{
    struct part own = {0};
    unsigned char *to = operation->recv;
    if (operation->collective == COLLECTIVE_ALL_GATHER) {
        own = chunk(operation->send, true, operation->comm->rank, operation);
        to = (unsigned char *)(uintptr_t)chunk(operation->recv, false, operation->comm->rank, operation).from;
    } else if (operation->collective == COLLECTIVE_BROADCAST && operation->root == operation->comm->rank) {
        own = whole(operation->send, operation);
    }
    if (own.bytes > 0 && to != own.from) memcpy(to, own.from, own.bytes);
}

enum status exchange_begin(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    operation->exchange = (struct exchange){.phase = PHASE_PARTS};
    operation->edges = operation->room->edges;
    for (int i = 0; i < comm->nranks - 1; i++) {
        struct edge **next = &operation->edges[operation->edge_count];
        int peer = peer_at(i, operation), channel = comm_exchange_channel(comm);
        if (sends(operation)) {
            TRY(comm_edge(next++, channel, EDGE_PRODUCER, peer, comm));
            operation->edge_count++;
        }
        if (receives_from(peer, operation)) {
            TRY(comm_edge(next, channel, EDGE_CONSUMER, peer, comm));
            operation->edge_count++;
        }
    }
    keep_own(operation);
    return STATUS_OK;
}

/* For whoever watches: one part sent (to ≥ 0) or received (from ≥ 0), or, when all have come, added (neither). A part is named by the
 * chunk it belongs to; where everyone sends all it has, by who sends it. */
static void trace_part(const struct operation *operation, int64_t begin_ns, int from, int to, uint64_t bytes)
{
    int self = operation->comm->rank, sender = from >= 0 ? from : self, receiver = to >= 0 ? to : self;
    bool parts = adds(operation) && !gathers_whole(operation);
    struct trace_event event = {
        .bytes = bytes,
        .sequence = (uint32_t)operation->sequence,
        .step = operation->exchange.phase,
        .chunk = operation->collective == COLLECTIVE_BROADCAST ? 0 : parts ? receiver : sender,
        .from = from,
        .to = to,
        .collective = (uint8_t)operation->collective,
        .primitive = (uint8_t)(to >= 0 ? PRIMITIVE_SEND : from >= 0 ? PRIMITIVE_RECV : PRIMITIVE_RECV_REDUCE_COPY),
    };
    trace_step(operation->comm->trace, 0, begin_ns, &event);
}

static enum status send_parts(struct operation *operation, bool *moved)
{
    struct exchange *exchange = &operation->exchange;
    for (; sends(operation) && exchange->next_send < operation->comm->nranks - 1; exchange->next_send++) {
        int peer = peer_at(exchange->next_send, operation);
        struct edge *edge = edge_of(peer, EDGE_PRODUCER, operation);
        struct part part = part_for(peer, operation);
        int64_t begin_ns = trace_now(operation->comm->trace);
        if (!try_send(edge, &part, operation->tag)) return STATUS_OK;
        if (operation->comm->trace != NULL) trace_part(operation, begin_ns, -1, peer, part.bytes);
        if (is_staged(edge)) TRY(edge_progress(edge, moved));
        operation->sent_bytes += part.bytes;
        *moved = true;
    }
    return STATUS_OK;
}

static enum status receive_parts(struct operation *operation, bool *moved)
{
    struct exchange *exchange = &operation->exchange;
    for (; exchange->next_receive < operation->comm->nranks - 1; exchange->next_receive++) {
        int peer = peer_at(exchange->next_receive, operation);
        if (!receives_from(peer, operation)) continue;
        struct edge *edge = edge_of(peer, EDGE_CONSUMER, operation);
        size_t bytes = expected_bytes(peer, operation);
        struct arrival arrival;
        int64_t begin_ns = trace_now(operation->comm->trace);
        if (!has_arrived(&arrival, edge, bytes)) return STATUS_OK;
        TRY(operation_check_slice(operation, peer, arrival.tag, arrival.bytes, bytes));
        operation->received_bytes += bytes;
        *moved = true;
        bool stays = adds(operation); /* in its slot, until all have come */
        if (!stays) keep_arrival(peer, &arrival, operation);
        if (operation->comm->trace != NULL) trace_part(operation, begin_ns, peer, -1, bytes);
        if (stays) continue;
        give_back(edge, bytes);
        if (is_staged(edge)) TRY(edge_progress(edge, moved));
    }
    return STATUS_OK;
}

static enum status end_of_phase(struct operation *operation, bool *moved)
{
    struct exchange *exchange = &operation->exchange;
    if (adds(operation)) {
        int64_t begin_ns = trace_now(operation->comm->trace);
        TRY(combine_parts(operation));
        if (operation->comm->trace != NULL) trace_part(operation, begin_ns, -1, -1, 0);
        for (int i = 0; i < operation->comm->nranks - 1; i++) {
            int peer = peer_at(i, operation);
            struct edge *edge = edge_of(peer, EDGE_CONSUMER, operation);
            give_back(edge, expected_bytes(peer, operation));
            if (is_staged(edge)) TRY(edge_progress(edge, moved));
        }
    }
    bool more = exchange->phase == PHASE_PARTS && has_two_hops(operation);
    *exchange = (struct exchange){.phase = more ? PHASE_RESULTS : PHASE_DRAINING};
    *moved = true;
    return STATUS_OK;
}

static enum status drain(struct operation *operation, bool *moved, bool *done)
{
    *done = true;
    for (int e = 0; e < operation->edge_count; e++) {
        struct edge *edge = operation->edges[e];
        if (!is_staged(edge)) continue;
        if (!edge_drained(edge)) TRY(edge_progress(edge, moved));
        *done = *done && edge_drained(edge);
    }
    return STATUS_OK;
}

enum status exchange_advance(struct operation *operation, bool *moved, bool *done)
{
    struct exchange *exchange = &operation->exchange;
    int peers = operation->comm->nranks - 1;
    *done = false;
    for (int e = 0; e < operation->edge_count; e++) {
        struct edge *edge = operation->edges[e];
        if (edge->phase != EDGE_READY || is_staged(edge)) TRY(edge_progress(edge, moved));
    }
    while (exchange->phase != PHASE_DRAINING) {
        TRY(send_parts(operation, moved));
        TRY(receive_parts(operation, moved));
        bool sent = !sends(operation) || exchange->next_send == peers;
        if (!sent || exchange->next_receive < peers) {
            if (operation->comm->trace != NULL)
                trace_wait(operation->comm->trace, sent ? TRACE_WAIT_DATA : TRACE_WAIT_ROOM, 0);
            return STATUS_OK;
        }
        TRY(end_of_phase(operation, moved));
    }
    return drain(operation, moved, done);
}

void exchange_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation)
{
    const struct exchange *exchange = &operation->exchange;
    bool sent = !sends(operation) || exchange->next_send == operation->comm->nranks - 1;
    bool sending = !sent && exchange->phase != PHASE_DRAINING;
    *rank = peer_at(sending ? exchange->next_send : exchange->next_receive, operation);
    const struct edge *edge = edge_of(*rank, sending ? EDGE_PRODUCER : EDGE_CONSUMER, operation);
    const char *what = exchange->phase == PHASE_DRAINING                 ? "the last bytes to leave for"
                       : edge != NULL && edge->phase != EDGE_READY ? "the connection with"
                       : sending                                        ? "room at"
                                                                        : "data from";
    snprintf(text, bytes, "%s rank %d (exchange, hop %d, %s)", what, comm_name(operation->comm, *rank), exchange->phase + 1,
        edge != NULL ? edge->transport->name : "no edge");
}
