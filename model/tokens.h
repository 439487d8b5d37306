/* tokens: files of tokens, and the windows of them that each rank trains on.
 *
 * Three kinds of files. One whose name ends in .bin, or that starts with one of the two magic numbers, is a
 * shard: 256 little-endian int32 of header, then the tokens (FIELD_NOTES §6). Any other file is text.
 *
 *   text     the bytes are the tokens: id = byte, V = 256
 *   shard    [0] 20240520  [1] 1  [2] ntok   then ntok uint16    (GPT-2)
 *   shard    [0] 20240801  [1] 7  [2] ntok   then ntok uint32    (Llama 3)
 *
 * A window is T + 1 consecutive tokens of one file: inputs are its first T, targets its last T. The part of a
 * file that belongs to a split has floor((ntok − 1) / T) windows, at 0, T, 2T, … No window crosses from one
 * file into the next.
 *
 * An epoch goes through the files of the train split in an order of its own, and through the windows of each
 * in an order of its own; both are functions of (seed, epoch). A file gives floor((ntok − 1) / (B·T·N))
 * global batches, each of N·B windows of that one file, so all ranks go on to the next file together. Within
 * a file, rank r has in global batch i the windows at places (i·N + r)·B … of the file's order. So no window
 * comes twice in an epoch, and at most N·B − 1 windows of a file, other ones in every epoch, fill no whole
 * global batch and wait for the next.
 *
 *   B 2, T 8, N 4: a global batch is 64 tokens + 1
 *   file of 100 tokens   12 windows   1 batch    4 windows wait
 *   file of 129 tokens   16 windows   2 batches  none waits
 *   file of  64 tokens   refused: it needs 65
 */
#ifndef MODEL_TOKENS_H
#define MODEL_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

enum token_split { SPLIT_TRAIN, SPLIT_VALIDATION, SPLIT_COUNT };

struct tokens;

struct tokens_config {
    const char *pattern; /* file name or glob; all matches, in name order */
    /* The same for the validation split. NULL: the last tenth of the tokens of each file of `pattern` (ntok /
     * 10, rounded down), which the train split then lacks: whatever N, B and T. */
    const char *validation;
    int vocab; /* ids ≥ vocab are refused; 0: not checked (beyond that they fit an int32) */
    int batch; /* B: sequences per rank and batch */
    int t;     /* T */
    int rank, nranks;
    uint64_t seed;
};

/* Maps the files (sizes beyond 2 GiB are fine) and checks headers, sizes and every id. The strings are not
 * kept. errors: DATA naming file, field, found and expected: no match, unreadable, bad magic or version,
 * header's count against the file's size, no tokens, files of different kinds, an id ≥ vocab (with its
 * index), a train file of fewer tokens than one global batch needs, a validation split without a window. On
 * an error *tokens is NULL. cost: reads every token once. */
MUST_CHECK enum status tokens_open(struct tokens **tokens, const struct tokens_config *config);
/* NULL is accepted. */
void tokens_close(struct tokens *tokens);

/* 256 when the files are text, else 0 (a shard does not tell its vocabulary). */
int tokens_vocab(const struct tokens *tokens);
/* Tokens and windows of a split; global batches per epoch of the train split (the same for all ranks). */
size_t tokens_count(const struct tokens *tokens, enum token_split split);
size_t tokens_windows(const struct tokens *tokens, enum token_split split);
size_t tokens_batches(const struct tokens *tokens);

/* This rank's share of global batch `index` (counted from 0 over all epochs): inputs, targets (B, T). A pure
 * function of (files, seed, index, rank, nranks, batch, t), so resuming needs only the index. threads: any.
 * cost: B·T tokens and one walk over the list of files; no order is stored. */
void tokens_train_batch(int32_t *inputs, int32_t *targets, uint64_t index, const struct tokens *tokens);

/* This rank's share of validation batch `index`: windows (index·N + r)·B …, in file order. Rows past the end
 * have all targets −1 (and inputs 0), so that every window counts once whatever N and B.
 * tokens_validation_batches() of them cover the split. */
void tokens_validation_batch(int32_t *inputs, int32_t *targets, size_t index, const struct tokens *tokens);
size_t tokens_validation_batches(const struct tokens *tokens);

#endif
