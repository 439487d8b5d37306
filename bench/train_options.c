/* train_options: see train_options.h. */
#include "bench/train_options.h"

#include <float.h>
#include <limits.h>
#include <string.h>

#include "verbs/dtype.h"

#define WIDE_MODEL_LR 6e-4f /* wide models diverge where nano learns best */

enum key {
    KEY_STAGE = 0x200,
    KEY_DATA,
    KEY_VALIDATION,
    KEY_STEPS,
    KEY_STOP_AT,
    KEY_LR,
    KEY_WARMUP,
    KEY_FINAL,
    KEY_CLIP,
    KEY_BETA2,
    KEY_DECAY,
    KEY_STOCHASTIC_ROUNDING,
    KEY_LOSS_SCALE,
    KEY_LOSS_SCALE_FLOOR,
    KEY_LOSS_SCALE_INTERVAL,
    KEY_VALIDATE_EVERY,
    KEY_VALIDATE_BATCHES,
    KEY_HELLASWAG,
    KEY_HELLASWAG_EVERY,
    KEY_CHECKPOINT,
    KEY_CHECKPOINT_EVERY,
    KEY_RESUME,
    KEY_ON_DEATH,
    KEY_SAMPLE,
    KEY_PROMPT,
    KEY_TEMPERATURE,
    KEY_NO_OVERLAP,
    KEY_MEMORY_LIMIT,
    KEY_THREADS,
    KEY_PLOT,
    KEY_REPORT,
    KEY_MAIN_LOG,
    KEY_PROFILE,
    KEY_TRACE,
    KEY_TRACE_STEPS,
};

static uint64_t take_steps(
    const char *text, const char *option, int64_t least, const struct options *options)
{
    return (uint64_t)options_integer(text, option, least, (int64_t)1 << 52, options);
}

