/* weights_names: how Hugging Face names and cuts the tensors of our parameters.
 *
 *   ours         GPT-2's                        turned   Llama's
 *   wte          wte.weight                              embed_tokens.weight
 *   h.3.qkvw     h.3.attn.c_attn.weight         yes      layers.3.self_attn.{q,k,v}_proj.weight
 *   h.3.fcw      h.3.mlp.c_fc.weight            yes      layers.3.mlp.{gate,up}_proj.weight
 *
 * turned: theirs is (in, out), ours is (out, in). Where theirs are several, the rows of ours are theirs
 * one after another. In front of GPT-2's may stand "transformer.", in front of Llama's "model.".
 */
#ifndef MODEL_WEIGHTS_NAMES_H
#define MODEL_WEIGHTS_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "model/params.h"

#define WEIGHTS_NAME_BYTES 96
#define WEIGHTS_PIECES     3

struct weights_piece {
    char name[WEIGHTS_NAME_BYTES];
    size_t first_row, rows; /* of our parameter */
    bool turned;
};

/* Of a parameter of the whole model; returns their number. */
int weights_pieces(struct weights_piece piece[WEIGHTS_PIECES], const struct param *param,
    const struct model_config *config);

/* What may stand in front, and whether this program writes it. */
const char *weights_prefix(enum architecture architecture);
bool weights_writes_prefix(enum architecture architecture);

#endif
