/* checkpoint_manifest_read: reading manifest.json: see checkpoint_manifest.h.
 *
 * Invariant: whatever the file says, what is taken from it lies within its units and files, and nothing is
 * allocated that is not of the order of the file itself, but for one table for each part that has a file.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/checkpoint_manifest.h"
#include "verbs/log.h"

#define MANIFEST_MOST ((long)1 << 30) /* bytes: beyond this it is no manifest */
#define NUMBER_MOST   0x1p53          /* a JSON number is a double */
#define PART_MOST     65536           /* ranks that share a tensor, stages of a pipeline */

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

/* A whole number in [least, most]. field: what it is called in messages. */
static enum status take_number(uint64_t *value, const cJSON *item, const char *field, double least,
    double most, const char *path)
{
    *value = 0;
    if (!cJSON_IsNumber(item))
        return FAIL(STATUS_DATA,
            "%s: %s is missing or no number, expected one from %.17g to %.17g: it is damaged", path, field,
            least, most);
    double number = item->valuedouble;
    if (!(number >= least && number <= most) || number != (double)(uint64_t)number)
        return FAIL(STATUS_DATA,
            "%s: %s is %.17g, expected a whole number from %.17g to %.17g: it is damaged", path, field,
            number, least, most);
    *value = (uint64_t)number;
    return STATUS_OK;
}

/* One from 0 on, of an object. */
static enum status read_number(
    uint64_t *value, const cJSON *object, const char *name, double most, const char *path)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return take_number(value, item, name, 0.0, most, path);
}

/* A list of numbers, and what it is called: "shards[3].part". */
struct list {
    const cJSON *items;
    char name[64];
};

static enum status read_entry(uint64_t *value, const struct list *list, int index, double least,
    double most, const char *path)
{
    char field[sizeof list->name + 16];
    snprintf(field, sizeof field, "%s[%d]", list->name, index);
    return take_number(
        value, cJSON_GetArrayItem(list->items, index), field, least, most, path);
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

/* A field of the model; 0 where it is missing. */
static enum status read_field(int *field, const cJSON *model, const char *name, const char *path)
{
    uint64_t value = 0;
    if (cJSON_GetObjectItemCaseSensitive(model, name) != NULL)
        TRY(read_number(&value, model, name, INT_MAX, path));
    *field = (int)value;
    return STATUS_OK;
}

static enum status read_architecture(
    enum architecture *architecture, const cJSON *model, const char *path)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(model, "architecture");
    const char *word = cJSON_GetStringValue(item);
    *architecture = ARCHITECTURE_GPT2;
    if (item == NULL || (word != NULL && strcmp(word, architecture_name(ARCHITECTURE_GPT2)) == 0))
        return STATUS_OK; /* an older manifest knows no other */
    *architecture = ARCHITECTURE_LLAMA;
    if (word != NULL && strcmp(word, architecture_name(ARCHITECTURE_LLAMA)) == 0) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: model.architecture is \"%.40s\", expected \"gpt2\" or \"llama\"",
        path, word != NULL ? word : "no word");
}

static enum status read_model(struct model_config *config, const cJSON *root, const char *path)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    const struct {
        const char *name;
        int *field;
    } fields[] = {{"max_t", &config->max_t}, {"vocab", &config->vocab}, {"layers", &config->layers},
        {"heads", &config->heads}, {"channels", &config->channels},
        {"vocab_block", &config->vocab_block}, {"kv_heads", &config->kv_heads},
        {"hidden", &config->hidden}, {"rotary_base", &config->rotary_base}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        TRY(read_field(fields[i].field, model, fields[i].name, path));
    TRY(read_architecture(&config->architecture, model, path));
    if (model_config_check(config) == STATUS_OK) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: %s", path, status_text());
}

/* That the model is the one that the shards hold, before tables of its size are made: each of its
 * elements has its three numbers in one file, each of its units a range (but Llama's positions, which
 * have no elements). */
static enum status check_extent(
    const struct model_config *model, const cJSON *root, const char *path)
{
    double bytes = 0.0, ranges = 1.0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "shards"))
    {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(item, "bytes");
        if (cJSON_IsNumber(number)) bytes += number->valuedouble;
        ranges += cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(item, "ranges"));
    }
    double elements = model_elements(model), units = model_unit_count(model);
    if (elements * sizeof(float) * STAGE_STATE_COUNT != bytes || bytes > NUMBER_MOST)
        return FAIL(STATUS_DATA,
            "%s: shards have %.17g bytes, expected 12 for each of the model's %.17g parameters: it is "
            "damaged", path, bytes, elements);
    if (units > ranges)
        return FAIL(STATUS_DATA,
            "%s: shards have %.17g ranges, expected one at least for each of the model's %.17g units: it "
            "is damaged", path, ranges - 1.0, units);
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
    return read_number(&manifest->scale_good_steps, object, "good_steps", NUMBER_MOST, path);
}

/* Of the whole model where it is missing. */
static enum status read_part(
    struct params_part *part, const cJSON *shard, int index, const char *path)
{
    struct list list = {cJSON_GetObjectItemCaseSensitive(shard, "part"), ""};
    uint64_t number[4] = {0, 1, 0, 1};
    snprintf(list.name, sizeof list.name, "shards[%d].part", index);
    for (int i = 2; i >= 0 && list.items != NULL; i -= 2) { /* counts first: ranks are below them */
        TRY(read_entry(&number[i + 1], &list, i + 1, 1.0, PART_MOST, path));
        TRY(read_entry(&number[i], &list, i, 0.0, (double)number[i + 1] - 1, path));
    }
    *part = (struct params_part){(int)number[0], (int)number[1], (int)number[2], (int)number[3]};
    return STATUS_OK;
}

