/* exchange_plan: see exchange_plan.h. */
#include "ring/exchange_plan.h"

#include <assert.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/exchange_star.h"
#include "ring/exchange_write.h"
#include "ring/roll_call.h"

/* ---- which operations ---- */

#define PAIR_FACTOR        4 /* of the sizes of two ranks: reduce_scatter, broadcast */
#define PAIR_FACTOR_GATHER 2

static size_t whole_bytes(const struct operation *operation)
{
    return operation->count * exchange_element_bytes(operation);
}

static size_t largest_part_bytes(const struct operation *operation)
{
    size_t n = (size_t)operation->reduction.nranks;
    bool cut = operation->collective == COLLECTIVE_ALL_REDUCE && operation->stride == 0;
    return (cut ? (operation->count + n - 1) / n : operation->count) * exchange_element_bytes(operation);
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
static bool rounds_fit(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    size_t half = operation->collective == COLLECTIVE_BROADCAST ? 1 : (size_t)comm->nranks / 2;
    size_t block =
        gathers_inputs(operation) ? whole_bytes(operation) : largest_part_bytes(operation);
    return half * block <= exchange_slot_bytes(comm);
}

static bool chain_fits(const struct operation *operation)
{
    size_t bytes = whole_bytes(operation);
    return operation->collective == COLLECTIVE_BROADCAST && exchange_has_star(operation->comm) &&
           bytes <= EXCHANGE_FEW_BYTES && bytes <= operation->comm->config.star_bytes;
}

enum exchange_shape exchange_shape(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    if (comm->one_memory || comm->nranks < 3 || roll_call_wanted(operation)) return EXCHANGE_HOPS;
    if (chain_fits(operation)) return EXCHANGE_CHAIN;
    if (exchange_star_fits(operation)) return EXCHANGE_STAR;
    return rounds_fit(operation) ? EXCHANGE_ROUNDS : EXCHANGE_HOPS;
}

size_t exchange_slot_bytes(const struct ring_comm *comm)
{
    size_t most = most_bytes(COLLECTIVE_BROADCAST, comm);
    if (most < comm->config.exchange_bytes) most = comm->config.exchange_bytes;
    if (most < EXCHANGE_LINE_BYTES) most = EXCHANGE_LINE_BYTES;
    if (!comm->one_memory) most *= 2;
    if (exchange_has_star(comm) && most < comm->config.star_bytes) most = comm->config.star_bytes;
    return (most + 63) / 64 * 64;
}

uint64_t exchange_slot_count(const struct ring_comm *comm)
{
    if (comm->one_memory) return 8;
    return exchange_has_star(comm) ? 4 : 16;
}

/* ---- blocks ---- */

static struct exchange_piece result_block(int c, const struct operation *operation)
{
    return exchange_chunk_at(EXCHANGE_RECV, false, c, operation);
}

static struct exchange_piece input_block(int r, const struct operation *operation)
{
    struct exchange_piece block = exchange_whole_at(EXCHANGE_SEND, operation);
    if (r == operation->comm->rank) return block;
    block.place = EXCHANGE_STAGE;
    block.offset = exchange_stage_offset(block.bytes, r);
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
    struct exchange_round *round = exchange_round_begin(plan);
    round->adds = true;
    round->to_owners = !whole;
    round->to_all = whole;
    for (int i = 1; i < n; i++) {
        int to = around(self, i, n);
        struct exchange_message *message = exchange_send_begin(plan, to);
        exchange_message_add(plan, message,
            whole ? exchange_whole_at(EXCHANGE_SEND, operation)
                  : exchange_chunk_at(EXCHANGE_SEND, false, to, operation));
    }
    for (int i = 1; i < n; i++) {
        int from = around(self, i, n);
        plan->parts[from].message = (short)plan->message_count;
        struct exchange_message *message = exchange_receive_begin(plan, from);
        message->stays = true;
        message->bytes = whole ? exchange_whole_at(EXCHANGE_SEND, operation).bytes
                               : exchange_chunk_at(EXCHANGE_SEND, false, self, operation).bytes;
    }
}

/* Of all_gather and of an all_reduce's results. */
static void hop_chunks(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    exchange_round_begin(plan)->to_all = true;
    for (int i = 1; i < n; i++)
        exchange_message_add(plan, exchange_send_begin(plan, around(self, i, n)), result_block(self, operation));
    for (int i = 1; i < n; i++) {
        int from = around(self, i, n);
        exchange_message_add(plan, exchange_receive_begin(plan, from), result_block(from, operation));
    }
}

/* Where roots are checked the others say, with nothing, that they call it too. */
static void hop_broadcast(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    bool all = roll_call_wanted(operation);
    exchange_round_begin(plan)->to_all = true;
    for (int i = 1; i < n && (all || self == operation->root); i++) {
        struct exchange_message *message = exchange_send_begin(plan, around(self, i, n));
        if (self == operation->root) exchange_message_add(plan, message, exchange_whole_at(EXCHANGE_SEND, operation));
    }
    for (int i = 1; i < n; i++) {
        int from = around(self, i, n);
        if (!all && from != operation->root) continue;
        struct exchange_message *message = exchange_receive_begin(plan, from);
        if (from == operation->root) exchange_message_add(plan, message, exchange_whole_at(EXCHANGE_RECV, operation));
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
        exchange_round_begin(plan);
        int mine = first_held(self, d, n), from = ahead(self, d, n),
            theirs = first_held(from, d, n);
        struct exchange_message *sent = exchange_send_begin(plan, behind(self, d, n));
        for (int i = 0; i < held; i++)
            exchange_message_add(plan, sent, block(around(mine, i, n), operation));
        struct exchange_message *received = exchange_receive_begin(plan, from);
        for (int i = 0; i < held; i++)
            exchange_message_add(plan, received, block(around(theirs, i, n), operation));
    }
}

/* A part that has `way` ranks to go takes the rounds of its binary digits. At the round of distance d it has gone the lower ones,
 * so the one at `at` belongs to the rank that is way − (way mod d) further. It waits in the stage where it came, else it is the own. */
static struct exchange_piece part_block(int at, int way, int d, const struct operation *operation)
{
    int n = operation->comm->nranks, gone = way % d;
    struct exchange_piece block =
        exchange_chunk_at(EXCHANGE_SEND, false, ahead(at, way - gone, n), operation);
    if (gone == 0) return block;
    block.place = EXCHANGE_STAGE;
    block.offset = exchange_stage_offset(largest_part_bytes(operation), way);
    return block;
}

static void rounds_scatter(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank;
    for (int d = 1; d < n; d *= 2) {
        exchange_round_begin(plan)->to_owners = true;
        struct exchange_message *sent = exchange_send_begin(plan, ahead(self, d, n));
        for (int way = d; way < n; way++)
            if (way & d) exchange_message_add(plan, sent, part_block(self, way, d, operation));
        struct exchange_message *received = exchange_receive_begin(plan, behind(self, d, n));
        for (int way = d; way < n; way++) {
            struct exchange_piece block = part_block(behind(self, d, n), way, d, operation);
            block.place = EXCHANGE_STAGE;
            block.offset = exchange_stage_offset(largest_part_bytes(operation), way);
            if (way & d) exchange_message_add(plan, received, block);
        }
    }
}

static void rounds_broadcast(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank,
        away = around(self, -operation->root, n), d = 1;
    while (d < n && (away & d) == 0) d *= 2;
    exchange_round_begin(plan);
    if (away != 0)
        exchange_message_add(
            plan, exchange_receive_begin(plan, around(self, -d, n)), exchange_whole_at(EXCHANGE_RECV, operation));
    exchange_round_begin(plan);
    for (d /= 2; d > 0; d /= 2) {
        enum exchange_place place = away == 0 ? EXCHANGE_SEND : EXCHANGE_RECV;
        if (away + d < n)
            exchange_message_add(plan, exchange_send_begin(plan, around(self, d, n)), exchange_whole_at(place, operation));
    }
}

/* ---- a chain: each rank tells the next ---- */

static void chain_broadcast(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks, self = operation->comm->rank,
        away = around(self, -operation->root, n);
    exchange_round_begin(plan);
    if (away > 0)
        exchange_message_add(plan, exchange_receive_begin(plan, around(self, -1, n)),
            exchange_whole_at(EXCHANGE_RECV, operation));
    exchange_round_begin(plan);
    if (away + 1 < n)
        exchange_message_add(plan, exchange_send_begin(plan, around(self, 1, n)),
            exchange_whole_at(away == 0 ? EXCHANGE_SEND : EXCHANGE_RECV, operation));
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
            whole ? exchange_stage_offset(whole_bytes(operation), r)
                  : exchange_stage_offset(largest_part_bytes(operation), way_between(r, self, n));
    }
    plan->parts[self].place = EXCHANGE_SEND;
    plan->parts[self].offset = whole ? 0 : exchange_chunk_at(EXCHANGE_SEND, false, self, operation).offset;
}

