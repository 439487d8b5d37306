/* decode: see decode.h.
 *
 * What a layer computes is the operations' table and the architecture's, as in block.c, for which a chunk
 * of tokens is a batch of one; only attention differs, whose keys and values are those of all chunks:
 *
 *   cache of a layer    keys   (KV, most, head_cols)      row `position` is written once
 *                       values (KV, most, head_cols)
 *   scores of a head    q (rows, head_cols) · keysᵀ       row i sees position + i + 1 of them
 */
#include "model/decode.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/block.h"
#include "model/unit.h"
#include "model/vector_math.h"

#define CHUNK 64 /* tokens that are rows of one product */

struct decoder {
    const struct params *params;
    struct model_hooks hooks;
    struct device *device;
    struct ops_context context;
    struct block_shape shape; /* of the chunk in hand */
    struct unit_room room;
    int most, position;
    struct span cache, workspace;
    float *x, *out, *acts, *scores, *turns; /* in the workspace: (CHUNK, C) twice, … */
};

static size_t round_up(size_t count, size_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- opening ---- */

static struct block_shape shape_of(const struct params *params, size_t rows)
{
    const struct model_config *config = &params->config;
    const struct architecture_table *architecture = architecture_table(config->architecture);
    size_t heads = (size_t)config->heads, kv_heads = (size_t)model_kv_heads(config);
    size_t channels = (size_t)config->channels, head_cols = channels / heads;
    size_t hidden = (size_t)model_hidden(config);
    return (struct block_shape){.own = {0, rows},
        .norms_whole = true,
        .batch = 1,
        .t = rows,
        .rows = rows,
        .channels = channels,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_cols = head_cols,
        .width = heads * head_cols,
        .qkv_cols = (heads + 2 * kv_heads) * head_cols,
        .hidden = hidden,
        .fc_cols = architecture->fc_parts * hidden,
        .architecture = architecture};
}

static float *take(struct span memory, size_t *used, size_t elements)
{
    float *piece = memory.ptr == NULL ? NULL : (float *)memory.ptr + *used;
    *used += round_up(elements, 16);
    return piece;
}

/* Floats of the workspace, and where each piece is once it is there. */
static size_t place(struct decoder *decoder)
{
    const struct block_shape *shape = &decoder->shape;
    size_t used = 0, most = (size_t)decoder->most;
    size_t acts = block_activation_bytes(shape, DTYPE_FLOAT32) / sizeof(float);
    struct ops_limits limits = {.rows = CHUNK,
        .cols = larger(shape->fc_cols, larger(shape->qkv_cols, shape->channels)),
        .positions = most};
    size_t units = decoder->room.weights_dtype == DTYPE_FLOAT32 ? 0 : params_largest_unit(decoder->params);
    size_t scratch = decoder->context.ops->scratch_bytes(&limits, DTYPE_FLOAT32) / sizeof(float);
    decoder->context.scratch = take(decoder->workspace, &used, scratch + 1);
    decoder->x = take(decoder->workspace, &used, CHUNK * shape->channels);
    decoder->out = take(decoder->workspace, &used, CHUNK * shape->channels);
    decoder->acts = take(decoder->workspace, &used, acts);
    decoder->scores = take(decoder->workspace, &used, CHUNK * round_up(most, VECTOR_LANES));
    decoder->turns =
        take(decoder->workspace, &used, shape->architecture->turns ? most * shape->head_cols : 0);
    decoder->room.weights = take(decoder->workspace, &used, units);
    return used;
}

static size_t cache_elements(const struct decoder *decoder)
{
    return (size_t)decoder->most * decoder->shape.kv_heads * decoder->shape.head_cols;
}

static enum status allocate(struct decoder *decoder)
{
    size_t layers = (size_t)decoder->params->config.layers, float_bytes = sizeof(float);
    TRY(memory_alloc(&decoder->cache, 2 * layers * cache_elements(decoder) * float_bytes,
        MEMORY_ACTIVATIONS, decoder->device));
    TRY(memory_alloc(
        &decoder->workspace, place(decoder) * float_bytes, MEMORY_WORKSPACE, decoder->device));
    place(decoder);
    if (decoder->turns != NULL && decoder->shape.architecture->turns)
        architecture_turns(decoder->turns, (size_t)decoder->most, &decoder->params->config);
    return decoder->context.ops->open(&decoder->context);
}

enum status decoder_open(struct decoder **out, const struct params *params,
    const struct model_hooks *hooks, enum dtype weights, int most, struct device *device)
{
    *out = NULL;
    assert(device_kind(device) == MEMORY_HOST && params->part.tensor_count == 1 && params->part.stage_count == 1);
    if (most < 1 || most > params->config.max_t)
        return FAIL(STATUS_INVALID, "%d tokens to read, expected 1 to %d: the model has no more positions",
            most, params->config.max_t);
    struct decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder == NULL) return FAIL(STATUS_SYSTEM, "no memory for a decoder's record");
    decoder->params = params;
    decoder->hooks = *hooks;
    decoder->device = device;
    decoder->most = most;
    decoder->shape = shape_of(params, CHUNK);
    decoder->context =
        (struct ops_context){.ops = &model_ops_host, .device = device, .compute = DTYPE_FLOAT32};
    decoder->room = (struct unit_room){
        &decoder->hooks, &decoder->context, weights, DTYPE_FLOAT32, NULL, NULL};
    enum status status = allocate(decoder);
    if (status == STATUS_OK) *out = decoder;
    else decoder_close(decoder);
    return status;
}

