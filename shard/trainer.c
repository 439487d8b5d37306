/* trainer: the training loop.
 *
 *   one step              main thread                                 stream
 *     A batches           read, count valid targets                   gather the counts
 *     micro-batches 0 …   forward, scale = 1/valid of all, backward
 *     micro-batch A−1     forward, backward                           reduce unit after unit
 *     loss                                                            gather
 *     norm                wait for the stream, own part               gather
 *     update              clip, AdamW
 *
 * Invariants: every rank queues the same operations in the same order; nothing is called on the
 * communicator but through the stage's stream. Beside the steps (opening, checkpoints) ranks speak
 * through the bootstrap.
 */
#include "shard/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "optim/norm.h"
#include "optim/schedule.h"
#include "shard/checkpoint.h"
#include "verbs/clock.h"

/* ---- opening ---- */

static enum status open_tokens(struct trainer *trainer)
{
    struct train_config *config = &trainer->config;
    struct tokens_config tokens = {
        .pattern = config->data,
        .validation = config->validation,
        .vocab = config->model.vocab,
        .batch = config->batch,
        .t = config->seq,
        .rank = trainer->rank,
        .nranks = trainer->nranks,
        .seed = config->seed,
    };
    TRY(tokens_open(&trainer->tokens, &tokens));
    int vocab = tokens_vocab(trainer->tokens);
    if (vocab > 0 && vocab < config->model.vocab) config->model.vocab = vocab;
    return STATUS_OK;
}

/* What this rank can do alone. */
static enum status open_own(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    TRY(open_tokens(trainer));
    TRY(params_make(&trainer->params, &config->model));
    TRY(layout_make(&trainer->layout, &trainer->params, trainer->nranks));
    struct stage_config stage = {
        .ops = stage_by_number(config->stage),
        .params = &trainer->params,
        .layout = &trainer->layout,
        .comm = trainer->comm,
        .device = trainer->device,
        .adam = config->adam,
        .bucket_bytes = config->bucket_bytes,
        .overlap = config->overlap,
        .seed = config->seed,
    };
    TRY(stage_open(&trainer->stage, &stage));
    struct model_hooks hooks = stage_hooks(trainer->stage);
    const struct gpt2_run run = {config->batch, config->seq, DTYPE_FLOAT32, DTYPE_FLOAT32, false};
    TRY(gpt2_open(&trainer->model, &trainer->params, &hooks, &run, trainer->device));
    size_t tokens = (size_t)config->accumulate * (size_t)config->batch * (size_t)config->seq;
    trainer->inputs = calloc(tokens, sizeof *trainer->inputs);
    trainer->targets = calloc(tokens, sizeof *trainer->targets);
    trainer->gathered = calloc(2 * (size_t)trainer->nranks, sizeof *trainer->gathered);
    if (trainer->inputs == NULL || trainer->targets == NULL || trainer->gathered == NULL)
        return FAIL(
            STATUS_SYSTEM, "no memory for a step of %zu tokens: lower batch or accumulate", tokens);
    return STATUS_OK;
}

static enum status trainer_open(struct trainer *trainer)
{
    struct train_config *config = &trainer->config;
    if (config->seq == 0) config->seq = config->model.max_t;
    if (config->stop_at == 0) config->stop_at = config->steps;
    struct train_value values[TRAIN_VALUES_MOST];
    struct agree_value settings[TRAIN_VALUES_MOST];
    int count = train_values(values, config, trainer->nranks);
    for (int i = 0; i < count; i++) settings[i] = values[i].is;
    TRY(agree_values(settings, count, trainer->bootstrap));
    TRY(agree(open_own(trainer), trainer->bootstrap));
    const struct agree_value data[] = {
        {"tokens to train on", (double)tokens_count(trainer->tokens, SPLIT_TRAIN)},
        {"tokens held out", (double)tokens_count(trainer->tokens, SPLIT_VALIDATION)},
        {"vocabulary", config->model.vocab},
    };
    TRY(agree_values(data, 3, trainer->bootstrap));
    if (config->resume_dir != NULL) TRY(checkpoint_load(trainer));
    if (config->checkpoint_dir != NULL) TRY(checkpoint_prepare(trainer));
    return STATUS_OK;
}

