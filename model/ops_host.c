/* ops_host: the operations that work row by row, and the linear layer. Attention and the head have
 * files of their own.
 *
 * Invariant I2: element-wise loops round alike in every clone; sums run in fixed lanes
 * (vector_math.h) or in the order of rows.
 */
#include "model/ops_host.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "model/vector_math.h"

static const float layernorm_epsilon = 1e-5f;
static const float gelu_scale = 0.7978845608f; /* √(2/π) */
static const float gelu_cubic = 0.044715f;

/* sum (cols) += the column sums of x (rows, cols). Eight rows are added as a tree before they meet
 * the sum: an eighth of its traffic, and a shorter chain of roundings. */
VECTOR_CLONES static void add_column_sums(
    float *restrict sum, const float *restrict x, size_t rows, size_t cols)
{
    size_t r = 0;
    for (; r + 8 <= rows; r += 8) {
        const float *restrict a = x + r * cols;
        for (size_t c = 0; c < cols; c++) {
            float low = (a[c] + a[c + cols]) + (a[c + 2 * cols] + a[c + 3 * cols]);
            float high = (a[c + 4 * cols] + a[c + 5 * cols]) + (a[c + 6 * cols] + a[c + 7 * cols]);
            sum[c] += low + high;
        }
    }
    for (; r < rows; r++)
        for (size_t c = 0; c < cols; c++) sum[c] += x[r * cols + c];
}

void linear_forward(float *out, const float *in, const float *weight, const float *bias,
    size_t rows, size_t in_cols, size_t out_cols)
{
    int m = (int)rows, n = (int)out_cols, k = (int)in_cols;
    float beta =
        bias != NULL
            ? 1.0f
            : 0.0f; /* the product is added to rows of bias: BLAS would write zeros there */
    for (size_t r = 0; r < rows && bias != NULL; r++)
        memcpy(out + r * out_cols, bias, out_cols * sizeof *out);
    cblas_sgemm(
        CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, in, k, weight, k, beta, out, n);
}

void linear_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
    const float *in, const float *weight, size_t rows, size_t in_cols, size_t out_cols)
{
    int m = (int)rows, n = (int)out_cols, k = (int)in_cols;
    if (d_weight != NULL)
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1.0f, d_out, n, in, k, 1.0f,
            d_weight, k);
    if (d_in != NULL)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1.0f, d_out, n, weight, k,
            0.0f, d_in, k);
    if (d_bias != NULL) add_column_sums(d_bias, d_out, rows, out_cols);
}

VECTOR_CLONES void layernorm_forward(float *restrict out, float *restrict mean,
    float *restrict rstd, const float *restrict in, const float *restrict weight,
    const float *restrict bias, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        const float *restrict x = in + r * cols;
        float *restrict y = out + r * cols;
        float average = vector_sum(x, cols) / (float)cols;
        for (size_t c = 0; c < cols; c++) y[c] = x[c] - average;
        float inverse = 1.0f / sqrtf(vector_dot(y, y, cols) / (float)cols + layernorm_epsilon);
        for (size_t c = 0; c < cols; c++) y[c] = y[c] * inverse * weight[c] + bias[c];
        mean[r] = average;
        rstd[r] = inverse;
    }
}

/* With n = (x − mean)·rstd and g = d_out·weight:  d_in += rstd · (g − avg(g) − n·avg(g·n)). */
VECTOR_CLONES static void layernorm_backward_row(float *restrict d_in, float *restrict d_weight,
    float *restrict d_bias, const float *restrict d_out, const float *restrict in, float mean,
    float rstd, const float *restrict weight, size_t cols)
{
    vector_lanes g_sum = {0}, dot_sum = {0}, d, x, w;
    size_t i = 0;
    for (; i + VECTOR_LANES <= cols; i += VECTOR_LANES) {
        memcpy(&d, d_out + i, sizeof d);
        memcpy(&x, in + i, sizeof x);
        memcpy(&w, weight + i, sizeof w);
        d *= w;
        g_sum += d;
        dot_sum += d * ((x - mean) * rstd);
    }
    float g_rest[VECTOR_LANES], dot_rest[VECTOR_LANES];
    for (size_t l = 0; i + l < cols; l++) {
        g_rest[l] = d_out[i + l] * weight[i + l];
        dot_rest[l] = g_rest[l] * ((in[i + l] - mean) * rstd);
    }
    float g_average = vector_finish(&g_sum, g_rest, cols - i) / (float)cols;
    float dot_average = vector_finish(&dot_sum, dot_rest, cols - i) / (float)cols;
    for (size_t c = 0; c < cols; c++) {
        float n = (in[c] - mean) * rstd;
        d_weight[c] += d_out[c] * n;
        d_bias[c] += d_out[c];
        d_in[c] += rstd * (d_out[c] * weight[c] - g_average - n * dot_average);
    }
}

void layernorm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
    const float *in, const float *mean, const float *rstd, const float *weight, size_t rows,
    size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        layernorm_backward_row(d_in + r * cols, d_weight, d_bias, d_out + r * cols, in + r * cols,
            mean[r], rstd[r], weight, cols);
}

/* (1 + tanh(u))/2 = 1/(1 + exp(−2u)): the same function without cancellation where tanh is near −1. */
VECTOR_INLINE float gelu_gate(float x)
{
    return 1.0f / (1.0f + vector_exp(-2.0f * gelu_scale * (x + gelu_cubic * x * x * x)));
}

VECTOR_CLONES void gelu_forward(float *restrict out, const float *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = in[i] * gelu_gate(in[i]);
}

/* The gate again, from what it made of x: a division instead of an exp. Near 0, where digits are
 * missing, it is a half. */
VECTOR_CLONES void gelu_backward(
    float *restrict d, const float *restrict in, const float *restrict out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float x = in[i], gate = fabsf(x) > 1e-30f ? out[i] / x : 0.5f;
        float slope = 2.0f * gelu_scale * (1.0f + 3.0f * gelu_cubic * x * x); /* of 2u */
        d[i] *= gate + x * gate * (1.0f - gate) * slope;
    }
}

VECTOR_CLONES static void add(float *restrict x, const float *restrict y, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] += y[i];
}

VECTOR_CLONES static void add_with_bias(float *restrict x, const float *restrict residual,
    const float *restrict bias, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) x[r * cols + c] += residual[r * cols + c] + bias[c];
}

void bias_residual_add(
    float *x, const float *residual, const float *bias, size_t rows, size_t cols)
{
    if (bias != NULL) add_with_bias(x, residual, bias, rows, cols);
    else add(x, residual, rows * cols);
}

void embedding_forward(float *x, const int32_t *tokens, const float *table, size_t first_row,
    size_t table_rows, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        size_t row = (size_t)tokens[r] - first_row; /* wraps to a large number below first_row */
        if (row < table_rows) memcpy(x + r * cols, table + row * cols, cols * sizeof *x);
    }
}

void embedding_backward(float *d_table, const int32_t *tokens, const float *d_x, size_t first_row,
    size_t table_rows, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        size_t row = (size_t)tokens[r] - first_row;
        if (row < table_rows) add(d_table + row * cols, d_x + r * cols, cols);
    }
}

void positions_forward(float *x, const float *table, size_t batch, size_t t, size_t cols)
{
    for (size_t b = 0; b < batch; b++) add(x + b * t * cols, table, t * cols);
}

void positions_backward(float *d_table, const float *d_x, size_t batch, size_t t, size_t cols)
{
    for (size_t b = 0; b < batch; b++) add(d_table, d_x + b * t * cols, t * cols);
}
