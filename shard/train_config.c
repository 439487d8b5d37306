/* train_config: the defaults of a run, what can be wrong with one, how stage and model are configured
 * by it, and the numbers that ranks and checkpoints compare.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "shard/trainer.h"
#include "verbs/plural.h"

struct train_config train_config_default(void)
{
    struct train_config config = {
        .tensor = 1,
        .pipeline = 1,
        .batch = 8,
        .accumulate = 1,
        .steps = 1000,
        .lr = 6e-3f, /* lr, warmup and beta2: tuned for nano at 2048 tokens a step */
        .final_fraction = 0.1f,
        .warmup = 100,
        .clip = 1.0f,
        .adam = adam_config_default(),
        .seed = 1,
        .validate_every = 100,
        .validate_batches = 16,
        .hellaswag_every = 100,
        .sample_tokens = 0,
        .sample_prompt = "\n",
        .temperature = 0.8f,
        .dtype = DTYPE_FLOAT32,
        .gradient_dtype = DTYPE_FLOAT32,
        .reduce_dtype = DTYPE_FLOAT32,
        .scale = loss_scale_default(),
        .bucket_bytes = (size_t)4 << 20,
        .overlap = true,
    };
    config.adam.beta2 = 0.99f;
    if (model_preset(&config.model, "nano") != STATUS_OK) config.model = (struct model_config){0};
    return config;
}

bool train_config_scales(const struct train_config *config)
{
    return config->gradient_dtype == DTYPE_FLOAT16;
}

static enum status check_dtypes(const struct train_config *config)
{
    enum dtype weights = config->dtype, gradients = config->gradient_dtype;
    if (weights != DTYPE_FLOAT32 && weights != DTYPE_BFLOAT16 && weights != DTYPE_FLOAT16)
        return FAIL(STATUS_INVALID, "dtype is %s, expected float32, bfloat16 or float16",
            dtype_name(weights));
    if (config->stochastic_rounding && weights != DTYPE_BFLOAT16)
        return FAIL(STATUS_INVALID,
            "stochastic rounding is of bfloat16 weights, dtype is %s: expected bfloat16, or "
            "rounding "
            "to nearest",
            dtype_name(weights));
    if (gradients != weights && gradients != DTYPE_FLOAT32)
        return FAIL(STATUS_INVALID, "gradient dtype is %s, expected %s%s", dtype_name(gradients),
            dtype_name(weights), weights == DTYPE_FLOAT32 ? "" : " or float32");
    if (config->reduce_dtype != gradients && config->reduce_dtype != DTYPE_FLOAT32)
        return FAIL(STATUS_INVALID, "reduce dtype is %s, expected %s%s",
            dtype_name(config->reduce_dtype), dtype_name(gradients),
            gradients == DTYPE_FLOAT32 ? "" : " or float32");
    if (!(config->scale.floor > 0.0 && config->scale.value >= config->scale.floor &&
            config->scale.value <= LOSS_SCALE_MOST))
        return FAIL(STATUS_INVALID,
            "loss scale starts at %g with floor %g, expected at least the floor, above 0, and at "
            "most %g",
            config->scale.value, config->scale.floor, LOSS_SCALE_MOST);
    return STATUS_OK;
}

static enum status check_stage(const struct train_config *config)
{
    if (stage_by_number(config->stage) == NULL)
        return FAIL(STATUS_INVALID, "stage is %d, expected 0, 1, 2 or 3", config->stage);
    if (config->shard_group < 0)
        return FAIL(STATUS_INVALID, "shard group is %d, expected a number of ranks, or 0 for all",
            config->shard_group);
    if (config->unsharded_accumulation && config->stage < 2)
        return FAIL(STATUS_INVALID,
            "stage %d keeps gradients whole anyway, expected unsharded accumulation with stage 2 "
            "or 3 only",
            config->stage);
    if (config->broadcast_gather && config->stage != 3)
        return FAIL(STATUS_INVALID,
            "gather by broadcast is for stage 3, which gathers weights: stage is %d",
            config->stage);
    return STATUS_OK;
}

