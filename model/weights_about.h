/* weights_about: what Hugging Face's tensors do not tell of a model: config.json beside them, or the
 * metadata of a safetensors file.
 */
#ifndef MODEL_WEIGHTS_ABOUT_H
#define MODEL_WEIGHTS_ABOUT_H

#include "model/params.h"
#include "model/safetensors.h"

/* Architecture and channels are set. Sets heads, unless they are given (of GPT-2 else C / 64), and of Llama
 * max_t and rotary_base. errors: DATA naming field, found and expected, where a field is missing or no
 * number that it can be, or the model computes what ours do not. */
MUST_CHECK enum status weights_about_read(
    struct model_config *config, const char *path, const struct safetensors *file);

/* The same as metadata of a file that is written: key, text, …, NULL; all in `about`. */
struct weights_about {
    char text[8][24];
    const char *metadata[20];
};
void weights_about_fill(struct weights_about *about, const struct model_config *config);

/* config.json beside a file that has Hugging Face's own name, model.safetensors, unless there is one.
 * errors: SYSTEM. */
MUST_CHECK enum status weights_about_write(const char *path, const struct model_config *config);

#endif
