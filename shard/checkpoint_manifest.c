/* checkpoint_manifest: see checkpoint_manifest.h. */
#include "shard/checkpoint_manifest.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs/log.h"

#define MANIFEST_FORMAT  "ringzero checkpoint"
#define MANIFEST_VERSION 1
#define MANIFEST_MOST    ((long)1 << 30) /* bytes: beyond this it is no manifest */
#define NUMBER_MOST      0x1p53          /* a JSON number is a double */

#define PART_MOST 65536 /* ranks that share a tensor, stages of a pipeline */

/* ---- which file has what ---- */

int manifest_file_count(const struct grid *grid)
{
    return grid->pipeline_count * grid->shard_group * grid->tensor_count;
}

int manifest_file_rank(int file, const struct grid *grid)
{
    int group = file / grid->tensor_count; /* pipeline · G + data */
    return grid_rank(
        grid, group / grid->shard_group, group % grid->shard_group, file % grid->tensor_count);
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

static void describe_settings(cJSON *root, const struct trainer *trainer)
{
    struct train_value values[TRAIN_VALUES_MOST];
    int count = train_values(values, &trainer->config, trainer->nranks);
    cJSON *model = cJSON_AddObjectToObject(root, "model"),
          *settings = cJSON_AddObjectToObject(root, "settings");
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
    if (!train_config_scales(&trainer->config)) return;
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
static enum status describe_shard(
    cJSON *shards, uint64_t bytes, uint32_t crc, int file, const struct trainer *trainer)
{
    const struct grid *own = &trainer->grid;
    struct grid grid = grid_at(manifest_file_rank(file, own), grid_nranks(own), own->tensor_count,
        own->pipeline_count, own->shard_group);
    const struct params_part part = grid_part(&grid);
    struct params params = {0};
    struct layout layout = {0};
    struct manifest_range *ranges = NULL;
    char name[CHECKPOINT_NAME_BYTES];
    uint64_t planned_bytes;
    cJSON *shard = cJSON_CreateObject();
    cJSON_AddItemToArray(shards, shard);
    enum status status;
    TRY_GOTO(params_make_part(&params, &trainer->config.model, &part));
    TRY_GOTO(layout_make(&layout, &params, grid.shard_group));
    ranges = calloc((size_t)(params.unit_count + params.param_count), sizeof *ranges);
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

/* bytes, crc: of each file. NULL: no memory. */
static char *describe(const uint64_t *bytes, const uint32_t *crc, const struct trainer *trainer)
{
    cJSON *root = cJSON_CreateObject();
    char *text = NULL;
    cJSON_AddStringToObject(root, "format", MANIFEST_FORMAT);
    cJSON_AddNumberToObject(root, "version", MANIFEST_VERSION);
    describe_settings(root, trainer);
    cJSON_AddNumberToObject(root, "step", (double)trainer->step);
    cJSON_AddNumberToObject(root, "adam_t", (double)trainer->adam_t);
    cJSON_AddNumberToObject(root, "sequences", (double)trainer->sequences);
    describe_scale(root, trainer);
    cJSON *shards = cJSON_AddArrayToObject(root, "shards");
    enum status status = STATUS_OK;
    for (int i = 0; i < manifest_file_count(&trainer->grid) && status == STATUS_OK; i++)
        status = describe_shard(shards, bytes[i], crc[i], i, trainer);
    if (status == STATUS_OK) text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}

enum status manifest_write(const char *directory, const uint64_t *bytes, const uint32_t *crc,
    const struct trainer *trainer)
{
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, directory, MANIFEST_NAME));
    char *text = describe(bytes, crc, trainer);
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

/* ---- reading ---- */

static enum status read_text(char **text, const char *path)
{
    *text = NULL;
    FILE *file = fopen(path, "re");
    if (file == NULL) return FAIL(STATUS_DATA, "%s: cannot be opened: %s", path, strerror(errno));
    long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (bytes >= 0 && bytes < MANIFEST_MOST) *text = calloc(1, (size_t)bytes + 1);
    bool complete = *text != NULL && fseek(file, 0, SEEK_SET) == 0 &&
                    fread(*text, 1, (size_t)bytes, file) == (size_t)bytes;
    fclose(file);
    if (complete) return STATUS_OK;
    free(*text);
    *text = NULL;
    return FAIL(STATUS_DATA, "%s: %ld bytes cannot be read, expected a JSON object", path, bytes);
}

/* A whole number in [0, most] of an object (name) or an array (name NULL, index). */
static enum status read_number(uint64_t *value, const cJSON *parent, const char *name, int index,
    double most, const char *path)
{
    const cJSON *item = name != NULL ? cJSON_GetObjectItemCaseSensitive(parent, name)
                                     : cJSON_GetArrayItem(parent, index);
    char field[64];
    *value = 0;
    if (name != NULL) snprintf(field, sizeof field, "%s", name);
    else snprintf(field, sizeof field, "number %d of a range", index);
    if (!cJSON_IsNumber(item))
        return FAIL(STATUS_DATA, "%s: %s is missing or no number", path, field);
    double number = item->valuedouble;
    if (!(number >= 0.0 && number <= most) || number != (double)(uint64_t)number)
        return FAIL(STATUS_DATA, "%s: %s is %.17g, expected a whole number from 0 to %.17g", path,
            field, number, most);
    *value = (uint64_t)number;
    return STATUS_OK;
}

/* Equal, but for what a number loses as decimal text. */
static bool same_number(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

/* What one setting was, as text; whether it is what this run's is. */
static enum status read_setting(char saved[AGREE_TEXT_BYTES], bool *same, const cJSON *item,
    const struct agree_value *is, const char *group, const char *path)
{
    *same = false;
    if (is->word != NULL && cJSON_IsString(item)) {
        snprintf(saved, AGREE_TEXT_BYTES, "%s", item->valuestring);
        *same = strcmp(item->valuestring, is->word(is->value)) == 0;
        return STATUS_OK;
    }
    if (is->word != NULL || !cJSON_IsNumber(item))
        return FAIL(STATUS_DATA, "%s: %s.%s is missing or no %s", path, group, is->name,
            is->word != NULL ? "word" : "number");
    agree_text(saved, item->valuedouble, is);
    *same = same_number(item->valuedouble, is->value);
    return STATUS_OK;
}

static enum status check_settings(
    const cJSON *root, const char *path, const struct trainer *trainer)
{
    struct train_value values[TRAIN_VALUES_MOST];
    int count = train_values(values, &trainer->config, trainer->nranks);
    for (int i = 0; i < count; i++) {
        const struct agree_value *is = &values[i].is;
        const char *group = values[i].kind == VALUE_MODEL ? "model" : "settings";
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(root, group), is->name);
        char saved[AGREE_TEXT_BYTES], ours[AGREE_TEXT_BYTES];
        bool same, may_lack = values[i].kind == VALUE_BITS || is->value == 0.0;
        if (values[i].kind == VALUE_ORDER) continue;
        if (item == NULL && may_lack) continue; /* an older manifest; of a model, 0 is what was */
        TRY(read_setting(saved, &same, item, is, group, path));
        if (same) continue;
        agree_text(ours, is->value, is);
        if (values[i].kind == VALUE_MODEL)
            return FAIL(STATUS_INVALID,
                "%s: model.%s is %s, this run's is %s: give the model that was saved", path,
                is->name, saved, ours);
        if (trainer->rank == 0)
            LOG_WARN("checkpoint",
                "resuming with %s %s, saved with %s: losses will not be those of one "
                "uninterrupted run",
                is->name, ours, saved);
    }
    return STATUS_OK;
}

static enum status read_scale(struct manifest *manifest, const cJSON *root, const char *path)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, "loss_scale");
    if (object == NULL) return STATUS_OK;
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, "value");
    if (!cJSON_IsNumber(value) ||
        !(value->valuedouble > 0.0 && value->valuedouble <= LOSS_SCALE_MOST))
        return FAIL(STATUS_DATA,
            "%s: loss_scale.value is %g, expected a number above 0, at most %g", path,
            cJSON_IsNumber(value) ? value->valuedouble : NAN, LOSS_SCALE_MOST);
    manifest->scale = value->valuedouble;
    return read_number(&manifest->scale_good_steps, object, "good_steps", 0, NUMBER_MOST, path);
}

