/* sample_options: see sample_options.h. */
#include "bench/sample_options.h"

#define MOST_TOKENS 1000000

enum {
    KEY_PROMPT = 0x200,
    KEY_PROMPT_FILE,
    KEY_TOKENS,
    KEY_COUNT,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_GO_ON,
    KEY_VOCABULARY
};

static const struct argp_option list[] = {
    {"vocabulary", KEY_VOCABULARY, "FILE", 0,
        "the model's vocab.bpe or .tiktoken file; one of 256 tokens needs none: they are bytes", 2},
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
    {"go-on", KEY_GO_ON, NULL, 0, "past an <|endoftext|>, into the next text", 3},
    {0},
};

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
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &sample->file;
        state->child_inputs[1] = &sample->common;
        return 0;
    case KEY_VOCABULARY: sample->vocabulary = text; return 0;
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

static const struct argp_child children[] = {
    {&model_file_argp, 0, NULL, 0}, {&options_common, 0, "Common options:", 9}, {0}};

static const struct argp argp = {
    .options = list,
    .parser = parse_option,
    .children = children,
    .help_filter = options_help_filter,
    .doc =
        "Text from a model, token by token."
        "\vThe text, prompt first, goes to standard output as it is drawn, and how long it took to "
        "standard error. Characters whose bytes lie in several tokens are shown when they are "
        "whole; what is no UTF-8, and control characters, are shown as U+FFFD.\n\n"
        "A model has a context, the longest text that it was trained on. When that is full the "
        "text goes on from its last half, which is read again as a text of its own; of a longer "
        "prompt the last half context is read. Standard error says how often.\n\n"
        "The same model, prompt, seed, dtype and threads give the same text, on one machine: the "
        "order of a product's sums may depend on the processor and on threads.\n\n"
        "--json writes an object per text: sample, seed, prompt_tokens, tokens (those drawn), text "
        "(of them, as shown), end_of_text, restarts, prompt_s (time to read the prompt, of the "
        "first text), seconds, tokens_per_s.\n\n"
        "Examples:\n"
        "  ringzero sample --checkpoint run --prompt 'And God said' --tokens 400\n"
        "  ringzero sample --checkpoint model.safetensors --vocabulary gpt2.tiktoken \\\n"
        "      --prompt 'To be'\n"
        "  echo 'To be, or' | ringzero sample --checkpoint model.bin --prompt-file - \\\n"
        "      --count 3 --top-p 0.9\n",
};

struct sample_options sample_options_parse(int argc, char **argv)
{
    struct sample_options sample = {.common = options_default("ringzero sample"),
        .tokens = 200,
        .count = 1,
        .draw = {.temperature = 0.8f, .top_k = 0, .top_p = 1.0f}};
    sample.file = model_file_default(&sample.common);
    options_parse(&argp, argc, argv, &sample.common, &sample);
    model_file_finish(&sample.file);
    if (sample.prompt != NULL && sample.prompt_file != NULL)
        options_refuse(&sample.common, "--prompt and --prompt-file are given, expected one of them");
    return sample;
}
