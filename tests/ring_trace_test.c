/* The trace: every step of the plan is in it once, in order, with its peers and bytes; each slice is received
 * after its sending began; a full buffer counts what it drops; without a trace nothing is written; clocks of
 * one host agree. Exchanges are in it with every part.
 * ctest: timeout=60
 */
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "ring/trace.h"
#include "tests/harness/harness.h"

#define COUNT 60000 /* float32: several slices a chunk */

/* One rank's steps are those of the plan, on each slice, block by block; its waits have a length and lie
 * between steps. */
static void check_rank(const struct trace_event *events, size_t count, int rank, int n)
{
    struct plan plan = plan_make(COLLECTIVE_ALL_REDUCE, n, rank, 0);
    struct ring_call call = {
        .collective = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_FLOAT32, .redop = REDOP_SUM, .count = COUNT};
    uint64_t sent = 0, predicted = ring_predict_sent_bytes(&call, n, rank, NULL);
    size_t steps = 0, done[2 * 8] = {0};
    int64_t last_end = 0;
    for (size_t i = 0; i < count; i++) {
        const struct trace_event *event = &events[i];
        CHECK(event->begin_ns <= event->end_ns && event->begin_ns >= last_end);
        if (i > 0 && events[i - 1].kind != TRACE_STEP)
            CHECK(event->begin_ns == last_end); /* a wait ends where work begins */
        last_end = event->end_ns;
        if (event->kind != TRACE_STEP) continue;
        steps++;
        if (!CHECK(event->step >= 0 && event->step < plan.steps)) continue;
        struct plan_step step = plan_step_at(&plan, event->step);
        CHECK(event->primitive == step.primitive && event->chunk == step.chunk && event->from == step.from &&
              event->to == step.to);
        CHECK(event->collective == COLLECTIVE_ALL_REDUCE && event->slice == done[event->step]++);
        if (event->to >= 0) sent += event->bytes;
    }
    CHECK_MSG(sent == predicted, "rank %d: %llu bytes traced, %llu predicted", rank, (unsigned long long)sent,
        (unsigned long long)predicted);
    CHECK_MSG(steps > 0 && steps == done[0] * (size_t)plan.steps, "rank %d: %zu steps, %zu slices", rank, steps,
        done[0]);
}

/* The k-th slice on an edge is received by a step that ends after the k-th sending began, on one clock. */
static void check_order(const struct trace_all *all)
{
    for (int from = 0; from < all->nranks; from++) {
        int to = (from + 1) % all->nranks;
        size_t at = all->begins[to];
        for (size_t i = all->begins[from]; i < all->begins[from + 1]; i++) {
            const struct trace_event *send = &all->events[i];
            if (send->kind != TRACE_STEP || send->to < 0) continue;
            while (at < all->begins[to + 1] && (all->events[at].kind != TRACE_STEP || all->events[at].from < 0))
                at++;
            if (!CHECK(at < all->begins[to + 1])) return;
            CHECK(all->events[at].chunk == send->chunk && all->events[at].slice == send->slice);
            CHECK(all->events[at].end_ns >= send->begin_ns && send->begin_ns >= all->first_ns);
            at++;
        }
    }
}

