/* The store behind a model that M ranks share: each holds slices of every matrix, sums go over the
 * same communicator and stream as the checkpoints that come back beside them. With activations
 * kept, and inputs kept whole, in parts and in host memory, loss and gradients have the same bits
 * (I3); a block's checkpoint costs b·s·h (M−1)/M sent elements and 1/M held ones. ctest: timeout=60
 */
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "ring/ring.h"
#include "shard/activation.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

enum { BATCH = 2, T = 5, C = 24, LAYERS = 5, VOCAB = 10, STEPS = 2 };
static const struct model_config shapes[] = {
    {.max_t = 6, .vocab = VOCAB, .layers = LAYERS, .heads = 4, .channels = C, .vocab_block = 4},
    {.architecture = ARCHITECTURE_LLAMA,
        .max_t = 6,
        .vocab = VOCAB,
        .layers = LAYERS,
        .heads = 4,
        .channels = C},
};
static const int32_t tokens[BATCH * T] = {1, 2, 3, 4, 5, 9, 8, 7, 6, 0};
static const int32_t targets[BATCH * T] = {2, 3, -1, 5, 9, 8, 7, 6, 0, 1};

struct rank {
    struct model_host host; /* of this rank's part */
    struct ring_comm *comm;
    struct stream *ring;
    struct device *device;
    uint64_t kept_sent; /* with all activations kept */
    double loss[STEPS];
};

static struct model_host host_of_part(const struct model_config *shape, int rank, int nranks)
{
    const struct params_part part = {
        .tensor_rank = rank, .tensor_count = nranks, .stage = 0, .stage_count = 1};
    struct model_host host = {0};
    if (!CHECK_OK(params_make_part(&host.params, shape, &part))) exit(1);
    host.weights = calloc(host.params.elements, sizeof(float));
    host.gradients = calloc(host.params.elements, sizeof(float));
    host.unit_begin = calloc((size_t)host.params.unit_count, sizeof *host.unit_begin);
    if (host.weights == NULL || host.gradients == NULL || host.unit_begin == NULL) abort();
    for (int u = 0, begin = 0; u < host.params.unit_count; u++) {
        size_t count = host.params.unit_elements[u];
        host.unit_begin[u] = (size_t)begin;
        params_initialize(host.weights + begin, &host.params, u, 0, count, 3);
        begin += (int)count;
    }
    return host;
}

/* ---- the tensor group's hooks ---- */

static enum status reduce(struct rank *rank, struct span x, size_t count, enum redop redop)
{
    TRY(ring_all_reduce(x, x, count, DTYPE_FLOAT32, redop, rank->comm, rank->ring));
    return stream_synchronize(rank->ring, rank->device);
}
static enum status sum(void *context, struct span x, size_t count)
{
    return reduce(context, x, count, REDOP_SUM);
}
static enum status max(void *context, struct span x, size_t count)
{
    return reduce(context, x, count, REDOP_MAX);
}

/* ---- */

static struct activation_config config_of(
    enum activation_keep keep, bool overlap, const struct rank *rank, int number, int nranks)
{
    return (struct activation_config){.keep = keep,
        .block_count = LAYERS,
        .pass_count = 1,
        .elements = (size_t)BATCH * T * C,
        .dtype = DTYPE_FLOAT32,
        .rank = number,
        .nranks = nranks,
        .overlap = overlap,
        .comm = rank->comm,
        .ring = rank->ring,
        .device = rank->device};
}

/* Two steps, the second shorter. */
static void run_steps(double *loss, struct model *model, struct activation *store)
{
    for (int step = 0; step < STEPS; step++) {
        size_t valid;
        CHECK_OK(activation_begin_forward(0, true, store));
        CHECK_OK(model_forward(&loss[step], &valid, tokens, targets, BATCH, T - step, model));
        activation_begin_backward(0, store);
        CHECK_OK(model_backward(0.125f, model));
        CHECK_OK(activation_synchronize(store));
    }
}

static uint64_t sent_bytes(const struct rank *rank)
{
    struct ring_counters counters = {0};
    if (rank->comm != NULL) counters = ring_comm_counters(rank->comm);
    return counters.sent_bytes[COLLECTIVE_ALL_GATHER] + counters.sent_bytes[COLLECTIVE_ALL_REDUCE];
}

static void check_bytes(const struct rank *rank, const struct activation_config *config)
{
    struct memory_account account = memory_account_read(rank->device);
    uint64_t beside = memory_account_read_beside(rank->device).peak[MEMORY_OFFLOADED];
    uint64_t m = (uint64_t)config->nranks,
             inputs = (uint64_t)LAYERS * BATCH * T * C * sizeof(float);
    enum activation_keep keep = config->keep;
    uint64_t part = keep == ACTIVATION_ALL ? 0 : keep == ACTIVATION_INPUT ? inputs : inputs / m;
    CHECK(account.peak[MEMORY_CHECKPOINTS] == (keep == ACTIVATION_OFFLOADED ? 0 : part));
    CHECK(beside == (keep == ACTIVATION_OFFLOADED ? part : 0));
    uint64_t gathered =
        rank->comm == NULL ? 0 : ring_comm_counters(rank->comm).sent_bytes[COLLECTIVE_ALL_GATHER];
    uint64_t expected = 0; /* b·s·h (M−1)/M of each block, of both steps */
    for (uint64_t step = 0; step < STEPS && activation_is_carried(keep); step++)
        expected += (uint64_t)LAYERS * BATCH * (T - step) * C / m * (m - 1) * sizeof(float);
    CHECK_MSG(gathered == expected, "%s: %llu bytes sent, expected %llu",
        activation_keep_name(keep), (unsigned long long)gathered, (unsigned long long)expected);
}

