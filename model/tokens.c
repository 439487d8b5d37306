/* tokens: see tokens.h for the files, the windows and who reads which.
 *
 * Invariant: what a rank reads is a function of the files, the seed and the batch's index alone.
 * Nothing is carried from batch to batch: the order of an epoch is not a stored list but a keyed
 * bijection, asked place by place.
 *
 *   index ─► epoch and batch ─► file (a bijection of files) ─► place in its order
 *         ─► window (a bijection of windows) ─► tokens
 */
#include "model/tokens.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/token_file.h"

#define TEXT_VOCAB       256
#define VALIDATION_TENTH 10

/* The tokens of one file that belong to one split. */
struct part {
    const struct token_file *file;
    size_t begin, count;
    size_t windows;
    size_t batches; /* global ones; train only */
};

struct tokens {
    int batch, t, rank, nranks;
    uint64_t seed;
    struct token_file *file;
    size_t file_count;
    struct part *part[SPLIT_COUNT]; /* [part_count[split]], in name order */
    size_t part_count[SPLIT_COUNT];
};

/* ---- all files ---- */

/* Opens one more file, behind those that are open already. */
static enum status add_file(struct tokens *tokens, const char *name, int vocab)
{
    struct token_file *grown = realloc(tokens->file, (tokens->file_count + 1) * sizeof *grown);
    if (grown == NULL)
        return FAIL(STATUS_SYSTEM, "%s: out of memory for a list of %zu data files", name,
            tokens->file_count + 1);
    tokens->file = grown;
    struct token_file *file = &grown[tokens->file_count++];
    TRY(token_file_open(file, name, vocab));
    if (file->format != grown[0].format)
        return FAIL(STATUS_DATA,
            "%s: found a file of %s tokens, expected %s as in %s: their ids do not mean the same",
            file->name, file->format->name, grown[0].format->name, grown[0].name);
    return STATUS_OK;
}

/* The file of exactly this name, or else all that match the pattern, in name order. */
static enum status add_files(struct tokens *tokens, const char *pattern, int vocab)
{
    struct stat about;
    if (stat(pattern, &about) == 0) return add_file(tokens, pattern, vocab);
    glob_t names = {0};
    enum status status = STATUS_OK;
    int found = glob(pattern, 0, NULL, &names);
    if (found == GLOB_NOMATCH)
        status = FAIL(STATUS_DATA,
            "%s: found no such file and none that matches, expected at least one: check the path",
            pattern);
    else if (found != 0)
        status = FAIL(STATUS_SYSTEM, "%s: the files that match could not be listed: %s", pattern,
            found == GLOB_NOSPACE ? "out of memory" : "a directory could not be read");
    for (size_t i = 0; i < names.gl_pathc && status == STATUS_OK; i++)
        status = add_file(tokens, names.gl_pathv[i], vocab);
    globfree(&names);
    return status;
}

static enum status add_part(struct tokens *tokens, enum token_split split,
    const struct token_file *file, size_t begin, size_t count)
{
    size_t per_batch = (size_t)tokens->batch * (size_t)tokens->t * (size_t)tokens->nranks;
    if (split == SPLIT_TRAIN && count < per_batch + 1)
        return FAIL(STATUS_DATA,
            "%s: found %zu tokens%s, expected at least %zu = batch %d x T %d x ranks %d + 1: take "
            "a smaller batch or T, or join small files",
            file->name, count,
            count < file->count ? " to train on (the last tenth is for validation)" : "",
            per_batch + 1, tokens->batch, tokens->t, tokens->nranks);
    tokens->part[split][tokens->part_count[split]++] = (struct part){
        .file = file,
        .begin = begin,
        .count = count,
        .windows = count > 0 ? (count - 1) / (size_t)tokens->t : 0,
        .batches = count > 0 ? (count - 1) / per_batch : 0,
    };
    return STATUS_OK;
}

/* Cuts the files into the parts of both splits; those from train_files on only validate. */
static enum status split_files(struct tokens *tokens, size_t train_files)
{
    for (int split = 0; split < SPLIT_COUNT; split++) {
        tokens->part[split] = calloc(tokens->file_count, sizeof *tokens->part[split]);
        if (tokens->part[split] == NULL)
            return FAIL(
                STATUS_SYSTEM, "out of memory for a list of %zu data files", tokens->file_count);
    }
    bool own_validation = train_files < tokens->file_count;
    for (size_t i = 0; i < tokens->file_count; i++) {
        const struct token_file *file = &tokens->file[i];
        size_t validation = file->count; /* of a file that only validates */
        if (i < train_files) validation = own_validation ? 0 : file->count / VALIDATION_TENTH;
        if (i < train_files) TRY(add_part(tokens, SPLIT_TRAIN, file, 0, file->count - validation));
        if (validation > 0)
            TRY(add_part(tokens, SPLIT_VALIDATION, file, file->count - validation, validation));
    }
    if (tokens_windows(tokens, SPLIT_VALIDATION) == 0)
        return FAIL(STATUS_DATA,
            "%s: the validation split has %zu tokens, expected at least T + 1 = %d in one file: "
            "give longer or own validation files, or a smaller T",
            tokens->file[tokens->file_count - 1].name, tokens_count(tokens, SPLIT_VALIDATION),
            tokens->t + 1);
    return STATUS_OK;
}

