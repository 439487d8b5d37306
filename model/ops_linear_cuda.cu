/* ops_linear_cuda: matrix products by cuBLAS, and the linear layer.
 *
 * cuBLAS knows matrices by columns. A row-major (m, n) is its column-major (n, m), so that
 *
 *     c = a · b  by rows     is     cᵀ = bᵀ · aᵀ  by columns: the operands change places, and each
 *                                   is transposed for cuBLAS where it is here
 *
 * Products of 16-bit numbers are added up in float32, in one accumulator per element of c:
 * reductions in 16 bits are switched off. cuBLAS gives the same bits for the same sizes on the same
 * device as long as one stream uses a handle with one workspace, which is how a context does.
 *
 * Bias and GELU are part of the product where ops_fused_cuda.cu can; else they follow it in one pass
 * over its result (3s bytes per element, s = bytes of an activation).
 */
#include "model/ops_cuda.h"

#include <stdlib.h>

/* No product of ours is refused: never run here { */
enum status blas_fail_cuda(cublasStatus_t found, const char *call, const char *file, int line)
{
    int name = 0;
    while (call[name] != '\0' && call[name] != '(') name++;
    return status_fail(STATUS_CUDA, file, line,
        "%.*s failed with status %d of cublas_api.h; expected 0: 3 is too little device memory, 8 "
        "a device too old for the dtype, 13 and 14 a failure of an earlier kernel",
        name, call, (int)found);
}
/* never run here } */

/* ---- handles ---- */

enum status blas_open_cuda(struct blas_cuda **blas, void *workspace)
{
    struct blas_cuda *made = (struct blas_cuda *)calloc(1, sizeof *made);
    *blas = made;
    if (made == NULL) return FAIL(STATUS_SYSTEM, "no memory for a cuBLAS handle");
    made->workspace = workspace;
    TRY_CUBLAS(cublasCreate(&made->blas));
    TRY_CUBLAS(cublasSetMathMode(made->blas,
        (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    return fused_open_cuda(&made->fused);
}

void blas_close_cuda(struct blas_cuda *blas)
{
    if (blas == NULL) return;
    fused_close_cuda(blas->fused);
    if (blas->blas != NULL) (void)cublasDestroy(blas->blas);
    free(blas);
}

/* ---- products ---- */

static cudaDataType type_of(enum dtype dtype)
{
    if (dtype == DTYPE_BFLOAT16) return CUDA_R_16BF;
    return dtype == DTYPE_FLOAT16 ? CUDA_R_16F : CUDA_R_32F;
}

static cublasOperation_t operation_of(struct operand_cuda operand)
{
    return operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

enum status product_cuda(void *c, enum dtype c_dtype, size_t c_stride, float beta,
    struct operand_cuda a, struct operand_cuda b, enum dtype dtype, size_t m, size_t n, size_t k,
    const struct blas_cuda *blas, cudaStream_t stream)
{
    const float alpha = 1.0f;
    cudaDataType type = type_of(dtype);
    if (m == 0 || n == 0) return STATUS_OK;
    TRY_CUBLAS(cublasSetStream(blas->blas, stream)); /* which forgets the workspace */
    TRY_CUBLAS(cublasSetWorkspace(blas->blas, blas->workspace, BLAS_WORKSPACE_BYTES));
    TRY_CUBLAS(cublasGemmEx(blas->blas, operation_of(b), operation_of(a), (int)n, (int)m, (int)k,
        &alpha, b.at, type, (int)b.stride, a.at, type, (int)a.stride, &beta, c, type_of(c_dtype),
        (int)c_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return STATUS_OK;
}

/* ---- the linear layer ---- */

enum status linear_forward_cuda(void *out, void *gelu_in, const void *in, const void *weight,
    const void *bias, enum dtype dtype, size_t rows, size_t in_cols, size_t out_cols,
    const struct blas_cuda *blas, cudaStream_t stream)
{
    struct operand_cuda a = {in, in_cols, false}, b = {weight, in_cols, true};
    struct epilogue_cuda epilogue = {gelu_in != NULL ? EPILOGUE_BIAS_GELU : EPILOGUE_BIAS, bias,
        gelu_in, gelu_in != NULL ? out_cols : 0};
    void *y = gelu_in != NULL ? gelu_in : out;
    bool done = false;
    if (bias != NULL)
        TRY(product_fused_cuda(
            &done, out, out_cols, a, b, epilogue, dtype, rows, out_cols, in_cols, blas, stream));
    if (done) return STATUS_OK;
    TRY(product_cuda(y, dtype, out_cols, 0.0f, a, b, dtype, rows, out_cols, in_cols, blas, stream));
    if (bias != NULL)
        return bias_gelu_cuda(gelu_in != NULL ? out : NULL, y, bias, dtype, rows, out_cols, stream);
    if (gelu_in != NULL) return gelu_forward_cuda(out, y, dtype, rows * out_cols, stream);
    return STATUS_OK;
}

enum status linear_backward_cuda(void *d_in, float *d_weight, float *d_bias, float *scratch,
    const void *d_out, const void *in, const void *gelu_in, const void *weight, enum dtype dtype,
    size_t rows, size_t in_cols, size_t out_cols, const struct blas_cuda *blas, cudaStream_t stream)
{
    struct operand_cuda d = {d_out, out_cols, false}, d_transposed = {d_out, out_cols, true};
    struct operand_cuda x = {in, in_cols, false}, w = {weight, in_cols, false};
    if (d_weight != NULL)
        TRY(product_cuda(d_weight, DTYPE_FLOAT32, in_cols, 1.0f, d_transposed, x, dtype, out_cols,
            in_cols, rows, blas, stream));
    if (d_bias != NULL)
        TRY(column_sums_cuda(d_bias, scratch, d_out, dtype, rows, out_cols, stream));
    if (d_in == NULL) return STATUS_OK;
    struct epilogue_cuda epilogue = {
        EPILOGUE_GELU_BACKWARD, NULL, (void *)(uintptr_t)gelu_in, in_cols}; /* which is read */
    bool done = false;
    if (gelu_in != NULL)
        TRY(product_fused_cuda(
            &done, d_in, in_cols, d, w, epilogue, dtype, rows, in_cols, out_cols, blas, stream));
    if (done) return STATUS_OK;
    TRY(product_cuda(
        d_in, dtype, in_cols, 0.0f, d, w, dtype, rows, in_cols, out_cols, blas, stream));
    if (gelu_in != NULL) return gelu_backward_cuda(d_in, gelu_in, dtype, rows * in_cols, stream);
    return STATUS_OK;
}
