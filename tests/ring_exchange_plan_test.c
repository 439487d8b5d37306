/* The property test of exchange_plan.c: every collective, 2 to 16 ranks, every root, hops, rounds, stars and chains, in place and out, counts that
 * divide and that do not, columns: run in memory, without edges. ctest: timeout=60
 *
 * An element is a word that says which rank's input it is, and its index there; a sum is a word of its own. Proved: what one
 * rank sends to another is what that one receives next from it, byte for byte; sums find every rank's own part, and the
 * rank that a chunk belongs to is added last; the result is what the collective promises; no input is overwritten out of
 * place; no message is larger than a slot; rounds send no more messages than n·⌈log2 n⌉ a gather or scatter, a star 2(n−1), a chain n−1; nobody waits
 * for ever, and nothing is left over.
 */
#include <stdlib.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/exchange_plan.h"
#include "ring/roll_call.h"
#include "tests/harness/harness.h"

#define ELEMENT sizeof(uint64_t)
#define SUM     0x5353u /* in place of a rank */
#define STAR_BYTES 8192
#define DEEPEST 4       /* messages of one operation between two ranks */

struct letter {
    unsigned char *bytes; /* owned */
    size_t size;
};

struct queue {
    struct letter letters[DEEPEST];
    int posted, taken;
};

struct side {
    struct exchange_plan plan;
    unsigned char *places[EXCHANGE_PLACES];
    struct letter stays[EXCHANGE_MOST_MESSAGES]; /* by message */
    int round, sent, received;
};

struct world {
    struct operation operation; /* of all; comm.rank tells whose */
    struct ring_comm comm;
    bool in_place;
    int order[EXCHANGE_MOST_RANKS];
    struct side side[EXCHANGE_MOST_RANKS];
    struct queue queues[EXCHANGE_MOST_RANKS][EXCHANGE_MOST_RANKS];
    unsigned char *inputs[EXCHANGE_MOST_RANKS], *outputs[EXCHANGE_MOST_RANKS];
    size_t whole_bytes;
    int messages;
};

static uint64_t word(unsigned rank, size_t index)
{
    return (uint64_t)rank << 48 | (index + 1);
}

static uint64_t word_at(const unsigned char *bytes, size_t index)
{
    uint64_t value;
    memcpy(&value, bytes + index * ELEMENT, ELEMENT);
    return value;
}

/* ---- buffers ---- */

static void side_open(struct world *world, int rank)
{
    const struct operation *operation = &world->operation;
    struct side *side = &world->side[rank];
    size_t elements = world->whole_bytes / ELEMENT,
           own = (size_t)rank * operation->stride * ELEMENT;
    world->inputs[rank] = malloc(world->whole_bytes + 1);
    world->outputs[rank] = calloc(1, world->whole_bytes + 1);
    for (size_t i = 0; i < elements; i++) {
        uint64_t value = word((unsigned)rank, i);
        memcpy(world->inputs[rank] + i * ELEMENT, &value, ELEMENT);
    }
    world->comm.rank = rank;
    exchange_plan_make(&side->plan, operation);
    unsigned char *send = world->inputs[rank],
                  *recv = world->in_place ? send : world->outputs[rank];
    if (world->in_place && operation->send_is_chunk) send += own;
    if (world->in_place && operation->recv_is_chunk) recv += own;
    if (world->in_place) CHECK(recv - send == side->plan.in_place);
    side->places[EXCHANGE_SEND] = send;
    side->places[EXCHANGE_RECV] = recv;
    side->places[EXCHANGE_STAGE] = calloc(1, side->plan.stage_bytes + 1);
    const struct exchange_piece *from = &side->plan.own_from, *to = &side->plan.own_to;
    memmove(
        side->places[to->place] + to->offset, side->places[from->place] + from->offset, to->bytes);
}

static void side_close(struct world *world, int rank)
{
    struct side *side = &world->side[rank];
    free(side->places[EXCHANGE_STAGE]);
    free(world->inputs[rank]);
    free(world->outputs[rank]);
    for (int m = 0; m < EXCHANGE_MOST_MESSAGES; m++) free(side->stays[m].bytes);
}

/* ---- running ---- */

