/* ops: the operations of the transformer, forward and backward, on float32 in host memory.
 *
 * Each is a plain function of pointers and sizes: it holds nothing, and any thread may call it.
 * Matrices are row-major; "rows" is B·T unless said otherwise. Outputs never overlap inputs unless
 * said so. "=" is written, "+=" is added to. Matrix products go to OpenBLAS, everything else is
 * vectorised here. The bits of a result depend on its inputs and sizes alone.
 */
#ifndef MODEL_OPS_H
#define MODEL_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/dtype.h"

/* Between float32 and the dtypes that parameters may be held in (float32, bfloat16, float16).
 * widen: out (count) = in (count), exactly. narrow_add: sum (count) = round(float32(sum) + x), to
 * nearest even, each element by itself. */
void widen(float *out, const void *in, enum dtype dtype, size_t count);
void narrow_add(void *sum, const float *x, enum dtype dtype, size_t count);

/* out (rows, out_cols) = in (rows, in_cols) · weightᵀ + bias; weight (out_cols, in_cols), bias
 * (out_cols) or NULL for none. */
void linear_forward(float *out, const float *in, const float *weight, const float *bias,
    size_t rows, size_t in_cols, size_t out_cols);

/* d_in (rows, in_cols) = d_out · weight; d_weight (out_cols, in_cols) += d_outᵀ · in; d_bias
 * (out_cols) += Σ over rows of d_out. d_out (rows, out_cols), in (rows, in_cols), weight (out_cols,
 * in_cols). */
void linear_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
    const float *in, const float *weight, size_t rows, size_t in_cols, size_t out_cols);

/* Over each row: out = (in − mean) · rstd · weight + bias, rstd = 1/√(variance + 1e-5). out, in
 * (rows, cols); mean, rstd (rows) are kept for backward; weight, bias (cols). */
void layernorm_forward(float *out, float *mean, float *rstd, const float *in, const float *weight,
    const float *bias, size_t rows, size_t cols);

/* d_in (rows, cols) += , d_weight (cols) +=, d_bias (cols) +=; d_out, in (rows, cols), mean, rstd
 * (rows), weight (cols). */
void layernorm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
    const float *in, const float *mean, const float *rstd, const float *weight, size_t rows,
    size_t cols);

/* out (count) = gelu(in), the tanh form: x/2 · (1 + tanh(√(2/π)·(x + 0.044715 x³))). in is kept for
 * backward. */
void gelu_forward(float *out, const float *in, size_t count);

/* d (count) *= gelu′(in), in place: on entry the gradient of gelu's output, on return of its input.
 * in, out (count): of forward. */
void gelu_backward(float *d, const float *in, const float *out, size_t count);

/* x (rows, cols) += residual (rows, cols) + bias (cols). */
void bias_residual_add(
    float *x, const float *residual, const float *bias, size_t rows, size_t cols);

/* The input embedding, by blocks of the table. table (table_rows, cols) holds the rows of ids
 * first_row … first_row + table_rows − 1. Row i of x (rows, cols) = the table's row of tokens[i]
 * where it is held; other rows are left alone. */
void embedding_forward(float *x, const int32_t *tokens, const float *table, size_t first_row,
    size_t table_rows, size_t rows, size_t cols);
/* d_table (table_rows, cols) += the rows of d_x (rows, cols) whose token it holds. */
void embedding_backward(float *d_table, const int32_t *tokens, const float *d_x, size_t first_row,
    size_t table_rows, size_t rows, size_t cols);

/* x (batch, t, cols) += table (t, cols), and d_table (t, cols) += Σ over the batch of d_x (batch,
 * t, cols). */
void positions_forward(float *x, const float *table, size_t batch, size_t t, size_t cols);
void positions_backward(float *d_table, const float *d_x, size_t batch, size_t t, size_t cols);

/* Causal attention of `heads` heads of head_cols columns; width = heads · head_cols. qkv (batch, t,
 * 3, heads, head_cols); out (batch, t, width) = softmax(q kᵀ / √head_cols, over positions ≤ own) ·
 * v; lse (batch, heads, t): log Σ exp of each row's scores, kept for backward, which computes the
 * probabilities again. scratch: attention_scratch_elements(t) floats. */
void attention_forward(float *out, float *lse, float *scratch, const float *qkv, size_t batch,
    size_t t, size_t heads, size_t head_cols);
/* d_qkv (batch, t, 3, heads, head_cols) =; d_out, out (batch, t, width), lse (batch, heads, t), qkv
 * as in forward. */
void attention_backward(float *d_qkv, float *scratch, const float *d_out, const float *qkv,
    const float *out, const float *lse, size_t batch, size_t t, size_t heads, size_t head_cols);
size_t attention_scratch_elements(size_t t);

/* One block of vocabulary rows of the output head: what of it is held here, and the statistics of
 * each token's logits so far. */
struct head_rows {
    size_t first_row, count; /* ids first_row … first_row + count − 1 */
    const float *weight;     /* (count, cols) */
};

/* Starts the statistics: max = −inf, sum = 0, target_logit = 0; each (rows). */
void head_begin(float *max, float *sum, float *target_logit, size_t rows);

/* Takes one block into the statistics of every token: max (rows) of all logits so far, sum (rows)
 * of exp(logit − max), target_logit (rows) where the block holds the target. x (rows, cols);
 * targets (rows), negative ones are nobody's. scratch: head_scratch_elements(count, rows) floats;
 * no more of the logits is held at a time. */
void head_forward(float *max, float *sum, float *target_logit, float *scratch, const float *x,
    const int32_t *targets, struct head_rows block, size_t rows, size_t cols);

/* With p = exp(logit − lse) computed again and dlogit = scale · (p − [target]), 0 where the target
 * is negative: d_x (rows, cols) += dlogit · weight, d_weight (count, cols) += dlogitᵀ · x. lse
 * (rows): log Σ exp over all blocks. */
void head_backward(float *d_x, float *d_weight, float *scratch, const float *x, const float *lse,
    const int32_t *targets, float scale, struct head_rows block, size_t rows, size_t cols);
size_t head_scratch_elements(size_t count, size_t rows);

#endif
