/* trainer_open: what a run needs, opened in the order in which it can be refused: settings that must
 * agree, what each rank can do alone, the data, the groups, a checkpoint to resume.
 */
#include <stdlib.h>

#include "shard/checkpoint.h"
#include "verbs/log.h"

static enum status open_tokens(struct trainer *trainer)
{
    struct train_config *config = &trainer->config;
    struct tokens_config tokens = {
        .pattern = config->data,
        .validation = config->validation,
        .vocab = config->model.vocab,
        .batch = config->batch,
        .t = config->seq,
        .rank = trainer->grid.data,
        .nranks = trainer->grid.data_count,
        .seed = config->seed,
    };
    TRY(tokens_open(&trainer->tokens, &tokens));
    int vocab = tokens_vocab(trainer->tokens);
    if (vocab > 0 && vocab < config->model.vocab) config->model.vocab = vocab;
    return STATUS_OK;
}

static enum status open_choices(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    if (config->hellaswag == NULL) return STATUS_OK;
    TRY(choices_open(&trainer->choices, config->hellaswag, config->model.vocab, config->seq));
    size_t rows = (size_t)config->batch + (size_t)choices_endings(trainer->choices);
    trainer->choice_losses = calloc(rows, sizeof *trainer->choice_losses);
    if (trainer->choice_losses != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "no memory for the losses of %zu endings", rows);
}

/* Ranks that had other files would wait for one another. */
static enum status agree_data(struct trainer *trainer)
{
    const struct tokens *tokens = trainer->tokens;
    const struct choices *choices = trainer->choices;
    const struct agree_value values[] = {
        {"tokens to train on", (double)tokens_count(tokens, SPLIT_TRAIN), NULL},
        {"tokens held out", (double)tokens_count(tokens, SPLIT_VALIDATION), NULL},
        {"vocabulary", trainer->config.model.vocab, NULL},
        {"examples of hellaswag", choices == NULL ? 0.0 : (double)choices_count(choices), NULL},
        {"endings of hellaswag", choices == NULL ? 0 : choices_endings(choices), NULL},
    };
    return agree_values(values, sizeof values / sizeof *values, trainer->bootstrap);
}

static struct stage_config stage_config_of(const struct trainer *trainer)
{
    struct stage_config stage =
        train_stage_config(&trainer->config, &trainer->params, &trainer->layout, &trainer->grid);
    stage.device = trainer->device;
    stage.profile = trainer->profile;
    stage.ring_profile = trainer->ring_profile;
    return stage;
}

/* Where tensors are shared: who sums. */
static enum status open_tensor(struct model_hooks *hooks, struct trainer *trainer)
{
    const struct tensor_config config = {
        .grid = &trainer->grid,
        .dtype = model_activation_dtype(&trainer->run, trainer->device),
        /* Where this thread computes it gathers checkpoints too, as it sums. */
        .shared = trainer->run.stream != NULL,
        .compute = trainer->run.stream,
        .device = trainer->device,
        .profile = trainer->profile,
    };
    TRY(tensor_open(&trainer->tensor, &config));
    tensor_hooks(hooks, trainer->tensor);
    return STATUS_OK;
}

/* Where inputs of blocks are carried: by whom. */
static enum status open_activations(struct model_hooks *hooks, struct trainer *trainer)
{
    trainer->carries = train_activation_config(
        &trainer->config, &trainer->params, &trainer->run, &trainer->grid, trainer->device);
    if (trainer->carries.nranks > 1) trainer->carries.ring = tensor_stream(trainer->tensor);
    trainer->carries.profile = trainer->profile;
    if (!activation_is_carried(trainer->carries.keep)) return STATUS_OK;
    TRY(activation_open(&trainer->activations, &trainer->carries));
    hooks->activations = trainer->activations;
    hooks->act_save = activation_save;
    hooks->act_load = activation_load;
    return STATUS_OK;
}

