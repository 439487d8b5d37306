/* Windows: large operations in several units and turns of the stage, chunks of different sizes, bytes as predicted; a rank that dies
 * or gives up while others read its memory; calls that differ; descriptors and memory given back.
 * ctest: timeout=120
 *
 * tests/ring_collectives_test.c holds the bits of windows against the reference; here is what is particular to them.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring/comm.h"
#include "ring/ring.h"
#include "tests/harness/harness.h"
#include "verbs/clock.h"
#include "verbs/region.h"

#define DEADLINE_MS 5000
#ifdef RINGZERO_SANITIZED
#define EVERY 2 /* number of ranks */
#else
#define EVERY 1
#endif

static void with_comm(struct bootstrap *bootstrap, struct ring_config config, void (*body)(struct ring_comm *, struct device *))
{
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    CHECK_OK(device_open(&device, "host"));
    if (CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) body(comm, device);
    ring_comm_close(comm);
    struct memory_account account = memory_account_read(device);
    CHECK(account.now[MEMORY_COMMUNICATION] == 0 && account.now[MEMORY_WORKSPACE] == 0);
    device_close(device);
}

/* ---- large, uneven, in both kinds of memory ---- */

/* Sums of these are exact in any order. */
static int32_t value_at(int rank, size_t i) { return (int32_t)((uint32_t)i * 2654435761u >> 12) + rank * 1000; }

static int32_t sum_at(int n, size_t i)
{
    int32_t sum = 0;
    for (int r = 0; r < n; r++) sum += value_at(r, i);
    return sum;
}

struct counted {
    uint64_t sent, predicted;
};

static void count_call(struct counted *counted, enum collective collective, size_t count, const size_t *counts, int root,
    struct ring_comm *comm)
{
    struct ring_call call = {.collective = collective, .dtype = DTYPE_INT32, .redop = REDOP_SUM, .root = root, .count = count,
        .counts = counts};
    counted->predicted += ring_predict_sent_bytes(&call, ring_comm_nranks(comm), ring_comm_rank(comm), comm);
}

/* Chunks of very different sizes, an empty one among them; at most `most` elements in all. */
static void run_uneven(int32_t *a, int32_t *b, size_t most, struct counted *counted, struct ring_comm *comm)
{
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    size_t counts[8], begin = 0, all = 0, part = most / 16;
    for (int r = 0; r < n; r++) counts[r] = r == 1 ? 0 : part * (size_t)r + part / 2 + 1;
    for (int r = 0; r < n; r++) {
        if (r < rank) begin += counts[r];
        all += counts[r];
    }
    for (size_t i = 0; i < all; i++) a[i] = value_at(rank, i);
    CHECK_OK(ring_reduce_scatter_v(span_host(b, counts[rank] * 4), span_host(a, all * 4), counts, DTYPE_INT32, REDOP_SUM, comm, NULL));
    count_call(counted, COLLECTIVE_REDUCE_SCATTER, 0, counts, 0, comm);
    size_t wrong = 0;
    for (size_t i = 0; i < counts[rank]; i++) wrong += b[i] != sum_at(n, begin + i);
    memmove(a, b, counts[rank] * 4);
    CHECK_OK(ring_all_gather_v(span_host(b, all * 4), span_host(a, counts[rank] * 4), counts, DTYPE_INT32, comm, NULL));
    count_call(counted, COLLECTIVE_ALL_GATHER, 0, counts, 0, comm);
    for (size_t i = 0; i < all; i++) wrong += b[i] != sum_at(n, i);
    CHECK_MSG(wrong == 0, "%zu elements are wrong", wrong);
}

