/* plan: the ring algorithms. Everything else in ring/ executes, draws or counts what stands here.
 *
 * All-reduce of 4 ranks: reduce-scatter (steps 0–3), then all-gather (steps 3–6), fused at the turn, step 3. s: send,
 * r+s: receive, add own, send on; r+k: receive, add own, keep; r=: receive, keep; digits are chunks.
 *
 *   step      position 0     position 1     position 2     position 3
 *   0         s 3            s 0            s 1            s 2
 *   1         r+s 2          r+s 3          r+s 0          r+s 1
 *   2         r+s 1          r+s 2          r+s 3          r+s 0
 *   3         r+k s 0        r+k s 1        r+k s 2        r+k s 3        chunk p is complete at position p
 *   4         r= s 3         r= s 0         r= s 1         r= s 2
 *   5         r= s 2         r= s 3         r= s 0         r= s 1
 *   6         r= 1           r= 2           r= 3           r= 0
 *
 * Chunk c starts at position c+1, travels c+2, …, and is complete at c: this order alone decides the bits of a sum (I2), and
 * the complete chunk is copied, not summed again, so all ranks hold the same bits (I1).
 * Every position sends 2(n−1) chunks of 1/n of the buffer: 2(n−1)/n of its bytes, the least possible. source: Patarasuk and
 * Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; FIELD_NOTES §1.
 */
#include "ring/plan.h"

#include <assert.h>
#include <string.h>

#include "ring/plan_two_level.h"

/* c modulo n for -n ≤ c < 2n. */
static int wrap(int c, int n) { return c < 0 ? c + n : c >= n ? c - n : c; }

static struct plan_step ring_step(enum primitive primitive, int n, int p, int chunk)
{
    return (struct plan_step){
        .primitive = primitive,
        .from = primitive_receives(primitive) ? wrap(p - 1, n) : -1,
        .to = primitive_sends(primitive) ? wrap(p + 1, n) : -1,
        .chunk = wrap(chunk, n),
        .joins = -1,
    };
}

/* Between any two positions. */
static struct plan_step direct_step(enum primitive primitive, int from, int to, int chunk)
{
    return (struct plan_step){.primitive = primitive, .from = from, .to = to, .chunk = chunk, .joins = -1};
}

static struct plan_step reduce_scatter_step(int n, int p, int i)
{
    if (i == 0) return ring_step(PRIMITIVE_SEND, n, p, p - 1);
    if (i < n - 1) return ring_step(PRIMITIVE_RECV_REDUCE_SEND, n, p, p - 1 - i);
    return ring_step(PRIMITIVE_RECV_REDUCE_COPY, n, p, p);
}

static struct plan_step all_gather_step(int n, int p, int i)
{
    if (i == 0) return ring_step(PRIMITIVE_COPY_SEND, n, p, p);
    if (i < n - 1) return ring_step(PRIMITIVE_RECV_COPY_SEND, n, p, p - i);
    return ring_step(PRIMITIVE_RECV, n, p, p + 1);
}

static struct plan_step all_reduce_step(int n, int p, int i)
{
    if (i < n - 1) return reduce_scatter_step(n, p, i);
    if (i == n - 1) return ring_step(PRIMITIVE_RECV_REDUCE_COPY_SEND, n, p, p);
    return all_gather_step(n, p, i - (n - 1));
}

/* A chain from the root along the ring; the whole buffer is one chunk, and its slices follow one another down the chain. */
static struct plan_step broadcast_step(int n, int p, int root)
{
    int distance = wrap(p - root, n);
    enum primitive primitive = distance == 0       ? PRIMITIVE_COPY_SEND
                               : distance == n - 1 ? PRIMITIVE_RECV
                                                   : PRIMITIVE_RECV_COPY_SEND;
    struct plan_step step = ring_step(primitive, n, p, 0);
    step.chunk = 0;
    return step;
}

/* The chain the other way: it begins behind the root and ends at it, every position adding its own. So the root's sum has the
 * order of chunk `root` of an all-reduce. */
static struct plan_step reduce_step(int n, int p, int root)
{
    int distance = wrap(p - root, n);
    enum primitive primitive = distance == 0   ? PRIMITIVE_RECV_REDUCE_COPY
                               : distance == 1 ? PRIMITIVE_SEND
                                               : PRIMITIVE_RECV_REDUCE_SEND;
    struct plan_step step = ring_step(primitive, n, p, 0);
    step.chunk = 0;
    return step;
}

