/* The simulator's cuBLAS and cuBLASLt: products of every dtype, transposed or not, batched, with
 * every epilogue, against sums in double precision; and what must be refused.
 * ctest: timeout=60
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/harness.h"
#include "verbs/dtype.h"

enum { M = 24, N = 17, K = 29, LD = 32, BATCH = 3, SIDE = LD * LD };

#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)
#define CHECK_BLAS(call) CHECK((call) == CUBLAS_STATUS_SUCCESS)

static size_t bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

static float load(const void *from, size_t i, cudaDataType type)
{
    if (type == CUDA_R_32F) return ((const float *)from)[i];
    uint16_t bits = ((const uint16_t *)from)[i];
    return type == CUDA_R_16BF ? bfloat16_to_float32(bits) : float16_to_float32(bits);
}

static void store(void *to, size_t i, cudaDataType type, float x)
{
    if (type == CUDA_R_32F) ((float *)to)[i] = x;
    else ((uint16_t *)to)[i] = type == CUDA_R_16BF ? float32_to_bfloat16(x) : float32_to_float16(x);
}

/* A matrix of SIDE elements in both memories, by columns of LD; each batch has its own. */
struct both {
    cudaDataType type;
    void *host, *device;
};

static struct both both_make(cudaDataType type, int seed)
{
    struct both made = {type, malloc(SIDE * BATCH * 4), NULL};
    for (size_t i = 0; i < SIDE * BATCH; i++)
        store(made.host, i, type, (float)((i * 37 + (size_t)seed * 11) % 101) / 64 - 0.75f);
    CHECK_CUDA(cudaMalloc(&made.device, SIDE * BATCH * 4));
    CHECK_CUDA(
        cudaMemcpy(made.device, made.host, SIDE * BATCH * bytes_of(type), cudaMemcpyHostToDevice));
    return made;
}

static void both_free(struct both *of)
{
    CHECK_CUDA(cudaFree(of->device));
    free(of->host);
}

/* What the device holds now. */
static float *read_back(const struct both *of)
{
    float *found = malloc(SIDE * BATCH * sizeof *found);
    void *raw = malloc(SIDE * BATCH * 4);
    CHECK_CUDA(
        cudaMemcpy(raw, of->device, SIDE * BATCH * bytes_of(of->type), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < SIDE * BATCH; i++) found[i] = load(raw, i, of->type);
    free(raw);
    return found;
}

static double element(const struct both *of, int batch, int row, int col, bool transposed)
{
    int r = transposed ? col : row, c = transposed ? row : col;
    return load(of->host, (size_t)(batch * SIDE + c * LD + r), of->type);
}

static double product(
    const struct both *a, const struct both *b, int batch, int i, int j, bool ta, bool tb)
{
    double sum = 0;
    for (int k = 0; k < K; k++) sum += element(a, batch, i, k, ta) * element(b, batch, k, j, tb);
    return sum;
}

/* Near enough for the dtype that the result was rounded to. */
static bool near(double found, double wanted, cudaDataType type)
{
    double step = type == CUDA_R_32F ? 2e-6 : type == CUDA_R_16F ? 1e-3 : 8e-3;
    return fabs(found - wanted) <= step * (1 + fabs(wanted));
}

static void check_gemm(cublasHandle_t blas, cudaDataType in, cudaDataType out, bool ta, bool tb)
{
    struct both a = both_make(in, 1), b = both_make(in, 2), c = both_make(out, 3);
    const float alpha = 0.5f, beta = 2;
    CHECK_BLAS(cublasGemmStridedBatchedEx(blas, ta ? CUBLAS_OP_T : CUBLAS_OP_N,
        tb ? CUBLAS_OP_T : CUBLAS_OP_N, M, N, K, &alpha, a.device, in, LD, SIDE, b.device, in, LD,
        SIDE, &beta, c.device, out, LD, SIDE, BATCH, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    float *found = read_back(&c);
    int wrong = 0;
    for (int i = 0; i < SIDE * BATCH; i++) {
        int batch = i / SIDE, col = i % SIDE / LD, row = i % LD;
        double old = load(c.host, (size_t)i, out), wanted = old;
        if (row < M && col < N) wanted = 0.5 * product(&a, &b, batch, row, col, ta, tb) + 2 * old;
        wrong += !near(found[i], wanted, out);
    }
    CHECK_MSG(wrong == 0, "%d elements, types %d and %d, transposed %d %d", wrong, in, out, ta, tb);
    free(found);
    both_free(&a);
    both_free(&b);
    both_free(&c);
}

/* beta 0: c is not read, and may be NaN. */
static void check_sgemm(cublasHandle_t blas)
{
    struct both a = both_make(CUDA_R_32F, 1), b = both_make(CUDA_R_32F, 2),
                c = both_make(CUDA_R_32F, 3);
    const float one = 1, zero = 0;
    CHECK_CUDA(cudaMemset(c.device, 0xff, SIDE * 4));
    CHECK_BLAS(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a.device, LD, b.device,
        LD, &zero, c.device, LD));
    float *found = read_back(&c);
    CHECK(near(found[3 * LD + 5], product(&a, &b, 0, 5, 3, false, false), CUDA_R_32F));
    CHECK(isnan(found[M]));
    CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &one, a.device, M - 1, b.device, LD,
              &zero, c.device, LD) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSetWorkspace(blas, found, 4096) ==
          CUBLAS_STATUS_INVALID_VALUE); /* not the device's */
    free(found);
    both_free(&a);
    both_free(&b);
    both_free(&c);
}

