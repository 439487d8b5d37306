/* uses: which units a pass of the model enters, in which order. What model.c does, written down as a list, so that whoever
 * lends the units can fetch the next one in time and count what a pass will cost.
 *
 * A part of a pipeline of P parts uses what it holds (stage s of params->part):
 *
 *   forward    s = 0: rows, positions     blocks     s = P−1: final norm, rows
 *   backward   s = P−1: rows, final norm  blocks     s = 0: positions, rows
 */
#ifndef MODEL_USES_H
#define MODEL_USES_H

#include <stdbool.h>

#include "model/model.h"
#include "model/hooks.h"
#include "model/params.h"

struct model_use {
    int unit;
    enum unit_use use;
};

/* The uses of one forward (with targets, or without and followed by model_logits(): the same), and of the backward after it.
 * Units without elements are not used. uses NULL: only counts. Returns their number, at most MODEL_USES_PER_UNIT of each
 * unit. Pure. */
#define MODEL_USES_PER_UNIT 4
int model_uses(struct model_use *uses, const struct params *params, bool backward);

/* What of the model a part computes. */
struct model_span {
    bool first, last; /* has the input's embedding and positions; has the final norm and the head */
    int begin, end;   /* blocks */
};
static inline struct model_span model_span(const struct params *params)
{
    const struct params_part *part = &params->part;
    const struct params_slice blocks = params_blocks(part, params->config.layers);
    const struct model_span span = {
        .first = part->stage == 0,
        .last = part->stage == part->stage_count - 1,
        .begin = (int)blocks.begin,
        .end = (int)(blocks.begin + blocks.count),
    };
    return span;
}

enum pass_kind {
    PASS_FORWARD, /* with targets */
    PASS_TRAIN,   /* the same, and its backward */
    PASS_SAMPLE,  /* without targets, and model_logits() once */
};

/* Calls of sum() or max() that are alike. */
struct model_sum {
    size_t count;     /* elements */
    uint64_t times;
    bool max;
    bool activations; /* elements are of model_activation_dtype(), else float32 */
    bool on_host;     /* whatever the model's device is */
};

/* What a pass over (batch, t) tokens asks of the ranks that share this part's tensors. Per block forward 2
 * sums of B·T·C elements, backward 2, and 1 where blocks are computed again: their last product is not
 * needed. Returns their number. Pure. */
#define MODEL_SUMS_MOST 4
int model_sums(struct model_sum sums[MODEL_SUMS_MOST], enum pass_kind pass, int batch, int t,
    const struct params *params, const struct model_run *run);

#endif