void decoder_close(struct decoder *decoder)
{
    if (decoder == NULL) return;
    decoder->context.ops->close(&decoder->context);
    memory_free(&decoder->cache, MEMORY_ACTIVATIONS, decoder->device);
    memory_free(&decoder->workspace, MEMORY_WORKSPACE, decoder->device);
    free(decoder);
}

int decoder_position(const struct decoder *decoder)
{
    return decoder->position;
}

void decoder_rewind(int position, struct decoder *decoder)
{
    assert(position >= 0 && position <= decoder->position);
    decoder->position = position;
}

/* ---- attention over what is kept ---- */

/* Keys or values of a head of them. */
static float *cached(int layer, bool values, size_t kv_head, const struct decoder *decoder)
{
    size_t all = cache_elements(decoder);
    return (float *)decoder->cache.ptr + (2 * (size_t)layer + values) * all +
           kv_head * (size_t)decoder->most * decoder->shape.head_cols;
}

static void keep(int layer, const float *qkv, const struct decoder *decoder)
{
    const struct block_shape *shape = &decoder->shape;
    size_t cols = shape->head_cols;
    for (size_t h = 0; h < shape->kv_heads; h++)
        for (size_t r = 0; r < shape->rows; r++) {
            const float *row = qkv + r * shape->qkv_cols + (shape->heads + h) * cols;
            size_t at = ((size_t)decoder->position + r) * cols;
            memcpy(cached(layer, false, h, decoder) + at, row, cols * sizeof *row);
            memcpy(cached(layer, true, h, decoder) + at, row + shape->kv_heads * cols,
                cols * sizeof *row);
        }
}

/* Scores in, probabilities out, of row i over the first `before` + i + 1; 0 to the end of the rows. */
VECTOR_CLONES static void softmax_rows(
    float *restrict scores, size_t rows, size_t before, size_t stride)
{
    for (size_t i = 0; i < rows; i++) {
        float *restrict row = scores + i * stride;
        size_t seen = before + i + 1, whole = round_up(seen, VECTOR_LANES);
        for (size_t j = seen; j < whole; j++) row[j] = -INFINITY;
        float max = vector_max(row, whole), sum = vector_exp_sum(row, whole, max);
        for (size_t j = 0; j < seen; j++) row[j] /= sum;
        for (size_t j = seen; j < before + rows; j++) row[j] = 0.0f;
    }
}

static void attend(float *out, int layer, const float *qkv, const struct decoder *decoder)
{
    const struct block_shape *shape = &decoder->shape;
    size_t before = (size_t)decoder->position, stride = round_up((size_t)decoder->most, VECTOR_LANES);
    int rows = (int)shape->rows, seen = (int)(before + shape->rows), cols = (int)shape->head_cols;
    float scale = 1.0f / sqrtf((float)cols);
    for (size_t h = 0; h < shape->heads; h++) {
        size_t shared = h / (shape->heads / shape->kv_heads);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, seen, cols, scale,
            qkv + h * (size_t)cols, (int)shape->qkv_cols, cached(layer, false, shared, decoder), cols,
            0.0f, decoder->scores, (int)stride);
        softmax_rows(decoder->scores, shape->rows, before, stride);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, cols, seen, 1.0f, decoder->scores,
            (int)stride, cached(layer, true, shared, decoder), cols, 0.0f, out + h * (size_t)cols,
            (int)shape->width);
    }
}

/* ---- a chunk of tokens ---- */

static enum status embed(const int32_t *tokens, struct decoder *decoder)
{
    const struct params *params = decoder->params;
    const struct model_ops *ops = decoder->context.ops;
    size_t rows = decoder->shape.rows, channels = decoder->shape.channels;
    struct unit unit;
    for (int u = 0; u < params->embedding_units; u++) {
        const struct param *param = &params->param[u]; /* these units come first, of one tensor each */
        struct unit_lookup lookup = {tokens, rows, param->first_row, param->rows, channels};
        TRY(unit_enter_lookup(&unit, u, UNIT_FORWARD, &lookup, &decoder->room));
        ops->embedding_forward(decoder->x, tokens, unit.weights, param->first_row, param->rows, rows,
            channels, &decoder->context);
        TRY(unit_leave(&unit, &decoder->room));
    }
    int positions = params->positions_unit;
    if (params->unit_elements[positions] == 0) return STATUS_OK;
    TRY(unit_enter(
        &unit, positions, UNIT_FORWARD, params->unit_elements[positions], &decoder->room));
    ops->positions_forward(decoder->x, (float *)unit.weights + (size_t)decoder->position * channels, 1,
        rows, channels, &decoder->context);
    return unit_leave(&unit, &decoder->room);
}

