/* collective_call: see collective_call.h. */
#include "bench/collective_call.h"

#include <string.h>

struct call_place call_place(
    const struct call *call, int k, bool in_place, const struct call_buffers *buffers, const struct job *job)
{
    enum collective collective = call->collective;
    size_t part = call->count * dtype_bytes(call->dtype);
    size_t whole = part * (collective_has_parts(collective) ? (size_t)job->nranks : 1);
    bool sends_part = collective == COLLECTIVE_ALL_GATHER || collective == COLLECTIVE_GATHER;
    bool receives_part = collective == COLLECTIVE_REDUCE_SCATTER || collective == COLLECTIVE_SCATTER;
    size_t send = sends_part ? part : whole, recv = receives_part ? part : whole,
           own = part * (size_t)job->rank, at = (size_t)k * call->stride_bytes;
    return (struct call_place){
        .send = span_part(in_place ? buffers->b : buffers->a, at + (in_place && send < whole ? own : 0), send),
        .recv = span_part(buffers->b, at + (in_place && recv < whole ? own : 0), recv),
        .guard = span_part(buffers->b, at + (in_place ? whole : recv), CALL_GUARD_BYTES),
    };
}

/* The all-reduce of the textbooks: everything to one rank, and back from there. */
static enum status run_naive(const struct call *call, const struct call_place *place, struct ring_comm *comm)
{
    TRY(ring_reduce(place->recv, place->send, call->count, call->dtype, call->redop, 0, comm, NULL));
    return ring_broadcast(place->recv, place->recv, call->count, call->dtype, 0, comm, NULL);
}

/* Inside a group already: ring_send_recv() would open one. */
static enum status send_and_receive(
    const struct call *call, const struct call_place *place, int to, int from, struct ring_comm *comm)
{
    TRY(ring_send(place->send, call->count, call->dtype, to, comm, NULL));
    return ring_recv(place->recv, call->count, call->dtype, from, comm, NULL);
}

static enum status run_one(const struct call *call, const struct call_place *place, const struct job *job)
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
    case COLLECTIVE_SEND:
        if (call->group > 1) return send_and_receive(call, place, next, before, comm);
        return ring_send_recv(recv, count, before, send, count, next, dtype, comm, NULL);
    case COLLECTIVE_RECV:
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_COUNT: break;
    }
    return FAIL(STATUS_INVALID, "bench: collective %d is none that can be measured", (int)call->collective);
}

enum status call_run(const struct call *call, const struct call_place *place, const struct job *job)
{
    if (call->group == 1) return run_one(call, place, job);
    TRY(ring_group_begin(job->comm));
    struct call_place at = *place;
    enum status status = STATUS_OK;
    for (int k = 0; k < call->group && status == STATUS_OK; k++) {
        status = run_one(call, &at, job);
        at.send.ptr = (char *)at.send.ptr + call->stride_bytes;
        at.recv.ptr = (char *)at.recv.ptr + call->stride_bytes;
    }
    if (status != STATUS_OK) ring_group_drop(job->comm);
    return status == STATUS_OK ? ring_group_end(job->comm, NULL) : status;
}

/* ---- bytes on the wire ---- */

static struct call_bytes both(struct call_bytes a, struct call_bytes b)
{
    return (struct call_bytes){a.sent + b.sent, a.border + b.border};
}

static struct call_bytes predict(enum collective collective, int root, const struct call *call, const struct job *job)
{
    struct ring_call described = {
        .collective = collective, .dtype = call->dtype, .root = root, .count = call->count, .grouped = call->group > 1,
        .on_device = device_kind(job->device) == MEMORY_CUDA};
    if (collective_reduces(collective)) described.redop = call->redop, described.reduce_dtype = call->reduce_dtype;
    uint64_t group = (uint64_t)call->group;
    return (struct call_bytes){group * ring_predict_sent_bytes(&described, job->nranks, job->rank, job->comm),
        group * ring_predict_border_bytes(&described, job->rank, job->comm)};
}

struct call_bytes call_predict_bytes(const struct call *call, const struct job *job)
{
    if (call->algorithm == ALGORITHM_NAIVE)
        return both(predict(COLLECTIVE_REDUCE, 0, call, job), predict(COLLECTIVE_BROADCAST, 0, call, job));
    int root = call->collective == COLLECTIVE_SEND ? (job->rank + 1) % job->nranks
               : call->root < 0                    ? 0
                                                   : call->root;
    return predict(call->collective, root, call, job);
}

