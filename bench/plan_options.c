/* plan_options: see plan_options.h. */
#include "bench/plan_options.h"

enum { KEY_STAGE = 0x200, KEY_MEMORY, KEY_PAPER, KEY_FRAGMENTATION };

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct plan_options *plan = state->input;
    const struct options *common = &plan->common;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &plan->common;
        state->child_inputs[1] = &plan->run;
        return 0;
    case KEY_STAGE: plan->stage = (int)options_integer(text, "--stage", 0, 3, common); return 0;
    case KEY_MEMORY:
        plan->memory_bytes = options_bytes(text, "--memory", common);
        if (plan->memory_bytes == 0)
            options_refuse(common, "--memory is 0, expected the bytes of one rank, as 24G");
        return 0;
    case KEY_PAPER: plan->paper = true; return 0;
    case KEY_FRAGMENTATION: plan->fragmentation = true; return 0;
    case ARGP_KEY_ARG:
        options_refuse(
            common, "found \"%s\", expected options only: see `ringzero plan --help`", text);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option own_options[] = {
    {"stage", KEY_STAGE, "N", 0, "ZeRO stage, 0 to 3 (all four, side by side)", 5},
    {"memory", KEY_MEMORY, "BYTES", 0,
        "of one rank: does it fit, and what would? Suffixes K, M, G are binary", 7},
    {"paper", KEY_PAPER, NULL, 0,
        "the ZeRO paper's Table 1, figures and configurations C1 to C5, instead of a model", 7},
    {"fragmentation", KEY_FRAGMENTATION, NULL, 0,
        "replay the allocations of training, against a first-fit heap and arenas, in --memory or "
        "as "
        "much as arenas take",
        7},
    {0},
};
static const struct argp_child children[] = {
    {&options_common, 0, "Common options:", 9}, {&run_options_child, 0, NULL, 0}, {0}};
static const char manual[] =
    "Predicts what a rank of a training run holds and sends, before anything is allocated: the "
    "numbers that `ringzero train` with the same options prints as predicted, and measures."
    "\vPrints a column per stage: the bytes a rank holds, by what they are for; the bytes that "
    "rank "
    "0 sends in a step (of --accumulate micro-batches), by collective, beside the ZeRO paper's "
    "2Ψ(N-1)/N or 3Ψ(N-1)/N; and why the two differ: how often a step reduces and gathers each "
    "kind "
    "of unit. Communication is told about: slots of edges on one host, with default tunables.\n\n"
    "With --pipeline they are of a rank of the stage that holds the most; what --offload and "
    "offloaded "
    "checkpoints keep in host memory is told beside the sum and --memory.\n\n"
    "--memory adds whether a rank has room, the largest depth at the model's width, and the "
    "largest "
    "batch.\n\n"
    "--json writes one object per stage: the options, parameters, padded, TAG_held, held_sum, "
    "formula_held, COLLECTIVE_sent, tensor_sum_sent, tensor_gather_sent, "
    "tensor_paper_bytes, pipeline_sent, ends_sent, bubble, sent_sum, paper_psi, paper_bytes, formula_psi, formula_bytes, "
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
    "  ringzero plan --model gpt2-124m --ranks 8 --stage 3 \\\n"
    "      --checkpoint-activations full\n"
    "  ringzero plan --paper\n"
    "  ringzero plan --fragmentation --model gpt2-124m --batch 8";

static const struct argp argp = {
    own_options, parse_option, NULL, manual, children, options_help_filter, NULL};

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
    };
    plan.run = run_options_default(&plan.common, &plan.config.train);
    options_parse(&argp, argc, argv, &plan.common, &plan);
    run_options_finish(&plan.run);
    if (plan.common.ranks > 0) plan.config.nranks = plan.common.ranks;
    return plan;
}
