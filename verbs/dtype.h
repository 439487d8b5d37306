/* dtype: the element types that travel and compute, and the exact conversions between them.
 *
 * bfloat16 is the upper half of a float32. Rounding is to nearest, ties to even; a NaN stays a NaN.
 * No transport includes this header: on the ground floor only bytes travel.
 */
#ifndef VERBS_DTYPE_H
#define VERBS_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_INT32, DTYPE_COUNT };

/* Bytes of one element. */
static inline size_t dtype_bytes(enum dtype dtype) { return dtype == DTYPE_BFLOAT16 ? 2 : 4; }

/* "float32" (nccl-tests calls it "float"), "bfloat16", "int32". */
const char *dtype_name(enum dtype dtype);

/* 0 and *dtype, or -1 when the name is none of float32, float, fp32, bfloat16, bf16, int32, int. */
int dtype_from_name(enum dtype *dtype, const char *name);

/* The names that dtype_from_name takes, for messages. */
const char *dtype_names(void);

static inline float bfloat16_to_float32(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline uint16_t float32_to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

#ifdef __cplusplus
}
#endif
#endif
