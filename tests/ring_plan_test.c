/* The property test of plan.c and plan_two_level.c: every collective, every nranks ≤ 64, every root, and every number of hosts
 * that divides nranks: run symbolically, without bytes or edges. ctest: timeout=60
 *
 * A chunk's value is a set of contributors (a bit per rank) together with the order in which they joined. Positions run their
 * plans against one queue per edge. Proved: sends match receives (same chunk, same order, nothing left over); the result is
 * what the collective promises; each rank contributes once; the order in which a chunk is summed is c+1, …, c, in two levels
 * that of hosts and in each that of places; every rank sends no more chunks than the bandwidth bound, and every host no more
 * than the bound of its border; and W slices in flight need no more than 2W slots (no deadlock).
 */
#include <stdlib.h>
#include <string.h>

#include "ring/plan.h"
#include "tests/harness/harness.h"

#define MOST_RANKS 64
#define QUEUE      (4 * MOST_RANKS)

struct value {
    uint64_t contributors; /* bit r: rank r's data is in it */
    uint64_t order_hash;   /* order in which they joined */
    int chunk;
    bool valid;
};

/* host_ranks 1: flat, one host's ring of all. Else a ring in each host, and one of each place between hosts. */
struct shape {
    int n, host_ranks;
};

/* A position has an edge inside its host, or the flat ring, and one that crosses its border. */
enum edge_kind { INSIDE, ACROSS, EDGE_KINDS };

struct lane {
    struct value queue[QUEUE];
    int posted, taken;
};

struct world {
    struct shape shape;
    struct value in[MOST_RANKS][MOST_RANKS], out[MOST_RANKS][MOST_RANKS];
    struct lane lanes[MOST_RANKS][EDGE_KINDS]; /* by sender */
    int step[MOST_RANKS];
};

static struct plan make_plan(enum collective collective, struct shape shape, int position, int root)
{
    return plan_make_two_level(collective, shape.n, shape.host_ranks, position, root);
}

static bool has_levels(struct shape shape) { return shape.host_ranks > 1; }

static int host_of(struct shape shape, int p) { return has_levels(shape) ? p / shape.host_ranks : 0; }

/* The positions around p on its ring of this kind. */
static int after(struct shape shape, enum edge_kind kind, int p, int distance)
{
    int n = shape.n, m = has_levels(shape) ? shape.host_ranks : n;
    if (kind == ACROSS) return ((p + distance * m) % n + n) % n;
    return p / m * m + ((p % m + distance) % m + m) % m;
}

static enum edge_kind kind_of(struct shape shape, int from, int to)
{
    enum edge_kind kind = host_of(shape, from) == host_of(shape, to) ? INSIDE : ACROSS;
    CHECK(to == after(shape, kind, from, 1));
    return kind;
}

static struct value joined(struct value a, struct value own, int rank)
{
    CHECK((a.contributors & own.contributors) == 0);
    a.contributors |= own.contributors;
    a.order_hash = a.order_hash * 131 + (uint64_t)rank + 1;
    return a;
}

/* y ⊕ x, the sums of several hosts and of one. */
static struct value merged(struct value y, struct value x)
{
    CHECK((y.contributors & x.contributors) == 0);
    y.contributors |= x.contributors;
    y.order_hash = y.order_hash * 0x9e3779b97f4a7c15u ^ x.order_hash;
    return y;
}

static struct lane *lane_into(struct world *world, int from, int p)
{
    return &world->lanes[from][kind_of(world->shape, from, p)];
}

static struct value take(struct lane *lane, int chunk)
{
    struct value value = lane->queue[lane->taken++ % QUEUE];
    CHECK(value.valid && value.chunk == chunk);
    return value;
}

