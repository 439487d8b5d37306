/* block: see block.h. Invariants: backward is forward read from the bottom up, one line for one;
 * what a device does is behind the table (I7). */
#include "model/block.h"

#include "model/rows.h"

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

/* Sets the part's tensors, which lie one after another. */
static void cut_part(struct block_tensors *tensors, enum block_part part, struct cutter *cutter,
    enum dtype dtype, const struct block_shape *shape)
{
    size_t channels = shape->channels;
    bool biases = shape->architecture->biases;
    switch (part) {
    case BLOCK_QKV:
        tensors->ln1w = cut(cutter, channels, dtype);
        tensors->ln1b = cut_if(biases, cutter, channels, dtype);
        tensors->qkvw = cut(cutter, shape->qkv_cols * channels, dtype);
        tensors->qkvb = cut_if(biases, cutter, shape->qkv_cols, dtype);
        return;
    case BLOCK_ATTPROJ:
        tensors->attprojw = cut(cutter, channels * shape->width, dtype);
        tensors->attprojb = cut_if(biases, cutter, channels, dtype);
        tensors->ln2w = cut(cutter, channels, dtype);
        tensors->ln2b = cut_if(biases, cutter, channels, dtype);
        return;
    case BLOCK_FC:
        tensors->fcw = cut(cutter, shape->fc_cols * channels, dtype);
        tensors->fcb = cut_if(biases, cutter, shape->fc_cols, dtype);
        return;
    case BLOCK_FCPROJ:
        tensors->fcprojw = cut(cutter, channels * shape->hidden, dtype);
        tensors->fcprojb = cut_if(biases, cutter, channels, dtype);
        return;
    case BLOCK_PARTS: return;
    }
}

/* Elements of a unit before the part; before BLOCK_PARTS: of all. */
static size_t elements_before(enum block_part part, const struct block_shape *shape)
{
    struct cutter cutter = {.align = 1};
    struct block_tensors tensors;
    for (enum block_part p = BLOCK_QKV; p < part; p++)
        cut_part(&tensors, p, &cutter, DTYPE_INT8, shape); /* a byte each */
    return cutter.used;
}

size_t block_tensor_elements(const struct block_shape *shape)
{
    return elements_before(BLOCK_PARTS, shape);
}

/* by_parts: each part begins where the unit does. */
static struct block_tensors tensors_at(
    void *unit, enum dtype dtype, bool by_parts, const struct block_shape *shape)
{
    struct cutter cutter = {.at = unit, .align = 1};
    struct block_tensors tensors;
    for (enum block_part p = BLOCK_QKV; p < BLOCK_PARTS; p++) {
        if (by_parts) cutter.used = 0;
        cut_part(&tensors, p, &cutter, dtype, shape);
    }
    return tensors;
}

struct block_tensors block_tensors_at(void *unit, enum dtype dtype, const struct block_shape *shape)
{
    return tensors_at(unit, dtype, false, shape);
}

struct block_unit block_unit_of(
    struct unit *unit, const struct unit_room *room, const struct block_shape *shape)
{
    return (struct block_unit){
        .unit = unit,
        .room = room,
        .weights = tensors_at(unit->weights, room->context->compute, unit->weights_by_parts, shape),
        .gradients = tensors_at(unit->gradients, DTYPE_FLOAT32, unit->gradients_by_parts, shape),
    };
}

/* The part's turn: its weights will be read. */
static void part_begins(
    enum block_part part, const struct block_unit *unit, const struct block_shape *shape)
{
    size_t begin = elements_before(part, shape), end = elements_before(part + 1, shape);
    unit_widen(begin, end - begin, unit->unit, unit->room);
}

/* Its gradients are complete. */
static void part_ends(
    enum block_part part, const struct block_unit *unit, const struct block_shape *shape)
{
    size_t begin = elements_before(part, shape), end = elements_before(part + 1, shape);
    unit_round(begin, end - begin, unit->unit, unit->room);
}

