/* narrow: 16-bit weights and gradients beside their float32 copies. Rounding is to nearest, ties to even
 * (dtype.h): the same bits on every machine.
 */
#include <assert.h>

#include "shard/stage.h"
#include "verbs/clones.h"

VECTOR_CLONES static void widen_bfloat16(
    float *restrict to, const uint16_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = bfloat16_to_float32(from[i]);
}

VECTOR_CLONES static void widen_float16(
    float *restrict to, const uint16_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = float16_to_float32(from[i]);
}

VECTOR_CLONES static void narrow_bfloat16(
    uint16_t *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = float32_to_bfloat16(from[i]);
}

VECTOR_CLONES static void narrow_float16(
    uint16_t *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = float32_to_float16(from[i]);
}

void stage_widen(float *to, const uint16_t *from, enum dtype dtype, size_t count)
{
    assert(dtype == DTYPE_BFLOAT16 || dtype == DTYPE_FLOAT16);
    if (dtype == DTYPE_BFLOAT16) widen_bfloat16(to, from, count);
    else widen_float16(to, from, count);
}

void stage_narrow(uint16_t *to, const float *from, enum dtype dtype, size_t count)
{
    assert(dtype == DTYPE_BFLOAT16 || dtype == DTYPE_FLOAT16);
    if (dtype == DTYPE_BFLOAT16) narrow_bfloat16(to, from, count);
    else narrow_float16(to, from, count);
}
