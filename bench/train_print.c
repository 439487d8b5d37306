/* train_print: see train_print.h. */
#include "bench/train_print.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "model/model.h"
#include "verbs/clock.h"
#include "verbs/plural.h"

#define PRINT_EVERY_NS ((int64_t)500 * 1000000)

/* ---- what is about to run ---- */

/* "weights whole, gradients and optimizer 1/4" */
static void print_keeps(const struct train_start *start)
{
    const struct stage_keeps *keeps = &start->keeps;
    const struct {
        const char *name;
        enum keep keep;
    } kept[] = {{"weights", keeps->weights}, {"gradients", keeps->gradients},
        {"optimizer", keeps->optimizer}};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        printf("%s %s ", i > 0 ? "," : "", kept[i].name);
        if (kept[i].keep == KEEP_ALL) printf("whole");
        else printf("1/%d", start->shard_group);
    }
}

static void print_held(const struct train_start *start)
{
    uint64_t total = 0;
    printf("# holds ");
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        if (tag == MEMORY_OFFLOADED) continue;
        total += start->held_bytes[tag];
        if (start->held_bytes[tag] > 0)
            printf(" %s %.2f,", memory_tag_name((enum memory_tag)tag),
                (double)start->held_bytes[tag] * 0x1p-20);
    }
    printf(" together %.2f MiB a rank, and what the ring needs", (double)total * 0x1p-20);
    if (start->held_bytes[MEMORY_OFFLOADED] > 0)
        printf("; %.2f in host memory", (double)start->held_bytes[MEMORY_OFFLOADED] * 0x1p-20);
    putchar('\n');
}

static void print_dtypes(const struct train_printer *printer)
{
    const struct train_config *config = &printer->options->config;
    const char *master = config->stochastic_rounding
                             ? " rounded by chance from a float32 master copy"
                             : " with a float32 master copy";
    printf("# dtype  weights %s%s, gradients %s", dtype_name(config->dtype),
        config->dtype != DTYPE_FLOAT32 ? master : "", dtype_name(config->gradient_dtype));
    if (config->reduce_dtype != config->gradient_dtype)
        printf(", summed in %s", dtype_name(config->reduce_dtype));
    if (activation_recomputes(config->activations))
        printf("; activations of blocks are computed again");
    if (activation_is_carried(config->activations))
        printf(", from inputs kept in parts%s",
            config->activations == ACTIVATION_OFFLOADED ? " in host memory" : "");
    putchar('\n');
}

static void print_start(void *context, const struct train_start *start)
{
    struct train_printer *printer = context;
    printer->first_step = start->first_step;
    printer->last_step = start->last_step;
    printer->start_ns = clock_ns();
    printer->scales = printer->options->config.gradient_dtype == DTYPE_FLOAT16;
    int seq = printer->options->config.seq;
    printer->flops_per_token =
        model_flops_per_token(start->params, seq != 0 ? seq : start->params->config.max_t);
    if (printer->job->rank != 0) return;
    history_start(printer->history, start);
    char shape[MODEL_SHAPE_BYTES];
    model_shape(shape, &start->params->config);
    printf("# model  %s: %.2f M parameters, %s\n", printer->options->run.model,
        (double)start->params->whole_elements * 1e-6, shape);
    printf("# data   %" PRIu64 " tokens to train on, %" PRIu64 " held out, %s\n",
        start->train_tokens, start->validation_tokens,
        start->text ? "bytes of text" : "token shards");
    printf("# ranks  %d by %s, %" PRIu64 " token%s a step\n", start->nranks,
        start->transport, start->tokens_per_step, PLURAL(start->tokens_per_step));
    if (start->grid.tensor_count > 1)
        printf("# tensor %d ranks share every tensor, %d time%s: each has %.2f M parameters\n",
            start->grid.tensor_count, start->grid.data_count, PLURAL(start->grid.data_count),
            (double)start->params->elements * 1e-6);
    if (start->grid.tensor_count > 1 && printer->options->config.sequence_parallel)
        printf(
            "# rows   each of them holds 1/%d of the rows of norms, residuals, inputs of blocks\n",
            start->grid.tensor_count);
    if (start->grid.pipeline_count > 1) {
        const struct pipeline_place place = {
            0, start->grid.pipeline_count, printer->options->config.accumulate};
        printf(
            "# pipe   %d stages share the blocks, %d micro-batch%s a step: each has nothing to do "
            "for %.1f %% of it, if all take as long\n",
            place.stage_count, place.micro_count, place.micro_count == 1 ? "" : "es",
            100.0 * pipeline_bubble(&place));
    }
    printf("# stage  %d:", printer->options->config.stage);
    print_keeps(start);
    if (start->shard_group < start->grid.data_count)
        printf("; %d groups of %d rank%s", start->grid.data_count / start->shard_group,
            start->shard_group, PLURAL(start->shard_group));
    putchar('\n');
    print_dtypes(printer);
    print_held(start);
    if (start->first_step > 0) printf("# resumed after step %" PRIu64 "\n", start->first_step);
    printf("#    step      loss        lr      norm    tokens/s   step ms   waiting      left%s\n",
        printer->scales ? "     scale" : "");
}

