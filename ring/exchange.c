/* exchange: see exchange.h.
 *
 *   for each round of the plan:  post its messages;  take, or leave in their slots, those that come;  add, free
 *   at last:                     what is posted leaves this process
 *
 * A cursor over messages, nothing blocks: what cannot be sent or has not come yet is tried in the next pass. A round's
 * receives begin when its sends are posted, since they may overwrite what was sent. No circle can come of that: a rank
 * that is behind all others finds room.
 */
#include "ring/exchange.h"

#include <stdio.h>
#include <string.h>

#include "ring/board.h"
#include "ring/comm.h"
#include "ring/exchange_kept.h"
#include "ring/trace.h"

/* ---- messages ---- */

/* The sizes that latency is measured with, without a call. */
static inline void copy_few(unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (bytes == 8) memcpy(to, from, 8);
    else if (bytes == 4) memcpy(to, from, 4);
    else memcpy(to, from, bytes);
}

/* Between the caller's memory and one run of bytes. */
static inline void gather_pieces(
    unsigned char *to, const struct exchange_message *message, const struct exchange *exchange)
{
    const struct exchange_piece *piece = &exchange->plan->pieces[message->first_piece];
    for (const struct exchange_piece *end = piece + message->pieces; piece < end;
         to += piece++->bytes)
        copy_few(to, exchange->places[piece->place] + piece->offset, piece->bytes);
}

static inline void scatter_pieces(
    const unsigned char *from, const struct exchange_message *message, struct exchange *exchange)
{
    const struct exchange_piece *piece = &exchange->plan->pieces[message->first_piece];
    for (const struct exchange_piece *end = piece + message->pieces; piece < end;
         from += piece++->bytes)
        copy_few(exchange->places[piece->place] + piece->offset, from, piece->bytes);
}

static inline const unsigned char *first_piece(
    const struct exchange_message *message, const struct exchange *exchange)
{
    const struct exchange_piece *piece = &exchange->plan->pieces[message->first_piece];
    return exchange->places[piece->place] + piece->offset;
}

/* Where the next message is to be written; NULL: there is no room. */
static inline unsigned char *find_room(const struct exchange_message *message)
{
    struct edge *edge = message->edge;
    if (edge->phase != EDGE_READY) return NULL;
    struct lines *lines = message->lines;
    if (lines != NULL) return lines_room(lines) ? lines_entry(lines)->data : NULL;
    return fifo_room(&edge->fifo) > 0 ? fifo_slot(&edge->fifo) : NULL;
}

/* lent: where the bytes are instead; NULL: where find_room() said. */
static inline void post(
    const struct exchange_message *message, const unsigned char *lent, uint64_t tag)
{
    if (message->lines != NULL) lines_post(message->lines, message->bytes, tag);
    else fifo_post(&message->edge->fifo, message->bytes, tag, (uint64_t)(uintptr_t)lent);
    edge_notify(message->edge);
}

/* A message that has come and is still in its slot. */
struct arrival {
    const unsigned char *data;
    uint64_t tag, bytes;
};

static inline bool has_arrived(struct arrival *arrival, const struct exchange_message *message)
{
    struct edge *edge = message->edge;
    if (edge->phase != EDGE_READY) return false;
    if (message->lines != NULL) {
        if (!lines_ready(message->lines)) return false;
        const struct line_entry *entry = lines_entry(message->lines);
        *arrival = (struct arrival){entry->data, entry->tag, entry->bytes};
    } else {
        if (fifo_ready(&edge->fifo) == 0) return false;
        struct fifo_record record = fifo_record(&edge->fifo);
        /* An address in shared memory would be another process's word: not to be followed. */
        const unsigned char *data =
            exchange_has_lines(edge) ? fifo_slot(&edge->fifo) : fifo_data(&edge->fifo, &record);
        *arrival = (struct arrival){data, record.tag, record.bytes};
    }
    return true;
}

static inline void free_slot(const struct exchange_message *message)
{
    if (message->lines != NULL) lines_free(message->lines);
    else fifo_free(&message->edge->fifo);
    edge_notify(message->edge);
}

static inline enum status give_back(const struct exchange_message *message, bool *moved)
{
    free_slot(message);
    return edge_drained(message->edge) ? STATUS_OK : edge_progress(message->edge, moved);
}

