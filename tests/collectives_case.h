/* collectives_case: one call of a collective, held against the reference to the bit, and its bytes
 * against the prediction (I4). Outputs are poisoned, guards of 64 bytes stand around every buffer,
 * send starts one element and receive three elements after an aligned address.
 */
#ifndef TESTS_COLLECTIVES_CASE_H
#define TESTS_COLLECTIVES_CASE_H

#include <stdlib.h>
#include <string.h>

#include "tests/collectives_reference.h"
#include "tests/harness/harness.h"
#include "tests/harness/through_device.h"

#define GUARD  64
#define POISON 0xA5

/* Where this rank's buffers come from: ring_alloc(), or malloc() where NULL. */
static _Thread_local struct ring_comm *allocator;

/* ---- guarded buffers ---- */

struct buffer {
    unsigned char *base, *data;
    size_t bytes;
    struct span span; /* of ring_alloc() */
};

static struct buffer buffer_new(size_t elements, enum dtype dtype, size_t offset)
{
    struct buffer buffer = {.bytes = elements * dtype_bytes(dtype)};
    if (allocator != NULL)
        CHECK_OK(
            ring_alloc(&buffer.span, buffer.bytes + 3 * GUARD + 64, MEMORY_WORKSPACE, allocator));
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

static enum status call(const struct test_case *t, struct span recv, struct span send,
    struct ring_comm *comm, struct stream *stream)
{
    switch (t->collective) {
    case COLLECTIVE_ALL_REDUCE:
        return t->stride == 0
                   ? ring_all_reduce(recv, send, t->count, t->dtype, t->redop, comm, stream)
                   : ring_all_reduce_column(
                         recv, send, t->count, t->stride, t->dtype, t->redop, comm, stream);
    case COLLECTIVE_REDUCE_SCATTER:
        return t->stride == 0
                   ? ring_reduce_scatter(recv, send, t->count, t->dtype, t->redop, comm, stream)
                   : ring_reduce_scatter_column(
                         recv, send, t->count, t->stride, t->dtype, t->redop, comm, stream);
    case COLLECTIVE_ALL_GATHER:
        return t->stride == 0 ? ring_all_gather(recv, send, t->count, t->dtype, comm, stream)
                              : ring_all_gather_column(
                                    recv, send, t->count, t->stride, t->dtype, comm, stream);
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
    size_t begin = split ? ring_chunk_begin(t->count, n, chunk)
                         : (size_t)chunk * (t->stride != 0 ? t->stride : t->count);
    size_t count = split ? ring_chunk_begin(t->count, n, chunk + 1) - begin : t->count;
    reference_in(
        channel_of(index - begin, count), at, index, chunk, t->dtype, t->redop, t->wide, n);
}

/* I4: what was sent since `before`, and what of it left this host. */
static void check_bytes(
    const struct test_case *t, const struct ring_counters *before, struct ring_comm *comm)
{
    struct ring_call call = {t->collective, t->dtype, t->redop, t->root, t->count, t->stride, NULL,
        t->wide ? REDUCE_DTYPE_FLOAT32 : REDUCE_DTYPE_OWN, false, through.device != NULL};
    int rank = ring_comm_rank(comm), c = (int)t->collective;
    struct ring_counters after = ring_comm_counters(comm);
    size_t sent = after.sent_bytes[c] - before->sent_bytes[c],
           border = after.border_bytes[c] - before->border_bytes[c];
    size_t predicted = ring_predict_sent_bytes(&call, ring_comm_nranks(comm), rank, comm);
    size_t predicted_border = ring_predict_border_bytes(&call, rank, comm);
    CHECK_MSG(sent == predicted && border == predicted_border,
        "%s %s count %zu: sent %zu bytes, predicted %zu; %zu to other hosts, predicted %zu",
        collective_name(t->collective), dtype_name(t->dtype), t->count, sent, predicted, border,
        predicted_border);
}

static void run_case(
    const struct test_case *t, struct ring_comm *comm, struct stream *stream, struct device *device)
{
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    size_t element = dtype_bytes(t->dtype), stride = t->stride != 0 ? t->stride : t->count;
    bool whole_send = t->collective != COLLECTIVE_ALL_GATHER,
         whole_recv = t->collective != COLLECTIVE_REDUCE_SCATTER;
    bool plain = t->collective == COLLECTIVE_BROADCAST ||
                 (t->collective == COLLECTIVE_ALL_REDUCE && t->stride == 0);
    size_t full = plain || t->count == 0 ? t->count : (size_t)(n - 1) * stride + t->count;
    size_t own = plain ? 0 : (size_t)rank * stride;

    struct buffer send = buffer_new(whole_send || t->in_place ? full : t->count, t->dtype, 1);
    struct buffer other = buffer_new(whole_recv ? full : t->count, t->dtype, 3);
    size_t send_at = whole_send || !t->in_place ? 0 : own * element;
    size_t first = whole_send ? 0 : own;
    for (size_t i = 0; i < (whole_send ? full : t->count); i++)
        if (chunk_of(t, first + i, n) >= 0)
            oracle_store(send.data + send_at + i * element,
                value_at(rank, first + i, t->dtype, t->redop), t->dtype);
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
    CHECK_MSG(wrong == 0, "%s %s %s%s count %zu stride %zu %s place: %zu elements differ",
        collective_name(t->collective), dtype_name(t->dtype), redop_name(t->redop),
        t->wide ? " in float32" : "", t->count, t->stride, t->in_place ? "in" : "out of", wrong);
    if (!t->in_place) CHECK(memcmp(before, send.data, send.bytes) == 0);
    free(before);
    buffer_check_and_free(&send);
    buffer_check_and_free(&other);
}

#endif
