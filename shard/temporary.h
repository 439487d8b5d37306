/* temporary: the buffers of constant size (C_B): all that a rank holds only for a moment comes from
 * here, in pairs that take turns: while one is on the way, the other is used.
 *
 *   use                   bytes of each                            who, and when
 *   TEMPORARY_GATHERED    the largest unit, of the weights         gather.h: stage 3
 *   TEMPORARY_GRADIENT    the largest unit that is lent one        gradients.h: every stage
 *   TEMPORARY_PIECE       a piece of gradient, in host memory      update.h: an offloaded optimizer
 *   TEMPORARY_ROUNDED     a piece of 16-bit weights, the same      update.h
 *
 * Two things need none: a bucket is a column of the unit that it reduces (bucket.h), and the input
 * of a block travels between the model's own two buffers (activation.h).
 *
 * Invariant: the bytes depend on the largest unit, not on how many there are: neither on depth nor,
 * since the vocabulary is cut into units, on it (I6). A buffer that fuses all gradients would take
 * 4Ψ.
 */
#ifndef SHARD_TEMPORARY_H
#define SHARD_TEMPORARY_H

#include <stdint.h>

#include "verbs/device.h"

struct stage_config;

enum temporary_use {
    TEMPORARY_GATHERED,
    TEMPORARY_GRADIENT,
    TEMPORARY_PIECE,
    TEMPORARY_ROUNDED,
    TEMPORARY_USE_COUNT
};

/* Elements of a piece. */
#define TEMPORARY_PIECE_ELEMENTS ((size_t)256 << 10)

struct temporary {
    struct span buffer[2];   /* the second is empty where one is enough */
    struct event *passed[2]; /* for whoever uses them: what the next turn waits for */
    enum memory_tag tag;
};

/* Opens nothing, and close has nothing to do, where a configuration has no such use. errors:
 * SYSTEM, CUDA. close accepts half-open objects. */
MUST_CHECK enum status temporary_open(
    struct temporary *pair, enum temporary_use use, const struct stage_config *config);
void temporary_close(struct temporary *pair, struct device *device);

/* Adds what all uses together hold, by tag. Pure. */
void temporary_predict(uint64_t held[MEMORY_TAG_COUNT], const struct stage_config *config);

#endif
