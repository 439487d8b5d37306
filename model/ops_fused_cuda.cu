/* ops_fused_cuda: products of 16-bit numbers with bias, GELU or GELU's gradient in the epilogue of
 * cuBLASLt: what would be a pass over the result is done while it lies in registers.
 *
 *   product → + bias → (kept: gelu's input) → gelu → c        product → ∘ gelu′(kept) → c
 *
 * cuBLASLt wants every matrix at 16 bytes and rows that are a multiple of 8 elements; where that is
 * not so, and where it knows no algorithm, *done stays false and the caller does both by itself.
 * float32 is left to the caller too: there, digits matter more than time, and cuBLASLt's tanh has
 * fewer. Sums are float32 throughout: no partial sum is kept in 16 bits.
 *
 * Asking for an algorithm takes tens of microseconds, so what was answered is kept per shape. The
 * answer is a function of shape and device: bits stay the same from step to step (I2).
 */
#include "model/ops_cuda.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#define PLANS     32 /* shapes that are remembered; more take turns */
#define ALIGNMENT 16 /* bytes */

/* What an algorithm depends on. Compared as bytes: cleared before it is filled. */
struct plan_key {
    size_t m, n, k;
    int transposed_a, transposed_b, dtype, epilogue;
};

struct plan {
    struct plan_key key;
    cublasLtMatmulAlgo_t algorithm;
    bool known; /* false: there is none */
};

struct fused_cuda {
    cublasLtHandle_t lt;
    struct plan plan[PLANS];
    size_t plans; /* asked for so far */
};

/* The descriptions of one call; freed with it. */
struct fused_call {
    cublasLtMatmulDesc_t product = NULL;
    cublasLtMatrixLayout_t a = NULL, b = NULL, c = NULL;
    cublasLtMatmulPreference_t preference = NULL;

    ~fused_call()
    {
        if (preference != NULL) (void)cublasLtMatmulPreferenceDestroy(preference);
        if (c != NULL) (void)cublasLtMatrixLayoutDestroy(c);
        if (b != NULL) (void)cublasLtMatrixLayoutDestroy(b);
        if (a != NULL) (void)cublasLtMatrixLayoutDestroy(a);
        if (product != NULL) (void)cublasLtMatmulDescDestroy(product);
    }
};

enum status fused_open_cuda(struct fused_cuda **fused)
{
    *fused = (struct fused_cuda *)calloc(1, sizeof **fused);
    if (*fused == NULL) return FAIL(STATUS_SYSTEM, "no memory for a cuBLASLt handle");
    TRY_CUBLAS(cublasLtCreate(&(*fused)->lt));
    return STATUS_OK;
}

void fused_close_cuda(struct fused_cuda *fused)
{
    if (fused == NULL) return;
    if (fused->lt != NULL) (void)cublasLtDestroy(fused->lt);
    free(fused);
}

static cublasLtEpilogue_t epilogue_of(enum epilogue_kind kind)
{
    if (kind == EPILOGUE_BIAS) return CUBLASLT_EPILOGUE_BIAS;
    return kind == EPILOGUE_BIAS_GELU ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_DGELU;
}

template <class Value>
static cublasStatus_t describe(
    cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, Value value)
{
    return cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value);
}

