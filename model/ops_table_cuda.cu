/* ops_table_cuda: the operations of ops.h on a CUDA device: each call is queued on the context's
 * stream (kernel_queue.cuh), and launches from there.
 */
#include "model/ops_cuda.h"

#include "verbs/kernel_queue.cuh"
#include "verbs/plugin.h"

/* The context outlives what is queued. */
template <class Operation>
static void enqueue(const struct ops_context *context, Operation operation)
{
    enqueue(context->stream, context->device, operation);
}

static const struct blas_cuda *blas_of(const struct ops_context *context)
{
    return static_cast<const struct blas_cuda *>(context->inside);
}

static float *scratch_of(const struct ops_context *context)
{
    return static_cast<float *>(context->scratch);
}

/* ---- sizes, handles ---- */

static enum dtype table_compute(enum dtype weights)
{
    return weights;
}

/* Sums over rows: of gradients of layer norm two per column, of a bias one. */
static size_t table_scratch_bytes(const struct ops_limits *limits, enum dtype)
{
    size_t partial = partial_elements_cuda(2 * limits->cols) * sizeof(float);
    return partial > BLAS_WORKSPACE_BYTES ? partial : BLAS_WORKSPACE_BYTES;
}

static size_t table_attention_scratch_bytes(struct attention_size size, enum dtype)
{
    return size.batch * size.heads * size.t * sizeof(float);
}

static size_t table_head_scratch_bytes(size_t count, size_t rows, size_t, enum dtype)
{
    return head_scratch_bytes_cuda(count, rows);
}

static enum status table_open(struct ops_context *context)
{
    struct blas_cuda *blas = NULL;
    TRY_CUDA(cudaSetDevice(context->device->index));
    enum status status = blas_open_cuda(&blas, context->scratch);
    context->inside = blas;
    return status;
}

static void table_close(struct ops_context *context)
{
    (void)cudaSetDevice(context->device->index);
    blas_close_cuda(static_cast<struct blas_cuda *>(context->inside));
    context->inside = NULL;
}

/* ---- bytes and dtypes ---- */

static enum status clear_cuda(void *out, size_t bytes, cudaStream_t stream)
{
    TRY_CUDA(cudaMemsetAsync(out, 0, bytes, stream));
    return STATUS_OK;
}

static void table_clear(void *out, size_t bytes, const struct ops_context *context)
{
    if (bytes == 0) return;
    enqueue(context, [=](cudaStream_t stream) { return clear_cuda(out, bytes, stream); });
}

static enum status copy_cuda(void *out, const void *in, size_t bytes, cudaStream_t stream)
{
    TRY_CUDA(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDefault, stream));
    return STATUS_OK;
}

static void table_copy(void *out, const void *in, size_t bytes, const struct ops_context *context)
{
    if (bytes == 0) return;
    enqueue(context, [=](cudaStream_t stream) { return copy_cuda(out, in, bytes, stream); });
}

/* compute() is the dtype of the weights, so only float32 is ever wider than what is lent. */
static void table_widen(
    void *out, const void *in, enum dtype dtype, size_t count, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return widen_cuda(static_cast<float *>(out), in, dtype, count, stream);
    });
}

static void table_narrow_add(
    void *sum, float *x, enum dtype dtype, size_t count, const struct ops_context *context)
{
    enqueue(context,
        [=](cudaStream_t stream) { return narrow_add_cuda(sum, x, dtype, count, stream); });
}

static void table_narrow_first(
    void *sum, float *x, enum dtype dtype, size_t count, const struct ops_context *context)
{
    enqueue(context,
        [=](cudaStream_t stream) { return narrow_first_cuda(sum, x, dtype, count, stream); });
}

/* ---- linear layers ---- */

static void table_linear_forward(void *out, void *gelu_in, const void *in, const void *weight,
    const void *bias, size_t rows, size_t in_cols, size_t out_cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return linear_forward_cuda(out, gelu_in, in, weight, bias, context->compute, rows, in_cols,
            out_cols, blas_of(context), stream);
    });
}

static void table_linear_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const void *gelu_in, const void *weight, size_t rows, size_t in_cols,
    size_t out_cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return linear_backward_cuda(d_in, d_weight, d_bias, scratch_of(context), d_out, in, gelu_in,
            weight, context->compute, rows, in_cols, out_cols, blas_of(context), stream);
    });
}

static void table_bias_residual_add(void *x, const void *residual, const void *bias, size_t rows,
    size_t cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return bias_residual_add_cuda(x, residual, bias, context->compute, rows, cols, stream);
    });
}

/* ---- layer norm ---- */

static void table_layernorm_forward(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, size_t rows, size_t cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return layernorm_forward_cuda(
            out, mean, rstd, in, weight, bias, context->compute, rows, cols, stream);
    });
}

static void table_layernorm_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const float *mean, const float *rstd, const void *weight, size_t rows,
    size_t cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return layernorm_backward_cuda(d_in, d_weight, d_bias, scratch_of(context), d_out, in, mean,
            rstd, weight, context->compute, rows, cols, stream);
    });
}

/* ---- RMS norm, SwiGLU ---- */

static void table_rmsnorm_forward(void *out, float *rstd, const void *in, const void *weight,
    size_t rows, size_t cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return rmsnorm_forward_cuda(out, rstd, in, weight, context->compute, rows, cols, stream);
    });
}

