/* kernel_trace: what a kernel did when, as events of trace.h. Of each slice it leaves three times and where it was in its order
 * (kernel_run.h); what was done there, with whom and with how many bytes, the plan says here.
 *
 * A GPU's clock counts nanoseconds too, but from when and how exactly nobody says, so each operation asks anew. The kernel ran
 * between two times of the host:
 *
 *   host    launched ──────────────────────── passed        launched − began ≤ offset ≤ passed − ended
 *   GPU                began ──────── ended
 *
 * 0 where it is one clock as far as that can tell, else the middle: right to half of what the launch and the look at its end took,
 * and no event lies outside of its operation.
 *
 * Invariant I6: one buffer, made with the communicator's kernels.
 */
#ifndef RING_KERNEL_TRACE_H
#define RING_KERNEL_TRACE_H

#include "ring/kernel_run.h"
#include "ring/operation.h"

struct kernel_trace {
    struct span moments; /* pinned: struct kernel_moment [channels][KERNEL_MOMENTS] */
    int64_t launched_ns;
};

/* errors: CUDA, SYSTEM. close accepts a zeroed one. */
MUST_CHECK enum status kernel_trace_open(struct kernel_trace *trace, int channels, struct device *device);
void kernel_trace_close(struct kernel_trace *trace, struct device *device);

/* Before the launch: kernel_run.moments. */
struct kernel_moment *kernel_trace_begin(struct kernel_trace *trace, const struct operation *operation);

/* The kernel has come to its end, and is known to have since just now. */
void kernel_trace_end(const struct kernel_trace *trace, const struct kernel_control *control, const struct operation *operation);

#endif
