/* collectives_fixture: every collective against a plain reference, to the bit: I1, I2, and cases C1, C2, C3, C9 and C17. For the
 * programs that say on which ranks, hosts, transports and with which tunables.
 *
 * The grid: nranks × count × dtype × in or out of place × transport × slots (some of 64 bytes) × channels; placement
 * and redop rotate, so that every dtype meets every redop at some count. Inputs do not sum exactly, and the reference adds in
 * the documented order (plan.c, plan_two_level.c), so equal bits on every transport, slot size and placement are what I2
 * promises. Outputs are poisoned, guards of 64 bytes stand around every buffer, send starts one element and receive three
 * elements after an aligned address.
 */
#ifndef TESTS_COLLECTIVES_FIXTURE_H
#define TESTS_COLLECTIVES_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "tests/harness/edge_chaos.h"
#include "tests/harness/harness.h"
#include "tests/harness/through_device.h"
#include "tests/reduce_oracle.h"
#include "verbs/log.h"

#define GUARD  64
#define POISON 0xA5
#ifdef RINGZERO_SANITIZED
#define LARGE_COUNT 1055659
#define EVERY       2 /* number of ranks of a setting: the sanitizers take ten times as long */
#else
#define LARGE_COUNT 10556587
#define EVERY       1
#endif

struct setting {
    struct ring_config config;
    const char *device; /* NULL: the host */
    bool quick; /* only a few counts */
    const enum dtype *large; /* only the large case, of these up to DTYPE_COUNT; or NULL */
    /* Of ring_alloc(): none; all; of even ranks; only one, that is not used; a device's, for calls of one or two buffers. */
    enum { PLAIN, ALLOCATED, MIXED, STAGED, SHARED } memory;
    bool small; /* only small counts and the checks after the grid */
    int hosts;  /* that are pretended: 0: none, else rank r is on host r mod hosts, */
    bool blocks; /* or neighbouring ranks share one */
    int host_ranks; /* that the communicator must have found: 0: 1 */
};

/* Where this rank's buffers come from: ring_alloc(), or malloc() where NULL. */
static _Thread_local struct ring_comm *allocator;
static _Thread_local bool reads_windows; /* ring_alloc() has been called, by all ranks */
/* The one that is tested, of which the reference asks in which order it adds. */
static _Thread_local struct ring_comm *tested;

/* ---- data: a function of (rank, index) ---- */

static uint64_t mixed_at(int rank, size_t index)
{
    uint64_t x = (uint64_t)rank * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 12345;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 32;
}

/* Integers of all sizes, so that sums and products wrap; floats around 1 for products, larger ones for sums. */
static struct number value_at(int rank, size_t index, enum dtype dtype, enum redop redop)
{
    uint64_t x = mixed_at(rank, index);
    if (dtype_is_integer(dtype)) return oracle_fit((struct number){.whole = (int64_t)x}, dtype);
    double real = (double)(int64_t)(x % 20001) / 7.0 - 1400.0;
    if (redop == REDOP_PROD) real = 1 + real / 3000;
    return oracle_fit((struct number){.real = real}, dtype);
}

/* Every rank's own: an integer part that differs, and a fraction that integers drop. */
static double premul_of(int rank) { return 1.75 + rank; }

/* How a sum is made. */
struct sum_kind {
    enum dtype dtype, in; /* in: of partial sums */
    enum redop redop;
    int n;
};

/* The elements at `index` of m ranks, from the one after `last` of them round to it. */
static struct number sum_around(const int *ranks, int m, int last, size_t index, const struct sum_kind *kind)
{
    struct number sum = {0};
    for (int j = 1; j <= m; j++) {
        int rank = ranks[(last + j) % m];
        struct number own = value_at(rank, index, kind->dtype, kind->redop);
        own = oracle_scale(own, kind->dtype, kind->redop, kind->n, premul_of(rank));
        sum = j == 1 ? oracle_fit(own, kind->in) : oracle_combine(sum, own, kind->in, kind->redop);
    }
    return sum;
}

/* One element of a reduction, by the definition of ring.h, in the order of the channel that has it. wide: 16-bit floats accumulate
 * in float32. */
