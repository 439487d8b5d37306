/* evaluate: `ringzero evaluate` tells how good a model is: its loss on held-out tokens, and how often it
 * finds the right one of several endings the likeliest. One process, forwards only.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/json_line.h"
#include "bench/model_file.h"
#include "bench/programs.h"
#include "bench/progress_line.h"
#include "model/choices.h"
#include "model/model.h"
#include "model/tokens.h"
#include "verbs/clock.h"
#include "verbs/plural.h"

struct evaluate {
    struct options common;
    struct model_file file;
    const char *data, *validation, *hellaswag; /* NULL: not given */
    int batch, seq;                            /* seq 0: as many as the model has positions */

    struct device *device;
    struct resident *resident;
    struct model *model;
    int vocab;
    int32_t *inputs, *targets; /* (batch, seq) */
    struct progress_line line;

    double loss; /* nats per token */
    uint64_t tokens;
    struct choices_score score;
    uint64_t questions;
    double seconds;
};

/* ---- options ---- */

enum { KEY_DATA = 0x200, KEY_VALIDATION, KEY_HELLASWAG, KEY_BATCH, KEY_SEQ };

static const struct argp_option list[] = {
    {"validation", KEY_VALIDATION, "FILE|GLOB", 0, "the same: the loss on all of it", 2},
    {"data", KEY_DATA, "FILE|GLOB", 0,
        "text or token shards: the loss on the last tenth, which `ringzero train --data` has not seen", 2},
    {"hellaswag", KEY_HELLASWAG, "FILE", 0,
        "questions with endings, in llm.c's format: how often the right one is the likeliest", 2},
    {"batch", KEY_BATCH, "N", 0, "sequences, or endings, that are computed at once (8)", 2},
    {"seq", KEY_SEQ, "N", 0, "tokens per sequence (as many as the model has positions)", 2},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct evaluate *evaluate = state->input;
    const struct options *common = &evaluate->common;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &evaluate->file;
        state->child_inputs[1] = &evaluate->common;
        return 0;
    case KEY_DATA: evaluate->data = text; return 0;
    case KEY_VALIDATION: evaluate->validation = text; return 0;
    case KEY_HELLASWAG: evaluate->hellaswag = text; return 0;
    case KEY_BATCH: evaluate->batch = options_count(text, "--batch", common); return 0;
    case KEY_SEQ: evaluate->seq = options_count(text, "--seq", common); return 0;
    case ARGP_KEY_ARG:
        options_refuse(
            common, "found \"%s\", expected options only: the model goes to --checkpoint", text);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&model_file_argp, 0, NULL, 0}, {&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {.options = list,
    .parser = parse_option,
    .children = children,
    .help_filter = options_help_filter,
    .doc = "Tells how good a model is: its loss on held-out tokens, or how often it finds the "
           "right one of "
           "several endings the likeliest."
           "\vThe loss is the mean over the targets of all whole windows of --seq tokens, in nats "
           "per token, "
           "and its exponential, the perplexity; with a run's --data and --seq the loss that the "
           "run told "
           "at its end. Of an ending the loss by the token (acc_norm; llm.c's) or of all its "
           "tokens (acc) is "
           "compared.\n\n"
           "--json writes one object: val_loss, tokens; hellaswag, hellaswag_sum, questions; "
           "seconds.\n\n"
           "Examples:\n"
           "  ringzero evaluate --checkpoint run --data bible.txt\n"
           "  ringzero evaluate --checkpoint model.safetensors --validation 'val_*.bin' \\\n"
           "      --hellaswag hellaswag_val.bin\n"};

static void check(const struct evaluate *evaluate)
{
    const struct options *common = &evaluate->common;
    if (evaluate->data != NULL && evaluate->validation != NULL)
        options_refuse(common, "--data and --validation are given, expected one of them");
    if (evaluate->data == NULL && evaluate->validation == NULL && evaluate->hellaswag == NULL)
        options_refuse(common,
            "nothing to evaluate on is given, expected --validation, --data or --hellaswag");
}

/* ---- the model ---- */

static enum status load(struct evaluate *evaluate)
{
    struct weights *weights;
    TRY(model_file_open(&weights, &evaluate->file));
    int most = weights->config.max_t;
    evaluate->vocab = weights->config.vocab;
    if (evaluate->seq == 0) evaluate->seq = most;
    enum status status = STATUS_OK;
    if (evaluate->seq > most)
        status = FAIL(STATUS_INVALID,
            "--seq is %d, expected at most %d: the model has no more positions", evaluate->seq,
            most);
    if (status == STATUS_OK)
        status =
            resident_load(&evaluate->resident, weights, evaluate->file.dtype, evaluate->device);
    weights_close(weights);
    return status;
}

static enum status open_model(struct evaluate *evaluate)
{
    TRY(load(evaluate));
    struct model_hooks hooks = resident_hooks(evaluate->resident);
    const struct model_run run = {.batch = evaluate->batch,
        .t = evaluate->seq,
        .weights = evaluate->file.dtype,
        .gradients = DTYPE_FLOAT32,
        .recompute = true}; /* there is no backward: least is kept for it */
    TRY(model_open(
        &evaluate->model, resident_params(evaluate->resident), &hooks, &run, evaluate->device));
    size_t tokens = (size_t)evaluate->batch * (size_t)evaluate->seq;
    evaluate->inputs = calloc(tokens, sizeof *evaluate->inputs);
    evaluate->targets = calloc(tokens, sizeof *evaluate->targets);
    if (evaluate->inputs != NULL && evaluate->targets != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "no memory for %zu tokens: lower --batch", tokens);
}

/* ---- on what ---- */

static void tell_progress(const char *what, size_t done, size_t all, struct evaluate *evaluate)
{
    progress_line_tell(&evaluate->line, "%s: %.0f %% ", what, 100.0 * (double)done / (double)all);
    if (done == all) progress_line_clear(&evaluate->line);
}

/* Windows are taken one by one, so that the last batch may be any. */
static enum status run_windows(const struct tokens *tokens, struct evaluate *evaluate)
{
    size_t all = tokens_windows(tokens, SPLIT_VALIDATION), seq = (size_t)evaluate->seq, valid;
    double sum = 0.0, loss;
    for (size_t done = 0; done < all;) {
        size_t left = all - done,
               now = left < (size_t)evaluate->batch ? left : (size_t)evaluate->batch;
        for (size_t b = 0; b < now; b++)
            tokens_validation_batch(
                evaluate->inputs + b * seq, evaluate->targets + b * seq, done + b, tokens);
        TRY(model_forward(&loss, &valid, evaluate->inputs, evaluate->targets, (int)now,
            evaluate->seq, evaluate->model));
        sum += loss;
        evaluate->tokens += valid;
        done += now;
        tell_progress("validation", done, all, evaluate);
    }
    evaluate->loss = sum / (double)evaluate->tokens;
    return STATUS_OK;
}

static enum status validate(struct evaluate *evaluate)
{
    const char *given = evaluate->data != NULL ? evaluate->data : evaluate->validation;
    if (given == NULL) return STATUS_OK;
    const struct tokens_config config = {.pattern = given,
        .validation = evaluate->validation,
        .vocab = evaluate->vocab,
        .batch = 1,
        .t = evaluate->seq,
        .nranks = 1};
    struct tokens *tokens;
    TRY(tokens_open(&tokens, &config));
    enum status status = STATUS_OK;
    if (tokens_vocab(tokens) > 0 && tokens_vocab(tokens) != evaluate->vocab)
        status = FAIL(STATUS_INVALID,
            "%s is text of %d tokens, the model has %d: expected token shards (ringzero "
            "tokenize)",
            given, tokens_vocab(tokens), evaluate->vocab);
    if (status == STATUS_OK) status = run_windows(tokens, evaluate);
    tokens_close(tokens);
    TRY(status);
    printf("validation loss %.4f nats per token, perplexity %.4g, of %llu token%s of %s%s\n",
        evaluate->loss, exp(evaluate->loss), (unsigned long long)evaluate->tokens,
        PLURAL(evaluate->tokens), evaluate->data != NULL ? "the last tenth of " : "", given);
    return STATUS_OK;
}

static enum status run_block(
    size_t block, double *losses, const struct choices *choices, struct evaluate *evaluate)
{
    int batch = evaluate->batch;
    size_t done = 0, valid;
    for (int p = 0; p < choices_passes(batch, choices); p++) {
        struct choices_pass pass = choices_pass(block, p, batch, choices);
        if (pass.rows == 0) break;
        choices_fill(evaluate->inputs, evaluate->targets, &pass, choices);
        TRY(model_forward(
            NULL, &valid, evaluate->inputs, evaluate->targets, pass.rows, pass.t, evaluate->model));
        TRY(model_sequence_losses(losses + done, evaluate->model));
        done += (size_t)pass.rows;
    }
    choices_judge_block(&evaluate->score, losses, block, batch, choices);
    return STATUS_OK;
}

static enum status run_blocks(const struct choices *choices, struct evaluate *evaluate)
{
    size_t all = choices_blocks(evaluate->batch, choices);
    size_t rows = (size_t)evaluate->batch + (size_t)choices_endings(choices);
    double *losses = calloc(rows, sizeof *losses);
    if (losses == NULL) return FAIL(STATUS_SYSTEM, "no memory for the losses of %zu endings", rows);
    enum status status = STATUS_OK;
    for (size_t b = 0; b < all && status == STATUS_OK; b++) {
        status = run_block(b, losses, choices, evaluate);
        tell_progress("hellaswag", b + 1, all, evaluate);
    }
    free(losses);
    return status;
}

static double share(uint64_t right, const struct evaluate *evaluate)
{
    return (double)right / (double)evaluate->questions;
}

static enum status choose(struct evaluate *evaluate)
{
    struct choices *choices;
    if (evaluate->hellaswag == NULL) return STATUS_OK;
    TRY(choices_open(&choices, evaluate->hellaswag, evaluate->vocab, evaluate->seq));
    evaluate->questions = choices_count(choices);
    enum status status = run_blocks(choices, evaluate);
    choices_close(choices);
    TRY(status);
    printf("hellaswag %.4f by mean loss, %.4f by sum, of %llu question%s\n",
        share(evaluate->score.by_mean, evaluate), share(evaluate->score.by_sum, evaluate),
        (unsigned long long)evaluate->questions, PLURAL(evaluate->questions));
    return STATUS_OK;
}

/* ---- all of it ---- */

static cJSON *describe(const struct evaluate *evaluate)
{
    cJSON *object = cJSON_CreateObject();
    if (evaluate->tokens > 0) {
        cJSON_AddNumberToObject(object, "val_loss", evaluate->loss);
        cJSON_AddNumberToObject(object, "tokens", (double)evaluate->tokens);
    }
    if (evaluate->questions > 0) {
        cJSON_AddNumberToObject(object, "hellaswag", share(evaluate->score.by_mean, evaluate));
        cJSON_AddNumberToObject(object, "hellaswag_sum", share(evaluate->score.by_sum, evaluate));
        cJSON_AddNumberToObject(object, "questions", (double)evaluate->questions);
    }
    cJSON_AddNumberToObject(object, "seconds", evaluate->seconds);
    return object;
}

static enum status run(FILE *json, struct evaluate *evaluate)
{
    char model[MODEL_FILE_BYTES];
    TRY(device_open(&evaluate->device, "host"));
    TRY(open_model(evaluate));
    model_file_describe(model, &evaluate->file, evaluate->resident);
    printf("# model  %s\n", model);
    int64_t began_ns = clock_ns();
    TRY(validate(evaluate));
    TRY(choose(evaluate));
    evaluate->seconds = (double)(clock_ns() - began_ns) * 1e-9;
    if (fflush(stdout) != 0)
        return FAIL(STATUS_SYSTEM, "standard output cannot be written: %s", strerror(errno));
    return json == NULL ? STATUS_OK : json_line_write(json, describe(evaluate));
}

int evaluate_main(int argc, char **argv)
{
    struct evaluate evaluate = {.common = options_default("ringzero evaluate"), .batch = 8};
    evaluate.file = model_file_default(&evaluate.common);
    options_parse(&argp, argc, argv, &evaluate.common, &evaluate);
    model_file_finish(&evaluate.file);
    check(&evaluate);
    FILE *json = options_open_json(&evaluate.common);
    enum status status = options_close_json(json, run(json, &evaluate), &evaluate.common);
    progress_line_clear(&evaluate.line);
    if (status != STATUS_OK) fprintf(stderr, "ringzero evaluate: %s\n", status_text());
    model_close(evaluate.model);
    resident_close(evaluate.resident);
    device_close(evaluate.device);
    free(evaluate.inputs);
    free(evaluate.targets);
    return status == STATUS_OK ? 0 : status == STATUS_INVALID ? 2 : 1;
}
