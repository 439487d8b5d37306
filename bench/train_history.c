/* train_history: see train_history.h. */
#include "bench/train_history.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/plot.h"
#include "verbs/plural.h"

/* ---- opening ---- */

static enum status open_file(FILE **file, const char *option, const char *path)
{
    *file = fopen(path, "we");
    if (*file != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s %s cannot be written: %s", option, path, strerror(errno));
}

/* Whether it can be written; nothing is lost of what is there, and none is left where none was. */
static enum status try_file(const char *option, const char *path)
{
    bool is_new = path != NULL && access(path, F_OK) != 0;
    FILE *file = path == NULL ? NULL : fopen(path, "ae");
    if (path != NULL && file == NULL)
        return FAIL(STATUS_SYSTEM, "%s %s cannot be written: %s", option, path, strerror(errno));
    if (file != NULL) fclose(file);
    if (is_new) unlink(path);
    return STATUS_OK;
}

enum status history_open(struct train_history **out, const struct train_options *options)
{
    *out = NULL;
    TRY(try_file("--trace", options->trace));
    if (options->plot == NULL && options->report == NULL && options->main_log == NULL) return STATUS_OK;
    TRY(try_file("--plot", options->plot));
    TRY(try_file("--report", options->report));
    struct train_history *history = calloc(1, sizeof *history);
    if (history == NULL) return FAIL(STATUS_SYSTEM, "no memory for the history of a run");
    history->options = options;
    history->per_point = 1;
    enum status status = STATUS_OK;
    if (options->main_log != NULL)
        status = open_file(&history->main_log, "--main-log", options->main_log);
    if (status == STATUS_OK) *out = history;
    else free(history);
    return status;
}

/* ---- points ---- */

static uint64_t steps_of(const struct history_point *point)
{
    return point->last - point->first + 1;
}

static double mean(double a, uint64_t as, double b, uint64_t bs)
{
    return (a * (double)as + b * (double)bs) / (double)(as + bs);
}

/* Both as one; b follows a. */
static struct history_point join(const struct history_point *a, const struct history_point *b)
{
    uint64_t as = steps_of(a), bs = steps_of(b);
    return (struct history_point){
        .first = a->first,
        .last = b->last,
        .loss = mean(a->loss, as, b->loss, bs),
        .norm = mean(a->norm, as, b->norm, bs),
        .lr = mean(a->lr, as, b->lr, bs),
        .tokens_per_s = mean(a->tokens_per_s, as, b->tokens_per_s, bs),
        .step_ms = mean(a->step_ms, as, b->step_ms, bs),
        .wait_ms = mean(a->wait_ms, as, b->wait_ms, bs),
        .skipped = a->skipped + b->skipped,
    };
}

static void add_point(struct train_history *history, const struct history_point *step)
{
    struct history_point *last = history->points > 0 ? &history->point[history->points - 1] : NULL;
    if (last != NULL && steps_of(last) < history->per_point) {
        *last = join(last, step);
        return;
    }
    if (history->points == HISTORY_POINTS) {
        for (int i = 0; i < HISTORY_POINTS / 2; i++)
            history->point[i] = join(&history->point[2 * i], &history->point[2 * i + 1]);
        history->points = HISTORY_POINTS / 2;
        history->per_point *= 2;
    }
    history->point[history->points++] = *step;
}

/* Every other goes when they are too many. */
static void add_validation(struct train_history *history, uint64_t step, double loss)
{
    if (history->validations == HISTORY_POINTS) {
        for (int i = 0; i < HISTORY_POINTS / 2; i++)
            history->validation[i] = history->validation[2 * i + 1];
        history->validations = HISTORY_POINTS / 2;
    }
    history->validation[history->validations++] = (struct history_validation){step, loss};
}

/* ---- what train() tells ---- */

void history_start(struct train_history *history, const struct train_start *start)
{
    if (history == NULL) return;
    while (history->points > 0 && history->point[history->points - 1].last > start->first_step)
        history->points--;
    while (history->validations > 0 &&
           history->validation[history->validations - 1].step > start->first_step)
        history->validations--;
    history->started = true;
    history->start = *start;
    history->start.params = NULL;
    history->model = start->params->config;
    history->elements = start->params->whole_elements;
}

/* llm.c's: validation ("test") losses are tel, scores of hellaswag eval, training losses trl. */
static void write_main_log(FILE *log, const struct train_report *report)
{
    if (log == NULL) return;
    if (report->validated) fprintf(log, "s:%" PRIu64 " tel:%.4f\n", report->step, report->validation_loss);
    if (report->chosen)
        fprintf(log, "s:%" PRIu64 " eval:%.4f\n", report->step,
            (double)report->score.by_mean / (double)report->choice_count);
    fprintf(log, "s:%" PRIu64 " trl:%.4f lr:%.6f norm:%.2f\n", report->step, report->loss,
        (double)report->lr, report->norm);
    fflush(log);
}

void history_step(struct train_history *history, const struct train_report *report)
{
    if (history == NULL) return;
    const struct history_point step = {
        .first = report->step,
        .last = report->step,
        .loss = report->loss,
        .norm = report->norm,
        .lr = (double)report->lr,
        .tokens_per_s = report->tokens_per_s,
        .step_ms = report->step_ms,
        .wait_ms = report->wait_ms,
        .skipped = report->skipped,
    };
    add_point(history, &step);
    if (report->validated) add_validation(history, report->step, report->validation_loss);
    write_main_log(history->main_log, report);
}

void history_ledger(struct train_history *history, const struct ledger *ledger)
{
    if (history == NULL) return;
    history->ledger = *ledger;
    history->has_ledger = true;
}

/* ---- the end ---- */

static enum status write_picture(const struct train_history *history)
{
    char title[256];
    snprintf(title, sizeof title, "%s, %d rank%s, stage %d", history->options->run.model, history->start.nranks,
        PLURAL(history->start.nranks), history->options->config.stage);
    const struct plot plot = {
        .file = history->options->plot,
        .title = title,
        .x_label = "step",
        .y_label = "loss, nats per token",
        .y2_label = "tokens/s",
        .x_linear = true,
        .series = {{"loss", 2, PLOT_THIN}, {"validation", 3, PLOT_LINE}, {"tokens/s", 4, PLOT_RIGHT}},
    };
    FILE *data = plot_open(&plot);
    if (data == NULL) return STATUS_SYSTEM;
    int v = 0;
    for (int i = 0; i < history->points; i++) {
        const struct history_point *point = &history->point[i];
        fprintf(data, "%" PRIu64 " %.9g ? %.9g\n", point->last, point->loss, point->tokens_per_s);
        for (; v < history->validations && history->validation[v].step <= point->last; v++)
            fprintf(data, "%" PRIu64 " ? %.9g ?\n", history->validation[v].step, history->validation[v].loss);
    }
    return plot_close(data, &plot);
}

static enum status write_page(const struct train_history *history)
{
    FILE *page;
    TRY(open_file(&page, "--report", history->options->report));
    history_write_page(page, history);
    bool failed = ferror(page) != 0;
    failed |= fclose(page) != 0;
    if (!failed) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "--report: writing %s failed: %s", history->options->report, strerror(errno));
}

enum status history_close(struct train_history *history)
{
    if (history == NULL) return STATUS_OK;
    const struct train_options *options = history->options;
    enum status status = STATUS_OK;
    if (history->main_log != NULL && fclose(history->main_log) != 0)
        status = FAIL(STATUS_SYSTEM, "--main-log: writing %s failed: %s", options->main_log, strerror(errno));
    bool any = history->points > 0;
    if (any && options->plot != NULL && status == STATUS_OK) status = write_picture(history);
    if (any && options->report != NULL && status == STATUS_OK) status = write_page(history);
    free(history);
    return status;
}
