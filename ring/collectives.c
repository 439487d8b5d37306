/* collectives: the public calls: each describes itself as a request. Nothing here knows how a collective works: that is plan.c.
 */
#include <stdlib.h>
#include <string.h>

#include "ring/exchange_plan.h"
#include "ring/reach.h"
#include "ring/window.h"
#include "ring/request.h"

static const char *const redop_names[REDOP_COUNT] = {
    [REDOP_SUM] = "sum",
    [REDOP_PROD] = "prod",
    [REDOP_MIN] = "min",
    [REDOP_MAX] = "max",
    [REDOP_AVG] = "avg",
    [REDOP_PREMUL_SUM] = "premul_sum",
};

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

static const char *const reduce_dtype_names[REDUCE_DTYPE_COUNT] = {"own", "float32"};

const char *reduce_dtype_name(enum reduce_dtype reduce_dtype) { return reduce_dtype_names[reduce_dtype]; }

int reduce_dtype_from_name(enum reduce_dtype *reduce_dtype, const char *name)
{
    for (int i = 0; i < REDUCE_DTYPE_COUNT; i++) {
        if (strcmp(name, reduce_dtype_names[i]) != 0) continue;
        *reduce_dtype = (enum reduce_dtype)i;
        return 0;
    }
    return -1;
}

static const char *const hierarchy_names[HIERARCHY_COUNT] = {
    [HIERARCHY_GIVEN] = "given",
    [HIERARCHY_AUTO] = "auto",
    [HIERARCHY_FLAT] = "flat",
    [HIERARCHY_TWO_LEVEL] = "two_level",
};

const char *hierarchy_name(enum hierarchy hierarchy) { return hierarchy_names[hierarchy]; }

int hierarchy_from_name(enum hierarchy *hierarchy, const char *name)
{
    for (int i = HIERARCHY_AUTO; i < HIERARCHY_COUNT; i++) {
        if (strcmp(name, hierarchy_names[i]) != 0) continue;
        *hierarchy = (enum hierarchy)i;
        return 0;
    }
    return -1;
}

/* ---- all ranks, no root ---- */

enum status ring_all_reduce(struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop,
    struct ring_comm *comm, struct stream *stream)
{
    return ring_all_reduce_column(recv, send, count, 0, dtype, redop, comm, stream);
}

enum status ring_all_reduce_column(struct span recv, struct span send, size_t count, size_t stride, enum dtype dtype,
    enum redop redop, struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_ALL_REDUCE, .dtype = dtype, .redop = redop,
        .recv = recv, .send = send, .count = count, .stride = stride, .premul = comm->premul,
        .reduce_dtype = comm->reduce_dtype};
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
        .recv = recv, .send = send, .count = count, .stride = stride, .recv_is_chunk = true, .premul = comm->premul,
        .reduce_dtype = comm->reduce_dtype};
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
    struct request request = {.comm = comm, .collective = COLLECTIVE_ALL_GATHER, .dtype = dtype, .recv = recv, .send = send,
        .count = count, .stride = stride, .send_is_chunk = true};
    return request_submit(&request, stream);
}

enum status ring_all_to_all(
    struct span recv, struct span send, size_t count, enum dtype dtype, struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_ALL_TO_ALL, .dtype = dtype, .recv = recv, .send = send,
        .count = count, .stride = count};
    return request_submit(&request, stream);
}

enum status ring_barrier(struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_BARRIER, .dtype = DTYPE_INT32};
    return request_submit(&request, stream);
}

/* ---- chunks of different sizes ---- */

/* counts[nranks] → begins[nranks + 1], owned by the request. */
static enum status begins_of(size_t **begins, const size_t *counts, int nranks)
{
    *begins = malloc(((size_t)nranks + 1) * sizeof **begins);
    if (*begins == NULL) return FAIL(STATUS_SYSTEM, "no memory for the counts of %d ranks", nranks);
    (*begins)[0] = 0;
    for (int r = 0; r < nranks; r++) (*begins)[r + 1] = (*begins)[r] + counts[r];
    return STATUS_OK;
}

enum status ring_reduce_scatter_v(struct span recv, struct span send, const size_t *counts, enum dtype dtype, enum redop redop,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_REDUCE_SCATTER, .dtype = dtype, .redop = redop,
        .recv = recv, .send = send, .recv_is_chunk = true, .premul = comm->premul,
        .reduce_dtype = comm->reduce_dtype};
    TRY(begins_of(&request.begins, counts, comm->nranks));
    request.count = request.begins[comm->nranks];
    return request_submit(&request, stream);
}

