/* loss_scale: see loss_scale.h. */
#include "optim/loss_scale.h"

#include <string.h>

struct loss_scale loss_scale_default(void)
{
    return (struct loss_scale){.value = 0x1p16, .floor = 1.0, .growth_interval = 2000};
}

bool loss_scale_update(struct loss_scale *scale, bool finite)
{
    if (!finite) {
        scale->good_steps = 0;
        if (scale->value <= scale->floor) return false;
        scale->value *= 0.5;
        if (scale->value < scale->floor) scale->value = scale->floor;
        return true;
    }
    scale->good_steps++;
    if (scale->growth_interval == 0 || scale->good_steps < scale->growth_interval) return true;
    scale->good_steps = 0;
    if (scale->value < LOSS_SCALE_MOST) scale->value *= 2.0;
    return true;
}

bool loss_scale_is_finite(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits >> 52 & 0x7ff) != 0x7ff;
}
