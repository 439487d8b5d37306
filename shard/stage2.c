/* stage 2, P_os+g: the gradients are partitioned too. Every rank keeps all weights.
 *
 *   weights     all     enter       lends them where they lie, once the last update has arrived
 *   gradients   1/N     grad_ready  reduce-scatter into the own shard; the unit's buffer is free then
 *   m, v        1/N     update      AdamW on the own shard, then all-gather of the weights
 */
#include "shard/stage.h"

static enum status stage2_enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct stage *stage = context;
    TRY(stage_await_weights(unit, stage));
    view->weights = stage_whole_weights(unit, stage);
    return use == UNIT_FORWARD ? STATUS_OK : gradients_lend(view, unit, use, stage);
}

static enum status stage2_grad_ready(void *context, int unit)
{
    return gradients_reduce_scatter(unit, context);
}

static enum status stage2_publish(struct stage *stage, int unit)
{
    return stage_all_gather_weights(unit, stage);
}

const struct stage_ops stage2_ops = {
    .number = 2,
    .keeps = {.weights = KEEP_ALL, .gradients = KEEP_SHARD, .optimizer = KEEP_SHARD},
    .enter = stage2_enter,
    .grad_ready = stage2_grad_ready,
    .publish = stage2_publish,
};