/* Of two ranks' numbers x ⊕ y and y ⊕ x are the same bits, but for those of zeros of different signs in min and max. */
static bool order_is_free(const struct operation *operation)
{
    return operation->comm->nranks == 2 && operation->reduction.redop != REDOP_MIN &&
           operation->reduction.redop != REDOP_MAX;
}

static void find_sums(struct exchange_plan *plan, const struct operation *operation)
{
    size_t begin, count, element = exchange_element_bytes(operation);
    int n = operation->comm->nranks, self = operation->comm->rank;
    if (!gathers_inputs(operation)) {
        operation_chunk(&begin, &count, operation, self);
        exchange_sum_add(plan, self, 0,
            exchange_chunk_at(EXCHANGE_RECV, operation->recv_is_chunk, self, operation), count,
            operation);
    } else if (order_is_free(operation)) {
        exchange_sum_add(plan, 0, 0, exchange_whole_at(EXCHANGE_RECV, operation), operation->count,
            operation);
    } else {
        for (int c = 0; c < n; c++) {
            operation_chunk(&begin, &count, operation, c);
            exchange_sum_add(plan, c, begin * element,
                exchange_chunk_at(EXCHANGE_RECV, false, c, operation), count, operation);
        }
    }
}

/* ---- the whole plan ---- */

