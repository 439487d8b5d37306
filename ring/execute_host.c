/* execute_host: runs a plan on host memory: a non-blocking cursor over (block, step, slice). See operation.h for the order.
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
#include "ring/operation.h"
#include "ring/roll_call.h"
#include "ring/slice.h"
#include "ring/statement.h"
#include "ring/trace.h"
#include "ring/window.h"
#include "verbs/clock.h"

#define TILE ((size_t)4 << 10) /* bytes: a result is still in the first cache when it is copied on */

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
    struct slice_cut cut = slice_cut(
        largest, element, comm->one_memory, comm->config.slot_bytes, comm->config.slot_count);
    int root = 0;
    while (comm_rank_at(comm, channel, root) != operation->root) root++;
    *cursor = (struct cursor){
        .operation = operation,
        .plan = plan_make_two_level(operation->collective, comm->nranks, comm->host_ranks, comm->position[channel], root),
        .channel = channel,
        .edge_channel = collective_is_on_ring(operation->collective) ? channel : comm_direct_channel(comm),
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

/* One slice's operands. in, out: the caller's memory; wire: what arrived; joined: the sum of other hosts that did, or NULL; slot:
 * where what leaves is written. Partial sums may be wider than the caller's elements. */
struct slice {
    const unsigned char *in;
    unsigned char *out;
    const unsigned char *wire, *joined;
    unsigned char *slot;
    bool streaming;                  /* into the slot */
    size_t count, bytes;             /* in the caller's memory, */
    size_t received_bytes, sent_bytes; /* and on the wire */
};

/* Which elements of the caller's memory a step works on. A buffer that holds this rank's chunk alone begins with that chunk; chunks of others are not in it at all. */
static void slice_operands(
    struct slice *slice, const struct plan_step *step, const struct place *place, const struct cursor *cursor)
{
    const struct operation *operation = cursor->operation;
    int owner = comm_rank_at(operation->comm, cursor->channel, step->chunk);
    size_t element = dtype_bytes(operation->reduction.dtype), offset, chunk_begin, chunk_count;
    slice_extent(&offset, &slice->count, place, cursor, owner);
    slice->bytes = slice->count * element;
    size_t partial_bytes = slice->count * reduce_partial_bytes(&operation->reduction);
    slice->received_bytes = primitive_receives_partial(step->primitive) ? partial_bytes : slice->bytes;
    slice->sent_bytes = primitive_sends_partial(step->primitive, operation->collective) ? partial_bytes : slice->bytes;
    if (slice->count == 0) return; /* the caller's pointers may be NULL */
    operation_chunk(&chunk_begin, &chunk_count, operation, owner);
    bool mine = owner == operation->comm->rank;
    if (operation->send == NULL) slice->in = NULL; /* a receiver, or not the root */
    else if (!operation->send_is_chunk) slice->in = operation->send + offset * element;
    else if (mine) slice->in = operation->send + (offset - chunk_begin) * element;
    if (operation->recv == NULL) slice->out = NULL;
    else if (!operation->recv_is_chunk) slice->out = operation->recv + offset * element;
    else if (mine) slice->out = operation->recv + (offset - chunk_begin) * element;
}

static void copy_to_slot(const struct slice *slice, unsigned char *slot, const unsigned char *from, size_t bytes)
{
    if (slice->streaming) copy_streaming(slot, from, bytes);
    else copy_plain(slot, from, bytes);
}

static void copy_own(const struct slice *slice)
{
    if (slice->out != slice->in) copy_plain(slice->out, slice->in, slice->bytes);
}

/* wire ⊕ in, or joined ⊕ (wire ⊕ in), into `to` (out, or a tile of the slot), and on into the slot, tile by tile: memory is passed over once. */
static void reduce_slice(const struct operation *operation, const struct slice *slice, bool keep, bool send)
{
    const struct reduction *reduction = &operation->reduction;
    size_t element = dtype_bytes(reduction->dtype), partial = reduce_partial_bytes(reduction), tile_count = TILE / partial;
    _Alignas(64) unsigned char tile[TILE];
    bool staged = !keep && slice->streaming; /* a streaming store cannot be computed into in place */
    bool widened = keep && partial != element;   /* nor a sum into the place of its rounded self */
    for (size_t i = 0; i < slice->count; i += tile_count) {
        size_t count = slice->count - i < tile_count ? slice->count - i : tile_count;
        unsigned char *out = keep ? slice->out + i * element : NULL;
        unsigned char *slot = send ? slice->slot + i * (keep ? element : partial) : NULL;
        unsigned char *to = staged || widened ? tile : keep ? out : slot;
        reduce_combine(to, slice->wire + i * partial, slice->in + i * element, count, reduction);
        if (slice->joined != NULL) reduce_merge(to, slice->joined + i * partial, to, count, reduction);
        if (keep && reduce_finishes(reduction)) reduce_finish(out, to, count, reduction);
        if (keep) to = out;
        if (send && to != slot) copy_to_slot(slice, slot, to, count * (keep ? element : partial));
    }
}

/* True when what a step sends lies unchanged in the caller's memory, from where some transports can send it. */
static const unsigned char *sends_from(const struct operation *operation, enum primitive primitive, const struct slice *slice)
{
    switch (primitive) {
    case PRIMITIVE_SEND: return reduce_scales(&operation->reduction) ? NULL : slice->in;
    case PRIMITIVE_COPY_SEND:
    case PRIMITIVE_RECV_COPY_SEND:
    case PRIMITIVE_FORWARD:
    case PRIMITIVE_RECV_REDUCE_COPY_SEND: return slice->out;
    default: return NULL;
    }
}

/* slot NULL: the transport sends from the caller's memory, nothing is copied for it. */
static void primitive_run(const struct operation *operation, enum primitive primitive, const struct slice *slice)
{
    bool send = slice->slot != NULL;
    switch (primitive) {
    case PRIMITIVE_COPY: /* of one rank alone: its own input is the whole sum */
        if (reduce_scales(&operation->reduction))
            reduce_scale(slice->out, slice->in, slice->count, &operation->reduction);
        else copy_own(slice);
        break;
    case PRIMITIVE_SEND:
        if (reduce_scales(&operation->reduction))
            reduce_scale(slice->slot, slice->in, slice->count, &operation->reduction);
        else if (send) copy_to_slot(slice, slice->slot, slice->in, slice->bytes);
        break;
    case PRIMITIVE_COPY_SEND:
        copy_own(slice);
        if (send) copy_to_slot(slice, slice->slot, slice->in, slice->bytes);
        break;
    case PRIMITIVE_RECV:
        if (slice->out != slice->wire) copy_plain(slice->out, slice->wire, slice->bytes); /* else it has landed there */
        break;
    case PRIMITIVE_RECV_COPY_SEND:
        if (slice->out == slice->wire && !send) break;
        for (size_t at = 0; at < slice->bytes; at += TILE) {
            size_t bytes = slice->bytes - at < TILE ? slice->bytes - at : TILE;
            if (slice->out != slice->wire) copy_plain(slice->out + at, slice->wire + at, bytes);
            if (send) copy_to_slot(slice, slice->slot + at, slice->out + at, bytes);
        }
        break;
    case PRIMITIVE_FORWARD:
        if (send) copy_to_slot(slice, slice->slot, slice->out, slice->bytes);
        break;
    case PRIMITIVE_RECV_REDUCE_SEND: reduce_slice(operation, slice, false, true); break;
    case PRIMITIVE_RECV_REDUCE_COPY: reduce_slice(operation, slice, true, false); break;
    case PRIMITIVE_RECV_REDUCE_COPY_SEND: reduce_slice(operation, slice, true, send); break;
    case PRIMITIVE_NONE:
    case PRIMITIVE_COUNT: break;
    }
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
    if ((consumes ? fifo_ready(&(*edge)->fifo) : fifo_room(&(*edge)->fifo)) > 0) return true;
    cursor->waits_on = *edge;
    cursor->wait = consumes ? CURSOR_WAITS_DATA : CURSOR_WAITS_ROOM;
    return false;
}

/* Finds the edges of a step, and whether they have what it needs: data to read, room to write. */
static bool step_can_run(struct cursor *cursor, const struct plan_step *step)
{
    cursor->consumer = cursor->joined = cursor->producer = NULL;
    bool can = edge_can_go(&cursor->consumer, cursor, EDGE_CONSUMER, step->from) &&
               edge_can_go(&cursor->joined, cursor, EDGE_CONSUMER, step->joins) &&
               edge_can_go(&cursor->producer, cursor, EDGE_PRODUCER, step->to);
    if (can) cursor->wait = CURSOR_RUNNING;
    return can;
}

/* What has arrived from a position, after its checks; still in its slot. */
static enum status slice_arrived(const unsigned char **data, struct edge *edge, int position, size_t bytes, const struct cursor *cursor)
{
    const struct ring_comm *comm = cursor->operation->comm;
    struct fifo_record record = fifo_record(&edge->fifo);
    int from = comm_rank_at(comm, cursor->channel, position);
    TRY(operation_check_slice(cursor->operation, from, record.tag, record.bytes, bytes));
    if (record.address != 0 && edge->transport->peer_reads_slots) /* of another process: not to be followed */
        return FAIL(STATUS_DATA, "rank %d: rank %d sent an address over %s, expected data in its slot",
            comm_name(comm, comm->rank), comm_name(comm, from), edge->transport->name);
    *data = fifo_data(&edge->fifo, &record);
    return STATUS_OK;
}

static void slice_free(struct edge *edge, size_t bytes, struct operation *operation)
{
    fifo_free(&edge->fifo);
    edge_notify(edge);
    operation->received_bytes += bytes;
}

static void slice_post(const struct plan_step *step, const struct slice *slice, uint64_t address, struct cursor *cursor)
{
    struct operation *operation = cursor->operation;
    const struct ring_comm *comm = operation->comm;
    if (slice->streaming) streaming_fence();
    fifo_post(&cursor->producer->fifo, slice->sent_bytes, operation->tag, address);
    edge_notify(cursor->producer);
    operation->sent_bytes += slice->sent_bytes;
    if (!comm_on_this_host(comm, comm_rank_at(comm, cursor->channel, step->to))) operation->border_bytes += slice->sent_bytes;
}

static enum status step_run(struct operation *operation, struct cursor *cursor, const struct plan_step *step)
{
    struct slice slice = {0};
    slice_operands(&slice, step, &cursor->at, cursor);
    if (step->from >= 0) TRY(slice_arrived(&slice.wire, cursor->consumer, step->from, slice.received_bytes, cursor));
    if (step->joins >= 0) TRY(slice_arrived(&slice.joined, cursor->joined, step->joins, slice.received_bytes, cursor));
    uint64_t address = 0;
    if (step->to >= 0) {
        const struct transport *transport = cursor->producer->transport;
        const unsigned char *from = sends_from(operation, step->primitive, &slice);
        if (transport->reads_address && slice.sent_bytes > 0) address = (uint64_t)(uintptr_t)from;
        if (address == 0) slice.slot = fifo_slot(&cursor->producer->fifo);
        slice.streaming = operation->streaming && transport->peer_reads_slots;
    }
    if (slice.count > 0) primitive_run(operation, step->primitive, &slice);
    if (step->from >= 0) slice_free(cursor->consumer, slice.received_bytes, operation);
    if (step->joins >= 0) slice_free(cursor->joined, slice.received_bytes, operation);
    if (step->to >= 0) slice_post(step, &slice, address, cursor);
    return STATUS_OK;
}

static enum status progress_step_edges(struct cursor *cursor, bool *moved)
{
    if (cursor->consumer != NULL) TRY(edge_progress(cursor->consumer, moved));
    if (cursor->joined != NULL) TRY(edge_progress(cursor->joined, moved));
    if (cursor->producer != NULL) TRY(edge_progress(cursor->producer, moved));
    return STATUS_OK;
}

/* What has just been done, for whoever watches. */
static void cursor_trace(struct trace *trace, int64_t begin_ns, const struct plan_step *step, const struct cursor *cursor)
{
    const struct operation *operation = cursor->operation;
    const struct ring_comm *comm = operation->comm;
    struct slice slice = {0};
    slice_operands(&slice, step, &cursor->at, cursor);
    struct trace_event event = {
        .bytes = slice.bytes,
        .slice = cursor->at.block + cursor->at.slice,
        .sequence = (uint32_t)operation->sequence,
        .step = cursor->at.step,
        .chunk = step->chunk,
        .from = step->from >= 0 ? comm_rank_at(comm, cursor->channel, step->from) : -1,
        .to = step->to >= 0 ? comm_rank_at(comm, cursor->channel, step->to) : -1,
        .joins = step->joins >= 0 ? comm_rank_at(comm, cursor->channel, step->joins) : -1,
        .collective = (uint8_t)operation->collective,
        .primitive = (uint8_t)step->primitive,
    };
    trace_step(trace, cursor->channel, begin_ns, &event);
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
        int64_t begin_ns = trace_now(trace);
        TRY(step_run(operation, cursor, &step));
        if (trace != NULL) cursor_trace(trace, begin_ns, &step, cursor);
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
        return kept && bytes == slice.bytes && tag == operation->tag ? slice.out : NULL;
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

static enum status begin_plan(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    bool on_ring = collective_is_on_ring(operation->collective);
    int neighbours = !on_ring ? 2 * comm->nranks : (comm->host_ranks > 1 ? 4 : 2) * comm->config.channels;
    int most = neighbours + 2 * roll_call_rounds(comm->nranks);
    operation->cursor_count = on_ring ? comm->config.channels : 1;
    operation->edges = operation->room->edges;
    if (most > OPERATION_ROOM_EDGES)
        operation->edges = calloc((size_t)most, sizeof *operation->edges);
    if (operation->edges == NULL) return FAIL(STATUS_SYSTEM, "no memory for %d edges", most);
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        cursor_begin(&operation->room->cursors[channel], operation, channel);
        TRY(open_edges(&operation->room->cursors[channel]));
        offer_landings(&operation->room->cursors[channel]);
    }
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
    for (int e = 0; e < operation->edge_count; e++) operation->edges[e]->landing = NULL;
    if (operation->edges != NULL && operation->edges != operation->room->edges) free(operation->edges);
    operation->edges = NULL;
    operation->edge_count = 0;
}

static enum status advance_plan(struct operation *operation, bool *moved, bool *done)
{
    for (int e = 0; e < operation->edge_count; e++) TRY(edge_progress(operation->edges[e], moved));
    bool ended;
    TRY(roll_call_advance(operation, moved, &ended));
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        struct cursor *cursor = &operation->room->cursors[channel];
        TRY(cursor_advance(operation, cursor, moved));
        ended = ended && cursor->wait == CURSOR_DRAINING;
    }
    for (int e = 0; e < operation->edge_count && ended; e++) ended = edge_drained(operation->edges[e]);
    *done = ended;
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