static void send_one(struct world *world, int rank, const struct exchange_message *message)
{
    struct side *side = &world->side[rank];
    struct queue *queue = &world->queues[rank][message->peer];
    struct letter letter = {malloc(message->bytes + 1u), 0};
    for (int p = 0; p < message->pieces; p++) {
        const struct exchange_piece *piece = &side->plan.pieces[message->first_piece + p];
        memcpy(
            letter.bytes + letter.size, side->places[piece->place] + piece->offset, piece->bytes);
        letter.size += piece->bytes;
    }
    CHECK(letter.size == message->bytes && message->peer != rank);
    CHECK(letter.size <= exchange_slot_bytes(&world->comm));
    if (CHECK(queue->posted < DEEPEST)) queue->letters[queue->posted++] = letter;
    world->messages++;
}

static bool receive_one(struct world *world, int rank, int m)
{
    struct side *side = &world->side[rank];
    const struct exchange_message *message = &side->plan.messages[m];
    struct queue *queue = &world->queues[message->peer][rank];
    if (queue->taken == queue->posted) return false;
    struct letter letter = queue->letters[queue->taken++];
    CHECK_MSG(letter.size == message->bytes, "rank %d expects %u bytes, %zu came", rank,
        message->bytes, letter.size);
    if (message->stays) {
        side->stays[m] = letter;
        return true;
    }
    size_t at = 0;
    for (int p = 0; p < message->pieces; p++) {
        const struct exchange_piece *piece = &side->plan.pieces[message->first_piece + p];
        memcpy(side->places[piece->place] + piece->offset, letter.bytes + at, piece->bytes);
        at += piece->bytes;
    }
    free(letter.bytes);
    return true;
}

/* Index of a chunk's element in the whole array. */
static size_t index_of(int c, size_t i, const struct operation *operation)
{
    size_t begin, count;
    operation_chunk(&begin, &count, operation, c);
    return begin + i;
}

static void add(struct world *world, int rank)
{
    struct side *side = &world->side[rank];
    const struct exchange_plan *plan = &side->plan;
    bool whole = world->operation.collective != COLLECTIVE_REDUCE_SCATTER &&
                 plan->messages[0].bytes == world->whole_bytes;
    int n = world->comm.nranks, wrong = 0;
    for (int s = 0; s < plan->sum_count; s++)
        for (size_t i = 0; i < plan->sums[s].count; i++) {
            const struct exchange_sum *sum = &plan->sums[s];
            int owner = plan->order[sum->channel][sum->last];
            bool free_order = n == 2 && plan->sum_count == 1 && whole;
            size_t index =
                free_order || whole ? sum->at / ELEMENT + i : index_of(owner, i, &world->operation);
            for (int r = 0; r < n; r++) {
                int m = plan->parts[r].message;
                const unsigned char *part =
                    m >= 0 ? side->stays[m].bytes
                           : side->places[plan->parts[r].place] + plan->parts[r].offset;
                wrong += word_at(part + sum->at, i) != word((unsigned)r, index);
            }
            size_t begin = index_of(owner, 0, &world->operation),
                   end = index_of(owner, sum->count, &world->operation);
            wrong += !free_order && (index < begin || index >= end);
            uint64_t value = word(SUM, index);
            memcpy(side->places[sum->place] + sum->to + i * ELEMENT, &value, ELEMENT);
        }
    CHECK_MSG(wrong == 0, "rank %d of %d adds %d wrong elements", rank, n, wrong);
}

static bool advance(struct world *world, int rank)
{
    struct side *side = &world->side[rank];
    bool moved = false;
    while (side->round < side->plan.round_count) {
        const struct exchange_round *round = &side->plan.rounds[side->round];
        for (; side->sent < round->sends; side->sent++, moved = true)
            send_one(world, rank, &side->plan.messages[round->first_send + side->sent]);
        for (; side->received < round->receives; side->received++, moved = true)
            if (!receive_one(world, rank, round->first_receive + side->received)) return moved;
        if (round->adds) add(world, rank);
        side->sent = side->received = 0;
        side->round++;
        moved = true;
    }
    return moved;
}

/* ---- results ---- */

