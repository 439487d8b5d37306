/* checkpoint_manifest: which file has what, and writing it down: see checkpoint_manifest.h. */
#include "shard/checkpoint_manifest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- which file has what ---- */

int manifest_file_count(const struct grid *grid)
{
    return grid->pipeline_count * grid->shard_group * grid->tensor_count;
}

/* What is at the place of the rank that writes a file. */
static struct grid file_grid(int file, const struct grid *grid)
{
    int group = file / grid->tensor_count; /* pipeline · G + data */
    int place = grid_place(
        grid, group / grid->shard_group, group % grid->shard_group, file % grid->tensor_count);
    return grid_at(place, grid_nranks(grid), grid->tensor_count, grid->pipeline_count,
        grid->shard_group);
}

int manifest_file_rank(int file, const struct grid *grid)
{
    const struct grid at = file_grid(file, grid);
    return grid_rank(grid, at.pipeline, at.data, at.tensor);
}

int manifest_file_of(const struct grid *grid)
{
    if (grid->data >= grid->shard_group) return -1;
    return (grid->pipeline * grid->shard_group + grid->data) * grid->tensor_count + grid->tensor;
}

/* Appends elements [begin, end) of a unit: to the last range, where they follow it. */
static int append_range(struct manifest_range *range, int count, int unit, size_t begin, size_t end)
{
    if (begin >= end) return count;
    struct manifest_range *last = count > 0 ? &range[count - 1] : NULL;
    if (last != NULL && last->unit == unit && last->begin + last->count == begin) {
        last->count += end - begin;
        return count;
    }
    range[count] = (struct manifest_range){.unit = unit, .begin = begin, .count = end - begin};
    return count + 1;
}

int manifest_plan(struct manifest_range *range, uint64_t *bytes, const struct params *params,
    const struct layout *layout, int rank)
{
    int count = 0;
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        struct layout_range owned = layout_owned(layout, param->unit, rank);
        size_t begin = param->offset, end = begin + param->rows * param->cols;
        if (!params_stands_for(params, param)) continue;
        if (begin < owned.begin) begin = owned.begin;
        if (end > owned.begin + owned.count) end = owned.begin + owned.count;
        count = append_range(range, count, param->unit, begin, end);
    }
    *bytes = 0;
    for (int i = 0; i < count; i++) {
        range[i].offset = *bytes;
        *bytes += (uint64_t)range[i].count * sizeof(float) * STAGE_STATE_COUNT;
    }
    return count;
}

/* ---- writing ---- */

/* Those of a model into `model`, those that decide the bits of a run into `settings`. */
static void describe_values(
    cJSON *model, cJSON *settings, const struct train_value *values, int count)
{
    for (int i = 0; i < count; i++) {
        const struct agree_value *is = &values[i].is;
        cJSON *group = values[i].kind == VALUE_MODEL ? model : settings;
        if (values[i].kind == VALUE_ORDER) continue;
        if (is->word != NULL) cJSON_AddStringToObject(group, is->name, is->word(is->value));
        else cJSON_AddNumberToObject(group, is->name, is->value);
    }
}

static void describe_scale(cJSON *root, const struct trainer *trainer)
{
    if (trainer == NULL || !train_config_scales(&trainer->config)) return;
    cJSON *scale = cJSON_AddObjectToObject(root, "loss_scale");
    cJSON_AddNumberToObject(scale, "value", trainer->scale.value);
    cJSON_AddNumberToObject(scale, "good_steps", (double)trainer->scale.good_steps);
}

static cJSON *describe_ranges(const struct manifest_range *ranges, int count)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < count; i++) {
        const double numbers[4] = {ranges[i].unit, (double)ranges[i].begin, (double)ranges[i].count,
            (double)ranges[i].offset};
        cJSON_AddItemToArray(list, cJSON_CreateDoubleArray(numbers, 4));
    }
    return list;
}

