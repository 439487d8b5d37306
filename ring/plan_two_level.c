/* plan_two_level: the algorithms of two levels, for H hosts of m positions each: reduce-scatter inside each host, a ring between
 * hosts of the positions with the same place, all-gather inside.
 *
 *   host 0      ┌► 0 ─► 1 ─► 2 ─┐        place 0 of all hosts is a ring, place 1 is one, place 2 is one: each carries 1/m of the
 *               └───────────────┘        buffer, so a host sends 2(H−1)/H of the buffer for an all-reduce, where the flat ring
 *                  │    │    │           sends 2(n−1)/n; and all its positions send at once, each by a NIC near to it
 *   host 1      ┌► 3 ─► 4 ─► 5 ─┐
 *               └───────────────┘
 *
 * Chunk c belongs to position c as in plan.c: to place c mod m of host c / m. A round is about one host's m chunks, so that
 * the next round's work inside a host is done while this round's chunk is on its way between hosts, and so that nobody holds a
 * partial sum anywhere but in the slot where it has arrived:
 *
 *   reduce_scatter, round k     m steps inside: a reduce-scatter of the chunks of host h−1−k. In the last of them the host's own
 *                               sum meets the one that came from the host before (`joins`), and goes to the host after;
 *                               in round H−1 it is the own chunk, and stays
 *   all_gather, round k         the chunk of host h−k comes from the host before and goes to the host after; then m−1 steps
 *                               inside: an all-gather of the chunks of host h−k
 *   all_reduce                  the one, then the other: the own chunk is kept and sent to the next host in one step
 *   reduce                      a chain inside each host, and one between hosts, to the root
 *
 * All-reduce, 2 hosts of 2 positions; marks as in plan.c, and r+j: receive, add own, join what came from the other host;
 * ·x: to or from a position of another host:
 *
 *   step      position 0     position 1     position 2     position 3
 *   0         s 3            s 2            s 1            s 0            chunks of the other host: inside,
 *   1         r+s 2·2        r+s 3·3        r+s 0·0        r+s 1·1        and to their owners
 *   2         s 1            s 0            s 3            s 2            own chunks: inside;
 *   3         r+jk s 0·2     r+jk s 1·3     r+jk s 2·0     r+jk s 3·1     complete, and to the other host
 *   4         f 0            f 1            f 2            f 3            inside
 *   5         r= 1           r= 0           r= 3           r= 2
 *   6         r= s 2         r= s 3         r= s 0         r= s 1         from the other host, and inside
 *   7         r= 3           r= 2           r= 1           r= 0
 *
 * The order of a sum (I2): chunk (h, j) is the sum over hosts h+1, h+2, …, h of the sums over places j+1, j+2, …, j of each.
 * Every position sends as many chunks as on the flat ring: 2(n−1) for an all-reduce, of which 2(H−1) leave its host.
 * source: the two-level form of plan.c's rings; M. Cho et al., "BlueConnect", MLSys 2019, §3.
 */
#include "ring/plan_two_level.h"

#include <assert.h>

/* Where a position is, and who is around it. */
struct seat {
    int hosts, m;    /* H, and positions on each host */
    int host, place; /* h, j */
};

static struct seat seat_of(const struct plan *plan)
{
    int m = plan->host_ranks;
    return (struct seat){plan->nranks / m, m, plan->position / m, plan->position % m};
}

/* c modulo n for -n ≤ c < 2n. */
static int wrap(int c, int n) { return c < 0 ? c + n : c >= n ? c - n : c; }

static int position_of(const struct seat *seat, int host, int place)
{
    return wrap(host, seat->hosts) * seat->m + wrap(place, seat->m);
}

/* Within the host, from the place before or to the one after. */
static struct plan_step inside(const struct seat *seat, enum primitive primitive, int chunk)
{
    return (struct plan_step){
        .primitive = primitive,
        .from = primitive_receives(primitive) ? position_of(seat, seat->host, seat->place - 1) : -1,
        .to = primitive_sends(primitive) ? position_of(seat, seat->host, seat->place + 1) : -1,
        .chunk = chunk,
        .joins = -1,
    };
}

