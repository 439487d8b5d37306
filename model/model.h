/* model: the reference transformer, forward and backward, on any device: GPT-2's, and Llama's in
 * brackets (model_config.architecture).
 *
 *   x₀ = wte[token] + wpe[t]       [no wpe: attention turns queries and keys]
 *   per block:  x += attproj(attention(qkv(ln1(x))));  x += fcproj(gelu(fc(ln2(x))))   [SwiGLU]
 *   logits = lnf(x) wteᵀ, block of rows by block of rows: the full logits are never held
 *   loss = Σ over valid tokens of −log softmax(logits)[target]
 *
 * Shapes use B (batch), T (positions), C, V, L, NH. Memory, by tag:
 *
 *   MEMORY_ACTIVATIONS   what backward needs of forward: does not depend on V; with
 *                        recomputation not on L either
 *   MEMORY_CHECKPOINTS   with recomputation: the input of each block, L·B·T·C elements
 *   MEMORY_WORKSPACE     does not depend on L
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/hooks.h"
#include "model/params.h"
#include "verbs/device.h"
#include "verbs/dtype.h"
#include "verbs/profile.h"

struct model;

/* A target of this value is not counted: no loss, no gradient. */
#define MODEL_IGNORED_TARGET (-1)

/* How a model is run.
 *
 * weights, gradients: the dtypes of what enter() lends: float32, bfloat16 or float16. The host
 * computes in float32 whatever is chosen, CUDA in the dtype of the weights. Where the two differ,
 * weights are widened on enter into workspace of one unit, the largest. A use's part of a gradient
 * of 16 bits is computed in float32 in workspace of the same size and rounded into it once, before
 * grad_ready(): g = round(float32(g) + part), to nearest even.
 *
 * recompute: activation checkpointing. Of each block only the input is kept, and backward computes
 * the rest again, with the same bits. carried: with recompute, hooks carry these inputs away
 * (act_save): only predictions need to say so, model_open() sees it.
 *
 * cut_rows: sequence parallelism. Ranks that share tensors (params_part) each hold their own rows of
 * x and of what norms make of it (rows.h). Losses of the same weights have the same bits where the
 * ranks divide B·T and hooks sum alike, and gradients but those of norms, too. One rank alone: nothing
 * changes. */
struct model_run {
    int batch, t; /* at most */
    enum dtype weights, gradients;
    bool recompute, carried;
    bool cut_rows;
    /* That operations are queued on: of the model's device, and outlives the model. Functions below
     * return when they have queued, unless they say otherwise, and a failure of an operation is
     * stream_synchronize()'s to report. NULL on the host, where all is done on return. */
    struct stream *stream;
    int passes; /* forwards that may wait for their backward: model_pass. 0: 1 */
    /* Operations are timed and counted there, by name, and uses of units; of `stream` where there is
     * one: ops_profile.h. Outlives the model. NULL: nobody asks. */
    struct profile *profile;
};

/* Bytes that model_open() holds, by memory tag, of this part of the model. With recompute, carried
 * inputs are no checkpoints, and cost one x more in activations: B·T·C elements, rounded up to 64
 * bytes. Allocates nothing, so it may be asked for models that fit nowhere. run: valid for
 * model_open(). device: NULL: the host's numbers. */
struct model_memory {
    uint64_t activations, checkpoints, workspace;
};
struct model_memory model_memory(
    const struct params *params, const struct model_run *run, struct device *device);

/* The dtype that activations have: see model_run. device: NULL: the host. */
enum dtype model_activation_dtype(const struct model_run *run, struct device *device);

/* Allocates what model_memory() says. params, hooks' contexts and device must outlive the model;
 * hooks and run are copied. errors: INVALID (batch or t < 1, t > max_t, another dtype, enter
 * missing, one of act_save and act_load without the other, sum or max missing where tensors are
 * cut, scatter_sum or gather where rows are), SYSTEM (memory). */
MUST_CHECK enum status model_open(struct model **model, const struct params *params,
    const struct model_hooks *hooks, const struct model_run *run, struct device *device);
void model_close(struct model *model);

/* tokens, targets: (B, T) int32 on the host, to be left alone until the backward has been queued
 * and the stream has passed; targets NULL: no loss is computed. *loss: the sum, not the mean, over
 * valid targets, in nats; *valid: their number. What backward needs stays in the model until the
 * next forward. loss NULL: the sum is told by model_loss(), and nothing is waited for; else waits
 * for the stream.
 * errors: DATA when a token or target is outside [0, V), naming position and value; the hooks'
 * errors; the stream's, where it is waited for. */
MUST_CHECK enum status model_forward(double *loss, size_t *valid, const int32_t *tokens,
    const int32_t *targets, int batch, int t, struct model *model);

/* The loss of the last forward, which had targets. Waits for that forward, not for what was queued
 * after it. Not a number where the stream failed before. */
MUST_CHECK enum status model_loss(double *loss, struct model *model);

/* sums (B): what each sequence has of the loss of the last forward, which had targets; on the last
 * part, before anything else is computed. Waits for the stream. errors: SYSTEM, the stream's. cost:
 * copies 2·B·T floats. */
MUST_CHECK enum status model_sequence_losses(double *sums, struct model *model);

/* Adds scale · d loss / d parameter to the gradients that hooks lend. Follows a forward with
 * targets; pass 1/(valid tokens of the global batch) for the mean. tokens and targets of the
 * forward must still be there. */
MUST_CHECK enum status model_backward(float scale, struct model *model);

/* ---- a part of the model, several passes in flight ----
 *
 * params->part may be one of several parts, one after another: x goes from one to the next, and its
 * gradient back. The whole model is both the first and the last. A pass is a micro-batch's way
 * through a part; `passes` of them may wait for their backward, each in a slot of its own. */
struct model_pass {
    int slot;               /* 0 … passes − 1 */
    const int32_t *tokens;  /* of model_forward(): looked at by the first part */
    const int32_t *targets; /* by the last one; NULL: no loss is computed */
    int batch, t;           /* the same of all passes that wait at once */
};

/* The forward of a part. input: on all but the first part, model_input() is filled before. output:
 * model_output(), and on the last part model_loss(). Waits for nothing.
 * errors: as model_forward(). */
MUST_CHECK enum status model_forward_pass(const struct model_pass *pass, struct model *model);

/* The backward of a pass: adds scale · d loss / d parameter to the gradients that hooks lend. On all
 * but the last part, model_gradient() is filled before with the gradient of the pass's output; on all
 * but the first part it has that of the pass's input afterwards. The slot is free then. */
MUST_CHECK enum status model_backward_pass(
    float scale, const struct model_pass *pass, struct model *model);

/* Where these are: B·T·C elements that the device computes in, on the device; where rows are cut,
 * those of the own ones. The input is the pass's
 * own from here to its backward; where hooks carry activations away, until its forward. The output
 * is good until the next forward begins, and where hooks carry activations until the next backward
 * does; the gradient, which no forward touches, until the next backward. */
struct span model_input(const struct model_pass *pass, struct model *model);
struct span model_output(const struct model_pass *pass, struct model *model);
struct span model_gradient(const struct model_pass *pass, struct model *model);

/* logits (V), on the host, of position t (0 ≤ t < T of the last forward, with targets or without)
 * of sequence b, for sampling; on the last part. Enters the embedding's units for FORWARD, so all
 * ranks that share weights call it alike. Waits for the stream. */
MUST_CHECK enum status model_logits(float *logits, int b, int t, struct model *model);

/* Model FLOPs of forward and backward per token: 6Ψ plus attention's 12·L·C·T. */
double model_flops_per_token(const struct params *params, int t);

#endif
