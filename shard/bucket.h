/* bucket: how a unit travels: in pieces of constant size, none of which moves a chunk's border.
 *
 * A bucket is a column: the same sub-range of each of the N shards of a unit. Chunk c of every
 * bucket is rank c's, as it would be if the unit travelled whole, so every element is summed in the
 * same order whatever the bucket's size (I2, I3).
 *
 *   N = 4, S = 5, buckets of 2·N elements
 *
 *   | a a b b c | a a b b c | a a b b c | a a b b c |    a, b, c: three reductions
 *     shard 0     shard 1     shard 2     shard 3
 *
 * With several shard groups a sum takes two levels: reduce-scatter inside the group, all-reduce of the
 * own shard over the groups (whole, so that no bucket moves its chunks), and an all-gather inside the
 * group where everybody needs the sum.
 */
#ifndef SHARD_BUCKET_H
#define SHARD_BUCKET_H

#include <stdint.h>

#include "ring/ring.h"
#include "shard/layout.h"

/* Who sends what to whom. */
struct bucket {
    const struct layout *layout;
    struct ring_comm *group, *replicas; /* as in stage.h; NULL for predictions */
    int rank;                           /* in the group */
    int replica, replica_count;
    enum dtype dtype;               /* of the elements */
    enum reduce_dtype reduce_dtype; /* what both communicators are set to: predictions need to know */
    size_t bytes;            /* of a whole column; at least one element of each shard is taken */
};

/* Queues the sum over all ranks of one unit's gradient, in place. whole: N·S elements, padding zero;
 * the main thread leaves it alone until the stream has passed. all_reduce: everybody gets all of it.
 * reduce_scatter: each rank gets its own shard, at its place; the rest is undefined. collective: the same
 * unit and bucket on every rank. errors: the ring's. cost: ⌈N·S·element / bytes⌉ operations of the group;
 * sent per rank, in elements: S·(N−1), twice that for all_reduce; with G groups 2·S·(G−1)/G more. */
MUST_CHECK enum status bucket_all_reduce(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream);
MUST_CHECK enum status bucket_reduce_scatter(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream);

/* Queues: whole (N·S elements) = the shards of the group's ranks. shard: this rank's, anywhere or at its
 * place in whole. broadcast: N broadcasts, each from the shard's owner, in the place of one all-gather.
 * cost: S·(N−1) elements sent per rank, either way. */
MUST_CHECK enum status bucket_gather(struct span whole, struct span shard, int unit, bool broadcast,
    const struct bucket *bucket, struct stream *stream);

/* Adds the payload bytes that one such call makes this rank send to sent[collective]. Pure. */
void bucket_predict_all_reduce(
    uint64_t sent[COLLECTIVE_COUNT], int unit, const struct bucket *bucket);
void bucket_predict_reduce_scatter(
    uint64_t sent[COLLECTIVE_COUNT], int unit, const struct bucket *bucket);
void bucket_predict_gather(
    uint64_t sent[COLLECTIVE_COUNT], int unit, bool broadcast, const struct bucket *bucket);

#endif
