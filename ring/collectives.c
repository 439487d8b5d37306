/* collectives: the public calls: check the arguments, describe the operation, and run it here or on a stream.
 *
 * Nothing here knows how a collective works: that is plan.c. Arguments are checked before anything is sent, so an INVALID call
 * leaves the communicator as it was.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/comm.h"
#include "verbs/clock.h"
#include "verbs/log.h"

static const char *const redop_names[REDOP_COUNT] = {
    [REDOP_SUM] = "sum", [REDOP_MAX] = "max", [REDOP_AVG] = "avg"};

const char *redop_name(enum redop redop) { return redop_names[redop]; }

int redop_from_name(enum redop *redop, const char *name)
{
    for (int i = 0; i < REDOP_COUNT; i++) {
        if (strcmp(name, redop_names[i]) != 0) continue;
        *redop = (enum redop)i;
        return 0;
    }
    return -1;
}

/* A call as the caller made it: copied into streams. */
struct request {
    struct ring_comm *comm;
    enum collective collective;
    enum dtype dtype;
    enum redop redop;
    int root;
    struct span recv, send;
    size_t count;
    size_t stride;          /* elements between chunks; 0: the chunks are an even split of count */
    bool send_is_chunk;     /* holds this rank's chunk only */
    bool recv_is_chunk;
    uint64_t sequence;
};
_Static_assert(sizeof(struct request) <= STREAM_ARGUMENT_BYTES, "a request fits a stream's call");

/* ---- checks ---- */

static enum status check_span(const char *name, const struct span *span, size_t elements, const struct request *request)
{
    size_t element = dtype_bytes(request->dtype), bytes;
    const char *call = collective_name(request->collective);
    if (__builtin_mul_overflow(elements, element, &bytes))
        return FAIL(STATUS_INVALID, "%s: %zu elements of %s are more than memory can hold", call, elements,
            dtype_name(request->dtype));
    if (span->ptr == NULL)
        return FAIL(STATUS_INVALID, "%s: %s is NULL; expected %zu bytes (%zu %s)", call, name, bytes, elements,
            dtype_name(request->dtype));
    if (span->bytes < bytes)
        return FAIL(STATUS_INVALID, "%s: %s holds %zu bytes; expected %zu (%zu %s)", call, name, span->bytes, bytes,
            elements, dtype_name(request->dtype));
    if ((uintptr_t)span->ptr % element != 0)
        return FAIL(STATUS_INVALID, "%s: %s is at %p; expected a multiple of %zu, the size of %s", call, name, span->ptr,
            element, dtype_name(request->dtype));
    if (span->kind == MEMORY_CUDA)
        return FAIL(STATUS_INVALID, "%s: %s is in CUDA memory; expected host memory: this build has no CUDA", call, name);
    return STATUS_OK;
}

static size_t span_elements(const struct request *request, bool is_chunk)
{
    if (is_chunk || request->stride == 0) return request->count;
    return (size_t)(request->comm->nranks - 1) * request->stride + request->count;
}

/* In place means one exact address; every other overlap would be read after it was overwritten. */
static enum status check_overlap(const struct request *request)
{
    size_t element = dtype_bytes(request->dtype);
    const char *send = request->send.ptr, *recv = request->recv.ptr;
    size_t send_bytes = span_elements(request, request->send_is_chunk) * element;
    size_t recv_bytes = span_elements(request, request->recv_is_chunk) * element;
    if (send + send_bytes <= recv || recv + recv_bytes <= send) return STATUS_OK;
    size_t own = (size_t)request->comm->rank * request->stride * element;
    const char *expected = request->recv_is_chunk == request->send_is_chunk ? send
                           : request->recv_is_chunk                         ? send + own
                                                                            : send - own;
    if (recv == expected) return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: recv at %p overlaps send at %p; in place expects recv at %p, else they must not overlap",
        collective_name(request->collective), (const void *)recv, (const void *)send, (const void *)expected);
}

static enum status check_request(const struct request *request)
{
    const char *call = collective_name(request->collective);
    if ((unsigned)request->dtype >= DTYPE_COUNT || (unsigned)request->redop >= REDOP_COUNT)
        return FAIL(STATUS_INVALID, "%s: dtype %d or redop %d is unknown", call, (int)request->dtype, (int)request->redop);
    if (request->root < 0 || request->root >= request->comm->nranks)
        return FAIL(STATUS_INVALID, "%s: root is %d; expected 0 to %d", call, request->root, request->comm->nranks - 1);
    if (request->count == 0) return STATUS_OK;
    if (request->stride != 0 && request->count > request->stride)
        return FAIL(STATUS_INVALID, "%s: column of %zu elements is wider than its stride %zu", call, request->count,
            request->stride);
    bool reads_send = request->collective != COLLECTIVE_BROADCAST || request->root == request->comm->rank;
    TRY(check_span("recv", &request->recv, span_elements(request, request->recv_is_chunk), request));
    if (!reads_send) return STATUS_OK;
    TRY(check_span("send", &request->send, span_elements(request, request->send_is_chunk), request));
    return check_overlap(request);
}

/* ---- running ---- */

static enum status comm_failure(struct ring_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    enum status status = comm->failure;
    if (status != STATUS_OK) status_set_text(comm->failure_text);
    pthread_mutex_unlock(&comm->lock);
    if (status == STATUS_OK) return STATUS_OK;
    return FAIL(STATUS_ABORTED, "the communicator has failed: %s", status_text());
}