static void run_large(int32_t *a, int32_t *b, size_t count, struct counted *counted, struct ring_comm *comm)
{
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm), root = n - 1;
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) a[i] = value_at(rank, i);
    CHECK_OK(ring_all_reduce(span_host(b, count * 4), span_host(a, count * 4), count, DTYPE_INT32, REDOP_SUM, comm, NULL));
    CHECK_OK(ring_all_reduce(span_host(a, count * 4), span_host(a, count * 4), count, DTYPE_INT32, REDOP_SUM, comm, NULL));
    for (int twice = 0; twice < 2; twice++) count_call(counted, COLLECTIVE_ALL_REDUCE, count, NULL, 0, comm);
    for (size_t i = 0; i < count; i++) wrong += a[i] != sum_at(n, i) || b[i] != a[i];
    for (size_t i = 0; i < count; i++) a[i] = value_at(rank, i);
    CHECK_OK(ring_broadcast(span_host(b, count * 4), span_host(a, count * 4), count, DTYPE_INT32, root, comm, NULL));
    count_call(counted, COLLECTIVE_BROADCAST, count, NULL, root, comm);
    for (size_t i = 0; i < count; i++) wrong += b[i] != value_at(root, i) || a[i] != value_at(rank, i);
    CHECK_MSG(wrong == 0, "%zu elements are wrong", wrong);
}

static void run_kinds(size_t count, struct ring_comm *comm, struct device *device)
{
    struct span a, b;
    for (int kinds = 0; kinds < 4; kinds++) { /* of a and b: plain or of ring_alloc(), on other ranks the other way round */
        bool first = (kinds + ring_comm_rank(comm)) % 2 != 0, second = (kinds / 2 + ring_comm_rank(comm)) % 2 != 0;
        CHECK_OK(first ? ring_alloc(&a, count * 4, MEMORY_WORKSPACE, comm) : memory_alloc(&a, count * 4, MEMORY_WORKSPACE, device));
        CHECK_OK(second ? ring_alloc(&b, count * 4, MEMORY_WORKSPACE, comm) : memory_alloc(&b, count * 4, MEMORY_WORKSPACE, device));
        CHECK(memory_account_read(device).now[MEMORY_WORKSPACE] == 2 * count * 4);
        struct span meant;
        device_limit(device, 3 * count * 4); /* also of what the others may read */
        CHECK_STATUS(ring_alloc(&meant, 2 * count * 4, MEMORY_WORKSPACE, comm), STATUS_SYSTEM);
        CHECK(meant.ptr == NULL && memory_account_read(device).now[MEMORY_WORKSPACE] == 2 * count * 4);
        device_limit(device, 0);
        CHECK_OK(ring_alloc(&meant, 1, MEMORY_WORKSPACE, comm)); /* a collective call: by all, whatever else they have */
        struct ring_counters before = ring_comm_counters(comm), after;
        struct counted counted = {0};
        run_large(a.ptr, b.ptr, count, &counted, comm);
        run_uneven(a.ptr, b.ptr, count, &counted, comm);
        after = ring_comm_counters(comm);
        for (int c = 0; c < COLLECTIVE_COUNT; c++) counted.sent += after.sent_bytes[c] - before.sent_bytes[c];
        CHECK_MSG(counted.sent == counted.predicted, "%llu bytes sent, %llu predicted", (unsigned long long)counted.sent,
            (unsigned long long)counted.predicted);
        first ? ring_free(&a, MEMORY_WORKSPACE, comm) : memory_free(&a, MEMORY_WORKSPACE, device);
        second ? ring_free(&b, MEMORY_WORKSPACE, comm) : memory_free(&b, MEMORY_WORKSPACE, device);
        ring_free(&meant, MEMORY_WORKSPACE, comm);
    }
}

static void run_wide(struct ring_comm *comm, struct device *device) { run_kinds(1000003, comm, device); }

/* Each turn of so small a stage is a hand-over, which takes microseconds, and on a busy machine a slice of the scheduler's (3 ms):
 * some hundred turns, not ten thousand, so that the test ends in time there too. */
static void run_narrow(struct ring_comm *comm, struct device *device) { run_kinds(50021, comm, device); }