bool exchange_tell(struct edge *edge, uint64_t tag)
{
    struct exchange_message empty = {.edge = edge, .lines = exchange_has_lines(edge) ? &edge->lines : NULL};
    if (find_room(&empty) == NULL) return false;
    post(&empty, NULL, tag);
    return true;
}

bool exchange_hear(uint64_t *tag, struct edge *edge)
{
    struct exchange_message empty = {.edge = edge, .lines = exchange_has_lines(edge) ? &edge->lines : NULL};
    struct arrival arrival;
    if (!has_arrived(&arrival, &empty)) return false;
    *tag = arrival.tag;
    free_slot(&empty);
    return true;
}

/* ---- adding ---- */

#define PIECE 512 /* bytes that are added at a time */

/* add_around() of what is added as it is: in one pass, with no call for each part, which where parts
 * are a few elements is most of the time. */
static void sum_around(unsigned char *to, const unsigned char *const *parts,
    const unsigned char *order, int m, int last, size_t at, size_t count, enum dtype dtype)
{
    const void *row[EXCHANGE_MOST_RANKS];
    for (int i = 0, place = last; i < m; i++) {
        place = place + 1 < m ? place + 1 : 0;
        row[i] = parts[order[place]] + at;
    }
    reduce_sum_many(to, row, m, count, dtype);
}

/* `count` elements at `at` of the parts of m neighbouring positions, from the one after place `last` of them round to it, in `to`;
 * what is not yet complete in `beside`, which may be `to`. */
static void add_around(unsigned char *to, unsigned char *beside, const unsigned char *const *parts,
    const unsigned char *order, int m, int last, size_t at, size_t count, const struct reduction *reduction)
{
    if (reduce_is_plain_sum(reduction)) {
        sum_around(to, parts, order, m, last, at, count, reduction->dtype);
        return;
    }
    int place = last + 1 < m ? last + 1 : 0;
    const unsigned char *so_far = parts[order[place]] + at;
    if (reduce_scales(reduction)) {
        reduce_scale(beside, so_far, count, reduction);
        so_far = beside;
    }
    for (int left = m - 1; left > 0; left--) {
        place = place + 1 < m ? place + 1 : 0;
        reduce_combine(left == 1 ? to : beside, so_far, parts[order[place]] + at, count, reduction);
        so_far = beside;
    }
}

/* As a plan of two levels adds: each host's sum, then those of hosts, of the last one last. */
static void add_hosts(unsigned char *to, unsigned char *beside, const unsigned char *const *parts,
    const unsigned char *order, int m, int last, size_t at, size_t count, const struct reduction *reduction)
{
    int hosts = reduction->nranks / m;
    _Alignas(64) unsigned char own[PIECE];
    for (int left = hosts; left > 0; left--) {
        const unsigned char *host = order + (last / m + 1 + hosts - left) % hosts * m;
        unsigned char *sum = left == hosts ? beside : own;
        add_around(sum, sum, parts, host, m, last % m, at, count, reduction);
        if (left < hosts) reduce_merge(left == 1 ? to : beside, beside, own, count, reduction);
    }
}

/* One sum, of every rank's part. In place, `out` is where this rank's part lies: it is written last, piece by piece. */
static void add_up(unsigned char *out, const unsigned char *const *parts,
    const struct exchange_sum *sum, const struct exchange_plan *plan)
{
    const struct reduction *reduction = &plan->reduction;
    size_t element = dtype_bytes(reduction->dtype);
    bool finishes = reduce_finishes(reduction), levels = plan->host_ranks > 1;
    _Alignas(64) unsigned char beside[PIECE];
    size_t most = sizeof beside / reduce_partial_bytes(reduction);
    for (size_t i = 0; i < sum->count; i += most) {
        size_t count = sum->count - i < most ? sum->count - i : most;
        unsigned char *to = finishes ? beside : out + i * element;
        (levels ? add_hosts : add_around)(to, beside, parts, plan->order[sum->channel],
            levels ? plan->host_ranks : reduction->nranks, sum->last, sum->at + i * element, count, reduction);
        if (finishes) reduce_finish(out + i * element, beside, count, reduction);
    }
}

/* ---- for whoever watches ---- */

static int64_t watch_begin(const struct exchange *exchange)
{
    return exchange->watched != NULL ? trace_now(exchange->watched->comm->trace) : 0;
}

