/* request: see request.h. Arguments are checked before anything is sent, so an INVALID call leaves the communicator as it was. */
#include "ring/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/exchange.h"
#include "ring/flight.h"
#include "ring/kernel_host.h"
#include "ring/small.h"
#include "ring/window.h"
#include "verbs/clock.h"
#include "verbs/device_graph.h"

_Static_assert(sizeof(struct request) <= STREAM_ARGUMENT_BYTES, "a request fits a stream's call");

/* ---- checks ---- */

static enum status check_device(const char *name, const struct span *span, const struct request *request)
{
    const struct ring_comm *comm = request->comm;
    const char *call = collective_name(request->collective);
    if (device_kind(comm->device) != MEMORY_CUDA)
        return FAIL(STATUS_INVALID, "%s: %s is in CUDA memory; expected host memory: the communicator was opened with device %s",
            call, name, device_name(comm->device));
    if (!comm->all_cuda)
        return FAIL(STATUS_INVALID, "%s: %s is in CUDA memory; expected host memory: some ranks opened the communicator with another "
            "device than %s", call, name, device_name(comm->device));
    if (span->device != comm->device->index)
        return FAIL(STATUS_INVALID, "%s: %s is in the memory of GPU %d; expected GPU %d, the communicator's", call, name, span->device,
            comm->device->index);
    if (reduce_ops_of(comm->device) == NULL)
        return FAIL(STATUS_INVALID, "%s: %s is in CUDA memory; expected host memory: the module of device %s has no reductions", call,
            name, device_name(comm->device));
    return STATUS_OK;
}

static enum status check_span(const char *name, const struct span *span, size_t elements, const struct request *request)
{
    size_t element = dtype_bytes(request->dtype), bytes;
    const char *call = collective_name(request->collective);
    if (__builtin_mul_overflow(elements, element, &bytes))
        return FAIL(STATUS_INVALID, "%s: %zu elements of %s are more than memory can hold", call, elements,
            dtype_name(request->dtype));
    if (span->ptr == NULL && bytes > 0)
        return FAIL(STATUS_INVALID, "%s: %s is NULL; expected %zu bytes (%zu %s)", call, name, bytes, elements,
            dtype_name(request->dtype));
    if (span->bytes < bytes)
        return FAIL(STATUS_INVALID, "%s: %s holds %zu bytes; expected %zu (%zu %s)", call, name, span->bytes, bytes,
            elements, dtype_name(request->dtype));
    if ((uintptr_t)span->ptr % element != 0)
        return FAIL(STATUS_INVALID, "%s: %s is at %p; expected a multiple of %zu, the size of %s", call, name, span->ptr,
            element, dtype_name(request->dtype));
    return span->kind == MEMORY_CUDA ? check_device(name, span, request) : STATUS_OK;
}

static size_t chunk_offset(const struct request *request)
{
    int rank = request->comm->rank;
    return request->begins != NULL ? request->begins[rank] : (size_t)rank * request->stride;
}

static size_t span_elements(const struct request *request, bool is_chunk)
{
    int rank = request->comm->rank;
    if (request->begins != NULL && is_chunk) return request->begins[rank + 1] - request->begins[rank];
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
    size_t own = chunk_offset(request) * element;
    const char *expected = request->recv_is_chunk == request->send_is_chunk ? send
                           : request->recv_is_chunk                         ? send + own
                                                                            : send - own;
    if (request->collective == COLLECTIVE_ALL_TO_ALL)
        return FAIL(STATUS_INVALID, "all_to_all: recv at %p overlaps send at %p; it cannot work in place: give another buffer",
            (const void *)recv, (const void *)send);
    if (recv == expected) return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: recv at %p overlaps send at %p; in place expects recv at %p, else they must not overlap",
        collective_name(request->collective), (const void *)recv, (const void *)send, (const void *)expected);
}

/* Which of its two buffers this rank takes part with. */
static bool reads_send(const struct request *request)
{
    bool root = request->root == request->comm->rank;
    switch (request->collective) {
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER: return root;
    case COLLECTIVE_RECV: return false;
    default: return true;
    }
}

static bool writes_recv(const struct request *request)
{
    bool root = request->root == request->comm->rank;
    switch (request->collective) {
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER: return root;
    case COLLECTIVE_SEND: return false;
    default: return true;
    }
}