/* Runs one step of position p if its input is there. */
static bool run_step(struct world *world, const struct plan *plan, int p)
{
    struct plan_step step = plan_step_at(plan, world->step[p]);
    CHECK(step.chunk >= 0 && step.chunk < plan->chunks);
    CHECK((step.from >= 0) == primitive_receives(step.primitive) && (step.to >= 0) == primitive_sends(step.primitive));
    CHECK(step.joins < 0 || (has_levels(world->shape) && primitive_receives_partial(step.primitive)));
    struct lane *in = step.from >= 0 ? lane_into(world, step.from, p) : NULL;
    struct lane *beside = step.joins >= 0 ? lane_into(world, step.joins, p) : NULL;
    CHECK(beside == NULL || kind_of(world->shape, step.joins, p) == ACROSS);
    if (in != NULL && in->taken == in->posted) return false;
    if (beside != NULL && beside->taken == beside->posted) return false;
    struct value x = {0}, own = world->in[p][step.chunk];
    if (in != NULL) x = take(in, step.chunk);
    if (primitive_receives_partial(step.primitive)) x = joined(x, own, p);
    if (beside != NULL) x = merged(take(beside, step.chunk), x);
    struct value send = own;
    switch (step.primitive) {
    case PRIMITIVE_RECV_REDUCE_SEND: send = x; break;
    case PRIMITIVE_FORWARD: send = world->out[p][step.chunk]; break;
    case PRIMITIVE_RECV_REDUCE_COPY:
    case PRIMITIVE_RECV_REDUCE_COPY_SEND:
    case PRIMITIVE_RECV:
    case PRIMITIVE_RECV_COPY_SEND: send = world->out[p][step.chunk] = x; break;
    case PRIMITIVE_COPY:
    case PRIMITIVE_COPY_SEND: world->out[p][step.chunk] = own; break;
    default: break;
    }
    if (step.to >= 0) {
        struct lane *lane = lane_into(world, p, step.to);
        CHECK(send.valid && lane->posted - lane->taken < QUEUE);
        lane->queue[lane->posted++ % QUEUE] = send;
    }
    world->step[p]++;
    return true;
}

static void run_world(struct world *world, enum collective collective, int root)
{
    int n = world->shape.n, left = n;
    struct plan plans[MOST_RANKS];
    for (int p = 0; p < n; p++) plans[p] = make_plan(collective, world->shape, p, root);
    for (int p = 1; p < n; p++) CHECK(plans[p].steps == plans[0].steps && plans[p].chunks == plans[0].chunks);
    while (left > 0) {
        bool moved = false;
        for (int p = 0; p < n; p++) {
            if (world->step[p] == plans[p].steps) continue;
            if (!run_step(world, &plans[p], p)) continue;
            moved = true;
            if (world->step[p] == plans[p].steps) left--;
        }
        if (!CHECK(moved)) return; /* deadlock */
    }
    for (int p = 0; p < n; p++)
        for (int kind = 0; kind < EDGE_KINDS; kind++) CHECK(world->lanes[p][kind].posted == world->lanes[p][kind].taken);
}

static struct world *new_world(struct shape shape)
{
    struct world *world = calloc(1, sizeof *world);
    int n = shape.n;
    world->shape = shape;
    for (int p = 0; p < n; p++)
        for (int c = 0; c < n; c++) world->in[p][c] = (struct value){(uint64_t)1 << p, (uint64_t)p + 1, c, true};
    return world;
}

static uint64_t everyone(int n) { return n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1; }

/* The documented order of a sum: chunk c starts at position c+1 and ends at c; in two levels, hosts do, and places in each. */
static struct value expected_sum(struct shape shape, int c)
{
    int m = has_levels(shape) ? shape.host_ranks : shape.n, hosts = shape.n / m;
    struct value sum = {0};
    for (int h = 1; h <= hosts; h++) {
        int host = (c / m + h) % hosts * m;
        struct value own = {0};
        for (int j = 1; j <= m; j++) {
            int p = host + (c % m + j) % m;
            struct value part = {(uint64_t)1 << p, (uint64_t)p + 1, c, true};
            own = j == 1 ? part : joined(own, part, p);
        }
        sum = h == 1 ? own : merged(sum, own);
    }
    return sum;
}

static void check_reduced(const struct value *value, struct shape shape, int c)
{
    CHECK(value->valid && value->contributors == everyone(shape.n));
    CHECK(value->order_hash == expected_sum(shape, c).order_hash);
}