static enum status read_range(struct manifest_range *range, const struct list *list,
    uint64_t shard_bytes, const char *path, const struct params *params)
{
    uint64_t unit, begin, count, offset;
    TRY(read_entry(&unit, list, 0, 0.0, params->unit_count - 1, path));
    double elements = (double)params->unit_elements[unit];
    TRY(read_entry(&begin, list, 1, 0.0, elements, path));
    TRY(read_entry(&count, list, 2, 0.0, elements - (double)begin, path));
    double range_bytes = (double)(count * sizeof(float) * STAGE_STATE_COUNT);
    TRY(read_entry(&offset, list, 3, 0.0, (double)shard_bytes - range_bytes, path));
    *range = (struct manifest_range){(int)unit, begin, count, offset};
    return STATUS_OK;
}

static enum status read_ranges(struct manifest_shard *shard, const cJSON *ranges, int index,
    const char *path, const struct params *params)
{
    shard->range = calloc((size_t)cJSON_GetArraySize(ranges) + 1, sizeof *shard->range);
    if (shard->range == NULL)
        return FAIL(STATUS_SYSTEM, "%s: no memory for the ranges of %s", path, shard->name);
    const cJSON *item;
    cJSON_ArrayForEach(item, ranges)
    {
        struct list list = {item, ""};
        int r = shard->range_count;
        snprintf(list.name, sizeof list.name, "shards[%d].ranges[%d]", index, r);
        TRY(read_range(&shard->range[r], &list, shard->bytes, path, params));
        shard->range_count++;
    }
    return STATUS_OK;
}

static bool same_part(const struct params_part *a, const struct params_part *b)
{
    return a->tensor_rank == b->tensor_rank && a->tensor_count == b->tensor_count &&
           a->stage == b->stage && a->stage_count == b->stage_count;
}

/* The table of a part: one that is there, or the next. */
static enum status find_part(int *index, const struct params_part *part, struct manifest *manifest)
{
    int p = 0;
    while (p < manifest->part_count && !same_part(&manifest->part[p].part, part)) p++;
    *index = p;
    if (p < manifest->part_count) return STATUS_OK;
    TRY(params_make_part(&manifest->part[p], &manifest->model, part));
    manifest->part_count++;
    return STATUS_OK;
}

static enum status read_shard(
    struct manifest *manifest, int index, const cJSON *item, const char *path)
{
    struct manifest_shard *shard = &manifest->shard[index];
    struct params_part part;
    uint64_t crc;
    TRY(read_number(&shard->bytes, item, "bytes", NUMBER_MOST, path));
    TRY(read_number(&crc, item, "crc32", UINT32_MAX, path));
    shard->crc = (uint32_t)crc;
    TRY(read_part(&part, item, index, path));
    TRY(find_part(&shard->part, &part, manifest));
    const cJSON *ranges = cJSON_GetObjectItemCaseSensitive(item, "ranges");
    return read_ranges(shard, ranges, index, path, &manifest->part[shard->part]);
}

static enum status read_shards(struct manifest *manifest, const cJSON *root, const char *path)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "shards"), *item;
    size_t most = (size_t)cJSON_GetArraySize(list) + 1;
    manifest->shard = calloc(most, sizeof *manifest->shard);
    manifest->part = calloc(most, sizeof *manifest->part);
    if (manifest->shard == NULL || manifest->part == NULL)
        return FAIL(STATUS_SYSTEM, "%s: no memory for its list of shards", path);
    cJSON_ArrayForEach(item, list)
    {
        int index = manifest->shard_count++;
        struct manifest_shard *shard = &manifest->shard[index];
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
        if (name == NULL || strlen(name) >= sizeof shard->name || strchr(name, '/') != NULL)
            return FAIL(STATUS_DATA,
                "%s: shards[%d].file is %s, expected the name of a file beside it", path, index,
                name != NULL ? name : "missing");
        snprintf(shard->name, sizeof shard->name, "%s", name);
        TRY(read_shard(manifest, index, item, path));
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
    TRY(read_number(&version, root, "version", NUMBER_MOST, path));
    if (version != MANIFEST_VERSION)
        return FAIL(STATUS_DATA,
            "%s: version is %llu, expected %d: load it with the program that wrote it", path,
            (unsigned long long)version, MANIFEST_VERSION);
    if (trainer != NULL) {
        TRY(check_settings(root, path, trainer));
        manifest->model = trainer->config.model;
    } else {
        TRY(read_model(&manifest->model, root, path));
        TRY(check_extent(&manifest->model, root, path));
    }
    TRY(read_number(&manifest->step, root, "step", NUMBER_MOST, path));
    TRY(read_number(&manifest->adam_t, root, "adam_t", NUMBER_MOST, path));
    TRY(read_number(&manifest->sequences, root, "sequences", NUMBER_MOST, path));
    TRY(read_scale(manifest, root, path));
    return read_shards(manifest, root, path);
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
