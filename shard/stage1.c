/* stage 1, P_os: the optimizer is partitioned. Every rank keeps all weights and all gradients.
 *
 *   weights     all     enter       lends them where they lie, once the last update has arrived
 *   gradients   all     grad_ready  reduce-scatter: a rank needs the sum of what it updates
 *   m, v        1/N     update      AdamW on the own shard, then all-gather of the weights
 */
#include "shard/stage.h"

static enum status stage1_enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct stage *stage = context;
    TRY(stage_await_weights(unit, stage));
    view->weights = stage_whole_weights(unit, stage);
    return use == UNIT_FORWARD ? STATUS_OK : gradients_lend(view, unit, use, stage);
}

static enum status stage1_grad_ready(void *context, int unit)
{
    return gradients_reduce_scatter(unit, context);
}

static enum status stage1_publish(struct stage *stage, int unit)
{
    return stage_all_gather_weights(unit, stage);
}

const struct stage_ops stage1_ops = {
    .number = 1,
    .keeps = {.weights = KEEP_ALL, .gradients = KEEP_ALL, .optimizer = KEEP_SHARD},
    .enter = stage1_enter,
    .grad_ready = stage1_grad_ready,
    .publish = stage1_publish,
};
