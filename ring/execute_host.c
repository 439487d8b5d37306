/* execute_host: the host runs a plan: a non-blocking cursor over (block, step, slice). See operation.h for the order. On host memory it
 * does the work of a step itself; on a device's it enqueues it, and the step ends when the device has done it (flight.h).
 *
 * This file knows what a primitive does with a slice; plan.c decides which primitive, transports move the bytes, and
 * progress.c waits. Invariant I2: no value here depends on transport, slots or timing.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/exchange.h"
#include "ring/flight.h"
#include "ring/kernel_host.h"
#include "ring/operation.h"
#include "ring/primitive.h"
#include "ring/reach.h"
#include "ring/roll_call.h"
#include "ring/slice.h"
#include "ring/statement.h"
#include "ring/trace.h"
#include "ring/window.h"
#include "verbs/clock.h"

#define CACHE_BYTES ((size_t)32 << 20) /* of a whole buffer: what is kept of a larger one is not wanted in this core's cache */

/* ---- how the buffer is cut ---- */

static size_t largest_chunk(const struct operation *operation)
{
    size_t begin, largest;
    operation_chunk(&begin, &largest, operation, 0); /* of an even split no chunk is larger than the first */
    for (int c = 1; operation->begins != NULL && c < operation->reduction.nranks; c++) {
        size_t count;
        operation_chunk(&begin, &count, operation, c);
        if (count > largest) largest = count;
    }
    return largest;
}

static size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

static void cursor_begin(struct cursor *cursor, struct operation *operation, int channel)
{
    const struct ring_comm *comm = operation->comm;
    size_t element = reduce_partial_bytes(&operation->reduction); /* the widest that travels */
    size_t largest = divide_up(largest_chunk(operation), (size_t)operation->cursor_count);
    bool on_ring = collective_is_on_ring(operation->collective), on_host_ring = on_ring && !operation->on_device;
    size_t slot_bytes = on_host_ring ? comm_ring_slot_bytes(comm) : comm->config.slot_bytes;
    enum slice_kind kind = on_host_ring && comm->nranks >= SLICE_RELAY_RANKS && comm->on_loopback ? SLICE_RELAY : SLICE_MESSAGE;
    if (comm->one_memory && !operation->on_device) kind = SLICE_MEMORY;
    struct slice_cut cut = slice_cut(largest, element, kind, slot_bytes, comm->config.slot_count);
    operation->by_lines = kernel_takes_lines(largest * element, operation);
    if (operation->by_lines) cut = (struct slice_cut){largest, 1};
    int root = 0;
    while (comm_rank_at(comm, channel, root) != operation->root) root++;
    *cursor = (struct cursor){
        .operation = operation,
        .plan = plan_make_two_level(operation->collective, comm->nranks, comm->host_ranks, comm->position[channel], root),
        .channel = channel,
        .edge_channel = comm_edge_channel(comm, on_ring ? channel : -1, operation->on_device),
        .slice_count = cut.slice_count,
        .slices = cut.slices,
        .waits_for = -1,
    };
}

/* The next (block, step, slice); false after the last. */
static bool place_next(struct place *place, const struct cursor *cursor)
{
    size_t left = cursor->slices - place->block, in_flight = cursor->operation->comm->config.slot_count / 2;
    size_t in_block = left < in_flight ? left : in_flight;
    if (++place->slice < in_block) return true;
    place->slice = 0;
    if (++place->step < cursor->plan.steps) return true;
    place->step = 0;
    place->block += in_block;
    return place->block < cursor->slices;
}

/* The part of chunk c that the slice at a place covers: offset in elements from the buffer's begin, and how many, perhaps none. */
static void slice_extent(
    size_t *offset, size_t *count, const struct place *place, const struct cursor *cursor, int c)
{
    const struct operation *operation = cursor->operation;
    int channels = operation->cursor_count;
    size_t chunk_begin, chunk_count;
    operation_chunk(&chunk_begin, &chunk_count, operation, c);
    size_t begin = ring_chunk_begin(chunk_count, channels, cursor->channel);
    size_t end = ring_chunk_begin(chunk_count, channels, cursor->channel + 1);
    size_t skip = (place->block + place->slice) * cursor->slice_count;
    begin = skip < end - begin ? begin + skip : end;
    *offset = chunk_begin + begin;
    *count = end - begin < cursor->slice_count ? end - begin : cursor->slice_count;
}

