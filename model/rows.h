/* rows: x, which goes from block to block, and what norms make of it: (rows, C), rows = B·T. The
 * ranks that share the model's tensors all hold it whole; or, with model_run.cut_rows, each holds
 * its own rows of it: sequence parallelism.
 *
 *                                   whole                   cut
 *   norm                            of all rows             of own rows
 *   column-parallel product         reads it                gather, and reads the whole
 *   row-parallel product            sum, in place           own rows of the sum: scatter_sum
 *   bias, residual                  on all rows             on own rows
 *   backward, from below            mirrored: dx is cut as x is, gathered where a product needs it
 *
 * A sum is a scatter_sum and a gather, so nearly the same is sent; what is held falls to 1/M. In
 * backward a product needs its input again, whole. Where norms' outputs are kept by rows, they are
 * gathered once more; blocks that are computed again share one set of activations, which can hold
 * them whole.
 *
 * Gradients of what every rank has whole: biases come from gathered gradients and have the bits of
 * one rank alone; of a norm's weights each rank has the part of its own rows, which are summed at the
 * end of the unit's use: another order than that of one rank alone.
 */
#ifndef MODEL_ROWS_H
#define MODEL_ROWS_H

#include "model/block.h"

/* x (count, C). */
struct span rows_span(const void *x, size_t count, const struct block_shape *shape,
    const struct ops_context *context);

/* Where in whole (rows, C) the own rows are. */
void *rows_own(
    const void *whole, const struct block_shape *shape, const struct ops_context *context);

/* own (own rows, C) = the sum over ranks of part (rows, C), which may be anything afterwards, but
 * for the own rows where own is in it. Where x is not cut, own is part. errors: the hooks'. */
MUST_CHECK enum status rows_sum(void *own, void *part, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks);

/* whole (rows, C) = the own rows of all ranks. own may be these rows of whole; where x is not cut,
 * it is whole. errors: the hooks'. */
MUST_CHECK enum status rows_gather(void *whole, const void *own, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks);

/* Gradients (C) of a unit's norms. */
struct rows_vectors {
    float *parts; /* block_workspace.vectors */
    int count;
    float *to[BLOCK_VECTORS];
};

/* Where an operation adds to the gradient `to`, zeros to begin with: where x is not cut, or there is
 * no such tensor, to itself. */
float *rows_vector(float *to, struct rows_vectors *vectors, const struct block_shape *shape,
    const struct ops_context *context);

/* The gradients += the sums over ranks of the parts. */
MUST_CHECK enum status rows_add_vectors(const struct rows_vectors *vectors,
    const struct block_shape *shape, const struct ops_context *context,
    const struct model_hooks *hooks);

#endif
