/* threshold: see threshold.h.
 *
 *   for each collective:   sizes of a part   1K  2K  4K  8K  16K  32K  64K
 *                          halve the range:               ▲ exchange quicker? then right, else left
 *
 * Each size is run as both in turn, in batches; the slowest rank decides.
 */
#include "ring/threshold.h"

#include <math.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/exchange_kept.h"
#include "verbs/clock.h"
#include "verbs/log.h"

#define LEAST_BYTES ((size_t)1 << 10)
#define SIZES       7 /* each twice the one before */
#define MOST_BYTES  (LEAST_BYTES << (SIZES - 1))
#define BATCH       4
#define ROUNDS      3
#define NEVER       1 /* bytes: no element fits */

static const enum collective kinds[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST};
#define KINDS (sizeof kinds / sizeof *kinds)

static enum status call(
    enum collective collective, size_t part_bytes, struct span memory, struct ring_comm *comm)
{
    size_t count = part_bytes / sizeof(float), n = (size_t)comm->nranks;
    struct span recv = memory, send = memory;
    recv.bytes = send.bytes = memory.bytes / 2;
    recv.ptr = (char *)memory.ptr + memory.bytes / 2;
    switch (collective) {
    case COLLECTIVE_ALL_REDUCE:
        return ring_all_reduce(recv, send, n * count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    case COLLECTIVE_REDUCE_SCATTER:
        return ring_reduce_scatter(recv, send, count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    case COLLECTIVE_ALL_GATHER:
        return ring_all_gather(recv, send, count, DTYPE_FLOAT32, comm, NULL);
    default: return ring_broadcast(recv, send, count, DTYPE_FLOAT32, 0, comm, NULL);
    }
}

/* Nanoseconds of one of a batch of calls, one after another as a program makes them: with more
 * ranks than cores a single call may take next to nothing or a slice of the scheduler's. The other
 * way has one element more in each part: the plan of an exchange is kept, and taken for every call
 * of its size. */
static enum status time_batch(double *ns, bool exchanges, enum collective collective,
    size_t part_bytes, struct span memory, struct ring_comm *comm)
{
    comm->exchange_most[collective] = exchanges ? MOST_BYTES : NEVER;
    int64_t begin = clock_ns();
    for (int i = 0; i < BATCH; i++)
        TRY(call(collective, part_bytes + (exchanges ? 0 : sizeof(float)), memory, comm));
    double took = (double)(clock_ns() - begin) / BATCH;
    if (took < *ns) *ns = took;
    return STATUS_OK;
}

/* By the quickest of some batches, of each taken in turn; the first, which opens edges and touches
 * memory, does not count. */
static enum status is_quicker(bool *quicker, enum collective collective, size_t part_bytes,
    struct span memory, struct ring_comm *comm)
{
    double ns[2]; /* of the other way, of the exchange */
    for (int round = 0; round <= ROUNDS; round++) {
        if (round <= 1) ns[0] = ns[1] = INFINITY;
        TRY(time_batch(&ns[0], false, collective, part_bytes, memory, comm));
        TRY(time_batch(&ns[1], true, collective, part_bytes, memory, comm));
    }
    struct span both = span_host(ns, sizeof ns);
    TRY(ring_all_reduce(both, both, 2, DTYPE_FLOAT64, REDOP_MAX, comm, NULL));
    *quicker = ns[1] <= ns[0];
    return STATUS_OK;
}

static enum status search(enum collective collective, struct span memory, struct ring_comm *comm)
{
    int below = 0,
        above =
            SIZES; /* sizes before `below` are quicker as exchanges, those from `above` on are not */
    while (below < above) {
        int middle = (below + above) / 2;
        bool quicker = false;
        TRY(is_quicker(&quicker, collective, LEAST_BYTES << middle, memory, comm));
        if (quicker) below = middle + 1;
        else above = middle;
    }
    comm->exchange_most[collective] = below == 0 ? NEVER : LEAST_BYTES << (below - 1);
    return STATUS_OK;
}

static enum status search_all(struct ring_comm *comm)
{
    struct span memory;
    enum status status = STATUS_OK;
    size_t found[COLLECTIVE_COUNT] = {0};
    TRY(memory_alloc(
        &memory, 2 * (size_t)comm->nranks * (MOST_BYTES + 64), MEMORY_WORKSPACE, comm->device));
    memset(memory.ptr, 0, memory.bytes);
    for (size_t k = 0; k < KINDS; k++) {
        TRY_GOTO(search(kinds[k], memory, comm));
        found[kinds[k]] = comm->exchange_most[kinds[k]];
        comm->exchange_most[kinds[k]] = 0; /* the next one's comparisons add up times by exchange */
    }
    memcpy(comm->exchange_most, found, sizeof found);
fail:
    memory_free(&memory, MEMORY_WORKSPACE, comm->device);
    return status;
}

enum status threshold_measure(struct ring_comm *comm)
{
    comm->exchange_measured = true;
    comm->config.exchange_bytes = COMM_EXCHANGE_BYTES;
    if (comm->nranks < 2 || comm->nranks > EXCHANGE_MOST_RANKS) return STATUS_OK;
    int64_t begin = clock_ns();
    comm->config.exchange_bytes =
        MOST_BYTES; /* so large are the slots of the edges that are opened now */
    TRY(search_all(comm));
    exchange_forget(comm);
    comm->counters = comm->small = (struct ring_counters){0};
    size_t most = NEVER;
    for (size_t k = 0; k < KINDS; k++)
        if (comm->exchange_most[kinds[k]] > most) most = comm->exchange_most[kinds[k]];
    comm->config.exchange_bytes = most;
    if (comm->rank == 0)
        LOG_INFO("ring",
            "RINGZERO_EXCHANGE_BYTES measured in %.1f ms: all_reduce %zu, reduce_scatter %zu, "
            "all_gather %zu, broadcast %zu "
            "(1: none)",
            (double)(clock_ns() - begin) / 1e6, comm->exchange_most[COLLECTIVE_ALL_REDUCE],
            comm->exchange_most[COLLECTIVE_REDUCE_SCATTER],
            comm->exchange_most[COLLECTIVE_ALL_GATHER], comm->exchange_most[COLLECTIVE_BROADCAST]);
    return STATUS_OK;
}
