/* What a kernel did when (kernel_trace.h): its trace has every step of the plan on every slice, as the trace of the same collective driven
 * by the host has it; its times lie within the call, in order; who comes late is waited for; what does not fit in its buffer is
 * counted; and without a trace nothing is kept.
 * ctest: timeout=60
 */
#include <stdio.h>
#include <stdlib.h>

#include "ring/kernel_run.h"
#include "ring/ring.h"
#include "ring/trace.h"
#include "tests/harness/harness.h"
#include "verbs/clock.h"

#define MOST_EVENTS 20000

struct world {
    struct device *device;
    struct ring_comm *comm;
    struct span x;
    struct trace *trace;
    int rank, n;
};

struct setting {
    size_t count; /* float32 */
    size_t slot_bytes;
    int channels, hosts;
};

static bool world_open(struct world *world, const char *mode, const struct setting *setting, struct bootstrap *bootstrap)
{
    *world = (struct world){.rank = bootstrap_rank(bootstrap), .n = bootstrap_nranks(bootstrap)};
    struct ring_config config = {.cuda_mode = mode, .slot_bytes = setting->slot_bytes, .slot_count = 4, .channels = setting->channels};
    if (setting->hosts == 2) config.host = world->rank < world->n / 2 ? "here" : "there";
    if (!CHECK_OK(device_open(&world->device, "cudasim"))) return false;
    CHECK_OK(memory_alloc(&world->x, setting->count * sizeof(float), MEMORY_WORKSPACE, world->device));
    CHECK_OK(trace_open(&world->trace, MOST_EVENTS));
    return CHECK_OK(ring_comm_open(&world->comm, &config, bootstrap, world->device));
}

static void world_close(struct world *world)
{
    ring_comm_close(world->comm);
    trace_close(world->trace);
    memory_free(&world->x, MEMORY_WORKSPACE, world->device);
    device_close(world->device);
}

static void add(struct world *world, const struct setting *setting)
{
    CHECK_OK(ring_all_reduce(world->x, world->x, setting->count, DTYPE_FLOAT32, REDOP_SUM, world->comm, NULL));
}

/* One collective that is watched, between two that are not. ordered: a channel's slices come one after another, which
 * those that the host drives do not. */
static const struct trace_event *watch(
    size_t *count, uint64_t *dropped, bool ordered, struct world *world, const struct setting *setting)
{
    add(world, setting);
    ring_comm_trace(world->comm, world->trace);
    int64_t begin_ns = clock_ns();
    add(world, setting);
    int64_t end_ns = clock_ns();
    ring_comm_trace(world->comm, NULL);
    add(world, setting);
    const struct trace_event *events = trace_events(world->trace, count, dropped);
    int64_t last_ns[16] = {0};
    for (size_t i = 0; i < *count && ordered; i++) {
        int64_t *last = &last_ns[events[i].channel];
        CHECK(events[i].begin_ns >= begin_ns && events[i].end_ns <= end_ns && events[i].end_ns >= events[i].begin_ns);
        CHECK(events[i].begin_ns >= *last);
        if (i > 0 && events[i - 1].kind != TRACE_STEP && events[i - 1].channel == events[i].channel)
            CHECK(events[i].kind == TRACE_STEP && events[i].begin_ns == *last); /* a wait ends where work begins */
        *last = events[i].end_ns;
    }
    return events;
}

/* The next step of a channel from the i-th event on; count: none. */
static size_t next_step(const struct trace_event *events, size_t i, size_t count, int channel)
{
    while (i < count && (events[i].kind != TRACE_STEP || events[i].channel != channel)) i++;
    return i;
}

static bool same_step(const struct trace_event *a, const struct trace_event *b)
{
    return a->bytes == b->bytes && a->slice == b->slice && a->sequence == b->sequence && a->step == b->step && a->chunk == b->chunk &&
           a->from == b->from && a->to == b->to && a->joins == b->joins && a->collective == b->collective &&
           a->primitive == b->primitive;
}

static void same_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    static const char *const modes[] = {"copies", "kernel"};
    struct world worlds[2];
    const struct trace_event *events[2];
    size_t counts[2];
    for (int m = 0; m < 2; m++) {
        uint64_t dropped;
        if (!world_open(&worlds[m], modes[m], setting, bootstrap)) return;
        events[m] = watch(&counts[m], &dropped, m == 1, &worlds[m], setting);
        CHECK(dropped == 0);
    }
    for (int channel = 0; channel < setting->channels; channel++) {
        size_t a = next_step(events[0], 0, counts[0], channel), b = next_step(events[1], 0, counts[1], channel), steps = 0;
        for (; a < counts[0] && b < counts[1] && CHECK(same_step(&events[0][a], &events[1][b])); steps++) {
            a = next_step(events[0], a + 1, counts[0], channel);
            b = next_step(events[1], b + 1, counts[1], channel);
        }
        CHECK_MSG(steps > 0 && a == counts[0] && b == counts[1], "channel %d: %zu steps are the same", channel, steps);
    }
    for (int m = 0; m < 2; m++) world_close(&worlds[m]);
}

/* Rank 1 is late, again and again: now and then at least the others have begun meanwhile. */
static void late_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct world world;
    size_t count, waits = 0;
    uint64_t dropped;
    if (!world_open(&world, "kernel", setting, bootstrap)) return;
    ring_comm_trace(world.comm, world.trace);
    for (int turn = 0; turn < 8; turn++) {
        if (world.rank == 1) pause_ms(20);
        add(&world, setting);
    }
    const struct trace_event *events = trace_events(world.trace, &count, &dropped);
    for (size_t i = 0; i < count; i++) waits += events[i].kind != TRACE_STEP;
    if (world.rank != 1) CHECK_MSG(waits > 0, "rank %d has not waited for rank 1", world.rank);
    world_close(&world);
}

/* More slices than are kept. */
static void long_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct world world;
    size_t count, steps = 0;
    uint64_t dropped;
    if (!world_open(&world, "kernel", setting, bootstrap)) return;
    const struct trace_event *events = watch(&count, &dropped, true, &world, setting);
    for (size_t i = 0; i < count; i++) steps += events[i].kind == TRACE_STEP;
    size_t slice_count = setting->slot_bytes / sizeof(float), chunk_count = setting->count / (size_t)world.n;
    size_t slices = (chunk_count + slice_count - 1) / slice_count, all = (2 * (size_t)world.n - 1) * slices;
    CHECK_MSG(steps == KERNEL_MOMENTS && steps + dropped == all, "%zu steps, %llu dropped, expected %zu", steps,
        (unsigned long long)dropped, all);
    world_close(&world);
}

int main(void)
{
    static struct setting settings[] = {{6000, 1024, 1, 1}, {7001, 1024, 2, 1}, {100, 1024, 1, 1}, {6000, 512, 1, 2}};
    static struct setting longer = {48000, 64, 1, 1};
    if (!test_has_device("cudasim")) return test_skip("cudasim");
    for (int i = 0; i < 4; i++)
        for (int n = 2; n <= 4; n += 2)
            if (settings[i].hosts == 1 || n == 4) CHECK(ranks_as_processes(n, 30000, same_body, &settings[i], -1) == 0);
    for (int i = 0; i < 3; i += 2) CHECK(ranks_as_processes(3, 30000, late_body, &settings[i], -1) == 0); /* by slots, by lines */
    CHECK(ranks_as_processes(2, 30000, long_body, &longer, -1) == 0);
    return test_result();
}
