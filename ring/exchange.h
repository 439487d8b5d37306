/* exchange: how small operations run: everyone to everyone, in one hop or two instead of the ring's n−1 or 2(n−1).
 *
 *   all_gather, broadcast   one hop: each owner sends its chunk (the root the buffer) to all; in a broadcast the others send
 *                           nothing, but that: so all know that all call the same (roll_call.h)
 *   reduce_scatter          one hop: chunk c of everyone goes to rank c, which adds them
 *   all_reduce, barrier     a few bytes: one hop, everyone sends all of it to all, and everyone adds everything;
 *                           more: two hops, a reduce_scatter and an all_gather, the bytes of the ring
 *
 * Invariants I1 and I2: whoever adds a chunk adds the ranks' parts in the order in which the ring would, position c+1 first,
 * position c last, with the ring's own functions: so the bits are the same on both sides of the threshold. Own inputs travel, not
 * partial sums: sums in float32 of 16-bit elements cost no byte more here.
 *
 * The rule that decides is static: exchange_fits(). Each pair of ranks has an edge of its own with a few small slots and, in
 * shared memory, lines (lines.h): flag and data in one cache line.
 */
#ifndef RING_EXCHANGE_H
#define RING_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "ring/operation.h"

#define EXCHANGE_MOST_RANKS 16  /* n(n−1) edges: beyond, the ring */
#define EXCHANGE_SLOTS      8
_Static_assert(2 * (EXCHANGE_MOST_RANKS - 1) <= 2 * RING_MAX_CHANNELS, "its edges fit an operation's room");
#define EXCHANGE_LINE_BYTES ((size_t)1088) /* an entry: header and 1 KiB of data, in whole cache lines */

/* Whether an operation is an exchange: by collective, redop, count and nranks alone, so alike on all ranks. */
bool exchange_fits(const struct operation *operation);

/* As operation_begin() and operation_advance(). */
MUST_CHECK enum status exchange_begin(struct operation *operation);
MUST_CHECK enum status exchange_advance(struct operation *operation, bool *moved, bool *done);

/* An empty message on an edge of the exchange's; false: there is no room, nothing has come yet. */
bool exchange_tell(struct edge *edge, uint64_t tag);
bool exchange_hear(uint64_t *tag, struct edge *edge);

/* Bytes that operation->comm->rank sends for it. The buffers are not looked at. */
uint64_t exchange_sent_bytes(const struct operation *operation);

/* The rank that it waits for, and for what, as operation_describe_wait(). */
void exchange_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation);

#endif