static void trainer_close(struct trainer *trainer)
{
    gpt2_close(trainer->model);
    stage_close(trainer->stage);
    layout_free(&trainer->layout);
    params_free(&trainer->params);
    tokens_close(trainer->tokens);
    free(trainer->inputs);
    free(trainer->targets);
    free(trainer->gathered);
}

/* ---- one step ---- */

/* Tokens of one micro-batch of one rank. */
static size_t batch_tokens(const struct trainer *trainer)
{
    return (size_t)trainer->config.batch * (size_t)trainer->config.seq;
}

static uint64_t sequences_per_batch(const struct trainer *trainer)
{
    return (uint64_t)trainer->nranks * (uint64_t)trainer->config.batch;
}

/* Reads the step's batches; returns the number of this rank's valid targets. */
static size_t read_batches(struct trainer *trainer)
{
    size_t tokens = batch_tokens(trainer), valid = 0;
    /* Another number of ranks or batch than before: rounded up to where a global batch begins. */
    uint64_t index =
        (trainer->sequences + sequences_per_batch(trainer) - 1) / sequences_per_batch(trainer);
    for (int a = 0; a < trainer->config.accumulate; a++, index++)
        tokens_train_batch(trainer->inputs + (size_t)a * tokens,
            trainer->targets + (size_t)a * tokens, index, trainer->tokens);
    for (size_t i = 0; i < tokens * (size_t)trainer->config.accumulate; i++)
        valid += trainer->targets[i] != GPT2_IGNORED_TARGET;
    trainer->sequences = index * sequences_per_batch(trainer);
    return valid;
}

static double sum_in_rank_order(const double *values, int nranks)
{
    double sum = 0.0;
    for (int r = 0; r < nranks; r++) sum += values[r];
    return sum;
}

/* Forward and backward of all micro-batches. *valid: targets of the global batch. Once the stream
 * has passed, trainer->gathered holds every rank's sum of losses. */
static enum status run_batches(double *valid, struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    struct stage *stage = trainer->stage;
    double *gathered = trainer->gathered, loss_sum = 0.0;
    float scale = 0.0f;
    gathered[trainer->rank] = (double)read_batches(trainer);
    TRY(stage_gather(gathered, 1, stage));
    stage_begin_step(stage);
    for (int a = 0; a < config->accumulate; a++) {
        size_t first = (size_t)a * batch_tokens(trainer), counted;
        double loss;
        stage->reduce = a == config->accumulate - 1;
        TRY(gpt2_forward(&loss, &counted, trainer->inputs + first, trainer->targets + first,
            config->batch, config->seq, trainer->model));
        loss_sum += loss;
        if (a == 0) {
            TRY(stage_synchronize(stage));
            *valid = sum_in_rank_order(gathered, trainer->nranks);
            scale = *valid > 0.0 ? (float)(1.0 / *valid) : 0.0f;
        }
        TRY(gpt2_backward(scale, trainer->model));
    }
    gathered[trainer->rank] = loss_sum;
    return stage_gather(gathered, 1, stage);
}

static enum status run_step(struct train_report *report, struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    struct schedule schedule = {config->lr, config->final_fraction, config->warmup, config->steps};
    int64_t begin_ns = clock_ns();
    uint64_t wait_ns = trainer->stage->wait_ns;
    double valid = 0.0;
    *report = (struct train_report){
        .step = trainer->step + 1, .lr = schedule_lr(&schedule, trainer->step)};
    TRY(run_batches(&valid, trainer));
    TRY(stage_norm(&report->norm, trainer->stage));
    report->loss =
        valid > 0.0 ? sum_in_rank_order(trainer->gathered, trainer->nranks) / valid : 0.0;
    if (!isfinite(report->norm))
        return FAIL(STATUS_DATA,
            "step %llu: the gradient's norm is %g (loss %g), expected a finite number: resume from "
            "a checkpoint with a smaller learning rate (now %g) or a longer warm-up",
            (unsigned long long)report->step, report->norm, report->loss, (double)report->lr);
    float clip_scale = norm_clip_scale(report->norm, (double)config->clip);
    TRY(trainer->stage->config.ops->update(
        trainer->stage, report->lr, clip_scale, trainer->adam_t + 1));
    trainer->adam_t++;
    trainer->step++;
    trainer->events.steps++;
    report->step_ms = (double)(clock_ns() - begin_ns) * 1e-6;
    report->wait_ms = (double)(trainer->stage->wait_ns - wait_ns) * 1e-6;
    double tokens =
        (double)config->accumulate * (double)batch_tokens(trainer) * (double)trainer->nranks;
    report->tokens_per_s = tokens / report->step_ms * 1e3;
    return STATUS_OK;
}

