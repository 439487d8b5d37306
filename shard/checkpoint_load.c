/* checkpoint_load: reading a checkpoint: see checkpoint.h.
 *
 * The files are checked by all ranks together, each taking every N-th; then each rank reads what
 * its stage keeps, from whatever files hold it. Nothing of the state is touched before all checks
 * have passed on all ranks.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/checkpoint_read.h"
#include "verbs/log.h"

#define READ_BYTES ((size_t)1 << 20)

struct checkpoint {
    char directory[CHECKPOINT_PATH_BYTES];
    char older[CHECKPOINT_PATH_BYTES]; /* "" if there is none */
    struct manifest manifest;
};

static enum status check_shards(const struct checkpoint *checkpoint, const struct trainer *trainer)
{
    const struct manifest *manifest = &checkpoint->manifest;
    for (int i = trainer->rank; i < manifest->shard_count; i += trainer->nranks)
        TRY(checkpoint_check(checkpoint->directory, &manifest->shard[i]));
    return STATUS_OK;
}

/* ---- into the state ---- */

#define PIECE_ELEMENTS (READ_BYTES / sizeof(float))

/* Elements [begin, end) of a unit, from byte `offset` of the file on, through `piece`. */
static enum status read_part(const struct stage_part *part, size_t begin, size_t end, int fd,
    uint64_t offset, const char *path, float *piece, const struct stage *stage)
{
    for (size_t at = begin; at < end; at += PIECE_ELEMENTS) {
        size_t count = end - at < PIECE_ELEMENTS ? end - at : PIECE_ELEMENTS;
        TRY(checkpoint_values(piece, count, fd, offset + (at - begin) * sizeof(float), path));
        TRY(stage_write_part(part, piece, at, count, stage));
    }
    return STATUS_OK;
}

/* Elements that follow each other in a file's range and in what is kept here. */
struct overlap {
    size_t file_begin, begin; /* from the unit's begin: of the file's part, of the part here */
    size_t count;
};

/* Two walks, each ahead by the run that it has told last. */
struct overlaps {
    struct params_walk file_walk, walk;
    struct params_run file_run, run;
    bool more;
};

static struct overlaps overlaps_of(const struct params *file, const struct manifest_range *range,
    const struct params *params, const struct stage_part *part)
{
    struct overlaps overlaps = {
        .file_walk = params_walk(file, range->unit, range->begin, range->begin + range->count),
        .walk = params_walk(params, range->unit, part->begin, part->begin + part->count)};
    overlaps.more = params_next_run(&overlaps.file_run, &overlaps.file_walk) &&
                    params_next_run(&overlaps.run, &overlaps.walk);
    return overlaps;
}

/* Drops the first `count` elements of a run, and takes the next where none is left. */
static bool run_advance(struct params_run *run, size_t count, struct params_walk *walk)
{
    run->begin += count;
    run->whole_begin += count;
    run->count -= count;
    return run->count > 0 || params_next_run(run, walk);
}

/* The next stretch of elements that both walks have, as long as it can be; false after the last. */
static bool next_overlap(struct overlap *overlap, struct overlaps *all)
{
    struct params_run *a = &all->file_run, *b = &all->run;
    *overlap = (struct overlap){0};
    while (all->more) {
        size_t skip_a = a->whole_begin < b->whole_begin ? b->whole_begin - a->whole_begin : 0;
        size_t skip_b = b->whole_begin < a->whole_begin ? a->whole_begin - b->whole_begin : 0;
        if (skip_a > 0 || skip_b > 0) {
            if (skip_a > a->count) skip_a = a->count;
            if (skip_b > b->count) skip_b = b->count;
            all->more = (skip_a == 0 || run_advance(a, skip_a, &all->file_walk)) &&
                        (skip_b == 0 || run_advance(b, skip_b, &all->walk));
            continue;
        }
        size_t count = a->count < b->count ? a->count : b->count;
        bool follows = overlap->file_begin + overlap->count == a->begin &&
                       overlap->begin + overlap->count == b->begin;
        if (overlap->count > 0 && !follows) return true;
        if (overlap->count == 0) *overlap = (struct overlap){a->begin, b->begin, 0};
        overlap->count += count;
        bool more_a = run_advance(a, count, &all->file_walk);
        all->more = run_advance(b, count, &all->walk) && more_a;
    }
    return overlap->count > 0;
}

