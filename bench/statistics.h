/* statistics: how the times of single operations are spread.
 */
#ifndef BENCH_STATISTICS_H
#define BENCH_STATISTICS_H

#include "bench/job.h"

struct statistics {
    double mean_us;
    double p50_us, p99_us; /* nearest rank */
    double cv;             /* coefficient of variation: standard deviation ÷ mean */
};

/* Of count > 0 times, which are sorted. */
struct statistics statistics_of(double *times_ns, int count);

/* Of the slowest rank's time in each operation; times_ns is overwritten. The same on every rank. collective. */
MUST_CHECK enum status statistics_of_slowest(
    struct statistics *statistics, double *times_ns, int count, struct job *job);

#endif
