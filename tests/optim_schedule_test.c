/* The learning rate at the corners of its curve, and between them.
 *
 * ctest: timeout=60
 */
#include <math.h>

#include "optim/schedule.h"
#include "tests/harness/harness.h"

static bool near(float found, double expected) { return fabs((double)found - expected) <= 1e-6 * fabs(expected); }

int main(void)
{
    const struct schedule schedule = {.lr = 0.5f, .final_fraction = 0.1f, .warmup_steps = 10, .steps = 110};
    CHECK(near(schedule_lr(&schedule, 0), 0.05));
    CHECK(near(schedule_lr(&schedule, 4), 0.25));
    CHECK(schedule_lr(&schedule, 9) == 0.5f);
    CHECK(near(schedule_lr(&schedule, 59), 0.275)); /* half way from step 9 to step 109 */
    CHECK(near(schedule_lr(&schedule, 34), 0.05 + 0.45 * 0.5 * (1.0 + sqrt(0.5))));
    CHECK(near(schedule_lr(&schedule, 109), 0.05));
    CHECK(near(schedule_lr(&schedule, 110), 0.05));
    CHECK(near(schedule_lr(&schedule, UINT64_MAX), 0.05));
    for (uint64_t step = 10; step < 110; step++)
        CHECK(schedule_lr(&schedule, step) < schedule_lr(&schedule, step - 1));

    const struct schedule no_warmup = {.lr = 0.5f, .final_fraction = 0.0f, .warmup_steps = 0, .steps = 3};
    CHECK(schedule_lr(&no_warmup, 0) == 0.5f);
    CHECK(near(schedule_lr(&no_warmup, 1), 0.25));
    CHECK(fabsf(schedule_lr(&no_warmup, 2)) < 1e-9f);

    /* Runs no longer than their warm-up, or of one step. */
    const struct schedule only_warmup = {.lr = 0.5f, .final_fraction = 0.1f, .warmup_steps = 4, .steps = 4};
    CHECK(schedule_lr(&only_warmup, 3) == 0.5f && near(schedule_lr(&only_warmup, 4), 0.05));
    const struct schedule cut_short = {.lr = 0.5f, .final_fraction = 0.1f, .warmup_steps = 4, .steps = 2};
    CHECK(schedule_lr(&cut_short, 1) == 0.25f && near(schedule_lr(&cut_short, 2), 0.05));
    const struct schedule one = {.lr = 0.5f, .final_fraction = 0.1f, .warmup_steps = 0, .steps = 1};
    CHECK(schedule_lr(&one, 0) == 0.5f);
    return test_result();
}
