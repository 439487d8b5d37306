/* tokenizer_fuzz: a vocabulary of either kind, and a text.
 *
 * input   kind, bytes of the text / 4, the text, the vocabulary: as it is, or behind the single bytes
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "model/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static void write_all(int fd, const void *bytes, size_t count)
{
    if (write(fd, bytes, count) != (ssize_t)count) abort();
}

/* "AA== 0" … "/w== 255" */
static void write_single_bytes(int fd)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int byte = 0; byte < 256; byte++)
        dprintf(fd, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
}

static void check_text(const char *text, size_t bytes, struct encoder *encoder,
    const struct tokenizer *tokenizer)
{
    const int32_t *ids;
    size_t count, at = 0, took;
    FUZZ_EXPECT(encoder_encode(&ids, &count, text, bytes, encoder) == STATUS_OK);
    for (size_t i = 0; i < count; i++, at += took) {
        const char *token = tokenizer_bytes(&took, ids[i], tokenizer);
        FUZZ_EXPECT(token != NULL && took <= bytes - at && memcmp(token, text + at, took) == 0);
    }
    FUZZ_EXPECT(at == bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    int kind = fuzz_byte(&input) % 3;
    size_t text = 4 * (size_t)fuzz_byte(&input);
    if (text > input.bytes) text = input.bytes;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0) abort();
    if (kind == 1) write_single_bytes(fd);
    if (kind == 2) write_all(fd, "#version: 0.2\n", 14);
    write_all(fd, input.data + text, input.bytes - text);
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    if (tokenizer_open(&tokenizer, path) == STATUS_OK) {
        if (encoder_open(&encoder, tokenizer) != STATUS_OK) abort();
        for (int again = 0; again < 2; again++)
            check_text((const char *)input.data, text, encoder, tokenizer);
        encoder_close(encoder);
    } else {
        FUZZ_EXPECT(tokenizer == NULL && strstr(status_text(), path) != NULL);
    }
    tokenizer_close(tokenizer);
    close(fd);
    return 0;
}
