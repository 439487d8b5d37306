/* operation: what an operation is, whatever runs it: its chunks, its word for the wire, its words for people.
 *
 *   tag, one word in every slice     bits 0–15    sequence of the communicator        0 of sends and receives
 *                                    16–22        collective                          send for both ends
 *                                    23           its buffers are in CUDA memory
 *                                    24–27, 28–30 dtype, redop
 *                                    31           sums travel in float32
 *                                    32–39        root, mod 256                       0 of sends and receives
 *                                    40–62        count where it fits and is all that cuts the buffer, else a hash of all that does
 *                                    63           it is a hash
 */
#include "ring/operation.h"

#include <stdio.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/exchange.h"
#include "ring/kernel_host.h"
#include "ring/reach.h"
#include "ring/window.h"
#include "ring/roll_call.h"

#define COUNT_BITS 23

void operation_chunk(size_t *begin, size_t *count, const struct operation *operation, int c)
{
    int n = operation->reduction.nranks;
    if (operation->begins != NULL) {
        *begin = operation->begins[c];
        *count = operation->begins[c + 1] - *begin;
    } else if (collective_chunks(operation->collective, n) == 1) {
        *begin = 0;
        *count = operation->count;
    } else if (operation->stride == 0) {
        *begin = ring_chunk_begin(operation->count, n, c);
        *count = operation->count / (size_t)n + ((size_t)c < operation->count % (size_t)n);
    } else {
        *begin = (size_t)c * operation->stride;
        *count = operation->count;
    }
}

struct operation operation_of_call(
    const struct ring_call *call, const size_t *begins, struct ring_comm *comm)
{
    enum collective collective = call->collective;
    int n = comm->nranks;
    bool strided = collective != COLLECTIVE_ALL_REDUCE && collective_chunks(collective, n) > 1;
    return (struct operation){
        .comm = comm,
        .collective = collective,
        .reduction = {.dtype = call->dtype,
            .redop = call->redop,
            .nranks = n,
            .wide = reduce_is_wide(call->dtype, call->redop, call->reduce_dtype, n)},
        .root = call->root,
        .count = begins != NULL ? begins[n] : call->count,
        .stride = call->stride != 0 ? call->stride : strided && begins == NULL ? call->count : 0,
        .begins = begins,
        .has_memory = comm->has_memory,
        .recv_is_chunk = collective == COLLECTIVE_REDUCE_SCATTER,
        .send_is_chunk = collective == COLLECTIVE_ALL_GATHER,
    };
}

static bool between_two(enum collective collective)
{
    return collective == COLLECTIVE_SEND || collective == COLLECTIVE_RECV;
}

static uint64_t count_word(const struct operation *operation)
{
    if (operation->count < (uint64_t)1 << COUNT_BITS && operation->begins == NULL &&
        (operation->stride == 0 || operation->stride == operation->count))
        return operation->count;
    uint64_t hash = (operation->count * 0x9e3779b97f4a7c15u) ^ (operation->stride * 0xc2b2ae3d27d4eb4fu);
    for (int c = 0; operation->begins != NULL && c <= operation->reduction.nranks; c++)
        hash = (hash ^ operation->begins[c]) * 0x9e3779b97f4a7c15u;
    return (uint64_t)1 << COUNT_BITS | hash >> (64 - COUNT_BITS);
}

uint64_t operation_tag(const struct operation *operation)
{
    uint64_t what = between_two(operation->collective) /* ranks count their sends and receives for themselves */
                        ? (uint64_t)COLLECTIVE_SEND << 16
                        : (operation->sequence & OPERATION_TAG_SEQUENCE) | (uint64_t)operation->collective << 16 |
                              ((uint64_t)operation->root & 0xff) << 32;
    return what | (uint64_t)operation->reduction.dtype << 24 | (uint64_t)operation->reduction.redop << 28 |
           (uint64_t)operation->on_device << 23 | (uint64_t)operation->reduction.wide << 31 | count_word(operation) << 40;
}

