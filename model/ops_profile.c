/* ops_profile: see ops_profile.h. Invariant: an operation gets the arguments that it would have got
 * without: but for a backward of a linear layer, whose halves are asked for one by one.
 */
#include "model/ops_profile.h"

#include <string.h>

/* ---- what is counted ---- */

/* s: bytes of an element that is computed with. */
static double elements(double count, const struct ops_context *context)
{
    return count * (double)dtype_bytes(context->compute);
}

static double floats(double count)
{
    return count * (double)sizeof(float);
}

#define TIMED(name, flops, bytes, call)                                                            \
    do {                                                                                           \
        const struct ops_profile *own = context->profile;                                          \
        profile_begin(own->profile, name, 0);                                                      \
        own->ops->call;                                                                            \
        profile_end(own->profile, flops, bytes);                                                   \
    } while (0)

/* ---- bytes, dtypes ---- */

static void timed_clear(void *out, size_t bytes, const struct ops_context *context)
{
    TIMED("clear", 0, (double)bytes, clear(out, bytes, context));
}

static void timed_copy(void *out, const void *in, size_t bytes, const struct ops_context *context)
{
    TIMED("copy", 0, 2.0 * (double)bytes, copy(out, in, bytes, context));
}

static void timed_widen(
    void *out, const void *in, enum dtype dtype, size_t count, const struct ops_context *context)
{
    double bytes = elements((double)count, context) + (double)(count * dtype_bytes(dtype));
    TIMED("widen weights", 0, bytes, widen(out, in, dtype, count, context));
}

static void timed_narrow_add(
    void *sum, float *x, enum dtype dtype, size_t count, const struct ops_context *context)
{
    double bytes = floats(2.0 * (double)count) + 2.0 * (double)(count * dtype_bytes(dtype));
    TIMED("round gradients", 0, bytes, narrow_add(sum, x, dtype, count, context));
}

static void timed_narrow_first(
    void *sum, float *x, enum dtype dtype, size_t count, const struct ops_context *context)
{
    double bytes = floats(2.0 * (double)count) + (double)(count * dtype_bytes(dtype));
    TIMED("round gradients", 0, bytes, narrow_first(sum, x, dtype, count, context));
}

/* ---- linear layers ---- */

enum half { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, HALF_COUNT };

/* Of which of the unit's tensors this is the weight. */
static const char *layer_name(enum half half, const void *weight, const struct ops_context *context)
{
    static const struct {
        const char *tensor, *name[HALF_COUNT];
    } layers[] = {
        {"qkvw", {"qkv forward", "qkv backward data", "qkv backward weights"}},
        {"attprojw", {"attproj forward", "attproj backward data", "attproj backward weights"}},
        {"fcw", {"fc forward", "fc backward data", "fc backward weights"}},
        {"fcprojw", {"fcproj forward", "fcproj backward data", "fcproj backward weights"}},
    };
    const struct ops_profile *own = context->profile;
    size_t place = (size_t)((const char *)weight - own->weights) / dtype_bytes(context->compute);
    size_t offset = own->begin + place;
    for (int i = 0; i < own->params->param_count; i++) {
        const struct param *param = &own->params->param[i];
        const char *tensor = strrchr(param->name, '.');
        if (param->unit != own->unit || param->offset != offset || tensor == NULL) continue;
        for (size_t k = 0; k < sizeof layers / sizeof *layers; k++)
            if (strcmp(layers[k].tensor, tensor + 1) == 0) return layers[k].name[half];
    }
    return "other linear";
}

static void timed_linear_forward(void *out, void *gelu_in, const void *in, const void *weight,
    const void *bias, size_t rows, size_t in_cols, size_t out_cols,
    const struct ops_context *context)
{
    double m = (double)rows, n = (double)out_cols, k = (double)in_cols;
    double outs = gelu_in != NULL ? 2.0 : 1.0, biases = bias != NULL ? n : 0.0;
    TIMED(layer_name(FORWARD, weight, context), 2.0 * m * n * k,
        elements(m * k + n * k + outs * m * n + biases, context),
        linear_forward(out, gelu_in, in, weight, bias, rows, in_cols, out_cols, context));
}

