/* tokenizer: GPT-2's byte-pair encoding: text to ids and back.
 *
 *   text       In the beginningest
 *   words      In|␣the|␣beginningest            by GPT-2's rule: see tokenizer_words.c
 *   pairs      ␣ b e g i n n i n g e s t        of neighbours that together are a token, the one of
 *              ␣ b e g i n n in g e s t         lowest rank becomes one (among equals the leftmost),
 *              …                                until none is left
 *   ids        ␣beginning|est                   the rank is the id
 *
 * Every byte is a token, so any text, or bytes that are none, has ids, and decoding gives the same
 * bytes back. A marker such as <|endoftext|> in the text is text like any other.
 *
 * cost: a word that was seen before is looked up; another one of n bytes takes n log n, so no text is
 * slow.
 */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

struct tokenizer;

/* Reads a vocabulary, of either kind:
 *
 *   vocab.bpe       "#version: 0.2", then a pair a line, as OpenAI published GPT-2's: "Ġ t"
 *   *.tiktoken      a token a line: its bytes in base64, a space, its rank, from 0 on
 *
 * The end of text is the id after the last. errors: DATA naming file, line, found and expected;
 * SYSTEM. */
MUST_CHECK enum status tokenizer_open(struct tokenizer **tokenizer, const char *path);
/* NULL is accepted. */
void tokenizer_close(struct tokenizer *tokenizer);

/* Ids are 0 … this − 1; the last is the end of text. */
int32_t tokenizer_vocab(const struct tokenizer *tokenizer);
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);

/* The bytes of an id, not ended by 0; they live as long as the tokenizer. NULL and 0 bytes: the end
 * of text, or no id. */
const char *tokenizer_bytes(size_t *bytes, int32_t id, const struct tokenizer *tokenizer);

/* What one thread encodes with: its memory of words, at most a few MiB. Any number of encoders may
 * share a tokenizer, which outlives them. errors: SYSTEM. */
struct encoder;
MUST_CHECK enum status encoder_open(struct encoder **encoder, const struct tokenizer *tokenizer);
void encoder_close(struct encoder *encoder);

/* The ids of a text. *ids belong to the encoder until its next call. errors: SYSTEM (memory), DATA (a
 * single word of 2 GiB or more). */
MUST_CHECK enum status encoder_encode(const int32_t **ids, size_t *count, const char *text,
    size_t bytes, struct encoder *encoder);

/* Bytes of the first word of a text that is not empty. */
size_t tokenizer_word(const char *text, size_t bytes);

/* The first place after `least` (and at most `bytes`) at which a text may be cut: both parts together
 * have the ids of the whole. */
size_t tokenizer_cut(const char *text, size_t bytes, size_t least);

#endif
