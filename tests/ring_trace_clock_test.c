/* Traces of hosts whose clocks differ, by a second, days, and years, one way and the other. How far they differ is found to within half
 * of a round trip; what one rank sends and another receives stands in that order, to within two of those.
 * ctest: timeout=60
 *
 * A rank is a process whose clock_gettime() adds what it pretends (--wrap in CMakeLists.txt); RINGZERO_HOST makes it another host.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "ring/ring.h"
#include "ring/trace.h"
#include "tests/harness/harness.h"

#define RANKS 4
#define COUNT 20000
#define DAY_S ((int64_t)86400)

static int64_t ahead_s; /* of this process's clock: set before its first operation, never changed after it */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = __real_clock_gettime(clock, time);
    if (clock == CLOCK_MONOTONIC) time->tv_sec += __atomic_load_n(&ahead_s, __ATOMIC_RELAXED);
    return result;
}

static int64_t ahead_of(int rank)
{
    static const int64_t all[RANKS] = {3 * DAY_S, 0, 20000 * DAY_S, 3 * DAY_S + 1};
    return all[rank];
}

static int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

static void check_order(const struct trace_all *all)
{
    size_t sent = 0;
    for (int from = 0; from < RANKS; from++) {
        int to = (from + 1) % RANKS;
        size_t at = all->begins[to];
        for (size_t i = all->begins[from]; i < all->begins[from + 1]; i++) {
            const struct trace_event *send = &all->events[i];
            if (send->kind != TRACE_STEP || send->to < 0) continue;
            while (at < all->begins[to + 1] && (all->events[at].kind != TRACE_STEP || all->events[at].from < 0)) at++;
            if (!CHECK(at < all->begins[to + 1] && all->events[at].chunk == send->chunk)) return;
            CHECK_MSG(all->events[at].end_ns >= send->begin_ns - 2 * all->within_ns, "rank %d receives %lld ns before rank %d sends",
                to, (long long)(send->begin_ns - all->events[at].end_ns), from);
            sent++;
            at++;
        }
    }
    CHECK(sent > 0 && all->within_ns > 0);
    for (size_t i = 0; i < all->begins[RANKS]; i++) /* and in all not a thousandth of what clocks differ by */
        CHECK(all->events[i].begin_ns >= all->first_ns && all->events[i].end_ns < all->first_ns + DAY_S * 1000000);
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct device *device;
    struct ring_comm *comm;
    struct trace *trace;
    struct trace_all all;
    static float x[COUNT];
    int rank = bootstrap_rank(bootstrap);
    int64_t offset, within, truth = (ahead_of(0) - ahead_of(rank)) * 1000000000;
    CHECK_OK(trace_clock_offset(&offset, &within, bootstrap));
    CHECK_MSG(magnitude(offset - truth) <= within && (within > 0) == (rank > 0), "rank %d: %lld ns off, within %lld", rank,
        (long long)(offset - truth), (long long)within);
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(ring_comm_open(&comm, &(struct ring_config){.slot_bytes = 16384, .slot_count = 4}, bootstrap, device));
    CHECK_OK(trace_open(&trace, 4096));
    ring_comm_trace(comm, trace);
    CHECK_OK(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), COUNT, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    ring_comm_trace(comm, NULL);
    CHECK_OK(trace_gather(&all, trace, bootstrap));
    if (rank == 0) check_order(&all);
    trace_all_free(&all);
    trace_close(trace);
    ring_comm_close(comm);
    device_close(device);
}

/* The clock jumps before anything has been begun with it: rank 0 has the hub, which reckons from when the first rank comes to a
 * collective, so the others come to none before rank 0's has jumped. */
static void pretend(struct bootstrap *bootstrap, void *argument)
{
    int *jumped = argument, rank = bootstrap_rank(bootstrap);
    char name[16] = {'h', (char)('0' + rank), 0};
    setenv("RINGZERO_HOST", name, 1);
    CHECK_OK(bootstrap_barrier(bootstrap));
    for (int i = 0; i < 10000 && rank > 0 && __atomic_load_n(jumped, __ATOMIC_ACQUIRE) == 0; i++) pause_ms(1);
    __atomic_store_n(&ahead_s, ahead_of(rank), __ATOMIC_RELAXED);
    if (rank == 0) __atomic_store_n(jumped, 1, __ATOMIC_RELEASE);
    CHECK(__atomic_load_n(jumped, __ATOMIC_ACQUIRE) == 1);
    body(bootstrap, argument);
}

int main(void)
{
    int *jumped = mmap(NULL, sizeof *jumped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (jumped == MAP_FAILED) abort();
    CHECK(ranks_as_processes(RANKS, 10000, pretend, jumped, -1) == 0);
    return test_result();
}
