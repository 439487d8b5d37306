/* ops_attention_host: causal attention by tiles of query rows.
 *
 * A tile of rows needs keys and values up to its own last row only, so the upper triangle is never
 * multiplied, and no T × T matrix outlives its tile: backward computes a tile's probabilities again
 * from q, k and the rows' log Σ exp.
 *
 *            keys 0 … T−1    forward, per tile         backward, per tile (last tile first)
 *   tile 0   ██·             S = q kᵀ/√d               P = exp(q kᵀ/√d − lse)
 *   tile 1   ████·           P = exp(S − max), lse     dP = d_out vᵀ
 *   tile 2   ██████·         out = P v / rowsum(P)     dS = P ∘ (dP − rowsum(d_out ∘ out)) / √d
 *   ( · : masked within the tile)                      dv += Pᵀ d_out, dq = dS k, dk += dSᵀ q
 *
 * The last tile covers every key, so going backwards it may write dk and dv and the others add:
 * nothing is cleared first. Of heads that share keys and values, one after the other, the first
 * does so.
 * source: Dao et al., "FlashAttention", algorithms 1 and 4, without the tiling over keys.
 */
#include "model/ops_host.h"

#include <cblas.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "model/vector_math.h"

/* Rows of a tile: enough for efficient products, few enough that the diagonal wastes little. */
static size_t tile_of(size_t t)
{
    return t < 512 ? 64 : 128;
}

static size_t round_up(size_t count)
{
    return (count + VECTOR_LANES - 1) / VECTOR_LANES * VECTOR_LANES;
}

/* Two tiles of scores and one number per row. */
size_t attention_scratch_elements(size_t t)
{
    return 2 * tile_of(t) * round_up(t) + tile_of(t);
}

/* One head of one sequence. Rows of q, k, v (and their gradients) are `stride` apart, rows of out
 * `width`. */
struct head {
    const float *q, *k, *v;
    size_t stride, width, t, cols;
    float scale;
};

/* Scores in, exp(score − max) out; inverse[i] = 1 / their sum in row i. Row i of a tile is position
 * `first + i` and sees first + i + 1 keys. It is processed in whole lanes: the keys up to the next
 * multiple of the lanes count as −inf, the rest of the tile's columns becomes 0. */
VECTOR_CLONES static void softmax_tile(float *restrict s, float *restrict lse,
    float *restrict inverse, size_t rows, size_t first, size_t stride)
{
    for (size_t i = 0; i < rows; i++) {
        float *restrict row = s + i * stride;
        size_t seen = first + i + 1, whole = round_up(seen), end = first + rows;
        for (size_t j = seen; j < whole; j++) row[j] = -INFINITY;
        float max = vector_max(row, whole), sum = vector_exp_sum(row, whole, max);
        for (size_t j = whole; j < end; j++) row[j] = 0.0f;
        inverse[i] = 1.0f / sum;
        lse[i] = max + logf(sum);
    }
}

VECTOR_CLONES static void scale_rows(
    float *restrict x, const float *restrict scale, size_t rows, size_t cols, size_t stride)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < cols; c++) x[i * stride + c] *= scale[i];
}

/* p: scores in, probabilities out; ds: dP in, dS out. row_dot[i] = Σ d_out ∘ out of row i. */
VECTOR_CLONES static void softmax_backward_tile(float *restrict p, float *restrict ds,
    const float *restrict lse, const float *restrict row_dot, size_t rows, size_t first,
    size_t stride, float scale)
{
    for (size_t i = 0; i < rows; i++) {
        float *restrict prob = p + i * stride;
        float *restrict d = ds + i * stride;
        size_t seen = first + i + 1, whole = round_up(seen), end = first + rows;
        float shift = lse[i], dot = row_dot[i];
        for (size_t j = seen; j < whole; j++) prob[j] = -INFINITY, d[j] = 0.0f;
        for (size_t j = 0; j < whole; j++) {
            float value = vector_exp(prob[j] - shift);
            prob[j] = value;
            d[j] = value * (d[j] - dot) * scale;
        }
        for (size_t j = whole; j < end; j++) prob[j] = 0.0f;
        for (size_t j = whole; j < end; j++) d[j] = 0.0f;
    }
}

VECTOR_CLONES static void row_dots(float *restrict dot, const float *restrict a,
    const float *restrict b, size_t rows, size_t cols, size_t stride)
{
    for (size_t i = 0; i < rows; i++) dot[i] = vector_dot(a + i * stride, b + i * stride, cols);
}

/* c (m, n) = alpha · a (m, k) · b (n, k)ᵀ. */
static void product_nt(float *c, const float *a, const float *b, size_t m, size_t n, size_t k,
    float alpha, size_t c_stride, size_t a_stride, size_t b_stride)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, alpha, a,
        (int)a_stride, b, (int)b_stride, 0.0f, c, (int)c_stride);
}

