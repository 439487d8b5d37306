/* model: the model as a sequence of uses of units. What a layer computes is in ops.h and block.h.
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
 * A part of the model has some of the blocks. Only the first one begins with x₀, and ends backward
 * with dwpe and dwte; only the last one has norm and loss, and begins backward with them. Between
 * parts x and dx are handed on.
 */
#include "model/model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

enum status model_synchronize(struct model *model)
{
    if (model->run.stream == NULL) return STATUS_OK;
    return stream_synchronize(model->run.stream, model->device);
}

static enum status check_ids(
    const char *what, const int32_t *ids, int batch, int t, int vocab, bool may_be_ignored)
{
    for (size_t i = 0; i < (size_t)batch * (size_t)t; i++) {
        if (ids[i] >= 0 && ids[i] < vocab) continue;
        if (may_be_ignored && ids[i] == MODEL_IGNORED_TARGET) continue;
        return FAIL(STATUS_DATA,
            "%s at sequence %zu position %zu is %d; expected 0 to %d%s: check that the data's "
            "tokenizer is the model's",
            what, i / (size_t)t, i % (size_t)t, ids[i], vocab - 1, may_be_ignored ? ", or -1" : "");
    }
    return STATUS_OK;
}

/* The input of a block; the output of the last one where layer = end. Carried inputs take turns in
 * two buffers, of which x is the one that the last block writes. */
static void *block_input(const struct model *model, int layer)
{
    const struct model_span *span = &model->span;
    size_t elements = model->shape.own.count * model->shape.channels;
    if (layer == span->end) return model->x;
    if (model_inputs_are_carried(model))
        return (span->end - layer) % 2 == 0 ? model->x : model->inputs;
    return ops_at(model->inputs, (size_t)(layer - span->begin) * elements, &model->context);
}

static struct block_activations activations_of(const struct model *model, int layer)
{
    return block_activations_at(
        (char *)model->blocks + (size_t)(layer - model->span.begin) * model->block_stride,
        block_input(model, layer), &model->shape, model->context.compute);
}

/* A tensor (own rows, C), such as x; and (rows, C). */
static struct span own_span(const void *x, const struct model *model)
{
    return rows_span(x, model->shape.own.count, &model->shape, &model->context);
}

static struct span whole_span(const void *x, const struct model *model)
{
    return rows_span(x, model->shape.rows, &model->shape, &model->context);
}

/* Where the own rows of a tensor (rows, C) are. */
static void *own_of(const void *whole, const struct model *model)
{
    return rows_own(whole, &model->shape, &model->context);
}

/* ---- forward ---- */

/* Where operations read the ids of this forward: where they are, or in a copy. */
static const int32_t *place_ids(int32_t *copy, const int32_t *ids, const struct model *model)
{
    if (ids == NULL || !model_ids_are_copied(model)) return ids;
    size_t bytes = model->shape.rows * sizeof *ids;
    model->context.ops->copy(copy, ids, bytes, &model->context);
    return copy;
}

/* The rows of unit u that this pass's tokens name. */
static struct unit_lookup lookup_of(int u, const struct model *model)
{
    struct head_rows rows = model_rows_of_unit(model, u, NULL);
    return (struct unit_lookup){model->tokens, model->shape.rows, rows.first_row, rows.count,
        model->shape.channels};
}

