/* window_part: see window_part.h; and, of window.h, which operations run by windows and what they send. */
#include "ring/window_part.h"

#include "ring/comm.h"
#include "ring/window.h"

#define BARE_BYTES ((size_t)8 << 20) /* of a chunk, at most */
#define SUM_FACTOR 16 /* chunks of an all_reduce gain by windows from so many times window_bytes on, staged or not */

bool window_adds(const struct operation *operation) { return collective_is_reduction(operation->collective); }

bool window_has_results(const struct operation *operation) { return operation->collective != COLLECTIVE_REDUCE_SCATTER; }

bool window_owns(int rank, const struct operation *operation)
{
    if (!window_has_results(operation)) return false;
    return operation->collective != COLLECTIVE_BROADCAST || rank == operation->root;
}

size_t window_element_bytes(const struct operation *operation) { return dtype_bytes(operation->reduction.dtype); }

size_t window_chunk_bytes(int c, const struct operation *operation)
{
    size_t begin, count;
    operation_chunk(&begin, &count, operation, c);
    return count * window_element_bytes(operation);
}

size_t window_chunk_offset(int c, const struct operation *operation)
{
    size_t begin, count;
    operation_chunk(&begin, &count, operation, c);
    return begin * window_element_bytes(operation);
}

size_t window_largest_bytes(const struct operation *operation)
{
    size_t largest = 0;
    for (int c = 0; c < operation->reduction.nranks; c++) {
        size_t bytes = window_chunk_bytes(c, operation);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

size_t window_result_bytes(int rank, const struct operation *operation)
{
    return window_owns(rank, operation) ? window_chunk_bytes(rank, operation) : 0;
}

size_t window_input_bytes(int rank, const struct operation *operation)
{
    return window_adds(operation) ? window_chunk_bytes(rank, operation) : 0;
}

const unsigned char *window_result_source(const struct operation *operation)
{
    if (!window_adds(operation)) return operation->send; /* of an all_gather: this rank's chunk */
    return operation->recv + window_chunk_offset(operation->comm->rank, operation);
}

unsigned char *window_result_place(int rank, const struct operation *operation)
{
    return operation->recv + window_chunk_offset(rank, operation);
}

unsigned char *window_sum_place(const struct operation *operation)
{
    return operation->recv_is_chunk ? operation->recv : window_result_place(operation->comm->rank, operation);
}

/* The ring copies twice, and many readers share a copy into the stage; where one reads, and both are at it, one copy beats two as
 * long as the kernel's is not bound by memory. */
bool window_is_bare(const struct operation *operation)
{
    return operation->comm->has_copies && operation->comm->nranks == 2 && operation->collective == COLLECTIVE_ALL_GATHER &&
           window_largest_bytes(operation) <= BARE_BYTES;
}

bool window_fits(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    if (!comm->has_windows || operation->count == 0) return false;
    if (operation->reduction.redop == REDOP_PREMUL_SUM) return false; /* every rank has a factor of its own: the ring */
    size_t largest = window_largest_bytes(operation);
    if (largest < comm->config.window_bytes) return false;
    bool staged = !operation->has_memory; /* presumably; then two copies instead of the ring's one must be worth it */
    switch (operation->collective) {
    case COLLECTIVE_ALL_REDUCE:
        if (largest / SUM_FACTOR >= comm->config.window_bytes) return !staged || comm->nranks > 2;
        return !staged && comm->nranks > 2;
    case COLLECTIVE_REDUCE_SCATTER: return !staged;
    case COLLECTIVE_ALL_GATHER: return !staged || comm->nranks > 2 || window_is_bare(operation);
    case COLLECTIVE_BROADCAST: return !staged || comm->nranks > 2;
    default: return false;
    }
}

uint64_t window_sent_bytes(const struct operation *operation)
{
    int self = operation->comm->rank, n = operation->comm->nranks;
    uint64_t bytes = (uint64_t)(n - 1) * window_result_bytes(self, operation);
    for (int c = 0; c < n; c++) bytes += c == self ? 0 : window_input_bytes(c, operation);
    return bytes;
}
