/* What goes wrong while ranks reduce: deaths, broken edges, ranks that do not come, calls that differ. Cases C4, C5, C12.
 * ctest: timeout=120
 *
 * Every case has a deadline of its own and ends in a status on every rank with the names that a person needs.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/ring.h"
#include "ring/statement.h"
#include "tests/harness/edge_chaos.h"
#include "tests/harness/harness.h"
#include "verbs/bootstrap_internal.h"
#include "verbs/clock.h"
#include "verbs/log.h"

#define DEADLINE_MS 5000

static void with_comm(struct bootstrap *bootstrap, struct ring_config config,
    void (*body)(struct ring_comm *, struct device *))
{
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    CHECK_OK(device_open(&device, "host"));
    if (CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) body(comm, device);
    ring_comm_close(comm);
    CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
    device_close(device);
}

static bool says(const char *part)
{
    return CHECK_MSG(strstr(status_text(), part) != NULL, "expected \"%s\" in: %s", part, status_text());
}

/* ---- C5: a rank is killed in mid-operation ---- */

static void *kill_soon(void *argument)
{
    usleep(300000);
    raise(SIGKILL);
    return argument;
}

static void reduce_until_it_fails(struct ring_comm *comm, struct device *device)
{
    size_t count = (size_t)1 << 20;
    struct span x;
    CHECK_OK(memory_alloc(&x, count * 4, MEMORY_WORKSPACE, device));
    pthread_t killer;
    if (ring_comm_rank(comm) == 2) pthread_create(&killer, NULL, kill_soon, NULL);
    enum status status = STATUS_OK;
    int64_t begin = clock_ns();
    while (status == STATUS_OK && clock_ns() - begin < clock_ms_to_ns(30000))
        status = ring_all_reduce(x, x, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    CHECK_MSG(status == STATUS_PEER || status == STATUS_ABORTED, "%s: %s", status_name(status), status_text());
    char self[16];
    snprintf(self, sizeof self, "rank %d: ", ring_comm_rank(comm));
    says(self);
    says("rank 2");
    says("all_reduce #");
    CHECK(clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS + 5000));
    CHECK_STATUS(ring_all_reduce(x, x, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_ABORTED);
    says("rank 2"); /* the first failure's text stays */
    memory_free(&x, MEMORY_WORKSPACE, device);
}

static void death_body(struct bootstrap *bootstrap, void *argument)
{
    with_comm(bootstrap, (struct ring_config){.transport = argument}, reduce_until_it_fails);
}

/* ---- an edge that breaks without any death ---- */

static void reduce_until_the_edge_breaks(struct ring_comm *comm, struct device *device)
{
    (void)device;
    float x[100] = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < 1000 && status == STATUS_OK; i++)
        status = ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 100, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    CHECK(status == (ring_comm_rank(comm) == 1 ? STATUS_PEER : STATUS_ABORTED));
    says("rank 1: ");
    /* On the ring rank 1 sends to rank 2 alone; in an exchange to all, and any of its edges may be the first to break. */
    bool on_the_ring = ring_comm_config(comm)->exchange_bytes == 1;
    says(on_the_ring ? "connection with rank 2 broke on purpose" : "connection with rank ");
    says("broke on purpose");
}

static void break_body(struct bootstrap *bootstrap, void *argument)
{
    with_comm(bootstrap, (struct ring_config){.custom = &transport_chaos_breaking, .slot_bytes = 64, .slot_count = 4, .exchange_bytes = argument != NULL},
        reduce_until_the_edge_breaks);
}

/* ---- calls that differ between ranks end on every rank, long before the deadline ---- */

enum difference { COUNT_DIFFERS, DTYPE_DIFFERS, REDOP_DIFFERS, ROOT_DIFFERS, COLLECTIVE_DIFFERS, REDUCE_DTYPE_DIFFERS, DIFFERENCES };

struct mismatch {
    enum difference difference;
    const char *transport;
    size_t exchange_bytes, star_bytes;
};
static _Thread_local struct mismatch mismatch;

