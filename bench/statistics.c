/* statistics: see statistics.h. */
#include "bench/statistics.h"

#include <math.h>
#include <stdlib.h>

#define GATHER_COUNT 4096 /* times of each rank in one all-gather */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest time that at least `percent` of 100 do not exceed. */
static double percentile(const double *sorted, int count, int percent)
{
    return sorted[((long)count * percent + 99) / 100 - 1];
}

struct statistics statistics_of(double *times_ns, int count)
{
    double mean = 0, square = 0;
    for (int i = 0; i < count; i++) mean += times_ns[i] / count;
    for (int i = 0; i < count; i++) square += (times_ns[i] - mean) * (times_ns[i] - mean) / count;
    qsort(times_ns, (size_t)count, sizeof *times_ns, compare);
    return (struct statistics){
        .mean_us = mean / 1e3,
        .p50_us = percentile(times_ns, count, 50) / 1e3,
        .p99_us = percentile(times_ns, count, 99) / 1e3,
        .cv = mean > 0 ? sqrt(square) / mean : 0,
    };
}

enum status statistics_of_slowest(struct statistics *statistics, double *times_ns, int count, struct job *job)
{
    int n = job->nranks;
    double *all = calloc((size_t)n * GATHER_COUNT, sizeof *all);
    if (all == NULL) return FAIL(STATUS_SYSTEM, "no memory for the times of %d ranks", n);
    enum status status = STATUS_OK;
    for (int done = 0; done < count && status == STATUS_OK; done += GATHER_COUNT) {
        int part = count - done < GATHER_COUNT ? count - done : GATHER_COUNT;
        for (int i = 0; i < part; i++) all[job->rank * part + i] = times_ns[done + i];
        status = bootstrap_all_gather(all, (size_t)part * sizeof *all, job->bootstrap);
        for (int i = 0; i < part * n && status == STATUS_OK; i++)
            if (all[i] > times_ns[done + i % part]) times_ns[done + i % part] = all[i];
    }
    free(all);
    if (status == STATUS_OK) *statistics = statistics_of(times_ns, count);
    return status;
}
