/* kernel_host: see kernel_host.h. */
#include "ring/kernel_host.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring/comm.h"
#include "ring/flight.h"
#include "ring/kernel_edges.h"
#include "ring/kernel_trace.h"
#include "verbs/clock.h"
#include "verbs/device_ops.h"
#include "verbs/log.h"

_Static_assert(KERNEL_CHANNELS == RING_MAX_CHANNELS, "every channel has a block");

/* A kernel that a graph keeps, and what each of its runs sends. */
struct kernel_captured {
    struct kernel_captured *older;
    struct span control;
    enum collective collective;
    int channels;
    uint64_t sent_bytes, received_bytes, border_bytes;
};

/* Kept by the communicator: one kernel runs at a time. */
struct kernel_state {
    struct span control; /* pinned: struct kernel_control and its steps */
    void *mark;
    uint64_t seen;       /* sum of the counters of its edges when last looked at */
    uint64_t sent_bytes, received_bytes, border_bytes;
    struct kernel_captured *captured; /* newest first, under the communicator's lock */
    struct kernel_edges edges;
    struct kernel_trace trace;
};

/* Of any plan on a ring, in two levels too. */
static size_t most_steps(const struct ring_comm *comm) { return 3 * (size_t)comm->nranks; }

bool kernel_is_wanted(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    return operation->on_device && comm->kernels && comm->nranks > 1 && collective_is_on_ring(operation->collective) &&
           device_table(comm->device, PLUGIN_RING) != NULL && most_steps(comm) <= KERNEL_MOST_STEPS;
}

bool kernel_takes_lines(size_t largest_bytes, const struct operation *operation)
{
    const struct ring_config *config = &operation->comm->config;
    return kernel_is_wanted(operation) && config->cuda_line_bytes != KERNEL_NO_LINES && largest_bytes <= config->cuda_line_bytes &&
           largest_bytes <= config->slot_bytes; /* over edges that have no lines it is one slice, too */
}

static struct kernel_control *control_of(const struct ring_comm *comm) { return comm->kernel->control.ptr; }

static size_t control_bytes(const struct ring_comm *comm)
{
    return sizeof(struct kernel_control) + most_steps(comm) * (size_t)comm->config.channels * sizeof(struct kernel_step);
}

/* ---- before ---- */

/* Once, and before this rank's first edge: CUDA may wait for what runs when it allocates, and so for a kernel that waits for this rank,
 * where that is a thread of the same process. */
enum status kernel_prepare(struct ring_comm *comm)
{
    if (comm->kernel != NULL) return STATUS_OK;
    comm->kernel = calloc(1, sizeof *comm->kernel);
    if (comm->kernel == NULL) return FAIL(STATUS_SYSTEM, "no memory for a kernel's plan");
    TRY(comm->device->ops->mark_open(&comm->kernel->mark, comm->device));
    TRY(kernel_edges_open(&comm->kernel->edges, comm->device));
    TRY(kernel_trace_open(&comm->kernel->trace, comm->config.channels, comm->device));
    return memory_alloc_kind(
        &comm->kernel->control, control_bytes(comm), MEMORY_HOST_PINNED, MEMORY_COMMUNICATION, comm->device);
}

/* The place of an edge in its channel's table; −1 where a step has none. */
static int8_t place_of(enum edge_side side, int position, const struct cursor *cursor)
{
    if (position < 0) return -1;
    const struct ring_comm *comm = cursor->operation->comm;
    const struct edge *edge = *comm_edge_place(cursor->edge_channel, side, comm_rank_at(comm, cursor->channel, position), comm);
    return (int8_t)kernel_edges_find(&comm->kernel->edges, cursor->channel, edge);
}