static void call_differently(struct ring_comm *comm, struct device *device)
{
    bool odd = ring_comm_rank(comm) == 1;
    struct span x;
    CHECK_OK(memory_alloc(&x, 4096, MEMORY_WORKSPACE, device));
    size_t count = odd && mismatch.difference == COUNT_DIFFERS ? 400 : 401;
    enum dtype dtype = odd && mismatch.difference == DTYPE_DIFFERS ? DTYPE_INT32 : DTYPE_FLOAT32;
    enum redop redop = odd && mismatch.difference == REDOP_DIFFERS ? REDOP_MAX : REDOP_SUM;
    int root = odd && mismatch.difference == ROOT_DIFFERS ? 1 : 0;
    if (mismatch.difference == REDUCE_DTYPE_DIFFERS) {
        dtype = DTYPE_BFLOAT16;
        ring_comm_set_reduce_dtype(comm, odd ? REDUCE_DTYPE_FLOAT32 : REDUCE_DTYPE_OWN);
    }
    int64_t begin = clock_ns();
    enum status status = STATUS_OK;
    if (mismatch.difference == ROOT_DIFFERS) status = ring_broadcast(x, x, count, dtype, root, comm, NULL);
    else if (odd && mismatch.difference == COLLECTIVE_DIFFERS)
        status = ring_broadcast(x, x, count, dtype, root, comm, NULL);
    else status = ring_all_reduce(x, x, count, dtype, redop, comm, NULL);
    /* A root sends without receiving anything that could tell it: it learns with the next call. */
    if (status == STATUS_OK) status = ring_barrier(comm, NULL);
    CHECK_MSG(status == STATUS_DATA || status == STATUS_ABORTED, "difference %d: %s: %s", (int)mismatch.difference,
        status_name(status), status_text());
    says("all ranks must call");
    if (mismatch.difference == REDUCE_DTYPE_DIFFERS) says("bfloat16, sum in float32)");
    CHECK(clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS));
    memory_free(&x, MEMORY_WORKSPACE, device);
}

static void mismatch_body(struct bootstrap *bootstrap, void *argument)
{
    mismatch = *(const struct mismatch *)argument;
    with_comm(bootstrap, (struct ring_config){.transport = mismatch.transport, .exchange_bytes = mismatch.exchange_bytes,
                             .star_bytes = mismatch.star_bytes}, call_differently);
}

/* ---- C4: rank 0 alone calls something else; counts of several slices, and different elements of the same bytes ---- */

struct odd_call {
    const char *transport;
    size_t count, odd_count;
    enum dtype dtype, odd_dtype;
    const char *value, *odd_value; /* as every rank's message must have them */
};
static _Thread_local const struct odd_call *odd_call;

static void differ_at_rank_0(struct ring_comm *comm, struct device *device)
{
    bool odd = ring_comm_rank(comm) == 0;
    struct span x;
    CHECK_OK(memory_alloc(&x, 409600 * 4, MEMORY_WORKSPACE, device));
    int64_t begin = clock_ns();
    enum status status = ring_all_reduce(x, x, odd ? odd_call->odd_count : odd_call->count,
        odd ? odd_call->odd_dtype : odd_call->dtype, REDOP_SUM, comm, NULL);
    CHECK_MSG(status == STATUS_DATA || status == STATUS_ABORTED, "%s: %s", status_name(status), status_text());
    says(odd_call->value);
    says(odd_call->odd_value);
    says("rank 0");
    CHECK(clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS));
    memory_free(&x, MEMORY_WORKSPACE, device);
}

static void odd_body(struct bootstrap *bootstrap, void *argument)
{
    odd_call = argument;
    with_comm(bootstrap, (struct ring_config){.transport = odd_call->transport}, differ_at_rank_0);
}