static void reference_in(
    int channel, unsigned char *at, size_t index, int chunk, enum dtype dtype, enum redop redop, bool wide, int n)
{
    struct sum_kind kind = {dtype, wide && redop != REDOP_MIN && redop != REDOP_MAX ? DTYPE_FLOAT32 : dtype, redop, n};
    const int *order = ring_comm_order(tested, channel);
    int m = ring_comm_host_ranks(tested), last = 0;
    if (m == 1) m = n;
    while (order[last] != chunk) last++;
    struct number sum = {0};
    for (int h = 1; h <= n / m; h++) {
        struct number own = sum_around(order + (last / m + h) % (n / m) * m, m, last % m, index, &kind);
        sum = h == 1 ? own : oracle_combine(sum, own, kind.in, redop);
    }
    oracle_store(at, oracle_fit(oracle_finish(sum, dtype, redop, n), dtype), dtype);
}

static void reference(unsigned char *at, size_t index, int chunk, enum dtype dtype, enum redop redop, bool wide, int n)
{
    reference_in(0, at, index, chunk, dtype, redop, wide, n);
}

/* Which channel has element i of a chunk. */
static int channel_of(size_t i, size_t chunk_count)
{
    int channels = ring_comm_config(tested)->channels, channel = 0;
    while (ring_chunk_begin(chunk_count, channels, channel + 1) <= i) channel++;
    return channel;
}

/* ---- guarded buffers ---- */

struct buffer {
    unsigned char *base, *data;
    size_t bytes;
    struct span span; /* of ring_alloc() */
};

static struct buffer buffer_new(size_t elements, enum dtype dtype, size_t offset)
{
    struct buffer buffer = {.bytes = elements * dtype_bytes(dtype)};
    if (allocator != NULL) CHECK_OK(ring_alloc(&buffer.span, buffer.bytes + 3 * GUARD + 64, MEMORY_WORKSPACE, allocator));
    buffer.base = allocator != NULL ? buffer.span.ptr : malloc(buffer.bytes + 3 * GUARD + 64);
    memset(buffer.base, POISON, buffer.bytes + 3 * GUARD + 64);
    unsigned char *aligned = buffer.base + GUARD + (64 - (uintptr_t)(buffer.base + GUARD) % 64);
    buffer.data = aligned + offset * dtype_bytes(dtype);
    return buffer;
}

static void buffer_check_and_free(struct buffer *buffer)
{
    int broken = 0;
    for (int i = 1; i <= GUARD; i++) broken += buffer->data[-i] != POISON;
    for (size_t i = 0; i < GUARD; i++) broken += buffer->data[buffer->bytes + i] != POISON;
    CHECK_MSG(broken == 0, "%d guard bytes were overwritten", broken);
    if (allocator != NULL) ring_free(&buffer->span, MEMORY_WORKSPACE, allocator);
    else free(buffer->base);
}

static struct span buffer_span(const struct buffer *buffer, size_t offset_bytes)
{
    return span_host(buffer->data + offset_bytes, buffer->bytes - offset_bytes);
}

/* ---- one case ---- */

struct test_case {
    enum collective collective;
    enum dtype dtype;
    enum redop redop;
    size_t count, stride; /* stride 0: the plain call */
    bool in_place;
    int root;
    bool wide;
};

static enum status call(
    const struct test_case *t, struct span recv, struct span send, struct ring_comm *comm, struct stream *stream)
{
    switch (t->collective) {
    case COLLECTIVE_ALL_REDUCE:
        return t->stride == 0
                   ? ring_all_reduce(recv, send, t->count, t->dtype, t->redop, comm, stream)
                   : ring_all_reduce_column(recv, send, t->count, t->stride, t->dtype, t->redop, comm, stream);
    case COLLECTIVE_REDUCE_SCATTER:
        return t->stride == 0
                   ? ring_reduce_scatter(recv, send, t->count, t->dtype, t->redop, comm, stream)
                   : ring_reduce_scatter_column(recv, send, t->count, t->stride, t->dtype, t->redop, comm, stream);
    case COLLECTIVE_ALL_GATHER:
        return t->stride == 0 ? ring_all_gather(recv, send, t->count, t->dtype, comm, stream)
                              : ring_all_gather_column(recv, send, t->count, t->stride, t->dtype, comm, stream);
    default: return ring_broadcast(recv, send, t->count, t->dtype, t->root, comm, stream);
    }
}

