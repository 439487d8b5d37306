/* loss_scale: the factor that keeps float16 gradients within range.
 *
 * The loss is multiplied by the scale before backward, the gradient divided by it before the update. A gradient
 * that overflows is thrown away (the step is skipped: weights, moments, t and learning rate stay) and the scale
 * halved; after `growth_interval` good steps in a row it is doubled. Pure state: whoever holds it gives every
 * rank the same verdict, so all ranks hold the same scale.
 * source: Micikevicius et al., "Mixed precision training", section 3.2.
 */
#ifndef OPTIM_LOSS_SCALE_H
#define OPTIM_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

struct loss_scale {
    double value;             /* a power of two, so that it costs no rounding; 1 and never changed: off */
    double floor;             /* an overflow here cannot be helped */
    uint64_t growth_interval; /* good steps before it is doubled; 0: it never grows */
    uint64_t good_steps;      /* since it last changed */
};

#define LOSS_SCALE_MOST 0x1p40 /* it never grows beyond */

/* 2^16, floor 1, 2000 steps. */
struct loss_scale loss_scale_default(void);

/* Takes in whether a step's gradient was finite. Returns false when it was not and the scale is at its floor: the
 * run cannot go on. */
bool loss_scale_update(struct loss_scale *scale, bool finite);

/* True unless x is an infinity or a NaN, told by its bits: also where -ffast-math deletes isfinite(). */
bool loss_scale_is_finite(double x);

#endif
