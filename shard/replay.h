/* replay: one trace of allocations, that of training with activation checkpointing, against a
 * first-fit heap and against arenas (M_D).
 *
 *   micro-batch 1   forward    scratch of block 0 | checkpoint 1 | scratch of block 1 | …
 *                   backward   scratch of block L−1 and, between it, gradients | a checkpoint dies
 *   micro-batch 2   the same, but that the gradients' memory is there, of this step or the last
 *
 *   heap     everything, where there is room: gradients lie wherever scratch had left a hole
 *   arenas   | checkpoints | gradients | scratch: a heap of its own, empty between blocks |
 *
 * Scratch is as long as its tensor is needed, as in a program that frees what it no longer uses.
 * (The model itself has fixed places for all of it: model_open.c.) With less memory than its extent
 * a first-fit heap fails, with more it does not: places do not depend on the end.
 */
#ifndef SHARD_REPLAY_H
#define SHARD_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "model/params.h"
#include "verbs/status.h"

enum replay_life { REPLAY_SCRATCH, REPLAY_CHECKPOINT, REPLAY_GRADIENT, REPLAY_LIFE_COUNT };

struct replay_event {
    int id;
    uint64_t bytes; /* 0: it is freed */
    enum replay_life life;
    const char *name; /* "fc", "h.3.qkvw": of the table of params where it is a gradient */
    int layer;        /* −1: of no block */
};

struct replay_trace {
    struct replay_event *event;
    int count, most;
    int ids; /* 0 … ids − 1 */
};

/* Of two micro-batches of (batch, t), float32: more would repeat the second. params outlives the
 * trace. errors: SYSTEM. Free with replay_free(), whatever the outcome. */
MUST_CHECK enum status replay_make(
    struct replay_trace *trace, const struct params *params, int batch, int t);
void replay_free(struct replay_trace *trace);

struct replay_outcome {
    bool fits;
    uint64_t extent_bytes; /* that it takes; where it does not fit, what it took until then */
    uint64_t peak_bytes;   /* alive at the same time */
    uint64_t life_bytes[REPLAY_LIFE_COUNT]; /* arenas: of it, for each */
    /* Where it does not fit: what, and what there was. */
    struct replay_event failed;
    uint64_t free_bytes, largest_hole;
};

/* memory: UINT64_MAX where there is no end of it. errors: SYSTEM. */
MUST_CHECK enum status replay_heap(
    struct replay_outcome *outcome, const struct replay_trace *trace, uint64_t memory);
MUST_CHECK enum status replay_arenas(
    struct replay_outcome *outcome, const struct replay_trace *trace, uint64_t memory);

#endif
