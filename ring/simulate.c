/* simulate: see simulate.h.
 *
 * Folding. Positions 0 … P−1 stand for all: an edge is named by (sender mod P, how many positions further the
 * receiver is), so that what leaves position P−1 arrives at position 0, which behaves as position P does.
 *
 *   4 ranks, P = 1:  ┌► 0 ─┐      4 ranks, 2 on a node, P = 2:   ┌► 0 ─ node ─► 1 ─┐
 *                    └─────┘                                     └──── network ────┘
 */
#include "ring/simulate.h"

#include <stdlib.h>

#include "ring/ring.h"
#include "ring/slice.h"

#define DEFAULT_SLOT_BYTES ((size_t)256 << 10)
#define DEFAULT_SLOTS      8
#define MOST_ITEMS         4e9

enum { NETWORK, NODE, PORTS };

/* One edge: the last slot_count slices on it. */
struct lane {
    int from; /* < period */
    int hop;  /* receiver − sender around the ring, 1 … nranks; 0: this entry of the table is free */
    struct simulate_link link;
    int port; /* of both ends: NETWORK, or NODE */
    uint64_t posted, taken;
    double *sent_ns;  /* [slot] when its first byte leaves */
    double *freed_ns; /* [slot] when the sender knows that it is free again */
};

/* One position on its way through its plan. */
struct walker {
    struct plan plan; /* of SIMULATE_RING */
    int position, steps;
    size_t block, slice; /* as struct place */
    int step;
    bool done;
    double now_ns, out_free_ns[PORTS], in_free_ns[PORTS];
    struct lane *in, *joined, *out; /* used last */
};

struct world {
    const struct simulate_config *config;
    int period, chunks;
    size_t in_flight; /* W */
    uint64_t slot_count;
    size_t chunk_count, longer_chunks; /* so many have one element more */
    size_t slice_count, slices;
    struct walker *walkers; /* [period] */
    struct lane *lanes;     /* open addressing; [lane_capacity], a power of two */
    size_t lane_capacity, lane_count;
    uint64_t items;
};

/* ---- who does what ---- */

static const struct plan_step rest = {PRIMITIVE_NONE, -1, -1, 0, -1};

static struct plan_step send_to(enum primitive primitive, int to)
{
    return (struct plan_step){.primitive = primitive, .from = -1, .to = to, .joins = -1};
}

static struct plan_step receive_from(enum primitive primitive, int from)
{
    return (struct plan_step){.primitive = primitive, .from = from, .to = -1, .joins = -1};
}

static int tree_levels(int n)
{
    int levels = 0;
    while ((int64_t)1 << levels < n) levels++;
    return levels;
}

/* Levels upward, where the odd multiples of 2^level hand over to the even ones; then the same downward. */
static struct plan_step tree_step(int n, int p, int i)
{
    int levels = tree_levels(n);
    bool up = i < levels;
    int distance = 1 << (up ? i : 2 * levels - 1 - i);
    if (p % distance != 0) return rest;
    bool far = p / distance % 2 == 1;
    int other = far ? p - distance : p + distance;
    if (other >= n) return rest;
    if (far == up) return send_to(up ? PRIMITIVE_SEND : PRIMITIVE_COPY_SEND, other);
    return receive_from(up ? PRIMITIVE_RECV_REDUCE_COPY : PRIMITIVE_RECV, other);
}

static struct plan_step star_step(int n, int p, int i)
{
    if (p != 0)
        return i == 0 ? send_to(PRIMITIVE_SEND, 0) : receive_from(PRIMITIVE_RECV, 0);
    if (i < n - 1) return receive_from(PRIMITIVE_RECV_REDUCE_COPY, i + 1);
    return send_to(PRIMITIVE_COPY_SEND, i - (n - 1) + 1);
}

static int walker_steps(const struct walker *walker, const struct simulate_config *config)
{
    if (config->algorithm == SIMULATE_TREE) return 2 * tree_levels(config->nranks);
    if (config->algorithm == SIMULATE_STAR) return walker->position == 0 ? 2 * (config->nranks - 1) : 2;
    return walker->plan.steps;
}

static struct plan_step walker_step(const struct walker *walker, const struct simulate_config *config)
{
    if (config->algorithm == SIMULATE_TREE) return tree_step(config->nranks, walker->position, walker->step);
    if (config->algorithm == SIMULATE_STAR) return star_step(config->nranks, walker->position, walker->step);
    return plan_step_at(&walker->plan, walker->step);
}

/* b − a around a ring of n; −1 for nobody. */
static int hops(int a, int b, int n)
{
    return b < 0 ? -1 : (b - a + n) % n;
}

