/* checkpoint_weights: see checkpoint_weights.h.
 *
 * Invariant: a parameter that is read has every element, from one file each; a checkpoint that is written
 * is whole or not there.
 *
 *   file of part (r, M, s, P)   |…|■■■■■|…|■■|…      ranges of units, as the part has them
 *                                    ╲ runs ╱         params_walk()
 *   unit of the whole model     ·····■■■■■■·····      the parameter's elements among them
 */
#include "shard/checkpoint_weights.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "shard/checkpoint_read.h"

struct checkpoint {
    char directory[CHECKPOINT_PATH_BYTES]; /* step-…; written: its name when it is whole */
    struct params params; /* of the whole model */

    /* read */
    struct manifest manifest;

    /* written */
    char temporary[CHECKPOINT_PATH_BYTES], file_path[CHECKPOINT_PATH_BYTES];
    bool made; /* the directory that was given */
    FILE *file;
    uLong crc;
    int next_param;
    uint64_t unit_begin; /* in the file, of the unit of next_param; after the last: the file's bytes */
};

static enum status open_record(struct checkpoint **checkpoint, struct weights *weights)
{
    *checkpoint = calloc(1, sizeof **checkpoint);
    weights->state = *checkpoint;
    if (*checkpoint != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s: no memory for its record", weights->path);
}

/* ---- reading ---- */

static enum status open_files(struct checkpoint *checkpoint)
{
    struct manifest *manifest = &checkpoint->manifest;
    TRY(manifest_read(manifest, checkpoint->directory, NULL));
    for (int i = 0; i < manifest->shard_count; i++)
        TRY(checkpoint_check(checkpoint->directory, &manifest->shard[i]));
    return manifest_check_cover(manifest, checkpoint->directory);
}

static enum status checkpoint_open(struct weights *weights)
{
    struct checkpoint *checkpoint;
    char older[CHECKPOINT_PATH_BYTES];
    int heads = weights->config.heads;
    TRY(open_record(&checkpoint, weights));
    TRY(checkpoint_find(checkpoint->directory, older, weights->path));
    TRY(checkpoint_blame(open_files(checkpoint), older));
    weights->config = checkpoint->manifest.model;
    weights->dtype = DTYPE_FLOAT32;
    if (heads != 0 && heads != weights->config.heads)
        return FAIL(STATUS_INVALID, "%s/" MANIFEST_NAME ": model.heads is %d, %d were asked for",
            checkpoint->directory, weights->config.heads, heads);
    return params_make(&checkpoint->params, &weights->config);
}

/* Elements [begin, end) of a unit of the whole model. */
struct wanted {
    float *values;
    int unit;
    size_t begin, end;
    size_t read_count; /* of them, so far */
};

static enum status read_range(struct wanted *wanted, const struct manifest_range *range,
    const struct params *part, int fd, const char *path)
{
    struct params_walk walk =
        params_walk(part, range->unit, range->begin, range->begin + range->count);
    for (struct params_run run; params_next_run(&run, &walk);) {
        size_t begin = run.whole_begin, end = begin + run.count;
        if (begin < wanted->begin) begin = wanted->begin;
        if (end > wanted->end) end = wanted->end;
        if (begin >= end) continue;
        size_t element = run.begin + (begin - run.whole_begin) - range->begin;
        TRY(checkpoint_values(wanted->values + (begin - wanted->begin), end - begin, fd,
            range->offset + element * sizeof(float), path));
        wanted->read_count += end - begin;
    }
    return STATUS_OK;
}

static enum status read_shard(struct wanted *wanted, int index, const struct checkpoint *checkpoint)
{
    const struct manifest_shard *shard = &checkpoint->manifest.shard[index];
    const struct params *part = &checkpoint->manifest.part[shard->part];
    char path[CHECKPOINT_PATH_BYTES];
    if (part->unit_elements[wanted->unit] == 0) return STATUS_OK;
    TRY(path_join(path, checkpoint->directory, shard->name));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(STATUS_DATA, "%s: cannot be opened: %s", path, strerror(errno));
    enum status status = STATUS_OK;
    for (int i = 0; i < shard->range_count && status == STATUS_OK; i++)
        if (shard->range[i].unit == wanted->unit)
            status = read_range(wanted, &shard->range[i], part, fd, path);
    close(fd);
    return status;
}

/* Rows [first, last) of a tensor of the manifest's model. */
static enum status read_rows(float *values, const struct param *param, size_t first, size_t last,
    const struct checkpoint *checkpoint)
{
    size_t begin = param->whole_offset + (first - param->first_row) * param->whole_cols;
    struct wanted wanted = {
        values, param->unit, begin, begin + (last - first) * param->whole_cols, 0};
    for (int i = 0; i < checkpoint->manifest.shard_count; i++)
        TRY(read_shard(&wanted, i, checkpoint));
    assert(wanted.read_count == wanted.end - wanted.begin); /* as manifest_check_cover() found */
    return STATUS_OK;
}

/* "wte[0:4096]" and "wte[0:100]" are blocks of the same tensor. */
static bool same_tensor(const struct param *a, const struct param *b)
{
    size_t length = strcspn(a->name, "[");
    return strcspn(b->name, "[") == length && memcmp(a->name, b->name, length) == 0;
}

static enum status checkpoint_read(
    float *values, const struct param *param, struct weights *weights)
{
    const struct checkpoint *checkpoint = weights->state;
    size_t param_end = param->first_row + param->whole_rows;
    for (int i = 0; i < checkpoint->params.param_count; i++) {
        const struct param *own = &checkpoint->params.param[i];
        size_t first = own->first_row, last = first + own->whole_rows;
        if (!same_tensor(own, param)) continue;
        if (first < param->first_row) first = param->first_row;
        if (last > param_end) last = param_end;
        if (first >= last) continue;
        TRY(read_rows(values + (first - param->first_row) * param->whole_cols, own, first, last,
            checkpoint));
    }
    return STATUS_OK;
}

/* ---- writing ---- */

static enum status make_directories(struct checkpoint *checkpoint, const char *given)
{
    char name[CHECKPOINT_NAME_BYTES], temporary[CHECKPOINT_NAME_BYTES + sizeof TEMPORARY_PREFIX];
    uint64_t step;
    bool found;
    step_name(name, 0);
    snprintf(temporary, sizeof temporary, TEMPORARY_PREFIX "%s", name);
    TRY(newest_step(&step, &found, UINT64_MAX, given));
    if (found)
        return FAIL(STATUS_INVALID,
            "%s: holds a checkpoint of step %llu already, expected a new directory: take another, or "
            "move it away",
            given, (unsigned long long)step);
    checkpoint->made = access(given, F_OK) != 0;
    TRY(make_directory(given));
    TRY(path_join(checkpoint->directory, given, name));
    TRY(path_join(checkpoint->temporary, given, temporary));
    remove_directory(checkpoint->temporary); /* of one that was killed */
    TRY(make_directory(checkpoint->temporary));
    shard_name(name, 0, 1);
    return path_join(checkpoint->file_path, checkpoint->temporary, name);
}

static enum status fail_write(const struct checkpoint *checkpoint)
{
    return FAIL(STATUS_SYSTEM, "%s: cannot be written: %s: make room (or raise ulimit -f)",
        checkpoint->file_path, strerror(errno));
}

static enum status checkpoint_create(struct weights *weights)
{
    struct checkpoint *checkpoint;
    TRY(open_record(&checkpoint, weights));
    if (weights->dtype != DTYPE_FLOAT32)
        return FAIL(STATUS_INVALID,
            "%s: dtype is %s, expected float32: checkpoints hold no other, and train --dtype rounds",
            weights->path, dtype_name(weights->dtype));
    TRY(params_make(&checkpoint->params, &weights->config));
    TRY(make_directories(checkpoint, weights->path));
    checkpoint->crc = crc32_z(0, Z_NULL, 0);
    checkpoint->file = fopen(checkpoint->file_path, "wxe");
    return checkpoint->file != NULL ? STATUS_OK : fail_write(checkpoint);
}

/* In log₂ steps: a hole in a file costs no time either. */
static uLong crc_of_zeros(uint64_t bytes)
{
    if (bytes == 0) return crc32_z(0, Z_NULL, 0);
    uLong half = crc_of_zeros(bytes / 2), crc = crc32_combine(half, half, (z_off_t)(bytes / 2));
    return bytes % 2 == 0 ? crc : crc32_z(crc, (const Bytef *)"", 1);
}

/* Behind the weights of a unit: both moments, which are zero. */
static void end_unit(struct checkpoint *checkpoint, int unit)
{
    uint64_t weights = (uint64_t)checkpoint->params.unit_elements[unit] * sizeof(float);
    uint64_t moments = weights * (STAGE_STATE_COUNT - 1);
    checkpoint->crc =
        crc32_combine(checkpoint->crc, crc_of_zeros(moments), (z_off_t)moments);
    checkpoint->unit_begin += weights + moments;
}

static enum status checkpoint_write(
    const float *values, const struct param *param, struct weights *weights)
{
    struct checkpoint *checkpoint = weights->state;
    const struct params *params = &checkpoint->params;
    assert(checkpoint->next_param < params->param_count);
    const struct param *own = &params->param[checkpoint->next_param++];
    size_t count = own->rows * own->cols, bytes = count * sizeof *values;
    assert(strcmp(own->name, param->name) == 0);
    uint64_t at = checkpoint->unit_begin + (uint64_t)own->offset * sizeof *values;
    if (fseeko(checkpoint->file, (off_t)at, SEEK_SET) != 0 ||
        fwrite(values, sizeof *values, count, checkpoint->file) != count)
        return fail_write(checkpoint);
    checkpoint->crc = crc32_z(checkpoint->crc, (const Bytef *)values, bytes);
    bool last = checkpoint->next_param == params->param_count;
    if (last || own[1].unit != own->unit) end_unit(checkpoint, own->unit);
    return STATUS_OK;
}

static enum status close_file(struct checkpoint *checkpoint)
{
    FILE *file = checkpoint->file;
    checkpoint->file = NULL;
    bool written = fflush(file) == 0 &&
                   ftruncate(fileno(file), (off_t)checkpoint->unit_begin) == 0 &&
                   fsync(fileno(file)) == 0;
    int error = errno;
    if (fclose(file) == 0 && written) return STATUS_OK;
    if (!written) errno = error;
    return fail_write(checkpoint);
}

static enum status checkpoint_finish(struct weights *weights)
{
    struct checkpoint *checkpoint = weights->state;
    assert(checkpoint->next_param == checkpoint->params.param_count);
    const struct grid grid = grid_at(0, 1, 1, 1, 0);
    uint64_t bytes = checkpoint->unit_begin;
    uint32_t crc = (uint32_t)checkpoint->crc;
    TRY(close_file(checkpoint));
    TRY(manifest_write(checkpoint->temporary, &bytes, &crc, &weights->config, &grid, NULL));
    TRY(synchronize_directory(checkpoint->temporary));
    TRY(rename_directory(checkpoint->temporary, checkpoint->directory));
    return synchronize_directory(weights->path);
}

static void checkpoint_close(struct weights *weights)
{
    struct checkpoint *checkpoint = weights->state;
    if (checkpoint == NULL) return;
    if (checkpoint->file != NULL) fclose(checkpoint->file);
    if (checkpoint->temporary[0] != '\0' && !weights->whole)
        remove_directory(checkpoint->temporary);
    if (checkpoint->made && !weights->whole) rmdir(weights->path);
    manifest_free(&checkpoint->manifest);
    params_free(&checkpoint->params);
    free(checkpoint);
}

const struct weights_format weights_checkpoint = {.name = "a checkpoint",
    .open = checkpoint_open,
    .read = checkpoint_read,
    .create = checkpoint_create,
    .write = checkpoint_write,
    .finish = checkpoint_finish,
    .close = checkpoint_close};
