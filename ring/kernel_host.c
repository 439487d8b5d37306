/* kernel_host: see kernel_host.h. */
#include "ring/kernel_host.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring/comm.h"
#include "ring/flight.h"
#include "ring/kernel_run.h"
#include "verbs/clock.h"
#include "verbs/device_ops.h"
#include "verbs/log.h"

/* Kept by the communicator: one kernel runs at a time. */
struct kernel_state {
    struct span control; /* pinned: struct kernel_control and its steps */
    void *mark;
    uint64_t seen;       /* sum of the counters of its edges when last looked at */
    uint64_t sent_bytes, received_bytes;
    struct edge *edges[RING_MAX_CHANNELS][KERNEL_EDGES];
    uint64_t slices[RING_MAX_CHANNELS][KERNEL_EDGES]; /* that each edge carries */
};

/* Of any plan on a ring, in two levels too. */
static size_t most_steps(const struct ring_comm *comm) { return 3 * (size_t)comm->nranks; }

bool kernel_is_wanted(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    return operation->on_device && comm->kernels && comm->nranks > 1 && collective_is_on_ring(operation->collective) &&
           device_table(comm->device, PLUGIN_RING) != NULL && most_steps(comm) <= KERNEL_MOST_STEPS;
}

static struct kernel_control *control_of(const struct ring_comm *comm) { return comm->kernel->control.ptr; }

/* ---- before ---- */

/* Once, and before this rank's first edge: CUDA may wait for what runs when it allocates, and so for a kernel that waits for this rank,
 * where that is a thread of the same process. */
enum status kernel_prepare(struct ring_comm *comm)
{
    if (comm->kernel != NULL) return STATUS_OK;
    size_t steps = most_steps(comm) * (size_t)comm->config.channels;
    comm->kernel = calloc(1, sizeof *comm->kernel);
    if (comm->kernel == NULL) return FAIL(STATUS_SYSTEM, "no memory for a kernel's plan");
    TRY(comm->device->ops->mark_open(&comm->kernel->mark, comm->device));
    return memory_alloc_kind(&comm->kernel->control, sizeof(struct kernel_control) + steps * sizeof(struct kernel_step),
        MEMORY_HOST_PINNED, MEMORY_COMMUNICATION, comm->device);
}

static bool within_reach(const struct edge *edge)
{
    return edge->kernels_reach && edge->slots_kind == MEMORY_CUDA;
}

/* The channel's place for an edge; −1 where a step has none. */
static int8_t place_of(enum edge_side side, int position, const struct cursor *cursor, struct edge **edges)
{
    if (position < 0) return -1;
    const struct ring_comm *comm = cursor->operation->comm;
    struct edge *edge = *comm_edge_place(cursor->edge_channel, side, comm_rank_at(comm, cursor->channel, position), comm);
    int8_t i = 0;
    while (edges[i] != NULL && edges[i] != edge) i++;
    edges[i] = edge;
    return i;
}

static struct kernel_edge edge_for_kernel(const struct edge *edge)
{
    const struct fifo *fifo = &edge->fifo;
    return (struct kernel_edge){
        .slots = fifo->slots,
        .records = (struct fifo_record *)(void *)((char *)fifo->records + edge->kernel_shift),
        .tail = (uint64_t *)(void *)((char *)fifo->tail + edge->kernel_shift),
        .head = (uint64_t *)(void *)((char *)fifo->head + edge->kernel_shift),
        .slot_bytes = fifo->slot_bytes,
        .slot_count = fifo->slot_count,
        .step = fifo->step,
    };
}

/* The channel's part of the step's chunk, and its edges. */
static struct kernel_step lay_out(const struct plan_step *step, const struct cursor *cursor, struct kernel_state *state)
{
    const struct operation *operation = cursor->operation;
    const struct place first = {0, 0, 0};
    struct edge **edges = state->edges[cursor->channel];
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
        .from = place_of(EDGE_CONSUMER, step->from, cursor, edges),
        .joins = place_of(EDGE_CONSUMER, step->joins, cursor, edges),
        .to = place_of(EDGE_PRODUCER, step->to, cursor, edges),
        .wire_bytes = (uint8_t)(primitive_receives_partial(step->primitive) ? partial : element),
        .slot_bytes = (uint8_t)(primitive_sends_partial(step->primitive, operation->collective) ? partial : element),
    };
    if (receives) state->slices[cursor->channel][laid.from] += cursor->slices;
    if (joins) state->slices[cursor->channel][laid.joins] += cursor->slices;
    if (sends) state->slices[cursor->channel][laid.to] += cursor->slices;
    state->received_bytes += (size_t)(receives + joins) * slice.received_bytes;
    state->sent_bytes += sends ? slice.sent_bytes : 0;
    return laid;
}

static void lay_out_channel(struct cursor *cursor, uint32_t first_step, struct kernel_state *state)
{
    struct kernel_control *control = state->control.ptr;
    struct kernel_channel *channel = &control->channels[cursor->channel];
    struct edge **edges = state->edges[cursor->channel];
    *channel = (struct kernel_channel){
        .slices = cursor->slices,
        .slice_count = cursor->slice_count,
        .in_flight = cursor->operation->comm->config.slot_count / 2,
        .step_count = (uint32_t)cursor->plan.steps,
        .first_step = first_step,
    };
    for (int i = 0; i < cursor->plan.steps; i++) {
        struct plan_step step = plan_step_at(&cursor->plan, i);
        control->steps[first_step + (uint32_t)i] = lay_out(&step, cursor, state);
    }
    for (int i = 0; i < KERNEL_EDGES && edges[i] != NULL; i++) channel->edges[i] = edge_for_kernel(edges[i]);
}

