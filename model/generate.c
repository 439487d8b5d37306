/* generate: see generate.h. Invariant: `text` is what the decoder has read, and a token that was
 * drawn is read when the next one is asked for, so the last is not read at all.
 */
#include "model/generate.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "model/decode.h"

struct generator {
    struct decoder *decoder;
    int most, vocab;
    int32_t *text, *prompt; /* [most] each */
    int prompt_count, prompt_restarts;
    float *logits, *prompt_logits; /* [vocab] */
    int32_t *order;                /* [vocab]: draw_token()'s */
    int32_t drawn;                 /* not read yet; -1: none */
    int restarts;
};

enum status generator_open(struct generator **out, const struct params *params,
    const struct model_hooks *hooks, enum dtype weights, struct device *device)
{
    int most = params->config.max_t, vocab = params->config.vocab;
    enum status status = STATUS_OK;
    *out = NULL;
    struct generator *generator = calloc(1, sizeof *generator);
    if (generator == NULL) return FAIL(STATUS_SYSTEM, "no memory for a text's record");
    *generator = (struct generator){.most = most,
        .vocab = vocab,
        .text = calloc((size_t)most, sizeof *generator->text),
        .prompt = calloc((size_t)most, sizeof *generator->prompt),
        .logits = calloc((size_t)vocab, sizeof *generator->logits),
        .prompt_logits = calloc((size_t)vocab, sizeof *generator->prompt_logits),
        .order = calloc((size_t)vocab, sizeof *generator->order),
        .drawn = -1};
    if (generator->text == NULL || generator->prompt == NULL || generator->logits == NULL ||
        generator->prompt_logits == NULL || generator->order == NULL)
        status = FAIL(STATUS_SYSTEM, "no memory for a context of %d tokens of %d", most, vocab);
    if (status == STATUS_OK)
        status = decoder_open(&generator->decoder, params, hooks, weights, most, device);
    if (status == STATUS_OK) *out = generator;
    else generator_close(generator);
    return status;
}

void generator_close(struct generator *generator)
{
    if (generator == NULL) return;
    decoder_close(generator->decoder);
    free(generator->text);
    free(generator->prompt);
    free(generator->logits);
    free(generator->prompt_logits);
    free(generator->order);
    free(generator);
}

static int half(const struct generator *generator)
{
    return (generator->most + 1) / 2;
}

/* The prompt's tokens, from the beginning. */
static enum status read_prompt(struct generator *generator)
{
    int count = generator->prompt_count;
    decoder_rewind(0, generator->decoder);
    memcpy(generator->text, generator->prompt, (size_t)count * sizeof *generator->text);
    return decoder_read(generator->logits, generator->text, count, generator->decoder);
}

enum status generator_begin(const int32_t *tokens, size_t count, struct generator *generator)
{
    assert(count >= 1);
    bool fits = count <= (size_t)generator->most;
    size_t kept = fits ? count : (size_t)half(generator);
    memcpy(generator->prompt, tokens + count - kept, kept * sizeof *tokens);
    generator->prompt_count = (int)kept;
    generator->restarts = generator->prompt_restarts = !fits;
    generator->drawn = -1;
    TRY(read_prompt(generator));
    memcpy(generator->prompt_logits, generator->logits,
        (size_t)generator->vocab * sizeof *generator->logits);
    return STATUS_OK;
}

enum status generator_again(struct generator *generator)
{
    bool slid = generator->restarts > generator->prompt_restarts;
    generator->restarts = generator->prompt_restarts;
    generator->drawn = -1;
    if (slid) return read_prompt(generator);
    decoder_rewind(generator->prompt_count, generator->decoder);
    memcpy(generator->logits, generator->prompt_logits,
        (size_t)generator->vocab * sizeof *generator->logits);
    return STATUS_OK;
}

/* Reads the token that was drawn. */
static enum status read_drawn(struct generator *generator)
{
    int position = decoder_position(generator->decoder), first = position;
    if (position == generator->most) {
        int kept = half(generator) - 1;
        memmove(generator->text, generator->text + position - kept,
            (size_t)kept * sizeof *generator->text);
        decoder_rewind(0, generator->decoder);
        generator->restarts++;
        position = kept;
        first = 0;
    }
    generator->text[position] = generator->drawn;
    generator->drawn = -1;
    return decoder_read(
        generator->logits, generator->text + first, position + 1 - first, generator->decoder);
}

enum status generator_next(int32_t *token, int vocab, const struct draw_config *draw,
    uint64_t *state, struct generator *generator)
{
    assert(vocab >= 1 && vocab <= generator->vocab);
    if (generator->drawn >= 0) TRY(read_drawn(generator));
    *token = draw_token(generator->logits, generator->order, vocab, draw, state);
    generator->drawn = *token;
    return STATUS_OK;
}

int generator_restarts(const struct generator *generator)
{
    return generator->restarts;
}
