/* stage 3, P_os+g+p: the weights are partitioned too. A unit is whole only while it is used.
 *
 *   weights     1/N     enter       all-gather (the next unit's runs beside this one's use)
 *                       leave       the buffer may be filled again
 *   gradients   1/N     grad_ready  reduce-scatter into the own shard; the unit's buffer is free then
 *   m, v        1/N     update      AdamW on the own shard
 */
#include "shard/stage.h"

static enum status stage3_enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct stage *stage = context;
    TRY(gather_enter(&view->weights, unit, use, stage));
    return use == UNIT_FORWARD ? STATUS_OK : gradients_lend(view, unit, use, stage);
}

static enum status stage3_grad_ready(void *context, int unit)
{
    return gradients_reduce_scatter(unit, context);
}

static enum status stage3_publish(struct stage *stage, int unit)
{
    (void)stage, (void)unit; /* gathered when it is used */
    return STATUS_OK;
}

const struct stage_ops stage3_ops = {
    .number = 3,
    .keeps = {.weights = KEEP_SHARD, .gradients = KEEP_SHARD, .optimizer = KEEP_SHARD},
    .enter = stage3_enter,
    .grad_ready = stage3_grad_ready,
    .publish = stage3_publish,
};
