/* collective_call: see collective_call.h. */
#include "bench/collective_call.h"

#include <string.h>

struct call_place call_place(
    const struct call *call, bool in_place, const struct call_buffers *buffers, const struct job *job)
{
    enum collective collective = call->collective;
    size_t part = call->count * dtype_bytes(call->dtype);
    size_t whole = part * (collective_has_parts(collective) ? (size_t)job->nranks : 1);
    bool sends_part = collective == COLLECTIVE_ALL_GATHER || collective == COLLECTIVE_GATHER;
    bool receives_part = collective == COLLECTIVE_REDUCE_SCATTER || collective == COLLECTIVE_SCATTER;
    size_t send = sends_part ? part : whole, recv = receives_part ? part : whole,
           own = part * (size_t)job->rank;
    return (struct call_place){
        .send = span_part(in_place ? buffers->b : buffers->a, in_place && send < whole ? own : 0, send),
        .recv = span_part(buffers->b, in_place && recv < whole ? own : 0, recv),
        .guard = span_part(buffers->b, in_place ? whole : recv, CALL_GUARD_BYTES),
    };
}

/* The all-reduce of the textbooks: everything to one rank, and back from there. */
static enum status run_naive(const struct call *call, const struct call_place *place, struct ring_comm *comm)
{
    TRY(ring_reduce(place->recv, place->send, call->count, call->dtype, call->redop, 0, comm, NULL));
    return ring_broadcast(place->recv, place->recv, call->count, call->dtype, 0, comm, NULL);
}

enum status call_run(const struct call *call, const struct call_place *place, const struct job *job)
{
    struct ring_comm *comm = job->comm;
    struct span recv = place->recv, send = place->send;
    size_t count = call->count;
    enum dtype dtype = call->dtype;
    int n = job->nranks, next = (job->rank + 1) % n, before = (job->rank + n - 1) % n;
    if (call->algorithm == ALGORITHM_NAIVE) return run_naive(call, place, comm);
    switch (call->collective) {
    case COLLECTIVE_ALL_REDUCE: return ring_all_reduce(recv, send, count, dtype, call->redop, comm, NULL);
    case COLLECTIVE_REDUCE_SCATTER:
        return ring_reduce_scatter(recv, send, count, dtype, call->redop, comm, NULL);
    case COLLECTIVE_ALL_GATHER: return ring_all_gather(recv, send, count, dtype, comm, NULL);
    case COLLECTIVE_BROADCAST: return ring_broadcast(recv, send, count, dtype, call->root, comm, NULL);
    case COLLECTIVE_REDUCE: return ring_reduce(recv, send, count, dtype, call->redop, call->root, comm, NULL);
    case COLLECTIVE_SCATTER: return ring_scatter(recv, send, count, dtype, call->root, comm, NULL);
    case COLLECTIVE_GATHER: return ring_gather(recv, send, count, dtype, call->root, comm, NULL);
    case COLLECTIVE_ALL_TO_ALL: return ring_all_to_all(recv, send, count, dtype, comm, NULL);
    case COLLECTIVE_SEND: return ring_send_recv(recv, count, before, send, count, next, dtype, comm, NULL);
    case COLLECTIVE_RECV:
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_COUNT: break;
    }
    return FAIL(STATUS_INVALID, "bench: collective %d is none that can be measured", (int)call->collective);
}

/* ---- bytes on the wire ---- */

static uint64_t predict(enum collective collective, int root, const struct call *call, const struct job *job)
{
    struct ring_call described = {
        .collective = collective, .dtype = call->dtype, .root = root, .count = call->count};
    if (collective_reduces(collective)) described.redop = call->redop, described.reduce_dtype = call->reduce_dtype;
    return ring_predict_sent_bytes(&described, job->nranks, job->rank, job->comm);
}

uint64_t call_predict_sent_bytes(const struct call *call, const struct job *job)
{
    if (call->algorithm == ALGORITHM_NAIVE)
        return predict(COLLECTIVE_REDUCE, 0, call, job) + predict(COLLECTIVE_BROADCAST, 0, call, job);
    int root = call->collective == COLLECTIVE_SEND ? (job->rank + 1) % job->nranks
               : call->root < 0                    ? 0
                                                   : call->root;
    return predict(call->collective, root, call, job);
}

