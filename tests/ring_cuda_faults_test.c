/* Collectives on CUDA memory between processes, as bench and train run them, by copies, in kernels, and in kernels with TCP to a host
 * that is pretended: sums over slots that another process opened, ordered after what the caller's stream does; and what goes wrong: a
 * rank that dies, other arguments, another kind of memory, buffers of a device that is not the communicator's. And the same on memory
 * that neighbours read where it is.
 *
 * RINGZERO_TEST_DEVICE=cuda runs it on a GPU, which the ranks share.
 * ctest: timeout=120
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/ring.h"
#include "tests/harness/harness.h"

#define COUNT 300007
#define FEW   7001 /* too many for lines, but few enough for the slots */

struct world {
    struct device *device;
    struct ring_comm *comm;
    struct stream *stream;
    struct span x; /* COUNT int32 in CUDA memory */
    int32_t *host;
    int rank, n;
    bool shares;
};

struct setting {
    const char *mode;
    bool hosts; /* the last rank is on another one than the others */
    size_t count, other_count; /* of a call that does not fit */
    bool shares; /* memory of ring_alloc() */
};

static bool world_open(struct world *world, const struct setting *setting, struct bootstrap *bootstrap)
{
    struct ring_config config = {.slot_bytes = 16384, .slot_count = 4, .cuda_mode = setting->mode};
    *world = (struct world){.rank = bootstrap_rank(bootstrap), .n = bootstrap_nranks(bootstrap)};
    if (setting->hosts) config.host = world->rank == world->n - 1 ? "there" : "here";
    if (!CHECK_OK(device_open(&world->device, test_device_name()))) return false;
    CHECK_OK(stream_open(&world->stream, world->device, "test"));
    world->host = calloc(COUNT, sizeof *world->host);
    if (!CHECK_OK(ring_comm_open(&world->comm, &config, bootstrap, world->device))) return false;
    world->shares = setting->shares;
    if (!world->shares) return CHECK_OK(memory_alloc(&world->x, COUNT * sizeof(int32_t), MEMORY_WORKSPACE, world->device));
    return CHECK_OK(ring_alloc(&world->x, COUNT * sizeof(int32_t), MEMORY_WORKSPACE, world->comm));
}

static void world_close(struct world *world)
{
    if (world->shares) ring_free(&world->x, MEMORY_WORKSPACE, world->comm);
    else memory_free(&world->x, MEMORY_WORKSPACE, world->device);
    stream_close(world->stream, world->device);
    ring_comm_close(world->comm);
    device_close(world->device);
    free(world->host);
}

static enum status add(struct world *world, size_t count, struct stream *stream)
{
    return ring_all_reduce(world->x, world->x, count, DTYPE_INT32, REDOP_SUM, world->comm, stream);
}

/* Fill, copy, sum, copy: on one stream, without a wait between them. */
static void sum_body(struct bootstrap *bootstrap, void *argument)
{
    struct world world;
    if (!world_open(&world, argument, bootstrap)) return;
    struct span host = span_host(world.host, world.x.bytes);
    for (int turn = 0; turn < 3; turn++) {
        for (int32_t i = 0; i < COUNT; i++) world.host[i] = world.rank * 7 + i + turn;
        CHECK_OK(span_fill(world.x, 0x55, world.stream, world.device));
        CHECK_OK(span_copy(world.x, host, world.stream, world.device));
        CHECK_OK(add(&world, COUNT, world.stream));
        CHECK_OK(span_copy(host, world.x, world.stream, world.device));
        CHECK_OK(stream_synchronize(world.stream, world.device));
        size_t wrong = 0;
        for (int32_t i = 0; i < COUNT; i++) wrong += world.host[i] != world.n * (world.n - 1) / 2 * 7 + world.n * (i + turn);
        CHECK_MSG(wrong == 0, "%zu of %d are wrong", wrong, COUNT);
    }
    struct span elsewhere = world.x, on_host = host;
    elsewhere.device = world.x.device + 1;
    CHECK_STATUS(ring_all_reduce(elsewhere, elsewhere, 4, DTYPE_INT32, REDOP_SUM, world.comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_all_reduce(world.x, on_host, 4, DTYPE_INT32, REDOP_SUM, world.comm, NULL), STATUS_INVALID);
    CHECK_OK(ring_barrier(world.comm, NULL));
    world_close(&world);
}

/* Both large, both small enough for lines, and one of each. */
static void count_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct world world;
    char mine[32], other[32];
    if (!world_open(&world, argument, bootstrap)) return;
    snprintf(mine, sizeof mine, "(%zu int32", setting->count);
    snprintf(other, sizeof other, "(%zu int32", setting->other_count);
    enum status status = add(&world, world.rank == 1 ? setting->other_count : setting->count, NULL);
    CHECK(status == STATUS_DATA || status == STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(), mine) != NULL && strstr(status_text(), other) != NULL &&
                  strstr(status_text(), "in CUDA memory") != NULL, "%s", status_text());
    CHECK_STATUS(add(&world, COUNT, NULL), STATUS_ABORTED);
    world_close(&world);
}

/* What is sent from shared memory may be overwritten at once when the call has ended, though the other rank is late: by then it has
 * read it. Memory that was given back is given out again, zeroed. */
