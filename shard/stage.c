/* stage: what all stages share: the stream, the buffers of the embedding's input part, the norm,
 * and AdamW over tensors. */
#include "shard/stage.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optim/norm.h"
#include "verbs/clock.h"
#include "verbs/clones.h"

const struct stage_ops *stage_by_number(int number)
{
    static const struct stage_ops *const stages[] = {&stage0_ops};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (stages[i]->number == number) return stages[i];
    return NULL;
}

/* ---- opening ---- */

static void initialize_weights(struct stage *stage)
{
    for (int u = 0; u < stage->config.layout->unit_count; u++) {
        struct stage_part part = stage->config.ops->part(stage, u, STAGE_WEIGHTS);
        if (part.count == 0) continue;
        params_initialize(
            part.values, stage->config.params, u, part.begin, part.count, stage->config.seed);
    }
}

static enum status open_input_parts(struct stage *stage)
{
    size_t largest = 0;
    for (int u = 0; u < stage->config.params->embedding_units; u++) {
        size_t padded = layout_padded(stage->config.layout, u);
        largest = padded > largest ? padded : largest;
    }
    int buffers = stage->config.params->embedding_units > 1 ? 2 : 1;
    for (int i = 0; i < buffers; i++) {
        TRY(memory_alloc(&stage->input_part[i], largest * sizeof(float), MEMORY_COMMUNICATION,
            stage->config.device));
        TRY(event_open(&stage->input_free[i], stage->config.device));
    }
    return STATUS_OK;
}

enum status stage_open(struct stage **out, const struct stage_config *config)
{
    *out = NULL;
    struct stage *stage = calloc(1, sizeof *stage);
    if (stage == NULL) return FAIL(STATUS_SYSTEM, "no memory for a stage's record");
    enum status status;
    stage->config = *config;
    stage->rank = ring_comm_rank(config->comm);
    stage->nranks = ring_comm_nranks(config->comm);
    assert(stage->nranks == config->layout->nranks);
    TRY_GOTO(stream_open(&stage->stream, config->device, "reduce"));
    TRY_GOTO(open_input_parts(stage));
    TRY_GOTO(config->ops->open(stage));
    initialize_weights(stage);
    *out = stage;
    return STATUS_OK;
fail:
    stage_close(stage);
    return status;
}

void stage_close(struct stage *stage)
{
    if (stage == NULL) return;
    stream_close(
        stage->stream, stage->config.device); /* first: what is queued still looks at the memory */
    for (int i = 0; i < 2; i++) {
        memory_free(&stage->input_part[i], MEMORY_COMMUNICATION, stage->config.device);
        event_close(stage->input_free[i], stage->config.device);
    }
    stage->config.ops->close(stage);
    free(stage);
}

struct model_hooks stage_hooks(struct stage *stage)
{
    return (struct model_hooks){
        .context = stage,
        .enter = stage->config.ops->enter,
        .leave = stage->config.ops->leave,
        .grad_ready = stage->config.ops->grad_ready,
    };
}

void stage_begin_step(struct stage *stage)
{
    memset(stage->gradients.ptr, 0, stage->gradients.bytes);
}

/* ---- the stream ---- */

enum status stage_synchronize(struct stage *stage)
{
    int64_t begin_ns = clock_ns();
    enum status status = stream_synchronize(stage->stream, stage->config.device);
    stage->wait_ns += (uint64_t)(clock_ns() - begin_ns);
    return status;
}

enum status stage_gather(double *all, size_t count, struct stage *stage)
{
    size_t bytes = count * sizeof *all; /* the ring carries bits: a double is two int32 */
    struct span recv = span_host(all, bytes * (size_t)stage->nranks);
    struct span send = span_part(recv, bytes * (size_t)stage->rank, bytes);
    return ring_all_gather(
        recv, send, bytes / sizeof(int32_t), DTYPE_INT32, stage->config.comm, stage->stream);
}

enum status stage_norm(double *norm, struct stage *stage)
{
    TRY(stage_synchronize(stage));
    double *sums = calloc((size_t)stage->nranks, sizeof *sums);
    if (sums == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for the norm's %d partial sums", stage->nranks);
    const struct layout *layout = stage->config.layout;
    for (int u = 0; u < layout->unit_count; u++) {
        size_t count = layout_owned(layout, u, stage->rank).count;
        if (count > 0)
            sums[stage->rank] +=
                norm_sum_of_squares(stage->config.ops->owned_gradient(stage, u), count);
    }
    enum status status = stage_gather(sums, 1, stage);
    if (status == STATUS_OK) status = stage_synchronize(stage);
    double total = 0.0;
    for (int r = 0; r < stage->nranks; r++) total += sums[r];
    *norm = sqrt(total);
    free(sums);
    return status;
}

/* ---- the input's part of the tied embedding ---- */

bool stage_is_input_part(const struct stage *stage, int unit, enum unit_use use)
{
    return stage->reduce && use == UNIT_BACKWARD_GRAD &&
           unit < stage->config.params->embedding_units;
}

struct span stage_input(int unit, const struct stage *stage)
{
    return span_part(stage->input_part[stage->input_turn], 0,
        layout_padded(stage->config.layout, unit) * sizeof(float));
}

enum status stage_lend_input(struct span *buffer, int unit, struct stage *stage)
{
    assert(!stage->input_lent);
    int64_t begin_ns = clock_ns();
    TRY(event_synchronize(stage->input_free[stage->input_turn], stage->config.device));
    stage->wait_ns += (uint64_t)(clock_ns() - begin_ns);
    *buffer = stage_input(unit, stage);
    memset(buffer->ptr, 0, buffer->bytes);
    stage->input_lent = true;
    return STATUS_OK;
}

struct add_arguments {
    float *to;
    const float *from;
    size_t count;
};

VECTOR_CLONES static void add(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] += from[i];
}

static enum status run_add(void *arguments)
{
    const struct add_arguments *sum = arguments;
    add(sum->to, sum->from, sum->count);
    return STATUS_OK;
}

enum status stage_add_input(float *to, size_t offset, size_t count, struct stage *stage)
{
    assert(stage->input_lent);
    int turn = stage->input_turn;
    struct add_arguments sum = {to, (const float *)stage->input_part[turn].ptr + offset, count};
    TRY(stream_call(stage->stream, run_add, &sum, sizeof sum, stage->config.device));
    TRY(event_record(stage->input_free[turn], stage->stream, stage->config.device));
    stage->input_lent = false;
    if (stage->input_part[1].ptr != NULL) stage->input_turn = 1 - turn;
    return STATUS_OK;
}

/* ---- AdamW ---- */

void stage_adam(float *weights, float *m, float *v, const float *gradients, int unit, size_t begin,
    size_t count, float lr, float gradient_scale, uint64_t t, const struct stage *stage)
{
    const struct params *params = stage->config.params;
    const struct adam_config *adam = &stage->config.adam;
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        size_t first = param->offset, last = param->offset + param->rows * param->cols;
        if (param->unit != unit || first >= begin + count || last <= begin) continue;
        first = first > begin ? first - begin : 0; /* from here on counted from `begin` */
        last = last - begin < count ? last - begin : count;
        adam_step(weights + first, m + first, v + first, gradients + first, last - first, lr,
            gradient_scale, param->decays ? adam->weight_decay : 0.0f, t, adam);
    }
}