/* One message sent (to ≥ 0) or received (from ≥ 0), or, when all have come, the sums made (neither). A
 * message is named by the chunk it belongs to; where it has several, by that of who began with it. */
static void watch_end(
    const struct exchange *exchange, int64_t begin_ns, int from, int to, uint64_t bytes)
{
    const struct operation *operation = exchange->watched;
    if (operation == NULL) return;
    int self = operation->comm->rank, sender = from >= 0 ? from : self,
        receiver = to >= 0 ? to : self;
    bool to_owner = exchange->plan->rounds[exchange->round].to_owners;
    struct trace_event event = {
        .bytes = bytes,
        .sequence = (uint32_t)operation->sequence,
        .step = exchange->round,
        .chunk = operation->collective == COLLECTIVE_BROADCAST ? 0
                 : to_owner                                    ? receiver
                                                               : sender,
        .from = from,
        .to = to,
        .joins = -1,
        .collective = (uint8_t)operation->collective,
        .primitive = (uint8_t)(to >= 0     ? PRIMITIVE_SEND
                               : from >= 0 ? PRIMITIVE_RECV
                                           : PRIMITIVE_RECV_REDUCE_COPY),
    };
    trace_step(operation->comm->trace, 0, begin_ns, &event);
}

static void watch_wait(const struct exchange *exchange)
{
    const struct operation *operation = exchange->watched;
    if (operation == NULL || exchange->round == exchange->plan->round_count) return;
    bool sent = exchange->sent == exchange->plan->rounds[exchange->round].sends;
    trace_wait(operation->comm->trace, sent ? TRACE_WAIT_DATA : TRACE_WAIT_ROOM, 0);
}

/* All parts have come; those that stayed in their slots are given back. */
static enum status add_parts(
    struct exchange *exchange, const struct exchange_round *round, bool *moved)
{
    const struct exchange_plan *plan = exchange->plan;
    const unsigned char *parts[EXCHANGE_MOST_RANKS];
    for (int r = 0; r < plan->reduction.nranks; r++) {
        struct arrival arrival = {0};
        if (plan->parts[r].message < 0) {
            parts[r] = exchange->places[plan->parts[r].place] + plan->parts[r].offset;
            continue;
        }
        if (!has_arrived(&arrival, &plan->messages[plan->parts[r].message]))
            return FAIL(STATUS_DATA,
                "rank %d took back what it had sent before it was read: its memory is damaged", r);
        parts[r] = arrival.data;
    }
    for (int s = 0; s < plan->sum_count; s++)
        add_up(exchange->places[plan->sums[s].place] + plan->sums[s].to, parts, &plan->sums[s],
            plan);
    for (int m = round->first_receive; m < round->first_receive + round->receives; m++)
        if (plan->messages[m].stays) TRY(give_back(&plan->messages[m], moved));
    return STATUS_OK;
}

/* ---- running ---- */

void exchange_start(struct exchange *exchange, struct exchange_plan *plan, unsigned char *recv,
    const unsigned char *send, uint64_t tag, const struct ring_comm *comm)
{
    exchange->plan = plan;
    /* Calls of no elements may bring no buffers: any address will do, none is looked at. */
    unsigned char *nothing = (unsigned char *)plan, *stage = exchange_stage(comm);
    exchange->places[EXCHANGE_SEND] =
        send != NULL ? (unsigned char *)(uintptr_t)send : nothing; /* only read */
    exchange->places[EXCHANGE_RECV] = recv != NULL ? recv : nothing;
    exchange->places[EXCHANGE_STAGE] = stage != NULL ? stage : nothing;
    exchange->tag = tag;
    exchange->round = exchange->sent = exchange->received = 0;
    exchange->misfit = -1;
    exchange->looks = 0;
    exchange->watched = NULL;
    if (plan->own_to.bytes == 0) return;
    unsigned char *to = exchange->places[plan->own_to.place] + plan->own_to.offset;
    const unsigned char *from = exchange->places[plan->own_from.place] + plan->own_from.offset;
    if (to != from) copy_few(to, from, plan->own_to.bytes);
}

static inline bool is_by_board(
    const struct exchange_message *message, const struct exchange_plan *plan)
{
    return plan->board != NULL && message->lines == board_own(plan->board);
}

