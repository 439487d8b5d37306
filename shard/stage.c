/* stage: what all stages share: what is kept, the streams, the norm, and the predictions. */
#include "shard/stage.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct stage_ops *stage_by_number(int number)
{
    static const struct stage_ops *const stages[] = {
        &stage0_ops, &stage1_ops, &stage2_ops, &stage3_ops};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (stages[i]->number == number) return stages[i];
    return NULL;
}

struct stage_keeps stage_keeps(const struct stage_config *config)
{
    struct stage_keeps keeps = config->ops->keeps;
    if (config->unsharded_accumulation) keeps.gradients = KEEP_ALL;
    return keeps;
}

/* The ring's word for it. */
static enum reduce_dtype stage_reduce_dtype(const struct stage_config *config)
{
    bool own = config->reduce_dtype == config->gradient_dtype;
    return own ? REDUCE_DTYPE_OWN : REDUCE_DTYPE_FLOAT32;
}

struct bucket stage_bucket(const struct stage_config *config)
{
    return (struct bucket){
        .layout = config->layout,
        .group = config->group,
        .replicas = config->replicas,
        .rank = config->rank,
        .replica = config->replica,
        .replica_count = config->replica_count,
        .dtype = config->dtype,
        .reduce_dtype = stage_reduce_dtype(config),
        .bytes = config->bucket_bytes,
    };
}

/* ---- places ---- */

struct span stage_unit(
    struct span flat, enum keep keep, enum dtype dtype, int unit, const struct stage *stage)
{
    const struct layout *layout = stage->config.layout;
    size_t begin = layout->unit[unit].begin, count = layout_padded(layout, unit);
    if (keep == KEEP_SHARD) {
        begin /= (size_t)layout->nranks;
        count = layout->unit[unit].shard;
    }
    return span_part(flat, begin * dtype_bytes(dtype), count * dtype_bytes(dtype));
}

struct span stage_owned(
    struct span flat, enum keep keep, enum dtype dtype, int unit, const struct stage *stage)
{
    struct layout_range owned = layout_owned(stage->config.layout, unit, stage->config.rank);
    size_t begin = keep == KEEP_ALL ? owned.begin : 0;
    return span_part(stage_unit(flat, keep, dtype, unit, stage), begin * dtype_bytes(dtype),
        owned.count * dtype_bytes(dtype));
}

struct layout_range stage_kept_range(int unit, const struct stage *stage)
{
    const struct layout *layout = stage->config.layout;
    if (stage->keeps.optimizer == KEEP_SHARD) return layout_owned(layout, unit, stage->config.rank);
    return (struct layout_range){0, layout->unit[unit].elements};
}

struct span stage_kept(
    struct span flat, enum keep keep, enum dtype dtype, int unit, const struct stage *stage)
{
    if (stage->keeps.optimizer == KEEP_SHARD) return stage_owned(flat, keep, dtype, unit, stage);
    return stage_unit(flat, keep, dtype, unit, stage);
}

bool stage_has_master(const struct stage_config *config)
{
    return config->dtype != DTYPE_FLOAT32 || config->offload_optimizer;
}

struct stage_part stage_part(const struct stage *stage, int unit, enum stage_state state)
{
    struct layout_range range = stage_kept_range(unit, stage);
    const struct span flat[STAGE_STATE_COUNT] = {
        [STAGE_WEIGHTS] = stage_has_master(&stage->config) ? stage->master : stage->weights,
        [STAGE_M] = stage->m,
        [STAGE_V] = stage->v};
    bool lent = state == STAGE_WEIGHTS && !stage_has_master(&stage->config);
    enum keep keep = lent ? stage->keeps.weights : stage->keeps.optimizer;
    struct span values = stage_kept(flat[state], keep, DTYPE_FLOAT32, unit, stage);
    return (struct stage_part){values, range.begin, range.count};
}