/* ---- cublasLt ---- */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double step = 1e-5;
    return (gelu(x + step) - gelu(x - step)) / (2 * step);
}

struct lt {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
};

#define SET(descriptor, attribute, value)                                                          \
    CHECK_BLAS(cublasLtMatmulDescSetAttribute(                                                     \
        descriptor, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))

static void lt_open(struct lt *lt, cudaDataType type, uint32_t epilogue, const struct both *bias,
    const struct both *aux)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    int64_t ld = LD;
    CHECK_BLAS(cublasLtCreate(&lt->handle));
    CHECK_BLAS(cublasLtMatmulDescCreate(&lt->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET(lt->matmul, TRANSA, transposed);
    SET(lt->matmul, EPILOGUE, epilogue);
    SET(lt->matmul, BIAS_POINTER, bias->device);
    SET(lt->matmul, EPILOGUE_AUX_POINTER, aux->device);
    SET(lt->matmul, EPILOGUE_AUX_LD, ld);
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&lt->a, type, K, M, LD));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&lt->b, type, K, N, LD));
    CHECK_BLAS(cublasLtMatrixLayoutCreate(&lt->d, type, M, N, LD));
    CHECK_BLAS(cublasLtMatmulPreferenceCreate(&lt->preference));
    int found = 0;
    CHECK_BLAS(cublasLtMatmulAlgoGetHeuristic(
        lt->handle, lt->matmul, lt->a, lt->b, lt->d, lt->d, lt->preference, 1, &lt->best, &found));
    CHECK(found == 1 && lt->best.state == CUBLAS_STATUS_SUCCESS);
}

static void lt_close(struct lt *lt)
{
    CHECK_BLAS(cublasLtMatmulPreferenceDestroy(lt->preference));
    CHECK_BLAS(cublasLtMatrixLayoutDestroy(lt->a));
    CHECK_BLAS(cublasLtMatrixLayoutDestroy(lt->b));
    CHECK_BLAS(cublasLtMatrixLayoutDestroy(lt->d));
    CHECK_BLAS(cublasLtMatmulDescDestroy(lt->matmul));
    CHECK_BLAS(cublasLtDestroy(lt->handle));
}

