/* ring/reduce_cuda against its host twin: every dtype, operation and shape of a slice (reduce.h), to the bit; NaN payloads are exempt.
 * Hard values in every pair; operands begin at odd elements, together and apart, so that packs, heads, tails and operands that
 * are not aligned with the rest all occur. On the simulator everything runs in three thread orders.
 *
 * RINGZERO_TEST_DEVICE=cuda runs it on a GPU.
 * ctest: timeout=120
 */
#include "ring/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "tests/reduce_inputs.h"

#define MOST     (HARD * HARD + 37)
#define GUARD    64
#define POISON   0x5c
#define PLACE    (((MOST + 32) * 8 + 2 * GUARD + 63) / 64 * 64) /* bytes of an operand's place */

enum operand { WIRE, JOINED, OWN, OUT, SLOT, OPERANDS };
enum kind { COPY, SCALE, COMBINE };

/* Which operands there are, and at which element after an aligned address each begins; −1: absent. */
struct shape {
    enum kind kind;
    size_t count;
    int at[OPERANDS];
    bool in_place; /* out is own */
};

static const struct shape shapes[] = {
    {COMBINE, MOST, {0, -1, 0, 0, -1}, false},
    {COMBINE, MOST, {0, -1, 1, -1, 0}, false},
    {COMBINE, MOST, {0, -1, 3, 3, 0}, true},
    {COMBINE, MOST, {2, 5, 1, 7, 3}, false},
    {COMBINE, MOST, {0, 0, 1, -1, 0}, false},
    {COMBINE, 33, {1, 1, 1, 1, 1}, false},
    {COMBINE, 7, {0, -1, 3, 3, 0}, true},
    {COMBINE, 1, {3, -1, 15, 15, -1}, false},
    {COMBINE, 0, {0, -1, 0, 0, 0}, false},
    {SCALE, MOST, {-1, -1, 1, -1, 0}, false},
    {SCALE, 21, {-1, -1, 0, 5, -1}, false},
    {COPY, MOST, {-1, -1, 1, 1, 0}, false},
    {COPY, MOST, {0, -1, -1, 3, 0}, false},
    {COPY, MOST, {-1, -1, 1, 1, 0}, true},
    {COPY, 5, {-1, -1, 9, -1, 0}, false},
    {COPY, 1, {0, -1, -1, 9, -1}, false},
};

struct side {
    unsigned char *arena; /* places of all operands, one after another; of the device's memory or the host's */
    struct device *device;
    const struct reduce_ops *ops;
};

/* A sum has another width only where it is wide, and in the slot only where it is not yet finished. */
static enum dtype dtype_in(enum operand operand, const struct shape *shape, const struct reduction *reduction)
{
    bool partial = operand == WIRE || operand == JOINED || (operand == SLOT && shape->at[OUT] < 0);
    return shape->kind != COPY && partial && reduction->wide ? DTYPE_FLOAT32 : reduction->dtype;
}

static size_t offset_of(enum operand operand, const struct shape *shape, const struct reduction *reduction)
{
    enum operand place = operand == OUT && shape->in_place ? OWN : operand;
    size_t skip = (size_t)shape->at[operand] * dtype_bytes(dtype_in(operand, shape, reduction));
    return (size_t)place * PLACE + GUARD + skip;
}

static void fill(unsigned char *arena, const struct shape *shape, const struct reduction *reduction)
{
    memset(arena, POISON, OPERANDS * PLACE);
    for (int operand = WIRE; operand <= OWN; operand++) {
        if (shape->at[operand] < 0) continue;
        enum dtype dtype = dtype_in((enum operand)operand, shape, reduction);
        unsigned char *at = arena + offset_of((enum operand)operand, shape, reduction);
        for (size_t i = 0; i < shape->count; i++) /* sums of others are of the same hard values, at other indices */
            oracle_store(at + i * dtype_bytes(dtype), element_at(operand == JOINED ? i * 7 % MOST : i, operand == OWN, dtype), dtype);
    }
}

static enum status run(const struct shape *shape, const struct reduction *reduction, void *native, const struct side *side)
{
    unsigned char *at[OPERANDS];
    for (int operand = 0; operand < OPERANDS; operand++)
        at[operand] = shape->at[operand] < 0 ? NULL : side->arena + offset_of((enum operand)operand, shape, reduction);
    struct reduce_slice slice = {at[WIRE], at[JOINED], at[OWN], at[OUT], at[SLOT], shape->count, false, false};
    switch (shape->kind) {
    case COPY: return side->ops->copy(&slice, reduction, native, side->device);
    case SCALE: return side->ops->scale(&slice, reduction, native, side->device);
    default: return side->ops->combine(&slice, reduction, native, side->device);
    }
}

