/* numbers: see numbers.h. Invariant I2: the conversions of dtype.h, element by element: the same bits on
 * every machine, and wherever a range begins.
 */
#include "optim/numbers.h"

#include <assert.h>
#include <string.h>

#include "verbs/clones.h"
#include "verbs/streaming.h"

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

VECTOR_CLONES static void add_float32(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] += from[i];
}

VECTOR_CLONES static void add_bfloat16(
    uint16_t *restrict to, const uint16_t *restrict from, size_t count)
{
    size_t i = 0;
    for (; i + STREAMING_PIECE <= count; i += STREAMING_PIECE) {
        streaming_ask(to + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *to);
        streaming_ask(from + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *from);
        for (size_t j = i; j < i + STREAMING_PIECE; j++)
            to[j] = float32_to_bfloat16(bfloat16_to_float32(to[j]) + bfloat16_to_float32(from[j]));
    }
    for (; i < count; i++)
        to[i] = float32_to_bfloat16(bfloat16_to_float32(to[i]) + bfloat16_to_float32(from[i]));
}

VECTOR_CLONES static void add_float16(
    uint16_t *restrict to, const uint16_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = float32_to_float16(float16_to_float32(to[i]) + float16_to_float32(from[i]));
}

static bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_FLOAT32 || dtype == DTYPE_BFLOAT16 || dtype == DTYPE_FLOAT16;
}

void numbers_widen(float *to, const void *from, enum dtype dtype, size_t count)
{
    assert(is_float(dtype));
    if (dtype == DTYPE_FLOAT32) memcpy(to, from, count * sizeof *to);
    else if (dtype == DTYPE_BFLOAT16) widen_bfloat16(to, from, count);
    else widen_float16(to, from, count);
}

void numbers_narrow(void *to, const float *from, enum dtype dtype, size_t count)
{
    assert(is_float(dtype));
    if (dtype == DTYPE_FLOAT32) memcpy(to, from, count * sizeof *from);
    else if (dtype == DTYPE_BFLOAT16) narrow_bfloat16(to, from, count);
    else narrow_float16(to, from, count);
}

void numbers_add(void *to, const void *from, enum dtype dtype, size_t count)
{
    assert(is_float(dtype));
    if (dtype == DTYPE_FLOAT32) add_float32(to, from, count);
    else if (dtype == DTYPE_BFLOAT16) add_bfloat16(to, from, count);
    else add_float16(to, from, count);
}
