/* bucket: a unit's gradient goes to the ring in pieces of constant size, none of which moves a
 * chunk's border.
 *
 * A bucket is a column: the same sub-range of each of the N shards of a unit. Chunk c of every
 * bucket is rank c's, as it would be if the unit travelled whole, so every element is summed in the
 * same order whatever the bucket's size (I2, I3).
 *
 *   N = 4, S = 5, buckets of 2·N elements
 *
 *   | a a b b c | a a b b c | a a b b c | a a b b c |    a, b, c: three reductions
 *     shard 0     shard 1     shard 2     shard 3
 */
#ifndef SHARD_BUCKET_H
#define SHARD_BUCKET_H

#include <stdint.h>

#include "ring/ring.h"
#include "shard/layout.h"

/* Queues the sum over all ranks of one unit's float32 gradient, in place, bucket by bucket.
 * unit_gradient: N·S elements, padding zero; the main thread leaves it alone until the stream has
 * passed. bucket_bytes: of a whole column (at least one element of each shard is taken).
 * collective: the same unit and bucket_bytes on every rank. errors: the ring's. cost: ⌈4·N·S /
 * bucket_bytes⌉ operations; 2·N·S·(N−1)/N elements sent per rank. */
MUST_CHECK enum status bucket_all_reduce(struct span unit_gradient, int unit, size_t bucket_bytes,
    const struct layout *layout, struct ring_comm *comm, struct stream *stream);

/* The payload bytes that one such call makes `rank` send, from the plan. Pure. */
uint64_t bucket_predict_all_reduce(
    int unit, size_t bucket_bytes, const struct layout *layout, int rank);

#endif
