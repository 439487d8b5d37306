/* window: see window.h.
 *
 * To every peer goes one stream of inputs (its chunk of this rank's buffer: operations that add) and one of results (what is
 * complete here: the own chunk, the root's buffer), cut into records as it suits who sends; both on one FIFO, told apart by a mark
 * in the reference. What a rank does, each as far as it can go now:
 *
 *   post inputs ──► peers' reduce        post results ──► peers' keep
 *   reduce      inputs of all peers and the own ──► own chunk in recv
 *   keep        results of a peer ──► its chunk in recv
 *   drain       all that was posted from the caller's memory has been read: the heads of the FIFOs say so
 *
 * A turn fills one area of the stage, for all peers, when all have freed the area's last turn (window_stage.h).
 * Nothing waits in a circle: reducing needs no area (results are staged from recv), results can always be kept, and all ranks
 * post inputs in the same order. In place nobody overwrites what another has yet to read: a result for some elements exists
 * only after its owner has read the inputs for them.
 */
#include "ring/window.h"

#include <stdio.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/progress.h"
#include "ring/trace.h"
#include "ring/window_part.h"
#include "ring/window_stage.h"

#define UNIT           ((size_t)256 << 10) /* bytes: done in one go */
#define TILE           ((size_t)4 << 10)   /* bytes: sums in the first cache */
#define PIECES         (WINDOW_AREAS / 2)  /* of what is large: the next operation finds the other areas free */
#define SMALLEST_PIECE ((size_t)16 << 10)  /* bytes: below, cutting costs more than it overlaps; */
#define SHARED_PIECE   ((size_t)64 << 10)  /* where ranks take turns on a core less overlaps anyway */
#define CACHE_BYTES    ((size_t)4 << 20)   /* results larger than this are not wanted in this core's cache */

enum step { STEP_INPUTS, STEP_RESULTS }; /* of trace events */

/* ---- for whoever watches ---- */

/* A record posted (to ≥ 0) or met (from ≥ 0), a unit added or copied (neither): what of the event is not the operation's. */
static inline void trace_part(const struct operation *operation, int64_t begin_ns, struct trace_event event)
{
    struct trace *trace = operation->comm->trace;
    if (trace == NULL) return;
    event.sequence = (uint32_t)operation->sequence;
    event.collective = (uint8_t)operation->collective;
    if (operation->collective == COLLECTIVE_BROADCAST) event.chunk = 0; /* there is but one */
    event.joins = -1;
    trace_step(trace, 0, begin_ns, &event);
}

/* ---- posting ---- */

static int peer_at(int i, const struct operation *operation)
{
    return (operation->comm->rank + 1 + i) % operation->comm->nranks;
}

static struct edge *edge_of(int peer, enum edge_side side, const struct operation *operation)
{
    return *comm_edge_place(comm_exchange_channel(operation->comm), side, peer, operation->comm);
}

static bool all_have_room(const struct operation *operation)
{
    for (int i = 0; i < operation->comm->nranks - 1; i++) {
        struct edge *edge = edge_of(peer_at(i, operation), EDGE_PRODUCER, operation);
        if (edge->phase != EDGE_READY || fifo_room(&edge->fifo) == 0) return false;
    }
    return true;
}

/* begin_ns: when the work on the record began, as trace_now(). */
static void post(struct operation *operation, int i, uint64_t reference, size_t bytes, int64_t begin_ns)
{
    int self = operation->comm->rank, peer = peer_at(i, operation);
    struct edge *edge = edge_of(peer, EDGE_PRODUCER, operation);
    fifo_post_reference(&edge->fifo, bytes, operation->tag, reference);
    edge_notify(edge);
    operation->sent_bytes += bytes;
    bool result = (reference & REGION_MARK) != 0;
    trace_part(operation, begin_ns,
        (struct trace_event){.primitive = PRIMITIVE_SEND, .step = result ? STEP_RESULTS : STEP_INPUTS,
            .chunk = result ? self : peer, .from = -1, .to = peer, .bytes = bytes});
}

/* Of a part of an area. Small data are cut too, so that one rank reads while another still copies. */
static size_t piece_bytes(size_t parts, size_t total, const struct operation *operation)
{
    size_t room = window_stage_area_bytes(operation->comm) / parts / 64 * 64;
    size_t smallest = progress_shares_cores(operation->comm->progress) ? SHARED_PIECE : SMALLEST_PIECE;
    size_t piece = total / PIECES < smallest ? smallest : (total / PIECES + 63) / 64 * 64;
    return piece < room ? piece : room;
}

