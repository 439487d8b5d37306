/* roll_call: how ranks that call a rooted collective make sure that all call the same, before any of them returns success.
 *
 * Data alone cannot tell: a root that sends receives nothing; ranks that name two roots may each be content with their own. So
 * every rank says what it calls (its tag, in an empty message) and listens, beside the data, in ⌈log2 n⌉ rounds:
 *
 *   round i, 5 ranks      to rank + 2^i, from rank − 2^i      a rank that has heard one of round i says the next
 *     0   0►1 1►2 2►3 3►4 4►0
 *     1   0►2 1►3 2►4 3►0 4►1
 *     2   0►4 1►0 2►1 3►2 4►3
 *
 * Invariant: whoever has heard round i knows of the 2^(i+1) − 1 ranks behind it that they have come, and that none of them had
 * heard another tag: who hears one fails, and says nothing more. So the last round speaks for all ranks.
 * Cost: no payload, ⌈log2 n⌉ messages a rank, all beside the data: it hides behind a large operation. A small one would take as
 * long as a barrier, because a root must know that the others have come at all: so only from RINGZERO_CHECK_ROOTS bytes on.
 * Small broadcasts have no rounds: their exchange goes from everyone to everyone anyway (exchange_plan.c).
 * source: the dissemination barrier of Hensgen, Finkel and Manber, 1988.
 */
#ifndef RING_ROLL_CALL_H
#define RING_ROLL_CALL_H

#include <stdbool.h>

#include "ring/operation.h"

#define ROLL_CALL_MOST_ROUNDS 20

/* Whether an operation checks its root: by collective, count and tunables, so alike on all ranks that call the same. */
bool roll_call_wanted(const struct operation *operation);

/* Rounds of so many ranks. */
int roll_call_rounds(int nranks);

/* As operation_begin() and operation_advance(): opens its edges, behind those of the data in operation->edges; *done when all have come. */
MUST_CHECK enum status roll_call_begin(struct operation *operation);
MUST_CHECK enum status roll_call_advance(struct operation *operation, bool *moved, bool *done);

/* The rank that it waits to hear, or -1: nobody any more. */
int roll_call_waits_for(const struct operation *operation);

#endif