struct call_bytes call_sent_bytes(enum collective collective, enum algorithm algorithm, const struct job *job)
{
    struct ring_counters counters = ring_comm_counters(job->comm);
    if (algorithm == ALGORITHM_NAIVE)
        return both((struct call_bytes){counters.sent_bytes[COLLECTIVE_REDUCE], counters.border_bytes[COLLECTIVE_REDUCE]},
            (struct call_bytes){counters.sent_bytes[COLLECTIVE_BROADCAST], counters.border_bytes[COLLECTIVE_BROADCAST]});
    return (struct call_bytes){counters.sent_bytes[collective], counters.border_bytes[collective]};
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

/* Each operation of a group has numbers of its own. */
static struct pattern_key key_of(const struct call *call, int k, uint64_t seed, const struct job *job)
{
    enum redop redop = collective_reduces(call->collective) ? call->redop : REDOP_MAX;
    return (struct pattern_key){seed + (uint64_t)k, job->nranks, call->dtype, redop};
}

/* The same places on the host. */
static struct call_buffers on_host(const struct call_buffers *buffers)
{
    return (struct call_buffers){.a = buffers->host_a, .b = buffers->host_b};
}

/* What all operations use of a buffer, to its copy on the host or back. */
static enum status copy_used(struct span to, struct span from, const struct call *call, const struct job *job)
{
    size_t used = call->stride_bytes * (size_t)call->group;
    if (to.ptr == from.ptr) return STATUS_OK;
    return span_copy(to, span_part(from, 0, used < from.bytes ? used : from.bytes), NULL, job->device);
}

static void prepare(const struct call *call, int k, bool in_place, uint64_t seed, const struct call_buffers *buffers,
    const struct job *job)
{
    struct call_place place = call_place(call, k, in_place, buffers, job);
    struct pattern_key key = key_of(call, k, seed, job);
    struct pattern input;
    char *output = (char *)buffers->b.ptr + (size_t)k * call->stride_bytes;
    memset(output, PATTERN_POISON, (size_t)((char *)place.guard.ptr - output) + CALL_GUARD_BYTES);
    pattern_input(&input, job->rank, &key);
    if (has_input(call, job)) pattern_fill(place.send.ptr, 0, place.send.bytes / dtype_bytes(call->dtype), &input);
}

static uint64_t count_wrong(const struct call *call, int k, bool in_place, uint64_t seed,
    const struct call_buffers *buffers, const struct job *job)
{
    struct call_place place = call_place(call, k, in_place, buffers, job);
    struct pattern_key key = key_of(call, k, seed, job);
    uint64_t wrong = has_output(call, job) ? count_wrong_output(call, &place, &key, job) : 0;
    const unsigned char *guard = place.guard.ptr;
    for (size_t i = 0; i < CALL_GUARD_BYTES; i++) wrong += guard[i] != PATTERN_POISON;
    if (!has_input(call, job) || in_place) return wrong;
    struct pattern input;
    pattern_input(&input, job->rank, &key);
    return wrong + pattern_count_wrong(place.send.ptr, 0, place.send.bytes / dtype_bytes(call->dtype), &input);
}

enum status call_check(uint64_t *wrong, const struct call *call, bool in_place, uint64_t seed,
    const struct call_buffers *buffers, struct job *job)
{
    uint64_t of_this_rank = 0;
    struct call_buffers host = on_host(buffers);
    for (int k = 0; k < call->group; k++) prepare(call, k, in_place, seed, &host, job);
    TRY(copy_used(buffers->a, host.a, call, job));
    TRY(copy_used(buffers->b, host.b, call, job));
    struct call_place first = call_place(call, 0, in_place, buffers, job);
    TRY(call_run(call, &first, job));
    TRY(copy_used(host.a, buffers->a, call, job));
    TRY(copy_used(host.b, buffers->b, call, job));
    for (int k = 0; k < call->group; k++) of_this_rank += count_wrong(call, k, in_place, seed, &host, job);
    *wrong = of_this_rank;
    return job_sum(wrong, job);
}