/* Its elements [begin, begin + count) of the unit. */
static struct span part_range(const struct stage_part *part, size_t begin, size_t count)
{
    assert(begin >= part->begin && begin + count <= part->begin + part->count);
    return span_part(part->values, (begin - part->begin) * sizeof(float), count * sizeof(float));
}

enum status stage_read_part(
    float *to, const struct stage_part *part, size_t begin, size_t count, const struct stage *stage)
{
    return span_copy(span_host(to, count * sizeof *to), part_range(part, begin, count), NULL,
        stage->config.device);
}

enum status stage_write_part(const struct stage_part *part, const float *from, size_t begin,
    size_t count, const struct stage *stage)
{
    return span_copy(part_range(part, begin, count), span_host(from, count * sizeof *from), NULL,
        stage->config.device);
}

/* ---- opening ---- */

static uint64_t kept_bytes(enum keep keep, enum dtype dtype, const struct stage_config *config)
{
    uint64_t elements = config->layout->elements;
    if (keep == KEEP_SHARD) elements /= (uint64_t)config->layout->nranks;
    return elements * dtype_bytes(dtype);
}

static enum memory_tag optimizer_tag(const struct stage_config *config)
{
    return config->offload_optimizer ? MEMORY_OFFLOADED : MEMORY_OPTIMIZER;
}

static enum status open_optimizer(
    struct span *flat, uint64_t bytes, const struct stage_config *config)
{
    enum memory_kind kind =
        config->offload_optimizer ? MEMORY_HOST_PINNED : device_kind(config->device);
    return memory_alloc_kind(flat, bytes, kind, optimizer_tag(config), config->device);
}

static enum status open_kept(struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    const struct stage_keeps *keeps = &stage->keeps;
    uint64_t optimizer = kept_bytes(keeps->optimizer, DTYPE_FLOAT32, config);
    TRY(memory_alloc(&stage->weights, kept_bytes(keeps->weights, config->dtype, config),
        MEMORY_WEIGHTS, config->device));
    TRY(memory_alloc(&stage->gradients,
        kept_bytes(keeps->gradients, config->gradient_dtype, config), MEMORY_GRADIENTS,
        config->device));
    if (stage_has_master(config)) TRY(open_optimizer(&stage->master, optimizer, config));
    TRY(open_optimizer(&stage->m, optimizer, config));
    return open_optimizer(&stage->v, optimizer, config);
}

/* The table, its stream where it has one, and what it needs. */
static enum status open_adam(struct stage *stage)
{
    struct device *device = stage->config.device;
    const struct adam_ops *ops = adam_ops_of(device);
    size_t squares = (size_t)stage->config.params->param_count * sizeof(double);
    if (ops == NULL)
        return FAIL(STATUS_SYSTEM,
            "the module of device %s has no AdamW: build it whole, or train on the host",
            device_name(device));
    struct stream *compute = NULL;
    if (ops->queued) TRY(stream_open(&compute, device, "compute"));
    TRY(computing_open(&stage->computing, compute, device));
    stage->computing.profile = stage->config.profile;
    TRY(memory_alloc(&stage->adam_scratch, ops->scratch_bytes, MEMORY_OPTIMIZER, device));
    stage->adam = (struct adam_context){ops, device, stage->computing.stream, stage->adam_scratch.ptr};
    if (ops->queued)
        return memory_alloc_kind(
            &stage->squares, squares, MEMORY_HOST_PINNED, MEMORY_OPTIMIZER, device);
    stage->squares = span_host(calloc(1, squares), squares);
    return stage->squares.ptr != NULL ? STATUS_OK
                                      : FAIL(STATUS_SYSTEM, "no memory for sums of squares");
}

static void close_adam(struct stage *stage)
{
    struct device *device = stage->config.device;
    if (stage->squares.kind == MEMORY_HOST) free(stage->squares.ptr);
    else memory_free(&stage->squares, MEMORY_OPTIMIZER, device);
    memory_free(&stage->adam_scratch, MEMORY_OPTIMIZER, device);
    computing_close(&stage->computing);
}

