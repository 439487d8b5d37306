/* adam: see adam.h. Invariant I3: every element is computed alike, in whatever place of whatever range and
 * vector clone. */
#include "optim/adam.h"

#include <assert.h>
#include <math.h>

#include "optim/adam_round.h"
#include "verbs/clones.h"

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

void adam_step(float *weights, float *m, float *v, const float *gradients, size_t count, float lr,
    float gradient_scale, float decay, uint64_t t, const struct adam_config *config)
{
    const struct adam_update update = {
        .lr = lr, .gradient_scale = gradient_scale, .decay = decay, .t = t, .config = *config};
    step(weights, m, v, gradients, count, factors_of(&update));
}

void adam_step_bfloat16(const struct adam_range *range, const struct adam_update *update)
{
    step_bfloat16(range->lent, range->weights, range->m, range->v, range->gradients, range->count,
        factors_of(update));
}
