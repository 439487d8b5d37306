/* limit: what the machine could do if the ring cost nothing, measured in the same run by all ranks
 * at once.
 *
 *   all edges shm, or one rank   memory copy     every rank copies a buffer of its own
 *   an edge over tcp             two-way stream  every rank writes to the next and reads from the
 * one before, over TCP connections of its own: no framing, no reduction, calls of 256 KiB
 *
 * A stream goes through buffers as large as the message, since that is what a collective has to read
 * and to write. Beside it stands the same stream out of, and into, 256 KiB that stay in the cache:
 * the connection alone, which a large message does not reach.
 */
#ifndef BENCH_LIMIT_H
#define BENCH_LIMIT_H

#include <stddef.h>

#include "bench/job.h"
#include "verbs/device.h"

#define LIMIT_LEAST_BUFFER_BYTES ((size_t)256 << 10)

struct limit {
    const char *what; /* "memory copy", "two-way TCP stream" or "one-way TCP stream" */
    size_t bytes;     /* of the buffers; a pass is as long, of a stream at least 16 MiB */
    double gbps; /* 1e9 bytes copied, or sent one way, per second and rank: the slowest rank's */
    double cached_gbps; /* of a stream: the same where the buffers are of 256 KiB. 0: no stream */
};

/* a and b: two buffers of at least `bytes` ≥ LIMIT_LEAST_BUFFER_BYTES each, which are overwritten.
 * A stream carries at least 16 MiB. collective. cost: about half a second, of a stream a second.
 * errors: PEER, TIMEOUT (naming the peer), SYSTEM, those of the bootstrap. */
MUST_CHECK enum status limit_measure(
    struct limit *limit, struct span a, struct span b, size_t bytes, struct job *job);

/* Its two halves, for whoever knows which: copies by all ranks at once; and a stream around the ranks, or from rank 0 to rank 1 alone
 * (gbps is one direction's in both). */
MUST_CHECK enum status limit_measure_copy(
    struct limit *limit, struct span a, struct span b, size_t bytes, struct job *job);
MUST_CHECK enum status limit_measure_stream(
    struct limit *limit, bool one_way, struct span a, struct span b, size_t bytes, struct job *job);

#endif