/* Which rank's chunk an index of the full array lies in; -1 in the gap of a column. */
static int chunk_of(const struct test_case *t, size_t index, int n)
{
    size_t stride = t->stride;
    if (t->collective == COLLECTIVE_BROADCAST) return t->root;
    if (t->collective == COLLECTIVE_ALL_REDUCE && stride == 0) {
        int c = 0;
        while (ring_chunk_begin(t->count, n, c + 1) <= index) c++;
        return c;
    }
    if (stride == 0) stride = t->count;
    return index % stride < t->count ? (int)(index / stride) : -1;
}

static void expected_element(unsigned char *at, const struct test_case *t, size_t index, int n)
{
    int chunk = chunk_of(t, index, n);
    if (t->collective == COLLECTIVE_BROADCAST || t->collective == COLLECTIVE_ALL_GATHER) {
        oracle_store(at, value_at(chunk, index, t->dtype, t->redop), t->dtype);
        return;
    }
    bool split = t->collective == COLLECTIVE_ALL_REDUCE && t->stride == 0;
    size_t begin = split ? ring_chunk_begin(t->count, n, chunk) : (size_t)chunk * (t->stride != 0 ? t->stride : t->count);
    size_t count = split ? ring_chunk_begin(t->count, n, chunk + 1) - begin : t->count;
    reference_in(channel_of(index - begin, count), at, index, chunk, t->dtype, t->redop, t->wide, n);
}

/* I4: what was sent since `before`, and what of it left this host. */
static void check_bytes(const struct test_case *t, const struct ring_counters *before, struct ring_comm *comm)
{
    struct ring_call call = {t->collective, t->dtype, t->redop, t->root, t->count, t->stride, NULL,
        t->wide ? REDUCE_DTYPE_FLOAT32 : REDUCE_DTYPE_OWN, false, through.device != NULL};
    int rank = ring_comm_rank(comm), c = (int)t->collective;
    struct ring_counters after = ring_comm_counters(comm);
    size_t sent = after.sent_bytes[c] - before->sent_bytes[c], border = after.border_bytes[c] - before->border_bytes[c];
    size_t predicted = ring_predict_sent_bytes(&call, ring_comm_nranks(comm), rank, comm);
    size_t predicted_border = ring_predict_border_bytes(&call, rank, comm);
    CHECK_MSG(sent == predicted && border == predicted_border,
        "%s %s count %zu: sent %zu bytes, predicted %zu; %zu to other hosts, predicted %zu", collective_name(t->collective),
        dtype_name(t->dtype), t->count, sent, predicted, border, predicted_border);
}

