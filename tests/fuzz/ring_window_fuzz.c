/* ring_window_fuzz: an operation of rank 0 by windows whose peers, all owners of one book, write
 * what they like into records, counters and the book, between any two looks at them: the
 * operation may fail with DATA, PEER or SYSTEM, or wait for ever, and that is all: it maps and
 * reads nothing that is not a region, and opens nothing that makes it wait.
 *
 * input   nranks, collective, dtype, redop, flags, root, count (2), then actions of 1 to 12 bytes
 *   flags bit 0   in place                bit 1   own memory is of ring_alloc()
 *   action        edge, what: see act()
 */
#include "verbs/region.c"

#include "ring/progress.h"
#include "ring/window_part.h"
#include "ring/window_stage.h"
#include "tests/fuzz/edge_fixture.h"

#define REGION_BYTES 100000

static const enum collective kinds[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST};

/* What the peers have. */
struct peers {
    struct region_book *book;
    unsigned char *region, *stage;
    uint64_t region_reference, stage_reference;
    int fifo; /* who opens it to read waits for a writer, and there is none */
};

static void peers_open(struct peers *peers)
{
    if (region_book_open(&peers->book) != STATUS_OK) abort();
    peers->stage = region_alloc_stage(8192, peers->book);
    peers->region = region_alloc(REGION_BYTES, peers->book);
    if (peers->stage == NULL) abort();
    peers->region_reference = region_reference(peers->region, 1, peers->book);
    peers->stage_reference = region_reference(peers->stage, 1, peers->book);
    char path[64];
    snprintf(path, sizeof path, "/tmp/ringzero-fuzz-%d", (int)getpid());
    if (peers->region == NULL || mkfifo(path, 0600) != 0) abort();
    peers->fifo = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    unlink(path);
}

static void peers_close(struct peers *peers, const struct book_entry *honest)
{
    memcpy(peers->book->page->entries, honest, sizeof peers->book->page->entries);
    region_free(peers->region, peers->book);
    region_book_close(peers->book);
    close(peers->fifo);
}

/* The next record of an edge, honest but for what the input says. */
static void say(struct fuzzed *fuzzed, uint8_t what, const struct operation *operation,
    const struct peers *peers, struct fuzz_input *input)
{
    struct fifo_record *record = &fuzzed->records[fuzzed->edge.fifo.step % SLOTS];
    uint64_t bytes = window_input_bytes(0, operation);
    if (what & 0x80) bytes = window_result_bytes(fuzzed->edge.config.peer, operation);
    uint64_t reference = fuzz_byte(input) & 1 ? peers->stage_reference : peers->region_reference;
    bytes = word(bytes, input);
    *record = (struct fifo_record){bytes, operation->tag, 0, word(reference, input)};
    if (what & 0x80) record->reference |= REGION_MARK;
    if (what & 0x40) record->tag = word(record->tag, input);
    fuzzed->tail = fuzzed->edge.fifo.step + 1;
}

/* One thing that a peer does. */
static void act(struct fuzzed *fuzzed, const struct operation *operation, const struct peers *peers,
    struct fuzz_input *input)
{
    struct book_page *page = peers->book->page;
    uint8_t what = fuzz_byte(input);
    struct book_entry *entry = &page->entries[what / 8 % 2 * OTHERS_AT];
    switch (what % 8) {
    case 0:
    case 1: say(fuzzed, what, operation, peers, input); break;
    case 2: fuzzed->tail = word(fuzzed->edge.fifo.step + 1, input); break;
    case 3: fuzzed->head = word(fuzzed->edge.fifo.step, input); break;
    case 4: fuzzed->head = fuzzed->edge.fifo.step; break; /* has read all */
    case 5:
        entry->id = word(entry->id, input);
        entry->bytes = word(REGION_BYTES, input);
        entry->fd = (int64_t)word((uint64_t)peers->fifo, input);
        break;
    case 6: entry->bytes = word(8192, input); break;
    case 7: page->given_up = what & 0x80 ? 1 : 0; break;
    }
}

static void run(struct operation *operation, struct fuzzed *fuzzed, int used,
    const struct peers *peers, struct fuzz_input *input)
{
    bool done = false;
    enum status status = operation_begin(operation);
    for (int i = 0; i < 200 && status == STATUS_OK && !done; i++) {
        bool moved = false;
        status = operation_advance(operation, &moved, &done);
        if (input->bytes == 0 && !moved) break;
        for (int k = fuzz_byte(input) % 4; k >= 0; k--)
            act(&fuzzed[fuzz_byte(input) % used], operation, peers, input);
    }
    FUZZ_EXPECT(status == STATUS_OK || status == STATUS_DATA || status == STATUS_PEER);
    char text[160];
    int peer;
    operation_describe_wait(text, sizeof text, &peer, operation);
    operation_end(operation);
}