/* Remembers the first failure and tells every rank; the bootstrap names this rank itself. */
static void comm_fail(struct ring_comm *comm, enum status status)
{
    char prefix[24];
    int length = snprintf(prefix, sizeof prefix, "rank %d: ", comm->rank);
    bool named = strncmp(status_text(), prefix, (size_t)length) == 0;
    pthread_mutex_lock(&comm->lock);
    bool first = comm->failure == STATUS_OK;
    if (first) {
        comm->failure = status;
        snprintf(comm->failure_text, sizeof comm->failure_text, "%s", status_text());
    }
    pthread_mutex_unlock(&comm->lock);
    if (first) bootstrap_abort(status_text() + (named ? length : 0), comm->bootstrap);
}

static void comm_count(struct ring_comm *comm, const struct operation *operation, int64_t busy_ns)
{
    size_t bytes = operation->count * dtype_bytes(operation->reduction.dtype);
    pthread_mutex_lock(&comm->lock);
    if (operation->slots_are_shared) stores_learn(&comm->stores, bytes, operation->streaming, busy_ns);
    comm->counters.operations[operation->collective]++;
    comm->counters.sent_bytes[operation->collective] += operation->sent_bytes;
    comm->counters.received_bytes[operation->collective] += operation->received_bytes;
    comm->counters.busy_ns += (uint64_t)busy_ns;
    pthread_mutex_unlock(&comm->lock);
}

/* The body of every collective, on the caller's thread or a stream's. */
static enum status request_run(void *arguments)
{
    const struct request *request = arguments;
    struct ring_comm *comm = request->comm;
    TRY(comm_failure(comm));
    int64_t begin_ns = clock_ns();
    struct operation operation = {
        .comm = comm,
        .collective = request->collective,
        .reduction = {request->dtype, request->redop, comm->nranks},
        .root = request->root,
        .send = request->send.ptr,
        .recv = request->recv.ptr,
        .count = request->count,
        .stride = request->stride,
        .send_is_chunk = request->send_is_chunk,
        .recv_is_chunk = request->recv_is_chunk,
        .sequence = request->sequence,
    };
    enum status status = progress_run(&operation, comm->progress);
    comm_count(comm, &operation, clock_ns() - begin_ns);
    if (status != STATUS_OK) comm_fail(comm, status);
    return status;
}

static enum status request_submit(struct request *request, struct stream *stream)
{
    struct ring_comm *comm = request->comm;
    TRY(check_request(request));
    if (request->count == 0) request->send = request->recv = (struct span){0};
    pthread_mutex_lock(&comm->lock);
    request->sequence = ++comm->sequence;
    pthread_mutex_unlock(&comm->lock);
    if (stream != NULL) return stream_call(stream, request_run, request, sizeof *request, comm->device);
    return request_run(request);
}

/* ---- the calls ---- */

enum status ring_all_reduce(struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .redop = redop,
        .recv = recv, .send = send, .count = count};
    return request_submit(&request, stream);
}

enum status ring_all_reduce_column(struct span recv, struct span send, size_t count, size_t stride, enum dtype dtype,
    enum redop redop, struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .redop = redop,
        .recv = recv, .send = send, .count = count, .stride = stride};
    return request_submit(&request, stream);
}

enum status ring_reduce_scatter(struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop,
    struct ring_comm *comm, struct stream *stream)
{
    return ring_reduce_scatter_column(recv, send, count, count, dtype, redop, comm, stream);
}

enum status ring_reduce_scatter_column(struct span recv, struct span send, size_t count, size_t stride, enum dtype dtype,
    enum redop redop, struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .redop = redop,
        .recv = recv, .send = send, .count = count, .stride = stride, .recv_is_chunk = true};
    return request_submit(&request, stream);
}

enum status ring_all_gather(
    struct span recv, struct span send, size_t count, enum dtype dtype, struct ring_comm *comm, struct stream *stream)
{
    return ring_all_gather_column(recv, send, count, count, dtype, comm, stream);
}

enum status ring_all_gather_column(struct span recv, struct span send, size_t count, size_t stride, enum dtype dtype,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_ALL_GATHER, .dtype = dtype, .redop = REDOP_SUM,
        .recv = recv, .send = send, .count = count, .stride = stride, .send_is_chunk = true};
    return request_submit(&request, stream);
}

enum status ring_broadcast(struct span recv, struct span send, size_t count, enum dtype dtype, int root,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_BROADCAST, .dtype = dtype, .redop = REDOP_SUM,
        .root = root, .recv = recv, .send = send, .count = count};
    return request_submit(&request, stream);
}

enum status ring_barrier(struct ring_comm *comm, struct stream *stream)
{
    struct request request = {
        .comm = comm, .collective = COLLECTIVE_BARRIER, .dtype = DTYPE_INT32, .redop = REDOP_SUM};
    return request_submit(&request, stream);
}

/* ---- prediction ---- */

static int position_of(int rank, const int *order)
{
    int position = rank;
    if (order != NULL)
        for (position = 0; order[position] != rank; position++) {}
    return position;
}

uint64_t ring_predict_sent_bytes(enum collective collective, size_t count, enum dtype dtype, int nranks, int rank, int root,
    const int *order)
{
    struct plan plan = plan_make(collective, nranks, position_of(rank, order), position_of(root, order));
    uint64_t elements = 0;
    for (int i = 0; i < plan.steps; i++) {
        struct plan_step step = plan_step_at(&plan, i);
        if (step.to < 0) continue;
        int owner = order != NULL ? order[step.chunk] : step.chunk;
        elements += collective == COLLECTIVE_ALL_REDUCE
                        ? ring_chunk_begin(count, nranks, owner + 1) - ring_chunk_begin(count, nranks, owner)
                        : count;
    }
    return elements * dtype_bytes(dtype);
}