/* A part of a communicator reads what was allocated on the whole. */
static void run_split(struct ring_comm *comm, struct device *device)
{
    (void)device;
    enum { COUNT = 50000 };
    struct ring_comm *part = NULL;
    struct span x, own;
    CHECK_OK(ring_comm_split(&part, ring_comm_rank(comm) % 2, 0, comm));
    CHECK_OK(ring_alloc(&x, COUNT * 4, MEMORY_WORKSPACE, comm));
    CHECK_OK(ring_alloc(&own, COUNT * 4, MEMORY_WORKSPACE, part));
    for (int round = 0; round < 3 && part != NULL; round++) {
        int32_t *to = own.ptr, *from = x.ptr;
        int n = ring_comm_nranks(part);
        for (size_t i = 0; i < COUNT; i++) from[i] = value_at(ring_comm_rank(part), i);
        CHECK_OK(ring_all_reduce(own, x, COUNT, DTYPE_INT32, REDOP_SUM, part, NULL));
        size_t wrong = 0;
        for (size_t i = 0; i < COUNT; i++) wrong += to[i] != sum_at(n, i);
        CHECK_MSG(wrong == 0, "%zu elements are wrong", wrong);
    }
    ring_free(&own, MEMORY_WORKSPACE, part);
    ring_free(&x, MEMORY_WORKSPACE, comm);
    ring_comm_close(part);
}

struct at_once {
    struct ring_comm *comm;
    int number; /* of the communicator */
};

/* Broadcasts of plain memory, one after another, from a root that goes round. */
static void *broadcast_rounds(void *argument)
{
    enum { COUNT = 30011, ROUNDS = 40 };
    const struct at_once *mine = argument;
    int rank = ring_comm_rank(mine->comm), n = ring_comm_nranks(mine->comm);
    int32_t *x = malloc(COUNT * sizeof *x);
    size_t wrong = 0;
    for (int round = 0; round < ROUNDS && CHECK(x != NULL); round++) {
        int root = round / 3 % n, value = round * 10 + mine->number;
        struct span span = span_host(x, COUNT * 4);
        for (size_t i = 0; i < COUNT; i++) x[i] = rank == root ? value_at(value, i) : -1;
        if (!CHECK_OK(ring_broadcast(span, span, COUNT, DTYPE_INT32, root, mine->comm, NULL))) break;
        for (size_t i = 0; i < COUNT; i++) wrong += x[i] != value_at(value, i);
    }
    CHECK_MSG(wrong == 0, "%zu elements are wrong", wrong);
    free(x);
    return NULL;
}

/* A communicator and its parts stage at the same time, in threads that begin in another order on every rank. */
static void run_at_once(struct ring_comm *comm, struct device *device)
{
    (void)device;
    struct at_once all[3] = {{comm, 0}, {NULL, 1}, {NULL, 2}};
    pthread_t threads[3];
    CHECK_OK(ring_comm_split(&all[1].comm, 0, 0, comm));
    CHECK_OK(ring_comm_split(&all[2].comm, 0, -ring_comm_rank(comm), comm));
    for (int t = 0; t < 3; t++) pthread_create(&threads[t], NULL, broadcast_rounds, &all[(t + ring_comm_rank(comm)) % 3]);
    for (int t = 0; t < 3; t++) pthread_join(threads[t], NULL);
    for (int t = 1; t < 3; t++) ring_comm_close(all[t].comm);
}

/* A root that has ended fails, in something else, and leaves before the others have read what it staged, and before they have heard of
 * it: to them it has given up, and is not at fault. */
