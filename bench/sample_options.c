/* sample_options: see sample_options.h. */
#include "bench/sample_options.h"

#define MOST_TOKENS  1000000
#define MOST_THREADS 1024

enum {
    KEY_CHECKPOINT = 0x200,
    KEY_PROMPT,
    KEY_PROMPT_FILE,
    KEY_TOKENS,
    KEY_COUNT,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_GO_ON,
    KEY_VOCABULARY,
    KEY_HEADS,
    KEY_DTYPE,
    KEY_THREADS
};

static const struct argp_option list[] = {
    {"checkpoint", KEY_CHECKPOINT, "FILE", 0,
        "the model: Hugging Face's GPT-2 (.safetensors) or llm.c's (.bin); required", 1},
    {"vocabulary", KEY_VOCABULARY, "FILE", 0,
        "its vocab.bpe or .tiktoken file; a model of 256 tokens needs none: they are bytes", 1},
    {"heads", KEY_HEADS, "N", 0, "of attention, where the file does not say", 1},
    {"dtype", KEY_DTYPE, "DTYPE", 0,
        "that weights are held in: float32 (the default), bfloat16 or float16; halves the memory, "
        "and "
        "takes longer: they are widened for every token",
        1},
    {"threads", KEY_THREADS, "N", 0, "of matrix products (one a core)", 1},
    {"prompt", KEY_PROMPT, "TEXT", 0,
        "that the text begins with (a line break, or the end of a text)", 2},
    {"prompt-file", KEY_PROMPT_FILE, "FILE", 0,
        "the same from a file, as it is; -: from standard input", 2},
    {"tokens", KEY_TOKENS, "N", 0, "to add, at most (200)", 2},
    {"count", KEY_COUNT, "N", 0, "texts (1); each draws with a seed of its own, --seed and on", 2},
    {"temperature", KEY_TEMPERATURE, "X", 0,
        "divides logits (0.8); 0: always the most likely token, and nothing is drawn", 3},
    {"top-k", KEY_TOP_K, "N", 0, "draw among the N most likely only (0: all)", 3},
    {"top-p", KEY_TOP_P, "X", 0,
        "draw among the most likely that together have probability X (1: all)", 3},
    {"go-on", KEY_GO_ON, NULL, 0, "past an <|endoftext|>, into the next text", 3}, {0}};

static error_t parse_draw(int key, const char *text, struct sample_options *sample)
{
    const struct options *common = &sample->common;
    switch (key) {
    case KEY_TEMPERATURE:
        sample->draw.temperature = options_number(text, "--temperature", 0.0f, 1e6f, common);
        return 0;
    case KEY_TOP_K:
        sample->draw.top_k = (int)options_integer(text, "--top-k", 0, INT32_MAX, common);
        return 0;
    case KEY_TOP_P:
        sample->draw.top_p = options_number(text, "--top-p", 0.0f, 1.0f, common);
        return 0;
    case KEY_GO_ON: sample->goes_on = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct sample_options *sample = state->input;
    const struct options *common = &sample->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &sample->common; return 0;
    case KEY_CHECKPOINT: sample->model = text; return 0;
    case KEY_VOCABULARY: sample->vocabulary = text; return 0;
    case KEY_HEADS: sample->heads = options_count(text, "--heads", common); return 0;
    case KEY_DTYPE: sample->dtype = options_training_dtype(text, "--dtype", common); return 0;
    case KEY_THREADS:
        sample->threads = (int)options_integer(text, "--threads", 1, MOST_THREADS, common);
        return 0;
    case KEY_PROMPT: sample->prompt = text; return 0;
    case KEY_PROMPT_FILE: sample->prompt_file = text; return 0;
    case KEY_TOKENS:
        sample->tokens = (int)options_integer(text, "--tokens", 1, MOST_TOKENS, common);
        return 0;
    case KEY_COUNT: sample->count = options_count(text, "--count", common); return 0;
    case ARGP_KEY_ARG:
        options_refuse(common,
            "found \"%s\", expected options only: the text to go on from goes to --prompt", text);
    default: return parse_draw(key, text, sample);
    }
}

static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {.options = list,
    .parser = parse_option,
    .children = children,
    .help_filter = options_help_filter,
    .doc =
        "Text from a model, token by token."
        "\vThe text, prompt first, goes to standard output as it is drawn, and how long it took to "
        "standard error. Characters whose bytes lie in several tokens are shown when they are "
        "whole; what is no UTF-8, and control characters, are shown as U+FFFD.\n\n"
        "A model has a context, the longest text that it was trained on. When that is full the "
        "text "
        "goes on from its last half, which is read again as a text of its own; of a longer prompt "
        "the last half context is read. Standard error says how often.\n\n"
        "The same model, prompt, seed, dtype and threads give the same text, on one machine: the "
        "order of a product's sums may depend on the processor and on threads.\n\n"
        "--json writes an object per text: sample, seed, prompt_tokens, tokens (those drawn), text "
        "(of them, as shown), end_of_text, restarts, prompt_s (time to read the prompt, of the "
        "first "
        "text), seconds, tokens_per_s.\n\n"
        "Examples:\n"
        "  ringzero sample --checkpoint model.safetensors --vocabulary gpt2.tiktoken --prompt 'In "
        "the beginning'\n"
        "  echo 'To be, or' | ringzero sample --checkpoint shakespeare.bin --prompt-file - --count "
        "3 --top-p 0.9\n"};

struct sample_options sample_options_parse(int argc, char **argv)
{
    struct sample_options sample = {.common = options_default("ringzero sample"),
        .tokens = 200,
        .count = 1,
        .draw = {.temperature = 0.8f, .top_k = 0, .top_p = 1.0f},
        .dtype = DTYPE_FLOAT32};
    const struct options *common = &sample.common;
    options_parse(&argp, argc, argv, &sample.common, &sample);
    if (sample.model == NULL)
        options_refuse(common, "--checkpoint is missing, expected the path of a model");
    if (sample.prompt != NULL && sample.prompt_file != NULL)
        options_refuse(common, "--prompt and --prompt-file are given, expected one of them");
    if (common->ranks > 1)
        options_refuse(
            common, "--ranks is %d, expected 1: a text is drawn by one process", common->ranks);
    return sample;
}
