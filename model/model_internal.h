/* model_internal: what model.c (the passes) and model_open.c (what is held, and where) share. */
#ifndef MODEL_MODEL_INTERNAL_H
#define MODEL_MODEL_INTERNAL_H

#include <assert.h>

#include "model/block.h"
#include "model/model.h"
#include "model/ops.h"
#include "model/ops_profile.h"
#include "model/rows.h"
#include "model/tensor_parallel.h"
#include "model/unit.h"
#include "model/uses.h"

/* What a pass keeps besides tensors: its ids, where operations read them. */
struct model_ids {
    const int32_t *tokens, *targets;
};

struct model {
    const struct params *params;
    struct model_hooks hooks;
    struct model_run run;
    struct device *device;
    struct ops_context context;
    struct ops_profile profile; /* with run.profile: the context's table */
    struct span activations, checkpoints, workspace;
    struct span turns; /* angles of rotary positions: block_workspace.turns; empty without */

    struct model_span span;   /* of the blocks: what this part computes */
    struct model_ids *ids_of; /* [passes]: of each slot */

    /* Of the last forward. */
    double *loss;             /* on the host; the stream writes it */
    double own_loss;          /* where the caller's thread does */
    struct span pinned_loss;  /* where a stream does */
    struct event *loss_there; /* passed when it has; NULL where nothing is queued */

    /* Of the pass in hand: model_place() has placed them. Tensors are of the context's compute
     * dtype. */
    const int32_t *tokens, *targets; /* where operations read them; see place_ids() */
    struct block_shape shape;
    void *inputs;        /* (own rows, C) of each block; see block_input() */
    void *blocks;        /* activations of the first block */
    size_t block_stride; /* bytes from there to the next block's; 0: blocks share them */
    void *x;    /* (own rows, C) output of the last block; passes share it but on the last part */
    void *norm; /* (rows, C) */
    float *norm_mean, *norm_rstd;             /* (own rows) each */
    float *head_max, *head_sum, *head_target; /* (rows) each; sum and target lie together */
    float *head_lse;                          /* (rows) */
    int32_t *ids;                             /* (2, rows): copies of tokens and targets */
    void *d_x;                                /* (own rows, C) */
    struct block_workspace work;
    void *logits; /* head_scratch_bytes() of the largest block of rows */
    struct unit_room room;
};

/* Places everything for (batch, t) and the pass of a slot, and tells how much there is of each kind,
 * for all passes. Before the memory is there, only tells. */
struct model_memory model_place(struct model *model, int batch, int t, int slot);

/* Passes that may wait for their backward. */
static inline int model_passes(const struct model *model)
{
    return model->run.passes > 0 ? model->run.passes : 1;
}

/* Waits for what is queued. errors: of the operations, and of all else on the stream. */
MUST_CHECK enum status model_synchronize(struct model *model);

/* The part of an embedding unit's rows that is held here. weights: (rows, C) of it, or NULL. */
static inline struct head_rows model_rows_of_unit(
    const struct model *model, int unit, const void *weights)
{
    const struct param *param =
        &model->params->param[unit]; /* these units come first, of one tensor each */
    assert(param->unit == unit && unit < model->params->embedding_units);
    return (struct head_rows){param->first_row + param->band[0].whole_row, param->rows, weights};
}

/* Others hold the rest of every tensor. */
static inline bool model_is_shared(const struct model *model)
{
    return model->params->part.tensor_count > 1;
}

/* Hooks carry the inputs of blocks away, so that they need not stay here. */
static inline bool model_inputs_are_carried(const struct model *model)
{
    return model->run.recompute && model->run.carried;
}

/* Tokens and targets come from the host; where operations cannot read them, they are copied. */
static inline bool model_ids_are_copied(const struct model *model)
{
    return model->context.ops->queued;
}

#endif
