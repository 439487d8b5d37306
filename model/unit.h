/* unit: a unit of parameters while the model has it: weights in the dtype that the device computes
 * in, gradients in float32.
 *
 *   lent            weights on enter          gradients on enter    gradients on leave
 *   as computed     used in place             added to in place     -
 *   another dtype   widened into own memory   own memory: zeros     lent = round(float32(lent) +
 *                                                                   own), own = zeros
 *
 * Where what is lent stands for zeros (unit_view.first), float32 is cleared on enter, and others are
 * not read on leave.
 *
 * A unit of several layers may be entered by parts, ranges of its elements that are used one after
 * another. Each part then lies at the beginning of own memory, and is converted when its turn comes:
 *
 *   enter     unit_widen(a)  a's layers     unit_widen(b)  b's layers     …     leave
 *   backward  unit_widen(b)  b's layers  unit_round(b)     unit_widen(a)  …  unit_round(a)
 *
 * so that what a layer reads of own memory, and what is read to be rounded, is still in a cache.
 *
 * Invariant I6: own memory is that of one unit, the largest, whatever the depth; so one unit is
 * entered at a time.
 */
#ifndef MODEL_UNIT_H
#define MODEL_UNIT_H

#include <stdbool.h>
#include <stddef.h>

#include "model/hooks.h"
#include "model/ops.h"

/* Where units come from, and the memory to hold one as it is computed with. */
struct unit_room {
    const struct model_hooks *hooks;
    const struct ops_context *context;
    enum dtype weights_dtype, gradients_dtype; /* lent: float32, bfloat16 or float16 */
    void *weights;    /* the largest unit, of context->compute; NULL where that is what is lent */
    float *gradients; /* the largest unit, zeros but between enter and leave; NULL where float32 is
                       * lent. After a failure they may not be zeros: no pass may follow it */
};

/* The use of a table of which tokens name the rows. */
struct unit_lookup {
    const int32_t *tokens; /* [token_count], stays until unit_leave() */
    size_t token_count;
    size_t first_row, rows, cols; /* the unit has the rows of ids first_row … first_row + rows − 1 */
};

struct unit {
    int number;
    enum unit_use use;
    size_t elements;
    void *weights;    /* of context->compute; NULL for UNIT_BACKWARD_GRAD */
    float *gradients; /* add to them; NULL for UNIT_FORWARD */
    struct span lent_gradients;
    bool first; /* unit_view.first */
    struct unit_lookup lookup; /* tokens NULL: all is used */
    const void *lent_weights;
    bool weights_by_parts, gradients_by_parts; /* own memory has the part whose turn it is */
};

/* Calls hooks->enter(). elements: what the model takes the unit's size to be; an assert on the
 * hand-over. errors: those of the hook. */
MUST_CHECK enum status unit_enter(struct unit *unit, int number, enum unit_use use, size_t elements,
    const struct unit_room *room);

/* The same by parts, where operations run in the caller's thread and what is lent is not what is
 * computed with: weights are anything until unit_widen(), and unit_leave() rounds nothing. */
MUST_CHECK enum status unit_enter_parts(struct unit *unit, int number, enum unit_use use,
    size_t elements, const struct unit_room *room);

/* The turn of elements [begin, begin + count). Between two calls of unit_widen() only its part is
 * read; a part's gradients are complete when it is rounded, once, and no other part's have been
 * added to before that. Nothing happens where the unit was not entered by parts. */
void unit_widen(size_t begin, size_t count, struct unit *unit, const struct unit_room *room);
void unit_round(size_t begin, size_t count, struct unit *unit, const struct unit_room *room);

/* The same as unit_enter() of rows · cols elements, of which only rows that tokens name are read and added to. Where
 * operations run in the caller's thread, and tokens are fewer than rows, only those are converted
 * between dtypes; the weights of others are then anything. */
MUST_CHECK enum status unit_enter_lookup(struct unit *unit, int number, enum unit_use use,
    const struct unit_lookup *lookup, const struct unit_room *room);

/* Rounds gradients into what was lent if that is not float32, then calls grad_ready() and leave().
 * The unit's pointers are NULL afterwards. errors: those of the hooks. */
MUST_CHECK enum status unit_leave(struct unit *unit, const struct unit_room *room);

#endif
