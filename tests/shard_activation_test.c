/* The store of checkpoints beside a model that is only two buffers: an input comes back with the
 * bits that it had, whatever M, its size, what is kept and where, with passes one after another and
 * two that wait at once; a pass without a backward keeps nothing; held bytes fall as 1/M and are
 * none of the device's when offloaded; what is sent is predicted to the byte; a rank that leaves is
 * an error on the others. The same where the
 * model computes on a stream, on the simulator, or with RINGZERO_TEST_DEVICE=cuda on a GPU.
 * ctest: timeout=60
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "shard/activation.h"
#include "tests/harness/harness.h"

enum { BLOCKS = 5, FIRST = 3, PASSES = 2, MOST = 4099 };

struct job {
    const char *device;
    enum activation_keep keep;
    size_t elements;
    bool overlap, own_thread; /* that gathers */
    int leaver;               /* this rank leaves before its backward; -1: none does */
};

/* What a rank holds of a model: two buffers in which the blocks' inputs take turns. Where it
 * computes on a stream, everything here is queued there. */
struct model {
    struct device *device;
    struct stream *compute;
    struct span x[2];
    float expected[PASSES][BLOCKS][MOST], found[BLOCKS][MOST], unkept[BLOCKS][MOST];
};

/* The same on all ranks, another in each pass and block. */
static float value(int pass, int block, size_t i, int round)
{
    return (float)((i * 7919 + (size_t)(block * 31 + pass * 17 + round * 5)) % 4001) * 0.37f;
}

static struct span input_of(const struct model *model, int block, size_t elements)
{
    return span_part(model->x[(FIRST + BLOCKS - block) % 2], 0, elements * sizeof(float));
}

static void spoil(struct span x, int byte, const struct model *model)
{
    CHECK_OK(span_fill(x, byte, model->compute, model->device));
}

static void settle(const struct model *model)
{
    if (model->compute != NULL) CHECK_OK(stream_synchronize(model->compute, model->device));
}

static void forward(struct model *model, struct activation *store, int pass, bool backward,
    size_t elements, int round)
{
    settle(model); /* values are written anew */
    CHECK_OK(activation_begin_forward(pass, backward, store));
    for (int b = FIRST; b < FIRST + BLOCKS; b++) {
        struct span x = input_of(model, b, elements);
        float *values = backward ? model->expected[pass][b - FIRST] : model->unkept[b - FIRST];
        for (size_t i = 0; i < elements; i++) values[i] = value(pass, b, i, round);
        CHECK_OK(span_copy(x, span_host(values, x.bytes), model->compute, model->device));
        CHECK_OK(activation_save(store, b, x));
        /* From now on the input of the block before is gone: its buffer is the next one's. */
        spoil(input_of(model, b + 1, elements), 0xff, model);
    }
    spoil(input_of(model, FIRST + BLOCKS, elements), 0xee, model);
}

static void backward(struct model *model, struct activation *store, int pass, size_t elements)
{
    activation_begin_backward(pass, store);
    for (int b = FIRST + BLOCKS; b-- > FIRST;) {
        struct span x = input_of(model, b, elements);
        CHECK_OK(activation_load(store, b, x));
        CHECK_OK(span_copy(
            span_host(model->found[b - FIRST], x.bytes), x, model->compute, model->device));
    }
    settle(model);
    for (int b = 0; b < BLOCKS; b++)
        CHECK_MSG(memcmp(model->found[b], model->expected[pass][b], elements * sizeof(float)) == 0,
            "pass %d, block %d of %zu elements", pass, FIRST + b, elements);
    for (int i = 0; i < 2; i++) spoil(model->x[i], 0xdd, model);
    CHECK_OK(activation_synchronize(store));
}

static void check_held(const struct activation_config *config, const struct job *job)
{
    struct memory_account account = memory_account_read(config->device);
    uint64_t beside = memory_account_read_beside(config->device).peak[MEMORY_OFFLOADED];
    size_t part = (job->elements + (size_t)config->nranks - 1) / (size_t)config->nranks;
    uint64_t bytes = PASSES * BLOCKS * part * sizeof(float);
    bool offloaded = job->keep == ACTIVATION_OFFLOADED;
    CHECK(activation_predict_bytes(config) == bytes);
    CHECK_MSG(account.peak[MEMORY_CHECKPOINTS] == (offloaded ? 0 : bytes), "%llu held",
        (unsigned long long)account.peak[MEMORY_CHECKPOINTS]);
    CHECK_MSG(beside == (offloaded ? bytes : 0), "%llu offloaded", (unsigned long long)beside);
}

static void check_sent(
    const struct activation_config *config, const uint64_t predicted[COLLECTIVE_COUNT])
{
    struct ring_counters counters = {0};
    if (config->comm != NULL) counters = ring_comm_counters(config->comm);
    for (int c = 0; c < COLLECTIVE_COUNT; c++)
        CHECK_MSG(counters.sent_bytes[c] == predicted[c], "%s: %llu sent, %llu predicted",
            collective_name((enum collective)c), (unsigned long long)counters.sent_bytes[c],
            (unsigned long long)predicted[c]);
    uint64_t operations = config->comm == NULL ? 0 : 5 * BLOCKS; /* loads, of as many backwards */
    CHECK(counters.operations[COLLECTIVE_ALL_GATHER] == operations);
}