static void copy_to_stage(const struct operation *operation, unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (operation->streaming) copy_streaming(to, from, bytes);
    else copy_plain(to, from, bytes);
}

/* The next piece of every peer's chunk. */
static void post_inputs(struct operation *operation, bool *moved)
{
    struct window *window = &operation->room->window;
    if (window->inputs_posted >= window->inputs_largest || !all_have_room(operation)) return;
    int peers = operation->comm->nranks - 1;
    unsigned char *area = window->input_reference != 0 ? NULL : window_stage_area(operation->comm);
    if (window->input_reference == 0 && area == NULL) return;
    size_t piece = window->inputs_largest;
    if (area != NULL) piece = piece_bytes((size_t)peers, window->inputs_largest, operation);
    for (int i = 0; i < peers; i++) {
        int peer = peer_at(i, operation);
        size_t bytes = window_input_bytes(peer, operation), from = window_chunk_offset(peer, operation) + window->inputs_posted;
        if (bytes <= window->inputs_posted) continue;
        bytes = bytes - window->inputs_posted < piece ? bytes - window->inputs_posted : piece;
        int64_t begin_ns = trace_now(operation->comm->trace);
        if (area == NULL) {
            post(operation, i, window->input_reference + from, bytes, begin_ns);
            continue;
        }
        unsigned char *to = area + (size_t)i * piece;
        copy_to_stage(operation, to, operation->send + from, bytes);
        if (operation->streaming) streaming_fence();
        post(operation, i, window_stage_reference(to, operation->comm), bytes, begin_ns);
    }
    if (area != NULL) window_stage_end_turn(operation->comm);
    window->inputs_posted += piece;
    *moved = true;
}

/* What is complete and not posted yet, to everyone. */
static void post_results(struct operation *operation, bool *moved)
{
    struct window *window = &operation->room->window;
    size_t ready = window_adds(operation) ? window->reduced : window_result_bytes(operation->comm->rank, operation);
    if (!window_has_results(operation) || window->results_posted >= ready || !all_have_room(operation)) return;
    const unsigned char *from = window_result_source(operation) + window->results_posted;
    size_t bytes = ready - window->results_posted;
    uint64_t reference = window->result_reference + window->results_posted;
    int64_t begin_ns = trace_now(operation->comm->trace);
    if (window->result_reference == 0) {
        unsigned char *area = window_stage_area(operation->comm);
        if (area == NULL) return;
        size_t piece = piece_bytes(1, window_result_bytes(operation->comm->rank, operation), operation);
        if (bytes > piece) bytes = piece;
        copy_to_stage(operation, area, from, bytes);
        if (operation->streaming) streaming_fence();
        reference = window_stage_reference(area, operation->comm);
    }
    for (int i = 0; i < operation->comm->nranks - 1; i++) {
        post(operation, i, reference | REGION_MARK, bytes, begin_ns);
        begin_ns = trace_now(operation->comm->trace);
    }
    if (window->result_reference == 0) window_stage_end_turn(operation->comm);
    window->results_posted += bytes;
    *moved = true;
}

/* ---- taking ---- */

static void give_back(int peer, const struct operation *operation)
{
    struct edge *edge = edge_of(peer, EDGE_CONSUMER, operation);
    fifo_free(&edge->fifo);
    edge_notify(edge);
}

/* More is to come from a peer: what is on its edge beyond that belongs to the next operation. */
static bool expects(int peer, const struct operation *operation)
{
    const struct window_peer *from = &operation->room->window.peers[peer];
    return from->inputs_seen < from->inputs_due || from->results_seen < from->results_due;
}

/* The next record of a peer, if the last is used up. An input of an all_reduce that lies in a region need not be held: its owner
 * stays until it has all results, and so until all inputs have been read. What lies in the stage is held. */
