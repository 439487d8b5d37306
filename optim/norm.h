/* norm: the global gradient norm, from partial sums whose order is fixed, and the factor that clips it.
 */
#ifndef OPTIM_NORM_H
#define OPTIM_NORM_H

#include <stddef.h>

#include "verbs/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Σ x² in double, in an order that depends on count alone: the same bits for the same numbers on
 * every rank and device. x (count): float32, bfloat16 or float16.
 *
 * A piece is NORM_PIECE elements. Within one, element i goes to lane i mod NORM_LANES, and the lanes
 * are folded in halves; then the pieces are added in order. */
#define NORM_LANES 256
#define NORM_PIECE 8192
double norm_sum_of_squares(const void *x, enum dtype dtype, size_t count);

/* The factor for gradients whose norm is `norm`: min(1, clip / norm); 1 when clip ≤ 0. A norm that is inf or
 * NaN gives NaN: the caller decides what that means. */
float norm_clip_scale(double norm, double clip);

#ifdef __cplusplus
}
#endif
#endif