/* What leaves a host: the least possible is 2(H−1)/H of the buffer for an all-reduce, so H−1 of n chunks a position, twice. */
static void check_border(enum collective collective, struct shape shape)
{
    int m = shape.host_ranks, hosts = shape.n / m, across = 0, rounds = collective == COLLECTIVE_ALL_REDUCE ? 2 : 1;
    for (int p = 0; p < m; p++) {
        struct plan plan = make_plan(collective, shape, p, 0), flat = plan_make(collective, shape.n, p, 0);
        across += plan_chunks_across(&plan, m);
        CHECK(plan_chunks_across(&plan, m) == rounds * (hosts - 1));
        CHECK(plan_chunks_across(&flat, m) == (p == m - 1 ? rounds * (shape.n - 1) : 0));
    }
    CHECK(across * hosts == rounds * (hosts - 1) * shape.n); /* of n chunks, 1/n of the buffer each */
}

static void check_collective(enum collective collective, struct shape shape)
{
    int n = shape.n;
    struct world *world = new_world(shape);
    run_world(world, collective, 0);
    for (int p = 0; p < n; p++) {
        struct plan plan = make_plan(collective, shape, p, 0);
        int sent = plan_chunks_sent(&plan);
        switch (collective) {
        case COLLECTIVE_REDUCE_SCATTER:
            check_reduced(&world->out[p][p], shape, p);
            for (int c = 0; c < n; c++) CHECK(c == p || !world->out[p][c].valid); /* nothing else is written */
            CHECK(sent == n - 1);
            break;
        case COLLECTIVE_ALL_GATHER:
            for (int c = 0; c < n; c++) CHECK(world->out[p][c].contributors == (uint64_t)1 << c);
            CHECK(sent == n - 1);
            break;
        default:
            for (int c = 0; c < n; c++) check_reduced(&world->out[p][c], shape, c);
            CHECK(sent == 2 * (n - 1));
        }
    }
    if (has_levels(shape) && collective != COLLECTIVE_BARRIER) check_border(collective, shape);
    free(world);
}

static void check_broadcast(int n, int root)
{
    struct world *world = new_world((struct shape){n, 1});
    run_world(world, COLLECTIVE_BROADCAST, root);
    int sent = 0;
    for (int p = 0; p < n; p++) {
        struct plan plan = plan_make(COLLECTIVE_BROADCAST, n, p, root);
        CHECK(world->out[p][0].contributors == (uint64_t)1 << root);
        sent += plan_chunks_sent(&plan);
    }
    CHECK(sent == n - 1);
    free(world);
}

/* A reduce: the root has everyone's part, in the order of chunk `root`; nobody else writes anything. */
static void check_reduce(struct shape shape, int root)
{
    int n = shape.n;
    struct world *world = new_world(shape);
    run_world(world, COLLECTIVE_REDUCE, root);
    for (int p = 0; p < n; p++) {
        struct plan plan = make_plan(COLLECTIVE_REDUCE, shape, p, root);
        CHECK(plan_chunks_sent(&plan) == (n > 1 && p != root));
        if (p == root) check_reduced(&world->out[p][0], shape, root);
        else CHECK(!world->out[p][0].valid);
    }
    free(world);
}

/* Direct plans: every edge carries one chunk. wire[from][to]: -1 nothing sent yet, -2 taken. */
static void check_direct(enum collective collective, int n, int root)
{
    static int wire[MOST_RANKS][MOST_RANKS], kept[MOST_RANKS][MOST_RANKS];
    int step[MOST_RANKS] = {0}, left = n;
    memset(wire, -1, sizeof wire);
    memset(kept, -1, sizeof kept); /* kept[p][c]: whose data position p has as its chunk c, and which chunk of theirs: from · n + chunk */
    while (left > 0) {
        bool moved = false;
        for (int p = 0; p < n; p++) {
            struct plan plan = plan_make(collective, n, p, root);
            if (step[p] == plan.steps) continue;
            struct plan_step at = plan_step_at(&plan, step[p]);
            if (at.from >= 0 && wire[at.from][p] < 0) continue;
            if (at.primitive == PRIMITIVE_COPY) kept[p][at.chunk] = p * n + at.chunk;
            if (at.from >= 0) {
                kept[p][at.chunk] = wire[at.from][p];
                wire[at.from][p] = -2;
            }
            if (at.to >= 0) {
                CHECK(wire[p][at.to] == -1 && at.to != p);
                wire[p][at.to] = p * n + at.chunk;
            }
            moved = true;
            if (++step[p] == plan.steps) left--;
        }
        if (!CHECK(moved)) return;
    }
    for (int p = 0; p < n; p++)
        for (int c = 0; c < n; c++) {
            CHECK(wire[p][c] < 0); /* nothing is left on the way */
            int expected = collective == COLLECTIVE_SCATTER     ? (c == p ? root * n + p : -1)
                           : collective == COLLECTIVE_GATHER ? (p == root ? c * n + c : -1)
                                                             : c * n + p;
            CHECK(kept[p][c] == expected);
        }
}