static struct plan plan_of(const struct simulate_config *config, int position)
{
    int host_ranks = config->two_level ? config->node_ranks : 1;
    return plan_make_two_level(config->collective, config->nranks, host_ranks, position, config->root);
}

bool simulate_is_symmetric(enum collective collective, int n)
{
    int others[] = {
        1 % n, n / 2, n - 1}; /* a root, and its neighbours, differ from the rest wherever there is a root */
    struct plan zero = plan_make(collective, n, 0, 0);
    for (size_t o = 0; o < sizeof others / sizeof *others; o++) {
        int p = others[o];
        struct plan plan = plan_make(collective, n, p, 0);
        if (plan.steps != zero.steps || plan.chunks != zero.chunks) return false;
        for (int i = 0; i < plan.steps; i++) {
            struct plan_step a = plan_step_at(&zero, i), b = plan_step_at(&plan, i);
            if (a.primitive != b.primitive || hops(0, a.from, n) != hops(p, b.from, n) ||
                hops(0, a.to, n) != hops(p, b.to, n))
                return false;
        }
    }
    return true;
}

/* ---- edges ---- */

/* Whether two ranks share a node. */
static bool share_node(int a, int b, const struct simulate_config *config)
{
    return config->node_ranks > 1 && a / config->node_ranks == b / config->node_ranks;
}

static struct lane *lane_slot(struct lane *lanes, size_t capacity, int from, int hop)
{
    size_t i = ((uint64_t)from * 0x9e3779b97f4a7c15u ^ (uint64_t)hop * 0xc2b2ae3d27d4eb4fu) >> 20;
    for (;; i++) {
        struct lane *lane = &lanes[i & (capacity - 1)];
        if (lane->hop == 0 || (lane->from == from && lane->hop == hop)) return lane;
    }
}

static enum status lanes_grow(struct world *world)
{
    size_t capacity = world->lane_capacity == 0 ? 64 : 2 * world->lane_capacity;
    struct lane *lanes = calloc(capacity, sizeof *lanes);
    if (lanes == NULL)
        return FAIL(STATUS_SYSTEM, "simulation: no memory for %zu edges: choose fewer ranks", capacity);
    for (size_t i = 0; i < world->lane_capacity; i++) {
        struct lane *old = &world->lanes[i];
        if (old->hop > 0) *lane_slot(lanes, capacity, old->from, old->hop) = *old;
    }
    for (int p = 0; p < world->period; p++)
        world->walkers[p].in = world->walkers[p].joined = world->walkers[p].out = NULL; /* they have moved */
    free(world->lanes);
    world->lanes = lanes;
    world->lane_capacity = capacity;
    return STATUS_OK;
}

/* The edge between two positions; the one of the last call is likely the one asked for. */
static enum status lane_find(struct lane **last, int from, int to, struct world *world)
{
    const struct simulate_config *config = world->config;
    int hop = from == to ? config->nranks : hops(from, to, config->nranks);
    from %= world->period;
    if (*last != NULL && (*last)->from == from && (*last)->hop == hop) return STATUS_OK;
    if (2 * (world->lane_count + 1) > world->lane_capacity) TRY(lanes_grow(world));
    *last = lane_slot(world->lanes, world->lane_capacity, from, hop);
    if ((*last)->hop > 0) return STATUS_OK;
    double *times = calloc(2 * world->slot_count, sizeof *times);
    if (times == NULL) return FAIL(STATUS_SYSTEM, "simulation: no memory for edge %zu", world->lane_count + 1);
    bool near = share_node(from, (from + hop) % config->nranks, config);
    **last = (struct lane){.from = from,
        .hop = hop,
        .link = near ? config->node_link : config->link,
        .port = near ? NODE : NETWORK,
        .sent_ns = times,
        .freed_ns = times + world->slot_count};
    bool share = config->two_level && !near && !collective_is_rooted(config->collective);
    if (share) (*last)->link.bytes_per_ns /= config->node_ranks;
    world->lane_count++;
    return STATUS_OK;
}

/* ---- one item: one slice through one step ---- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Bytes of the slice in hand. Where one position stands for all, chunks are as large as the largest. */
static size_t slice_bytes(const struct walker *walker, int chunk, const struct world *world)
{
    const struct simulate_config *config = world->config;
    if (world->period < config->nranks) chunk = 0;
    size_t count = world->chunk_count + ((size_t)chunk < world->longer_chunks); /* see ring_chunk_begin() */
    size_t skip = (walker->block + walker->slice) * world->slice_count;
    size_t left = skip < count ? count - skip : 0;
    return (left < world->slice_count ? left : world->slice_count) * config->element_bytes;
}

