/* sweep: one measuring loop for all whom peers.sh compares, so that they differ in nothing but the collective itself.
 *
 * A program (mpi_bench.c, ring_bench.c) brings the operations and a maximum over ranks; sweep_run() reads the
 * options, checks every element of one operation of each point, measures, and prints on rank 0, a line a point:
 *
 *     point COLLECTIVE BYTES in|out MICROSECONDS OPERATIONS
 *
 * BYTES is the whole array, also of reduce_scatter and all_gather, of at least one element a rank. The time is the
 * median of batches; that of a batch is the mean of its operations, on the slowest rank. broadcast is in place only,
 * as MPI's is.
 */
#ifndef BENCH_COMPARE_SWEEP_H
#define BENCH_COMPARE_SWEEP_H

#include <stdbool.h>
#include <stddef.h>

enum sweep_collective { SWEEP_ALL_REDUCE, SWEEP_REDUCE_SCATTER, SWEEP_ALL_GATHER, SWEEP_BROADCAST, SWEEP_COLLECTIVES };

struct sweep_call {
    enum sweep_collective collective;
    bool in_place;
    size_t count;       /* float32: of the array; of one rank's part for reduce_scatter and all_gather */
    float *send, *recv; /* where the call is to read and write, in place too; broadcast: recv alone */
};

struct sweep_peer {
    int rank, nranks;
    bool
        in_place_part_first; /* in place, reduce_scatter puts the own part at the beginning of the array (MPI), not in its place */
    void *context;
    /* 0, or not: then it has said why. */
    int (*operate)(const struct sweep_call *call, void *context);
    /* Memory for a buffer of the sweep, as this library prefers it (--memory own); NULL: there is none. */
    float *(*allocate)(size_t bytes, void *context);
    void (*release)(float *buffer, size_t bytes, void *context);
    /* The largest of all ranks' values, the same on every rank. Also the barrier before a batch. */
    int (*maximum)(double *value, void *context);
};

struct sweep_options {
    bool collectives[SWEEP_COLLECTIVES];
    bool in_place, out_of_place;
    size_t sizes[32];
    int size_count;
    bool own_memory; /* else from malloc, as most programs have theirs */
    double point_ms; /* about so long each point is measured */
};

/* Options: --collectives LIST --sizes LIST --modes in,out --ms N --memory plain|own. Returns 0, or 2 after a line that says what is wrong. */
int sweep_parse(struct sweep_options *options, int argc, char **argv);

/* Returns the program's exit code. collective. */
int sweep_run(const struct sweep_options *options, const struct sweep_peer *peer);

#endif