static enum status take_record(struct operation *operation, int peer, bool *moved)
{
    struct window_peer *from = &operation->room->window.peers[peer];
    struct edge *edge = edge_of(peer, EDGE_CONSUMER, operation);
    if (from->holds_input || from->holds_result || edge->phase != EDGE_READY || fifo_ready(&edge->fifo) == 0) return STATUS_OK;
    int64_t begin_ns = trace_now(operation->comm->trace);
    struct fifo_record record = fifo_record(&edge->fifo);
    bool result = (record.reference & REGION_MARK) != 0;
    uint64_t reference = record.reference & ~REGION_MARK;
    size_t bytes = record.bytes;
    size_t missing = result ? from->results_due - from->results_seen : from->inputs_due - from->inputs_seen;
    bool fits = bytes > 0 && bytes <= missing && bytes % window_element_bytes(operation) == 0 && (result || from->input_left == 0);
    TRY(operation_check_slice(operation, peer, record.tag, bytes, fits ? bytes : missing));
    bool bare = result && region_is_bare(reference);
    const unsigned char *data = (const unsigned char *)(uintptr_t)reference;
    if (!bare) TRY(region_view_find(&data, reference, bytes, operation->comm->views[peer]));
    if ((uintptr_t)data % window_element_bytes(operation) != 0)
        return FAIL(STATUS_DATA, "rank %d refers to data at %llx of its memory, expected a multiple of %zu",
            comm_name(operation->comm, peer), (unsigned long long)reference, window_element_bytes(operation));
    if (result) {
        from->result = data;
        from->result_is_bare = bare;
        from->result_left = bytes;
        from->holds_result = true;
        from->results_seen += bytes;
    } else {
        from->input = data;
        from->input_left = bytes;
        from->holds_input = !window_has_results(operation) || region_is_stage(reference);
        from->inputs_seen += bytes;
    }
    if (!result && !from->holds_input) give_back(peer, operation);
    operation->received_bytes += bytes;
    trace_part(operation, begin_ns,
        (struct trace_event){.primitive = PRIMITIVE_RECV, .step = result ? STEP_RESULTS : STEP_INPUTS,
            .chunk = result ? peer : operation->comm->rank, .from = peer, .to = -1, .bytes = bytes});
    *moved = true;
    return STATUS_OK;
}

/* out = the sum of `count` elements that begin `at` bytes into every rank's part, in the order of the ring. In place out is this
 * rank's part; it is the last to be added. */
static void reduce_tile(unsigned char *out, const unsigned char *own, size_t at, size_t count, const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    const struct reduction *reduction = &operation->reduction;
    const struct window_peer *peers = operation->room->window.peers;
    _Alignas(64) unsigned char sum[2 * TILE]; /* wide ones have 4 bytes for 2 */
    int last = comm->position[0], n = comm->nranks;
    const unsigned char *wire = peers[comm_rank_at(comm, 0, (last + 1) % n)].input + at;
    if (reduce_scales(reduction)) {
        reduce_scale(sum, wire, count, reduction);
        wire = sum;
    }
    for (int j = 2; j < n; j++) {
        reduce_combine(sum, wire, peers[comm_rank_at(comm, 0, (last + j) % n)].input + at, count, reduction);
        wire = sum;
    }
    bool wide = reduce_partial_bytes(reduction) != window_element_bytes(operation);
    reduce_combine(wide ? sum : out, wire, own, count, reduction);
    if (reduce_finishes(reduction)) reduce_finish(out, wide ? sum : out, count, reduction);
}

/* A unit of the own chunk, when all inputs for it are here. */
static void reduce_unit(struct operation *operation, bool *moved)
{
    struct window *window = &operation->room->window;
    int self = operation->comm->rank, n = operation->comm->nranks;
    size_t element = window_element_bytes(operation), bytes = window_input_bytes(self, operation) - window->reduced;
    if (bytes > UNIT) bytes = UNIT;
    for (int r = 0; r < n; r++)
        if (r != self && window->peers[r].input_left < bytes) bytes = window->peers[r].input_left;
    if (bytes == 0) return;
    int64_t begin_ns = trace_now(operation->comm->trace);
    unsigned char *out = window_sum_place(operation) + window->reduced;
    const unsigned char *own = operation->send + window_chunk_offset(self, operation) + window->reduced;
    for (size_t at = 0; at < bytes; at += TILE) {
        size_t tile = bytes - at < TILE ? bytes - at : TILE;
        reduce_tile(out + at, own + at, at, tile / element, operation);
    }
    trace_part(operation, begin_ns,
        (struct trace_event){.primitive = PRIMITIVE_RECV_REDUCE_COPY, .step = STEP_INPUTS, .slice = window->reduced / UNIT,
            .chunk = self, .from = -1, .to = -1, .bytes = bytes});
    window->reduced += bytes;
    for (int r = 0; r < n; r++) {
        struct window_peer *from = &window->peers[r];
        if (r == self) continue;
        from->input += bytes;
        from->input_left -= bytes;
        if (from->input_left > 0 || !from->holds_input) continue;
        from->holds_input = false;
        give_back(r, operation);
    }
    *moved = true;
}

