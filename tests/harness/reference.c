/* reference: see reference.h. */
#include "tests/harness/reference.h"

#include <math.h>
#include <stdlib.h>

uint64_t reference_word(uint64_t seed, uint64_t index)
{
    uint64_t x = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

struct tensor tensor_make(size_t count, uint64_t seed, double scale)
{
    struct tensor tensor = {.f = calloc(count, sizeof(float)), .d = calloc(count, sizeof(double)), .count = count};
    tensor.grad = calloc(count, sizeof(double));
    if (tensor.f == NULL || tensor.d == NULL || tensor.grad == NULL) abort();
    for (size_t i = 0; i < count; i++) {
        double unit = (double)(reference_word(seed, i) >> 11) * 0x1p-53;
        tensor.f[i] = (float)(scale * (2.0 * unit - 1.0));
        tensor.d[i] = (double)tensor.f[i];
    }
    return tensor;
}

void tensor_free(struct tensor *tensor)
{
    free(tensor->f);
    free(tensor->d);
    free(tensor->grad);
    *tensor = (struct tensor){0};
}

double relative_error(const float *found, const double *expected, size_t count)
{
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; i++) {
        double difference = (double)found[i] - expected[i];
        error += difference * difference;
        norm += expected[i] * expected[i];
    }
    return norm > 0.0 ? sqrt(error / norm) : sqrt(error);
}

void differentiate(struct tensor *x, double (*objective)(void *context), void *context)
{
    const double step = 1e-4;
    for (size_t i = 0; i < x->count; i++) {
        double value = x->d[i];
        x->d[i] = value + step;
        double above = objective(context);
        x->d[i] = value - step;
        double below = objective(context);
        x->d[i] = value;
        x->grad[i] = (above - below) / (2.0 * step);
    }
}

void reference_linear(double *out, const double *in, const double *weight, const double *bias, size_t rows,
    size_t in_cols, size_t out_cols)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < out_cols; o++) {
            double sum = bias != NULL ? bias[o] : 0.0;
            for (size_t i = 0; i < in_cols; i++) sum += in[r * in_cols + i] * weight[o * in_cols + i];
            out[r * out_cols + o] = sum;
        }
}

void reference_layernorm(
    double *out, const double *in, const double *weight, const double *bias, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        const double *x = in + r * cols;
        double mean = 0.0, variance = 0.0;
        for (size_t c = 0; c < cols; c++) mean += x[c] / (double)cols;
        for (size_t c = 0; c < cols; c++) variance += (x[c] - mean) * (x[c] - mean) / (double)cols;
        for (size_t c = 0; c < cols; c++)
            out[r * cols + c] = (x[c] - mean) / sqrt(variance + 1e-5) * weight[c] + bias[c];
    }
}

double reference_gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
}

/* One row: position i of head h. */
static void attend(double *out, const double *qkv, double *p, size_t i, size_t stride, size_t width, size_t head_cols)
{
    const double *q = qkv + i * stride;
    double max = -INFINITY, sum = 0.0;
    for (size_t j = 0; j <= i; j++) {
        const double *k = qkv + j * stride + width;
        p[j] = 0.0;
        for (size_t c = 0; c < head_cols; c++) p[j] += q[c] * k[c] / sqrt((double)head_cols);
        if (p[j] > max) max = p[j];
    }
    for (size_t j = 0; j <= i; j++) sum += p[j] = exp(p[j] - max);
    for (size_t c = 0; c < head_cols; c++) {
        out[i * width + c] = 0.0;
        for (size_t j = 0; j <= i; j++) out[i * width + c] += p[j] / sum * qkv[j * stride + 2 * width + c];
    }
}

void reference_attention(double *out, const double *qkv, size_t batch, size_t t, size_t heads, size_t head_cols)
{
    size_t width = heads * head_cols;
    double *p = malloc(t * sizeof *p);
    if (p == NULL) abort();
    for (size_t b = 0; b < batch; b++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < t; i++)
                attend(out + b * t * width + h * head_cols, qkv + b * t * 3 * width + h * head_cols, p, i,
                    3 * width, width, head_cols);
    free(p);
}

double reference_loss(const double *x, const double *weight, const int32_t *targets, size_t rows, size_t cols,
    size_t vocab)
{
    double *logits = malloc(vocab * sizeof *logits), loss = 0.0;
    if (logits == NULL) abort();
    for (size_t r = 0; r < rows; r++) {
        if (targets[r] < 0) continue;
        reference_linear(logits, x + r * cols, weight, NULL, 1, cols, vocab);
        double max = -INFINITY, sum = 0.0;
        for (size_t v = 0; v < vocab; v++) max = logits[v] > max ? logits[v] : max;
        for (size_t v = 0; v < vocab; v++) sum += exp(logits[v] - max);
        loss += max + log(sum) - logits[targets[r]];
    }
    free(logits);
    return loss;
}
