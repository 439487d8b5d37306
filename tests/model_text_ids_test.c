/* Text on a terminal: characters that come in pieces, whatever the pieces; what is none. Ids and text of both kinds of models.
 * ctest: timeout=30
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/text_ids.h"
#include "model/utf8.h"
#include "tests/harness/harness.h"

#define BAD "\xef\xbf\xbd"

/* ---- pieces ---- */

static void check_shown(const char *text, const char *expected)
{
    size_t bytes = strlen(text);
    for (size_t piece = 1; piece <= bytes; piece++) {
        char shown[256];
        size_t used = 0;
        struct utf8_held held = {{0}, 0};
        for (size_t at = 0; at < bytes; at += piece) {
            size_t now = bytes - at < piece ? bytes - at : piece;
            used += utf8_show(shown + used, &held, text + at, now);
        }
        used += utf8_end(shown + used, &held);
        shown[used] = '\0';
        CHECK_MSG(strcmp(shown, expected) == 0, "pieces of %zu: \"%s\" instead of \"%s\"", piece, shown, expected);
    }
}

static void check_utf8(void)
{
    check_shown("plain\ttext\r\n", "plain\ttext\r\n");
    check_shown("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82!", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82!");
    check_shown("\x80 \xff", BAD " " BAD);
    check_shown("\xc3(", BAD "(");                     /* broken by the next */
    check_shown("\xe2\x82\xc3\xa9", BAD "\xc3\xa9");   /* by one that begins another */
    check_shown("\xe2\x82", BAD);                      /* by the end */
    check_shown("\xc0\xaf", BAD BAD);                  /* longer than it need be */
    check_shown("\xe0\x80\x80", BAD BAD BAD);
    check_shown("\xed\xa0\x80", BAD BAD BAD);          /* a surrogate */
    check_shown("\xf4\x90\x80\x80", BAD BAD BAD BAD);  /* beyond U+10FFFF */
    check_shown("\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf");
    check_shown("\x1b[2J\x7f\xc2\x9b" "1m\xc2\xa0", BAD "[2J" BAD BAD "1m\xc2\xa0");
    struct utf8_held held = {{0}, 0};
    char shown[UTF8_ROOM(4)];
    CHECK(utf8_show(shown, &held, "\xf0\x9f", 2) == 0 && held.count == 2);
    CHECK(utf8_show(shown, &held, "\x99\x82", 2) == 4 && held.count == 0);
    CHECK(utf8_show(shown, &held, "\0", 1) == 3);
    CHECK(utf8_end(shown, &held) == 0);
}

/* ---- ids ---- */

static void check_ids(const char *text, size_t bytes, size_t expected, struct text_ids *ids)
{
    int32_t *tokens;
    char back[64];
    size_t count, used = 0, piece_bytes;
    if (!CHECK_OK(text_ids_encode(&tokens, &count, text, bytes, ids))) return;
    CHECK_MSG(count == expected, "%zu tokens, expected %zu", count, expected);
    for (size_t i = 0; i < count; i++) {
        const char *piece = text_ids_bytes(&piece_bytes, tokens[i], ids);
        if (piece_bytes > 0) memcpy(back + used, piece, piece_bytes);
        used += piece_bytes;
    }
    CHECK(used == bytes && memcmp(back, text, bytes) == 0);
    free(tokens);
}

static void check_empty(int32_t expected, struct text_ids *ids)
{
    int32_t *tokens;
    size_t count;
    if (!CHECK_OK(text_ids_encode(&tokens, &count, "", 0, ids))) return;
    CHECK(count == 1 && tokens[0] == expected);
    free(tokens);
}

static void check_bytes(void)
{
    struct text_ids *ids;
    size_t bytes;
    if (!CHECK_OK(text_ids_open(&ids, NULL, 256))) return;
    CHECK(text_ids_count(ids) == 256 && text_ids_end(ids) == -1);
    check_ids("a\0\xff", 3, 3, ids);
    check_empty('\n', ids);
    CHECK(text_ids_bytes(&bytes, 256, ids) == NULL && bytes == 0);
    text_ids_close(ids);
    CHECK_STATUS(text_ids_open(&ids, NULL, 50257), STATUS_INVALID);
    CHECK_TEXT("the model has 50257 tokens and no vocabulary is given, expected 256");
    CHECK(ids == NULL);
    text_ids_close(ids);
}

static void check_pairs(void)
{
    char path[] = "/tmp/ringzero_text_ids_XXXXXX";
    const char vocabulary[] = "#version: 0.2\nt h\nth e\n";
    struct text_ids *ids;
    size_t bytes;
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, vocabulary, sizeof vocabulary - 1) < 0 || close(fd) != 0) abort();
    if (CHECK_OK(text_ids_open(&ids, path, 259))) {
        CHECK(text_ids_count(ids) == 259 && text_ids_end(ids) == 258);
        check_ids("the th\xc3\xa9", 8, 5, ids); /* the, a blank, th, two bytes */
        check_empty(258, ids);
        CHECK(text_ids_bytes(&bytes, 258, ids) == NULL && bytes == 0);
    }
    text_ids_close(ids);
    CHECK_OK(text_ids_open(&ids, path, 259 + 255)); /* padded */
    CHECK(text_ids_count(ids) == 259 && text_ids_bytes(&bytes, 300, ids) == NULL && bytes == 0);
    text_ids_close(ids);
    CHECK_STATUS(text_ids_open(&ids, path, 259 + 256), STATUS_INVALID);
    CHECK_STATUS(text_ids_open(&ids, path, 256), STATUS_INVALID);
    CHECK_TEXT("has 259 tokens with the end of text, the model 256");
    CHECK_STATUS(text_ids_open(&ids, "/none", 259), STATUS_DATA);
    CHECK(ids == NULL);
    unlink(path);
}

int main(void)
{
    check_utf8();
    check_bytes();
    check_pairs();
    return test_result();
}
