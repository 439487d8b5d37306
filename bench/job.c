/* job: see job.h. */
#include "bench/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/launch.h"
#include "verbs/log.h"

void job_prepare(struct job *job, const struct options *options, int default_ranks)
{
    *job = (struct job){.options = options, .config = bootstrap_config_single()};
    enum status status = launch_from_environment(&job->config, &job->launched);
    if (status == STATUS_INVALID) options_refuse(options, "%s", status_text());
    if (status != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", options->program, status_text());
        exit(1);
    }
    /* One process under a launcher may start ranks of its own: `srun -n 1 ringzero train --ranks 4`. */
    if (job->launched && job->config.nranks == 1 && options->ranks > 1) job->launched = false;
    job->nranks = options->ranks > 0 ? options->ranks : default_ranks;
    if (job->launched && options->ranks > 0 && options->ranks != job->config.nranks)
        options_refuse(options,
            "--ranks is %d but %s is %d, expected the same: leave --ranks out, or unset the launcher's variables",
            options->ranks, launch_size_variable(), job->config.nranks);
    if (job->launched) job->nranks = job->config.nranks;
    if (!job->launched || job->config.rank == 0) job->json = options_open_json(options);
}

static enum status open_and_run(struct job *job, job_body body, void *argument)
{
    struct ring_config config = {.transport = job->options->transport, .hierarchy = job->hierarchy};
    TRY(bootstrap_open(&job->bootstrap, &job->config));
    TRY(device_open_local(&job->device, job->options->device, bootstrap_local_rank(job->bootstrap)));
    TRY(ring_comm_open(&job->comm, &config, job->bootstrap, job->device));
    TRY(body(job, argument));
    if (job->json != NULL && (fflush(job->json) != 0 || ferror(job->json)))
        return FAIL(STATUS_SYSTEM, "--json %s: writing failed: %s; expected room for it",
            job->options->json, strerror(errno));
    return STATUS_OK;
}

/* This process is a rank now. */
static int run_rank(struct job *job, job_body body, void *argument)
{
    job->rank = job->config.rank;
    log_set_rank(job->rank, job->nranks);
    if (job->rank != 0 && job->json != NULL) {
        fclose(job->json); /* inherited; nothing was written yet */
        job->json = NULL;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* rows show when they are measured, also through a pipe */
    enum status status = open_and_run(job, body, argument);
    if (status != STATUS_OK) {
        fflush(stdout);
        fprintf(stderr, "%s: rank %d/%d: %s\n", job->options->program, job->rank, job->nranks,
            status_text());
        if (job->bootstrap != NULL) bootstrap_abort(status_text(), job->bootstrap);
    }
    ring_comm_close(job->comm);
    bootstrap_close(job->bootstrap);
    device_close(job->device);
    if (job->json != NULL) fclose(job->json);
    return status == STATUS_OK && fflush(stdout) == 0 ? 0 : 1;
}

int job_run(struct job *job, job_body body, void *argument)
{
    bool is_parent = false;
    int exit_code = 1;
    if (job->launched || job->nranks == 1) return run_rank(job, body, argument);
    fflush(NULL);
    enum launch_on_death on_death = job->shrinks ? LAUNCH_GO_ON : LAUNCH_END_ALL;
    if (launch_local(&job->config, &is_parent, &exit_code, job->nranks, on_death) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", job->options->program, status_text());
        return 1;
    }
    if (!is_parent) return run_rank(job, body, argument);
    if (job->json != NULL) fclose(job->json);
    return exit_code;
}

enum status job_shrink(enum status status, struct job *job)
{
    char text[STATUS_TEXT_BYTES];
    int before = job->nranks;
    bool lost = status == STATUS_PEER || status == STATUS_ABORTED || status == STATUS_TIMEOUT;
    if (!job->shrinks || !lost || !bootstrap_failed(job->bootstrap)) return status;
    snprintf(text, sizeof text, "%s", status_text());
    struct bootstrap *survivors;
    struct ring_comm *comm;
    enum status shrunk = ring_comm_shrink(&comm, &survivors, job->comm);
    job->comm = comm; /* the old one is closed */
    TRY(shrunk);
    bootstrap_close(job->bootstrap);
    job->bootstrap = survivors;
    job->rank = ring_comm_rank(comm);
    job->nranks = ring_comm_nranks(comm);
    log_set_rank(job->rank, job->nranks);
    if (job->nranks < before) return STATUS_OK;
    status_set_text(text); /* nobody was lost: a rank had a reason to stop */
    return status;
}

/* Every rank's 8 bytes, by rank; the caller frees them. */
static enum status gather_words(void **words, const void *own, struct job *job)
{
    char(*all)[8] = calloc((size_t)job->nranks, sizeof *all);
    *words = NULL;
    if (all == NULL) return FAIL(STATUS_SYSTEM, "out of memory for %d numbers", job->nranks);
    memcpy(all[job->rank], own, sizeof *all);
    enum status status = bootstrap_all_gather(all, sizeof *all, job->bootstrap);
    if (status == STATUS_OK) *words = all;
    else free(all);
    return status;
}

enum status job_max(double *value, struct job *job)
{
    void *words;
    TRY(gather_words(&words, value, job));
    const double *values = words;
    for (int r = 0; r < job->nranks; r++)
        if (values[r] > *value) *value = values[r];
    free(words);
    return STATUS_OK;
}

enum status job_sum(uint64_t *value, struct job *job)
{
    void *words;
    TRY(gather_words(&words, value, job));
    const uint64_t *values = words;
    *value = 0;
    for (int r = 0; r < job->nranks; r++) *value += values[r];
    free(words);
    return STATUS_OK;
}