/* Of the whole model where it is missing. */
static enum status read_part(struct params_part *part, const cJSON *shard, const char *path)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(shard, "part");
    uint64_t number[4] = {0, 1, 0, 1};
    for (int i = 2; i >= 0 && list != NULL; i -= 2) { /* counts first: ranks are below them */
        TRY(read_number(&number[i + 1], list, NULL, i + 1, PART_MOST, path));
        if (number[i + 1] == 0)
            return FAIL(STATUS_DATA, "%s: a part of 0 parts, expected at least 1", path);
        TRY(read_number(&number[i], list, NULL, i, (double)number[i + 1] - 1, path));
    }
    *part = (struct params_part){(int)number[0], (int)number[1], (int)number[2], (int)number[3]};
    return STATUS_OK;
}

static enum status read_ranges(
    struct manifest_shard *shard, const cJSON *list, const char *path, const struct params *params)
{
    shard->range = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *shard->range);
    if (shard->range == NULL)
        return FAIL(STATUS_SYSTEM, "%s: no memory for the ranges of %s", path, shard->name);
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        uint64_t unit, begin, count, offset;
        TRY(read_number(&unit, item, NULL, 0, params->unit_count - 1, path));
        double elements = (double)params->unit_elements[unit];
        TRY(read_number(&begin, item, NULL, 1, elements, path));
        TRY(read_number(&count, item, NULL, 2, elements - (double)begin, path));
        double range_bytes = (double)(count * sizeof(float) * STAGE_STATE_COUNT);
        TRY(read_number(&offset, item, NULL, 3, (double)shard->bytes - range_bytes, path));
        shard->range[shard->range_count++] =
            (struct manifest_range){(int)unit, begin, count, offset};
    }
    return STATUS_OK;
}