static enum status check_request(struct request *request)
{
    const char *call = collective_name(request->collective);
    if ((unsigned)request->dtype >= DTYPE_COUNT || (unsigned)request->redop >= REDOP_COUNT)
        return FAIL(STATUS_INVALID, "%s: dtype %d or redop %d is unknown", call, (int)request->dtype, (int)request->redop);
    if (request->root < 0 || request->root >= request->comm->nranks)
        return FAIL(STATUS_INVALID, "%s: %s is %d; expected 0 to %d", call,
            collective_is_rooted(request->collective) ? "root or peer" : "root", request->root, request->comm->nranks - 1);
    if (request->stride != 0 && request->count > request->stride)
        return FAIL(STATUS_INVALID, "%s: column of %zu elements is wider than its stride %zu", call, request->count,
            request->stride);
    if (!reads_send(request) || request->count == 0) request->send = (struct span){0};
    if (!writes_recv(request) || request->count == 0) request->recv = (struct span){0};
    if (request->count == 0) return STATUS_OK;
    if (span_elements(request, request->send_is_chunk) == 0) request->send = (struct span){0}; /* of a v-form */
    if (span_elements(request, request->recv_is_chunk) == 0) request->recv = (struct span){0};
    if (writes_recv(request)) TRY(check_span("recv", &request->recv, span_elements(request, request->recv_is_chunk), request));
    if (reads_send(request)) TRY(check_span("send", &request->send, span_elements(request, request->send_is_chunk), request));
    if (!reads_send(request) || !writes_recv(request)) return STATUS_OK;
    bool send_cuda = request->send.kind == MEMORY_CUDA, recv_cuda = request->recv.kind == MEMORY_CUDA;
    if (send_cuda != recv_cuda && request->send.ptr != NULL && request->recv.ptr != NULL)
        return FAIL(STATUS_INVALID, "%s: send is in %s, recv in %s; expected both in CUDA memory or none: copy one of them first", call,
            memory_kind_name(request->send.kind), memory_kind_name(request->recv.kind));
    return check_overlap(request);
}

/* ---- running ---- */

enum status comm_check(struct ring_comm *comm)
{
    if (!__atomic_load_n(&comm->failed, __ATOMIC_ACQUIRE)) return STATUS_OK; /* pairs with the release in comm_fail() */
    pthread_mutex_lock(&comm->lock);
    status_set_text(comm->failure_text);
    pthread_mutex_unlock(&comm->lock);
    return FAIL(STATUS_ABORTED, "the communicator has failed: %s", status_text());
}

