/* safetensors: see safetensors.h. */
#include "model/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "model/mapped_file.h"

#define LENGTH_BYTES    8
#define MOST_HEADER     ((uint64_t)100 << 20) /* the format's own limit */
#define METADATA_NAME   "__metadata__"
#define HEADER_MULTIPLE 8

static const struct {
    const char *name;
    enum dtype dtype;
} dtypes[] = {{"F32", DTYPE_FLOAT32}, {"F16", DTYPE_FLOAT16}, {"BF16", DTYPE_BFLOAT16},
    {"F64", DTYPE_FLOAT64}, {"I8", DTYPE_INT8}, {"U8", DTYPE_UINT8}, {"I32", DTYPE_INT32},
    {"U32", DTYPE_UINT32}, {"I64", DTYPE_INT64}, {"U64", DTYPE_UINT64}};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

struct safetensors {
    char *path;
    struct mapped_file mapped;
    const unsigned char *data;
    size_t data_bytes;
    cJSON *header; /* owns the names */
    int count;
    struct safetensors_tensor *tensor;
};

/* ---- one tensor ---- */

static enum dtype dtype_of(const char *name)
{
    for (size_t i = 0; i < DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return dtypes[i].dtype;
    return DTYPE_COUNT;
}

/* A whole number from 0 on that a double holds exactly. */
static bool read_count(uint64_t *value, const cJSON *item)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0 && item->valuedouble <= 0x1p53) ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    *value = (uint64_t)item->valuedouble;
    return true;
}

/* Elements; false: more than can be. A tensor of no dimensions has one. */
static bool read_shape(struct safetensors_tensor *tensor, uint64_t *elements, const cJSON *shape)
{
    const cJSON *item;
    *elements = 1;
    if (!cJSON_IsArray(shape)) return false;
    cJSON_ArrayForEach(item, shape)
    {
        uint64_t extent;
        if (tensor->dims == SAFETENSORS_DIMS || !read_count(&extent, item)) return false;
        if (extent > 0 && *elements > ((uint64_t)1 << 53) / extent) return false;
        tensor->shape[tensor->dims++] = extent;
        *elements *= extent;
    }
    return true;
}

static enum status fail_tensor(const cJSON *item, const char *field, const char *expected,
    const struct safetensors *file)
{
    return FAIL(STATUS_DATA, "%s: tensor \"%.60s\": %s is not right, expected %s: the file is damaged",
        file->path, item->string, field, expected);
}

static enum status read_tensor(
    struct safetensors_tensor *tensor, const cJSON *item, const struct safetensors *file)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    uint64_t elements, begin, end;
    *tensor = (struct safetensors_tensor){.name = item->string};
    if (!cJSON_IsString(dtype)) return fail_tensor(item, "dtype", "a name such as F32", file);
    tensor->dtype = dtype_of(dtype->valuestring);
    if (!read_shape(tensor, &elements, cJSON_GetObjectItemCaseSensitive(item, "shape")))
        return fail_tensor(item, "shape", "a list of at most 4 extents", file);
    if (cJSON_GetArraySize(offsets) != 2 || !read_count(&begin, cJSON_GetArrayItem(offsets, 0)) ||
        !read_count(&end, cJSON_GetArrayItem(offsets, 1)) || begin > end || end > file->data_bytes)
        return fail_tensor(item, "data_offsets", "[begin, end] within the file", file);
    if (tensor->dtype == DTYPE_COUNT) return STATUS_OK;
    tensor->bytes = (size_t)(end - begin);
    tensor->data = file->data + begin;
    if (elements <= SIZE_MAX / 8 && tensor->bytes == elements * dtype_bytes(tensor->dtype)) return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s: tensor \"%.60s\": data_offsets are %" PRIu64 " bytes apart, expected %" PRIu64 " (%" PRIu64
        " elements of %s): the file is damaged",
        file->path, item->string, end - begin, elements * dtype_bytes(tensor->dtype), elements,
        dtype_name(tensor->dtype));
}

/* ---- a file ---- */

