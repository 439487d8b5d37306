/* bare_pair: two processes that share memory, each on a core of its own: what the bare marks (bare_edge, bare_copy) run in. Nothing
 * is checked and nobody waits politely: they say what the machine can do, not what a library should.
 */
#ifndef BENCH_COMPARE_BARE_PAIR_H
#define BENCH_COMPARE_BARE_PAIR_H

#include <stddef.h>
#include <stdint.h>

/* In shared memory, zeroed. */
struct bare_gate {
    uint64_t count, pad[511];
};

/* One turn of a wait that spins; spins: from 0. */
void bare_relax(int *spins);

/* Returns when both ranks have called it. turn: each rank's own, from 0. */
void bare_meet(struct bare_gate *gate, uint64_t *turn);

/* Of `count` nanoseconds, which are sorted: microseconds. */
double bare_median_us(int64_t *times, int count);

/* `bytes` of zeroes on huge pages where there are any; NULL: no memory, or no bytes. free() gives it back. */
void *bare_array(size_t bytes);

/* Runs it as rank 0 and, in a child that dies with it, as rank 1, over `bytes` of zeroed shared memory: an exit code. */
int bare_run(int (*run)(void *world, int rank, int argc, char **argv), size_t bytes, int argc, char **argv);

#endif