/* What is cut must be cut evenly: ranks that wait for one another have the same work. */
static enum status check_tensor(const struct train_config *config)
{
    const struct model_config *model = &config->model;
    int64_t hidden = model_hidden(model);
    int heads = model_kv_heads(model), m = config->tensor;
    if (m < 1)
        return FAIL(STATUS_INVALID, "tensor is %d, expected at least 1 rank to hold a tensor", m);
    if (heads % m != 0)
        return FAIL(STATUS_INVALID,
            "tensor is %d, heads%s are %d: expected a divisor of them, so that each rank has as "
            "many",
            m, heads == model->heads ? "" : " of keys and values", heads);
    if (hidden % m != 0)
        return FAIL(STATUS_INVALID,
            "tensor is %d, hidden columns are %lld: expected a divisor of them, so that each rank "
            "has "
            "as many",
            m, (long long)hidden);
    return STATUS_OK;
}

/* Rows of x, as heads and hidden columns. Samples, which are shorter, may be cut unevenly. */
static enum status check_rows(const struct train_config *config)
{
    int64_t seq = config->seq > 0 ? config->seq : config->model.max_t, m = config->tensor;
    int64_t rows = config->batch * seq;
    if (!config->sequence_parallel || rows % m == 0) return STATUS_OK;
    return FAIL(STATUS_INVALID,
        "sequence parallel: tensor is %lld, rows are %lld, a batch of %d sequence%s of %lld tokens: "
        "expected a divisor of them, so that each rank has as many",
        (long long)m, (long long)rows, config->batch, PLURAL(config->batch),
        (long long)seq);
}

static enum status check_pipeline(const struct train_config *config)
{
    if (config->pipeline < 1 || config->pipeline > config->model.layers)
        return FAIL(STATUS_INVALID,
            "pipeline is %d, expected 1 to %d stage%s: each has at least one of the blocks",
            config->pipeline, config->model.layers, PLURAL(config->model.layers));
    return STATUS_OK;
}

static enum status check_run(const struct train_config *config)
{
    if (config->data == NULL)
        return FAIL(
            STATUS_INVALID, "no data given, expected a file or glob of text or token shards");
    if (config->seq > config->model.max_t)
        return FAIL(STATUS_INVALID,
            "seq is %d, expected at most %d: the model has no more positions", config->seq,
            config->model.max_t);
    if (config->batch < 1 || config->seq < 0 || config->accumulate < 1)
        return FAIL(STATUS_INVALID, "batch %d, seq %d, accumulate %d: expected at least 1 of each",
            config->batch, config->seq, config->accumulate);
    if (config->steps < 1) return FAIL(STATUS_INVALID, "steps is 0, expected at least 1");
    if (config->stop_at > config->steps)
        return FAIL(STATUS_INVALID,
            "stop at %llu is beyond the last step %llu: raise steps or lower it",
            (unsigned long long)config->stop_at, (unsigned long long)config->steps);
    if (config->checkpoint_every > 0 && config->checkpoint_dir == NULL)
        return FAIL(STATUS_INVALID,
            "checkpoints are asked for every %llu step%s but have no directory: give one",
            (unsigned long long)config->checkpoint_every, PLURAL(config->checkpoint_every));
    return STATUS_OK;
}

