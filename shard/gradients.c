/* gradients: see gradients.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shard/stage.h"

/* ---- buffers ---- */

enum status gradients_open(struct stage *stage)
{
    size_t units = (size_t)stage->config.layout->unit_count;
    stage->lent.begun = calloc(units, sizeof *stage->lent.begun);
    if (stage->lent.begun == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for marks of %zu units", units);
    return temporary_open(&stage->lent.pair, TEMPORARY_GRADIENT, &stage->config);
}

void gradients_close(struct stage *stage)
{
    free(stage->lent.begun);
    temporary_close(&stage->lent.pair, stage->config.device);
}

/* The buffer lent, or whose turn it is: the unit's N·S elements. */
static struct span buffer_unit(int unit, const struct stage *stage)
{
    size_t element = dtype_bytes(stage->config.gradient_dtype);
    return span_part(stage->lent.pair.buffer[stage->lent.turn], 0,
        layout_padded(stage->config.layout, unit) * element);
}

static enum status zero(struct span gradients, struct stage *stage)
{
    if (gradients.bytes == 0) return STATUS_OK;
    profile_begin(stage->config.profile, "zero gradients", 0);
    TRY(span_fill(gradients, 0, stage->computing.stream, stage->config.device));
    profile_end(stage->config.profile, 0, (double)gradients.bytes);
    return STATUS_OK;
}

enum status gradients_begin_step(struct stage *stage)
{
    size_t units = (size_t)stage->config.layout->unit_count;
    memset(stage->lent.begun, 0, units * sizeof *stage->lent.begun);
    return stage->keeps.gradients == KEEP_ALL ? STATUS_OK : zero(stage->gradients, stage);
}

/* Its turn comes. */
static enum status take_buffer(struct stage *stage)
{
    assert(!stage->lent.lent);
    struct event *passed = stage->lent.pair.passed[stage->lent.turn];
    TRY(stage_compute_waits(passed, "wait for reductions", stage));
    stage->lent.lent = true;
    return STATUS_OK;
}

/* The stream has what it needs of the buffer once all that is queued has passed. */
static enum status give_buffer(struct stage *stage)
{
    struct gradients *lent = &stage->lent;
    TRY(event_record(lent->pair.passed[lent->turn], stage->stream, stage->config.device));
    lent->lent = false;
    if (lent->pair.buffer[1].ptr != NULL) lent->turn = 1 - lent->turn;
    return STATUS_OK;
}

/* Padding, which takes part in reductions, is zero. */
enum status gradients_lend(
    struct unit_view *view, int unit, enum unit_use use, struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    bool input_part = use == UNIT_BACKWARD_GRAD && stage_gradient_parts(unit, config) == 2;
    size_t bytes = config->layout->unit[unit].elements * dtype_bytes(config->gradient_dtype);
    struct span whole;
    if (stage->keeps.gradients == KEEP_SHARD || (input_part && stage->reduce)) {
        TRY(take_buffer(stage));
        whole = buffer_unit(unit, stage);
        view->first = true;
    } else {
        whole = stage_unit(stage->gradients, KEEP_ALL, config->gradient_dtype, unit, stage);
        view->first = !stage->lent.begun[unit];
        stage->lent.begun[unit] = true;
    }
    view->gradients = span_part(whole, 0, bytes);
    return view->first ? zero(span_part(whole, bytes, whole.bytes - bytes), stage) : STATUS_OK;
}

/* ---- adding, on the stream ---- */

struct add_arguments {
    void *to;
    const void *from;
    size_t count;
    enum dtype dtype;
    struct adam_context context;
};

static enum status run_add(void *arguments)
{
    const struct add_arguments *sum = arguments;
    sum->context.ops->add(sum->to, sum->from, sum->dtype, sum->count, &sum->context);
    return STATUS_OK;
}

/* ---- reducing ---- */

static struct bucket bucket_of(const struct stage *stage)
{
    struct bucket bucket = stage_bucket(&stage->config);
    bucket.dtype = stage->config.gradient_dtype;
    return bucket;
}

/* Queues: what the buffer has of `from` on is added to `to`, of the same length. */
static enum status add_buffer(struct span to, size_t offset_bytes, struct stage *stage)
{
    enum dtype dtype = stage->config.gradient_dtype;
    char *from = (char *)stage->lent.pair.buffer[stage->lent.turn].ptr + offset_bytes;
    struct add_arguments sum = {to.ptr, from, to.bytes / dtype_bytes(dtype), dtype, stage->adam};
    if (sum.context.stream != NULL) sum.context.stream = stage->stream; /* whose worker calls it */
    TRY(stream_call(stage->stream, run_add, &sum, sizeof sum, stage->config.device));
    return give_buffer(stage);
}

static enum status settle(struct stage *stage)
{
    return stage->config.overlap ? STATUS_OK : stage_synchronize(stage);
}

enum status gradients_all_reduce(int unit, struct stage *stage)
{
    if (!stage->reduce) return STATUS_OK;
    struct bucket bucket = bucket_of(stage);
    struct span kept = stage_unit(stage->gradients, KEEP_ALL, bucket.dtype, unit, stage);
    struct span ready = stage->lent.lent ? buffer_unit(unit, stage) : kept;
    TRY(stage_ring_waits(stage));
    stage_ring_begin(STAGE_REDUCE, unit, stage);
    TRY(bucket_all_reduce(ready, unit, &bucket, stage->stream));
    if (stage->lent.lent) TRY(add_buffer(kept, 0, stage));
    stage_ring_end(ready.bytes, stage);
    return settle(stage);
}

enum status gradients_reduce_scatter(int unit, struct stage *stage)
{
    if (!stage->reduce) return STATUS_OK;
    struct bucket bucket = bucket_of(stage);
    enum keep keep = stage->keeps.gradients;
    struct span kept = stage_unit(stage->gradients, keep, bucket.dtype, unit, stage);
    struct span ready = stage->lent.lent ? buffer_unit(unit, stage) : kept;
    size_t shard_bytes = bucket.layout->unit[unit].shard * dtype_bytes(bucket.dtype);
    size_t own = (size_t)bucket.rank * shard_bytes;
    TRY(stage_ring_waits(stage));
    stage_ring_begin(STAGE_REDUCE, unit, stage);
    TRY(bucket_reduce_scatter(ready, unit, &bucket, stage->stream));
    if (keep == KEEP_ALL) kept = span_part(kept, own, shard_bytes);
    if (stage->lent.lent) TRY(add_buffer(kept, own, stage));
    stage_ring_end(ready.bytes, stage);
    return settle(stage);
}

/* ---- the ends of a pipeline ---- */

/* What is reduced of a unit's gradient here: all of it, or this rank's shard. */
static size_t reduced_count(int unit, const struct stage_config *config)
{
    bool all = stage_keeps(config).optimizer == KEEP_ALL;
    return all ? layout_padded(config->layout, unit) : config->layout->unit[unit].shard;
}

enum status stage_join_ends(struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    enum dtype dtype = config->gradient_dtype;
    enum keep keep = stage->keeps.gradients;
    if (config->ends == NULL) return STATUS_OK;
    for (int u = 0; u < config->params->embedding_units; u++) {
        size_t count = reduced_count(u, config), bytes = count * dtype_bytes(dtype);
        struct span kept = stage_unit(stage->gradients, keep, dtype, u, stage);
        size_t begin = kept.bytes > bytes ? (size_t)config->rank * bytes : 0;
        struct span reduced = span_part(kept, begin, bytes);
        profile_begin(config->ring_profile, "join ends of rows #", u);
        TRY(ring_all_reduce(
            reduced, reduced, count, dtype, REDOP_SUM, config->ends, stage->stream));
        stage_ring_end(reduced.bytes, stage);
    }
    return settle(stage);
}

void ends_predict_sent(uint64_t sent[COLLECTIVE_COUNT], const struct stage_config *config)
{
    struct pipeline_place place = stage_place(config);
    bool first = place.stage == 0, last = place.stage == place.stage_count - 1;
    if (first == last) return; /* neither, or the whole model */
    for (int u = 0; u < config->params->embedding_units; u++) {
        const struct ring_call call = {.collective = COLLECTIVE_ALL_REDUCE,
            .dtype = config->gradient_dtype,
            .redop = REDOP_SUM,
            .count = reduced_count(u, config),
            .reduce_dtype = stage_bucket(config).reduce_dtype};
        sent[COLLECTIVE_ALL_REDUCE] += ring_predict_sent_bytes(&call, 2, last, config->ends);
    }
}

/* ---- the norm ---- */

/* Of elements [begin, begin + count) of the unit, all of them owned; as entry `param`. */
static void add_squares(int param, int unit, size_t begin, size_t count, const struct stage *stage)
{
    enum dtype dtype = stage->config.gradient_dtype;
    struct layout_range owned = layout_owned(stage->config.layout, unit, stage->config.rank);
    struct span own = stage_owned(stage->gradients, stage->keeps.gradients, dtype, unit, stage);
    size_t element = dtype_bytes(dtype);
    double *squares = stage->squares.ptr;
    own = span_part(own, (begin - owned.begin) * element, count * element);
    stage->adam.ops->squares(&squares[param], own.ptr, dtype, count, &stage->adam);
}

/* A unit whose tensors all count is summed as one; else each by itself. */
size_t gradients_owned_squares(int unit, const struct stage *stage)
{
    const struct params *params = stage->config.params;
    struct layout_range owned = layout_owned(stage->config.layout, unit, stage->config.rank);
    int first = 0, count = 0, counting = 0;
    if (owned.count == 0) return 0;
    assert(stage->keeps.gradients == KEEP_SHARD || stage->lent.begun[unit]);
    while (params->param[first].unit != unit) first++;
    for (; first + count < params->param_count && params->param[first + count].unit == unit;
         count++)
        counting += params_stands_for(params, &params->param[first + count]);
    if (counting == count) {
        add_squares(first, unit, owned.begin, owned.count, stage);
        return owned.count;
    }
    size_t summed = 0;
    for (int i = first; i < first + count; i++) {
        const struct param *param = &params->param[i];
        size_t begin = param->offset, end = begin + param->rows * param->cols;
        if (begin < owned.begin) begin = owned.begin;
        if (end > owned.begin + owned.count) end = owned.begin + owned.count;
        if (!params_stands_for(params, param) || begin >= end) continue;
        add_squares(i, unit, begin, end - begin, stage);
        summed += end - begin;
    }
    return summed;
}