/* One pass alone, shorter ones, one that has no backward, two at once. */
static void run_passes(struct model *model, struct activation *store,
    const struct activation_config *config, const struct job *job)
{
    size_t n = job->elements, shorter = n - n / 3;
    uint64_t sent[COLLECTIVE_COUNT] = {0};
    forward(model, store, 0, true, n, 0);
    backward(model, store, 0, n);
    forward(model, store, 1, true, shorter, 1);
    backward(model, store, 1, shorter);
    forward(model, store, 0, true, n, 2);
    forward(model, store, 1, true, shorter, 3);
    backward(model, store, 0, n);
    forward(model, store, 1, false, shorter, 4); /* keeps nothing: what pass 1 has kept stays */
    backward(model, store, 1, shorter);
    forward(model, store, 0, true, n, 5);
    backward(model, store, 0, n);
    for (int i = 0; i < 5; i++)
        activation_predict_sent(sent, i == 1 || i == 3 ? shorter : n, config);
    if (config->ring != NULL) CHECK_OK(stream_synchronize(config->ring, config->device));
    check_held(config, job);
    check_sent(config, sent);
}

/* An error on every rank that is left, of the call or of the ring's stream (I5). */
static void run_left(struct model *model, struct activation *store,
    const struct activation_config *config, const struct job *job)
{
    enum status status = STATUS_OK;
    forward(model, store, 0, true, job->elements, 0);
    if (config->rank == job->leaver) {
        ring_comm_abort(config->comm, "this rank has left");
        return;
    }
    activation_begin_backward(0, store);
    for (int b = FIRST + BLOCKS; b-- > FIRST && status == STATUS_OK;)
        status = activation_load(store, b, input_of(model, b, job->elements));
    if (status == STATUS_OK) status = stream_synchronize(config->ring, config->device);
    CHECK(status == STATUS_ABORTED);
    CHECK_TEXT("this rank has left");
}

static void run_rank(struct bootstrap *bootstrap, void *argument)
{
    const struct job *job = argument;
    struct ring_config ring = {.transport = "shm", .slot_bytes = 4096};
    struct activation_config config = {.keep = job->keep,
        .first_block = FIRST,
        .block_count = BLOCKS,
        .pass_count = PASSES,
        .elements = job->elements,
        .dtype = DTYPE_FLOAT32,
        .rank = bootstrap_rank(bootstrap),
        .nranks = bootstrap_nranks(bootstrap),
        .overlap = job->overlap};
    struct activation *store = NULL;
    struct model *model = calloc(1, sizeof *model);
    if (model == NULL) abort();
    if (!CHECK_OK(device_open(&config.device, job->device))) return;
    if (device_kind(config.device) == MEMORY_CUDA)
        CHECK_OK(stream_open(&config.compute, config.device, "compute"));
    model->device = config.device;
    model->compute = config.compute;
    if (config.nranks > 1) {
        CHECK_OK(ring_comm_open(&config.comm, &ring, bootstrap, config.device));
        if (!job->own_thread) CHECK_OK(stream_open(&config.ring, config.device, "ring"));
    }
    for (int i = 0; i < 2; i++)
        CHECK_OK(memory_alloc(
            &model->x[i], job->elements * sizeof(float), MEMORY_ACTIVATIONS, config.device));
    if (CHECK_OK(activation_open(&store, &config))) {
        if (job->leaver >= 0) run_left(model, store, &config, job);
        else run_passes(model, store, &config, job);
    }
    activation_close(store);
    stream_close(config.ring, config.device);
    stream_close(config.compute, config.device);
    ring_comm_close(config.comm);
    for (int i = 0; i < 2; i++) memory_free(&model->x[i], MEMORY_ACTIVATIONS, config.device);
    struct memory_account left = memory_account_read(config.device);
    struct memory_account beside = memory_account_read_beside(config.device);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) CHECK(left.now[tag] + beside.now[tag] == 0);
    device_close(config.device);
    free(model);
}

/* Held bytes fall as 1/M, sent ones are (M−1)/M of every input: beside the paper's b·s·h (M−1)/M
 * per block. */
static void test_formula(void)
{
    for (int m = 1; m <= 16; m *= 2) {
        const struct activation_config config = {.keep = ACTIVATION_PART,
            .block_count = 48,
            .pass_count = 1,
            .elements = (size_t)32 * 1024 * 1600,
            .dtype = DTYPE_BFLOAT16,
            .nranks = m};
        uint64_t sent[COLLECTIVE_COUNT] = {0}, all = (uint64_t)48 * config.elements * 2;
        activation_predict_sent(sent, config.elements, &config);
        CHECK(activation_predict_bytes(&config) == all / (uint64_t)m);
        CHECK(sent[COLLECTIVE_ALL_GATHER] == all / (uint64_t)m * (uint64_t)(m - 1));
    }
}

/* All ways to keep, to wait, and, on the host, to gather. */
static void test_ways(const char *device, int nranks, size_t elements, bool own_thread, int leaver)
{
    for (int way = 0; way < 4; way++) {
        struct job job = {.device = device,
            .keep = way % 2 == 0 ? ACTIVATION_PART : ACTIVATION_OFFLOADED,
            .elements = elements,
            .overlap = way < 2,
            .own_thread = own_thread,
            .leaver = leaver};
        ranks_as_threads(nranks, 20000, run_rank, &job);
    }
}

int main(void)
{
    static const size_t sizes[] = {1, 3, 64, 101, MOST};
    test_formula();
    for (int nranks = 1; nranks <= 4; nranks++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            test_ways("host", nranks, sizes[i], false, -1);
            test_ways("host", nranks, sizes[i], true, -1);
        }
    test_ways("host", 3, MOST - 1, false, 1);
    test_ways("host", 3, MOST, true, 2);
    const char *device = test_device_name();
    for (int nranks = 1; nranks <= 3 && test_has_device(device); nranks++) {
        test_ways(device, nranks, 64, false, -1);
        test_ways(device, nranks, 101, false, -1);
    }
    return test_result();
}