/* Of rank `owner`'s results, from `at` on. */
static enum status copy_result(
    const struct operation *operation, int owner, size_t at, const unsigned char *from, size_t bytes)
{
    int64_t begin_ns = trace_now(operation->comm->trace);
    unsigned char *to = window_result_place(owner, operation) + at;
    if (operation->room->window.peers[owner].result_is_bare)
        TRY(region_view_copy(to, (uint64_t)(uintptr_t)from, bytes, operation->comm->views[owner]));
    else if (operation->room->window.passes_cache) copy_streaming(to, from, bytes);
    else copy_plain(to, from, bytes);
    trace_part(operation, begin_ns,
        (struct trace_event){.primitive = PRIMITIVE_COPY, .step = STEP_RESULTS, .slice = at / UNIT, .chunk = owner,
            .from = -1, .to = -1, .bytes = bytes});
    return STATUS_OK;
}

/* A unit of a peer's results, of one after another. */
static enum status keep_unit(struct operation *operation, bool *moved)
{
    struct window *window = &operation->room->window;
    int n = operation->comm->nranks;
    for (int i = 0; i < n - 1; i++) {
        int peer = peer_at((window->next_keep + i) % (n - 1), operation);
        struct window_peer *from = &window->peers[peer];
        if (from->result_left == 0) continue;
        size_t bytes = from->result_left < UNIT ? from->result_left : UNIT;
        TRY(copy_result(operation, peer, from->results_kept, from->result, bytes));
        from->results_kept += bytes;
        from->result += bytes;
        from->result_left -= bytes;
        window->next_keep = (window->next_keep + i) % (n - 1);
        *moved = true;
        if (from->result_left > 0) break;
        from->holds_result = false;
        give_back(peer, operation);
        break;
    }
    return STATUS_OK;
}

/* Out of place, what is complete from the beginning also belongs into the own recv. */
static enum status keep_own_unit(struct operation *operation, bool *moved)
{
    struct window *window = &operation->room->window;
    size_t bytes = window->own_bytes - window->own_kept;
    if (bytes == 0) return STATUS_OK;
    if (bytes > UNIT) bytes = UNIT;
    TRY(copy_result(operation, operation->comm->rank, window->own_kept, window_result_source(operation) + window->own_kept, bytes));
    window->own_kept += bytes;
    *moved = true;
    return STATUS_OK;
}

/* ---- running ---- */

static enum status open_edge(struct operation *operation, enum edge_side side, int peer)
{
    struct ring_comm *comm = operation->comm;
    struct edge *edge;
    TRY(comm_edge(&edge, comm_exchange_channel(comm), side, peer, comm));
    operation->edges[operation->edge_count++] = edge;
    return STATUS_OK;
}

static enum status open_peers(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    for (int i = 0; i < comm->nranks - 1; i++) {
        int peer = peer_at(i, operation);
        if (window_adds(operation) || window_owns(comm->rank, operation)) TRY(open_edge(operation, EDGE_PRODUCER, peer));
        if (!window_adds(operation) && !window_owns(peer, operation)) continue;
        TRY(open_edge(operation, EDGE_CONSUMER, peer));
        operation->room->window.peers[peer].inputs_due = window_input_bytes(comm->rank, operation);
        operation->room->window.peers[peer].results_due = window_result_bytes(peer, operation);
        if (comm->views[peer] == NULL) TRY(region_view_open(&comm->views[peer], &comm->books[peer]));
        region_view_sweep(comm->views[peer]);
    }
    return STATUS_OK;
}

enum status window_begin(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    struct window *window = &operation->room->window;
    memset(window, 0, sizeof *window);
    operation->edges = operation->room->edges;
    TRY(open_peers(operation));
    size_t own = window_result_bytes(comm->rank, operation), last = window_chunk_offset(comm->nranks - 1, operation);
    if (window_adds(operation)) {
        window->inputs_largest = window_largest_bytes(operation);
        window->input_reference =
            region_reference(operation->send, last + window_chunk_bytes(comm->nranks - 1, operation), comm->book);
    }
    if (own > 0) window->result_reference = region_reference(window_result_source(operation), own, comm->book);
    /* The kernel copies no driver's mappings; and where such a one is now, memory may have been that was looked at. */
    if (own > 0 && window->result_reference == 0 && window_is_bare(operation) && !operation->sends_pinned)
        window->result_reference = region_bare_reference(window_result_source(operation), own, comm->book);
    if (own > 0 && !window_adds(operation) && window_result_source(operation) != window_result_place(comm->rank, operation)) window->own_bytes = own;
    bool stages_inputs = window_adds(operation) && window->input_reference == 0;
    if (stages_inputs || (own > 0 && window->result_reference == 0)) TRY(window_stage_open(comm));
    operation->slots_are_shared = true;
    pthread_mutex_lock(&comm->lock);
    operation->streaming =
        stores_choose(&comm->stores[operation->collective], operation->count * window_element_bytes(operation));
    pthread_mutex_unlock(&comm->lock);
    window->passes_cache = operation->count * window_element_bytes(operation) > CACHE_BYTES;
    return STATUS_OK;
}