/* What the epilogue makes of an element of the product; aux: of the auxiliary matrix before. */
static double finished(uint32_t epilogue, double x, double bias, double aux)
{
    if (epilogue & CUBLASLT_EPILOGUE_BIAS) x += bias;
    if (epilogue & CUBLASLT_EPILOGUE_GELU) return gelu(x);
    return epilogue & 64 ? x * gelu_slope(aux) : x;
}

/* The gradient of a bias, where the epilogue makes one. */
static double gradient(
    uint32_t epilogue, const struct both *a, const struct both *b, const struct both *aux, int i)
{
    double sum = 0;
    if (epilogue & 16)
        for (int j = 0; j < N; j++)
            sum += finished(
                epilogue, product(a, b, 0, i, j, true, false), 0, element(aux, 0, i, j, false));
    for (int k = 0; k < K; k++) {
        if (epilogue & CUBLASLT_EPILOGUE_BGRADA) sum += element(a, 0, i, k, true);
        if (epilogue & CUBLASLT_EPILOGUE_BGRADB) sum += element(b, 0, k, i, false);
    }
    return sum;
}

static void check_epilogue(cudaDataType type, uint32_t epilogue)
{
    struct both a = both_make(type, 1), b = both_make(type, 2), d = both_make(type, 3),
                bias = both_make(type, 4), aux = both_make(type, 5);
    const float one = 1, zero = 0;
    struct lt lt;
    lt_open(&lt, type, epilogue, &bias, &aux);
    CHECK_BLAS(cublasLtMatmul(lt.handle, lt.matmul, &one, a.device, lt.a, b.device, lt.b, &zero,
        d.device, lt.d, d.device, lt.d, &lt.best.algo, NULL, 0, NULL));
    float *found = read_back(&d), *found_aux = read_back(&aux), *found_bias = read_back(&bias);
    int wrong = 0, wrong_bias = 0;
    for (int i = 0; i < M * N; i++) {
        int row = i % M, col = i / M;
        double x = product(&a, &b, 0, row, col, true, false),
               from = load(bias.host, (size_t)row, type);
        wrong += !near(found[col * LD + row],
            finished(epilogue, x, from, element(&aux, 0, row, col, false)), type);
        bool keeps = (epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX;
        if (keeps)
            wrong += !near(found_aux[col * LD + row],
                x + (epilogue & CUBLASLT_EPILOGUE_BIAS ? from : 0), type);
    }
    bool sums = epilogue & (16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
    for (int i = 0; sums && i < (epilogue & CUBLASLT_EPILOGUE_BGRADB ? N : M); i++)
        wrong_bias += !near(found_bias[i], gradient(epilogue, &a, &b, &aux, i), type);
    CHECK_MSG(wrong == 0 && wrong_bias == 0, "epilogue %u, type %d: %d elements, %d of the bias",
        epilogue, type, wrong, wrong_bias);
    /* What cuBLASLt refuses. */
    int64_t odd = LD + 1;
    if (epilogue & 128) {
        SET(lt.matmul, EPILOGUE_AUX_LD, odd);
        CHECK(cublasLtMatmul(lt.handle, lt.matmul, &one, a.device, lt.a, b.device, lt.b, &zero,
                  d.device, lt.d, d.device, lt.d, NULL, NULL, 0,
                  NULL) == CUBLAS_STATUS_INVALID_VALUE);
    }
    lt_close(&lt);
    free(found);
    free(found_aux);
    free(found_bias);
    for (struct both *all[] = {&a, &b, &d, &bias, &aux}, **each = all; each < all + 5; each++)
        both_free(*each);
}

int main(void)
{
    static const cudaDataType types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
    static const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
        CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD,
        CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB};
    cublasHandle_t blas;
    CHECK_BLAS(cublasCreate(&blas));
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 4; i++) check_gemm(blas, types[t], types[t], i & 1, i & 2);
        check_gemm(blas, types[t], CUDA_R_32F, true, false);
        for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++)
            check_epilogue(types[t], epilogues[i]);
    }
    check_sgemm(blas);
    CHECK_BLAS(cublasDestroy(blas));
    return test_result();
}
