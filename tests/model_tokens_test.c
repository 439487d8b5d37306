/* model/tokens: windows and their order (case T6), every fault's message (case T8), both shard
 * formats, text, resuming. ctest: timeout=60
 */
#include "model/tokens.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/harness.h"

#define GPT2_MAGIC  20240520
#define LLAMA_MAGIC 20240801

static char directory[64];

static const char *path(const char *name)
{
    static char full[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(full[turn], sizeof full[turn], "%s/%s", directory, name);
    return full[turn];
}

static int remove_one(const char *name, const struct stat *about, int flag, struct FTW *walk)
{
    (void)about, (void)flag, (void)walk;
    return remove(name);
}

static void remove_directory(void)
{
    nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A shard whose token i is first + i, of width bytes; its header says `promised` tokens. */
static const char *write_shard(const char *name, uint32_t magic, uint32_t version,
    uint32_t promised, size_t count, int width, uint32_t first)
{
    uint32_t header[256] = {magic, version, promised};
    const char *full = path(name);
    FILE *file = fopen(full, "wb");
    if (file == NULL) abort();
    CHECK(fwrite(header, sizeof header, 1, file) == 1);
    for (size_t i = 0; i < count; i++) {
        uint32_t id = first + (uint32_t)i;
        CHECK(
            fwrite(&id, (size_t)width, 1, file) == 1); /* little-endian: the low bytes come first */
    }
    fclose(file);
    return full;
}

static const char *write_bytes(const char *name, const char *bytes, size_t count)
{
    const char *full = path(name);
    FILE *file = fopen(full, "wb");
    if (file == NULL) abort();
    CHECK(fwrite(bytes, 1, count, file) == count);
    fclose(file);
    return full;
}

static void remove_shards(const char *pattern_start)
{
    char command[256];
    snprintf(command, sizeof command, "rm -f %s/%s*", directory, pattern_start);
    CHECK(system(command) == 0);
}

/* The first id of a row names its window: ids are 1000·file + index. Every rank of every batch of
 * an epoch is asked. */
static void visit_epoch(
    int *seen, int *order, const struct tokens_config *config, uint64_t epoch, int t)
{
    int32_t inputs[64 * 16], targets[64 * 16];
    int visited = 0;
    for (int rank = 0; rank < config->nranks; rank++) {
        struct tokens_config mine = *config;
        struct tokens *tokens = NULL;
        mine.rank = rank;
        if (!CHECK_OK(tokens_open(&tokens, &mine))) return;
        size_t batches = tokens_batches(tokens);
        for (size_t i = 0; i < batches; i++) {
            tokens_train_batch(inputs, targets, epoch * batches + i, tokens);
            for (int b = 0; b < config->batch; b++) {
                const int32_t *row = inputs + b * t, *goal = targets + b * t;
                int consecutive = 1;
                for (int j = 0; j < t; j++)
                    consecutive &= row[j] == row[0] + j && goal[j] == row[0] + j + 1;
                CHECK(consecutive);
                CHECK(row[0] % 1000 % t == 0);
                seen[row[0]]++;
                order[visited++] = row[0];
                /* All ranks are in the file of rank 0: case T6, "all ranks switch together". */
                int same_place = (int)i * config->batch + b;
                CHECK(order[same_place] / 1000 == row[0] / 1000);
            }
        }
        tokens_close(tokens);
    }
}

static void test_t6(void)
{
    write_shard("t6_1.bin", GPT2_MAGIC, 1, 100, 100, 2, 1000);
    write_shard("t6_2.bin", GPT2_MAGIC, 1, 65, 65, 2, 2000);
    write_shard("t6_3.bin", GPT2_MAGIC, 1, 129, 129, 2, 3000);
    write_shard("v6.bin", GPT2_MAGIC, 1, 32, 32, 2, 4000);
    char pattern[256], validation[256];
    snprintf(pattern, sizeof pattern, "%s", path("t6_*.bin"));
    snprintf(validation, sizeof validation, "%s", path("v6.bin"));
    struct tokens_config config = {.pattern = pattern,
        .validation = validation,
        .vocab = 5000,
        .batch = 2,
        .t = 8,
        .nranks = 4,
        .seed = 7};
    struct tokens *tokens = NULL;
    if (!CHECK_OK(tokens_open(&tokens, &config))) return;
    CHECK(tokens_count(tokens, SPLIT_TRAIN) == 100 + 65 + 129);
    CHECK(tokens_windows(tokens, SPLIT_TRAIN) == 12 + 8 + 16);
    CHECK(tokens_batches(tokens) == 1 + 1 + 2);
    CHECK(tokens_windows(tokens, SPLIT_VALIDATION) == 3);
    CHECK(tokens_vocab(tokens) == 0);
    tokens_close(tokens);

    int first_order[64] = {0}, ever[5000] = {0}, changed = 0;
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        int seen[5000] = {0}, order[64] = {0}, per_file[5] = {0};
        visit_epoch(seen, order, &config, epoch, 8);
        for (int id = 0; id < 5000; id++) {
            CHECK(seen[id] <= 1);
            per_file[id / 1000] += seen[id];
            ever[id] |= seen[id];
        }
        CHECK(per_file[1] == 8 && per_file[2] == 8 && per_file[3] == 16);
        if (epoch == 0) memcpy(first_order, order, sizeof order);
        changed += memcmp(first_order, order, sizeof order) != 0;
    }
    CHECK(changed == 19);
    for (int w = 0; w < 12; w++)
        CHECK_MSG(ever[1000 + 8 * w], "window %d of file 1 never came in 20 epochs", w);

    write_shard("t6_4.bin", GPT2_MAGIC, 1, 64, 64, 2, 4000);
    CHECK_STATUS(tokens_open(&tokens, &config), STATUS_DATA);
    CHECK_MSG(strstr(status_text(), "t6_4.bin") != NULL &&
                  strstr(status_text(), "64 tokens") != NULL &&
                  strstr(status_text(), "at least 65") != NULL,
        "%s", status_text());
    CHECK(tokens == NULL);
    remove_shards("t6_");
}

/* The order of a large file is a bijection, looks shuffled, and depends on the seed. */
static void test_order(void)
{
    static int seen[4096];
    char pattern[256];
    snprintf(
        pattern, sizeof pattern, "%s", write_shard("order.bin", GPT2_MAGIC, 1, 20001, 20001, 2, 0));
    struct tokens_config config = {
        .pattern = pattern, .validation = pattern, .batch = 5, .t = 5, .nranks = 1, .seed = 3};
    struct tokens *tokens = NULL, *other = NULL;
    if (!CHECK_OK(tokens_open(&tokens, &config))) return;
    config.seed = 4;
    if (!CHECK_OK(tokens_open(&other, &config))) return;
    int in_place = 0, neighbours = 0, equal = 0, last = -1;
    int32_t inputs[25], targets[25], other_inputs[25];
    for (uint64_t i = 0; i < tokens_batches(tokens); i++) {
        tokens_train_batch(inputs, targets, i, tokens);
        tokens_train_batch(other_inputs, targets, i, other);
        for (int b = 0; b < 5; b++) {
            int window = inputs[5 * b] / 5;
            seen[window]++;
            in_place += window == (int)i * 5 + b;
            neighbours += window == last + 1;
            equal += inputs[5 * b] == other_inputs[5 * b];
            last = window;
        }
    }
    CHECK(tokens_batches(tokens) == 800);
    for (int w = 0; w < 4000; w++) CHECK(seen[w] == 1);
    CHECK_MSG(in_place < 12 && neighbours < 12 && equal < 12,
        "in place %d, neighbours %d, as with another seed %d", in_place, neighbours, equal);
    tokens_close(tokens);
    tokens_close(other);
}

/* Text: bytes are ids; the last tenth validates, whatever N and B; every validation window counts
 * once; resuming by index. */
static void test_text(void)
{
    char text[1003];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i % 251);
    char pattern[256];
    snprintf(pattern, sizeof pattern, "%s", write_bytes("text[1].txt", text, sizeof text));
    for (int nranks = 1; nranks <= 3; nranks++) {
        int counted = 0;
        for (int rank = 0; rank < nranks; rank++) {
            struct tokens_config config = {.pattern = pattern,
                .vocab = 256,
                .batch = 2,
                .t = 9,
                .rank = rank,
                .nranks = nranks,
                .seed = 1};
            struct tokens *tokens = NULL;
            if (!CHECK_OK(tokens_open(&tokens, &config))) return;
            CHECK(tokens_vocab(tokens) == 256);
            CHECK(tokens_count(tokens, SPLIT_TRAIN) == 903 &&
                  tokens_count(tokens, SPLIT_VALIDATION) == 100);
            CHECK(tokens_windows(tokens, SPLIT_VALIDATION) == 11);
            CHECK(tokens_validation_batches(tokens) ==
                  (size_t)(11 + 2 * nranks - 1) / (size_t)(2 * nranks));
            int32_t inputs[18], targets[18], again[18];
            for (size_t i = 0; i < tokens_validation_batches(tokens); i++) {
                tokens_validation_batch(inputs, targets, i, tokens);
                for (int b = 0; b < 2; b++) {
                    int window = ((int)i * nranks + rank) * 2 + b, real = targets[9 * b] >= 0;
                    CHECK(real == (window < 11));
                    counted += real;
                    for (int j = 0; j < 9; j++) {
                        int at = 903 + 9 * window + j;
                        CHECK(inputs[9 * b + j] == (real ? at % 251 : 0));
                        CHECK(targets[9 * b + j] == (real ? (at + 1) % 251 : -1));
                    }
                }
            }
            tokens_train_batch(inputs, targets, 12345, tokens);
            tokens_train_batch(again, targets, 0, tokens);
            tokens_train_batch(again, targets, 12345, tokens);
            CHECK(memcmp(inputs, again, sizeof inputs) == 0);
            tokens_close(tokens);
        }
        CHECK(counted == 11);
    }
}