static void gather_body(struct bootstrap *bootstrap, void *argument)
{
    struct world world;
    struct span part, again;
    if (!world_open(&world, argument, bootstrap)) return;
    size_t count = COUNT / (size_t)world.n, wrong = 0;
    CHECK_OK(ring_alloc(&part, count * sizeof(int32_t), MEMORY_WORKSPACE, world.comm));
    for (int32_t turn = 1; turn < 4; turn++) {
        for (size_t i = 0; i < count; i++) world.host[i] = turn * 1000003 + world.rank * 7 + (int32_t)i;
        CHECK_OK(span_copy(part, span_host(world.host, part.bytes), NULL, world.device));
        if (world.rank == turn % world.n) pause_ms(20);
        CHECK_OK(ring_all_gather(world.x, part, count, DTYPE_INT32, world.comm, NULL));
        CHECK_OK(span_fill(part, 0x77, NULL, world.device));
        CHECK_OK(span_copy(span_host(world.host, world.x.bytes), world.x, NULL, world.device));
        for (size_t i = 0; i < count * (size_t)world.n; i++)
            wrong += world.host[i] != turn * 1000003 + (int32_t)(i / count) * 7 + (int32_t)(i % count);

        /* A root that receives nothing has nothing else to wait for. */
        for (size_t i = 0; i < FEW && world.rank == 0; i++) world.host[i] = turn * 7919 + (int32_t)i;
        struct span few = span_part(part, 0, FEW * sizeof(int32_t)), on_host = span_host(world.host, few.bytes);
        if (world.rank == 0) CHECK_OK(span_copy(few, on_host, NULL, world.device));
        else pause_ms(20);
        CHECK_OK(ring_broadcast(few, few, FEW, DTYPE_INT32, 0, world.comm, NULL));
        if (world.rank == 0) CHECK_OK(span_fill(few, 0x77, NULL, world.device));
        else CHECK_OK(span_copy(on_host, few, NULL, world.device));
        for (size_t i = 0; i < FEW && world.rank > 0; i++) wrong += world.host[i] != turn * 7919 + (int32_t)i;
    }
    CHECK_MSG(wrong == 0, "%zu are wrong", wrong);
    void *place = part.ptr;
    ring_free(&part, MEMORY_WORKSPACE, world.comm);
    CHECK_OK(ring_alloc(&again, 1000, MEMORY_WORKSPACE, world.comm));
    CHECK(again.ptr == place && again.bytes == 1000);
    CHECK_OK(span_copy(span_host(world.host, 1000), again, NULL, world.device));
    for (int i = 0; i < 250; i++) wrong += world.host[i] != 0;
    CHECK_MSG(wrong == 0, "memory that is given out again is not zero");
    ring_free(&again, MEMORY_WORKSPACE, world.comm);
    world_close(&world);
}

/* Their slices never meet: what ranks call is compared when nothing has moved for a while. */
static void kind_body(struct bootstrap *bootstrap, void *argument)
{
    struct world world;
    if (!world_open(&world, argument, bootstrap)) return;
    struct span host = span_host(world.host, world.x.bytes), x = world.rank == 0 ? host : world.x;
    enum status status = ring_all_reduce(x, x, COUNT, DTYPE_INT32, REDOP_SUM, world.comm, NULL);
    CHECK(status == STATUS_DATA || status == STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(), "sum in CUDA memory)") != NULL && strstr(status_text(), "sum)") != NULL, "%s", status_text());
    world_close(&world);
}

/* Few elements: rank 1 dies while the others wait for lines, of its own or of who waits for it: it is
 * the root of what they call. */
static void death_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct world world;
    if (!world_open(&world, argument, bootstrap)) return;
    bool few = setting->count < FEW;
    CHECK_OK(add(&world, setting->count, world.stream));
    enum status status = stream_synchronize(world.stream, world.device); /* the others may still be at it when rank 1 is through, and dies */
    if (world.rank == 1 && few) pause_ms(50);
    if (world.rank == 1 && CHECK(status == STATUS_OK)) raise(SIGKILL);
    for (int i = 0; i < 1000 && status == STATUS_OK; i++)
        status = few ? ring_broadcast(world.x, world.x, setting->count, DTYPE_INT32, 1, world.comm, NULL)
                     : add(&world, setting->count, NULL);
    CHECK(status == STATUS_PEER || status == STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(), "rank 1") != NULL, "%s", status_text());
    world_close(&world);
}

int main(void)
{
    if (!test_has_device(test_device_name())) return test_skip(test_device_name());
    static struct setting settings[] = {{"copies", false, COUNT, COUNT - 1, false}, {"kernel", false, COUNT, COUNT - 1, false},
        {"copies", true, COUNT, COUNT - 1, false}, {"kernel", true, COUNT, COUNT - 1, false}, {"copies", false, COUNT, COUNT - 1, true},
        {"kernel", false, COUNT, COUNT - 1, true}};
    static struct setting small[] = {{"kernel", false, 100, 99, false}, {"kernel", false, COUNT, 99, false},
        {"kernel", true, 100, COUNT, false}};
    for (int i = 0; i < 3; i++) CHECK(ranks_as_processes(3, 30000, count_body, &small[i], -1) == 0);
    CHECK(ranks_as_processes(3, 30000, death_body, &small[0], 1) == 0);
    for (int i = 0; i < 6; i++) {
        CHECK(ranks_as_processes(2, 30000, sum_body, &settings[i], -1) == 0);
        CHECK(ranks_as_processes(3, 30000, sum_body, &settings[i], -1) == 0);
        CHECK(ranks_as_processes(3, 30000, death_body, &settings[i], 1) == 0);
        if (settings[i].shares) {
            CHECK(ranks_as_processes(2, 30000, gather_body, &settings[i], -1) == 0);
            continue; /* what else is wrong does not depend on it */
        }
        CHECK(ranks_as_processes(3, 30000, count_body, &settings[i], -1) == 0);
        CHECK(ranks_as_processes(2, 30000, kind_body, &settings[i], -1) == 0);
    }
    return test_result();
}