/* The channel's part of the step's chunk. */
static struct kernel_step lay_out(const struct plan_step *step, const struct cursor *cursor, struct kernel_state *state)
{
    const struct operation *operation = cursor->operation;
    const struct place first = {0, 0, 0};
    struct cursor whole = *cursor;
    struct slice slice = {0};
    whole.slice_count = SIZE_MAX;
    slice_operands(&slice, step, &first, &whole);
    size_t element = dtype_bytes(operation->reduction.dtype), partial = reduce_partial_bytes(&operation->reduction);
    bool sends = step->to >= 0, receives = step->from >= 0, joins = step->joins >= 0;
    struct kernel_step laid = {
        .own = slice.at.own,
        .out = slice.at.out,
        .count = slice.at.count,
        .primitive = (int8_t)step->primitive,
        .from = place_of(EDGE_CONSUMER, step->from, cursor),
        .joins = place_of(EDGE_CONSUMER, step->joins, cursor),
        .to = place_of(EDGE_PRODUCER, step->to, cursor),
        .wire_bytes = (uint8_t)(primitive_receives_partial(step->primitive) ? partial : element),
        .slot_bytes = (uint8_t)(primitive_sends_partial(step->primitive, operation->collective) ? partial : element),
    };
    if (sends && !operation->by_lines) {
        int to = comm_rank_at(operation->comm, cursor->channel, step->to);
        laid.reference = step_reference(&slice, step, *comm_edge_place(cursor->edge_channel, EDGE_PRODUCER, to, operation->comm), cursor);
    }
    state->received_bytes += (size_t)(receives + joins) * slice.received_bytes;
    if (!sends) return laid;
    state->sent_bytes += slice.sent_bytes;
    bool leaves_host = !comm_on_this_host(operation->comm, comm_rank_at(operation->comm, cursor->channel, step->to));
    if (leaves_host) state->border_bytes += slice.sent_bytes;
    return laid;
}

static void lay_out_channel(
    struct kernel_control *control, struct cursor *cursor, uint32_t first_step, struct kernel_state *state)
{
    struct kernel_channel *channel = &control->channels[cursor->channel];
    *channel = (struct kernel_channel){
        .slices = cursor->slices,
        .slice_count = cursor->slice_count,
        .in_flight = cursor->operation->comm->config.slot_count / 2,
        .tag = cursor->operation->tag,
        .step_count = (uint32_t)cursor->plan.steps,
        .first_step = first_step,
    };
    for (int i = 0; i < cursor->plan.steps; i++) {
        struct plan_step step = plan_step_at(&cursor->plan, i);
        control->steps[first_step + (uint32_t)i] = lay_out(&step, cursor, state);
    }
    channel->edge_count = kernel_edges_describe(channel->edges, &state->edges, cursor->channel);
    for (uint32_t i = 0; i < channel->edge_count; i++) {
        const struct edge *edge = state->edges.links[cursor->channel][i].edge;
        bool reads = edge->config.side == EDGE_CONSUMER && edge->transport == &transport_cuda_ipc;
        if (reads) channel->edges[i].regions = reach_regions(comm_rank_of(edge, cursor->operation->comm), cursor->operation->comm);
    }
}

/* moments NULL: nobody watches. */
static enum status launch_with(
    struct kernel_control *control, struct kernel_moment *moments, void *native, struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    const struct kernel_ops *ops = device_table(comm->device, PLUGIN_RING);
    uint32_t steps = (uint32_t)operation->room->cursors[0].plan.steps, channels = (uint32_t)operation->cursor_count;
    struct kernel_state *state = comm->kernel;
    memset(control, 0, sizeof *control);
    state->sent_bytes = state->received_bytes = state->border_bytes = 0;
    for (uint32_t c = 0; c < channels; c++) lay_out_channel(control, &operation->room->cursors[c], c * steps, state);
    struct kernel_run run = {
        .control = control,
        .failed = kernel_edges_failed(&state->edges),
        .reduction = operation->reduction,
        .moments = moments,
        .timeout_ns = (uint64_t)clock_ms_to_ns(2 * comm->config.timeout_ms), /* the host's own comes first, and says more */
        .channels = operation->cursor_count,
        .by_lines = operation->by_lines,
    };
    assert(steps <= most_steps(comm));
    return ops->launch(&run, steps, native, comm->device);
}

static enum status launch(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    void *native = flights_native(comm);
    TRY(launch_with(control_of(comm), kernel_trace_begin(&comm->kernel->trace, operation), native, operation));
    TRY(comm->device->ops->mark_record(comm->kernel->mark, native, comm->device));
    operation->kernel = KERNEL_RUNS;
    return STATUS_OK;
}