static void run_case(const struct test_case *t, struct ring_comm *comm, struct stream *stream, struct device *device)
{
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    size_t element = dtype_bytes(t->dtype), stride = t->stride != 0 ? t->stride : t->count;
    bool whole_send = t->collective != COLLECTIVE_ALL_GATHER, whole_recv = t->collective != COLLECTIVE_REDUCE_SCATTER;
    bool plain = t->collective == COLLECTIVE_BROADCAST || (t->collective == COLLECTIVE_ALL_REDUCE && t->stride == 0);
    size_t full = plain || t->count == 0 ? t->count : (size_t)(n - 1) * stride + t->count;
    size_t own = plain ? 0 : (size_t)rank * stride;

    struct buffer send = buffer_new(whole_send || t->in_place ? full : t->count, t->dtype, 1);
    struct buffer other = buffer_new(whole_recv ? full : t->count, t->dtype, 3);
    size_t send_at = whole_send || !t->in_place ? 0 : own * element;
    size_t first = whole_send ? 0 : own;
    for (size_t i = 0; i < (whole_send ? full : t->count); i++)
        if (chunk_of(t, first + i, n) >= 0)
            oracle_store(send.data + send_at + i * element, value_at(rank, first + i, t->dtype, t->redop), t->dtype);
    unsigned char *before = malloc(send.bytes + 1);
    memcpy(before, send.data, send.bytes);

    size_t recv_at = whole_recv || !t->in_place ? 0 : own * element;
    struct buffer *recv = t->in_place ? &send : &other;
    struct span send_span = buffer_span(&send, send_at), recv_span = buffer_span(recv, recv_at);
    if (t->count == 0) send_span = recv_span = span_host(NULL, 0);
    struct ring_counters counters = ring_comm_counters(comm);
    ring_comm_set_reduce_dtype(comm, t->wide ? REDUCE_DTYPE_FLOAT32 : REDUCE_DTYPE_OWN);
    if (CHECK_OK(call(t, recv_span, send_span, comm, stream)) && stream != NULL)
        CHECK_OK(stream_synchronize(stream, device));
    check_bytes(t, &counters, comm);

    size_t wrong = 0, skip = whole_recv ? 0 : own;
    for (size_t i = 0; i < (whole_recv ? full : t->count); i++) {
        unsigned char want[8];
        memset(want, t->in_place ? 0 : POISON, sizeof want);
        bool gap = chunk_of(t, skip + i, n) < 0;
        if (gap) memcpy(want, t->in_place ? before + i * element : want, element);
        else expected_element(want, t, skip + i, n);
        wrong += !oracle_equal(want, recv->data + recv_at + i * element, t->dtype);
    }
    CHECK_MSG(wrong == 0, "%s %s %s%s count %zu stride %zu %s place: %zu elements differ", collective_name(t->collective),
        dtype_name(t->dtype), redop_name(t->redop), t->wide ? " in float32" : "", t->count, t->stride,
        t->in_place ? "in" : "out of", wrong);
    if (!t->in_place) CHECK(memcmp(before, send.data, send.bytes) == 0);
    free(before);
    buffer_check_and_free(&send);
    buffer_check_and_free(&other);
}

/* ---- the grid ---- */

static void run_grid(const struct setting *setting, struct ring_comm *comm, struct stream *stream, struct device *device)
{
    int n = ring_comm_nranks(comm);
    size_t un = (size_t)n, counts[] = {0, 1, un - 1, un, un + 1, 1003, 9001};
    int last = setting->quick ? 6 : 7;
    for (int i = 0; i < last * DTYPE_COUNT; i++) {
        int k = i % last, d = i / last;
        if (k == 6 && (d + n) % 3 != 0) continue; /* the longest: a third of the dtypes, others at other n */
        for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++) {
            bool reduces = c == COLLECTIVE_ALL_REDUCE || c == COLLECTIVE_REDUCE_SCATTER;
            int op = reduces ? (d + k + n) % REDOP_COUNT : REDOP_SUM;
            struct test_case t = {(enum collective)c, (enum dtype)d, (enum redop)op, counts[k], 0,
                .in_place = (d + k + c + n / 2) % 2 == 0, .root = c == COLLECTIVE_BROADCAST ? (k + d) % n : 0};
            run_case(&t, comm, (d + k + n / 3) % 2 ? stream : NULL, device);
            t.stride = counts[k] + (size_t)(k % 3) * 5;
            t.in_place = !t.in_place;
            if (c != COLLECTIVE_BROADCAST && t.count > 0) run_case(&t, comm, stream, device);
        }
    }
}

/* 16-bit floats that accumulate in float32: both dtypes, every operation, plain and in columns, in place and out. */
static void run_wide(const struct setting *setting, struct ring_comm *comm, struct stream *stream, struct device *device)
{
    size_t n = (size_t)ring_comm_nranks(comm), counts[] = {0, 1, n - 1, n + 1, 1003, 9001};
    int last = setting->quick ? 5 : 6;
    for (int i = 0; i < last * REDOP_COUNT * 2; i++) {
        int k = i % last, op = i / last % REDOP_COUNT;
        struct test_case t = {.collective = (i + k) % 2 ? COLLECTIVE_ALL_REDUCE : COLLECTIVE_REDUCE_SCATTER,
            .dtype = i / last / REDOP_COUNT ? DTYPE_FLOAT16 : DTYPE_BFLOAT16, .redop = (enum redop)op, .count = counts[k],
            .in_place = (k + op) % 2 == 0, .wide = true};
        run_case(&t, comm, stream, device);
        t.collective = t.collective == COLLECTIVE_ALL_REDUCE ? COLLECTIVE_REDUCE_SCATTER : COLLECTIVE_ALL_REDUCE;
        t.stride = t.count + (size_t)(k % 3) * 5;
        t.in_place = !t.in_place;
        if (t.count > 0) run_case(&t, comm, NULL, device);
    }
}