/* Its gradients are in rank->host afterwards. */
static void run_keep(struct rank *rank, const struct activation_config *config)
{
    struct model_hooks hooks = model_host_hooks(&rank->host);
    struct model_run run = model_host_run(BATCH, T);
    struct activation *store = NULL;
    struct model *model;
    run.recompute = activation_recomputes(config->keep);
    if (config->nranks > 1) hooks.tensor = rank, hooks.sum = sum, hooks.max = max;
    if (activation_is_carried(config->keep)) {
        if (!CHECK_OK(activation_open(&store, config))) return;
        hooks.activations = store;
        hooks.act_save = activation_save, hooks.act_load = activation_load;
    }
    memset(rank->host.gradients, 0, rank->host.params.elements * sizeof(float));
    if (CHECK_OK(model_open(&model, &rank->host.params, &hooks, &run, rank->device))) {
        run_steps(rank->loss, model, store);
        check_bytes(rank, config);
        model_close(model);
    }
    activation_close(store);
}

/* A communicator for each way: its counters begin at 0. */
static void run_way(
    struct rank *rank, enum activation_keep keep, bool overlap, struct bootstrap *bootstrap)
{
    int number = bootstrap_rank(bootstrap), nranks = bootstrap_nranks(bootstrap);
    struct ring_config ring = {.transport = "shm", .slot_bytes = 4096};
    if (!CHECK_OK(device_open(&rank->device, "host"))) return;
    if (nranks > 1) {
        CHECK_OK(ring_comm_open(&rank->comm, &ring, bootstrap, rank->device));
        CHECK_OK(stream_open(&rank->ring, rank->device, "tensor"));
    }
    struct activation_config config = config_of(keep, overlap, rank, number, nranks);
    run_keep(rank, &config);
    uint64_t checkpoints[COLLECTIVE_COUNT] = {0}, recompute = 0;
    for (size_t step = 0; step < STEPS; step++)
        activation_predict_sent(checkpoints, (size_t)BATCH * (T - step) * C, &config);
    if (keep == ACTIVATION_ALL) rank->kept_sent = sent_bytes(rank);
    else /* one sum of each block more: the last of a block is not computed again */
        recompute = sent_bytes(rank) - rank->kept_sent - checkpoints[COLLECTIVE_ALL_GATHER];
    uint64_t expected = 0;
    for (size_t step = 0; step < STEPS && keep != ACTIVATION_ALL && nranks > 1; step++) {
        const struct ring_call call = {.collective = COLLECTIVE_ALL_REDUCE,
            .dtype = DTYPE_FLOAT32,
            .count = (size_t)BATCH * (T - step) * C};
        expected += LAYERS * ring_predict_sent_bytes(&call, nranks, number, rank->comm);
    }
    CHECK_MSG(recompute == expected, "%llu bytes more for the recompute, expected %llu",
        (unsigned long long)recompute, (unsigned long long)expected);
    if (rank->ring != NULL) stream_close(rank->ring, rank->device);
    ring_comm_close(rank->comm);
    device_close(rank->device);
    rank->comm = NULL, rank->ring = NULL;
}

static void run_rank(struct bootstrap *bootstrap, void *argument)
{
    struct rank rank = {
        .host = host_of_part(argument, bootstrap_rank(bootstrap), bootstrap_nranks(bootstrap))};
    size_t bytes = rank.host.params.elements * sizeof(float);
    float *expected = calloc(1, bytes);
    double loss[STEPS];
    if (expected == NULL) abort();
    run_way(&rank, ACTIVATION_ALL, true, bootstrap);
    memcpy(expected, rank.host.gradients, bytes);
    memcpy(loss, rank.loss, sizeof loss);
    CHECK(loss[0] > 10.0 && loss[0] < 40.0); /* of 9 tokens */
    for (int keep = ACTIVATION_INPUT; keep <= ACTIVATION_OFFLOADED; keep++)
        for (int overlap = 0; overlap < 2; overlap++) {
            run_way(&rank, (enum activation_keep)keep, overlap == 1, bootstrap);
            CHECK_MSG(memcmp(loss, rank.loss, sizeof loss) == 0 &&
                          memcmp(expected, rank.host.gradients, bytes) == 0,
                "%s: other bits", activation_keep_name((enum activation_keep)keep));
        }
    free(expected);
    model_host_free(&rank.host);
}

int main(void)
{
    for (int i = 0; i < 2; i++)
        for (int nranks = 1; nranks <= 4; nranks *= 2)
            ranks_as_threads(nranks, 20000, run_rank, (void *)(uintptr_t)&shapes[i]);
    return test_result();
}