static void leave_body(struct bootstrap *bootstrap, void *argument)
{
    enum { COUNT = 5000 };
    struct ring_config config = {.transport = "shm", .window_bytes = 1, .timeout_ms = 1000};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    int *root_has_left = argument;
    int32_t *x = calloc(COUNT, sizeof *x);
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device));
    struct span span = span_host(x, COUNT * sizeof *x);
    bool is_root = ring_comm_rank(comm) == 0;
    struct span region = {0};
    CHECK_OK(ring_alloc(&region, span.bytes, MEMORY_WORKSPACE, comm));
    CHECK_OK(ring_broadcast(region, region, COUNT, DTYPE_INT32, 0, comm, NULL));
    for (int i = 0; i < 2; i++) CHECK_OK(ring_barrier(comm, NULL)); /* all know rank 0's book, and nobody its stage */
    for (int ms = 0; !is_root && ms < 2000 && !__atomic_load_n(root_has_left, __ATOMIC_ACQUIRE); ms++) pause_ms(1);
    enum status status = ring_broadcast(span, span, COUNT, DTYPE_INT32, 0, comm, NULL);
    CHECK(is_root ? status == STATUS_OK : status != STATUS_OK && status != STATUS_DATA);
    if (!is_root) CHECK_MSG(strstr(status_text(), "freed") == NULL, "%s", status_text());
    if (is_root) comm->failed = true;
    ring_free(&region, MEMORY_WORKSPACE, comm);
    ring_comm_close(comm);
    if (is_root) __atomic_store_n(root_has_left, 1, __ATOMIC_RELEASE);
    device_close(device);
    free(x);
}

/* A root ends when it has staged, also before anyone else has come, and may write where it has sent from. */
static void ahead_body(struct bootstrap *bootstrap, void *argument)
{
    enum { COUNT = 5000, ROUNDS = 3 };
    struct ring_config config = {.transport = "shm", .window_bytes = 1};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    int *root_has_ended = argument;
    CHECK_OK(device_open(&device, "host"));
    if (CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) {
        bool root = ring_comm_rank(comm) == 1;
        int32_t *x = calloc(COUNT, sizeof *x);
        struct span span = span_host(x, COUNT * sizeof *x);
        CHECK_OK(ring_broadcast(span, span, COUNT, DTYPE_INT32, 1, comm, NULL)); /* all are connected */
        for (int ms = 0; !root && ms < 2000 && !__atomic_load_n(root_has_ended, __ATOMIC_ACQUIRE); ms++) pause_ms(1);
        CHECK(root || __atomic_load_n(root_has_ended, __ATOMIC_ACQUIRE));
        for (int round = 0; round < ROUNDS; round++) {
            size_t wrong = 0;
            for (size_t i = 0; i < COUNT; i++) x[i] = root ? value_at(round, i) : -1;
            CHECK_OK(ring_broadcast(span, span, COUNT, DTYPE_INT32, 1, comm, NULL));
            for (size_t i = 0; i < COUNT; i++) wrong += x[i] != value_at(round, i);
            CHECK_MSG(wrong == 0, "%zu elements are wrong", wrong);
        }
        if (root) __atomic_store_n(root_has_ended, 1, __ATOMIC_RELEASE);
        free(x);
    }
    ring_comm_close(comm);
    device_close(device);
}

static void large_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct ring_config small_stage = {.transport = "shm", .slot_bytes = 4096, .slot_count = 4, .window_bytes = 1};
    with_comm(bootstrap, (struct ring_config){.transport = "shm", .window_bytes = 1}, run_wide);
    with_comm(bootstrap, small_stage, run_narrow);
    with_comm(bootstrap, (struct ring_config){.window_bytes = 1}, run_split);
    with_comm(bootstrap, (struct ring_config){.window_bytes = 1}, run_at_once);
}

/* ---- memory that the kernel does not copy, where it copied other memory before: as that of a driver, it is said to be pinned ---- */

static void gather_remapped(struct ring_comm *comm, struct device *device)
{
    enum { COUNT = 40000 };
    static const struct {
        int rights;
        enum memory_kind kind;
    } turns[] = {{PROT_READ | PROT_WRITE, MEMORY_HOST}, {PROT_WRITE, MEMORY_HOST_PINNED}, {PROT_READ | PROT_WRITE, MEMORY_HOST}};
    unsigned char *all = malloc(2 * COUNT), *own = NULL;
    (void)device;
    for (int turn = 0; turn < 3; turn++) {
        void *place = own; /* the same again */
        own = mmap(place, COUNT, turns[turn].rights, MAP_PRIVATE | MAP_ANONYMOUS | (place != NULL ? MAP_FIXED : 0), -1, 0);
        if (!CHECK(own != MAP_FAILED)) break;
        memset(own, 10 * turn + ring_comm_rank(comm), COUNT);
        struct span send = {own, COUNT, turns[turn].kind, 0};
        CHECK_OK(ring_all_gather(span_host(all, 2 * COUNT), send, COUNT, DTYPE_UINT8, comm, NULL));
        for (int i = 0; i < 2 * COUNT; i += COUNT - 1) CHECK(all[i] == 10 * turn + i / COUNT);
    }
    munmap(own, COUNT);
    free(all);
}

