/* tokenizer_vocabulary: reading a vocabulary; see tokenizer.h for the two kinds.
 *
 * Invariants: ids are 0 … count − 1 without a gap; no two tokens have the same bytes; every single
 * byte is a token. What breaks one of them is refused by its line.
 */
#include "model/tokenizer_vocabulary.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#define MOST_TOKENS     ((uint32_t)1 << 24)
#define MOST_LINE_BYTES ((size_t)4 << 10)
#define FIRST_SLOTS     ((size_t)1 << 12)

uint32_t tokenizer_find(const char *bytes, size_t count, const struct tokenizer *tokenizer)
{
    size_t slot = hash_bytes(bytes, count) & tokenizer->slot_mask;
    for (; tokenizer->slots[slot] != 0; slot = (slot + 1) & tokenizer->slot_mask) {
        uint32_t id = tokenizer->slots[slot] - 1;
        const struct token *token = &tokenizer->token[id];
        if (token->bytes == count && memcmp(tokenizer->text + token->at, bytes, count) == 0)
            return id;
    }
    return NO_TOKEN;
}

/* ---- growing ---- */

static void place(struct tokenizer *tokenizer, uint32_t id)
{
    const struct token *token = &tokenizer->token[id];
    size_t slot =
        hash_bytes(tokenizer->text + token->at, token->bytes) & tokenizer->slot_mask;
    while (tokenizer->slots[slot] != 0) slot = (slot + 1) & tokenizer->slot_mask;
    tokenizer->slots[slot] = id + 1;
}

/* Twice as many, so that half of them stay free; and as many tokens as half of that. */
static enum status grow(struct tokenizer *tokenizer)
{
    size_t slots = tokenizer->slots == NULL ? FIRST_SLOTS : 2 * (tokenizer->slot_mask + 1);
    uint32_t *table = calloc(slots, sizeof *table);
    struct token *token = realloc(tokenizer->token, slots / 2 * sizeof *token);
    if (token != NULL) tokenizer->token = token;
    if (table == NULL || token == NULL) {
        free(table);
        return FAIL(STATUS_SYSTEM, "no memory for a vocabulary of %u tokens", tokenizer->count);
    }
    free(tokenizer->slots);
    tokenizer->slots = table;
    tokenizer->slot_mask = slots - 1;
    for (uint32_t id = 0; id < tokenizer->count; id++) place(tokenizer, id);
    return STATUS_OK;
}

/* The next id. errors: DATA (there already, empty), SYSTEM; without the place, which the caller
 * knows. */
static enum status add(struct tokenizer *tokenizer, const char *bytes, size_t count)
{
    if (tokenizer->slots == NULL || tokenizer->count >= (tokenizer->slot_mask + 1) / 2)
        TRY(grow(tokenizer));
    uint32_t same = tokenizer_find(bytes, count, tokenizer);
    if (count == 0) return FAIL(STATUS_DATA, "an empty token, expected at least one byte");
    if (same != NO_TOKEN)
        return FAIL(STATUS_DATA, "a token of %zu bytes that is token %u already, expected a new one",
            count, same);
    if (tokenizer->count == MOST_TOKENS)
        return FAIL(STATUS_DATA, "more than %u tokens, expected at most that", MOST_TOKENS);
    char *text = realloc(tokenizer->text, tokenizer->text_bytes + count);
    if (text == NULL) return FAIL(STATUS_SYSTEM, "no memory for the bytes of tokens");
    memcpy(text + tokenizer->text_bytes, bytes, count);
    tokenizer->text = text;
    tokenizer->token[tokenizer->count] = (struct token){tokenizer->text_bytes, count};
    tokenizer->text_bytes += count;
    if (count > tokenizer->longest) tokenizer->longest = count;
    place(tokenizer, tokenizer->count++);
    return STATUS_OK;
}

/* ---- a line of ranks: "aGVsbG8= 31373" ---- */

static int base64_digit(char c)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c == 0 ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

/* bytes: room for 3 / 4 of the length. False: not base64. */
static bool decode_base64(char *bytes, size_t *count, const char *text, size_t length)
{
    *count = 0;
    if (length == 0 || length % 4 != 0) return false;
    size_t padding = (text[length - 1] == '=') + (text[length - 1] == '=' && text[length - 2] == '=');
    for (size_t i = 0; i < length; i += 4) {
        uint32_t word = 0;
        size_t digits = i + 4 == length ? 4 - padding : 4;
        for (size_t d = 0; d < 4; d++) {
            int digit = d < digits ? base64_digit(text[i + d]) : 0;
            if (digit < 0) return false;
            word = word << 6 | (uint32_t)digit;
        }
        for (size_t b = 0; b + 1 < digits; b++) bytes[(*count)++] = (char)(word >> (16 - 8 * b));
    }
    return true;
}

static enum status add_rank(struct tokenizer *tokenizer, const char *line, size_t length)
{
    char bytes[MOST_LINE_BYTES], *end;
    size_t count, word = strcspn(line, " ");
    if (word > length || !decode_base64(bytes, &count, line, word))
        return FAIL(STATUS_DATA, "\"%.40s\", expected a token in base64, a space and its rank", line);
    unsigned long rank = line[word] == ' ' ? strtoul(line + word + 1, &end, 10) : 0;
    if (line[word] != ' ' || end == line + word + 1 || *end != 0 || rank != tokenizer->count)
        return FAIL(STATUS_DATA, "rank is \"%.20s\", expected %u: ranks are 0, 1, 2, … line by line",
            line[word] == ' ' ? line + word + 1 : "", tokenizer->count);
    return add(tokenizer, bytes, count);
}

/* ---- a line of pairs: "Ġ t" ---- */

