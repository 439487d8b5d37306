/* ops_host: the host's operations, on float32: what model_ops_host (ops.h, where each is described)
 * is made of.
 *
 * Each is a plain function of pointers and sizes: it holds nothing, and any thread may call it.
 * Matrix products go to OpenBLAS, everything else is vectorised here.
 */
#ifndef MODEL_OPS_HOST_H
#define MODEL_OPS_HOST_H

#include "model/ops.h"

/* Between float32 and the dtypes that parameters may be held in (float32, bfloat16, float16). */
void widen(float *out, const void *in, enum dtype dtype, size_t count);
void narrow(void *out, const float *in, enum dtype dtype, size_t count);
void narrow_add(void *sum, float *x, enum dtype dtype, size_t count);
void narrow_first(void *sum, float *x, enum dtype dtype, size_t count);

void linear_forward(float *out, const float *in, const float *weight, const float *bias,
    size_t rows, size_t in_cols, size_t out_cols);
void linear_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
    const float *in, const float *weight, size_t rows, size_t in_cols, size_t out_cols);

void layernorm_forward(float *out, float *mean, float *rstd, const float *in, const float *weight,
    const float *bias, size_t rows, size_t cols);
void layernorm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
    const float *in, const float *mean, const float *rstd, const float *weight, size_t rows,
    size_t cols);

void rmsnorm_forward(
    float *out, float *rstd, const float *in, const float *weight, size_t rows, size_t cols);
void rmsnorm_backward(float *d_in, float *d_weight, const float *d_out, const float *in,
    const float *rstd, const float *weight, size_t rows, size_t cols);

void swiglu_forward(float *out, const float *in, size_t rows, size_t cols);
void swiglu_backward(float *d_in, const float *d_out, const float *in, size_t rows, size_t cols);

void rotary_forward(float *qkv, const float *turns, struct attention_size size);
void rotary_backward(float *d_qkv, const float *turns, struct attention_size size);

/* out (count) = gelu(in). in is kept for backward. */
void gelu_forward(float *out, const float *in, size_t count);
/* d (count) *= gelu′(in), in place: on entry the gradient of gelu's output, on return of its input.
 * in, out (count): of forward. */
void gelu_backward(float *d, const float *in, const float *out, size_t count);

void bias_residual_add(
    float *x, const float *residual, const float *bias, size_t rows, size_t cols);

void embedding_forward(float *x, const int32_t *tokens, const float *table, size_t first_row,
    size_t table_rows, size_t rows, size_t cols);
void embedding_backward(float *d_table, const int32_t *tokens, const float *d_x, size_t first_row,
    size_t table_rows, size_t rows, size_t cols);

void positions_forward(float *x, const float *table, size_t batch, size_t t, size_t cols);
void positions_backward(float *d_table, const float *d_x, size_t batch, size_t t, size_t cols);

/* scratch: attention_scratch_elements(t) floats. */
void attention_forward(
    float *out, float *lse, float *scratch, const float *qkv, struct attention_size size);
void attention_backward(float *d_qkv, float *scratch, const float *d_out, const float *qkv,
    const float *out, const float *lse, struct attention_size size);
size_t attention_scratch_elements(size_t t);

/* scratch: head_scratch_elements(count, rows) floats. */
void head_begin(float *max, float *sum, float *target_logit, size_t rows);
void head_forward(float *max, float *sum, float *target_logit, float *scratch, const float *x,
    const int32_t *targets, struct head_rows block, size_t rows, size_t cols);
void head_rescale(float *sum, const float *own_max, const float *max, size_t rows);
void head_loss(double *loss, float *lse, const float *max, const float *sum,
    const float *target_logit, const int32_t *targets, size_t rows);
void head_backward(float *d_x, float *d_weight, float *scratch, const float *x, const float *lse,
    const int32_t *targets, float scale, struct head_rows block, size_t rows, size_t cols);
size_t head_scratch_elements(size_t count, size_t rows);

#endif