/* ---- what a primitive does with one slice ---- */

void slice_operands(
    struct slice *slice, const struct plan_step *step, const struct place *place, const struct cursor *cursor)
{
    const struct operation *operation = cursor->operation;
    int owner = comm_rank_at(operation->comm, cursor->channel, step->chunk);
    size_t element = dtype_bytes(operation->reduction.dtype), offset, chunk_begin, chunk_count;
    slice_extent(&offset, &slice->at.count, place, cursor, owner);
    slice->bytes = slice->at.count * element;
    size_t partial_bytes = slice->at.count * reduce_partial_bytes(&operation->reduction);
    slice->received_bytes = primitive_receives_partial(step->primitive) ? partial_bytes : slice->bytes;
    slice->sent_bytes = primitive_sends_partial(step->primitive, operation->collective) ? partial_bytes : slice->bytes;
    if (slice->at.count == 0) return; /* the caller's pointers may be NULL */
    operation_chunk(&chunk_begin, &chunk_count, operation, owner);
    bool mine = owner == operation->comm->rank;
    if (operation->send == NULL) slice->at.own = NULL; /* a receiver, or not the root */
    else if (!operation->send_is_chunk) slice->at.own = operation->send + offset * element;
    else if (mine) slice->at.own = operation->send + (offset - chunk_begin) * element;
    if (operation->recv == NULL) slice->at.out = NULL;
    else if (!operation->recv_is_chunk) slice->at.out = operation->recv + offset * element;
    else if (mine) slice->at.out = operation->recv + (offset - chunk_begin) * element;
}

/* True when what a step sends lies unchanged in the caller's memory, from where some transports can send it. */
static const unsigned char *sends_from(const struct operation *operation, enum primitive primitive, const struct slice *slice)
{
    switch (primitive) {
    case PRIMITIVE_SEND: return reduce_scales(&operation->reduction) ? NULL : slice->at.own;
    case PRIMITIVE_COPY_SEND: return operation->passes_cache ? slice->at.own : slice->at.out;
    case PRIMITIVE_RECV_COPY_SEND:
    case PRIMITIVE_FORWARD:
    case PRIMITIVE_RECV_REDUCE_COPY_SEND: return slice->at.out;
    default: return NULL;
    }
}

uint64_t step_reference(const struct slice *slice, const struct plan_step *step, const struct edge *producer, const struct cursor *cursor)
{
    const struct operation *operation = cursor->operation;
    const unsigned char *from = sends_from(operation, step->primitive, slice);
    bool reads = producer->transport == &transport_cuda_ipc && producer->slots_kind == MEMORY_CUDA;
    if (from == NULL || !reads || !collective_is_on_ring(operation->collective)) return 0;
    return reach_reference(from, slice->sent_bytes, comm_rank_at(operation->comm, cursor->channel, step->to), operation->comm);
}

/* ---- the cursor ---- */

/* One of a step's edges, and whether it has what the step needs; else what the cursor waits for. */
static bool edge_can_go(struct edge **edge, struct cursor *cursor, enum edge_side side, int position)
{
    const struct ring_comm *comm = cursor->operation->comm;
    if (position < 0) return true;
    int rank = comm_rank_at(comm, cursor->channel, position);
    bool consumes = side == EDGE_CONSUMER;
    *edge = *comm_edge_place(cursor->edge_channel, side, rank, comm);
    cursor->waits_for = rank;
    struct fifo *fifo = &(*edge)->fifo;
    uint64_t hand = (*edge)->in_hand;
    if ((consumes ? fifo_ready_beyond(fifo, hand) : fifo_room_beyond(fifo, hand)) > 0) return true;
    cursor->waits_on = *edge;
    cursor->wait = consumes ? CURSOR_WAITS_DATA : CURSOR_WAITS_ROOM;
    return false;
}

