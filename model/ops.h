/* ops: the operations of the transformer, forward and backward, as a table that each device fills.
 *
 * Whoever calls them knows shapes, not devices: block.c and model.c are written once (I7). Who holds
 * which dtype:
 *
 *   activations, weights, gradients of activations    context->compute    void *
 *   statistics (mean, rstd, lse, max, sum, logit)     float32             float *
 *   gradients of weights                              float32             float *
 *   weights and gradients that are lent               any of the three    widen(), narrow_add()
 *
 * The host computes in float32 whatever is lent, CUDA in the dtype of the weights: compute(). A
 * weight's gradient is added up in float32 while its unit is in use, and rounded once into what was
 * lent, g = round(float32(g) + part): unit.h.
 *
 * Completion: an operation is queued on context->stream and the call returns; what it reads must
 * stay until the stream has passed. On the host there is no stream, and an operation is done on
 * return. Operations of one context run in the order of the calls, and in the order of the events
 * that are recorded and waited for on the stream between them: a table queues by stream_call().
 * An operation cannot fail by its arguments; what a device meets while it computes is a failure of
 * the stream, which stream_synchronize() reports.
 *
 * Pointers are to memory of the context's device, but for copy(). Tensors begin at multiples of 64
 * bytes, but for weights and their gradients, which begin where their unit has them.
 * Matrices are row-major; "rows" is B·T unless said otherwise. Outputs never overlap inputs unless
 * said so. "=" is written, "+=" is added to.
 *
 * Invariant I2: the bits of a result depend on its inputs and sizes alone, so no sum is made in an
 * order that chance decides. I7: every CUDA operation is tested against its host twin.
 *
 * Threads: one at a time per context. All members of the table are required.
 */
#ifndef MODEL_OPS_H
#define MODEL_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/device.h"
#include "verbs/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

struct model_ops;
struct ops_profile;

/* Where operations run. Opened once per model. */
struct ops_context {
    const struct model_ops *ops;
    struct device *device;
    struct stream *stream; /* that operations are queued on; NULL where !ops->queued */
    enum dtype compute;
    void *
        scratch; /* scratch_bytes(), aligned as an allocation: for operations that are given none */
    void *inside; /* what open() made: handles of libraries */
    struct ops_profile *profile; /* of ops_profile.h, whose table ops is then; NULL: nobody asks */
};

/* The largest that a context's operations are given. */
struct ops_limits {
    size_t rows;        /* B·T */
    size_t cols;        /* the widest row: of fc, of qkv, of C */
    size_t weight_rows; /* of one block of the embedding */
    size_t positions;   /* T */
};

/* One block of vocabulary rows of the output head: what of it is held here. */
struct head_rows {
    size_t first_row, count; /* ids first_row … first_row + count − 1 */
    const void *weight;      /* (count, cols) */
};

/* Attention of some sequences: heads of queries, of which heads / kv_heads neighbours share a head
 * of keys and values. A row of qkv is (heads + 2·kv_heads, head_cols): queries, keys, values. */
struct attention_size {
    size_t batch, t, heads, kv_heads, head_cols;
};

struct model_ops {
    const char *name; /* "host" */
    bool queued; /* operations are queued on a stream; false: they run in the caller's thread */

    /* The dtype that a model of such weights computes in. Pure. */
    enum dtype (*compute)(enum dtype weights);

    /* Bytes of scratch, each a function of its arguments alone. Pure: may be asked for sizes that
     * fit nowhere. Attention's and the head's are pointed at by the caller, and lie where other
     * activations' gradients lie before and after. */
    size_t (*scratch_bytes)(const struct ops_limits *limits, enum dtype compute);
    size_t (*attention_scratch_bytes)(struct attention_size size, enum dtype compute);
    /* At least count floats. Grows with count, and with rows up to a constant only. */
    size_t (*head_scratch_bytes)(size_t count, size_t rows, size_t cols, enum dtype compute);

    /* Fills context->inside; the other members are set. close accepts what a failed open has left.
     * errors: CUDA, SYSTEM. */
    enum status (*open)(struct ops_context *context);
    void (*close)(struct ops_context *context);

    /* ---- bytes ---- */

    /* out (bytes) = zeros. */
    void (*clear)(void *out, size_t bytes, const struct ops_context *context);
    /* out (bytes) = in. Either may be host memory, pinned or not, which must stay until the stream
     * has passed. */
    void (*copy)(void *out, const void *in, size_t bytes, const struct ops_context *context);

    /* ---- dtypes: exact, or to nearest even ---- */