/* Pairs write a byte as a symbol that can be seen: itself if it can be, else the next from U+0100 on. */
static bool is_seen(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* -1: of no byte. */
static int byte_of_symbol(utf8proc_int32_t symbol)
{
    if (symbol < 256) return is_seen((int)symbol) ? (int)symbol : -1;
    int hidden = 0x100;
    for (int byte = 0; byte < 256; byte++)
        if (!is_seen(byte) && hidden++ == symbol) return byte;
    return -1;
}

/* Those that are seen come first. */
static enum status add_single_bytes(struct tokenizer *tokenizer)
{
    for (int seen = 1; seen >= 0; seen--)
        for (int byte = 0; byte < 256; byte++)
            if (is_seen(byte) == (seen == 1)) TRY(add(tokenizer, &(char){(char)byte}, 1));
    return STATUS_OK;
}

/* The bytes of a word of symbols. False: it has others. */
static bool bytes_of_symbols(char *bytes, size_t *count, const char *word, size_t length)
{
    *count = 0;
    while (length > 0) {
        utf8proc_int32_t symbol;
        utf8proc_ssize_t took = utf8proc_iterate(
            (const utf8proc_uint8_t *)word, (utf8proc_ssize_t)length, &symbol);
        int byte = took > 0 ? byte_of_symbol(symbol) : -1;
        if (byte < 0) return false;
        bytes[(*count)++] = (char)byte;
        word += took;
        length -= (size_t)took;
    }
    return true;
}

static enum status add_pair(struct tokenizer *tokenizer, const char *line, size_t length)
{
    char bytes[MOST_LINE_BYTES];
    size_t left = strcspn(line, " "), first, second;
    if (left == 0 || left + 1 >= length || strchr(line + left + 1, ' ') != NULL ||
        !bytes_of_symbols(bytes, &first, line, left) ||
        !bytes_of_symbols(bytes + first, &second, line + left + 1, length - left - 1))
        return FAIL(STATUS_DATA, "\"%.40s\", expected two tokens with a space between", line);
    if (tokenizer_find(bytes, first, tokenizer) == NO_TOKEN ||
        tokenizer_find(bytes + first, second, tokenizer) == NO_TOKEN)
        return FAIL(STATUS_DATA, "\"%.40s\" joins what no line above has made, expected known tokens",
            line);
    return add(tokenizer, bytes, first + second);
}

/* ---- a file ---- */

static enum status add_line(struct tokenizer *tokenizer, const char *line, size_t length, bool pairs)
{
    if (strlen(line) != length) return FAIL(STATUS_DATA, "a byte 0, expected text");
    return pairs ? add_pair(tokenizer, line, length) : add_rank(tokenizer, line, length);
}

static enum status read_lines(struct tokenizer *tokenizer, FILE *file, const char *path)
{
    char line[MOST_LINE_BYTES + 2];
    bool pairs = false;
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        size_t length = strcspn(line, "\n");
        if (line[length] == 0 && !feof(file))
            return FAIL(STATUS_DATA, "%s line %d: longer than %zu bytes, or with a byte 0: no vocabulary",
                path, number, MOST_LINE_BYTES);
        while (length > 0 && line[length - 1] == '\r') length--;
        line[length] = 0;
        if (number == 1) {
            pairs = strncmp(line, "#version", 8) == 0;
            if (pairs) TRY(add_single_bytes(tokenizer));
            if (pairs) continue;
        }
        if (length == 0) continue;
        enum status status = add_line(tokenizer, line, length, pairs);
        if (status == STATUS_OK) continue;
        char why[STATUS_TEXT_BYTES];
        snprintf(why, sizeof why, "%.512s", status_text());
        return FAIL(status, "%s line %d: %s", path, number, why);
    }
    if (ferror(file)) return FAIL(STATUS_DATA, "%s: cannot be read: %s", path, strerror(errno));
    return STATUS_OK;
}

static enum status check_bytes(const struct tokenizer *tokenizer, const char *path)
{
    if (tokenizer->count == 0)
        return FAIL(STATUS_DATA, "%s: no tokens, expected a vocab.bpe or a file of ranks", path);
    for (int byte = 0; byte < 256; byte++)
        if (tokenizer_find(&(char){(char)byte}, 1, tokenizer) == NO_TOKEN)
            return FAIL(STATUS_DATA, "%s: byte %d is no token, expected all 256 of them", path, byte);
    return STATUS_OK;
}

enum status tokenizer_open(struct tokenizer **out, const char *path)
{
    *out = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return FAIL(STATUS_DATA, "%s: cannot be read: %s: give the path of a vocab.bpe or a .tiktoken",
            path, strerror(errno));
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    enum status status = STATUS_OK;
    if (tokenizer == NULL) status = FAIL(STATUS_SYSTEM, "no memory for a tokenizer's record");
    if (status == STATUS_OK) status = read_lines(tokenizer, file, path);
    if (status == STATUS_OK) status = check_bytes(tokenizer, path);
    fclose(file);
    if (status == STATUS_OK) *out = tokenizer;
    else tokenizer_close(tokenizer);
    return status;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL) return;
    free(tokenizer->token);
    free(tokenizer->text);
    free(tokenizer->slots);
    free(tokenizer);
}

int32_t tokenizer_vocab(const struct tokenizer *tokenizer)
{
    return (int32_t)tokenizer->count + 1;
}

int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer)
{
    return (int32_t)tokenizer->count;
}

const char *tokenizer_bytes(size_t *bytes, int32_t id, const struct tokenizer *tokenizer)
{
    *bytes = 0;
    if (id < 0 || (uint32_t)id >= tokenizer->count) return NULL;
    *bytes = tokenizer->token[id].bytes;
    return tokenizer->text + tokenizer->token[id].at;
}
