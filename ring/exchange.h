/* exchange: runs the plan of a small operation (exchange_plan.h). Plans are kept (exchange_kept.h), so that an operation that was
 * made before only sends, receives and adds.
 *
 * Each pair of ranks that talks has an edge of its own with a few small slots and, in shared memory, lines (lines.h): flag and
 * data in one cache line.
 */
#ifndef RING_EXCHANGE_H
#define RING_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "ring/exchange_plan.h"
#include "ring/operation.h"

/* As operation_begin() and operation_advance(). */
MUST_CHECK enum status exchange_begin(struct operation *operation);
MUST_CHECK enum status exchange_advance(struct operation *operation, bool *moved, bool *done);

/* The rank that it waits for, and for what, as operation_describe_wait(). */
void exchange_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation);

/* An empty message on an edge of an exchange; false: there is no room, nothing has come yet. */
bool exchange_tell(struct edge *edge, uint64_t tag);
bool exchange_hear(uint64_t *tag, struct edge *edge);

/* ---- without an operation: for small.c. By the driver alone, as all of this ---- */

/* Begins to run it; exchange_step() then does what can be done now. *done: as operation_advance(). Errors are the edges', and
 * DATA, without a text, when what came is of another operation: exchange_advance() finds it again and says what. */
void exchange_start(struct exchange *exchange, struct exchange_plan *plan, unsigned char *recv,
    const unsigned char *send, uint64_t tag, const struct ring_comm *comm);
MUST_CHECK enum status exchange_step(struct exchange *exchange, bool *moved, bool *done);

#endif
