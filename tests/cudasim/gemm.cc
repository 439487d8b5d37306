/* gemm: runs in the device process, in the order of its stream. OpenBLAS multiplies where it is
 * installed, opened there alone, and plain loops where not. 16-bit elements are widened first and
 * rounded once at the end.
 */
#include "gemm.h"

#include <cmath>
#include <cstdlib>
#include <dlfcn.h>
#include <vector>

#include "fault.h"
#include "fiber.h"
#include "process.h"
#include "stream.h"
#include "verbs/dtype.h"

namespace cudasim {
namespace {

using sgemm_function = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k,
    float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
enum { BY_COLUMNS = 102, AS_IT_IS = 111, TRANSPOSED = 112 }; /* of cblas.h */

void sgemm_plain(int, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
    const float *a, int lda, const float *b, int ldb, float, float *c, int ldc)
{
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < m; i++) {
            double sum = 0;
            for (int l = 0; l < k; l++) {
                float x = transpose_a == TRANSPOSED ? a[l + (size_t)i * (size_t)lda]
                                                    : a[i + (size_t)l * (size_t)lda];
                float y = transpose_b == TRANSPOSED ? b[j + (size_t)l * (size_t)ldb]
                                                    : b[l + (size_t)j * (size_t)ldb];
                sum += (double)x * y;
            }
            c[i + (size_t)j * (size_t)ldc] = alpha * (float)sum;
        }
    }
}

sgemm_function find_sgemm()
{
    static const sgemm_function found = [] {
        setenv("OPENBLAS_NUM_THREADS", "1", 0);
        void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
        void *function = library == nullptr ? nullptr : dlsym(library, "cblas_sgemm");
        return function == nullptr ? sgemm_plain : (sgemm_function)function;
    }();
    return found;
}

size_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

char *place_of(const matrix &of, long long batch, long long row, long long col)
{
    return (char *)of.at +
           (batch * of.batch_stride + col * of.ld + row) * (long long)element_bytes(of.type);
}

float load(const char *at, cudaDataType_t type)
{
    if (type == CUDA_R_32F) return *(const float *)at;
    uint16_t bits = *(const uint16_t *)at;
    return type == CUDA_R_16BF ? bfloat16_to_float32(bits) : float16_to_float32(bits);
}

void store(char *at, cudaDataType_t type, float value)
{
    if (type == CUDA_R_32F) *(float *)at = value;
    else
        *(uint16_t *)at =
            type == CUDA_R_16BF ? float32_to_bfloat16(value) : float32_to_float16(value);
}

/* rows × cols of a batch as float32, without gaps between columns. */
std::vector<float> widened(const matrix &of, long long batch, int rows, int cols)
{
    std::vector<float> wide((size_t)rows * (size_t)cols);
    size_t bytes = element_bytes(of.type);
    for (int col = 0; col < cols; col++) {
        const char *from = place_of(of, batch, 0, col);
        tsan_reads(from, (size_t)rows * bytes);
        for (int row = 0; row < rows; row++)
            wide[(size_t)col * (size_t)rows + (size_t)row] =
                load(from + (size_t)row * bytes, of.type);
    }
    return wide;
}

void narrow_to(
    const matrix &to, long long batch, int rows, int cols, const std::vector<float> &wide)
{
    size_t bytes = element_bytes(to.type);
    for (int col = 0; col < cols; col++) {
        char *at = place_of(to, batch, 0, col);
        tsan_writes(at, (size_t)rows * bytes);
        for (int row = 0; row < rows; row++)
            store(
                at + (size_t)row * bytes, to.type, wide[(size_t)col * (size_t)rows + (size_t)row]);
    }
}

/* ---- epilogues ---- */

constexpr float ROOT = 0.7978845608f, CUBIC = 0.044715f; /* √(2/π) */

float gelu(float x) { return 0.5f * x * (1 + std::tanh(ROOT * (x + CUBIC * x * x * x))); }

