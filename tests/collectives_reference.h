/* collectives_reference: what a collective must give, element by element: data as a function of
 * (rank, index) whose sums show their order, and the sum in the documented order (plan.c,
 * plan_two_level.c).
 */
#ifndef TESTS_COLLECTIVES_REFERENCE_H
#define TESTS_COLLECTIVES_REFERENCE_H

#include "ring/ring.h"
#include "tests/reduce_oracle.h"

/* The one that is tested, of which the reference asks in which order it adds. */
static _Thread_local struct ring_comm *tested;

/* ---- data: a function of (rank, index) ---- */

static uint64_t mixed_at(int rank, size_t index)
{
    uint64_t x = (uint64_t)rank * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 12345;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 32;
}

/* Integers of all sizes, so that sums and products wrap; floats around 1 for products, larger ones
 * for sums. */
static struct number value_at(int rank, size_t index, enum dtype dtype, enum redop redop)
{
    uint64_t x = mixed_at(rank, index);
    if (dtype_is_integer(dtype)) return oracle_fit((struct number){.whole = (int64_t)x}, dtype);
    double real = (double)(int64_t)(x % 20001) / 7.0 - 1400.0;
    if (redop == REDOP_PROD) real = 1 + real / 3000;
    return oracle_fit((struct number){.real = real}, dtype);
}

/* Every rank's own: an integer part that differs, and a fraction that integers drop. */
static double premul_of(int rank)
{
    return 1.75 + rank;
}

/* How a sum is made. */
struct sum_kind {
    enum dtype dtype, in; /* in: of partial sums */
    enum redop redop;
    int n;
};

/* The elements at `index` of m ranks, from the one after `last` of them round to it. */
static struct number sum_around(
    const int *ranks, int m, int last, size_t index, const struct sum_kind *kind)
{
    struct number sum = {0};
    for (int j = 1; j <= m; j++) {
        int rank = ranks[(last + j) % m];
        struct number own = value_at(rank, index, kind->dtype, kind->redop);
        own = oracle_scale(own, kind->dtype, kind->redop, kind->n, premul_of(rank));
        sum = j == 1 ? oracle_fit(own, kind->in) : oracle_combine(sum, own, kind->in, kind->redop);
    }
    return sum;
}

/* One element of a reduction, by the definition of ring.h, in the order of the channel that has it.
 * wide: 16-bit floats accumulate in float32. */
static void reference_in(int channel, unsigned char *at, size_t index, int chunk, enum dtype dtype,
    enum redop redop, bool wide, int n)
{
    struct sum_kind kind = {
        dtype, wide && redop != REDOP_MIN && redop != REDOP_MAX ? DTYPE_FLOAT32 : dtype, redop, n};
    const int *order = ring_comm_order(tested, channel);
    int m = ring_comm_host_ranks(tested), last = 0;
    if (m == 1) m = n;
    while (order[last] != chunk) last++;
    struct number sum = {0};
    for (int h = 1; h <= n / m; h++) {
        struct number own =
            sum_around(order + (last / m + h) % (n / m) * m, m, last % m, index, &kind);
        sum = h == 1 ? own : oracle_combine(sum, own, kind.in, redop);
    }
    oracle_store(at, oracle_fit(oracle_finish(sum, dtype, redop, n), dtype), dtype);
}

static void reference(unsigned char *at, size_t index, int chunk, enum dtype dtype,
    enum redop redop, bool wide, int n)
{
    reference_in(0, at, index, chunk, dtype, redop, wide, n);
}

/* Which channel has element i of a chunk. */
static int channel_of(size_t i, size_t chunk_count)
{
    int channels = ring_comm_config(tested)->channels, channel = 0;
    while (ring_chunk_begin(chunk_count, channels, channel + 1) <= i) channel++;
    return channel;
}

#endif