static struct block_activations cut_activations(
    struct cutter *cutter, enum dtype compute, const struct block_shape *shape)
{
    size_t rows = shape->rows, own = shape->own.count, channels = shape->channels;
    size_t norm = (shape->norms_whole ? rows : own) * channels;
    bool means = shape->architecture->biases;
    struct block_activations acts = {0};
    acts.ln1 = cut(cutter, norm, compute);
    acts.mean1 = cut_if(means, cutter, own, DTYPE_FLOAT32);
    acts.rstd1 = cut(cutter, own, DTYPE_FLOAT32);
    acts.qkv = cut(cutter, rows * shape->qkv_cols, compute);
    acts.att = cut(cutter, rows * shape->width, compute);
    acts.lse = cut(cutter, rows * shape->heads, DTYPE_FLOAT32);
    acts.x2 = cut(cutter, own * channels, compute);
    acts.ln2 = cut(cutter, norm, compute);
    acts.mean2 = cut_if(means, cutter, own, DTYPE_FLOAT32);
    acts.rstd2 = cut(cutter, own, DTYPE_FLOAT32);
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

/* Of a norm's output: where the own rows are kept, and all rows are read. */
static void *norm_own(
    void *norm, const struct block_shape *shape, const struct ops_context *context)
{
    return shape->norms_whole ? rows_own(norm, shape, context) : norm;
}

static void *norm_whole(
    void *norm, const struct block_workspace *work, const struct block_shape *shape)
{
    return shape->norms_whole ? norm : work->whole;
}

/* A norm's output, for backward: gathered again where only own rows are kept. */
static enum status norm_again(void *norm, const struct block_workspace *work,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks)
{
    if (shape->norms_whole) return STATUS_OK;
    return rows_gather(work->whole, norm, shape, context, hooks);
}

enum status block_recompute(const struct block_activations *acts,
    const struct block_unit *unit, const struct block_workspace *work,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks)
{
    const struct model_ops *ops = context->ops;
    const struct architecture_table *own = shape->architecture;
    size_t rows = shape->rows, channels = shape->channels, width = shape->width;
    size_t own_rows = shape->own.count;
    const struct block_activations *a = acts;
    const struct block_tensors *w = &unit->weights;
    void *ln1 = norm_own(a->ln1, shape, context), *in1 = norm_whole(a->ln1, work, shape);
    void *ln2 = norm_own(a->ln2, shape, context), *in2 = norm_whole(a->ln2, work, shape);
    void *product = shape->cut ? work->whole : a->x2;

    part_begins(BLOCK_QKV, unit, shape);
    own->norm_forward(ln1, a->mean1, a->rstd1, a->x, w->ln1w, w->ln1b, own_rows, channels, context);
    TRY(rows_gather(in1, ln1, shape, context, hooks));
    ops->linear_forward(
        a->qkv, NULL, in1, w->qkvw, w->qkvb, rows, channels, shape->qkv_cols, context);
    if (work->turns != NULL)
        ops->rotary_forward(a->qkv, work->turns, block_attention(shape), context);
    ops->attention_forward(a->att, a->lse, work->scores, a->qkv, block_attention(shape), context);
    part_begins(BLOCK_ATTPROJ, unit, shape);
    ops->linear_forward(product, NULL, a->att, w->attprojw, NULL, rows, width, channels, context);
    TRY(rows_sum(a->x2, product, shape, context, hooks));
    ops->bias_residual_add(a->x2, a->x, w->attprojb, own_rows, channels, context);

    own->norm_forward(
        ln2, a->mean2, a->rstd2, a->x2, w->ln2w, w->ln2b, own_rows, channels, context);
    TRY(rows_gather(in2, ln2, shape, context, hooks));
    part_begins(BLOCK_FC, unit, shape);
    own->hidden_forward(
        a->hidden, a->fc, in2, w->fcw, w->fcb, rows, channels, shape->hidden, context);
    return STATUS_OK;
}

enum status block_forward(void *out, const struct block_activations *acts,
    const struct block_unit *unit, const struct block_workspace *work,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks)
{
    const struct model_ops *ops = context->ops;
    const struct block_tensors *w = &unit->weights;
    size_t rows = shape->rows, channels = shape->channels;
    void *product = shape->cut ? work->whole : out;
    TRY(block_recompute(acts, unit, work, shape, context, hooks));
    part_begins(BLOCK_FCPROJ, unit, shape);
    ops->linear_forward(product, NULL, acts->hidden, w->fcprojw, NULL, rows, shape->hidden,
        channels, context);
    TRY(rows_sum(out, product, shape, context, hooks));
    ops->bias_residual_add(out, acts->x2, w->fcprojb, shape->own.count, channels, context);
    return STATUS_OK;
}

enum status block_backward(void *d_x, const struct block_activations *acts,
    const struct block_unit *unit, const struct block_workspace *work, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks)
{
    const struct model_ops *ops = context->ops;
    const struct architecture_table *own = shape->architecture;
    size_t rows = shape->rows, channels = shape->channels, width = shape->width;
    size_t own_rows = shape->own.count;
    const struct block_activations *a = acts;
    const struct block_tensors *w = &unit->weights, *d = &unit->gradients;
    void *d_fc = work->wide, *d_qkv = work->wide;       /* (rows, fc_cols), (rows, qkv_cols) */
    void *d_norm = work->narrow, *d_att = work->narrow; /* (rows, C), (rows, width) */
    void *d_norm_own = rows_own(d_norm, shape, context);
    void *d_out = shape->cut ? work->whole : d_x; /* (rows, C) */
    struct rows_vectors norms = {.parts = work->vectors};
    float *d_ln1w = rows_vector(d->ln1w, &norms, shape, context);
    float *d_ln1b = rows_vector(d->ln1b, &norms, shape, context);
    float *d_ln2w = rows_vector(d->ln2w, &norms, shape, context);
    float *d_ln2b = rows_vector(d->ln2b, &norms, shape, context);

    TRY(rows_gather(d_out, d_x, shape, context, hooks));
    part_begins(BLOCK_FCPROJ, unit, shape);
    own->hidden_backward(d_fc, work->narrow, d->fcprojw, d->fcprojb, d_out, a->hidden, a->fc,
        w->fcprojw, rows, shape->hidden, channels, context);
    part_ends(BLOCK_FCPROJ, unit, shape);
    TRY(norm_again(a->ln2, work, shape, context, hooks));
    part_begins(BLOCK_FC, unit, shape);
    ops->linear_backward(d_norm, d->fcw, d->fcb, d_fc, norm_whole(a->ln2, work, shape), NULL,
        w->fcw, rows, channels, shape->fc_cols, context);
    part_ends(BLOCK_FC, unit, shape);
    TRY(rows_sum(d_norm_own, d_norm, shape, context, hooks));
    part_begins(BLOCK_ATTPROJ, unit, shape);
    own->norm_backward(d_x, d_ln2w, d_ln2b, d_norm_own, a->x2, a->mean2, a->rstd2, w->ln2w,
        own_rows, channels, context);

    TRY(rows_gather(d_out, d_x, shape, context, hooks));
    ops->linear_backward(d_att, d->attprojw, d->attprojb, d_out, a->att, NULL, w->attprojw, rows,
        width, channels, context);
    part_ends(BLOCK_ATTPROJ, unit, shape);
    ops->attention_backward(
        d_qkv, work->scores, d_att, a->qkv, a->att, a->lse, block_attention(shape), context);
    if (work->turns != NULL)
        ops->rotary_backward(d_qkv, work->turns, block_attention(shape), context);
    TRY(norm_again(a->ln1, work, shape, context, hooks));
    part_begins(BLOCK_QKV, unit, shape);
    ops->linear_backward(d_norm, d->qkvw, d->qkvb, d_qkv, norm_whole(a->ln1, work, shape), NULL,
        w->qkvw, rows, channels, shape->qkv_cols, context);
    TRY(rows_sum(d_norm_own, d_norm, shape, context, hooks));
    own->norm_backward(d_x, d_ln1w, d_ln1b, d_norm_own, a->x, a->mean1, a->rstd1, w->ln1w, own_rows,
        channels, context);
    TRY(rows_add_vectors(&norms, shape, context, hooks));
    part_ends(BLOCK_QKV, unit, shape);
    return STATUS_OK;
}
