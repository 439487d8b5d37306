/* ops_table_host: the host's table of operations. Every entry calls the function of its name in
 * ops_host.h, on float32 in the caller's thread: nothing is queued, nothing is opened.
 */
#include <string.h>

#include "model/ops_host.h"

static enum dtype table_compute(enum dtype weights)
{
    (void)weights;
    return DTYPE_FLOAT32;
}

static size_t table_scratch_bytes(const struct ops_limits *limits, enum dtype dtype)
{
    (void)limits, (void)dtype;
    return 0;
}

static size_t table_attention_scratch_bytes(struct attention_size size, enum dtype dtype)
{
    (void)dtype;
    return attention_scratch_elements(size.t) * sizeof(float);
}

static size_t table_head_scratch_bytes(size_t count, size_t rows, size_t cols, enum dtype dtype)
{
    (void)cols, (void)dtype;
    return head_scratch_elements(count, rows) * sizeof(float);
}

static enum status table_open(struct ops_context *context)
{
    (void)context;
    return STATUS_OK;
}

static void table_close(struct ops_context *context)
{
    (void)context;
}

static void table_clear(void *out, size_t bytes, const struct ops_context *context)
{
    (void)context;
    memset(out, 0, bytes);
}

static void table_copy(void *out, const void *in, size_t bytes, const struct ops_context *context)
{
    (void)context;
    memcpy(out, in, bytes);
}

static void table_widen(
    void *out, const void *in, enum dtype dtype, size_t count, const struct ops_context *context)
{
    (void)context;
    widen(out, in, dtype, count);
}

static void table_narrow_add(
    void *sum, float *x, enum dtype dtype, size_t count, const struct ops_context *context)
{
    (void)context;
    narrow_add(sum, x, dtype, count);
}

static void table_narrow_first(
    void *sum, float *x, enum dtype dtype, size_t count, const struct ops_context *context)
{
    (void)context;
    narrow_first(sum, x, dtype, count);
}

static void table_linear_forward(void *out, void *gelu_in, const void *in, const void *weight,
    const void *bias, size_t rows, size_t in_cols, size_t out_cols,
    const struct ops_context *context)
{
    (void)context;
    linear_forward(gelu_in != NULL ? gelu_in : out, in, weight, bias, rows, in_cols, out_cols);
    if (gelu_in != NULL) gelu_forward(out, gelu_in, rows * out_cols);
}

static void table_linear_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const void *gelu_in, const void *weight, size_t rows, size_t in_cols,
    size_t out_cols, const struct ops_context *context)
{
    (void)context;
    linear_backward(d_in, d_weight, d_bias, d_out, in, weight, rows, in_cols, out_cols);
    if (gelu_in != NULL) gelu_backward(d_in, gelu_in, in, rows * in_cols);
}

static void table_bias_residual_add(void *x, const void *residual, const void *bias, size_t rows,
    size_t cols, const struct ops_context *context)
{
    (void)context;
    bias_residual_add(x, residual, bias, rows, cols);
}

static void table_layernorm_forward(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, size_t rows, size_t cols,
    const struct ops_context *context)
{
    (void)context;
    layernorm_forward(out, mean, rstd, in, weight, bias, rows, cols);
}

static void table_layernorm_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const float *mean, const float *rstd, const void *weight, size_t rows,
    size_t cols, const struct ops_context *context)
{
    (void)context;
    layernorm_backward(d_in, d_weight, d_bias, d_out, in, mean, rstd, weight, rows, cols);
}

static void table_rmsnorm_forward(void *out, float *rstd, const void *in, const void *weight,
    size_t rows, size_t cols, const struct ops_context *context)
{
    (void)context;
    rmsnorm_forward(out, rstd, in, weight, rows, cols);
}

static void table_rmsnorm_backward(void *d_in, float *d_weight, const void *d_out, const void *in,
    const float *rstd, const void *weight, size_t rows, size_t cols,
    const struct ops_context *context)
{
    (void)context;
    rmsnorm_backward(d_in, d_weight, d_out, in, rstd, weight, rows, cols);
}

static void table_swiglu_forward(
    void *out, const void *in, size_t rows, size_t cols, const struct ops_context *context)
{
    (void)context;
    swiglu_forward(out, in, rows, cols);
}

static void table_swiglu_backward(void *d_in, const void *d_out, const void *in, size_t rows,
    size_t cols, const struct ops_context *context)
{
    (void)context;
    swiglu_backward(d_in, d_out, in, rows, cols);
}

static void table_embedding_forward(void *x, const int32_t *tokens, const void *table,
    size_t first_row, size_t table_rows, size_t rows, size_t cols,
    const struct ops_context *context)
{
    (void)context;
    embedding_forward(x, tokens, table, first_row, table_rows, rows, cols);
}

