/* gpt2: the model as a sequence of uses of units. What a layer computes is in ops.h and block.h.
 *
 * Invariants: the calls of hooks.h come in the same order in every step; a unit's weights and gradients are
 * touched only between enter() and leave(); no two uses overlap. u in brackets is entered and left around what
 * follows it:
 *
 *   forward    [rows 0 … R−1] x₀ = wte    [positions] x₀ += wpe    block 0 … L−1: save x, [block] x′
 *              [norm] n = lnf(x)
 *              [rows 0 … R−1] max, sum, target logit       loss = Σ max + log(sum) − target logit
 *   backward   [rows R−1 … 0] dn, dwte    [norm] dx        block L−1 … 0: load x, [block] dx
 *              [positions] dwpe           [rows R−1 … 0] dwte      (gradients only: no weights)
 *
 * Per row of B·T, activations: L × block's | x (C) | n (C) | mean rstd | max sum target lse
 * and workspace: dx (C) | narrow, also dn | wide, scores of attention  or  logits of a tile
 */
#include "model/gpt2.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/block.h"
#include "model/ops.h"
#include "model/tensor_parallel.h"

struct gpt2 {
    const struct params *params;
    struct model_hooks hooks;
    struct device *device;
    int batch_most, t_most;
    struct span activations, workspace;

    /* Of the last forward. */
    const int32_t *tokens, *targets;
    struct block_shape shape;
    size_t block_stride; /* elements from one block's activations to the next */
    float *x;            /* (rows, C) output of the last block */
    float *norm, *norm_mean, *norm_rstd;
    float *head_max, *head_sum, *head_target; /* (rows) each; sum and target lie together */
    float *head_lse;                          /* (rows) */
    float *d_x;                               /* (rows, C) */
    struct block_workspace work;
    float *logits; /* head_scratch_elements() of the largest block of rows */
};

