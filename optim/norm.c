/* norm: see norm.h.
 *
 * Invariant I2: element i goes to lane i mod 8, and the lanes are folded in halves; count alone decides the
 * order. Squares of floats are exact in double, so nothing overflows that is finite.
 */
#include "optim/norm.h"

#include <math.h>
#include <string.h>

#include "verbs/clones.h"

#define LANES 8
typedef float float_lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef double double_lanes __attribute__((vector_size(LANES * sizeof(double))));

VECTOR_CLONES double norm_sum_of_squares(const float *x, size_t count)
{
    double_lanes sum = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        float_lanes part;
        memcpy(&part, x + i, sizeof part);
        double_lanes wide = __builtin_convertvector(part, double_lanes);
        sum += wide * wide;
    }
    double lane[LANES];
    memcpy(lane, &sum, sizeof lane);
    for (size_t l = 0; i + l < count; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

float norm_clip_scale(double norm, double clip)
{
    if (!isfinite(norm)) return NAN;
    if (clip <= 0.0 || norm <= clip) return 1.0f;
    return (float)(clip / norm);
}