/* Positions, which all ranks have, are in one rank's part of the sum. */
static enum status embed(struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    void *input = block_input(model, 0), *x = shape->cut ? model->work.whole : input;
    struct unit unit;
    if (model_is_shared(model))
        context->ops->clear(x, whole_span(x, model).bytes, context); /* others hold some */
    for (int u = 0; u < model->params->embedding_units; u++) {
        struct unit_lookup lookup = lookup_of(u, model);
        if (lookup.rows == 0) continue; /* others hold them */
        TRY(unit_enter_lookup(&unit, u, UNIT_FORWARD, &lookup, &model->room));
        context->ops->embedding_forward(x, model->tokens, unit.weights, lookup.first_row,
            lookup.rows, shape->rows, channels, context);
        TRY(unit_leave(&unit, &model->room));
    }
    int positions = model->params->positions_unit;
    size_t elements = model->params->unit_elements[positions]; /* 0: attention knows them */
    if (elements > 0) {
        TRY(unit_enter(&unit, positions, UNIT_FORWARD, elements, &model->room));
        if (model->params->part.tensor_rank == 0)
            context->ops->positions_forward(
                x, unit.weights, shape->batch, shape->t, channels, context);
        TRY(unit_leave(&unit, &model->room));
    }
    return rows_sum(input, x, shape, context, &model->hooks);
}

/* By parts, but where gradients of norms are summed over ranks at the block's end (rows.h). */
static enum status enter_block(struct unit *unit, int number, enum unit_use use, struct model *model)
{
    size_t elements = block_tensor_elements(&model->shape);
    if (model->shape.cut) return unit_enter(unit, number, use, elements, &model->room);
    return unit_enter_parts(unit, number, use, elements, &model->room);
}

static enum status blocks_forward(struct model *model)
{
    const struct model_hooks *hooks = &model->hooks;
    const struct ops_context *context = &model->context;
    for (int layer = model->span.begin; layer < model->span.end; layer++) {
        struct block_activations acts = activations_of(model, layer);
        struct unit unit;
        int number = model->params->first_block_unit + layer;
        if (hooks->act_save != NULL)
            TRY(hooks->act_save(hooks->activations, layer, own_span(acts.x, model)));
        TRY(enter_block(&unit, number, UNIT_FORWARD, model));
        struct block_unit block = block_unit_of(&unit, &model->room, &model->shape);
        TRY(block_forward(block_input(model, layer + 1), &acts, &block, &model->work,
            &model->shape, context, hooks));
        TRY(unit_leave(&unit, &model->room));
    }
    return STATUS_OK;
}

static enum status final_norm_forward(struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    void *own = own_of(model->norm, model);
    struct unit unit;
    int norm = model->params->final_norm_unit;
    TRY(unit_enter(&unit, norm, UNIT_FORWARD, model->params->unit_elements[norm], &model->room));
    shape->architecture->norm_forward(own, model->norm_mean, model->norm_rstd, model->x,
        unit.weights, ops_at(unit.weights, channels, context), shape->own.count, channels, context);
    TRY(unit_leave(&unit, &model->room));
    return rows_gather(model->norm, own, shape, context, &model->hooks);
}

/* Brings the statistics of the rows held by several ranks together: the largest maximum, and sums
 * with respect to it. */
static enum status join_head_statistics(struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct model_hooks *hooks = &model->hooks;
    size_t rows = model->shape.rows, bytes = rows * sizeof(float);
    if (hooks->max != NULL) {
        float *own_max = model->head_lse; /* free until the loss is known */
        context->ops->copy(own_max, model->head_max, bytes, context);
        TRY(tensor_max(hooks, ops_span(model->head_max, bytes, context), rows));
        context->ops->head_rescale(model->head_sum, own_max, model->head_max, rows, context);
    }
    return tensor_sum(hooks, ops_span(model->head_sum, 2 * bytes, context), 2 * rows);
}

static enum status loss_forward(struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct model_ops *ops = context->ops;
    size_t rows = model->shape.rows, channels = model->shape.channels;
    struct unit unit;
    ops->head_begin(model->head_max, model->head_sum, model->head_target, rows, context);
    for (int u = 0; u < model->params->embedding_units; u++) {
        size_t count = model_rows_of_unit(model, u, NULL).count;
        if (count == 0) continue; /* others hold them */
        TRY(unit_enter(&unit, u, UNIT_FORWARD, count * channels, &model->room));
        ops->head_forward(model->head_max, model->head_sum, model->head_target, model->logits,
            model->norm, model->targets, model_rows_of_unit(model, u, unit.weights), rows, channels,
            context);
        TRY(unit_leave(&unit, &model->room));
    }
    TRY(join_head_statistics(model));
    double *sum = model->work.narrow; /* free until backward, and at least a cache line */
    ops->head_loss(sum, model->head_lse, model->head_max, model->head_sum, model->head_target,
        model->targets, rows, context);
    ops->copy(model->loss, sum, sizeof *sum, context);
    return STATUS_OK;
}

