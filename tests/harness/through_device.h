/* through_device: suites of collectives that were written for host memory, run on a device's: each call's buffers are copied to the
 * device, the call is made there, and what it left is copied back. So one source checks every device (I1, I2, I7).
 *
 *   through_begin(device)     this thread's calls go by the device from now on, unless it is the host
 *   through_share(comm)       and use memory of ring_alloc(), where it is enough: collective
 *   ring_all_reduce(…) …      host spans as ever: copies there, the call and copies back on the call's stream, which is then waited for
 *   through_end()
 *
 * Buffers that overlap, as in place, do so on the device too, at the same distance and with the same alignment. 64 bytes around each are
 * poisoned, and must stay as they are.
 */
#ifndef TESTS_HARNESS_THROUGH_DEVICE_H
#define TESTS_HARNESS_THROUGH_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "tests/harness/harness.h"

#define THROUGH_MOST  64 /* buffers of a group */
#define THROUGH_GUARD 64

struct through_mirror {
    struct span host, there; /* there: with the guards around it */
    struct span memory;      /* of the device, of which it is a part; kept for later calls */
    struct ring_comm *comm;  /* whose ring_alloc() it is from; NULL: the device's own */
};

struct through {
    struct device *device; /* NULL: the host */
    bool in_group;
    int count;
    struct through_mirror mirrors[THROUGH_MOST];
};

static _Thread_local struct through through;

static inline void through_begin(struct device *device)
{
    if (device_kind(device) != MEMORY_HOST) through.device = device;
}

static inline void through_share(struct ring_comm *comm)
{
    for (int i = 0; i < 2 && through.device != NULL; i++)
        if (CHECK_OK(ring_alloc(&through.mirrors[i].memory, 1 << 20, MEMORY_WORKSPACE, comm))) through.mirrors[i].comm = comm;
}

static inline void through_free(struct through_mirror *mirror)
{
    if (mirror->comm != NULL) ring_free(&mirror->memory, MEMORY_WORKSPACE, mirror->comm);
    else memory_free(&mirror->memory, MEMORY_WORKSPACE, through.device);
    mirror->comm = NULL;
}

static inline void through_end(void)
{
    for (int i = 0; i < THROUGH_MOST && through.device != NULL; i++) through_free(&through.mirrors[i]);
    through = (struct through){0};
}

/* Copies [begin, end) of the host there. */
static inline struct through_mirror *through_mirror(char *begin, char *end, struct stream *stream)
{
    struct through_mirror *mirror = &through.mirrors[through.count++];
    size_t bytes = (size_t)(end - begin), room = bytes + 2 * THROUGH_GUARD + 64;
    if (mirror->memory.bytes < room) {
        /* Rarely: it waits for the kernels of other ranks, who may wait for this one. */
        through_free(mirror);
        CHECK_OK(memory_alloc(&mirror->memory, room < 1 << 20 ? 1 << 20 : room, MEMORY_WORKSPACE, through.device));
    }
    mirror->host = span_host(begin, bytes);
    mirror->there = span_part(mirror->memory, (uintptr_t)begin % 64, bytes + 2 * THROUGH_GUARD);
    CHECK_OK(span_fill(mirror->there, 0xA5, stream, through.device));
    CHECK_OK(span_copy(span_part(mirror->there, THROUGH_GUARD, bytes), mirror->host, stream, through.device));
    return mirror;
}

static inline struct span through_span(struct span span, const struct through_mirror *mirror)
{
    return span_part(mirror->there, THROUGH_GUARD + (size_t)((char *)span.ptr - (char *)mirror->host.ptr), span.bytes);
}

static inline void through_open(struct span *recv, struct span *send, struct stream *stream)
{
    if (through.device == NULL) return;
    struct span none = {0}, *both[2] = {recv != NULL ? recv : &none, send != NULL ? send : &none};
    char *begin[2], *end[2];
    for (int i = 0; i < 2; i++) {
        begin[i] = both[i]->ptr;
        end[i] = begin[i] + (begin[i] == NULL ? 0 : both[i]->bytes);
    }
    if (begin[0] != NULL && begin[1] != NULL && begin[0] < end[1] && begin[1] < end[0]) {
        struct through_mirror *mirror =
            through_mirror(begin[0] < begin[1] ? begin[0] : begin[1], end[0] > end[1] ? end[0] : end[1], stream);
        for (int i = 0; i < 2; i++) *both[i] = through_span(*both[i], mirror);
        return;
    }
    for (int i = 0; i < 2; i++)
        if (begin[i] != NULL) *both[i] = through_span(*both[i], through_mirror(begin[i], end[i], stream));
}

static inline void through_check(struct through_mirror *mirror, struct stream *stream)
{
    size_t bytes = mirror->there.bytes, wrong = 0;
    unsigned char *copy = malloc(bytes);
    CHECK_OK(span_copy(span_host(copy, bytes), mirror->there, stream, through.device));
    if (stream != NULL) CHECK_OK(stream_synchronize(stream, through.device));
    memcpy(mirror->host.ptr, copy + THROUGH_GUARD, mirror->host.bytes);
    for (size_t i = 0; i < THROUGH_GUARD; i++) wrong += (copy[i] != 0xA5) + (copy[bytes - 1 - i] != 0xA5);
    CHECK_MSG(wrong == 0, "%zu guard bytes of the device were overwritten", wrong);
    free(copy);
}