uint64_t call_sent_bytes(enum collective collective, enum algorithm algorithm, const struct job *job)
{
    struct ring_counters counters = ring_comm_counters(job->comm);
    if (algorithm == ALGORITHM_NAIVE)
        return counters.sent_bytes[COLLECTIVE_REDUCE] + counters.sent_bytes[COLLECTIVE_BROADCAST];
    return counters.sent_bytes[collective];
}

/* ---- right or wrong ---- */

/* Only the root has something to send; only the root receives. */
static bool has_input(const struct call *call, const struct job *job)
{
    bool from_root = call->collective == COLLECTIVE_BROADCAST || call->collective == COLLECTIVE_SCATTER;
    return !from_root || job->rank == call->root;
}

static bool has_output(const struct call *call, const struct job *job)
{
    bool to_root = call->collective == COLLECTIVE_REDUCE || call->collective == COLLECTIVE_GATHER;
    return !to_root || job->rank == call->root;
}

/* Elements `first` … of what rank r put in, against the r-th part of the output. */
static uint64_t count_wrong_parts(const struct call *call, const struct call_place *place,
    const struct pattern_key *key, size_t first, struct pattern *expected)
{
    uint64_t wrong = 0;
    size_t part = call->count * dtype_bytes(call->dtype);
    for (int r = 0; r < key->nranks; r++) {
        pattern_input(expected, r, key);
        wrong += pattern_count_wrong((char *)place->recv.ptr + (size_t)r * part, first, call->count, expected);
    }
    return wrong;
}

/* Elements of the output that are not what they should be. */
static uint64_t count_wrong_output(const struct call *call, const struct call_place *place,
    const struct pattern_key *key, const struct job *job)
{
    struct pattern expected;
    size_t count = call->count, own = (size_t)job->rank * count;
    switch (call->collective) {
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER: return count_wrong_parts(call, place, key, 0, &expected);
    case COLLECTIVE_ALL_TO_ALL: return count_wrong_parts(call, place, key, own, &expected);
    case COLLECTIVE_SEND: pattern_input(&expected, (job->rank + job->nranks - 1) % job->nranks, key); break;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER: pattern_input(&expected, call->root, key); break;
    default: pattern_reduced(&expected, key);
    }
    bool is_own_part = call->collective == COLLECTIVE_REDUCE_SCATTER || call->collective == COLLECTIVE_SCATTER;
    return pattern_count_wrong(place->recv.ptr, is_own_part ? own : 0, count, &expected);
}

enum status call_check(uint64_t *wrong, const struct call *call, bool in_place, uint64_t seed,
    const struct call_buffers *buffers, struct job *job)
{
    struct call_place place = call_place(call, in_place, buffers, job);
    struct pattern_key key = {
        seed, job->nranks, call->dtype, collective_reduces(call->collective) ? call->redop : REDOP_MAX};
    size_t send_count = place.send.bytes / dtype_bytes(call->dtype);
    size_t output_bytes = (size_t)((char *)place.guard.ptr - (char *)buffers->b.ptr) + CALL_GUARD_BYTES;
    struct pattern input;

    memset(buffers->b.ptr, PATTERN_POISON, output_bytes);
    pattern_input(&input, job->rank, &key);
    if (has_input(call, job)) pattern_fill(place.send.ptr, 0, send_count, &input);
    TRY(call_run(call, &place, job));
    *wrong = has_output(call, job) ? count_wrong_output(call, &place, &key, job) : 0;
    const unsigned char *guard = place.guard.ptr;
    for (size_t i = 0; i < CALL_GUARD_BYTES; i++) *wrong += guard[i] != PATTERN_POISON;
    if (has_input(call, job) && !in_place) *wrong += pattern_count_wrong(place.send.ptr, 0, send_count, &input);
    return job_sum(wrong, job);
}