/* ---- the loop ---- */

static void tell_start(const struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    if (trainer->observer->start == NULL) return;
    struct train_start start = {
        .params = &trainer->params,
        .text = tokens_vocab(trainer->tokens) > 0,
        .nranks = trainer->nranks,
        .transport = ring_comm_transport(trainer->comm),
        .first_step = trainer->step,
        .last_step = config->stop_at,
        .tokens_per_step =
            (uint64_t)config->accumulate * batch_tokens(trainer) * (uint64_t)trainer->nranks,
        .train_tokens = tokens_count(trainer->tokens, SPLIT_TRAIN),
        .validation_tokens = tokens_count(trainer->tokens, SPLIT_VALIDATION),
    };
    trainer->observer->start(trainer->observer->context, &start);
}

static enum status save(struct trainer *trainer)
{
    char directory[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_save(directory, trainer));
    if (trainer->observer->saved != NULL)
        trainer->observer->saved(trainer->observer->context, directory, trainer->step);
    return STATUS_OK;
}

static bool is_due(uint64_t step, uint64_t every)
{
    return every > 0 && step % every == 0;
}

static enum status run_steps(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    while (trainer->step < config->stop_at) {
        struct train_report report;
        TRY(run_step(&report, trainer));
        bool is_end = trainer->step == config->steps, is_last = trainer->step == config->stop_at;
        report.validated = is_end || is_due(trainer->step, config->validate_every);
        if (report.validated)
            TRY(trainer_validate(
                &report.validation_loss, is_end ? 0 : config->validate_batches, trainer));
        if (trainer->observer->step != NULL)
            trainer->observer->step(trainer->observer->context, &report);
        if (config->checkpoint_dir != NULL &&
            (is_last || is_due(trainer->step, config->checkpoint_every)))
            TRY(save(trainer));
    }
    return STATUS_OK;
}

static enum status run(struct trainer *trainer)
{
    tell_start(trainer);
    TRY(run_steps(trainer));
    if (trainer->config.sample_tokens > 0) TRY(trainer_sample(trainer));
    if (trainer->observer->ledger == NULL) return STATUS_OK;
    struct ledger ledger;
    ledger_read(&ledger, &trainer->events, trainer->stage);
    trainer->observer->ledger(trainer->observer->context, &ledger);
    return STATUS_OK;
}

enum status train(const struct train_config *config, const struct train_observer *observer,
    struct ring_comm *comm, struct bootstrap *bootstrap, struct device *device)
{
    const struct train_observer deaf = {0};
    TRY(train_config_check(config));
    struct trainer trainer = {
        .config = *config,
        .observer = observer != NULL ? observer : &deaf,
        .comm = comm,
        .bootstrap = bootstrap,
        .device = device,
        .rank = ring_comm_rank(comm),
        .nranks = ring_comm_nranks(comm),
        .events.start = ring_comm_counters(comm),
    };
    enum status status = trainer_open(&trainer);
    if (status == STATUS_OK) {
        status = run(&trainer);
        /* What is queued waits for ranks that wait for this one: tell them before the stream is
         * closed. */
        if (status != STATUS_OK) bootstrap_abort(status_text(), bootstrap);
    }
    trainer_close(&trainer);
    return status;
}
