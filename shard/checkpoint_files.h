/* checkpoint_files: names, lists and durable writes of a checkpoint directory.
 */
#ifndef SHARD_CHECKPOINT_FILES_H
#define SHARD_CHECKPOINT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/checkpoint.h"

#define CHECKPOINT_NAME_BYTES 64
#define MANIFEST_NAME         "manifest.json"
#define STEP_PREFIX           "step-"
#define TEMPORARY_PREFIX      "tmp-"

/* "directory/name" into path. errors: INVALID when it does not fit. */
MUST_CHECK enum status path_join(
    char path[CHECKPOINT_PATH_BYTES], const char *directory, const char *name);
/* "step-00000200"; "shard-00000-of-00002.bin". */
void step_name(char name[CHECKPOINT_NAME_BYTES], uint64_t step);
void shard_name(char name[CHECKPOINT_NAME_BYTES], int rank, int nranks);

/* The largest step < below that has a directory with a manifest. *found is false when there is
 * none, also when `directory` does not exist. errors: SYSTEM when it cannot be read. */
MUST_CHECK enum status newest_step(
    uint64_t *step, bool *found, uint64_t below, const char *directory);

/* Removes a directory of files, named step-… or tmp-step-…; what is not there is fine. */
void remove_directory(const char *path);
/* Removes what interrupted runs left, and all steps but the newest `keep` that are not beyond
 * `step`. */
void prune_directory(const char *directory, uint64_t step, int keep);

/* errors: SYSTEM naming path and reason. */
MUST_CHECK enum status make_directory(const char *path);
MUST_CHECK enum status synchronize_directory(const char *path);
/* rename(), over a directory of files too. */
MUST_CHECK enum status rename_directory(const char *from, const char *to);

#endif
