/* kernel_host: the host's part of kernel_run.h: decides, lays the plan out, launches, watches, and tells the kernel to end.
 */
#ifndef RING_KERNEL_HOST_H
#define RING_KERNEL_HOST_H

#include "ring/operation.h"
#include "ring/ring.h"

/* Whether an operation on CUDA memory runs in a kernel: by what all ranks know alike. */
bool kernel_is_wanted(const struct operation *operation);

/* Whether it goes by lines (lines_cuda.cuh) where its edges have them, when the largest part of a chunk that a channel carries has so
 * many bytes: likewise. */
#define KERNEL_NO_LINES SIZE_MAX
bool kernel_takes_lines(size_t largest_bytes, const struct operation *operation);

/* Before the communicator's first edges for CUDA memory, if it wants kernels. errors: CUDA, SYSTEM. */
MUST_CHECK enum status kernel_prepare(struct ring_comm *comm);

/* As operation_advance(), for an operation whose cursors and edges are made; edge_progress() is the caller's. */
MUST_CHECK enum status kernel_advance(struct operation *operation, bool *moved, bool *done);

/* Whether a kernel runs that needs this thread to carry what it sends and receives. */
bool kernel_has_proxy(const struct operation *operation);

/* Ends what runs still, and waits for it; bounded by the communicator's deadline. */
void kernel_abandon(struct operation *operation);

void kernel_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation);

/* ---- in graphs: operation->captured ----
 *
 * Ranks capture alike; each launch of the graph is then one run of the kernel, on what memory holds, without the host. */

/* INVALID where an operation that is to be captured needs the host. */
MUST_CHECK enum status kernel_check_capture(const struct operation *operation);

/* Adds what the runs so far have sent. */
void kernel_count_replays(struct ring_counters *counters, struct ring_comm *comm);

/* TIMEOUT, ABORTED or DATA when a run has failed; ends those that wait. threads: any. */
MUST_CHECK enum status kernel_check_replays(struct ring_comm *comm);
void kernel_end_replays(struct ring_comm *comm);

/* Frees what a communicator keeps for its kernels; no graph that has them is launched any more. */
void kernel_forget(struct ring_comm *comm);

#endif