/* All of a round at once. */
static void post_on_board(struct exchange *exchange, const struct exchange_round *round, bool *moved)
{
    const struct exchange_plan *plan = exchange->plan;
    const struct exchange_message *first = &plan->messages[round->first_send];
    int64_t begin_ns = watch_begin(exchange);
    if (!board_room(plan->board)) return;
    gather_pieces(lines_entry(first->lines)->data, first, exchange);
    lines_post(first->lines, first->bytes, exchange->tag);
    for (; exchange->sent < round->sends; exchange->sent++) {
        edge_notify(first[exchange->sent].edge);
        watch_end(exchange, begin_ns, -1, first[exchange->sent].peer, first->bytes);
        begin_ns = watch_begin(exchange); /* the writing is the first one's */
    }
    *moved = true;
}

static enum status send_messages(
    struct exchange *exchange, const struct exchange_round *round, bool *moved)
{
    if (is_by_board(&exchange->plan->messages[round->first_send], exchange->plan)) {
        post_on_board(exchange, round, moved);
        return STATUS_OK;
    }
    for (; exchange->sent < round->sends; exchange->sent++) {
        const struct exchange_message *message =
            &exchange->plan->messages[round->first_send + exchange->sent];
        int64_t begin_ns = watch_begin(exchange);
        unsigned char *room = find_room(message);
        if (room == NULL) return STATUS_OK;
        const unsigned char *lent = NULL;
        if (message->by_address) lent = first_piece(message, exchange);
        else gather_pieces(room, message, exchange);
        post(message, lent, exchange->tag);
        watch_end(exchange, begin_ns, -1, message->peer, message->bytes);
        *moved = true;
        if (exchange_is_staged(message->edge)) TRY(edge_progress(message->edge, moved));
    }
    return STATUS_OK;
}

static enum status receive_messages(
    struct exchange *exchange, const struct exchange_round *round, bool *moved)
{
    for (; exchange->received < round->receives; exchange->received++) {
        int m = round->first_receive + exchange->received;
        const struct exchange_message *message = &exchange->plan->messages[m];
        struct arrival arrival;
        int looks = exchange->looks;
        int64_t begin_ns = watch_begin(exchange);
        while (!has_arrived(&arrival, message)) {
            bool came = false; /* then it is looked at again before this rank's turn ends */
            if (exchange_is_staged(message->edge)) TRY(edge_progress(message->edge, &came));
            *moved = *moved || came;
            if (!came && looks-- <= 0) return STATUS_OK;
        }
        if (arrival.tag != exchange->tag || arrival.bytes != message->bytes) {
            exchange->misfit = m;
            return STATUS_DATA;
        }
        *moved = true;
        if (!message->stays) scatter_pieces(arrival.data, message, exchange);
        watch_end(exchange, begin_ns, message->peer, -1, message->bytes);
        if (message->stays) continue;
        TRY(give_back(message, moved));
    }
    return STATUS_OK;
}

/* What was posted before, in any round, goes on leaving. */
static enum status drain(bool *drained, const struct exchange *exchange, bool *moved)
{
    const struct exchange_plan *plan = exchange->plan;
    *drained = true;
    for (int m = 0; m < plan->message_count; m++) {
        struct edge *edge = plan->messages[m].edge;
        if (!exchange_is_staged(edge) || edge_drained(edge)) continue;
        TRY(edge_progress(edge, moved));
        *drained = *drained && edge_drained(edge);
    }
    return STATUS_OK;
}

enum status exchange_step(struct exchange *exchange, bool *moved, bool *done)
{
    const struct exchange_plan *plan = exchange->plan;
    bool drained = true;
    while (exchange->round < plan->round_count) {
        const struct exchange_round *round = &plan->rounds[exchange->round];
        if (exchange->sent < round->sends) TRY(send_messages(exchange, round, moved));
        if (exchange->sent < round->sends) return drain(&drained, exchange, moved);
        TRY(receive_messages(exchange, round, moved));
        if (exchange->received < round->receives) return drain(&drained, exchange, moved);
        int64_t begin_ns = round->adds ? watch_begin(exchange) : 0;
        if (round->adds) TRY(add_parts(exchange, round, moved));
        if (round->adds) watch_end(exchange, begin_ns, -1, -1, 0);
        exchange->sent = exchange->received = 0;
        exchange->round++;
        *moved = true;
    }
    return drain(done, exchange, moved);
}

/* ---- as an operation ---- */

