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

/* m_factor = 1/(1 − β₁ᵗ), v_factor = 1/(1 − β₂ᵗ). */
VECTOR_CLONES static void step(float *restrict weights, float *restrict m, float *restrict v,
    const float *restrict gradients, size_t count, float lr, float gradient_scale, float decay, float m_factor,
    float v_factor, struct adam_config config)
{
    float beta1 = config.beta1, beta2 = config.beta2, epsilon = config.epsilon;
    float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    for (size_t i = 0; i < count; i++) {
        float g = gradients[i] * gradient_scale, w = weights[i];
        float new_m = beta1 * m[i] + rest1 * g;
        float new_v = beta2 * v[i] + rest2 * (g * g);
        m[i] = new_m;
        v[i] = new_v;
        weights[i] = w - lr * (new_m * m_factor / (sqrtf(new_v * v_factor) + epsilon) + decay * w);
    }
}

void adam_step(float *weights, float *m, float *v, const float *gradients, size_t count, float lr,
    float gradient_scale, float decay, uint64_t t, const struct adam_config *config)
{
    assert(t >= 1);
    step(weights, m, v, gradients, count, lr, gradient_scale, decay, adam_correction(config->beta1, t),
        adam_correction(config->beta2, t), *config);
}
