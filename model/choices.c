/* choices: see choices.h. Invariant: what is read after opening was checked by opening, so places of
 * contexts and endings need no check.
 */
#include "model/choices.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/mapped_file.h"
#include "model/model.h"

#define MAGIC         20240522
#define VERSION       1
#define HEADER_BYTES  (256 * 4)
#define START         65535
#define FIXED_WORDS   6 /* of an example: those before the context's tokens */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

struct choices {
    char *path;
    struct mapped_file mapped;
    const uint16_t *words; /* behind the header */
    size_t word_count;
    size_t count; /* examples */
    int endings;
    size_t *begin; /* [count], of each example, in words */
};

/* ---- checking ---- */

static enum status read_header(struct choices *choices)
{
    int32_t header[4];
    const char *path = choices->path;
    size_t bytes = choices->mapped.bytes;
    if (bytes < HEADER_BYTES)
        return FAIL(STATUS_DATA, "%s: header has %zu bytes, expected %d: no evaluation file, or cut short",
            path, bytes, HEADER_BYTES);
    memcpy(header, choices->mapped.data, sizeof header);
    if (header[0] != MAGIC)
        return FAIL(STATUS_DATA, "%s: header[0] (magic) is %d, expected %d: no evaluation file of llm.c",
            path, header[0], MAGIC);
    if (header[1] != VERSION)
        return FAIL(STATUS_DATA, "%s: header[1] (version) is %d, expected %d", path, header[1], VERSION);
    if (header[2] < 1)
        return FAIL(STATUS_DATA, "%s: header[2] (examples) is %d, expected at least 1", path, header[2]);
    choices->words = (const void *)(choices->mapped.data + HEADER_BYTES);
    choices->word_count = (bytes - HEADER_BYTES) / sizeof *choices->words;
    choices->count = (size_t)header[2];
    size_t most = choices->word_count / FIXED_WORDS;
    if (choices->count > most)
        return FAIL(STATUS_DATA, "%s: header[2] (examples) is %d, expected at most %zu in %zu bytes: the "
            "file was cut short", path, header[2], most, bytes);
    choices->begin = calloc(choices->count, sizeof *choices->begin);
    if (choices->begin == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for %zu places", path, choices->count);
    return STATUS_OK;
}

static enum status fail_example(size_t example, const char *field, size_t found, const char *expected,
    const struct choices *choices)
{
    return FAIL(STATUS_DATA, "%s: example %zu: %s is %zu, expected %s", choices->path, example, field,
        found, expected);
}

/* Words before the end: at least FIXED_WORDS. *words: of the whole example. */
static enum status check_fixed(size_t *words, size_t example, size_t left, struct choices *choices)
{
    const uint16_t *at = choices->words + choices->begin[example];
    char expected[64];
    *words = at[1] / sizeof *at;
    if (at[0] != START) return fail_example(example, "its delimiter", at[0], "65535", choices);
    snprintf(expected, sizeof expected, "even, at least %d and at most %zu", 2 * FIXED_WORDS, 2 * left);
    if (at[1] % 2 != 0 || *words < FIXED_WORDS || *words > left)
        return fail_example(example, "its number of bytes", at[1], expected, choices);
    snprintf(expected, sizeof expected, "%zu", example % 65536);
    if (at[2] != example % 65536) return fail_example(example, "its number", at[2], expected, choices);
    snprintf(expected, sizeof expected, "2 to %d", CHOICES_MOST_ENDINGS);
    if (at[4] < 2 || at[4] > CHOICES_MOST_ENDINGS)
        return fail_example(example, "its number of endings", at[4], expected, choices);
    snprintf(expected, sizeof expected, "%d as before", choices->endings);
    if (example > 0 && at[4] != choices->endings)
        return fail_example(example, "its number of endings", at[4], expected, choices);
    choices->endings = at[4];
    snprintf(expected, sizeof expected, "one of %d endings", choices->endings);
    if (at[3] >= at[4]) return fail_example(example, "its label", at[3], expected, choices);
    return STATUS_OK;
}

/* The tokens behind a count at *at, which goes behind them. */
static enum status check_tokens(const char *what, size_t example, int vocab, const uint16_t **at,
    const uint16_t *end, const struct choices *choices)
{
    char expected[64];
    size_t left = (size_t)(end - *at), count = left > 0 ? **at : 0;
    snprintf(expected, sizeof expected, "1 to %zu tokens", left > 0 ? left - 1 : 0);
    if (count < 1 || count + 1 > left) return fail_example(example, what, count, expected, choices);
    snprintf(expected, sizeof expected, "an id below %d (the model's vocabulary)", vocab);
    for (size_t i = 1; i <= count; i++)
        if ((*at)[i] >= vocab) return fail_example(example, "a token", (*at)[i], expected, choices);
    *at += count + 1;
    return STATUS_OK;
}

static enum status check_example(size_t example, int vocab, int t, struct choices *choices)
{
    size_t words = 0, left = choices->word_count - choices->begin[example];
    char expected[64];
    if (left < FIXED_WORDS)
        return FAIL(STATUS_DATA, "%s: %zu examples, expected %zu: the file was cut short", choices->path,
            example, choices->count);
    TRY(check_fixed(&words, example, left, choices));
    const uint16_t *at = choices->words + choices->begin[example] + 5, *context = at;
    const uint16_t *end = choices->words + choices->begin[example] + words;
    TRY(check_tokens("the length of its context", example, vocab, &at, end, choices));
    for (int e = 0; e < choices->endings; e++) {
        const uint16_t *ending = at;
        TRY(check_tokens("the length of an ending", example, vocab, &at, end, choices));
        size_t row = (size_t)*context + *ending - 1;
        snprintf(expected, sizeof expected, "at most %d: take longer sequences", t);
        if (row > (size_t)t) return fail_example(example, "the length of a row", row, expected, choices);
    }
    if (at != end)
        return fail_example(example, "bytes behind its endings", (size_t)(end - at) * 2, "0", choices);
    if (example + 1 < choices->count) choices->begin[example + 1] = choices->begin[example] + words;
    else if (left > words)
        return FAIL(STATUS_DATA, "%s: %zu bytes follow example %zu, expected 0: it is the last", choices->path,
            2 * (left - words), example);
    return STATUS_OK;
}

static enum status check_all(int vocab, int t, struct choices *choices)
{
    TRY(read_header(choices));
    if (choices->mapped.bytes % 2 != 0)
        return FAIL(STATUS_DATA, "%s: has %zu bytes, expected an even number", choices->path, choices->mapped.bytes);
    for (size_t i = 0; i < choices->count; i++) TRY(check_example(i, vocab, t, choices));
    return STATUS_OK;
}

enum status choices_open(struct choices **out, const char *path, int vocab, int t)
{
    *out = NULL;
    struct choices *choices = calloc(1, sizeof *choices);
    if (choices != NULL) choices->path = strdup(path);
    if (choices == NULL || choices->path == NULL) {
        free(choices);
        return FAIL(STATUS_SYSTEM, "%s: no memory for its record", path);
    }
    enum status status = mapped_file_open(&choices->mapped, path, "questions with endings");
    if (status == STATUS_OK) status = check_all(vocab, t, choices);
    if (status == STATUS_OK) *out = choices;
    else choices_close(choices);
    return status;
}

void choices_close(struct choices *choices)
{
    if (choices == NULL) return;
    mapped_file_close(&choices->mapped);
    free(choices->begin);
    free(choices->path);
    free(choices);
}

size_t choices_count(const struct choices *choices)
{
    return choices->count;
}

int choices_endings(const struct choices *choices)
{
    return choices->endings;
}

/* ---- rows ---- */

/* A list of tokens: its count, then they. */
static const uint16_t *context_of(size_t example, const struct choices *choices)
{
    return choices->words + choices->begin[example] + 5;
}

static const uint16_t *ending_of(size_t row, const struct choices *choices)
{
    const uint16_t *list = context_of(row / (size_t)choices->endings, choices);
    for (size_t i = 0; i <= row % (size_t)choices->endings; i++) list += *list + 1;
    return list;
}

static int row_tokens(size_t row, const struct choices *choices)
{
    return *context_of(row / (size_t)choices->endings, choices) + *ending_of(row, choices) - 1;
}

static size_t block_examples(int batch, const struct choices *choices)
{
    return batch >= choices->endings ? (size_t)(batch / choices->endings) : 1;
}

size_t choices_blocks(int batch, const struct choices *choices)
{
    size_t examples = block_examples(batch, choices);
    return (choices->count + examples - 1) / examples;
}

int choices_passes(int batch, const struct choices *choices)
{
    return batch >= choices->endings ? 1 : (choices->endings + batch - 1) / batch;
}

struct choices_pass choices_pass(size_t block, int pass, int batch, const struct choices *choices)
{
    size_t rows = block_examples(batch, choices) * (size_t)choices->endings;
    size_t all = choices->count * (size_t)choices->endings, end = (block + 1) * rows;
    struct choices_pass made = {.first = block * rows + (size_t)pass * (size_t)batch, .t = 1};
    if (end > all) end = all;
    for (; made.first + (size_t)made.rows < end && made.rows < batch; made.rows++) {
        int t = row_tokens(made.first + (size_t)made.rows, choices);
        if (t > made.t) made.t = t;
    }
    return made;
}

/* inputs, targets (t). */
static void fill_row(
    int32_t *inputs, int32_t *targets, size_t row, int t, const struct choices *choices)
{
    const uint16_t *context = context_of(row / (size_t)choices->endings, choices);
    const uint16_t *ending = ending_of(row, choices);
    int before = context[0], count = ending[0];
    for (int i = 0; i < t; i++) {
        int target = i + 1 - before; /* the ending's token that follows input i */
        inputs[i] = i < before ? context[1 + i] : target < count ? ending[target] : 0;
        targets[i] = target >= 0 && target < count ? ending[1 + target] : MODEL_IGNORED_TARGET;
    }
}

void choices_fill(int32_t *inputs, int32_t *targets, const struct choices_pass *pass,
    const struct choices *choices)
{
    inputs[0] = 0;
    targets[0] = MODEL_IGNORED_TARGET;
    for (int r = 0; r < pass->rows; r++) {
        size_t at = (size_t)r * (size_t)pass->t;
        fill_row(inputs + at, targets + at, pass->first + (size_t)r, pass->t, choices);
    }
}

/* ---- judging ---- */

static bool is_less(double a, double b)
{
    return a < b || (a == a && b != b); /* what is no number is more than any */
}

void choices_judge(struct choices_score *score, const double *losses, size_t example,
    const struct choices *choices)
{
    size_t first = example * (size_t)choices->endings;
    uint16_t label = choices->words[choices->begin[example] + 3];
    int by_sum = 0, by_mean = 0;
    double least = 0.0;
    for (int e = 0; e < choices->endings; e++) {
        double mean = losses[e] / *ending_of(first + (size_t)e, choices);
        if (e > 0 && is_less(losses[e], losses[by_sum])) by_sum = e;
        if (e == 0 || is_less(mean, least)) {
            least = mean;
            by_mean = e;
        }
    }
    score->by_sum += by_sum == label;
    score->by_mean += by_mean == label;
}

void choices_judge_block(struct choices_score *score, const double *losses, size_t block, int batch,
    const struct choices *choices)
{
    size_t examples = block_examples(batch, choices);
    for (size_t i = 0; i < examples && block * examples + i < choices->count; i++)
        choices_judge(score, losses + i * (size_t)choices->endings, block * examples + i, choices);
}
