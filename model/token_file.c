/* token_file: see token_file.h. */
#include "model/token_file.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
    "shards are little-endian and are read where they are mapped");

static const struct shard_format text_format = {0, 0, 1, "text (byte)"};

static bool ends_in_bin(const char *name)
{
    size_t length = strlen(name);
    return length >= 4 && strcmp(name + length - 4, ".bin") == 0;
}

/* The shard format of a file that is one: by its magic number, or, where the name promises a shard,
 * it must have one. */
static enum status find_format(struct token_file *file)
{
    uint32_t magic = 0;
    if (file->mapped.bytes >= sizeof magic) memcpy(&magic, file->mapped.data, sizeof magic);
    for (size_t i = 0; i < sizeof shard_formats / sizeof *shard_formats; i++)
        if (magic == shard_formats[i].magic) file->format = &shard_formats[i];
    if (file->format == NULL && !ends_in_bin(file->name)) file->format = &text_format;
    if (file->format == NULL)
        return FAIL(STATUS_DATA,
            "%s: header[0] (magic) is %u, expected %u (uint16 tokens) or %u (uint32 tokens): this "
            "is no token shard; text must not be named .bin",
            file->name, magic, shard_formats[0].magic, shard_formats[1].magic);
    return STATUS_OK;
}

static enum status read_header(struct token_file *file)
{
    const struct shard_format *format = file->format;
    if (file->mapped.bytes < SHARD_HEADER_BYTES)
        return FAIL(STATUS_DATA,
            "%s: header has %zu bytes, expected %d: the file was cut short, make it again",
            file->name, file->mapped.bytes, SHARD_HEADER_BYTES);
    uint32_t header[3];
    memcpy(header, file->mapped.data, sizeof header);
    if (header[1] != format->version)
        return FAIL(STATUS_DATA,
            "%s: header[1] (version) is %u, expected %u for magic %u: make the shard again",
            file->name, header[1], format->version, header[0]);
    if (header[2] == 0)
        return FAIL(STATUS_DATA,
            "%s: header[2] (ntok) is 0 tokens, expected at least 1: leave the file out",
            file->name);
    size_t promised = (size_t)header[2] * (size_t)format->width;
    size_t found = file->mapped.bytes - SHARD_HEADER_BYTES;
    if (found != promised)
        return FAIL(STATUS_DATA,
            "%s: header[2] (ntok) says %u tokens, which are %zu bytes after the header; found %zu "
            "bytes, %zu tokens: the file was cut short or written over, make it again",
            file->name, header[2], promised, found, found / (size_t)format->width);
    file->tokens = file->mapped.data + SHARD_HEADER_BYTES;
    file->count = header[2];
    return STATUS_OK;
}

/* The largest of count tokens from first on: one plain loop per width, which the compiler turns
 * into vectors. */
static uint32_t largest_token(const struct token_file *file, size_t first, size_t count)
{
    const uint8_t *bytes = file->tokens + first * (size_t)file->format->width;
    const uint16_t *halves = (const void *)bytes;
    const uint32_t *words = (const void *)bytes;
    uint8_t byte = 0;
    uint16_t half = 0;
    uint32_t word = 0;
    switch (file->format->width) {
    case 1:
        for (size_t i = 0; i < count; i++) byte = bytes[i] > byte ? bytes[i] : byte;
        return byte;
    case 2:
        for (size_t i = 0; i < count; i++) half = halves[i] > half ? halves[i] : half;
        return half;
    default:
        for (size_t i = 0; i < count; i++) word = words[i] > word ? words[i] : word;
        return word;
    }
}

/* Whole blocks are asked for their largest id; only a block with a bad one is searched for it. */
static enum status check_ids(const struct token_file *file, int vocab)
{
    const size_t block = 1 << 16;
    uint32_t limit = vocab > 0 ? (uint32_t)vocab : (uint32_t)INT32_MAX;
    if (file->format->width < 4 && limit >= 1u << (8 * file->format->width)) return STATUS_OK;
    for (size_t first = 0; first < file->count; first += block) {
        size_t count = file->count - first < block ? file->count - first : block;
        if (largest_token(file, first, count) < limit) continue;
        size_t bad = first;
        while (token_file_at(file, bad) < limit) bad++;
        return FAIL(STATUS_DATA,
            "%s: token %zu is id %u, expected an id below %u (the model's vocabulary): take a "
            "model with a larger one, or data made for this one",
            file->name, bad, token_file_at(file, bad), limit);
    }
    return STATUS_OK;
}

enum status token_file_open(struct token_file *file, const char *name, int vocab)
{
    *file = (struct token_file){.name = strdup(name)};
    if (file->name == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its name", name);
    TRY(mapped_file_open(&file->mapped, name,
        "tokens or text; give \"DIRECTORY/*\" to read all files of a directory"));
    if (file->mapped.bytes == 0)
        return FAIL(STATUS_DATA,
            "%s: found 0 tokens (the file is empty), expected at least 1: leave it out", name);
    TRY(find_format(file));
    if (file->format != &text_format) {
        TRY(read_header(file));
    } else {
        file->tokens = file->mapped.data;
        file->count = file->mapped.bytes;
    }
    return check_ids(file, vocab);
}

void token_file_close(struct token_file *file)
{
    mapped_file_close(&file->mapped);
    free(file->name);
    *file = (struct token_file){0};
}

bool token_file_is_text(const struct token_file *file)
{
    return file->format == &text_format;
}