static enum status open_pipeline(struct trainer *trainer)
{
    struct pipeline_config pipeline =
        train_pipeline_config(&trainer->run, &trainer->grid, trainer->device);
    const struct train_config *config = &trainer->config;
    pipeline.model = trainer->model;
    pipeline.profile = trainer->profile;
    pipeline.waits = trainer->waits;
    trainer->place = train_place(config, &trainer->grid);
    if (trainer->rank == 0 && config->accumulate < config->pipeline)
        LOG_WARN("train",
            "accumulate is %d for %d stages: each has nothing to do for %.0f %% of the time; give "
            "--accumulate %d or more",
            config->accumulate, config->pipeline, 100.0 * pipeline_bubble(&trainer->place),
            config->pipeline);
    return pipeline_open(&trainer->pipeline, &pipeline);
}

/* What this rank can do alone. */
static enum status open_own(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    TRY(open_tokens(trainer));
    TRY(open_choices(trainer));
    struct params_part part = grid_part(&trainer->grid);
    TRY(params_make_part(&trainer->params, &config->model, &part));
    TRY(layout_make(&trainer->layout, &trainer->params, config->shard_group));
    TRY(observe_open(trainer));
    struct stage_config stage = stage_config_of(trainer);
    TRY(stage_open(&trainer->stage, &stage));
    trainer->run = train_model_run(config, &trainer->grid);
    trainer->run.stream = trainer->stage->computing.stream;
    trainer->run.profile = trainer->profile;
    struct model_hooks hooks = stage_hooks(trainer->stage);
    TRY(open_tensor(&hooks, trainer));
    TRY(open_activations(&hooks, trainer));
    TRY(model_open(&trainer->model, &trainer->params, &hooks, &trainer->run, trainer->device));
    TRY(open_pipeline(trainer));
    size_t tokens = (size_t)config->accumulate * (size_t)config->batch * (size_t)config->seq;
    trainer->inputs = calloc(tokens, sizeof *trainer->inputs);
    trainer->targets = calloc(tokens, sizeof *trainer->targets);
    trainer->gathered = calloc(2 * (size_t)trainer->nranks, sizeof *trainer->gathered);
    if (trainer->inputs == NULL || trainer->targets == NULL || trainer->gathered == NULL)
        return FAIL(
            STATUS_SYSTEM, "no memory for a step of %zu tokens: lower batch or accumulate", tokens);
    return STATUS_OK;
}

static enum status check_settings(struct trainer *trainer)
{
    struct train_config *config = &trainer->config;
    if (config->seq == 0) config->seq = config->model.max_t;
    if (config->stop_at == 0) config->stop_at = config->steps;
    if (!train_config_scales(config)) config->scale.value = config->scale.floor = 1.0;
    struct train_value values[TRAIN_VALUES_MOST];
    struct agree_value settings[TRAIN_VALUES_MOST];
    int count = train_values(values, config, trainer->nranks);
    for (int i = 0; i < count; i++) settings[i] = values[i].is;
    TRY(agree_values(settings, count, trainer->bootstrap));
    return train_config_grid(&trainer->grid, config, trainer->nranks, trainer->rank);
}

enum status trainer_open(struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    TRY(check_settings(trainer));
    trainer->scale = config->scale;
    if (config->memory_limit_bytes > 0) device_limit(trainer->device, config->memory_limit_bytes);
    TRY(grid_open(&trainer->grid, trainer->comm));
    TRY(agree(open_own(trainer), trainer->bootstrap));
    TRY(agree_data(trainer));
    if (config->resume_dir != NULL) TRY(checkpoint_load(trainer));
    if (config->checkpoint_dir != NULL) TRY(checkpoint_prepare(trainer));
    TRY(stage_publish(trainer->stage, trainer->adam_t));
    trainer->start = ledger_traffic(&trainer->grid);
    return STATUS_OK;
}

void trainer_close(struct trainer *trainer)
{
    pipeline_close(trainer->pipeline);
    model_close(trainer->model);
    activation_close(trainer->activations);
    tensor_close(trainer->tensor);
    stage_close(trainer->stage);
    observe_close(trainer);
    grid_close(&trainer->grid);
    layout_free(&trainer->layout);
    params_free(&trainer->params);
    tokens_close(trainer->tokens);
    choices_close(trainer->choices);
    free(trainer->choice_losses);
    free(trainer->inputs);
    free(trainer->targets);
    free(trainer->gathered);
}