static enum status read_shard(struct manifest_shard *shard, const cJSON *item, const char *path,
    const struct model_config *model)
{
    uint64_t crc;
    TRY(read_number(&shard->bytes, item, "bytes", 0, NUMBER_MOST, path));
    TRY(read_number(&crc, item, "crc32", 0, UINT32_MAX, path));
    shard->crc = (uint32_t)crc;
    TRY(read_part(&shard->part, item, path));
    struct params params;
    TRY(params_make_part(&params, model, &shard->part));
    const cJSON *ranges = cJSON_GetObjectItemCaseSensitive(item, "ranges");
    enum status status = read_ranges(shard, ranges, path, &params);
    params_free(&params);
    return status;
}

static enum status read_shards(
    struct manifest *manifest, const cJSON *root, const char *path, const struct trainer *trainer)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "shards"), *item;
    manifest->shard = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *manifest->shard);
    if (manifest->shard == NULL)
        return FAIL(STATUS_SYSTEM, "%s: no memory for its list of shards", path);
    cJSON_ArrayForEach(item, list)
    {
        struct manifest_shard *shard = &manifest->shard[manifest->shard_count++];
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
        if (name == NULL || strlen(name) >= sizeof shard->name || strchr(name, '/') != NULL)
            return FAIL(STATUS_DATA,
                "%s: shards[%d].file is %s, expected the name of a file beside it", path,
                manifest->shard_count - 1, name != NULL ? name : "missing");
        snprintf(shard->name, sizeof shard->name, "%s", name);
        TRY(read_shard(shard, item, path, &trainer->config.model));
    }
    return STATUS_OK;
}

static enum status read_root(
    struct manifest *manifest, const cJSON *root, const char *path, const struct trainer *trainer)
{
    const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "format"));
    if (format == NULL || strcmp(format, MANIFEST_FORMAT) != 0)
        return FAIL(STATUS_DATA, "%s: format is \"%.40s\", expected \"" MANIFEST_FORMAT "\"", path,
            format != NULL ? format : "");
    uint64_t version;
    TRY(read_number(&version, root, "version", 0, NUMBER_MOST, path));
    if (version != MANIFEST_VERSION)
        return FAIL(STATUS_DATA,
            "%s: version is %llu, expected %d: load it with the program that wrote it", path,
            (unsigned long long)version, MANIFEST_VERSION);
    TRY(check_settings(root, path, trainer));
    TRY(read_number(&manifest->step, root, "step", 0, NUMBER_MOST, path));
    TRY(read_number(&manifest->adam_t, root, "adam_t", 0, NUMBER_MOST, path));
    TRY(read_number(&manifest->sequences, root, "sequences", 0, NUMBER_MOST, path));
    TRY(read_scale(manifest, root, path));
    return read_shards(manifest, root, path, trainer);
}

enum status manifest_read(
    struct manifest *manifest, const char *directory, const struct trainer *trainer)
{
    char path[CHECKPOINT_PATH_BYTES], *text;
    *manifest = (struct manifest){0};
    TRY(path_join(path, directory, MANIFEST_NAME));
    TRY(read_text(&text, path));
    cJSON *root = cJSON_Parse(text);
    free(text);
    if (root == NULL)
        return FAIL(STATUS_DATA, "%s: found no JSON, expected one object: it is damaged", path);
    enum status status = read_root(manifest, root, path, trainer);
    cJSON_Delete(root);
    return status;
}

void manifest_free(struct manifest *manifest)
{
    for (int i = 0; i < manifest->shard_count; i++) free(manifest->shard[i].range);
    free(manifest->shard);
    *manifest = (struct manifest){0};
}
