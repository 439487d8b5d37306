/* tokenize: `ringzero tokenize` turns text into token shards, on all cores, and back.
 *
 *   files, mapped   | piece 0 | piece 1 | piece 2 | …    cut where tokens cannot change
 *   threads             └ ids ──► turn 0 … n: appended in the order of pieces
 *
 * A thread takes the next piece, encodes it, and waits until it is its turn to write: what is held is
 * one piece a thread.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/json_line.h"
#include "bench/options.h"
#include "bench/programs.h"
#include "bench/progress_line.h"
#include "model/mapped_file.h"
#include "model/token_file.h"
#include "model/tokenizer.h"
#include "model/tokens_write.h"
#include "verbs/clock.h"
#include "verbs/plural.h"

#define PIECE_BYTES   ((size_t)1 << 20)
#define MOST_THREADS  256
#define SHARD_DEFAULT 100000000
#define END_OF_TEXT   "<|endoftext|>"

struct text {
    const char *name;
    struct mapped_file mapped;
};

struct tokenize {
    struct options common;
    const char *vocabulary, *prefix;
    int64_t per_shard;
    int threads;
    bool decode, plain;
    struct text *texts;
    int text_count;
    size_t total_bytes;

    struct tokenizer *tokenizer;
    struct tokens_writer *writer;
    pthread_mutex_t lock; /* over all below */
    pthread_cond_t turned;
    int text;        /* of the next piece, and where it begins */
    size_t at;
    uint64_t pieces, turn; /* taken, and whose turn to write it is */
    size_t done_bytes;
    int64_t began_ns;
    struct progress_line line;
    enum status status; /* the first failure's */
    char why[STATUS_TEXT_BYTES];
};

/* ---- options ---- */

enum { KEY_TOKENIZER = 0x200, KEY_PER_SHARD, KEY_THREADS, KEY_DECODE, KEY_PLAIN };

static const struct argp_option tokenize_options[] = {
    {"output", 'o', "PREFIX", 0, "writes PREFIX_000000.bin, PREFIX_000001.bin, …", 0},
    {"tokenizer", KEY_TOKENIZER, "FILE", 0, "a vocab.bpe, or a .tiktoken file of ranks", 0},
    {"per-shard", KEY_PER_SHARD, "N", 0, "tokens of a shard (100000000)", 0},
    {"threads", KEY_THREADS, "N", 0, "that encode (one a core)", 0},
    {"no-separator", KEY_PLAIN, NULL, 0, "no end of text before each file", 0},
    {"decode", KEY_DECODE, NULL, 0, "FILEs are shards: writes their text to standard output", 0},
    {0}};

static void add_text(const char *name, struct tokenize *tokenize)
{
    size_t bytes = ((size_t)tokenize->text_count + 1) * sizeof *tokenize->texts;
    struct text *texts = realloc(tokenize->texts, bytes);
    if (texts == NULL)
        options_refuse(&tokenize->common, "no memory for %d files", tokenize->text_count + 1);
    texts[tokenize->text_count++] = (struct text){.name = name};
    tokenize->texts = texts;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct tokenize *tokenize = state->input;
    const struct options *common = &tokenize->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &tokenize->common; return 0;
    case 'o': tokenize->prefix = text; return 0;
    case KEY_TOKENIZER: tokenize->vocabulary = text; return 0;
    case KEY_PER_SHARD:
        tokenize->per_shard =
            options_integer(text, "--per-shard", 1, TOKENS_MOST_PER_SHARD, common);
        return 0;
    case KEY_THREADS:
        tokenize->threads = (int)options_integer(text, "--threads", 1, MOST_THREADS, common);
        return 0;
    case KEY_PLAIN: tokenize->plain = true; return 0;
    case KEY_DECODE: tokenize->decode = true; return 0;
    case ARGP_KEY_ARG: add_text(text, tokenize); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {.options = tokenize_options,
    .parser = parse_option,
    .args_doc = "FILE...",
    .children = children,
    .help_filter = options_help_filter,
    .doc = "Turns text into token shards by GPT-2's byte-pair encoding.\v"
           "Each file is one document: an end of text stands before it. Any bytes have tokens; "
           "a marker like <|endoftext|> within a file is text. Words are cut by GPT-2's rule "
           "whatever the vocabulary. Ids take 2 bytes, with more than 65,536 tokens 4.\n\n"
           "Examples:\n"
           "  ringzero tokenize bible.txt --tokenizer gpt2.tiktoken -o bible\n"
           "  ringzero train --model gpt2-124m --data 'bible_*.bin'\n"
           "  ringzero tokenize --decode bible_000000.bin --tokenizer gpt2.tiktoken | head\n"};

static void check(const struct tokenize *tokenize)
{
    const struct options *common = &tokenize->common;
    if (tokenize->vocabulary == NULL)
        options_refuse(common, "no --tokenizer given, expected the path of a vocab.bpe or a .tiktoken file");
    if (tokenize->text_count == 0)
        options_refuse(common, "no file given, expected %s",
            tokenize->decode ? "shards to decode" : "text to encode");
    if (!tokenize->decode && tokenize->prefix == NULL)
        options_refuse(common, "no -o given, expected the prefix of the shards to write");
    if (tokenize->decode && tokenize->prefix != NULL)
        options_refuse(common, "-o is for encoding, --decode writes to standard output: leave one out");
}

/* ---- decoding ---- */

static enum status decode_id(int32_t id, const struct tokenizer *tokenizer)
{
    size_t bytes;
    const char *text = tokenizer_bytes(&bytes, id, tokenizer);
    if (id == tokenizer_end_of_text(tokenizer)) {
        text = END_OF_TEXT;
        bytes = strlen(text);
    }
    if (fwrite(text, 1, bytes, stdout) == bytes) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "standard output cannot be written: %s", strerror(errno));
}

