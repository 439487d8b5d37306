/* sample: `ringzero sample` goes on with a text, token by token.
 *
 *   prompt ─► ids ─► generator ─► id ─► bytes ─► what is whole of them ─► standard output
 *                        └── drawn, read ──┘
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/json_line.h"
#include "bench/model_file.h"
#include "bench/programs.h"
#include "bench/sample_options.h"
#include "model/generate.h"
#include "model/text_ids.h"
#include "model/utf8.h"
#include "verbs/clock.h"
#include "verbs/plural.h"

struct sample {
    const struct sample_options *options;
    struct device *device;
    struct resident *model;
    struct text_ids *ids;
    struct generator *generator;
    FILE *json;
    char *prompt; /* prompt_bytes of them */
    size_t prompt_bytes;
    int32_t *tokens; /* the prompt's */
    size_t token_count;
    int64_t prompt_ns, drawing_ns; /* spent */
    uint64_t drawn;                /* of all texts */
    int restarts;
};

/* ---- the prompt ---- */

static enum status read_stream(FILE *file, const char *name, struct sample *sample)
{
    size_t room = 0, read;
    do {
        if (room < sample->prompt_bytes + 4096) {
            room = 2 * room + 8192;
            char *grown = realloc(sample->prompt, room);
            if (grown == NULL)
                return FAIL(STATUS_SYSTEM, "no memory for a prompt of %zu bytes", room);
            sample->prompt = grown;
        }
        read = fread(sample->prompt + sample->prompt_bytes, 1, 4096, file);
        sample->prompt_bytes += read;
    } while (read > 0);
    if (ferror(file))
        return FAIL(STATUS_DATA, "--prompt-file %s: cannot be read: %s", name, strerror(errno));
    return STATUS_OK;
}

static enum status read_prompt(struct sample *sample)
{
    const struct sample_options *options = sample->options;
    const char *path = options->prompt_file;
    if (path == NULL) {
        sample->prompt = strdup(options->prompt != NULL ? options->prompt : "");
        if (sample->prompt == NULL) return FAIL(STATUS_SYSTEM, "no memory for the prompt");
        sample->prompt_bytes = strlen(sample->prompt);
        return STATUS_OK;
    }
    if (strcmp(path, "-") == 0) return read_stream(stdin, "-", sample);
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return FAIL(STATUS_DATA, "--prompt-file %s: cannot be read: %s", path, strerror(errno));
    enum status status = read_stream(file, path, sample);
    fclose(file);
    return status;
}

/* ---- the model ---- */

static enum status open_model(struct sample *sample)
{
    const struct sample_options *options = sample->options;
    struct weights *weights;
    TRY(model_file_open(&weights, &options->file));
    enum status status = text_ids_open(&sample->ids, options->vocabulary, weights->config.vocab);
    if (status == STATUS_OK)
        status = resident_load(&sample->model, weights, options->file.dtype, sample->device);
    weights_close(weights);
    TRY(status);
    struct model_hooks hooks = resident_hooks(sample->model);
    return generator_open(
        &sample->generator, resident_params(sample->model), &hooks, options->file.dtype, sample->device);
}

/* ---- what is shown ---- */

static enum status put(const char *text, size_t bytes)
{
    if (fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "standard output cannot be written: %s", strerror(errno));
}

/* All that is whole of these bytes; at the end of a text (bytes NULL) what will not be. */
static enum status show(FILE *copy, struct utf8_held *held, const char *bytes, size_t count)
{
    char *shown = malloc(UTF8_ROOM(count));
    if (shown == NULL) return FAIL(STATUS_SYSTEM, "no memory for %zu bytes of text", count);
    size_t used = bytes != NULL ? utf8_show(shown, held, bytes, count) : utf8_end(shown, held);
    if (copy != NULL) fwrite(shown, 1, used, copy); /* memory: a failure shows when it is closed */
    enum status status = put(shown, used);
    free(shown);
    return status;
}

/* ---- a text ---- */

struct text {
    int number;
    uint64_t seed;
    int32_t *tokens;
    int count, restarts;
    bool ended; /* by an end of text */
    int64_t prompt_ns, drawing_ns;
    char *shown; /* of the tokens, once `copy` is closed */
    size_t shown_bytes;
};

static enum status draw_tokens(
    FILE *copy, struct utf8_held *held, struct text *text, struct sample *sample)
{
    const struct sample_options *options = sample->options;
    uint64_t state = text->seed;
    for (int vocab = text_ids_count(sample->ids); text->count < options->tokens && !text->ended;) {
        size_t bytes;
        int32_t token;
        TRY(generator_next(&token, vocab, &options->draw, &state, sample->generator));
        text->tokens[text->count++] = token;
        const char *piece = text_ids_bytes(&bytes, token, sample->ids);
        if (bytes > 0) TRY(show(copy, held, piece, bytes));
        text->ended = token == text_ids_end(sample->ids) && !options->goes_on;
    }
    return STATUS_OK;
}

static enum status begin(struct text *text, struct sample *sample)
{
    int64_t begin_ns = clock_ns();
    if (text->number > 0) return generator_again(sample->generator);
    TRY(generator_begin(sample->tokens, sample->token_count, sample->generator));
    text->prompt_ns = clock_ns() - begin_ns;
    return STATUS_OK;
}