/* A few elements, one hop or two: what each rank sends to each other is in the trace, and was received there, with its bytes. */
static void check_exchange(struct ring_comm *comm, struct bootstrap *bootstrap, enum collective collective, size_t count)
{
    struct trace *trace;
    struct trace_all all;
    int n = ring_comm_nranks(comm);
    float x[8 * 600] = {0}, y[8 * 600];
    CHECK_OK(trace_open(&trace, 1000));
    ring_comm_trace(comm, trace);
    struct span send = span_host(x, sizeof x), recv = span_host(y, sizeof y);
    if (collective == COLLECTIVE_ALL_REDUCE) CHECK_OK(ring_all_reduce(recv, send, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    else if (collective == COLLECTIVE_ALL_GATHER) CHECK_OK(ring_all_gather(recv, send, count, DTYPE_FLOAT32, comm, NULL));
    else CHECK_OK(ring_broadcast(recv, send, count, DTYPE_FLOAT32, n - 1, comm, NULL));
    ring_comm_trace(comm, NULL);
    CHECK_OK(trace_gather(&all, trace, bootstrap));
    uint64_t sent[8][8] = {0}, received[8][8] = {0};
    size_t sums = 0;
    for (int r = 0; r < n && bootstrap_rank(bootstrap) == 0; r++) {
        int64_t last_end = 0;
        for (size_t i = all.begins[r]; i < all.begins[r + 1]; i++) {
            const struct trace_event *event = &all.events[i];
            CHECK(event->begin_ns >= last_end && event->end_ns >= event->begin_ns);
            last_end = event->end_ns;
            if (event->kind != TRACE_STEP) continue;
            CHECK(event->collective == collective && event->channel == 0 && event->chunk >= 0 && event->chunk < n);
            if (event->to >= 0) sent[r][event->to] += event->bytes + 1;
            else if (event->from >= 0) received[event->from][r] += event->bytes + 1;
            else sums += event->primitive == PRIMITIVE_RECV_REDUCE_COPY;
        }
        struct ring_call call = {.collective = collective, .dtype = DTYPE_FLOAT32, .root = n - 1, .count = count};
        uint64_t bytes = 0;
        for (int to = 0; to < n; to++) bytes += sent[r][to];
        bool two_hops = collective == COLLECTIVE_ALL_REDUCE && count * sizeof(float) > 1000;
        uint64_t parts = collective == COLLECTIVE_BROADCAST && r != n - 1 ? 0 : (uint64_t)(n - 1) << two_hops;
        CHECK_MSG(bytes == parts + ring_predict_sent_bytes(&call, n, r, comm), "rank %d of %d: %s of %zu", r, n,
            collective_name(collective), count);
    }
    if (bootstrap_rank(bootstrap) == 0) {
        CHECK(memcmp(sent, received, sizeof sent) == 0);
        CHECK(sums == (collective == COLLECTIVE_ALL_REDUCE ? (size_t)n : 0));
    }
    trace_all_free(&all);
    trace_close(trace);
}

static void run_traced(struct ring_comm *comm, struct device *device)
{
    struct span x;
    CHECK_OK(memory_alloc(&x, COUNT * sizeof(float), MEMORY_WORKSPACE, device));
    memset(x.ptr, 0, x.bytes);
    CHECK_OK(ring_all_reduce(x, x, COUNT, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    memory_free(&x, MEMORY_WORKSPACE, device);
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct device *device;
    struct ring_comm *comm;
    struct trace *trace, *tiny;
    struct trace_all all;
    size_t count;
    uint64_t dropped;
    int rank = bootstrap_rank(bootstrap), n = bootstrap_nranks(bootstrap);
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(
        ring_comm_open(&comm, &(struct ring_config){.slot_bytes = 16384, .slot_count = 4}, bootstrap, device));
    CHECK_OK(trace_open(&trace, 4096));
    CHECK_OK(trace_open(&tiny, 3));

    ring_comm_trace(comm, trace);
    run_traced(comm, device);
    CHECK_OK(trace_gather(&all, trace, bootstrap));
    CHECK(all.dropped == 0);
    if (rank == 0) {
        CHECK(all.nranks == n);
        for (int r = 0; r < n; r++)
            check_rank(&all.events[all.begins[r]], all.begins[r + 1] - all.begins[r], r, n);
        if (n > 1) check_order(&all);
    } else {
        CHECK(all.begins[n] == 0);
    }
    trace_all_free(&all);

    trace_clear(trace);
    ring_comm_trace(comm, tiny);
    run_traced(comm, device);
    trace_events(trace, &count, &dropped);
    CHECK(count == 0 && dropped == 0);
    trace_events(tiny, &count, &dropped);
    CHECK(count == 3 && dropped > 0);
    ring_comm_trace(comm, NULL);
    trace_clear(tiny);
    run_traced(comm, device);
    trace_events(tiny, &count, &dropped);
    CHECK(count == 0 && dropped == 0);

    if (n > 1) {
        check_exchange(comm, bootstrap, COLLECTIVE_ALL_REDUCE, 3);
        check_exchange(comm, bootstrap, COLLECTIVE_ALL_REDUCE, 600);
        check_exchange(comm, bootstrap, COLLECTIVE_ALL_GATHER, 600);
        check_exchange(comm, bootstrap, COLLECTIVE_BROADCAST, 7);
    }
    int64_t offset = 1;
    CHECK_OK(trace_clock_offset(&offset, bootstrap));
    CHECK(offset == 0); /* one host */
    trace_close(tiny);
    trace_close(trace);
    ring_comm_close(comm);
    device_close(device);
}

int main(void)
{
    for (int n = 1; n <= 4; n++) ranks_as_threads(n, 10000, body, NULL);
    trace_close(NULL);
    return test_result();
}
