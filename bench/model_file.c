/* model_file: see model_file.h. */
#include "bench/model_file.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LLMC_MAGIC 20240326

static bool ends_in(const char *name, const char *ending)
{
    size_t length = strlen(name), end = strlen(ending);
    return length >= end && strcmp(name + length - end, ending) == 0;
}

/* A file that cannot be read is the format's to tell. */
static bool begins_as_llmc(const char *path)
{
    uint32_t magic = 0;
    FILE *file = fopen(path, "rbe");
    bool read = file != NULL && fread(&magic, sizeof magic, 1, file) == 1;
    if (file != NULL) fclose(file);
    return read && magic == LLMC_MAGIC;
}

enum status model_file_open(struct weights **weights, const char *path, int heads)
{
    const struct weights_format *format = &weights_safetensors;
    if (ends_in(path, ".bin")) format = &weights_llmc;
    else if (!ends_in(path, ".safetensors") && begins_as_llmc(path)) format = &weights_llmc;
    return weights_open(weights, path, format, heads);
}

void model_file_describe(
    char text[MODEL_FILE_BYTES], const char *path, const struct resident *resident)
{
    const struct params *params = resident_params(resident);
    char shape[MODEL_SHAPE_BYTES];
    model_shape(shape, &params->config);
    snprintf(text, MODEL_FILE_BYTES, "%s: %.2f M parameters, %s, held in %s", path,
        (double)params->elements * 1e-6, shape, dtype_name(resident_dtype(resident)));
}