/* For a graph: nothing runs now, and nobody will drive when it does. */
static enum status capture(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    struct kernel_state *state = comm->kernel;
    assert(kernel_edges_bridged(&state->edges, operation->cursor_count) == NULL); /* kernel_check_capture() */
    struct kernel_captured *captured = calloc(1, sizeof *captured);
    if (captured == NULL) return FAIL(STATUS_SYSTEM, "no memory for a captured kernel");
    pthread_mutex_lock(&comm->lock);
    captured->older = state->captured;
    state->captured = captured;
    pthread_mutex_unlock(&comm->lock);
    captured->collective = operation->collective;
    captured->channels = operation->cursor_count;
    struct span control = {0};
    TRY(memory_alloc_kind(&control, control_bytes(comm), MEMORY_HOST_PINNED, MEMORY_COMMUNICATION, comm->device));
    enum status status = launch_with(control.ptr, NULL, operation->captured, operation);
    captured->sent_bytes = state->sent_bytes;
    captured->received_bytes = state->received_bytes;
    captured->border_bytes = state->border_bytes;
    pthread_mutex_lock(&comm->lock);
    captured->control = control; /* complete for kernel_count_replays() */
    pthread_mutex_unlock(&comm->lock);
    operation->kernel = KERNEL_DONE;
    return status;
}

enum status kernel_check_capture(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    if (operation->captured == NULL || comm->nranks == 1) return STATUS_OK;
    const char *name = collective_name(operation->collective);
    if (!kernel_is_wanted(operation))
        return FAIL(STATUS_INVALID, "%s cannot be captured in a graph: %s; expected a collective of the ring, with RINGZERO_CUDA_MODE=kernel, "
            "or auto and a GPU for each rank", name, collective_is_on_ring(operation->collective)
                ? "the host drives its copies (RINGZERO_CUDA_MODE)" : "the host drives it");
    const struct transport *detour = comm_detour(comm);
    if (detour == NULL) return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s cannot be captured in a graph: some rank is reached by %s, which needs the host meanwhile; expected all "
        "ranks on one host, over cuda_ipc", name, detour->name);
}

/* ---- while it runs, and after ---- */

/* Both sides' counters: shared memory, that neighbours move too. */
static uint64_t counters(const struct operation *operation)
{
    const struct kernel_edges *edges = &operation->comm->kernel->edges;
    uint64_t sum = 0;
    for (int c = 0; c < operation->cursor_count; c++)
        for (int i = 0; i < KERNEL_EDGES && edges->links[c][i].edge != NULL; i++)
            sum += __atomic_load_n(edges->links[c][i].fifo.tail, __ATOMIC_RELAXED) +
                   __atomic_load_n(edges->links[c][i].fifo.head, __ATOMIC_RELAXED);
    return sum;
}

/* A kernel that did not come to its end. */
static enum status explain_word(int channel, const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    struct kernel_word word = control_of(comm)->words[channel];
    const struct edge *edge = comm->kernel->edges.links[channel][word.edge].edge;
    int peer = edge->config.peer, rank = comm_rank_of(edge, comm);
    if (word.end == KERNEL_MISFIT) {
        enum status status = operation_check_slice(operation, rank, word.tag, word.bytes, word.expected_bytes);
        return status != STATUS_OK ? status
                                   : FAIL(STATUS_DATA, "rank %d sent an address over %s, expected data in its slot or what it shares", peer,
                                         edge->transport->name);
    }
    return FAIL(word.end == KERNEL_LATE ? STATUS_TIMEOUT : STATUS_ABORTED, "the kernel waited in vain for %s rank %d (channel %d)",
        edge->config.side == EDGE_CONSUMER ? "data from" : "room at", peer, channel);
}

/* The first channel that did not come to its end; −1: none. Others may still wait for what will not come. */
static int first_word(const struct operation *operation)
{
    const struct kernel_word *words = control_of(operation->comm)->words;
    for (int c = 0; c < operation->cursor_count; c++) /* written by the kernel's tell() */
        if (__atomic_load_n(&words[c].end, __ATOMIC_ACQUIRE) != KERNEL_OK) return c;
    return -1;
}

static void settle(struct operation *operation)
{
    const struct kernel_state *state = operation->comm->kernel;
    kernel_trace_end(&state->trace, control_of(operation->comm), operation);
    operation->kernel = KERNEL_DONE;
    operation->sent_bytes += state->sent_bytes;
    operation->received_bytes += state->received_bytes;
    operation->border_bytes += state->border_bytes;
}

