/* GPT-2's byte-pair encoding: where words end, which pairs are merged first, cuts that change nothing, a
 * long word in little time, and vocabularies that are none. What the program makes of a real text is
 * bench_tokenize_test's.
 * ctest: timeout=60
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/tokenizer.h"
#include "tests/harness/harness.h"

/* ---- words ---- */

static void check_words(const char *text, const char *expected)
{
    char found[512] = "";
    size_t bytes = strlen(text), used = 0;
    for (size_t at = 0; at < bytes;) {
        size_t word = tokenizer_word(text + at, bytes - at);
        if (!CHECK(word >= 1 && word <= bytes - at)) return;
        used += (size_t)snprintf(
            found + used, sizeof found - used, "%s%.*s", at > 0 ? "|" : "", (int)word, text + at);
        at += word;
    }
    CHECK_MSG(strcmp(found, expected) == 0, "words of \"%s\" are \"%s\", expected \"%s\"", text, found,
        expected);
}

static void check_rule(void)
{
    check_words("In the beginning", "In| the| beginning");
    check_words("it's we'll they've 'd I'm 'tis", "it|'s| we|'ll| they|'ve| '|d| I|'m| '|tis");
    check_words("IT'S", "IT|'|S");
    check_words("x1 22nd", "x|1| 22|nd");
    check_words("a  b", "a| | b");
    check_words("a   b", "a|  | b");
    check_words("a \n b", "a| \n| b");
    check_words("a\nb\n\nc", "a|\n|b|\n|\n|c");
    check_words("a \t", "a| \t");
    check_words(" ", " ");
    check_words("end.  ", "end|.|  ");
    check_words("(\"'s)", "(\"'|s|)");
    check_words("é漢字 Ⅷ²", "é漢字| Ⅷ²");           /* letters; numbers of two kinds */
    check_words("a\u00a0b", "a|\u00a0|b");            /* white, but no blank that a word takes */
    check_words("a\u2003 b", "a|\u2003| b");
    check_words("a\u200bb", "a|\u200b|b");            /* of no width, and not white */
    check_words("e\u0301", "e|\u0301");               /* a mark is no letter */
    check_words("a\xff\xfe b\xc3", "a|\xff\xfe| b|\xc3"); /* no UTF-8 */
}

/* ---- a vocabulary ---- */

static const char *const merges[] = {"h e", "l l", "he ll", "Ġ w", "o r", "hell o", "Ġw or", "a a", "aa aa"};
#define MERGES (sizeof merges / sizeof *merges)

static char path[] = "/tmp/ringzero_tokenizer_XXXXXX";

static void write_file(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(text, 1, bytes, file) != bytes || fclose(file) != 0) abort();
}

static size_t pairs_file(char *text)
{
    size_t used = (size_t)sprintf(text, "#version: 0.2\n");
    for (size_t i = 0; i < MERGES; i++) used += (size_t)sprintf(text + used, "%s\n", merges[i]);
    return used;
}

static size_t base64(char *to, const char *bytes, size_t count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t used = 0;
    for (size_t i = 0; i < count; i += 3) {
        unsigned word = 0;
        for (size_t b = 0; b < 3; b++)
            word = word << 8 | (i + b < count ? (unsigned char)bytes[i + b] : 0);
        for (size_t d = 0; d < 4; d++)
            to[used++] = i + d <= count ? digits[word >> (18 - 6 * d) & 63] : '=';
    }
    return used;
}

/* The same vocabulary as ranks. */
static size_t ranks_file(char *text, const struct tokenizer *tokenizer)
{
    size_t used = 0;
    for (int32_t id = 0; id < tokenizer_end_of_text(tokenizer); id++) {
        size_t bytes;
        const char *token = tokenizer_bytes(&bytes, id, tokenizer);
        used += base64(text + used, token, bytes);
        used += (size_t)sprintf(text + used, " %d\n", id);
    }
    return used;
}