static void table_rmsnorm_backward(void *d_in, float *d_weight, const void *d_out, const void *in,
    const float *rstd, const void *weight, size_t rows, size_t cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return rmsnorm_backward_cuda(d_in, d_weight, scratch_of(context), d_out, in, rstd, weight,
            context->compute, rows, cols, stream);
    });
}

static void table_swiglu_forward(
    void *out, const void *in, size_t rows, size_t cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return swiglu_forward_cuda(out, in, context->compute, rows, cols, stream);
    });
}

static void table_swiglu_backward(void *d_in, const void *d_out, const void *in, size_t rows,
    size_t cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return swiglu_backward_cuda(d_in, d_out, in, context->compute, rows, cols, stream);
    });
}

/* ---- the input ---- */

static void table_embedding_forward(void *x, const int32_t *tokens, const void *table,
    size_t first_row, size_t table_rows, size_t rows, size_t cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return embedding_forward_cuda(
            x, tokens, table, context->compute, first_row, table_rows, rows, cols, stream);
    });
}

static void table_embedding_backward(float *d_table, const int32_t *tokens, const void *d_x,
    size_t first_row, size_t table_rows, size_t rows, size_t cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return embedding_backward_cuda(
            d_table, tokens, d_x, context->compute, first_row, table_rows, rows, cols, stream);
    });
}

static void table_positions_forward(void *x, const void *table, size_t batch, size_t t, size_t cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return positions_forward_cuda(x, table, context->compute, batch, t, cols, stream);
    });
}

static void table_positions_backward(float *d_table, const void *d_x, size_t batch, size_t t,
    size_t cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return positions_backward_cuda(d_table, d_x, context->compute, batch, t, cols, stream);
    });
}

/* ---- attention ---- */

static void table_rotary_forward(void *qkv, const float *turns, struct attention_size size,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return rotary_cuda(qkv, turns, false, context->compute, size, stream);
    });
}

static void table_rotary_backward(void *d_qkv, const float *turns, struct attention_size size,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return rotary_cuda(d_qkv, turns, true, context->compute, size, stream);
    });
}

static void table_attention_forward(void *out, float *lse, void *, const void *qkv,
    struct attention_size size, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return attention_forward_cuda(out, lse, qkv, context->compute, size, stream);
    });
}

static void table_attention_backward(void *d_qkv, void *scratch, const void *d_out, const void *qkv,
    const void *out, const float *lse, struct attention_size size,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return attention_backward_cuda(d_qkv, static_cast<float *>(scratch), d_out, qkv, out, lse,
            context->compute, size, stream);
    });
}

/* ---- output head ---- */

static void table_head_begin(
    float *max, float *sum, float *target_logit, size_t rows, const struct ops_context *context)
{
    enqueue(context,
        [=](cudaStream_t stream) { return head_begin_cuda(max, sum, target_logit, rows, stream); });
}

static void table_head_forward(float *max, float *sum, float *target_logit, void *scratch,
    const void *x, const int32_t *targets, struct head_rows block, size_t rows, size_t cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return head_forward_cuda(max, sum, target_logit, scratch, x, targets, block,
            context->compute, rows, cols, blas_of(context), stream);
    });
}

static void table_head_rescale(float *sum, const float *own_max, const float *max, size_t rows,
    const struct ops_context *context)
{
    enqueue(context,
        [=](cudaStream_t stream) { return head_rescale_cuda(sum, own_max, max, rows, stream); });
}

static void table_head_loss(double *loss, float *lse, const float *max, const float *sum,
    const float *target_logit, const int32_t *targets, size_t rows,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return head_loss_cuda(loss, lse, max, sum, target_logit, targets, rows, stream);
    });
}

static void table_head_backward(void *d_x, float *d_weight, void *scratch, const void *x,
    const float *lse, const int32_t *targets, float scale, struct head_rows block, size_t rows,
    size_t cols, const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return head_backward_cuda(d_x, d_weight, scratch, x, lse, targets, scale, block,
            context->compute, rows, cols, blas_of(context), stream);
    });
}

static void table_head_logits(float *logits, const void *x, struct head_rows block, size_t cols,
    const struct ops_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        struct operand_cuda a = {x, cols, false}, b = {block.weight, cols, true};
        return product_cuda(logits, DTYPE_FLOAT32, block.count, 0.0f, a, b, context->compute, 1,
            block.count, cols, blas_of(context), stream);
    });
}

static const struct model_ops model_ops_cuda = {
    /* in the order of ops.h: C++17 has no designated initialisers */
    "cuda",
    true,
    table_compute,
    table_scratch_bytes,
    table_attention_scratch_bytes,
    table_head_scratch_bytes,
    table_open,
    table_close,
    table_clear,
    table_copy,
    table_widen,
    table_narrow_add,
    table_narrow_first,
    table_linear_forward,
    table_linear_backward,
    table_bias_residual_add,
    table_layernorm_forward,
    table_layernorm_backward,
    table_rmsnorm_forward,
    table_rmsnorm_backward,
    table_swiglu_forward,
    table_swiglu_backward,
    table_embedding_forward,
    table_embedding_backward,
    table_positions_forward,
    table_positions_backward,
    table_rotary_forward,
    table_rotary_backward,
    table_attention_forward,
    table_attention_backward,
    table_head_begin,
    table_head_forward,
    table_head_rescale,
    table_head_loss,
    table_head_backward,
    table_head_logits,
};

extern "C" const void *const plugin_table_model = &model_ops_cuda;
