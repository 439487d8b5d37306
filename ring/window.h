/* window: how operations of any size run among ranks of one host: each opens a window on its data, and whoever needs them reads them,
 * once, from where they are.
 *
 *   broadcast        root: here is my buffer            the others read it
 *   all_gather       each: here is my chunk             the others read it
 *   reduce_scatter   each: here is my input             rank c reads chunk c of all, and adds
 *   all_reduce       the one, then the other: here is my chunk, complete
 *
 * Every rank sends and receives the bytes of the ring, but nothing is passed on from rank to rank: two meetings instead of n−1 or
 * 2(n−1) steps, so with more ranks than cores far fewer switches, and no slot is written for what is only passed on.
 *
 * Where the data are, the record of a FIFO says (region.h): in the user's buffer, if it is from ring_alloc(); else in the
 * stage, into which they are copied first, a piece at a time, for all readers at once; or, in an all_gather of two ranks, bare in
 * the user's buffer, for the kernel to copy, unless it is pinned. Each rank decides that for itself.
 *
 * Invariants I1 and I2: whoever adds a chunk adds the ranks' parts in the order in which the ring would, position c+1 first,
 * position c last, with the ring's own functions, as an exchange does: so the bits are those of the ring.
 *
 * The rule that decides is static, window_fits(): a rank's largest chunk has at least window_bytes, and
 *
 *                    nothing from ring_alloc() so far      ring_alloc() has been called
 *   broadcast               more than two ranks            always
 *   all_gather              more than two ranks; or two    always
 *                           that may copy from one another,
 *                           and chunks of at most 8 MiB
 *   reduce_scatter          never                          always
 *   all_reduce              more than two ranks            more than two ranks, or chunks of 16·window_bytes
 *                           and chunks of 16·window_bytes
 *
 * What is not there is faster on the ring: staged data are copied twice, which pays where many read them, or few switches count.
 * The edges are those of exchanges (comm_exchange_channel()).
 */
#ifndef RING_WINDOW_H
#define RING_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/operation.h"

#define WINDOW_NONE SIZE_MAX /* ring_config.window_bytes: no windows */

/* Whether an operation that is no exchange runs by windows: by what all ranks know alike. */
bool window_fits(const struct operation *operation);

/* As operation_begin() and operation_advance(). */
MUST_CHECK enum status window_begin(struct operation *operation);
MUST_CHECK enum status window_advance(struct operation *operation, bool *moved, bool *done);

/* Before the caller gets its buffers back: of an operation that did not end well, tells those who may still read them. */
void window_end(struct operation *operation);

/* Bytes that operation->comm->rank sends for it. The buffers are not looked at. */
uint64_t window_sent_bytes(const struct operation *operation);

/* The rank that it waits for, and for what, as operation_describe_wait(). */
void window_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation);

#endif