enum status exchange_begin(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    struct exchange_plan *plan = exchange_recall(operation->collective, &operation->reduction,
        operation->root, operation->count, operation->stride, comm);
    if (plan == NULL) TRY(exchange_make(&plan, operation));
    exchange_start(
        &operation->exchange, plan, operation->recv, operation->send, operation->tag, comm);
    if (comm->trace != NULL) operation->exchange.watched = operation;
    return STATUS_OK;
}

static enum status connect_edges(struct exchange_plan *plan, bool *moved)
{
    plan->ready = true;
    for (int m = 0; m < plan->message_count; m++) {
        struct edge *edge = plan->messages[m].edge;
        if (edge->phase != EDGE_READY) TRY(edge_progress(edge, moved));
        plan->ready = plan->ready && edge->phase == EDGE_READY;
    }
    return STATUS_OK;
}

/* For poll(): the edge that it waits to receive from, and those with something still to leave. */
static void list_edges(struct operation *operation)
{
    const struct exchange *exchange = &operation->exchange;
    const struct exchange_plan *plan = exchange->plan;
    operation->edges = operation->room->edges;
    operation->edge_count = 0;
    for (int m = 0; m < plan->message_count; m++)
        if (!edge_drained(plan->messages[m].edge) &&
            operation->edge_count < 2 * RING_MAX_CHANNELS - 1)
            operation->edges[operation->edge_count++] = plan->messages[m].edge;
    if (exchange->round == plan->round_count) return;
    const struct exchange_round *round = &plan->rounds[exchange->round];
    if (exchange->sent < round->sends || exchange->received == round->receives) return;
    operation->edges[operation->edge_count++] =
        plan->messages[round->first_receive + exchange->received].edge;
}

enum status exchange_advance(struct operation *operation, bool *moved, bool *done)
{
    struct exchange *exchange = &operation->exchange;
    if (!exchange->plan->ready) TRY(connect_edges(exchange->plan, moved));
    enum status status = exchange_step(exchange, moved, done);
    if (status == STATUS_DATA && exchange->misfit >= 0) {
        const struct exchange_message *message = &exchange->plan->messages[exchange->misfit];
        struct arrival arrival = {0};
        (void)has_arrived(&arrival, message);
        return operation_check_slice(
            operation, message->peer, arrival.tag, arrival.bytes, message->bytes);
    }
    TRY(status);
    operation->sent_bytes = *done ? exchange->plan->sent_bytes : 0;
    operation->border_bytes = *done ? exchange->plan->border_bytes : 0;
    operation->received_bytes = *done ? exchange->plan->received_bytes : 0;
    if (!*done) watch_wait(exchange);
    if (!*moved) list_edges(operation);
    return STATUS_OK;
}

/* The round's message to that rank; the first, where there is none. */
static int message_to(int rank, const struct exchange_round *round, const struct exchange_plan *plan)
{
    int m = round->first_send;
    for (int i = 0; i < round->sends; i++)
        if (plan->messages[round->first_send + i].peer == rank) m = round->first_send + i;
    return m;
}

void exchange_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation)
{
    const struct exchange *exchange = &operation->exchange;
    const struct exchange_plan *plan = exchange->plan;
    *rank = -1;
    snprintf(text, bytes, "its edges to open");
    if (plan == NULL) return;
    bool leaving = exchange->round == plan->round_count;
    const struct exchange_round *round =
        &plan->rounds[leaving ? plan->round_count - 1 : exchange->round];
    bool sending = !leaving && exchange->sent < round->sends;
    int m =
        sending ? round->first_send + exchange->sent : round->first_receive + exchange->received;
    for (int i = 0; i < plan->message_count && leaving; i++)
        if (!edge_drained(plan->messages[i].edge)) m = i;
    if (m >= plan->message_count) m = plan->message_count - 1;
    if (sending && is_by_board(&plan->messages[m], plan)) m = message_to(board_slowest(plan->board), round, plan);
    const struct edge *edge = plan->messages[m].edge;
    const char *what = leaving                     ? "the last bytes to leave for"
                       : edge->phase != EDGE_READY ? "the connection with"
                       : sending                   ? "room at"
                                                   : "data from";
    *rank = plan->messages[m].peer;
    snprintf(text, bytes, "%s rank %d (exchange, round %d of %d, %s)", what,
        comm_name(operation->comm, *rank), exchange->round + !leaving, plan->round_count,
        edge->transport->name);
}
