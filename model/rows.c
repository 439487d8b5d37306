/* rows: see rows.h. */
#include "model/rows.h"

#include <assert.h>

#include "model/tensor_parallel.h"

struct span rows_span(
    const void *x, size_t count, const struct block_shape *shape, const struct ops_context *context)
{
    return ops_span(x, ops_bytes(count * shape->channels, context), context);
}

void *rows_own(
    const void *whole, const struct block_shape *shape, const struct ops_context *context)
{
    return ops_at(whole, shape->own.begin * shape->channels, context);
}

enum status rows_sum(void *own, void *part, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks)
{
    struct span whole = rows_span(part, shape->rows, shape, context);
    assert(shape->cut || own == part);
    if (!shape->cut) return tensor_sum(hooks, whole, shape->rows * shape->channels);
    struct span mine = rows_span(own, shape->own.count, shape, context);
    return hooks->scatter_sum(hooks->tensor, mine, whole, shape->rows);
}

enum status rows_gather(void *whole, const void *own, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks)
{
    assert(shape->cut || own == whole);
    if (!shape->cut) return STATUS_OK;
    return hooks->gather(hooks->tensor, rows_span(whole, shape->rows, shape, context),
        rows_span(own, shape->own.count, shape, context), shape->rows);
}

float *rows_vector(float *to, struct rows_vectors *vectors, const struct block_shape *shape,
    const struct ops_context *context)
{
    if (!shape->cut || to == NULL) return to;
    assert(vectors->count < BLOCK_VECTORS);
    float *part = vectors->parts + (size_t)vectors->count * shape->channels;
    vectors->to[vectors->count++] = to;
    context->ops->clear(part, shape->channels * sizeof *part, context);
    return part;
}

enum status rows_add_vectors(const struct rows_vectors *vectors, const struct block_shape *shape,
    const struct ops_context *context, const struct model_hooks *hooks)
{
    size_t channels = shape->channels, count = (size_t)vectors->count * channels;
    if (count == 0) return STATUS_OK;
    TRY(tensor_sum(hooks, ops_span(vectors->parts, count * sizeof(float), context), count));
    for (int i = 0; i < vectors->count; i++)
        context->ops->narrow_add(vectors->to[i], vectors->parts + (size_t)i * channels,
            DTYPE_FLOAT32, channels, context);
    return STATUS_OK;
}