/* Everything has come, been added and been kept. */
static bool has_all(const struct operation *operation)
{
    const struct window *window = &operation->room->window;
    if (window->own_kept < window->own_bytes || window->reduced < window_input_bytes(operation->comm->rank, operation)) return false;
    for (int r = 0; r < operation->comm->nranks; r++)
        if (window->peers[r].results_kept < window->peers[r].results_due) return false;
    return true;
}

/* Everything has been posted, and what others read in the caller's memory has been read by all. What is staged they read when they
 * come to it: the next operations fill other areas until then. */
static bool is_drained(const struct operation *operation)
{
    const struct window *window = &operation->room->window;
    if (window->inputs_posted < window->inputs_largest) return false;
    if (window->results_posted < window_result_bytes(operation->comm->rank, operation)) return false;
    if (window->input_reference == 0 && window->result_reference == 0) return true;
    for (int e = 0; e < operation->edge_count; e++)
        if (operation->edges[e]->config.side == EDGE_PRODUCER && fifo_unfreed(&operation->edges[e]->fifo) > 0) return false;
    return true;
}

/* What was read was what its owner had posted, or this operation has no result either. */
static enum status check_views(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    for (int r = 0; r < comm->nranks; r++)
        if (r != comm->rank && comm->views[r] != NULL && !region_view_holds(comm->views[r]))
            return FAIL(STATUS_PEER, "rank %d gave up while its memory was being read", comm_name(comm, r));
    return STATUS_OK;
}

/* All that can be done now. */
static enum status work(struct operation *operation, bool *moved)
{
    const struct ring_comm *comm = operation->comm;
    for (int e = 0; e < operation->edge_count; e++)
        if (operation->edges[e]->phase != EDGE_READY) TRY(edge_progress(operation->edges[e], moved));
    post_inputs(operation, moved);
    for (int i = 0; i < comm->nranks - 1; i++) {
        int peer = peer_at(i, operation);
        if (expects(peer, operation)) TRY(take_record(operation, peer, moved));
    }
    reduce_unit(operation, moved);
    post_results(operation, moved);
    TRY(keep_own_unit(operation, moved));
    TRY(keep_unit(operation, moved));
    return STATUS_OK;
}

/* Nothing could be done: data are missing, or others have yet to read. */
static void trace_idle(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    enum trace_kind kind = TRACE_WAIT_ROOM;
    if (comm->trace == NULL) return;
    for (int r = 0; r < comm->nranks; r++)
        if (r != comm->rank && expects(r, operation)) kind = TRACE_WAIT_DATA;
    trace_wait(comm->trace, kind, 0);
}

enum status window_advance(struct operation *operation, bool *moved, bool *done)
{
    struct window *window = &operation->room->window;
    bool worked = false;
    *done = false;
    TRY(work(operation, &worked));
    if (worked) *moved = true;
    if (!has_all(operation) || !is_drained(operation)) {
        if (!worked) trace_idle(operation);
        return STATUS_OK;
    }
    trace_wait_end(operation->comm->trace, 0);
    if (window->passes_cache) streaming_fence();
    TRY(check_views(operation));
    window->ended = *done = true;
    return STATUS_OK;
}

void window_end(struct operation *operation)
{
    if (operation->begun && !operation->room->window.ended) region_book_give_up(operation->comm->book);
}

void window_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation)
{
    const char *what = "to have read for";
    *rank = peer_at(0, operation);
    for (int i = operation->comm->nranks - 2; i >= 0; i--) { /* data that are missing come before readers that are slow */
        int peer = peer_at(i, operation);
        const struct edge *edge = edge_of(peer, EDGE_PRODUCER, operation);
        struct fifo fifo = edge != NULL ? edge->fifo : (struct fifo){0};
        if (edge == NULL || fifo_unfreed(&fifo) == 0) continue;
        *rank = peer;
        what = edge->phase != EDGE_READY ? "the connection with" : "its data to be read by";
    }
    for (int i = operation->comm->nranks - 2; i >= 0; i--) {
        int peer = peer_at(i, operation);
        const struct edge *edge = edge_of(peer, EDGE_CONSUMER, operation);
        if (!expects(peer, operation)) continue;
        *rank = peer;
        what = edge == NULL || edge->phase != EDGE_READY ? "the connection with" : "data from";
    }
    snprintf(text, bytes, "%s rank %d (window, shm)", what, comm_name(operation->comm, *rank));
}
