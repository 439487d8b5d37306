/* uses: which units a pass of the model enters, in which order. What gpt2.c does, written down as a list, so that whoever
 * lends the units can fetch the next one in time and count what a pass will cost.
 */
#ifndef MODEL_USES_H
#define MODEL_USES_H

#include <stdbool.h>

#include "model/hooks.h"
#include "model/params.h"

struct model_use {
    int unit;
    enum unit_use use;
};

/* The uses of one forward (with targets, or without and followed by gpt2_logits(): the same), and of the backward after it.
 * Units without elements are not used. uses NULL: only counts. Returns their number, at most GPT2_USES_PER_UNIT of each
 * unit. Pure. */
#define GPT2_USES_PER_UNIT 4
int gpt2_uses(struct model_use *uses, const struct params *params, bool backward);

#endif