/* A group's buffers come back at its end. */
static inline enum status through_close(enum status status, struct stream *stream)
{
    if (through.device == NULL || through.in_group) return status;
    for (int i = 0; i < through.count && status == STATUS_OK; i++) through_check(&through.mirrors[i], stream);
    through.count = 0;
    return status;
}

#define THROUGH(name, parameters, call, recv, send)                                                                    \
    static inline enum status through_##name parameters                                                                \
    {                                                                                                                  \
        through_open(recv, send, stream);                                                                              \
        return through_close(call, stream);                                                                            \
    }
#define COMM_STREAM struct ring_comm *comm, struct stream *stream

THROUGH(all_reduce, (struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop, COMM_STREAM),
    ring_all_reduce(recv, send, count, dtype, redop, comm, stream), &recv, &send)
THROUGH(all_reduce_column,
    (struct span recv, struct span send, size_t count, size_t stride, enum dtype dtype, enum redop redop, COMM_STREAM),
    ring_all_reduce_column(recv, send, count, stride, dtype, redop, comm, stream), &recv, &send)
THROUGH(reduce_scatter, (struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop, COMM_STREAM),
    ring_reduce_scatter(recv, send, count, dtype, redop, comm, stream), &recv, &send)
THROUGH(reduce_scatter_column,
    (struct span recv, struct span send, size_t count, size_t stride, enum dtype dtype, enum redop redop, COMM_STREAM),
    ring_reduce_scatter_column(recv, send, count, stride, dtype, redop, comm, stream), &recv, &send)
THROUGH(reduce_scatter_v,
    (struct span recv, struct span send, const size_t *counts, enum dtype dtype, enum redop redop, COMM_STREAM),
    ring_reduce_scatter_v(recv, send, counts, dtype, redop, comm, stream), &recv, &send)
THROUGH(all_gather, (struct span recv, struct span send, size_t count, enum dtype dtype, COMM_STREAM),
    ring_all_gather(recv, send, count, dtype, comm, stream), &recv, &send)
THROUGH(all_gather_column, (struct span recv, struct span send, size_t count, size_t stride, enum dtype dtype, COMM_STREAM),
    ring_all_gather_column(recv, send, count, stride, dtype, comm, stream), &recv, &send)
THROUGH(all_gather_v, (struct span recv, struct span send, const size_t *counts, enum dtype dtype, COMM_STREAM),
    ring_all_gather_v(recv, send, counts, dtype, comm, stream), &recv, &send)
THROUGH(broadcast, (struct span recv, struct span send, size_t count, enum dtype dtype, int root, COMM_STREAM),
    ring_broadcast(recv, send, count, dtype, root, comm, stream), &recv, &send)
THROUGH(reduce, (struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop, int root, COMM_STREAM),
    ring_reduce(recv, send, count, dtype, redop, root, comm, stream), &recv, &send)
THROUGH(scatter, (struct span recv, struct span send, size_t count, enum dtype dtype, int root, COMM_STREAM),
    ring_scatter(recv, send, count, dtype, root, comm, stream), &recv, &send)
THROUGH(gather, (struct span recv, struct span send, size_t count, enum dtype dtype, int root, COMM_STREAM),
    ring_gather(recv, send, count, dtype, root, comm, stream), &recv, &send)
THROUGH(all_to_all, (struct span recv, struct span send, size_t count, enum dtype dtype, COMM_STREAM),
    ring_all_to_all(recv, send, count, dtype, comm, stream), &recv, &send)
THROUGH(send, (struct span send, size_t count, enum dtype dtype, int to, COMM_STREAM),
    ring_send(send, count, dtype, to, comm, stream), NULL, &send)
THROUGH(recv, (struct span recv, size_t count, enum dtype dtype, int from, COMM_STREAM),
    ring_recv(recv, count, dtype, from, comm, stream), &recv, NULL)
THROUGH(send_recv, (struct span recv, size_t recv_count, int from, struct span send, size_t send_count, int to,
    enum dtype dtype, COMM_STREAM), ring_send_recv(recv, recv_count, from, send, send_count, to, dtype, comm, stream), &recv, &send)

static inline enum status through_group_begin(struct ring_comm *comm)
{
    through.in_group = true;
    return ring_group_begin(comm);
}

static inline enum status through_group_end(struct ring_comm *comm, struct stream *stream)
{
    through.in_group = false;
    return through_close(ring_group_end(comm, stream), stream);
}

static inline void through_group_drop(struct ring_comm *comm)
{
    through.in_group = false;
    through.count = 0;
    ring_group_drop(comm);
}

#define ring_all_reduce            through_all_reduce
#define ring_all_reduce_column     through_all_reduce_column
#define ring_reduce_scatter        through_reduce_scatter
#define ring_reduce_scatter_column through_reduce_scatter_column
#define ring_reduce_scatter_v      through_reduce_scatter_v
#define ring_all_gather            through_all_gather
#define ring_all_gather_column     through_all_gather_column
#define ring_all_gather_v          through_all_gather_v
#define ring_broadcast             through_broadcast
#define ring_reduce                through_reduce
#define ring_scatter               through_scatter
#define ring_gather                through_gather
#define ring_all_to_all            through_all_to_all
#define ring_send                  through_send
#define ring_recv                  through_recv
#define ring_send_recv             through_send_recv
#define ring_group_begin           through_group_begin
#define ring_group_end             through_group_end
#define ring_group_drop            through_group_drop

#endif
