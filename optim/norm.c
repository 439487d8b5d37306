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

/* lane (NORM_LANES) += the squares of x (NORM_LANES). */
VECTOR_CLONES static void add_squares(double *restrict lane, const float *restrict x)
{
    for (size_t l = 0; l < NORM_LANES; l++) lane[l] += (double)x[l] * (double)x[l];
}

VECTOR_CLONES static void add_squares_bfloat16(double *restrict lane, const uint16_t *restrict x)
{
    for (size_t l = 0; l < NORM_LANES; l++) {
        double wide = (double)bfloat16_to_float32(x[l]);
        lane[l] += wide * wide;
    }
}

static double piece_squares(const char *x, enum dtype dtype, size_t count)
{
    double lane[NORM_LANES] = {0};
    float wide[NORM_LANES] = {0}; /* zeros, which change no sum of squares, behind the last ones */
    for (size_t i = 0; i < count; i += NORM_LANES) {
        size_t part = count - i < NORM_LANES ? count - i : NORM_LANES;
        const void *at = x + i * dtype_bytes(dtype);
        if (part == NORM_LANES && dtype == DTYPE_FLOAT32) add_squares(lane, at);
        else if (part == NORM_LANES && dtype == DTYPE_BFLOAT16) add_squares_bfloat16(lane, at);
        else {
            if (part < NORM_LANES) memset(wide, 0, sizeof wide);
            numbers_widen(wide, at, dtype, part);
            add_squares(lane, wide);
        }
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
