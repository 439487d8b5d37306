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

static bool needs_weights(const struct model_use *use)
{
    return use->use != UNIT_BACKWARD_GRAD;
}

void gather_predict_times(int *times, bool backward, const struct stage_config *config)
{
    if (stage_keeps(config).weights != KEEP_SHARD) return;
    struct gather_cache cache = empty_cache;
    int count = gpt2_uses(NULL, config->params, backward);
    struct model_use *uses = calloc((size_t)count, sizeof *uses);
    if (uses == NULL) abort(); /* a few hundred bytes */
    gpt2_uses(uses, config->params, backward);
    for (int i = 0; i < count; i++) {
        bool missing;
        if (!needs_weights(&uses[i])) continue;
        cache.latest = cache_take(&cache, uses[i].unit, &missing);
        times[uses[i].unit] += missing;
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
    gather->forward_count = gpt2_uses(NULL, config->params, false);
    gather->train_count = gpt2_uses(NULL, config->params, true);
    gather->uses = calloc((size_t)gather->train_count, sizeof *gather->uses);
    if (gather->uses == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a list of %d uses", gather->train_count);
    gpt2_uses(gather->uses, config->params, true);
    gather->cache = empty_cache;
    return temporary_open(&gather->pair, TEMPORARY_GATHERED, config);
}

void gather_close(struct stage *stage)
{
    struct gather *gather = &stage->gather;
    temporary_close(&gather->pair, stage->config.device);
    free(gather->uses);
}

void gather_begin_pass(struct stage *stage, bool backward)
{
    struct gather *gather = &stage->gather;
    gather->cache = empty_cache;
    gather->use_count = backward ? gather->train_count : gather->forward_count;
    gather->next_use = 0;
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
    TRY(bucket_gather(whole, own, unit, config->broadcast_gather, &bucket, stage->stream));
    TRY(event_record(gather->pair.passed[*buffer], stage->stream, config->device));
    return config->overlap ? STATUS_OK : stage_synchronize(stage);
}

/* The unit after this one that needs weights. */
static enum status fetch_next(int unit, struct stage *stage)
{
    struct gather *gather = &stage->gather;
    for (int i = gather->next_use; i < gather->use_count; i++) {
        if (!needs_weights(&gather->uses[i]) || gather->uses[i].unit == unit) continue;
        int buffer;
        return fetch(&buffer, gather->uses[i].unit, stage);
    }
    return STATUS_OK;
}

enum status gather_enter(struct span *weights, int unit, enum unit_use use, struct stage *stage)
{
    struct gather *gather = &stage->gather;
    const struct stage_config *config = &stage->config;
    assert(gather->next_use < gather->use_count);
    const struct model_use *expected = &gather->uses[gather->next_use++];
    assert(expected->unit == unit && expected->use == use);
    if (!needs_weights(expected)) return STATUS_OK;
    int buffer;
    TRY(fetch(&buffer, unit, stage));
    gather->cache.latest = buffer;
    if (config->overlap) TRY(fetch_next(unit, stage));
    TRY(stage_compute_waits(gather->pair.passed[buffer], stage));
    *weights = span_part(gather->pair.buffer[buffer], 0,
        config->layout->unit[unit].elements * dtype_bytes(config->dtype));
    return STATUS_OK;
}