static enum status describe_product(struct fused_call *call, const struct operand_cuda &a,
    const struct operand_cuda &b, const struct epilogue_cuda &epilogue)
{
    cublasOperation_t first = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY_CUBLAS(cublasLtMatmulDescCreate(&call->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY_CUBLAS(describe(call->product, CUBLASLT_MATMUL_DESC_TRANSA, first));
    TRY_CUBLAS(describe(call->product, CUBLASLT_MATMUL_DESC_TRANSB, second));
    TRY_CUBLAS(describe(call->product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(epilogue.kind)));
    if (epilogue.bias != NULL)
        TRY_CUBLAS(describe(call->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.bias));
    if (epilogue.gelu_in == NULL) return STATUS_OK;
    TRY_CUBLAS(
        describe(call->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.gelu_in));
    TRY_CUBLAS(describe(
        call->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)epilogue.gelu_stride));
    return STATUS_OK;
}

/* A row-major matrix as it lies in memory, as columns. */
static cublasStatus_t describe_operand(cublasLtMatrixLayout_t *layout,
    const struct operand_cuda &operand, cudaDataType type, size_t rows, size_t cols)
{
    size_t down = operand.transposed ? rows : cols, across = operand.transposed ? cols : rows;
    return cublasLtMatrixLayoutCreate(layout, type, down, across, (int64_t)operand.stride);
}

template <class Value>
static cublasStatus_t prefer(cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute, Value value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
}

static enum status ask(struct plan *plan, struct fused_call *call, const struct fused_cuda *fused)
{
    cublasLtMatmulHeuristicResult_t answer;
    int answers = 0;
    TRY_CUBLAS(cublasLtMatmulPreferenceCreate(&call->preference));
    cublasLtMatmulPreference_t p = call->preference;
    TRY_CUBLAS(prefer(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, BLAS_WORKSPACE_BYTES));
    TRY_CUBLAS(prefer(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    TRY_CUBLAS(prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)ALIGNMENT));
    TRY_CUBLAS(prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)ALIGNMENT));
    TRY_CUBLAS(prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)ALIGNMENT));
    TRY_CUBLAS(prefer(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)ALIGNMENT));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(fused->lt, call->product, call->a,
        call->b, call->c, call->c, call->preference, 1, &answer, &answers);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) TRY_CUBLAS(status);
    plan->known = status == CUBLAS_STATUS_SUCCESS && answers > 0 &&
                  answer.state == CUBLAS_STATUS_SUCCESS; /* else answer.algo says nothing */
    if (plan->known) plan->algorithm = answer.algo;
    return STATUS_OK;
}

/* The plan of this key: found, or asked for. */
static enum status find_plan(struct plan **plan, const struct plan_key &key,
    struct fused_call *call, struct fused_cuda *fused)
{
    size_t held = fused->plans < PLANS ? fused->plans : PLANS;
    for (size_t i = 0; i < held; i++) {
        *plan = &fused->plan[i];
        if (memcmp(&(*plan)->key, &key, sizeof key) == 0) return STATUS_OK;
    }
    *plan = &fused->plan[fused->plans % PLANS];
    TRY(ask(*plan, call, fused));
    (*plan)->key = key;
    fused->plans++;
    return STATUS_OK;
}

static bool fits(const void *c, size_t c_stride, const struct operand_cuda &a,
    const struct operand_cuda &b, const struct epilogue_cuda &epilogue)
{
    uintptr_t places = (uintptr_t)c | (uintptr_t)a.at | (uintptr_t)b.at | (uintptr_t)epilogue.bias |
                       (uintptr_t)epilogue.gelu_in;
    size_t strides = c_stride | a.stride | b.stride | epilogue.gelu_stride;
    return places % ALIGNMENT == 0 && strides % 8 == 0;
}

enum status product_fused_cuda(bool *done, void *c, size_t c_stride, struct operand_cuda a,
    struct operand_cuda b, struct epilogue_cuda epilogue, enum dtype dtype, size_t m, size_t n,
    size_t k, const struct blas_cuda *blas, cudaStream_t stream)
{
    const float alpha = 1.0f, beta = 0.0f;
    *done = false;
    if (dtype == DTYPE_FLOAT32 || !fits(c, c_stride, a, b, epilogue)) return STATUS_OK;
    if (m == 0 || n == 0 || k == 0) return STATUS_OK;
    struct fused_call call;
    struct plan *plan = NULL;
    struct plan_key key;
    memset(&key, 0, sizeof key);
    key.m = m, key.n = n, key.k = k;
    key.transposed_a = a.transposed, key.transposed_b = b.transposed;
    key.dtype = dtype, key.epilogue = epilogue.kind;
    cudaDataType type = dtype == DTYPE_BFLOAT16 ? CUDA_R_16BF : CUDA_R_16F;
    TRY(describe_product(&call, a, b, epilogue));
    TRY_CUBLAS(describe_operand(&call.a, b, type, k, n));
    TRY_CUBLAS(describe_operand(&call.b, a, type, m, k));
    TRY_CUBLAS(cublasLtMatrixLayoutCreate(&call.c, type, n, m, (int64_t)c_stride));
    TRY(find_plan(&plan, key, &call, blas->fused));
    if (!plan->known) return STATUS_OK;
    TRY_CUBLAS(
        cublasLtMatmul(blas->fused->lt, call.product, &alpha, b.at, call.a, a.at, call.b, &beta, c,
            call.c, c, call.c, &plan->algorithm, blas->workspace, BLAS_WORKSPACE_BYTES, stream));
    *done = true;
    return STATUS_OK;
}