/* Finds the edges of a step, and whether they have what it needs: data to read, room to write. */
static bool step_can_run(struct cursor *cursor, const struct plan_step *step)
{
    cursor->consumer = cursor->joined = cursor->producer = NULL;
    if (cursor->operation->on_device && !flight_is_free(cursor->operation->comm)) return false;
    bool can = edge_can_go(&cursor->consumer, cursor, EDGE_CONSUMER, step->from) &&
               edge_can_go(&cursor->joined, cursor, EDGE_CONSUMER, step->joins) &&
               edge_can_go(&cursor->producer, cursor, EDGE_PRODUCER, step->to);
    if (can) cursor->wait = CURSOR_RUNNING;
    return can;
}

/* What has arrived from a position, after its checks; still in its slot. */
static enum status slice_arrived(const void **data, struct edge *edge, int position, size_t bytes, const struct cursor *cursor)
{
    const struct ring_comm *comm = cursor->operation->comm;
    struct fifo_record record = fifo_record_beyond(&edge->fifo, edge->in_hand);
    int from = comm_rank_at(comm, cursor->channel, position);
    TRY(operation_check_slice(cursor->operation, from, record.tag, record.bytes, bytes));
    if (record.address != 0 && (edge->transport->peer_reads_slots || cursor->operation->on_device)) /* of another process: not to be followed */
        return FAIL(STATUS_DATA, "rank %d: rank %d sent an address over %s, expected data in its slot",
            comm_name(comm, comm->rank), comm_name(comm, from), edge->transport->name);
    if (record.reference != 0 && edge->transport == &transport_cuda_ipc) {
        *data = reach_data(record.reference, bytes, reach_regions(from, comm));
        if (*data != NULL) return STATUS_OK;
        return FAIL(STATUS_DATA, "rank %d: rank %d refers to data at %llx of its memory, expected a place in what it shares",
            comm_name(comm, comm->rank), comm_name(comm, from), (unsigned long long)record.reference);
    }
    *data = record.address != 0 ? fifo_data(&edge->fifo, &record) : fifo_slot_beyond(&edge->fifo, edge->in_hand);
    return STATUS_OK;
}

struct trace_event step_event(
    size_t bytes, const struct plan_step *step, const struct place *at, const struct cursor *cursor)
{
    const struct operation *operation = cursor->operation;
    const struct ring_comm *comm = operation->comm;
    return (struct trace_event){
        .bytes = bytes,
        .slice = at->block + at->slice,
        .sequence = (uint32_t)operation->sequence,
        .step = at->step,
        .chunk = step->chunk,
        .from = step->from >= 0 ? comm_rank_at(comm, cursor->channel, step->from) : -1,
        .to = step->to >= 0 ? comm_rank_at(comm, cursor->channel, step->to) : -1,
        .joins = step->joins >= 0 ? comm_rank_at(comm, cursor->channel, step->joins) : -1,
        .collective = (uint8_t)operation->collective,
        .primitive = (uint8_t)step->primitive,
    };
}

static void slice_free(struct edge *edge, size_t bytes, struct operation *operation)
{
    if (edge == NULL) return;
    fifo_free(&edge->fifo);
    edge_notify(edge);
    operation->received_bytes += bytes;
}

void step_finish(struct operation *operation, int channel, const struct step_end *end)
{
    slice_free(end->consumer, end->received_bytes, operation);
    slice_free(end->joined, end->received_bytes, operation);
    if (end->producer != NULL) {
        if (end->streaming) streaming_fence();
        if (operation->on_device) fifo_post_reference(&end->producer->fifo, end->sent_bytes, operation->tag, end->reference);
        else fifo_post(&end->producer->fifo, end->sent_bytes, operation->tag, end->address);
        edge_notify(end->producer);
        operation->sent_bytes += end->sent_bytes;
        if (end->leaves_host) operation->border_bytes += end->sent_bytes;
    }
    if (operation->comm->trace != NULL) trace_step(operation->comm->trace, channel, end->begin_ns, &end->event);
}

enum status step_check_lent(const struct step_end *end, const struct operation *operation)
{
    const struct edge *edges[] = {end->consumer, end->joined};
    for (int i = 0; i < 2; i++)
        if (edges[i] != NULL && fifo_tag_after(&edges[i]->fifo) != operation->tag)
            return FAIL(STATUS_PEER, "rank %d gave up while its memory was read", edges[i]->config.peer);
    return STATUS_OK;
}

/* Whether what arrived is not in its slot. */
static bool borrows(const void *data, const struct edge *edge)
{
    return edge != NULL && data != NULL && data != fifo_slot_beyond(&edge->fifo, edge->in_hand);
}

