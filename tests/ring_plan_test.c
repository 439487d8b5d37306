/* The property test of plan.c: every collective, every nranks ≤ 64, every root: run symbolically, without bytes or edges.
 * ctest: timeout=60
 *
 * A chunk's value is a set of contributors (a bit per rank) together with the order in which they joined. Positions run their
 * plans against one queue per edge. Proved: sends match receives (same chunk, same order, nothing left over); the result is
 * what the collective promises; each rank contributes once; the order in which a chunk is summed is c+1, …, c; every rank sends
 * no more chunks than the bandwidth bound; and W slices in flight need no more than 2W slots (no deadlock).
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

struct world {
    int n;
    struct value in[MOST_RANKS][MOST_RANKS], out[MOST_RANKS][MOST_RANKS];
    struct value queue[MOST_RANKS][QUEUE]; /* edge p → p+1, by sender */
    int posted[MOST_RANKS], taken[MOST_RANKS];
    int step[MOST_RANKS];
};

static struct value joined(struct value a, struct value own, int rank)
{
    CHECK((a.contributors & own.contributors) == 0);
    a.contributors |= own.contributors;
    a.order_hash = a.order_hash * 131 + (uint64_t)rank + 1;
    return a;
}

/* Runs one step of position p if its input is there. */
static bool run_step(struct world *world, const struct plan *plan, int p)
{
    struct plan_step step = plan_step_at(plan, world->step[p]);
    int n = world->n, prev = (p + n - 1) % n;
    CHECK(step.chunk >= 0 && step.chunk < plan->chunks);
    CHECK(step.from == (primitive_receives(step.primitive) ? prev : -1));
    CHECK(step.to == (primitive_sends(step.primitive) ? (p + 1) % n : -1));
    struct value x = {0}, own = world->in[p][step.chunk];
    if (step.from >= 0) {
        if (world->taken[prev] == world->posted[prev]) return false;
        x = world->queue[prev][world->taken[prev]++ % QUEUE];
        CHECK(x.valid && x.chunk == step.chunk);
    }
    struct value send = own;
    switch (step.primitive) {
    case PRIMITIVE_RECV_REDUCE_SEND: send = joined(x, own, p); break;
    case PRIMITIVE_RECV_REDUCE_COPY:
    case PRIMITIVE_RECV_REDUCE_COPY_SEND: send = world->out[p][step.chunk] = joined(x, own, p); break;
    case PRIMITIVE_RECV:
    case PRIMITIVE_RECV_COPY_SEND: send = world->out[p][step.chunk] = x; break;
    case PRIMITIVE_COPY:
    case PRIMITIVE_COPY_SEND: world->out[p][step.chunk] = own; break;
    default: break;
    }
    if (step.to >= 0) {
        CHECK(send.valid);
        world->queue[p][world->posted[p]++ % QUEUE] = send;
    }
    world->step[p]++;
    return true;
}

static void run_world(struct world *world, enum collective collective, int root)
{
    int n = world->n, left = n;
    struct plan plans[MOST_RANKS];
    for (int p = 0; p < n; p++) plans[p] = plan_make(collective, n, p, root);
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
    for (int p = 0; p < n; p++) CHECK(world->posted[p] == world->taken[p]);
}

static struct world *new_world(int n)
{
    struct world *world = calloc(1, sizeof *world);
    world->n = n;
    for (int p = 0; p < n; p++)
        for (int c = 0; c < n; c++) world->in[p][c] = (struct value){(uint64_t)1 << p, (uint64_t)p + 1, c, true};
    return world;
}

static uint64_t everyone(int n) { return n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1; }

/* The documented order of a sum: chunk c starts at position c+1 and ends at c. */
static uint64_t expected_order(int n, int c)
{
    uint64_t hash = (uint64_t)((c + 1) % n + 1);
    for (int j = 2; j <= n; j++) hash = hash * 131 + (uint64_t)((c + j) % n + 1);
    return hash;
}

static void check_reduced(const struct value *value, int n, int c)
{
    CHECK(value->valid && value->contributors == everyone(n));
    if (n > 1) CHECK(value->order_hash == expected_order(n, c));
}

static void check_collective(enum collective collective, int n)
{
    struct world *world = new_world(n);
    run_world(world, collective, 0);
    for (int p = 0; p < n; p++) {
        struct plan plan = plan_make(collective, n, p, 0);
        int sent = plan_chunks_sent(&plan);
        switch (collective) {
        case COLLECTIVE_REDUCE_SCATTER:
            check_reduced(&world->out[p][p], n, p);
            for (int c = 0; c < n; c++) CHECK(c == p || !world->out[p][c].valid); /* nothing else is written */
            CHECK(sent == n - 1);
            break;
        case COLLECTIVE_ALL_GATHER:
            for (int c = 0; c < n; c++) CHECK(world->out[p][c].contributors == (uint64_t)1 << c);
            CHECK(sent == n - 1);
            break;
        default:
            for (int c = 0; c < n; c++) check_reduced(&world->out[p][c], n, c);
            CHECK(sent == 2 * (n - 1));
        }
    }
    free(world);
}

static void check_broadcast(int n, int root)
{
    struct world *world = new_world(n);
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
static void check_reduce(int n, int root)
{
    struct world *world = new_world(n);
    run_world(world, COLLECTIVE_REDUCE, root);
    for (int p = 0; p < n; p++) {
        struct plan plan = plan_make(COLLECTIVE_REDUCE, n, p, root);
        CHECK(plan_chunks_sent(&plan) == (n > 1 && p != root));
        if (p == root) check_reduced(&world->out[p][0], n, root);
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
static void check_slots(enum collective collective, int n, int in_flight, int slices)
{
    int posted[MOST_RANKS] = {0}, taken[MOST_RANKS] = {0}, item[MOST_RANKS] = {0};
    struct plan plans[MOST_RANKS];
    for (int p = 0; p < n; p++) plans[p] = plan_make(collective, n, p, 0);
    int items = plans[0].steps * slices, left = n;
    while (left > 0) {
        bool moved = false;
        for (int p = 0; p < n; p++) {
            if (item[p] == items) continue;
            int block_items = plans[p].steps * in_flight, block = item[p] / block_items;
            int width = slices - block * in_flight < in_flight ? slices - block * in_flight : in_flight;
            struct plan_step step = plan_step_at(&plans[p], (item[p] - block * block_items) / width);
            int prev = (p + n - 1) % n;
            if (step.from >= 0 && taken[prev] == posted[prev]) continue;
            if (step.to >= 0 && posted[p] - taken[p] >= 2 * in_flight) continue;
            if (step.from >= 0) taken[prev]++;
            if (step.to >= 0) posted[p]++;
            moved = true;
            if (++item[p] == items) left--;
        }
        if (!CHECK_MSG(moved, "%s of %d ranks stands still", collective_name(collective), n)) return;
    }
}

int main(void)
{
    for (int n = 1; n <= MOST_RANKS; n++) {
        for (int c = 0; c < COLLECTIVE_COUNT; c++) {
            enum collective collective = (enum collective)c;
            if (!collective_is_on_ring(collective)) continue;
            if (!collective_is_rooted(collective)) check_collective(collective, n);
            check_slots(collective, n, 1, 5);
            check_slots(collective, n, 4, 11);
        }
        for (int root = 0; root < n; root++) {
            check_broadcast(n, root);
            check_reduce(n, root);
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
