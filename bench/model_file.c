/* model_file: see model_file.h. */
#include "bench/model_file.h"

#include <stdio.h>
#include <unistd.h>

#include "bench/model_kind.h"
#include "model/blas.h"

#define MOST_THREADS 1024

/* ---- options ---- */

enum { KEY_CHECKPOINT = 0x600, KEY_HEADS, KEY_DTYPE, KEY_THREADS };

static const struct argp_option list[] = {
    {"checkpoint", KEY_CHECKPOINT, "DIR|FILE", 0,
        "the model: a checkpoint's directory, Hugging Face's GPT-2 or Llama (.safetensors, or its "
        "folder) "
        "or llm.c's (.bin); required",
        1},
    {"heads", KEY_HEADS, "N", 0, "of attention, where the file does not say", 1},
    {"dtype", KEY_DTYPE, "DTYPE", 0,
        "that weights are held in: float32 (the default), bfloat16 or float16; halves the memory, "
        "and takes longer: they are widened for every use",
        1},
    {"threads", KEY_THREADS, "N", 0, "of matrix products (one a core)", 1},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct model_file *file = state->input;
    const struct options *common = file->common;
    switch (key) {
    case KEY_CHECKPOINT: file->path = text; return 0;
    case KEY_HEADS: file->heads = options_count(text, "--heads", common); return 0;
    case KEY_DTYPE: file->dtype = options_training_dtype(text, "--dtype", common); return 0;
    case KEY_THREADS:
        file->threads = (int)options_integer(text, "--threads", 1, MOST_THREADS, common);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp model_file_argp = {.options = list, .parser = parse_option};

struct model_file model_file_default(const struct options *common)
{
    return (struct model_file){.common = common, .dtype = DTYPE_FLOAT32};
}

void model_file_finish(struct model_file *file)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (file->path == NULL)
        options_refuse(file->common,
            "--checkpoint is missing, expected a checkpoint's directory, or a file of weights");
    if (file->common->ranks > 1)
        options_refuse(file->common, "--ranks is %d, expected 1: this program is one process",
            file->common->ranks);
    blas_set_threads(file->threads > 0 ? file->threads : cores > 0 ? (int)cores : 1);
    file->common = NULL;
}

/* ---- files ---- */

enum status model_file_open(struct weights **weights, const struct model_file *file)
{
    char path[PATH_MAX];
    const struct model_kind *kind = model_kind_found(path, file->path);
    if (kind == NULL) kind = &model_kind_safetensors; /* which says what it misses */
    return weights_open(weights, path, kind->format, file->heads);
}

void model_file_describe(
    char text[MODEL_FILE_BYTES], const struct model_file *file, const struct resident *resident)
{
    const struct params *params = resident_params(resident);
    char shape[MODEL_SHAPE_BYTES];
    model_shape(shape, &params->config);
    snprintf(text, MODEL_FILE_BYTES, "%s: %.2f M parameters, %s, held in %s", file->path,
        (double)params->elements * 1e-6, shape, dtype_name(resident_dtype(resident)));
}
