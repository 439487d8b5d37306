/* ops_dtype_host: parameters of 16 bits to float32 and back.
 *
 * Invariant I2: the conversions of dtype.h, which every machine rounds alike, element by element:
 * no bit depends on where a range begins or ends.
 */
#include "model/ops_host.h"

#include <assert.h>
#include <string.h>

#include "verbs/clones.h"
#include "verbs/streaming.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* The piece at in + i, and the one at out + i that it overwrites. */
static inline void ask_both(const float *out, const uint16_t *in, size_t i)
{
    streaming_ask(in + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *in);
    streaming_ask(out + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *out);
}

VECTOR_CLONES static void widen_bfloat16(
    float *restrict out, const uint16_t *restrict in, size_t count)
{
    size_t i = 0;
    for (; i + STREAMING_PIECE <= count; i += STREAMING_PIECE) {
        ask_both(out, in, i);
        for (size_t j = i; j < i + STREAMING_PIECE; j++) out[j] = bfloat16_to_float32(in[j]);
    }
    for (; i < count; i++) out[i] = bfloat16_to_float32(in[i]);
}

VECTOR_CLONES static void widen_float16(
    float *restrict out, const uint16_t *restrict in, size_t count)
{
    size_t i = 0;
    for (; i + STREAMING_PIECE <= count; i += STREAMING_PIECE) {
        ask_both(out, in, i);
        for (size_t j = i; j < i + STREAMING_PIECE; j++) out[j] = float16_to_float32(in[j]);
    }
    for (; i < count; i++) out[i] = float16_to_float32(in[i]);
}

#ifdef __SSE2__
/* Of so many weights no cache has what was there before: they are written past them, since a plain
 * store first fetches the line that it overwrites. Fewer stay near for the product. */
#define STREAMED_BYTES ((size_t)16 << 20)

/* The same bits: a bfloat16 is the upper half of its float32. Returns how many were widened. */
static size_t stream_bfloat16(float *restrict out, const uint16_t *restrict in, size_t count)
{
    const __m128i zeros = _mm_setzero_si128();
    size_t whole = count / 8 * 8;
    if (count * sizeof *out < STREAMED_BYTES || (uintptr_t)out % sizeof zeros != 0) return 0;
    for (size_t i = 0; i < whole; i += 8) {
        if (i % STREAMING_PIECE == 0)
            streaming_ask(in + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *in);
        __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(in + i));
        __m128i *to = (__m128i *)(void *)(out + i);
        _mm_stream_si128(to, _mm_unpacklo_epi16(zeros, eight));
        _mm_stream_si128(to + 1, _mm_unpackhi_epi16(zeros, eight));
    }
    _mm_sfence(); /* another thread of the product may read it */
    return whole;
}
#else
static size_t stream_bfloat16(float *restrict out, const uint16_t *restrict in, size_t count)
{
    (void)out, (void)in, (void)count;
    return 0;
}
#endif

void widen(float *out, const void *in, enum dtype dtype, size_t count)
{
    const uint16_t *halves = in;
    switch (dtype) {
    case DTYPE_FLOAT32: memcpy(out, in, count * sizeof *out); return;
    case DTYPE_BFLOAT16: {
        size_t done = stream_bfloat16(out, halves, count);
        widen_bfloat16(out + done, halves + done, count - done);
        return;
    }
    case DTYPE_FLOAT16: widen_float16(out, halves, count); return;
    default: assert(!"parameters are float32, bfloat16 or float16");
    }
}

VECTOR_CLONES static void narrow_bfloat16(
    uint16_t *restrict out, const float *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = float32_to_bfloat16(in[i]);
}

VECTOR_CLONES static void narrow_float16(
    uint16_t *restrict out, const float *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = float32_to_float16(in[i]);
}

void narrow(void *out, const float *in, enum dtype dtype, size_t count)
{
    switch (dtype) {
    case DTYPE_FLOAT32: memcpy(out, in, count * sizeof *in); return;
    case DTYPE_BFLOAT16: narrow_bfloat16(out, in, count); return;
    case DTYPE_FLOAT16: narrow_float16(out, in, count); return;
    default: assert(!"parameters are float32, bfloat16 or float16");
    }
}

