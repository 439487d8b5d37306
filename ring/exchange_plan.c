/* exchange_plan: see exchange_plan.h. */
#include "ring/exchange_plan.h"

#include <assert.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/roll_call.h"

/* ---- which operations ---- */

#define PAIR_FACTOR        4 /* of the sizes of two ranks: reduce_scatter, broadcast */
#define PAIR_FACTOR_GATHER 2

static size_t element_bytes(const struct operation *operation)
{
    return dtype_bytes(operation->reduction.dtype);
}
static size_t whole_bytes(const struct operation *operation)
{
    return operation->count * element_bytes(operation);
}

static size_t largest_part_bytes(const struct operation *operation)
{
    size_t n = (size_t)operation->reduction.nranks;
    bool cut = operation->collective == COLLECTIVE_ALL_REDUCE && operation->stride == 0;
    return (cut ? (operation->count + n - 1) / n : operation->count) * element_bytes(operation);
}

/* Bytes of the largest part. Of two ranks that share memory what has one hop goes on longer: both are at it at once, and nothing is
 * cut; an all_gather less far: only to where windows begin, if they copy from any memory. A size that was measured, or that keeps
 * everything out, stays. */
static size_t most_bytes(enum collective collective, const struct ring_comm *comm)
{
    size_t most = comm->config.exchange_bytes;
    if (comm->exchange_most[collective] > 0) return comm->exchange_most[collective];
    if (!comm->one_memory || comm->nranks > 2 || comm->exchange_measured || most == 1) return most;
    if (collective == COLLECTIVE_ALL_GATHER) {
        size_t windows = comm->config.window_bytes;
        bool met = comm->has_copies && windows >= most && windows <= PAIR_FACTOR_GATHER * most;
        return met ? windows - 1 : PAIR_FACTOR_GATHER * most;
    }
    return collective == COLLECTIVE_ALL_REDUCE ? most : PAIR_FACTOR * most;
}

bool exchange_fits(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    if (comm->nranks < 2 || comm->nranks > EXCHANGE_MOST_RANKS || operation->begins != NULL)
        return false;
    if (operation->reduction.redop == REDOP_PREMUL_SUM)
        return false; /* every rank has a factor of its own: the ring */
    switch (operation->collective) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_BROADCAST: return largest_part_bytes(operation) <= most_bytes(operation->collective, comm);
    case COLLECTIVE_BARRIER: return true;
    default: return false;
    }
}

/* Everyone gets everyone's whole input. */
static bool gathers_inputs(const struct operation *operation)
{
    return operation->stride == 0 && whole_bytes(operation) <= EXCHANGE_FEW_BYTES &&
           (operation->collective == COLLECTIVE_ALL_REDUCE ||
               operation->collective == COLLECTIVE_BARRIER);
}

static bool has_two_hops(const struct operation *operation)
{
    return operation->collective == COLLECTIVE_ALL_REDUCE && !gathers_inputs(operation);
}

/* A round's largest message is half of all blocks, or the buffer of a broadcast. */
bool exchange_is_logarithmic(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    size_t half = operation->collective == COLLECTIVE_BROADCAST ? 1 : (size_t)comm->nranks / 2;
    size_t block =
        gathers_inputs(operation) ? whole_bytes(operation) : largest_part_bytes(operation);
    return !comm->one_memory && comm->nranks > 2 && half * block <= exchange_slot_bytes(comm) &&
           !roll_call_wanted(operation);
}

size_t exchange_slot_bytes(const struct ring_comm *comm)
{
    size_t most = most_bytes(COLLECTIVE_BROADCAST, comm);
    if (most < comm->config.exchange_bytes) most = comm->config.exchange_bytes;
    if (most < EXCHANGE_LINE_BYTES) most = EXCHANGE_LINE_BYTES;
    return ((comm->one_memory ? most : 2 * most) + 63) / 64 * 64;
}

