/* model_open: what a model holds and where each tensor of a pass lies in it.
 *
 * Invariants: what is predicted is what is held (I4): one walk both counts and places; I6: workspace
 * does not depend on L, and with recomputation activations do not either.
 *
 * Per row of B·T, L being the blocks of this part:
 *
 *   activations   of each pass in flight:
 *                   block inputs L × C | L × a block's | x (C) | n (C) | mean rstd
 *                   | max sum target lse | ids
 *   workspace     angles of rotary positions, by themselves
 *                 | scratch of operations | dx (C) | with cut rows: one (C) of all rows, vectors
 *                 | narrow, also dn, and the loss in forward
 *                 | wide, scores of attention  or  logits of a tile
 *                 and, of the largest unit, where another dtype is lent: weights as they are
 *                 computed with, gradients as float32
 *
 * With recomputation there is one set of a block's activations, and block inputs are checkpoints;
 * where hooks carry them away there is one more x, and block inputs take turns in the two. From x on
 * all but the last part has nothing but ids and, whatever the passes, one x. Where rows are cut
 * (rows.h), block inputs, x, dx, norms' outputs and statistics are those of the own rows.
 */
#include <stdlib.h>

#include "model/model_internal.h"
#include "verbs/log.h"

/* Hands out 64-byte aligned pieces; `base` NULL only counts. */
static void *take(struct span memory, size_t *used, size_t elements, enum dtype dtype)
{
    void *piece = memory.ptr == NULL ? NULL : (char *)memory.ptr + *used;
    *used += (elements * dtype_bytes(dtype) + 63) / 64 * 64;
    return piece;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void set_shape(struct model *model, int batch, int t)
{
    const struct model_config *config = &model->params->config;
    const struct params_part *part = &model->params->part;
    struct block_shape *shape = &model->shape;
    shape->batch = (size_t)batch;
    shape->t = (size_t)t;
    shape->rows = shape->batch * shape->t;
    shape->own = model_own_rows(shape->rows, model->params, &model->run);
    shape->cut = model->run.cut_rows && model_is_shared(model);
    shape->norms_whole = !shape->cut || model->run.recompute; /* which holds one block's */
    shape->channels = (size_t)config->channels;
    size_t kv_heads = (size_t)model_kv_heads(config);
    shape->kv_heads = params_slice(part, kv_heads).count;
    shape->heads = shape->kv_heads * ((size_t)config->heads / kv_heads);
    shape->head_cols = shape->channels / (size_t)config->heads;
    shape->width = shape->heads * shape->head_cols;
    shape->qkv_cols = (shape->heads + 2 * shape->kv_heads) * shape->head_cols;
    shape->architecture = architecture_table(config->architecture);
    shape->hidden = params_slice(part, (size_t)model_hidden(config)).count;
    shape->fc_cols = shape->architecture->fc_parts * shape->hidden;
}

/* Vocabulary rows of the largest unit of them, as it is held here. */
static size_t largest_rows(const struct model *model)
{
    size_t largest = 0;
    for (int u = 0; u < model->params->embedding_units; u++)
        largest = larger(largest, model_rows_of_unit(model, u, NULL).count);
    return largest;
}

/* What the head needs of forward, and the ids, from *used on. */
static void place_head(struct model *model, struct span base, size_t *used)
{
    size_t rows = model->shape.rows, channels = model->shape.channels;
    enum dtype compute = model->context.compute;
    bool last = model->span.last;
    size_t ids = model_ids_are_copied(model) && (last || model->span.first) ? 2 * rows : 0;
    size_t head = last ? rows : 0, own = last ? model->shape.own.count : 0;
    model->norm = take(base, used, head * channels, compute);
    model->norm_mean = take(base, used, own, DTYPE_FLOAT32);
    model->norm_rstd = take(base, used, own, DTYPE_FLOAT32);
    model->head_max = take(base, used, head, DTYPE_FLOAT32);
    model->head_sum = take(base, used, 2 * head, DTYPE_FLOAT32);
    model->head_target = model->head_sum == NULL ? NULL : model->head_sum + rows;
    model->head_lse = take(base, used, head, DTYPE_FLOAT32);
    model->ids = take(base, used, ids, DTYPE_INT32);
}

/* One pass's activations, from `base` on; returns their bytes. */
static size_t place_pass(struct model *model, struct span base)
{
    size_t elements = model->shape.own.count * model->shape.channels, used = 0;
    size_t layers = (size_t)(model->span.end - model->span.begin);
    enum dtype compute = model->context.compute;
    bool recompute = model->run.recompute;
    if (!recompute) model->inputs = take(base, &used, layers * elements, compute);
    size_t block = block_activation_bytes(&model->shape, compute);
    model->block_stride = recompute ? 0 : block;
    model->blocks = take(base, &used, recompute ? block : layers * block, DTYPE_UINT8);
    if (model->span.last) model->x = take(base, &used, elements, compute);
    place_head(model, base, &used);
    return used;
}

/* Inputs that hooks carry away, and outputs that are passed on, are not for long: passes share the
 * buffers. */
static size_t place_shared(struct model *model, struct span base)
{
    size_t elements = model->shape.own.count * model->shape.channels, used = 0;
    enum dtype compute = model->context.compute;
    if (model_inputs_are_carried(model)) model->inputs = take(base, &used, elements, compute);
    if (!model->span.last) model->x = take(base, &used, elements, compute);
    return used;
}

static struct span from_byte(struct span memory, size_t begin)
{
    if (memory.ptr != NULL) memory.ptr = (char *)memory.ptr + begin;
    return memory;
}

static size_t place_activations(struct model *model, int slot)
{
    const struct span nowhere = {0};
    size_t shared = place_shared(model, model->activations), pass = place_pass(model, nowhere);
    place_pass(model, from_byte(model->activations, shared + (size_t)slot * pass));
    return shared + (size_t)model_passes(model) * pass;
}

/* Returns the bytes of all passes. */
static size_t place_checkpoints(struct model *model, int slot)
{
    if (!model->run.recompute || model_inputs_are_carried(model)) return 0;
    size_t layers = (size_t)(model->span.end - model->span.begin);
    size_t pass =
        ops_bytes(layers * model->shape.own.count * model->shape.channels, &model->context);
    size_t aligned = (pass + 63) / 64 * 64;
    model->inputs = from_byte(model->checkpoints, (size_t)slot * aligned).ptr;
    return (size_t)(model_passes(model) - 1) * aligned + pass;
}

/* Bytes of logits of the largest block of vocabulary rows. */
static size_t largest_logits(const struct model *model)
{
    const struct ops_context *context = &model->context;
    const struct block_shape *shape = &model->shape;
    size_t largest = 0;
    if (!model->span.last) return 0;
    for (int u = 0; u < model->params->embedding_units; u++)
        largest = larger(
            largest, context->ops->head_scratch_bytes(model_rows_of_unit(model, u, NULL).count,
                         shape->rows, shape->channels, context->compute));
    return largest;
}

/* Bytes of scratch of the operations that are given none. */
static size_t other_scratch(const struct model *model)
{
    const struct block_shape *shape = &model->shape;
    struct ops_limits limits = {.rows = shape->rows,
        .cols = larger(shape->channels, larger(shape->fc_cols, shape->qkv_cols)),
        .weight_rows = largest_rows(model),
        .positions = shape->t};
    return model->context.ops->scratch_bytes(&limits, model->context.compute);
}

static size_t place_workspace(struct model *model)
{
    const struct block_shape *shape = &model->shape;
    struct ops_context *context = &model->context;
    size_t rows = shape->rows, channels = shape->channels, used = 0, unit = params_largest_unit(model->params);
    enum dtype compute = context->compute;
    struct span base = model->workspace;
    const struct model_run *run = &model->run;
    model->room =
        (struct unit_room){&model->hooks, context, run->weights, run->gradients, NULL, NULL};
    context->scratch = take(base, &used, other_scratch(model), DTYPE_UINT8); /* aligned best */
    if (run->weights != compute) model->room.weights = take(base, &used, unit, compute);
    if (run->gradients != DTYPE_FLOAT32)
        model->room.gradients = take(base, &used, unit, DTYPE_FLOAT32);
    model->d_x = take(base, &used, shape->own.count * channels, compute);
    model->work.whole = take(base, &used, shape->cut ? rows * channels : 0, compute);
    model->work.vectors =
        take(base, &used, shape->cut ? BLOCK_VECTORS * channels : 0, DTYPE_FLOAT32);
    model->work.narrow = take(base, &used, rows * block_narrow_cols(shape), compute);
    size_t head_used =
        used; /* the head's logits lie where blocks have theirs, which is later in backward */
    size_t wide = rows * larger(shape->fc_cols, shape->qkv_cols);
    model->work.wide = take(base, &used, wide, compute);
    size_t scores = context->ops->attention_scratch_bytes(block_attention(shape), compute);
    model->work.turns = model->turns.ptr;
    model->work.scores = take(base, &used, scores, DTYPE_UINT8);
    model->logits = take(base, &head_used, largest_logits(model), DTYPE_UINT8);
    return larger(used, head_used);
}

struct model_memory model_place(struct model *model, int batch, int t, int slot)
{
    model->span = model_span(model->params);
    set_shape(model, batch, t);
    if (model->ids_of != NULL) {
        model->tokens = model->ids_of[slot].tokens;
        model->targets = model->ids_of[slot].targets;
    }
    return (struct model_memory){
        .activations = place_activations(model, slot),
        .checkpoints = place_checkpoints(model, slot),
        .workspace = place_workspace(model),
    };
}

/* Angles of all positions that a pass may have. */
static size_t turns_bytes(const struct model *model)
{
    const struct model_config *config = &model->params->config;
    size_t head_cols = (size_t)(config->channels / config->heads);
    if (!architecture_table(config->architecture)->turns) return 0;
    return (size_t)model->run.t * head_cols * sizeof(float);
}

/* How operations are called; where is told when the memory is there. */
static struct ops_context context_of(const struct model_run *run, struct device *device)
{
    const struct model_ops *ops = model_ops_of(device);
    return (struct ops_context){
        .ops = ops, .device = device, .stream = run->stream, .compute = ops->compute(run->weights)};
}

struct model_memory model_memory(
    const struct params *params, const struct model_run *run, struct device *device)
{
    struct model model = {.params = params, .run = *run, .context = context_of(run, device)};
    struct model_memory memory = model_place(&model, run->batch, run->t, 0);
    memory.workspace += turns_bytes(&model);
    return memory;
}

enum dtype model_activation_dtype(const struct model_run *run, struct device *device)
{
    return model_ops_of(device)->compute(run->weights);
}

static bool is_held(enum dtype dtype)
{
    return dtype == DTYPE_FLOAT32 || dtype == DTYPE_BFLOAT16 || dtype == DTYPE_FLOAT16;
}

static enum status check_run(
    const struct model_run *run, const struct params *params, const struct model_hooks *hooks)
{
    if (run->batch < 1 || run->t < 1)
        return FAIL(STATUS_INVALID, "model: batch %d of %d tokens; expected at least 1 of 1",
            run->batch, run->t);
    if (run->t > params->config.max_t)
        return FAIL(STATUS_INVALID,
            "model: sequences of %d tokens; this model has positions for %d: use shorter ones",
            run->t, params->config.max_t);
    if (run->passes < 0)
        return FAIL(STATUS_INVALID,
            "model: %d passes in flight; expected how many may wait for their backward, or 0 for 1",
            run->passes);
    if (!is_held(run->weights) || !is_held(run->gradients))
        return FAIL(STATUS_INVALID,
            "model: weights of %s, gradients of %s; expected float32, bfloat16 or float16",
            dtype_name(run->weights), dtype_name(run->gradients));
    if (hooks->enter == NULL)
        return FAIL(STATUS_INVALID, "model: hooks lack enter(), which is required");
    if ((hooks->act_save == NULL) != (hooks->act_load == NULL))
        return FAIL(STATUS_INVALID,
            "model: hooks have one of act_save() and act_load(); expected both or neither");
    if (params->part.tensor_count > 1 && (hooks->sum == NULL || hooks->max == NULL))
        return FAIL(STATUS_INVALID,
            "model: tensors are cut over %d ranks, hooks lack sum() or max(); expected both",
            params->part.tensor_count);
    if (params->part.tensor_count > 1 && run->cut_rows &&
        (hooks->scatter_sum == NULL || hooks->gather == NULL))
        return FAIL(STATUS_INVALID,
            "model: rows are cut over %d ranks, hooks lack scatter_sum() or gather(); expected "
            "both",
            params->part.tensor_count);
    return STATUS_OK;
}

/* Where a stream writes the loss, without holding anybody up. */
static enum status open_loss(struct model *model)
{
    TRY(event_open(&model->loss_there, model->device));
    TRY(memory_alloc_kind(&model->pinned_loss, sizeof *model->loss, MEMORY_HOST_PINNED,
        MEMORY_WORKSPACE, model->device));
    model->loss = model->pinned_loss.ptr;
    return STATUS_OK;
}

/* Made on the host, and brought to where blocks read it. */
static enum status open_turns(struct model *model)
{
    size_t bytes = turns_bytes(model);
    if (bytes == 0) return STATUS_OK;
    TRY(memory_alloc(&model->turns, bytes, MEMORY_WORKSPACE, model->device));
    float *turns = malloc(bytes);
    if (turns == NULL) return FAIL(STATUS_SYSTEM, "no memory for %zu bytes of angles", bytes);
    architecture_turns(turns, (size_t)model->run.t, &model->params->config);
    model->context.ops->copy(model->turns.ptr, turns, bytes, &model->context);
    enum status status = model_synchronize(model);
    free(turns);
    return status;
}

enum status model_open(struct model **model, const struct params *params,
    const struct model_hooks *hooks, const struct model_run *run, struct device *device)
{
    *model = NULL;
    TRY(check_run(run, params, hooks));
    struct model *made = calloc(1, sizeof *made);
    if (made == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a model's record of %zu bytes", sizeof *made);
    made->params = params;
    made->hooks = *hooks;
    made->run = *run;
    made->run.carried = hooks->act_save != NULL;
    made->device = device;
    made->loss = &made->own_loss;
    enum status status;
    TRY_GOTO(model_ops_check(device));
    made->context = context_of(run, device);
    assert(made->context.ops->queued == (run->stream != NULL));
    if (run->profile != NULL) {
        ops_profile_open(&made->profile, made->context.ops, params, run->profile);
        made->context.ops = &made->profile.table;
        made->context.profile = &made->profile;
    }
    made->ids_of = calloc((size_t)model_passes(made), sizeof *made->ids_of);
    if (made->ids_of == NULL)
        TRY_GOTO(FAIL(STATUS_SYSTEM, "no memory for a model's record of %d passes", run->passes));
    struct model_memory memory = model_place(made, run->batch, run->t, 0);
    TRY_GOTO(memory_alloc(&made->activations, memory.activations, MEMORY_ACTIVATIONS, device));
    TRY_GOTO(memory_alloc(&made->checkpoints, memory.checkpoints, MEMORY_CHECKPOINTS, device));
    TRY_GOTO(memory_alloc(&made->workspace, memory.workspace, MEMORY_WORKSPACE, device));
    if (run->stream != NULL) TRY_GOTO(open_loss(made));
    model_place(made, run->batch, run->t, 0);
    TRY_GOTO(made->context.ops->open(&made->context));
    TRY_GOTO(open_turns(made));
    *model = made;
    return STATUS_OK;
fail:
    model_close(made);
    return status;
}

void model_close(struct model *model)
{
    if (model == NULL) return;
    if (model_synchronize(model) != STATUS_OK)
        LOG_WARN("model", "closed after a failure: %s", status_text());
    if (model->context.ops != NULL) model->context.ops->close(&model->context);
    event_close(model->loss_there, model->device);
    memory_free(&model->pinned_loss, MEMORY_WORKSPACE, model->device);
    memory_free(&model->activations, MEMORY_ACTIVATIONS, model->device);
    memory_free(&model->checkpoints, MEMORY_CHECKPOINTS, model->device);
    memory_free(&model->workspace, MEMORY_WORKSPACE, model->device);
    memory_free(&model->turns, MEMORY_WORKSPACE, model->device);
    free(model->ids_of);
    free(model);
}
