/* Every collective against a plain reference, to the bit: I1, I2, and cases C1, C2, C3 and C9.
 * ctest: timeout=240
 *
 * The grid: nranks × count × dtype × redop × in or out of place × transport × slots (some of 64 bytes) × channels. Inputs do not sum
 * exactly, and the reference adds in the documented order (plan.c), so equal bits on every transport, slot size and placement
 * are what I2 promises. Outputs are poisoned, guards of 64 bytes stand around every buffer, send starts one element and
 * receive three elements after an aligned address.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "tests/harness/edge_chaos.h"
#include "tests/harness/harness.h"
#include "verbs/log.h"

#define GUARD  64
#define POISON 0xA5

struct setting {
    struct ring_config config;
    bool quick; /* only a few counts */
};

/* ---- data: a function of (rank, index) ---- */

static double value_at(int rank, size_t index)
{
    uint64_t x = (uint64_t)rank * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 12345;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 32;
    return (double)(int64_t)(x % 20001) / 7.0 - 1400.0;
}

static void store(unsigned char *at, enum dtype dtype, double value)
{
    float single = (float)value;
    uint16_t half = float32_to_bfloat16(single);
    int32_t whole = (int32_t)value;
    if (dtype == DTYPE_FLOAT32) memcpy(at, &single, 4);
    else if (dtype == DTYPE_BFLOAT16) memcpy(at, &half, 2);
    else memcpy(at, &whole, 4);
}

static double load(const unsigned char *at, enum dtype dtype)
{
    float single;
    uint16_t half;
    int32_t whole;
    if (dtype == DTYPE_FLOAT32) return memcpy(&single, at, 4), single;
    if (dtype == DTYPE_BFLOAT16) return memcpy(&half, at, 2), bfloat16_to_float32(half);
    return memcpy(&whole, at, 4), whole;
}

/* One element of a reduction, by the definition of ring.h, in ring order. */
static void reference(unsigned char *at, size_t index, int chunk, enum dtype dtype, enum redop redop, int n)
{
    unsigned char own[4], sum[4] = {0};
    float scale = 1.0f / (float)n;
    for (int j = 1; j <= n; j++) {
        store(own, dtype, value_at((chunk + j) % n, index));
        double b = load(own, dtype), a = load(sum, dtype);
        bool averages = redop == REDOP_AVG && dtype != DTYPE_INT32;
        if (averages) b = (float)b * scale;
        if (j == 1) store(sum, dtype, b);
        else if (redop == REDOP_MAX) store(sum, dtype, a > b ? a : b);
        else if (dtype == DTYPE_INT32) store(sum, dtype, a + b);
        else store(sum, dtype, (float)a + (float)b);
    }
    if (redop == REDOP_AVG && dtype == DTYPE_INT32) store(sum, dtype, (double)((int32_t)load(sum, dtype) / n));
    memcpy(at, sum, dtype_bytes(dtype));
}

/* ---- guarded buffers ---- */

struct buffer {
    unsigned char *base, *data;
    size_t bytes;
};

static struct buffer buffer_new(size_t elements, enum dtype dtype, size_t offset)
{
    struct buffer buffer = {.bytes = elements * dtype_bytes(dtype)};
    buffer.base = malloc(buffer.bytes + 3 * GUARD + 64);
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
    free(buffer->base);
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
    if (t->collective == COLLECTIVE_BROADCAST || t->collective == COLLECTIVE_ALL_GATHER)
        store(at, t->dtype, value_at(chunk, index));
    else
        reference(at, index, chunk, t->dtype, t->redop, n);
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
            store(send.data + send_at + i * element, t->dtype, value_at(rank, first + i));
    unsigned char *before = malloc(send.bytes + 1);
    memcpy(before, send.data, send.bytes);

    size_t recv_at = whole_recv || !t->in_place ? 0 : own * element;
    struct buffer *recv = t->in_place ? &send : &other;
    struct span send_span = buffer_span(&send, send_at), recv_span = buffer_span(recv, recv_at);
    if (t->count == 0) send_span = recv_span = span_host(NULL, 0);
    if (CHECK_OK(call(t, recv_span, send_span, comm, stream)) && stream != NULL)
        CHECK_OK(stream_synchronize(stream, device));