/* ---- steps ---- */

/* JSON has no infinity and no NaN. */
static void print_number(FILE *json, const char *name, double value)
{
    if (isfinite(value)) fprintf(json, ",\"%s\":%.17g", name, value);
    else fprintf(json, ",\"%s\":null", name);
}

static void print_step_json(FILE *json, const struct train_report *report)
{
    fprintf(json, "{\"step\":%" PRIu64, report->step);
    print_number(json, "loss", report->loss);
    fprintf(json, ",\"lr\":%.9g", (double)report->lr);
    print_number(json, "norm", report->norm);
    fprintf(json,
        ",\"tokens_per_s\":%.3f,\"step_ms\":%.3f,\"wait_ms\":%.3f,\"skipped\":%d,"
        "\"loss_scale\":%.17g",
        report->tokens_per_s, report->step_ms, report->wait_ms, report->skipped,
        report->loss_scale);
    if (report->validated) print_number(json, "val_loss", report->validation_loss);
    if (report->chosen) {
        print_number(
            json, "hellaswag", (double)report->score.by_mean / (double)report->choice_count);
        print_number(
            json, "hellaswag_sum", (double)report->score.by_sum / (double)report->choice_count);
    }
    train_print_step_ledger(json, &report->ledger);
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

static void print_row(const struct train_printer *printer, const struct train_report *report)
{
    char left[32];
    uint64_t done = report->step - printer->first_step;
    double per_step = (double)(printer->printed_ns - printer->start_ns) * 1e-9 / (double)done;
    duration(left, per_step * (double)(printer->last_step - report->step));
    printf("%9" PRIu64 "  %8.4f  %8.2e  %8.3f  %10.0f  %8.1f  %7.1f%%  %8s", report->step,
        report->loss, (double)report->lr, report->norm, report->tokens_per_s, report->step_ms,
        100.0 * report->wait_ms / report->step_ms, left);
    if (printer->scales) printf("  %8g", report->loss_scale);
    printf("%s\n", report->skipped ? "  skipped: the gradient overflowed" : "");
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* After the last step: sorts what was kept. */
static void print_summary(struct train_printer *printer, const struct train_report *report)
{
    size_t count = printer->times < TRAIN_TIMES ? (size_t)printer->times : TRAIN_TIMES;
    double tokens = report->tokens_per_s * report->step_ms * 1e-3; /* of one step */
    if (count == 0) return;
    qsort(printer->step_ms, count, sizeof *printer->step_ms, compare_times);
    double median_ms = printer->step_ms[count / 2];
    double rate = tokens / (median_ms * 1e-3);
    printf("# median of %zu step%s: %.2f ms, %.0f tokens/s, %.4g TFLOP/s of the model's\n", count,
        PLURAL(count), median_ms, rate, rate * printer->flops_per_token * 1e-12);
}

static void print_step(void *context, const struct train_report *report)
{
    struct train_printer *printer = context;
    if (printer->job->rank != 0) return;
    if (printer->job->json != NULL) print_step_json(printer->job->json, report);
    history_step(printer->history, report);
    int64_t now = clock_ns();
    bool first = report->step == printer->first_step + 1, last = report->step == printer->last_step;
    bool special = first || last || report->validated || report->chosen || report->skipped;
    if (!first) printer->step_ms[printer->times++ % TRAIN_TIMES] = report->step_ms;
    if (!special && now - printer->printed_ns < PRINT_EVERY_NS) return;
    printer->printed_ns = now;
    print_row(printer, report);
    if (report->validated)
        printf("# validation after step %" PRIu64 ": %.4f nats per token\n", report->step,
            report->validation_loss);
    if (report->chosen)
        printf("# hellaswag after step %" PRIu64 ": %.4f by mean loss, %.4f by sum, of %" PRIu64
               " question%s\n",
            report->step, (double)report->score.by_mean / (double)report->choice_count,
            (double)report->score.by_sum / (double)report->choice_count, report->choice_count,
            PLURAL(report->choice_count));
    if (last) print_summary(printer, report);
}

/* ---- the rest ---- */

static void print_saved(void *context, const char *directory, uint64_t step)
{
    struct train_printer *printer = context;
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
    struct train_printer *printer = context;
    if (printer->job->rank != 0) return;
    printf("# sample: %d token%s after a prompt of %d\n", count - prompt_count,
        PLURAL(count - prompt_count), prompt_count);
    for (int i = 0; i < count; i++) {
        if (text) print_byte(tokens[i]);
        else printf("%s%" PRId32, i == 0 ? "" : " ", tokens[i]);
    }
    putchar('\n');
}

static void print_bubble(void *context, const struct train_bubble *bubble)
{
    struct train_printer *printer = context;
    if (printer->job->rank != 0) return;
    printf(
        "# bubble (P-1)/(A+P-1) = %.1f %%, P = %d, A = %d; ranks were waiting for %.1f %% of their "
        "steps\n",
        100.0 * bubble->predicted, bubble->stage_count, bubble->micro_count,
        100.0 * bubble->measured);
    if (printer->job->json == NULL) return;
    fprintf(printer->job->json,
        "{\"bubble\":{\"stages\":%d,\"micro_batches\":%d,\"predicted\":%.6f,\"measured\":%.6f}}\n",
        bubble->stage_count, bubble->micro_count, bubble->predicted, bubble->measured);
}

/* What an observer has met is the run's failure, once train() has returned. */
static void note(enum status status, struct train_printer *printer)
{
    if (status == STATUS_OK || printer->status != STATUS_OK) return;
    printer->status = status;
    snprintf(printer->text, sizeof printer->text, "%s", status_text());
}

static void print_profile(void *context, const struct train_profile *profile)
{
    struct train_printer *printer = context;
    note(train_print_profile(profile, printer), printer);
}

static void print_trace(void *context, const struct train_trace *trace)
{
    struct train_printer *printer = context;
    const struct train_config *config = &printer->options->config;
    snprintf(printer->trace_title, sizeof printer->trace_title,
        "%s, stage %d, %d rank%s by %s: from step %" PRIu64 " on", printer->options->run.model,
        config->stage, printer->job->nranks, PLURAL(printer->job->nranks),
        ring_comm_transport(printer->job->comm),
        printer->first_step + config->trace_first);
    printer->tracer.file = printer->options->trace;
    printer->tracer.title = printer->trace_title;
    note(train_tracer_told(trace, &printer->tracer, printer->job), printer);
}

static void print_ledger(void *context, const struct ledger *ledger)
{
    struct train_printer *printer = context;
    if (printer->job->rank != 0) return;
    train_print_ledger(ledger, printer->job->json);
    history_ledger(printer->history, ledger);
}

struct train_observer train_printer_observer(struct train_printer *printer)
{
    return (struct train_observer){
        .context = printer,
        .start = print_start,
        .step = print_step,
        .saved = print_saved,
        .sample = print_sample,
        .bubble = print_bubble,
        .profile = print_profile,
        .trace = print_trace,
        .ledger = print_ledger,
    };
}