enum status tokens_open(struct tokens **tokens, const struct tokens_config *config)
{
    assert(config->pattern != NULL && config->batch > 0 && config->t > 0);
    assert(config->rank >= 0 && config->rank < config->nranks);
    enum status status = STATUS_OK;
    *tokens = NULL;
    struct tokens *opened = calloc(1, sizeof *opened);
    if (opened == NULL) return FAIL(STATUS_SYSTEM, "out of memory for the list of data files");
    opened->batch = config->batch;
    opened->t = config->t;
    opened->rank = config->rank;
    opened->nranks = config->nranks;
    opened->seed = config->seed;
    TRY_GOTO(add_files(opened, config->pattern, config->vocab));
    size_t train_files = opened->file_count;
    if (config->validation != NULL) TRY_GOTO(add_files(opened, config->validation, config->vocab));
    TRY_GOTO(split_files(opened, train_files));
    *tokens = opened;
    return STATUS_OK;
fail:
    tokens_close(opened);
    return status;
}

void tokens_close(struct tokens *tokens)
{
    if (tokens == NULL) return;
    for (size_t i = 0; i < tokens->file_count; i++) token_file_close(&tokens->file[i]);
    for (int split = 0; split < SPLIT_COUNT; split++) free(tokens->part[split]);
    free(tokens->file);
    free(tokens);
}

int tokens_vocab(const struct tokens *tokens)
{
    return token_file_is_text(&tokens->file[0]) ? TEXT_VOCAB : 0;
}

size_t tokens_count(const struct tokens *tokens, enum token_split split)
{
    size_t sum = 0;
    for (size_t i = 0; i < tokens->part_count[split]; i++) sum += tokens->part[split][i].count;
    return sum;
}

size_t tokens_windows(const struct tokens *tokens, enum token_split split)
{
    size_t sum = 0;
    for (size_t i = 0; i < tokens->part_count[split]; i++) sum += tokens->part[split][i].windows;
    return sum;
}

size_t tokens_batches(const struct tokens *tokens)
{
    size_t sum = 0;
    for (size_t i = 0; i < tokens->part_count[SPLIT_TRAIN]; i++)
        sum += tokens->part[SPLIT_TRAIN][i].batches;
    return sum;
}

/* ---- orders ---- */

/* The finaliser of splitmix64 (Steele, Lea and Flood, 2014): every bit of x reaches every bit of
 * the result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t order_key(uint64_t seed, uint64_t epoch, uint64_t what)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    return mix(mix(mix(seed + golden) + epoch + golden) + what + golden);
}

/* Where place goes in the order of 0 … n−1 that the key names: a Feistel network over the next
 * power of four, walked until it lands below n (under four rounds of walking on average). Every
 * round can be undone, so no two places meet. source: Black and Rogaway, "Ciphers with arbitrary
 * finite domains", 2002. */
static uint64_t shuffled(uint64_t place, uint64_t n, uint64_t key)
{
    assert(place < n);
    int half = 1;
    while (half < 31 && (uint64_t)1 << (2 * half) < n) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = place >> half, right = place & mask;
        for (uint64_t round = 1; round <= 8; round++) {
            uint64_t next = left ^ (mix(right + key * (2 * round + 1)) & mask);
            left = right;
            right = next;
        }
        place = left << half | right;
    } while (place >= n);
    return place;
}

/* ---- batches ---- */

static void copy_window(
    int32_t *inputs, int32_t *targets, const struct part *part, size_t window, int t)
{
    size_t first = part->begin + window * (size_t)t;
    for (int i = 0; i < t; i++) {
        inputs[i] = (int32_t)token_file_at(part->file, first + (size_t)i);
        targets[i] = (int32_t)token_file_at(part->file, first + (size_t)i + 1);
    }
}

void tokens_train_batch(
    int32_t *inputs, int32_t *targets, uint64_t index, const struct tokens *tokens)
{
    size_t batches = tokens_batches(tokens), parts = tokens->part_count[SPLIT_TRAIN];
    uint64_t epoch = index / batches, batch = index % batches;
    uint64_t which = 0;
    const struct part *part = NULL;
    for (uint64_t i = 0; i < parts; i++) {
        which = shuffled(i, parts, order_key(tokens->seed, epoch, 0));
        part = &tokens->part[SPLIT_TRAIN][which];
        if (batch < part->batches) break;
        batch -= part->batches;
    }
    uint64_t key = order_key(tokens->seed, epoch, 1 + which);
    uint64_t place =
        (batch * (uint64_t)tokens->nranks + (uint64_t)tokens->rank) * (uint64_t)tokens->batch;
    for (int b = 0; b < tokens->batch; b++) {
        size_t row = (size_t)b * (size_t)tokens->t;
        uint64_t window = shuffled(place + (uint64_t)b, part->windows, key);
        copy_window(inputs + row, targets + row, part, window, tokens->t);
    }
}

void tokens_validation_batch(
    int32_t *inputs, int32_t *targets, size_t index, const struct tokens *tokens)
{
    size_t place = (index * (size_t)tokens->nranks + (size_t)tokens->rank) * (size_t)tokens->batch;
    const struct part *part = tokens->part[SPLIT_VALIDATION];
    const struct part *end = part + tokens->part_count[SPLIT_VALIDATION];
    for (; part < end && place >= part->windows; part++) place -= part->windows;
    for (int b = 0; b < tokens->batch; b++) {
        size_t row = (size_t)b * (size_t)tokens->t;
        for (; part < end && place >= part->windows; part++)
            place = 0; /* the file ends: on to the next that has windows */
        if (part < end) {
            copy_window(inputs + row, targets + row, part, place++, tokens->t);
        } else {
            memset(inputs + row, 0, (size_t)tokens->t * sizeof *inputs);
            for (int i = 0; i < tokens->t; i++) targets[row + (size_t)i] = -1;
        }
    }
}

size_t tokens_validation_batches(const struct tokens *tokens)
{
    size_t per_batch = (size_t)tokens->batch * (size_t)tokens->nranks;
    return (tokens_windows(tokens, SPLIT_VALIDATION) + per_batch - 1) / per_batch;
}
