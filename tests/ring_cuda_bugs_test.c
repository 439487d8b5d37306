/* Bugs planted under the collectives that the host drives on CUDA memory: between the ring and its
 * reductions, and between the ring and the device. Each must show: in the bits, which are those of
 * host memory (I2), in a byte around a result, or as an error. Without one nothing does.
 *
 * A bug is a function that stands in a table in place of the device's own, does what it says, and
 * leaves the rest to that one. Each is planted in a process of its own, on the simulator, whose
 * streams are late by chance: what is not waited for is not there.
 * ctest: timeout=120 labels=plain
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/reduce.h"
#include "ring/ring.h"
#include "tests/harness/harness.h"
#include "verbs/device_ops.h"
#include "verbs/plugin.h"

#define N     4   /* on two hosts, so that sums join */
#define COUNT 299 /* of a chunk: several slices, and a tail */
#define GUARD 64

/* ---- the tables, in this process ---- */

static const struct device_ops *device_own;
static struct device_ops device_planted;
static const struct reduce_ops *reduce_own;
static struct reduce_ops reduce_planted;
static const void *reduce_table = &reduce_planted;
static struct plugin plugin_planted;
static atomic_int wrong; /* what has shown, on all ranks */

/* ---- bugs of reductions ---- */

typedef const struct reduce_slice *slice_in;
typedef const struct reduction *reduction_in;

static enum status last_is_missed(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduce_slice less = *slice;
    less.count -= less.count > 0;
    return reduce_own->combine(&less, reduction, native, device);
}

/* What stands behind the result is another's. */
static enum status one_too_many(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduce_slice more = *slice;
    more.count++;
    return reduce_own->combine(&more, reduction, native, device);
}

static enum status joined_is_left_out(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduce_slice less = *slice;
    less.joined = NULL;
    return reduce_own->combine(&less, reduction, native, device);
}

/* (wire + own) + joined becomes (joined + own) + wire: the same but for rounding. */
static enum status another_order(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduce_slice turned = *slice;
    if (slice->joined != NULL) turned.wire = slice->joined, turned.joined = slice->wire;
    return reduce_own->combine(&turned, reduction, native, device);
}

static enum status slot_is_not_written(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduce_slice kept = *slice;
    if (kept.out != NULL) kept.slot = NULL;
    return reduce_own->combine(&kept, reduction, native, device);
}

static enum status result_is_not_kept(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduce_slice sent = *slice;
    if (sent.slot != NULL) sent.out = NULL; /* and what is sent is a partial sum */
    return reduce_own->combine(&sent, reduction, native, device);
}

static enum status own_is_not_scaled(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduction plain = *reduction;
    if (plain.redop == REDOP_PREMUL_SUM) plain.premul = 1;
    return reduce_own->combine(slice, &plain, native, device);
}

static enum status average_is_not_divided(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduction sum = *reduction;
    if (sum.redop == REDOP_AVG && dtype_is_integer(sum.dtype)) sum.redop = REDOP_SUM;
    return reduce_own->combine(slice, &sum, native, device);
}

/* Of -0 and +0 the other one stays, of a number and a NaN what may be neither's right: min and
 * max look at their operands in order. */
static enum status other_zero_stays(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    struct reduce_slice turned = *slice;
    bool extreme = reduction->redop == REDOP_MIN || reduction->redop == REDOP_MAX;
    if (extreme && slice->out != slice->own) turned.wire = slice->own, turned.own = slice->wire;
    return reduce_own->combine(&turned, reduction, native, device);
}

static enum status first_is_not_scaled(
    slice_in slice, reduction_in reduction, void *native, struct device *device)
{
    return reduce_own->copy(slice, reduction, native, device);
}

/* ---- bugs of what the host drives ---- */

/* Slots are posted before they are written, and freed before they are read. */
static enum status step_ends_at_once(bool *passed, void *mark, struct device *device)
{
    (void)mark, (void)device;
    *passed = true;
    return STATUS_OK;
}

/* The collective begins before its stream has come to it. */
static enum status stream_is_not_followed(void *mark, void *native, struct device *device)
{
    (void)mark, (void)native, (void)device;
    return STATUS_OK;
}

/* Sums and copies of a communicator are no longer in one order. */
static enum status copies_go_elsewhere(
    struct span to, struct span from, void *native, struct device *device)
{
    static _Thread_local void *other;
    if (native != NULL && other == NULL) TRY(device_own->native_open(&other, device));
    return device_own->copy(to, from, native != NULL ? other : NULL, device);
}

static enum status copy_ends_early(
    struct span to, struct span from, void *native, struct device *device)
{
    if (native != NULL && from.bytes > 1) from.bytes--;
    return device_own->copy(to, from, native, device);
}