static enum status check_numbers(const struct train_config *config)
{
    const struct {
        const char *name;
        double value, least, most;
    } ranges[] = {
        {"lr", (double)config->lr, 0.0, 1e3},
        {"final fraction of lr", (double)config->final_fraction, 0.0, 1.0},
        {"clip", (double)config->clip, 0.0, INFINITY},
        {"beta1", (double)config->adam.beta1, 0.0, 0.999999},
        {"beta2", (double)config->adam.beta2, 0.0, 0.999999},
        {"epsilon", (double)config->adam.epsilon, 1e-30, 1.0},
        {"weight decay", (double)config->adam.weight_decay, 0.0, 1e3},
        {"temperature", (double)config->temperature, 0.0, 1e3},
        {"sample length", config->sample_tokens, 0.0, 1e9},
        {"seed", (double)config->seed, 0.0, 0x1p53 - 1},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (!(ranges[i].value >= ranges[i].least && ranges[i].value <= ranges[i].most))
            return FAIL(STATUS_INVALID, "%s is %g, expected %g to %g", ranges[i].name,
                ranges[i].value, ranges[i].least, ranges[i].most);
    return STATUS_OK;
}

enum status train_config_check(const struct train_config *config)
{
    TRY(model_config_check(&config->model));
    TRY(check_tensor(config));
    TRY(check_pipeline(config));
    TRY(check_stage(config));
    TRY(check_dtypes(config));
    TRY(check_run(config));
    TRY(check_rows(config));
    return check_numbers(config);
}

enum status train_config_grid(struct grid *grid, struct train_config *config, int nranks, int rank)
{
    int64_t parts = (int64_t)config->tensor * config->pipeline;
    if (parts > nranks || nranks % parts != 0)
        return FAIL(STATUS_INVALID,
            "tensor is %d, pipeline %d, expected their product to divide the %d rank%s",
            config->tensor, config->pipeline, nranks, PLURAL(nranks));
    int data = nranks / (int)parts;
    if (config->shard_group == 0) config->shard_group = data;
    if (config->shard_group > data || data % config->shard_group != 0)
        return FAIL(STATUS_INVALID, "shard group is %d, expected a divisor of the %d %srank%s",
            config->shard_group, data, data == nranks ? "" : "data ", PLURAL(data));
    *grid = grid_at(rank, nranks, config->tensor, config->pipeline, config->shard_group);
    return STATUS_OK;
}

/* Data ranks 0 … M−1 are the first shard group, and so on: neighbours, which are on one host where
 * possible. */
struct stage_config train_stage_config(const struct train_config *config,
    const struct params *params, const struct layout *layout, const struct grid *grid)
{
    return (struct stage_config){
        .ops = stage_by_number(config->stage),
        .params = params,
        .layout = layout,
        .grid = grid,
        .world = grid->world,
        .group = grid->group_comm,
        .replicas = grid->replicas_comm,
        .ends = grid->embedding_comm,
        .place = train_place(config, grid),
        .rank = grid->data % grid->shard_group,
        .replica = grid->data / grid->shard_group,
        .replica_count = grid->data_count / grid->shard_group,
        .adam = config->adam,
        .dtype = config->dtype,
        .gradient_dtype = config->gradient_dtype,
        .reduce_dtype = config->reduce_dtype,
        .bucket_bytes = config->bucket_bytes,
        .overlap = config->overlap,
        .unsharded_accumulation = config->unsharded_accumulation,
        .broadcast_gather = config->broadcast_gather,
        .offload_optimizer = config->offload_optimizer,
        .stochastic_rounding = config->stochastic_rounding,
        .seed = config->seed,
    };
}

struct pipeline_place train_place(const struct train_config *config, const struct grid *grid)
{
    return (struct pipeline_place){grid->pipeline, grid->pipeline_count, config->accumulate};
}

struct pipeline_config train_pipeline_config(
    const struct model_run *run, const struct grid *grid, struct device *device)
{
    return (struct pipeline_config){
        .stage = grid->pipeline,
        .stage_count = grid->pipeline_count,
        .onward = grid->pipeline_comm,
        .back = grid->pipeline_back_comm,
        .carried = run->carried,
        .dtype = model_activation_dtype(run, device),
        .compute = run->stream,
        .device = device,
    };
}

/* Where tensor ranks hold rows of x, these are their parts of the inputs of blocks. */
static enum activation_keep keep_of(const struct train_config *config, int tensor_count)
{
    bool rows = config->sequence_parallel && tensor_count > 1;
    bool parts = config->activations == ACTIVATION_PART;
    return rows && parts ? ACTIVATION_INPUT : config->activations;
}

struct model_run train_model_run(const struct train_config *config, const struct grid *grid)
{
    const struct pipeline_place place = train_place(config, grid);
    enum activation_keep keep = keep_of(config, grid->tensor_count);
    return (struct model_run){
        .passes = pipeline_slots(&place),
        .batch = config->batch,
        .t = config->seq,
        .weights = config->dtype,
        .gradients = config->gradient_dtype,
        .recompute = activation_recomputes(keep),
        .carried = activation_is_carried(keep),
        .cut_rows = config->sequence_parallel,
    };
}

struct activation_config train_activation_config(const struct train_config *config,
    const struct params *params, const struct model_run *run, const struct grid *grid,
    struct device *device)
{
    const struct model_span span = model_span(params);
    size_t rows = (size_t)run->batch * (size_t)run->t;
    struct activation_config carries = {
        .keep = keep_of(config, params->part.tensor_count),
        .first_block = span.begin,
        .block_count = span.end - span.begin,
        .pass_count = run->passes > 0 ? run->passes : 1,
        .elements = model_own_rows(rows, params, run).count * (size_t)params->config.channels,
        .dtype = model_activation_dtype(run, device),
        .rank = params->part.tensor_rank,
        .nranks = params->part.tensor_count,
        .overlap = config->overlap,
        .comm = grid->tensor_comm,
        .compute = run->stream,
        .device = device,
    };
    if (!run->cut_rows) return carries;
    carries.rank = 0; /* alone: nobody else has these rows */
    carries.nranks = 1;
    carries.comm = NULL;
    return carries;
}

static const char *dtype_word(double dtype)
{
    return dtype_name((enum dtype)dtype);
}

static const char *architecture_word(double architecture)
{
    return architecture_name((enum architecture)architecture);
}

/* 0 where it is what 0 stands for: a model has one description. */
static double unless_default(int64_t value, int64_t otherwise)
{
    return value == otherwise ? 0.0 : (double)value;
}

static const char *activations_word(double keep)
{
    return activation_keep_name((enum activation_keep)keep);
}

int train_model_values(
    struct train_value values[TRAIN_VALUES_MOST], const struct model_config *model)
{
    const struct train_value all[] = {
        {{"max_t", model->max_t, NULL}, VALUE_MODEL},
        {{"vocab", model->vocab, NULL}, VALUE_MODEL},
        {{"layers", model->layers, NULL}, VALUE_MODEL},
        {{"heads", model->heads, NULL}, VALUE_MODEL},
        {{"channels", model->channels, NULL}, VALUE_MODEL},
        {{"vocab_block", model->vocab_block, NULL}, VALUE_MODEL},
        {{"architecture", model->architecture, architecture_word}, VALUE_MODEL},
        {{"kv_heads", unless_default(model_kv_heads(model), model->heads), NULL}, VALUE_MODEL},
        {{"hidden", unless_default(model_hidden(model), 4 * (int64_t)model->channels), NULL},
            VALUE_MODEL},
        {{"rotary_base", unless_default(model_rotary_base(model), 10000), NULL}, VALUE_MODEL},
    };
    memcpy(values, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

int train_values(
    struct train_value values[TRAIN_VALUES_MOST], const struct train_config *config, int nranks)
{
    const struct adam_config *adam = &config->adam;
    int group = config->shard_group > 0 ? config->shard_group
                                        : nranks / (config->tensor * config->pipeline);
    int model_count = train_model_values(values, &config->model);
    const struct train_value all[] = {
        {{"ranks", nranks, NULL}, VALUE_BITS},
        {{"batch", config->batch, NULL}, VALUE_BITS},
        {{"seq", config->seq, NULL}, VALUE_BITS},
        {{"accumulate", config->accumulate, NULL}, VALUE_BITS},
        {{"steps", (double)config->steps, NULL}, VALUE_BITS},
        {{"lr", (double)config->lr, NULL}, VALUE_BITS},
        {{"final_fraction", (double)config->final_fraction, NULL}, VALUE_BITS},
        {{"warmup", (double)config->warmup, NULL}, VALUE_BITS},
        {{"clip", (double)config->clip, NULL}, VALUE_BITS},
        {{"beta1", (double)adam->beta1, NULL}, VALUE_BITS},
        {{"beta2", (double)adam->beta2, NULL}, VALUE_BITS},
        {{"epsilon", (double)adam->epsilon, NULL}, VALUE_BITS},
        {{"weight_decay", (double)adam->weight_decay, NULL}, VALUE_BITS},
        {{"seed", (double)config->seed, NULL}, VALUE_BITS},
        {{"tensor", config->tensor, NULL}, VALUE_BITS},
        {{"sequence_parallel", config->sequence_parallel, NULL}, VALUE_BITS},
        {{"pipeline", config->pipeline, NULL}, VALUE_BITS},
        {{"shard_group", group, NULL}, VALUE_BITS},
        {{"dtype", config->dtype, dtype_word}, VALUE_BITS},
        {{"stochastic_rounding", config->stochastic_rounding, NULL}, VALUE_BITS},
        {{"gradient_dtype", config->gradient_dtype, dtype_word}, VALUE_BITS},
        {{"reduce_dtype", config->reduce_dtype, dtype_word}, VALUE_BITS},
        {{"loss_scale", config->scale.value, NULL}, VALUE_BITS},
        {{"loss_scale_floor", config->scale.floor, NULL}, VALUE_BITS},
        {{"loss_scale_interval", (double)config->scale.growth_interval, NULL}, VALUE_BITS},
        {{"stage", config->stage, NULL}, VALUE_ORDER},
        {{"checkpoint_activations", config->activations, activations_word}, VALUE_ORDER},
        {{"unsharded_accumulation", config->unsharded_accumulation, NULL}, VALUE_ORDER},
        {{"broadcast_gather", config->broadcast_gather, NULL}, VALUE_ORDER},
        {{"offload_optimizer", config->offload_optimizer, NULL}, VALUE_ORDER},
        {{"overlap", config->overlap, NULL}, VALUE_ORDER},
        {{"step_ledger", config->step_ledger, NULL}, VALUE_ORDER},
        {{"stop_at", (double)config->stop_at, NULL}, VALUE_ORDER},
        {{"bucket_bytes", (double)config->bucket_bytes, NULL}, VALUE_ORDER},
        {{"validate_every", (double)config->validate_every, NULL}, VALUE_ORDER},
        {{"validate_batches", (double)config->validate_batches, NULL}, VALUE_ORDER},
        {{"validate_last_batches", (double)config->validate_last_batches, NULL}, VALUE_ORDER},
        {{"hellaswag (given or not)", config->hellaswag != NULL, NULL}, VALUE_ORDER},
        {{"hellaswag_every", (double)config->hellaswag_every, NULL}, VALUE_ORDER},
        {{"checkpoint_every", (double)config->checkpoint_every, NULL}, VALUE_ORDER},
        {{"checkpoint (given or not)", config->checkpoint_dir != NULL, NULL}, VALUE_ORDER},
        {{"resume (given or not)", config->resume_dir != NULL, NULL}, VALUE_ORDER},
        {{"sample length", config->sample_tokens, NULL}, VALUE_ORDER},
        {{"temperature", (double)config->temperature, NULL}, VALUE_ORDER},
    };
    assert(model_count + (int)(sizeof all / sizeof *all) <= TRAIN_VALUES_MOST);
    memcpy(values + model_count, all, sizeof all);
    return model_count + (int)(sizeof all / sizeof *all);
}