static void check_ids(const char *text, const char *expected, const struct tokenizer *tokenizer)
{
    struct encoder *encoder;
    const int32_t *ids;
    size_t count, used = 0;
    char found[512] = "";
    if (!CHECK_OK(encoder_open(&encoder, tokenizer))) return;
    for (int again = 0; again < 2; again++, used = 0) { /* the second time from memory */
        if (!CHECK_OK(encoder_encode(&ids, &count, text, strlen(text), encoder))) break;
        for (size_t i = 0; i < count; i++) {
            size_t bytes;
            const char *token = tokenizer_bytes(&bytes, ids[i], tokenizer);
            used += (size_t)snprintf(found + used, sizeof found - used, "%s%.*s", i > 0 ? "|" : "",
                (int)bytes, token);
        }
        CHECK_MSG(strcmp(found, expected) == 0, "tokens of \"%s\" are \"%s\", expected \"%s\"", text,
            found, expected);
    }
    encoder_close(encoder);
}

static void check_merges(const struct tokenizer *tokenizer)
{
    CHECK(tokenizer_vocab(tokenizer) == 256 + (int32_t)MERGES + 1);
    CHECK(tokenizer_end_of_text(tokenizer) == 256 + (int32_t)MERGES);
    size_t bytes;
    const char *first = tokenizer_bytes(&bytes, 0, tokenizer);
    CHECK(bytes == 1 && *first == '!'); /* the bytes that are seen come first */
    first = tokenizer_bytes(&bytes, 188, tokenizer);
    CHECK(bytes == 1 && *first == 0);
    CHECK(tokenizer_bytes(&bytes, -1, tokenizer) == NULL && bytes == 0);
    CHECK(tokenizer_bytes(&bytes, tokenizer_end_of_text(tokenizer), tokenizer) == NULL);
    check_ids("hello world", "hello| wor|l|d", tokenizer);
    check_ids("hehell", "he|hell", tokenizer);
    check_ids("llll", "ll|ll", tokenizer);
    check_ids("lll", "ll|l", tokenizer); /* of equals the leftmost */
    check_ids("aaaaaaa", "aaaa|aa|a", tokenizer);
    check_ids("<|endoftext|>", "<|||e|n|d|o|f|t|e|x|t|||>", tokenizer);
    check_ids("", "", tokenizer);
}

/* ---- any text ---- */

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Of pieces that meet in every way. */
static size_t random_text(char *text, size_t most, uint64_t *seed)
{
    static const char *const pieces[] = {"hello", " ", "  ", "\n", " wor", "ld", "'s", "'", "7", "é", "漢",
        "\u00a0", "\u2003", "\xff", "\xc3", "\t", ".", "a", "aaa", "Ⅷ", "\xe2\x80", "😀"};
    size_t used = 0;
    while (used + 8 < most) {
        const char *piece = pieces[next_random(seed) % (sizeof pieces / sizeof *pieces)];
        used += (size_t)sprintf(text + used, "%s", piece);
        if (next_random(seed) % 64 == 0) text[used++] = 0;
    }
    return used;
}

/* Decoded it is the text; and where tokenizer_cut() cuts, both parts' ids are the whole's. */
static void check_any_text(const struct tokenizer *tokenizer)
{
    enum { MOST = 600, ROUNDS = 2000 };
    static int32_t whole[MOST];
    char text[MOST], back[MOST];
    uint64_t seed = 5;
    struct encoder *encoder;
    if (!CHECK_OK(encoder_open(&encoder, tokenizer))) return;
    for (int round = 0; round < ROUNDS; round++) {
        const int32_t *ids;
        size_t bytes = random_text(text, 20 + next_random(&seed) % (MOST - 20), &seed), count, first;
        CHECK_OK(encoder_encode(&ids, &count, text, bytes, encoder));
        memcpy(whole, ids, count * sizeof *ids);
        size_t used = 0;
        for (size_t i = 0, took; i < count; i++, used += took) {
            const char *token = tokenizer_bytes(&took, ids[i], tokenizer);
            memcpy(back + used, token, took);
        }
        CHECK(used == bytes && memcmp(text, back, bytes) == 0);
        size_t cut = tokenizer_cut(text, bytes, next_random(&seed) % bytes), rest;
        CHECK_OK(encoder_encode(&ids, &first, text, cut, encoder));
        CHECK(first <= count && memcmp(ids, whole, first * sizeof *ids) == 0);
        CHECK_OK(encoder_encode(&ids, &rest, text + cut, bytes - cut, encoder));
        if (!CHECK_MSG(first + rest == count && memcmp(ids, whole + first, rest * sizeof *ids) == 0,
                "round %d: cut at %zu of %zu", round, cut, bytes))
            break;
    }
    encoder_close(encoder);
}

