/* ops_sides: two tables of operations side by side: numbers go into the memory of each, rounded alike,
 * and what the two made of them is compared.
 *
 * Tensors lie in one allocation with guards between them; outputs are poisoned, sums start from
 * known numbers; weights begin at an element that is aligned to nothing, or to 64 bytes.
 */
#ifndef TESTS_OPS_SIDES_H
#define TESTS_OPS_SIDES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/ops.h"
#include "tests/harness/harness.h"
#include "tests/harness/reference.h"

enum { OUTPUTS = 8, GUARD_BYTES = 64 };
#define ARENA_BYTES ((size_t)160 << 20)
#define START       0.25 /* what tensors that are added to hold before */

/* An output as one side made it, in float32, and how far the sides may be apart. */
struct output {
    const char *name;
    float *values;
    size_t count;
    double tolerance;
};

/* One table, and the memory of its device. */
struct side {
    struct ops_context context;
    struct span arena;
    size_t used;
    enum dtype dtype; /* what numbers are rounded to, on the host too */
    size_t shift;     /* elements by which weights miss their alignment */
    struct output output[OUTPUTS];
    int outputs;
    uint64_t hash; /* of the bits of all outputs */
};

/* ---- memory ---- */

static void *allocated(size_t bytes)
{
    void *memory = calloc(bytes + 1, 1);
    if (memory == NULL) abort();
    return memory;
}

static void transfer(struct side *side, void *out, const void *in, size_t bytes)
{
    side->context.ops->copy(out, in, bytes, &side->context);
    if (side->context.ops->queued)
        CHECK_OK(stream_synchronize(side->context.stream, side->context.device));
}

/* Room for bytes, `shift` bytes after a multiple of 64, holding what is at `from`, a guard behind
 * it. */
static void *place_bytes(struct side *side, const void *from, size_t bytes, size_t shift)
{
    unsigned char guard[GUARD_BYTES];
    memset(guard, 0xa5, sizeof guard);
    char *at = (char *)side->arena.ptr + side->used + shift;
    side->used += (shift + bytes + GUARD_BYTES + 63) / 64 * 64;
    if (side->used > side->arena.bytes) abort();
    transfer(side, at, from, bytes);
    transfer(side, at + bytes, guard, GUARD_BYTES);
    return at;
}

static void to_dtype(void *out, const float *in, enum dtype dtype, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (dtype == DTYPE_FLOAT32) ((float *)out)[i] = in[i];
        if (dtype == DTYPE_BFLOAT16) ((uint16_t *)out)[i] = float32_to_bfloat16(in[i]);
        if (dtype == DTYPE_FLOAT16) ((uint16_t *)out)[i] = float32_to_float16(in[i]);
    }
}

static void to_float32(float *out, const void *in, enum dtype dtype, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (dtype == DTYPE_FLOAT32) out[i] = ((const float *)in)[i];
        if (dtype == DTYPE_BFLOAT16) out[i] = bfloat16_to_float32(((const uint16_t *)in)[i]);
        if (dtype == DTYPE_FLOAT16) out[i] = float16_to_float32(((const uint16_t *)in)[i]);
    }
}

/* Numbers in memory of this side: rounded to `rounded`, held as `held`. */
static void *place(struct side *side, const float *values, size_t count, enum dtype rounded,
    enum dtype held, size_t shift)
{
    float *wide = allocated(count * sizeof *wide);
    void *bytes = allocated(count * sizeof *wide);
    to_dtype(bytes, values, rounded, count);
    to_float32(wide, bytes, rounded, count);
    to_dtype(bytes, wide, held, count);
    void *at = place_bytes(side, bytes, count * dtype_bytes(held), shift * dtype_bytes(held));
    free(wide), free(bytes);
    return at;
}

/* Random inputs of the compute dtype: activations, and weights that begin anywhere. */
static void *numbers(struct side *side, size_t count, uint64_t seed, double scale, size_t shift)
{
    struct tensor tensor = tensor_make(count, seed, scale);
    void *at = place(side, tensor.f, count, side->dtype, side->context.compute, shift);
    tensor_free(&tensor);
    return at;
}

static void *activation(struct side *side, size_t count, uint64_t seed, double scale)
{
    return numbers(side, count, seed, scale, 0);
}

static void *weight(struct side *side, size_t count, uint64_t seed, double scale)
{
    return numbers(side, count, seed, scale, side->shift);
}

static void *filled(struct side *side, size_t count, double value, enum dtype held, size_t shift)
{
    float *values = allocated(count * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = (float)value;
    void *at = place(side, values, count, held, held, shift);
    free(values);
    return at;
}

static void *poisoned(struct side *side, size_t count)
{
    return filled(side, count, NAN, side->context.compute, 0);
}

static float *statistic(struct side *side, size_t count)
{
    return filled(side, count, NAN, DTYPE_FLOAT32, 0);
}

static float *gradient(struct side *side, size_t count)
{
    return filled(side, count, START, DTYPE_FLOAT32, side->shift);
}

/* ---- outputs ---- */

static double tolerance_of(enum dtype dtype)
{
    /* A rounding is off by 2⁻⁹ (2⁻¹²) of a number at most; attention rounds twice on the way. */
    return dtype == DTYPE_BFLOAT16 ? 6e-3 : dtype == DTYPE_FLOAT16 ? 8e-4 : 1e-5;
}

static void record(struct side *side, const char *name, const void *at, size_t count,
    enum dtype held, double tolerance)
{
    size_t bytes = count * dtype_bytes(held);
    unsigned char *raw = allocated(bytes + GUARD_BYTES);
    transfer(side, raw, at, bytes + GUARD_BYTES);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (!CHECK_MSG(raw[bytes + i] == 0xa5, "%s: byte %zu behind %zu elements was written", name,
                i, count))
            break;
    struct output *output = &side->output[side->outputs++];
    *output = (struct output){name, allocated(count * sizeof(float)), count, tolerance};
    to_float32(output->values, raw, held, count);
    for (size_t i = 0; i < bytes; i++) side->hash = (side->hash ^ raw[i]) * 0x100000001b3u;
    free(raw);
}

/* An output of the compute dtype; a float32 one that only float32 went into; one that rounded
 * numbers went into. */
static void record_rounded(struct side *side, const char *name, const void *at, size_t count)
{
    record(side, name, at, count, side->context.compute, tolerance_of(side->dtype));
}

static void record_exact(struct side *side, const char *name, const float *at, size_t count)
{
    record(side, name, at, count, DTYPE_FLOAT32, 1e-5);
}

static void record_derived(struct side *side, const char *name, const float *at, size_t count)
{
    record(side, name, at, count, DTYPE_FLOAT32, tolerance_of(side->dtype));
}

static void forget(struct side *side)
{
    for (int i = 0; i < side->outputs; i++) free(side->output[i].values);
    side->outputs = 0;
    side->used = 0;
}

static void compare(const struct side *found, const struct side *expected, const char *sizes)
{
    CHECK(found->outputs == expected->outputs && found->outputs > 0);
    for (int i = 0; i < found->outputs; i++) {
        const struct output *a = &found->output[i], *b = &expected->output[i];
        double *twin = allocated(b->count * sizeof *twin);
        for (size_t j = 0; j < b->count; j++) twin[j] = (double)b->values[j];
        double error = relative_error(a->values, twin, a->count);
        CHECK_MSG(error <= a->tolerance,
            "%s %s, %s, weights shifted by %zu: relative error %.3g, at most %.3g", a->name, sizes,
            dtype_name(found->dtype), found->shift, error, a->tolerance);
        free(twin);
    }
}

#endif
