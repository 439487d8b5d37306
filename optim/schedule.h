/* schedule: the learning rate of a step: linear warm-up, then a cosine down to a floor.
 */
#ifndef OPTIM_SCHEDULE_H
#define OPTIM_SCHEDULE_H

#include <stdint.h>

struct schedule {
    float lr;              /* the highest */
    float final_fraction;  /* of lr, reached at the last step: 0.1 */
    uint64_t warmup_steps; /* step 0 has lr / warmup_steps, step warmup_steps − 1 has lr */
    uint64_t steps;        /* of the whole run */
};

/* step counts from 0; steps beyond the last keep the floor. Pure. */
float schedule_lr(const struct schedule *schedule, uint64_t step);

#endif
