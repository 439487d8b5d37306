/* vector_math: the few functions that inner loops need and that compilers do not vectorise by
 * themselves: exp, and sums and maxima in a fixed order.
 *
 * libm's expf() is a call, so a loop around it stays scalar; a sum of floats stays scalar because
 * its order is part of its value. Here exp is plain arithmetic, and a sum runs in 16 lanes (element
 * i goes to lane i mod 16, the lanes are folded in halves), so any vector width up to 16 gives the
 * same bits.
 *
 *   x = n·ln2 + r, |r| ≤ ln2/2        exp(x) = 2ⁿ · (1 + r + r²/2! + … + r⁷/7!)
 *
 * Invariant I2: every clone of a function rounds alike (no contraction, no reassociation).
 */
#ifndef MODEL_VECTOR_MATH_H
#define MODEL_VECTOR_MATH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "verbs/clones.h"

#define VECTOR_INLINE static inline __attribute__((always_inline))

#define VECTOR_LANES 16

/* exp(x) within 1.1 ulp. Results below the smallest normal float are 0, above the largest inf; a
 * NaN stays a NaN. */
VECTOR_INLINE float vector_exp(float x)
{
    const float shift =
        12582912.0f; /* 1.5·2²³: adding it leaves the nearest integer in the low bits */
    float clamped = x > 89.0f ? 89.0f : x;
    clamped = clamped < -88.0f ? -88.0f : clamped;
    float shifted = clamped * 1.44269504f + shift;
    float n = shifted - shift;
    float r = (clamped - n * 0.693359375f) +
              n * 2.12194440e-4f; /* ln2 in two parts: the first product is exact */
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * r) * r + r;
    p = p + 1.0f;
    /* 2ⁿ in two factors, since 2¹²⁸ is not a float. */
    int32_t bits, half;
    memcpy(&bits, &shifted, sizeof bits);
    bits -= 0x4b400000; /* the bits of `shift`: what remains is n */
    half = bits >> 1;
    uint32_t low_bits = (uint32_t)(half + 127) << 23, high_bits = (uint32_t)(bits - half + 127)
                                                                  << 23;
    float low, high;
    memcpy(&low, &low_bits, sizeof low);
    memcpy(&high, &high_bits, sizeof high);
    float result = p * low * high;
    return x < -87.33654f ? 0.0f : result;
}

/* All lanes at once. The compiler cuts it into registers of the width that there is. */
typedef float vector_lanes __attribute__((vector_size(VECTOR_LANES * sizeof(float))));
typedef int32_t vector_mask __attribute__((vector_size(VECTOR_LANES * sizeof(int32_t))));

/* Half and a quarter of the lanes, so that folding stays in registers. */
typedef float vector_half __attribute__((vector_size(VECTOR_LANES / 2 * sizeof(float))));
typedef float vector_quarter __attribute__((vector_size(VECTOR_LANES / 4 * sizeof(float))));
typedef int32_t vector_half_mask __attribute__((vector_size(VECTOR_LANES / 2 * sizeof(int32_t))));

/* Adds the `rest` < VECTOR_LANES numbers at x to the first lanes, and folds: 8 + 8, 4 + 4, 2 + 2,
 * 1 + 1. */
VECTOR_INLINE float vector_finish(const vector_lanes *lanes, const float *x, size_t rest)
{
    vector_lanes all = *lanes;
    if (rest > 0) {
        float lane[VECTOR_LANES];
        memcpy(lane, lanes, sizeof lane);
        for (size_t l = 0; l < rest; l++) lane[l] += x[l];
        memcpy(&all, lane, sizeof all);
    }
    vector_half half[2];
    memcpy(half, &all, sizeof half);
    half[0] += half[1];
    vector_quarter quarter[2];
    memcpy(quarter, half, sizeof quarter);
    quarter[0] += quarter[1];
    return (quarter[0][0] + quarter[0][2]) + (quarter[0][1] + quarter[0][3]);
}

/* Σ x. */
VECTOR_INLINE float vector_sum(const float *x, size_t count)
{
    vector_lanes sum = {0}, part;
    size_t i = 0;
    for (; i + VECTOR_LANES <= count; i += VECTOR_LANES) {
        memcpy(&part, x + i, sizeof part);
        sum += part;
    }
    return vector_finish(&sum, x + i, count - i);
}

/* Σ x·y. */
VECTOR_INLINE float vector_dot(const float *x, const float *y, size_t count)
{
    vector_lanes sum = {0}, a, b;
    size_t i = 0;
    for (; i + VECTOR_LANES <= count; i += VECTOR_LANES) {
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, y + i, sizeof b);
        sum += a * b;
    }
    float rest[VECTOR_LANES];
    for (size_t l = 0; i + l < count; l++) rest[l] = x[i + l] * y[i + l];
    return vector_finish(&sum, rest, count - i);
}

/* The largest of x; count > 0. NaNs are passed over where another number is there. */
VECTOR_INLINE float vector_max(const float *x, size_t count)
{
    vector_lanes max = {0}, part;
    max -= __builtin_inff();
    size_t i = 0;
    for (; i + VECTOR_LANES <= count; i += VECTOR_LANES) {
        memcpy(&part, x + i, sizeof part);
        vector_mask larger = part > max;
        max = (vector_lanes)(((vector_mask)part & larger) | ((vector_mask)max & ~larger));
    }
    vector_half half[2];
    memcpy(half, &max, sizeof half);
    vector_half_mask first = half[0] > half[1];
    half[0] =
        (vector_half)(((vector_half_mask)half[0] & first) | ((vector_half_mask)half[1] & ~first));
    float largest = half[0][0];
    for (int l = 1; l < VECTOR_LANES / 2; l++)
        largest = half[0][l] > largest ? half[0][l] : largest;
    for (; i < count; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* x = exp(x − shift) in place; returns the sum of the results. */
VECTOR_INLINE float vector_exp_sum(float *x, size_t count, float shift)
{
    for (size_t i = 0; i < count; i++) x[i] = vector_exp(x[i] - shift);
    return vector_sum(x, count);
}

#endif