enum status ring_all_gather_v(struct span recv, struct span send, const size_t *counts, enum dtype dtype,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_ALL_GATHER, .dtype = dtype, .recv = recv, .send = send,
        .send_is_chunk = true};
    TRY(begins_of(&request.begins, counts, comm->nranks));
    request.count = request.begins[comm->nranks];
    return request_submit(&request, stream);
}

/* ---- memory ---- */

enum status ring_alloc(struct span *span, size_t bytes, enum memory_tag tag, struct ring_comm *comm)
{
    __atomic_store_n(&comm->has_memory, true, __ATOMIC_RELAXED);
    *span = (struct span){0};
    if (device_kind(comm->device) == MEMORY_CUDA) return reach_alloc(span, bytes, tag, comm);
    if (comm->book == NULL) return memory_alloc(span, bytes, tag, comm->device);
    TRY(memory_reserve(comm->device, tag, bytes));
    void *region = region_alloc(bytes, comm->book);
    if (region == NULL) {
        memory_count(comm->device, tag, -(int64_t)bytes);
        return memory_alloc(span, bytes, tag, comm->device);
    }
    *span = span_host(region, bytes);
    return STATUS_OK;
}

void ring_free(struct span *span, enum memory_tag tag, struct ring_comm *comm)
{
    if (reach_free(span, comm)) return;
    if (span->ptr == NULL || comm->book == NULL || !region_free(span->ptr, comm->book)) {
        memory_free(span, tag, comm->device);
        return;
    }
    memory_count(comm->device, tag, -(int64_t)span->bytes);
    *span = (struct span){0};
}

/* ---- a root ---- */

enum status ring_broadcast(struct span recv, struct span send, size_t count, enum dtype dtype, int root,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_BROADCAST, .dtype = dtype, .root = root, .recv = recv,
        .send = send, .count = count};
    return request_submit(&request, stream);
}

enum status ring_reduce(struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop, int root,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_REDUCE, .dtype = dtype, .redop = redop, .root = root,
        .recv = recv, .send = send, .count = count, .premul = comm->premul,
        .reduce_dtype = comm->reduce_dtype};
    return request_submit(&request, stream);
}

enum status ring_scatter(struct span recv, struct span send, size_t count, enum dtype dtype, int root,
    struct ring_comm *comm, struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_SCATTER, .dtype = dtype, .root = root, .recv = recv,
        .send = send, .count = count, .stride = count, .recv_is_chunk = true};
    return request_submit(&request, stream);
}

enum status ring_gather(struct span recv, struct span send, size_t count, enum dtype dtype, int root, struct ring_comm *comm,
    struct stream *stream)
{
    struct request request = {.comm = comm, .collective = COLLECTIVE_GATHER, .dtype = dtype, .root = root, .recv = recv,
        .send = send, .count = count, .stride = count, .send_is_chunk = true};
    return request_submit(&request, stream);
}

/* ---- two ranks ---- */

enum status ring_send(
    struct span send, size_t count, enum dtype dtype, int to, struct ring_comm *comm, struct stream *stream)
{
    struct request request = {
        .comm = comm, .collective = COLLECTIVE_SEND, .dtype = dtype, .root = to, .send = send, .count = count};
    return request_submit(&request, stream);
}

enum status ring_recv(
    struct span recv, size_t count, enum dtype dtype, int from, struct ring_comm *comm, struct stream *stream)
{
    struct request request = {
        .comm = comm, .collective = COLLECTIVE_RECV, .dtype = dtype, .root = from, .recv = recv, .count = count};
    return request_submit(&request, stream);
}

enum status ring_send_recv(struct span recv, size_t recv_count, int from, struct span send, size_t send_count, int to,
    enum dtype dtype, struct ring_comm *comm, struct stream *stream)
{
    TRY(ring_group_begin(comm));
    enum status sent = ring_send(send, send_count, dtype, to, comm, stream);
    enum status received = sent == STATUS_OK ? ring_recv(recv, recv_count, dtype, from, comm, stream) : sent;
    if (received != STATUS_OK) ring_group_drop(comm);
    return received == STATUS_OK ? ring_group_end(comm, stream) : received;
}