VECTOR_CLONES static void add_float32(float *restrict sum, float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] += x[i];
        x[i] = 0.0f;
    }
}

VECTOR_CLONES static void add_bfloat16(uint16_t *restrict sum, float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = float32_to_bfloat16(bfloat16_to_float32(sum[i]) + x[i]);
        x[i] = 0.0f;
    }
}

VECTOR_CLONES static void add_float16(uint16_t *restrict sum, float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = float32_to_float16(float16_to_float32(sum[i]) + x[i]);
        x[i] = 0.0f;
    }
}

void narrow_add(void *sum, float *x, enum dtype dtype, size_t count)
{
    switch (dtype) {
    case DTYPE_FLOAT32: add_float32(sum, x, count); return;
    case DTYPE_BFLOAT16: add_bfloat16(sum, x, count); return;
    case DTYPE_FLOAT16: add_float16(sum, x, count); return;
    default: assert(!"gradients are float32, bfloat16 or float16");
    }
}

/* 0 + x, as where zeros are read: of −0 that is +0. */
VECTOR_CLONES static void first_float32(float *restrict sum, float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = 0.0f + x[i];
        x[i] = 0.0f;
    }
}

VECTOR_CLONES static void first_bfloat16(uint16_t *restrict sum, float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = float32_to_bfloat16(0.0f + x[i]);
        x[i] = 0.0f;
    }
}

VECTOR_CLONES static void first_float16(uint16_t *restrict sum, float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = float32_to_float16(0.0f + x[i]);
        x[i] = 0.0f;
    }
}

/* Returns how many: whole pieces. */
VECTOR_CLONES static size_t stream_first_bfloat16(
    uint16_t *restrict sum, float *restrict x, size_t count)
{
    STREAMING_ALIGN uint16_t piece[STREAMING_PIECE];
    size_t whole = count / STREAMING_PIECE * STREAMING_PIECE;
    for (size_t i = 0; i < whole; i += STREAMING_PIECE) {
        streaming_ask_second(x + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *x);
        for (size_t j = 0; j < STREAMING_PIECE; j++) {
            piece[j] = float32_to_bfloat16(0.0f + x[i + j]);
            x[i + j] = 0.0f;
        }
        streaming_store(sum + i, piece);
    }
    streaming_end();
    return whole;
}

VECTOR_CLONES static size_t stream_first_float16(
    uint16_t *restrict sum, float *restrict x, size_t count)
{
    STREAMING_ALIGN uint16_t piece[STREAMING_PIECE];
    size_t whole = count / STREAMING_PIECE * STREAMING_PIECE;
    for (size_t i = 0; i < whole; i += STREAMING_PIECE) {
        streaming_ask_second(x + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *x);
        for (size_t j = 0; j < STREAMING_PIECE; j++) {
            piece[j] = float32_to_float16(0.0f + x[i + j]);
            x[i + j] = 0.0f;
        }
        streaming_store(sum + i, piece);
    }
    streaming_end();
    return whole;
}

/* A unit's sums are not read before all units have theirs. */
static void first_halves(uint16_t *sum, float *x, enum dtype dtype, size_t count)
{
    bool upper = dtype == DTYPE_BFLOAT16;
    void (*first)(uint16_t *, float *, size_t) = upper ? first_bfloat16 : first_float16;
    size_t (*stream)(uint16_t *, float *, size_t) =
        upper ? stream_first_bfloat16 : stream_first_float16;
    size_t done = streaming_head(sum, count);
    first(sum, x, done);
    done += stream(sum + done, x + done, count - done);
    first(sum + done, x + done, count - done);
}

void narrow_first(void *sum, float *x, enum dtype dtype, size_t count)
{
    switch (dtype) {
    case DTYPE_FLOAT32: first_float32(sum, x, count); return;
    case DTYPE_BFLOAT16:
    case DTYPE_FLOAT16: first_halves(sum, x, dtype, count); return;
    default: assert(!"gradients are float32, bfloat16 or float16");
    }
}
