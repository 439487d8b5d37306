/* checkpoint: a run on disk, whole or not at all.
 *
 *   DIR/step-00000200/manifest.json               rank 0: what the run is, which file has what
 *                     shard-00000-of-00002.bin    each rank of the first shard group of each part of
 *                                                 the model: what it owns, without padding, in
 *                                                 float32
 *                     shard-00001-of-00002.bin
 *   DIR/step-00000100/…                           the one before
 *
 * Invariants: a directory named step-… is complete, since it gets this name last (written as
 * tmp-step-…, every file and the directory synchronized, then renamed); whatever goes wrong on any
 * rank, the one before stays. The newest two are kept. A run resumed with the same settings
 * continues with the same bits; any number of ranks, any stage and any split can resume: parts of
 * other cuts are put together element by element.
 *
 * Programs that write checkpoints ignore SIGXFSZ, so that a file-size limit is an error of write()
 * and not a death.
 */
#ifndef SHARD_CHECKPOINT_H
#define SHARD_CHECKPOINT_H

#include "shard/trainer.h"

#define CHECKPOINT_PATH_BYTES 1024

/* Writes the state after trainer->step; directory: its path. DIR must be the same place for all
 * ranks. collective. errors: SYSTEM naming file and reason, on every rank; nothing new is left
 * then. PEER, TIMEOUT: what is left has no name of a checkpoint, and the next save removes it. */
MUST_CHECK enum status checkpoint_save(
    char directory[CHECKPOINT_PATH_BYTES], struct trainer *trainer);

/* Makes checkpoint_dir, and refuses one that holds steps beyond trainer->step: they would be taken
 * for this run's. collective. errors: INVALID, SYSTEM. */
MUST_CHECK enum status checkpoint_prepare(struct trainer *trainer);

/* Loads the newest checkpoint of resume_dir (or resume_dir itself): weights, moments, step, place
 * in the data, loss scale. Any number of ranks, stage, shard group and dtype loads any checkpoint.
 * Every file is checked against its size and checksum before anything is read into the state.
 * collective. errors: DATA naming file, field, found and expected, and the older checkpoint if there
 * is one; INVALID when the model is another one. Other settings that differ are one warning each. */
MUST_CHECK enum status checkpoint_load(struct trainer *trainer);

#endif
