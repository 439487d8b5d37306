/* checkpoint_manifest: what manifest.json says.
 *
 *   {"format": "ringzero checkpoint", "version": 1,
 *    "model": {"max_t": 128, …},  "settings": {"ranks": 2, "batch": 8, …},     see train_config.c
 *    "step": 200, "adam_t": 200, "sequences": 3200,
 *    "loss_scale": {"value": 65536, "good_steps": 12},                         of float16 gradients only
 *    "shards": [{"file": "shard-00000-of-00002.bin", "bytes": 5071872, "crc32": 3735928559,
 *                "part": [tensor rank, tensor count, stage, stage count],          of parts of a model only
 *                "ranges": [[unit, begin, count, offset], …]}, …]}
 *
 * dtypes are words ("bfloat16"). Settings that are missing are not compared, since the first
 * manifests of this version had fewer of them, and no loss scale: a run that needs one then starts
 * with its own.
 *
 * At `offset` bytes of the file stand count float32 weights, then count m, then count v
 * (little-endian) of elements begin … begin + count − 1 of the unit, as the part has it (params.h).
 * Of tensors that several parts hold, the one that stands for all writes them: every element of the
 * model is in one file.
 *
 * Files are those of the first shard group of each part, in the order of its ranks: with G ranks in
 * a group, M tensor ranks and P stages, file (pipeline · G + data) · M + tensor.
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
    int part; /* in manifest.part */
    char name[CHECKPOINT_NAME_BYTES];
    uint64_t bytes;
    uint32_t crc;
    int range_count;
    struct manifest_range *range;
};

#define MANIFEST_FORMAT  "ringzero checkpoint"
#define MANIFEST_VERSION 1

struct manifest {
    struct model_config model;
    uint64_t step, adam_t, sequences;
    double scale; /* 0: it has none */
    uint64_t scale_good_steps;
    int shard_count;
    struct manifest_shard *shard;
    int part_count;
    struct params *part; /* [part_count]: what ranges count in; files of several data ranks share one */
};

/* How many files there are; which rank of the job writes one; which one a rank writes: -1 where
 * another shard group has the same. */
int manifest_file_count(const struct grid *grid);
int manifest_file_rank(int file, const struct grid *grid);
int manifest_file_of(const struct grid *grid);

/* The ranges that the file of rank r of a shard group has, and the file's bytes: what it owns, of
 * tensors that its part stands for: of each at most one. range: [param_count]. */
int manifest_plan(struct manifest_range *range, uint64_t *bytes, const struct params *params,
    const struct layout *layout, int rank);

/* Writes manifest.json into directory and synchronizes it. bytes, crc: of each file that the grid
 * has. trainer: whose settings and progress it tells; NULL: none, weights are as at step 0 of whatever
 * run takes them. errors: SYSTEM. */
MUST_CHECK enum status manifest_write(const char *directory, const uint64_t *bytes,
    const uint32_t *crc, const struct model_config *model, const struct grid *grid,
    const struct trainer *trainer);

/* Reads and checks it: fields, model against the trainer's, ranges within files and units. trainer
 * NULL: the model is what the manifest says. Free with manifest_free(), also after an error.
 * errors: DATA, INVALID, naming file, field, found and expected. */
MUST_CHECK enum status manifest_read(
    struct manifest *manifest, const char *directory, const struct trainer *trainer);

/* That its ranges have every element of the model exactly once. For after manifest_read() and the
 * checks of the files: its time grows with the model that the manifest tells. errors: DATA naming
 * the elements that two ranges have, or none; SYSTEM (memory). cost: a sort of each unit's runs
 * (params_walk()): one a range, but one a row where ranks share columns. */
MUST_CHECK enum status manifest_check_cover(
    const struct manifest *manifest, const char *directory);
void manifest_free(struct manifest *manifest);

#endif
