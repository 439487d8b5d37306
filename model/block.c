/* block: see block.h. Invariant: backward is forward read from the bottom up, one line for one. */
#include "model/block.h"

#include "model/ops_host.h"
#include "model/tensor_parallel.h"

/* Hands out consecutive pieces of `at`; with at NULL only `used` counts. */
struct cutter {
    float *at;
    size_t used;
    size_t align; /* pieces begin at multiples of this many elements */
};

static float *cut(struct cutter *cutter, size_t elements)
{
    float *piece = cutter->at == NULL ? NULL : cutter->at + cutter->used;
    cutter->used += (elements + cutter->align - 1) / cutter->align * cutter->align;
    return piece;
}

static struct block_tensors cut_tensors(struct cutter *cutter, const struct block_shape *shape)
{
    size_t channels = shape->channels, width = shape->width, hidden = shape->hidden;
    struct block_tensors tensors;
    tensors.ln1w = cut(cutter, channels);
    tensors.ln1b = cut(cutter, channels);
    tensors.qkvw = cut(cutter, 3 * width * channels);
    tensors.qkvb = cut(cutter, 3 * width);
    tensors.attprojw = cut(cutter, channels * width);
    tensors.attprojb = cut(cutter, channels);
    tensors.ln2w = cut(cutter, channels);
    tensors.ln2b = cut(cutter, channels);
    tensors.fcw = cut(cutter, hidden * channels);
    tensors.fcb = cut(cutter, hidden);
    tensors.fcprojw = cut(cutter, channels * hidden);
    tensors.fcprojb = cut(cutter, channels);
    return tensors;
}

size_t block_tensor_elements(const struct block_shape *shape)
{
    struct cutter cutter = {.align = 1};
    cut_tensors(&cutter, shape);
    return cutter.used;
}

struct block_tensors block_tensors_at(float *unit, const struct block_shape *shape)
{
    struct cutter cutter = {.at = unit, .align = 1};
    return cut_tensors(&cutter, shape);
}

static struct block_activations cut_activations(
    struct cutter *cutter, const struct block_shape *shape)
{
    size_t rows = shape->rows, channels = shape->channels;
    struct block_activations acts = {0};
    acts.ln1 = cut(cutter, rows * channels);
    acts.mean1 = cut(cutter, rows);
    acts.rstd1 = cut(cutter, rows);
    acts.qkv = cut(cutter, rows * 3 * shape->width);
    acts.att = cut(cutter, rows * shape->width);
    acts.lse = cut(cutter, rows * shape->heads);
    acts.x2 = cut(cutter, rows * channels);
    acts.ln2 = cut(cutter, rows * channels);
    acts.mean2 = cut(cutter, rows);
    acts.rstd2 = cut(cutter, rows);
    acts.fc = cut(cutter, rows * shape->hidden);
    acts.gelu = cut(cutter, rows * shape->hidden);
    return acts;
}

#define ACTIVATION_ALIGN 16 /* elements: a cache line */

size_t block_activation_elements(const struct block_shape *shape)
{
    struct cutter cutter = {.align = ACTIVATION_ALIGN};
    cut_activations(&cutter, shape);
    return cutter.used;
}

struct block_activations block_activations_at(
    float *base, float *x, const struct block_shape *shape)
{
    struct cutter cutter = {.at = base, .align = ACTIVATION_ALIGN};
    struct block_activations acts = cut_activations(&cutter, shape);
    acts.x = x;
    return acts;
}

enum status block_recompute(const struct block_activations *acts,
    const struct block_tensors *weights, const struct block_workspace *work,
    const struct block_shape *shape, const struct model_hooks *hooks)
{
    size_t rows = shape->rows, channels = shape->channels, width = shape->width,
           hidden = shape->hidden;
    const struct block_activations *a = acts;
    const struct block_tensors *w = weights;

    layernorm_forward(a->ln1, a->mean1, a->rstd1, a->x, w->ln1w, w->ln1b, rows, channels);
    linear_forward(a->qkv, a->ln1, w->qkvw, w->qkvb, rows, channels, 3 * width);
    attention_forward(a->att, a->lse, work->scores, a->qkv, shape->batch, shape->t, shape->heads,
        shape->head_cols);
    linear_forward(a->x2, a->att, w->attprojw, NULL, rows, width, channels);
    TRY(tensor_sum(hooks, a->x2, rows * channels));
    bias_residual_add(a->x2, a->x, w->attprojb, rows, channels);

    layernorm_forward(a->ln2, a->mean2, a->rstd2, a->x2, w->ln2w, w->ln2b, rows, channels);
    linear_forward(a->fc, a->ln2, w->fcw, w->fcb, rows, channels, hidden);
    gelu_forward(a->gelu, a->fc, rows * hidden);
    return STATUS_OK;
}

enum status block_forward(float *out, const struct block_activations *acts,
    const struct block_tensors *weights, const struct block_workspace *work,
    const struct block_shape *shape, const struct model_hooks *hooks)
{
    size_t rows = shape->rows, channels = shape->channels;
    TRY(block_recompute(acts, weights, work, shape, hooks));
    linear_forward(out, acts->gelu, weights->fcprojw, NULL, rows, shape->hidden, channels);
    TRY(tensor_sum(hooks, out, rows * channels));
    bias_residual_add(out, acts->x2, weights->fcprojb, rows, channels);
    return STATUS_OK;
}

enum status block_backward(float *d_x, const struct block_tensors *gradients,
    const struct block_activations *acts, const struct block_tensors *weights,
    const struct block_workspace *work, const struct block_shape *shape,
    const struct model_hooks *hooks)
{
    size_t rows = shape->rows, channels = shape->channels, width = shape->width,
           hidden = shape->hidden;
    const struct block_activations *a = acts;
    const struct block_tensors *w = weights, *d = gradients;
    float *d_fc = work->wide, *d_qkv = work->wide;       /* (rows, hidden), (rows, 3, width) */
    float *d_norm = work->narrow, *d_att = work->narrow; /* (rows, C), (rows, width) */

    linear_backward(d_fc, d->fcprojw, d->fcprojb, d_x, a->gelu, w->fcprojw, rows, hidden, channels);
    gelu_backward(d_fc, a->fc, a->gelu, rows * hidden);
    linear_backward(d_norm, d->fcw, d->fcb, d_fc, a->ln2, w->fcw, rows, channels, hidden);
    TRY(tensor_sum(hooks, d_norm, rows * channels));
    layernorm_backward(
        d_x, d->ln2w, d->ln2b, d_norm, a->x2, a->mean2, a->rstd2, w->ln2w, rows, channels);

    linear_backward(
        d_att, d->attprojw, d->attprojb, d_x, a->att, w->attprojw, rows, width, channels);
    attention_backward(d_qkv, work->scores, d_att, a->qkv, a->att, a->lse, shape->batch, shape->t,
        shape->heads, shape->head_cols);
    linear_backward(d_norm, d->qkvw, d->qkvb, d_qkv, a->ln1, w->qkvw, rows, channels, 3 * width);
    TRY(tensor_sum(hooks, d_norm, rows * channels));
    layernorm_backward(
        d_x, d->ln1w, d->ln1b, d_norm, a->x, a->mean1, a->rstd1, w->ln1w, rows, channels);
    return STATUS_OK;
}
