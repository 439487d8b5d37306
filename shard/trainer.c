/* trainer: the training loop.
 *
 *   one step              main thread                                 stream
 *     A batches           read, count valid targets                   gather the counts
 *     micro-batches 0 …   forward, scale = 1/valid of all, backward
 *     micro-batch A−1     forward, backward                           reduce unit after unit
 *     loss                                                            gather
 *     norm                wait for the stream, own part               gather
 *     update              clip, AdamW (or skip: a float16 overflow)   gather unit after unit (stages 1, 2)
 *
 * Invariants: every rank queues the same operations in the same order; nothing is called on the
 * communicator but through the stage's stream. Beside the steps (opening, checkpoints) ranks speak
 * through the bootstrap.
 */
#include "shard/trainer.h"

#include <string.h>

#include "optim/norm.h"
#include "optim/schedule.h"
#include "shard/checkpoint.h"
#include "verbs/clock.h"

/* ---- one step ---- */

static enum status fail_not_finite(
    const struct train_report *report, double scaled_norm, const struct trainer *trainer)
{
    if (train_config_scales(&trainer->config))
        return FAIL(STATUS_DATA,
            "step %llu: the float16 gradient overflows (loss %g) at the lowest loss scale, %g: "
            "resume from a checkpoint with a smaller learning rate (now %g), or train in bfloat16",
            (unsigned long long)report->step, report->loss, trainer->scale.value,
            (double)report->lr);
    return FAIL(STATUS_DATA,
        "step %llu: the gradient's norm is %g (loss %g), expected a finite number: resume from "
        "a checkpoint with a smaller learning rate (now %g) or a longer warm-up",
        (unsigned long long)report->step, scaled_norm, report->loss, (double)report->lr);
}

/* Clips and updates, or skips: the norm has the same bits on all ranks, so all do the same. */
static enum status update(struct train_report *report, double scaled_norm, struct trainer *trainer)
{
    double scale = trainer->scale.value;
    bool finite = loss_scale_is_finite(scaled_norm);
    report->norm = scaled_norm / scale;
    report->skipped = !finite;
    if (!finite && !train_config_scales(&trainer->config))
        return fail_not_finite(report, scaled_norm, trainer);
    if (train_config_scales(&trainer->config) && !loss_scale_update(&trainer->scale, finite))
        return fail_not_finite(report, scaled_norm, trainer);
    if (!finite) return STATUS_OK;
    const struct stage_step step = {
        .lr = report->lr,
        .gradient_scale =
            norm_clip_scale(report->norm, (double)trainer->config.clip) / (float)scale,
        .t = trainer->adam_t + 1,
    };
    TRY(stage_update(trainer->stage, &step));
    trainer->adam_t++;
    trainer->events.updates++;
    return STATUS_OK;
}

/* For how long this thread was blocked. */
static uint64_t waited_ns(const struct trainer *trainer)
{
    return trainer->stage->computing.wait_ns + activation_wait_ns(trainer->activations) +
           tensor_wait_ns(trainer->tensor) + pipeline_wait_ns(trainer->pipeline);
}

/* The first step, which opens edges, counts only where there is no other. */
static void count_passes(int64_t begin_ns, uint64_t wait_ns, struct trainer *trainer)
{
    if (trainer->events.steps == 1) trainer->passes_ns = trainer->passes_wait_ns = 0;
    trainer->passes_ns += (uint64_t)(clock_ns() - begin_ns);
    trainer->passes_wait_ns += waited_ns(trainer) - wait_ns;
}

static enum status run_step(struct train_report *report, struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    struct schedule schedule = {config->lr, config->final_fraction, config->warmup, config->steps};
    const struct ledger_events events = trainer->events;
    const struct ledger_traffic traffic = ledger_traffic(&trainer->grid);
    int64_t begin_ns = clock_ns();
    uint64_t wait_ns = waited_ns(trainer);
    double valid = 0.0, scaled_norm;
    *report = (struct train_report){.step = trainer->step + 1,
        .lr = schedule_lr(&schedule, trainer->adam_t),
        .loss_scale = trainer->scale.value};
    TRY(trainer_run_passes(&valid, trainer));
    profile_begin(trainer->waits, PIPELINE_WAITS, 0);
    TRY(stage_norm(&scaled_norm, trainer->stage));
    profile_end(trainer->waits, 0, 0);
    count_passes(begin_ns, wait_ns, trainer);
    report->loss =
        valid > 0.0 ? grid_sum_over_data(trainer->gathered, 1, &trainer->grid) / valid : 0.0;
    TRY(update(report, scaled_norm, trainer));
    trainer->step++;
    trainer->events.steps++;
    if (config->step_ledger) {
        TRY(stage_synchronize(trainer->stage));
        ledger_read_step(&report->ledger, &events, &trainer->events, &traffic, &trainer->carries,
            trainer->stage);
    }
    report->step_ms = (double)(clock_ns() - begin_ns) * 1e-6;
    report->wait_ms = (double)(waited_ns(trainer) - wait_ns) * 1e-6;
    double tokens = (double)config->accumulate * (double)trainer_sequences_per_batch(trainer) *
                    (double)config->seq;
    report->tokens_per_s = tokens / report->step_ms * 1e3;
    return STATUS_OK;
}

