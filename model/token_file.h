/* token_file: one file of tokens, a shard or text, mapped and checked: tokens.h says what is in it. */
#ifndef MODEL_TOKEN_FILE_H
#define MODEL_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/mapped_file.h"
#include "model/tokens_format.h"
#include "verbs/status.h"

struct token_file {
    char *name;
    struct mapped_file mapped;
    const struct shard_format *format;
    const unsigned char *tokens; /* in mapped; aligned to the width */
    size_t count;
};

/* vocab, errors: as tokens_open(). token_file_close() accepts what a failed open has left. */
MUST_CHECK enum status token_file_open(struct token_file *file, const char *name, int vocab);
void token_file_close(struct token_file *file);

/* Its bytes are the tokens. */
bool token_file_is_text(const struct token_file *file);

static inline uint32_t token_file_at(const struct token_file *file, size_t index)
{
    switch (file->format->width) {
    case 1: return file->tokens[index];
    case 2: return ((const uint16_t *)(const void *)file->tokens)[index];
    default: return ((const uint32_t *)(const void *)file->tokens)[index];
    }
}

#endif
