/* run_options: see run_options.h. */
#include "bench/run_options.h"

#include <stdio.h>

enum key {
    KEY_MODEL = 0x300, /* beyond the keys of the programs */
    KEY_LAYERS,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_HIDDEN,
    KEY_CHANNELS,
    KEY_VOCAB,
    KEY_POSITIONS,
    KEY_BATCH,
    KEY_SEQ,
    KEY_ACCUMULATE,
    KEY_TENSOR,
    KEY_SEQUENCE_PARALLEL,
    KEY_PIPELINE,
    KEY_SHARD_GROUP,
    KEY_CHECKPOINT_ACTIVATIONS,
    KEY_GATHER,
    KEY_OFFLOAD,
    KEY_UNSHARDED_ACCUMULATION,
    KEY_BUCKET_BYTES,
    KEY_DTYPE,
    KEY_GRADIENT_DTYPE,
    KEY_REDUCE_DTYPE,
};

static error_t parse_model(int key, char *text, struct run_options *run)
{
    const struct options *common = run->common;
    switch (key) {
    case KEY_MODEL: run->model = text; return 0;
    case KEY_LAYERS: run->layers = options_count(text, "--layers", common); return 0;
    case KEY_HEADS: run->heads = options_count(text, "--heads", common); return 0;
    case KEY_KV_HEADS: run->kv_heads = options_count(text, "--kv-heads", common); return 0;
    case KEY_HIDDEN: run->hidden = options_count(text, "--hidden", common); return 0;
    case KEY_CHANNELS: run->channels = options_count(text, "--channels", common); return 0;
    case KEY_VOCAB: run->vocab = options_count(text, "--vocab", common); return 0;
    case KEY_POSITIONS: run->max_t = options_count(text, "--positions", common); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_split(int key, char *text, struct run_options *run)
{
    const struct options *common = run->common;
    struct train_config *config = run->config;
    switch (key) {
    case KEY_TENSOR: config->tensor = options_count(text, "--tensor", common); return 0;
    case KEY_SEQUENCE_PARALLEL: config->sequence_parallel = true; return 0;
    case KEY_PIPELINE: config->pipeline = options_count(text, "--pipeline", common); return 0;
    case KEY_SHARD_GROUP:
        config->shard_group = options_count(text, "--shard-group", common);
        return 0;
    case KEY_GATHER:
        config->broadcast_gather =
            options_word(text, "--gather", "all_gather", "broadcast", common);
        return 0;
    case KEY_OFFLOAD:
        config->offload_optimizer = options_word(text, "--offload", "none", "optimizer", common);
        return 0;
    case KEY_UNSHARDED_ACCUMULATION: config->unsharded_accumulation = true; return 0;
    case KEY_CHECKPOINT_ACTIVATIONS:
        config->activations = options_activations(text, common);
        return 0;
    case KEY_BUCKET_BYTES:
        config->bucket_bytes = options_bytes(text, "--bucket-bytes", common);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_size(int key, char *text, struct run_options *run)
{
    const struct options *common = run->common;
    struct train_config *config = run->config;
    switch (key) {
    case KEY_BATCH: config->batch = options_count(text, "--batch", common); return 0;
    case KEY_SEQ: config->seq = options_count(text, "--seq", common); return 0;
    case KEY_ACCUMULATE: config->accumulate = options_count(text, "--accumulate", common); return 0;
    case KEY_DTYPE: config->dtype = options_training_dtype(text, "--dtype", common); return 0;
    case KEY_GRADIENT_DTYPE:
        config->gradient_dtype = options_training_dtype(text, "--gradient-dtype", common);
        run->gradient_dtype_given = true;
        return 0;
    case KEY_REDUCE_DTYPE:
        config->reduce_dtype = options_training_dtype(text, "--reduce-dtype", common);
        run->reduce_dtype_given = true;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct run_options *run = state->input;
    error_t error = parse_model(key, text, run);
    if (error == ARGP_ERR_UNKNOWN) error = parse_split(key, text, run);
    if (error == ARGP_ERR_UNKNOWN) error = parse_size(key, text, run);
    return error;
}

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "NAME", 0, "one of", 2}, /* the names: see help_filter() */
    {"layers", KEY_LAYERS, "N", 0, "blocks, the same", 2},
    {"heads", KEY_HEADS, "N", 0, "of attention, the same; divides the channels", 2},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "of keys and values, the same; divides the heads", 2},
    {"channels", KEY_CHANNELS, "N", 0, "width, instead of the preset's", 2},
    {"hidden", KEY_HIDDEN, "N", 0, "width between the two feed-forward layers, the same", 2},
    {"vocab", KEY_VOCAB, "N", 0, "ids, the same; text needs 256 and gets no more", 2},
    {"positions", KEY_POSITIONS, "N", 0, "the longest sequence, the same", 2},
    {"batch", KEY_BATCH, "N", 0, "sequences per rank and micro-batch, or group of --tensor (8)", 3},
    {"seq", KEY_SEQ, "N", 0, "tokens per sequence (as many as the model has positions)", 3},
    {"accumulate", KEY_ACCUMULATE, "N", 0, "micro-batches per step and rank (1)", 3},
    {"tensor", KEY_TENSOR, "M", 0,
        "ranks that share every tensor, and train on the same tokens (1); divides --ranks, heads and "
        "hidden columns; they are on one host where M divides its ranks, however a launcher numbers "
        "them. The rest is data-parallel",
        5},
    {"sequence-parallel", KEY_SEQUENCE_PARALLEL, NULL, 0,
        "with --tensor: between matrix products each of the M ranks holds its rows of the tokens' "
        "vectors, so that norms and residuals take 1/M; M divides batch x seq. Inputs that are "
        "kept are parts already: partitioned is then full",
        5},
    {"pipeline", KEY_PIPELINE, "P", 0,
        "stages that share the blocks (1), one forward, one backward in turn: give --accumulate A "
        "of P "
        "or more; the rest of the time, (P-1)/(A+P-1) of it, a stage waits",
        5},
    {"shard-group", KEY_SHARD_GROUP, "M", 0,
        "ranks that share one copy of what is sharded (all); divides --ranks / --tensor / "
        "--pipeline",
        5},
    {"unsharded-accumulation", KEY_UNSHARDED_ACCUMULATION, NULL, 0,
        "stages 2 and 3 with --accumulate: keep gradients whole, reduce once a step", 5},
    {"gather", KEY_GATHER, "HOW", 0,
        "stage 3: weights come by all_gather (the default), or by broadcast from each owner", 5},
    {"offload", KEY_OFFLOAD, "WHAT", 0,
        "none (the default), or optimizer: master weights and moments in host memory, AdamW there",
        5},
    {"checkpoint-activations", KEY_CHECKPOINT_ACTIVATIONS, "WHAT", 0,
        "none (the default), or full: keep only the input of each block, compute the rest again; "
        "partitioned: a part of it on each rank of --tensor (P_a); offload: in host memory "
        "(P_a+cpu)",
        5},
    {"bucket-bytes", KEY_BUCKET_BYTES, "BYTES", 0,
        "of gradient, that travel at once (4M); suffixes K, M, G", 5},
    {"dtype", KEY_DTYPE, "DTYPE", 0,
        "of weights: float32 (the default); bfloat16 or float16, with float32 master weights", 6},
    {"gradient-dtype", KEY_GRADIENT_DTYPE, "DTYPE", 0,
        "of gradients, held and sent: that of weights (the default) or float32", 6},
    {"reduce-dtype", KEY_REDUCE_DTYPE, "DTYPE", 0,
        "in which they are summed on the way: their own (the default) or float32", 6},
    {0},
};

/* Completes the help of --model by the presets that there are. */
static char *help_filter(int key, const char *text, void *input)
{
    if (key != KEY_MODEL) return options_help_filter(key, text, input);
    char *help = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&help, &bytes); /* argp frees it */
    if (stream == NULL) return (char *)(uintptr_t)text;
    fprintf(stream, "%s", text);
    for (size_t i = 0; model_preset_name(i) != NULL; i++)
        fprintf(stream, "%s %s", i == 0 ? "" : ",", model_preset_name(i));
    fprintf(stream, " (nano)");
    return fclose(stream) == 0 ? help : (char *)(uintptr_t)text;
}

const struct argp run_options_child = {options, parse_option, NULL, NULL, NULL, help_filter, NULL};

struct run_options run_options_default(const struct options *common, struct train_config *config)
{
    return (struct run_options){.common = common, .config = config, .model = "nano"};
}

static void override(int *value, int given)
{
    if (given > 0) *value = given;
}

void run_options_finish(struct run_options *run)
{
    struct train_config *config = run->config;
    struct model_config *model = &config->model;
    if (model_preset(model, run->model) != STATUS_OK)
        options_refuse(run->common, "--model: %s", status_text());
    override(&model->layers, run->layers);
    override(&model->heads, run->heads);
    override(&model->kv_heads, run->kv_heads);
    override(&model->hidden, run->hidden);
    override(&model->channels, run->channels);
    override(&model->vocab, run->vocab);
    override(&model->max_t, run->max_t);
    if (!run->gradient_dtype_given) config->gradient_dtype = config->dtype;
    if (!run->reduce_dtype_given) config->reduce_dtype = config->gradient_dtype;
    run->common = NULL;
    run->config = NULL;
}