static uint64_t expected_word(size_t index, bool *valid, const struct world *world)
{
    const struct operation *operation = &world->operation;
    size_t stride = operation->stride;
    *valid = stride == 0 || index % stride < operation->count;
    if (operation->collective == COLLECTIVE_BROADCAST)
        return word((unsigned)operation->root, index);
    if (operation->collective != COLLECTIVE_ALL_GATHER) return word(SUM, index);
    size_t within = world->in_place ? index : index % stride;
    return word((unsigned)(index / stride), within);
}

static const char *const shape_names[] = {"hops", "rounds", "a star", "a chain"};

static void check_result(struct world *world, int rank)
{
    const struct operation *operation = &world->operation;
    const unsigned char *recv = world->side[rank].places[EXCHANGE_RECV];
    size_t elements = operation->recv_is_chunk ? operation->count : world->whole_bytes / ELEMENT;
    size_t first = operation->recv_is_chunk ? (size_t)rank * operation->stride : 0;
    int wrong = 0, changed = 0;
    for (size_t i = 0; i < elements; i++) {
        bool valid;
        uint64_t expected = expected_word(first + i, &valid, world);
        wrong += valid && word_at(recv, i) != expected;
    }
    for (size_t i = 0; i < world->whole_bytes / ELEMENT && !world->in_place; i++)
        changed += word_at(world->inputs[rank], i) != word((unsigned)rank, i);
    CHECK_MSG(wrong == 0 && changed == 0,
        "%s count %zu stride %zu root %d, rank %d of %d, %s, %s place: %d wrong, %d inputs changed",
        collective_name(operation->collective), operation->count, operation->stride,
        operation->root, rank, world->comm.nranks,
        shape_names[exchange_shape(operation)], world->in_place ? "in" : "out of",
        wrong, changed);
}

static int most_messages(const struct world *world)
{
    int n = world->comm.nranks, log = 0;
    while (1 << log < n) log++;
    if (world->operation.collective == COLLECTIVE_BROADCAST)
        return roll_call_wanted(&world->operation) ? n * (n - 1) : n - 1;
    enum exchange_shape shape = exchange_shape(&world->operation);
    if (shape == EXCHANGE_STAR) return 2 * (n - 1);
    int once = shape == EXCHANGE_ROUNDS ? n * log : n * (n - 1);
    return world->operation.collective == COLLECTIVE_ALL_REDUCE ? 2 * once : once;
}

/* Where it serves, and what the head of exchange_star.h says of it. */
static void check_star(const struct world *world)
{
    const struct operation *operation = &world->operation;
    size_t n = (size_t)world->comm.nranks, whole = world->whole_bytes;
    enum exchange_shape shape = exchange_shape(operation);
    bool has = world->comm.config.star_bytes == STAR_BYTES && n > 2;
    bool packed = operation->stride == 0 || operation->stride == operation->count;
    bool chain = operation->collective == COLLECTIVE_BROADCAST;
    size_t most = chain ? EXCHANGE_FEW_BYTES : STAR_BYTES;
    CHECK((shape == EXCHANGE_CHAIN) == (has && chain && whole <= most));
    CHECK((shape == EXCHANGE_STAR) == (has && !chain && packed && whole <= most));
    if (shape == EXCHANGE_CHAIN) CHECK(world->messages == (int)n - 1);
    if (shape != EXCHANGE_STAR) return;
    CHECK(world->messages == 2 * ((int)n - 1));
    bool scatters = operation->collective == COLLECTIVE_REDUCE_SCATTER,
         gathers = operation->collective == COLLECTIVE_ALL_GATHER;
    CHECK(world->side[0].plan.sent_bytes == (n - 1) * (scatters ? whole / n : whole));
    for (size_t r = 1; r < n; r++)
        CHECK(world->side[r].plan.sent_bytes == (gathers ? whole / n : whole));
}

static void run_case(struct world *world)
{
    const struct operation *operation = &world->operation;
    int n = world->comm.nranks, left = 0;
    size_t stride = operation->stride;
    if (!CHECK(exchange_fits(operation))) return;
    world->whole_bytes =
        ((stride == 0 ? 0 : (size_t)(n - 1) * stride) + operation->count) * ELEMENT;
    world->messages = 0;
    memset(world->queues, 0, sizeof world->queues);
    memset(world->side, 0, sizeof world->side);
    for (int r = 0; r < n; r++) side_open(world, r);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < n; r++) moved = advance(world, r) || moved;
    }
    for (int r = 0; r < n; r++) {
        CHECK(world->side[r].round == world->side[r].plan.round_count);
        check_result(world, r);
        for (int to = 0; to < n; to++)
            left += world->queues[r][to].posted - world->queues[r][to].taken;
    }
    CHECK(left == 0);
    CHECK_MSG(world->messages <= most_messages(world), "%s: %d messages",
        collective_name(operation->collective), world->messages);
    check_star(world);
    for (int r = 0; r < n; r++) side_close(world, r);
}

