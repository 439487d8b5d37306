/* checkpoint_weights: a checkpoint as a file of weights (model/weights.h): read from any split into whole
 * parameters, written as one rank that has not trained yet.
 *
 *     TRY(weights_open(&from, "run", &weights_checkpoint, 0));   run, or run/step-00000200
 *
 * Reading: the newest checkpoint of the directory, or the directory itself; every file is checked against
 * size and checksum when it is opened. Parameters may be of any vocab_block.
 * Writing: DIR/step-00000000, which appears when it is whole; DIR must hold no checkpoint yet. float32
 * only. Moments are zero, and holes of the file; there are no settings: a run that resumes starts at step
 * 0 with its own optimizer, schedule and place in the data, at any number of ranks, stage and split.
 * Memory: a page of tables a part of the model; values pass through the caller's.
 */
#ifndef SHARD_CHECKPOINT_WEIGHTS_H
#define SHARD_CHECKPOINT_WEIGHTS_H

#include "model/weights.h"

extern const struct weights_format weights_checkpoint;

#endif