/* Which edges the step uses, and how. */
static struct step_end step_prepare(struct slice *slice, const struct plan_step *step, struct cursor *cursor)
{
    const struct operation *operation = cursor->operation;
    const struct ring_comm *comm = operation->comm;
    struct edge *producer = cursor->producer;
    struct step_end end = {.consumer = cursor->consumer, .joined = cursor->joined, .producer = producer,
        .received_bytes = slice->received_bytes, .sent_bytes = slice->sent_bytes};
    if (producer == NULL) return end;
    const unsigned char *from = sends_from(operation, step->primitive, slice);
    bool by_address = producer->transport->reads_address && !operation->on_device && slice->sent_bytes > 0;
    if (by_address) end.address = (uint64_t)(uintptr_t)from;
    if (operation->on_device) end.reference = step_reference(slice, step, producer, cursor);
    if (end.address == 0 && end.reference == 0) slice->at.slot = fifo_slot_beyond(&producer->fifo, producer->in_hand);
    end.streaming = slice->at.streaming = operation->streaming && producer->transport->peer_reads_slots;
    end.leaves_host = !comm_on_this_host(comm, comm_rank_at(comm, cursor->channel, step->to));
    return end;
}

/* On the host a step ends here; on a device later, in flights_land(). */
static enum status step_run(struct operation *operation, struct cursor *cursor, const struct plan_step *step)
{
    struct slice slice = {0};
    struct trace *trace = operation->comm->trace;
    int64_t begin_ns = trace_now(trace);
    slice_operands(&slice, step, &cursor->at, cursor);
    slice.at.passes_cache = operation->passes_cache;
    if (step->from >= 0) TRY(slice_arrived(&slice.at.wire, cursor->consumer, step->from, slice.received_bytes, cursor));
    if (step->joins >= 0) TRY(slice_arrived(&slice.at.joined, cursor->joined, step->joins, slice.received_bytes, cursor));
    struct step_end end = step_prepare(&slice, step, cursor);
    operation->lends = operation->lends || end.reference != 0;
    end.borrows = operation->on_device && (borrows(slice.at.wire, end.consumer) || borrows(slice.at.joined, end.joined));
    if (trace != NULL) {
        end.begin_ns = begin_ns;
        end.event = step_event(slice.bytes, step, &cursor->at, cursor);
    }
    if (operation->on_device) return flight_begin(operation, cursor->channel, step->primitive, &slice, &end);
    enum reduce_kind kind = primitive_work(&slice.at, step->primitive, reduce_scales(&operation->reduction));
    if (slice.at.count > 0) TRY(reduce_do(&reduce_host_ops, kind, &slice.at, &operation->reduction, NULL, NULL));
    step_finish(operation, cursor->channel, &end);
    return STATUS_OK;
}

static enum status progress_step_edges(struct cursor *cursor, bool *moved)
{
    if (cursor->consumer != NULL) TRY(edge_progress(cursor->consumer, moved));
    if (cursor->joined != NULL) TRY(edge_progress(cursor->joined, moved));
    if (cursor->producer != NULL) TRY(edge_progress(cursor->producer, moved));
    return STATUS_OK;
}

static enum status cursor_advance(struct operation *operation, struct cursor *cursor, bool *moved)
{
    struct trace *trace = operation->comm->trace;
    while (cursor->wait != CURSOR_DRAINING) {
        struct plan_step step = plan_step_at(&cursor->plan, cursor->at.step);
        if (!step_can_run(cursor, &step)) {
            if (trace != NULL)
                trace_wait(trace, cursor->wait == CURSOR_WAITS_DATA ? TRACE_WAIT_DATA : TRACE_WAIT_ROOM, cursor->channel);
            break;
        }
        TRY(step_run(operation, cursor, &step));
        *moved = true;
        if (!place_next(&cursor->at, cursor)) cursor->wait = CURSOR_DRAINING;
        /* Staged slices should be under way while the next one is computed. */
        TRY(progress_step_edges(cursor, moved));
    }
    return STATUS_OK;
}

/* ---- the operation ---- */

