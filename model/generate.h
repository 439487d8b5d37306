/* generate: goes on with a text, token by token: decode.h reads, draw.h draws, and this keeps the
 * text within the model's context.
 *
 *   context of 8, full     a b c d e f g h          and the next token is i
 *   goes on with                     f g h i        read as a text of its own: the last half
 *   full again                       f g h i j k l m
 *
 * So a token costs one row of every product, and once in half a context that half is read again.
 * What comes after is what the model says of the last 4 to 8 tokens, as if there had been none
 * before.
 */
#ifndef MODEL_GENERATE_H
#define MODEL_GENERATE_H

#include <stddef.h>
#include <stdint.h>

#include "model/draw.h"
#include "model/hooks.h"
#include "model/params.h"
#include "verbs/device.h"
#include "verbs/dtype.h"

struct generator;

/* params, hooks, weights and device: as decoder_open(), whose memory it holds for max_t positions.
 * errors: SYSTEM. */
MUST_CHECK enum status generator_open(struct generator **generator, const struct params *params,
    const struct model_hooks *hooks, enum dtype weights, struct device *device);
/* NULL is accepted. */
void generator_close(struct generator *generator);

/* Reads a prompt of count ≥ 1 tokens; forgets what was before. Of more than max_t the last half
 * context is read. errors: as decoder_read(). */
MUST_CHECK enum status generator_begin(
    const int32_t *tokens, size_t count, struct generator *generator);
/* Back to the end of the prompt, for another text: with the same bits as after generator_begin().
 */
MUST_CHECK enum status generator_again(struct generator *generator);

/* Draws the next token, below `vocab` (at most the model's: rows beyond are padding). state:
 * draw.h's. errors: the hooks'. */
MUST_CHECK enum status generator_next(int32_t *token, int vocab, const struct draw_config *draw,
    uint64_t *state, struct generator *generator);

/* How many times the context was full since the prompt; one longer than it counts too. */
int generator_restarts(const struct generator *generator);

#endif
