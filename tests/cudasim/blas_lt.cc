/* blas_lt: the part of cuBLASLt that one calls for a product with an epilogue: bias, GELU with its
 * input kept, GELU's gradient, gradients of a bias. Layouts and descriptors are what their
 * attributes say, no more.
 *
 * As in cuBLASLt, what cannot be is refused: a leading dimension of the auxiliary matrix that 8
 * does not divide, pointers that are not aligned to 16 bytes, a workspace to 256, an algorithm that
 * the heuristic did not give, an epilogue without its pointer.
 */
#include <cstdint>
#include <cstring>
#include <cublasLt.h>

#include "gemm.h"
#include "process.h"

namespace cudasim {
namespace {

struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld, batch_stride;
    int32_t batch, order;
};
static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "one may lie in the other");

struct description {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose_a, transpose_b, pointers;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t bias_stride, aux_ld, aux_stride;
    int32_t bias_type, aux_type; /* −1: that of d */
};
static_assert(
    sizeof(description) <= sizeof(cublasLtMatmulDescOpaque_t), "one may lie in the other");

struct field {
    int attribute;
    size_t offset, bytes;
};
#define LAYOUT_FIELD(attribute, member)                                                            \
    {                                                                                              \
        CUBLASLT_MATRIX_LAYOUT_##attribute, offsetof(layout, member), sizeof(layout::member)       \
    }
const field layout_fields[] = {LAYOUT_FIELD(TYPE, type), LAYOUT_FIELD(ORDER, order),
    LAYOUT_FIELD(ROWS, rows), LAYOUT_FIELD(COLS, cols), LAYOUT_FIELD(LD, ld),
    LAYOUT_FIELD(BATCH_COUNT, batch), LAYOUT_FIELD(STRIDED_BATCH_OFFSET, batch_stride)};
#define MATMUL_FIELD(attribute, member)                                                            \
    {                                                                                              \
        CUBLASLT_MATMUL_DESC_##attribute, offsetof(description, member),                           \
            sizeof(description::member)                                                            \
    }
const field matmul_fields[] = {MATMUL_FIELD(COMPUTE_TYPE, compute), MATMUL_FIELD(SCALE_TYPE, scale),
    MATMUL_FIELD(POINTER_MODE, pointers), MATMUL_FIELD(TRANSA, transpose_a),
    MATMUL_FIELD(TRANSB, transpose_b), MATMUL_FIELD(EPILOGUE, epilogue),
    MATMUL_FIELD(BIAS_POINTER, bias), MATMUL_FIELD(BIAS_BATCH_STRIDE, bias_stride),
    MATMUL_FIELD(EPILOGUE_AUX_POINTER, aux), MATMUL_FIELD(EPILOGUE_AUX_LD, aux_ld),
    MATMUL_FIELD(EPILOGUE_AUX_BATCH_STRIDE, aux_stride), MATMUL_FIELD(BIAS_DATA_TYPE, bias_type),
    MATMUL_FIELD(EPILOGUE_AUX_DATA_TYPE, aux_type)};