/* reduce and reduce_scatter_v, whose buffers have other shapes: the same sums. */
static void run_wide_others(struct ring_comm *comm)
{
    enum { MOST = 20000 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm), root = n / 2;
    uint16_t *send = malloc(MOST * 2), *recv = malloc(MOST * 2), want;
    size_t counts[8], count = 0, begin = 0, wrong = 0;
    for (int r = 0; r < n; r++) count += counts[r] = r == 1 ? 0 : 700 + 151 * (size_t)r;
    for (int r = 0; r < rank; r++) begin += counts[r];
    for (size_t i = 0; i < count; i++) oracle_store(&send[i], value_at(rank, i, DTYPE_BFLOAT16, REDOP_AVG), DTYPE_BFLOAT16);
    ring_comm_set_reduce_dtype(comm, REDUCE_DTYPE_FLOAT32);
    struct ring_counters before = ring_comm_counters(comm);
    struct span send_span = span_host(send, count * 2), recv_span = span_host(recv, MOST * 2);
    CHECK_OK(ring_reduce(recv_span, send_span, count, DTYPE_BFLOAT16, REDOP_AVG, root, comm, NULL));
    for (size_t i = 0; i < count && rank == root; i++) {
        reference_in(channel_of(i, count), (unsigned char *)&want, i, root, DTYPE_BFLOAT16, REDOP_AVG, n > 1, n);
        wrong += want != recv[i];
    }
    CHECK_MSG(wrong == 0, "reduce in float32: %zu of %zu differ", wrong, count);
    CHECK_OK(ring_reduce_scatter_v(recv_span, send_span, counts, DTYPE_BFLOAT16, REDOP_SUM, comm, NULL));
    for (size_t i = 0; i < counts[rank]; i++) {
        reference_in(channel_of(i, counts[rank]), (unsigned char *)&want, begin + i, rank, DTYPE_BFLOAT16, REDOP_SUM, n > 1, n);
        wrong += want != recv[i];
    }
    CHECK_MSG(wrong == 0, "reduce_scatter_v in float32: %zu of %zu differ", wrong, counts[rank]);
    struct ring_counters after = ring_comm_counters(comm);
    struct ring_call calls[2] = {
        {.collective = COLLECTIVE_REDUCE, .dtype = DTYPE_BFLOAT16, .redop = REDOP_AVG, .root = root, .count = count},
        {.collective = COLLECTIVE_REDUCE_SCATTER, .dtype = DTYPE_BFLOAT16, .redop = REDOP_SUM, .counts = counts}};
    for (int i = 0; i < 2; i++) {
        enum collective c = calls[i].collective;
        calls[i].on_device = through.device != NULL;
        uint64_t narrow = ring_predict_sent_bytes(&calls[i], n, rank, comm);
        calls[i].reduce_dtype = REDUCE_DTYPE_FLOAT32;
        uint64_t wide = ring_predict_sent_bytes(&calls[i], n, rank, comm);
        /* Neither is ever an exchange; but by windows own inputs travel, as they are. */
        bool window = c == COLLECTIVE_REDUCE_SCATTER && reads_windows && ring_comm_config(comm)->window_bytes <= 700;
        CHECK(wide == after.sent_bytes[c] - before.sent_bytes[c] && wide == (window ? narrow : 2 * narrow));
    }
    ring_comm_set_reduce_dtype(comm, REDUCE_DTYPE_OWN);
    free(send);
    free(recv);
}

/* C2: every count around the number of ranks, every dtype, in place and out. */
static void run_small_counts(struct ring_comm *comm, struct device *device)
{
    size_t last = (size_t)ring_comm_nranks(comm) + 1;
    for (int d = 0; d < DTYPE_COUNT; d++)
        for (size_t i = 0; i < 2 * (last + 1); i++) {
            struct test_case t = {.collective = COLLECTIVE_ALL_REDUCE, .dtype = (enum dtype)d,
                .redop = (enum redop)(((size_t)d + i) % REDOP_COUNT), .count = i / 2, .in_place = i % 2 == 0};
            run_case(&t, comm, NULL, device);
        }
}

