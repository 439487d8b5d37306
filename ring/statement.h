/* statement: what a rank says when it has waited for a while: what it calls, and what it called before. So ranks that call different
 * things learn it from each other within a fraction of a second, also where no slice of one ever reaches the other.
 *
 * Statements travel by the bootstrap's mailboxes to the two neighbours on the ring, once per operation, only after
 * STATEMENT_AFTER_MS without movement: the fast path pays for storing one word per collective. One rank that finds a
 * difference is enough: its failure reaches all. A rank that is always the last to come never waits, and so never asks: of a
 * neighbour's statements only the newest is kept for it.
 */
#ifndef RING_STATEMENT_H
#define RING_STATEMENT_H

#include <stdint.h>

#include "ring/operation.h"

#define STATEMENT_AFTER_MS 100
#define STATEMENT_EVERY_MS 10 /* how often a waiting rank looks into its mailbox */
#define STATEMENT_TAGS     8  /* the last ones, that in hand included: comm->tags */

/* For later: what this operation is. */
void statement_remember(const struct operation *operation);

/* Says what this rank calls, and listens to what its neighbours have said. errors: DATA naming both calls; the bootstrap's. */
MUST_CHECK enum status statement_make(const struct operation *operation);
MUST_CHECK enum status statement_compare(const struct operation *operation);

#endif