    /* out (count) of compute = in (count) of dtype. Called only where they differ. */
    void (*widen)(void *out, const void *in, enum dtype dtype, size_t count,
        const struct ops_context *context);
    /* sum (count) of dtype = round(float32(sum) + x), each element by itself; dtype may be
     * float32. x (count) = zeros: the next sum begins without a pass over it. */
    void (*narrow_add)(void *sum, float *x, enum dtype dtype, size_t count,
        const struct ops_context *context);
    /* The same where sum would be zeros, which are not read: anything may be there. */
    void (*narrow_first)(void *sum, float *x, enum dtype dtype, size_t count,
        const struct ops_context *context);

    /* ---- linear layers ---- */

    /* y (rows, out_cols) = in (rows, in_cols) · weightᵀ + bias; weight (out_cols, in_cols), bias
     * (out_cols) or NULL for none. gelu_in NULL: out = y. Else gelu_in (rows, out_cols) = y, kept
     * for backward, and out = gelu(gelu_in), the tanh form: y/2 · (1 + tanh(√(2/π)·(y + 0.044715
     * y³))). */
    void (*linear_forward)(void *out, void *gelu_in, const void *in, const void *weight,
        const void *bias, size_t rows, size_t in_cols, size_t out_cols,
        const struct ops_context *context);

    /* d_in (rows, in_cols) = d_out · weight; d_weight (out_cols, in_cols) += d_outᵀ · in; d_bias
     * (out_cols), or NULL for none, += Σ over rows of d_out. d_out (rows, out_cols), in (rows,
     * in_cols), weight (out_cols, in_cols). gelu_in NULL, or (rows, in_cols) where in =
     * gelu(gelu_in): d_in is then the gradient of gelu_in, d_in = (d_out · weight) ∘
     * gelu′(gelu_in). Either half may be left out: d_in NULL, with gelu_in NULL; or d_weight and
     * d_bias NULL. */
    void (*linear_backward)(void *d_in, float *d_weight, float *d_bias, const void *d_out,
        const void *in, const void *gelu_in, const void *weight, size_t rows, size_t in_cols,
        size_t out_cols, const struct ops_context *context);

    /* x (rows, cols) += residual (rows, cols) + bias (cols), or NULL for none. */
    void (*bias_residual_add)(void *x, const void *residual, const void *bias, size_t rows,
        size_t cols, const struct ops_context *context);

    /* ---- layer norm ---- */

    /* Over each row: out = (in − mean) · rstd · weight + bias, rstd = 1/√(variance + 1e-5). out, in
     * (rows, cols); mean, rstd (rows) are kept for backward; weight, bias (cols). */
    void (*layernorm_forward)(void *out, float *mean, float *rstd, const void *in,
        const void *weight, const void *bias, size_t rows, size_t cols,
        const struct ops_context *context);

    /* d_in (rows, cols) +=, d_weight (cols) +=, d_bias (cols) +=; d_out, in (rows, cols), mean,
     * rstd (rows), weight (cols). */
    void (*layernorm_backward)(void *d_in, float *d_weight, float *d_bias, const void *d_out,
        const void *in, const float *mean, const float *rstd, const void *weight, size_t rows,
        size_t cols, const struct ops_context *context);

    /* ---- RMS norm ---- */

    /* Over each row: out = in · rstd · weight, rstd = 1/√(average of in² + 1e-5). Shapes as layer
     * norm's. */
    void (*rmsnorm_forward)(void *out, float *rstd, const void *in, const void *weight, size_t rows,
        size_t cols, const struct ops_context *context);
    void (*rmsnorm_backward)(void *d_in, float *d_weight, const void *d_out, const void *in,
        const float *rstd, const void *weight, size_t rows, size_t cols,
        const struct ops_context *context);

    /* ---- SwiGLU ---- */

    /* in (rows, 2, cols): gates, then values; out (rows, cols) = silu(gate) ∘ value, silu(x) =
     * x / (1 + exp(−x)). Backward: d_in (rows, 2, cols) =, d_out (rows, cols). */
    void (*swiglu_forward)(
        void *out, const void *in, size_t rows, size_t cols, const struct ops_context *context);
    void (*swiglu_backward)(void *d_in, const void *d_out, const void *in, size_t rows, size_t cols,
        const struct ops_context *context);

    /* ---- the input: embedding, by blocks of the table, and positions ---- */

    /* table (table_rows, cols) holds the rows of ids first_row … first_row + table_rows − 1. Row i
     * of x (rows, cols) = the table's row of tokens[i] where it is held; other rows are left alone.
     * tokens (rows), here and below, have been checked: 0 ≤ id < V, targets may be negative. */
    void (*embedding_forward)(void *x, const int32_t *tokens, const void *table, size_t first_row,
        size_t table_rows, size_t rows, size_t cols, const struct ops_context *context);
    /* d_table (table_rows, cols) += the rows of d_x (rows, cols) whose token it holds. */
    void (*embedding_backward)(float *d_table, const int32_t *tokens, const void *d_x,
        size_t first_row, size_t table_rows, size_t rows, size_t cols,
        const struct ops_context *context);