/* The root keeps its own chunk, then serves the positions behind it one after another. */
static struct plan_step scatter_step(int n, int p, int root, int i)
{
    if (p != root) return direct_step(PRIMITIVE_RECV, root, -1, p);
    if (i == 0) return direct_step(PRIMITIVE_COPY, -1, -1, p);
    int to = wrap(p + i, n);
    return direct_step(PRIMITIVE_SEND, -1, to, to);
}

static struct plan_step gather_step(int n, int p, int root, int i)
{
    if (p != root) return direct_step(PRIMITIVE_SEND, -1, root, p);
    if (i == 0) return direct_step(PRIMITIVE_COPY, -1, -1, p);
    int from = wrap(p + i, n);
    return direct_step(PRIMITIVE_RECV, from, -1, from);
}

/* Position p's chunk c goes to position c, which keeps it as chunk p: in round j everyone sends j ahead and receives from j behind. */
static struct plan_step all_to_all_step(int n, int p, int i)
{
    int j = (i + 1) / 2, to = wrap(p + j, n), from = wrap(p - j, n);
    if (i == 0) return direct_step(PRIMITIVE_COPY, -1, -1, p);
    if (i % 2 == 1) return direct_step(PRIMITIVE_SEND, -1, to, to);
    return direct_step(PRIMITIVE_RECV, from, -1, from);
}

static const struct {
    const char *name;
    bool rooted, reduces, on_ring, one_chunk, two_levels;
} collectives[COLLECTIVE_COUNT] = {
    /*                             name              rooted reduces on_ring one_chunk two_levels */
    [COLLECTIVE_ALL_REDUCE] =     {"all_reduce",     false, true,   true,   false,    true},
    [COLLECTIVE_REDUCE_SCATTER] = {"reduce_scatter", false, true,   true,   false,    true},
    [COLLECTIVE_ALL_GATHER] =     {"all_gather",     false, false,  true,   false,    true},
    [COLLECTIVE_BROADCAST] =      {"broadcast",      true,  false,  true,   true,     false},
    [COLLECTIVE_REDUCE] =         {"reduce",         true,  true,   true,   true,     true},
    [COLLECTIVE_SCATTER] =        {"scatter",        true,  false,  false,  false,    false},
    [COLLECTIVE_GATHER] =         {"gather",         true,  false,  false,  false,    false},
    [COLLECTIVE_ALL_TO_ALL] =     {"all_to_all",     false, false,  false,  false,    false},
    [COLLECTIVE_SEND] =           {"send",           true,  false,  false,  true,     false},
    [COLLECTIVE_RECV] =           {"recv",           true,  false,  false,  true,     false},
    [COLLECTIVE_BARRIER] =        {"barrier",        false, false,  true,   false,    true},
};

static int step_count(enum collective collective, int n, int p, int root)
{
    switch (collective) {
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECV: return 1;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_REDUCE: return 1;
    case COLLECTIVE_SCATTER:
    case COLLECTIVE_GATHER: return p == root ? n : 1;
    case COLLECTIVE_ALL_TO_ALL: return 2 * n - 1;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_GATHER: return n;
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_COUNT: break;
    }
    return 2 * n - 1;
}

struct plan plan_make(enum collective collective, int nranks, int position, int root)
{
    assert(nranks > 0 && position >= 0 && position < nranks && root >= 0 && root < nranks);
    return (struct plan){
        .collective = collective,
        .nranks = nranks,
        .position = position,
        .root = root,
        .steps = step_count(collective, nranks, position, root),
        .chunks = collective_chunks(collective, nranks),
        .host_ranks = 1,
    };
}

struct plan plan_make_two_level(enum collective collective, int nranks, int host_ranks, int position, int root)
{
    struct plan plan = plan_make(collective, nranks, position, root);
    if (host_ranks < 2 || host_ranks == nranks || !collectives[collective].two_levels) return plan;
    assert(nranks % host_ranks == 0);
    plan.host_ranks = host_ranks;
    plan.steps = two_level_steps(&plan);
    return plan;
}

