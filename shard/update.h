/* update: AdamW on what a rank keeps of the optimizer, where that is.
 *
 *   on the device                 offloaded: master weights and moments are in host memory
 *
 *   step on the whole unit        piece     device → host   gradients       ┐ of piece i + 1, while
 *                                           host            AdamW           ┘ piece i is stepped
 *                                           host → device   weights
 *
 * Invariants: an element has the same bits wherever it is stepped and whatever the pieces (I3); the
 * pieces' memory is constant (I6).
 */
#ifndef SHARD_UPDATE_H
#define SHARD_UPDATE_H

#include <stdint.h>

#include "verbs/device.h"

struct stage;
struct stage_config;

/* Taken in turn. Host memory, pinned, MEMORY_OFFLOADED; nothing where the optimizer is on the device. */
struct update_pieces {
    struct span gradients[2]; /* of the gradients' dtype */
    struct span lent[2];      /* rounded weights on their way; none where weights are float32 */
    struct event *down[2];    /* the gradients are there */
    struct event *up[2];      /* the weights have left */
};

/* errors: SYSTEM, CUDA. close accepts half-open objects. */
MUST_CHECK enum status update_open(struct stage *stage);
void update_close(struct stage *stage);
/* The bytes that open takes. Pure. */
uint64_t update_predict_bytes(const struct stage_config *config);

#endif
