/* tokens_format: token shards as llm.c writes them: what tokens.h describes, shared by reader and writer. */
#ifndef MODEL_TOKENS_FORMAT_H
#define MODEL_TOKENS_FORMAT_H

#include <stdint.h>

#define SHARD_HEADER_WORDS 256
#define SHARD_HEADER_BYTES (SHARD_HEADER_WORDS * 4)

struct shard_format {
    uint32_t magic, version;
    int width; /* bytes of a token */
    const char *name;
};

/* By width. */
static const struct shard_format shard_formats[] = {
    {20240520, 1, 2, "GPT-2 (uint16)"},
    {20240801, 7, 4, "Llama 3 (uint32)"},
};

#endif