static enum status write_json(const struct text *text, const struct sample *sample)
{
    if (sample->json == NULL) return STATUS_OK;
    double seconds = (double)text->drawing_ns * 1e-9;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "sample", text->number + 1);
    cJSON_AddNumberToObject(object, "seed", (double)text->seed);
    cJSON_AddNumberToObject(object, "prompt_tokens", (double)sample->token_count);
    cJSON_AddItemToObject(object, "tokens", cJSON_CreateIntArray(text->tokens, text->count));
    cJSON_AddStringToObject(object, "text", text->shown);
    cJSON_AddBoolToObject(object, "end_of_text", text->ended);
    cJSON_AddNumberToObject(object, "restarts", text->restarts);
    if (text->number == 0)
        cJSON_AddNumberToObject(object, "prompt_s", (double)text->prompt_ns * 1e-9);
    cJSON_AddNumberToObject(object, "seconds", seconds);
    cJSON_AddNumberToObject(object, "tokens_per_s", seconds > 0.0 ? text->count / seconds : 0.0);
    return json_line_write(sample->json, object);
}

/* Shows the prompt and what the model adds, all of it also to `copy`, of what it adds. */
static enum status write_text(FILE *copy, struct text *text, struct sample *sample)
{
    struct utf8_held held = {{0}, 0};
    if (sample->options->count > 1)
        printf("# sample %d of %d, seed %llu\n", text->number + 1, sample->options->count,
            (unsigned long long)text->seed);
    TRY(show(NULL, &held, sample->prompt, sample->prompt_bytes));
    TRY(begin(text, sample));
    int64_t begin_ns = clock_ns();
    TRY(draw_tokens(copy, &held, text, sample));
    text->drawing_ns = clock_ns() - begin_ns;
    text->restarts = generator_restarts(sample->generator);
    TRY(show(copy, &held, NULL, 0));
    return put("\n", 1);
}

static enum status run_text(int number, struct sample *sample)
{
    struct text text = {.number = number, .seed = sample->options->common.seed + (uint64_t)number};
    FILE *copy = open_memstream(&text.shown, &text.shown_bytes);
    text.tokens = calloc((size_t)sample->options->tokens, sizeof *text.tokens);
    enum status status = STATUS_OK;
    if (copy == NULL || text.tokens == NULL)
        status = FAIL(STATUS_SYSTEM, "no memory for a text of %d tokens", sample->options->tokens);
    if (status == STATUS_OK) status = write_text(copy, &text, sample);
    if (copy != NULL && fclose(copy) != 0 && status == STATUS_OK)
        status = FAIL(STATUS_SYSTEM, "no memory for a text of %d tokens", text.count);
    if (status == STATUS_OK) status = write_json(&text, sample);
    sample->prompt_ns += text.prompt_ns;
    sample->drawing_ns += text.drawing_ns;
    sample->drawn += (uint64_t)text.count;
    sample->restarts += text.restarts;
    free(text.shown);
    free(text.tokens);
    return status;
}

static void tell_times(const struct sample *sample)
{
    char model[MODEL_FILE_BYTES];
    int most = resident_params(sample->model)->config.max_t;
    double prompt_s = (double)sample->prompt_ns * 1e-9,
           drawing_s = (double)sample->drawing_ns * 1e-9;
    model_file_describe(model, &sample->options->file, sample->model);
    fprintf(stderr, "# model  %s\n", model);
    fprintf(stderr, "# prompt %zu token%s read in %.3f s, %.0f tokens/s\n", sample->token_count,
        PLURAL(sample->token_count), prompt_s, (double)sample->token_count / prompt_s);
    fprintf(stderr, "# text   %llu token%s in %.3f s, %.1f tokens/s\n",
        (unsigned long long)sample->drawn, PLURAL(sample->drawn), drawing_s, (double)sample->drawn / drawing_s);
    if (sample->restarts > 0)
        fprintf(stderr,
            "# the context of %d tokens was full %d time%s: the text went on from its last %d\n",
            most, sample->restarts, PLURAL(sample->restarts), (most + 1) / 2);
}

static enum status run(struct sample *sample)
{
    TRY(device_open(&sample->device, "host"));
    TRY(open_model(sample));
    TRY(read_prompt(sample));
    TRY(text_ids_encode(
        &sample->tokens, &sample->token_count, sample->prompt, sample->prompt_bytes, sample->ids));
    for (int i = 0; i < sample->options->count; i++) TRY(run_text(i, sample));
    tell_times(sample);
    return STATUS_OK;
}

static void release(struct sample *sample)
{
    generator_close(sample->generator);
    text_ids_close(sample->ids);
    resident_close(sample->model);
    device_close(sample->device);
    free(sample->prompt);
    free(sample->tokens);
}

int sample_main(int argc, char **argv)
{
    struct sample_options options = sample_options_parse(argc, argv);
    struct sample sample = {.options = &options, .json = options_open_json(&options.common)};
    enum status status = options_close_json(sample.json, run(&sample), &options.common);
    if (status != STATUS_OK) fprintf(stderr, "ringzero sample: %s\n", status_text());
    release(&sample);
    return status == STATUS_OK ? 0 : status == STATUS_INVALID ? 2 : 1;
}
