/* kernel_trace: see kernel_trace.h. */
#include "ring/kernel_trace.h"

#include "ring/comm.h"
#include "ring/flight.h"
#include "ring/trace.h"
#include "verbs/clock.h"

enum status kernel_trace_open(struct kernel_trace *trace, int channels, struct device *device)
{
    size_t bytes = (size_t)channels * KERNEL_MOMENTS * sizeof(struct kernel_moment);
    return memory_alloc_kind(&trace->moments, bytes, MEMORY_HOST_PINNED, MEMORY_COMMUNICATION, device);
}

void kernel_trace_close(struct kernel_trace *trace, struct device *device)
{
    memory_free(&trace->moments, MEMORY_COMMUNICATION, device);
}

struct kernel_moment *kernel_trace_begin(struct kernel_trace *trace, const struct operation *operation)
{
    if (operation->comm->trace == NULL) return NULL;
    trace->launched_ns = clock_ns();
    return trace->moments.ptr;
}

/* What is added to the GPU's clock. */
static int64_t offset_of(const struct kernel_word *words, int channels, int64_t launched_ns, int64_t passed_ns)
{
    int64_t least = launched_ns - (int64_t)words[0].began_ns, most = passed_ns - (int64_t)words[0].ended_ns;
    for (int c = 1; c < channels; c++) {
        int64_t after = launched_ns - (int64_t)words[c].began_ns, before = passed_ns - (int64_t)words[c].ended_ns;
        if (after > least) least = after;
        if (before < most) most = before;
    }
    return least <= 0 && most >= 0 ? 0 : least + (most - least) / 2;
}

/* A slice, and the wait before it. */
static void put_moment(struct trace *trace, const struct kernel_moment *moment, int64_t offset_ns, const struct cursor *cursor)
{
    size_t in_flight = cursor->operation->comm->config.slot_count / 2; /* of a block: see operation.h */
    struct place at = {moment->slice / in_flight * in_flight, moment->step, moment->slice % in_flight};
    struct plan_step step = plan_step_at(&cursor->plan, at.step);
    struct slice slice = {0};
    slice_operands(&slice, &step, &at, cursor);
    struct trace_event event = step_event(slice.bytes, &step, &at, cursor), wait = event;
    event.channel = wait.channel = (uint8_t)cursor->channel;
    event.kind = TRACE_STEP;
    event.begin_ns = (int64_t)moment->ready_ns + offset_ns;
    event.end_ns = (int64_t)moment->ended_ns + offset_ns;
    wait.kind = moment->waited & KERNEL_WAITED_DATA ? TRACE_WAIT_DATA : TRACE_WAIT_ROOM;
    wait.begin_ns = (int64_t)moment->began_ns + offset_ns;
    wait.end_ns = event.begin_ns;
    wait.bytes = 0;
    if (moment->waited != 0) trace_put(trace, &wait);
    trace_put(trace, &event);
}

void kernel_trace_end(const struct kernel_trace *trace, const struct kernel_control *control, const struct operation *operation)
{
    struct trace *to = operation->comm->trace;
    if (to == NULL) return;
    int64_t offset_ns = offset_of(control->words, operation->cursor_count, trace->launched_ns, clock_ns());
    for (int c = 0; c < operation->cursor_count; c++) {
        const struct kernel_moment *moments = (const struct kernel_moment *)trace->moments.ptr + (size_t)c * KERNEL_MOMENTS;
        uint64_t count = control->words[c].moments, kept = count < KERNEL_MOMENTS ? count : KERNEL_MOMENTS;
        for (uint64_t i = 0; i < kept; i++) put_moment(to, &moments[i], offset_ns, &operation->room->cursors[c]);
        trace_lose(to, count - kept);
    }
}