/* ---- the loop ---- */

static void tell_start(const struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    const struct grid *grid = &trainer->grid;
    if (trainer->observer->start == NULL) return;
    struct train_start start = {
        .params = &trainer->params,
        .keeps = trainer->stage->keeps,
        .text = tokens_vocab(trainer->tokens) > 0,
        .nranks = trainer->nranks,
        .shard_group = config->shard_group,
        .grid = grid_at(grid_place(grid, grid->pipeline, grid->data, grid->tensor),
            trainer->nranks, grid->tensor_count, grid->pipeline_count, config->shard_group),
        .transport = ring_comm_transport(trainer->comm),
        .first_step = trainer->step,
        .last_step = config->stop_at,
        .tokens_per_step = (uint64_t)config->accumulate * trainer_sequences_per_batch(trainer) *
                           (uint64_t)config->seq,
        .train_tokens = tokens_count(trainer->tokens, SPLIT_TRAIN),
        .validation_tokens = tokens_count(trainer->tokens, SPLIT_VALIDATION),
    };
    struct model_memory memory = model_memory(&trainer->params, &trainer->run, trainer->device);
    ledger_predict_held(start.held_bytes, &memory, &trainer->carries, &trainer->stage->config);
    trainer->observer->start(trainer->observer->context, &start);
}

static enum status save(struct trainer *trainer)
{
    char directory[CHECKPOINT_PATH_BYTES];
    observe_begin_beside("checkpoint", trainer);
    TRY(checkpoint_save(directory, trainer));
    observe_end_beside(trainer);
    if (trainer->observer->saved != NULL)
        trainer->observer->saved(trainer->observer->context, directory, trainer->step);
    return STATUS_OK;
}

static bool is_due(uint64_t step, uint64_t every)
{
    return every > 0 && step % every == 0;
}

/* Where it is time for that. */
static enum status choose(struct train_report *report, bool is_end, struct trainer *trainer)
{
    report->chosen = trainer->choices != NULL &&
                     (is_end || is_due(trainer->step, trainer->config.hellaswag_every));
    if (!report->chosen) return STATUS_OK;
    report->choice_count = choices_count(trainer->choices);
    observe_begin_beside("hellaswag", trainer);
    TRY(trainer_choose(&report->score, trainer));
    observe_end_beside(trainer);
    return STATUS_OK;
}

static enum status run_steps(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    while (trainer->step < config->stop_at) {
        struct train_report report;
        TRY(observe_begin_step(trainer));
        TRY(run_step(&report, trainer));
        TRY(observe_end_step(trainer));
        bool is_end = trainer->step == config->steps, is_last = trainer->step == config->stop_at;
        report.validated = is_end || is_due(trainer->step, config->validate_every);
        if (report.validated) {
            observe_begin_beside("validation", trainer);
            TRY(trainer_validate(
                &report.validation_loss,
                is_end ? config->validate_last_batches : config->validate_batches, trainer));
            observe_end_beside(trainer);
        }
        TRY(choose(&report, is_end, trainer));
        if (trainer->observer->step != NULL)
            trainer->observer->step(trainer->observer->context, &report);
        if (config->checkpoint_dir != NULL &&
            (is_last || is_due(trainer->step, config->checkpoint_every)))
            TRY(save(trainer));
    }
    return STATUS_OK;
}

static enum status tell_bubble(struct trainer *trainer)
{
    struct train_bubble bubble = {
        .stage_count = trainer->place.stage_count,
        .micro_count = trainer->place.micro_count,
        .predicted = pipeline_bubble(&trainer->place),
    };
    double *share = trainer->gathered;
    if (trainer->run.stream != NULL) { /* the thread only queues: it is the stream that waits */
        trainer->passes_wait_ns = 0;
        TRY(observe_waits(&trainer->passes_wait_ns, trainer));
    }
    share[trainer->rank] = (double)trainer->passes_wait_ns / (double)trainer->passes_ns;
    TRY(bootstrap_all_gather(share, sizeof *share, trainer->bootstrap));
    for (int r = 0; r < trainer->nranks; r++) bubble.measured += share[r] / trainer->nranks;
    if (trainer->observer->bubble != NULL)
        trainer->observer->bubble(trainer->observer->context, &bubble);
    return STATUS_OK;
}

static enum status run(struct trainer *trainer)
{
    tell_start(trainer);
    TRY(observe_start(trainer));
    TRY(run_steps(trainer));
    TRY(observe_tell(trainer));
    if (trainer->config.sample_tokens > 0) TRY(trainer_sample(trainer));
    if (trainer->place.stage_count > 1 && trainer->passes_ns > 0) TRY(tell_bubble(trainer));
    struct ledger ledger;
    struct model_memory memory = model_memory(&trainer->params, &trainer->run, trainer->device);
    TRY(stage_synchronize(trainer->stage));
    ledger_read(
        &ledger, &trainer->events, &trainer->start, &memory, &trainer->carries, trainer->stage);
    ledger.tensor_paper_bytes =
        (double)trainer->events.trains *
        tensor_paper_bytes(&trainer->params, &trainer->run, &trainer->grid, trainer->device);
    TRY(ledger_agree(&ledger, trainer->bootstrap));
    if (trainer->observer->ledger != NULL)
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
