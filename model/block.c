/* block: see block.h. Invariants: backward is forward read from the bottom up, one line for one;
 * what a device does is behind the table (I7). */
#include "model/block.h"

#include "model/tensor_parallel.h"

/* Hands out consecutive pieces of `at`; with at NULL only `used` counts. */
struct cutter {
    char *at;
    size_t used;
    size_t align; /* pieces begin at multiples of this many bytes */
};

static void *cut(struct cutter *cutter, size_t elements, enum dtype dtype)
{
    char *piece = cutter->at == NULL ? NULL : cutter->at + cutter->used;
    size_t bytes = elements * dtype_bytes(dtype);
    cutter->used += (bytes + cutter->align - 1) / cutter->align * cutter->align;
    return piece;
}

static void *cut_if(bool there, struct cutter *cutter, size_t elements, enum dtype dtype)
{
    return there ? cut(cutter, elements, dtype) : NULL;
}

static struct block_tensors cut_tensors(
    struct cutter *cutter, enum dtype dtype, const struct block_shape *shape)
{
    size_t channels = shape->channels, width = shape->width, hidden = shape->hidden;
    bool biases = shape->architecture->biases;
    struct block_tensors tensors;
    tensors.ln1w = cut(cutter, channels, dtype);
    tensors.ln1b = cut_if(biases, cutter, channels, dtype);
    tensors.qkvw = cut(cutter, shape->qkv_cols * channels, dtype);
    tensors.qkvb = cut_if(biases, cutter, shape->qkv_cols, dtype);
    tensors.attprojw = cut(cutter, channels * width, dtype);
    tensors.attprojb = cut_if(biases, cutter, channels, dtype);
    tensors.ln2w = cut(cutter, channels, dtype);
    tensors.ln2b = cut_if(biases, cutter, channels, dtype);
    tensors.fcw = cut(cutter, shape->fc_cols * channels, dtype);
    tensors.fcb = cut_if(biases, cutter, shape->fc_cols, dtype);
    tensors.fcprojw = cut(cutter, channels * hidden, dtype);
    tensors.fcprojb = cut_if(biases, cutter, channels, dtype);
    return tensors;
}

size_t block_tensor_elements(const struct block_shape *shape)
{
    struct cutter cutter = {.align = 1};
    cut_tensors(&cutter, DTYPE_INT8, shape); /* a byte each */
    return cutter.used;
}

struct block_tensors block_tensors_at(void *unit, enum dtype dtype, const struct block_shape *shape)
{
    struct cutter cutter = {.at = unit, .align = 1};
    return cut_tensors(&cutter, dtype, shape);
}

static struct block_activations cut_activations(
    struct cutter *cutter, enum dtype compute, const struct block_shape *shape)
{
    size_t rows = shape->rows, channels = shape->channels;
    bool means = shape->architecture->biases;
    struct block_activations acts = {0};
    acts.ln1 = cut(cutter, rows * channels, compute);
    acts.mean1 = cut_if(means, cutter, rows, DTYPE_FLOAT32);
    acts.rstd1 = cut(cutter, rows, DTYPE_FLOAT32);
    acts.qkv = cut(cutter, rows * shape->qkv_cols, compute);
    acts.att = cut(cutter, rows * shape->width, compute);
    acts.lse = cut(cutter, rows * shape->heads, DTYPE_FLOAT32);
    acts.x2 = cut(cutter, rows * channels, compute);
    acts.ln2 = cut(cutter, rows * channels, compute);
    acts.mean2 = cut_if(means, cutter, rows, DTYPE_FLOAT32);
    acts.rstd2 = cut(cutter, rows, DTYPE_FLOAT32);
    acts.fc = cut(cutter, rows * shape->fc_cols, compute);
    acts.hidden = cut(cutter, rows * shape->hidden, compute);
    return acts;
}

#define ACTIVATION_ALIGN 64 /* bytes: a cache line */

size_t block_activation_bytes(const struct block_shape *shape, enum dtype compute)
{
    struct cutter cutter = {.align = ACTIVATION_ALIGN};
    cut_activations(&cutter, compute, shape);
    return cutter.used;
}

struct block_activations block_activations_at(
    void *base, void *x, const struct block_shape *shape, enum dtype compute)
{
    struct cutter cutter = {.at = base, .align = ACTIVATION_ALIGN};
    struct block_activations acts = cut_activations(&cutter, compute, shape);
    acts.x = x;
    return acts;
}

