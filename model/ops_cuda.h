/* ops_cuda: what the table of CUDA operations is made of: one launch, or a few, per function.
 *
 * Shapes, aliasing and meaning are those of the same names in ops.h. `dtype` is that of activations
 * and weights: float32, bfloat16 or float16; statistics and gradients of weights are float32.
 * Numbers are computed in float32 and rounded once, when they are stored.
 * Every function enqueues on the stream and returns; bits depend on inputs and sizes alone.
 * errors: CUDA when a launch is refused; INVALID for a dtype or a size that no kernel takes.
 */
#ifndef MODEL_OPS_CUDA_H
#define MODEL_OPS_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "model/ops.h"
#include "verbs/dtype.h"
#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a context of CUDA operations holds beside its scratch. */
struct blas_cuda {
    cublasHandle_t blas;
    struct fused_cuda *fused; /* ops_fused_cuda.cu's */
    void *workspace; /* BLAS_WORKSPACE_BYTES: the context's scratch, shared in stream order */
};
#define BLAS_WORKSPACE_BYTES ((size_t)16 << 20)

/* Passes a failing call of cuBLAS on. */
#define TRY_CUBLAS(call)                                                                           \
    do {                                                                                           \
        cublasStatus_t blas_status_ = (call);                                                      \
        if (blas_status_ != CUBLAS_STATUS_SUCCESS)                                                 \
            return blas_fail_cuda(blas_status_, #call, __FILE__, __LINE__);                        \
    } while (0)
enum status blas_fail_cuda(cublasStatus_t found, const char *call, const char *file, int line);

MUST_CHECK enum status blas_open_cuda(struct blas_cuda **blas, void *workspace);
void blas_close_cuda(struct blas_cuda *blas); /* NULL is accepted */

/* A row-major matrix in memory, or its transpose. */
struct operand_cuda {
    const void *at;
    size_t stride; /* elements from one row to the next, in memory */
    bool transposed;
};

/* c (m, n), rows c_stride apart, = beta · c + a (m, k) · b (k, n), a and b of dtype, c of c_dtype:
 * the same or float32. Sums are float32, rounded once. beta: 0 or 1. */
MUST_CHECK enum status product_cuda(void *c, enum dtype c_dtype, size_t c_stride, float beta,
    struct operand_cuda a, struct operand_cuda b, enum dtype dtype, size_t m, size_t n, size_t k,
    const struct blas_cuda *blas, cudaStream_t stream);

/* What follows a product before it is stored:
 *
 *   BIAS             c = y, y = product + bias (n)
 *   BIAS_GELU        gelu_in (m, n), rows gelu_stride apart, = y; c = gelu(y)
 *   GELU_BACKWARD    c = product ∘ gelu′(gelu_in) */
enum epilogue_kind { EPILOGUE_BIAS, EPILOGUE_BIAS_GELU, EPILOGUE_GELU_BACKWARD };
struct epilogue_cuda {
    enum epilogue_kind kind;
    const void *bias;
    void *gelu_in;
    size_t gelu_stride;
};

/* c (m, n) = epilogue of a (m, k) · b (k, n), all of dtype, if cuBLASLt can: *done says so. If not,
 * nothing was queued. */
MUST_CHECK enum status product_fused_cuda(bool *done, void *c, size_t c_stride,
    struct operand_cuda a, struct operand_cuda b, struct epilogue_cuda epilogue, enum dtype dtype,
    size_t m, size_t n, size_t k, const struct blas_cuda *blas, cudaStream_t stream);
MUST_CHECK enum status fused_open_cuda(struct fused_cuda **fused);
void fused_close_cuda(struct fused_cuda *fused); /* NULL is accepted */

MUST_CHECK enum status linear_forward_cuda(void *out, void *gelu_in, const void *in,
    const void *weight, const void *bias, enum dtype dtype, size_t rows, size_t in_cols,
    size_t out_cols, const struct blas_cuda *blas, cudaStream_t stream);
/* scratch: partial_elements_cuda(out_cols) floats. */
MUST_CHECK enum status linear_backward_cuda(void *d_in, float *d_weight, float *d_bias,
    float *scratch, const void *d_out, const void *in, const void *gelu_in, const void *weight,
    enum dtype dtype, size_t rows, size_t in_cols, size_t out_cols, const struct blas_cuda *blas,
    cudaStream_t stream);

/* Floats of scratch that sums over rows need, for any number of rows; see column_sums_cuda(). */
size_t partial_elements_cuda(size_t cols);

MUST_CHECK enum status widen_cuda(
    float *out, const void *in, enum dtype dtype, size_t count, cudaStream_t stream);
MUST_CHECK enum status narrow_add_cuda(
    void *sum, float *x, enum dtype dtype, size_t count, cudaStream_t stream);
MUST_CHECK enum status narrow_first_cuda(
    void *sum, float *x, enum dtype dtype, size_t count, cudaStream_t stream);

MUST_CHECK enum status layernorm_forward_cuda(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, enum dtype dtype, size_t rows, size_t cols,
    cudaStream_t stream);
/* scratch: partial_elements_cuda(2 · cols) floats. */
MUST_CHECK enum status layernorm_backward_cuda(void *d_in, float *d_weight, float *d_bias,
    float *scratch, const void *d_out, const void *in, const float *mean, const float *rstd,
    const void *weight, enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream);

MUST_CHECK enum status rmsnorm_forward_cuda(void *out, float *rstd, const void *in,
    const void *weight, enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream);
/* scratch: partial_elements_cuda(cols) floats. */
MUST_CHECK enum status rmsnorm_backward_cuda(void *d_in, float *d_weight, float *scratch,
    const void *d_out, const void *in, const float *rstd, const void *weight, enum dtype dtype,
    size_t rows, size_t cols, cudaStream_t stream);

MUST_CHECK enum status swiglu_forward_cuda(
    void *out, const void *in, enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream);
MUST_CHECK enum status swiglu_backward_cuda(void *d_in, const void *d_out, const void *in,
    enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream);

MUST_CHECK enum status gelu_forward_cuda(
    void *out, const void *in, enum dtype dtype, size_t count, cudaStream_t stream);
/* The gate is computed again from in, since out has lost digits where it is of 16 bits. */
MUST_CHECK enum status gelu_backward_cuda(
    void *d, const void *in, enum dtype dtype, size_t count, cudaStream_t stream);
/* x (rows, cols) += bias (cols), and where out is not NULL, out = gelu(x) of the sum. */
MUST_CHECK enum status bias_gelu_cuda(void *out, void *x, const void *bias, enum dtype dtype,
    size_t rows, size_t cols, cudaStream_t stream);
MUST_CHECK enum status bias_residual_add_cuda(void *x, const void *residual, const void *bias,
    enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream);

/* sum (cols) += the column sums of x (rows, cols). scratch: partial_elements_cuda(cols) floats. */
MUST_CHECK enum status column_sums_cuda(float *sum, float *scratch, const void *x, enum dtype dtype,
    size_t rows, size_t cols, cudaStream_t stream);

MUST_CHECK enum status embedding_forward_cuda(void *x, const int32_t *tokens, const void *table,
    enum dtype dtype, size_t first_row, size_t table_rows, size_t rows, size_t cols,
    cudaStream_t stream);
MUST_CHECK enum status embedding_backward_cuda(float *d_table, const int32_t *tokens,
    const void *d_x, enum dtype dtype, size_t first_row, size_t table_rows, size_t rows,
    size_t cols, cudaStream_t stream);
MUST_CHECK enum status positions_forward_cuda(void *x, const void *table, enum dtype dtype,
    size_t batch, size_t t, size_t cols, cudaStream_t stream);
MUST_CHECK enum status positions_backward_cuda(float *d_table, const void *d_x, enum dtype dtype,
    size_t batch, size_t t, size_t cols, cudaStream_t stream);

/* head_cols ≤ 128. No scratch forward; backward: batch · heads · t floats. */
MUST_CHECK enum status attention_forward_cuda(void *out, float *lse, const void *qkv,
    enum dtype dtype, struct attention_size size, cudaStream_t stream);
MUST_CHECK enum status attention_backward_cuda(void *d_qkv, float *scratch, const void *d_out,
    const void *qkv, const void *out, const float *lse, enum dtype dtype,
    struct attention_size size, cudaStream_t stream);
/* back: gradients, by the opposite angles. */
MUST_CHECK enum status rotary_cuda(void *qkv, const float *turns, bool back, enum dtype dtype,
    struct attention_size size, cudaStream_t stream);

/* Bytes of the head's scratch: a tile of float32 logits, of at most HEAD_TILE_BYTES where 64 rows
 * fit into that. */
size_t head_scratch_bytes_cuda(size_t count, size_t rows);
MUST_CHECK enum status head_begin_cuda(
    float *max, float *sum, float *target_logit, size_t rows, cudaStream_t stream);
MUST_CHECK enum status head_forward_cuda(float *max, float *sum, float *target_logit, void *scratch,
    const void *x, const int32_t *targets, struct head_rows block, enum dtype dtype, size_t rows,
    size_t cols, const struct blas_cuda *blas, cudaStream_t stream);
MUST_CHECK enum status head_rescale_cuda(
    float *sum, const float *own_max, const float *max, size_t rows, cudaStream_t stream);
MUST_CHECK enum status head_loss_cuda(double *loss, float *lse, const float *max, const float *sum,
    const float *target_logit, const int32_t *targets, size_t rows, cudaStream_t stream);
MUST_CHECK enum status head_backward_cuda(void *d_x, float *d_weight, void *scratch, const void *x,
    const float *lse, const int32_t *targets, float scale, struct head_rows block, enum dtype dtype,
    size_t rows, size_t cols, const struct blas_cuda *blas, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
