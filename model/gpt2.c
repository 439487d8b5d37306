/* gpt2: the model as a sequence of uses of units. What a layer computes is in ops.h and block.h.
 *
 * Invariants: the calls of hooks.h come in the same order in every step; a unit's weights and
 * gradients are touched only between enter() and leave(); no two uses overlap. u in brackets is
 * entered and left around what follows it:
 *
 *   forward    [rows 0 … R−1] x₀ = wte    [positions] x₀ += wpe
 *              block 0 … L−1: save x, [block] x′          [norm] n = lnf(x)
 *              [rows 0 … R−1] max, sum, target logit      loss = Σ max + log(sum) − target logit
 *   backward   [rows R−1 … 0] dn, dwte    [norm] dx
 *              block L−1 … 0: load x, [block] (x′ again,) dx
 *              [positions] dwpe           [rows R−1 … 0] dwte      (gradients only: no weights)
 *
 * Per row of B·T:
 *
 *   activations   block inputs L × C | L × a block's | x (C) | n (C) | mean rstd
 *                 | max sum target lse
 *   workspace     dx (C) | narrow, also dn | wide, scores of attention  or  logits of a tile
 *                 and, of the largest unit: weights, gradients as float32 where 16 bits are lent
 *
 * With recomputation there is one set of a block's activations, and block inputs are checkpoints;
 * where hooks carry them away there is one more x, and block inputs take turns in the two.
 */
#include "model/gpt2.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/block.h"
#include "model/ops_host.h"
#include "model/tensor_parallel.h"
#include "model/unit.h"

struct gpt2 {
    const struct params *params;
    struct model_hooks hooks;
    struct gpt2_run run;
    struct device *device;
    struct span activations, checkpoints, workspace;

    /* Of the last forward. */
    const int32_t *tokens, *targets;
    struct block_shape shape;
    float *inputs;       /* (rows, C) of each block; see block_input() */
    float *blocks;       /* activations of the first block */
    size_t block_stride; /* elements from there to the next block's; 0: blocks share them */
    float *x;            /* (rows, C) output of the last block */
    float *norm, *norm_mean, *norm_rstd;
    float *head_max, *head_sum, *head_target; /* (rows) each; sum and target lie together */
    float *head_lse;                          /* (rows) */
    float *d_x;                               /* (rows, C) */
    struct block_workspace work;
    float *logits; /* head_scratch_elements() of the largest block of rows */
    struct unit_room room;
};