static void test_uint32(void)
{
    char pattern[256];
    snprintf(
        pattern, sizeof pattern, "%s", write_shard("llama.bin", LLAMA_MAGIC, 7, 40, 40, 4, 100000));
    struct tokens_config config = {
        .pattern = pattern, .vocab = 128256, .batch = 1, .t = 3, .nranks = 1};
    struct tokens *tokens = NULL;
    if (!CHECK_OK(tokens_open(&tokens, &config))) return;
    int32_t inputs[3], targets[3];
    tokens_validation_batch(inputs, targets, 0, tokens);
    CHECK(inputs[0] == 100036 && targets[2] == 100039);
    tokens_close(tokens);
}

/* One fault: the call is refused and the message holds the file and all the words. */
static void expect_fault(
    const char *file, int vocab, const char *first, const char *second, const char *third)
{
    struct tokens_config config = {
        .pattern = file, .vocab = vocab, .batch = 1, .t = 4, .nranks = 1};
    struct tokens *tokens = NULL;
    CHECK_STATUS(tokens_open(&tokens, &config), STATUS_DATA);
    const char *text = status_text(), *words[] = {file, first, second, third};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_MSG(strstr(text, words[i]) != NULL, "\"%s\" is not in: %s", words[i], text);
    CHECK(tokens == NULL);
    tokens_close(tokens);
}