uint64_t exchange_slot_count(const struct ring_comm *comm)
{
    return comm->one_memory ? 8 : 16;
}

/* ---- writing a plan ---- */

static struct exchange_round *round_begin(struct exchange_plan *plan)
{
    assert(plan->round_count < EXCHANGE_MOST_ROUNDS);
    short next = (short)plan->message_count;
    plan->rounds[plan->round_count] =
        (struct exchange_round){.first_send = next, .first_receive = next};
    return &plan->rounds[plan->round_count++];
}

static struct exchange_message *message_begin(struct exchange_plan *plan, int peer)
{
    assert(plan->message_count < EXCHANGE_MOST_MESSAGES);
    struct exchange_message *message = &plan->messages[plan->message_count++];
    *message = (struct exchange_message){.peer = peer, .first_piece = (short)plan->piece_count};
    return message;
}

/* All sends of a round come before its receives. */
static struct exchange_message *send_begin(struct exchange_plan *plan, int peer)
{
    struct exchange_round *round = &plan->rounds[plan->round_count - 1];
    assert(round->receives == 0);
    round->sends++;
    round->first_receive++;
    return message_begin(plan, peer);
}

static struct exchange_message *receive_begin(struct exchange_plan *plan, int peer)
{
    plan->rounds[plan->round_count - 1].receives++;
    return message_begin(plan, peer);
}

static void message_add(
    struct exchange_plan *plan, struct exchange_message *message, struct exchange_piece piece)
{
    if (piece.bytes == 0) return;
    message->bytes += piece.bytes;
    struct exchange_piece *last = message->pieces > 0 ? &plan->pieces[plan->piece_count - 1] : NULL;
    if (last != NULL && last->place == piece.place && last->offset + last->bytes == piece.offset) {
        last->bytes += piece.bytes;
        return;
    }
    assert(plan->piece_count < EXCHANGE_MOST_PIECES);
    plan->pieces[plan->piece_count++] = piece;
    message->pieces++;
}

/* ---- blocks ---- */

static struct exchange_piece chunk_at(
    enum exchange_place place, bool is_chunk, int c, const struct operation *operation)
{
    size_t begin, count, element = element_bytes(operation);
    operation_chunk(&begin, &count, operation, c);
    return (struct exchange_piece){
        place, (uint32_t)(count * element), is_chunk ? 0 : begin * element};
}

static struct exchange_piece whole_at(enum exchange_place place, const struct operation *operation)
{
    return (struct exchange_piece){place, (uint32_t)whole_bytes(operation), 0};
}

static size_t stage_offset(size_t bytes, int block)
{
    return (bytes + 63) / 64 * 64 * (size_t)block;
}

static struct exchange_piece result_block(int c, const struct operation *operation)
{
    return chunk_at(EXCHANGE_RECV, false, c, operation);
}

static struct exchange_piece input_block(int r, const struct operation *operation)
{
    struct exchange_piece block = whole_at(EXCHANGE_SEND, operation);
    if (r == operation->comm->rank) return block;
    block.place = EXCHANGE_STAGE;
    block.offset = stage_offset(block.bytes, r);
    return block;
}

static int around(int rank, int distance, int n)
{
    return ((rank + distance) % n + n) % n;
}

/* ---- hops: everyone to everyone ---- */

static void hop_parts(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    bool whole = gathers_inputs(operation);
    struct exchange_round *round = round_begin(plan);
    round->adds = true;
    round->to_owners = !whole;
    for (int i = 1; i < n; i++) {
        int to = around(self, i, n);
        struct exchange_message *message = send_begin(plan, to);
        message_add(plan, message,
            whole ? whole_at(EXCHANGE_SEND, operation)
                  : chunk_at(EXCHANGE_SEND, false, to, operation));
    }
    for (int i = 1; i < n; i++) {
        int from = around(self, i, n);
        plan->parts[from].message = (short)plan->message_count;
        struct exchange_message *message = receive_begin(plan, from);
        message->stays = true;
        message->bytes = whole ? whole_at(EXCHANGE_SEND, operation).bytes
                               : chunk_at(EXCHANGE_SEND, false, self, operation).bytes;
    }
}