static void check_pair(int n, int from, int to)
{
    struct plan send = plan_make(COLLECTIVE_SEND, n, from, to), recv = plan_make(COLLECTIVE_RECV, n, to, from);
    struct plan_step out = plan_step_at(&send, 0), in = plan_step_at(&recv, 0);
    CHECK(send.steps == 1 && recv.steps == 1 && send.chunks == 1 && recv.chunks == 1);
    CHECK(out.primitive == PRIMITIVE_SEND && out.to == to && in.primitive == PRIMITIVE_RECV && in.from == from);
}

/* The executor's order (operation.h): blocks of W slices, each step over the block, items strictly in order, 2W slots. */
struct line {
    int posted, taken;
};

static bool run_item(struct line lines[MOST_RANKS][EDGE_KINDS], const struct plan_step *step, int p, int slots, struct shape shape)
{
    struct line *in = NULL, *beside = NULL, *out = NULL;
    if (step->from >= 0) in = &lines[step->from][kind_of(shape, step->from, p)];
    if (step->joins >= 0) beside = &lines[step->joins][kind_of(shape, step->joins, p)];
    if (step->to >= 0) out = &lines[p][kind_of(shape, p, step->to)];
    if (in != NULL && in->taken == in->posted) return false;
    if (beside != NULL && beside->taken == beside->posted) return false;
    if (out != NULL && out->posted - out->taken >= slots) return false;
    if (in != NULL) in->taken++;
    if (beside != NULL) beside->taken++;
    if (out != NULL) out->posted++;
    return true;
}

static void check_slots(enum collective collective, struct shape shape, int in_flight, int slices)
{
    struct line lines[MOST_RANKS][EDGE_KINDS] = {{{0, 0}}};
    int item[MOST_RANKS] = {0}, n = shape.n;
    struct plan plans[MOST_RANKS];
    for (int p = 0; p < n; p++) plans[p] = make_plan(collective, shape, p, 0);
    int items = plans[0].steps * slices, left = n;
    while (left > 0) {
        bool moved = false;
        for (int p = 0; p < n; p++) {
            if (item[p] == items) continue;
            int block_items = plans[p].steps * in_flight, block = item[p] / block_items;
            int width = slices - block * in_flight < in_flight ? slices - block * in_flight : in_flight;
            struct plan_step step = plan_step_at(&plans[p], (item[p] - block * block_items) / width);
            if (!run_item(lines, &step, p, 2 * in_flight, shape)) continue;
            moved = true;
            if (++item[p] == items) left--;
        }
        if (!CHECK_MSG(moved, "%s of %d ranks, %d a host, stands still", collective_name(collective), n, shape.host_ranks)) return;
    }
}

/* All that is on rings. */
static void check_shape(struct shape shape)
{
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        enum collective collective = (enum collective)c;
        if (!collective_is_on_ring(collective) || (has_levels(shape) && !collective_has_two_levels(collective))) continue;
        if (!collective_is_rooted(collective)) check_collective(collective, shape);
        check_slots(collective, shape, 1, 5);
        check_slots(collective, shape, 4, 11);
    }
    for (int root = 0; root < shape.n; root++) check_reduce(shape, root);
}

int main(void)
{
    for (int n = 1; n <= MOST_RANKS; n++) {
        check_shape((struct shape){n, 1});
        for (int m = 2; m < n; m++)
            if (n % m == 0) check_shape((struct shape){n, m});
        for (int root = 0; root < n; root++) {
            check_broadcast(n, root);
            check_direct(COLLECTIVE_SCATTER, n, root);
            check_direct(COLLECTIVE_GATHER, n, root);
            check_pair(n, root, n - 1 - root);
        }
        check_direct(COLLECTIVE_ALL_TO_ALL, n, 0);
    }
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        enum collective found;
        CHECK(collective_from_name(&found, collective_name((enum collective)c)) == 0 && found == (enum collective)c);
    }
    enum collective none;
    CHECK(collective_from_name(&none, "all-reduce") == -1);
    return test_result();
}