/* Hands out 64-byte aligned pieces; `base` NULL only counts. */
static float *take(float *base, size_t *used, size_t elements)
{
    float *piece = base == NULL ? NULL : base + *used;
    *used += (elements + 15) / 16 * 16;
    return piece;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The part of an embedding unit's rows that is held here. weights (rows, C) of the unit, or NULL. */
static struct head_rows rows_of_unit(const struct gpt2 *model, int unit, const float *weights)
{
    const struct param *param =
        &model->params->param[unit]; /* these units come first, of one tensor each */
    assert(param->unit == unit && unit < model->params->embedding_units);
    struct tensor_slice slice = tensor_slice(&model->hooks, param->rows);
    return (struct head_rows){param->first_row + slice.begin, slice.count, weights};
}

static void set_shape(struct gpt2 *model, int batch, int t)
{
    const struct gpt2_config *config = &model->params->config;
    struct block_shape *shape = &model->shape;
    shape->batch = (size_t)batch;
    shape->t = (size_t)t;
    shape->rows = shape->batch * shape->t;
    shape->channels = (size_t)config->channels;
    shape->heads = tensor_slice(&model->hooks, (size_t)config->heads).count;
    shape->head_cols = shape->channels / (size_t)config->heads;
    shape->width = shape->heads * shape->head_cols;
    shape->hidden = tensor_slice(&model->hooks, 4 * shape->channels).count;
}

/* Elements of the largest unit, as it is held here. */
static size_t largest_unit(const struct gpt2 *model)
{
    const struct params *params = model->params;
    size_t largest =
        larger(block_tensor_elements(&model->shape), params->unit_elements[params->positions_unit]);
    for (int u = 0; u < params->embedding_units; u++)
        largest = larger(largest, rows_of_unit(model, u, NULL).count * model->shape.channels);
    return larger(largest, params->unit_elements[params->final_norm_unit]);
}

/* Hooks carry the inputs of blocks away, so that they need not stay here. */
static bool inputs_are_carried(const struct gpt2 *model)
{
    return model->run.recompute && model->hooks.act_save != NULL;
}

static size_t place_activations(struct gpt2 *model)
{
    size_t rows = model->shape.rows, channels = model->shape.channels, used = 0;
    size_t layers = (size_t)model->params->config.layers,
           block = block_activation_elements(&model->shape);
    float *base = model->activations.ptr;
    bool recompute = model->run.recompute;
    model->inputs = model->checkpoints.ptr;
    if (inputs_are_carried(model)) model->inputs = take(base, &used, rows * channels);
    if (!recompute) model->inputs = take(base, &used, layers * rows * channels);
    model->block_stride = recompute ? 0 : block;
    model->blocks = take(base, &used, recompute ? block : layers * block);
    model->x = take(base, &used, rows * channels);
    model->norm = take(base, &used, rows * channels);
    model->norm_mean = take(base, &used, rows);
    model->norm_rstd = take(base, &used, rows);
    model->head_max = take(base, &used, rows);
    model->head_sum = take(base, &used, 2 * rows);
    model->head_target = base == NULL ? NULL : model->head_sum + rows;
    model->head_lse = take(base, &used, rows);
    return used;
}

static size_t place_workspace(struct gpt2 *model)
{
    const struct block_shape *shape = &model->shape;
    size_t rows = shape->rows, channels = shape->channels, used = 0, unit = largest_unit(model);
    float *base = model->workspace.ptr;
    const struct gpt2_run *run = &model->run;
    model->room = (struct unit_room){&model->hooks, run->weights, run->gradients, NULL, NULL};
    if (run->weights != DTYPE_FLOAT32) model->room.weights = take(base, &used, unit);
    if (run->gradients != DTYPE_FLOAT32) model->room.gradients = take(base, &used, unit);
    model->d_x = take(base, &used, rows * channels);
    model->work.narrow = take(base, &used, rows * larger(channels, shape->width));
    size_t head_used =
        used; /* the head's logits lie where blocks have theirs, which is later in backward */
    model->work.wide = take(base, &used, rows * larger(shape->hidden, 3 * shape->width));
    model->work.scores = take(base, &used, attention_scratch_elements(shape->t));
    size_t logits = 0;
    for (int u = 0; u < model->params->embedding_units; u++)
        logits = larger(logits, head_scratch_elements(rows_of_unit(model, u, NULL).count, rows));
    model->logits = take(base, &head_used, logits);
    return larger(used, head_used);
}

/* Places everything for (batch, t) and tells how much there is of each kind. Before the memory is
 * there, only tells. */
static struct gpt2_memory place(struct gpt2 *model, int batch, int t)
{
    set_shape(model, batch, t);
    size_t checkpoints = 0;
    if (model->run.recompute && !inputs_are_carried(model))
        checkpoints =
            (size_t)model->params->config.layers * model->shape.rows * model->shape.channels;
    return (struct gpt2_memory){
        .activations = place_activations(model) * sizeof(float),
        .checkpoints = checkpoints * sizeof(float),
        .workspace = place_workspace(model) * sizeof(float),
    };
}

struct gpt2_memory gpt2_memory(const struct params *params, const struct gpt2_run *run)
{
    struct gpt2 model = {.params = params, .run = *run};
    return place(&model, run->batch, run->t);
}

static bool is_held(enum dtype dtype)
{
    return dtype == DTYPE_FLOAT32 || dtype == DTYPE_BFLOAT16 || dtype == DTYPE_FLOAT16;
}

static enum status check_run(
    const struct gpt2_run *run, const struct params *params, const struct model_hooks *hooks)
{
    if (run->batch < 1 || run->t < 1)
        return FAIL(STATUS_INVALID, "model: batch %d of %d tokens; expected at least 1 of 1",
            run->batch, run->t);
    if (run->t > params->config.max_t)
        return FAIL(STATUS_INVALID,
            "model: sequences of %d tokens; this model has positions for %d: use shorter ones",
            run->t, params->config.max_t);
    if (!is_held(run->weights) || !is_held(run->gradients))
        return FAIL(STATUS_INVALID,
            "model: weights of %s, gradients of %s; expected float32, bfloat16 or float16",
            dtype_name(run->weights), dtype_name(run->gradients));
    if (hooks->enter == NULL)
        return FAIL(STATUS_INVALID, "model: hooks lack enter(), which is required");
    if ((hooks->act_save == NULL) != (hooks->act_load == NULL))
        return FAIL(STATUS_INVALID,
            "model: hooks have one of act_save() and act_load(); expected both or neither");
    return STATUS_OK;
}

enum status gpt2_open(struct gpt2 **model, const struct params *params,
    const struct model_hooks *hooks, const struct gpt2_run *run, struct device *device)
{
    *model = NULL;
    TRY(check_run(run, params, hooks));
    struct gpt2 *made = calloc(1, sizeof *made);
    if (made == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a model's record of %zu bytes", sizeof *made);
    made->params = params;
    made->hooks = *hooks;
    made->run = *run;
    made->device = device;

    enum status status;
    struct gpt2_memory memory = place(made, run->batch, run->t);
    TRY_GOTO(memory_alloc(&made->activations, memory.activations, MEMORY_ACTIVATIONS, device));
    TRY_GOTO(memory_alloc(&made->checkpoints, memory.checkpoints, MEMORY_CHECKPOINTS, device));
    TRY_GOTO(memory_alloc(&made->workspace, memory.workspace, MEMORY_WORKSPACE, device));
    *model = made;
    return STATUS_OK;
fail:
    gpt2_close(made);
    return status;
}

void gpt2_close(struct gpt2 *model)
{
    if (model == NULL) return;
    memory_free(&model->activations, MEMORY_ACTIVATIONS, model->device);
    memory_free(&model->checkpoints, MEMORY_CHECKPOINTS, model->device);
    memory_free(&model->workspace, MEMORY_WORKSPACE, model->device);
    free(model);
}

static enum status check_ids(
    const char *what, const int32_t *ids, int batch, int t, int vocab, bool may_be_ignored)
{
    for (size_t i = 0; i < (size_t)batch * (size_t)t; i++) {
        if (ids[i] >= 0 && ids[i] < vocab) continue;
        if (may_be_ignored && ids[i] == GPT2_IGNORED_TARGET) continue;
        return FAIL(STATUS_DATA,
            "%s at sequence %zu position %zu is %d; expected 0 to %d%s: check that the data's "
            "tokenizer is the model's",
            what, i / (size_t)t, i % (size_t)t, ids[i], vocab - 1, may_be_ignored ? ", or -1" : "");
    }
    return STATUS_OK;
}

/* The input of a block; of the final norm where layer = L. Carried inputs take turns in two
 * buffers, of which x is the one that the last block writes. */
static float *block_input(const struct gpt2 *model, int layer)
{
    int layers = model->params->config.layers;
    if (layer == layers) return model->x;
    if (inputs_are_carried(model)) return (layers - layer) % 2 == 0 ? model->x : model->inputs;
    return model->inputs + (size_t)layer * model->shape.rows * model->shape.channels;
}

static struct block_activations activations_of(const struct gpt2 *model, int layer)
{
    return block_activations_at(model->blocks + (size_t)layer * model->block_stride,
        block_input(model, layer), &model->shape);
}

static enum status embed(struct gpt2 *model)
{
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    float *x = block_input(model, 0);
    struct unit unit;
    if (model->hooks.local_slice != NULL)
        memset(x, 0, shape->rows * channels * sizeof *x); /* others hold some */
    for (int u = 0; u < model->params->embedding_units; u++) {
        size_t count = rows_of_unit(model, u, NULL).count;
        TRY(unit_enter(&unit, u, UNIT_FORWARD, count * channels, &model->room));
        struct head_rows rows = rows_of_unit(model, u, unit.weights);
        embedding_forward(
            x, model->tokens, rows.weight, rows.first_row, rows.count, shape->rows, channels);
        TRY(unit_leave(&unit, &model->room));
    }
    if (model->hooks.local_slice != NULL) TRY(tensor_sum(&model->hooks, x, shape->rows * channels));
    int positions = model->params->positions_unit;
    TRY(unit_enter(
        &unit, positions, UNIT_FORWARD, model->params->unit_elements[positions], &model->room));
    positions_forward(x, unit.weights, shape->batch, shape->t, channels);
    return unit_leave(&unit, &model->room);
}

static enum status blocks_forward(struct gpt2 *model)
{
    const struct model_hooks *hooks = &model->hooks;
    size_t x_elements = model->shape.rows * model->shape.channels;
    for (int layer = 0; layer < model->params->config.layers; layer++) {
        struct block_activations acts = activations_of(model, layer);
        struct unit unit;
        int number = model->params->first_block_unit + layer;
        if (hooks->act_save != NULL)
            TRY(hooks->act_save(
                hooks->context, layer, span_host(acts.x, x_elements * sizeof(float))));
        TRY(unit_enter(
            &unit, number, UNIT_FORWARD, block_tensor_elements(&model->shape), &model->room));
        struct block_tensors tensors = block_tensors_at(unit.weights, &model->shape);
        TRY(block_forward(
            block_input(model, layer + 1), &acts, &tensors, &model->work, &model->shape, hooks));
        TRY(unit_leave(&unit, &model->room));
    }
    return STATUS_OK;
}

static enum status final_norm_forward(struct gpt2 *model)
{
    size_t channels = model->shape.channels;
    struct unit unit;
    TRY(unit_enter(
        &unit, model->params->final_norm_unit, UNIT_FORWARD, 2 * channels, &model->room));
    layernorm_forward(model->norm, model->norm_mean, model->norm_rstd, model->x, unit.weights,
        unit.weights + channels, model->shape.rows, channels);
    return unit_leave(&unit, &model->room);
}

/* Brings the statistics of the rows held by several ranks together: the largest maximum, and sums
 * with respect to it. */
static enum status join_head_statistics(struct gpt2 *model)
{
    size_t rows = model->shape.rows;
    if (model->hooks.max != NULL) {
        float *own_max = model->head_lse; /* free until the loss is known */
        memcpy(own_max, model->head_max, rows * sizeof *own_max);
        TRY(tensor_max(&model->hooks, model->head_max, rows));
        for (size_t r = 0; r < rows; r++)
            if (model->head_sum[r] > 0.0f)
                model->head_sum[r] *= expf(own_max[r] - model->head_max[r]);
    }
    return tensor_sum(&model->hooks, model->head_sum, 2 * rows);
}

static enum status loss_forward(struct gpt2 *model, double *loss, size_t *valid)
{
    size_t rows = model->shape.rows, channels = model->shape.channels;
    struct unit unit;
    head_begin(model->head_max, model->head_sum, model->head_target, rows);
    for (int u = 0; u < model->params->embedding_units; u++) {
        size_t count = rows_of_unit(model, u, NULL).count;
        TRY(unit_enter(&unit, u, UNIT_FORWARD, count * channels, &model->room));
        head_forward(model->head_max, model->head_sum, model->head_target, model->logits,
            model->norm, model->targets, rows_of_unit(model, u, unit.weights), rows, channels);
        TRY(unit_leave(&unit, &model->room));
    }
    TRY(join_head_statistics(model));
    *loss = 0.0;
    *valid = 0;
    for (size_t r = 0; r < rows; r++) {
        if (model->targets[r] == GPT2_IGNORED_TARGET) continue;
        model->head_lse[r] = model->head_max[r] + logf(model->head_sum[r]);
        *loss += (double)model->head_lse[r] - (double)model->head_target[r];
        *valid += 1;
    }
    return STATUS_OK;
}

enum status gpt2_forward(double *loss, size_t *valid, const int32_t *tokens, const int32_t *targets,
    int batch, int t, struct gpt2 *model)
{
    assert(batch >= 1 && batch <= model->run.batch && t >= 1 && t <= model->run.t);
    int vocab = model->params->config.vocab;
    TRY(check_ids("token", tokens, batch, t, vocab, false));
    if (targets != NULL) TRY(check_ids("target", targets, batch, t, vocab, true));
    struct gpt2_memory needed = place(model, batch, t);
    assert(needed.activations <= model->activations.bytes);
    assert(needed.checkpoints <= model->checkpoints.bytes);
    assert(needed.workspace <= model->workspace.bytes);
    (void)needed;
    model->tokens = tokens;
    model->targets = targets;
    TRY(embed(model));
    TRY(blocks_forward(model));
    TRY(final_norm_forward(model));
    if (targets != NULL) TRY(loss_forward(model, loss, valid));
    return STATUS_OK;
}

/* dn into work.narrow. */
static enum status loss_backward(struct gpt2 *model, float scale)
{
    size_t rows = model->shape.rows, channels = model->shape.channels;
    float *d_norm = model->work.narrow;
    struct unit unit;
    memset(d_norm, 0, rows * channels * sizeof *d_norm);
    for (int u = model->params->embedding_units; u-- > 0;) {
        size_t count = rows_of_unit(model, u, NULL).count;
        TRY(unit_enter(&unit, u, UNIT_BACKWARD, count * channels, &model->room));
        head_backward(d_norm, unit.gradients, model->logits, model->norm, model->head_lse,
            model->targets, scale, rows_of_unit(model, u, unit.weights), rows, channels);
        TRY(unit_leave(&unit, &model->room));
    }
    return tensor_sum(&model->hooks, d_norm, rows * channels);
}

static enum status final_norm_backward(struct gpt2 *model)
{
    size_t rows = model->shape.rows, channels = model->shape.channels;
    struct unit unit;
    TRY(unit_enter(
        &unit, model->params->final_norm_unit, UNIT_BACKWARD, 2 * channels, &model->room));
    memset(model->d_x, 0, rows * channels * sizeof *model->d_x);
    layernorm_backward(model->d_x, unit.gradients, unit.gradients + channels, model->work.narrow,
        model->x, model->norm_mean, model->norm_rstd, unit.weights, rows, channels);
    return unit_leave(&unit, &model->room);
}

static enum status blocks_backward(struct gpt2 *model)
{
    const struct model_hooks *hooks = &model->hooks;
    size_t x_elements = model->shape.rows * model->shape.channels;
    for (int layer = model->params->config.layers; layer-- > 0;) {
        struct block_activations acts = activations_of(model, layer);
        struct unit unit;
        int number = model->params->first_block_unit + layer;
        if (hooks->act_load != NULL)
            TRY(hooks->act_load(
                hooks->context, layer, span_host(acts.x, x_elements * sizeof(float))));
        TRY(unit_enter(
            &unit, number, UNIT_BACKWARD, block_tensor_elements(&model->shape), &model->room));
        struct block_tensors tensors = block_tensors_at(unit.weights, &model->shape);
        struct block_tensors d_tensors = block_tensors_at(unit.gradients, &model->shape);
        if (model->run.recompute)
            TRY(block_recompute(&acts, &tensors, &model->work, &model->shape, hooks));
        TRY(block_backward(
            model->d_x, &d_tensors, &acts, &tensors, &model->work, &model->shape, hooks));
        TRY(unit_leave(&unit, &model->room));
    }
    return STATUS_OK;
}

static enum status embed_backward(struct gpt2 *model)
{
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    int positions = model->params->positions_unit;
    struct unit unit;
    TRY(unit_enter(&unit, positions, UNIT_BACKWARD_GRAD, model->params->unit_elements[positions],
        &model->room));
    positions_backward(unit.gradients, model->d_x, shape->batch, shape->t, channels);
    TRY(unit_leave(&unit, &model->room));
    for (int u = model->params->embedding_units; u-- > 0;) {
        struct head_rows rows = rows_of_unit(model, u, NULL);
        TRY(unit_enter(&unit, u, UNIT_BACKWARD_GRAD, rows.count * channels, &model->room));
        embedding_backward(unit.gradients, model->tokens, model->d_x, rows.first_row, rows.count,
            shape->rows, channels);
        TRY(unit_leave(&unit, &model->room));
    }
    return STATUS_OK;
}

enum status gpt2_backward(float scale, struct gpt2 *model)
{
    assert(model->targets != NULL); /* a forward with targets came before */
    TRY(loss_backward(model, scale));
    TRY(final_norm_backward(model));
    TRY(blocks_backward(model));
    return embed_backward(model);
}

enum status gpt2_logits(float *logits, int b, int t, struct gpt2 *model)
{
    const struct block_shape *shape = &model->shape;
    assert(model->tokens != NULL && b >= 0 && (size_t)b < shape->batch && t >= 0 &&
           (size_t)t < shape->t);
    const float *row = model->norm + ((size_t)b * shape->t + (size_t)t) * shape->channels;
    size_t vocab = (size_t)model->params->config.vocab;
    if (model->hooks.local_slice != NULL) memset(logits, 0, vocab * sizeof *logits);
    for (int u = 0; u < model->params->embedding_units; u++) {
        struct head_rows rows = rows_of_unit(model, u, NULL);
        struct unit unit;
        TRY(unit_enter(&unit, u, UNIT_FORWARD, rows.count * shape->channels, &model->room));
        linear_forward(
            logits + rows.first_row, row, unit.weights, NULL, 1, shape->channels, rows.count);
        TRY(unit_leave(&unit, &model->room));
    }
    if (model->hooks.local_slice != NULL) TRY(tensor_sum(&model->hooks, logits, vocab));
    return STATUS_OK;
}

double gpt2_flops_per_token(const struct params *params, int t)
{
    const struct gpt2_config *config = &params->config;
    return 6.0 * (double)params->elements + 12.0 * config->layers * config->channels * (double)t;
}
