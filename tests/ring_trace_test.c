/* The trace: every step of the plan is in it once, in order, with its peers and bytes; each slice is received
 * after its sending began; a full buffer counts what it drops; without a trace nothing is written; clocks of
 * one host agree. Exchanges are in it with every part; of windows every record that is posted is met, and used.
 * ctest: timeout=60
 */
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "ring/trace.h"
#include "tests/harness/harness.h"

#define COUNT 60000 /* float32: several slices a chunk */

/* One rank's steps are those of the plan, on each slice, block by block; its waits have a length and lie
 * between steps. Ranks stand in their order on the ring. */
static void check_rank(const struct trace_event *events, size_t count, int rank, int n, int host_ranks)
{
    struct plan plan = plan_make_two_level(COLLECTIVE_ALL_REDUCE, n, host_ranks, rank, 0);
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
              event->to == step.to && event->joins == step.joins);
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
        size_t next[8];
        memcpy(next, all->begins, sizeof *next * (size_t)all->nranks);
        for (size_t i = all->begins[from]; i < all->begins[from + 1]; i++) {
            const struct trace_event *send = &all->events[i], *receive;
            if (send->kind != TRACE_STEP || send->to < 0) continue;
            size_t *at = &next[send->to], end = all->begins[send->to + 1];
            do receive = &all->events[(*at)++];
            while (*at <= end && (receive->kind != TRACE_STEP || (receive->from != from && receive->joins != from)));
            if (!CHECK(*at <= end)) return;
            CHECK(receive->chunk == send->chunk && receive->slice == send->slice);
            CHECK(receive->end_ns >= send->begin_ns && send->begin_ns >= all->first_ns);
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

static enum status call_by_windows(
    struct span recv, struct span send, enum collective collective, size_t count, struct ring_comm *comm)
{
    switch (collective) {
    case COLLECTIVE_ALL_REDUCE: return ring_all_reduce(recv, send, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    case COLLECTIVE_REDUCE_SCATTER: return ring_reduce_scatter(recv, send, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    case COLLECTIVE_ALL_GATHER: return ring_all_gather(recv, send, count, DTYPE_FLOAT32, comm, NULL);
    default: return ring_broadcast(recv, send, count, DTYPE_FLOAT32, 0, comm, NULL);
    }
}

/* By sender and receiver: bytes of all records, · 1024, + their number. */
struct tally {
    uint64_t sent[8][8], met[8][8];
};

/* One rank: what it sent is what was predicted; all that it met it added or copied. */
static void check_windows_of(
    struct tally *tally, const struct trace_event *events, size_t count, int rank, const struct ring_call *call, struct ring_comm *comm)
{
    uint64_t sent = 0, inputs = 0, results = 0, added = 0, copied = 0;
    int64_t last_end = 0;
    int n = ring_comm_nranks(comm);
    for (size_t i = 0; i < count; i++) {
        const struct trace_event *event = &events[i];
        CHECK(event->begin_ns >= last_end && event->end_ns >= event->begin_ns);
        last_end = event->end_ns;
        if (event->kind != TRACE_STEP) continue;
        CHECK(event->collective == call->collective && event->chunk >= 0 && event->chunk < n);
        if (event->to >= 0) tally->sent[rank][event->to] += event->bytes * 1024 + 1, sent += event->bytes;
        if (event->from >= 0) {
            tally->met[event->from][rank] += event->bytes * 1024 + 1;
            *(event->step == 0 ? &inputs : &results) += event->bytes;
        }
        if (event->from < 0 && event->to < 0) *(event->primitive == PRIMITIVE_COPY ? &copied : &added) += event->bytes;
    }
    uint64_t own = call->collective == COLLECTIVE_ALL_GATHER || (call->collective == COLLECTIVE_BROADCAST && rank == call->root)
                       ? call->count * sizeof(float)
                       : 0; /* out of place: from send to recv */
    CHECK_MSG(sent == ring_predict_sent_bytes(call, n, rank, comm), "rank %d of %d: %s", rank, n, collective_name(call->collective));
    CHECK(inputs == added * (uint64_t)(n - 1) && copied == results + own);
    CHECK(collective_is_reduction(call->collective) == (added > 0));
}

/* Large operations in memory that others read: every record that is posted is met, and what is met is used. */
static void check_windows(struct ring_comm *comm, struct bootstrap *bootstrap, enum collective collective, bool own)
{
    enum { MOST = 4 * 100000 };
    struct trace *trace;
    struct trace_all all;
    struct span send, recv;
    int n = ring_comm_nranks(comm);
    static float plain[8][2 * MOST];
    send = recv = span_host(plain[ring_comm_rank(comm)], MOST * sizeof(float));
    recv.ptr = plain[ring_comm_rank(comm)] + MOST;
    if (own) {
        CHECK_OK(ring_alloc(&send, MOST * sizeof(float), MEMORY_WORKSPACE, comm));
        CHECK_OK(ring_alloc(&recv, MOST * sizeof(float), MEMORY_WORKSPACE, comm));
    }
    struct ring_call call = {.collective = collective, .dtype = DTYPE_FLOAT32, .redop = REDOP_SUM, .count = 100000};
    CHECK_OK(trace_open(&trace, 4096));
    ring_comm_trace(comm, trace);
    CHECK_OK(call_by_windows(recv, send, collective, call.count, comm));
    ring_comm_trace(comm, NULL);
    CHECK_OK(trace_gather(&all, trace, bootstrap));
    CHECK(all.dropped == 0);
    struct tally tally = {0};
    for (int r = 0; r < n && bootstrap_rank(bootstrap) == 0; r++)
        check_windows_of(&tally, &all.events[all.begins[r]], all.begins[r + 1] - all.begins[r], r, &call, comm);
    CHECK(memcmp(tally.sent, tally.met, sizeof tally.sent) == 0);
    trace_all_free(&all);
    trace_close(trace);
    if (own) ring_free(&recv, MEMORY_WORKSPACE, comm);
    if (own) ring_free(&send, MEMORY_WORKSPACE, comm);
}

static void windows_body(struct bootstrap *bootstrap, void *argument)
{
    static const enum collective kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST, COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER};
    (void)argument;
    struct device *device;
    struct ring_comm *comm;
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(ring_comm_open(&comm, &(struct ring_config){.transport = "shm", .window_bytes = 1}, bootstrap, device));
    for (int k = 0; k < 3 && ring_comm_nranks(comm) > 2; k++) check_windows(comm, bootstrap, kinds[k], false);
    for (int k = 0; k < 4; k++) check_windows(comm, bootstrap, kinds[k], true);
    ring_comm_close(comm);
    device_close(device);
}

static void run_traced(struct ring_comm *comm, struct device *device)
{
    struct span x;
    CHECK_OK(memory_alloc(&x, COUNT * sizeof(float), MEMORY_WORKSPACE, device));
    memset(x.ptr, 0, x.bytes);
    CHECK_OK(ring_all_reduce(x, x, COUNT, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    memory_free(&x, MEMORY_WORKSPACE, device);
}

/* argument: NULL, or ranks on two pretended hosts. */
static void body(struct bootstrap *bootstrap, void *argument)
{
    struct device *device;
    struct ring_comm *comm;
    struct trace *trace, *tiny;
    struct trace_all all;
    size_t count;
    uint64_t dropped;
    int rank = bootstrap_rank(bootstrap), n = bootstrap_nranks(bootstrap);
    CHECK_OK(device_open(&device, "host"));
    struct ring_config config = {.slot_bytes = 16384, .slot_count = 4};
    if (argument != NULL) config.host = rank < n / 2 ? "a" : "b";
    CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device));
    CHECK(ring_comm_host_ranks(comm) == (argument != NULL ? n / 2 : 1));
    CHECK_OK(trace_open(&trace, 4096));
    CHECK_OK(trace_open(&tiny, 3));

    ring_comm_trace(comm, trace);
    run_traced(comm, device);
    CHECK_OK(trace_gather(&all, trace, bootstrap));
    CHECK(all.dropped == 0);
    if (rank == 0) {
        CHECK(all.nranks == n);
        for (int r = 0; r < n; r++)
            check_rank(&all.events[all.begins[r]], all.begins[r + 1] - all.begins[r], r, n, ring_comm_host_ranks(comm));
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

    if (n > 1 && argument == NULL) { /* and in hops */
        check_exchange(comm, bootstrap, COLLECTIVE_ALL_REDUCE, 3);
        check_exchange(comm, bootstrap, COLLECTIVE_ALL_REDUCE, 600);
        check_exchange(comm, bootstrap, COLLECTIVE_ALL_GATHER, 600);
        check_exchange(comm, bootstrap, COLLECTIVE_BROADCAST, 7);
    }
    int64_t offset = 1, within = 1;
    CHECK_OK(trace_clock_offset(&offset, &within, bootstrap));
    CHECK(offset == 0 && within == 0); /* one host */
    trace_close(tiny);
    trace_close(trace);
    ring_comm_close(comm);
    device_close(device);
}

int main(void)
{
    for (int n = 1; n <= 4; n++) ranks_as_threads(n, 10000, body, NULL);
    for (int n = 4; n <= 6; n += 2) ranks_as_threads(n, 10000, body, (char[]){"two levels"});
    for (int n = 2; n <= 4; n++) ranks_as_threads(n, 10000, windows_body, NULL);
    trace_close(NULL);
    return test_result();
}
