/* train: `ringzero train` reads options and calls train() on every rank; train_print.c shows what
 * it tells.
 *
 * With --on-death shrink, when ranks are lost:
 *
 *   train() fails ──► job_shrink() ──► newest checkpoint of this run ──► train() resumes, with fewer ranks
 *
 * What a lost rank owned, from stage 1 on, is nowhere but in the checkpoint; so all go back to it,
 * in every stage, and the bits are those of `--resume` with so many ranks.
 */
#include <inttypes.h>
#include <signal.h>
#include <unistd.h>

#include "bench/job.h"
#include "bench/programs.h"
#include "bench/train_options.h"
#include "bench/train_print.h"
#include "model/blas.h"
#include "shard/checkpoint_files.h"
#include "verbs/plural.h"

static void set_threads(const struct train_options *options, const struct job *job)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int ranks = bootstrap_local_nranks(job->bootstrap) > 0 ? bootstrap_local_nranks(job->bootstrap)
                                                           : job->nranks;
    int threads = options->threads > 0 ? options->threads : (int)(cores / ranks);
    blas_set_threads(threads > 0 ? threads : 1);
}

static enum status run_once(struct train_printer *printer, const struct train_config *config,
    const struct train_options *options, struct job *job)
{
    *printer = (struct train_printer){.options = options, .job = job, .history = printer->history};
    struct train_observer observer = train_printer_observer(printer);
    set_threads(options, job);
    if (config->profile) TRY(marks_measure(&printer->marks, config->dtype, job));
    enum status status = train(config, &observer, job->comm, job->bootstrap, job->device);
    if (status == STATUS_OK && options->trace != NULL && !printer->tracer.written && job->rank == 0)
        printf("# trace: none written: this run ended before its step %" PRIu64 "; expected "
               "--trace-steps of those that it does\n",
            config->trace_first);
    train_tracer_close(&printer->tracer, job);
    TRY(status);
    if (printer->status != STATUS_OK) status_set_text(printer->text);
    return printer->status;
}

/* The step of the newest checkpoint that this run has written, by rank 0's look at it; 0: none.
 * Where there is one it is beyond the step from which the run went on: train() has seen to it that
 * there was none before. collective. */
static enum status find_own_checkpoint(uint64_t *step, const struct train_printer *printer,
    const struct train_config *config, struct job *job)
{
    bool found = false;
    *step = 0;
    if (job->rank == 0 && printer->start_ns != 0) {
        enum status status = newest_step(step, &found, UINT64_MAX, config->checkpoint_dir);
        if (status != STATUS_OK) bootstrap_abort(status_text(), job->bootstrap);
        TRY(status);
    }
    if (!found || *step <= printer->first_step) *step = 0;
    return job_sum(step, job);
}

/* After ranks were lost: from where those that are left go on. Else the failure. */
static enum status go_on(struct train_config *config, enum status status,
    const struct train_printer *printer, struct job *job)
{
    uint64_t step = 0;
    do {
        TRY(job_shrink(status, job));
        status = find_own_checkpoint(&step, printer, config, job);
    } while (status != STATUS_OK); /* another was lost */
    if (step > 0) config->resume_dir = config->checkpoint_dir;
    memory_account_forget_peaks(job->device);
    bool regroups =
        config->shard_group > 0 && 
        job->nranks % (config->tensor * config->pipeline * config->shard_group) != 0;
    if (regroups) config->shard_group = 0;
    if (job->rank != 0) return STATUS_OK;
    printf("# %d rank%s from here on%s, ", job->nranks, PLURAL(job->nranks),
        regroups ? ", all in one shard group" : "");
    if (step > 0) printf("from the checkpoint of step %" PRIu64 "\n", step);
    else if (config->resume_dir != NULL) printf("from the checkpoint that the run resumed\n");
    else printf("from the start: there is no checkpoint yet\n");
    return STATUS_OK;
}

static enum status run_until_done(
    struct train_printer *printer, const struct train_options *options, struct job *job)
{
    struct train_config config = options->config;
    enum status status = run_once(printer, &config, options, job);
    while (status != STATUS_OK) {
        TRY(go_on(&config, status, printer, job));
        status = run_once(printer, &config, options, job);
    }
    return STATUS_OK;
}

static enum status run(struct job *job, void *argument)
{
    const struct train_options *options = argument;
    struct train_printer printer = {0};
    if (job->rank == 0) TRY(history_open(&printer.history, options));
    enum status status = run_until_done(&printer, options, job);
    if (status == STATUS_OK) return history_close(printer.history);
    char why[STATUS_TEXT_BYTES];
    snprintf(why, sizeof why, "%s", status_text());
    if (history_close(printer.history) != STATUS_OK) fprintf(stderr, "ringzero train: %s\n", status_text());
    status_set_text(why);
    return status;
}

int train_main(int argc, char **argv)
{
    struct train_options options = train_options_parse(argc, argv);
    struct job job;
    signal(SIGXFSZ,
        SIG_IGN); /* a file-size limit is an error of write(), which saving a checkpoint reports */
    job_prepare(&job, &options.common, 1);
    job.shrinks = options.shrinks;
    return job_run(&job, run, &options);
}