/* ---- words ---- */

static void describe(char *text, size_t bytes, enum collective collective, unsigned long long sequence, const char *count,
    enum dtype dtype, enum redop redop, bool wide, bool on_device, int root)
{
    bool reduces = collective_is_reduction(collective);
    const char *word = collective == COLLECTIVE_SEND ? "to rank" : collective == COLLECTIVE_RECV ? "from rank" : "root";
    char at_root[32] = "";
    if (collective_is_rooted(collective) && root >= 0) snprintf(at_root, sizeof at_root, ", %s %d", word, root);
    snprintf(text, bytes, "%s #%llu (%s %s%s%s%s%s%s)", collective_name(collective), sequence, count, dtype_name(dtype),
        reduces ? ", " : "", reduces ? redop_name(redop) : "", reduces && wide ? " in float32" : "",
        on_device ? " in CUDA memory" : "", at_root);
}

void operation_describe(char *text, size_t bytes, const struct operation *operation)
{
    char count[24];
    snprintf(count, sizeof count, "%zu", operation->count);
    describe(text, bytes, operation->collective, (unsigned long long)operation->sequence, count, operation->reduction.dtype,
        operation->reduction.redop, operation->reduction.wide, operation->on_device, operation->root);
}

bool operation_describe_tag(char *text, size_t bytes, uint64_t tag)
{
    enum collective collective = (enum collective)(tag >> 16 & 0x7f);
    enum dtype dtype = (enum dtype)(tag >> 24 & 0xf);
    enum redop redop = (enum redop)(tag >> 28 & 7);
    if ((unsigned)collective >= COLLECTIVE_COUNT || (unsigned)dtype >= DTYPE_COUNT || (unsigned)redop >= REDOP_COUNT)
        return false;
    char count[24] = "another count of";
    if (tag >> 63 == 0) snprintf(count, sizeof count, "%llu", (unsigned long long)(tag >> 40));
    describe(text, bytes, collective, tag & 0xffff, count, dtype, redop, (tag >> 31 & 1) != 0, (tag >> 23 & 1) != 0,
        collective == COLLECTIVE_SEND ? -1 : (int)(tag >> 32 & 0xff));
    return true;
}

enum status operation_mismatch(const struct operation *operation, int other, uint64_t tag)
{
    char mine[160], theirs[160];
    int self = comm_name(operation->comm, operation->comm->rank), peer = comm_name(operation->comm, other);
    operation_describe(mine, sizeof mine, operation);
    if (!operation_describe_tag(theirs, sizeof theirs, tag))
        return FAIL(STATUS_DATA, "rank %d: %s: rank %d sent a slice of no operation (tag %llx)", self, mine, peer,
            (unsigned long long)tag);
    return FAIL(STATUS_DATA, "rank %d calls %s, but rank %d calls %s: all ranks must call the same collectives with the same "
        "arguments in the same order", self, mine, peer, theirs);
}

enum status operation_check_slice(
    const struct operation *operation, int from, uint64_t tag, uint64_t bytes, size_t expected_bytes)
{
    if (tag == REACH_TAKEN_BACK)
        return FAIL(STATUS_PEER, "rank %d gave up and took its data back", comm_name(operation->comm, from));
    if (tag != operation->tag) return operation_mismatch(operation, from, tag);
    if (bytes == expected_bytes) return STATUS_OK;
    char mine[160];
    operation_describe(mine, sizeof mine, operation);
    return FAIL(STATUS_DATA, "rank %d: %s: rank %d sent a slice of %llu bytes, expected %zu: the counts or tunables of the two "
        "ranks differ", comm_name(operation->comm, operation->comm->rank), mine, comm_name(operation->comm, from),
        (unsigned long long)bytes, expected_bytes);
}

