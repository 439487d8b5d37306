/* schedule: see schedule.h.
 *
 *   lr ┤    ╭──╮
 *      │  ╱      ╲            the peak is step warmup_steps − 1 (step 0 without a warm-up),
 *      │╱          ╰────      the floor is reached at step steps − 1
 *      └─────────────────
 */
#include "optim/schedule.h"

#include <math.h>

float schedule_lr(const struct schedule *schedule, uint64_t step)
{
    double lr = (double)schedule->lr, floor_lr = lr * (double)schedule->final_fraction;
    if (step >= schedule->steps) return (float)floor_lr;
    if (step < schedule->warmup_steps) return (float)(lr * (double)(step + 1) / (double)schedule->warmup_steps);
    uint64_t peak = schedule->warmup_steps > 0 ? schedule->warmup_steps - 1 : 0, last = schedule->steps - 1;
    if (last == peak) return schedule->lr; /* a run of one step */
    double progress = (double)(step - peak) / (double)(last - peak);
    return (float)(floor_lr + (lr - floor_lr) * 0.5 * (1.0 + cos(3.14159265358979324 * progress)));
}
