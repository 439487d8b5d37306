/* execute_host: runs a plan on host memory: a non-blocking cursor over (block, step, slice). See operation.h for the order.
 *
 * This file knows what a primitive does with a slice; plan.c decides which primitive, transports move the bytes, and
 * progress.c waits. Invariant I2: no value here depends on transport, slots or timing.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/operation.h"
#include "verbs/clock.h"

#define SMALLEST_SLICE ((size_t)16 << 10) /* bytes: below, cutting a chunk into slices costs more than it overlaps */
#define TILE           ((size_t)4 << 10)  /* bytes: a result is still in the first cache when it is copied on */

/* ---- how the buffer is cut ---- */

void operation_chunk(size_t *begin, size_t *count, const struct operation *operation, int c)
{
    int n = operation->reduction.nranks;
    if (operation->collective == COLLECTIVE_BROADCAST) {
        *begin = 0;
        *count = operation->count;
    } else if (operation->stride == 0) {
        *begin = ring_chunk_begin(operation->count, n, c);
        *count = ring_chunk_begin(operation->count, n, c + 1) - *begin;
    } else {
        *begin = (size_t)c * operation->stride;
        *count = operation->count;
    }
}

static size_t largest_chunk(const struct operation *operation)
{
    size_t begin, count;
    operation_chunk(&begin, &count, operation, 0); /* the first is never smaller than the others */
    return count;
}

static size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

