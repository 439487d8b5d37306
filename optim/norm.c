/* norm: see norm.h.
 *
 * Invariant I2: count alone decides the order, which is one that a warp of a GPU keeps as well as the vectors here do.
 * Squares of floats are exact in double, so nothing overflows that is finite, and fused or not they round alike.
 */
#include "optim/norm.h"

#include <math.h>
#include <string.h>

#include "optim/numbers.h"
#include "verbs/clones.h"
#include "verbs/streaming.h"

#define COLUMNS 32 /* lanes that stay in registers from row to row */

/* lane (NORM_LANES) += the squares of x (rows, NORM_LANES), row by row in each. As many bytes from
 * `next` on are asked for meanwhile, in order. */
VECTOR_CLONES static void add_squares(
    double *restrict lane, const float *restrict x, size_t rows, const void *next)
{
    size_t step_bytes = COLUMNS * sizeof *x, asked = 0;
    for (size_t l = 0; l < NORM_LANES; l += COLUMNS) {
        double sum[COLUMNS];
        memcpy(sum, lane + l, sizeof sum);
        for (size_t r = 0; r < rows; r++, asked += step_bytes) {
            const float *at = x + r * NORM_LANES + l;
            streaming_ask_second(next, asked, step_bytes);
            for (size_t i = 0; i < COLUMNS; i++) sum[i] += (double)at[i] * (double)at[i];
        }
        memcpy(lane + l, sum, sizeof sum);
    }
}

VECTOR_CLONES static void add_squares_bfloat16(
    double *restrict lane, const uint16_t *restrict x, size_t rows, const void *next)
{
    size_t step_bytes = COLUMNS * sizeof *x, asked = 0;
    for (size_t l = 0; l < NORM_LANES; l += COLUMNS) {
        double sum[COLUMNS];
        memcpy(sum, lane + l, sizeof sum);
        for (size_t r = 0; r < rows; r++, asked += step_bytes) {
            const uint16_t *at = x + r * NORM_LANES + l;
            streaming_ask_second(next, asked, step_bytes);
            for (size_t i = 0; i < COLUMNS; i++) {
                double wide = (double)bfloat16_to_float32(at[i]);
                sum[i] += wide * wide;
            }
        }
        memcpy(lane + l, sum, sizeof sum);
    }
}

static double piece_squares(const char *x, enum dtype dtype, size_t count)
{
    double lane[NORM_LANES] = {0};
    float wide[NORM_LANES] = {0}; /* zeros, which change no sum of squares, behind the last ones */
    size_t element = dtype_bytes(dtype), rows = count / NORM_LANES, i = 0;
    const void *first = x, *next = (const void *)((uintptr_t)x + NORM_PIECE * element);
    if (dtype == DTYPE_FLOAT32) add_squares(lane, first, rows, next);
    if (dtype == DTYPE_BFLOAT16) add_squares_bfloat16(lane, first, rows, next);
    if (dtype != DTYPE_FLOAT16) i = rows * NORM_LANES;
    for (; i < count; i += NORM_LANES) {
        size_t part = count - i < NORM_LANES ? count - i : NORM_LANES;
        if (part < NORM_LANES) memset(wide, 0, sizeof wide);
        numbers_widen(wide, x + i * element, dtype, part);
        add_squares(lane, wide, 1, wide);
    }
    for (size_t half = NORM_LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

double norm_sum_of_squares(const void *x, enum dtype dtype, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i += NORM_PIECE) {
        size_t piece = count - i < NORM_PIECE ? count - i : NORM_PIECE;
        sum += piece_squares((const char *)x + i * dtype_bytes(dtype), dtype, piece);
    }
    return sum;
}

float norm_clip_scale(double norm, double clip)
{
    if (!isfinite(norm)) return NAN;
    if (clip <= 0.0 || norm <= clip) return 1.0f;
    return (float)(clip / norm);
}
