/* bucket: see bucket.h. Both functions walk the same columns, so that what is predicted is what is
 * sent (I4). */
#include "shard/bucket.h"

#include <assert.h>

/* The width of a unit's columns: elements of each shard. */
static size_t column_width(size_t bucket_bytes, int nranks)
{
    size_t width = bucket_bytes / (sizeof(float) * (size_t)nranks);
    return width > 0 ? width : 1;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

enum status bucket_all_reduce(struct span unit_gradient, int unit, size_t bucket_bytes,
    const struct layout *layout, struct ring_comm *comm, struct stream *stream)
{
    size_t shard = layout->unit[unit].shard, width = column_width(bucket_bytes, layout->nranks);
    assert(unit_gradient.bytes == layout_padded(layout, unit) * sizeof(float));
    for (size_t begin = 0; begin < shard; begin += width) {
        size_t count = smaller(width, shard - begin);
        size_t elements = (size_t)(layout->nranks - 1) * shard + count;
        struct span column =
            span_part(unit_gradient, begin * sizeof(float), elements * sizeof(float));
        TRY(ring_all_reduce_column(
            column, column, count, shard, DTYPE_FLOAT32, REDOP_SUM, comm, stream));
    }
    return STATUS_OK;
}

uint64_t bucket_predict_all_reduce(
    int unit, size_t bucket_bytes, const struct layout *layout, int rank)
{
    size_t shard = layout->unit[unit].shard, width = column_width(bucket_bytes, layout->nranks);
    uint64_t bytes = 0;
    for (size_t begin = 0; begin < shard; begin += width) {
        struct ring_call call = {.collective = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_FLOAT32, .redop = REDOP_SUM,
            .count = smaller(width, shard - begin), .stride = shard};
        bytes += ring_predict_sent_bytes(&call, layout->nranks, rank, NULL);
    }
    return bytes;
}
