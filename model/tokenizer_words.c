/* tokenizer_words: where GPT-2's words begin and end. The rule, a regular expression, of which the
 * first alternative that fits counts:
 *
 *   's 't 're 've 'm 'll 'd      what English puts after an apostrophe
 *   ␣?letters+                   \p{L}
 *   ␣?numbers+                   \p{N}
 *   ␣?others+                    neither letter, number nor white space
 *   white+ (not before a word)   of white space before a word the last symbol stays: if it is a blank,
 *   white+                       the word takes it
 *
 * Invariant: only what follows decides about a word, never what stood before it; so a text may be cut
 * before white space that follows something else.
 */
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer.h"

enum kind { LETTER, NUMBER, WHITE, OTHER };

struct symbol {
    enum kind kind;
    size_t bytes;
};

/* Unicode's White_Space beyond ASCII. */
static bool is_white(utf8proc_int32_t point)
{
    return point == 0x85 || point == 0xa0 || point == 0x1680 ||
           (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
           point == 0x202f || point == 0x205f || point == 0x3000;
}

static enum kind kind_of_point(utf8proc_int32_t point)
{
    if (is_white(point)) return WHITE;
    switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return NUMBER;
    default: return OTHER;
    }
}

static enum kind kind_of_ascii(unsigned char c)
{
    if ((unsigned)(c | 32) - 'a' < 26) return LETTER;
    if ((unsigned)c - '0' < 10) return NUMBER;
    return c == ' ' || (c >= '\t' && c <= '\r') ? WHITE : OTHER;
}

/* The symbol at the begin of a text that is not empty. A byte that begins none is one itself. */
static struct symbol symbol_at(const char *text, size_t bytes)
{
    unsigned char first = (unsigned char)*text;
    if (first < 0x80) return (struct symbol){kind_of_ascii(first), 1};
    utf8proc_int32_t point;
    utf8proc_ssize_t most = bytes < 4 ? (utf8proc_ssize_t)bytes : 4;
    utf8proc_ssize_t took = utf8proc_iterate((const utf8proc_uint8_t *)text, most, &point);
    if (took <= 0) return (struct symbol){OTHER, 1};
    return (struct symbol){kind_of_point(point), (size_t)took};
}

static size_t run(const char *text, size_t bytes, size_t at, enum kind kind)
{
    while (at < bytes) {
        struct symbol symbol = symbol_at(text + at, bytes - at);
        if (symbol.kind != kind) break;
        at += symbol.bytes;
    }
    return at;
}

/* 0: the text does not begin with one. */
static size_t contraction(const char *text, size_t bytes)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    if (*text != '\'') return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(endings[i]);
        if (length <= bytes && memcmp(text, endings[i], length) == 0) return length;
    }
    return 0;
}

/* White space: all of it at the end of a text; else all but its last symbol, unless it is one alone. */
static size_t white_word(const char *text, size_t bytes)
{
    size_t at = 0, last = 0;
    while (at < bytes) {
        struct symbol symbol = symbol_at(text + at, bytes - at);
        if (symbol.kind != WHITE) return last > 0 ? last : at;
        last = at;
        at += symbol.bytes;
    }
    return at;
}

size_t tokenizer_word(const char *text, size_t bytes)
{
    size_t ending = contraction(text, bytes);
    if (ending > 0) return ending;
    struct symbol symbol = symbol_at(text, bytes);
    if (symbol.kind != WHITE) return run(text, bytes, symbol.bytes, symbol.kind);
    if (*text == ' ' && bytes > 1) {
        symbol = symbol_at(text + 1, bytes - 1);
        if (symbol.kind != WHITE) return run(text, bytes, 1 + symbol.bytes, symbol.kind);
    }
    return white_word(text, bytes);
}

/* Whether the symbol that ends before `at` is white space. */
static bool is_white_before(const char *text, size_t at)
{
    size_t begin = at - 1;
    while (begin > 0 && at - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
    struct symbol symbol = symbol_at(text + begin, at - begin);
    return symbol.kind == WHITE && symbol.bytes == at - begin;
}

size_t tokenizer_cut(const char *text, size_t bytes, size_t least)
{
    for (size_t at = least + 1; at < bytes; at++)
        if ((text[at] == ' ' || text[at] == '\n') && !is_white_before(text, at)) return at;
    return bytes;
}
