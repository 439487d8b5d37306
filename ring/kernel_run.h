/* kernel_run: a whole collective on CUDA memory in one kernel, one block per channel: for ranks that have a GPU each, where copies that the
 * host starts one by one would cost more than the bytes. The kernel (execute_cuda.cu) walks the order of operation.h and keeps the
 * protocol of fifo.h, so its neighbours may be kernels or hosts; every step of the plan is laid out for it by the host, from plan.c (I7):
 *
 *   host                                            kernel, block of channel c
 *   edges ready; steps, edges ──► control block     for each block of slices, step, slice:
 *   launch, mark                                      thread 0   acquire tail, head: until they are there, or abort, or the deadline
 *   until the mark has passed: counters move?         all        copy, scale or combine, 16 bytes at a time (reduce_cuda.cuh)
 *     bridges carry (kernel_bridge.h)                 thread 0   record; release tail, head
 *     abort = 1 where the job fails
 *
 * How far each edge has come is in CUDA memory, from one kernel to the next: the host need not know. So a kernel may be captured in a
 * graph and launched many times without it; its control block is its own then. One that fails says so there, and every later one of the
 * communicator ends at once. One whose neighbour reads the caller's memory (reach.h) ends when it has.
 *
 * Where somebody watches (trace.h), the kernel leaves three times of each slice in pinned memory, for kernel_trace.h.
 *
 * Invariant I5: every spin of the kernel looks at `abort`, which the host sets, and at a clock; it ends with a word of what it waited for.
 */
#ifndef RING_KERNEL_RUN_H
#define RING_KERNEL_RUN_H

#include "ring/plan.h"
#include "ring/reach.h"
#include "ring/reduce.h"
#include "verbs/fifo.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KERNEL_CHANNELS 16
#define KERNEL_EDGES 8 /* of a channel, all plans together: the ring's two; in two levels those inside the host and across, too */
#define KERNEL_MOST_STEPS 1024

/* How far the kernels have come on one edge. In CUDA memory, the kernels' alone once it is begun. */
struct kernel_counter {
    uint64_t step; /* posted, or freed */
    uint64_t seen; /* head, or tail, when last looked at */
    uint64_t lines; /* of the steps, those by lines */
};

/* One edge as the kernel finds it. */
struct kernel_edge {
    unsigned char *slots;
    struct fifo_record *records;
    uint64_t *tail, *head;
    unsigned char *flagged; /* of lines_cuda.cuh; NULL: none */
    uint64_t slot_bytes, slot_count, flagged_bytes;
    struct kernel_counter *counter;
    const struct reach_region *regions; /* of the peer's memory (reach.h), where this rank frees; NULL: none */
    uint64_t produces; /* 1: this rank posts, 0: it frees */
};

/* One step of the plan: the channel's part of its chunk. */
struct kernel_step {
    const unsigned char *own;
    unsigned char *out;
    uint64_t count;     /* elements */
    uint64_t reference; /* of the first that leaves, where the neighbour reads them in this rank's memory; 0: slots */
    int8_t primitive;
    int8_t from, joins, to;         /* of the channel's edges; −1: none */
    uint8_t wire_bytes, slot_bytes; /* of an element that arrives, that leaves */
    uint8_t zero[2];
};

struct kernel_channel {
    struct kernel_edge edges[KERNEL_EDGES];
    uint64_t tag; /* the operation's; here, since a number of 64 bits among a kernel's arguments may look like an address */
    uint64_t slices, slice_count, in_flight; /* as struct cursor's; in_flight: slices of a block at most */
    uint32_t step_count, first_step;         /* in the steps that follow the control block */
    uint32_t edge_count, zero;
};

enum kernel_end { KERNEL_OK, KERNEL_ABORTED, KERNEL_LATE, KERNEL_MISFIT };

/* What the kernel leaves, for each channel. */
struct kernel_word {
    uint32_t end; /* enum kernel_end */
    int32_t edge; /* it waited for, or that brought what did not fit */
    uint64_t tag, bytes, expected_bytes;
    uint64_t runs; /* that came to their end: of a captured kernel several */
    uint64_t began_ns, ended_ns; /* of a kernel that is watched, on the GPU's clock, */
    uint64_t moments;            /* and how many slices it had: beyond KERNEL_MOMENTS nothing was kept of them */
};

/* One slice, on the GPU's clock. */
enum kernel_waited { KERNEL_WAITED_DATA = 1, KERNEL_WAITED_ROOM = 2 };
struct kernel_moment {
    uint64_t began_ns, ready_ns, ended_ns; /* it began to look for data and room; had them; had posted and freed */
    uint32_t slice;                        /* of the chunk */
    uint16_t step, waited;                 /* waited: bits of enum kernel_waited */
};
#define KERNEL_MOMENTS 2048 /* of a channel: 64 KiB */

/* In pinned host memory: written by the host before the launch, but for abort, and by the kernel the words. */
struct kernel_control {
    uint32_t abort; /* written by the host (release), read by every spin */
    uint32_t zero;
    struct kernel_word words[KERNEL_CHANNELS];
    struct kernel_channel channels[KERNEL_CHANNELS];
    struct kernel_step steps[]; /* of all channels */
};

/* What lines need for so many bytes of partial sums of one chunk: line 0, and two lines for what is left of a unit. */
static inline size_t kernel_flagged_bytes(size_t line_bytes)
{
    return ((line_bytes / 8 + 3) * 16 + 63) / 64 * 64;
}

/* By value to the kernel. */
struct kernel_run {
    struct kernel_control *control;
    uint32_t *failed; /* in CUDA memory: some kernel of this communicator has not come to its end */
    struct reduction reduction;
    struct kernel_moment *moments; /* pinned, KERNEL_MOMENTS for each channel; NULL: nobody watches */
    uint64_t timeout_ns;
    int channels;
    bool by_lines; /* over edges that have them; every chunk is one slice then */
};

/* What PLUGIN_RING is. */
struct kernel_ops {
    /* Enqueues it. Nothing of `run` need outlive the call but the control block. errors: CUDA. */
    enum status (*launch)(const struct kernel_run *run, uint32_t most_steps, void *native, struct device *device);
};

#ifdef __cplusplus
}
#endif
#endif