/* C3: a large odd count at odd addresses, with periodic data, so that the right result is known at once. The period is odd too: a
 * slice in a wrong place shows; a chunk's owner decides the order of its sum. */
static void run_large(struct ring_comm *comm, enum dtype dtype)
{
    enum { COUNT = LARGE_COUNT, PERIOD = 4093 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    size_t element = dtype_bytes(dtype), wrong = 0;
    struct buffer send = buffer_new(COUNT, dtype, 1), recv = buffer_new(COUNT, dtype, 3);
    unsigned char own[PERIOD * 8], sum[PERIOD * 8];
    for (size_t i = 0; i < PERIOD; i++) oracle_store(own + i * element, value_at(rank, i, dtype, REDOP_SUM), dtype);
    for (size_t i = 0; i < COUNT; i++) memcpy(send.data + i * element, own + i % PERIOD * element, element);
    CHECK_OK(ring_all_reduce(buffer_span(&recv, 0), buffer_span(&send, 0), COUNT, dtype, REDOP_SUM, comm, NULL));
    for (int c = 0; c < n; c++) {
        for (size_t i = 0; i < PERIOD; i++) reference(sum + i * element, i, c, dtype, REDOP_SUM, false, n);
        size_t end = ring_chunk_begin(COUNT, n, c + 1);
        for (size_t i = ring_chunk_begin(COUNT, n, c); i < end; i++)
            wrong += memcmp(recv.data + i * element, sum + i % PERIOD * element, element) != 0;
    }
    for (size_t i = 0; i < COUNT; i++) wrong += memcmp(send.data + i * element, own + i % PERIOD * element, element) != 0;
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
    CHECK_OK(ring_all_reduce(span_host(y, sizeof y), span_host(x, sizeof x), 2, DTYPE_FLOAT64, REDOP_SUM, comm, NULL));
    CHECK_OK(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 2, DTYPE_FLOAT64, REDOP_SUM, comm, NULL));
    CHECK(x[0] == n * (n - 1) / 2 && memcmp(x, y, sizeof x) == 0);
    if (n == 4) CHECK(x[0] == 6.0 && fabs(x[1] - 11.0 / 6.0) < 1e-15);
    check_same_bits(x, sizeof x, comm);
}

/* C17: seven ones are lost one by one where 256 comes first, and add up where it comes last. The ring's order says which:
 * the same on all ranks and in every run. Accumulated in float32 none is lost. */
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
    if (n == 8 && ring_comm_host_ranks(comm) == 1) CHECK(bfloat16_to_float32(x[7]) == 256 && bfloat16_to_float32(x[0]) == 264);
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
            for (size_t i = ring_chunk_begin(COUNT, n, c); i < ring_chunk_begin(COUNT, n, c + 1); i++)
                wrong += (mixed_at(c, i) % 2 != 0) != (signbit(x[i]) != 0);
        CHECK_MSG(wrong == 0, "%s: %zu of %d zeros have the sign of another rank", redop_name((enum redop)redop), wrong, COUNT);
    }
}

