/* ring/reduce: every dtype and operation against the plain oracle, to the bit, with every pair of hard values: limits,
 * overflow, infinities, NaN, subnormals. Odd counts, pointers one element past an aligned address, dst as wire, as own,
 * or apart.
 * ctest: timeout=60
 */
#include "ring/reduce.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/harness/harness.h"
#include "tests/reduce_inputs.h"

#define MOST      2003
#define GUARD     64
#define SENTINEL  0x5c

enum place { APART, OVER_WIRE, OVER_OWN, PLACES };

struct buffers {
    unsigned char *base[3];
    unsigned char *dst, *wire, *own; /* one element past an address of 64 */
    size_t bytes;
};

static unsigned char *place_at(struct buffers *buffers, int which, size_t element)
{
    return buffers->base[which] + GUARD + element;
}

static void buffers_fill(struct buffers *buffers, size_t count, enum dtype dtype, enum place place)
{
    size_t element = dtype_bytes(dtype);
    buffers->bytes = count * element;
    for (int i = 0; i < 3; i++) memset(buffers->base[i], SENTINEL, (MOST + 1) * 8 + 2 * GUARD);
    buffers->wire = place_at(buffers, 0, element);
    buffers->own = place_at(buffers, 1, element);
    buffers->dst = place_at(buffers, 2, element);
    if (place == OVER_WIRE) buffers->dst = buffers->wire;
    if (place == OVER_OWN) buffers->dst = buffers->own;
    for (size_t i = 0; i < count; i++) {
        oracle_store(buffers->wire + i * element, element_at(i, false, dtype), dtype);
        oracle_store(buffers->own + i * element, element_at(i, true, dtype), dtype);
    }
}

/* Elements that differ from what combine (or, of own alone, scale) should give, and bytes around dst that changed. */
static size_t count_wrong(
    const struct buffers *buffers, size_t count, const struct reduction *reduction, bool combined)
{
    size_t wrong = 0, element = dtype_bytes(reduction->dtype);
    for (size_t i = 0; i < count; i++) {
        unsigned char want[8];
        struct number own = oracle_scale(element_at(i, true, reduction->dtype), reduction->dtype, reduction->redop,
            reduction->nranks, reduction->premul);
        struct number result = oracle_fit(own, reduction->dtype);
        if (combined)
            result = oracle_combine(element_at(i, false, reduction->dtype), own, reduction->dtype, reduction->redop);
        oracle_store(want, result, reduction->dtype);
        wrong += !oracle_equal(want, buffers->dst + i * element, reduction->dtype);
    }
    for (size_t i = 1; i <= GUARD; i++) wrong += buffers->dst[-(ptrdiff_t)i] != SENTINEL;
    for (size_t i = 0; i < GUARD; i++) wrong += buffers->dst[buffers->bytes + i] != SENTINEL;
    return wrong;
}

static void check_combine(struct buffers *buffers, const struct reduction *reduction)
{
    static const size_t counts[] = {0, 1, 2, 7, 31, 33, 129, MOST};
    enum dtype dtype = reduction->dtype;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int place = 0; place < PLACES; place++) {
            size_t count = counts[c];
            buffers_fill(buffers, count, dtype, (enum place)place);
            reduce_combine(buffers->dst, buffers->wire, buffers->own, count, reduction);
            size_t wrong = count_wrong(buffers, count, reduction, true);
            CHECK_MSG(wrong == 0, "%s %s count %zu, place %d, %d ranks, scalar %g: %zu wrong",
                redop_name(reduction->redop), dtype_name(dtype), count, place, reduction->nranks, reduction->premul,
                wrong);
            if (!reduce_scales(reduction) || place == OVER_WIRE) continue;
            buffers_fill(buffers, count, dtype, (enum place)place);
            reduce_scale(buffers->dst, buffers->own, count, reduction);
            wrong = count_wrong(buffers, count, reduction, false);
            CHECK_MSG(wrong == 0, "scale for %s %s count %zu, place %d: %zu wrong", redop_name(reduction->redop),
                dtype_name(dtype), count, place, wrong);
        }
}

static void check_finish(struct buffers *buffers, const struct reduction *reduction)
{
    enum dtype dtype = reduction->dtype;
    bool finishes = reduction->redop == REDOP_AVG && dtype_is_integer(dtype) && reduction->nranks > 1;
    CHECK(reduce_finishes(reduction) == finishes);
    if (!finishes) return;
    size_t wrong = 0, element = dtype_bytes(dtype);
    buffers_fill(buffers, MOST, dtype, OVER_OWN);
    reduce_finish(buffers->dst, buffers->dst, MOST, reduction);
    for (size_t i = 0; i < MOST; i++) {
        struct number want = oracle_finish(element_at(i, true, dtype), dtype, REDOP_AVG, reduction->nranks);
        wrong += want.whole != oracle_load(buffers->dst + i * element, dtype).whole;
    }
    CHECK_MSG(wrong == 0, "finish %s, %d ranks: %zu wrong", dtype_name(dtype), reduction->nranks, wrong);
}

