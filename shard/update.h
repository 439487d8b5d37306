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

#include "shard/temporary.h"

struct stage;
struct stage_config;

/* Nothing where the optimizer is on the device. */
struct update_pieces {
    struct temporary gradients; /* passed: they are there */
    struct temporary lent;      /* weights, rounded; passed: they have left */
};

/* errors: SYSTEM, CUDA. close accepts half-open objects. */
MUST_CHECK enum status update_open(struct stage *stage);
void update_close(struct stage *stage);

#endif