static void remapped_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    with_comm(bootstrap, (struct ring_config){.window_bytes = 1, .exchange_bytes = 1}, gather_remapped);
}

/* ---- a rank gives up, and reuses its memory, before another has read it ---- */

static void give_up(struct ring_comm *comm, struct device *device)
{
    (void)device;
    enum { COUNT = 100000 };
    struct span x;
    CHECK_OK(ring_alloc(&x, COUNT, MEMORY_WORKSPACE, comm));
    bool root = ring_comm_rank(comm) == 0;
    CHECK_OK(ring_broadcast(x, x, COUNT, DTYPE_UINT8, 0, comm, NULL)); /* everything is connected */
    memset(x.ptr, root ? 1 : 0, COUNT);
    if (!root) usleep(900000);
    enum status status = ring_broadcast(x, x, COUNT, DTYPE_UINT8, 0, comm, NULL);
    CHECK_MSG(status != STATUS_OK, "%s", root ? "nobody has read it" : "what was read was not what was sent");
    if (root) {
        memset(x.ptr, 2, COUNT); /* it is this rank's again */
        usleep(1200000);
    }
    ring_free(&x, MEMORY_WORKSPACE, comm);
}

static void give_up_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    with_comm(bootstrap, (struct ring_config){.transport = "shm", .timeout_ms = 300}, give_up);
}

/* The same of memory that no region has, which an all_gather of two ranks reads bare. */
static void give_up_bare(struct ring_comm *comm, struct device *device)
{
    enum { COUNT = 100000 };
    struct span x, own;
    CHECK_OK(memory_alloc(&x, 2 * COUNT, MEMORY_WORKSPACE, device));
    CHECK_OK(memory_alloc(&own, COUNT, MEMORY_WORKSPACE, device));
    int rank = ring_comm_rank(comm);
    memset(own.ptr, rank + 1, COUNT);
    CHECK_OK(ring_all_gather(x, own, COUNT, DTYPE_UINT8, comm, NULL));
    const unsigned char *seen = x.ptr;
    CHECK(seen[0] == 1 && seen[COUNT - 1] == 1 && seen[COUNT] == 2 && seen[2 * COUNT - 1] == 2);
    if (rank == 1) usleep(900000);
    enum status status = ring_all_gather(x, own, COUNT, DTYPE_UINT8, comm, NULL);
    char failure[STATUS_TEXT_BYTES];
    snprintf(failure, sizeof failure, "%s", status_text());
    CHECK_MSG(status != STATUS_OK, "%s", rank == 0 ? "nobody has read it" : "what was read was not what was sent");
    struct region_book *book = NULL;
    CHECK_OK(region_book_open(&book));
    bool can = region_bare_reference(own.ptr, COUNT, book) != 0; /* where the kernel lets nobody, it is the ring */
    region_book_close(book);
    if (can && rank == 0) CHECK_MSG(strstr(failure, "rank 1 (window") != NULL, "%s", failure);
    memset(own.ptr, 9, COUNT);
    usleep(rank == 0 ? 1200000 : 0);
    memory_free(&own, MEMORY_WORKSPACE, device);
    memory_free(&x, MEMORY_WORKSPACE, device);
}

static void give_up_bare_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    with_comm(bootstrap, (struct ring_config){.transport = "shm", .timeout_ms = 300}, give_up_bare);
}

/* ---- a rank is killed while it reads and is read ---- */

static void *kill_soon(void *argument)
{
    usleep(200000);
    raise(SIGKILL);
    return argument;
}