/* x = the block's output. */
static void run_block(int layer, const struct block_tensors *w, struct decoder *decoder)
{
    const struct block_shape *shape = &decoder->shape;
    const struct ops_context *context = &decoder->context;
    const struct model_ops *ops = context->ops;
    const struct architecture_table *own = shape->architecture;
    struct block_activations acts =
        block_activations_at(decoder->acts, decoder->x, shape, DTYPE_FLOAT32);
    const struct block_activations *a = &acts;
    size_t rows = shape->rows, channels = shape->channels;

    own->norm_forward(a->ln1, a->mean1, a->rstd1, a->x, w->ln1w, w->ln1b, rows, channels, context);
    ops->linear_forward(
        a->qkv, NULL, a->ln1, w->qkvw, w->qkvb, rows, channels, shape->qkv_cols, context);
    if (own->turns)
        ops->rotary_forward(a->qkv, decoder->turns + (size_t)decoder->position * shape->head_cols,
            block_attention(shape), context);
    keep(layer, a->qkv, decoder);
    attend(a->att, layer, a->qkv, decoder);
    ops->linear_forward(
        a->x2, NULL, a->att, w->attprojw, NULL, rows, shape->width, channels, context);
    ops->bias_residual_add(a->x2, a->x, w->attprojb, rows, channels, context);

    own->norm_forward(a->ln2, a->mean2, a->rstd2, a->x2, w->ln2w, w->ln2b, rows, channels, context);
    own->hidden_forward(
        a->hidden, a->fc, a->ln2, w->fcw, w->fcb, rows, channels, shape->hidden, context);
    ops->linear_forward(
        decoder->out, NULL, a->hidden, w->fcprojw, NULL, rows, shape->hidden, channels, context);
    ops->bias_residual_add(decoder->out, a->x2, w->fcprojb, rows, channels, context);
    float *x = decoder->x;
    decoder->x = decoder->out;
    decoder->out = x;
}

static enum status read_chunk(const int32_t *tokens, int count, struct decoder *decoder)
{
    decoder->shape = shape_of(decoder->params, (size_t)count);
    size_t elements = block_tensor_elements(&decoder->shape);
    TRY(embed(tokens, decoder));
    for (int layer = 0; layer < decoder->params->config.layers; layer++) {
        struct unit unit;
        TRY(unit_enter(&unit, decoder->params->first_block_unit + layer, UNIT_FORWARD, elements,
            &decoder->room));
        struct block_tensors tensors =
            block_tensors_at(unit.weights, DTYPE_FLOAT32, &decoder->shape);
        run_block(layer, &tensors, decoder);
        TRY(unit_leave(&unit, &decoder->room));
    }
    decoder->position += count;
    return STATUS_OK;
}

/* Of the chunk's last row. */
static enum status last_logits(float *logits, struct decoder *decoder)
{
    const struct params *params = decoder->params;
    const struct ops_context *context = &decoder->context;
    size_t channels = decoder->shape.channels, rows = decoder->shape.rows;
    const float *x = decoder->x + (rows - 1) * channels;
    float mean, rstd, *norm = decoder->out;
    struct unit unit;
    size_t elements = params->unit_elements[params->final_norm_unit];
    TRY(unit_enter(&unit, params->final_norm_unit, UNIT_FORWARD, elements, &decoder->room));
    const float *bias = elements > channels ? (float *)unit.weights + channels : NULL;
    decoder->shape.architecture->norm_forward(
        norm, &mean, &rstd, x, unit.weights, bias, 1, channels, context);
    TRY(unit_leave(&unit, &decoder->room));
    for (int u = 0; u < params->embedding_units; u++) {
        const struct param *param = &params->param[u];
        TRY(unit_enter(&unit, u, UNIT_FORWARD, param->rows * channels, &decoder->room));
        context->ops->head_logits(logits + param->first_row, norm,
            (struct head_rows){param->first_row, param->rows, unit.weights}, channels, context);
        TRY(unit_leave(&unit, &decoder->room));
    }
    return STATUS_OK;
}

enum status decoder_read(
    float *logits, const int32_t *tokens, int count, struct decoder *decoder)
{
    int vocab = decoder->params->config.vocab;
    assert(count >= 1);
    if (count > decoder->most - decoder->position)
        return FAIL(STATUS_INVALID, "%d tokens after %d, expected at most %d in all", count,
            decoder->position, decoder->most);
    for (int i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return FAIL(STATUS_DATA, "token %d is %d, expected 0 to %d: the text's tokenizer is not the "
                "model's", i, tokens[i], vocab - 1);
    for (int done = 0, now; done < count; done += now) {
        now = count - done < CHUNK ? count - done : CHUNK;
        TRY(read_chunk(tokens + done, now, decoder));
    }
    return last_logits(logits, decoder);
}
