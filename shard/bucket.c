/* bucket: see bucket.h. What is done and what is predicted walk the same columns, so that what is
 * predicted is what is sent (I4). */
#include "shard/bucket.h"

#include <assert.h>

/* One bucket: elements [begin, begin + count) of every shard. */
struct column {
    size_t begin, count;
};

/* The next column of a unit; false after the last. Start with a zeroed one. */
static bool next_column(struct column *column, int unit, const struct bucket *bucket)
{
    size_t shard = bucket->layout->unit[unit].shard;
    size_t row = dtype_bytes(bucket->dtype) * (size_t)bucket->layout->nranks;
    size_t width = bucket->bytes / row > 0 ? bucket->bytes / row : 1;
    column->begin += column->count;
    column->count = width < shard - column->begin ? width : shard - column->begin;
    return column->count > 0;
}

static struct span part(struct span whole, size_t begin, size_t count, const struct bucket *bucket)
{
    size_t element = dtype_bytes(bucket->dtype);
    return span_part(whole, begin * element, count * element);
}

/* Columns of the whole unit: from `begin` of the first shard to `begin + count` of the last. */
static struct span column_span(
    struct span whole, const struct column *column, int unit, const struct bucket *bucket)
{
    size_t shard = bucket->layout->unit[unit].shard;
    return part(whole, column->begin,
        (size_t)(bucket->layout->nranks - 1) * shard + column->count, bucket);
}

static struct span own_span(
    struct span whole, const struct column *column, int unit, const struct bucket *bucket)
{
    size_t shard = bucket->layout->unit[unit].shard;
    return part(whole, (size_t)bucket->rank * shard + column->begin, column->count, bucket);
}

static bool is_whole(struct span whole, int unit, const struct bucket *bucket)
{
    return whole.bytes == layout_padded(bucket->layout, unit) * dtype_bytes(bucket->dtype);
}

/* A unit's own shard, whole. */
static struct span own_shard(struct span whole, int unit, const struct bucket *bucket)
{
    size_t shard = bucket->layout->unit[unit].shard;
    return part(whole, (size_t)bucket->rank * shard, shard, bucket);
}

enum status bucket_reduce_scatter(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream)
{
    size_t shard = bucket->layout->unit[unit].shard;
    assert(is_whole(whole, unit, bucket));
    for (struct column column = {0}; next_column(&column, unit, bucket);)
        TRY(ring_reduce_scatter_column(own_span(whole, &column, unit, bucket),
            column_span(whole, &column, unit, bucket), column.count, shard, bucket->dtype,
            REDOP_SUM, bucket->group, stream));
    if (bucket->replica_count == 1) return STATUS_OK;
    struct span own = own_shard(whole, unit, bucket);
    return ring_all_reduce(own, own, shard, bucket->dtype, REDOP_SUM, bucket->replicas, stream);
}

enum status bucket_all_reduce(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream)
{
    size_t shard = bucket->layout->unit[unit].shard;
    assert(is_whole(whole, unit, bucket));
    if (bucket->replica_count > 1) {
        TRY(bucket_reduce_scatter(whole, unit, bucket, stream));
        return bucket_gather(
            whole, own_shard(whole, unit, bucket), unit, false, bucket, stream);
    }
    for (struct column column = {0}; next_column(&column, unit, bucket);) {
        struct span all = column_span(whole, &column, unit, bucket);
        TRY(ring_all_reduce_column(all, all, column.count, shard, bucket->dtype, REDOP_SUM,
            bucket->group, stream));
    }
    return STATUS_OK;
}

enum status bucket_gather(struct span whole, struct span shard, int unit, bool broadcast,
    const struct bucket *bucket, struct stream *stream)
{
    size_t count = bucket->layout->unit[unit].shard;
    assert(is_whole(whole, unit, bucket));
    if (!broadcast)
        return ring_all_gather(whole, shard, count, bucket->dtype, bucket->group, stream);
    for (int owner = 0; owner < bucket->layout->nranks; owner++)
        TRY(ring_broadcast(part(whole, (size_t)owner * count, count, bucket), shard, count,
            bucket->dtype, owner, bucket->group, stream));
    return STATUS_OK;
}

/* ---- predictions ---- */

static void predict(uint64_t sent[COLLECTIVE_COUNT], struct ring_call call,
    const struct ring_comm *comm, int nranks, int rank, const struct bucket *bucket)
{
    call.dtype = bucket->dtype;
    call.reduce_dtype = bucket->reduce_dtype;
    sent[call.collective] += ring_predict_sent_bytes(&call, nranks, rank, comm);
}

static void predict_group(
    uint64_t sent[COLLECTIVE_COUNT], struct ring_call call, const struct bucket *bucket)
{
    predict(sent, call, bucket->group, bucket->layout->nranks, bucket->rank, bucket);
}

/* The columns of a unit are equal but for the last: two predictions tell all. */
static void predict_columns(uint64_t sent[COLLECTIVE_COUNT], enum collective collective, int unit,
    const struct bucket *bucket)
{
    struct column column = {0};
    size_t shard = bucket->layout->unit[unit].shard;
    for (size_t done = 0; done < shard && next_column(&column, unit, bucket);) {
        size_t times = (shard - done) / column.count;
        uint64_t once[COLLECTIVE_COUNT] = {0};
        struct ring_call call = {.collective = collective, .redop = REDOP_SUM,
            .count = column.count, .stride = shard};
        predict_group(once, call, bucket);
        sent[collective] += once[collective] * times;
        done += times * column.count;
        column.begin = done - column.count;
    }
}

void bucket_predict_reduce_scatter(
    uint64_t sent[COLLECTIVE_COUNT], int unit, const struct bucket *bucket)
{
    struct ring_call sum = {.collective = COLLECTIVE_ALL_REDUCE, .redop = REDOP_SUM,
        .count = bucket->layout->unit[unit].shard};
    predict_columns(sent, COLLECTIVE_REDUCE_SCATTER, unit, bucket);
    if (bucket->replica_count > 1)
        predict(sent, sum, bucket->replicas, bucket->replica_count, bucket->replica, bucket);
}

void bucket_predict_all_reduce(
    uint64_t sent[COLLECTIVE_COUNT], int unit, const struct bucket *bucket)
{
    if (bucket->replica_count > 1) {
        bucket_predict_reduce_scatter(sent, unit, bucket);
        bucket_predict_gather(sent, unit, false, bucket);
    } else predict_columns(sent, COLLECTIVE_ALL_REDUCE, unit, bucket);
}

void bucket_predict_gather(
    uint64_t sent[COLLECTIVE_COUNT], int unit, bool broadcast, const struct bucket *bucket)
{
    struct ring_call call = {
        .collective = COLLECTIVE_ALL_GATHER, .count = bucket->layout->unit[unit].shard};
    if (!broadcast) {
        predict_group(sent, call, bucket);
        return;
    }
    call.collective = COLLECTIVE_BROADCAST;
    for (call.root = 0; call.root < bucket->layout->nranks; call.root++)
        predict_group(sent, call, bucket);
}
