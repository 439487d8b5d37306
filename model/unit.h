/* unit: a unit of parameters while the model has it, as the float32 that everything computes with.
 *
 *   lent       weights on enter           gradients on enter    gradients on leave
 *   float32    used in place              added to in place     -
 *   16 bits    widened into own memory    own memory, zeroed    lent = round(float32(lent) + own)
 *
 * Invariant I6: own memory is that of one unit, the largest, whatever the depth; so one unit is
 * entered at a time.
 */
#ifndef MODEL_UNIT_H
#define MODEL_UNIT_H

#include <stddef.h>

#include "model/hooks.h"
#include "verbs/dtype.h"

/* Where units come from, and the memory to hold one as float32. */
struct unit_room {
    const struct model_hooks *hooks;
    enum dtype weights_dtype, gradients_dtype; /* lent: float32, bfloat16 or float16 */
    float *weights,
        *gradients; /* elements of the largest unit; not looked at where float32 is lent */
};

struct unit {
    int number;
    enum unit_use use;
    size_t elements;
    float *weights;   /* NULL for UNIT_BACKWARD_GRAD */
    float *gradients; /* add to them; NULL for UNIT_FORWARD */
    struct span lent_gradients;
};

/* Calls hooks->enter(). elements: what the model takes the unit's size to be; an assert on the
 * hand-over. errors: those of the hook. */
MUST_CHECK enum status unit_enter(struct unit *unit, int number, enum unit_use use, size_t elements,
    const struct unit_room *room);

/* Rounds gradients into what was lent where that has 16 bits, then calls grad_ready() and leave().
 * The unit's pointers are NULL afterwards. errors: those of the hooks. */
MUST_CHECK enum status unit_leave(struct unit *unit, const struct unit_room *room);

#endif
