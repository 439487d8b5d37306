/* collectives_beyond: what the grid of collectives_fixture.h does not reach: counts around the
 * number of ranks (C2), a large one (C3), sums whose bits show their order (C1, C17), NaN and zeros
 * of both signs, bad arguments, and bytes on both sides of every threshold.
 */
#ifndef TESTS_COLLECTIVES_BEYOND_H
#define TESTS_COLLECTIVES_BEYOND_H

#include <math.h>

#include "tests/collectives_case.h"

#ifdef RINGZERO_SANITIZED
#define LARGE_COUNT 1055659
#else
#define LARGE_COUNT 10556587
#endif

/* C2: every count around the number of ranks, every dtype, in place and out. */
static void run_small_counts(struct ring_comm *comm, struct device *device)
{
    size_t last = (size_t)ring_comm_nranks(comm) + 1;
    for (int d = 0; d < DTYPE_COUNT; d++)
        for (size_t i = 0; i < 2 * (last + 1); i++) {
            struct test_case t = {.collective = COLLECTIVE_ALL_REDUCE,
                .dtype = (enum dtype)d,
                .redop = (enum redop)(((size_t)d + i) % REDOP_COUNT),
                .count = i / 2,
                .in_place = i % 2 == 0};
            run_case(&t, comm, NULL, device);
        }
}

/* C3: a large odd count at odd addresses, with periodic data, so that the right result is known at
 * once. The period is odd too: a slice in a wrong place shows; a chunk's owner decides the order of
 * its sum. */
static void run_large(struct ring_comm *comm, enum dtype dtype)
{
    enum { COUNT = LARGE_COUNT, PERIOD = 4093 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    size_t element = dtype_bytes(dtype), wrong = 0;
    struct buffer send = buffer_new(COUNT, dtype, 1), recv = buffer_new(COUNT, dtype, 3);
    unsigned char own[PERIOD * 8], sum[PERIOD * 8];
    for (size_t i = 0; i < PERIOD; i++)
        oracle_store(own + i * element, value_at(rank, i, dtype, REDOP_SUM), dtype);
    for (size_t i = 0; i < COUNT; i++)
        memcpy(send.data + i * element, own + i % PERIOD * element, element);
    CHECK_OK(ring_all_reduce(
        buffer_span(&recv, 0), buffer_span(&send, 0), COUNT, dtype, REDOP_SUM, comm, NULL));
    for (int c = 0; c < n; c++) {
        for (size_t i = 0; i < PERIOD; i++)
            reference(sum + i * element, i, c, dtype, REDOP_SUM, false, n);
        size_t end = ring_chunk_begin(COUNT, n, c + 1);
        for (size_t i = ring_chunk_begin(COUNT, n, c); i < end; i++)
            wrong += memcmp(recv.data + i * element, sum + i % PERIOD * element, element) != 0;
    }
    for (size_t i = 0; i < COUNT; i++)
        wrong += memcmp(send.data + i * element, own + i % PERIOD * element, element) != 0;
    CHECK_MSG(wrong == 0, "%zu of %d %s are wrong", wrong, COUNT, dtype_name(dtype));
    buffer_check_and_free(&send);
    buffer_check_and_free(&recv);
}

/* Whether all ranks hold the same bytes: I1. */
static void check_same_bits(void *data, size_t bytes, struct ring_comm *comm)
{
    int n = ring_comm_nranks(comm);
    unsigned char *all = malloc(bytes * (size_t)n);
    struct span gathered = span_host(all, bytes * (size_t)n);
    CHECK_OK(ring_all_gather(gathered, span_host(data, bytes), bytes, DTYPE_UINT8, comm, NULL));
    for (int r = 0; r < n; r++) CHECK(memcmp(all + bytes * (size_t)r, data, bytes) == 0);
    free(all);
}

/* C1: a reciprocal sum whose bits show the order. */
static void run_reciprocals(struct ring_comm *comm)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    double x[2] = {rank, rank != 0 ? 1.0 / rank : 0}, y[2] = {-1, -1};
    CHECK_OK(ring_all_reduce(
        span_host(y, sizeof y), span_host(x, sizeof x), 2, DTYPE_FLOAT64, REDOP_SUM, comm, NULL));
    CHECK_OK(ring_all_reduce(
        span_host(x, sizeof x), span_host(x, sizeof x), 2, DTYPE_FLOAT64, REDOP_SUM, comm, NULL));
    CHECK(x[0] == n * (n - 1) / 2 && memcmp(x, y, sizeof x) == 0);
    if (n == 4) CHECK(x[0] == 6.0 && fabs(x[1] - 11.0 / 6.0) < 1e-15);
    check_same_bits(x, sizeof x, comm);
}

/* C17: seven ones are lost one by one where 256 comes first, and add up where it comes last. The
 * ring's order says which: the same on all ranks and in every run. Accumulated in float32 none is
 * lost. */