static enum status parse_header(struct safetensors *file)
{
    uint64_t length;
    if (file->mapped.bytes < LENGTH_BYTES)
        return FAIL(STATUS_DATA, "%s: %zu bytes, expected a safetensors file of at least %d",
            file->path, file->mapped.bytes, LENGTH_BYTES);
    memcpy(&length, file->mapped.data, sizeof length);
    if (length > MOST_HEADER || length > file->mapped.bytes - LENGTH_BYTES)
        return FAIL(STATUS_DATA,
            "%s: its header would have %" PRIu64 " bytes, expected at most %zu: no safetensors file, or "
            "cut short",
            file->path, length, file->mapped.bytes - LENGTH_BYTES);
    file->data = file->mapped.data + LENGTH_BYTES + length;
    file->data_bytes = file->mapped.bytes - LENGTH_BYTES - (size_t)length;
    file->header = cJSON_ParseWithLength((const char *)file->mapped.data + LENGTH_BYTES, (size_t)length);
    if (cJSON_IsObject(file->header)) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: its header is no JSON object: no safetensors file", file->path);
}

static enum status read_tensors(struct safetensors *file)
{
    const cJSON *item;
    file->tensor = calloc((size_t)cJSON_GetArraySize(file->header) + 1, sizeof *file->tensor);
    if (file->tensor == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its table", file->path);
    cJSON_ArrayForEach(item, file->header)
    {
        if (strcmp(item->string, METADATA_NAME) == 0) continue;
        TRY(read_tensor(&file->tensor[file->count], item, file));
        file->count++;
    }
    return STATUS_OK;
}

enum status safetensors_open(struct safetensors **out, const char *path)
{
    *out = NULL;
    struct safetensors *file = calloc(1, sizeof *file);
    if (file == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory to read it", path);
    enum status status = STATUS_OK;
    file->path = strdup(path);
    if (file->path == NULL) status = FAIL(STATUS_SYSTEM, "%s: no memory to read it", path);
    if (status == STATUS_OK) status = mapped_file_open(&file->mapped, path, "safetensors");
    if (status == STATUS_OK) status = parse_header(file);
    if (status == STATUS_OK) status = read_tensors(file);
    if (status == STATUS_OK) *out = file;
    else safetensors_close(file);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    if (file == NULL) return;
    cJSON_Delete(file->header);
    mapped_file_close(&file->mapped);
    free(file->tensor);
    free(file->path);
    free(file);
}

int safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct safetensors_tensor *safetensors_at(int index, const struct safetensors *file)
{
    return &file->tensor[index];
}

const struct safetensors_tensor *safetensors_find(const char *name, const struct safetensors *file)
{
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->tensor[i].name, name) == 0) return &file->tensor[i];
    return NULL;
}

const char *safetensors_metadata(const char *key, const struct safetensors *file)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, METADATA_NAME);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(metadata, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

/* ---- writing ---- */

static const char *name_of(enum dtype dtype)
{
    for (size_t i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return "";
}

static char *describe(
    const struct safetensors_tensor *tensors, int count, const char *const *metadata)
{
    cJSON *root = cJSON_CreateObject(), *texts = cJSON_AddObjectToObject(root, METADATA_NAME);
    uint64_t at = 0;
    for (; *metadata != NULL; metadata += 2) cJSON_AddStringToObject(texts, metadata[0], metadata[1]);
    for (int i = 0; i < count; i++) {
        const struct safetensors_tensor *tensor = &tensors[i];
        cJSON *object = cJSON_AddObjectToObject(root, tensor->name);
        cJSON_AddStringToObject(object, "dtype", name_of(tensor->dtype));
        cJSON *shape = cJSON_AddArrayToObject(object, "shape");
        uint64_t bytes = dtype_bytes(tensor->dtype);
        for (int d = 0; d < tensor->dims; d++) {
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[d]));
            bytes *= tensor->shape[d];
        }
        const double offsets[2] = {(double)at, (double)(at + bytes)};
        cJSON_AddItemToObject(object, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
        at += bytes;
    }
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}

enum status safetensors_write_header(uint64_t *data_begin, FILE *file,
    const struct safetensors_tensor *tensors, int count, const char *const *metadata)
{
    char *text = describe(tensors, count, metadata);
    if (text == NULL) return FAIL(STATUS_SYSTEM, "no memory for the header of %d tensors", count);
    size_t length = strlen(text);
    uint64_t padded = (length + HEADER_MULTIPLE - 1) / HEADER_MULTIPLE * HEADER_MULTIPLE;
    bool written = fwrite(&padded, sizeof padded, 1, file) == 1 && fwrite(text, 1, length, file) == length;
    for (uint64_t i = length; i < padded && written; i++) written = fputc(' ', file) != EOF;
    free(text);
    *data_begin = LENGTH_BYTES + padded;
    return written ? STATUS_OK : FAIL(STATUS_SYSTEM, "the header cannot be written: %s", strerror(errno));
}