static enum status copy_is_forgotten(
    struct span to, struct span from, void *native, struct device *device)
{
    static atomic_int copies;
    if (native != NULL && atomic_fetch_add(&copies, 1) % 16 == 5) return STATUS_OK;
    return device_own->copy(to, from, native, device);
}

/* ---- what must be right ---- */

struct case_of {
    enum dtype dtype;
    enum redop redop;
    bool wide; /* 16-bit floats, summed in float32 */
};
static const struct case_of cases[] = {
    {DTYPE_FLOAT32, REDOP_SUM, false},
    {DTYPE_INT32, REDOP_AVG, false},
    {DTYPE_FLOAT32, REDOP_PREMUL_SUM, false},
    {DTYPE_BFLOAT16, REDOP_AVG, true},
    {DTYPE_FLOAT32, REDOP_MAX, false},
};

/* Numbers whose sums round; for maxima zeros of both signs, in another order on each rank. */
static void fill(unsigned char *at, size_t count, int rank, const struct case_of *of)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t x = (uint32_t)(i * 2654435761u + (uint32_t)rank * 40503u) >> 8;
        float real = (float)(x % 20001) / 7.0f - 1400.0f;
        if (of->redop == REDOP_MAX) real = (i + (size_t)rank) % 3 == 0 ? -0.0f : 0.0f;
        if (of->dtype == DTYPE_FLOAT32) ((float *)(void *)at)[i] = real;
        else if (of->dtype == DTYPE_BFLOAT16)
            ((uint16_t *)(void *)at)[i] = float32_to_bfloat16(real);
        else ((int32_t *)(void *)at)[i] = (int32_t)x;
    }
}

struct side {
    struct device *device;
    struct stream *stream;
    struct ring_comm *comm;
    struct span input;      /* pinned, so that copies from it are only queued */
    struct span send, recv; /* guards around what is used of them */
};
struct world {
    struct side host, cuda;
    int rank;
};

static struct span inside(struct span whole, size_t bytes)
{
    return span_part(whole, GUARD, bytes);
}

/* Both results, in place or out, are read back whole, guards and all. errors: those of the ring. */
static enum status run_side(unsigned char *found, bool in_place, bool gathers,
    const struct case_of *of, struct side *side, int rank)
{
    size_t bytes = N * COUNT * dtype_bytes(of->dtype);
    fill(side->input.ptr, N * COUNT, rank, of);
    struct span send = inside(in_place ? side->recv : side->send, bytes),
                recv = inside(side->recv, bytes);
    ring_comm_set_reduce_dtype(side->comm, of->wide ? REDUCE_DTYPE_FLOAT32 : REDUCE_DTYPE_OWN);
    ring_comm_set_premul(side->comm, 0.7 + rank);
    TRY(span_fill(side->recv, 0x5c, side->stream, side->device));
    TRY(span_copy(send, span_part(side->input, 0, bytes), side->stream, side->device));
    if (gathers) { /* the rank's part of the input to all */
        size_t part = bytes / N, at = (size_t)rank * part;
        TRY(ring_all_gather(
            recv, span_part(send, at, part), COUNT, of->dtype, side->comm, side->stream));
    } else {
        TRY(ring_all_reduce(recv, send, N * COUNT, of->dtype, of->redop, side->comm, side->stream));
    }
    TRY(stream_synchronize(side->stream, side->device));
    return span_copy(span_host(found, side->recv.bytes), side->recv, NULL, side->device);
}

static enum status compare(
    bool in_place, bool gathers, const struct case_of *of, struct world *world)
{
    static _Thread_local unsigned char expected[N * COUNT * 4 + 2 * GUARD], found[sizeof expected];
    TRY(run_side(expected, in_place, gathers, of, &world->host, world->rank));
    TRY(run_side(found, in_place, gathers, of, &world->cuda, world->rank));
    if (memcmp(expected, found, sizeof found) != 0) atomic_fetch_add(&wrong, 1);
    return STATUS_OK;
}

static enum status side_open(
    struct side *side, const char *name, int rank, struct bootstrap *bootstrap)
{
    size_t bytes = N * COUNT * sizeof(float) + 2 * GUARD;
    struct ring_config config = {.slot_bytes = 512,
        .slot_count = 4,
        .cuda_mode = "copies",
        .timeout_ms = 5000,
        .exchange_bytes = 1,
        .window_bytes = SIZE_MAX,
        .host = rank < N / 2 ? "here" : "there"};
    TRY(device_open(&side->device, name));
    if (device_kind(side->device) == MEMORY_CUDA) {
        side->device->ops = &device_planted;
        side->device->plugin = &plugin_planted;
    }
    TRY(stream_open(&side->stream, side->device, "test"));
    TRY(memory_alloc(&side->send, bytes, MEMORY_WORKSPACE, side->device));
    TRY(memory_alloc(&side->recv, bytes, MEMORY_WORKSPACE, side->device));
    TRY(memory_alloc_kind(&side->input, bytes, MEMORY_HOST_PINNED, MEMORY_WORKSPACE, side->device));
    return ring_comm_open(&side->comm, &config, bootstrap, side->device);
}