/* Every edge of the plan has its place in the table; *ready: they are all connected. */
static enum status place_edges(const struct operation *operation, bool *ready)
{
    const struct ring_comm *comm = operation->comm;
    int first = comm_device_channel(comm);
    *ready = false;
    for (int e = 0; e < operation->edge_count; e++)
        if (operation->edges[e]->phase != EDGE_READY) return STATUS_OK;
    for (int e = 0; e < operation->edge_count; e++) {
        struct edge *edge = operation->edges[e];
        int channel = (int)(edge->config.key & 0xff) - first;
        if (channel >= 0) TRY(kernel_edges_add(&comm->kernel->edges, channel, edge)); /* else a roll call's */
    }
    *ready = true;
    return STATUS_OK;
}

enum status kernel_advance(struct operation *operation, bool *moved, bool *done)
{
    struct ring_comm *comm = operation->comm;
    struct kernel_state *state = comm->kernel;
    int channels = operation->cursor_count;
    if (operation->kernel == KERNEL_WAITS) {
        bool ready;
        TRY(place_edges(operation, &ready));
        if (ready) *moved = true;
        if (ready) TRY(operation->captured != NULL ? capture(operation) : launch(operation));
    } else if (operation->kernel == KERNEL_RUNS) {
        bool passed;
        TRY(comm->device->ops->mark_passed(&passed, state->mark, comm->device));
        uint64_t now = counters(operation);
        if (passed || now != state->seen) *moved = true;
        state->seen = now;
        int ended = first_word(operation);
        if (ended >= 0) return explain_word(ended, operation);
        if (passed) settle(operation);
    }
    if (operation->kernel != KERNEL_WAITS) TRY(kernel_edges_progress(&state->edges, channels, moved));
    *done = operation->kernel == KERNEL_DONE && kernel_edges_drained(&state->edges, channels);
    return STATUS_OK;
}

bool kernel_has_proxy(const struct operation *operation)
{
    return operation->kernel == KERNEL_RUNS && kernel_edges_bridged(&operation->comm->kernel->edges, operation->cursor_count) != NULL;
}

void kernel_abandon(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    if (operation->kernel != KERNEL_RUNS) return;
    int64_t until = clock_ns() + clock_ms_to_ns(comm->config.timeout_ms);
    struct timespec moment = {0, 100000};
    bool passed = false;
    __atomic_store_n(&control_of(comm)->abort, 1, __ATOMIC_RELEASE); /* read by the kernel's await() */
    while (comm->device->ops->mark_passed(&passed, comm->kernel->mark, comm->device) == STATUS_OK && !passed && clock_ns() < until)
        nanosleep(&moment, NULL);
    if (!passed) LOG_WARN("ring", "a kernel has not ended %d ms after it was told to", comm->config.timeout_ms);
    operation->kernel = KERNEL_DONE;
}

void kernel_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    bool runs = operation->kernel == KERNEL_RUNS;
    for (int c = 0; c < operation->cursor_count && runs; c++)
        for (int i = 0; i < KERNEL_EDGES && comm->kernel->edges.links[c][i].edge != NULL; i++) {
            const struct kernel_link *link = &comm->kernel->edges.links[c][i];
            int64_t filled = /* behind lines tail comes after head */
                (int64_t)(__atomic_load_n(link->fifo.tail, __ATOMIC_ACQUIRE) - __atomic_load_n(link->fifo.head, __ATOMIC_ACQUIRE));
            bool consumes = link->edge->config.side == EDGE_CONSUMER;
            if (consumes ? filled > 0 : filled < (int64_t)link->fifo.slot_count) continue;
            snprintf(text, bytes, "%s rank %d (its kernel, channel %d, %s)", consumes ? "data from" : "room at",
                link->edge->config.peer, c, link->edge->transport->name);
            *rank = comm_rank_of(link->edge, comm);
            return;
        }
    for (int e = 0; e < operation->edge_count && !runs; e++) {
        const struct edge *edge = operation->edges[e];
        if (edge->phase == EDGE_READY) continue;
        snprintf(text, bytes, "the connection with rank %d (%s)", edge->config.peer, edge->transport->name);
        *rank = comm_rank_of(edge, comm);
        return;
    }
    snprintf(text, bytes, runs ? "its kernel" : "the last bytes to leave");
}

