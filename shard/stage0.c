/* stage 0: plain data parallelism. Every rank keeps all weights, all gradients and all of the
 * optimizer.
 *
 *   weights     all     enter       lends them where they lie
 *   gradients   all     grad_ready  all-reduce
 *   m, v        all     update      AdamW on everything: every rank computes the same bits
 *
 * Invariant I3: the units, their order on the stream and the order of every sum are the other
 * stages'.
 */
#include "shard/bucket.h"
#include "shard/stage.h"

static enum status stage0_open(struct stage *stage)
{
    size_t bytes = stage->config.layout->elements * sizeof(float);
    TRY(memory_alloc(&stage->weights, bytes, MEMORY_WEIGHTS, stage->config.device));
    TRY(memory_alloc(&stage->gradients, bytes, MEMORY_GRADIENTS, stage->config.device));
    TRY(memory_alloc(&stage->m, bytes, MEMORY_OPTIMIZER, stage->config.device));
    return memory_alloc(&stage->v, bytes, MEMORY_OPTIMIZER, stage->config.device);
}

static void stage0_close(struct stage *stage)
{
    memory_free(&stage->weights, MEMORY_WEIGHTS, stage->config.device);
    memory_free(&stage->gradients, MEMORY_GRADIENTS, stage->config.device);
    memory_free(&stage->m, MEMORY_OPTIMIZER, stage->config.device);
    memory_free(&stage->v, MEMORY_OPTIMIZER, stage->config.device);
}

/* A unit's place in a flat array: N·S elements. */
static struct span flat_unit(struct span flat, int unit, const struct stage *stage)
{
    const struct layout *layout = stage->config.layout;
    return span_part(flat, layout->unit[unit].begin * sizeof(float),
        layout_padded(layout, unit) * sizeof(float));
}

static enum status stage0_enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct stage *stage = context;
    size_t bytes = stage->config.layout->unit[unit].elements * sizeof(float);
    view->weights = span_part(flat_unit(stage->weights, unit, stage), 0, bytes);
    if (use == UNIT_FORWARD) return STATUS_OK;
    struct span gradients = flat_unit(stage->gradients, unit, stage);
    if (stage_is_input_part(stage, unit, use)) TRY(stage_lend_input(&gradients, unit, stage));
    view->gradients = span_part(gradients, 0, bytes);
    return STATUS_OK;
}

static enum status stage0_leave(void *context, int unit, enum unit_use use)
{
    (void)context, (void)unit, (void)use; /* nothing was gathered, so nothing is freed */
    return STATUS_OK;
}

static enum status stage0_grad_ready(void *context, int unit)
{
    struct stage *stage = context;
    const struct stage_config *config = &stage->config;
    if (!stage->reduce) return STATUS_OK;
    struct span sum = flat_unit(stage->gradients, unit, stage);
    struct span ready = stage->input_lent ? stage_input(unit, stage) : sum;
    TRY(bucket_all_reduce(
        ready, unit, config->bucket_bytes, config->layout, config->comm, stage->stream));
    if (stage->input_lent) TRY(stage_add_input(sum.ptr, 0, sum.bytes / sizeof(float), stage));
    return config->overlap ? STATUS_OK : stage_synchronize(stage);
}

static const float *stage0_owned_gradient(const struct stage *stage, int unit)
{
    const float *gradients = flat_unit(stage->gradients, unit, stage).ptr;
    return gradients + layout_owned(stage->config.layout, unit, stage->rank).begin;
}

static enum status stage0_update(struct stage *stage, float lr, float gradient_scale, uint64_t t)
{
    for (int u = 0; u < stage->config.layout->unit_count; u++)
        stage_adam(flat_unit(stage->weights, u, stage).ptr, flat_unit(stage->m, u, stage).ptr,
            flat_unit(stage->v, u, stage).ptr, flat_unit(stage->gradients, u, stage).ptr, u, 0,
            stage->config.layout->unit[u].elements, lr, gradient_scale, t, stage);
    return STATUS_OK;
}

static struct stage_part stage0_part(const struct stage *stage, int unit, enum stage_state state)
{
    const struct span kept[STAGE_STATE_COUNT] = {
        [STAGE_WEIGHTS] = stage->weights, [STAGE_M] = stage->m, [STAGE_V] = stage->v};
    return (struct stage_part){
        flat_unit(kept[state], unit, stage).ptr, 0, stage->config.layout->unit[unit].elements};
}

static void stage0_predict(struct stage_prediction *prediction, const struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    uint64_t flat_bytes = config->layout->elements * sizeof(float), sent_bytes = 0;
    for (int u = 0; u < config->layout->unit_count; u++) {
        uint64_t parts = u < config->params->embedding_units ? 2 : 1; /* head's and input's */
        sent_bytes +=
            parts * bucket_predict_all_reduce(u, config->bucket_bytes, config->layout, stage->rank);
    }
    *prediction = (struct stage_prediction){
        .held_bytes = {[MEMORY_WEIGHTS] = flat_bytes,
            [MEMORY_GRADIENTS] = flat_bytes,
            [MEMORY_OPTIMIZER] = 2 * flat_bytes},
        .step_sent_bytes = {[COLLECTIVE_ALL_REDUCE] = sent_bytes},
    };
}

const struct stage_ops stage0_ops = {
    .number = 0,
    .open = stage0_open,
    .close = stage0_close,
    .enter = stage0_enter,
    .leave = stage0_leave,
    .grad_ready = stage0_grad_ready,
    .owned_gradient = stage0_owned_gradient,
    .update = stage0_update,
    .part = stage0_part,
    .predict = stage0_predict,
};