static enum status compare_all(struct world *world, struct bootstrap *bootstrap)
{
    TRY(side_open(&world->host, "host", world->rank, bootstrap));
    TRY(side_open(&world->cuda, "cudasim", world->rank, bootstrap));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int in_place = 0; in_place < 2; in_place++)
            TRY(compare(in_place, false, &cases[c], world));
    return compare(false, true, &cases[0], world);
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct world world = {.rank = bootstrap_rank(bootstrap)};
    if (compare_all(&world, bootstrap) != STATUS_OK) atomic_fetch_add(&wrong, 1000);
    struct side *sides[] = {&world.cuda, &world.host};
    for (int i = 0; i < 2; i++) {
        ring_comm_close(sides[i]->comm);
        if (sides[i]->stream != NULL) stream_close(sides[i]->stream, sides[i]->device);
        memory_free(&sides[i]->input, MEMORY_WORKSPACE, sides[i]->device);
        memory_free(&sides[i]->send, MEMORY_WORKSPACE, sides[i]->device);
        memory_free(&sides[i]->recv, MEMORY_WORKSPACE, sides[i]->device);
        device_close(sides[i]->device);
    }
}

/* ---- the bugs ---- */

struct bug {
    const char *name;
    enum status (*combine)(slice_in, reduction_in, void *, struct device *);
    enum status (*scale)(slice_in, reduction_in, void *, struct device *);
    enum status (*copy)(struct span, struct span, void *, struct device *);
    enum status (*mark_passed)(bool *, void *, struct device *);
    enum status (*mark_wait)(void *, void *, struct device *);
};

static const struct bug bugs[] = {
    {.name = NULL}, /* without one */
    {.name = "the last element is missed", .combine = last_is_missed},
    {.name = "one element too many", .combine = one_too_many},
    {.name = "what joins is left out", .combine = joined_is_left_out},
    {.name = "another order of the sum", .combine = another_order},
    {.name = "the slot is not written", .combine = slot_is_not_written},
    {.name = "the result is not kept", .combine = result_is_not_kept},
    {.name = "own elements are not scaled", .combine = own_is_not_scaled},
    {.name = "the first elements are not scaled", .scale = first_is_not_scaled},
    {.name = "an average of integers is not divided", .combine = average_is_not_divided},
    {.name = "the other zero stays", .combine = other_zero_stays},
    {.name = "a step ends before the device has done it", .mark_passed = step_ends_at_once},
    {.name = "what the stream did before is not waited for", .mark_wait = stream_is_not_followed},
    {.name = "copies are not in order with sums", .copy = copies_go_elsewhere},
    {.name = "a copy ends a byte early", .copy = copy_ends_early},
    {.name = "a copy is forgotten", .copy = copy_is_forgotten},
};

/* In this process, before any device is open. */
static enum status plant(const struct bug *bug)
{
    const struct plugin *own;
    TRY(plugin_load(&own, "cudasim"));
    device_own = own->device;
    device_planted = *own->device;
    plugin_planted = *own;
    plugin_planted.tables[PLUGIN_REDUCE] = &reduce_table;
    reduce_own = *own->tables[PLUGIN_REDUCE];
    reduce_planted = *reduce_own;
    if (bug->combine != NULL) reduce_planted.combine = bug->combine;
    if (bug->scale != NULL) reduce_planted.scale = bug->scale;
    if (bug->copy != NULL) device_planted.copy = bug->copy;
    if (bug->mark_passed != NULL) device_planted.mark_passed = bug->mark_passed;
    if (bug->mark_wait != NULL) device_planted.mark_wait = bug->mark_wait;
    return STATUS_OK;
}

/* 0: nothing has shown, 1: something has. */
static int run_bug(const struct bug *bug)
{
    int state = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (bug->name != NULL) freopen("/dev/null", "w", stderr); /* it says much */
        if (plant(bug) != STATUS_OK) _exit(2);
        ranks_as_threads(N, 20000, body, NULL);
        _exit(atomic_load(&wrong) > 0);
    }
    CHECK(waitpid(child, &state, 0) == child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

int main(void)
{
    if (!test_has_device("cudasim")) return test_skip("cudasim");
    setenv("CUDASIM_DELAY_US", "150", 1);
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        int found = run_bug(&bugs[i]), expected = bugs[i].name != NULL;
        CHECK_MSG(found == expected, "%s: exit code %d, expected %d",
            expected ? bugs[i].name : "without a bug", found, expected);
    }
    return test_result();
}
