/* blas: the part of cuBLAS that is called: products, with alpha and beta on the host. */
#include <cublas_v2.h>

#include "gemm.h"
#include "process.h"

namespace cudasim {
namespace {

struct handle {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;
};

cublasStatus_t multiply(cublasHandle_t of, matrix a, matrix b, matrix c, int m, int n, int k,
    const void *alpha, const void *beta, int batch, cublasComputeType_t compute)
{
    const handle *mine = (const handle *)of;
    if (mine == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    bool float32 = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                   compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!float32 || mine->pointers != CUBLAS_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
    gemm what = {a, b, c, c, m, n, k, batch, *(const float *)alpha, *(const float *)beta, {}};
    return gemm_submit(what, mine->stream);
}

matrix operand(const void *at, cudaDataType_t type, long long ld, long long stride,
    cublasOperation_t operation)
{
    return {(void *)at, type, ld, stride, operation != CUBLAS_OP_N};
}

} // namespace
} // namespace cudasim

using namespace cudasim;
extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *into)
{
    int count;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *into = (cublasHandle_t) new handle{nullptr, CUBLAS_DEFAULT_MATH, CUBLAS_POINTER_MODE_HOST};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t old)
{
    delete (handle *)old;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t of, cudaStream_t stream)
{
    ((handle *)of)->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t of, cudaStream_t *stream)
{
    *stream = ((handle *)of)->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t of, cublasMath_t math)
{
    ((handle *)of)->math = math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t of, cublasMath_t *math)
{
    *math = ((handle *)of)->math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t of, cublasPointerMode_t mode)
{
    ((handle *)of)->pointers = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

/* Of device memory, aligned to 256 bytes; not used here. */
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *workspace, size_t bytes)
{
    bool fine = bytes == 0 || (in_device_space(workspace) && (uintptr_t)workspace % 256 == 0);
    return fine ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version)
{
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "a status that cudasim never returns";
    }
}

const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasSgemm_v2(cublasHandle_t of, cublasOperation_t on_a, cublasOperation_t on_b,
    int m, int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
    const float *beta, float *c, int ldc)
{
    return multiply(of, operand(a, CUDA_R_32F, lda, 0, on_a), operand(b, CUDA_R_32F, ldb, 0, on_b),
        operand(c, CUDA_R_32F, ldc, 0, CUBLAS_OP_N), m, n, k, alpha, beta, 1, CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t of, cublasOperation_t on_a,
    cublasOperation_t on_b, int m, int n, int k, const float *alpha, const float *a, int lda,
    long long stride_a, const float *b, int ldb, long long stride_b, const float *beta, float *c,
    int ldc, long long stride_c, int batch)
{
    return multiply(of, operand(a, CUDA_R_32F, lda, stride_a, on_a),
        operand(b, CUDA_R_32F, ldb, stride_b, on_b),
        operand(c, CUDA_R_32F, ldc, stride_c, CUBLAS_OP_N), m, n, k, alpha, beta, batch,
        CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasGemmEx(cublasHandle_t of, cublasOperation_t on_a, cublasOperation_t on_b,
    int m, int n, int k, const void *alpha, const void *a, cudaDataType a_type, int lda,
    const void *b, cudaDataType b_type, int ldb, const void *beta, void *c, cudaDataType c_type,
    int ldc, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    return multiply(of, operand(a, a_type, lda, 0, on_a), operand(b, b_type, ldb, 0, on_b),
        operand(c, c_type, ldc, 0, CUBLAS_OP_N), m, n, k, alpha, beta, 1, compute);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t of, cublasOperation_t on_a,
    cublasOperation_t on_b, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType a_type, int lda, long long stride_a, const void *b, cudaDataType b_type, int ldb,
    long long stride_b, const void *beta, void *c, cudaDataType c_type, int ldc, long long stride_c,
    int batch, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    return multiply(of, operand(a, a_type, lda, stride_a, on_a),
        operand(b, b_type, ldb, stride_b, on_b), operand(c, c_type, ldc, stride_c, CUBLAS_OP_N), m,
        n, k, alpha, beta, batch, compute);
}
}
