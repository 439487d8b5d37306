/* ops_llama_host: the operations that Llama adds: RMS norm, SwiGLU, rotary positions.
 *
 *   SwiGLU    a row of in is  gate 0 … gate n−1 | value 0 … value n−1;   out = silu(gate) ∘ value
 *   rotary    a head is  a 0 … a h−1 | b 0 … b h−1;   (a, b) ← (a·cos − b·sin, b·cos + a·sin)
 *
 * Invariant I2: element-wise loops round alike in every clone; sums run in fixed lanes
 * (vector_math.h).
 */
#include "model/ops_host.h"

#include <math.h>
#include <string.h>

#include "model/vector_math.h"

static const float rmsnorm_epsilon = 1e-5f;

VECTOR_CLONES void rmsnorm_forward(float *restrict out, float *restrict rstd,
    const float *restrict in, const float *restrict weight, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        const float *restrict x = in + r * cols;
        float inverse = 1.0f / sqrtf(vector_dot(x, x, cols) / (float)cols + rmsnorm_epsilon);
        for (size_t c = 0; c < cols; c++) out[r * cols + c] = x[c] * inverse * weight[c];
        rstd[r] = inverse;
    }
}

/* With n = x·rstd and g = d_out·weight:  d_in += rstd · (g − n·avg(g·n)). */
VECTOR_CLONES static void rmsnorm_backward_row(float *restrict d_in, float *restrict d_weight,
    const float *restrict d_out, const float *restrict in, float rstd, const float *restrict weight,
    size_t cols)
{
    vector_lanes sum = {0}, d, x, w;
    size_t i = 0;
    for (; i + VECTOR_LANES <= cols; i += VECTOR_LANES) {
        memcpy(&d, d_out + i, sizeof d);
        memcpy(&x, in + i, sizeof x);
        memcpy(&w, weight + i, sizeof w);
        sum += d * w * (x * rstd);
    }
    float rest[VECTOR_LANES];
    for (size_t l = 0; i + l < cols; l++)
        rest[l] = d_out[i + l] * weight[i + l] * (in[i + l] * rstd);
    float average = vector_finish(&sum, rest, cols - i) / (float)cols;
    for (size_t c = 0; c < cols; c++) {
        float n = in[c] * rstd;
        d_weight[c] += d_out[c] * n;
        d_in[c] += rstd * (d_out[c] * weight[c] - n * average);
    }
}

void rmsnorm_backward(float *d_in, float *d_weight, const float *d_out, const float *in,
    const float *rstd, const float *weight, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        rmsnorm_backward_row(
            d_in + r * cols, d_weight, d_out + r * cols, in + r * cols, rstd[r], weight, cols);
}

VECTOR_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + vector_exp(-x));
}

VECTOR_CLONES void swiglu_forward(
    float *restrict out, const float *restrict in, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        const float *restrict gate = in + r * 2 * cols, *restrict value = gate + cols;
        for (size_t c = 0; c < cols; c++) out[r * cols + c] = gate[c] * sigmoid(gate[c]) * value[c];
    }
}

/* silu′(x) = σ(x)·(1 + x·(1 − σ(x))). */
VECTOR_CLONES void swiglu_backward(float *restrict d_in, const float *restrict d_out,
    const float *restrict in, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        const float *restrict gate = in + r * 2 * cols, *restrict value = gate + cols;
        const float *restrict d = d_out + r * cols;
        float *restrict d_gate = d_in + r * 2 * cols, *restrict d_value = d_gate + cols;
        for (size_t c = 0; c < cols; c++) {
            float x = gate[c], s = sigmoid(x);
            d_gate[c] = d[c] * value[c] * (s * (1.0f + x * (1.0f - s)));
            d_value[c] = d[c] * (x * s);
        }
    }
}

/* sign: −1 turns back. */
VECTOR_CLONES static void turn_heads(float *restrict x, const float *restrict cosine,
    const float *restrict sine, float sign, size_t heads, size_t half)
{
    for (size_t h = 0; h < heads; h++) {
        float *restrict a = x + h * 2 * half, *restrict b = a + half;
        for (size_t i = 0; i < half; i++) {
            float s = sign * sine[i], turned = a[i] * cosine[i] - b[i] * s;
            b[i] = b[i] * cosine[i] + a[i] * s;
            a[i] = turned;
        }
    }
}

static void rotate(float *qkv, const float *turns, float sign, struct attention_size size)
{
    size_t stride = (size.heads + 2 * size.kv_heads) * size.head_cols, half = size.head_cols / 2;
    for (size_t r = 0; r < size.batch * size.t; r++) {
        const float *cosine = turns + r % size.t * 2 * half;
        turn_heads(qkv + r * stride, cosine, cosine + half, sign, size.heads + size.kv_heads, half);
    }
}

void rotary_forward(float *qkv, const float *turns, struct attention_size size)
{
    rotate(qkv, turns, 1.0f, size);
}

void rotary_backward(float *d_qkv, const float *turns, struct attention_size size)
{
    rotate(d_qkv, turns, -1.0f, size);
}
