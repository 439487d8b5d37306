/* block: one transformer block: x ↦ x + attproj(attention(qkv(ln1 x))),
 * then x ↦ x + fcproj(gelu(fc(ln2 x))).
 *
 * Whatever backward needs is in a struct block_activations; forward writes all of it from x and the
 * weights alone, so a block can be run again from its kept input, into activations that blocks
 * share: activation checkpointing.
 *
 * Widths are those held here: width = heads · head_cols of C, hidden of 4C. With one rank they are
 * C and 4C.
 */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include <stddef.h>

#include "model/hooks.h"

struct block_shape {
    size_t batch, t, rows; /* rows = batch · t */
    size_t channels;
    size_t heads, head_cols, width, hidden; /* held here */
};

/* The block's tensors in a unit, in the order of params.h: weights, or gradients of the same
 * shapes. */
struct block_tensors {
    float *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw,
        *fcprojb;
};

struct block_activations {
    float *x;                   /* (rows, C): the input, which lies elsewhere */
    float *ln1, *mean1, *rstd1; /* (rows, C), (rows), (rows) */
    float *qkv;                 /* (rows, 3, heads, head_cols) */
    float *att, *lse;           /* (rows, width), (batch, heads, t) */
    float *x2;                  /* (rows, C): after attention */
    float *ln2, *mean2, *rstd2; /* (rows, C), (rows), (rows) */
    float *fc, *gelu;           /* (rows, hidden) each */
};

/* Shared by all blocks. */
struct block_workspace {
    float *narrow; /* (rows, max(C, width)) */
    float *wide;   /* (rows, max(hidden, 3·width)) */
    float *scores; /* attention_scratch_elements(t) */
};

size_t block_tensor_elements(const struct block_shape *shape);
struct block_tensors block_tensors_at(float *unit, const struct block_shape *shape);

/* Elements of one block's activations without its input, and where each lies from `base` on; the
 * input is x. */
size_t block_activation_elements(const struct block_shape *shape);
struct block_activations block_activations_at(
    float *base, float *x, const struct block_shape *shape);

/* Reads acts->x, writes all the other activations: what backward needs. The block's output is one
 * product away. errors: those of hooks->sum. */
MUST_CHECK enum status block_recompute(const struct block_activations *acts,
    const struct block_tensors *weights, const struct block_workspace *work,
    const struct block_shape *shape, const struct model_hooks *hooks);

/* The same, and out (rows, C) = the block's output. */
MUST_CHECK enum status block_forward(float *out, const struct block_activations *acts,
    const struct block_tensors *weights, const struct block_workspace *work,
    const struct block_shape *shape, const struct model_hooks *hooks);

/* d_x (rows, C), in place: on entry the gradient of the output, on return of the input.
 * gradients +=. */
MUST_CHECK enum status block_backward(float *d_x, const struct block_tensors *gradients,
    const struct block_activations *acts, const struct block_tensors *weights,
    const struct block_workspace *work, const struct block_shape *shape,
    const struct model_hooks *hooks);

#endif
