/* reduce_oracle: reductions of single elements as their definitions read, for tests. Integers are exact in 128 bits and
 * then cut; 16-bit floats are rounded by arithmetic, not by bits, so that this shares nothing with verbs/dtype.h.
 */
#ifndef TESTS_REDUCE_ORACLE_H
#define TESTS_REDUCE_ORACLE_H

#include <math.h>
#include <string.h>

#include "ring/ring.h"

/* An element of any dtype: real where the dtype is floating, else whole. */
struct number {
    double real;
    __int128 whole;
};

static inline bool oracle_is_signed(enum dtype dtype)
{
    return dtype == DTYPE_INT8 || dtype == DTYPE_INT32 || dtype == DTYPE_INT64;
}

/* x to the nearest float of so many bits of significand, whose smallest step and largest number are given. */
static inline double oracle_round(double x, int significand, double step, double largest)
{
    if (!isfinite(x) || x == 0) return x;
    double quantum = ldexp(1, ilogb(x) + 1 - significand);
    if (quantum < step) quantum = step;
    double rounded = copysign(nearbyint(x / quantum) * quantum, x); /* the division is exact: a power of two */
    return fabs(rounded) > largest ? copysign(INFINITY, x) : rounded;
}

/* What a result of arithmetic becomes in memory: rounded, or cut to the dtype's bits. */
static inline struct number oracle_fit(struct number x, enum dtype dtype)
{
    int bits = 8 * (int)dtype_bytes(dtype);
    unsigned __int128 kept = (unsigned __int128)x.whole & (((unsigned __int128)1 << bits) - 1);
    switch (dtype) {
    case DTYPE_FLOAT64: return x;
    case DTYPE_FLOAT32: return (struct number){.real = (float)x.real};
    case DTYPE_FLOAT16: return (struct number){.real = oracle_round((float)x.real, 11, 0x1p-24, 65504)};
    case DTYPE_BFLOAT16: return (struct number){.real = oracle_round((float)x.real, 8, 0x1p-133, 0x1.fep127)};
    default: break;
    }
    bool negative = oracle_is_signed(dtype) && (kept >> (bits - 1) & 1) != 0;
    return (struct number){.whole = (__int128)kept - (negative ? (__int128)1 << bits : 0)};
}

/* The bits of a 16-bit float with so many bits of fraction, whose smallest normal number is 2^least. */
static inline uint16_t oracle_bits(double x, int fraction, int least)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponents = 1 << (15 - fraction);
    if (isnan(x)) return (uint16_t)(sign | 0x7fff);
    if (isinf(x)) return (uint16_t)(sign | (exponents - 1) << fraction);
    int exponent = x == 0 ? least : ilogb(x) < least ? least : ilogb(x);
    /* In steps of this exponent a normal number has 2^fraction and more: those carry into the exponent's field. */
    int steps = (int)ldexp(fabs(x), fraction - exponent);
    return (uint16_t)(sign | ((exponent - least) * (1 << fraction) + steps));
}

static inline void oracle_store(void *at, struct number x, enum dtype dtype)
{
    float single = (float)x.real;
    uint16_t half = dtype == DTYPE_FLOAT16 ? oracle_bits(x.real, 10, -14) : oracle_bits(x.real, 7, -126);
    if (dtype == DTYPE_FLOAT64) memcpy(at, &x.real, 8);
    else if (dtype == DTYPE_FLOAT32) memcpy(at, &single, 4);
    else if (dtype_is_integer(dtype)) memcpy(at, &x.whole, dtype_bytes(dtype)); /* little-endian */
    else memcpy(at, &half, 2);
}

static inline double oracle_from_bits(uint16_t bits, int fraction, int least)
{
    int field = (bits & 0x7fff) >> fraction, last = (1 << (15 - fraction)) - 1, steps = bits & ((1 << fraction) - 1);
    double magnitude = field == last ? (steps != 0 ? NAN : INFINITY)
                       : field == 0  ? ldexp(steps, least - fraction)
                                     : ldexp(steps + (1 << fraction), least - fraction + field - 1);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static inline struct number oracle_load(const void *at, enum dtype dtype)
{
    float single;
    double real;
    uint16_t half;
    uint64_t whole = 0;
    switch (dtype) {
    case DTYPE_FLOAT64: return memcpy(&real, at, 8), (struct number){.real = real};
    case DTYPE_FLOAT32: return memcpy(&single, at, 4), (struct number){.real = single};
    case DTYPE_FLOAT16: return memcpy(&half, at, 2), (struct number){.real = oracle_from_bits(half, 10, -14)};
    case DTYPE_BFLOAT16: return memcpy(&half, at, 2), (struct number){.real = oracle_from_bits(half, 7, -126)};
    default: return memcpy(&whole, at, dtype_bytes(dtype)), oracle_fit((struct number){.whole = whole}, dtype);
    }
}

/* a · b and a + b in the type that the dtype is computed in, not yet rounded to the dtype. */
static inline struct number oracle_multiply(struct number a, struct number b, enum dtype dtype)
{
    double real = dtype == DTYPE_FLOAT64 ? a.real * b.real : (double)((float)a.real * (float)b.real);
    unsigned __int128 whole = (unsigned __int128)a.whole * (unsigned __int128)b.whole;
    return (struct number){real, (__int128)whole};
}

static inline struct number oracle_add(struct number a, struct number b, enum dtype dtype)
{
    double real = dtype == DTYPE_FLOAT64 ? a.real + b.real : (double)((float)a.real + (float)b.real);
    return (struct number){real, a.whole + b.whole};
}

/* An own element on its way into the ring, not yet rounded to the dtype: floating averages and premul_sum change it. */
static inline struct number oracle_scale(
    struct number own, enum dtype dtype, enum redop redop, int nranks, double premul)
{
    bool whole = dtype_is_integer(dtype);
    struct number factor = {premul, whole ? (__int128)premul : 0};
    if (redop == REDOP_AVG && !whole && nranks > 1)
        factor.real = dtype == DTYPE_FLOAT64 ? 1.0 / nranks : (double)(1.0f / (float)nranks);
    else if (redop != REDOP_PREMUL_SUM) return own;
    return oracle_multiply(own, factor, dtype);
}

/* wire ⊕ own, own scaled already. */
static inline struct number oracle_combine(struct number wire, struct number own, enum dtype dtype, enum redop redop)
{
    bool whole = dtype_is_integer(dtype), less = whole ? wire.whole < own.whole : wire.real < own.real;
    bool greater = whole ? wire.whole > own.whole : wire.real > own.real;
    switch (redop) {
    case REDOP_PROD: return oracle_fit(oracle_multiply(wire, own, dtype), dtype);
    case REDOP_MIN: return less || (!whole && isnan(wire.real)) ? wire : own;
    case REDOP_MAX: return greater || (!whole && isnan(wire.real)) ? wire : own;
    default: return oracle_fit(oracle_add(wire, own, dtype), dtype);
    }
}

/* The end of an average of integers. */
static inline struct number oracle_finish(struct number sum, enum dtype dtype, enum redop redop, int nranks)
{
    if (redop == REDOP_AVG && dtype_is_integer(dtype)) sum.whole /= nranks;
    return sum;
}

/* Whether two elements are the same bits, or both NaN. */
static inline bool oracle_equal(const void *a, const void *b, enum dtype dtype)
{
    if (memcmp(a, b, dtype_bytes(dtype)) == 0) return true;
    return !dtype_is_integer(dtype) && isnan(oracle_load(a, dtype).real) && isnan(oracle_load(b, dtype).real);
}

#endif
