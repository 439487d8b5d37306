/* plan_options: see plan_options.h. */
#include "bench/plan_options.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "verbs/dtype.h"

enum key {
    KEY_MODEL = 0x200,
    KEY_LAYERS,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_HIDDEN,
    KEY_CHANNELS,
    KEY_VOCAB,
    KEY_POSITIONS,
    KEY_STAGE,
    KEY_TENSOR,
    KEY_PIPELINE,
    KEY_SHARD_GROUP,
    KEY_GATHER,
    KEY_OFFLOAD,
    KEY_UNSHARDED_ACCUMULATION,
    KEY_CHECKPOINT_ACTIVATIONS,
    KEY_BUCKET_BYTES,
    KEY_DTYPE,
    KEY_GRADIENT_DTYPE,
    KEY_REDUCE_DTYPE,
    KEY_BATCH,
    KEY_SEQ,
    KEY_ACCUMULATE,
    KEY_MEMORY,
    KEY_PAPER,
    KEY_FRAGMENTATION,
};

static error_t parse_model(int key, char *text, struct plan_options *plan)
{
    const struct options *common = &plan->common;
    switch (key) {
    case KEY_MODEL: plan->model = text; return 0;
    case KEY_LAYERS: plan->layers = options_count(text, "--layers", common); return 0;
    case KEY_HEADS: plan->heads = options_count(text, "--heads", common); return 0;
    case KEY_KV_HEADS: plan->kv_heads = options_count(text, "--kv-heads", common); return 0;
    case KEY_HIDDEN: plan->hidden = options_count(text, "--hidden", common); return 0;
    case KEY_CHANNELS: plan->channels = options_count(text, "--channels", common); return 0;
    case KEY_VOCAB: plan->vocab = options_count(text, "--vocab", common); return 0;
    case KEY_POSITIONS: plan->max_t = options_count(text, "--positions", common); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_stage(int key, char *text, struct plan_options *plan)
{
    const struct options *common = &plan->common;
    struct train_config *train = &plan->config.train;
    switch (key) {
    case KEY_STAGE: plan->stage = (int)options_integer(text, "--stage", 0, 3, common); return 0;
    case KEY_TENSOR: train->tensor = options_count(text, "--tensor", common); return 0;
    case KEY_PIPELINE: train->pipeline = options_count(text, "--pipeline", common); return 0;
    case KEY_SHARD_GROUP: train->shard_group = options_count(text, "--shard-group", common); return 0;
    case KEY_GATHER:
        train->broadcast_gather = options_word(text, "--gather", "all_gather", "broadcast", common);
        return 0;
    case KEY_OFFLOAD:
        train->offload_optimizer = options_word(text, "--offload", "none", "optimizer", common);
        return 0;
    case KEY_UNSHARDED_ACCUMULATION: train->unsharded_accumulation = true; return 0;
    case KEY_CHECKPOINT_ACTIVATIONS:
        train->activations = options_activations(text, common);
        return 0;
    case KEY_BUCKET_BYTES:
        train->bucket_bytes = options_bytes(text, "--bucket-bytes", common);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_run(int key, char *text, struct plan_options *plan)
{
    const struct options *common = &plan->common;
    struct train_config *train = &plan->config.train;
    switch (key) {
    case KEY_DTYPE: train->dtype = options_training_dtype(text, "--dtype", common); return 0;
    case KEY_GRADIENT_DTYPE:
        train->gradient_dtype = options_training_dtype(text, "--gradient-dtype", common);
        plan->gradient_dtype_given = true;
        return 0;
    case KEY_REDUCE_DTYPE:
        train->reduce_dtype = options_training_dtype(text, "--reduce-dtype", common);
        plan->reduce_dtype_given = true;
        return 0;
    case KEY_BATCH: train->batch = options_count(text, "--batch", common); return 0;
    case KEY_SEQ: train->seq = options_count(text, "--seq", common); return 0;
    case KEY_ACCUMULATE: train->accumulate = options_count(text, "--accumulate", common); return 0;
    case KEY_MEMORY:
        plan->memory_bytes = options_bytes(text, "--memory", common);
        if (plan->memory_bytes == 0)
            options_refuse(common, "--memory is 0, expected the bytes of one rank, as 24G");
        return 0;
    case KEY_PAPER: plan->paper = true; return 0;
    case KEY_FRAGMENTATION: plan->fragmentation = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct plan_options *plan = state->input;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = &plan->common;
        return 0;
    }
    if (key == ARGP_KEY_ARG)
        options_refuse(
            &plan->common, "found \"%s\", expected options only: see `ringzero plan --help`", text);
    error_t error = parse_model(key, text, plan);
    if (error == ARGP_ERR_UNKNOWN) error = parse_stage(key, text, plan);
    if (error == ARGP_ERR_UNKNOWN) error = parse_run(key, text, plan);
    return error;
}

static const struct argp_option own_options[] = {
    {"model", KEY_MODEL, "NAME", 0, "one of", 2}, /* the names: see help_filter() */
    {"layers", KEY_LAYERS, "N", 0, "blocks, instead of the preset's number", 2},
    {"heads", KEY_HEADS, "N", 0, "of attention, the same; divides the channels", 2},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "of keys and values, the same; divides the heads", 2},
    {"channels", KEY_CHANNELS, "N", 0, "width, the same", 2},
    {"hidden", KEY_HIDDEN, "N", 0, "width between the two feed-forward layers, the same", 2},
    {"vocab", KEY_VOCAB, "N", 0, "ids, the same", 2},
    {"positions", KEY_POSITIONS, "N", 0, "the longest sequence, the same", 2},
    {"batch", KEY_BATCH, "N", 0, "sequences per rank and micro-batch (8)", 3},
    {"seq", KEY_SEQ, "N", 0, "tokens per sequence (as many as the model has positions)", 3},
    {"accumulate", KEY_ACCUMULATE, "N", 0, "micro-batches per step and rank (1)", 3},
    {"checkpoint-activations", KEY_CHECKPOINT_ACTIVATIONS, "WHAT", 0,
        "none (the default), or full: keep only the input of each block; partitioned: a part of it "
        "(P_a); offload: in host memory (P_a+cpu), beside the sum and --memory",
        3},
    {"stage", KEY_STAGE, "N", 0, "ZeRO stage, 0 to 3 (all four, side by side)", 4},
    {"tensor", KEY_TENSOR, "M", 0, "ranks that share every tensor (1); divides --ranks", 4},
    {"pipeline", KEY_PIPELINE, "P", 0,
        "stages that share the blocks (1); divides --ranks / --tensor. Told is what ranks of the stage "
        "that holds the most hold and send",
        4},
    {"shard-group", KEY_SHARD_GROUP, "M", 0,
        "ranks that share one copy of what is sharded (all); divides --ranks / --tensor / --pipeline", 4},
    {"unsharded-accumulation", KEY_UNSHARDED_ACCUMULATION, NULL, 0,
        "stages 2 and 3: keep gradients whole, reduce once a step", 4},
    {"gather", KEY_GATHER, "HOW", 0,
        "stage 3: by all_gather (the default), or by broadcast from each owner", 4},
    {"offload", KEY_OFFLOAD, "WHAT", 0,
        "none (the default), or optimizer: in host memory, beside the sum and --memory", 4},
    {"bucket-bytes", KEY_BUCKET_BYTES, "BYTES", 0,
        "of gradient, that travel at once (4M); suffixes K, M, G", 4},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "of weights: float32 (the default), bfloat16 or float16", 5},
    {"gradient-dtype", KEY_GRADIENT_DTYPE, "DTYPE", 0,
        "of gradients: that of weights (the default) or float32", 5},
    {"reduce-dtype", KEY_REDUCE_DTYPE, "DTYPE", 0,
        "in which they are summed on the way: their own (the default) or float32", 5},
    {"memory", KEY_MEMORY, "BYTES", 0,
        "of one rank: does it fit, and what would? Suffixes K, M, G are binary", 6},
    {"paper", KEY_PAPER, NULL, 0,
        "the ZeRO paper's Table 1, figures and configurations C1 to C5, instead of a model", 6},
    {"fragmentation", KEY_FRAGMENTATION, NULL, 0,
        "replay the allocations of training, against a first-fit heap and arenas, in --memory or as "
        "much as arenas take",
        6},
    {0},
};
static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const char manual[] =
    "Predicts what a rank of a training run holds and sends, before anything is allocated: the "
    "numbers that `ringzero train` with the same options prints as predicted, and measures."
    "\vPrints a column per stage: the bytes a rank holds, by what they are for; the bytes that "
    "rank "
    "0 sends in a step (of --accumulate micro-batches), by collective, beside the ZeRO paper's "
    "2Ψ(N-1)/N or 3Ψ(N-1)/N; and why the two differ: how often a step reduces and gathers each "
    "kind "
    "of unit. Communication is told about: slots of edges on one host, with default tunables.\n\n"
    "--memory adds whether a rank has room, the largest depth at the model's width, and the "
    "largest "
    "batch.\n\n"
    "--json writes one object per stage: the options, parameters, padded, TAG_held, held_sum, "
    "formula_held, COLLECTIVE_sent, tensor_sum_sent, tensor_paper_bytes, pipeline_sent, ends_sent, bubble, sent_sum, paper_psi, paper_bytes, formula_psi, formula_bytes, "
    "wire{units{units, elements, padded, reductions, gathers, sent}}, scalars_sent, "
    "sent_per_token, memory, fits, largest_layers, largest_batch, largest_sent_per_token, "
    "largest_batches{none, full, partitioned, offload} (null without --memory); with --paper one "
    "object per cell of Table 1 (parameters, ranks, stage, gb, paper_gb), per figure (figure, "
    "formula, unit, value, paper) and per configuration (configuration, parts, states_gb, "
    "checkpoints_gb, host_gb, device_gb, tensor_sent_bsh, largest_batch), and "
    "offload_flops_per_byte; with --fragmentation an object for the heap and one for arenas "
    "(allocator, memory, fits, needs, peak, fragmentation, "
    "and event, null or beside bytes, free, largest_hole).\n\n"
    "Exit code: 0, also where it does not fit; 2 for bad input.\n\n"
    "Examples:\n  ringzero plan --model gpt2-1558m --ranks 64 --dtype bfloat16 --memory 24G\n"
    "  ringzero plan --model gpt2-124m --ranks 8 --stage 3 --checkpoint-activations full\n"
    "  ringzero plan --paper\n"
    "  ringzero plan --fragmentation --model gpt2-124m --batch 8";

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

static const struct argp argp = {
    own_options, parse_option, NULL, manual, children, help_filter, NULL};

static void override(int *value, int given)
{
    if (given > 0) *value = given;
}

struct forecast_config plan_options_of_stage(int stage, const struct plan_options *options)
{
    struct forecast_config config = options->config;
    config.train.stage = stage;
    if (options->stage != PLAN_ALL_STAGES) return config;
    if (stage < 2) config.train.unsharded_accumulation = false;
    if (stage < 3) config.train.broadcast_gather = false;
    return config;
}

struct plan_options plan_options_parse(int argc, char **argv)
{
    struct plan_options plan = {
        .common = options_default("ringzero plan"),
        .config = {.train = train_config_default(), .nranks = 1},
        .stage = PLAN_ALL_STAGES,
        .model = "nano",
    };
    struct train_config *train = &plan.config.train;
    options_parse(&argp, argc, argv, &plan.common, &plan);
    if (model_preset(&train->model, plan.model) != STATUS_OK)
        options_refuse(&plan.common, "--model: %s", status_text());
    override(&train->model.layers, plan.layers);
    override(&train->model.heads, plan.heads);
    override(&train->model.kv_heads, plan.kv_heads);
    override(&train->model.hidden, plan.hidden);
    override(&train->model.channels, plan.channels);
    override(&train->model.vocab, plan.vocab);
    override(&train->model.max_t, plan.max_t);
    override(&plan.config.nranks, plan.common.ranks);
    if (!plan.gradient_dtype_given) train->gradient_dtype = train->dtype;
    if (!plan.reduce_dtype_given) train->reduce_dtype = train->gradient_dtype;
    return plan;
}