bool operation_is_read(const struct operation *operation, struct edge *edge)
{
    return operation->lends && edge->config.side == EDGE_PRODUCER && edge->slots_kind == MEMORY_CUDA && fifo_unfreed(&edge->fifo) > 0;
}

const struct edge *operation_reader(const struct operation *operation)
{
    for (int e = 0; e < operation->edge_count; e++)
        if (operation_is_read(operation, operation->edges[e])) return operation->edges[e];
    return NULL;
}

void operation_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation)
{
    *rank = -1;
    snprintf(text, bytes, "its turn");
    if (operation->begun && operation->exchanges) {
        exchange_describe_wait(text, bytes, rank, operation);
        return;
    }
    if (operation->begun && operation->windows && !operation->room->window.ended) {
        window_describe_wait(text, bytes, rank, operation);
        return;
    }
    if (operation->begun && (operation->kernel == KERNEL_WAITS || operation->kernel == KERNEL_RUNS)) {
        kernel_describe_wait(text, bytes, rank, operation);
        return;
    }
    if (operation->oldest != NULL) {
        snprintf(text, bytes, "its device (%s) to work on a slice", device_name(operation->comm->device));
        return;
    }
    bool draining = true;
    for (int channel = 0; channel < operation->cursor_count; channel++)
        draining = draining && operation->room->cursors[channel].wait == CURSOR_DRAINING;
    const struct edge *reader = draining ? operation_reader(operation) : NULL;
    if (reader != NULL) {
        *rank = comm_rank_of(reader, operation->comm);
        snprintf(text, bytes, "rank %d to read what this rank's memory holds (%s)", reader->config.peer, reader->transport->name);
        return;
    }
    for (int channel = 0; channel < operation->cursor_count; channel++) {
        const struct cursor *cursor = &operation->room->cursors[channel];
        if (cursor->waits_for < 0 || (cursor->wait == CURSOR_DRAINING && roll_call_waits_for(operation) >= 0)) continue;
        const struct edge *edge = cursor->wait == CURSOR_DRAINING ? cursor->producer : cursor->waits_on;
        const char *what = edge != NULL && edge->phase != EDGE_READY ? "the connection with"
                           : cursor->wait == CURSOR_WAITS_DATA       ? "data from"
                           : cursor->wait == CURSOR_WAITS_ROOM       ? "room at"
                                                                     : "the last bytes to leave for";
        *rank = cursor->waits_for;
        size_t slice = cursor->at.block + cursor->at.slice + 1; /* one past the last, when only draining is left */
        snprintf(text, bytes, "%s rank %d (step %d of %d, slice %zu of %zu, %s)", what, comm_name(operation->comm, *rank), cursor->at.step + 1,
            cursor->plan.steps, slice < cursor->slices ? slice : cursor->slices, cursor->slices,
            edge != NULL ? edge->transport->name : "no edge");
        return;
    }
    if (!operation->begun || roll_call_waits_for(operation) < 0) return;
    *rank = roll_call_waits_for(operation);
    snprintf(text, bytes, "rank %d to say that it calls the same (roll call %d of %d)", comm_name(operation->comm, *rank),
        operation->roll_call.round + 1, operation->roll_call.rounds);
}

/* ---- order ---- */

/* Operations of a communicator run one after another, since they share edges; those of a group only where they share one: rings
 * with rings, those that call the roll, direct collectives with all that is direct, sends and receives with those to or from the same peer. */
bool operation_must_follow(const struct operation *operation, const struct operation *older)
{
    if (operation->group == 0 || older->group != operation->group) return true;
    bool ring = collective_is_on_ring(operation->collective), older_ring = collective_is_on_ring(older->collective);
    if (roll_call_wanted(operation) && roll_call_wanted(older)) return true; /* over the same edges */
    if (ring != older_ring) return false;
    if (!between_two(operation->collective) || !between_two(older->collective)) return true;
    return operation->collective == older->collective && operation->root == older->root;
}
