/* norm: the global gradient norm, from partial sums whose order is fixed, and the factor that clips it.
 */
#ifndef OPTIM_NORM_H
#define OPTIM_NORM_H

#include <stddef.h>

/* Σ x², in double, in an order that depends on count alone: the same bits for the same numbers on every rank. */
double norm_sum_of_squares(const float *x, size_t count);

/* The factor for gradients whose norm is `norm`: min(1, clip / norm); 1 when clip ≤ 0. A norm that is inf or
 * NaN gives NaN: the caller decides what that means. */
float norm_clip_scale(double norm, double clip);

#endif