/* One file, of whichever rank and part. errors: SYSTEM (memory). */
static enum status describe_shard(cJSON *shards, uint64_t bytes, uint32_t crc, int file,
    const struct model_config *model, const struct grid *own)
{
    const struct grid grid = file_grid(file, own);
    const struct params_part part = grid_part(&grid);
    struct params params = {0};
    struct layout layout = {0};
    struct manifest_range *ranges = NULL;
    char name[CHECKPOINT_NAME_BYTES];
    uint64_t planned_bytes;
    cJSON *shard = cJSON_CreateObject();
    cJSON_AddItemToArray(shards, shard);
    enum status status;
    TRY_GOTO(params_make_part(&params, model, &part));
    TRY_GOTO(layout_make(&layout, &params, grid.shard_group));
    ranges = calloc((size_t)params.param_count, sizeof *ranges);
    if (ranges == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for the ranges of a checkpoint's file");
        goto fail;
    }
    int count = manifest_plan(ranges, &planned_bytes, &params, &layout, grid.data);
    shard_name(name, file, manifest_file_count(own));
    cJSON_AddStringToObject(shard, "file", name);
    cJSON_AddNumberToObject(shard, "bytes", (double)bytes);
    cJSON_AddNumberToObject(shard, "crc32", crc);
    const int numbers[4] = {part.tensor_rank, part.tensor_count, part.stage, part.stage_count};
    if (part.tensor_count * part.stage_count > 1)
        cJSON_AddItemToObject(shard, "part", cJSON_CreateIntArray(numbers, 4));
    cJSON_AddItemToObject(shard, "ranges", describe_ranges(ranges, count));
fail:
    free(ranges);
    layout_free(&layout);
    params_free(&params);
    return status;
}

/* As manifest_write(). NULL: no memory. */
static char *describe(const uint64_t *bytes, const uint32_t *crc, const struct model_config *model,
    const struct grid *grid, const struct trainer *trainer)
{
    struct train_value values[TRAIN_VALUES_MOST];
    int count = trainer != NULL ? train_values(values, &trainer->config, trainer->nranks)
                                : train_model_values(values, model);
    cJSON *root = cJSON_CreateObject();
    char *text = NULL;
    cJSON_AddStringToObject(root, "format", MANIFEST_FORMAT);
    cJSON_AddNumberToObject(root, "version", MANIFEST_VERSION);
    cJSON *of_model = cJSON_AddObjectToObject(root, "model");
    describe_values(of_model, cJSON_AddObjectToObject(root, "settings"), values, count);
    cJSON_AddNumberToObject(root, "step", trainer != NULL ? (double)trainer->step : 0.0);
    cJSON_AddNumberToObject(root, "adam_t", trainer != NULL ? (double)trainer->adam_t : 0.0);
    cJSON_AddNumberToObject(root, "sequences", trainer != NULL ? (double)trainer->sequences : 0.0);
    describe_scale(root, trainer);
    cJSON *shards = cJSON_AddArrayToObject(root, "shards");
    enum status status = STATUS_OK;
    for (int i = 0; i < manifest_file_count(grid) && status == STATUS_OK; i++)
        status = describe_shard(shards, bytes[i], crc[i], i, model, grid);
    if (status == STATUS_OK) text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}

enum status manifest_write(const char *directory, const uint64_t *bytes, const uint32_t *crc,
    const struct model_config *model, const struct grid *grid, const struct trainer *trainer)
{
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, directory, MANIFEST_NAME));
    char *text = describe(bytes, crc, model, grid, trainer);
    if (text == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory to write it", path);
    FILE *file = fopen(path, "wxe");
    bool written = file != NULL && fputs(text, file) >= 0 && fputc('\n', file) != EOF &&
                   fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = errno;
    if (file != NULL && fclose(file) != 0 && written) written = false;
    free(text);
    if (written) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s: cannot be written: %s: make room", path, strerror(error));
}

void manifest_free(struct manifest *manifest)
{
    for (int i = 0; i < manifest->shard_count; i++) free(manifest->shard[i].range);
    for (int p = 0; p < manifest->part_count; p++) params_free(&manifest->part[p]);
    free(manifest->shard);
    free(manifest->part);
    *manifest = (struct manifest){0};
}