static void timed_linear_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const void *gelu_in, const void *weight, size_t rows, size_t in_cols,
    size_t out_cols, const struct ops_context *context)
{
    double m = (double)rows, n = (double)out_cols, k = (double)in_cols;
    double gelu = gelu_in != NULL ? m * k : 0.0, biases = d_bias != NULL ? n : 0.0;
    TIMED(layer_name(BACKWARD_WEIGHTS, weight, context), 2.0 * m * n * k,
        elements(m * n + m * k, context) + floats(2.0 * (n * k + biases)),
        linear_backward(
            NULL, d_weight, d_bias, d_out, in, NULL, weight, rows, in_cols, out_cols, context));
    TIMED(layer_name(BACKWARD_DATA, weight, context), 2.0 * m * n * k,
        elements(m * n + n * k + m * k + gelu, context),
        linear_backward(
            d_in, NULL, NULL, d_out, in, gelu_in, weight, rows, in_cols, out_cols, context));
}

static void timed_bias_residual_add(void *x, const void *residual, const void *bias, size_t rows,
    size_t cols, const struct ops_context *context)
{
    TIMED("bias and residual", 0, elements(3.0 * (double)rows * (double)cols, context),
        bias_residual_add(x, residual, bias, rows, cols, context));
}

/* ---- norms ---- */

static void timed_layernorm_forward(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, size_t rows, size_t cols,
    const struct ops_context *context)
{
    double x = (double)rows * (double)cols;
    TIMED("norm forward", 0,
        elements(2.0 * x + 2.0 * (double)cols, context) + floats(2.0 * (double)rows),
        layernorm_forward(out, mean, rstd, in, weight, bias, rows, cols, context));
}

static void timed_layernorm_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const float *mean, const float *rstd, const void *weight, size_t rows,
    size_t cols, const struct ops_context *context)
{
    double x = (double)rows * (double)cols;
    TIMED("norm backward", 0,
        elements(4.0 * x + (double)cols, context) + floats(2.0 * (double)rows + 4.0 * (double)cols),
        layernorm_backward(
            d_in, d_weight, d_bias, d_out, in, mean, rstd, weight, rows, cols, context));
}

static void timed_rmsnorm_forward(void *out, float *rstd, const void *in, const void *weight,
    size_t rows, size_t cols, const struct ops_context *context)
{
    double x = (double)rows * (double)cols;
    TIMED("norm forward", 0, elements(2.0 * x + (double)cols, context) + floats((double)rows),
        rmsnorm_forward(out, rstd, in, weight, rows, cols, context));
}

static void timed_rmsnorm_backward(void *d_in, float *d_weight, const void *d_out, const void *in,
    const float *rstd, const void *weight, size_t rows, size_t cols,
    const struct ops_context *context)
{
    double x = (double)rows * (double)cols;
    TIMED("norm backward", 0,
        elements(4.0 * x + (double)cols, context) + floats((double)rows + 2.0 * (double)cols),
        rmsnorm_backward(d_in, d_weight, d_out, in, rstd, weight, rows, cols, context));
}

/* ---- hidden, input ---- */

static void timed_swiglu_forward(
    void *out, const void *in, size_t rows, size_t cols, const struct ops_context *context)
{
    TIMED("swiglu forward", 0, elements(3.0 * (double)rows * (double)cols, context),
        swiglu_forward(out, in, rows, cols, context));
}

static void timed_swiglu_backward(void *d_in, const void *d_out, const void *in, size_t rows,
    size_t cols, const struct ops_context *context)
{
    TIMED("swiglu backward", 0, elements(5.0 * (double)rows * (double)cols, context),
        swiglu_backward(d_in, d_out, in, rows, cols, context));
}

/* Of the tokens, those whose row is in the table; all of them where the ids are not here to see. */
static double held_tokens(const int32_t *tokens, size_t first_row, size_t table_rows, size_t rows,
    const struct ops_context *context)
{
    size_t held = 0;
    if (context->ops->queued) return (double)rows;
    for (size_t r = 0; r < rows; r++) held += (size_t)tokens[r] - first_row < table_rows;
    return (double)held;
}

