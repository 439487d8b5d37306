/* reduce_inputs: operands that make reductions hard: limits, overflow, infinities, NaN, subnormals, in every pair.
 */
#ifndef TESTS_REDUCE_INPUTS_H
#define TESTS_REDUCE_INPUTS_H

#include <math.h>

#include "tests/reduce_oracle.h"

/* Element i: hard values first, every pair of them within HARD·HARD elements; then anything. */
static const double hard_reals[] = {0.0, -0.0, 1, -1, 3, -7.5, 0x1p-24, -0x1p-24, 0x1.8p-25, 0x1p-14, 0x1p-126,
    0x1p-133, 0x1p-149, 65504, -65504, 65519, 65520, 257, 2049, 0.1, 3.3e38, -3.3e38, 1e300, INFINITY, -INFINITY, NAN};
#define HARD (sizeof hard_reals / sizeof *hard_reals)
static const int64_t hard_wholes[HARD] = {0, 1, -1, 2, 3, -7, 100, 127, -128, 128, 255, 256, INT32_MAX, INT32_MIN,
    UINT32_MAX, (int64_t)UINT32_MAX + 1, INT64_MAX, INT64_MIN, INT64_MIN + 1,
    0x5555555555555555, 85, -86, 63, 64, -64, 46341};

static inline uint64_t reduce_input_mixed(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static inline struct number element_at(size_t i, bool second, enum dtype dtype)
{
    size_t hard = second ? i / HARD : i % HARD;
    uint64_t random = reduce_input_mixed(2 * i + second + 1);
    bool is_hard = i < HARD * HARD;
    struct number x = {is_hard ? hard_reals[hard] : ((double)random / 0x1p63 - 1) * 300,
        is_hard ? hard_wholes[hard] : (__int128)(int64_t)random};
    if (dtype_is_integer(dtype)) x.real = 0;
    else x.whole = 0;
    return oracle_fit(x, dtype);
}

#endif