static enum status launch(struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    const struct kernel_ops *ops = device_table(comm->device, PLUGIN_RING);
    uint32_t steps = (uint32_t)operation->room->cursors[0].plan.steps, channels = (uint32_t)operation->cursor_count;
    struct kernel_state *state = comm->kernel;
    memset(state->edges, 0, sizeof state->edges);
    memset(state->slices, 0, sizeof state->slices);
    memset(state->control.ptr, 0, sizeof(struct kernel_control));
    state->sent_bytes = state->received_bytes = 0;
    for (uint32_t c = 0; c < channels; c++) lay_out_channel(&operation->room->cursors[c], c * steps, state);
    struct kernel_run run = {
        .control = control_of(comm),
        .reduction = operation->reduction,
        .tag = operation->tag,
        .timeout_ns = (uint64_t)clock_ms_to_ns(2 * comm->config.timeout_ms), /* the host's own comes first, and says more */
        .channels = operation->cursor_count,
    };
    void *native = flights_native(comm);
    assert(steps <= most_steps(comm));
    TRY(ops->launch(&run, steps, native, comm->device));
    TRY(comm->device->ops->mark_record(state->mark, native, comm->device));
    operation->kernel = KERNEL_RUNS;
    return STATUS_OK;
}

/* ---- while it runs, and after ---- */

/* Both sides' counters: shared memory, that neighbours move too. */
static uint64_t counters(const struct operation *operation)
{
    const struct kernel_state *state = operation->comm->kernel;
    uint64_t sum = 0;
    for (int c = 0; c < operation->cursor_count; c++)
        for (int i = 0; i < KERNEL_EDGES && state->edges[c][i] != NULL; i++)
            sum += __atomic_load_n(state->edges[c][i]->fifo.tail, __ATOMIC_RELAXED) +
                   __atomic_load_n(state->edges[c][i]->fifo.head, __ATOMIC_RELAXED);
    return sum;
}

/* A kernel that did not come to its end. */
static enum status explain_word(int channel, const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    struct kernel_word word = control_of(comm)->words[channel];
    const struct edge *edge = comm->kernel->edges[channel][word.edge];
    int peer = edge->config.peer, rank = 0;
    while (comm_name(comm, rank) != peer) rank++;
    if (word.end == KERNEL_MISFIT) {
        enum status status = operation_check_slice(operation, rank, word.tag, word.bytes, word.expected_bytes);
        return status != STATUS_OK ? status
                                   : FAIL(STATUS_DATA, "rank %d sent an address over %s, expected data in its slot", peer,
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
    struct kernel_state *state = operation->comm->kernel;
    operation->kernel = KERNEL_DONE;
    for (int c = 0; c < operation->cursor_count; c++)
        for (int i = 0; i < KERNEL_EDGES && state->edges[c][i] != NULL; i++) {
            struct fifo *fifo = &state->edges[c][i]->fifo;
            bool produces = state->edges[c][i]->config.side == EDGE_PRODUCER;
            fifo->step += state->slices[c][i];
            fifo->seen = produces ? fifo->step - fifo->slot_count : fifo->step; /* not seen: looked at when next asked */
        }
    operation->sent_bytes += state->sent_bytes;
    operation->received_bytes += state->received_bytes;
}

enum status kernel_advance(struct operation *operation, bool *moved, bool *done)
{
    struct ring_comm *comm = operation->comm;
    *done = operation->kernel == KERNEL_DONE;
    if (operation->kernel == KERNEL_WAITS) {
        bool reach = true;
        for (int e = 0; e < operation->edge_count; e++) {
            const struct edge *edge = operation->edges[e];
            if ((edge->config.key & 0xff) < (uint64_t)comm_device_channel(comm)) continue; /* a roll call's */
            if (edge->phase != EDGE_READY) return STATUS_OK;
            reach = reach && within_reach(edge);
        }
        *moved = true;
        if (reach) return launch(operation);
        operation->kernel = KERNEL_OFF;
    } else if (operation->kernel == KERNEL_RUNS) {
        bool passed;
        TRY(comm->device->ops->mark_passed(&passed, comm->kernel->mark, comm->device));
        uint64_t now = counters(operation);
        if (passed || now != comm->kernel->seen) *moved = true;
        comm->kernel->seen = now;
        int ended = first_word(operation);
        if (ended >= 0) return explain_word(ended, operation);
        if (passed) settle(operation);
        *done = passed;
    }
    return STATUS_OK;
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
    for (int c = 0; c < operation->cursor_count && operation->kernel == KERNEL_RUNS; c++)
        for (int i = 0; i < KERNEL_EDGES && comm->kernel->edges[c][i] != NULL; i++) {
            const struct edge *edge = comm->kernel->edges[c][i];
            uint64_t filled = __atomic_load_n(edge->fifo.tail, __ATOMIC_ACQUIRE) - __atomic_load_n(edge->fifo.head, __ATOMIC_ACQUIRE);
            bool consumes = edge->config.side == EDGE_CONSUMER;
            if (filled != (consumes ? 0 : edge->fifo.slot_count)) continue;
            snprintf(text, bytes, "%s rank %d (its kernel, channel %d, %s)", consumes ? "data from" : "room at", edge->config.peer, c,
                edge->transport->name);
            for (*rank = 0; comm_name(comm, *rank) != edge->config.peer;) ++*rank;
            return;
        }
    snprintf(text, bytes, operation->kernel == KERNEL_RUNS ? "its kernel" : "its neighbours' edges");
}

void kernel_forget(struct ring_comm *comm)
{
    if (comm->kernel == NULL) return;
    memory_free(&comm->kernel->control, MEMORY_COMMUNICATION, comm->device);
    if (comm->kernel->mark != NULL) comm->device->ops->mark_close(comm->kernel->mark, comm->device);
    free(comm->kernel);
    comm->kernel = NULL;
}