static void cursor_begin(struct cursor *cursor, struct operation *operation, int channel)
{
    const struct ring_comm *comm = operation->comm;
    size_t element = dtype_bytes(operation->reduction.dtype);
    size_t largest = divide_up(largest_chunk(operation), (size_t)comm->config.channels);
    size_t in_flight = comm->config.slot_count / 2;

    size_t bytes = divide_up(largest * element, in_flight); /* a small chunk still overlaps with itself */
    if (bytes < SMALLEST_SLICE) bytes = SMALLEST_SLICE;
    if (bytes > comm->config.slot_bytes) bytes = comm->config.slot_bytes;
    bytes = divide_up(bytes, 64) * 64;

    int root = 0;
    while (comm_rank_at(comm, channel, root) != operation->root) root++;
    *cursor = (struct cursor){
        .operation = operation,
        .plan = plan_make(operation->collective, comm->nranks, comm->position[channel], root),
        .channel = channel,
        .slice_count = bytes / element,
        .slices = largest == 0 ? 1 : divide_up(largest, bytes / element),
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
    int channels = operation->comm->config.channels;
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

/* One slice's operands. in, out: the caller's memory; wire: what arrived; slot: where what leaves is written. */
struct slice {
    const unsigned char *in;
    unsigned char *out;
    const unsigned char *wire;
    unsigned char *slot;
    size_t count, bytes;
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
    if (slice->count == 0) return; /* the caller's pointers may be NULL */
    operation_chunk(&chunk_begin, &chunk_count, operation, owner);
    bool mine = owner == operation->comm->rank;
    if (!operation->send_is_chunk) slice->in = operation->send + offset * element;
    else if (mine) slice->in = operation->send + (offset - chunk_begin) * element;
    if (!operation->recv_is_chunk) slice->out = operation->recv + offset * element;
    else if (mine) slice->out = operation->recv + (offset - chunk_begin) * element;
}

static void copy_to_slot(const struct operation *operation, unsigned char *slot, const unsigned char *from, size_t bytes)
{
    if (operation->streaming) copy_streaming(slot, from, bytes);
    else copy_plain(slot, from, bytes);
}

static void copy_own(const struct slice *slice)
{
    if (slice->out != slice->in) copy_plain(slice->out, slice->in, slice->bytes);
}

/* wire ⊕ in into `to` (out, or a tile of the slot), and on into the slot, tile by tile: memory is passed over once. */
static void reduce_slice(const struct operation *operation, const struct slice *slice, bool keep, bool send)
{
    const struct reduction *reduction = &operation->reduction;
    size_t element = dtype_bytes(reduction->dtype), tile_count = TILE / element;
    _Alignas(64) unsigned char tile[TILE];
    bool staged = !keep && operation->streaming; /* a streaming store cannot be computed into in place */
    for (size_t i = 0; i < slice->count; i += tile_count) {
        size_t count = slice->count - i < tile_count ? slice->count - i : tile_count, at = i * element;
        unsigned char *to = keep ? slice->out + at : staged ? tile : slice->slot + at;
        reduce_combine(to, slice->wire + at, slice->in + at, count, reduction);
        if (keep && reduce_finishes(reduction)) reduce_finish(to, count, reduction);
        if (send && to != slice->slot + at) copy_to_slot(operation, slice->slot + at, to, count * element);
    }
}

/* True when what a step sends lies unchanged in the caller's memory, from where some transports can send it. */
static const unsigned char *sends_from(const struct operation *operation, enum primitive primitive, const struct slice *slice)
{
    switch (primitive) {
    case PRIMITIVE_SEND: return reduce_scales(&operation->reduction) ? NULL : slice->in;
    case PRIMITIVE_COPY_SEND:
    case PRIMITIVE_RECV_COPY_SEND:
    case PRIMITIVE_RECV_REDUCE_COPY_SEND: return slice->out;
    default: return NULL;
    }
}

/* slot NULL: the transport sends from the caller's memory, nothing is copied for it. */
static void primitive_run(const struct operation *operation, enum primitive primitive, const struct slice *slice)
{
    bool send = slice->slot != NULL;
    switch (primitive) {
    case PRIMITIVE_COPY: copy_own(slice); break;
    case PRIMITIVE_SEND:
        if (reduce_scales(&operation->reduction))
            reduce_scale(slice->slot, slice->in, slice->count, &operation->reduction);
        else if (send) copy_to_slot(operation, slice->slot, slice->in, slice->bytes);
        break;
    case PRIMITIVE_COPY_SEND:
        copy_own(slice);
        if (send) copy_to_slot(operation, slice->slot, slice->in, slice->bytes);
        break;
    case PRIMITIVE_RECV:
        if (slice->out != slice->wire) copy_plain(slice->out, slice->wire, slice->bytes); /* else it has landed there */
        break;
    case PRIMITIVE_RECV_COPY_SEND:
        if (slice->out == slice->wire && !send) break;
        for (size_t at = 0; at < slice->bytes; at += TILE) {
            size_t bytes = slice->bytes - at < TILE ? slice->bytes - at : TILE;
            if (slice->out != slice->wire) copy_plain(slice->out + at, slice->wire + at, bytes);
            if (send) copy_to_slot(operation, slice->slot + at, slice->out + at, bytes);
        }
        break;
    case PRIMITIVE_RECV_REDUCE_SEND: reduce_slice(operation, slice, false, true); break;
    case PRIMITIVE_RECV_REDUCE_COPY: reduce_slice(operation, slice, true, false); break;
    case PRIMITIVE_RECV_REDUCE_COPY_SEND: reduce_slice(operation, slice, true, send); break;
    case PRIMITIVE_NONE:
    case PRIMITIVE_COUNT: break;
    }
}

/* ---- the cursor ---- */

/* What arrived must be a slice of this operation, of the size that this rank expects. */
static enum status check_record(
    const struct operation *operation, const struct cursor *cursor, int from, size_t expected_bytes)
{
    const struct fifo_record *record = fifo_record(&cursor->consumer->fifo);
    if (record->tag == operation->tag && record->bytes == expected_bytes) return STATUS_OK;
    struct operation theirs = {.sequence = record->tag & 0xffff,
        .collective = (enum collective)(record->tag >> 16 & 0xff), .root = (int)(record->tag >> 32 & 0xff),
        .reduction = {.dtype = (enum dtype)(record->tag >> 24 & 0xf), .redop = (enum redop)(record->tag >> 28 & 0xf)}};
    char mine[160];
    operation_describe(mine, sizeof mine, operation);
    bool known = theirs.collective < COLLECTIVE_COUNT && theirs.reduction.dtype < DTYPE_COUNT &&
                 theirs.reduction.redop < REDOP_COUNT;
    if (!known)
        return FAIL(STATUS_DATA, "rank %d: %s: rank %d sent a slice of no operation (tag %llx)", operation->comm->rank, mine,
            from, (unsigned long long)record->tag);
    return FAIL(STATUS_DATA,
        "rank %d: %s: rank %d sent a slice (%llu bytes, expected %zu) of its %s #%llu (%s, %s, root %d mod 256)%s: all ranks must "
        "call the same collectives with the same arguments in the same order",
        operation->comm->rank, mine, from, (unsigned long long)record->bytes, expected_bytes,
        collective_name(theirs.collective), (unsigned long long)theirs.sequence, dtype_name(theirs.reduction.dtype),
        redop_name(theirs.reduction.redop), theirs.root,
        record->tag >> 40 != operation->tag >> 40 ? " of another count" : "");
}

/* Sees to it that the edges of a step are there and have what it needs: data to read, room to write. */
static enum status step_edges(struct operation *operation, struct cursor *cursor, const struct plan_step *step, bool *can_run)
{
    struct ring_comm *comm = operation->comm;
    *can_run = false;
    if (step->from >= 0) {
        cursor->waits_for = comm_rank_at(comm, cursor->channel, step->from);
        cursor->wait = CURSOR_WAITS_DATA;
        TRY(comm_edge(&cursor->consumer, cursor->channel, EDGE_CONSUMER, cursor->waits_for, comm));
        if (fifo_ready(&cursor->consumer->fifo) == 0) return STATUS_OK;
    }
    if (step->to >= 0) {
        cursor->waits_for = comm_rank_at(comm, cursor->channel, step->to);
        cursor->wait = CURSOR_WAITS_ROOM;
        TRY(comm_edge(&cursor->producer, cursor->channel, EDGE_PRODUCER, cursor->waits_for, comm));
        if (fifo_room(&cursor->producer->fifo) == 0) return STATUS_OK;
    }
    cursor->wait = CURSOR_RUNNING;
    *can_run = true;
    return STATUS_OK;
}

static enum status step_run(struct operation *operation, struct cursor *cursor, const struct plan_step *step)
{
    struct ring_comm *comm = operation->comm;
    struct slice slice = {0};
    slice_operands(&slice, step, &cursor->at, cursor);

    if (step->from >= 0) {
        TRY(check_record(operation, cursor, comm_rank_at(comm, cursor->channel, step->from), slice.bytes));
        slice.wire = fifo_data(&cursor->consumer->fifo);
    }
    uint64_t address = 0;
    if (step->to >= 0) {
        const unsigned char *from = sends_from(operation, step->primitive, &slice);
        if (cursor->producer->transport->reads_address && slice.bytes > 0) address = (uint64_t)(uintptr_t)from;
        if (address == 0) slice.slot = fifo_slot(&cursor->producer->fifo);
    }
    if (slice.count > 0) primitive_run(operation, step->primitive, &slice);

    if (step->from >= 0) {
        fifo_free(&cursor->consumer->fifo);
        edge_notify(cursor->consumer);
        operation->received_bytes += slice.bytes;
    }
    if (step->to >= 0) {
        if (operation->streaming) streaming_fence();
        fifo_post(&cursor->producer->fifo, slice.bytes, operation->tag, address);
        edge_notify(cursor->producer);
        operation->sent_bytes += slice.bytes;
    }
    return STATUS_OK;
}

static bool cursor_drained(const struct cursor *cursor)
{
    return (cursor->producer == NULL || edge_drained(cursor->producer)) &&
           (cursor->consumer == NULL || edge_drained(cursor->consumer));
}

static enum status cursor_progress_edges(struct cursor *cursor, bool *moved)
{
    if (cursor->consumer != NULL) TRY(edge_progress(cursor->consumer, moved));
    if (cursor->producer != NULL) TRY(edge_progress(cursor->producer, moved));
    return STATUS_OK;
}

static enum status cursor_advance(struct operation *operation, struct cursor *cursor, bool *moved)
{
    TRY(cursor_progress_edges(cursor, moved));
    while (cursor->wait != CURSOR_DRAINING && cursor->wait != CURSOR_DONE) {
        struct plan_step step = plan_step_at(&cursor->plan, cursor->at.step);
        bool can_run;
        TRY(step_edges(operation, cursor, &step, &can_run));
        if (!can_run) break;
        TRY(step_run(operation, cursor, &step));
        *moved = true;
        if (!place_next(&cursor->at, cursor)) cursor->wait = CURSOR_DRAINING;
        /* Staged slices should be under way while the next one is computed. */
        TRY(cursor_progress_edges(cursor, moved));
    }
    if (cursor->wait == CURSOR_DRAINING) {
        if (cursor->producer != NULL) cursor->waits_for = cursor->producer->config.peer;
        if (cursor_drained(cursor)) cursor->wait = CURSOR_DONE;
    }
    return STATUS_OK;
}

/* ---- the operation ---- */

uint64_t operation_tag(const struct operation *operation)
{
    uint64_t counts = (operation->count * 0x9e3779b97f4a7c15u) ^ (operation->stride * 0xc2b2ae3d27d4eb4fu);
    return (operation->sequence & 0xffff) | (uint64_t)operation->collective << 16 |
           (uint64_t)operation->reduction.dtype << 24 | (uint64_t)operation->reduction.redop << 28 |
           ((uint64_t)operation->root & 0xff) << 32 | (counts >> 40) << 40;
}

/* Tells the consumer's edge where a coming slice belongs, so that a transport that receives into memory puts it there at once.
 * The edge asks for its steps in order; those of the slices that are only kept get their place in out, which nobody reads
 * before they arrive: a complete chunk cannot come before this rank's own part of it has left. */
static void *cursor_land(void *context, uint64_t edge_step, uint64_t bytes, uint64_t tag)
{
    struct cursor *cursor = context;
    struct operation *operation = cursor->operation;
    bool more = true;
    for (; more && cursor->ahead.block < cursor->slices; more = place_next(&cursor->ahead, cursor)) {
        struct plan_step step = plan_step_at(&cursor->plan, cursor->ahead.step);
        if (step.from < 0 || cursor->ahead_step++ != edge_step) continue;
        struct slice slice = {0};
        slice_operands(&slice, &step, &cursor->ahead, cursor);
        place_next(&cursor->ahead, cursor);
        bool kept = step.primitive == PRIMITIVE_RECV || step.primitive == PRIMITIVE_RECV_COPY_SEND;
        return kept && bytes == slice.bytes && tag == operation->tag ? slice.out : NULL;
    }
    return NULL;
}

static enum status open_edges(struct cursor *cursor)
{
    struct ring_comm *comm = cursor->operation->comm;
    for (int i = 0; i < cursor->plan.steps; i++) { /* both sides' offers are out before anyone waits for one */
        struct plan_step step = plan_step_at(&cursor->plan, i);
        int channel = cursor->channel;
        if (step.from >= 0)
            TRY(comm_edge(&cursor->consumer, channel, EDGE_CONSUMER, comm_rank_at(comm, channel, step.from), comm));
        if (step.to >= 0)
            TRY(comm_edge(&cursor->producer, channel, EDGE_PRODUCER, comm_rank_at(comm, channel, step.to), comm));
    }
    if (cursor->consumer == NULL) return STATUS_OK;
    cursor->ahead_step = cursor->consumer->fifo.step; /* all older operations have consumed theirs */
    cursor->consumer->landing_context = cursor;
    cursor->consumer->landing = cursor_land;
    return STATUS_OK;
}

enum status operation_begin(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    operation->begun = true;
    operation->tag = operation_tag(operation);
    operation->cursor_count = comm->config.channels;
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        cursor_begin(&operation->cursors[channel], operation, channel);
        TRY(open_edges(&operation->cursors[channel]));
    }
    const struct edge *producer = operation->cursors[0].producer;
    operation->slots_are_shared = producer != NULL && producer->transport->peer_reads_slots;
    if (!operation->slots_are_shared) return STATUS_OK;
    pthread_mutex_lock(&comm->lock);
    operation->streaming = stores_choose(&comm->stores, operation->count * dtype_bytes(operation->reduction.dtype));
    pthread_mutex_unlock(&comm->lock);
    return STATUS_OK;
}

void operation_end(struct operation *operation)
{
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        struct edge *consumer = operation->cursors[channel].consumer;
        if (consumer != NULL) consumer->landing = NULL;
    }
}