static enum status decode_file(const char *name, const struct tokenize *tokenize)
{
    struct token_file file;
    enum status status = token_file_open(&file, name, tokenizer_vocab(tokenize->tokenizer));
    for (size_t i = 0; i < file.count && status == STATUS_OK; i++)
        status = decode_id((int32_t)token_file_at(&file, i), tokenize->tokenizer);
    token_file_close(&file);
    return status;
}

static enum status decode(const struct tokenize *tokenize)
{
    for (int i = 0; i < tokenize->text_count; i++) TRY(decode_file(tokenize->texts[i].name, tokenize));
    return fflush(stdout) == 0 ? STATUS_OK
                               : FAIL(STATUS_SYSTEM, "standard output cannot be written: %s", strerror(errno));
}

/* ---- the texts ---- */

static enum status map_texts(struct tokenize *tokenize)
{
    for (int i = 0; i < tokenize->text_count; i++) {
        struct text *text = &tokenize->texts[i];
        TRY(mapped_file_open(&text->mapped, text->name, "text"));
        tokenize->total_bytes += text->mapped.bytes;
    }
    return STATUS_OK;
}

/* ---- pieces ---- */

struct piece {
    uint64_t number;
    const char *bytes;
    size_t count;
    bool begins; /* its file */
};

/* False: there is none left, or a thread has failed. Under the lock. */
static bool take_piece(struct piece *piece, struct tokenize *tokenize)
{
    if (tokenize->status != STATUS_OK || tokenize->text == tokenize->text_count) return false;
    const struct mapped_file *mapped = &tokenize->texts[tokenize->text].mapped;
    const char *bytes = (const char *)mapped->data + tokenize->at;
    size_t left = mapped->bytes - tokenize->at;
    *piece = (struct piece){.number = tokenize->pieces++,
        .bytes = bytes,
        .count = left <= PIECE_BYTES ? left : tokenizer_cut(bytes, left, PIECE_BYTES),
        .begins = tokenize->at == 0};
    tokenize->at += piece->count;
    if (tokenize->at == mapped->bytes) {
        tokenize->text++;
        tokenize->at = 0;
    }
    return true;
}

static void tell_progress(struct tokenize *tokenize)
{
    progress_line_tell(&tokenize->line, "%.0f of %.0f MB, %.1f million tokens, %.0f MB/s ",
        (double)tokenize->done_bytes * 1e-6, (double)tokenize->total_bytes * 1e-6,
        (double)tokens_writer_count(tokenize->writer) * 1e-6,
        (double)tokenize->done_bytes * 1e3 / (double)(clock_ns() - tokenize->began_ns));
}

/* In its turn, under the lock. */
static enum status write_piece(
    const struct piece *piece, const int32_t *ids, size_t count, struct tokenize *tokenize)
{
    int32_t end = tokenizer_end_of_text(tokenize->tokenizer);
    if (piece->begins && !tokenize->plain) TRY(tokens_writer_append(&end, 1, tokenize->writer));
    TRY(tokens_writer_append(ids, count, tokenize->writer));
    tokenize->done_bytes += piece->count;
    tell_progress(tokenize);
    return STATUS_OK;
}

/* Under the lock. */
static void note_failure(enum status status, struct tokenize *tokenize)
{
    if (status == STATUS_OK || tokenize->status != STATUS_OK) return;
    tokenize->status = status;
    snprintf(tokenize->why, sizeof tokenize->why, "%s", status_text());
}

