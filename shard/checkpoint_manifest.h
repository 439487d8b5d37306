/* checkpoint_manifest: what manifest.json says.
 *
 *   {"format": "ringzero checkpoint", "version": 1,
 *    "model": {"max_t": 128, …},  "settings": {"ranks": 2, "batch": 8, …},     see train_config.c
 *    "step": 200, "adam_t": 200, "sequences": 3200,
 *    "loss_scale": {"value": 65536, "good_steps": 12},                         of float16 gradients only
 *    "shards": [{"file": "shard-00000-of-00002.bin", "bytes": 5071872, "crc32": 3735928559,
 *                "ranges": [[unit, begin, count, offset], …]}, …]}
 *
 * dtypes are words ("bfloat16"). Settings that are missing are not compared, since the first
 * manifests of this version had fewer of them, and no loss scale: a run that needs one then starts
 * with its own.
 *
 * At `offset` bytes of the file stand count float32 weights, then count m, then count v
 * (little-endian) of elements begin … begin + count − 1 of the unit.
 */
#ifndef SHARD_CHECKPOINT_MANIFEST_H
#define SHARD_CHECKPOINT_MANIFEST_H

#include <cjson/cJSON.h>

#include "shard/checkpoint_files.h"

struct manifest_range {
    int unit;
    size_t begin, count;
    uint64_t offset;
};

struct manifest_shard {
    char name[CHECKPOINT_NAME_BYTES];
    uint64_t bytes;
    uint32_t crc;
    int range_count;
    struct manifest_range *range;
};

struct manifest {
    uint64_t step, adam_t, sequences;
    double scale; /* 0: it has none */
    uint64_t scale_good_steps;
    int shard_count;
    struct manifest_shard *shard;
};

/* The ranges that rank r's file has, one per unit that it owns something of, and the file's bytes.
 * range: [unit_count]. */
int manifest_plan(
    struct manifest_range *range, uint64_t *bytes, const struct layout *layout, int rank);

/* Writes manifest.json into directory and synchronizes it. bytes, crc: of each rank's file. errors:
 * SYSTEM. */
MUST_CHECK enum status manifest_write(const char *directory, const uint64_t *bytes,
    const uint32_t *crc, const struct trainer *trainer);

/* Reads and checks it: fields, model against the trainer's, ranges within files and units. Free
 * with manifest_free(), also after an error. errors: DATA, INVALID, naming file, field, found and
 * expected. */
MUST_CHECK enum status manifest_read(
    struct manifest *manifest, const char *directory, const struct trainer *trainer);
void manifest_free(struct manifest *manifest);

#endif