    /* x (batch, t, cols) += table (t, cols), and d_table (t, cols) += Σ over the batch of d_x
     * (batch, t, cols). */
    void (*positions_forward)(void *x, const void *table, size_t batch, size_t t, size_t cols,
        const struct ops_context *context);
    void (*positions_backward)(float *d_table, const void *d_x, size_t batch, size_t t, size_t cols,
        const struct ops_context *context);

    /* ---- attention; width = heads · head_cols ---- */

    /* Rotary positions: in the queries and keys of qkv (batch, t, heads + 2·kv_heads, head_cols),
     * in place, columns i and i + head_cols/2 of a head are one point of the plane, and are turned
     * by the angle that `turns` has for their position. turns (t, 2, head_cols/2): cosines, then
     * sines. Backward turns gradients back. head_cols is even. */
    void (*rotary_forward)(void *qkv, const float *turns, struct attention_size size,
        const struct ops_context *context);
    void (*rotary_backward)(void *d_qkv, const float *turns, struct attention_size size,
        const struct ops_context *context);

    /* Causal attention. out (batch, t, width) = softmax(q kᵀ / √head_cols, over positions ≤ own) ·
     * v, of the keys and values that the head shares; lse (batch, heads, t): log Σ exp of each
     * row's scores, kept for backward, which computes the probabilities again. scratch:
     * attention_scratch_bytes(). */
    void (*attention_forward)(void *out, float *lse, void *scratch, const void *qkv,
        struct attention_size size, const struct ops_context *context);
    /* d_qkv =, of the shape of qkv; d_out, out (batch, t, width), lse (batch, heads, t), qkv as in
     * forward. */
    void (*attention_backward)(void *d_qkv, void *scratch, const void *d_out, const void *qkv,
        const void *out, const float *lse, struct attention_size size,
        const struct ops_context *context);

    /* ---- output head and cross-entropy, by blocks of vocabulary rows ---- */

    /* Starts the statistics: max = −inf, sum = 0, target_logit = 0; each (rows). */
    void (*head_begin)(float *max, float *sum, float *target_logit, size_t rows,
        const struct ops_context *context);

    /* Takes one block into the statistics of every token: max (rows) of all logits so far, sum
     * (rows) of exp(logit − max), target_logit (rows) where the block holds the target. x (rows,
     * cols); targets (rows), negative ones are nobody's (their statistics may be anything).
     * block.count may be 0. scratch: head_scratch_bytes(count, rows, cols); no more of the logits
     * is held at a time. */
    void (*head_forward)(float *max, float *sum, float *target_logit, void *scratch, const void *x,
        const int32_t *targets, struct head_rows block, size_t rows, size_t cols,
        const struct ops_context *context);

    /* Statistics that were made of part of the rows, own_max and sum, with respect to a larger max,
     * each (rows): sum ·= exp(own_max − max) where sum > 0. */
    void (*head_rescale)(float *sum, const float *own_max, const float *max, size_t rows,
        const struct ops_context *context);

    /* All blocks have been taken: lse (rows) = max + log(sum) where the target is counted, else
     * left alone, and *loss = Σ over those of lse − target_logit, in double and in an order that
     * rows alone decides. loss: memory of the device. */
    void (*head_loss)(double *loss, float *lse, const float *max, const float *sum,
        const float *target_logit, const int32_t *targets, size_t rows,
        const struct ops_context *context);

    /* With p = exp(logit − lse) computed again and dlogit = scale · (p − [target]), 0 where the
     * target is negative: d_x (rows, cols) += dlogit · weight, d_weight (count, cols) += dlogitᵀ ·
     * x. lse (rows): head_loss()'s. */
    void (*head_backward)(void *d_x, float *d_weight, void *scratch, const void *x,
        const float *lse, const int32_t *targets, float scale, struct head_rows block, size_t rows,
        size_t cols, const struct ops_context *context);

    /* logits (count) float32 = x (cols) · weightᵀ: one token's, for sampling. */
    void (*head_logits)(float *logits, const void *x, struct head_rows block, size_t cols,
        const struct ops_context *context);
};

/* count elements of compute dtype, and where element `index` of them is. */
static inline size_t ops_bytes(size_t count, const struct ops_context *context)
{
    return count * dtype_bytes(context->compute);
}
static inline void *ops_at(const void *base, size_t index, const struct ops_context *context)
{
    return (char *)(uintptr_t)base + ops_bytes(index, context);
}

extern const struct model_ops model_ops_host;

/* The table of a device; device NULL: the host's. NULL: its module was built without one. */
const struct model_ops *model_ops_of(const struct device *device);
/* errors: SYSTEM where there is none. */
MUST_CHECK enum status model_ops_check(const struct device *device);

/* Memory of the context's device. */
struct span ops_span(const void *ptr, size_t bytes, const struct ops_context *context);

#ifdef __cplusplus
}
#endif
#endif
