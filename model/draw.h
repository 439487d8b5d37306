/* draw: the next token from a model's logits. The same logits and state give the same token everywhere. */
#ifndef MODEL_DRAW_H
#define MODEL_DRAW_H

#include <stdint.h>

/* What is left of softmax(logits / temperature) to draw from. */
struct draw_config {
    float temperature; /* 0: the most likely token, and nothing is drawn */
    int top_k;         /* only so many of the most likely; 0: all */
    float top_p;       /* only the most likely that together have at least this probability; 1: all */
};

/* logits (vocab): are left as they were. order (vocab): room to sort, or NULL where top_k is 0 and top_p
 * 1. *state: a seed, and then what the last draw has left. Of equals the lower id counts as more likely.
 * cost: where there is something to leave out, one sort. */
int32_t draw_token(const float *logits, int32_t *order, int vocab, const struct draw_config *config,
    uint64_t *state);

#endif