/* 16-bit floats that accumulate in float32: widened, added, rounded, in every combination, against the oracle. */
static void check_wide(struct buffers *buffers, const struct reduction *reduction)
{
    size_t wrong = 0, element = dtype_bytes(reduction->dtype);
    enum dtype dtype = reduction->dtype;
    buffers_fill(buffers, MOST, dtype, APART);
    float *sum = malloc(MOST * sizeof *sum);
    CHECK(reduce_partial_bytes(reduction) == 4 && reduce_scales(reduction) && reduce_finishes(reduction));
    reduce_scale(sum, buffers->wire, MOST, reduction);
    reduce_combine(sum, sum, buffers->own, MOST, reduction);
    reduce_finish(buffers->dst, sum, MOST, reduction);
    for (size_t i = 0; i < MOST; i++) {
        unsigned char want[8];
        struct number first = oracle_scale(element_at(i, false, dtype), dtype, reduction->redop, reduction->nranks, reduction->premul);
        struct number own = oracle_scale(element_at(i, true, dtype), dtype, reduction->redop, reduction->nranks, reduction->premul);
        oracle_store(want, oracle_fit(oracle_combine(first, own, DTYPE_FLOAT32, reduction->redop), dtype), dtype);
        wrong += !oracle_equal(want, buffers->dst + i * element, dtype);
    }
    CHECK_MSG(wrong == 0, "%s %s in float32, %d ranks, scalar %g: %zu wrong", redop_name(reduction->redop), dtype_name(dtype),
        reduction->nranks, reduction->premul, wrong);
    free(sum);
}

/* Only what would be rounded on the way is worth twice the bytes. */
static void check_which_are_wide(void)
{
    for (int d = 0; d < DTYPE_COUNT; d++)
        for (int op = 0; op < REDOP_COUNT; op++) {
            bool rounds = (d == DTYPE_FLOAT16 || d == DTYPE_BFLOAT16) && op != REDOP_MIN && op != REDOP_MAX;
            CHECK(reduce_is_wide((enum dtype)d, (enum redop)op, REDUCE_DTYPE_FLOAT32, 2) == rounds);
            CHECK(!reduce_is_wide((enum dtype)d, (enum redop)op, REDUCE_DTYPE_FLOAT32, 1));
            CHECK(!reduce_is_wide((enum dtype)d, (enum redop)op, REDUCE_DTYPE_OWN, 2));
        }
}