static void table_embedding_backward(float *d_table, const int32_t *tokens, const void *d_x,
    size_t first_row, size_t table_rows, size_t rows, size_t cols,
    const struct ops_context *context)
{
    (void)context;
    embedding_backward(d_table, tokens, d_x, first_row, table_rows, rows, cols);
}

static void table_positions_forward(void *x, const void *table, size_t batch, size_t t, size_t cols,
    const struct ops_context *context)
{
    (void)context;
    positions_forward(x, table, batch, t, cols);
}

static void table_positions_backward(float *d_table, const void *d_x, size_t batch, size_t t,
    size_t cols, const struct ops_context *context)
{
    (void)context;
    positions_backward(d_table, d_x, batch, t, cols);
}

static void table_rotary_forward(void *qkv, const float *turns, struct attention_size size,
    const struct ops_context *context)
{
    (void)context;
    rotary_forward(qkv, turns, size);
}

static void table_rotary_backward(void *d_qkv, const float *turns, struct attention_size size,
    const struct ops_context *context)
{
    (void)context;
    rotary_backward(d_qkv, turns, size);
}

static void table_attention_forward(void *out, float *lse, void *scratch, const void *qkv,
    struct attention_size size, const struct ops_context *context)
{
    (void)context;
    attention_forward(out, lse, scratch, qkv, size);
}

static void table_attention_backward(void *d_qkv, void *scratch, const void *d_out, const void *qkv,
    const void *out, const float *lse, struct attention_size size,
    const struct ops_context *context)
{
    (void)context;
    attention_backward(d_qkv, scratch, d_out, qkv, out, lse, size);
}

static void table_head_begin(
    float *max, float *sum, float *target_logit, size_t rows, const struct ops_context *context)
{
    (void)context;
    head_begin(max, sum, target_logit, rows);
}

static void table_head_forward(float *max, float *sum, float *target_logit, void *scratch,
    const void *x, const int32_t *targets, struct head_rows block, size_t rows, size_t cols,
    const struct ops_context *context)
{
    (void)context;
    head_forward(max, sum, target_logit, scratch, x, targets, block, rows, cols);
}

static void table_head_rescale(float *sum, const float *own_max, const float *max, size_t rows,
    const struct ops_context *context)
{
    (void)context;
    head_rescale(sum, own_max, max, rows);
}

static void table_head_loss(double *loss, float *lse, const float *max, const float *sum,
    const float *target_logit, const int32_t *targets, size_t rows,
    const struct ops_context *context)
{
    (void)context;
    head_loss(loss, lse, max, sum, target_logit, targets, rows);
}

static void table_head_backward(void *d_x, float *d_weight, void *scratch, const void *x,
    const float *lse, const int32_t *targets, float scale, struct head_rows block, size_t rows,
    size_t cols, const struct ops_context *context)
{
    (void)context;
    head_backward(d_x, d_weight, scratch, x, lse, targets, scale, block, rows, cols);
}

static void table_head_logits(float *logits, const void *x, struct head_rows block, size_t cols,
    const struct ops_context *context)
{
    (void)context;
    linear_forward(logits, x, block.weight, NULL, 1, cols, block.count);
}

const struct model_ops model_ops_host = {
    .name = "host",
    .queued = false,
    .compute = table_compute,
    .scratch_bytes = table_scratch_bytes,
    .attention_scratch_bytes = table_attention_scratch_bytes,
    .head_scratch_bytes = table_head_scratch_bytes,
    .open = table_open,
    .close = table_close,
    .clear = table_clear,
    .copy = table_copy,
    .widen = table_widen,
    .narrow_add = table_narrow_add,
    .narrow_first = table_narrow_first,
    .linear_forward = table_linear_forward,
    .linear_backward = table_linear_backward,
    .bias_residual_add = table_bias_residual_add,
    .layernorm_forward = table_layernorm_forward,
    .layernorm_backward = table_layernorm_backward,
    .rmsnorm_forward = table_rmsnorm_forward,
    .rmsnorm_backward = table_rmsnorm_backward,
    .swiglu_forward = table_swiglu_forward,
    .swiglu_backward = table_swiglu_backward,
    .embedding_forward = table_embedding_forward,
    .embedding_backward = table_embedding_backward,
    .positions_forward = table_positions_forward,
    .positions_backward = table_positions_backward,
    .rotary_forward = table_rotary_forward,
    .rotary_backward = table_rotary_backward,
    .attention_forward = table_attention_forward,
    .attention_backward = table_attention_backward,
    .head_begin = table_head_begin,
    .head_forward = table_head_forward,
    .head_rescale = table_head_rescale,
    .head_loss = table_head_loss,
    .head_backward = table_head_backward,
    .head_logits = table_head_logits,
};