/* Tells a consumer's edge where a coming slice belongs, so that a transport that receives into memory puts it there at once.
 * The edge asks for its steps in order; those of the slices that are only kept get their place in out, which nobody reads
 * before they arrive: a complete chunk cannot come before this rank's own part of it has left. What comes after the last slice is
 * the next operation's: in a slot it would have to be copied. */
static void *cursor_land(void *context, uint64_t edge_step, uint64_t bytes, uint64_t tag)
{
    struct cursor_landing *landing = context;
    struct cursor *cursor = landing->cursor;
    struct operation *operation = cursor->operation;
    bool more = true;
    for (; more && landing->ahead.block < cursor->slices; more = place_next(&landing->ahead, cursor)) {
        struct plan_step step = plan_step_at(&cursor->plan, landing->ahead.step);
        bool comes = step.from == landing->from || step.joins == landing->from;
        if (!comes || landing->ahead_step++ != edge_step) continue;
        struct slice slice = {0};
        slice_operands(&slice, &step, &landing->ahead, cursor);
        place_next(&landing->ahead, cursor);
        bool kept = step.primitive == PRIMITIVE_RECV || step.primitive == PRIMITIVE_RECV_COPY_SEND;
        return kept && bytes == slice.bytes && tag == operation->tag ? slice.at.out : NULL;
    }
    return EDGE_LATER;
}

/* Edges of all steps, each once, in operation->edges; both sides' offers are out before anyone waits for one. */
static enum status open_edge(struct cursor *cursor, enum edge_side side, int position)
{
    struct operation *operation = cursor->operation;
    struct edge *edge;
    if (position < 0) return STATUS_OK;
    int peer = comm_rank_at(operation->comm, cursor->channel, position);
    TRY(comm_edge(&edge, cursor->edge_channel, side, peer, operation->comm));
    for (int e = 0; e < operation->edge_count; e++)
        if (operation->edges[e] == edge) return STATUS_OK;
    operation->edges[operation->edge_count++] = edge;
    if (side == EDGE_PRODUCER) return STATUS_OK;
    if (cursor->consumers < CURSOR_LANDINGS)
        cursor->landings[cursor->consumers] = (struct cursor_landing){.cursor = cursor, .from = position,
            .ahead_step = edge->fifo.step}; /* all older operations have consumed theirs */
    cursor->consumers++;
    return STATUS_OK;
}

/* On a ring the first steps have both neighbours, in two levels the first rounds those of both rings; all steps are looked at for
 * direct plans only. */
static enum status open_edges(struct cursor *cursor)
{
    struct operation *operation = cursor->operation;
    const struct plan *plan = &cursor->plan;
    int known = operation->edge_count, most = plan->host_ranks > 1 ? 4 : 2;
    bool direct = !collective_is_on_ring(operation->collective);
    for (int i = 0; i < plan->steps && (direct || operation->edge_count - known < most); i++) {
        struct plan_step step = plan_step_at(plan, i);
        TRY(open_edge(cursor, EDGE_CONSUMER, step.from));
        TRY(open_edge(cursor, EDGE_CONSUMER, step.joins));
        TRY(open_edge(cursor, EDGE_PRODUCER, step.to));
    }
    return STATUS_OK;
}

/* A cursor that consumes from few edges tells them where slices belong. */
static void offer_landings(struct cursor *cursor)
{
    const struct ring_comm *comm = cursor->operation->comm;
    for (int i = 0; i < cursor->consumers && cursor->consumers <= CURSOR_LANDINGS; i++) {
        int rank = comm_rank_at(comm, cursor->channel, cursor->landings[i].from);
        struct edge *edge = *comm_edge_place(cursor->edge_channel, EDGE_CONSUMER, rank, comm);
        edge->landing_context = &cursor->landings[i];
        edge->landing = cursor_land;
    }
}

static bool writes_shared_slots(const struct operation *operation)
{
    for (int e = 0; e < operation->edge_count; e++)
        if (operation->edges[e]->config.side == EDGE_PRODUCER && operation->edges[e]->transport->peer_reads_slots) return true;
    return false;
}

static enum status open_flights(struct ring_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    enum status status = flights_open(comm);
    pthread_mutex_unlock(&comm->lock);
    return status == STATUS_OK && comm->kernels ? kernel_prepare(comm) : status;
}

