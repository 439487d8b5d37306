/* dtype: the element types that travel and compute, and the exact conversions between them.
 *
 *     float16     s eeeee mmmmmmmmmm      1 + 5 + 10 bits, bias 15: 65504 the largest, 2^-24 the smallest
 *     bfloat16    s eeeeeeee mmmmmmm      1 + 8 + 7 bits: the upper half of a float32
 *
 * Rounding is to nearest, ties to even; a NaN stays a NaN of the same sign, and quiet where it was rounded. The
 * conversions have no branch: a compiler makes vectors of them, and every machine gives the same bits (I2).
 * No transport includes this header: on the ground floor only bytes travel.
 */
#ifndef VERBS_DTYPE_H
#define VERBS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype {
    DTYPE_INT8,
    DTYPE_UINT8,
    DTYPE_INT32,
    DTYPE_UINT32,
    DTYPE_INT64,
    DTYPE_UINT64,
    DTYPE_FLOAT16,
    DTYPE_BFLOAT16,
    DTYPE_FLOAT32,
    DTYPE_FLOAT64,
    DTYPE_COUNT
};

/* Bytes of one element. */
static inline size_t dtype_bytes(enum dtype dtype)
{
    static const unsigned char bytes[DTYPE_COUNT] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};
    return bytes[dtype];
}

static inline bool dtype_is_integer(enum dtype dtype) { return dtype <= DTYPE_UINT64; }

/* "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64". */
const char *dtype_name(enum dtype dtype);

/* 0 and *dtype, or -1 when the name is none of dtype_names(): these, nccl-tests' and the usual short ones. */
int dtype_from_name(enum dtype *dtype, const char *name);

/* The names that dtype_from_name takes, for messages. */
const char *dtype_names(void);

/* ---- the same bits as another type ---- */

static inline float float32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float32_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- conversions ---- */

/* a where the condition holds, else b, by masks: a ?: may become a branch, and a loop with a branch no vectors. */
static inline uint32_t bits_select_(bool condition, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
}

static inline float bfloat16_to_float32(uint16_t value) { return float32_from_bits((uint32_t)value << 16); }

static inline uint16_t float32_to_bfloat16(float value)
{
    uint32_t bits = float32_to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

static inline float float16_to_float32(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    int32_t magnitude = value & 0x7fff;
    uint32_t shifted = (uint32_t)magnitude << 13;
    uint32_t normal = shifted + (112u << 23);  /* the bias grows from 15 to 127 */
    uint32_t special = shifted + (224u << 23); /* infinity and NaN: exponent 31 becomes 255 */
    uint32_t small = float32_to_bits((float)magnitude * 0x1p-24f); /* zero and subnormal: a whole number of 2^-24 */
    uint32_t bits = bits_select_(magnitude < 0x0400, small, bits_select_(magnitude < 0x7c00, normal, special));
    return float32_from_bits(sign | bits);
}

static inline uint16_t float32_to_float16(float value)
{
    uint32_t bits = float32_to_bits(value), sign = (bits >> 16) & 0x8000u;
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu); /* ordered as the numbers are, NaN last */
    int32_t capped = magnitude < 0x47800000 ? magnitude : 0x47800000; /* 65536: above 65520 all round to infinity */
    uint32_t odd = ((uint32_t)capped >> 13) & 1u;
    uint32_t normal = ((uint32_t)capped - (112u << 23) + 0xfffu + odd) >> 13;
    /* Below 2^-14 results are whole numbers of 2^-24, which is what the last bit of 0.5 counts: the addition rounds. */
    uint32_t small = float32_to_bits(float32_from_bits((uint32_t)capped) + 0.5f) - 0x3f000000u;
    uint32_t quiet_nan = 0x7e00u | (((uint32_t)magnitude >> 13) & 0x3ffu);
    uint32_t number = bits_select_(capped < (113 << 23), small, normal);
    return (uint16_t)(sign | bits_select_(magnitude > 0x7f800000, quiet_nan, number));
}

#ifdef __cplusplus
}
#endif
#endif
