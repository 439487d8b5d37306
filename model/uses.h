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

/* Of `rows` rows of x those that are held here: all, or this rank's share of them. */
static inline struct params_slice model_own_rows(
    size_t rows, const struct params *params, const struct model_run *run)
{
    const struct params_slice all = {0, rows};
    return run->cut_rows ? params_slice(&params->part, rows) : all;
}

/* Calls of a tensor hook that are alike. */
enum model_tensor_hook { MODEL_SUM, MODEL_MAX, MODEL_SCATTER_SUM, MODEL_GATHER };
struct model_tensor_call {
    enum model_tensor_hook hook;
    size_t count;     /* elements; of all rows together */
    size_t rows;      /* MODEL_SCATTER_SUM, MODEL_GATHER */
    uint64_t times;
    bool activations; /* elements are of model_activation_dtype(), else float32 */
    bool on_host;     /* whatever the model's device is */
};

/* What a pass over (batch, t) tokens asks of the ranks that share this part's tensors: S sums of
 * B·T·C elements; where rows are cut S scatter_sums, G gathers, and sums of norms' gradients N.
 *
 *                             S      G      N
 *   embedding, forward        1      0      0
 *   a block, forward          2      2      0
 *   computed again            1      2      0     its last product is not needed
 *   a block, backward         2   2 or 4    1     4 where it was not: norms' outputs once more
 *   head, forward             0      1      0     and sums of B·T elements
 *   head, backward            1      0      1
 *   embedding, backward       0      1      0
 *
 * Returns their number. Pure. */
#define MODEL_TENSOR_CALLS_MOST 6
int model_tensor_calls(struct model_tensor_call calls[MODEL_TENSOR_CALLS_MOST], enum pass_kind pass,
    int batch, int t, const struct params *params, const struct model_run *run);

#endif
