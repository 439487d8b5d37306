/* Collectives in CUDA graphs: captured once and launched again and again on new data, between processes; small ones by lines and large
 * ones by slots, by several channels, with collectives that are not captured in between. Bytes are counted for each run (I4). And what
 * cannot be captured: what the host drives, and what leaves the host.
 *
 * RINGZERO_TEST_DEVICE=cuda runs it on a GPU, which the ranks share.
 * ctest: timeout=120 orders
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "tests/harness/harness.h"
#include "verbs/device_graph.h"

#define LARGE  50021
#define SMALL  203
#define TURNS  5

struct setting {
    struct ring_config config;
    bool hosts;       /* the last rank is on another one */
    const char *why;  /* it cannot be captured; NULL: it can */
};

struct world {
    struct device *device;
    struct ring_comm *comm;
    struct stream *stream;
    struct span large, small, gathered; /* int32 in CUDA memory */
    int32_t *host;
    int rank, n;
};

static bool world_open(struct world *world, const struct setting *setting, struct bootstrap *bootstrap)
{
    struct ring_config config = setting->config;
    *world = (struct world){.rank = bootstrap_rank(bootstrap), .n = bootstrap_nranks(bootstrap)};
    if (setting->hosts) config.host = world->rank == world->n - 1 ? "there" : "here";
    if (!CHECK_OK(device_open(&world->device, test_device_name()))) return false;
    CHECK_OK(stream_open(&world->stream, world->device, "test"));
    CHECK_OK(memory_alloc(&world->large, LARGE * sizeof(int32_t), MEMORY_WORKSPACE, world->device));
    CHECK_OK(memory_alloc(&world->small, SMALL * sizeof(int32_t), MEMORY_WORKSPACE, world->device));
    CHECK_OK(memory_alloc(&world->gathered, (size_t)world->n * SMALL * sizeof(int32_t), MEMORY_WORKSPACE, world->device));
    world->host = calloc(LARGE, sizeof *world->host);
    return CHECK_OK(ring_comm_open(&world->comm, &config, bootstrap, world->device));
}

static void world_close(struct world *world)
{
    memory_free(&world->large, MEMORY_WORKSPACE, world->device);
    memory_free(&world->small, MEMORY_WORKSPACE, world->device);
    memory_free(&world->gathered, MEMORY_WORKSPACE, world->device);
    stream_close(world->stream, world->device);
    ring_comm_close(world->comm);
    device_close(world->device);
    free(world->host);
}

/* What is captured: a sum of much, a sum of little, and a gather of that. */
static void collectives(struct world *world)
{
    CHECK_OK(ring_all_reduce(world->large, world->large, LARGE, DTYPE_INT32, REDOP_SUM, world->comm, world->stream));
    CHECK_OK(ring_all_reduce(world->small, world->small, SMALL, DTYPE_INT32, REDOP_MAX, world->comm, world->stream));
    CHECK_OK(ring_all_gather(world->gathered, world->small, SMALL, DTYPE_INT32, world->comm, world->stream));
}

static void fill(struct world *world, struct span to, int32_t first)
{
    size_t count = to.bytes / sizeof(int32_t);
    for (size_t i = 0; i < count; i++) world->host[i] = first + (int32_t)i;
    CHECK_OK(span_copy(to, span_host(world->host, to.bytes), world->stream, world->device));
    CHECK_OK(stream_synchronize(world->stream, world->device));
}

static void check(struct world *world, struct span from, int32_t first, int32_t factor, size_t period)
{
    size_t count = from.bytes / sizeof(int32_t), wrong = 0;
    CHECK_OK(span_copy(span_host(world->host, from.bytes), from, world->stream, world->device));
    CHECK_OK(stream_synchronize(world->stream, world->device));
    for (size_t i = 0; i < count; i++) wrong += world->host[i] != first + factor * (int32_t)(i % period);
    CHECK_MSG(wrong == 0, "%zu of %zu are wrong", wrong, count);
}

/* New data, collectives (a launch of the graph, or calls), results. */
static void turn(struct world *world, struct graph *graph, int32_t t)
{
    int32_t n = world->n;
    fill(world, world->large, 1000 * t + world->rank);
    fill(world, world->small, 10 * t + 7 * world->rank);
    if (graph != NULL) CHECK_OK(graph_launch(graph, world->stream, world->device));
    else collectives(world);
    check(world, world->large, n * 1000 * t + n * (n - 1) / 2, n, LARGE);
    check(world, world->small, 10 * t + 7 * (n - 1), 1, SMALL);
    check(world, world->gathered, 10 * t + 7 * (n - 1), 1, SMALL);
}

