/* job: how a program becomes one rank of a job, and how a failing rank ends.
 *
 *     struct job job;
 *     job_prepare(&job, &options, 2);            bad input ends the process here, before any rank starts
 *     if (root >= job.nranks) options_refuse(…);
 *     return job_run(&job, body, &argument);     body runs once on every rank
 *
 * Launched ranks   a launcher's variables are set (verbs/launch.h): the process is one rank.
 * --ranks N        the process starts N ranks by fork() and waits for them; one rank alone is the
 * process itself.
 *
 * Invariant I5: a rank that fails says why in one line, "ringzero bench: rank 0/4: …", tells the
 * others through the bootstrap, and exits with 1.
 */
#ifndef BENCH_JOB_H
#define BENCH_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "bench/options.h"
#include "ring/ring.h"
#include "verbs/bootstrap.h"
#include "verbs/device.h"
#include "verbs/status.h"

struct job {
    const struct options *options;
    struct bootstrap_config config;
    bool launched; /* by the environment */
    int nranks;    /* known from job_prepare() on; fewer after job_shrink() */
    bool shrinks;  /* the others go on when a rank is lost: set before job_run(), */
    enum hierarchy hierarchy; /* and this too; 0: as the environment says */

    /* In body only. */
    int rank;
    struct bootstrap *bootstrap;
    struct device *device;
    struct ring_comm *comm;
    FILE *json; /* rank 0's, when --json was given; else NULL */
};

/* Finds out how many ranks there are: from the environment, else --ranks, else default_ranks; and
 * opens --json where this process is or starts rank 0. options must outlive the job. Bad input,
 * also ranks that disagree with the environment, ends the process with one line and 2; a launcher that
 * does not tell where rank 0 is, with 1. */
void job_prepare(struct job *job, const struct options *options, int default_ranks);

/* Runs body on every rank, between opening and closing bootstrap, device and communicator. Returns
 * the exit code of this process: 0, or 1 when a rank failed (128 + signal if one was killed). Where the job shrinks, ranks that were
 * lost do not count, unless rank 0 was. */
typedef enum status (*job_body)(struct job *job, void *argument);
int job_run(struct job *job, job_body body, void *argument);

/* After a call that failed with `status`: where the job shrinks, and ranks were lost, the others are a job of their own on return: with
 * new ranks, bootstrap and communicator. Else the failure itself. collective over those that are left. */
MUST_CHECK enum status job_shrink(enum status status, struct job *job);

/* The largest of all ranks' values, and their sum; the same on every rank. collective. */
MUST_CHECK enum status job_max(double *value, struct job *job);
MUST_CHECK enum status job_sum(uint64_t *value, struct job *job);

#endif