/* Its own memory, where it is to be a region. */
static void move_to_region(struct operation *operation, size_t bytes, struct region_book *book)
{
    unsigned char *region = region_alloc(bytes, book);
    if (region == NULL) abort();
    bool in_place = operation->send == operation->recv;
    free((void *)(uintptr_t)operation->send);
    operation->send = region;
    if (in_place) operation->recv = region;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    int n = 2 + fuzz_byte(&input) % (MOST_RANKS - 1);
    enum collective collective = kinds[fuzz_byte(&input) % 4];
    enum dtype dtype = (enum dtype)(fuzz_byte(&input) % DTYPE_COUNT);
    enum redop redop = (enum redop)(fuzz_byte(&input) % REDOP_PREMUL_SUM);
    uint8_t flags = fuzz_byte(&input), root = fuzz_byte(&input);
    size_t count = 1 + ((size_t)fuzz_byte(&input) | (size_t)(fuzz_byte(&input) & 31) << 8);
    if (!collective_is_reduction(collective)) redop = REDOP_SUM;

    int order[MOST_RANKS] = {0, 1, 2, 3}, position[1] = {0}, members[MOST_RANKS] = {0, 1, 2, 3};
    struct edge *edges[PLACES] = {NULL};
    struct fuzzed fuzzed[2 * MOST_RANKS] = {0};
    struct region_offer books[MOST_RANKS];
    struct region_view *views[MOST_RANKS] = {NULL};
    struct device *device;
    struct peers peers;
    if (device_open(&device, "host") != STATUS_OK) abort();
    peers_open(&peers);
    struct book_entry honest[ENTRIES];
    memcpy(honest, peers.book->page->entries, sizeof honest);
    struct ring_comm comm = {.device = device,
        .nranks = n,
        .members = members,
        .order = order,
        .position = position,
        .edges = edges,
        .premul = 1,
        .has_windows = true,
        .books = books,
        .views = views,
        .config = {.slot_bytes = SLOT_BYTES,
            .slot_count = SLOTS,
            .exchange_bytes = 1,
            .window_bytes = 1,
            .check_roots_bytes = SIZE_MAX,
            .channels = 1}};
    pthread_mutex_init(&comm.lock, NULL);
    if (region_book_open(&comm.book) != STATUS_OK) abort();
    if (progress_open(&comm.progress) != STATUS_OK) abort();
    for (int i = 0; i < 2 * n; i++) {
        books[i % n] = region_book_offer(peers.book);
        fuzzed_open(&fuzzed[i], (enum edge_side)(i / n), i % n, &shared, EXCHANGE_BYTES);
        *comm_edge_place(comm_exchange_channel(&comm), (enum edge_side)(i / n), i % n, &comm) =
            &fuzzed[i].edge;
    }

    bool strided = collective_chunks(collective, n) > 1 && collective != COLLECTIVE_ALL_REDUCE;
    struct operation_room room;
    struct operation operation = {.comm = &comm,
        .room = &room,
        .collective = collective,
        .root = root % n,
        .count = count,
        .sequence = 1,
        .stride = strided ? count : 0,
        .windows = true,
        .has_memory = true,
        .send_is_chunk = collective == COLLECTIVE_ALL_GATHER,
        .recv_is_chunk = collective == COLLECTIVE_REDUCE_SCATTER,
        .reduction = {dtype, redop, n, 1.0, false}};
    operation_fill(&operation, &comm, flags & 1);
    if (flags & 2) move_to_region(&operation, (size_t)n * count * dtype_bytes(dtype), comm.book);
    run(&operation, fuzzed, 2 * n, &peers, &input);

    bool in_place = operation.send == operation.recv;
    if (!region_free((void *)(uintptr_t)operation.send, comm.book))
        free((void *)(uintptr_t)operation.send);
    if (!in_place) free(operation.recv);
    for (int i = 0; i < 2 * n; i++) fuzzed_close(&fuzzed[i]);
    for (int r = 0; r < n; r++) region_view_close(views[r]);
    window_stage_close(&comm);
    region_book_close(comm.book);
    progress_close(comm.progress);
    peers_close(&peers, honest);
    device_close(device);
    pthread_mutex_destroy(&comm.lock);
    return 0;
}