static void timed_embedding_forward(void *x, const int32_t *tokens, const void *table,
    size_t first_row, size_t table_rows, size_t rows, size_t cols,
    const struct ops_context *context)
{
    double held = held_tokens(tokens, first_row, table_rows, rows, context);
    TIMED("embedding forward", 0, elements(2.0 * held * (double)cols, context),
        embedding_forward(x, tokens, table, first_row, table_rows, rows, cols, context));
}

static void timed_embedding_backward(float *d_table, const int32_t *tokens, const void *d_x,
    size_t first_row, size_t table_rows, size_t rows, size_t cols,
    const struct ops_context *context)
{
    double x = held_tokens(tokens, first_row, table_rows, rows, context) * (double)cols;
    TIMED("embedding backward", 0, elements(x, context) + floats(2.0 * x),
        embedding_backward(d_table, tokens, d_x, first_row, table_rows, rows, cols, context));
}

static void timed_positions_forward(void *x, const void *table, size_t batch, size_t t, size_t cols,
    const struct ops_context *context)
{
    double one = (double)t * (double)cols;
    TIMED("positions forward", 0, elements(one * (2.0 * (double)batch + 1.0), context),
        positions_forward(x, table, batch, t, cols, context));
}

static void timed_positions_backward(float *d_table, const void *d_x, size_t batch, size_t t,
    size_t cols, const struct ops_context *context)
{
    double one = (double)t * (double)cols;
    TIMED("positions backward", 0, elements(one * (double)batch, context) + floats(2.0 * one),
        positions_backward(d_table, d_x, batch, t, cols, context));
}

/* ---- attention ---- */

/* Rows of B·T, and what one has of queries, keys and values, and of queries alone. */
static double attention_rows(struct attention_size size)
{
    return (double)size.batch * (double)size.t;
}

static double qkv_cols(struct attention_size size)
{
    return (double)(size.heads + 2 * size.kv_heads) * (double)size.head_cols;
}

static double attention_width(struct attention_size size)
{
    return (double)size.heads * (double)size.head_cols;
}

/* Of one of the products of a head's rows with all keys or values: forward has 2, backward 4. */
static double attention_flops(struct attention_size size)
{
    return 2.0 * attention_rows(size) * (double)size.t * attention_width(size);
}

static void timed_rotary_forward(
    void *qkv, const float *turns, struct attention_size size, const struct ops_context *context)
{
    double turned = attention_rows(size) * (double)((size.heads + size.kv_heads) * size.head_cols);
    TIMED("rotary forward", 0, elements(2.0 * turned, context),
        rotary_forward(qkv, turns, size, context));
}

static void timed_rotary_backward(
    void *d_qkv, const float *turns, struct attention_size size, const struct ops_context *context)
{
    double turned = attention_rows(size) * (double)((size.heads + size.kv_heads) * size.head_cols);
    TIMED("rotary backward", 0, elements(2.0 * turned, context),
        rotary_backward(d_qkv, turns, size, context));
}

static void timed_attention_forward(void *out, float *lse, void *scratch, const void *qkv,
    struct attention_size size, const struct ops_context *context)
{
    double rows = attention_rows(size);
    TIMED("attention forward", 2.0 * attention_flops(size),
        elements(rows * (qkv_cols(size) + attention_width(size)), context) +
            floats(rows * (double)size.heads),
        attention_forward(out, lse, scratch, qkv, size, context));
}

static void timed_attention_backward(void *d_qkv, void *scratch, const void *d_out, const void *qkv,
    const void *out, const float *lse, struct attention_size size,
    const struct ops_context *context)
{
    double rows = attention_rows(size);
    TIMED("attention backward", 4.0 * attention_flops(size),
        elements(2.0 * rows * (qkv_cols(size) + attention_width(size)), context) +
            floats(rows * (double)size.heads),
        attention_backward(d_qkv, scratch, d_out, qkv, out, lse, size, context));
}

/* ---- output head ---- */

static void timed_head_begin(
    float *max, float *sum, float *target_logit, size_t rows, const struct ops_context *context)
{
    TIMED("head statistics", 0, floats(3.0 * (double)rows),
        head_begin(max, sum, target_logit, rows, context));
}