/* The bootstrap names this rank itself. */
void comm_fail(struct ring_comm *comm)
{
    char prefix[24];
    int length = snprintf(prefix, sizeof prefix, "rank %d: ", comm_name(comm, comm->rank));
    bool named = strncmp(status_text(), prefix, (size_t)length) == 0;
    pthread_mutex_lock(&comm->lock);
    bool first = !comm->failed;
    if (first) {
        snprintf(comm->failure_text, sizeof comm->failure_text, "%s", status_text());
        __atomic_store_n(&comm->failed, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&comm->lock);
    kernel_end_replays(comm);
    if (first) bootstrap_abort(status_text() + (named ? length : 0), comm->bootstrap);
}

void ring_comm_abort(struct ring_comm *comm, const char *reason)
{
    FAIL(STATUS_ABORTED, "rank %d: aborted: %s", comm_name(comm, comm->rank), reason);
    comm_fail(comm);
}

static void comm_count(struct ring_comm *comm, const struct operation *operation, int64_t busy_ns)
{
    struct ring_counters *counters = &comm->counters;
    if (operation->captured != NULL) return; /* its runs are: kernel_count_replays() */
    __atomic_add_fetch(&counters->operations[operation->collective], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->sent_bytes[operation->collective], operation->sent_bytes, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->border_bytes[operation->collective], operation->border_bytes, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->received_bytes[operation->collective], operation->received_bytes, __ATOMIC_RELAXED);
    if (busy_ns == 0) return;
    __atomic_add_fetch(&counters->busy_ns, (uint64_t)busy_ns, __ATOMIC_RELAXED);
    if (!operation->slots_are_shared) return;
    pthread_mutex_lock(&comm->lock);
    stores_learn(&comm->stores[operation->collective], operation->count * dtype_bytes(operation->reduction.dtype),
        operation->streaming, busy_ns);
    pthread_mutex_unlock(&comm->lock);
}

/* Alike on all ranks: buffers of no elements do not count, and every rank has another one unless the whole call is empty. */
static bool is_on_device(const struct request *request)
{
    return (request->recv.ptr != NULL && request->recv.kind == MEMORY_CUDA) ||
           (request->send.ptr != NULL && request->send.kind == MEMORY_CUDA);
}

/* A graph keeps what its stream is given now. */
static bool is_captured(const struct request *request)
{
    return request->stream != NULL && is_on_device(request) && stream_is_captured(request->stream, request->comm->device);
}

/* What is in CUDA memory is complete only when the stream's kernels have run. */
static enum status follow_stream(const struct request *request)
{
    TRY(kernel_check_replays(request->comm));
    if (request->stream == NULL || !is_on_device(request) || is_captured(request)) return STATUS_OK;
    return flights_follow(request->comm, request->stream);
}

static void operation_make(struct operation *operation, struct operation_room *room, const struct request *request)
{
    *operation = (struct operation){
        .comm = request->comm,
        .room = room,
        .collective = request->collective,
        .reduction = {request->dtype, request->redop, request->comm->nranks, request->premul,
            reduce_is_wide(request->dtype, request->redop, request->reduce_dtype, request->comm->nranks)},
        .root = request->root,
        .send = request->send.ptr,
        .recv = request->recv.ptr,
        .count = request->count,
        .stride = request->stride,
        .begins = request->begins,
        .send_is_chunk = request->send_is_chunk,
        .recv_is_chunk = request->recv_is_chunk,
        .sequence = request->sequence,
        .group = request->group,
        .has_memory = request->has_memory,
        .on_device = is_on_device(request),
        .sends_pinned = request->send.kind == MEMORY_HOST_PINNED,
        .captured = is_captured(request) ? stream_native(request->stream) : NULL,
    };
    bool alone = request->group == 0 && !operation->on_device;
    operation->exchanges = alone && exchange_fits(operation);
    operation->windows = alone && !operation->exchanges && window_fits(operation);
}

/* The long way. begun: not NULL where small.c has begun and holds the engine. Small ones are not timed: a clock costs as much as
 * they. */
static enum status run_long(const struct request *request, const struct exchange *begun)
{
    struct ring_comm *comm = request->comm;
    enum status status = begun != NULL ? STATUS_OK : comm_check(comm);
    if (status == STATUS_OK && (status = follow_stream(request)) != STATUS_OK) comm_fail(comm);
    if (status == STATUS_OK) {
        struct operation_room room;
        struct operation operation;
        operation_make(&operation, &room, request);
        status = kernel_check_capture(&operation);
        if (status != STATUS_OK) { /* nothing was sent */
            free(request->begins);
            return status;
        }
        int64_t begin_ns = operation.exchanges ? 0 : clock_ns();
        if (begun != NULL) {
            operation.begun = true;
            operation.tag = begun->tag;
            operation.exchange = *begun;
            status = progress_resume(&operation, comm->progress);
        } else {
            status = progress_run(&operation, 1, comm->progress);
        }
        comm_count(comm, &operation, begin_ns == 0 ? 0 : clock_ns() - begin_ns);
        if (status != STATUS_OK) comm_fail(comm);
    }
    free(request->begins);
    return status;
}

/* The body of every collective on a stream's thread. */
static enum status request_run(void *arguments)
{
    struct request *request = arguments;
    struct exchange exchange;
    enum small_end end = small_run(&exchange, request, false);
    return end == SMALL_DONE ? STATUS_OK : run_long(request, end == SMALL_UNFINISHED ? &exchange : NULL);
}

/* ---- groups ---- */

struct group {
    struct ring_comm *comm;
    struct request *requests; /* owned */
    int count;
};

static void group_free(struct group *group)
{
    for (int i = 0; i < group->count; i++) free(group->requests[i].begins);
    free(group->requests);
}

static enum status group_run(void *arguments)
{
    struct group *group = arguments;
    struct ring_comm *comm = group->comm;
    struct operation *operations = calloc((size_t)group->count, sizeof *operations);
    struct operation_room *rooms = calloc((size_t)group->count, sizeof *rooms);
    enum status status = comm_check(comm);
    if (status == STATUS_OK && (operations == NULL || rooms == NULL))
        status = FAIL(STATUS_SYSTEM, "no memory for a group of %d operations", group->count);
    for (int i = 0; i < group->count && status == STATUS_OK; i++) status = follow_stream(&group->requests[i]);
    if (status == STATUS_OK) {
        for (int i = 0; i < group->count; i++) operation_make(&operations[i], &rooms[i], &group->requests[i]);
        enum status can = STATUS_OK;
        for (int i = 0; i < group->count && can == STATUS_OK; i++) can = kernel_check_capture(&operations[i]);
        int64_t begin_ns = clock_ns();
        status = can != STATUS_OK ? can : progress_run(operations, group->count, comm->progress);
        for (int i = 0; i < group->count && can == STATUS_OK; i++) comm_count(comm, &operations[i], i == 0 ? clock_ns() - begin_ns : 0);
        if (status != STATUS_OK && can == STATUS_OK) comm_fail(comm);
    }
    free(operations);
    free(rooms);
    group_free(group);
    return status;
}

enum status ring_group_begin(struct ring_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    bool open = comm->group_open;
    comm->group_open = true;
    if (!open) comm->group_id++;
    pthread_mutex_unlock(&comm->lock);
    if (open) return FAIL(STATUS_INVALID, "a group is already open on this communicator: end it first");
    return STATUS_OK;
}

/* Called with the lock. */
static enum status group_add(const struct request *request)
{
    struct ring_comm *comm = request->comm;
    struct request *more = realloc(comm->grouped, ((size_t)comm->grouped_count + 1) * sizeof *more);
    if (more == NULL) return FAIL(STATUS_SYSTEM, "no memory for %d operations of a group", comm->grouped_count + 1);
    comm->grouped = more;
    comm->grouped[comm->grouped_count] = *request;
    comm->grouped[comm->grouped_count++].group = comm->group_id;
    return STATUS_OK;
}

enum status ring_group_end(struct ring_comm *comm, struct stream *stream)
{
    pthread_mutex_lock(&comm->lock);
    bool open = comm->group_open;
    struct group group = {comm, comm->grouped, comm->grouped_count};
    comm->group_open = false;
    comm->grouped = NULL;
    comm->grouped_count = 0;
    pthread_mutex_unlock(&comm->lock);
    if (!open) return FAIL(STATUS_INVALID, "no group is open on this communicator: begin one first");
    if (group.count == 0) return STATUS_OK;
    for (int i = 0; i < group.count; i++) group.requests[i].stream = stream;
    if (stream != NULL) return stream_call(stream, group_run, &group, sizeof group, comm->device);
    return group_run(&group);
}

void ring_group_drop(struct ring_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    struct group group = {comm, comm->grouped, comm->grouped_count};
    comm->group_open = false;
    comm->grouped = NULL;
    comm->grouped_count = 0;
    pthread_mutex_unlock(&comm->lock);
    group_free(&group);
}

/* ---- submitting ---- */

/* Ranks count collectives alike; sends and receives each for itself. */
static void draw_sequence(struct request *request)
{
    struct ring_comm *comm = request->comm;
    bool pair = request->collective == COLLECTIVE_SEND || request->collective == COLLECTIVE_RECV;
    request->sequence = __atomic_add_fetch(pair ? &comm->pair_sequence : &comm->sequence, 1, __ATOMIC_RELAXED);
}

enum status request_submit(struct request *request, struct stream *stream)
{
    struct ring_comm *comm = request->comm;
    struct exchange exchange;
    if (stream == NULL && !__atomic_load_n(&comm->group_open, __ATOMIC_RELAXED)) {
        enum small_end end = small_run(&exchange, request, true);
        if (end != SMALL_REFUSED) return end == SMALL_DONE ? STATUS_OK : run_long(request, &exchange);
    }
    enum status status = check_request(request);
    if (status != STATUS_OK) {
        free(request->begins);
        return status;
    }
    draw_sequence(request);
    request->stream = stream;
    request->has_memory = __atomic_load_n(&comm->has_memory, __ATOMIC_RELAXED);
    if (__atomic_load_n(&comm->group_open, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&comm->lock);
        status = group_add(request);
        pthread_mutex_unlock(&comm->lock);
        if (status != STATUS_OK) free(request->begins);
        return status;
    }
    if (stream != NULL) return stream_call(stream, request_run, request, sizeof *request, comm->device);
    return run_long(request, NULL);
}
