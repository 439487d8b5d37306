/* flight: see flight.h. */
#include "ring/flight.h"

#include <stdlib.h>
#include <time.h>

#include "ring/comm.h"
#include "ring/primitive.h"
#include "verbs/clock.h"
#include "verbs/device_ops.h"
#include "verbs/log.h"

struct flights {
    struct device *device;
    const struct reduce_ops *reduce;
    void *native;
    void *behind;        /* mark in streams that the native one has to follow */
    size_t slot_bytes;
    struct flight *free;
    struct flight all[FLIGHTS];
};

/* ---- the communicator's ---- */

enum status flights_open(struct ring_comm *comm)
{
    struct device *device = comm->device;
    if (comm->flights != NULL) return STATUS_OK;
    struct flights *flights = calloc(1, sizeof *flights);
    if (flights == NULL) return FAIL(STATUS_SYSTEM, "no memory for what a device works on");
    comm->flights = flights;
    flights->device = device;
    flights->reduce = reduce_ops_of(device);
    flights->slot_bytes = comm->config.slot_bytes;
    TRY(device->ops->native_open(&flights->native, device));
    TRY(device->ops->mark_open(&flights->behind, device));
    for (int i = 0; i < FLIGHTS; i++) {
        TRY(device->ops->mark_open(&flights->all[i].mark, device));
        flights->all[i].next = flights->free;
        flights->free = &flights->all[i];
    }
    return STATUS_OK;
}

void flights_close(struct ring_comm *comm)
{
    struct flights *flights = comm->flights;
    if (flights == NULL) return;
    const struct device_ops *ops = flights->device->ops;
    for (int i = 0; i < FLIGHTS; i++) {
        memory_free(&flights->all[i].stage, MEMORY_COMMUNICATION, flights->device);
        if (flights->all[i].mark != NULL) ops->mark_close(flights->all[i].mark, flights->device);
    }
    if (flights->behind != NULL) ops->mark_close(flights->behind, flights->device);
    if (flights->native != NULL) ops->native_close(flights->native, flights->device);
    free(flights);
    comm->flights = NULL;
}

