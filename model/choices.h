/* choices: questions with several endings of which one is right, as llm.c's evaluation files hold
 * them (HellaSwag, MMLU), and which ending a model finds likeliest.
 *
 *   256 int32   20240522 | 1 | examples | bytes of the longest example
 *   example     uint16   65535 | bytes of all of it | its number | label | endings |
 *                        count, context | count, ending | count, ending | …
 *
 * A row is a context with one of its endings; a model reads it, and only the ending's tokens are its
 * targets. Their losses together, or by the token, judge the ending:
 *
 *   context a b c, ending x y     inputs    a  b  c  x
 *                                 targets  -1 -1  x  y
 *
 * Rows are read in passes of at most B, and examples dealt out in blocks: E = max(1, B / endings)
 * examples a block, so that a block's rows, and hence its bits, depend on the file and B alone,
 * whoever computes it and beside how many others.
 */
#ifndef MODEL_CHOICES_H
#define MODEL_CHOICES_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

struct choices;

#define CHOICES_MOST_ENDINGS 64

/* Maps the file and checks all of it. vocab: ids below it; t: the longest row that will be read, in
 * tokens. All examples have the same number of endings, 2 to CHOICES_MOST_ENDINGS. errors: DATA
 * naming file, example, field, found and expected; SYSTEM. cost: reads the file once. */
MUST_CHECK enum status choices_open(struct choices **choices, const char *path, int vocab, int t);
/* NULL is accepted. */
void choices_close(struct choices *choices);

size_t choices_count(const struct choices *choices); /* examples, at least 1 */
int choices_endings(const struct choices *choices);

/* ---- reading ---- */

/* Blocks of examples for passes of B rows, and the passes of a block, the same for each. */
size_t choices_blocks(int batch, const struct choices *choices);
int choices_passes(int batch, const struct choices *choices);

struct choices_pass {
    size_t first; /* row */
    int rows;     /* at most B; 0: the last block has nothing for this pass, or there is no such block */
    int t;        /* tokens of the longest of them; of no rows 1 */
};
struct choices_pass choices_pass(
    size_t block, int pass, int batch, const struct choices *choices);

/* inputs, targets (rows, t): shorter rows are padded with inputs 0 and targets −1. Of a pass without
 * rows one token, (1, 1), without a target. */
void choices_fill(int32_t *inputs, int32_t *targets, const struct choices_pass *pass,
    const struct choices *choices);

/* ---- judging ---- */

/* How often the likeliest ending was the right one. */
struct choices_score {
    uint64_t by_mean; /* the smallest loss by the token: "acc_norm" and llm.c's */
    uint64_t by_sum;  /* the smallest loss of all its tokens: "acc" */
};

/* Adds one example. losses (endings): of each row of it, the sum over its targets, in nats. Of equals
 * the first is likelier; an ending whose loss is no number is the least likely. */
void choices_judge(struct choices_score *score, const double *losses, size_t example,
    const struct choices *choices);

/* Adds the examples of a block. losses: of its rows. */
void choices_judge_block(struct choices_score *score, const double *losses, size_t block, int batch,
    const struct choices *choices);

#endif
