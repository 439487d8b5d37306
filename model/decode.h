/* decode: a model reads a text token by token and says what may come next. The keys and values of
 * what it has read are kept, so a token costs one row of every product, whatever came before.
 *
 *   read "In the"       rows 0, 1    keys and values of 0, 1 are kept; logits after "the"
 *   read " beginning"   row 2        looks at the keys of 0, 1, 2
 *
 * On the host, computing in float32, one sequence, one rank that has the whole model. Many tokens
 * read at once, as a prompt, are rows of one product.
 */
#ifndef MODEL_DECODE_H
#define MODEL_DECODE_H

#include "model/hooks.h"
#include "model/params.h"
#include "verbs/device.h"
#include "verbs/dtype.h"

struct decoder;

/* most: positions that will be read, up to the model's max_t. Holds 2 · L · most · KV · head_cols
 * floats of keys and values (MEMORY_ACTIVATIONS), and workspace of 64 rows (MEMORY_WORKSPACE).
 * params, of the whole model, hooks' context and device, a host, outlive it. weights: the dtype of
 * what enter() lends: float32, or bfloat16 or float16, which are widened unit by unit for every
 * read, into workspace of the largest unit. errors: INVALID (most), SYSTEM. */
MUST_CHECK enum status decoder_open(struct decoder **decoder, const struct params *params,
    const struct model_hooks *hooks, enum dtype weights, int most, struct device *device);
void decoder_close(struct decoder *decoder);

/* Reads count ≥ 1 more tokens; logits (V): of what follows the last. errors: DATA (a token outside
 * [0, V)), INVALID (more than `most` positions; nothing has been read then), the hooks'. */
MUST_CHECK enum status decoder_read(
    float *logits, const int32_t *tokens, int count, struct decoder *decoder);

/* Positions that have been read. */
int decoder_position(const struct decoder *decoder);
/* Forgets what was read from `position` on. */
void decoder_rewind(int position, struct decoder *decoder);

#endif
