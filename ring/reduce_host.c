/* reduce_host: reductions on the host: one plain loop per dtype and operation, vectorised by the compiler.
 *
 * Every loop is made from a line of one of the two tables below:
 *
 *     dtype        in memory     computed in      one rounding per hop
 *     int*, uint*  itself        unsigned, same   none: sums and products wrap, as two's complement does
 *     float16      uint16_t      float32          to float16
 *     bfloat16     uint16_t      float32          to bfloat16
 *     float32/64   itself        itself           of each IEEE operation
 *
 * Wide sums (16-bit floats that accumulate in float32) have loops of their own: memory and wire differ in width.
 *
 * Nothing is contracted, reassociated or approximated, so every clone of a loop gives the same bits (I2).
 */
#include "ring/reduce.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "verbs/clones.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* X(NAME, name, type in memory, type of sums and products) */
#define EACH_INTEGER(X)                                                                                                \
    X(INT8, int8, int8_t, uint8_t)                                                                                     \
    X(UINT8, uint8, uint8_t, uint8_t)                                                                                  \
    X(INT32, int32, int32_t, uint32_t)                                                                                 \
    X(UINT32, uint32, uint32_t, uint32_t)                                                                              \
    X(INT64, int64, int64_t, uint64_t)                                                                                 \
    X(UINT64, uint64, uint64_t, uint64_t)

/* X(NAME, name, type in memory, type of the arithmetic, from memory, to memory) */
#define EACH_FLOAT(X)                                                                                                  \
    X(FLOAT16, float16, uint16_t, float, float16_to_float32, float32_to_float16)                                       \
    X(BFLOAT16, bfloat16, uint16_t, float, bfloat16_to_float32, float32_to_bfloat16)                                   \
    X(FLOAT32, float32, float, float, , )                                                                              \
    X(FLOAT64, float64, double, double, , )

/* ---- the loops ---- */

/* Pointers may be aligned to their element only; dst may equal wire or own. `prepare` declares what is the same for all
 * elements: the factor of the expressions that scale. */
#define COMBINE_LOOP(name, type, prepare, expression)                                                                  \
    VECTOR_CLONES static void name(                                                                                    \
        void *dst_, const void *wire_, const void *own_, size_t count, const struct reduction *reduction)              \
    {                                                                                                                  \
        type *dst = dst_;                                                                                              \
        const type *wire = wire_, *own = own_;                                                                         \
        (void)reduction, (void)wire;                                                                                   \
        prepare;                                                                                                       \
        for (size_t i = 0; i < count; i++) dst[i] = (type)(expression);                                                \
    }