#define INIT_ELEMENTS ((size_t)64 << 10)

/* Starting values, by pieces that go through host memory. */
static enum status initialize(struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    float *piece = malloc(INIT_ELEMENTS * sizeof *piece);
    if (piece == NULL) return FAIL(STATUS_SYSTEM, "no memory for a piece of weights");
    enum status status = STATUS_OK;
    for (int u = 0; u < config->layout->unit_count; u++) {
        struct stage_part part = stage_part(stage, u, STAGE_WEIGHTS);
        size_t end = part.begin + part.count;
        for (size_t at = part.begin; at < end && status == STATUS_OK; at += INIT_ELEMENTS) {
            size_t count = end - at < INIT_ELEMENTS ? end - at : INIT_ELEMENTS;
            params_initialize(piece, config->params, u, at, count, config->seed);
            status = stage_write_part(&part, piece, at, count, stage);
        }
    }
    free(piece);
    return status;
}

static enum status open_events(struct stage *stage)
{
    size_t units = (size_t)stage->config.layout->unit_count;
    stage->published = calloc(units, sizeof *stage->published);
    if (stage->published == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for the events of %zu units", units);
    for (size_t u = 0; u < units; u++) TRY(event_open(&stage->published[u], stage->config.device));
    return STATUS_OK;
}

enum status stage_open(struct stage **out, const struct stage_config *config)
{
    *out = NULL;
    struct stage *stage = calloc(1, sizeof *stage);
    if (stage == NULL) return FAIL(STATUS_SYSTEM, "no memory for a stage's record");
    enum status status;
    stage->config = *config;
    stage->keeps = stage_keeps(config);
    assert(ring_comm_nranks(config->group) == config->layout->nranks);
    enum reduce_dtype reduce = stage_reduce_dtype(config);
    ring_comm_set_reduce_dtype(config->group, reduce);
    if (config->replicas != NULL) ring_comm_set_reduce_dtype(config->replicas, reduce);
    if (config->ends != NULL) ring_comm_set_reduce_dtype(config->ends, reduce);
    TRY_GOTO(stream_open(&stage->stream, config->device, "reduce"));
    TRY_GOTO(open_adam(stage));
    TRY_GOTO(open_kept(stage));
    TRY_GOTO(open_events(stage));
    TRY_GOTO(gradients_open(stage));
    TRY_GOTO(gather_open(stage));
    TRY_GOTO(update_open(stage));
    TRY_GOTO(initialize(stage));
    *out = stage;
    return STATUS_OK;
fail:
    stage_close(stage);
    return status;
}

void stage_close(struct stage *stage)
{
    if (stage == NULL) return;
    struct device *device = stage->config.device;
    stream_close(stage->computing.stream, device); /* first: what is queued still looks at the memory */
    stream_close(stage->stream, device);
    close_adam(stage);
    update_close(stage);
    gather_close(stage);
    gradients_close(stage);
    for (int u = 0; stage->published != NULL && u < stage->config.layout->unit_count; u++)
        event_close(stage->published[u], device);
    free(stage->published);
    memory_free(&stage->weights, MEMORY_WEIGHTS, device);
    memory_free(&stage->gradients, MEMORY_GRADIENTS, device);
    enum memory_tag tag = optimizer_tag(&stage->config);
    memory_free(&stage->master, tag, device);
    memory_free(&stage->m, tag, device);
    memory_free(&stage->v, tag, device);
    free(stage);
}

struct model_hooks stage_hooks(struct stage *stage)
{
    return (struct model_hooks){
        .context = stage,
        .enter = stage->config.ops->enter,
        .grad_ready = stage->config.ops->grad_ready,
    };
}

enum status stage_begin_step(struct stage *stage)
{
    return gradients_begin_step(stage);
}

struct pipeline_place stage_place(const struct stage_config *config)
{
    const struct pipeline_place alone = {0, 1, 1};
    return config->place.stage_count > 1 ? config->place : alone;
}

void stage_begin_passes(struct stage *stage, bool backward)
{
    if (stage->keeps.weights == KEEP_SHARD) gather_begin_passes(stage, backward);
}

void stage_begin_backward(struct stage *stage, bool last)
{
    stage->reduce = last || stage->keeps.gradients == KEEP_SHARD;
}

/* ---- the stream ---- */

enum status stage_synchronize(struct stage *stage)
{
    stage->computing.row = "wait for reductions";
    return computing_synchronize(stage->stream, &stage->computing);
}

enum status stage_settle(struct stage *stage)
{
    if (stage->computing.stream != NULL) TRY(stream_synchronize(stage->computing.stream, stage->config.device));
    return stage_synchronize(stage);
}

enum status stage_compute_waits(struct event *event, const char *what, struct stage *stage)
{
    stage->computing.row = what;
    return computing_waits(event, &stage->computing);
}

enum status stage_ring_waits(struct stage *stage)
{
    return computing_goes_first(stage->stream, &stage->computing);
}

void stage_ring_begin(enum stage_work work, int unit, struct stage *stage)
{
    static const char *const names[][4] = {
        [STAGE_GATHER] = {"gather rows #", "gather positions", "gather block #", "gather final norm"},
        [STAGE_REDUCE] = {"reduce rows #", "reduce positions", "reduce block #", "reduce final norm"},
    };
    const struct params *params = stage->config.params;
    int kind = unit < params->embedding_units     ? 0
               : unit == params->positions_unit   ? 1
               : unit == params->final_norm_unit ? 3
                                                  : 2;
    int number = kind == 2 ? unit - params->first_block_unit : unit;
    profile_begin(stage->config.ring_profile, names[work][kind], number);
}

void stage_ring_end(size_t bytes, struct stage *stage)
{
    profile_end(stage->config.ring_profile, 0, (double)bytes);
}

enum status stage_gather(double *all, size_t count, struct ring_comm *comm, struct stage *stage)
{
    size_t bytes = count * sizeof *all; /* the ring carries bits: a double is two int32 */
    struct span recv = span_host(all, bytes * (size_t)ring_comm_nranks(comm));
    struct span send = span_part(recv, bytes * (size_t)ring_comm_rank(comm), bytes);
    profile_begin(stage->config.ring_profile, "gather scalars", 0);
    enum status status =
        ring_all_gather(recv, send, bytes / sizeof(int32_t), DTYPE_INT32, comm, stage->stream);
    stage_ring_end(recv.bytes, stage);
    return status;
}

/* Σ of what ranks of the first shard groups own, in order of places: the other groups own the same. */
static double sum_of_owned(const double *sums, const struct grid *grid)
{
    double total = 0.0;
    for (int p = 0; p < grid->pipeline_count; p++)
        for (int d = 0; d < grid->shard_group; d++)
            for (int t = 0; t < grid->tensor_count; t++) total += sums[grid_rank(grid, p, d, t)];
    return total;
}

enum status stage_norm(double *norm, struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    int nranks = ring_comm_nranks(config->world), rank = ring_comm_rank(config->world);
    TRY(stage_synchronize(stage));
    double *sums = calloc((size_t)nranks, sizeof *sums);
    if (sums == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for the norm's %d partial sums", nranks);
    const double *squares = stage->squares.ptr;
    memset(stage->squares.ptr, 0, stage->squares.bytes);
    profile_begin(config->profile, "norm of gradient", 0);
    size_t counted = 0;
    for (int u = 0; u < config->layout->unit_count; u++) counted += gradients_owned_squares(u, stage);
    profile_end(config->profile, 0, (double)(counted * dtype_bytes(config->gradient_dtype)));
    enum status status = STATUS_OK;
    if (stage->computing.stream != NULL) status = stream_synchronize(stage->computing.stream, config->device);
    for (int i = 0; i < config->params->param_count; i++) sums[rank] += squares[i];
    if (status == STATUS_OK) status = stage_gather(sums, 1, config->world, stage);
    if (status == STATUS_OK) status = stage_synchronize(stage);
    *norm = sqrt(sum_of_owned(sums, config->grid));
    free(sums);
    return status;
}

/* ---- weights that are kept whole ---- */

struct span stage_whole_weights(int unit, const struct stage *stage)
{
    enum dtype dtype = stage->config.dtype;
    return span_part(stage_unit(stage->weights, KEEP_ALL, dtype, unit, stage), 0,
        stage->config.layout->unit[unit].elements * dtype_bytes(dtype));
}

enum status stage_all_gather_weights(int unit, struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    struct bucket bucket = stage_bucket(config);
    struct span whole = stage_unit(stage->weights, KEEP_ALL, config->dtype, unit, stage);
    size_t shard_bytes = config->layout->unit[unit].shard * dtype_bytes(config->dtype);
    struct span own = span_part(whole, (size_t)config->rank * shard_bytes, shard_bytes);
    TRY(stage_ring_waits(stage));
    stage_ring_begin(STAGE_GATHER, unit, stage);
    TRY(bucket_gather(whole, own, unit, false, &bucket, stage->stream));
    stage_ring_end(whole.bytes, stage);
    TRY(event_record(stage->published[unit], stage->stream, config->device));
    return config->overlap ? STATUS_OK : stage_synchronize(stage);
}

enum status stage_await_weights(int unit, struct stage *stage)
{
    return stage_compute_waits(stage->published[unit], "wait for gathers", stage);
}

/* ---- predictions ---- */

void stage_predict_held(uint64_t held[MEMORY_TAG_COUNT], const struct stage_config *config)
{
    struct stage_keeps keeps = stage_keeps(config);
    held[MEMORY_WEIGHTS] = kept_bytes(keeps.weights, config->dtype, config);
    held[MEMORY_GRADIENTS] = kept_bytes(keeps.gradients, config->gradient_dtype, config);
    held[MEMORY_OPTIMIZER] = adam_ops_of(config->device)->scratch_bytes;
    held[MEMORY_OFFLOADED] = held[MEMORY_GATHERED] = 0;
    held[optimizer_tag(config)] +=
        (stage_has_master(config) ? 3 : 2) * kept_bytes(keeps.optimizer, DTYPE_FLOAT32, config);
    temporary_predict(held, config);
}

int stage_gradient_parts(int unit, const struct stage_config *config)
{
    if (config->layout->unit[unit].elements == 0) return 0;
    bool whole = stage_place(config).stage_count == 1; /* the input and the head are both here */
    return unit < config->params->embedding_units && whole ? 2 : 1;
}

void stage_predict(struct stage_prediction *prediction, const struct stage_config *config)
{
    struct stage_keeps keeps = stage_keeps(config);
    struct bucket weights = stage_bucket(config), gradients = weights;
    uint64_t(*sent)[COLLECTIVE_COUNT] = prediction->sent_bytes;
    *prediction = (struct stage_prediction){0};
    stage_predict_held(prediction->held_bytes, config);
    gradients.dtype = config->gradient_dtype;
    for (int u = 0; u < config->layout->unit_count; u++) {
        for (int i = 0; i < stage_gradient_parts(u, config); i++) {
            if (keeps.optimizer == KEEP_ALL)
                bucket_predict_all_reduce(sent[MOMENT_REDUCE], u, &gradients);
            else bucket_predict_reduce_scatter(sent[MOMENT_REDUCE], u, &gradients);
        }
        if (keeps.weights == KEEP_ALL && keeps.optimizer == KEEP_SHARD)
            bucket_predict_gather(sent[MOMENT_UPDATE], u, false, &weights);
    }
    ends_predict_sent(sent[MOMENT_STEP], config);
    gather_predict_sent(sent[MOMENT_FORWARD], false, config);
    gather_predict_sent(sent[MOMENT_TRAIN], true, config);
}