/* Of all_gather and of an all_reduce's results. */
static void hop_chunks(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    round_begin(plan);
    for (int i = 1; i < n; i++)
        message_add(plan, send_begin(plan, around(self, i, n)), result_block(self, operation));
    for (int i = 1; i < n; i++) {
        int from = around(self, i, n);
        message_add(plan, receive_begin(plan, from), result_block(from, operation));
    }
}

/* Where roots are checked the others say, with nothing, that they call it too. */
static void hop_broadcast(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    bool all = roll_call_wanted(operation);
    round_begin(plan);
    for (int i = 1; i < n && (all || self == operation->root); i++) {
        struct exchange_message *message = send_begin(plan, around(self, i, n));
        if (self == operation->root) message_add(plan, message, whole_at(EXCHANGE_SEND, operation));
    }
    for (int i = 1; i < n; i++) {
        int from = around(self, i, n);
        if (!all && from != operation->root) continue;
        struct exchange_message *message = receive_begin(plan, from);
        if (from == operation->root) message_add(plan, message, whole_at(EXCHANGE_RECV, operation));
    }
}

/* ---- rounds: twice as far each time ---- */

/* The rank that is d further, d a sum of rounds' distances. Of a power of two of ranks that is the
 * one whose number has those bits flipped, so that two ranks tell each other: an answer costs a
 * connection less than a word that is not answered (edge_config.shared). */
static bool has_pairs(int n)
{
    return (n & (n - 1)) == 0;
}

static int ahead(int rank, int d, int n)
{
    return has_pairs(n) ? rank ^ d : around(rank, d, n);
}

static int behind(int rank, int d, int n)
{
    return has_pairs(n) ? rank ^ d : around(rank, -d, n);
}

/* The first of the blocks that a rank holds before the round of distance d, one rank after another:
 * its own and those of d−1 ranks ahead of it, or those of its group of d ranks. */
static int first_held(int rank, int d, int n)
{
    return has_pairs(n) ? rank & -d : rank;
}

static void rounds_gather(struct exchange_plan *plan, const struct operation *operation,
    struct exchange_piece (*block)(int, const struct operation *))
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    for (int d = 1; d < n; d *= 2) {
        int held = d < n - d ? d : n - d;
        round_begin(plan);
        int mine = first_held(self, d, n), from = ahead(self, d, n),
            theirs = first_held(from, d, n);
        struct exchange_message *sent = send_begin(plan, behind(self, d, n));
        for (int i = 0; i < held; i++)
            message_add(plan, sent, block(around(mine, i, n), operation));
        struct exchange_message *received = receive_begin(plan, from);
        for (int i = 0; i < held; i++)
            message_add(plan, received, block(around(theirs, i, n), operation));
    }
}

/* A part that has `way` ranks to go takes the rounds of its binary digits. At the round of distance d it has gone the lower ones,
 * so the one at `at` belongs to the rank that is way − (way mod d) further. It waits in the stage where it came, else it is the own. */
static struct exchange_piece part_block(int at, int way, int d, const struct operation *operation)
{
    int n = operation->comm->nranks, gone = way % d;
    struct exchange_piece block =
        chunk_at(EXCHANGE_SEND, false, ahead(at, way - gone, n), operation);
    if (gone == 0) return block;
    block.place = EXCHANGE_STAGE;
    block.offset = stage_offset(largest_part_bytes(operation), way);
    return block;
}

