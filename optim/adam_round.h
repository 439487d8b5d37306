/* adam_round: what the host and CUDA must compute alike: the bias corrections of a step, and
 * stochastic rounding.
 *
 *   float32    s eeeeeeee mmmmmmm rrrrrrrrrrrrrrrr     r as a number of 2⁻¹⁶ is the chance to round
 *   + random                      xxxxxxxxxxxxxxxx     away from zero: the carry of adding 16 bits
 *
 * The random bits are a hash of a key, which is a hash of (seed, t), and of the element's index: no
 * state, and the same numbers for the same step wherever ranges are cut and whoever computes them.
 * source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", section 5, for
 * the mixing.
 */
#ifndef OPTIM_ADAM_ROUND_H
#define OPTIM_ADAM_ROUND_H

#include <math.h>
#include <stdint.h>

#include "optim/adam.h"

#ifdef __CUDACC__
#define ADAM_FUNCTION static __host__ __device__ inline
#else
#define ADAM_FUNCTION static inline
#endif

ADAM_FUNCTION uint64_t adam_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t adam_key(uint64_t seed, uint64_t t)
{
    return adam_mix(adam_mix(seed) + t);
}

/* The bits of a bfloat16. bits: of a number; an infinity or a NaN is no matter of chance. */
ADAM_FUNCTION uint16_t adam_round_bits(uint32_t bits, uint64_t key, uint64_t index)
{
    uint32_t random = (uint32_t)(adam_mix(key + index * 0x9e3779b97f4a7c15u) >> 48);
    return (uint16_t)((bits + random) >> 16);
}

ADAM_FUNCTION bool adam_is_number(uint32_t bits)
{
    return (bits & 0x7f800000u) != 0x7f800000u;
}

/* Multiplied into a moment, 1/(1 − βᵗ). */
static inline float adam_correction(float beta, uint64_t t)
{
    return (float)(1.0 / (1.0 - pow((double)beta, (double)t)));
}

#endif