static void test_odd_calls(const char *transport)
{
    struct odd_call counts = {transport, 409598, 409600, DTYPE_FLOAT32, DTYPE_FLOAT32, "409598 float32", "409600 float32"};
    struct odd_call dtypes = {transport, 200, 100, DTYPE_FLOAT16, DTYPE_FLOAT32, "200 float16", "100 float32"};
    ranks_as_threads(4, DEADLINE_MS, odd_body, &counts);
    ranks_as_threads(4, DEADLINE_MS, odd_body, &dtypes);
}

/* ---- a group: what follows a failure does not begin, or a neighbour would take its slices for those of what failed ---- */

static void differ_in_a_group(struct ring_comm *comm, struct device *device)
{
    (void)device;
    float x[600] = {0}, y[600] = {0};
    struct span first = span_host(x, sizeof x), second = span_host(y, sizeof y);
    enum status status = ring_barrier(comm, NULL);
    if (ring_comm_rank(comm) == 2 && status == STATUS_ABORTED) {
        says("all_reduce #2 (599 float32, sum)"); /* the others' failure came before the barrier's last message */
        return;
    }
    CHECK_OK(status);
    if (ring_comm_rank(comm) == 2) usleep(100000); /* finds in its slots all that rank 1 has sent */
    CHECK_OK(ring_group_begin(comm));
    CHECK_OK(ring_all_reduce(first, first, ring_comm_rank(comm) == 0 ? 599 : 600, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    CHECK_OK(ring_all_reduce(second, second, 600, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    status = ring_group_end(comm, NULL);
    CHECK_MSG(status == STATUS_DATA || status == STATUS_ABORTED, "%s: %s", status_name(status), status_text());
    says("all_reduce #2 (599 float32, sum)"); /* #1 was the barrier */
    says("all_reduce #2 (600 float32, sum)");
}

static void group_body(struct bootstrap *bootstrap, void *argument)
{
    with_comm(bootstrap, (struct ring_config){.transport = argument, .exchange_bytes = 1}, differ_in_a_group);
}

/* ---- a group of which ranks run different parts first, while one rank is late: not a difference ---- */

static void wait_in_a_group(struct ring_comm *comm, struct device *device)
{
    (void)device;
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    float x[3] = {0}, all[3][3], sum = 1;
    for (int i = 0; i < 12; i++) CHECK_OK(ring_barrier(comm, NULL)); /* older calls than ranks remember (statement.h) */
    if (rank == 0) usleep(300000); /* rank 2 is done with its part of the first gather, root 1 is not */
    CHECK_OK(ring_group_begin(comm));
    for (int i = 0; i < 3; i++)
        CHECK_OK(ring_gather(span_host(all[i], sizeof all[i]), span_host(&x[i], 4), 1, DTYPE_FLOAT32, 1, comm, NULL));
    CHECK_OK(ring_all_reduce(span_host(&sum, 4), span_host(&sum, 4), 1, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    CHECK_OK(ring_group_end(comm, NULL));
    CHECK(sum == (float)n);
}

static void late_body(struct bootstrap *bootstrap, void *argument)
{
    with_comm(bootstrap, (struct ring_config){.transport = argument}, wait_in_a_group);
}

/* ---- C4: different roots: no rank is told of success, whoever differs, also where nobody waits for data ---- */

struct roots {
    enum collective collective;
    int odd; /* the rank that names another root: itself, or rank 0 */
    bool own; /* buffers from ring_alloc(): windows read them where they are */
    size_t count;
    struct ring_config config;
};
static _Thread_local struct roots roots;

static void allocate(struct span *span, size_t bytes, struct ring_comm *comm, struct device *device)
{
    if (roots.own) CHECK_OK(ring_alloc(span, bytes, MEMORY_WORKSPACE, comm));
    else CHECK_OK(memory_alloc(span, bytes, MEMORY_WORKSPACE, device));
}

static void call_with_other_roots(struct ring_comm *comm, struct device *device)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    int root = rank != roots.odd ? 1 : roots.odd == 1 ? 0 : roots.odd;
    struct span whole, part;
    allocate(&whole, roots.count * 4 * (size_t)n, comm, device);
    allocate(&part, roots.count * 4, comm, device);
    int64_t begin = clock_ns();
    enum status status = STATUS_OK;
    if (roots.collective == COLLECTIVE_BROADCAST) status = ring_broadcast(part, part, roots.count, DTYPE_FLOAT32, root, comm, NULL);
    if (roots.collective == COLLECTIVE_REDUCE)
        status = ring_reduce(part, part, roots.count, DTYPE_FLOAT32, REDOP_SUM, root, comm, NULL);
    if (roots.collective == COLLECTIVE_SCATTER) status = ring_scatter(part, whole, roots.count, DTYPE_FLOAT32, root, comm, NULL);
    if (roots.collective == COLLECTIVE_GATHER) status = ring_gather(whole, part, roots.count, DTYPE_FLOAT32, root, comm, NULL);
    CHECK_MSG(status == STATUS_DATA || status == STATUS_ABORTED, "%s of %zu, rank %d differs: %s: %s",
        collective_name(roots.collective), roots.count, roots.odd, status_name(status), status_text());
    says("all ranks must call");
    says("root 1");
    CHECK(clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS));
    ring_free(&whole, MEMORY_WORKSPACE, comm);
    ring_free(&part, MEMORY_WORKSPACE, comm);
}

static void roots_body(struct bootstrap *bootstrap, void *argument)
{
    roots = *(const struct roots *)argument;
    with_comm(bootstrap, roots.config, call_with_other_roots);
}

static void check_roots(const char *transport)
{
    for (int c = COLLECTIVE_BROADCAST; c <= COLLECTIVE_GATHER; c++)
        for (int odd = 0; odd < 4; odd++) {
            struct roots each = {.collective = (enum collective)c, .odd = odd, .count = 100000, .config = {.transport = transport}};
            ranks_as_threads(4, DEADLINE_MS, roots_body, &each); /* large: as it comes */
            each.count = odd % 2 == 0 ? 1 : 1000;
            each.config.check_roots_bytes = 1;
            ranks_as_threads(4, DEADLINE_MS, roots_body, &each);
        }
}

/* 1 MiB, which broadcasts by windows, staged or not, beside the roll call; the others of the same size and memory. */
static void check_roots_of_windows(void)
{
    for (int c = COLLECTIVE_BROADCAST; c <= COLLECTIVE_GATHER; c++)
        for (int own = 0; own < 2; own++)
            for (int n = 2; n <= 4; n++)
                for (int odd = 0; odd < n; odd++) {
                    struct roots each = {
                        .collective = (enum collective)c, .odd = odd, .own = own != 0, .count = 1 << 18, .config = {.transport = "shm"}};
                    ranks_as_threads(n, DEADLINE_MS, roots_body, &each);
                }
}

/* Rooted calls among others, checked all: right, and in any order, in groups too. */
static void roots_agree_body(struct bootstrap *bootstrap, void *argument)
{
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    int n = bootstrap_nranks(bootstrap), rank = bootstrap_rank(bootstrap);
    int32_t x[20] = {0}, y[20], sum;
    /* Small slots: every rank has edges with every other, and the thread sanitizer touches twice what is mapped. */
    struct ring_config config = {.transport = argument, .slot_bytes = 4096, .slot_count = 4, .check_roots_bytes = 1};
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device));
    struct span one = span_host(&sum, 4), all = span_host(x, 4 * (size_t)n), out = span_host(y, 4);
    for (int i = 0; i < 60; i++) {
        int root = i % n;
        sum = rank + i;
        bool grouped = i % 5 == 4;
        if (grouped) CHECK_OK(ring_group_begin(comm));
        CHECK_OK(ring_gather(all, one, 1, DTYPE_INT32, root, comm, NULL));
        CHECK_OK(ring_reduce(out, one, 1, DTYPE_INT32, REDOP_SUM, root, comm, NULL));
        if (grouped) CHECK_OK(ring_group_end(comm, NULL));
        for (int r = 0; r < n && rank == root; r++) CHECK(x[r] == r + i);
        CHECK_OK(ring_scatter(one, all, 1, DTYPE_INT32, root, comm, NULL));
        CHECK(sum == rank + i);
        CHECK_OK(ring_broadcast(out, out, 1, DTYPE_INT32, root, comm, NULL));
        CHECK(y[0] == n * (n - 1) / 2 + n * i);
    }
    ring_comm_close(comm);
    device_close(device);
}

/* ---- a rank that does not come: a timeout that names it ---- */

static void wait_in_vain(struct ring_comm *comm, struct device *device)
{
    (void)device;
    float x = 1;
    int64_t begin = clock_ns();
    if (ring_comm_rank(comm) == 0) {
        usleep(1500000); /* alive, but elsewhere */
        return;
    }
    enum status status =
        ring_all_reduce(span_host(&x, 4), span_host(&x, 4), 1, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    CHECK_MSG(status == STATUS_TIMEOUT || status == STATUS_ABORTED, "%s", status_name(status));
    says("nothing moved for");
    if (ring_comm_rank(comm) == 1) says("rank 0"); /* the rank behind it waits for rank 1, and says so */
    says("all_reduce #1 (1 float32, sum)");
    CHECK(clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS));
}

static void timeout_body(struct bootstrap *bootstrap, void *argument)
{
    with_comm(bootstrap, (struct ring_config){.transport = argument, .timeout_ms = 700}, wait_in_vain);
}

/* ---- a rank that is always the last to come: what the others say while they wait for it does not pile up in its mailbox ---- */

static _Thread_local const struct bootstrap *job;

static void come_last(struct ring_comm *comm, struct device *device)
{
    (void)device;
    for (int i = 0; i < 6; i++) {
        if (ring_comm_rank(comm) == 0) usleep((STATEMENT_AFTER_MS + 30) * 1000);
        CHECK_OK(ring_barrier(comm, NULL));
    }
    int mail = __atomic_load_n(&job->mail_count, __ATOMIC_ACQUIRE);
    CHECK_MSG(mail <= 2, "%d blobs wait, expected at most one of each neighbour", mail);
}

static void last_body(struct bootstrap *bootstrap, void *argument)
{
    job = bootstrap;
    with_comm(bootstrap, (struct ring_config){.transport = argument}, come_last);
}

/* ---- tunables that differ are refused on every rank when the communicator opens ---- */

static void tunable_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    CHECK_OK(device_open(&device, "host"));
    struct ring_config config = {.slot_count = bootstrap_rank(bootstrap) == 2 ? 4 : 8};
    CHECK_STATUS(ring_comm_open(&comm, &config, bootstrap, device), STATUS_INVALID);
    says("RINGZERO_SLOTS is 8 on rank 0 and 4 on rank 2");
    CHECK(comm == NULL);
    device_close(device);
}

/* What a program gives is checked as what the environment does: memory is sized by it. */
static void range_body(struct bootstrap *bootstrap, void *argument)
{
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    CHECK_OK(device_open(&device, "host"));
    CHECK_STATUS(ring_comm_open(&comm, argument, bootstrap, device), STATUS_INVALID);
    says("expected");
    CHECK(comm == NULL);
    device_close(device);
}

static void check_ranges(void)
{
    struct ring_config wrong[] = {{.slot_bytes = (size_t)1 << 61}, {.slot_bytes = 100}, {.slot_count = (uint64_t)1 << 40},
        {.slot_count = 3}, {.exchange_bytes = (size_t)1 << 32}, {.star_bytes = (size_t)1 << 21}, {.channels = 17}, {.channels = -1},
        {.timeout_ms = -1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) ranks_as_threads(1, DEADLINE_MS, range_body, &wrong[i]);
}

static void star_differs_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    CHECK_OK(device_open(&device, "host"));
    struct ring_config config = {.star_bytes = bootstrap_rank(bootstrap) == 1 ? 4096 : SIZE_MAX};
    CHECK_STATUS(ring_comm_open(&comm, &config, bootstrap, device), STATUS_INVALID);
    says("RINGZERO_STAR_BYTES is not given on rank 0 and 4096 on rank 1");
    CHECK(comm == NULL);
    device_close(device);
}

/* ---- C12: two communicators, two threads, opposite order on the two ranks ---- */

struct pair {
    struct ring_comm *comm;
    int rounds;
};

static void *reduce_rounds(void *argument)
{
    struct pair *pair = argument;
    log_set_rank(ring_comm_rank(pair->comm), ring_comm_nranks(pair->comm));
    float x[1000];
    for (int round = 0; round < pair->rounds; round++) {
        for (int i = 0; i < 1000; i++) x[i] = (float)i;
        CHECK_OK(ring_all_reduce(
            span_host(x, sizeof x), span_host(x, sizeof x), 1000, DTYPE_FLOAT32, REDOP_SUM, pair->comm, NULL));
        CHECK(x[999] == 999.0f * (float)ring_comm_nranks(pair->comm));
    }
    return NULL;
}

static void two_comms_body(struct bootstrap *bootstrap, void *argument)
{
    struct ring_config config = {.transport = argument};
    struct device *device = NULL;
    struct ring_comm *comms[2] = {NULL, NULL};
    CHECK_OK(device_open(&device, "host"));
    for (int i = 0; i < 2; i++) CHECK_OK(ring_comm_open(&comms[i], &config, bootstrap, device));
    int first = bootstrap_rank(bootstrap) % 2;
    struct pair pairs[2] = {{comms[first], 50}, {comms[1 - first], 50}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, reduce_rounds, &pairs[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) ring_comm_close(comms[i]);
    device_close(device);
}

int main(void)
{
    static char *const names[] = {"shm", "tcp", "verbs"};
    for (int t = 0; t < 3; t++)
        if (test_takes(names[t])) CHECK(ranks_as_processes(4, DEADLINE_MS, death_body, names[t], 2) == 0);
    for (int t = 0; t < 3; t++) {
        if (!test_takes(names[t])) continue;
        for (int d = 0; d < DIFFERENCES; d++) {
            struct mismatch each = {(enum difference)d, names[t], 0, 1};
            ranks_as_threads(3, DEADLINE_MS, mismatch_body, &each);
            each.star_bytes = 65536;
            if (t != 0) ranks_as_threads(3, DEADLINE_MS, mismatch_body, &each);
            each.exchange_bytes = 1; /* on the ring */
            ranks_as_threads(3, DEADLINE_MS, mismatch_body, &each);
        }
        test_odd_calls(names[t]);
        ranks_as_threads(3, DEADLINE_MS, group_body, names[t]);
        ranks_as_threads(3, DEADLINE_MS, late_body, names[t]);
        check_roots(names[t]);
        int most = t == 2 ? 4 : 20; /* 2 MiB an edge, in the small guest that verbs runs in */
        for (int n = 2; n <= most; n += n < 5 ? 1 : 7) ranks_as_threads(n, DEADLINE_MS, roots_agree_body, names[t]);
        ranks_as_threads(3, DEADLINE_MS, timeout_body, names[t]);
        ranks_as_threads(2, DEADLINE_MS, two_comms_body, names[t]);
    }
    if (!test_takes(NULL)) return test_result();
    check_roots_of_windows();
    ranks_as_threads(3, DEADLINE_MS, last_body, NULL);
    ranks_as_threads(3, DEADLINE_MS, tunable_body, NULL);
    ranks_as_threads(3, DEADLINE_MS, star_differs_body, NULL);
    check_ranges();
    ranks_as_threads(4, DEADLINE_MS, break_body, NULL);
    ranks_as_threads(4, DEADLINE_MS, break_body, "on the ring");
    return test_result();
}
