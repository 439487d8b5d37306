/* text_ids: see text_ids.h. */
#include "model/text_ids.h"

#include <stdbool.h>
#include <stdlib.h>

#include "model/tokenizer.h"

struct text_ids {
    struct tokenizer *tokenizer; /* NULL: ids are bytes, */
    struct encoder *encoder;
    char byte[TEXT_IDS_BYTES]; /* which are all here */
};

static enum status open_vocabulary(struct text_ids *ids, const char *path, int vocab)
{
    TRY(tokenizer_open(&ids->tokenizer, path));
    int count = tokenizer_vocab(ids->tokenizer);
    if (count > vocab || count < vocab - TEXT_IDS_PADDING)
        return FAIL(STATUS_INVALID,
            "%s: has %d tokens with the end of text, the model %d: expected the "
            "vocabulary that the model was trained with",
            path, count, vocab);
    return encoder_open(&ids->encoder, ids->tokenizer);
}

enum status text_ids_open(struct text_ids **out, const char *vocabulary, int vocab)
{
    *out = NULL;
    if (vocabulary == NULL && vocab != TEXT_IDS_BYTES)
        return FAIL(STATUS_INVALID,
            "the model has %d tokens and no vocabulary is given, expected %d, which "
            "are bytes: name its vocab.bpe or .tiktoken file",
            vocab, TEXT_IDS_BYTES);
    struct text_ids *ids = calloc(1, sizeof *ids);
    if (ids == NULL) return FAIL(STATUS_SYSTEM, "no memory for a vocabulary");
    for (int i = 0; i < TEXT_IDS_BYTES; i++) ids->byte[i] = (char)i;
    enum status status = STATUS_OK;
    if (vocabulary != NULL) status = open_vocabulary(ids, vocabulary, vocab);
    if (status == STATUS_OK) *out = ids;
    else text_ids_close(ids);
    return status;
}

void text_ids_close(struct text_ids *ids)
{
    if (ids == NULL) return;
    encoder_close(ids->encoder);
    tokenizer_close(ids->tokenizer);
    free(ids);
}

int text_ids_count(const struct text_ids *ids)
{
    return ids->tokenizer == NULL ? TEXT_IDS_BYTES : tokenizer_vocab(ids->tokenizer);
}

int32_t text_ids_end(const struct text_ids *ids)
{
    return ids->tokenizer == NULL ? -1 : tokenizer_end_of_text(ids->tokenizer);
}

enum status text_ids_encode(
    int32_t **tokens, size_t *count, const char *text, size_t bytes, struct text_ids *ids)
{
    const int32_t first = ids->tokenizer == NULL ? '\n' : tokenizer_end_of_text(ids->tokenizer);
    const int32_t *encoded = &first;
    *count = bytes;
    if (bytes > 0 && ids->tokenizer != NULL)
        TRY(encoder_encode(&encoded, count, text, bytes, ids->encoder));
    if (bytes == 0) *count = 1;
    *tokens = malloc(*count * sizeof **tokens);
    if (*tokens == NULL) return FAIL(STATUS_SYSTEM, "no memory for a text of %zu tokens", *count);
    bool bytes_are_ids = bytes > 0 && ids->tokenizer == NULL;
    for (size_t i = 0; i < *count; i++)
        (*tokens)[i] = bytes_are_ids ? (unsigned char)text[i] : encoded[i];
    return STATUS_OK;
}

const char *text_ids_bytes(size_t *bytes, int32_t id, const struct text_ids *ids)
{
    if (ids->tokenizer != NULL) return tokenizer_bytes(bytes, id, ids->tokenizer);
    *bytes = id >= 0 && id < TEXT_IDS_BYTES ? 1 : 0;
    return *bytes == 0 ? NULL : &ids->byte[id];
}
