/* gather: stage 3's weights. A unit is gathered for its use, and the next one while it is used.
 *
 *   main      use 0 (A)          use 1 (B)          use 2 (A)          …
 *   stream    gather 1 into B    gather 2 into A    gather 3 into B
 *
 * Two buffers hold the unit in use and the next; a unit that is still there is not gathered again (the
 * head's last rows are used forward and, at once, backward). Which units passes gather is a pure
 * function of the order of uses: the same without overlap, and the prediction counts it (I4). In a
 * pipeline the next unit may be that of another micro-batch: the order is pipeline.h's, over all of
 * a step.
 */
#ifndef SHARD_GATHER_H
#define SHARD_GATHER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/uses.h"
#include "ring/plan.h"
#include "shard/pipeline.h"
#include "shard/temporary.h"
#include "verbs/device.h"

struct stage;
struct stage_config;

/* Which unit each buffer holds, or is being filled with; -1: none. */
struct gather_cache {
    int unit[2];
    int latest; /* the buffer lent last: not the one to fill */
};

/* The uses of several passes, one after another. */
struct gather_order {
    const struct model_use *uses; /* of a forward and its backward */
    int forward_count, train_count;
    struct pipeline_place place; /* the order of the passes */
    bool backward;               /* false: one forward alone */
    int step, next;              /* the next use, of that step's pass */
};

struct gather {
    struct temporary pair; /* N·S elements of a unit; passed: once they are there */
    struct gather_cache cache;
    struct model_use *uses; /* of a forward and a backward */
    struct gather_order order; /* from the next enter() on */
};

/* Nothing is opened where weights are kept whole. errors: SYSTEM. close accepts half-open objects. */
MUST_CHECK enum status gather_open(struct stage *stage);
void gather_close(struct stage *stage);

/* Forgets what is held (weights may have changed). See stage_begin_passes(). */
void gather_begin_passes(struct stage *stage, bool backward);

/* Lends a unit's real weights; queues the gather of the next unit. Waits for the unit. collective. */
MUST_CHECK enum status gather_enter(
    struct span *weights, int unit, enum unit_use use, struct stage *stage);

/* Adds to times[unit] how often these passes gather each unit. Pure. */
void gather_predict_times(int *times, bool backward, const struct stage_config *config);
/* Adds what their gathers make this rank send. Pure. */
void gather_predict_sent(
    uint64_t sent[COLLECTIVE_COUNT], bool backward, const struct stage_config *config);

#endif
