/* reduce_host: reductions on the host: one plain loop per dtype and operation, vectorised by the compiler.
 *
 * A sum of two float32 is one IEEE addition; a bfloat16 sum is computed in float32 and rounded once. Nothing is contracted,
 * reassociated or approximated, so every clone of a loop gives the same bits (I2).
 */
#include "ring/reduce.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "verbs/clones.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* NaN wins wherever it stands: a comparison with NaN is false, so a must be asked about itself. */
static inline float larger(float a, float b) { return a > b || a != a ? a : b; }

/* One loop. Pointers may be aligned to their element only; dst may equal wire or own. */
#define DEFINE_COMBINE(name, type, expression)                                                                         \
    VECTOR_CLONES static void name(                                                                                    \
        void *dst_, const void *wire_, const void *own_, size_t count, float scale)                                    \
    {                                                                                                                  \
        type *dst = dst_;                                                                                              \
        const type *wire = wire_, *own = own_;                                                                         \
        (void)scale;                                                                                                   \
        for (size_t i = 0; i < count; i++) dst[i] = (type)(expression);                                                \
    }

#define WIRE bfloat16_to_float32(wire[i])
#define OWN  bfloat16_to_float32(own[i])

DEFINE_COMBINE(sum_float32, float, wire[i] + own[i])
DEFINE_COMBINE(max_float32, float, larger(wire[i], own[i]))
DEFINE_COMBINE(avg_float32, float, wire[i] + own[i] * scale)
DEFINE_COMBINE(sum_bfloat16, uint16_t, float32_to_bfloat16(WIRE + OWN))
DEFINE_COMBINE(max_bfloat16, uint16_t, float32_to_bfloat16(larger(WIRE, OWN)))
DEFINE_COMBINE(avg_bfloat16, uint16_t, float32_to_bfloat16(WIRE + OWN * scale))
DEFINE_COMBINE(sum_int32, int32_t, (uint32_t)wire[i] + (uint32_t)own[i]) /* wraps, as two's complement does */
DEFINE_COMBINE(max_int32, int32_t, wire[i] > own[i] ? wire[i] : own[i])

typedef void (*combine_function)(void *dst, const void *wire, const void *own, size_t count, float scale);

static const combine_function combine[DTYPE_COUNT][REDOP_COUNT] = {
    [DTYPE_FLOAT32] = {[REDOP_SUM] = sum_float32, [REDOP_MAX] = max_float32, [REDOP_AVG] = avg_float32},
    [DTYPE_BFLOAT16] = {[REDOP_SUM] = sum_bfloat16, [REDOP_MAX] = max_bfloat16, [REDOP_AVG] = avg_bfloat16},
    [DTYPE_INT32] = {[REDOP_SUM] = sum_int32, [REDOP_MAX] = max_int32, [REDOP_AVG] = sum_int32},
};

void reduce_combine(void *dst, const void *wire, const void *own, size_t count, const struct reduction *reduction)
{
    combine[reduction->dtype][reduction->redop](dst, wire, own, count, 1.0f / (float)reduction->nranks);
}

bool reduce_scales(const struct reduction *reduction)
{
    return reduction->redop == REDOP_AVG && reduction->dtype != DTYPE_INT32 && reduction->nranks > 1;
}

VECTOR_CLONES static void scale_float32(float *dst, const float *own, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++) dst[i] = own[i] * scale;
}

VECTOR_CLONES static void scale_bfloat16(uint16_t *dst, const uint16_t *own, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++) dst[i] = float32_to_bfloat16(OWN * scale);
}

void reduce_scale(void *dst, const void *own, size_t count, const struct reduction *reduction)
{
    assert(reduce_scales(reduction));
    float scale = 1.0f / (float)reduction->nranks;
    if (reduction->dtype == DTYPE_FLOAT32) scale_float32(dst, own, count, scale);
    else scale_bfloat16(dst, own, count, scale);
}

bool reduce_finishes(const struct reduction *reduction)
{
    return reduction->redop == REDOP_AVG && reduction->dtype == DTYPE_INT32 && reduction->nranks > 1;
}

void reduce_finish(void *dst, size_t count, const struct reduction *reduction)
{
    assert(reduce_finishes(reduction));
    int32_t *values = dst;
    for (size_t i = 0; i < count; i++) values[i] /= reduction->nranks;
}

void copy_plain(void *dst, const void *src, size_t bytes)
{
    if (bytes > 0) memcpy(dst, src, bytes);
}

void copy_streaming(void *dst, const void *src, size_t bytes)
{
#ifdef __SSE2__
    /* Streaming stores want 16-byte lines of dst; slots are aligned to 64, so only odd slices have a head or a tail. */
    unsigned char *to = dst;
    const unsigned char *from = src;
    size_t head = (size_t)(-(uintptr_t)to & 15);
    if (head > bytes) head = bytes;
    copy_plain(to, from, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(from + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(from + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + i + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + i + 48));
        _mm_stream_si128((__m128i *)(to + i), a);
        _mm_stream_si128((__m128i *)(to + i + 16), b);
        _mm_stream_si128((__m128i *)(to + i + 32), c);
        _mm_stream_si128((__m128i *)(to + i + 48), d);
    }
    copy_plain(to + i, from + i, bytes - i);
#else
    copy_plain(dst, src, bytes);
#endif
}

void streaming_fence(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}