static void timed_head_forward(float *max, float *sum, float *target_logit, void *scratch,
    const void *x, const int32_t *targets, struct head_rows block, size_t rows, size_t cols,
    const struct ops_context *context)
{
    double m = (double)rows, n = (double)block.count, k = (double)cols;
    TIMED("head forward", 2.0 * m * n * k, elements(m * k + n * k, context) + floats(7.0 * m),
        head_forward(max, sum, target_logit, scratch, x, targets, block, rows, cols, context));
}

static void timed_head_rescale(float *sum, const float *own_max, const float *max, size_t rows,
    const struct ops_context *context)
{
    TIMED("head statistics", 0, floats(4.0 * (double)rows),
        head_rescale(sum, own_max, max, rows, context));
}

static void timed_head_loss(double *loss, float *lse, const float *max, const float *sum,
    const float *target_logit, const int32_t *targets, size_t rows,
    const struct ops_context *context)
{
    TIMED("cross-entropy", 0, floats(5.0 * (double)rows),
        head_loss(loss, lse, max, sum, target_logit, targets, rows, context));
}

static void timed_head_backward(void *d_x, float *d_weight, void *scratch, const void *x,
    const float *lse, const int32_t *targets, float scale, struct head_rows block, size_t rows,
    size_t cols, const struct ops_context *context)
{
    double m = (double)rows, n = (double)block.count, k = (double)cols;
    TIMED("head backward", 4.0 * m * n * k,
        elements(3.0 * m * k + n * k, context) + floats(2.0 * (n * k + m)),
        head_backward(d_x, d_weight, scratch, x, lse, targets, scale, block, rows, cols, context));
}

/* ---- the table ---- */

void ops_profile_open(struct ops_profile *own, const struct model_ops *ops,
    const struct params *params, struct profile *profile)
{
    *own = (struct ops_profile){
        .table = *ops, .ops = ops, .profile = profile, .params = params, .unit = -1};
    struct model_ops *table = &own->table;
    table->clear = timed_clear;
    table->copy = timed_copy;
    table->widen = timed_widen;
    table->narrow_add = timed_narrow_add;
    table->narrow_first = timed_narrow_first;
    table->linear_forward = timed_linear_forward;
    table->linear_backward = timed_linear_backward;
    table->bias_residual_add = timed_bias_residual_add;
    table->layernorm_forward = timed_layernorm_forward;
    table->layernorm_backward = timed_layernorm_backward;
    table->rmsnorm_forward = timed_rmsnorm_forward;
    table->rmsnorm_backward = timed_rmsnorm_backward;
    table->swiglu_forward = timed_swiglu_forward;
    table->swiglu_backward = timed_swiglu_backward;
    table->embedding_forward = timed_embedding_forward;
    table->embedding_backward = timed_embedding_backward;
    table->positions_forward = timed_positions_forward;
    table->positions_backward = timed_positions_backward;
    table->rotary_forward = timed_rotary_forward;
    table->rotary_backward = timed_rotary_backward;
    table->attention_forward = timed_attention_forward;
    table->attention_backward = timed_attention_backward;
    table->head_begin = timed_head_begin;
    table->head_forward = timed_head_forward;
    table->head_rescale = timed_head_rescale;
    table->head_loss = timed_head_loss;
    table->head_backward = timed_head_backward;
}

/* ---- units ---- */

static const char *unit_name(int unit, enum unit_use use, const struct params *params)
{
    bool forward = use == UNIT_FORWARD;
    if (unit < params->embedding_units) return forward ? "rows # forward" : "rows # backward";
    if (unit == params->positions_unit) return forward ? "positions forward" : "positions backward";
    if (unit == params->final_norm_unit)
        return forward ? "final norm forward" : "final norm backward";
    return forward ? "block # forward" : "block # backward";
}

void ops_profile_enter(int unit, enum unit_use use, struct ops_profile *own)
{
    if (own == NULL) return;
    bool is_block = unit >= own->params->first_block_unit;
    int number = is_block ? unit - own->params->first_block_unit : unit;
    own->unit = unit;
    profile_begin_group(own->profile, unit_name(unit, use, own->params), number);
}

void ops_profile_weights(const void *weights, size_t begin, struct ops_profile *own)
{
    if (own == NULL) return;
    own->weights = weights;
    own->begin = begin;
}

void ops_profile_leave(struct ops_profile *own)
{
    if (own == NULL) return;
    own->weights = NULL;
    profile_end(own->profile, 0, 0);
}