enum status flights_follow(struct ring_comm *comm, struct stream *stream)
{
    pthread_mutex_lock(&comm->lock); /* two streams may call at once */
    enum status status = flights_open(comm);
    const struct flights *flights = comm->flights;
    const struct device_ops *ops = comm->device->ops;
    if (status == STATUS_OK) status = ops->mark_record(flights->behind, stream_native(stream), comm->device);
    if (status == STATUS_OK) status = ops->mark_wait(flights->behind, flights->native, comm->device);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

void *flights_native(const struct ring_comm *comm) { return comm->flights->native; }

bool flight_is_free(const struct ring_comm *comm) { return comm->flights->free != NULL; }

/* ---- one slice ---- */

/* Memory of this process that the device copies from or to. */
static struct span piece(const void *at, size_t bytes, enum memory_kind kind, const struct flights *flights)
{
    return (struct span){(void *)(uintptr_t)at, bytes, kind, kind == MEMORY_CUDA ? flights->device->index : 0};
}

static enum status copy(struct span to, struct span from, const struct flights *flights)
{
    if (from.bytes == 0) return STATUS_OK;
    return flights->device->ops->copy(to, from, flights->native, flights->device);
}

static enum status move_slice(const struct reduce_slice *at, size_t bytes, const struct step_end *end, const struct flights *flights)
{
    struct span from = at->own != NULL ? piece(at->own, bytes, MEMORY_CUDA, flights)
                                       : piece(at->wire, bytes, end->consumer->slots_kind, flights);
    if (at->out != NULL && at->out != from.ptr) {
        struct span out = piece(at->out, bytes, MEMORY_CUDA, flights);
        TRY(copy(out, from, flights));
        from = out;
    }
    if (at->slot == NULL) return STATUS_OK;
    return copy(piece(at->slot, bytes, end->producer->slots_kind, flights), from, flights);
}

/* Slots that kernels do not reach are exchanged for the flight's stage; `which` third of it. */
static enum status stage_of(void **stage, struct flight *flight, int which, const struct flights *flights)
{
    if (flight->stage.ptr == NULL)
        TRY(memory_alloc(&flight->stage, 3 * flights->slot_bytes, MEMORY_COMMUNICATION, flights->device));
    *stage = (unsigned char *)flight->stage.ptr + (size_t)which * flights->slot_bytes;
    return STATUS_OK;
}

static enum status stage_arrived(
    const void **at, const struct edge *edge, size_t bytes, struct flight *flight, int which, const struct flights *flights)
{
    void *stage = NULL;
    if (*at == NULL || edge->slots_kind == MEMORY_CUDA) return STATUS_OK;
    TRY(stage_of(&stage, flight, which, flights));
    TRY(copy(piece(stage, bytes, MEMORY_CUDA, flights), piece(*at, bytes, edge->slots_kind, flights), flights));
    *at = stage;
    return STATUS_OK;
}

static enum status compute_slice(enum reduce_kind kind, struct reduce_slice at, const struct reduction *reduction,
    struct flight *flight, const struct flights *flights)
{
    const struct step_end *end = &flight->end;
    void *slot = at.slot;
    bool staged = slot != NULL && end->producer->slots_kind != MEMORY_CUDA;
    TRY(stage_arrived(&at.wire, end->consumer, end->received_bytes, flight, 0, flights));
    TRY(stage_arrived(&at.joined, end->joined, end->received_bytes, flight, 1, flights));
    if (staged) TRY(stage_of(&at.slot, flight, 2, flights));
    TRY(reduce_do(flights->reduce, kind, &at, reduction, flights->native, flights->device));
    if (!staged) return STATUS_OK;
    return copy(piece(slot, end->sent_bytes, end->producer->slots_kind, flights),
        piece(at.slot, end->sent_bytes, MEMORY_CUDA, flights), flights);
}

static void hold(const struct step_end *end, int64_t more)
{
    if (end->consumer != NULL) end->consumer->in_hand += (uint64_t)more;
    if (end->joined != NULL) end->joined->in_hand += (uint64_t)more;
    if (end->producer != NULL) end->producer->in_hand += (uint64_t)more;
}

enum status flight_begin(struct operation *operation, int channel, enum primitive primitive, const struct slice *slice,
    const struct step_end *end)
{
    struct flights *flights = operation->comm->flights;
    struct flight *flight = flights->free;
    struct reduce_slice at = slice->at;
    enum reduce_kind kind = primitive_work(&at, primitive, reduce_scales(&operation->reduction));
    flight->operation = operation;
    flight->channel = channel;
    flight->end = *end;
    if (at.count > 0 && kind == REDUCE_COPY) TRY(move_slice(&at, slice->bytes, end, flights));
    else if (at.count > 0 && kind != REDUCE_NOTHING) TRY(compute_slice(kind, at, &operation->reduction, flight, flights));
    TRY(flights->device->ops->mark_record(flight->mark, flights->native, flights->device));
    flights->free = flight->next;
    flight->next = NULL;
    if (operation->youngest != NULL) operation->youngest->next = flight;
    else operation->oldest = flight;
    operation->youngest = flight;
    hold(end, 1);
    return STATUS_OK;
}

/* ---- the end of it ---- */

static void take_back(struct operation *operation)
{
    struct flights *flights = operation->comm->flights;
    struct flight *flight = operation->oldest;
    operation->oldest = flight->next;
    if (operation->oldest == NULL) operation->youngest = NULL;
    hold(&flight->end, -1);
    flight->next = flights->free;
    flights->free = flight;
}

enum status flights_land(struct operation *operation, bool *moved)
{
    while (operation->oldest != NULL) {
        struct flight *flight = operation->oldest;
        struct device *device = operation->comm->device;
        bool passed;
        TRY(device->ops->mark_passed(&passed, flight->mark, device));
        if (!passed) return STATUS_OK;
        struct step_end end = flight->end;
        take_back(operation);
        if (end.borrows) TRY(step_check_lent(&end, operation));
        step_finish(operation, flight->channel, &end);
        *moved = true;
    }
    return STATUS_OK;
}

void flights_abandon(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    int64_t until = clock_ns() + clock_ms_to_ns(comm->config.timeout_ms);
    struct timespec moment = {0, 100000};
    while (operation->oldest != NULL) {
        bool passed = false;
        enum status status = comm->device->ops->mark_passed(&passed, operation->oldest->mark, comm->device);
        if (passed || status != STATUS_OK) { /* a device that has failed does nothing any more */
            take_back(operation);
        } else if (clock_ns() < until) {
            nanosleep(&moment, NULL);
        } else {
            LOG_WARN("ring", "the device still works on a slice after %d ms: its buffers are given back all the same",
                comm->config.timeout_ms);
            return;
        }
    }
}