void ring_comm_set_premul(struct ring_comm *comm, double scalar) { comm->premul = scalar; }

void ring_comm_set_reduce_dtype(struct ring_comm *comm, enum reduce_dtype reduce_dtype)
{
    comm->reduce_dtype = reduce_dtype;
}

/* ---- prediction ---- */

static int position_of(const struct ring_comm *comm, int channel, int rank)
{
    int position = 0;
    while (comm_rank_at(comm, channel, position) != rank) position++;
    return position;
}

/* What a rank sends: in all, and of it to other hosts. */
struct sent {
    uint64_t bytes, border_bytes;
};

/* One channel's part of every chunk. */
static void add_plan(struct sent *sent, const struct operation *operation, int channel, int channels)
{
    const struct ring_comm *comm = operation->comm;
    struct plan plan = plan_make_two_level(operation->collective, comm->nranks, comm->host_ranks,
        position_of(comm, channel, comm->rank), position_of(comm, channel, operation->root));
    for (int i = 0; i < plan.steps; i++) {
        struct plan_step step = plan_step_at(&plan, i);
        if (step.to < 0) continue;
        size_t begin, count;
        operation_chunk(&begin, &count, operation, comm_rank_at(comm, channel, step.chunk));
        count = ring_chunk_begin(count, channels, channel + 1) - ring_chunk_begin(count, channels, channel);
        bool partial = primitive_sends_partial(step.primitive, operation->collective);
        size_t element = partial ? reduce_partial_bytes(&operation->reduction) : dtype_bytes(operation->reduction.dtype);
        sent->bytes += count * element;
        if (!comm_on_this_host(comm, comm_rank_at(comm, channel, step.to))) sent->border_bytes += count * element;
    }
}

static struct sent predict(const struct operation *operation, bool grouped)
{
    struct sent sent = {0, 0};
    if (!grouped && exchange_fits(operation)) {
        sent.bytes = exchange_sent_bytes(&sent.border_bytes, operation);
    } else if (!grouped && window_fits(operation)) {
        sent.bytes = window_sent_bytes(operation); /* within one host */
    } else {
        int channels = collective_is_on_ring(operation->collective) ? operation->comm->config.channels : 1;
        for (int channel = 0; channel < channels; channel++) add_plan(&sent, operation, channel, channels);
    }
    return sent;
}

static struct sent predict_call(const struct ring_call *call, struct ring_comm *described)
{
    size_t *begins = NULL;
    if (call->counts != NULL && begins_of(&begins, call->counts, described->nranks) != STATUS_OK) abort();
    struct operation operation = operation_of_call(call, begins, described);
    struct sent sent = predict(&operation, call->grouped || call->on_device);
    free(begins);
    return sent;
}

static struct sent predict_in(const struct ring_call *call, int rank, const struct ring_comm *comm)
{
    struct ring_comm described = {
        .nranks = comm->nranks,
        .rank = rank,
        .config = comm->config,
        .one_memory = comm->one_memory,
        .has_windows = comm->has_windows,
        .has_copies = comm->has_copies,
        .has_memory = comm->has_memory,
        .ranks = comm->ranks,
        .host_ranks = comm->host_ranks,
        .order = comm->order,
        .orders_differ = comm->orders_differ,
        .exchange_measured = comm->exchange_measured,
    };
    memcpy(described.exchange_most, comm->exchange_most, sizeof described.exchange_most);
    return predict_call(call, &described);
}

uint64_t ring_predict_sent_bytes(const struct ring_call *call, int nranks, int rank, const struct ring_comm *comm)
{
    if (comm != NULL) return predict_in(call, rank, comm).bytes;
    int *order = calloc((size_t)nranks, sizeof *order);
    if (order == NULL) abort();
    for (int p = 0; p < nranks; p++) order[p] = p;
    struct ring_comm described = {.nranks = nranks, .rank = rank, .one_memory = true, .order = order,
        .config = {.exchange_bytes = COMM_EXCHANGE_BYTES, .channels = 1}};
    uint64_t bytes = predict_call(call, &described).bytes;
    free(order);
    return bytes;
}

uint64_t ring_predict_border_bytes(const struct ring_call *call, int rank, const struct ring_comm *comm)
{
    return predict_in(call, rank, comm).border_bytes;
}