float gelu_slope(float x)
{
    float t = std::tanh(ROOT * (x + CUBIC * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * ROOT * (1 + 3 * CUBIC * x * x);
}

/* Σ along one direction of a (rows, cols): of each row, or of each column. */
std::vector<float> sums(const std::vector<float> &of, int rows, int cols, bool of_rows)
{
    std::vector<float> found((size_t)(of_rows ? rows : cols), 0.0f);
    for (int col = 0; col < cols; col++)
        for (int row = 0; row < rows; row++)
            found[(size_t)(of_rows ? row : col)] += of[(size_t)col * (size_t)rows + (size_t)row];
    return found;
}

void finish(std::vector<float> &d, const gemm &what, int batch)
{
    const epilogue &then = what.then;
    if (then.adds_bias) {
        std::vector<float> bias = widened(then.bias, batch, what.m, 1);
        for (size_t i = 0; i < d.size(); i++) d[i] += bias[i % (size_t)what.m];
    }
    if (then.gelu) {
        if (then.aux.at != nullptr) narrow_to(then.aux, batch, what.m, what.n, d);
        for (float &x : d) x = gelu(x);
    }
    if (then.gelu_gradient) {
        std::vector<float> inputs = widened(then.aux, batch, what.m, what.n);
        for (size_t i = 0; i < d.size(); i++) d[i] *= gelu_slope(inputs[i]);
    }
    if (then.sums_d) narrow_to(then.bias, batch, what.m, 1, sums(d, what.m, what.n, true));
}

/* As cuBLAS chooses among its kernels by what all operands are aligned to, up to 16 bytes, so the
 * order of a sum depends on it here: so many of the k terms are added up on their own. */
int terms_apart(const gemm &what)
{
    uintptr_t places = 16;
    for (const matrix *each : {&what.a, &what.b, &what.c, &what.d}) places |= (uintptr_t)each->at;
    return what.k * (4 - __builtin_ctzl(places)) / 5; /* none where all are aligned best */
}

/* d = alpha · a · b, of a and b without gaps. */
void multiply(std::vector<float> &d, const gemm &what, const std::vector<float> &a, int a_rows,
    const std::vector<float> &b, int b_rows)
{
    int to_a = what.a.transposed ? TRANSPOSED : AS_IT_IS;
    int to_b = what.b.transposed ? TRANSPOSED : AS_IT_IS;
    int apart = terms_apart(what);
    size_t a_begin = (size_t)apart * (what.a.transposed ? 1 : (size_t)a_rows);
    size_t b_begin = (size_t)apart * (what.b.transposed ? (size_t)b_rows : 1);
    if (what.k == 0 || d.empty()) return;
    find_sgemm()(BY_COLUMNS, to_a, to_b, what.m, what.n, what.k - apart, what.alpha,
        a.data() + a_begin, a_rows, b.data() + b_begin, b_rows, 0.0f, d.data(), what.m);
    if (apart == 0) return;
    std::vector<float> part(d.size());
    find_sgemm()(BY_COLUMNS, to_a, to_b, what.m, what.n, apart, what.alpha, a.data(), a_rows,
        b.data(), b_rows, 0.0f, part.data(), what.m);
    for (size_t i = 0; i < d.size(); i++) d[i] += part[i];
}

void run_one(const gemm &what, int batch)
{
    int a_rows = what.a.transposed ? what.k : what.m, a_cols = what.a.transposed ? what.m : what.k;
    int b_rows = what.b.transposed ? what.n : what.k, b_cols = what.b.transposed ? what.k : what.n;
    std::vector<float> a = widened(what.a, batch, a_rows, a_cols),
                       b = widened(what.b, batch, b_rows, b_cols);
    std::vector<float> d((size_t)what.m * (size_t)what.n);
    multiply(d, what, a, a_rows, b, b_rows);
    if (what.beta != 0) { /* c is not read otherwise: it may be NaN */
        std::vector<float> c = widened(what.c, batch, what.m, what.n);
        for (size_t i = 0; i < d.size(); i++) d[i] += what.beta * c[i];
    }
    finish(d, what, batch);
    narrow_to(what.d, batch, what.m, what.n, d);
    const matrix &bias = what.then.bias;
    if (what.then.sums_a)
        narrow_to(bias, batch, what.m, 1, sums(a, a_rows, a_cols, !what.a.transposed));
    if (what.then.sums_b)
        narrow_to(bias, batch, what.n, 1, sums(b, b_rows, b_cols, what.b.transposed));
}

void run(const void *arguments)
{
    const gemm &what = *(const gemm *)arguments;
    for (int batch = 0; batch < what.batch; batch++) run_one(what, batch);
}

bool known(cudaDataType_t type)
{
    return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F;
}

} // namespace

cublasStatus_t gemm_submit(const gemm &what, cudaStream_t stream)
{
    int a_rows = what.a.transposed ? what.k : what.m, b_rows = what.b.transposed ? what.n : what.k;
    if (what.m < 0 || what.n < 0 || what.k < 0 || what.batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (what.a.ld < std::max(a_rows, 1) || what.b.ld < std::max(b_rows, 1) ||
        what.c.ld < std::max(what.m, 1) || what.d.ld < std::max(what.m, 1))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!known(what.a.type) || !known(what.b.type) || !known(what.c.type) || !known(what.d.type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (what.a.type != what.b.type || (what.a.type == CUDA_R_32F && what.d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (what.m == 0 || what.n == 0 || what.batch == 0) return CUBLAS_STATUS_SUCCESS;
    cudaError_t error = library_call(stream, run, &what, sizeof what);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // namespace cudasim