static size_t span_bytes(bool is_chunk, const struct operation *operation)
{
    size_t last = is_chunk || operation->stride == 0
                      ? 0
                      : (size_t)(operation->comm->nranks - 1) * operation->stride;
    return operation->count == 0 ? 0 : (last + operation->count) * exchange_element_bytes(operation);
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
    ptrdiff_t own = (ptrdiff_t)((size_t)comm->rank * operation->stride * exchange_element_bytes(operation));
    if (operation->recv_is_chunk != operation->send_is_chunk)
        plan->in_place = operation->recv_is_chunk ? own : -own;
    plan->host_ranks = comm->host_ranks > 1 ? comm->host_ranks : 1;
    for (int channel = 0; channel < (comm->orders_differ ? comm->config.channels : 1); channel++)
        for (int p = 0; p < comm->nranks; p++)
            plan->order[channel][p] = (unsigned char)comm_rank_at(comm, channel, p);
}

/* Adds the own chunk, or all of them, of everybody's parts. */
static void plan_reduction(struct exchange_plan *plan, const struct operation *operation)
{
    bool whole = gathers_inputs(operation);
    find_parts(plan, operation);
    find_sums(plan, operation);
    if (plan->shape == EXCHANGE_HOPS) {
        hop_parts(plan, operation);
        return;
    }
    plan->stage_bytes = exchange_stage_offset(
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

static void plan_broadcast(struct exchange_plan *plan, const struct operation *operation)
{
    bool root = operation->root == operation->comm->rank;
    plan->own_to = exchange_whole_at(EXCHANGE_RECV, operation);
    plan->own_from = exchange_whole_at(root ? EXCHANGE_SEND : EXCHANGE_RECV, operation);
    switch (plan->shape) {
    case EXCHANGE_CHAIN: chain_broadcast(plan, operation); break;
    case EXCHANGE_ROUNDS: rounds_broadcast(plan, operation); break;
    default: hop_broadcast(plan, operation);
    }
}

void exchange_plan_make(struct exchange_plan *plan, const struct operation *operation)
{
    enum collective collective = operation->collective;
    memset(plan, 0, sizeof *plan);
    plan->shape = exchange_shape(operation);
    describe(plan, operation);
    if (collective == COLLECTIVE_ALL_GATHER) {
        plan->own_to = result_block(operation->comm->rank, operation);
        plan->own_from =
            exchange_chunk_at(EXCHANGE_SEND, true, operation->comm->rank, operation);
    }
    if (collective == COLLECTIVE_BROADCAST) plan_broadcast(plan, operation);
    else if (plan->shape == EXCHANGE_STAR) exchange_star_plan(plan, operation);
    else if (collective != COLLECTIVE_ALL_GATHER) plan_reduction(plan, operation);
    bool gathers = collective == COLLECTIVE_ALL_GATHER || has_two_hops(operation);
    if (gathers && plan->shape == EXCHANGE_ROUNDS) rounds_gather(plan, operation, result_block);
    if (gathers && plan->shape == EXCHANGE_HOPS) hop_chunks(plan, operation);
    count_bytes(plan, operation->comm);
}

uint64_t exchange_sent_bytes(uint64_t *border_bytes, const struct operation *operation)
{
    struct exchange_plan plan;
    exchange_plan_make(&plan, operation);
    *border_bytes = plan.border_bytes;
    return plan.sent_bytes;
}
