/* kernel_bridge: between a kernel and an edge whose counters only the CPU keeps: to another host, or over a transport that knows no
 * kernels. The kernel has a FIFO in pinned memory, which looks like any other edge to it; while it runs, the thread that drives its
 * operation is the proxy, and carries steps between that FIFO and the edge:
 *
 *                       the bridge's FIFO                              the edge
 *   kernel ─ tail ──►  records, tail, head   ── bridge_progress() ──►  records, tail, head ── edge_progress() ──► peer
 *          ◄─ head ─   slots: the edge's own, where copies and kernels reach them (pinned, or CUDA memory that the NIC reaches:
 *                      GPUDirect); else the bridge's, and the proxy copies
 *
 * A step is given back to the kernel when the edge has let go of it, and to the edge when the kernel has: both FIFOs have the same
 * steps and slots, so step s is in slot s mod S of both.
 *
 * Invariant I6: one FIFO for each such edge, made when it is first used by a kernel.
 */
#ifndef RING_KERNEL_BRIDGE_H
#define RING_KERNEL_BRIDGE_H

#include "verbs/transport.h"

struct kernel_bridge {
    struct edge *edge;
    struct fifo fifo;      /* the proxy's view: of a producer's edge it consumes, of a consumer's it produces */
    struct span memory;    /* pinned: counters, records, and, if it copies, slots */
    uint64_t in_hand;      /* steps passed on and not given back yet */
    bool copies;
};

/* Needs a ready edge, between two steps. errors: CUDA, SYSTEM. close accepts NULL; no kernel uses it any more. */
MUST_CHECK enum status bridge_open(struct kernel_bridge **bridge, struct edge *edge);
void bridge_close(struct kernel_bridge *bridge);

/* Carries what can be carried now; edge_progress() is the caller's. errors: DATA when the peer broke the protocol. */
MUST_CHECK enum status bridge_progress(struct kernel_bridge *bridge, bool *moved);

/* Everything that the kernel has posted and freed so far is the edge's. */
bool bridge_drained(struct kernel_bridge *bridge);

#endif
