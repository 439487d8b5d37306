/* stage 0: plain data parallelism. Every rank keeps all weights, all gradients and all of the
 * optimizer.
 *
 *   weights     all     enter       lends them where they lie
 *   gradients   all     grad_ready  all-reduce
 *   m, v        all     update      AdamW on everything: every rank computes the same bits
 */
#include "shard/stage.h"

static enum status stage0_enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct stage *stage = context;
    view->weights = stage_whole_weights(unit, stage);
    return use == UNIT_FORWARD ? STATUS_OK : gradients_lend(view, unit, use, stage);
}

static enum status stage0_grad_ready(void *context, int unit)
{
    return gradients_all_reduce(unit, context);
}

static enum status stage0_publish(struct stage *stage, int unit)
{
    (void)stage, (void)unit; /* every rank has updated everything */
    return STATUS_OK;
}

const struct stage_ops stage0_ops = {
    .number = 0,
    .keeps = {.weights = KEEP_ALL, .gradients = KEEP_ALL, .optimizer = KEEP_ALL},
    .enter = stage0_enter,
    .grad_ready = stage0_grad_ready,
    .publish = stage0_publish,
};
