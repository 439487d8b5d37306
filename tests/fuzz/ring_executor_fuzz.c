/* ring_executor_fuzz: an operation of rank 0 whose peers write what they like into the slots, records, counters and lines of its
 * edges, between any two looks at them: the executor may fail with DATA, or with PEER where a record says that its producer took it
 * back, or wait for ever, and that is all.
 *
 * input   nranks, collective, dtype, redop, flags, root, count (2), then actions of 1 to 12 bytes
 *   flags bit 0   in place                bit 1   small ones run as exchanges         bit 2   shared memory, else staged
 *         bit 3   two channels            bit 4   strided (a column)                  bit 5   16-bit sums in float32
 *   action        edge, what: see act()
 *
 * Buffers are as large as the call needs and not a byte more, so a write or a read beyond them is seen by the sanitizer.
 */
#include "ring/exchange_kept.h"
#include "tests/fuzz/edge_fixture.h"

/* Bytes of some chunk: what a record of one slice has to say. */
static uint64_t some_bytes(const struct operation *operation, struct fuzz_input *input)
{
    size_t begin, count;
    operation_chunk(&begin, &count, operation, fuzz_byte(input) % operation->comm->nranks);
    size_t most = SLOT_BYTES / dtype_bytes(operation->reduction.dtype);
    if (!operation->exchanges && count > most) count = most;
    return count * dtype_bytes(operation->reduction.dtype);
}

/* One thing that a peer does to an edge. */
static void act(struct fuzzed *fuzzed, const struct operation *operation, struct fuzz_input *input)
{
    struct fifo_record *record = &fuzzed->records[fuzzed->edge.fifo.step % SLOTS];
    struct lines *lines = &fuzzed->edge.lines;
    uint8_t what = fuzz_byte(input);
    switch (what % 6) {
    case 0: /* a step, honest but for what the input says */
        *record = (struct fifo_record){some_bytes(operation, input), operation->tag, 0, 0};
        fuzzed->tail = fuzzed->edge.fifo.step + 1;
        if (what & 0x80) record->bytes = word(record->bytes, input);
        if (what & 0x40) record->tag = word(record->tag, input);
        if (what & 0x20 && fuzzed->edge.transport == &shared) record->address = word(0, input);
        break;
    case 1: fuzzed->tail = word(fuzzed->edge.fifo.step + 1, input); break;
    case 2: fuzzed->head = word(fuzzed->edge.fifo.step, input); break;
    case 3:
        if (lines->entries == NULL) break;
        lines_entry(lines)->bytes = word(some_bytes(operation, input), input);
        lines_entry(lines)->tag = what & 0x80 ? word(operation->tag, input) : operation->tag;
        lines_entry(lines)->flag = word(lines->step + 1, input);
        break;
    case 4: fuzzed->lines_head = word(lines->step, input); break;
    case 5: memset(fuzzed->slots, what, SLOT_BYTES * SLOTS); break;
    }
}

static void run(struct operation *operation, struct fuzzed *fuzzed, int used, struct fuzz_input *input)
{
    bool done = false;
    enum status status = operation_begin(operation);
    for (int i = 0; i < 200 && status == STATUS_OK && !done; i++) {
        bool moved = false;
        status = operation_advance(operation, &moved, &done);
        if (input->bytes == 0 && !moved) break;
        for (int k = fuzz_byte(input) % 4; k >= 0; k--) act(&fuzzed[fuzz_byte(input) % used], operation, input);
    }
    FUZZ_EXPECT(status == STATUS_OK || status == STATUS_DATA || status == STATUS_PEER);
    char text[160];
    int peer;
    operation_describe_wait(text, sizeof text, &peer, operation);
    operation_end(operation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    int n = 2 + fuzz_byte(&input) % (MOST_RANKS - 1);
    enum collective collective = (enum collective)(fuzz_byte(&input) % COLLECTIVE_COUNT);
    enum dtype dtype = (enum dtype)(fuzz_byte(&input) % DTYPE_COUNT);
    enum redop redop = (enum redop)(fuzz_byte(&input) % REDOP_COUNT);
    uint8_t flags = fuzz_byte(&input), root = fuzz_byte(&input);
    if (!collective_is_reduction(collective)) redop = REDOP_SUM, flags &= (uint8_t)~32; /* as calls without a redop are made */
    size_t count = (size_t)fuzz_byte(&input) | (size_t)(fuzz_byte(&input) & 3) << 8;

    int order[CHANNELS * MOST_RANKS], position[CHANNELS] = {0}, members[MOST_RANKS] = {0, 1, 2, 3};
    for (int i = 0; i < CHANNELS * n; i++) order[i] = i % n;
    struct edge *edges[PLACES] = {NULL};
    struct fuzzed fuzzed[PLACES] = {0};
    struct device *device;
    if (device_open(&device, "host") != STATUS_OK) abort();
    struct ring_comm comm = {.device = device, .nranks = n, .members = members, .order = order, .position = position, .edges = edges, .premul = 1, .one_memory = flags & 4, .on_loopback = !(flags & 4),
        .config = {.slot_bytes = SLOT_BYTES, .slot_count = SLOTS, .exchange_bytes = flags & 2 ? 2048 : 1,
            .star_bytes = flags & 64 ? 2048 : 1, .channels = flags & 8 ? 2 : 1}};
    pthread_mutex_init(&comm.lock, NULL);
    int used = (comm.config.channels + 3) * 2 * n;
    for (int i = 0; i < used; i++) {
        int channel = i / n / 2;
        size_t slot_bytes = channel < comm.config.channels              ? comm_ring_slot_bytes(&comm)
                            : channel >= comm_exchange_channel(&comm) ? EXCHANGE_BYTES
                                                                      : SLOT_BYTES;
        fuzzed_open(&fuzzed[i], (enum edge_side)(i / n % 2), i % n, flags & 4 ? &shared : &staged, slot_bytes);
        edges[i] = &fuzzed[i].edge;
    }

    bool strided = collective_chunks(collective, n) > 1 && (collective != COLLECTIVE_ALL_REDUCE || flags & 16);
    struct operation_room room;
    struct operation operation = {.comm = &comm, .room = &room, .collective = collective, .root = root % n, .count = count, .sequence = 1,
        .stride = strided ? count + (flags & 16 ? 3 : 0) : 0,
        .send_is_chunk = collective == COLLECTIVE_ALL_GATHER || collective == COLLECTIVE_GATHER,
        .recv_is_chunk = collective == COLLECTIVE_REDUCE_SCATTER || collective == COLLECTIVE_SCATTER,
        .reduction = {dtype, redop, n, 1.0, reduce_is_wide(dtype, redop, flags & 32 ? REDUCE_DTYPE_FLOAT32 : REDUCE_DTYPE_OWN, n)}};
    operation_fill(&operation, &comm, flags & 1);
    operation.exchanges = exchange_fits(&operation);
    run(&operation, fuzzed, used, &input);

    if (operation.send != operation.recv) free((void *)(uintptr_t)operation.send);
    free(operation.recv);
    for (int i = 0; i < used; i++) fuzzed_close(&fuzzed[i]);
    exchange_forget(&comm);
    device_close(device);
    pthread_mutex_destroy(&comm.lock);
    return 0;
}