static void test_t8(void)
{
    expect_fault(write_shard("magic.bin", 1234, 1, 50, 50, 2, 0), 0, "header[0] (magic)", "1234",
        "expected 20240520");
    expect_fault(write_shard("version.bin", GPT2_MAGIC, 9, 50, 50, 2, 0), 0, "header[1] (version)",
        "is 9", "expected 1");
    expect_fault(write_shard("llama1.bin", LLAMA_MAGIC, 1, 50, 50, 4, 0), 0, "header[1] (version)",
        "is 1", "expected 7");
    expect_fault(write_shard("short.bin", GPT2_MAGIC, 1, 1000, 999, 2, 0), 0, "header[2] (ntok)",
        "1000 tokens", "999 tokens");
    expect_fault(write_shard("long", GPT2_MAGIC, 1, 1000, 1001, 2, 0), 0, "header[2] (ntok)",
        "1000 tokens", "1001 tokens");
    expect_fault(write_shard("zero.bin", GPT2_MAGIC, 1, 0, 0, 2, 0), 0, "header[2] (ntok)",
        "0 tokens", "expected at least 1");
    expect_fault(write_shard("ids.bin", GPT2_MAGIC, 1, 300, 300, 2, 10), 256, "token 246", "id 256",
        "below 256");
    expect_fault(write_shard("far.bin", GPT2_MAGIC, 1, 70000, 70000, 2, 0), 65535, "token 65535",
        "id 65535", "below 65535");
    expect_fault(write_shard("huge.bin", LLAMA_MAGIC, 7, 50, 50, 4, 0x7ffffff0), 0, "token 15",
        "2147483647", "below");
    expect_fault(
        write_bytes("text.txt", "Only seven bits", 15), 100, "token 1", "id 110", "below 100");
    expect_fault(write_bytes("cut.bin", "\x88\xd8\x34\x01 cut short", 14), 0, "header", "14 bytes",
        "expected 1024");
    expect_fault(write_bytes("empty.txt", "", 0), 0, "0 tokens", "empty", "expected at least 1");
    expect_fault(path("nothing*.bin"), 0, "found no such file", "none that matches",
        "expected at least one");
    expect_fault(directory, 0, "found a directory", "expected a regular file", "/*");
    expect_fault(write_bytes("tiny.txt", "abcde", 5), 0, "validation split has 0 tokens",
        "T + 1 = 5", "files");
    expect_fault(write_bytes("few.txt", "abcd", 4), 0, "found 4 tokens", "expected at least 5",
        "batch 1 x T 4 x ranks 1");
}

static void test_mixed(void)
{
    write_bytes("mix_1.txt", "some text that is long enough", 29);
    write_shard("mix_2.bin", GPT2_MAGIC, 1, 50, 50, 2, 0);
    struct tokens_config config = {.pattern = path("mix_*"), .batch = 1, .t = 2, .nranks = 1};
    struct tokens *tokens = NULL;
    CHECK_STATUS(tokens_open(&tokens, &config), STATUS_DATA);
    CHECK_MSG(strstr(status_text(),
                  "mix_2.bin: found a file of GPT-2 (uint16) tokens, expected text (byte)") != NULL,
        "%s", status_text());
}

int main(void)
{
    snprintf(directory, sizeof directory, "/tmp/ringzero-tokens-XXXXXX");
    if (mkdtemp(directory) == NULL) return test_skip("no directory can be made in /tmp");
    atexit(remove_directory);
    test_t6();
    test_order();
    test_text();
    test_uint32();
    test_t8();
    test_mixed();
    return test_result();
}