static void check_counters(const struct world *world, struct ring_counters before, uint64_t turns)
{
    struct ring_counters after = ring_comm_counters(world->comm);
    struct ring_call calls[2] = {{.collective = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_INT32, .count = LARGE, .on_device = true},
        {.collective = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_INT32, .redop = REDOP_MAX, .count = SMALL, .on_device = true}};
    uint64_t bytes = 0, sent = after.sent_bytes[COLLECTIVE_ALL_REDUCE] - before.sent_bytes[COLLECTIVE_ALL_REDUCE];
    for (int i = 0; i < 2; i++) bytes += ring_predict_sent_bytes(&calls[i], world->n, world->rank, world->comm);
    CHECK_MSG(sent == turns * bytes, "sent %llu bytes, predicted %llu", (unsigned long long)sent, (unsigned long long)(turns * bytes));
    CHECK(after.operations[COLLECTIVE_ALL_GATHER] - before.operations[COLLECTIVE_ALL_GATHER] == turns);
}

static void graph_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct world world;
    struct graph *graph = NULL;
    if (!world_open(&world, setting, bootstrap)) return;
    turn(&world, NULL, 1);
    CHECK_OK(graph_begin(world.stream, world.device));
    collectives(&world);
    enum status status = graph_end(&graph, world.stream, world.device);
    if (setting->why != NULL) {
        CHECK_STATUS(status, STATUS_INVALID);
        CHECK_MSG(strstr(status_text(), setting->why) != NULL, "%s", status_text());
        CHECK(graph == NULL);
    } else if (CHECK(status == STATUS_OK)) {
        struct ring_counters before = ring_comm_counters(world.comm);
        for (int32_t t = 2; t < 2 + TURNS; t++) turn(&world, graph, t);
        check_counters(&world, before, TURNS);
        turn(&world, NULL, 100);
        for (int32_t t = 200; t < 200 + TURNS; t++) turn(&world, graph, t);
        check_counters(&world, before, 2 * TURNS + 1);
    }
    graph_close(graph, world.device);
    world_close(&world);
}

/* Captured before anything has connected; and one rank launches once more than the others: that ends, and is told. */
static void late_body(struct bootstrap *bootstrap, void *argument)
{
    struct world world;
    struct graph *graph = NULL;
    if (!world_open(&world, argument, bootstrap)) return;
    CHECK_OK(graph_begin(world.stream, world.device));
    collectives(&world);
    if (CHECK_OK(graph_end(&graph, world.stream, world.device))) {
        turn(&world, graph, 1);
        CHECK_OK(bootstrap_barrier(bootstrap));
        if (world.rank == 0) {
            CHECK_OK(graph_launch(graph, world.stream, world.device));
            CHECK_OK(stream_synchronize(world.stream, world.device));
            enum status status = ring_all_reduce(world.small, world.small, SMALL, DTYPE_INT32, REDOP_MAX, world.comm, NULL);
            CHECK_STATUS(status, STATUS_TIMEOUT);
            CHECK_MSG(strstr(status_text(), "all_reduce of a graph waited in vain for") != NULL &&
                          strstr(status_text(), "rank 1") != NULL, "%s", status_text());
        }
    }
    graph_close(graph, world.device);
    world_close(&world);
}

int main(void)
{
    if (!test_has_device(test_device_name())) return test_skip(test_device_name());
    static struct setting plain = {{.cuda_mode = "kernel", .slot_bytes = 4096, .slot_count = 4}, false, NULL};
    static struct setting channels = {{.cuda_mode = "kernel", .channels = 2, .cuda_line_bytes = 200}, false, NULL};
    static struct setting copies = {{.cuda_mode = "copies"}, false, "the host drives its copies (RINGZERO_CUDA_MODE)"};
    static struct setting apart = {{.cuda_mode = "kernel"}, true, "is reached by tcp, which needs the host meanwhile"};
    static struct setting late = {{.cuda_mode = "kernel", .slot_bytes = 4096, .slot_count = 4, .timeout_ms = 1000}, false, NULL};
    CHECK(ranks_as_processes(2, 30000, late_body, &late, -1) == 0);
    CHECK(ranks_as_processes(2, 30000, graph_body, &plain, -1) == 0);
    CHECK(ranks_as_processes(3, 30000, graph_body, &channels, -1) == 0);
    CHECK(ranks_as_processes(2, 30000, graph_body, &copies, -1) == 0);
    CHECK(ranks_as_processes(2, 30000, graph_body, &apart, -1) == 0);
    return test_result();
}
