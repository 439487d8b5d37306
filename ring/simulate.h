/* simulate: a plan run in virtual time, on links of given latency and bandwidth. A pure function; no rank is
 * started.
 *
 * Every position runs its plan as the executors do (operation.h): blocks of W slices, each step over the block,
 * 2W slots on an edge. A slice that is sent at time t keeps the sender's port busy for bytes/β, and is there at
 * t + α + bytes/β; computing costs nothing. A slot that the receiver has emptied is the sender's again α later.
 *
 *   sender    |--bytes/β--|                      now = max(own order, slice is there, a slot is free)
 *   receiver         α    |--bytes/β--|          port = busy until the slice before has passed
 *
 * In two levels (plan_two_level.c) all positions of a node send to other nodes, but of a reduce, and share the node's link: each has
 * its part of β. What stays in the node passes by another port.
 *
 * Invariant: a position acts only on what has reached it, in its own order. So times do not depend on the order
 * in which positions are visited, and no queue of events is needed: it is a network of FIFOs (Kahn, 1974).
 *
 * Where all positions of a ring behave alike (same plan seen from each, same links every `period` positions),
 * one period is run, and its last link leads back to its first position: 65,536 ranks cost what one costs.
 */
#ifndef RING_SIMULATE_H
#define RING_SIMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/plan.h"
#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* α and β. */
struct simulate_link {
    double latency_ns;
    double bytes_per_ns; /* = 1e9 bytes per second; above 0 */
};

/* What is run: a plan, or the all-reduce of the textbooks, Reduce to rank 0 and Broadcast from there, whole
 * buffers at a time. */
enum simulate_algorithm {
    SIMULATE_RING, /* the plan of the collective */
    SIMULATE_TREE, /* all-reduce: a binomial tree there and back, 2⌈log2 n⌉(α + S/β) */
    SIMULATE_STAR, /* all-reduce: everyone with rank 0, 2α + 2(n−1)S/β */
};

struct simulate_config {
    enum simulate_algorithm algorithm;
    enum collective collective; /* all_reduce unless SIMULATE_RING */
    int nranks;
    int root;     /* of collectives that have one */
    size_t count; /* elements of the whole buffer, which plan.chunks divide */
    size_t element_bytes;
    struct simulate_link link;      /* between ranks of different nodes */
    struct simulate_link node_link; /* between ranks of one node */
    bool two_level;                 /* the plan of two levels, for nodes that are all full; node_ranks divides nranks */
    int node_ranks;                 /* consecutive ranks that share a node; 0 or 1: every rank is a node */
    size_t slot_bytes;              /* as struct ring_config; 0: 256 KiB */
    uint64_t slot_count;            /* a power of two ≥ 2; 0: 8 */
    bool
        every_position; /* run them all, also where one period would do: slow; chunks then have their own sizes */
};

struct simulate_result {
    double time_ns;     /* when the last position is done */
    uint64_t items;     /* (position, step, slice) that were run */
    int positions;      /* that were run: nranks, or one period */
    size_t slice_bytes; /* of a full slice */
    size_t slices;      /* of a chunk */
};

/* errors: INVALID when it would take more than 4e9 items (minutes), or a value is out of range; DATA when the
 * plan stands still;
 * SYSTEM for want of memory. cost: 10–30 ns an item; nranks · (slot_count · 16 + 200) bytes at most for a ring.
 * */
MUST_CHECK enum status simulate_run(struct simulate_result *result, const struct simulate_config *config);

/* Whether every position's plan, seen from that position, looks the same: judged at a few of them. */
bool simulate_is_symmetric(enum collective collective, int nranks);

#ifdef __cplusplus
}
#endif
#endif