static void rounds_scatter(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    for (int d = 1; d < n; d *= 2) {
        round_begin(plan)->to_owners = true;
        struct exchange_message *sent = send_begin(plan, ahead(self, d, n));
        for (int way = d; way < n; way++)
            if (way & d) message_add(plan, sent, part_block(self, way, d, operation));
        struct exchange_message *received = receive_begin(plan, behind(self, d, n));
        for (int way = d; way < n; way++) {
            struct exchange_piece block = part_block(behind(self, d, n), way, d, operation);
            block.place = EXCHANGE_STAGE;
            block.offset = stage_offset(largest_part_bytes(operation), way);
            if (way & d) message_add(plan, received, block);
        }
    }
}

static void rounds_broadcast(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank,
        away = around(self, -operation->root, n), d = 1;
    while (d < n && (away & d) == 0) d *= 2;
    round_begin(plan);
    if (away != 0)
        message_add(
            plan, receive_begin(plan, around(self, -d, n)), whole_at(EXCHANGE_RECV, operation));
    round_begin(plan);
    for (d /= 2; d > 0; d /= 2) {
        enum exchange_place place = away == 0 ? EXCHANGE_SEND : EXCHANGE_RECV;
        if (away + d < n)
            message_add(plan, send_begin(plan, around(self, d, n)), whole_at(place, operation));
    }
}

/* ---- what is added ---- */

static int way_between(int from, int to, int n)
{
    return has_pairs(n) ? from ^ to : around(to, -from, n);
}

static void find_parts(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    bool whole = gathers_inputs(operation);
    for (int r = 0; r < n; r++) {
        plan->parts[r].message = -1;
        plan->parts[r].place = EXCHANGE_STAGE;
        plan->parts[r].offset =
            whole ? stage_offset(whole_bytes(operation), r)
                  : stage_offset(largest_part_bytes(operation), way_between(r, self, n));
    }
    plan->parts[self].place = EXCHANGE_SEND;
    plan->parts[self].offset = whole ? 0 : chunk_at(EXCHANGE_SEND, false, self, operation).offset;
}

/* Of two ranks' numbers x ⊕ y and y ⊕ x are the same bits, but for those of zeros of different signs in min and max. */
static bool order_is_free(const struct operation *operation)
{
    return operation->comm->nranks == 2 && operation->reduction.redop != REDOP_MIN &&
           operation->reduction.redop != REDOP_MAX;
}

/* Of a chunk, which begins at `at`, or of all elements where no order is asked for: then c is any. */
static void add_sum(
    struct exchange_plan *plan, int c, size_t at, size_t to, size_t count, const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    int channels = comm->orders_differ ? comm->config.channels : 1;
    for (int channel = 0; channel < channels; channel++) {
        size_t begin = ring_chunk_begin(count, channels, channel);
        size_t end = ring_chunk_begin(count, channels, channel + 1);
        size_t skip = begin * element_bytes(operation);
        short last = 0;
        while (plan->order[channel][last] != c) last++;
        if (end > begin)
            plan->sums[plan->sum_count++] =
                (struct exchange_sum){at + skip, to + skip, end - begin, (short)channel, last};
    }
}

static void find_sums(struct exchange_plan *plan, const struct operation *operation)
{
    size_t begin, count, element = element_bytes(operation);
    int n = operation->comm->nranks, self = operation->comm->rank;
    if (!gathers_inputs(operation)) {
        operation_chunk(&begin, &count, operation, self);
        add_sum(plan, self, 0, operation->recv_is_chunk ? 0 : begin * element, count, operation);
    } else if (order_is_free(operation)) {
        add_sum(plan, 0, 0, 0, operation->count, operation);
    } else {
        for (int c = 0; c < n; c++) {
            operation_chunk(&begin, &count, operation, c);
            add_sum(plan, c, begin * element, begin * element, count, operation);
        }
    }
}

/* ---- the whole plan ---- */

static size_t span_bytes(bool is_chunk, const struct operation *operation)
{
    size_t last = is_chunk || operation->stride == 0
                      ? 0
                      : (size_t)(operation->comm->nranks - 1) * operation->stride;
    return operation->count == 0 ? 0 : (last + operation->count) * element_bytes(operation);
}

