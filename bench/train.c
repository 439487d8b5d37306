/* train: `ringzero train` reads options, calls train() on every rank, and prints what it tells:
 * rank 0 for people and as JSON.
 */
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "bench/job.h"
#include "bench/programs.h"
#include "bench/train_options.h"
#include "model/blas.h"
#include "verbs/clock.h"

#define PRINT_EVERY_NS ((int64_t)500 * 1000000)

struct printer {
    const struct train_options *options;
    struct job *job;
    uint64_t first_step, last_step;
    int64_t start_ns;   /* of the first step */
    int64_t printed_ns; /* the last line */
};

/* ---- the observer: rank 0 prints ---- */

static void print_start(void *context, const struct train_start *start)
{
    struct printer *printer = context;
    const struct gpt2_config *model = &start->params->config;
    printer->first_step = start->first_step;
    printer->last_step = start->last_step;
    printer->start_ns = clock_ns();
    if (printer->job->rank != 0) return;
    printf("# model  %s: %.2f M parameters, L%d NH%d C%d V%d, T up to %d\n",
        printer->options->model, (double)start->params->elements * 1e-6, model->layers,
        model->heads, model->channels, model->vocab, model->max_t);
    printf("# data   %" PRIu64 " tokens to train on, %" PRIu64 " held out, %s\n",
        start->train_tokens, start->validation_tokens,
        start->text ? "bytes of text" : "token shards");
    printf("# ranks  %d by %s, stage %d, %" PRIu64 " tokens a step\n", start->nranks,
        start->transport, printer->options->config.stage, start->tokens_per_step);
    if (start->first_step > 0) printf("# resumed after step %" PRIu64 "\n", start->first_step);
    printf("#    step      loss        lr      norm    tokens/s   step ms   waiting      left\n");
}

static void print_step_json(FILE *json, const struct train_report *report)
{
    fprintf(json,
        "{\"step\":%" PRIu64 ",\"loss\":%.17g,\"lr\":%.9g,\"norm\":%.17g,\"tokens_per_s\":%.1f,"
                             "\"step_ms\":%.3f,\"wait_ms\":%.3f,"
        "\"skipped\":%d",
        report->step, report->loss, (double)report->lr, report->norm, report->tokens_per_s,
        report->step_ms, report->wait_ms, report->skipped);
    if (report->validated) fprintf(json, ",\"val_loss\":%.17g", report->validation_loss);
    fputs("}\n", json);
    fflush(json);
}

/* "1:02:03" or "2:03". */
static void duration(char text[32], double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, 32, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else snprintf(text, 32, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

static void print_step(void *context, const struct train_report *report)
{
    struct printer *printer = context;
    if (printer->job->rank != 0) return;
    if (printer->job->json != NULL) print_step_json(printer->job->json, report);
    int64_t now = clock_ns();
    bool first = report->step == printer->first_step + 1, last = report->step == printer->last_step;
    if (!first && !last && !report->validated && now - printer->printed_ns < PRINT_EVERY_NS) return;
    printer->printed_ns = now;
    char left[32];
    uint64_t done = report->step - printer->first_step;
    double per_step = (double)(now - printer->start_ns) * 1e-9 / (double)done;
    duration(left, per_step * (double)(printer->last_step - report->step));
    printf("%9" PRIu64 "  %8.4f  %8.2e  %8.3f  %10.0f  %8.1f  %7.1f%%  %8s\n", report->step,
        report->loss, (double)report->lr, report->norm, report->tokens_per_s, report->step_ms,
        100.0 * report->wait_ms / report->step_ms, left);
    if (report->validated)
        printf("# validation after step %" PRIu64 ": %.4f nats per token\n", report->step,
            report->validation_loss);
}

static void print_saved(void *context, const char *directory, uint64_t step)
{
    struct printer *printer = context;
    if (printer->job->rank == 0) printf("# checkpoint of step %" PRIu64 ": %s\n", step, directory);
}

static void print_byte(int32_t byte)
{
    if (byte == '\n' || byte == '\t' || (byte >= 0x20 && byte < 0x7f)) putchar(byte);
    else printf("\\x%02x", (unsigned)byte);
}

static void print_sample(
    void *context, const int32_t *tokens, int count, int prompt_count, bool text)
{
    struct printer *printer = context;
    if (printer->job->rank != 0) return;
    printf("# sample: %d tokens after a prompt of %d\n", count - prompt_count, prompt_count);
    for (int i = 0; i < count; i++) {
        if (text) print_byte(tokens[i]);
        else printf("%s%" PRId32, i == 0 ? "" : " ", tokens[i]);
    }
    putchar('\n');
}

static void print_ledger_json(FILE *json, const struct ledger *ledger)
{
    fputs("{\"ledger\":{", json);
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_entry *entry = &ledger->entry[i];
        fprintf(json, "%s\"%s\":{\"measured\":%" PRIu64, i == 0 ? "" : ",", entry->name,
            entry->measured);
        if (entry->has_prediction) fprintf(json, ",\"predicted\":%" PRIu64 "}", entry->predicted);
        else fputs(",\"predicted\":null}", json);
    }
    fprintf(json, "},\"ok\":%s}\n", ledger->ok ? "true" : "false");
}

static void print_ledger(void *context, const struct ledger *ledger)
{
    struct printer *printer = context;
    if (printer->job->rank != 0) return;
    if (printer->job->json != NULL) print_ledger_json(printer->job->json, ledger);
    printf("# ledger of rank 0, bytes       measured        predicted\n");
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_entry *entry = &ledger->entry[i];
        printf("#   %-20s %15" PRIu64, entry->name, entry->measured);
        if (entry->has_prediction)
            printf("  %15" PRIu64 "%s\n", entry->predicted,
                entry->measured == entry->predicted ? "" : "  differs");
        else printf("  %15s\n", "-");
    }
    printf("#   for %" PRIu64 " steps; the paper counts 2Ψ(N-1)/N a step: %.0f\n", ledger->steps,
        ledger->paper_sent_bytes);
    printf("# measured and predicted: %s\n", ledger->ok ? "OK" : "DIFFERS");
}

/* ---- every rank ---- */

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
    struct printer printer = {.options = options, .job = job};
    struct train_observer observer = {
        .context = &printer,
        .start = print_start,
        .step = print_step,
        .saved = print_saved,
        .sample = print_sample,
        .ledger = print_ledger,
    };
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