static void operate_until_it_fails(struct ring_comm *comm, struct device *device)
{
    (void)device;
    size_t count = (size_t)3 << 20;
    struct span x;
    CHECK_OK(ring_alloc(&x, count * 4, MEMORY_WORKSPACE, comm));
    pthread_t killer;
    if (ring_comm_rank(comm) == 2) pthread_create(&killer, NULL, kill_soon, NULL);
    enum status status = STATUS_OK;
    int64_t begin = clock_ns();
    while (status == STATUS_OK && clock_ns() - begin < clock_ms_to_ns(30000)) {
        status = ring_all_reduce(x, x, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
        if (status == STATUS_OK) status = ring_broadcast(x, x, count, DTYPE_FLOAT32, 2, comm, NULL);
    }
    CHECK_MSG(status == STATUS_PEER || status == STATUS_ABORTED, "%s: %s", status_name(status), status_text());
    CHECK_MSG(strstr(status_text(), "rank 2") != NULL, "%s", status_text());
    CHECK(clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS + 5000));
    ring_free(&x, MEMORY_WORKSPACE, comm);
}

static void death_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    with_comm(bootstrap, (struct ring_config){.transport = "shm"}, operate_until_it_fails);
}

/* ---- calls that differ: in what a window carries, or one a window and the other not ---- */

static void call_differently(struct ring_comm *comm, struct device *device)
{
    (void)device;
    struct span x;
    CHECK_OK(ring_alloc(&x, 400000, MEMORY_WORKSPACE, comm));
    bool odd = ring_comm_rank(comm) == 1, far = ring_comm_config(comm)->window_bytes == 5000;
    size_t count = odd ? far ? 100 : 30001 : 30000;
    int64_t begin = clock_ns();
    enum status status = ring_all_reduce(x, x, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    CHECK_MSG(status == STATUS_DATA || status == STATUS_ABORTED, "%s: %s", status_name(status), status_text());
    char mine[32], theirs[32];
    snprintf(mine, sizeof mine, "(%d float32, sum)", 30000);
    snprintf(theirs, sizeof theirs, "(%d float32, sum)", far ? 100 : 30001);
    CHECK_MSG(strstr(status_text(), mine) != NULL && strstr(status_text(), theirs) != NULL, "%s", status_text());
    CHECK(clock_ns() - begin < clock_ms_to_ns(DEADLINE_MS / 2));
    ring_free(&x, MEMORY_WORKSPACE, comm);
}

static void mismatch_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    with_comm(bootstrap, (struct ring_config){.transport = "shm", .window_bytes = 4000}, call_differently);
}

static void far_mismatch_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    with_comm(bootstrap, (struct ring_config){.transport = "shm", .window_bytes = 5000}, call_differently);
}

int main(void)
{
    CHECK(ranks_as_processes(4, DEADLINE_MS, death_body, NULL, 2) == 0);
    int before = count_files("/proc/self/fd", "");
    for (int n = 2; n <= 5; n += EVERY) ranks_as_threads(n, 30000, large_body, NULL);
    CHECK(ranks_as_processes(3, 30000, large_body, NULL, -1) == 0);
    int root_has_ended = 0;
    ranks_as_threads(3, DEADLINE_MS, ahead_body, &root_has_ended);
    int root_has_left = 0;
    ranks_as_threads(3, DEADLINE_MS, leave_body, &root_has_left);
    ranks_as_threads(2, DEADLINE_MS, give_up_body, NULL);
    ranks_as_threads(2, DEADLINE_MS, give_up_bare_body, NULL);
    CHECK(ranks_as_processes(2, DEADLINE_MS, remapped_body, NULL, -1) == 0);
    CHECK(ranks_as_processes(2, 30000, large_body, NULL, -1) == 0);
    ranks_as_threads(3, DEADLINE_MS, mismatch_body, NULL);
    ranks_as_threads(3, DEADLINE_MS, far_mismatch_body, NULL);
    CHECK_MSG(count_files("/proc/self/fd", "") == before, "%d descriptors before, %d after", before, count_files("/proc/self/fd", ""));
    return test_result();
}
