/* Communicators split by color and key: members, order, many at once from one thread and from several, nested;
 * and abort from another thread.
 * ctest: timeout=60
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "ring/ring.h"
#include "tests/harness/harness.h"
#include "verbs/clock.h"
#include "verbs/log.h"

static int32_t sum_of(struct ring_comm *comm, int32_t x)
{
    int32_t sum = x;
    CHECK_OK(ring_all_reduce(span_host(&sum, 4), span_host(&sum, 4), 1, DTYPE_INT32, REDOP_SUM, comm, NULL));
    return sum;
}

/* The rows and columns of a grid of ranks, as data and tensor parallel groups are. */
static void check_grid(struct ring_comm *world, int columns)
{
    int rank = ring_comm_rank(world), n = ring_comm_nranks(world), row = rank / columns, column = rank % columns;
    struct ring_comm *in_row = NULL, *in_column = NULL;
    CHECK_OK(ring_comm_split(&in_row, row, column, world));
    CHECK_OK(ring_comm_split(&in_column, column, -row, world)); /* keys turn the order round */
    CHECK(ring_comm_nranks(in_row) == columns && ring_comm_rank(in_row) == column);
    int rows = n / columns;
    CHECK(ring_comm_nranks(in_column) == rows && ring_comm_rank(in_column) == rows - 1 - row);
    for (int round = 0; round < 3; round++) {
        int32_t expected_row = 0, expected_column = 0;
        for (int r = 0; r < n; r++) {
            expected_row += r / columns == row ? 1 << r : 0;
            expected_column += r % columns == column ? 1 << r : 0;
        }
        CHECK(sum_of(in_row, 1 << rank) == expected_row);
        CHECK(sum_of(in_column, 1 << rank) == expected_column);
        CHECK(sum_of(world, 1) == n);
    }
    /* Larger than an exchange: the ring of the part. */
    static _Thread_local int32_t big[50000];
    for (int i = 0; i < 50000; i++) big[i] = rank + i;
    CHECK_OK(ring_all_reduce(span_host(big, sizeof big), span_host(big, sizeof big), 50000, DTYPE_INT32, REDOP_SUM, in_row, NULL));
    int32_t base = 0;
    for (int r = 0; r < columns; r++) base += row * columns + r;
    CHECK(big[0] == base && big[49999] == base + columns * 49999);
    ring_comm_close(in_row);
    ring_comm_close(in_column);
}

static void check_nested(struct ring_comm *world)
{
    int rank = ring_comm_rank(world), n = ring_comm_nranks(world);
    struct ring_comm *most = NULL, *pair = NULL;
    CHECK_OK(ring_comm_split(&most, rank == 0 ? -1 : 7, 0, world)); /* rank 0 takes no part */
    CHECK((most == NULL) == (rank == 0));
    if (most != NULL) {
        CHECK(ring_comm_nranks(most) == n - 1 && ring_comm_rank(most) == rank - 1);
        CHECK_OK(ring_comm_split(&pair, ring_comm_rank(most) / 2, 0, most));
        int first = (rank - 1) / 2 * 2 + 1;
        CHECK(sum_of(pair, rank) == first + (first + 1 < n ? first + 1 : 0));
    }
    ring_comm_close(pair);
    ring_comm_close(most);
    CHECK(sum_of(world, 2) == 2 * n);
}

static void *rounds(void *argument)
{
    struct ring_comm *comm = argument;
    for (int i = 0; i < 100; i++) CHECK(sum_of(comm, i) == i * ring_comm_nranks(comm));
    return NULL;
}

/* Several threads, several communicators of one wait loop, started in another order on every rank. */
static void check_threads(struct ring_comm *world)
{
    struct ring_comm *comms[3];
    pthread_t threads[3];
    for (int c = 0; c < 3; c++) CHECK_OK(ring_comm_split(&comms[c], 0, c == 1 ? -ring_comm_rank(world) : 0, world));
    for (int t = 0; t < 3; t++) pthread_create(&threads[t], NULL, rounds, comms[(t + ring_comm_rank(world)) % 3]);
    for (int t = 0; t < 3; t++) pthread_join(threads[t], NULL);
    for (int c = 0; c < 3; c++) ring_comm_close(comms[c]);
}

static void split_body(struct bootstrap *bootstrap, void *argument)
{
    struct ring_config config = {.transport = argument};
    struct ring_comm *world = NULL;
    struct device *device = NULL;
    CHECK_OK(device_open(&device, "host"));
    if (CHECK_OK(ring_comm_open(&world, &config, bootstrap, device))) {
        check_grid(world, 2);
        check_grid(world, 3);
        check_nested(world);
        check_threads(world);
    }
    ring_comm_close(world);
    CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
    device_close(device);
}

static void *abort_soon(void *argument)
{
    usleep(200000);
    ring_comm_abort(argument, "the user had enough");
    return NULL;
}

static void abort_body(struct bootstrap *bootstrap, void *argument)
{
    struct ring_config config = {.transport = argument};
    struct ring_comm *comm = NULL;
    struct device *device = NULL;
    pthread_t thread;
    float x = 1;
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device));
    bool aborts = ring_comm_rank(comm) == 1;
    if (aborts) pthread_create(&thread, NULL, abort_soon, comm);
    int64_t begin = clock_ns();
    if (ring_comm_rank(comm) == 0) { /* waited for in vain: busy elsewhere until the job has failed */
        while (!bootstrap_failed(bootstrap) && clock_ns() - begin < clock_ms_to_ns(10000)) usleep(1000);
    }
    CHECK_STATUS(ring_all_reduce(span_host(&x, 4), span_host(&x, 4), 1, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(), "the user had enough") != NULL, "%s", status_text());
    CHECK(clock_ns() - begin < clock_ms_to_ns(5000));
    if (aborts) pthread_join(thread, NULL);
    ring_comm_close(comm);
    device_close(device);
}

int main(void)
{
    static char *const names[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        ranks_as_threads(6, 10000, split_body, names[t]);
        ranks_as_threads(3, 30000, abort_body, names[t]);
    }
    return test_result();
}