/* The next (block, step, slice); done after the last. The same order as the executor's. */
static void walker_next(struct walker *walker, const struct world *world)
{
    size_t left = world->slices - walker->block;
    size_t in_block = left < world->in_flight ? left : world->in_flight;
    if (++walker->slice < in_block) return;
    walker->slice = 0;
    if (++walker->step < walker->steps) return;
    walker->step = 0;
    walker->block += in_block;
    walker->done = walker->block >= world->slices;
}

static enum status find_lanes(struct walker *walker, const struct plan_step *step, struct world *world)
{
    size_t capacity;
    do { /* the table may grow, and what was found before has moved then */
        capacity = world->lane_capacity;
        if (step->to >= 0) TRY(lane_find(&walker->out, walker->position, step->to, world));
        if (step->from >= 0) TRY(lane_find(&walker->in, step->from, walker->position, world));
        if (step->joins >= 0) TRY(lane_find(&walker->joined, step->joins, walker->position, world));
    } while (capacity != world->lane_capacity);
    return STATUS_OK;
}

/* When the oldest slice of an edge is all there. */
static double arrival_ns(struct walker *walker, const struct lane *in, double bytes, uint64_t mask)
{
    double first_byte = in->sent_ns[in->taken & mask] + in->link.latency_ns, *free_ns = &walker->in_free_ns[in->port];
    *free_ns = later(first_byte, *free_ns) + bytes / in->link.bytes_per_ns;
    return *free_ns;
}

static void give_slot_back(struct lane *in, double now, uint64_t mask)
{
    in->freed_ns[in->taken++ & mask] = now + in->link.latency_ns;
}

/* Runs one item if its slice has been sent and a slot is free, at whatever time; *ran says so. */
static enum status walker_run(struct walker *walker, bool *ran, struct world *world)
{
    struct plan_step step = walker_step(walker, world->config);
    uint64_t slots = world->slot_count, mask = slots - 1;
    *ran = false;
    TRY(find_lanes(walker, &step, world));
    struct lane *in = step.from >= 0 ? walker->in : NULL, *out = step.to >= 0 ? walker->out : NULL;
    struct lane *joined = step.joins >= 0 ? walker->joined : NULL;
    if (in != NULL && in->taken == in->posted) return STATUS_OK;
    if (joined != NULL && joined->taken == joined->posted) return STATUS_OK;
    if (out != NULL && out->posted - out->taken >= slots) return STATUS_OK;

    double bytes = (double)slice_bytes(walker, step.chunk, world), now = walker->now_ns;
    if (in != NULL) now = later(now, arrival_ns(walker, in, bytes, mask));
    if (joined != NULL) now = later(now, arrival_ns(walker, joined, bytes, mask));
    if (out != NULL) now = later(now, out->freed_ns[out->posted & mask]);
    if (in != NULL) give_slot_back(in, now, mask);
    if (joined != NULL) give_slot_back(joined, now, mask);
    if (out != NULL) {
        double start = later(now, walker->out_free_ns[out->port]);
        walker->out_free_ns[out->port] = start + bytes / out->link.bytes_per_ns;
        out->sent_ns[out->posted++ & mask] = start;
    }
    walker->now_ns = now;
    world->items++;
    walker_next(walker, world);
    *ran = true;
    return STATUS_OK;
}

/* ---- all of them ---- */

/* How the largest chunk is cut: as an executor cuts it where slices are messages. A textbook's
 * message is not cut. */
static void choose_slices(struct world *world)
{
    const struct simulate_config *config = world->config;
    world->chunk_count = config->count / (size_t)world->chunks;
    world->longer_chunks = config->count % (size_t)world->chunks;
    size_t largest = ring_chunk_begin(config->count, world->chunks, 1), element = config->element_bytes;
    size_t slot_bytes = config->slot_bytes > 0 ? config->slot_bytes : DEFAULT_SLOT_BYTES;
    world->slot_count = config->slot_count > 0 ? config->slot_count : DEFAULT_SLOTS;
    world->in_flight = world->slot_count / 2;
    /* A message of these links costs alpha alone and no system call, so chunks are cut as finely as in one memory. */
    struct slice_cut cut = slice_cut(largest, element, SLICE_MEMORY, slot_bytes, world->slot_count);
    world->slice_count = cut.slice_count;
    world->slices = cut.slices;
    if (config->algorithm == SIMULATE_RING) return;
    world->slice_count = largest > 0 ? largest : 1;
    world->slices = 1;
}

