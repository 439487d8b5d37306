/* ops_head_host: output head and cross-entropy in one, by blocks of vocabulary rows and tiles of
 * tokens.
 *
 * The full logits (B·T, V) are never held. Forward meets the blocks one after another and keeps
 * three numbers a token:
 *
 *   max′ = max(max, max of block)    sum′ = sum·exp(max − max′) + Σ exp(logit − max′)
 *   and, from the block that has it, the target's logit
 *
 * so that log Σ exp = max + log(sum) at the end. Backward computes each tile's logits again. One
 * product more than the minimum of three, and workspace that depends on neither B·T nor V.
 * source: Milakov and Gimelshein, "Online normalizer calculation for softmax", algorithm 3.
 */
#include "model/ops_host.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "model/vector_math.h"

/* Bytes of logits at once: beyond the first cache in any case, but tall enough for an efficient
 * product. */
#define HEAD_TILE_BYTES    ((size_t)16 << 20)
#define HEAD_TILE_ROWS_MIN 64

static size_t tile_rows(size_t count, size_t rows)
{
    size_t tile = HEAD_TILE_BYTES / sizeof(float) / (count > 0 ? count : 1);
    if (tile < HEAD_TILE_ROWS_MIN) tile = HEAD_TILE_ROWS_MIN;
    size_t tiles = (rows + tile - 1) / tile;
    return tiles > 1 ? (rows + tiles - 1) / tiles : rows;
}

size_t head_scratch_elements(size_t count, size_t rows)
{
    return tile_rows(count, rows) * count;
}

void head_begin(float *max, float *sum, float *target_logit, size_t rows)
{
    for (size_t r = 0; r < rows; r++) max[r] = -INFINITY;
    memset(sum, 0, rows * sizeof *sum);
    memset(target_logit, 0, rows * sizeof *target_logit);
}

static void block_logits(
    float *logits, const float *x, struct head_rows block, size_t rows, size_t cols)
{
    linear_forward(logits, x, block.weight, NULL, rows, cols, block.count);
}

VECTOR_CLONES static void take_tile(float *restrict max, float *restrict sum,
    float *restrict target_logit, float *restrict logits, const int32_t *restrict targets,
    size_t first_row, size_t count, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        float *restrict row = logits + r * count;
        if (targets[r] < 0) continue;
        size_t target =
            (size_t)targets[r] - first_row; /* wraps to a large number below first_row */
        if (target < count) target_logit[r] = row[target];
        float block_max = vector_max(row, count);
        float new_max = block_max > max[r] ? block_max : max[r];
        sum[r] = sum[r] * vector_exp(max[r] - new_max) + vector_exp_sum(row, count, new_max);
        max[r] = new_max;
    }
}

void head_forward(float *max, float *sum, float *target_logit, float *scratch, const float *x,
    const int32_t *targets, struct head_rows block, size_t rows, size_t cols)
{
    if (block.count == 0) return;
    size_t tile = tile_rows(block.count, rows);
    for (size_t r = 0; r < rows; r += tile) {
        size_t n = rows - r < tile ? rows - r : tile;
        block_logits(scratch, x + r * cols, block, n, cols);
        take_tile(max + r, sum + r, target_logit + r, scratch, targets + r, block.first_row,
            block.count, n);
    }
}

void head_rescale(float *sum, const float *own_max, const float *max, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        if (sum[r] > 0.0f) sum[r] *= expf(own_max[r] - max[r]);
}

void head_loss(double *loss, float *lse, const float *max, const float *sum,
    const float *target_logit, const int32_t *targets, size_t rows)
{
    *loss = 0.0;
    for (size_t r = 0; r < rows; r++) {
        if (targets[r] < 0) continue;
        lse[r] = max[r] + logf(sum[r]);
        *loss += (double)lse[r] - (double)target_logit[r];
    }
}

/* logits in, scale · (softmax − [target]) out. */
VECTOR_CLONES static void tile_gradient(float *restrict logits, const float *restrict lse,
    const int32_t *restrict targets, float scale, size_t first_row, size_t count, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        float *restrict row = logits + r * count;
        if (targets[r] < 0) {
            memset(row, 0, count * sizeof *row);
            continue;
        }
        float shift = lse[r];
        for (size_t c = 0; c < count; c++) row[c] = scale * vector_exp(row[c] - shift);
        size_t target = (size_t)targets[r] - first_row;
        if (target < count) row[target] -= scale;
    }
}

void head_backward(float *d_x, float *d_weight, float *scratch, const float *x, const float *lse,
    const int32_t *targets, float scale, struct head_rows block, size_t rows, size_t cols)
{
    if (block.count == 0) return;
    size_t tile = tile_rows(block.count, rows);
    int count = (int)block.count, k = (int)cols;
    for (size_t r = 0; r < rows; r += tile) {
        size_t n = rows - r < tile ? rows - r : tile;
        block_logits(scratch, x + r * cols, block, n, cols);
        tile_gradient(scratch, lse + r, targets + r, scale, block.first_row, block.count, n);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, k, count, 1.0f, scratch,
            count, block.weight, k, 1.0f, d_x + r * cols, k);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, count, k, (int)n, 1.0f, scratch, count,
            x + r * cols, k, 1.0f, d_weight, k);
    }
}
