/* collective_call: what `ringzero bench` measures: one operation, or several alike issued as one group: where its
 * buffers lie, how it is called, and whether what it gave is right.
 *
 *   a  |<- operation 0 ->|guard| |<- operation 1 ->|guard| …      a place each, stride_bytes apart; b likewise
 */
#ifndef BENCH_COLLECTIVE_CALL_H
#define BENCH_COLLECTIVE_CALL_H

#include "bench/collective_options.h"
#include "bench/job.h"
#include "bench/pattern.h"
#include "verbs/device.h"

#define CALL_GUARD_BYTES 64 /* behind every output: must stay poisoned */

struct call {
    enum collective collective; /* SEND: every rank sends to the next and receives from the one before */
    enum algorithm algorithm;
    size_t count; /* as in the call */
    enum dtype dtype;
    enum redop redop;
    enum reduce_dtype reduce_dtype; /* the communicator's setting */
    int root; /* -1: none */
    int group;           /* operations that are issued as one; 1: an operation alone, without a group */
    size_t stride_bytes; /* between the places of one and the next in both buffers */
};

/* The largest array and its guard, for every operation of a group: a is what operations read out of place, b what they write. */
struct call_buffers {
    struct span a, b;
    struct span host_a, host_b; /* of the same size, where inputs are made and outputs checked: a and b, where those are on the host */
};

struct call_place {
    struct span send, recv;
    struct span guard; /* what lies behind recv, or behind the array that recv is in */
};

/* Where the k-th operation of the group has its buffers: out of place in a and b, in place in b alone. */
struct call_place call_place(
    const struct call *call, int k, bool in_place, const struct call_buffers *buffers, const struct job *job);

/* place: of the first. */
MUST_CHECK enum status call_run(const struct call *call, const struct call_place *place, const struct job *job);

/* Bytes that this rank is to send for one run; and what it has sent for all so far, by the communicator's counters. */
struct call_bytes {
    uint64_t sent, border; /* border: of them, to other hosts */
};
struct call_bytes call_predict_bytes(const struct call *call, const struct job *job);
struct call_bytes call_sent_bytes(enum collective collective, enum algorithm algorithm, const struct job *job);

/* Runs it once on known inputs and poisoned outputs; *wrong is how many elements are not as they should be,
 * over all ranks, guards and inputs that should have stayed included. collective. */
MUST_CHECK enum status call_check(uint64_t *wrong, const struct call *call, bool in_place, uint64_t seed,
    const struct call_buffers *buffers, struct job *job);

#endif
