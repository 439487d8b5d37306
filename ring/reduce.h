/* reduce: what happens to numbers on their way round the ring. Element-wise, so the bits of an element depend on its operands
 * alone and never on where a slice begins (I2).
 *
 * Single arrays on the host (reduce_combine() and its like), and whole slices on any device: struct reduce_ops, the table that
 * the host (reduce_host.c) and CUDA (reduce_cuda.cu) fill with the same bits (I7).
 */
#ifndef RING_REDUCE_H
#define RING_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ring/ring.h"
#include "verbs/device.h"
#include "verbs/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

struct reduction {
    enum dtype dtype;
    enum redop redop;
    int nranks;
    double premul; /* of REDOP_PREMUL_SUM: this rank's own scalar; other ranks may have others */
    bool wide;     /* own elements are 16-bit floats, partial sums float32: see reduce_is_wide() */
};

/* Whether a reduction that is to accumulate in reduce_dtype does so otherwise than in its own dtype: 16-bit floats that are
 * added or multiplied, of more than one rank. Alike on all ranks. */
bool reduce_is_wide(enum dtype dtype, enum redop redop, enum reduce_dtype reduce_dtype, int nranks);

/* Bytes of an element of a partial sum: what travels until the owner has completed it. */
static inline size_t reduce_partial_bytes(const struct reduction *reduction)
{
    return reduction->wide ? sizeof(float) : dtype_bytes(reduction->dtype);
}

/* What own elements are multiplied with where they are scaled. A float32 quotient is the float64 one rounded: 53 bits are
 * enough for that. So this serves every floating dtype. */
static inline double reduce_factor(const struct reduction *reduction)
{
    return reduction->redop == REDOP_AVG ? 1.0 / reduction->nranks : reduction->premul;
}

/* The scalar of a premul_sum as an integer: its fraction is dropped, then it is taken modulo 2^64 (and by a cast, modulo the
 * dtype's range); infinity and NaN give 0. Done on its bits, mantissa · 2^exponent: casts of what does not fit are undefined. */
static inline uint64_t reduce_whole_factor(const struct reduction *reduction)
{
    uint64_t bits;
    memcpy(&bits, &reduction->premul, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1075;
    uint64_t mantissa = (bits & 0xfffffffffffffu) | (uint64_t)1 << 52, whole = 0;
    if (exponent > -53 && exponent < 64) whole = exponent >= 0 ? mantissa << exponent : mantissa >> -exponent;
    return bits >> 63 ? 0 - whole : whole;
}

/* Partial sums: dst[i] = wire[i] ⊕ own[i], own scaled first where reduce_scales(). dst may be wire or, where sums are not wide, own;
 * else they overlap neither. */
void reduce_combine(
    void *dst, const void *wire, const void *own, size_t count, const struct reduction *reduction);

/* Whether a sum of several parts can be made by reduce_sum_many(): all are added as they are, and
 * no 16-bit float is rounded on the way. */
static inline bool reduce_is_plain_sum(const struct reduction *reduction)
{
    bool half = reduction->dtype == DTYPE_FLOAT16 || reduction->dtype == DTYPE_BFLOAT16;
    return reduction->redop == REDOP_SUM && !half;
}
/* dst[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + …: the bits of as many calls of
 * reduce_combine(), in one pass. part_count ≥ 1; dst may be one of the parts, else overlaps none. */
void reduce_sum_many(
    void *dst, const void *const *parts, int part_count, size_t count, enum dtype dtype);

/* Of two partial sums: dst[i] = theirs[i] ⊕ ours[i]. dst may be either. */
void reduce_merge(
    void *dst, const void *theirs, const void *ours, size_t count, const struct reduction *reduction);

/* Whether own elements change before they enter the ring: where sums are wide, in a floating-point average, and in a
 * premul_sum, there of one rank alone too. */
static inline bool reduce_scales(const struct reduction *reduction)
{
    if (reduction->redop == REDOP_PREMUL_SUM || reduction->wide) return true;
    return reduction->redop == REDOP_AVG && !dtype_is_integer(reduction->dtype) && reduction->nranks > 1;
}
/* dst[i] = own[i] as a partial sum: scaled, and widened. dst may be own where sums are not wide. */
void reduce_scale(void *dst, const void *own, size_t count, const struct reduction *reduction);

/* Whether complete sums change once more: wide ones are rounded to their dtype, averages of integers divided, toward zero. */
static inline bool reduce_finishes(const struct reduction *reduction)
{
    return reduction->wide ||
           (reduction->redop == REDOP_AVG && dtype_is_integer(reduction->dtype) && reduction->nranks > 1);
}
/* dst may be sum. */
void reduce_finish(void *dst, const void *sum, size_t count, const struct reduction *reduction);

/* memcpy, or with stores that bypass this core's caches where that is possible: for slots that another core reads next.
 * Streaming stores are not ordered by a release: streaming_fence() goes between them and fifo_post(). */
void copy_plain(void *dst, const void *src, size_t bytes);
void copy_streaming(void *dst, const void *src, size_t bytes);
void streaming_fence(void);

/* ---- slices, on any device ---- */

/* The operands of one slice of count elements: wire and joined have arrived, own is the caller's, out is the caller's, slot
 * leaves. own may be out, and out may be wire where sums are not wide; else nothing overlaps. All aligned to their elements. */
struct reduce_slice {
    const void *wire;   /* a partial sum */
    const void *joined; /* likewise, of other hosts; NULL: none */
    const void *own;
    void *out;          /* NULL: nothing is kept */
    void *slot;         /* NULL: nothing is sent, or it is sent from where it is */
    size_t count;
    bool streaming;     /* into the slot: the host's alone */
    bool passes_cache;  /* what is copied into out, likewise: more than a cache holds comes before anybody reads it */
};

enum reduce_kind { REDUCE_NOTHING, REDUCE_COPY, REDUCE_SCALE, REDUCE_COMBINE };

/* All three pass over memory once. native NULL (the host): done on return; else they are enqueued there, and the slice's
 * memory must be within that device's reach. errors: CUDA. threads: any. Required. */
struct reduce_ops {
    /* out, slot = own, or wire where own is NULL; as they are, elements of the reduction's dtype. Either may be NULL or what
     * is copied: then nothing is written there. */
    enum status (*copy)(const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device);
    /* own as a partial sum, where reduce_scales(): into out or slot, one of the two. */
    enum status (*scale)(const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device);
    /* joined ⊕ (wire ⊕ own): out NULL: the partial sum into slot; else, finished, into out and, unless it is NULL, slot. */
    enum status (*combine)(const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device);
};
extern const struct reduce_ops reduce_host_ops;

static inline enum status reduce_do(const struct reduce_ops *ops, enum reduce_kind kind, const struct reduce_slice *slice,
    const struct reduction *reduction, void *native, struct device *device)
{
    if (kind == REDUCE_COPY) return ops->copy(slice, reduction, native, device);
    if (kind == REDUCE_SCALE) return ops->scale(slice, reduction, native, device);
    return kind == REDUCE_COMBINE ? ops->combine(slice, reduction, native, device) : STATUS_OK;
}

/* Those of a device's memory: the host's for the host; NULL: its module has none. */
const struct reduce_ops *reduce_ops_of(const struct device *device);

#ifdef __cplusplus
}
#endif
#endif
