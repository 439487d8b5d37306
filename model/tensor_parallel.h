/* tensor_parallel: the hooks of tensor parallelism, with their defaults: one rank, which holds everything. What is
 * held of each tensor, params.h says; what of the rows of x between products, rows.h.
 *
 *   column-parallel (qkv, fc)         A rank holds some rows of W and computes some columns of y = x Wᵀ. Nothing is
 *                                     summed in forward; in backward each rank has a part of dx: sum.
 *   row-parallel (attproj, fcproj)    A rank holds some columns of W, and its x is a slice, so y is a sum of parts: sum,
 *                                     then the bias, which every rank holds whole. In backward dx is a slice already.
 */
#ifndef MODEL_TENSOR_PARALLEL_H
#define MODEL_TENSOR_PARALLEL_H

#include "model/hooks.h"

MUST_CHECK static inline enum status tensor_sum(
    const struct model_hooks *hooks, struct span x, size_t count)
{
    return hooks->sum == NULL ? STATUS_OK : hooks->sum(hooks->tensor, x, count);
}

MUST_CHECK static inline enum status tensor_max(
    const struct model_hooks *hooks, struct span x, size_t count)
{
    return hooks->max == NULL ? STATUS_OK : hooks->max(hooks->tensor, x, count);
}

#endif
