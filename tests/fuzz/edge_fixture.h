/* edge_fixture: edges of a communicator whose peers write what they like into the memory that they
 * share with rank 0, and an operation of rank 0 on them. For targets of the executors.
 */
#ifndef TESTS_FUZZ_EDGE_FIXTURE_H
#define TESTS_FUZZ_EDGE_FIXTURE_H

#include "ring/comm.h"
#include "ring/exchange.h"
#include "tests/fuzz/fuzz.h"

#define MOST_RANKS 4
#define CHANNELS   2
#define PLACES     ((CHANNELS + 3) * 2 * MOST_RANKS)
#define SLOT_BYTES 64
#define SLOTS      4
#define EXCHANGE_BYTES ((size_t)2048) /* slots of edges of exchanges; those have lines too */

/* One edge, and the memory that its peer shares. */
struct fuzzed {
    struct edge edge;
    uint64_t tail, head, lines_head;
    unsigned char *slots, *lines;
    struct fifo_record *records;
};

static inline bool drained(const struct edge *edge)
{
    (void)edge;
    return true;
}

static const struct transport shared = {.name = "shared", .peer_reads_slots = true};
static const struct transport staged = {.name = "staged", .drained = drained};

static inline void fuzzed_open(struct fuzzed *fuzzed, enum edge_side side, int peer,
    const struct transport *transport, size_t slot_bytes)
{
    bool exchange = slot_bytes == EXCHANGE_BYTES;
    fuzzed->slots = calloc(SLOTS, slot_bytes);
    fuzzed->records = calloc(SLOTS, sizeof *fuzzed->records);
    fuzzed->lines = exchange ? calloc(LINES_COUNT, EXCHANGE_LINE_BYTES) : NULL;
    fuzzed->edge = (struct edge){
        .fifo = {fuzzed->slots, fuzzed->records, &fuzzed->tail, &fuzzed->head, slot_bytes, SLOTS, 0,
            0},
        .lines = {transport == &shared ? fuzzed->lines : NULL, &fuzzed->lines_head,
            EXCHANGE_LINE_BYTES, 0, 0},
        .config =
            {.side = side, .self = 0, .peer = peer, .slot_bytes = slot_bytes, .slot_count = SLOTS},
        .transport = transport,
        .phase = EDGE_READY,
    };
}

static inline void fuzzed_close(struct fuzzed *fuzzed)
{
    free(fuzzed->slots);
    free(fuzzed->records);
    free(fuzzed->lines);
}

/* A word that may be the right one. */
static inline uint64_t word(uint64_t right, struct fuzz_input *input)
{
    uint8_t how = fuzz_byte(input);
    uint64_t other = 0;
    if (how < 128) return right;
    if (how < 192) return (uint64_t)fuzz_byte(input) | (uint64_t)fuzz_byte(input) << 8;
    fuzz_take(&other, sizeof other, input);
    return other;
}

/* Both buffers of an operation, of just the size that it needs. */
static inline void operation_fill(
    struct operation *operation, const struct ring_comm *comm, bool in_place)
{
    size_t element = dtype_bytes(operation->reduction.dtype), n = (size_t)comm->nranks, begin, own;
    size_t whole =
        operation->stride > 0 ? (n - 1) * operation->stride + operation->count : operation->count;
    operation_chunk(&begin, &own, operation, 0);
    if (collective_chunks(operation->collective, comm->nranks) == 1) whole = own;
    operation->send =
        calloc(1, (operation->send_is_chunk ? own : whole) * element + (operation->count == 0));
    operation->recv =
        calloc(1, (operation->recv_is_chunk ? own : whole) * element + (operation->count == 0));
    bool apart = operation->send_is_chunk || operation->recv_is_chunk ||
                 operation->collective == COLLECTIVE_ALL_TO_ALL;
    if (!in_place || apart) return;
    free((void *)(uintptr_t)operation->send);
    operation->send = operation->recv;
}

#endif