/* Integers. Nothing signed can overflow: unsigned arithmetic wraps, and comes back by a cast that keeps the bits. */
#define INTEGER_LOOPS(NAME, name, type, wrapping)                                                                      \
    COMBINE_LOOP(sum_##name, type, , (wrapping)wire[i] + (wrapping)own[i])                                             \
    COMBINE_LOOP(prod_##name, type, , (wrapping)wire[i] * (wrapping)own[i])                                            \
    COMBINE_LOOP(min_##name, type, , wire[i] < own[i] ? wire[i] : own[i])                                              \
    COMBINE_LOOP(max_##name, type, , wire[i] > own[i] ? wire[i] : own[i])                                              \
    COMBINE_LOOP(premul_##name, type, wrapping factor = (wrapping)reduce_whole_factor(reduction),                          \
        (wrapping)wire[i] + (wrapping)own[i] * factor)                                                                 \
    COMBINE_LOOP(scale_##name, type, wrapping factor = (wrapping)reduce_whole_factor(reduction),                           \
        (wrapping)own[i] * factor)                                                                                     \
    static void divide_##name(void *dst_, const void *sum_, size_t count, const struct reduction *reduction)           \
    {                                                                                                                  \
        type *dst = dst_;                                                                                              \
        const type *sum = sum_;                                                                                        \
        for (size_t i = 0; i < count; i++) dst[i] = (type)(sum[i] / reduction->nranks);                                \
    }

/* Floats. A NaN wins wherever it stands: a comparison with NaN is false, so own comes through by itself, and wire
 * must be asked (with |, since || is a branch). Of equal values, so of -0 and +0, own stays. */
#define FLOAT_LOOPS(NAME, name, type, number, load, store)                                                             \
    static inline bool wins_min_##name(number wire, number own) { return (wire < own) | (wire != wire); }              \
    static inline bool wins_max_##name(number wire, number own) { return (wire > own) | (wire != wire); }              \
    COMBINE_LOOP(sum_##name, type, , store(load(wire[i]) + load(own[i])))                                              \
    COMBINE_LOOP(prod_##name, type, , store(load(wire[i]) * load(own[i])))                                             \
    COMBINE_LOOP(min_##name, type, , wins_min_##name(load(wire[i]), load(own[i])) ? wire[i] : own[i])                  \
    COMBINE_LOOP(max_##name, type, , wins_max_##name(load(wire[i]), load(own[i])) ? wire[i] : own[i])                  \
    COMBINE_LOOP(premul_##name, type, number factor = (number)reduce_factor(reduction),                                    \
        store(load(wire[i]) + load(own[i]) * factor))                                                                  \
    COMBINE_LOOP(scale_##name, type, number factor = (number)reduce_factor(reduction), store(load(own[i]) * factor))

EACH_INTEGER(INTEGER_LOOPS)
EACH_FLOAT(FLOAT_LOOPS)

/* ---- one sum of many ---- */

#define BLOCK_BYTES 64 /* whose sums are in registers until all parts are in them */

/* A vector, since of an array's elements the compiler makes as many scalars. */
#define SUM_MANY_LOOP(name, number)                                                                \
    VECTOR_CLONES static void sum_many_##name(                                                     \
        void *dst_, const void *const *parts, int part_count, size_t count)                        \
    {                                                                                              \
        typedef number block __attribute__((vector_size(BLOCK_BYTES)));                            \
        number *dst = dst_;                                                                        \
        size_t i = 0, in_block = sizeof(block) / sizeof(number);                                   \
        for (; i + in_block <= count; i += in_block) {                                             \
            block sum, part;                                                                       \
            memcpy(&sum, (const number *)parts[0] + i, sizeof sum);                                \
            for (int p = 1; p < part_count; p++) {                                                 \
                memcpy(&part, (const number *)parts[p] + i, sizeof part);                          \
                sum += part;                                                                       \
            }                                                                                      \
            memcpy(dst + i, &sum, sizeof sum);                                                     \
        }                                                                                          \
        for (; i < count; i++) {                                                                   \
            number sum = ((const number *)parts[0])[i];                                            \
            for (int p = 1; p < part_count; p++)                                                   \
                sum = (number)(sum + ((const number *)parts[p])[i]);                               \
            dst[i] = sum;                                                                          \
        }                                                                                          \
    }
#define INTEGER_SUM_MANY(NAME, name, type, wrapping) SUM_MANY_LOOP(name, wrapping)

EACH_INTEGER(INTEGER_SUM_MANY)
SUM_MANY_LOOP(float32, float)
SUM_MANY_LOOP(float64, double)

/* ---- wide sums ---- */

/* Exact where the factor is 1, so sums need no loop without one. */
static float wide_factor_of(const struct reduction *reduction)
{
    bool scales = reduction->redop == REDOP_AVG || reduction->redop == REDOP_PREMUL_SUM;
    return scales ? (float)reduce_factor(reduction) : 1.0f;
}

#define WIDE_LOOP(name, expression)                                                                                    \
    VECTOR_CLONES static void name(                                                                                    \
        void *dst_, const void *wire_, const void *own_, size_t count, const struct reduction *reduction)              \
    {                                                                                                                  \
        float *dst = dst_, factor = wide_factor_of(reduction);                                                         \
        const float *wire = wire_;                                                                                     \
        const uint16_t *own = own_;                                                                                    \
        (void)factor, (void)wire;                                                                                      \
        for (size_t i = 0; i < count; i++) dst[i] = expression;                                                        \
    }
#define WIDE_LOOPS(name, load, store)                                                                                  \
    WIDE_LOOP(wide_sum_##name, wire[i] + load(own[i]) * factor)                                                        \
    WIDE_LOOP(wide_prod_##name, wire[i] * load(own[i]))                                                                \
    WIDE_LOOP(wide_scale_##name, load(own[i]) * factor)                                                                \
    VECTOR_CLONES static void wide_round_##name(void *dst_, const void *sum_, size_t count)                            \
    {                                                                                                                  \
        uint16_t *dst = dst_;                                                                                          \
        const float *sum = sum_;                                                                                       \
        for (size_t i = 0; i < count; i++) dst[i] = store(sum[i]);                                                     \
    }
WIDE_LOOPS(float16, float16_to_float32, float32_to_float16)
WIDE_LOOPS(bfloat16, bfloat16_to_float32, float32_to_bfloat16)

static void wide_combine(void *dst, const void *wire, const void *own, size_t count, const struct reduction *reduction)
{
    bool half = reduction->dtype == DTYPE_FLOAT16, product = reduction->redop == REDOP_PROD;
    if (product) (half ? wide_prod_float16 : wide_prod_bfloat16)(dst, wire, own, count, reduction);
    else (half ? wide_sum_float16 : wide_sum_bfloat16)(dst, wire, own, count, reduction);
}

/* ---- which loop ---- */

typedef void (*combine_function)(
    void *dst, const void *wire, const void *own, size_t count, const struct reduction *reduction);
typedef void (*sum_many_function)(void *dst, const void *const *parts, int part_count, size_t count);
typedef void (*divide_function)(void *dst, const void *sum, size_t count, const struct reduction *reduction);

/* An integer average is a sum until it is complete; a floating-point one scales as premul_sum does. */
#define ROW(NAME, name, average)                                                                                       \
    [DTYPE_##NAME] = {[REDOP_SUM] = sum_##name, [REDOP_PROD] = prod_##name, [REDOP_MIN] = min_##name,                  \
        [REDOP_MAX] = max_##name, [REDOP_AVG] = average##_##name, [REDOP_PREMUL_SUM] = premul_##name},
#define INTEGER_ROW(NAME, name, ...) ROW(NAME, name, sum)
#define FLOAT_ROW(NAME, name, ...)   ROW(NAME, name, premul)
#define SCALE(NAME, name, ...)       [DTYPE_##NAME] = scale_##name,
#define SUM_MANY(NAME, name, ...)    [DTYPE_##NAME] = sum_many_##name,
#define DIVIDE(NAME, name, ...)      [DTYPE_##NAME] = divide_##name,

static const combine_function combine[DTYPE_COUNT][REDOP_COUNT] = {EACH_INTEGER(INTEGER_ROW) EACH_FLOAT(FLOAT_ROW)};
static const combine_function scale[DTYPE_COUNT] = {EACH_INTEGER(SCALE) EACH_FLOAT(SCALE)};
static const divide_function divide[DTYPE_COUNT] = {EACH_INTEGER(DIVIDE)};
static const sum_many_function sum_many[DTYPE_COUNT] = {EACH_INTEGER(SUM_MANY) SUM_MANY(FLOAT32, float32) SUM_MANY(FLOAT64, float64)};

bool reduce_is_wide(enum dtype dtype, enum redop redop, enum reduce_dtype reduce_dtype, int nranks)
{
    bool rounds = redop != REDOP_MIN && redop != REDOP_MAX;
    return reduce_dtype == REDUCE_DTYPE_FLOAT32 && (dtype == DTYPE_FLOAT16 || dtype == DTYPE_BFLOAT16) && rounds && nranks > 1;
}

void reduce_combine(void *dst, const void *wire, const void *own, size_t count, const struct reduction *reduction)
{
    combine_function loop = reduction->wide ? wide_combine : combine[reduction->dtype][reduction->redop];
    loop(dst, wire, own, count, reduction);
}

void reduce_sum_many(void *dst, const void *const *parts, int part_count, size_t count, enum dtype dtype)
{
    assert(sum_many[dtype] != NULL);
    sum_many[dtype](dst, parts, part_count, count);
}

/* What is in a partial sum has been scaled and widened already. */
void reduce_merge(void *dst, const void *theirs, const void *ours, size_t count, const struct reduction *reduction)
{
    struct reduction plain = *reduction;
    if (plain.redop == REDOP_AVG || plain.redop == REDOP_PREMUL_SUM) plain.redop = REDOP_SUM;
    if (plain.wide) plain.dtype = DTYPE_FLOAT32;
    plain.wide = false;
    reduce_combine(dst, theirs, ours, count, &plain);
}

void reduce_scale(void *dst, const void *own, size_t count, const struct reduction *reduction)
{
    assert(reduce_scales(reduction));
    combine_function wide = reduction->dtype == DTYPE_FLOAT16 ? wide_scale_float16 : wide_scale_bfloat16;
    (reduction->wide ? wide : scale[reduction->dtype])(dst, NULL, own, count, reduction);
}

void reduce_finish(void *dst, const void *sum, size_t count, const struct reduction *reduction)
{
    assert(reduce_finishes(reduction));
    if (!reduction->wide) divide[reduction->dtype](dst, sum, count, reduction);
    else (reduction->dtype == DTYPE_FLOAT16 ? wide_round_float16 : wide_round_bfloat16)(dst, sum, count);
}

/* ---- copies ---- */

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

/* ---- slices ---- */

#define TILE ((size_t)4 << 10) /* bytes: a result is still in the first cache when it is copied on */

static void copy_to_slot(const struct reduce_slice *slice, unsigned char *slot, const void *from, size_t bytes)
{
    if (slice->streaming) copy_streaming(slot, from, bytes);
    else copy_plain(slot, from, bytes);
}

static enum status host_copy(
    const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device)
{
    (void)native, (void)device;
    const unsigned char *from = slice->own != NULL ? slice->own : slice->wire;
    unsigned char *out = slice->out, *slot = slice->slot;
    size_t bytes = slice->count * dtype_bytes(reduction->dtype);
    bool keep = out != NULL && out != from;
    size_t tile = keep && slot != NULL ? TILE : bytes;
    for (size_t at = 0; at < bytes; at += tile) {
        size_t part = bytes - at < tile ? bytes - at : tile;
        if (keep && slice->passes_cache) copy_streaming(out + at, from + at, part);
        else if (keep) copy_plain(out + at, from + at, part);
        if (slot != NULL) copy_to_slot(slice, slot + at, from + at, part);
    }
    return STATUS_OK;
}

static enum status host_scale(
    const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device)
{
    (void)native, (void)device;
    reduce_scale(slice->out != NULL ? slice->out : slice->slot, slice->own, slice->count, reduction);
    return STATUS_OK;
}

/* Into out, or a tile of the slot, and on into the slot, tile by tile. */
static enum status host_combine(
    const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device)
{
    (void)native, (void)device;
    const unsigned char *wire = slice->wire, *joined = slice->joined, *own = slice->own;
    size_t element = dtype_bytes(reduction->dtype), partial = reduce_partial_bytes(reduction), tile_count = TILE / partial;
    _Alignas(64) unsigned char tile[TILE];
    bool keep = slice->out != NULL;
    bool staged = !keep && slice->streaming;   /* a streaming store cannot be computed into in place */
    bool widened = keep && partial != element; /* nor a sum into the place of its rounded self */
    size_t leaving = keep ? element : partial; /* bytes of an element in the slot */
    for (size_t i = 0; i < slice->count; i += tile_count) {
        size_t count = slice->count - i < tile_count ? slice->count - i : tile_count;
        unsigned char *out = keep ? (unsigned char *)slice->out + i * element : NULL;
        unsigned char *slot = slice->slot != NULL ? (unsigned char *)slice->slot + i * leaving : NULL;
        unsigned char *to = staged || widened ? tile : keep ? out : slot;
        reduce_combine(to, wire + i * partial, own + i * element, count, reduction);
        if (joined != NULL) reduce_merge(to, joined + i * partial, to, count, reduction);
        if (keep && reduce_finishes(reduction)) reduce_finish(out, to, count, reduction);
        if (keep) to = out;
        if (slot != NULL && to != slot) copy_to_slot(slice, slot, to, count * leaving);
    }
    return STATUS_OK;
}

const struct reduce_ops reduce_host_ops = {.copy = host_copy, .scale = host_scale, .combine = host_combine};

const struct reduce_ops *reduce_ops_of(const struct device *device)
{
    return device_kind(device) == MEMORY_HOST ? &reduce_host_ops : device_table(device, PLUGIN_REDUCE);
}
