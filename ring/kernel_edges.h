/* kernel_edges: a communicator's edges as its kernels find them: each has a place in its channel's table, and how far it has come
 * stays in CUDA memory from one kernel to the next.
 */
#ifndef RING_KERNEL_EDGES_H
#define RING_KERNEL_EDGES_H

#include "ring/kernel_bridge.h"
#include "ring/kernel_run.h"
#include "ring/operation.h"

struct kernel_link {
    struct edge *edge;            /* NULL: no edge has this place yet */
    struct kernel_bridge *bridge; /* NULL: the kernel and its peer reach the edge's own counters */
    struct fifo fifo;             /* whose counters the kernel moves: the edge's, or the bridge's */
};

struct kernel_edges {
    struct device *device;
    struct span counters; /* CUDA memory: struct kernel_counter [RING_MAX_CHANNELS][KERNEL_EDGES], and kernel_run.failed */
    struct kernel_link links[RING_MAX_CHANNELS][KERNEL_EDGES];
};

/* errors: CUDA, SYSTEM. close: no kernel runs; accepts a zeroed one. */
MUST_CHECK enum status kernel_edges_open(struct kernel_edges *edges, struct device *device);
void kernel_edges_close(struct kernel_edges *edges);

/* Gives a ready edge its place, unless it has one. errors: CUDA, SYSTEM. */
MUST_CHECK enum status kernel_edges_add(struct kernel_edges *edges, int channel, struct edge *edge);

/* kernel_run.failed */
uint32_t *kernel_edges_failed(const struct kernel_edges *edges);

/* −1: it has none. */
int kernel_edges_find(const struct kernel_edges *edges, int channel, const struct edge *edge);

/* Fills the channel's table; returns how many places it has. */
uint32_t kernel_edges_describe(struct kernel_edge *table, const struct kernel_edges *edges, int channel);

/* An edge of the first `channels` that has a bridge, or NULL; carries what bridges can carry now; whether they are done. */
const struct edge *kernel_edges_bridged(const struct kernel_edges *edges, int channels);
MUST_CHECK enum status kernel_edges_progress(struct kernel_edges *edges, int channels, bool *moved);
bool kernel_edges_drained(struct kernel_edges *edges, int channels);

#endif
