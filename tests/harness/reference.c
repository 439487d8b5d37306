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

void reference_rmsnorm(double *out, const double *in, const double *weight, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        const double *x = in + r * cols;
        double square = 0.0;
        for (size_t c = 0; c < cols; c++) square += x[c] * x[c] / (double)cols;
        for (size_t c = 0; c < cols; c++) out[r * cols + c] = x[c] / sqrt(square + 1e-5) * weight[c];
    }
}

double reference_silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* One head of one position. */
static void turn(double *head, double position, double base, size_t cols)
{
    for (size_t i = 0; i < cols / 2; i++) {
        double angle = position * pow(base, -2.0 * (double)i / (double)cols);
        double a = head[i], b = head[i + cols / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + cols / 2] = b * cos(angle) + a * sin(angle);
    }
}

void reference_rotary(double *qkv, double base, struct attention_size size)
{
    size_t all = size.heads + 2 * size.kv_heads, turned = size.heads + size.kv_heads;
    for (size_t r = 0; r < size.batch * size.t; r++)
        for (size_t h = 0; h < turned; h++)
            turn(qkv + (r * all + h) * size.head_cols, (double)(r % size.t), base, size.head_cols);
}

/* One row: position i. q, k, v: position 0 of its head and of the keys and values that it shares. */
static void attend(double *out, const double *q, const double *k, const double *v, double *p, size_t i, size_t stride,
    size_t cols)
{
    double max = -INFINITY, sum = 0.0;
    for (size_t j = 0; j <= i; j++) {
        p[j] = 0.0;
        for (size_t c = 0; c < cols; c++) p[j] += q[i * stride + c] * k[j * stride + c] / sqrt((double)cols);
        if (p[j] > max) max = p[j];
    }
    for (size_t j = 0; j <= i; j++) sum += p[j] = exp(p[j] - max);
    for (size_t c = 0; c < cols; c++) {
        out[c] = 0.0;
        for (size_t j = 0; j <= i; j++) out[c] += p[j] / sum * v[j * stride + c];
    }
}

void reference_attention(double *out, const double *qkv, struct attention_size size)
{
    size_t cols = size.head_cols, stride = (size.heads + 2 * size.kv_heads) * cols;
    double *p = malloc(size.t * sizeof *p);
    if (p == NULL) abort();
    for (size_t b = 0; b < size.batch; b++)
        for (size_t h = 0; h < size.heads; h++)
            for (size_t i = 0; i < size.t; i++) {
                const double *sequence = qkv + b * size.t * stride, *q = sequence + h * cols;
                size_t shared = h / (size.heads / size.kv_heads);
                const double *k = sequence + (size.heads + shared) * cols, *v = k + size.kv_heads * cols;
                attend(out + ((b * size.t + i) * size.heads + h) * cols, q, k, v, p, i, stride, cols);
            }
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