/* A pass's place becomes the one in hand. */
static void take_pass(const struct model_pass *pass, struct model *model)
{
    assert(pass->batch >= 1 && pass->batch <= model->run.batch);
    assert(pass->t >= 1 && pass->t <= model->run.t);
    assert(pass->slot >= 0 && pass->slot < model_passes(model));
    const float *gradients = model->room.gradients; /* zeros, which stay where they are */
    struct model_memory needed = model_place(model, pass->batch, pass->t, pass->slot);
    assert(model->room.gradients == gradients);
    assert(needed.activations <= model->activations.bytes);
    assert(needed.checkpoints <= model->checkpoints.bytes);
    assert(needed.workspace <= model->workspace.bytes);
    (void)needed, (void)gradients;
}

enum status model_forward_pass(const struct model_pass *pass, struct model *model)
{
    const struct model_span *span = &model->span;
    int vocab = model->params->config.vocab;
    const int32_t *tokens = span->first ? pass->tokens : NULL;
    const int32_t *targets = span->last ? pass->targets : NULL;
    if (span->first) TRY(check_ids("token", tokens, pass->batch, pass->t, vocab, false));
    if (targets != NULL) TRY(check_ids("target", targets, pass->batch, pass->t, vocab, true));
    take_pass(pass, model);
    *model->loss = NAN; /* stays so where the stream fails */
    model->tokens = place_ids(model->ids, tokens, model);
    model->targets = place_ids(model->ids + model->shape.rows, targets, model);
    model->ids_of[pass->slot] = (struct model_ids){model->tokens, model->targets};
    if (span->first) TRY(embed(model));
    TRY(blocks_forward(model));
    if (span->last) TRY(final_norm_forward(model));
    if (targets == NULL) return STATUS_OK;
    TRY(loss_forward(model));
    if (model->loss_there == NULL) return STATUS_OK;
    return event_record(model->loss_there, model->run.stream, model->device);
}

enum status model_forward(double *loss, size_t *valid, const int32_t *tokens,
    const int32_t *targets, int batch, int t, struct model *model)
{
    const struct model_pass pass = {0, tokens, targets, batch, t};
    assert(model->span.first && model->span.last);
    TRY(model_forward_pass(&pass, model));
    if (targets == NULL) return STATUS_OK;
    *valid = 0;
    for (size_t r = 0; r < model->shape.rows; r++) *valid += targets[r] != MODEL_IGNORED_TARGET;
    if (loss == NULL) return STATUS_OK;
    TRY(model_synchronize(model));
    return model_loss(loss, model);
}

enum status model_loss(double *loss, struct model *model)
{
    assert(model->targets != NULL); /* a forward with targets came before */
    if (model->loss_there != NULL) TRY(event_synchronize(model->loss_there, model->device));
    *loss = *model->loss;
    return STATUS_OK;
}

static void sum_sequences(double *sums, const float *lse, const float *target, const int32_t *targets,
    const struct block_shape *shape)
{
    for (size_t b = 0; b < shape->batch; b++) {
        sums[b] = 0.0;
        for (size_t r = b * shape->t; r < (b + 1) * shape->t; r++)
            if (targets[r] != MODEL_IGNORED_TARGET) sums[b] += (double)lse[r] - (double)target[r];
    }
}