static void run_bad_arguments(struct ring_comm *comm)
{
    float x[16] = {0};
    int n = ring_comm_nranks(comm);
    struct span span = span_host(x, sizeof x), small = span_host(x, 8), skewed = span_host((char *)x + 2, 32);
    CHECK_STATUS(ring_all_reduce(span, small, 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_all_reduce(span, skewed, 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_all_reduce(span, span_host(NULL, 0), 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_all_reduce(span, span_host(x + 1, 40), 4, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_broadcast(span, span, 4, DTYPE_FLOAT32, n, comm, NULL), STATUS_INVALID);
    CHECK_STATUS(ring_all_reduce(span, span, SIZE_MAX / 2, DTYPE_FLOAT32, REDOP_SUM, comm, NULL), STATUS_INVALID);
    CHECK_OK(ring_barrier(comm, NULL)); /* nothing of this has hurt the communicator */
}

/* I4, on both sides of every threshold: twice, since what was made once takes a shorter way. */
static void check_counters(struct ring_comm *comm)
{
    enum { MOST = 1003 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    float *x = calloc((size_t)MOST * (size_t)n, sizeof *x), *y = calloc((size_t)MOST * (size_t)n, sizeof *y);
    struct span all = span_host(x, MOST * (size_t)n * sizeof *x), other = span_host(y, MOST * (size_t)n * sizeof *y);
    size_t counts[] = {2, 2, 100, 100, MOST, MOST};
    for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++)
        for (int k = 0; k < 6; k++) {
            struct test_case t = {.collective = (enum collective)c, .dtype = DTYPE_FLOAT32, .count = counts[k], .root = n - 1};
            struct ring_call described = {.collective = t.collective, .dtype = t.dtype, .count = t.count, .root = t.root,
                .on_device = through.device != NULL};
            struct ring_counters before = ring_comm_counters(comm);
            CHECK_OK(call(&t, all, other, comm, NULL));
            struct ring_counters after = ring_comm_counters(comm);
            CHECK(after.sent_bytes[c] - before.sent_bytes[c] == ring_predict_sent_bytes(&described, n, rank, comm));
            CHECK(after.operations[c] == before.operations[c] + 1);
        }
    free(x);
    free(y);
}

/* Tunables of a rank, on its pretended host. */
static struct ring_config config_of(const struct setting *setting, const struct bootstrap *bootstrap)
{
    static const char *const hosts[] = {"h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"};
    struct ring_config config = setting->config;
    int rank = bootstrap_rank(bootstrap), n = bootstrap_nranks(bootstrap);
    if (setting->hosts > 0) config.host = hosts[setting->blocks ? rank * setting->hosts / n : rank % setting->hosts];
    return config;
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct ring_config config = config_of(setting, bootstrap);
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct stream *stream = NULL;
    if (CHECK_OK(device_open(&device, setting->device != NULL ? setting->device : "host")) && CHECK_OK(stream_open(&stream, device, "test")) &&
        CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) {
        tested = comm;
        through_begin(device);
        if (setting->memory == SHARED) through_share(comm);
        if (setting->host_ranks > 0 || getenv("RINGZERO_TEST_HOST") == NULL) /* else the hosts are real, and so is what they have */
            CHECK(ring_comm_host_ranks(comm) == (setting->host_ranks > 0 ? setting->host_ranks : 1));
        ring_comm_set_premul(comm, premul_of(ring_comm_rank(comm)));
        struct span first = {0}; /* whoever calls ring_alloc() once means it */
        reads_windows = setting->memory != PLAIN && setting->memory != SHARED;
        if (reads_windows) CHECK_OK(ring_alloc(&first, 5000, MEMORY_WORKSPACE, comm));
        bool allocates = setting->memory == ALLOCATED || (setting->memory == MIXED && ring_comm_rank(comm) % 2 == 0);
        allocator = allocates ? comm : NULL;
        for (const enum dtype *d = setting->large; d != NULL && *d != DTYPE_COUNT; d++) run_large(comm, *d);
        if (setting->large == NULL && !setting->small) {
            run_grid(setting, comm, stream, device);
            run_wide(setting, comm, stream, device);
            run_wide_others(comm);
        }
        if (setting->small || (ring_comm_nranks(comm) == 8 && !setting->quick)) run_small_counts(comm, device);
        run_reciprocals(comm);
        run_lost_ones(comm);
        run_nan(comm);
        run_zeros(comm);
        run_bad_arguments(comm);
        check_counters(comm);
        CHECK_OK(ring_barrier(comm, stream));
        CHECK_OK(stream_synchronize(stream, device));
        ring_free(&first, MEMORY_WORKSPACE, comm);
        through_end();
        CHECK(memory_account_read(device).now[MEMORY_WORKSPACE] == (setting->memory == SHARED && ring_comm_nranks(comm) > 1 ? 2 << 20 : 0));
    }
    stream_close(stream, device);
    ring_comm_close(comm);
    if (device != NULL)
        CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0 && memory_account_read(device).now[MEMORY_WORKSPACE] == 0);
    device_close(device);
}

#endif
