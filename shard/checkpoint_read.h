/* checkpoint_read: what everyone who reads a checkpoint does: find it, check its files, read values.
 */
#ifndef SHARD_CHECKPOINT_READ_H
#define SHARD_CHECKPOINT_READ_H

#include "shard/checkpoint_manifest.h"

/* `given` itself, if it is a checkpoint, else the newest one in it, and the one before that ("": there
 * is none). errors: DATA, where there is no checkpoint; SYSTEM; INVALID (a path that is too long). */
MUST_CHECK enum status checkpoint_find(char directory[CHECKPOINT_PATH_BYTES],
    char older[CHECKPOINT_PATH_BYTES], const char *given);

/* Adds to the text of a DATA status that there is an older checkpoint to take. */
MUST_CHECK enum status checkpoint_blame(enum status status, const char *older);

/* Reads a whole file: its size and checksum must be what the manifest says. errors: DATA naming file,
 * field, found and expected. */
MUST_CHECK enum status checkpoint_check(
    const char *directory, const struct manifest_shard *shard);

/* values of `count` float32 at a byte of an open file. path: for messages. errors: DATA. */
MUST_CHECK enum status checkpoint_values(
    float *values, size_t count, int fd, uint64_t offset, const char *path);

#endif
