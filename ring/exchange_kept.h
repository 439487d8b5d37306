/* exchange_kept: the plans of small operations that a communicator keeps, their edges connected and
 * all, so that an operation that was made before only sends, receives and adds. A few, in places that
 * follow from what they are for: one that comes to a taken place takes it over.
 *
 * By the driver alone.
 */
#ifndef RING_EXCHANGE_KEPT_H
#define RING_EXCHANGE_KEPT_H

#include <stdbool.h>
#include <stddef.h>

#include "ring/exchange_plan.h"
#include "ring/operation.h"
#include "verbs/transport.h"

/* The kept plan of this kind with all its edges connected, or NULL. */
struct exchange_plan *exchange_recall(enum collective collective, const struct reduction *reduction,
    int root, size_t count, size_t stride, const struct ring_comm *comm);

/* Makes the operation's plan and opens its edges, which need not be connected yet. The plan is the
 * communicator's. errors: SYSTEM (memory), those of edges and boards. */
MUST_CHECK enum status exchange_make(
    struct exchange_plan **plan, const struct operation *operation);

/* As many bytes as the largest kept plan needs beside the caller's memory; NULL: none. There is a plan. */
unsigned char *exchange_stage(const struct ring_comm *comm);

/* Frees what a communicator keeps. */
void exchange_forget(struct ring_comm *comm);

/* Shared memory is what the edge is, known before it is connected: both sides must choose alike. */
static inline bool exchange_has_lines(const struct edge *edge)
{
    return edge->transport->peer_reads_slots;
}

/* What is posted has yet to leave this process: edge_progress() carries it. */
static inline bool exchange_is_staged(const struct edge *edge)
{
    return edge->transport->drained != NULL;
}

#endif