/* Hands out 64-byte aligned pieces; `base` NULL only counts. */
static float *take(float *base, size_t *used, size_t elements)
{
    float *piece = base == NULL ? NULL : base + *used;
    *used += (elements + 15) / 16 * 16;
    return piece;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* The part of an embedding unit's rows that is held here. weights (rows, C) of the unit, or NULL. */
static struct head_rows rows_of_unit(const struct gpt2 *model, int unit, const float *weights)
{
    const struct param *param = &model->params->param[unit]; /* these units come first, of one tensor each */
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

/* Places everything for (batch, t) and tells how much there is of both kinds. Before the memory is there, only
 * tells. */
static void place(struct gpt2 *model, int batch, int t, size_t *activation_elements, size_t *workspace_elements)
{
    set_shape(model, batch, t);
    const struct block_shape *shape = &model->shape;
    size_t rows = shape->rows, channels = shape->channels, used = 0;
    float *base = model->activations.ptr;
    model->block_stride = block_activation_elements(shape);
    take(base, &used, model->block_stride * (size_t)model->params->config.layers);
    model->x = take(base, &used, rows * channels);
    model->norm = take(base, &used, rows * channels);
    model->norm_mean = take(base, &used, rows);
    model->norm_rstd = take(base, &used, rows);
    model->head_max = take(base, &used, rows);
    model->head_sum = take(base, &used, 2 * rows);
    model->head_target = base == NULL ? NULL : model->head_sum + rows;
    model->head_lse = take(base, &used, rows);
    *activation_elements = used;

    base = model->workspace.ptr;
    used = 0;
    model->d_x = take(base, &used, rows * channels);
    model->work.narrow = take(base, &used, rows * larger(channels, shape->width));
    size_t head_used = used; /* the head's logits lie where blocks have theirs, which is later in backward */
    model->work.wide = take(base, &used, rows * larger(shape->hidden, 3 * shape->width));
    model->work.scores = take(base, &used, attention_scratch_elements(shape->t));
    size_t logits = 0;
    for (int u = 0; u < model->params->embedding_units; u++)
        logits = larger(logits, head_scratch_elements(rows_of_unit(model, u, NULL).count, rows));
    model->logits = take(base, &head_used, logits);
    *workspace_elements = larger(used, head_used);
}

enum status gpt2_open(struct gpt2 **model, const struct params *params, const struct model_hooks *hooks,
    int batch, int t, struct device *device)
{
    *model = NULL;
    if (batch < 1 || t < 1)
        return FAIL(STATUS_INVALID, "model: batch %d of %d tokens; expected at least 1 of 1", batch, t);
    if (t > params->config.max_t)
        return FAIL(STATUS_INVALID, "model: sequences of %d tokens; this model has positions for %d: use shorter ones",
            t, params->config.max_t);
    if (hooks->enter == NULL) return FAIL(STATUS_INVALID, "model: hooks lack enter(), which is required");
    struct gpt2 *made = calloc(1, sizeof *made);
    if (made == NULL) return FAIL(STATUS_SYSTEM, "no memory for a model's record of %zu bytes", sizeof *made);
    made->params = params;
    made->hooks = *hooks;
    made->device = device;
    made->batch_most = batch;
    made->t_most = t;

    enum status status;
    size_t activation_elements, workspace_elements;
    place(made, batch, t, &activation_elements, &workspace_elements);
    TRY_GOTO(memory_alloc(&made->activations, activation_elements * sizeof(float), MEMORY_ACTIVATIONS, device));
    TRY_GOTO(memory_alloc(&made->workspace, workspace_elements * sizeof(float), MEMORY_WORKSPACE, device));
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
    memory_free(&model->workspace, MEMORY_WORKSPACE, model->device);
    free(model);
}

/* Borrows a unit. `elements` is what the model takes its size to be: a bug on either side of the hand-over if
 * it is not. */
static enum status unit_enter(
    struct gpt2 *model, float **weights, float **gradients, int unit, enum unit_use use, size_t elements)
{
    struct unit_view view = {0};
    *weights = *gradients = NULL;
    TRY(model->hooks.enter(model->hooks.context, &view, unit, use));
    assert(use == UNIT_BACKWARD_GRAD || (view.weights.ptr != NULL && view.weights.bytes == elements * sizeof(float)));
    assert(use == UNIT_FORWARD || (view.gradients.ptr != NULL && view.gradients.bytes == elements * sizeof(float)));
    (void)elements;
    *weights = view.weights.ptr;
    *gradients = view.gradients.ptr;
    return STATUS_OK;
}

static enum status unit_leave(struct gpt2 *model, int unit, enum unit_use use)
{
    if (use != UNIT_FORWARD && model->hooks.grad_ready != NULL)
        TRY(model->hooks.grad_ready(model->hooks.context, unit));
    if (model->hooks.leave != NULL) TRY(model->hooks.leave(model->hooks.context, unit, use));
    return STATUS_OK;
}

static enum status check_ids(const char *what, const int32_t *ids, int batch, int t, int vocab, bool may_be_ignored)
{
    for (size_t i = 0; i < (size_t)batch * (size_t)t; i++) {
        if (ids[i] >= 0 && ids[i] < vocab) continue;
        if (may_be_ignored && ids[i] == GPT2_IGNORED_TARGET) continue;
        return FAIL(STATUS_DATA, "%s at sequence %zu position %zu is %d; expected 0 to %d%s: check that the data's "
            "tokenizer is the model's", what, i / (size_t)t, i % (size_t)t, ids[i], vocab - 1,
            may_be_ignored ? ", or -1" : "");
    }
    return STATUS_OK;
}

static struct block_activations activations_of(const struct gpt2 *model, int layer)
{
    float *base = model->activations.ptr;
    return block_activations_at(base + (size_t)layer * model->block_stride, &model->shape);
}

static enum status embed(struct gpt2 *model)
{
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    float *x = activations_of(model, 0).x, *weights, *gradients;
    if (model->hooks.local_slice != NULL) memset(x, 0, shape->rows * channels * sizeof *x); /* others hold some */
    for (int u = 0; u < model->params->embedding_units; u++) {
        size_t count = rows_of_unit(model, u, NULL).count;
        TRY(unit_enter(model, &weights, &gradients, u, UNIT_FORWARD, count * channels));
        struct head_rows rows = rows_of_unit(model, u, weights);
        embedding_forward(x, model->tokens, rows.weight, rows.first_row, rows.count, shape->rows, channels);
        TRY(unit_leave(model, u, UNIT_FORWARD));
    }
    if (model->hooks.local_slice != NULL) TRY(tensor_sum(&model->hooks, x, shape->rows * channels));
    int unit = model->params->positions_unit;
    TRY(unit_enter(model, &weights, &gradients, unit, UNIT_FORWARD, model->params->unit_elements[unit]));
    positions_forward(x, weights, shape->batch, shape->t, channels);
    return unit_leave(model, unit, UNIT_FORWARD);
}

static enum status blocks_forward(struct gpt2 *model)
{
    const struct model_hooks *hooks = &model->hooks;
    int layers = model->params->config.layers;
    size_t x_elements = model->shape.rows * model->shape.channels;
    for (int layer = 0; layer < layers; layer++) {
        struct block_activations acts = activations_of(model, layer);
        float *out = layer + 1 < layers ? activations_of(model, layer + 1).x : model->x, *weights, *gradients;
        int unit = model->params->first_block_unit + layer;
        if (hooks->act_save != NULL)
            TRY(hooks->act_save(hooks->context, layer, span_host(acts.x, x_elements * sizeof(float))));
        TRY(unit_enter(model, &weights, &gradients, unit, UNIT_FORWARD, block_tensor_elements(&model->shape)));
        struct block_tensors tensors = block_tensors_at(weights, &model->shape);
        TRY(block_forward(out, &acts, &tensors, &model->work, &model->shape, hooks));
        TRY(unit_leave(model, unit, UNIT_FORWARD));
    }
    return STATUS_OK;
}

static enum status final_norm_forward(struct gpt2 *model)
{
    size_t channels = model->shape.channels;
    int unit = model->params->final_norm_unit;
    float *weights, *gradients;
    TRY(unit_enter(model, &weights, &gradients, unit, UNIT_FORWARD, 2 * channels));
    layernorm_forward(model->norm, model->norm_mean, model->norm_rstd, model->x, weights, weights + channels,
        model->shape.rows, channels);
    return unit_leave(model, unit, UNIT_FORWARD);
}

/* Brings the statistics of the rows held by several ranks together: the largest maximum, and sums with respect
 * to it. */
static enum status join_head_statistics(struct gpt2 *model)
{
    size_t rows = model->shape.rows;
    if (model->hooks.max != NULL) {
        float *own_max = model->head_lse; /* free until the loss is known */
        memcpy(own_max, model->head_max, rows * sizeof *own_max);
        TRY(tensor_max(&model->hooks, model->head_max, rows));
        for (size_t r = 0; r < rows; r++)
            if (model->head_sum[r] > 0.0f) model->head_sum[r] *= expf(own_max[r] - model->head_max[r]);
    }
    return tensor_sum(&model->hooks, model->head_sum, 2 * rows);
}

static enum status loss_forward(struct gpt2 *model, double *loss, size_t *valid)
{
    size_t rows = model->shape.rows, channels = model->shape.channels;
    float *weights, *gradients;
    head_begin(model->head_max, model->head_sum, model->head_target, rows);
    for (int u = 0; u < model->params->embedding_units; u++) {
        size_t count = rows_of_unit(model, u, NULL).count;
        TRY(unit_enter(model, &weights, &gradients, u, UNIT_FORWARD, count * channels));
        head_forward(model->head_max, model->head_sum, model->head_target, model->logits, model->norm, model->targets,
            rows_of_unit(model, u, weights), rows, channels);
        TRY(unit_leave(model, u, UNIT_FORWARD));
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

enum status gpt2_forward(double *loss, size_t *valid, const int32_t *tokens, const int32_t *targets, int batch, int t,
    struct gpt2 *model)
{
    assert(batch >= 1 && batch <= model->batch_most && t >= 1 && t <= model->t_most);
    int vocab = model->params->config.vocab;
    TRY(check_ids("token", tokens, batch, t, vocab, false));
    if (targets != NULL) TRY(check_ids("target", targets, batch, t, vocab, true));
    size_t activation_elements, workspace_elements;
    place(model, batch, t, &activation_elements, &workspace_elements);
    assert(activation_elements * sizeof(float) <= model->activations.bytes);
    assert(workspace_elements * sizeof(float) <= model->workspace.bytes);
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
    float *d_norm = model->work.narrow, *weights, *gradients;
    memset(d_norm, 0, rows * channels * sizeof *d_norm);
    for (int u = model->params->embedding_units; u-- > 0;) {
        size_t count = rows_of_unit(model, u, NULL).count;
        TRY(unit_enter(model, &weights, &gradients, u, UNIT_BACKWARD, count * channels));
        head_backward(d_norm, gradients, model->logits, model->norm, model->head_lse, model->targets, scale,
            rows_of_unit(model, u, weights), rows, channels);
        TRY(unit_leave(model, u, UNIT_BACKWARD));
    }
    return tensor_sum(&model->hooks, d_norm, rows * channels);
}

static enum status final_norm_backward(struct gpt2 *model)
{
    size_t rows = model->shape.rows, channels = model->shape.channels;
    int unit = model->params->final_norm_unit;
    float *weights, *gradients;
    TRY(unit_enter(model, &weights, &gradients, unit, UNIT_BACKWARD, 2 * channels));
    memset(model->d_x, 0, rows * channels * sizeof *model->d_x);
    layernorm_backward(model->d_x, gradients, gradients + channels, model->work.narrow, model->x, model->norm_mean,
        model->norm_rstd, weights, rows, channels);
    return unit_leave(model, unit, UNIT_BACKWARD);
}

static enum status blocks_backward(struct gpt2 *model)
{
    const struct model_hooks *hooks = &model->hooks;
    size_t x_elements = model->shape.rows * model->shape.channels;
    for (int layer = model->params->config.layers; layer-- > 0;) {
        struct block_activations acts = activations_of(model, layer);
        int unit = model->params->first_block_unit + layer;
        float *weights, *gradients;
        if (hooks->act_load != NULL)
            TRY(hooks->act_load(hooks->context, layer, span_host(acts.x, x_elements * sizeof(float))));
        TRY(unit_enter(model, &weights, &gradients, unit, UNIT_BACKWARD, block_tensor_elements(&model->shape)));
        struct block_tensors tensors = block_tensors_at(weights, &model->shape);
        struct block_tensors d_tensors = block_tensors_at(gradients, &model->shape);
        TRY(block_backward(model->d_x, &d_tensors, &acts, &tensors, &model->work, &model->shape, hooks));
        TRY(unit_leave(model, unit, UNIT_BACKWARD));
    }
    return STATUS_OK;
}

static enum status embed_backward(struct gpt2 *model)
{
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    int unit = model->params->positions_unit;
    float *weights, *gradients;
    TRY(unit_enter(model, &weights, &gradients, unit, UNIT_BACKWARD_GRAD, model->params->unit_elements[unit]));
    positions_backward(gradients, model->d_x, shape->batch, shape->t, channels);
    TRY(unit_leave(model, unit, UNIT_BACKWARD_GRAD));
    for (int u = model->params->embedding_units; u-- > 0;) {
        struct head_rows rows = rows_of_unit(model, u, NULL);
        TRY(unit_enter(model, &weights, &gradients, u, UNIT_BACKWARD_GRAD, rows.count * channels));
        embedding_backward(gradients, model->tokens, model->d_x, rows.first_row, rows.count, shape->rows, channels);
        TRY(unit_leave(model, u, UNIT_BACKWARD_GRAD));
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
    assert(model->tokens != NULL && b >= 0 && (size_t)b < shape->batch && t >= 0 && (size_t)t < shape->t);
    const float *row = model->norm + ((size_t)b * shape->t + (size_t)t) * shape->channels;
    size_t vocab = (size_t)model->params->config.vocab;
    if (model->hooks.local_slice != NULL) memset(logits, 0, vocab * sizeof *logits);
    for (int u = 0; u < model->params->embedding_units; u++) {
        struct head_rows rows = rows_of_unit(model, u, NULL);
        float *weights, *gradients;
        TRY(unit_enter(model, &weights, &gradients, u, UNIT_FORWARD, rows.count * shape->channels));
        linear_forward(logits + rows.first_row, row, weights, NULL, 1, shape->channels, rows.count);
        TRY(unit_leave(model, u, UNIT_FORWARD));
    }
    if (model->hooks.local_slice != NULL) TRY(tensor_sum(&model->hooks, logits, vocab));
    return STATUS_OK;
}

double gpt2_flops_per_token(const struct params *params, int t)
{
    const struct gpt2_config *config = &params->config;
    return 6.0 * (double)params->elements + 12.0 * config->layers * config->channels * (double)t;
}