/* A word of a megabyte takes n log n: with n² this would take an hour. */
static void check_long_word(const struct tokenizer *tokenizer)
{
    size_t bytes = 1000003, count;
    char *text = malloc(bytes);
    const int32_t *ids;
    struct encoder *encoder;
    if (text == NULL || encoder_open(&encoder, tokenizer) != STATUS_OK) abort();
    memset(text, 'a', bytes);
    CHECK_OK(encoder_encode(&ids, &count, text, bytes, encoder));
    CHECK(count == bytes / 4 + 2); /* …, aa, a */
    encoder_close(encoder);
    free(text);
}

/* ---- what is no vocabulary ---- */

static void check_refused(const char *text, size_t bytes, const char *words)
{
    struct tokenizer *tokenizer;
    write_file(text, bytes);
    CHECK_STATUS(tokenizer_open(&tokenizer, path), STATUS_DATA);
    CHECK(tokenizer == NULL);
    CHECK_TEXT(words);
    CHECK_TEXT(path);
}

#define REFUSED(text, words) check_refused(text, sizeof text - 1, words)

static void check_faults(void)
{
    struct tokenizer *tokenizer;
    CHECK_STATUS(tokenizer_open(&tokenizer, "/nonexistent/vocab.bpe"), STATUS_DATA);
    CHECK_TEXT("/nonexistent/vocab.bpe: cannot be read");
    REFUSED("", "no tokens");
    REFUSED("hello\n", "line 1: \"hello\", expected a token in base64");
    REFUSED("aGk 0\n", "expected a token in base64");
    REFUSED("aGk= 1\n", "line 1: rank is \"1\", expected 0");
    REFUSED("aGk= x\n", "rank is \"x\", expected 0");
    REFUSED("aGk=\n", "rank is \"\", expected 0");
    REFUSED("aGk= 0\naGk= 1\n", "line 2: a token of 2 bytes that is token 0 already");
    REFUSED("==== 0\n", "expected a token in base64");
    REFUSED("aGk= 0\n", "byte 0 is no token, expected all 256");
    REFUSED("aGk=\0 0\n", "byte 0");
    REFUSED("#version: 0.2\nh e l\n", "line 2: \"h e l\", expected two tokens with a space between");
    REFUSED("#version: 0.2\nhe\n", "expected two tokens with a space between");
    REFUSED("#version: 0.2\nh \n", "expected two tokens with a space between");
    REFUSED("#version: 0.2\nh \xff\n", "expected two tokens with a space between");
    REFUSED("#version: 0.2\nhe l\n", "joins what no line above has made");
    REFUSED("#version: 0.2\nh e\nh e\n", "line 3: a token of 2 bytes that is token 256 already");
    static char line[6000];
    memset(line, 'A', sizeof line);
    check_refused(line, sizeof line, "longer than 4096 bytes");
}

int main(void)
{
    static char text[1 << 14];
    struct tokenizer *pairs, *ranks;
    int fd = mkstemp(path);
    if (fd < 0) abort();
    close(fd);
    check_rule();
    write_file(text, pairs_file(text));
    if (!CHECK_OK(tokenizer_open(&pairs, path))) return test_result();
    check_merges(pairs);
    write_file(text, ranks_file(text, pairs));
    if (!CHECK_OK(tokenizer_open(&ranks, path))) return test_result();
    check_merges(ranks);
    check_any_text(ranks);
    check_long_word(ranks);
    check_faults();
    tokenizer_close(pairs);
    tokenizer_close(ranks);
    unlink(path);
    return test_result();
}
