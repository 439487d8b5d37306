/* text_ids: text to a model's ids and back, whichever kind of ids the model was trained on.
 *
 *   V = 256              the bytes are the ids
 *   more                 byte pairs, by a vocabulary file (tokenizer.h)
 */
#ifndef MODEL_TEXT_IDS_H
#define MODEL_TEXT_IDS_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

struct text_ids;

#define TEXT_IDS_BYTES   256 /* V of a model whose ids are bytes */
#define TEXT_IDS_PADDING 255 /* rows that a model may have beyond its vocabulary, at most */

/* vocabulary: a file's path; NULL: none is given, so ids are bytes. errors: INVALID where V is not
 * 256 without one, or does not fit the one that is given (as many ids, or up to TEXT_IDS_PADDING
 * fewer: models are padded); the file's. */
MUST_CHECK enum status text_ids_open(struct text_ids **ids, const char *vocabulary, int vocab);
/* NULL is accepted. */
void text_ids_close(struct text_ids *ids);

/* Ids below this have a text; those from here to V are padding. */
int text_ids_count(const struct text_ids *ids);
/* The end of text; -1: bytes have none. */
int32_t text_ids_end(const struct text_ids *ids);

/* *tokens: to be freed. An empty text, which no model can go on from, becomes what documents begin
 * with: the end of the one before, and of bytes a line break. So *count ≥ 1. errors: SYSTEM, DATA
 * as encoder_encode(). */
MUST_CHECK enum status text_ids_encode(
    int32_t **tokens, size_t *count, const char *text, size_t bytes, struct text_ids *ids);

/* The bytes of an id, not ended by 0; 0 of them: the end of text, or padding. They live as long as
 * ids. */
const char *text_ids_bytes(size_t *bytes, int32_t id, const struct text_ids *ids);

#endif