/* What a scalar of premul_sum becomes in integers. */
static void check_scalars(void)
{
    static const struct {
        double scalar;
        uint64_t whole;
    } cases[] = {{0, 0}, {-0.0, 0}, {0.99, 0}, {-0.99, 0}, {1, 1}, {2.9, 2}, {-2.9, -(uint64_t)2}, {300, 300},
        {0x1p52 + 1, ((uint64_t)1 << 52) + 1}, {-0x1p53, -((uint64_t)1 << 53)}, {0x1p63, (uint64_t)1 << 63},
        {-0x1p63, (uint64_t)1 << 63}, {0x1p64, 0}, {0x1.8p64, (uint64_t)1 << 63}, {0x1.0000000000001p64, 1 << 12},
        {0x1.0000000000001p115, (uint64_t)1 << 63}, {0x1.0000000000001p116, 0}, {0x1p200, 0}, {5e-324, 0},
        {INFINITY, 0}, {-INFINITY, 0}, {NAN, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int d = 0; d <= DTYPE_UINT64; d++) {
            struct reduction reduction = {(enum dtype)d, REDOP_PREMUL_SUM, 1, cases[i].scalar, false};
            uint64_t x = 1, found = 0;
            CHECK(reduce_scales(&reduction));
            reduce_scale(&found, &x, 1, &reduction);
            CHECK_MSG(memcmp(&found, &cases[i].whole, dtype_bytes((enum dtype)d)) == 0, "%s scalar %g gave %llx",
                dtype_name((enum dtype)d), cases[i].scalar, (unsigned long long)found);
        }
}

/* Several parts at once against the same, one after another; into a part, or apart. */
#define MOST_PARTS 9
static void check_sum_many(enum dtype dtype)
{
    static const size_t counts[] = {0, 1, 7, 16, 31, 65, 200};
    static unsigned char memory[MOST_PARTS + 1][210 * 8], want[210 * 8], dst[210 * 8];
    struct reduction reduction = {dtype, REDOP_SUM, 2, 1, false};
    if (!reduce_is_plain_sum(&reduction)) return;
    size_t element = dtype_bytes(dtype);
    for (size_t round = 0; round < 7 * MOST_PARTS; round++) {
        int part_count = (int)(round / 7) + 1;
        size_t count = counts[round % 7], wrong = 0;
        const void *parts[MOST_PARTS];
        for (int p = 0; p < part_count; p++) {
            unsigned char *part = memory[p] + element * ((size_t)p % 3);
            parts[p] = part;
            for (size_t i = 0; i < count; i++)
                oracle_store(part + i * element, element_at(i + 7 * (size_t)p, p % 2 == 1, dtype), dtype);
        }
        memcpy(want, parts[0], count * element);
        for (int p = 1; p < part_count; p++) reduce_combine(want, want, parts[p], count, &reduction);
        memset(dst, SENTINEL, sizeof dst);
        reduce_sum_many(dst + element, parts, part_count, count, dtype);
        for (size_t i = 0; i < element; i++)
            wrong += dst[i] != SENTINEL || dst[(count + 1) * element + i] != SENTINEL;
        unsigned char *into = (unsigned char *)(uintptr_t)parts[part_count / 2];
        reduce_sum_many(into, parts, part_count, count, dtype);
        for (size_t i = 0; i < count * element; i += element)
            wrong += !oracle_equal(want + i, dst + element + i, dtype) ||
                     !oracle_equal(want + i, into + i, dtype);
        CHECK_MSG(wrong == 0, "%d parts of %zu %s: %zu wrong", part_count, count, dtype_name(dtype), wrong);
    }
}

/* Slices that are only copied: kept and sent on, kept in or past the cache, from any address to any other. */
static void check_copies(struct buffers *buffers)
{
    struct reduction reduction = {.dtype = DTYPE_UINT8, .redop = REDOP_SUM, .nranks = 2};
    static const size_t counts[] = {0, 1, 15, 64, 777, MOST - 40};
    for (int round = 0; round < 6 * 8; round++) {
        size_t count = counts[round / 8], skip = (size_t)round % 8 * 5;
        unsigned char *own = buffers->base[0], *out = buffers->base[1] + skip, *slot = buffers->base[2];
        memset(buffers->base[1], SENTINEL, MOST);
        memset(slot, SENTINEL, MOST);
        for (size_t i = 0; i < count; i++) own[i] = (unsigned char)(i * 37 + (size_t)round);
        struct reduce_slice slice = {.own = own, .out = out, .slot = round % 4 < 2 ? slot : NULL, .count = count,
            .streaming = round % 3 == 0, .passes_cache = round % 2 == 0};
        CHECK_OK(reduce_do(&reduce_host_ops, REDUCE_COPY, &slice, &reduction, NULL, NULL));
        streaming_fence();
        CHECK(memcmp(out, own, count) == 0 && out[count] == SENTINEL && (skip == 0 || out[-1] == SENTINEL));
        CHECK(slice.slot == NULL || (memcmp(slot, own, count) == 0 && slot[count] == SENTINEL));
    }
}

int main(void)
{
    static const int nranks[] = {1, 2, 3, 7, 200};
    static const double scalars[] = {1, 0.5, -3, 300, 1e-3};
    struct buffers buffers = {0};
    for (int i = 0; i < 3; i++) buffers.base[i] = aligned_alloc(64, ((MOST + 1) * 8 + 2 * GUARD + 63) / 64 * 64);
    for (int d = 0; d < DTYPE_COUNT; d++)
        for (int op = 0; op < REDOP_COUNT; op++)
            for (int i = 0; i < 5; i++) {
                struct reduction reduction = {(enum dtype)d, (enum redop)op, nranks[i], scalars[i], false};
                if (op == REDOP_AVG && reduction.nranks == 1) CHECK(!reduce_scales(&reduction));
                else if (op == REDOP_AVG || op == REDOP_PREMUL_SUM || i == 0) check_combine(&buffers, &reduction);
                check_finish(&buffers, &reduction);
                reduction.wide = reduce_is_wide(reduction.dtype, reduction.redop, REDUCE_DTYPE_FLOAT32, reduction.nranks);
                if (reduction.wide) check_wide(&buffers, &reduction);
            }
    for (int d = 0; d < DTYPE_COUNT; d++) check_sum_many((enum dtype)d);
    check_scalars();
    check_copies(&buffers);
    check_which_are_wide();
    for (int i = 0; i < 3; i++) free(buffers.base[i]);
    return test_result();
}