/* The sum over ranks of x (rows, C), of which each has a part. */
static enum status sum_rows(const void *x, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks)
{
    size_t count = shape->rows * shape->channels;
    return tensor_sum(hooks, ops_span(x, ops_bytes(count, context), context), count);
}

enum status block_recompute(const struct block_activations *acts,
    const struct block_tensors *weights, const struct block_workspace *work,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks)
{
    const struct model_ops *ops = context->ops;
    const struct architecture_table *own = shape->architecture;
    size_t rows = shape->rows, channels = shape->channels, width = shape->width;
    const struct block_activations *a = acts;
    const struct block_tensors *w = weights;

    own->norm_forward(a->ln1, a->mean1, a->rstd1, a->x, w->ln1w, w->ln1b, rows, channels, context);
    ops->linear_forward(
        a->qkv, NULL, a->ln1, w->qkvw, w->qkvb, rows, channels, shape->qkv_cols, context);
    if (work->turns != NULL)
        ops->rotary_forward(a->qkv, work->turns, block_attention(shape), context);
    ops->attention_forward(a->att, a->lse, work->scores, a->qkv, block_attention(shape), context);
    ops->linear_forward(a->x2, NULL, a->att, w->attprojw, NULL, rows, width, channels, context);
    TRY(sum_rows(a->x2, shape, context, hooks));
    ops->bias_residual_add(a->x2, a->x, w->attprojb, rows, channels, context);

    own->norm_forward(a->ln2, a->mean2, a->rstd2, a->x2, w->ln2w, w->ln2b, rows, channels, context);
    own->hidden_forward(
        a->hidden, a->fc, a->ln2, w->fcw, w->fcb, rows, channels, shape->hidden, context);
    return STATUS_OK;
}

enum status block_forward(void *out, const struct block_activations *acts,
    const struct block_tensors *weights, const struct block_workspace *work,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks)
{
    const struct model_ops *ops = context->ops;
    size_t rows = shape->rows, channels = shape->channels;
    TRY(block_recompute(acts, weights, work, shape, context, hooks));
    ops->linear_forward(
        out, NULL, acts->hidden, weights->fcprojw, NULL, rows, shape->hidden, channels, context);
    TRY(sum_rows(out, shape, context, hooks));
    ops->bias_residual_add(out, acts->x2, weights->fcprojb, rows, channels, context);
    return STATUS_OK;
}

enum status block_backward(void *d_x, const struct block_tensors *gradients,
    const struct block_activations *acts, const struct block_tensors *weights,
    const struct block_workspace *work, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks)
{
    const struct model_ops *ops = context->ops;
    const struct architecture_table *own = shape->architecture;
    size_t rows = shape->rows, channels = shape->channels, width = shape->width;
    const struct block_activations *a = acts;
    const struct block_tensors *w = weights, *d = gradients;
    void *d_fc = work->wide, *d_qkv = work->wide;       /* (rows, fc_cols), (rows, qkv_cols) */
    void *d_norm = work->narrow, *d_att = work->narrow; /* (rows, C), (rows, width) */

    own->hidden_backward(d_fc, work->narrow, d->fcprojw, d->fcprojb, d_x, a->hidden, a->fc,
        w->fcprojw, rows, shape->hidden, channels, context);
    ops->linear_backward(d_norm, d->fcw, d->fcb, d_fc, a->ln2, NULL, w->fcw, rows, channels,
        shape->fc_cols, context);
    TRY(sum_rows(d_norm, shape, context, hooks));
    own->norm_backward(
        d_x, d->ln2w, d->ln2b, d_norm, a->x2, a->mean2, a->rstd2, w->ln2w, rows, channels, context);

    ops->linear_backward(d_att, d->attprojw, d->attprojb, d_x, a->att, NULL, w->attprojw, rows,
        width, channels, context);
    ops->attention_backward(
        d_qkv, work->scores, d_att, a->qkv, a->att, a->lse, block_attention(shape), context);
    if (work->turns != NULL)
        ops->rotary_backward(d_qkv, work->turns, block_attention(shape), context);
    ops->linear_backward(d_norm, d->qkvw, d->qkvb, d_qkv, a->ln1, NULL, w->qkvw, rows, channels,
        shape->qkv_cols, context);
    TRY(sum_rows(d_norm, shape, context, hooks));
    own->norm_backward(
        d_x, d->ln1w, d->ln1b, d_norm, a->x, a->mean1, a->rstd1, w->ln1w, rows, channels, context);
    return STATUS_OK;
}
