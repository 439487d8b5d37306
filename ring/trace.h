/* trace: what this rank did when: every step of every slice, and every wait, as events of a fixed buffer.
 *
 *     struct trace *trace;
 *     TRY(trace_open(&trace, 1 << 16));
 *     ring_comm_trace(comm, trace);            from the next operation on; NULL: no more
 *     TRY(ring_all_reduce(…));
 *     TRY(trace_gather(&all, trace, bootstrap));   collective: rank 0 holds everybody's, on one clock
 *
 * An operation small enough for the exchange (exchange.h) leaves an event for each part that it sends or receives and one for its
 * sum, on channel 0: its step is the hop, its chunk what the part belongs to (the sender's rank, where all of it is sent).
 * One by windows (window.h) leaves, on channel 0, a send for each record posted to a peer (with its copy into the stage, if there
 * is one), a recv for each met, and for what is done with them, a unit at a time, sums (recv_reduce_copy) and copies,
 * which name no peer; its step is 0 for inputs, 1 for results. A wait for room may be one for others to read.
 *
 * In a kernel (kernel_run.h) a step's times are the GPU's, told on this clock as kernel_trace.h says; of each channel the first
 * KERNEL_MOMENTS slices of an operation are kept, later ones are counted as dropped. Kernels of graphs are not traced.
 *
 * Without a trace a step costs one predictable branch; with one, two readings of the clock. When the buffer is
 * full, later events are counted and dropped. Operations of one communicator run one after another, so nobody
 * else writes meanwhile.
 *
 * Clocks. Ranks of one host, and of one time namespace on it, read the same clock. Any other asks rank 0 for its time several times;
 * the answer that came back fastest says how far the clocks differ, to within half of its round trip.
 *
 *   rank r   t0 ──── ask ────► rank 0: T        offset = T − (t0 + t1) / 2
 *            t1 ◄── answer ───
 */
#ifndef RING_TRACE_H
#define RING_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/plan.h"
#include "verbs/bootstrap.h"
#include "verbs/clock.h"
#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ring_comm;

enum trace_kind {
    TRACE_STEP,      /* a primitive on one slice */
    TRACE_WAIT_DATA, /* nothing to do but wait for a slice to arrive */
    TRACE_WAIT_ROOM, /* or for a slot to become free at the receiver */
    TRACE_KINDS
};

struct trace_event {
    int64_t begin_ns, end_ns; /* clock_ns() of this rank; after trace_gather() of rank 0 */
    uint64_t bytes;           /* of the slice; 0 in waits */
    uint64_t slice;           /* of the chunk */
    uint32_t sequence;        /* of the operation */
    int32_t step, chunk;
    int32_t from, to; /* ranks; -1: nobody */
    int32_t joins;    /* rank whose sum of other hosts joined (plan_step.joins); -1: nobody's */
    uint8_t kind, channel, collective, primitive;
};

struct trace; /* own; one rank's, one thread at a time */

/* Room for `events`. errors: SYSTEM. close accepts NULL. */
MUST_CHECK enum status trace_open(struct trace **trace, size_t events);
void trace_close(struct trace *trace);

/* Forgets what it holds. */
void trace_clear(struct trace *trace);
const struct trace_event *trace_events(const struct trace *trace, size_t *count, uint64_t *dropped);

/* Operations that begin from now on are traced; NULL: none. The trace must outlive them. Between operations
 * only. */
void ring_comm_trace(struct ring_comm *comm, struct trace *trace);

/* ---- the executor's side; trace may be NULL ---- */

/* Now, or 0 without a trace. */
static inline int64_t trace_now(const struct trace *trace)
{
    return trace == NULL ? 0 : clock_ns();
}

/* A channel begins to wait, or still waits. */
void trace_wait(struct trace *trace, enum trace_kind kind, int channel);

/* The channel waits no more, though no step follows. */
void trace_wait_end(struct trace *trace, int channel);

/* A step is done: ends the channel's wait, if it waited, at begin_ns, and adds the step. The event's times,
 * kind and channel are set here; the rest is the caller's. */
void trace_step(struct trace *trace, int channel, int64_t begin_ns, const struct trace_event *event);

/* An event that is complete, its times and kind too; events that nobody has kept. */
void trace_put(struct trace *trace, const struct trace_event *event);
void trace_lose(struct trace *trace, uint64_t count);

/* ---- all ranks ---- */

/* Everybody's events on rank 0, by rank. */
struct trace_all {
    int nranks;
    size_t *begins; /* [nranks + 1]: events[begins[r]] is rank r's first */
    struct trace_event *events;
    uint64_t dropped; /* by all ranks */
    int64_t first_ns;  /* the earliest begin */
    int64_t within_ns; /* to which clocks of hosts agree; 0: there is one clock */
};

/* collective. On other ranks than 0 *all is empty. errors: SYSTEM, and the bootstrap's. free accepts an empty
 * one. */
MUST_CHECK enum status trace_gather(
    struct trace_all *all, const struct trace *trace, struct bootstrap *bootstrap);
void trace_all_free(struct trace_all *all);

/* How far rank 0's clock is ahead of this one's, which is right to within so many ns: both 0 where they are one
 * clock. collective. */
MUST_CHECK enum status trace_clock_offset(int64_t *offset_ns, int64_t *within_ns, struct bootstrap *bootstrap);

#ifdef __cplusplus
}
#endif
#endif