struct plan_step plan_step_at(const struct plan *plan, int i)
{
    int n = plan->nranks, p = plan->position;
    assert(i >= 0 && i < plan->steps);
    if (plan->host_ranks > 1) return two_level_step(plan, i);
    if (plan->collective == COLLECTIVE_SEND) return direct_step(PRIMITIVE_SEND, -1, plan->root, 0);
    if (plan->collective == COLLECTIVE_RECV) return direct_step(PRIMITIVE_RECV, plan->root, -1, 0);
    if (n == 1) return direct_step(PRIMITIVE_COPY, -1, -1, 0);
    switch (plan->collective) {
    case COLLECTIVE_REDUCE_SCATTER: return reduce_scatter_step(n, p, i);
    case COLLECTIVE_ALL_GATHER: return all_gather_step(n, p, i);
    case COLLECTIVE_BROADCAST: return broadcast_step(n, p, plan->root);
    case COLLECTIVE_REDUCE: return reduce_step(n, p, plan->root);
    case COLLECTIVE_SCATTER: return scatter_step(n, p, plan->root, i);
    case COLLECTIVE_GATHER: return gather_step(n, p, plan->root, i);
    case COLLECTIVE_ALL_TO_ALL: return all_to_all_step(n, p, i);
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECV:
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_BARRIER: /* an all-reduce of nothing: nobody leaves before all have come */
    case COLLECTIVE_COUNT: break;
    }
    return all_reduce_step(n, p, i);
}

int plan_chunks_sent(const struct plan *plan)
{
    int sent = 0;
    for (int i = 0; i < plan->steps; i++) sent += plan_step_at(plan, i).to >= 0;
    return sent;
}

int plan_chunks_across(const struct plan *plan, int host_ranks)
{
    int sent = 0;
    for (int i = 0; i < plan->steps; i++) {
        int to = plan_step_at(plan, i).to;
        sent += to >= 0 && to / host_ranks != plan->position / host_ranks;
    }
    return sent;
}

static const struct {
    const char *name;
    bool receives, sends;
} primitives[PRIMITIVE_COUNT] = {
    [PRIMITIVE_NONE] = {"none", false, false},
    [PRIMITIVE_COPY] = {"copy", false, false},
    [PRIMITIVE_SEND] = {"send", false, true},
    [PRIMITIVE_COPY_SEND] = {"copy_send", false, true},
    [PRIMITIVE_RECV] = {"recv", true, false},
    [PRIMITIVE_RECV_COPY_SEND] = {"recv_copy_send", true, true},
    [PRIMITIVE_RECV_REDUCE_SEND] = {"recv_reduce_send", true, true},
    [PRIMITIVE_RECV_REDUCE_COPY] = {"recv_reduce_copy", true, false},
    [PRIMITIVE_RECV_REDUCE_COPY_SEND] = {"recv_reduce_copy_send", true, true},
    [PRIMITIVE_FORWARD] = {"forward", false, true},
};

const char *primitive_name(enum primitive primitive) { return primitives[primitive].name; }
bool primitive_receives(enum primitive primitive) { return primitives[primitive].receives; }
bool primitive_sends(enum primitive primitive) { return primitives[primitive].sends; }

bool primitive_receives_partial(enum primitive primitive)
{
    return primitive == PRIMITIVE_RECV_REDUCE_SEND || primitive == PRIMITIVE_RECV_REDUCE_COPY ||
           primitive == PRIMITIVE_RECV_REDUCE_COPY_SEND;
}

bool primitive_sends_partial(enum primitive primitive, enum collective collective)
{
    return primitive == PRIMITIVE_RECV_REDUCE_SEND || (primitive == PRIMITIVE_SEND && collective_is_reduction(collective));
}

const char *collective_name(enum collective collective) { return collectives[collective].name; }
bool collective_is_rooted(enum collective collective) { return collectives[collective].rooted; }
bool collective_is_reduction(enum collective collective) { return collectives[collective].reduces; }
bool collective_is_on_ring(enum collective collective) { return collectives[collective].on_ring; }
bool collective_has_two_levels(enum collective collective) { return collectives[collective].two_levels; }

int collective_chunks(enum collective collective, int nranks) { return collectives[collective].one_chunk ? 1 : nranks; }

int collective_from_name(enum collective *collective, const char *name)
{
    for (int i = 0; i < COLLECTIVE_COUNT; i++) {
        if (strcmp(name, collectives[i].name) != 0) continue;
        *collective = (enum collective)i;
        return 0;
    }
    return -1;
}
