/* update: see update.h. */
#include "shard/update.h"

#include "shard/stage.h"

#define PIECE_ELEMENTS TEMPORARY_PIECE_ELEMENTS

/* ---- tensor by tensor ---- */

/* Elements of what the optimizer keeps of a unit, from `begin` of them on. */
static struct adam_range range_at(size_t begin, size_t count, int unit, const struct stage *stage)
{
    const struct stage_config *config = &stage->config;
    const struct stage_keeps *keeps = &stage->keeps;
    const char *gradients =
        stage_kept(stage->gradients, keeps->gradients, config->gradient_dtype, unit, stage).ptr;
    char *lent = stage_kept(stage->weights, keeps->weights, config->dtype, unit, stage).ptr;
    return (struct adam_range){
        .weights = (float *)stage_part(stage, unit, STAGE_WEIGHTS).values.ptr + begin,
        .m = (float *)stage_part(stage, unit, STAGE_M).values.ptr + begin,
        .v = (float *)stage_part(stage, unit, STAGE_V).values.ptr + begin,
        .gradients = gradients + begin * dtype_bytes(config->gradient_dtype),
        .gradients_dtype = config->gradient_dtype,
        .lent = config->dtype != DTYPE_FLOAT32 ? lent + begin * dtype_bytes(config->dtype) : NULL,
        .lent_dtype = config->dtype,
        .count = count,
    };
}

static struct adam_range range_part(const struct adam_range *range, size_t begin, size_t count)
{
    struct adam_range part = *range;
    part.weights += begin;
    part.m += begin;
    part.v += begin;
    part.gradients = (const char *)range->gradients + begin * dtype_bytes(range->gradients_dtype);
    if (range->lent != NULL)
        part.lent = (char *)range->lent + begin * dtype_bytes(range->lent_dtype);
    part.count = count;
    return part;
}

/* An element's chances go by its place in the whole model: the same whoever keeps it, and wherever. */
static uint64_t chance_index(const struct params_run *run)
{
    return (uint64_t)run->param->unit << 40 | run->whole_begin;
}

static void step_part(const struct adam_range *part, const struct params_run *run,
    const struct stage_step *step, const struct stage_config *config,
    const struct adam_context *context)
{
    const struct adam_update update = {
        .lr = step->lr,
        .gradient_scale = step->gradient_scale,
        .decay = run->param->decays ? config->adam.weight_decay : 0.0f,
        .t = step->t,
        .config = config->adam,
        .stochastic = config->stochastic_rounding,
        .seed = config->seed,
        .first = chance_index(run),
    };
    context->ops->step(part, &update, context);
}

/* Steps a range, which begins at element `begin` of the unit: tensor by tensor, since only matrices
 * decay; by chance run by run, as they are in the whole model. */
static void step_range(const struct adam_range *range, size_t begin, int unit,
    const struct stage_step *step, const struct stage_config *config,
    const struct adam_context *context)
{
    const struct params *params = config->params;
    size_t end = begin + range->count;
    if (config->stochastic_rounding) {
        struct params_walk walk = params_walk(params, unit, begin, end);
        for (struct params_run run; params_next_run(&run, &walk);) {
            struct adam_range part = range_part(range, run.begin - begin, run.count);
            step_part(&part, &run, step, config, context);
        }
        return;
    }
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        size_t first = param->offset, last = param->offset + param->rows * param->cols;
        if (param->unit != unit || first >= end || last <= begin) continue;
        first = first > begin ? first : begin;
        last = last < end ? last : end;
        struct adam_range part = range_part(range, first - begin, last - first);
        step_part(&part, &(struct params_run){.param = param}, step, config, context);
    }
}

/* Makes what is lent of the weights: as the step did that made them, if one did. */
static void narrow_range(const struct adam_range *range, size_t begin, int unit,
    const struct stage *stage, const struct adam_context *context)
{
    const struct stage_config *config = &stage->config;
    if (!config->stochastic_rounding || stage->t == 0) {
        context->ops->narrow(
            range->lent, range->weights, range->lent_dtype, range->count, NULL, context);
        return;
    }
    struct params_walk walk = params_walk(config->params, unit, begin, begin + range->count);
    for (struct params_run run; params_next_run(&run, &walk);) {
        struct adam_range part = range_part(range, run.begin - begin, run.count);
        const struct adam_update update = {
            .t = stage->t, .stochastic = true, .seed = config->seed, .first = chance_index(&run)};
        context->ops->narrow(
            part.lent, part.weights, part.lent_dtype, part.count, &update, context);
    }
}

/* ---- on the device ---- */

/* What AdamW reads and writes of an element: its state in float32, the gradient, what is lent. */
static double step_bytes(size_t count, const struct stage_config *config)
{
    size_t lent = config->dtype != DTYPE_FLOAT32 ? dtype_bytes(config->dtype) : 0;
    size_t element = 6 * sizeof(float) + dtype_bytes(config->gradient_dtype) + lent;
    return (double)count * (double)element;
}

static void update_on_device(int unit, const struct stage_step *step, const struct stage *stage)
{
    struct layout_range kept = stage_kept_range(unit, stage);
    struct adam_range range = range_at(0, kept.count, unit, stage);
    if (step != NULL) {
        profile_begin(stage->config.profile, "adam", 0);
        step_range(&range, kept.begin, unit, step, &stage->config, &stage->adam);
        profile_end(stage->config.profile, 0, step_bytes(kept.count, &stage->config));
    } else if (range.lent != NULL) {
        narrow_range(&range, kept.begin, unit, stage, &stage->adam);
    }
}

