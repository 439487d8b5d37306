/* flight: slices in the hands of a device. On the host a step of the plan is done when it has run; on a CUDA device it is enqueued, and
 * done when a mark behind it has passed. Then, and in this order, its slots are freed and posted:
 *
 *   cursor        flight_begin()  copies and a kernel ──► the communicator's native stream ──► mark
 *   wait loop     flights_land()  the oldest mark has passed: fifo_free(), fifo_post(), the flight is free again
 *
 * Everything of a communicator is in one native stream, so later steps see what earlier ones have written. No kernel waits for
 * another rank: ranks that share a GPU cannot block one another, and the deadlines of the wait loop hold (I5).
 *
 * Slots in CUDA memory are read and written where they are. Others are the CPU's: what is only moved is copied there and back; what a
 * kernel needs goes by a stage in device memory.
 *
 * Invariant I6: FLIGHTS slices at most, with a stage of three slots each.
 */
#ifndef RING_FLIGHT_H
#define RING_FLIGHT_H

#include "ring/operation.h"
#include "ring/reduce.h"
#include "ring/trace.h"

#define FLIGHTS 16

/* One slice: its operands, and their bytes in the caller's memory and on the wire. */
struct slice {
    struct reduce_slice at;
    size_t bytes, received_bytes, sent_bytes;
};

/* What is left to do when a step has run. */
struct step_end {
    struct edge *consumer, *joined, *producer; /* NULL: not of this step */
    size_t received_bytes, sent_bytes;
    uint64_t address;   /* that is posted, */
    uint64_t reference; /* or of reach.h */
    bool streaming;
    bool borrows;       /* what arrived is in memory of the peer (reach.h), which may have taken it back */
    bool leaves_host;
    int64_t begin_ns;   /* of the event, where there is a trace */
    struct trace_event event;
};

struct flight {
    struct flight *next; /* of the operation, younger; or free */
    void *mark;
    struct span stage;   /* for what arrived, what joins it and what leaves; ptr NULL until it is needed */
    struct operation *operation;
    int channel;
    struct step_end end;
};

/* What is enqueued from now on comes after all that the stream has been given: for the stream's own worker, in a call of it. */
MUST_CHECK enum status flights_follow(struct ring_comm *comm, struct stream *stream);

/* Once per communicator, before its first flight. close: nothing is in flight. NULL is accepted. */
MUST_CHECK enum status flights_open(struct ring_comm *comm);
void flights_close(struct ring_comm *comm);

/* The stream that everything is on; and whether another slice can begin now. */
void *flights_native(const struct ring_comm *comm);
bool flight_is_free(const struct ring_comm *comm);

/* Enqueues what the step does with its slice. Needs flight_is_free(). errors: CUDA. */
MUST_CHECK enum status flight_begin(struct operation *operation, int channel, enum primitive primitive, const struct slice *slice,
    const struct step_end *end);

/* Ends the steps that are done, oldest first. errors: CUDA, of a kernel or copy. */
MUST_CHECK enum status flights_land(struct operation *operation, bool *moved);

/* Waits until the device has let go of an operation that did not end well; bounded by the communicator's deadline. */
void flights_abandon(struct operation *operation);

/* Which elements of the caller's memory a step works on at a place: execute_host.c's. A buffer that holds this rank's chunk alone
 * begins with that chunk; chunks of others are not in it at all. */
void slice_operands(struct slice *slice, const struct plan_step *step, const struct place *place, const struct cursor *cursor);

/* A reference (reach.h) to what a step sends, where the neighbour reads it; 0: it goes into a slot: execute_host.c's. */
uint64_t step_reference(const struct slice *slice, const struct plan_step *step, const struct edge *producer, const struct cursor *cursor);

/* What is done with a slice of so many bytes, for whoever watches; without times: execute_host.c's. */
struct trace_event step_event(
    size_t bytes, const struct plan_step *step, const struct place *at, const struct cursor *cursor);

/* Whether what a step borrowed was still the peer's to lend when it had been read; PEER: not: execute_host.c's. */
MUST_CHECK enum status step_check_lent(const struct step_end *end, const struct operation *operation);

/* Frees and posts: execute_host.c's. */
void step_finish(struct operation *operation, int channel, const struct step_end *end);

#endif