/* How many positions stand for all. */
static int choose_period(const struct simulate_config *config)
{
    int node = config->node_ranks > 1 ? config->node_ranks : 1;
    bool folds = config->algorithm == SIMULATE_RING && !config->every_position && config->nranks % node == 0 &&
                 (config->two_level ? !collective_is_rooted(config->collective)
                                    : simulate_is_symmetric(config->collective, config->nranks));
    return folds ? node : config->nranks;
}

static enum status check_config(const struct simulate_config *config)
{
    bool sane =
        config->nranks > 0 && (config->slot_count & (config->slot_count - 1)) == 0 && config->slot_count != 1 &&
        config->root >= 0 && config->root < config->nranks && config->element_bytes > 0 &&
        config->link.bytes_per_ns > 0 && config->link.latency_ns >= 0 &&
        (config->node_ranks < 2 || (config->node_link.bytes_per_ns > 0 && config->node_link.latency_ns >= 0));
    if (!sane)
        return FAIL(STATUS_INVALID,
            "simulation: %d ranks, root %d, latency %g ns, %g GB/s, %llu slots: expected a "
            "rank at least, a "
            "root among them, no negative latency, some bandwidth, and slots a power of two above 1",
            config->nranks, config->root, config->link.latency_ns, config->link.bytes_per_ns,
            (unsigned long long)config->slot_count);
    if (config->two_level && (config->node_ranks < 2 || config->nranks % config->node_ranks != 0))
        return FAIL(STATUS_INVALID, "simulation: %d ranks in two levels, %d on a node: expected full nodes of at least two",
            config->nranks, config->node_ranks);
    if (config->algorithm != SIMULATE_RING && config->collective != COLLECTIVE_ALL_REDUCE)
        return FAIL(STATUS_INVALID, "simulation: a tree or star of %s, expected all_reduce",
            collective_name(config->collective));
    return STATUS_OK;
}

static enum status world_begin(struct world *world)
{
    const struct simulate_config *config = world->config;
    struct plan plan = plan_of(config, 0);
    world->chunks = config->algorithm == SIMULATE_RING ? plan.chunks : 1;
    world->period = choose_period(config);
    choose_slices(world);
    world->walkers = calloc((size_t)world->period, sizeof *world->walkers);
    if (world->walkers == NULL)
        return FAIL(STATUS_SYSTEM, "simulation: no memory for %d positions", world->period);
    double items = 0;
    for (int p = 0; p < world->period; p++) {
        struct walker *walker = &world->walkers[p];
        walker->position = p;
        walker->plan = plan_of(config, p);
        walker->steps = walker_steps(walker, config);
        walker->done = walker->steps == 0;
        items += (double)walker->steps * (double)world->slices;
    }
    if (items > MOST_ITEMS)
        return FAIL(STATUS_INVALID,
            "simulation: %d ranks and %zu slices a chunk take %.1e items, expected at most "
            "%.0e: choose "
            "ranks that fill their nodes, fewer ranks or fewer bytes",
            config->nranks, world->slices, items, MOST_ITEMS);
    return STATUS_OK;
}

static enum status world_run(struct world *world)
{
    int left = 0;
    for (int p = 0; p < world->period; p++) left += !world->walkers[p].done;
    while (left > 0) {
        bool moved = false;
        for (int p = 0; p < world->period; p++) {
            struct walker *walker = &world->walkers[p];
            bool ran = true;
            while (!walker->done && ran) {
                TRY(walker_run(walker, &ran, world));
                moved = moved || ran;
                left -= walker->done;
            }
        }
        if (!moved)
            return FAIL(STATUS_DATA, "simulation: the plan of %s stands still with %d positions left",
                collective_name(world->config->collective), left);
    }
    return STATUS_OK;
}

enum status simulate_run(struct simulate_result *result, const struct simulate_config *config)
{
    struct world world = {.config = config};
    enum status status = check_config(config);
    if (status == STATUS_OK) status = world_begin(&world);
    if (status == STATUS_OK) status = world_run(&world);
    *result = (struct simulate_result){.items = world.items,
        .positions = world.period,
        .slices = world.slices,
        .slice_bytes = world.slice_count * config->element_bytes};
    for (int p = 0; p < world.period && status == STATUS_OK; p++)
        result->time_ns = later(result->time_ns, world.walkers[p].now_ns);
    for (size_t i = 0; i < world.lane_capacity; i++) free(world.lanes[i].sent_ns);
    free(world.lanes);
    free(world.walkers);
    return status;
}
