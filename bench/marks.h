/* marks: what one rank's machine does at its best, measured in the same run by all ranks at once:
 * matrix products of the dtype that a model computes in, and copies of memory.
 */
#ifndef BENCH_MARKS_H
#define BENCH_MARKS_H

#include "bench/job.h"
#include "verbs/dtype.h"

struct marks {
    double gflops; /* of square products by this rank's share of the machine, the best of several */
    int size;      /* of them: rows */
    double copy_gbps; /* 1e9 bytes copied per second: the slowest rank's */
};

/* weights: their dtype. Where no memory is held: peaks of the ledger begin anew after it. collective.
 * cost: about a second. errors: SYSTEM (memory), CUDA, those of the bootstrap. */
MUST_CHECK enum status marks_measure(struct marks *marks, enum dtype weights, struct job *job);

#endif