enum status model_sequence_losses(double *sums, struct model *model)
{
    const struct ops_context *context = &model->context;
    size_t rows = model->shape.rows, bytes = rows * sizeof(float);
    assert(model->targets != NULL); /* a forward with targets came before */
    float *copies = malloc(2 * bytes + rows * sizeof(int32_t));
    if (copies == NULL) return FAIL(STATUS_SYSTEM, "no memory for the losses of %zu tokens", rows);
    int32_t *targets = (int32_t *)(void *)(copies + 2 * rows);
    context->ops->copy(copies, model->head_lse, bytes, context);
    context->ops->copy(copies + rows, model->head_target, bytes, context);
    context->ops->copy(targets, model->targets, rows * sizeof *targets, context);
    enum status status = model_synchronize(model);
    if (status == STATUS_OK) sum_sequences(sums, copies, copies + rows, targets, &model->shape);
    free(copies);
    return status;
}

/* ---- backward ---- */

/* dn into work.narrow, the own rows of it. */
static enum status loss_backward(struct model *model, float scale)
{
    const struct ops_context *context = &model->context;
    size_t rows = model->shape.rows, channels = model->shape.channels;
    void *d_norm = model->work.narrow;
    struct unit unit;
    context->ops->clear(d_norm, whole_span(d_norm, model).bytes, context);
    for (int u = model->params->embedding_units; u-- > 0;) {
        size_t count = model_rows_of_unit(model, u, NULL).count;
        if (count == 0) continue; /* others hold them */
        TRY(unit_enter(&unit, u, UNIT_BACKWARD, count * channels, &model->room));
        context->ops->head_backward(d_norm, unit.gradients, model->logits, model->norm,
            model->head_lse, model->targets, scale, model_rows_of_unit(model, u, unit.weights),
            rows, channels, context);
        TRY(unit_leave(&unit, &model->room));
    }
    return rows_sum(own_of(d_norm, model), d_norm, &model->shape, context, &model->hooks);
}

static enum status final_norm_backward(struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    struct rows_vectors vectors = {.parts = model->work.vectors};
    struct unit unit;
    int norm = model->params->final_norm_unit;
    TRY(unit_enter(&unit, norm, UNIT_BACKWARD, model->params->unit_elements[norm], &model->room));
    float *d_bias = shape->architecture->biases ? unit.gradients + channels : NULL;
    float *d_weight = rows_vector(unit.gradients, &vectors, shape, context);
    d_bias = rows_vector(d_bias, &vectors, shape, context);
    context->ops->clear(model->d_x, own_span(model->d_x, model).bytes, context);
    shape->architecture->norm_backward(model->d_x, d_weight, d_bias,
        own_of(model->work.narrow, model), model->x, model->norm_mean, model->norm_rstd,
        unit.weights, shape->own.count, channels, context);
    TRY(rows_add_vectors(&vectors, shape, context, &model->hooks));
    return unit_leave(&unit, &model->room);
}

static enum status blocks_backward(struct model *model)
{
    const struct model_hooks *hooks = &model->hooks;
    const struct ops_context *context = &model->context;
    for (int layer = model->span.end; layer-- > model->span.begin;) {
        struct block_activations acts = activations_of(model, layer);
        struct unit unit;
        int number = model->params->first_block_unit + layer;
        if (hooks->act_load != NULL)
            TRY(hooks->act_load(hooks->activations, layer, own_span(acts.x, model)));
        TRY(enter_block(&unit, number, UNIT_BACKWARD, model));
        struct block_unit block = block_unit_of(&unit, &model->room, &model->shape);
        if (model->run.recompute)
            TRY(block_recompute(&acts, &block, &model->work, &model->shape, context, hooks));
        TRY(block_backward(
            model->d_x, &acts, &block, &model->work, &model->shape, context, hooks));
        TRY(unit_leave(&unit, &model->room));
    }
    return STATUS_OK;
}