static void run_lost_ones(struct ring_comm *comm)
{
    enum { COUNT = 8 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    uint16_t x[COUNT], first[COUNT];
    struct span span = span_host(x, sizeof x);
    for (int run = 0; run < 3; run++) {
        for (int i = 0; i < COUNT; i++) x[i] = float32_to_bfloat16(rank == 0 ? 256 : 1);
        CHECK_OK(ring_all_reduce(span, span, COUNT, DTYPE_BFLOAT16, REDOP_SUM, comm, NULL));
        if (run == 0) memcpy(first, x, sizeof x);
        CHECK(memcmp(first, x, sizeof x) == 0);
    }
    check_same_bits(x, sizeof x, comm);
    if (n == 8 && ring_comm_host_ranks(comm) == 1)
        CHECK(bfloat16_to_float32(x[7]) == 256 && bfloat16_to_float32(x[0]) == 264);
    for (int i = 0; i < COUNT; i++) x[i] = float32_to_bfloat16(rank == 0 ? 256 : 1);
    ring_comm_set_reduce_dtype(comm, REDUCE_DTYPE_FLOAT32);
    CHECK_OK(ring_all_reduce(span, span, COUNT, DTYPE_BFLOAT16, REDOP_SUM, comm, NULL));
    ring_comm_set_reduce_dtype(comm, REDUCE_DTYPE_OWN);
    if (n == 8) CHECK(bfloat16_to_float32(x[7]) == 264 && bfloat16_to_float32(x[0]) == 264);
}

/* A NaN anywhere wins, on every rank, whichever rank and element it stands at. */
static void run_nan(struct ring_comm *comm)
{
    enum { COUNT = 5 };
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    for (int d = DTYPE_FLOAT16; d <= DTYPE_FLOAT64; d++)
        for (int who = 0; who < n; who++) {
            enum redop redop = (who + d) % 2 ? REDOP_MIN : REDOP_MAX;
            size_t element = dtype_bytes((enum dtype)d);
            unsigned char x[COUNT * 8];
            struct span span = span_host(x, sizeof x);
            for (int i = 0; i < COUNT; i++) {
                struct number value = {.real = i == 4 ? INFINITY : rank - i};
                if (rank == who && i == (who + d) % COUNT) value.real = NAN;
                oracle_store(x + (size_t)i * element, value, (enum dtype)d);
            }
            CHECK_OK(ring_all_reduce(span, span, COUNT, (enum dtype)d, redop, comm, NULL));
            for (int i = 0; i < COUNT; i++) {
                double found = oracle_load(x + (size_t)i * element, (enum dtype)d).real;
                double expected = i == 4 ? INFINITY : redop == REDOP_MIN ? -i : n - 1 - i;
                CHECK(i == (who + d) % COUNT ? isnan(found) : found == expected);
            }
        }
}

/* Zeros of both signs are equal, so of them the one later in the order stays: the chunk's owner's. */
static void run_zeros(struct ring_comm *comm)
{
    enum { COUNT = 41 };
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    float x[COUNT];
    for (int redop = REDOP_MIN; redop <= REDOP_MAX; redop++) {
        size_t wrong = 0;
        for (size_t i = 0; i < COUNT; i++) x[i] = mixed_at(rank, i) % 2 ? -0.0f : 0.0f;
        struct span span = span_host(x, sizeof x);
        CHECK_OK(ring_all_reduce(span, span, COUNT, DTYPE_FLOAT32, (enum redop)redop, comm, NULL));
        for (int c = 0; c < n; c++)
            for (size_t i = ring_chunk_begin(COUNT, n, c); i < ring_chunk_begin(COUNT, n, c + 1);
                 i++)
                wrong += (mixed_at(c, i) % 2 != 0) != (signbit(x[i]) != 0);
        CHECK_MSG(wrong == 0, "%s: %zu of %d zeros have the sign of another rank",
            redop_name((enum redop)redop), wrong, COUNT);
    }
}

static void run_bad_arguments(struct ring_comm *comm)
{
    float x[16] = {0};
    int n = ring_comm_nranks(comm);
    struct span span = span_host(x, sizeof x), small = span_host(x, 8),
                skewed = span_host((char *)x + 2, 32);
    CHECK_STATUS(
        ring_all_reduce(span, small, 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(
        ring_all_reduce(span, skewed, 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_all_reduce(span, span_host(NULL, 0), 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL),
        STATUS_INVALID);
    CHECK_STATUS(
        ring_all_reduce(span, span_host(x + 1, 40), 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL),
        STATUS_INVALID);
    CHECK_STATUS(ring_broadcast(span, span, 4, DTYPE_FLOAT32, n, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_all_reduce(span, span, SIZE_MAX / 2, DTYPE_FLOAT32, REDOP_SUM, comm, NULL),
        STATUS_INVALID);
    CHECK_OK(ring_barrier(comm, NULL)); /* nothing of this has hurt the communicator */
}

/* I4, on both sides of every threshold: twice, since what was made once takes a shorter way. */
static void check_counters(struct ring_comm *comm)
{
    enum { MOST = 1003 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    float *x = calloc((size_t)MOST * (size_t)n, sizeof *x),
          *y = calloc((size_t)MOST * (size_t)n, sizeof *y);
    struct span all = span_host(x, MOST * (size_t)n * sizeof *x),
                other = span_host(y, MOST * (size_t)n * sizeof *y);
    size_t counts[] = {2, 2, 100, 100, MOST, MOST};
    for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++)
        for (int k = 0; k < 6; k++) {
            struct test_case t = {.collective = (enum collective)c,
                .dtype = DTYPE_FLOAT32,
                .count = counts[k],
                .root = n - 1};
            struct ring_call described = {.collective = t.collective,
                .dtype = t.dtype,
                .count = t.count,
                .root = t.root,
                .on_device = through.device != NULL};
            struct ring_counters before = ring_comm_counters(comm);
            CHECK_OK(call(&t, all, other, comm, NULL));
            struct ring_counters after = ring_comm_counters(comm);
            CHECK(after.sent_bytes[c] - before.sent_bytes[c] ==
                  ring_predict_sent_bytes(&described, n, rank, comm));
            CHECK(after.operations[c] == before.operations[c] + 1);
        }
    free(x);
    free(y);
}

#endif