/* Reads what of one range is kept here; adds to *read_count. piece: PIECE_ELEMENTS on the host. */
static enum status read_range(int fd, const struct manifest_range *range, const struct params *file,
    const char *path, float *piece, size_t *read_count, const struct stage *stage)
{
    for (int state = 0; state < STAGE_STATE_COUNT; state++) {
        struct stage_part part = stage_part(stage, range->unit, (enum stage_state)state);
        struct overlaps overlaps = overlaps_of(file, range, stage->config.params, &part);
        for (struct overlap overlap; next_overlap(&overlap, &overlaps);) {
            uint64_t element = (uint64_t)state * range->count + (overlap.file_begin - range->begin);
            TRY(read_part(&part, overlap.begin, overlap.begin + overlap.count, fd,
                range->offset + element * sizeof(float), path, piece, stage));
            *read_count += overlap.count;
        }
    }
    return STATUS_OK;
}

/* file: what the ranges are counted in. */
static enum status read_ranges(int fd, const struct manifest_shard *shard, const struct params *file,
    const char *path, size_t *read_count, const struct stage *stage)
{
    float *piece = malloc(READ_BYTES);
    enum status status =
        piece != NULL ? STATUS_OK : FAIL(STATUS_SYSTEM, "%s: no memory to read it", path);
    for (int i = 0; i < shard->range_count && status == STATUS_OK; i++)
        status = read_range(fd, &shard->range[i], file, path, piece, read_count, stage);
    free(piece);
    return status;
}

static enum status read_shard(const struct checkpoint *checkpoint,
    const struct manifest_shard *shard, size_t *read_count, const struct stage *stage)
{
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, checkpoint->directory, shard->name));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(STATUS_DATA, "%s: cannot be opened: %s", path, strerror(errno));
    const struct params *file = &checkpoint->manifest.part[shard->part];
    enum status status = read_ranges(fd, shard, file, path, read_count, stage);
    close(fd);
    return status;
}

static enum status read_state(const struct checkpoint *checkpoint, const struct trainer *trainer)
{
    const struct stage *stage = trainer->stage;
    size_t read_count = 0, kept_count = 0;
    for (int i = 0; i < checkpoint->manifest.shard_count; i++)
        TRY(read_shard(checkpoint, &checkpoint->manifest.shard[i], &read_count, stage));
    for (int u = 0; u < trainer->layout.unit_count; u++)
        for (int state = 0; state < STAGE_STATE_COUNT; state++)
            kept_count += stage_part(stage, u, (enum stage_state)state).count;
    assert(read_count == kept_count); /* of what manifest_check_cover() has found whole */
    return STATUS_OK;
}

/* ---- */

static enum status find_and_check(struct checkpoint *checkpoint, const struct trainer *trainer)
{
    TRY(checkpoint_find(checkpoint->directory, checkpoint->older, trainer->config.resume_dir));
    enum status status = manifest_read(&checkpoint->manifest, checkpoint->directory, trainer);
    if (status == STATUS_OK) status = check_shards(checkpoint, trainer);
    if (status == STATUS_OK)
        status = manifest_check_cover(&checkpoint->manifest, checkpoint->directory);
    return checkpoint_blame(status, checkpoint->older);
}

/* A run that scales goes on with the scale that was saved, within its own bounds. */
static void restore_scale(struct trainer *trainer, const struct manifest *manifest)
{
    struct loss_scale *scale = &trainer->scale;
    if (!train_config_scales(&trainer->config) || manifest->scale <= 0.0) return;
    scale->value = manifest->scale > scale->floor ? manifest->scale : scale->floor;
    scale->good_steps = manifest->scale_good_steps;
}

static enum status load(struct checkpoint *checkpoint, struct trainer *trainer)
{
    TRY(agree(find_and_check(checkpoint, trainer), trainer->bootstrap));
    const struct manifest *manifest = &checkpoint->manifest;
    struct agree_value step = {"the step of the checkpoint", (double)manifest->step, NULL};
    TRY(agree_values(&step, 1, trainer->bootstrap));
    TRY(agree(read_state(checkpoint, trainer), trainer->bootstrap));
    trainer->step = manifest->step;
    trainer->adam_t = manifest->adam_t;
    trainer->sequences = manifest->sequences;
    restore_scale(trainer, manifest);
    LOG_INFO("checkpoint", "resumed from %s at step %llu", checkpoint->directory,
        (unsigned long long)manifest->step);
    return STATUS_OK;
}

enum status checkpoint_load(struct trainer *trainer)
{
    struct checkpoint checkpoint = {0};
    enum status status = load(&checkpoint, trainer);
    manifest_free(&checkpoint.manifest);
    return status;
}