enum status operation_advance(struct operation *operation, bool *moved, bool *done)
{
    *done = true;
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        struct cursor *cursor = &operation->cursors[channel];
        if (cursor->wait == CURSOR_DONE) continue;
        TRY(cursor_advance(operation, cursor, moved));
        *done = *done && cursor->wait == CURSOR_DONE;
    }
    return STATUS_OK;
}

void operation_describe(char *text, size_t bytes, const struct operation *operation)
{
    bool reduces = operation->collective == COLLECTIVE_ALL_REDUCE || operation->collective == COLLECTIVE_REDUCE_SCATTER;
    char root[24] = "";
    if (operation->collective == COLLECTIVE_BROADCAST) snprintf(root, sizeof root, ", root %d", operation->root);
    snprintf(text, bytes, "%s #%llu (%zu %s%s%s%s)", collective_name(operation->collective),
        (unsigned long long)operation->sequence, operation->count, dtype_name(operation->reduction.dtype),
        reduces ? ", " : "", reduces ? redop_name(operation->reduction.redop) : "", root);
}

void operation_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation)
{
    *rank = -1;
    snprintf(text, bytes, "its turn");
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        const struct cursor *cursor = &operation->cursors[channel];
        if (cursor->wait == CURSOR_DONE || cursor->waits_for < 0) continue;
        const struct edge *edge = cursor->wait == CURSOR_WAITS_DATA ? cursor->consumer : cursor->producer;
        const char *what = edge != NULL && edge->phase != EDGE_READY ? "the connection with"
                           : cursor->wait == CURSOR_WAITS_DATA       ? "data from"
                           : cursor->wait == CURSOR_WAITS_ROOM       ? "room at"
                                                                     : "the last bytes to leave for";
        *rank = cursor->waits_for;
        snprintf(text, bytes, "%s rank %d (step %d of %d, slice %zu of %zu, %s)", what, *rank, cursor->at.step + 1,
            cursor->plan.steps, cursor->at.block + cursor->at.slice + 1, cursor->slices,
            edge != NULL ? edge->transport->name : "no edge");
        return;
    }
}
