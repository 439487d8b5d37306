/* passes: the forwards and backwards of a step, in the order of pipeline.h; without a pipeline, one
 * micro-batch after another. And single forwards, for validation and samples.
 *
 * Invariant: before a forward and a backward the stage (what it gathers next, whether it reduces)
 * and the store of checkpoints (whose pass it is) are told; nobody else needs to know the order.
 */
#include "shard/trainer.h"

/* Tokens of one micro-batch of one rank. */
static size_t batch_tokens(const struct trainer *trainer)
{
    return (size_t)trainer->config.batch * (size_t)trainer->config.seq;
}

/* Reads the step's batches; returns the number of this rank's valid targets. */
static size_t read_batches(struct trainer *trainer)
{
    size_t tokens = batch_tokens(trainer), valid = 0;
    uint64_t sequences = trainer_sequences_per_batch(trainer);
    /* Another number of ranks or batch than before: rounded up to where a global batch begins. */
    uint64_t index = (trainer->sequences + sequences - 1) / sequences;
    for (int a = 0; a < trainer->config.accumulate; a++, index++)
        tokens_train_batch(trainer->inputs + (size_t)a * tokens,
            trainer->targets + (size_t)a * tokens, index, trainer->tokens);
    for (size_t i = 0; i < tokens * (size_t)trainer->config.accumulate; i++)
        valid += trainer->targets[i] != MODEL_IGNORED_TARGET;
    trainer->sequences = index * sequences;
    return valid;
}

bool trainer_has_head(const struct trainer *trainer)
{
    return trainer->place.stage == trainer->place.stage_count - 1;
}

static struct model_pass pass_of(const struct pipeline_step *step, const struct trainer *trainer)
{
    size_t first = (size_t)step->micro * batch_tokens(trainer);
    return (struct model_pass){.slot = step->slot,
        .tokens = trainer->inputs + first,
        .targets = trainer->targets + first,
        .batch = trainer->config.batch,
        .t = trainer->config.seq};
}

static bool is_backward(int index, const struct pipeline_place *place)
{
    return index < pipeline_steps(place) &&
           pipeline_step_at(place, index).work == PIPELINE_BACKWARD;
}

/* Counts what was done, of how many tokens: a forward and its backward, or a forward alone. */
static void count_pass(enum pass_kind kind, const struct model_pass *pass, struct trainer *trainer)
{
    struct ledger_events *events = &trainer->events;
    bool train = kind == PASS_TRAIN;
    events->trains += train;
    events->reductions += train && trainer->stage->reduce;
    events->forwards += !train;
    tensor_predict_sent(events->tensor_sent, 1, kind, pass->batch, pass->t, &trainer->params,
        &trainer->run, &trainer->grid, trainer->device);
    const struct pipeline_config pipeline =
        train_pipeline_config(&trainer->run, &trainer->grid, trainer->device);
    uint64_t sent[COLLECTIVE_COUNT] = {0};
    uint64_t rows =
        model_own_rows((size_t)pass->batch * (size_t)pass->t, &trainer->params, &trainer->run)
            .count;
    pipeline_predict_sent(sent, rows, train ? rows : 0, trainer->params.config.channels, &pipeline);
    events->pipeline_bytes += sent[COLLECTIVE_SEND];
}

static enum status run_forward(int index, struct trainer *trainer)
{
    struct pipeline_step step = pipeline_step_at(&trainer->place, index);
    struct model_pass pass = pass_of(&step, trainer);
    if (index == 0 || trainer->place.stage_count == 1) stage_begin_passes(trainer->stage, true);
    TRY(activation_begin_forward(step.slot, true, trainer->activations));
    return pipeline_forward(&pass, is_backward(index + 1, &trainer->place), trainer->pipeline);
}

static enum status run_backward(double *loss_sum, float scale, int index, struct trainer *trainer)
{
    struct pipeline_step step = pipeline_step_at(&trainer->place, index);
    struct model_pass pass = pass_of(&step, trainer);
    double loss = 0.0;
    stage_begin_backward(trainer->stage, step.micro == trainer->place.micro_count - 1);
    activation_begin_backward(step.slot, trainer->activations);
    TRY(pipeline_backward(scale, &pass, trainer->pipeline));
    /* Where the head is, the forward came just before; the backward may still be running. */
    if (trainer_has_head(trainer)) TRY(model_loss(&loss, trainer->model));
    *loss_sum += loss;
    count_pass(PASS_TRAIN, &pass, trainer);
    return STATUS_OK;
}

enum status trainer_settle_passes(struct trainer *trainer)
{
    TRY(activation_synchronize(trainer->activations));
    TRY(tensor_synchronize(trainer->tensor));
    return pipeline_synchronize(trainer->pipeline);
}

enum status trainer_run_passes(double *valid, struct trainer *trainer)
{
    struct stage *stage = trainer->stage;
    double *gathered = trainer->gathered, loss_sum = 0.0;
    float scale = 0.0f;
    profile_begin(trainer->profile, "read data", 0);
    gathered[trainer->rank] = (double)read_batches(trainer);
    profile_end(trainer->profile, 0, (double)(batch_tokens(trainer) * 2 * sizeof(int32_t)) *
                                         trainer->config.accumulate);
    TRY(stage_gather(gathered, 1, trainer->comm, stage));
    TRY(stage_begin_step(stage));
    for (int i = 0, backwards = 0; i < pipeline_steps(&trainer->place); i++) {
        if (!is_backward(i, &trainer->place)) {
            TRY(run_forward(i, trainer));
            continue;
        }
        if (backwards++ == 0) {
            profile_begin_whole(trainer->profile, "wait for scalars", 0);
            TRY(stage_synchronize(stage));
            profile_end(trainer->profile, 0, 0);
            *valid = grid_sum_over_data(gathered, 1, &trainer->grid);
            scale = *valid > 0.0 ? (float)(trainer->scale.value / *valid) : 0.0f;
        }
        TRY(run_backward(&loss_sum, scale, i, trainer));
    }
    TRY(trainer_settle_passes(trainer));
    TRY(stage_join_ends(stage));
    gathered[trainer->rank] = loss_sum;
    return stage_gather(gathered, 1, trainer->comm, stage);
}

enum status trainer_forward(const struct model_pass *pass, struct trainer *trainer)
{
    stage_begin_passes(trainer->stage, false);
    TRY(activation_begin_forward(pass->slot, false, trainer->activations));
    TRY(pipeline_forward(pass, false, trainer->pipeline));
    count_pass(pass->targets != NULL ? PASS_FORWARD : PASS_SAMPLE, pass, trainer);
    return STATUS_OK;
}
