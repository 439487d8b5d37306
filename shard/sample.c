/* sample: text from the model, token by token.
 *
 * Every rank computes the same logits from the same weights and draws with the same generator, so
 * all take the same tokens and enter the same units in the same order: hooks may be collective. The
 * window is the last T tokens.
 */
#include "shard/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "model/draw.h"

#define DOCUMENT_TOKEN 50256 /* of GPT-2: documents start with it */

/* Returns the number of tokens, at least 1. */
static int put_prompt(int32_t *tokens, const char *prompt, bool text, int vocab)
{
    int count = 0;
    if (text)
        for (; prompt[count] != '\0'; count++) tokens[count] = (unsigned char)prompt[count] % vocab;
    if (count > 0) return count;
    tokens[0] = text ? '\n' % vocab : vocab > DOCUMENT_TOKEN ? DOCUMENT_TOKEN : 0;
    return 1;
}

/* The stages of a pipeline without the head learn what the last one has drawn. */
static enum status tell_token(int32_t *token, struct trainer *trainer)
{
    const struct grid *grid = &trainer->grid;
    if (grid->pipeline_count == 1) return STATUS_OK;
    TRY(pipeline_synchronize(trainer->pipeline));
    trainer->gathered[trainer->rank] = *token;
    TRY(stage_gather(trainer->gathered, 1, trainer->comm, trainer->stage));
    TRY(stage_synchronize(trainer->stage));
    trainer->events.tokens_told++;
    *token = (int32_t)trainer->gathered[grid_rank(grid, grid->pipeline_count - 1, 0, 0)];
    return STATUS_OK;
}

enum status trainer_sample(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    const char *prompt = config->sample_prompt != NULL ? config->sample_prompt : "";
    int vocab = config->model.vocab;
    bool text = tokens_vocab(trainer->tokens) > 0;
    int32_t *tokens = calloc(strlen(prompt) + 1 + (size_t)config->sample_tokens, sizeof *tokens);
    float *logits = calloc((size_t)vocab, sizeof *logits);
    enum status status = STATUS_OK;
    if (tokens == NULL || logits == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for a sample of %d tokens", config->sample_tokens);
        goto fail;
    }
    int prompt_count = put_prompt(tokens, prompt, text, vocab), count = prompt_count;
    const struct draw_config draw = {config->temperature, 0, 1.0f};
    uint64_t state = config->seed;
    for (; count < prompt_count + config->sample_tokens; count++) {
        int t = count < config->seq ? count : config->seq;
        const struct model_pass pass = {0, tokens + count - t, NULL, 1, t};
        TRY_GOTO(trainer_forward(&pass, trainer));
        if (trainer_has_head(trainer)) {
            TRY_GOTO(model_logits(logits, 0, t - 1, trainer->model));
            tokens[count] = draw_token(logits, NULL, vocab, &draw, &state);
        }
        TRY_GOTO(tell_token(&tokens[count], trainer));
    }
    if (trainer->observer->sample != NULL)
        trainer->observer->sample(trainer->observer->context, tokens, count, prompt_count, text);
fail:
    free(tokens);
    free(logits);
    return status;
}
