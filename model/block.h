/* block: one transformer block: x ↦ x + attproj(attention(qkv(ln1 x))),
 * then x ↦ x + fcproj(hidden(fc(ln2 x))), ln1, ln2 and hidden as the architecture has them.
 *
 * Whatever backward needs is in a struct block_activations; forward writes all of it from x and the
 * weights alone, so a block can be run again from its kept input, into activations that blocks
 * share: activation checkpointing.
 *
 * Widths are those held here: width = heads · head_cols of C, qkv_cols = (heads + 2·kv_heads) ·
 * head_cols, hidden of H. Heads that share keys and values are held together. "own" rows are all, or
 * where x is cut (rows.h) this rank's.
 */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include <stddef.h>

#include "model/architecture.h"
#include "model/hooks.h"
#include "model/ops.h"
#include "model/unit.h"

struct block_shape {
    size_t batch, t, rows;   /* rows = batch · t */
    struct params_slice own; /* of them, those of x and of norms that are held here */
    bool cut;                /* others have the rest */
    bool norms_whole;        /* norms' outputs are kept whole; else own rows of them */
    size_t channels;
    size_t heads, kv_heads, head_cols, width, qkv_cols, hidden, fc_cols; /* held here */
    const struct architecture_table *architecture;
};

static inline struct attention_size block_attention(const struct block_shape *shape)
{
    return (struct attention_size){
        shape->batch, shape->t, shape->heads, shape->kv_heads, shape->head_cols};
}

/* The block's tensors in a unit, in the order of params.h: weights, of compute dtype, or gradients
 * of the same shapes, float32. Biases are NULL where the architecture has none. */
struct block_tensors {
    void *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw,
        *fcprojb;
};

/* What of a block is used together: its parts, where the unit was entered by parts (unit.h). */
enum block_part {
    BLOCK_QKV,     /* ln1w, ln1b, qkvw, qkvb */
    BLOCK_ATTPROJ, /* attprojw, attprojb, ln2w, ln2b */
    BLOCK_FC,      /* fcw, fcb */
    BLOCK_FCPROJ,  /* fcprojw, fcprojb */
    BLOCK_PARTS
};

/* A block's unit while the block has it. */
struct block_unit {
    struct unit *unit;
    const struct unit_room *room;
    struct block_tensors weights, gradients; /* of a part: from when its turn comes */
};

/* Activations are of compute dtype, statistics float32. */
struct block_activations {
    void *x;              /* (own, C): the input, which lies elsewhere */
    void *ln1;            /* (rows, C), or (own, C) */
    float *mean1, *rstd1; /* (own), (own); means NULL where norms have none */
    void *qkv;            /* (rows, qkv_cols) */
    void *att;            /* (rows, width) */
    float *lse;           /* (batch, heads, t) */
    void *x2;             /* (own, C): after attention */
    void *ln2;            /* as ln1 */
    float *mean2, *rstd2; /* (own), (own) */
    void *fc, *hidden;    /* (rows, fc_cols), (rows, hidden) */
};

/* Vectors of a block that norms have: weights and biases. */
#define BLOCK_VECTORS 4

/* Shared by all blocks. */
struct block_workspace {
    void *narrow;       /* block_narrow_cols() a row */
    void *wide;         /* (rows, max(fc_cols, qkv_cols)) */
    void *scores;       /* attention_scratch_bytes() */
    const float *turns; /* (at least t, 2, head_cols/2); NULL: positions are not rotary */
    void *whole;        /* (rows, C), where x is cut: what was gathered, or will be summed */
    float *vectors;     /* (BLOCK_VECTORS, C), there too: parts of norms' gradients */
};

/* C or the width; where fc is wider than hidden, hidden's gradient has no room in wide. */
static inline size_t block_narrow_cols(const struct block_shape *shape)
{
    size_t cols = shape->channels > shape->width ? shape->channels : shape->width;
    return shape->fc_cols > shape->hidden && shape->hidden > cols ? shape->hidden : cols;
}

/* A unit that has been entered, whole or by parts. */
struct block_unit block_unit_of(
    struct unit *unit, const struct unit_room *room, const struct block_shape *shape);

/* Elements of a unit, and where its tensors are in one of elements of dtype that is there whole. */
size_t block_tensor_elements(const struct block_shape *shape);
struct block_tensors block_tensors_at(
    void *unit, enum dtype dtype, const struct block_shape *shape);

/* Bytes of one block's activations without its input, and where each lies from `base` on; the input
 * is x. */
size_t block_activation_bytes(const struct block_shape *shape, enum dtype compute);
struct block_activations block_activations_at(
    void *base, void *x, const struct block_shape *shape, enum dtype compute);

/* Reads acts->x, writes all the other activations: what backward needs. The block's output is one
 * product away. errors: those of the tensor hooks. */
MUST_CHECK enum status block_recompute(const struct block_activations *acts,
    const struct block_unit *unit, const struct block_workspace *work,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks);

/* The same, and out (own, C) = the block's output. */
MUST_CHECK enum status block_forward(void *out, const struct block_activations *acts,
    const struct block_unit *unit, const struct block_workspace *work,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks);

/* d_x (own, C), in place: on entry the gradient of the output, on return of the input. The unit's
 * gradients +=. */
MUST_CHECK enum status block_backward(void *d_x, const struct block_activations *acts,
    const struct block_unit *unit, const struct block_workspace *work, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks);

#endif