static error_t parse_stage(int key, char *text, struct train_options *train)
{
    const struct options *common = &train->common;
    struct train_config *config = &train->config;
    switch (key) {
    case KEY_STAGE: config->stage = (int)options_integer(text, "--stage", 0, 3, common); return 0;
    case KEY_NO_OVERLAP: config->overlap = false; return 0;
    case KEY_MEMORY_LIMIT:
        config->memory_limit_bytes = options_bytes(text, "--memory-limit", common);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_dtypes(int key, char *text, struct train_options *train)
{
    const struct options *common = &train->common;
    struct loss_scale *scale = &train->config.scale;
    switch (key) {
    case KEY_STOCHASTIC_ROUNDING: train->config.stochastic_rounding = true; return 0;
    case KEY_LOSS_SCALE:
        scale->value = (double)options_number(text, "--loss-scale", -FLT_MAX, FLT_MAX, common);
        return 0;
    case KEY_LOSS_SCALE_FLOOR:
        scale->floor = (double)options_number(text, "--loss-scale-floor", -FLT_MAX, FLT_MAX, common);
        return 0;
    case KEY_LOSS_SCALE_INTERVAL:
        scale->growth_interval = take_steps(text, "--loss-scale-interval", 0, common);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_run(int key, char *text, struct train_options *train)
{
    const struct options *common = &train->common;
    struct train_config *config = &train->config;
    switch (key) {
    case KEY_STEPS: config->steps = take_steps(text, "--steps", 1, common); return 0;
    case KEY_STOP_AT: config->stop_at = take_steps(text, "--stop-at", 1, common); return 0;
    case KEY_LR:
        config->lr = options_number(text, "--lr", -FLT_MAX, FLT_MAX, common);
        train->lr_given = true;
        return 0;
    case KEY_WARMUP: config->warmup = take_steps(text, "--warmup", 0, common); return 0;
    case KEY_FINAL: config->final_fraction = options_number(text, "--final", -FLT_MAX, FLT_MAX, common); return 0;
    case KEY_CLIP: config->clip = options_number(text, "--clip", -FLT_MAX, FLT_MAX, common); return 0;
    case KEY_BETA2: config->adam.beta2 = options_number(text, "--beta2", -FLT_MAX, FLT_MAX, common); return 0;
    case KEY_DECAY: config->adam.weight_decay = options_number(text, "--decay", -FLT_MAX, FLT_MAX, common); return 0;
    case KEY_THREADS: train->threads = options_count(text, "--threads", common); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* "2" or "2:3". */
static void take_trace_steps(char *text, struct train_options *train)
{
    char *colon = strchr(text, ':');
    if (colon != NULL) *colon = '\0';
    train->trace_first = take_steps(text, "--trace-steps", 1, &train->common);
    train->trace_last = train->trace_first;
    if (colon != NULL)
        train->trace_last =
            take_steps(colon + 1, "--trace-steps", (int64_t)train->trace_first, &train->common);
}

static error_t parse_files(int key, char *text, struct train_options *train)
{
    const struct options *common = &train->common;
    struct train_config *config = &train->config;
    switch (key) {
    case KEY_DATA: config->data = text; return 0;
    case KEY_VALIDATION: config->validation = text; return 0;
    case KEY_VALIDATE_EVERY:
        config->validate_every = take_steps(text, "--validate-every", 0, common);
        return 0;
    case KEY_VALIDATE_BATCHES:
        config->validate_batches = config->validate_last_batches =
            (size_t)options_integer(text, "--validate-batches", 0, INT_MAX, common);
        return 0;
    case KEY_HELLASWAG: config->hellaswag = text; return 0;
    case KEY_HELLASWAG_EVERY:
        config->hellaswag_every = take_steps(text, "--hellaswag-every", 0, common);
        return 0;
    case KEY_CHECKPOINT: config->checkpoint_dir = text; return 0;
    case KEY_CHECKPOINT_EVERY:
        config->checkpoint_every = take_steps(text, "--checkpoint-every", 1, common);
        return 0;
    case KEY_RESUME: config->resume_dir = text; return 0;
    case KEY_ON_DEATH: train->shrinks = options_shrinks(text, &train->common); return 0;
    case KEY_PLOT: train->plot = options_stem(text, "--plot", common); return 0;
    case KEY_REPORT: train->report = text; return 0;
    case KEY_MAIN_LOG: train->main_log = text; return 0;
    case KEY_PROFILE: config->profile = true; return 0;
    case KEY_TRACE: train->trace = options_stem(text, "--trace", common); return 0;
    case KEY_TRACE_STEPS: take_trace_steps(text, train); return 0;
    case KEY_SAMPLE:
        config->sample_tokens = (int)options_integer(text, "--sample", 0, 1000000, common);
        return 0;
    case KEY_PROMPT: config->sample_prompt = text; return 0;
    case KEY_TEMPERATURE:
        config->temperature = options_number(text, "--temperature", -FLT_MAX, FLT_MAX, common);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct train_options *train = state->input;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = &train->common;
        state->child_inputs[1] = &train->run;
        return 0;
    }
    if (key == ARGP_KEY_ARG)
        options_refuse(
            &train->common, "found \"%s\", expected options only: the text goes to --data", text);
    error_t error = parse_stage(key, text, train);
    if (error == ARGP_ERR_UNKNOWN) error = parse_dtypes(key, text, train);
    if (error == ARGP_ERR_UNKNOWN) error = parse_run(key, text, train);
    if (error == ARGP_ERR_UNKNOWN) error = parse_files(key, text, train);
    return error;
}

static const struct argp_option options[] = {
    {"data", KEY_DATA, "FILE|GLOB", 0,
        "text (its bytes are the tokens), or token shards *.bin; required", 1},
    {"validation", KEY_VALIDATION, "FILE|GLOB", 0, "the same, held out (the last tenth of --data)",
        1},
    {"steps", KEY_STEPS, "N", 0, "of the whole run (1000); shapes the learning rate", 3},
    {"stop-at", KEY_STOP_AT, "N", 0, "stop after this step, to go on with --resume", 3},
    {"lr", KEY_LR, "X", 0, "highest learning rate (nano and llama-nano 6e-3, others 6e-4)", 4},
    {"warmup", KEY_WARMUP, "N", 0, "steps until --lr is reached (100)", 4},
    {"final", KEY_FINAL, "X", 0, "fraction of --lr at the last step (0.1)", 4},
    {"clip", KEY_CLIP, "X", 0, "largest gradient norm (1); 0: not clipped", 4},
    {"beta2", KEY_BETA2, "X", 0, "of AdamW (0.99)", 4},
    {"decay", KEY_DECAY, "X", 0, "weight decay of matrices (0.1)", 4},
    {"stage", KEY_STAGE, "N", 0,
        "ZeRO stage: what a rank keeps only its share of. 0 (the default): nothing; 1: the optimizer's "
        "state; 2: and gradients; 3: and weights",
        5},
    {"no-overlap", KEY_NO_OVERLAP, NULL, 0, "wait for every operation where it starts", 5},
    {"memory-limit", KEY_MEMORY_LIMIT, "BYTES", 0,
        "refuse to hold more on a rank, of all that the ledger counts (none): see ringzero plan", 5},
    {"stochastic-rounding", KEY_STOCHASTIC_ROUNDING, NULL, 0,
        "bfloat16 weights are rounded up or down by chance, by how near each is", 6},
    {"loss-scale", KEY_LOSS_SCALE, "X", 0, "at first, with float16 gradients (65536)", 6},
    {"loss-scale-floor", KEY_LOSS_SCALE_FLOOR, "X", 0,
        "an overflow there ends the run (1); elsewhere the step is skipped, the scale halved", 6},
    {"loss-scale-interval", KEY_LOSS_SCALE_INTERVAL, "N", 0,
        "good steps in a row until it doubles (2000); 0: never", 6},
    {"validate-every", KEY_VALIDATE_EVERY, "N", 0, "steps (100), and at the end; 0: only then", 7},
    {"validate-batches", KEY_VALIDATE_BATCHES, "N", 0,
        "of each validation, at most; 0: all held-out text (16, but at the end all)", 7},
    {"hellaswag", KEY_HELLASWAG, "FILE", 0,
        "questions with endings, in llm.c's format: how often the right one is the likeliest", 7},
    {"hellaswag-every", KEY_HELLASWAG_EVERY, "N", 0, "steps (100), and at the end; 0: only then", 7},
    {"checkpoint", KEY_CHECKPOINT, "DIR", 0, "write one at the end; the newest two are kept", 7},
    {"checkpoint-every", KEY_CHECKPOINT_EVERY, "N", 0, "and every N steps", 7},
    {"resume", KEY_RESUME, "DIR", 0,
        "go on from the newest checkpoint in DIR; from weights that `ringzero convert` put there, at step "
        "0", 7},
    {"on-death", KEY_ON_DEATH, "end|shrink", 0,
        "when a rank is lost: end the run (the default), or go on with those that are left, from the "
        "newest checkpoint; not without rank 0; needs --checkpoint and --checkpoint-every",
        7},
    {"sample", KEY_SAMPLE, "N", 0, "tokens of text at the end (0)", 7},
    {"prompt", KEY_PROMPT, "TEXT", 0, "that the sample continues (a line break)", 7},
    {"temperature", KEY_TEMPERATURE, "X", 0, "of the sample (0.8); 0: always the likeliest token", 7},
    {"plot", KEY_PLOT, "FILE.svg", 0, "a picture of loss and throughput (gnuplot)", 7},
    {"report", KEY_REPORT, "FILE.html", 0, "a page about the run: curves, and the ledger", 7},
    {"main-log", KEY_MAIN_LOG, "FILE", 0, "a line per step as llm.c's main.log has them", 7},
    {"profile", KEY_PROFILE, NULL, 0,
        "at the end, where the time of the steps went: operations by time, FLOPs and bytes, waits, and "
        "the ring, beside the machine's marks",
        7},
    {"trace", KEY_TRACE, "FILE", 0,
        "what each rank did when in some steps: operations, waits, collectives: FILE for "
        "ui.perfetto.dev, FILE.svg to look at",
        7},
    {"trace-steps", KEY_TRACE_STEPS, "FIRST:LAST", 0,
        "which of the steps that this run does (2:3, or 1 where there is no other)", 7},
    {"threads", KEY_THREADS, "N", 0, "of matrix products, per rank (cores / ranks)", 8},
    {0},
};
static const struct argp_child children[] = {
    {&options_common, 0, "Common options:", 9}, {&run_options_child, 0, NULL, 0}, {0}};

static const struct argp argp = {
    options,
    parse_option,
    NULL,
    "Trains a GPT-2 or a Llama on text or token shards, its gradients averaged by the ring. Starts one rank "
    "unless --ranks says otherwise, or joins those that a launcher started."
    "\vPrints a line per step, at most two a second: loss in nats per token, learning rate, "
    "gradient norm before clipping, tokens per second of all ranks, time of the step, the share of "
    "it spent waiting for the ring, time left; with float16 gradients the loss scale, and which steps "
    "were skipped. At the end the ledger: bytes held and sent by rank 0, measured beside predicted; "
    "all ranks are checked.\n\n"
    "All stages give the same losses and weights, bit for bit; with --accumulate those that reduce at "
    "the same moment.\n\n"
    "--json writes one object per step: step, loss, lr, norm, tokens_per_s, step_ms, wait_ms, "
    "skipped, loss_scale, val_loss where there was a validation, hellaswag and hellaswag_sum (the share of right ones by the "
    "mean and by the sum of losses) where that was asked, and, in bytes, of rank 0: "
    "held{tag{now, peak}}, sent{collective}, received{collective}, predicted_sent{collective} (each "
    "step then waits for its last operation). A loss or norm that is not finite is null. With --profile, before the ledger: "
    "profile{steps, ms, model_flops, mark_gflops, mark_copy_gbps, rows, ring}, where a row is name, "
    "calls, ms, share, flops, bytes of rank 0 in all these steps, and fastest_rank, fastest_ms, "
    "slowest_rank, slowest_ms; its ms and those of validation and checkpoint apart, rows add up. The last "
    "object is ledger{name{measured, predicted}}, with steps, elements, paper_bytes, formula_bytes, "
    "ranks, differing_ranks, ok.\n\n"
    "With --on-death shrink a run that loses a rank resumes as --resume would, with fewer ranks: steps "
    "since the checkpoint are done, and printed, again, each with fewer sequences. Before the first "
    "checkpoint it begins anew.\n\n"
    "Exit code: 0, or 1 when something failed, on any rank; 2 for bad input. With --on-death shrink it is rank 0's.\n\n"
    "Examples:\n  ringzero train --ranks 2 --data bible.txt --checkpoint run --sample 300\n"
    "  ringzero train --ranks 4 --data bible.txt --model mini --stage 3 \\\n"
    "      --dtype bfloat16 --checkpoint-activations full",
    children,
    options_help_filter,
    NULL,
};

struct train_options train_options_parse(int argc, char **argv)
{
    struct train_options train = {
        .common = options_default("ringzero train"),
        .config = train_config_default(),
    };
    struct train_config *config = &train.config;
    train.common.takes_device = true;
    train.run = run_options_default(&train.common, config);
    options_parse(&argp, argc, argv, &train.common, &train);
    run_options_finish(&train.run);
    config->step_ledger = train.common.json != NULL;
    if (train.trace != NULL) {
        bool one = config->steps == 1 || config->stop_at == 1;
        config->trace_first = train.trace_first > 0 ? train.trace_first : one ? 1 : 2;
        config->trace_last = train.trace_first > 0 ? train.trace_last : 3;
    } else if (train.trace_first > 0) {
        options_refuse(&train.common, "--trace-steps is given without --trace, expected --trace FILE with it");
    }
    if (!train.lr_given && strstr(train.run.model, "nano") == NULL) config->lr = WIDE_MODEL_LR;
    config->seed = train.common.seed;
    if (config->data == NULL)
        options_refuse(
            &train.common, "--data is missing, expected a file of text, or token shards");
    if (train.shrinks && (config->checkpoint_dir == NULL || config->checkpoint_every == 0))
        options_refuse(&train.common,
            "--on-death is shrink, expected --checkpoint DIR and --checkpoint-every N with it: what is lost with a "
            "rank is only there");
    if (train_config_check(config) != STATUS_OK) options_refuse(&train.common, "%s", status_text());
    return train;
}
