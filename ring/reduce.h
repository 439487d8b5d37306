/* reduce: what happens to numbers on their way round the ring. Element-wise, so the bits of an element depend on its operands
 * alone and never on where a slice begins (I2). The CUDA twin has the same functions (I7).
 */
#ifndef RING_REDUCE_H
#define RING_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "ring/ring.h"
#include "verbs/dtype.h"

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
size_t reduce_partial_bytes(const struct reduction *reduction);

/* Partial sums: dst[i] = wire[i] ⊕ own[i], own scaled first where reduce_scales(). dst may be wire or, where sums are not wide, own;
 * else they overlap neither. */
void reduce_combine(
    void *dst, const void *wire, const void *own, size_t count, const struct reduction *reduction);

/* Of two partial sums: dst[i] = theirs[i] ⊕ ours[i]. dst may be either. */
void reduce_merge(
    void *dst, const void *theirs, const void *ours, size_t count, const struct reduction *reduction);

/* Whether own elements change before they enter the ring: where sums are wide, in a floating-point average, and in a
 * premul_sum, there of one rank alone too. */
bool reduce_scales(const struct reduction *reduction);
/* dst[i] = own[i] as a partial sum: scaled, and widened. dst may be own where sums are not wide. */
void reduce_scale(void *dst, const void *own, size_t count, const struct reduction *reduction);

/* Whether complete sums change once more: wide ones are rounded to their dtype, averages of integers divided, toward zero. */
bool reduce_finishes(const struct reduction *reduction);
/* dst may be sum. */
void reduce_finish(void *dst, const void *sum, size_t count, const struct reduction *reduction);

/* memcpy, or with stores that bypass this core's caches where that is possible: for slots that another core reads next.
 * Streaming stores are not ordered by a release: streaming_fence() goes between them and fifo_post(). */
void copy_plain(void *dst, const void *src, size_t bytes);
void copy_streaming(void *dst, const void *src, size_t bytes);
void streaming_fence(void);

#endif
