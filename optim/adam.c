/* adam: see adam.h. Invariant I3: every element is computed alike, in whatever place of whatever range and
 * vector clone. */
#include "optim/adam.h"

#include <assert.h>
#include <math.h>

#include "optim/adam_round.h"
#include "verbs/clones.h"
#include "verbs/streaming.h"

struct adam_config adam_config_default(void)
{
    return (struct adam_config){.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
}

/* What is the same for all elements of a range. */
struct factors {
    float lr, gradient_scale, decay;
    float m, v; /* 1/(1 − β₁ᵗ), 1/(1 − β₂ᵗ) */
    float beta1, beta2, epsilon;
};

static struct factors factors_of(const struct adam_update *update)
{
    const struct adam_config *config = &update->config;
    assert(update->t >= 1);
    return (struct factors){
        .lr = update->lr,
        .gradient_scale = update->gradient_scale,
        .decay = update->decay,
        .m = adam_correction(config->beta1, update->t),
        .v = adam_correction(config->beta2, update->t),
        .beta1 = config->beta1,
        .beta2 = config->beta2,
        .epsilon = config->epsilon,
    };
}

/* One element: its new weight. */
static inline __attribute__((always_inline)) float element(
    float *m, float *v, float w, float gradient, struct factors by)
{
    float g = gradient * by.gradient_scale;
    *m = by.beta1 * *m + (1.0f - by.beta1) * g;
    *v = by.beta2 * *v + (1.0f - by.beta2) * (g * g);
    return w - by.lr * (*m * by.m / (sqrtf(*v * by.v) + by.epsilon) + by.decay * w);
}

VECTOR_CLONES static void step(float *restrict weights, float *restrict m, float *restrict v,
    const float *restrict gradients, size_t count, struct factors by)
{
    for (size_t i = 0; i < count; i++)
        weights[i] = element(&m[i], &v[i], weights[i], gradients[i], by);
}

VECTOR_CLONES static void step_bfloat16(uint16_t *restrict lent, float *restrict weights, float *restrict m,
    float *restrict v, const uint16_t *restrict gradients, size_t count, struct factors by)
{
    for (size_t i = 0; i < count; i++) {
        float w = element(&m[i], &v[i], weights[i], bfloat16_to_float32(gradients[i]), by);
        weights[i] = w;
        lent[i] = float32_to_bfloat16(w);
    }
}

/* The same; lent weights are not read before the next forward. Returns how many: whole pieces. */
VECTOR_CLONES static size_t stream_step_bfloat16(uint16_t *restrict lent, float *restrict weights,
    float *restrict m, float *restrict v, const uint16_t *restrict gradients, size_t count,
    struct factors by)
{
    STREAMING_ALIGN uint16_t piece[STREAMING_PIECE];
    size_t whole = count / STREAMING_PIECE * STREAMING_PIECE;
    for (size_t i = 0; i < whole; i += STREAMING_PIECE) {
        streaming_ask(weights + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *weights);
        streaming_ask(m + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *m);
        streaming_ask(v + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *v);
        streaming_ask(gradients + i, STREAMING_AHEAD, STREAMING_PIECE * sizeof *gradients);
        for (size_t j = i; j < i + STREAMING_PIECE; j++) {
            float w = element(&m[j], &v[j], weights[j], bfloat16_to_float32(gradients[j]), by);
            weights[j] = w;
            piece[j - i] = float32_to_bfloat16(w);
        }
        streaming_store(lent + i, piece);
    }
    streaming_end();
    return whole;
}

void adam_step(float *weights, float *m, float *v, const float *gradients, size_t count, float lr,
    float gradient_scale, float decay, uint64_t t, const struct adam_config *config)
{
    const struct adam_update update = {
        .lr = lr, .gradient_scale = gradient_scale, .decay = decay, .t = t, .config = *config};
    step(weights, m, v, gradients, count, factors_of(&update));
}

void adam_step_bfloat16(const struct adam_range *range, const struct adam_update *update)
{
    uint16_t *lent = range->lent;
    const uint16_t *gradients = range->gradients;
    float *weights = range->weights, *m = range->m, *v = range->v;
    struct factors by = factors_of(update);
    size_t count = range->count, done = streaming_head(lent, count);
    step_bfloat16(lent, weights, m, v, gradients, done, by);
    done += stream_step_bfloat16(
        lent + done, weights + done, m + done, v + done, gradients + done, count - done, by);
    step_bfloat16(
        lent + done, weights + done, m + done, v + done, gradients + done, count - done, by);
}
