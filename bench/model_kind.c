/* model_kind: see model_kind.h. */
#include "bench/model_kind.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/checkpoint_weights.h"

#define LLMC_MAGIC 20240326
#define IN_FOLDER  "model.safetensors" /* of Hugging Face's folders */

const struct model_kind model_kind_checkpoint = {"checkpoint", NULL, &weights_checkpoint};
const struct model_kind model_kind_safetensors = {
    "safetensors", ".safetensors", &weights_safetensors};
const struct model_kind model_kind_llmc = {"llmc", ".bin", &weights_llmc};

static const struct model_kind *const kinds[] = {
    &model_kind_checkpoint, &model_kind_safetensors, &model_kind_llmc};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

const struct model_kind *model_kind_named(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (strcmp(name, kinds[i]->name) == 0) return kinds[i];
    return NULL;
}

static bool ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), of_ending = strlen(ending);
    return length >= of_ending && strcmp(path + length - of_ending, ending) == 0;
}

const struct model_kind *model_kind_of_ending(const char *path)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (kinds[i]->ending != NULL && ends_in(path, kinds[i]->ending)) return kinds[i];
    return NULL;
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

const struct model_kind *model_kind_found(char path[PATH_MAX], const char *given)
{
    struct stat about;
    if (stat(given, &about) == 0 && S_ISDIR(about.st_mode)) {
        snprintf(path, PATH_MAX, "%s/" IN_FOLDER, given);
        if (access(path, F_OK) == 0) return &model_kind_safetensors;
        snprintf(path, PATH_MAX, "%s", given);
        return &model_kind_checkpoint;
    }
    snprintf(path, PATH_MAX, "%s", given);
    const struct model_kind *kind = model_kind_of_ending(path);
    if (kind == NULL && begins_as_llmc(path)) kind = &model_kind_llmc;
    return kind;
}