static void describe(struct exchange_plan *plan, const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    plan->collective = operation->collective;
    plan->reduction = operation->reduction;
    plan->root = operation->root;
    plan->count = operation->count;
    plan->stride = operation->stride;
    bool reads_send =
        operation->collective != COLLECTIVE_BROADCAST || operation->root == comm->rank;
    plan->send_bytes = reads_send ? span_bytes(operation->send_is_chunk, operation) : 0;
    plan->recv_bytes = span_bytes(operation->recv_is_chunk, operation);
    ptrdiff_t own = (ptrdiff_t)((size_t)comm->rank * operation->stride * element_bytes(operation));
    if (operation->recv_is_chunk != operation->send_is_chunk)
        plan->in_place = operation->recv_is_chunk ? own : -own;
    plan->host_ranks = comm->host_ranks > 1 ? comm->host_ranks : 1;
    for (int channel = 0; channel < (comm->orders_differ ? comm->config.channels : 1); channel++)
        for (int p = 0; p < comm->nranks; p++)
            plan->order[channel][p] = (unsigned char)comm_rank_at(comm, channel, p);
}

/* Adds the own chunk, or all of them, of everybody's parts. */
static void plan_reduction(
    struct exchange_plan *plan, bool logarithmic, const struct operation *operation)
{
    bool whole = gathers_inputs(operation);
    find_parts(plan, operation);
    find_sums(plan, operation);
    if (!logarithmic) {
        hop_parts(plan, operation);
        return;
    }
    plan->stage_bytes = stage_offset(
        whole ? whole_bytes(operation) : largest_part_bytes(operation), operation->comm->nranks);
    if (whole) rounds_gather(plan, operation, input_block);
    else rounds_scatter(plan, operation);
    plan->rounds[plan->round_count - 1].adds = true;
}

static void count_bytes(struct exchange_plan *plan, const struct ring_comm *comm)
{
    for (int i = 0; i < plan->round_count; i++) {
        const struct exchange_round *round = &plan->rounds[i];
        for (int m = round->first_send; m < round->first_send + round->sends; m++) {
            const struct exchange_message *message = &plan->messages[m];
            plan->sent_bytes += message->bytes;
            if (!comm_on_this_host(comm, message->peer)) plan->border_bytes += message->bytes;
        }
        for (int m = 0; m < round->receives; m++)
            plan->received_bytes += plan->messages[round->first_receive + m].bytes;
    }
}

void exchange_plan_make(struct exchange_plan *plan, const struct operation *operation)
{
    bool logarithmic = exchange_is_logarithmic(operation);
    memset(plan, 0, sizeof *plan);
    describe(plan, operation);
    if (operation->collective == COLLECTIVE_BROADCAST) {
        plan->own_to = whole_at(EXCHANGE_RECV, operation);
        plan->own_from = whole_at(
            operation->root == operation->comm->rank ? EXCHANGE_SEND : EXCHANGE_RECV, operation);
        (logarithmic ? rounds_broadcast : hop_broadcast)(plan, operation);
    } else if (operation->collective == COLLECTIVE_ALL_GATHER) {
        plan->own_to = result_block(operation->comm->rank, operation);
        plan->own_from = chunk_at(EXCHANGE_SEND, true, operation->comm->rank, operation);
    } else {
        plan_reduction(plan, logarithmic, operation);
    }
    if (operation->collective == COLLECTIVE_ALL_GATHER || has_two_hops(operation)) {
        if (logarithmic) rounds_gather(plan, operation, result_block);
        else hop_chunks(plan, operation);
    }
    count_bytes(plan, operation->comm);
}

uint64_t exchange_sent_bytes(uint64_t *border_bytes, const struct operation *operation)
{
    struct exchange_plan plan;
    exchange_plan_make(&plan, operation);
    *border_bytes = plan.border_bytes;
    return plan.sent_bytes;
}
