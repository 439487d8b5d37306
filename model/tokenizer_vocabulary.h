/* tokenizer_vocabulary: the tokens of a tokenizer, found by their bytes. */
#ifndef MODEL_TOKENIZER_VOCABULARY_H
#define MODEL_TOKENIZER_VOCABULARY_H

#include <string.h>

#include "model/tokenizer.h"

#define NO_TOKEN UINT32_MAX

struct token {
    size_t at; /* in text */
    size_t bytes;
};

struct tokenizer {
    uint32_t count; /* of tokens that have bytes */
    struct token *token;
    char *text;
    size_t text_bytes;
    size_t longest; /* bytes of the longest token */
    uint32_t *slots; /* id + 1 by hash, then the next free one; 0: free */
    size_t slot_mask;
};

/* Spreads well over its upper bits; short ones are the many. */
static inline uint64_t hash_bytes(const char *bytes, size_t count)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t hash = count * odd, word;
    for (; count >= sizeof word; count -= sizeof word, bytes += sizeof word) {
        memcpy(&word, bytes, sizeof word);
        hash = (hash ^ word) * odd;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, bytes, count);
    hash = (hash ^ word) * odd;
    return hash ^ hash >> 32;
}

/* NO_TOKEN: these bytes are none. */
uint32_t tokenizer_find(const char *bytes, size_t count, const struct tokenizer *tokenizer);

#endif
