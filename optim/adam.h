/* adam: AdamW on a flat range of numbers. Knows no tensors: the caller says per range whether weights decay.
 *
 *   m = β₁m + (1−β₁)g    v = β₂v + (1−β₂)g²    w −= lr · ( m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε) + decay·w )
 *
 * source: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2. cost: 7 floats of
 * traffic per element. Element-wise: the bits of an element do not depend on where ranges are cut (I3).
 */
#ifndef OPTIM_ADAM_H
#define OPTIM_ADAM_H

#include <stddef.h>
#include <stdint.h>

struct adam_config {
    float beta1, beta2, epsilon;
    float weight_decay;
};

/* β₁ 0.9, β₂ 0.95, ε 1e-8, decay 0.1 */
struct adam_config adam_config_default(void);

/* weights, m, v, gradients: count floats each, no overlap. gradient_scale multiplies gradients first
 * (clipping). t counts from 1. decay: weight_decay of the config or 0. Not collective; any thread. */
void adam_step(float *weights, float *m, float *v, const float *gradients, size_t count, float lr,
    float gradient_scale, float decay, uint64_t t, const struct adam_config *config);

#endif