static enum status embed_backward(struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct block_shape *shape = &model->shape;
    size_t channels = shape->channels;
    int positions = model->params->positions_unit;
    size_t elements = model->params->unit_elements[positions];
    void *d_x = shape->cut ? model->work.whole : model->d_x;
    struct unit unit;
    TRY(rows_gather(d_x, model->d_x, shape, context, &model->hooks));
    if (elements > 0) {
        TRY(unit_enter(&unit, positions, UNIT_BACKWARD_GRAD, elements, &model->room));
        context->ops->positions_backward(
            unit.gradients, d_x, shape->batch, shape->t, channels, context);
        TRY(unit_leave(&unit, &model->room));
    }
    for (int u = model->params->embedding_units; u-- > 0;) {
        struct unit_lookup lookup = lookup_of(u, model);
        if (lookup.rows == 0) continue;
        TRY(unit_enter_lookup(&unit, u, UNIT_BACKWARD_GRAD, &lookup, &model->room));
        context->ops->embedding_backward(unit.gradients, model->tokens, d_x,
            lookup.first_row, lookup.rows, shape->rows, channels, context);
        TRY(unit_leave(&unit, &model->room));
    }
    return STATUS_OK;
}

enum status model_backward_pass(float scale, const struct model_pass *pass, struct model *model)
{
    const struct model_span *span = &model->span;
    take_pass(pass, model);
    if (span->last) {
        assert(model->targets != NULL); /* a forward with targets came before */
        TRY(loss_backward(model, scale));
        TRY(final_norm_backward(model));
    }
    TRY(blocks_backward(model));
    return span->first ? embed_backward(model) : STATUS_OK;
}

enum status model_backward(float scale, struct model *model)
{
    const struct model_pass pass = {.batch = (int)model->shape.batch, .t = (int)model->shape.t};
    assert(model->span.first && model->span.last);
    return model_backward_pass(scale, &pass, model);
}

/* ---- what goes from part to part ---- */

struct span model_input(const struct model_pass *pass, struct model *model)
{
    assert(!model->span.first);
    take_pass(pass, model);
    return own_span(block_input(model, model->span.begin), model);
}

struct span model_output(const struct model_pass *pass, struct model *model)
{
    take_pass(pass, model);
    return own_span(model->x, model);
}

struct span model_gradient(const struct model_pass *pass, struct model *model)
{
    take_pass(pass, model);
    return own_span(model->d_x, model);
}

/* ---- sampling ---- */

enum status model_logits(float *logits, int b, int t, struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct block_shape *shape = &model->shape;
    assert(
        model->span.last && b >= 0 && (size_t)b < shape->batch && t >= 0 && (size_t)t < shape->t);
    size_t row = (size_t)b * shape->t + (size_t)t, channels = shape->channels;
    const void *x = ops_at(model->norm, row * channels, context);
    size_t vocab = (size_t)model->params->config.vocab;
    if (model_is_shared(model)) memset(logits, 0, vocab * sizeof *logits);
    for (int u = 0; u < model->params->embedding_units; u++) {
        struct unit unit;
        size_t count = model_rows_of_unit(model, u, NULL).count;
        if (count == 0) continue; /* others hold them */
        TRY(unit_enter(&unit, u, UNIT_FORWARD, count * channels, &model->room));
        struct head_rows rows = model_rows_of_unit(model, u, unit.weights);
        context->ops->head_logits(model->logits, x, rows, channels, context);
        context->ops->copy(logits + rows.first_row, model->logits, count * sizeof *logits, context);
        TRY(unit_leave(&unit, &model->room));
    }
    TRY(model_synchronize(model));
    if (!model_is_shared(model)) return STATUS_OK;
    TRY(tensor_sum(&model->hooks, span_host(logits, vocab * sizeof *logits), vocab));
    return model_synchronize(model);
}

double model_flops_per_token(const struct params *params, int t)
{
    const struct model_config *config = &params->config;
    return 6.0 * (double)params->whole_elements +
           12.0 * config->layers * config->channels * (double)t;
}
