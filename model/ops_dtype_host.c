/* ops_dtype_host: parameters of 16 bits to float32 and back.
 *
 * Invariant I2: the conversions of dtype.h, which every machine rounds alike, element by element:
 * no bit depends on where a range begins or ends.
 */
#include "model/ops_host.h"

#include <assert.h>
#include <string.h>

#include "verbs/clones.h"

VECTOR_CLONES static void widen_bfloat16(
    float *restrict out, const uint16_t *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = bfloat16_to_float32(in[i]);
}

VECTOR_CLONES static void widen_float16(
    float *restrict out, const uint16_t *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = float16_to_float32(in[i]);
}

void widen(float *out, const void *in, enum dtype dtype, size_t count)
{
    switch (dtype) {
    case DTYPE_FLOAT32: memcpy(out, in, count * sizeof *out); return;
    case DTYPE_BFLOAT16: widen_bfloat16(out, in, count); return;
    case DTYPE_FLOAT16: widen_float16(out, in, count); return;
    default: assert(!"parameters are float32, bfloat16 or float16");
    }
}

VECTOR_CLONES static void add_float32(float *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) sum[i] += x[i];
}

VECTOR_CLONES static void add_bfloat16(
    uint16_t *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = float32_to_bfloat16(bfloat16_to_float32(sum[i]) + x[i]);
}

VECTOR_CLONES static void add_float16(uint16_t *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = float32_to_float16(float16_to_float32(sum[i]) + x[i]);
}

void narrow_add(void *sum, const float *x, enum dtype dtype, size_t count)
{
    switch (dtype) {
    case DTYPE_FLOAT32: add_float32(sum, x, count); return;
    case DTYPE_BFLOAT16: add_bfloat16(sum, x, count); return;
    case DTYPE_FLOAT16: add_float16(sum, x, count); return;
    default: assert(!"gradients are float32, bfloat16 or float16");
    }
}