static void *work(void *argument)
{
    struct tokenize *tokenize = argument;
    struct encoder *encoder = NULL;
    struct piece piece;
    pthread_mutex_lock(&tokenize->lock);
    note_failure(encoder_open(&encoder, tokenize->tokenizer), tokenize);
    while (take_piece(&piece, tokenize)) {
        const int32_t *ids;
        size_t count;
        pthread_mutex_unlock(&tokenize->lock);
        enum status status = encoder_encode(&ids, &count, piece.bytes, piece.count, encoder);
        pthread_mutex_lock(&tokenize->lock);
        while (tokenize->turn != piece.number) /* who took the ones before writes them, or fails */
            pthread_cond_wait(&tokenize->turned, &tokenize->lock);
        if (status == STATUS_OK && tokenize->status == STATUS_OK)
            status = write_piece(&piece, ids, count, tokenize);
        note_failure(status, tokenize);
        tokenize->turn++;
        pthread_cond_broadcast(&tokenize->turned);
    }
    pthread_mutex_unlock(&tokenize->lock);
    encoder_close(encoder);
    return NULL;
}

static enum status encode_texts(struct tokenize *tokenize)
{
    pthread_t threads[MOST_THREADS];
    int started = 0;
    while (started < tokenize->threads &&
           pthread_create(&threads[started], NULL, work, tokenize) == 0)
        started++;
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    progress_line_clear(&tokenize->line);
    if (started == 0) return FAIL(STATUS_SYSTEM, "no thread could be started");
    if (tokenize->status == STATUS_OK) return tokens_writer_finish(tokenize->writer);
    status_set_text(tokenize->why);
    return tokenize->status;
}

/* ---- what is said in the end ---- */

static cJSON *describe(const struct tokenize *tokenize, double seconds)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "bytes", (double)tokenize->total_bytes);
    cJSON_AddNumberToObject(object, "tokens", (double)tokens_writer_count(tokenize->writer));
    cJSON_AddNumberToObject(object, "shards", tokens_writer_shards(tokenize->writer));
    cJSON_AddNumberToObject(object, "threads", tokenize->threads);
    cJSON_AddNumberToObject(object, "seconds", seconds);
    return object;
}

static enum status encode(FILE *json, struct tokenize *tokenize)
{
    TRY(map_texts(tokenize));
    TRY(tokens_writer_open(&tokenize->writer, tokenize->prefix, tokenize->per_shard,
        tokenizer_vocab(tokenize->tokenizer)));
    tokenize->began_ns = clock_ns();
    TRY(encode_texts(tokenize));
    double seconds = (double)(clock_ns() - tokenize->began_ns) * 1e-9;
    double bytes = (double)tokenize->total_bytes;
    uint64_t tokens = tokens_writer_count(tokenize->writer);
    printf("%.1f MB of text are %llu token%s (%.2f bytes each) in %d shard%s %s_*.bin: %.2f s, "
           "%.1f MB/s on %d thread%s\n",
        bytes * 1e-6, (unsigned long long)tokens, PLURAL(tokens), tokens > 0 ? bytes / (double)tokens : 0.0,
        tokens_writer_shards(tokenize->writer), PLURAL(tokens_writer_shards(tokenize->writer)),
        tokenize->prefix, seconds, bytes * 1e-6 / seconds, tokenize->threads,
        PLURAL(tokenize->threads));
    return json == NULL ? STATUS_OK : json_line_write(json, describe(tokenize, seconds));
}

static void release(struct tokenize *tokenize)
{
    for (int i = 0; i < tokenize->text_count; i++) mapped_file_close(&tokenize->texts[i].mapped);
    free(tokenize->texts);
    tokens_writer_close(tokenize->writer);
    tokenizer_close(tokenize->tokenizer);
}

int tokenize_main(int argc, char **argv)
{
    struct tokenize tokenize = {.common = options_default("ringzero tokenize"),
        .per_shard = SHARD_DEFAULT,
        .threads = (int)sysconf(_SC_NPROCESSORS_ONLN),
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .turned = PTHREAD_COND_INITIALIZER};
    if (tokenize.threads > MOST_THREADS) tokenize.threads = MOST_THREADS;
    options_parse(&argp, argc, argv, &tokenize.common, &tokenize);
    check(&tokenize);
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit is an error of write() */
    FILE *json = tokenize.decode ? NULL : options_open_json(&tokenize.common);
    enum status status = tokenizer_open(&tokenize.tokenizer, tokenize.vocabulary);
    if (status == STATUS_OK) status = tokenize.decode ? decode(&tokenize) : encode(json, &tokenize);
    status = options_close_json(json, status, &tokenize.common);
    if (status != STATUS_OK) fprintf(stderr, "ringzero tokenize: %s\n", status_text());
    release(&tokenize);
    return status == STATUS_OK ? 0 : status == STATUS_INVALID ? 2 : 1;
}
