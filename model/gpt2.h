/* gpt2: the reference transformer, forward and backward, float32 on the host.
 *
 *   x₀ = wte[token] + wpe[t]
 *   per block:  x += attproj(attention(qkv(ln1(x))));  x += fcproj(gelu(fc(ln2(x))))
 *   logits = lnf(x) wteᵀ, block of rows by block of rows: the full logits are never held
 *   loss = Σ over valid tokens of −log softmax(logits)[target]
 *
 * Shapes use B (batch), T (positions), C, V, L, NH. Memory: activations are held under MEMORY_ACTIVATIONS and
 * do not depend on V; workspace under MEMORY_WORKSPACE and does not depend on L.
 */
#ifndef MODEL_GPT2_H
#define MODEL_GPT2_H

#include <stddef.h>
#include <stdint.h>

#include "model/hooks.h"
#include "model/params.h"
#include "verbs/device.h"

struct gpt2;

/* A target of this value is not counted: no loss, no gradient. */
#define GPT2_IGNORED_TARGET (-1)

/* Allocates activations and workspace for at most (batch, t). params, hooks' context and device must outlive
 * the model; hooks is copied. errors: INVALID (t > max_t, enter missing), SYSTEM (memory). */
MUST_CHECK enum status gpt2_open(struct gpt2 **model, const struct params *params,
    const struct model_hooks *hooks, int batch, int t, struct device *device);
void gpt2_close(struct gpt2 *model);

/* tokens, targets: (B, T) int32 on the host; targets NULL: no loss is computed. *loss: the sum, not the mean,
 * over valid targets, in nats; *valid: their number. What backward needs stays in the model until the next forward.
 * errors: DATA when a token or target is outside [0, V), naming position and value; the hooks' errors. */
MUST_CHECK enum status gpt2_forward(double *loss, size_t *valid, const int32_t *tokens, const int32_t *targets,
    int batch, int t, struct gpt2 *model);

/* Adds scale · d loss / d parameter to the gradients that hooks lend. Follows a forward with targets; pass
 * 1/(valid tokens of the global batch) for the mean. tokens and targets of the forward must still be there. */
MUST_CHECK enum status gpt2_backward(float scale, struct gpt2 *model);

/* logits (V) of position t (0 ≤ t < T of the last forward, with targets or without) of sequence b, for sampling.
 * Enters the embedding's units for FORWARD, so all ranks that share weights call it alike. */
MUST_CHECK enum status gpt2_logits(float *logits, int b, int t, struct gpt2 *model);

/* Model FLOPs of forward and backward per token: 6Ψ plus attention's 12·L·C·T. */
double gpt2_flops_per_token(const struct params *params, int t);

#endif