template <size_t N>
cublasStatus_t set_field(
    void *object, const field (&fields)[N], int attribute, const void *value, size_t bytes)
{
    for (const field &each : fields) {
        if (each.attribute != attribute) continue;
        if (each.bytes != bytes || value == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy((char *)object + each.offset, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

matrix operand(const void *at, const layout &of, bool transposed)
{
    return {(void *)at, of.type, of.ld, of.batch_stride, transposed};
}

constexpr uint64_t ALGORITHM = 0x61; /* the one that there is */

bool aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

cublasStatus_t read_epilogue(epilogue &into, const description &of, const layout &d)
{
    uint32_t bits = of.epilogue;
    const uint32_t known = CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_GELU_AUX_BIAS |
                           CUBLASLT_EPILOGUE_DGELU_BGRAD | CUBLASLT_EPILOGUE_BGRADA |
                           CUBLASLT_EPILOGUE_BGRADB;
    if ((bits & ~known) != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    bool gradient = (bits & 64) != 0;
    into.adds_bias = (bits & CUBLASLT_EPILOGUE_BIAS) != 0;
    into.gelu = (bits & CUBLASLT_EPILOGUE_GELU) != 0;
    into.gelu_gradient = gradient;
    into.sums_d = (bits & 16) != 0;
    into.sums_a = (bits & CUBLASLT_EPILOGUE_BGRADA) != 0;
    into.sums_b = (bits & CUBLASLT_EPILOGUE_BGRADB) != 0;
    cudaDataType_t bias_type = of.bias_type < 0 ? d.type : (cudaDataType_t)of.bias_type;
    cudaDataType_t aux_type = of.aux_type < 0 ? d.type : (cudaDataType_t)of.aux_type;
    into.bias = {of.bias, bias_type, (long long)d.rows, of.bias_stride, false};
    bool needs_bias = into.adds_bias || into.sums_d || into.sums_a || into.sums_b,
         needs_aux = (bits & 128) != 0;
    if (needs_bias && of.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (!needs_aux) return CUBLAS_STATUS_SUCCESS;
    into.aux = {of.aux, aux_type, of.aux_ld, of.aux_stride, false};
    bool fine =
        of.aux != nullptr && aligned(of.aux) && of.aux_ld % 8 == 0 && of.aux_ld >= (int64_t)d.rows;
    return fine ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* Without the addresses of the matrices: what the heuristic looks at too. */
cublasStatus_t read_product(gemm &into, const description &of, const layout &a, const layout &b,
    const layout &c, const layout &d)
{
    bool at = of.transpose_a != CUBLAS_OP_N, bt = of.transpose_b != CUBLAS_OP_N;
    uint64_t m = at ? a.cols : a.rows, k = at ? a.rows : a.cols, n = bt ? b.rows : b.cols,
             k_of_b = bt ? b.cols : b.rows;
    if (k != k_of_b || d.rows != m || d.cols != n || c.rows != m || c.cols != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a.batch != b.batch || a.batch != d.batch) return CUBLAS_STATUS_INVALID_VALUE;
    if (of.pointers != CUBLASLT_POINTER_MODE_HOST || of.scale != CUDA_R_32F ||
        of.compute == CUBLAS_COMPUTE_16F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((a.order | b.order | c.order | d.order) != CUBLASLT_ORDER_COL)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    into = {};
    into.a = operand(nullptr, a, at);
    into.b = operand(nullptr, b, bt);
    into.c = operand(nullptr, c, false);
    into.d = operand(nullptr, d, false);
    into.m = (int)m;
    into.n = (int)n;
    into.k = (int)k;
    into.batch = d.batch;
    return read_epilogue(into.then, of, d);
}

} // namespace
} // namespace cudasim

using namespace cudasim;
extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *into)
{
    int count;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *into = (cublasLtHandle_t) new int(0); /* it holds nothing, but is someone's own */
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t old)
{
    delete (int *)old;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t *into, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
    *into = (cublasLtMatrixLayout_t) new layout{type, rows, cols, ld, 0, 1, CUBLASLT_ORDER_COL};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t old)
{
    delete (layout *)old;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t of,
    cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t bytes)
{
    return set_field(of, layout_fields, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t *into, cublasComputeType_t compute, cudaDataType_t scale)
{
    *into = (cublasLtMatmulDesc_t) new description{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N,
        CUBLASLT_POINTER_MODE_HOST, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0, 0, 0, -1, -1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t old)
{
    delete (description *)old;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t of,
    cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return set_field(of, matmul_fields, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *into)
{
    *into = new cublasLtMatmulPreferenceOpaque_t();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t old)
{
    delete old;
    return CUBLAS_STATUS_SUCCESS;
}

/* One algorithm does everything here, and needs no workspace. */
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t of,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int asked,
    cublasLtMatmulHeuristicResult_t *results, int *count)
{
    gemm what;
    *count = 0;
    if (asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = read_product(
        what, *(description *)of, *(layout *)a, *(layout *)b, *(layout *)c, *(layout *)d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memset(results, 0, sizeof *results);
    results->state = self.set.algorithms ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    results->algo.data[0] = self.set.algorithms ? ALGORITHM : 0;
    results->wavesCount = 1;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t of, const void *alpha,
    const void *a, cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
    const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
    cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
    size_t workspace_bytes, cudaStream_t stream)
{
    gemm what;
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    cublasStatus_t status = read_product(what, *(description *)of, *(layout *)a_layout,
        *(layout *)b_layout, *(layout *)c_layout, *(layout *)d_layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    bool fine = aligned(a) && aligned(b) && aligned(c) && aligned(d) &&
                (uintptr_t)workspace % 256 == 0 &&
                (algorithm == nullptr || algorithm->data[0] == ALGORITHM);
    if (!fine || (workspace_bytes > 0 && !in_device_space(workspace)))
        return CUBLAS_STATUS_INVALID_VALUE;
    what.a.at = (void *)a;
    what.b.at = (void *)b;
    what.c.at = (void *)c;
    what.d.at = d;
    what.alpha = *(const float *)alpha;
    what.beta = *(const float *)beta;
    return gemm_submit(what, stream);
}
}
