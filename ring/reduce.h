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
};

/* dst[i] = wire[i] ⊕ own[i], own scaled first where reduce_scales(). dst may be wire or own, or overlap neither. */
void reduce_combine(
    void *dst, const void *wire, const void *own, size_t count, const struct reduction *reduction);

/* Whether own elements change before they enter the ring: in a floating-point average, and in a premul_sum, there
 * of one rank alone too. */
bool reduce_scales(const struct reduction *reduction);
/* dst[i] = own[i], scaled. dst may be own. */
void reduce_scale(void *dst, const void *own, size_t count, const struct reduction *reduction);

/* Whether complete sums change once more (integer average: divided, toward zero). */
bool reduce_finishes(const struct reduction *reduction);
void reduce_finish(void *dst, size_t count, const struct reduction *reduction);

/* memcpy, or with stores that bypass this core's caches where that is possible: for slots that another core reads next.
 * Streaming stores are not ordered by a release: streaming_fence() goes between them and fifo_post(). */
void copy_plain(void *dst, const void *src, size_t bytes);
void copy_streaming(void *dst, const void *src, size_t bytes);
void streaming_fence(void);

#endif