/* c (m, n) = a (m, k) · b (k, n). */
static void product_nn(float *c, const float *a, const float *b, size_t m, size_t n, size_t k,
    size_t c_stride, size_t a_stride, size_t b_stride)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a,
        (int)a_stride, b, (int)b_stride, 0.0f, c, (int)c_stride);
}

/* c (m, n) = beta · c + a (k, m)ᵀ · b (k, n). */
static void product_tn(float *c, const float *a, const float *b, size_t m, size_t n, size_t k,
    float beta, size_t c_stride, size_t a_stride, size_t b_stride)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a,
        (int)a_stride, b, (int)b_stride, beta, c, (int)c_stride);
}

static void one_head_forward(float *out, float *lse, float *scratch, struct head h)
{
    size_t s_stride = round_up(h.t), tile = tile_of(h.t);
    float *s = scratch, *inverse = s + tile * s_stride;
    for (size_t first = 0; first < h.t; first += tile) {
        size_t rows = h.t - first < tile ? h.t - first : tile, keys = first + rows;
        product_nt(s, h.q + first * h.stride, h.k, rows, keys, h.cols, h.scale, s_stride, h.stride,
            h.stride);
        softmax_tile(s, lse + first, inverse, rows, first, s_stride);
        product_nn(out + first * h.width, s, h.v, rows, h.cols, keys, h.width, s_stride, h.stride);
        scale_rows(out + first * h.width, inverse, rows, h.cols, h.width);
    }
}

/* adds: another head has written d_k and d_v. */
static void one_head_backward(float *d_q, float *d_k, float *d_v, bool adds, float *scratch,
    const float *d_out, const float *out, const float *lse, struct head h)
{
    size_t s_stride = round_up(h.t), tile = tile_of(h.t), tiles = (h.t + tile - 1) / tile;
    float *p = scratch, *ds = p + tile * s_stride, *row_dot = ds + tile * s_stride;
    for (size_t i = tiles; i-- > 0;) {
        size_t first = i * tile, rows = h.t - first < tile ? h.t - first : tile,
               keys = first + rows;
        const float *q = h.q + first * h.stride, *d_o = d_out + first * h.width;
        float beta = i == tiles - 1 && !adds ? 0.0f : 1.0f;
        product_nt(p, q, h.k, rows, keys, h.cols, h.scale, s_stride, h.stride, h.stride);
        product_nt(ds, d_o, h.v, rows, keys, h.cols, 1.0f, s_stride, h.width, h.stride);
        row_dots(row_dot, d_o, out + first * h.width, rows, h.cols, h.width);
        softmax_backward_tile(p, ds, lse + first, row_dot, rows, first, s_stride, h.scale);
        product_tn(d_v, p, d_o, keys, h.cols, rows, beta, h.stride, s_stride, h.width);
        product_nn(
            d_q + first * h.stride, ds, h.k, rows, h.cols, keys, h.stride, s_stride, h.stride);
        product_tn(d_k, ds, q, keys, h.cols, rows, beta, h.stride, s_stride, h.stride);
    }
}

/* Where the parts of head h begin in a row of qkv. */
struct columns {
    size_t q, k, v;
};

static struct columns columns_of(size_t h, struct attention_size size)
{
    size_t shared = h / (size.heads / size.kv_heads);
    return (struct columns){h * size.head_cols, (size.heads + shared) * size.head_cols,
        (size.heads + size.kv_heads + shared) * size.head_cols};
}

static size_t qkv_stride(struct attention_size size)
{
    return (size.heads + 2 * size.kv_heads) * size.head_cols;
}

/* qkv: of one sequence. */
static struct head head_at(const float *qkv, struct columns at, struct attention_size size)
{
    return (struct head){qkv + at.q, qkv + at.k, qkv + at.v, qkv_stride(size),
        size.heads * size.head_cols, size.t, size.head_cols, 1.0f / sqrtf((float)size.head_cols)};
}

void attention_forward(
    float *out, float *lse, float *scratch, const float *qkv, struct attention_size size)
{
    size_t width = size.heads * size.head_cols;
    for (size_t b = 0; b < size.batch; b++)
        for (size_t h = 0; h < size.heads; h++)
            one_head_forward(out + b * size.t * width + h * size.head_cols,
                lse + (b * size.heads + h) * size.t, scratch,
                head_at(qkv + b * size.t * qkv_stride(size), columns_of(h, size), size));
}

void attention_backward(float *d_qkv, float *scratch, const float *d_out, const float *qkv,
    const float *out, const float *lse, struct attention_size size)
{
    size_t width = size.heads * size.head_cols, group = size.heads / size.kv_heads;
    for (size_t b = 0; b < size.batch; b++)
        for (size_t h = 0; h < size.heads; h++) {
            size_t at = b * size.t * width + h * size.head_cols,
                   sequence = b * size.t * qkv_stride(size);
            struct columns part = columns_of(h, size);
            float *d = d_qkv + sequence;
            one_head_backward(d + part.q, d + part.k, d + part.v, h % group != 0, scratch,
                d_out + at, out + at, lse + (b * size.heads + h) * size.t,
                head_at(qkv + sequence, part, size));
        }
}
