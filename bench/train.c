/* train: `ringzero train` reads options and calls train() on every rank; train_print.c shows what it
 * tells.
 */
#include <signal.h>
#include <unistd.h>

#include "bench/job.h"
#include "bench/programs.h"
#include "bench/train_options.h"
#include "bench/train_print.h"
#include "model/blas.h"

static void set_threads(const struct train_options *options, const struct job *job)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int ranks = bootstrap_local_nranks(job->bootstrap) > 0 ? bootstrap_local_nranks(job->bootstrap)
                                                           : job->nranks;
    int threads = options->threads > 0 ? options->threads : (int)(cores / ranks);
    blas_set_threads(threads > 0 ? threads : 1);
}

static enum status run(struct job *job, void *argument)
{
    const struct train_options *options = argument;
    struct train_printer printer = {.options = options, .job = job};
    struct train_observer observer = train_printer_observer(&printer);
    set_threads(options, job);
    return train(&options->config, &observer, job->comm, job->bootstrap, job->device);
}

int train_main(int argc, char **argv)
{
    struct train_options options = train_options_parse(argc, argv);
    struct job job;
    signal(SIGXFSZ,
        SIG_IGN); /* a file-size limit is an error of write(), which saving a checkpoint reports */
    job_prepare(&job, &options.common, 1);
    return job_run(&job, run, &options);
}