static enum status begin_plan(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    bool on_ring = collective_is_on_ring(operation->collective);
    int neighbours = !on_ring ? 2 * comm->nranks : (comm->host_ranks > 1 ? 4 : 2) * comm->config.channels;
    int most = neighbours + 2 * roll_call_rounds(comm->nranks);
    operation->cursor_count = on_ring ? comm->config.channels : 1;
    operation->edges = operation->room->edges;
    if (operation->on_device) TRY(open_flights(comm));
    if (most > OPERATION_ROOM_EDGES)
        operation->edges = calloc((size_t)most, sizeof *operation->edges);
    if (operation->edges == NULL) return FAIL(STATUS_SYSTEM, "no memory for %d edges", most);
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        cursor_begin(&operation->room->cursors[channel], operation, channel);
        TRY(open_edges(&operation->room->cursors[channel]));
        if (!operation->on_device) offer_landings(&operation->room->cursors[channel]);
    }
    if (operation->on_device) {
        operation->kernel = kernel_is_wanted(operation) ? KERNEL_WAITS : KERNEL_OFF;
        return STATUS_OK;
    }
    size_t chunks = operation->stride > 0 ? (size_t)comm->nranks : 1;
    operation->passes_cache = chunks * operation->count * dtype_bytes(operation->reduction.dtype) > CACHE_BYTES;
    operation->slots_are_shared = writes_shared_slots(operation);
    if (!operation->slots_are_shared) return STATUS_OK;
    pthread_mutex_lock(&comm->lock);
    operation->streaming = stores_choose(&comm->stores[operation->collective], operation->count * dtype_bytes(operation->reduction.dtype));
    pthread_mutex_unlock(&comm->lock);
    return STATUS_OK;
}

enum status operation_begin(struct operation *operation)
{
    operation->begun = true;
    operation->tag = operation_tag(operation);
    statement_remember(operation);
    if (operation->exchanges) return exchange_begin(operation);
    TRY(operation->windows ? window_begin(operation) : begin_plan(operation));
    return roll_call_wanted(operation) ? roll_call_begin(operation) : STATUS_OK;
}

void operation_end(struct operation *operation)
{
    if (operation->windows) window_end(operation);
    kernel_abandon(operation);
    flights_abandon(operation);
    for (int e = 0; e < operation->edge_count; e++) /* none where it ended well */
        if (operation_is_read(operation, operation->edges[e])) fifo_take_back(&operation->edges[e]->fifo, REACH_TAKEN_BACK);
    for (int e = 0; e < operation->edge_count; e++) operation->edges[e]->landing = NULL;
    if (operation->edges != NULL && operation->edges != operation->room->edges) free(operation->edges);
    operation->edges = NULL;
    operation->edge_count = 0;
}

static enum status advance_plan(struct operation *operation, bool *moved, bool *done)
{
    for (int e = 0; e < operation->edge_count; e++) TRY(edge_progress(operation->edges[e], moved));
    bool ended;
    TRY(flights_land(operation, moved));
    TRY(roll_call_advance(operation, moved, &ended));
    if (operation->kernel != KERNEL_OFF) {
        bool settled;
        TRY(kernel_advance(operation, moved, &settled));
        ended = ended && settled;
    }
    for (int channel = 0; channel < operation->cursor_count && operation->kernel == KERNEL_OFF; channel++) {
        struct cursor *cursor = &operation->room->cursors[channel];
        TRY(cursor_advance(operation, cursor, moved));
        ended = ended && cursor->wait == CURSOR_DRAINING && operation->oldest == NULL;
    }
    for (int e = 0; e < operation->edge_count && ended; e++) ended = edge_drained(operation->edges[e]);
    if (ended && operation->passes_cache) streaming_fence();
    *done = ended && operation_reader(operation) == NULL;
    return STATUS_OK;
}

/* The roll call's messages are lines, the windows' records: they do not meet on an edge. */
static enum status advance_windows(struct operation *operation, bool *moved, bool *done)
{
    bool called;
    TRY(roll_call_advance(operation, moved, &called));
    TRY(window_advance(operation, moved, done));
    *done = *done && called;
    return STATUS_OK;
}

enum status operation_advance(struct operation *operation, bool *moved, bool *done)
{
    if (operation->exchanges) return exchange_advance(operation, moved, done);
    return operation->windows ? advance_windows(operation, moved, done) : advance_plan(operation, moved, done);
}