/* ---- offloaded ---- */

enum status update_open(struct stage *stage)
{
    TRY(temporary_open(&stage->pieces.gradients, TEMPORARY_PIECE, &stage->config));
    return temporary_open(&stage->pieces.lent, TEMPORARY_ROUNDED, &stage->config);
}

void update_close(struct stage *stage)
{
    temporary_close(&stage->pieces.gradients, stage->config.device);
    temporary_close(&stage->pieces.lent, stage->config.device);
}

/* Copies on the stream that computes; where the caller's thread does, at once. */
static enum status copy(
    struct span to, struct span from, struct event *done, const struct stage *stage)
{
    TRY(span_copy(to, from, stage->computing.stream, stage->config.device));
    if (stage->computing.stream == NULL) return STATUS_OK;
    return event_record(done, stage->computing.stream, stage->config.device);
}

static size_t piece_count(size_t begin, int unit, const struct stage *stage)
{
    size_t rest = stage_kept_range(unit, stage).count - begin;
    return rest < PIECE_ELEMENTS ? rest : PIECE_ELEMENTS;
}

/* Elements from `begin` on of a flat array at what is kept of the unit: one piece. */
static struct span piece_of(struct span flat, enum keep keep, enum dtype dtype, size_t begin,
    int unit, const struct stage *stage)
{
    size_t element = dtype_bytes(dtype);
    return span_part(stage_kept(flat, keep, dtype, unit, stage), begin * element,
        piece_count(begin, unit, stage) * element);
}

static enum status bring_gradients(size_t begin, int unit, int turn, struct stage *stage)
{
    struct span from = piece_of(
        stage->gradients, stage->keeps.gradients, stage->config.gradient_dtype, begin, unit, stage);
    return copy(
        stage->pieces.gradients.buffer[turn], from, stage->pieces.gradients.passed[turn], stage);
}

/* The weights of a piece, where the host has them as they are lent, to the device. */
static enum status carry_weights(size_t begin, int unit, int turn, struct stage *stage)
{
    enum dtype dtype = stage->config.dtype;
    struct span to = piece_of(stage->weights, stage->keeps.weights, dtype, begin, unit, stage);
    struct span from = stage->pieces.lent.buffer[turn];
    if (dtype == DTYPE_FLOAT32)
        from = piece_of(stage->master, stage->keeps.optimizer, dtype, begin, unit, stage);
    return copy(to, span_part(from, 0, to.bytes), stage->pieces.lent.passed[turn], stage);
}

/* Steps one piece, or only rounds its weights. */
static void work_on_piece(
    size_t begin, int unit, int turn, const struct stage_step *step, const struct stage *stage)
{
    const struct adam_context host = {.ops = &adam_ops_host};
    struct adam_range range = range_at(begin, piece_count(begin, unit, stage), unit, stage);
    range.gradients = stage->pieces.gradients.buffer[turn].ptr;
    if (range.lent != NULL) range.lent = stage->pieces.lent.buffer[turn].ptr;
    size_t first = stage_kept_range(unit, stage).begin + begin;
    profile_begin(stage->config.profile, "adam", 0);
    if (step != NULL) step_range(&range, first, unit, step, &stage->config, &host);
    else if (range.lent != NULL) narrow_range(&range, first, unit, stage, &host);
    profile_end(stage->config.profile, 0, step_bytes(range.count, &stage->config));
}

static enum status update_on_host(int unit, const struct stage_step *step, struct stage *stage)
{
    struct update_pieces *pieces = &stage->pieces;
    struct device *device = stage->config.device;
    size_t count = stage_kept_range(unit, stage).count;
    if (step != NULL && count > 0) TRY(bring_gradients(0, unit, 0, stage));
    int turn = 0;
    for (size_t begin = 0; begin < count; begin += PIECE_ELEMENTS, turn = 1 - turn) {
        if (step != NULL && begin + PIECE_ELEMENTS < count)
            TRY(bring_gradients(begin + PIECE_ELEMENTS, unit, 1 - turn, stage));
        profile_begin(stage->config.profile, "wait for pieces", 0);
        TRY(event_synchronize(pieces->gradients.passed[turn], device));
        TRY(event_synchronize(
            pieces->lent.passed[turn], device)); /* of the piece before the last */
        profile_end(stage->config.profile, 0, 0);
        work_on_piece(begin, unit, turn, step, stage);
        TRY(carry_weights(begin, unit, turn, stage));
    }
    return STATUS_OK;
}

/* ---- */

/* step NULL: the weights are what they are, and are only made those that are lent. */
static enum status update(const struct stage_step *step, struct stage *stage)
{
    for (int u = 0; u < stage->config.layout->unit_count; u++) {
        if (stage->config.offload_optimizer) TRY(update_on_host(u, step, stage));
        else update_on_device(u, step, stage);
        TRY(stage->config.ops->publish(stage, u));
    }
    return STATUS_OK;
}

enum status stage_update(struct stage *stage, const struct stage_step *step)
{
    stage->t = step->t;
    return update(step, stage);
}

enum status stage_publish(struct stage *stage, uint64_t t)
{
    stage->t = t;
    TRY(update(NULL, stage));
    return stage_settle(stage);
}