/* Bytes that differ and are not of two NaN in the same place. */
static size_t count_wrong(const unsigned char *want, const unsigned char *found, const struct shape *shape, const struct reduction *reduction)
{
    size_t wrong = 0;
    if (memcmp(want, found, OPERANDS * PLACE) == 0) return 0;
    for (int operand = 0; operand < OPERANDS; operand++) {
        enum dtype dtype = dtype_in((enum operand)operand, shape, reduction);
        size_t element = dtype_bytes(dtype), place = (size_t)operand * PLACE;
        size_t begin = shape->at[operand] < 0 ? place : offset_of((enum operand)operand, shape, reduction), end = begin;
        if (shape->at[operand] >= 0) end += shape->count * element;
        if (operand == OUT && shape->in_place) continue; /* looked at as own */
        for (size_t i = place; i < place + PLACE; i += i >= begin && i < end ? element : 1) {
            if (i >= begin && i < end) wrong += !oracle_equal(want + i, found + i, dtype);
            else wrong += want[i] != found[i];
        }
    }
    return wrong;
}

static void check_shape(const struct shape *shape, const struct reduction *reduction, const struct side *host, const struct side *cuda,
    struct stream *stream)
{
    static unsigned char found[OPERANDS * PLACE];
    if (shape->kind == SCALE && (!reduce_scales(reduction) || (reduction->wide && shape->at[OUT] >= 0))) return;
    struct span memory = {cuda->arena, sizeof found, device_kind(cuda->device), cuda->device->index};
    fill(host->arena, shape, reduction);
    CHECK_OK(span_copy(memory, span_host(host->arena, sizeof found), NULL, cuda->device));
    CHECK_OK(run(shape, reduction, NULL, host));
    CHECK_OK(run(shape, reduction, stream_native(stream), cuda));
    CHECK_OK(stream_synchronize(stream, cuda->device));
    CHECK_OK(span_copy(span_host(found, sizeof found), memory, NULL, cuda->device));
    size_t wrong = count_wrong(host->arena, found, shape, reduction);
    CHECK_MSG(wrong == 0, "shape %d: %s %s%s, %d ranks, scalar %g: %zu wrong", (int)(shape - shapes), redop_name(reduction->redop),
        dtype_name(reduction->dtype), reduction->wide ? " in float32" : "", reduction->nranks, reduction->premul, wrong);
}

static void check_reduction(struct reduction reduction, const struct side *host, const struct side *cuda, struct stream *stream)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        if (shapes[s].kind == COPY && reduction.redop != REDOP_SUM) continue;
        reduction.wide = false;
        check_shape(&shapes[s], &reduction, host, cuda, stream);
        reduction.wide = reduce_is_wide(reduction.dtype, reduction.redop, REDUCE_DTYPE_FLOAT32, reduction.nranks);
        if (reduction.wide) check_shape(&shapes[s], &reduction, host, cuda, stream);
    }
}

static void check_all(const char *name)
{
    static const double scalars[] = {-3, 0.3, 300};
    static const int nranks[] = {3, 7, 200};
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct span memory = {0};
    if (!CHECK_OK(device_open(&device, name)) || !CHECK_OK(stream_open(&stream, device, "test"))) return;
    CHECK_OK(memory_alloc(&memory, OPERANDS * PLACE, MEMORY_WORKSPACE, device));
    struct side cuda = {memory.ptr, device, reduce_ops_of(device)};
    struct side host = {aligned_alloc(64, OPERANDS * PLACE), NULL, &reduce_host_ops};
    if (CHECK_MSG(cuda.ops != NULL, "%s has no reductions", name))
        for (int d = 0; d < DTYPE_COUNT; d++)
            for (int op = 0; op < REDOP_COUNT; op++)
                for (int i = 0; i < (op == REDOP_AVG || op == REDOP_PREMUL_SUM ? 3 : 1); i++)
                    check_reduction((struct reduction){(enum dtype)d, (enum redop)op, nranks[i], scalars[i], false}, &host, &cuda, stream);
    free(host.arena);
    memory_free(&memory, MEMORY_WORKSPACE, device);
    stream_close(stream, device);
    device_close(device);
}

int main(void)
{
    static const char *const orders[] = {"forward", "reverse", "random"};
    const char *name = test_device_name();
    if (!test_has_device(name)) return test_skip(name);
    for (int i = 0; i < (strcmp(name, "cudasim") == 0 ? 3 : 1); i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            setenv("CUDASIM_ORDER", orders[i], 1);
            check_all(name);
            exit(test_result());
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "order %s: status %x", orders[i], (unsigned)status);
    }
    return test_result();
}
