/* weights: a model's parameters in a file, whatever its format, tensor by tensor and in float32.
 *
 *     TRY(weights_open(&from, path, &weights_safetensors, 0));     from->config is the model
 *     TRY(weights_create(&to, path, &weights_llmc, &from->config, DTYPE_FLOAT32));
 *     for each param of params_make(from->config):
 *         TRY(weights_read(values, param, from));
 *         TRY(weights_write(values, param, to));
 *     TRY(weights_finish(to));
 *
 * A file that is being written is called ….part until it is whole. Checkpoints are a format too:
 * shard/checkpoint_weights.h.
 */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include <stdbool.h>

#include "model/params.h"
#include "verbs/dtype.h"
#include "verbs/status.h"

struct weights;

struct weights_format {
    const char *name;
    /* config.heads: as given; or 0, for what the file says. Fills in config and dtype. */
    enum status (*open)(struct weights *weights);
    enum status (*read)(float *values, const struct param *param, struct weights *weights);
    /* config and dtype are set. */
    enum status (*create)(struct weights *weights);
    enum status (*write)(const float *values, const struct param *param, struct weights *weights);
    enum status (*finish)(struct weights *weights);
    /* What open or create made, also if they failed; removes what is not whole. */
    void (*close)(struct weights *weights);
};

struct weights {
    const struct weights_format *format;
    char *path;
    struct model_config config;
    enum dtype dtype; /* of the values in the file: float32, bfloat16 or float16 */
    bool writes, whole;
    void *state; /* the format's */
};

/* llm.c's model file: float32 (version 3) or bfloat16 (5). */
extern const struct weights_format weights_llmc;
/* Hugging Face's GPT-2 and Llama. What tensors do not tell is in config.json beside the file, or in its
 * metadata: heads (of GPT-2 else C / 64), Llama's positions and base. A file that is written as
 * model.safetensors gets a config.json beside it, if there is none. */
extern const struct weights_format weights_safetensors;

/* heads: 0, or instead of what the file says. errors: DATA naming file, field, found and expected;
 * INVALID (heads); SYSTEM. */
MUST_CHECK enum status weights_open(struct weights **weights, const char *path,
    const struct weights_format *format, int heads);

/* errors: INVALID (the format has no such model or dtype), SYSTEM. */
MUST_CHECK enum status weights_create(struct weights **weights, const char *path,
    const struct weights_format *format, const struct model_config *config, enum dtype dtype);

/* values: (whole_rows, whole_cols) of a parameter of the whole model. Written once each, in the order
 * of params.h. errors: DATA, SYSTEM. */
MUST_CHECK enum status weights_read(float *values, const struct param *param, struct weights *weights);
MUST_CHECK enum status weights_write(
    const float *values, const struct param *param, struct weights *weights);

/* The file gets its name. */
MUST_CHECK enum status weights_finish(struct weights *weights);
/* Removes a file that is not whole. NULL is accepted. */
void weights_close(struct weights *weights);

#endif