/* ---- the grid ---- */

static void run_counts(struct world *world, enum collective collective, bool column)
{
    size_t n = (size_t)world->comm.nranks, counts[] = {1, n - 1, n, n + 1, 133, 134, 300, 2048};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        bool strided = column || collective == COLLECTIVE_REDUCE_SCATTER ||
                       collective == COLLECTIVE_ALL_GATHER;
        world->operation = (struct operation){
            .comm = &world->comm,
            .collective = collective,
            .reduction = {.dtype = DTYPE_UINT64,
                .redop = k % 2 ? REDOP_SUM : REDOP_MAX,
                .nranks = (int)n},
            .count = counts[k],
            .stride = strided ? counts[k] + (column ? 3 : 0) : 0,
            .recv_is_chunk = collective == COLLECTIVE_REDUCE_SCATTER,
            .send_is_chunk = collective == COLLECTIVE_ALL_GATHER,
            .root = collective == COLLECTIVE_BROADCAST ? (int)((k * 5 + 1) % n) : 0,
        };
        world->in_place = k % 3 == 0;
        run_case(world);
        world->in_place = !world->in_place;
        run_case(world);
    }
}

/* Up to which part an operation is an exchange, as a multiple of the tunable; its messages must fit the slots. */
static size_t largest_part(enum collective collective, int n, bool one_memory)
{
    static struct world world;
    world.comm = (struct ring_comm){.nranks = n, .one_memory = one_memory,
        .config = {.exchange_bytes = COMM_EXCHANGE_BYTES, .check_roots_bytes = SIZE_MAX}};
    size_t largest = 0;
    for (size_t part = 1; part <= 8; part++) {
        size_t count = part * COMM_EXCHANGE_BYTES / ELEMENT;
        bool cut = collective == COLLECTIVE_ALL_REDUCE;
        world.operation = (struct operation){.comm = &world.comm,
            .collective = collective,
            .reduction = {.dtype = DTYPE_UINT64, .nranks = n},
            .count = cut ? count * (size_t)n : count,
            .stride = cut ? 0 : count};
        if (exchange_fits(&world.operation)) largest = part;
    }
    CHECK(exchange_slot_bytes(&world.comm) >= largest * COMM_EXCHANGE_BYTES);
    return largest;
}

static void check_limits(void)
{
    for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++) {
        size_t pair = c == COLLECTIVE_ALL_REDUCE ? 1 : c == COLLECTIVE_ALL_GATHER ? 2 : 4;
        CHECK(largest_part((enum collective)c, 2, true) == pair);
        CHECK(largest_part((enum collective)c, 2, false) == 1);
        CHECK(largest_part((enum collective)c, 4, true) == 1);
    }
}

int main(void)
{
    check_limits();
    struct world *world = calloc(1, sizeof *world);
    for (int n = 2; n <= EXCHANGE_MOST_RANKS; n++)
        for (int hops = 0; hops < 4; hops++) {
            world->comm.nranks = n;
            world->comm.config.star_bytes = hops == 3 ? STAR_BYTES : COMM_NO_STAR;
            world->comm.one_memory = hops == 1;
            world->comm.config.check_roots_bytes =
                hops == 2 ? 1 : SIZE_MAX; /* where broadcasts hop, too */
            world->comm.config.exchange_bytes = COMM_EXCHANGE_BYTES;
            world->comm.order = world->order;
            for (int p = 0; p < n; p++) world->order[p] = (n - p + 2) % n; /* no ring by rank */
            for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++) {
                run_counts(world, (enum collective)c, false);
                if (c != COLLECTIVE_BROADCAST) run_counts(world, (enum collective)c, true);
            }
        }
    free(world);
    return test_result();
}
