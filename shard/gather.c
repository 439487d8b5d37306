/* gather: see gather.h. */
#include <assert.h>
#include <stdlib.h>

#include "shard/stage.h"

/* ---- what is where: pure ---- */

static const struct gather_cache empty_cache = {.unit = {-1, -1}};

/* The buffer that has the unit, or is to be filled with it: then *missing. */
static int cache_take(struct gather_cache *cache, int unit, bool *missing)
{
    for (int i = 0; i < 2; i++) {
        *missing = cache->unit[i] != unit;
        if (!*missing) return i;
    }
    int other = 1 - cache->latest;
    cache->unit[other] = unit;
    return other;
}

/* Of a forward and its backward. NULL: no memory. */
static struct model_use *list_uses(const struct params *params)
{
    struct model_use *uses = calloc((size_t)model_uses(NULL, params, true), sizeof *uses);
    if (uses != NULL) model_uses(uses, params, true);
    return uses;
}

static struct gather_order order_of(
    const struct model_use *uses, bool backward, const struct stage_config *config)
{
    return (struct gather_order){
        .uses = uses,
        .forward_count = model_uses(NULL, config->params, false),
        .train_count = model_uses(NULL, config->params, true),
        .place = stage_place(config),
        .backward = backward,
    };
}

/* NULL: there are no more. */
static const struct model_use *next_use(struct gather_order *order)
{
    for (; order->step < (order->backward ? pipeline_steps(&order->place) : 1); order->step++) {
        enum pipeline_work work = PIPELINE_FORWARD;
        if (order->backward) work = pipeline_step_at(&order->place, order->step).work;
        int begin = work == PIPELINE_FORWARD ? 0 : order->forward_count;
        int end = work == PIPELINE_FORWARD ? order->forward_count : order->train_count;
        if (begin + order->next < end) return &order->uses[begin + order->next++];
        order->next = 0;
    }
    return NULL;
}

static bool needs_weights(const struct model_use *use)
{
    return use->use != UNIT_BACKWARD_GRAD;
}

void gather_predict_times(int *times, bool backward, const struct stage_config *config)
{
    if (stage_keeps(config).weights != KEEP_SHARD) return;
    struct gather_cache cache = empty_cache;
    struct model_use *uses = list_uses(config->params);
    if (uses == NULL) abort(); /* a few hundred bytes */
    struct gather_order order = order_of(uses, backward, config);
    for (const struct model_use *use; (use = next_use(&order)) != NULL;) {
        bool missing;
        if (!needs_weights(use)) continue;
        cache.latest = cache_take(&cache, use->unit, &missing);
        times[use->unit] += missing;
    }
    free(uses);
}

void gather_predict_sent(
    uint64_t sent[COLLECTIVE_COUNT], bool backward, const struct stage_config *config)
{
    struct bucket bucket = stage_bucket(config);
    int *times = calloc((size_t)config->layout->unit_count, sizeof *times);
    if (times == NULL) abort();
    gather_predict_times(times, backward, config);
    for (int u = 0; u < config->layout->unit_count; u++) {
        uint64_t once[COLLECTIVE_COUNT] = {0};
        if (times[u] == 0) continue;
        bucket_predict_gather(once, u, config->broadcast_gather, &bucket);
        for (int c = 0; c < COLLECTIVE_COUNT; c++) sent[c] += once[c] * (uint64_t)times[u];
    }
    free(times);
}

/* ---- */

enum status gather_open(struct stage *stage)
{
    struct gather *gather = &stage->gather;
    const struct stage_config *config = &stage->config;
    if (stage->keeps.weights != KEEP_SHARD) return STATUS_OK;
    gather->uses = list_uses(config->params);
    if (gather->uses == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a list of what uses %d units",
            config->params->unit_count);
    gather->cache = empty_cache;
    return temporary_open(&gather->pair, TEMPORARY_GATHERED, config);
}

void gather_close(struct stage *stage)
{
    struct gather *gather = &stage->gather;
    temporary_close(&gather->pair, stage->config.device);
    free(gather->uses);
}

void gather_begin_passes(struct stage *stage, bool backward)
{
    stage->gather.cache = empty_cache;
    stage->gather.order = order_of(stage->gather.uses, backward, &stage->config);
}

/* Sees to it that a buffer has the unit, or will have it once the stream gets there. */
static enum status fetch(int *buffer, int unit, struct stage *stage)
{
    struct gather *gather = &stage->gather;
    const struct stage_config *config = &stage->config;
    bool missing;
    *buffer = cache_take(&gather->cache, unit, &missing);
    if (!missing) return STATUS_OK;
    struct bucket bucket = stage_bucket(config);
    struct span whole = span_part(gather->pair.buffer[*buffer], 0,
        layout_padded(config->layout, unit) * dtype_bytes(config->dtype));
    struct span own = stage_unit(stage->weights, KEEP_SHARD, config->dtype, unit, stage);
    TRY(stage_ring_waits(stage)); /* for what was computed with the buffer before */
    stage_ring_begin(STAGE_GATHER, unit, stage);
    TRY(bucket_gather(whole, own, unit, config->broadcast_gather, &bucket, stage->stream));
    stage_ring_end(whole.bytes, stage);
    TRY(event_record(gather->pair.passed[*buffer], stage->stream, config->device));
    return config->overlap ? STATUS_OK : stage_synchronize(stage);
}

/* The unit after this one that needs weights. */
static enum status fetch_next(int unit, struct stage *stage)
{
    struct gather_order ahead = stage->gather.order;
    for (const struct model_use *use; (use = next_use(&ahead)) != NULL;) {
        if (!needs_weights(use) || use->unit == unit) continue;
        int buffer;
        return fetch(&buffer, use->unit, stage);
    }
    return STATUS_OK;
}

enum status gather_enter(struct span *weights, int unit, enum unit_use use, struct stage *stage)
{
    struct gather *gather = &stage->gather;
    const struct stage_config *config = &stage->config;
    const struct model_use *expected = next_use(&gather->order);
    assert(expected != NULL && expected->unit == unit && expected->use == use);
    if (!needs_weights(expected)) return STATUS_OK;
    int buffer;
    TRY(fetch(&buffer, unit, stage));
    gather->cache.latest = buffer;
    if (config->overlap) TRY(fetch_next(unit, stage));
    TRY(stage_compute_waits(gather->pair.passed[buffer], "wait for gathers", stage));
    *weights = span_part(gather->pair.buffer[buffer], 0,
        config->layout->unit[unit].elements * dtype_bytes(config->dtype));
    return STATUS_OK;
}
