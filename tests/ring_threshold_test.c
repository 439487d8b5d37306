/* The threshold of small operations, measured as the communicator opens: all ranks have the same
 * sizes, nothing of it is counted or kept, bits are those of the ring on both sides of it, parts of
 * the communicator have it too, predictions go by it, and ranks that do not all ask for it are told
 * so. Only whether a size is below the threshold is measured, so which it is is nobody's to expect.
 * ctest: timeout=60
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/threshold.h"
#include "tests/harness/harness.h"

#define MOST_COUNT 70000

static float value_at(int rank, size_t i)
{
    return 1.0f / (float)(i % 977 + (size_t)rank + 1);
} /* their sums show their order */

static void check_bits(struct ring_comm *measured, struct ring_comm *ring)
{
    static const size_t counts[] = {1, 300, 4099, 17001, MOST_COUNT};
    int rank = ring_comm_rank(ring);
    size_t bytes = MOST_COUNT * sizeof(float);
    float *send = malloc(bytes), *a = malloc(bytes), *b = malloc(bytes);
    for (size_t i = 0; i < MOST_COUNT; i++) send[i] = value_at(rank, i);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        memset(a, 0x55, bytes);
        memset(b, 0xaa, bytes);
        struct span in = span_host(send, counts[k] * 4), one = span_host(a, counts[k] * 4),
                    two = span_host(b, counts[k] * 4);
        CHECK_OK(ring_all_reduce(one, in, counts[k], DTYPE_FLOAT32, REDOP_SUM, measured, NULL));
        CHECK_OK(ring_all_reduce(two, in, counts[k], DTYPE_FLOAT32, REDOP_SUM, ring, NULL));
        CHECK_MSG(memcmp(a, b, counts[k] * 4) == 0, "%zu elements", counts[k]);
    }
    free(send);
    free(a);
    free(b);
}

/* What one rank found is what all found. */
static void check_agreed(struct ring_comm *comm, struct bootstrap *bootstrap)
{
    size_t(*all)[COLLECTIVE_COUNT] = calloc((size_t)comm->nranks, sizeof *all);
    memcpy(all[comm->rank], comm->exchange_most, sizeof *all);
    CHECK_OK(bootstrap_all_gather(all, sizeof *all, bootstrap));
    size_t most = 1;
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        for (int r = 1; r < comm->nranks; r++) CHECK(all[r][c] == all[0][c]);
        if (all[0][c] > most) most = all[0][c];
    }
    CHECK(all[0][COLLECTIVE_ALL_REDUCE] >= 1 && all[0][COLLECTIVE_BROADCAST] >= 1 &&
          all[0][COLLECTIVE_SEND] == 0);
    CHECK(comm->config.exchange_bytes == most && most <= 65536);
    free(all);
}

/* Where each collective has a threshold of its own, what was found is what is predicted by. */
static void check_predicted(struct ring_comm *comm)
{
    enum { COUNT = 900 }; /* of 4 bytes: between the two thresholds */
    float send[COUNT] = {0}, recv[COUNT];
    struct span in = span_host(send, sizeof send), out = span_host(recv, sizeof recv);
    comm->config.exchange_bytes = comm->exchange_most[COLLECTIVE_ALL_REDUCE] = 4096;
    comm->exchange_most[COLLECTIVE_BROADCAST] = 1;
    for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c += COLLECTIVE_BROADCAST) {
        const struct ring_call call = {
            .collective = (enum collective)c, .dtype = DTYPE_FLOAT32, .count = COUNT};
        uint64_t before = ring_comm_counters(comm).sent_bytes[c],
                 predicted = ring_predict_sent_bytes(&call, comm->nranks, comm->rank, comm);
        if (c == COLLECTIVE_BROADCAST)
            CHECK_OK(ring_broadcast(out, in, COUNT, DTYPE_FLOAT32, 0, comm, NULL));
        else CHECK_OK(ring_all_reduce(out, in, COUNT, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
        uint64_t sent = ring_comm_counters(comm).sent_bytes[c] - before;
        CHECK_MSG(sent == predicted, "%s: rank %d sent %llu bytes, %llu predicted",
            collective_name(call.collective), comm->rank, (unsigned long long)sent,
            (unsigned long long)predicted);
    }
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    struct device *device = NULL;
    struct ring_comm *comm = NULL, *ring = NULL, *part = NULL;
    struct ring_config config = {.transport = argument, .exchange_bytes = THRESHOLD_MEASURE};
    CHECK_OK(device_open(&device, "host"));
    if (!CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) return;
    struct ring_counters counters = ring_comm_counters(comm);
    CHECK(counters.busy_ns == 0 && comm->exchanges == NULL);
    for (int c = 0; c < COLLECTIVE_COUNT; c++)
        CHECK(counters.operations[c] == 0 && counters.sent_bytes[c] == 0);
    CHECK(memory_account_read(device).now[MEMORY_WORKSPACE] == 0);
    check_agreed(comm, bootstrap);
    config.exchange_bytes = 1;
    CHECK_OK(ring_comm_open(&ring, &config, bootstrap, device));
    check_bits(comm, ring);
    CHECK_OK(ring_comm_split(&part, 0, -ring_comm_rank(comm), comm));
    CHECK(memcmp(part->exchange_most, comm->exchange_most, sizeof comm->exchange_most) == 0);
    check_predicted(comm);
    ring_comm_close(part);
    ring_comm_close(ring);
    ring_comm_close(comm);
    device_close(device);
}

static void differ_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct ring_config config = {
        .exchange_bytes = bootstrap_rank(bootstrap) == 0 ? THRESHOLD_MEASURE : 4096};
    CHECK_OK(device_open(&device, "host"));
    enum status status = ring_comm_open(&comm, &config, bootstrap, device);
    CHECK(status == STATUS_INVALID || status == STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(),
                  "RINGZERO_EXCHANGE_BYTES is measure on rank 0 and 4096 on rank ") != NULL,
        "%s", status_text());
    device_close(device);
}

static void alone_body(struct bootstrap *bootstrap, void *argument)
{
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    CHECK_OK(device_open(&device, "host"));
    setenv("RINGZERO_EXCHANGE_BYTES", argument, 1);
    bool good = strcmp(argument, "measure") == 0;
    CHECK_STATUS(ring_comm_open(&comm, &(struct ring_config){0}, bootstrap, device),
        good ? STATUS_OK : STATUS_INVALID);
    if (good && comm != NULL) CHECK(ring_comm_config(comm)->exchange_bytes == COMM_EXCHANGE_BYTES);
    else
        CHECK_MSG(strstr(status_text(), "expected a number from 0 to 1048576, or measure") != NULL,
            "%s", status_text());
    ring_comm_close(comm);
    device_close(device);
}

int main(void)
{
    for (int n = 2; n <= 4; n++) ranks_as_threads(n, 20000, body, "shm");
    ranks_as_threads(3, 20000, body, "tcp");
    ranks_as_threads(3, 5000, differ_body, NULL);
    CHECK(ranks_as_processes(1, 5000, alone_body, "measure", -1) == 0);
    CHECK(ranks_as_processes(1, 5000, alone_body, "measured", -1) == 0);
    return test_result();
}