/* ---- kernels of graphs ---- */

/* Under the lock: runs of a captured kernel. */
static uint64_t runs_of(const struct kernel_captured *captured)
{
    const struct kernel_control *control = captured->control.ptr;
    return control == NULL ? 0 : __atomic_load_n(&control->words[0].runs, __ATOMIC_RELAXED); /* written by end_of() */
}

void kernel_count_replays(struct ring_counters *counters, struct ring_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const struct kernel_captured *captured = comm->kernel != NULL ? comm->kernel->captured : NULL;
    for (; captured != NULL; captured = captured->older) {
        uint64_t runs = runs_of(captured);
        counters->operations[captured->collective] += runs;
        counters->sent_bytes[captured->collective] += runs * captured->sent_bytes;
        counters->received_bytes[captured->collective] += runs * captured->received_bytes;
        counters->border_bytes[captured->collective] += runs * captured->border_bytes;
    }
    pthread_mutex_unlock(&comm->lock);
}

/* Under the lock: the word of a channel that has failed, or NULL. */
static const struct kernel_word *failed_word(int *channel, const struct kernel_captured *captured)
{
    const struct kernel_control *control = captured->control.ptr;
    for (*channel = 0; control != NULL && *channel < captured->channels; ++*channel) /* written by the kernel's tell() */
        if (__atomic_load_n(&control->words[*channel].end, __ATOMIC_ACQUIRE) != KERNEL_OK) return &control->words[*channel];
    return NULL;
}

enum status kernel_check_replays(struct ring_comm *comm)
{
    enum status status = STATUS_OK;
    if (device_kind(comm->device) != MEMORY_CUDA) return STATUS_OK; /* every call comes here, small ones too */
    pthread_mutex_lock(&comm->lock);
    const struct kernel_captured *captured = comm->kernel != NULL ? comm->kernel->captured : NULL;
    for (; captured != NULL && (status == STATUS_OK || status == STATUS_ABORTED); captured = captured->older) {
        int c;
        const struct kernel_word *word = failed_word(&c, captured);
        if (word == NULL) continue; /* one that was ended for another's sake says least */
        const struct edge *edge = comm->kernel->edges.links[c][word->edge].edge;
        status = FAIL(word->end == KERNEL_MISFIT ? STATUS_DATA : word->end == KERNEL_LATE ? STATUS_TIMEOUT : STATUS_ABORTED,
            "rank %d: %s of a graph %s rank %d (channel %d, %s)", comm_name(comm, comm->rank), collective_name(captured->collective),
            word->end == KERNEL_MISFIT                  ? "got what is of another operation from"
            : edge->config.side == EDGE_CONSUMER ? "waited in vain for data from"
                                                 : "waited in vain for room at",
            edge->config.peer, c, edge->transport->name);
    }
    pthread_mutex_unlock(&comm->lock);
    return status;
}

void kernel_end_replays(struct ring_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const struct kernel_captured *captured = comm->kernel != NULL ? comm->kernel->captured : NULL;
    for (; captured != NULL; captured = captured->older) {
        struct kernel_control *control = captured->control.ptr;
        if (control != NULL) __atomic_store_n(&control->abort, 1, __ATOMIC_RELEASE); /* read by the kernel's patience */
    }
    pthread_mutex_unlock(&comm->lock);
}

static void forget_captured(struct ring_comm *comm)
{
    for (struct kernel_captured *captured = comm->kernel->captured; captured != NULL;) {
        struct kernel_captured *older = captured->older;
        memory_free(&captured->control, MEMORY_COMMUNICATION, comm->device);
        free(captured);
        captured = older;
    }
}

void kernel_forget(struct ring_comm *comm)
{
    if (comm->kernel == NULL) return;
    forget_captured(comm);
    kernel_edges_close(&comm->kernel->edges);
    kernel_trace_close(&comm->kernel->trace, comm->device);
    memory_free(&comm->kernel->control, MEMORY_COMMUNICATION, comm->device);
    if (comm->kernel->mark != NULL) comm->device->ops->mark_close(comm->kernel->mark, comm->device);
    free(comm->kernel);
    comm->kernel = NULL;
}