static int host_before(const struct seat *seat) { return position_of(seat, seat->host - 1, seat->place); }
static int host_after(const struct seat *seat) { return position_of(seat, seat->host + 1, seat->place); }

/* The step in which a host's own sum of a chunk is complete, for the reduce-scatter of round k. */
static struct plan_step host_sum_step(const struct seat *seat, int k, int chunk, bool gathers)
{
    bool last = k == seat->hosts - 1;
    enum primitive primitive = !last     ? PRIMITIVE_RECV_REDUCE_SEND
                               : gathers ? PRIMITIVE_RECV_REDUCE_COPY_SEND
                                         : PRIMITIVE_RECV_REDUCE_COPY;
    struct plan_step step = inside(seat, primitive, chunk);
    if (k > 0) step.joins = host_before(seat);
    if (step.to >= 0) step.to = host_after(seat);
    return step;
}

static struct plan_step reduce_scatter_step(const struct seat *seat, int i, bool gathers)
{
    int k = i / seat->m, at = i % seat->m, host = seat->host - 1 - k;
    if (at == seat->m - 1) return host_sum_step(seat, k, position_of(seat, host, seat->place), gathers);
    return inside(seat, at == 0 ? PRIMITIVE_SEND : PRIMITIVE_RECV_REDUCE_SEND,
        position_of(seat, host, seat->place - 1 - at));
}

/* Rounds of m+1 steps: between hosts, then inside. In the last round the first two are one. */
static struct plan_step all_gather_step(const struct seat *seat, int i)
{
    int k = i / (seat->m + 1), at = i % (seat->m + 1);
    bool last = k == seat->hosts - 1;
    if (last && at > 0) at++;
    int host = seat->host - k, chunk = position_of(seat, host, seat->place + (at > 1 ? 1 - at : 0));
    if (at == 0) {
        struct plan_step step = inside(seat, k == 0 ? PRIMITIVE_COPY_SEND : PRIMITIVE_RECV_COPY_SEND, chunk);
        if (step.from >= 0) step.from = host_before(seat);
        if (!last) step.to = host_after(seat);
        return step;
    }
    return inside(seat, at == 1 ? PRIMITIVE_FORWARD : at < seat->m ? PRIMITIVE_RECV_COPY_SEND : PRIMITIVE_RECV, chunk);
}

static struct plan_step reduce_step(const struct seat *seat, int root)
{
    int distance = wrap(seat->place - root % seat->m, seat->m), hosts = wrap(seat->host - root / seat->m, seat->hosts);
    if (distance > 0) return inside(seat, distance == 1 ? PRIMITIVE_SEND : PRIMITIVE_RECV_REDUCE_SEND, 0);
    return host_sum_step(seat, hosts == 0 ? seat->hosts - 1 : hosts - 1, 0, false);
}

int two_level_steps(const struct plan *plan)
{
    struct seat seat = seat_of(plan);
    int reduces = seat.hosts * seat.m, gathers = seat.hosts * (seat.m + 1) - 1;
    switch (plan->collective) {
    case COLLECTIVE_REDUCE: return 1;
    case COLLECTIVE_REDUCE_SCATTER: return reduces;
    case COLLECTIVE_ALL_GATHER: return gathers;
    default: return reduces + gathers - 1;
    }
}

struct plan_step two_level_step(const struct plan *plan, int i)
{
    struct seat seat = seat_of(plan);
    int reduces = seat.hosts * seat.m;
    assert(collective_has_two_levels(plan->collective));
    switch (plan->collective) {
    case COLLECTIVE_REDUCE: return reduce_step(&seat, plan->root);
    case COLLECTIVE_REDUCE_SCATTER: return reduce_scatter_step(&seat, i, false);
    case COLLECTIVE_ALL_GATHER: return all_gather_step(&seat, i);
    default: /* all_reduce, and a barrier: the all-gather's first step is the reduce-scatter's last */
        return i < reduces ? reduce_scatter_step(&seat, i, true) : all_gather_step(&seat, i - reduces + 1);
    }
}