    size_t wrong = 0, skip = whole_recv ? 0 : own;
    for (size_t i = 0; i < (whole_recv ? full : t->count); i++) {
        unsigned char want[4];
        memset(want, t->in_place ? 0 : POISON, sizeof want);
        bool gap = chunk_of(t, skip + i, n) < 0;
        if (gap) memcpy(want, t->in_place ? before + i * element : want, element);
        else expected_element(want, t, skip + i, n);
        wrong += memcmp(want, recv->data + recv_at + i * element, element) != 0;
    }
    CHECK_MSG(wrong == 0, "%s %s %s count %zu stride %zu %s place: %zu elements differ", collective_name(t->collective),
        dtype_name(t->dtype), redop_name(t->redop), t->count, t->stride, t->in_place ? "in" : "out of", wrong);
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
    for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++) {
        bool reduces = c == COLLECTIVE_ALL_REDUCE || c == COLLECTIVE_REDUCE_SCATTER;
        for (int k = 0; k < last; k++) {
            for (int d = 0; d < DTYPE_COUNT; d++) {
                for (int op = 0; op < (reduces ? REDOP_COUNT : 1); op++) {
                    for (int place = 0; place < 2; place++) {
                        struct test_case t = {(enum collective)c, (enum dtype)d, (enum redop)op, counts[k], 0, place == 1,
                            c == COLLECTIVE_BROADCAST ? (k + d) % n : 0};
                        run_case(&t, comm, (k + d + op) % 2 ? stream : NULL, device);
                        t.stride = counts[k] + (size_t)(k % 3) * 5;
                        if (c != COLLECTIVE_BROADCAST && t.count > 0 && op != REDOP_MAX) run_case(&t, comm, stream, device);
                    }
                }
            }
        }
    }
}

/* C1: a reciprocal sum whose bits show the order. */
static void run_reciprocals(struct ring_comm *comm)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    float x[2] = {(float)rank, rank != 0 ? 1.0f / (float)rank : 0.0f};
    CHECK_OK(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 2, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    if (n == 4) CHECK(x[0] == 6.0f && fabsf(x[1] - 1.8333333f) < 1e-6f);
    float all[16];
    CHECK_OK(ring_all_gather(span_host(all, sizeof all), span_host(&x[1], sizeof x[1]), 1, DTYPE_FLOAT32, comm, NULL));
    for (int r = 0; r < n; r++) CHECK(memcmp(&all[r], &x[1], sizeof x[1]) == 0); /* I1 */
}

/* A NaN anywhere wins a maximum, on every rank. */
static void run_nan(struct ring_comm *comm)
{
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    for (int who = 0; who < n; who++) {
        float x[3] = {rank == who ? NAN : (float)rank, 1.0f, (float)-rank};
        CHECK_OK(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 3, DTYPE_FLOAT32, REDOP_MAX, comm, NULL));
        CHECK(isnan(x[0]) && x[1] == 1.0f && x[2] == 0.0f);
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

static void check_counters(struct ring_comm *comm)
{
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    float x[1003] = {0};
    struct ring_counters before = ring_comm_counters(comm);
    CHECK_OK(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 1003, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
    struct ring_counters after = ring_comm_counters(comm);
    uint64_t sent = after.sent_bytes[COLLECTIVE_ALL_REDUCE] - before.sent_bytes[COLLECTIVE_ALL_REDUCE];
    CHECK(sent == ring_predict_sent_bytes(COLLECTIVE_ALL_REDUCE, 1003, DTYPE_FLOAT32, n, rank, 0, NULL));
    CHECK(after.operations[COLLECTIVE_ALL_REDUCE] == before.operations[COLLECTIVE_ALL_REDUCE] + 1);
}

static void body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct stream *stream = NULL;
    if (CHECK_OK(device_open(&device, "host")) && CHECK_OK(stream_open(&stream, device, "test")) &&
        CHECK_OK(ring_comm_open(&comm, &setting->config, bootstrap, device))) {
        run_grid(setting, comm, stream, device);
        run_reciprocals(comm);
        run_nan(comm);
        run_bad_arguments(comm);
        check_counters(comm);
        CHECK_OK(ring_barrier(comm, stream));
        CHECK_OK(stream_synchronize(stream, device));
    }
    stream_close(stream, device);
    ring_comm_close(comm);
    if (device != NULL)
        CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
    device_close(device);
}

int main(void)
{
    static const struct {
        struct setting setting;
        int nranks[8]; /* up to the first 0 */
    } runs[] = {
        {{{.transport = "shm", .slot_bytes = 1024, .slot_count = 4}, false}, {1, 2, 3, 4, 5, 7, 8}},
        {{{.transport = "shm", .slot_bytes = 64, .slot_count = 2, .start = UINT64_MAX - 20}, true}, {2, 3, 4, 5, 8}},
        {{{.transport = "tcp", .slot_bytes = 1024, .slot_count = 4}, false}, {2, 3, 5}},
        {{{.transport = "tcp", .slot_bytes = 320, .slot_count = 2, .start = UINT64_MAX - 20}, true}, {2, 4, 7}},
        {{{.custom = &transport_chaos, .slot_bytes = 192, .slot_count = 4, .channels = 2}, true}, {2, 3, 5, 8}},
        {{{.transport = "auto", .slot_bytes = 192, .slot_count = 4, .channels = 3}, true}, {1, 2, 3, 4, 5, 7, 8}},
    };
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++)
        for (int i = 0; i < 8 && runs[r].nranks[i] != 0; i++) {
            struct setting setting = runs[r].setting;
            ranks_as_threads(runs[r].nranks[i], 30000, body, &setting);
        }
    return test_result();
}
