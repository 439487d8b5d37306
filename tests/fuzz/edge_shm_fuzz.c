/* edge_shm_fuzz: a shared segment that a peer made, or that somebody else did: the offer that says where it is, its
 * head, and its counters, records and bytes.
 *
 * input   mode, offer, then the first bytes of the segment
 *   mode bit 0   the offer's size and nonce are put right; bit 1: the segment is shorter than it should be
 *   bit 2        the bell's place is the segment itself, else nowhere
 */
#include "verbs/edge_segment.c"
#include "verbs/edge_shm.c"

#include "tests/fuzz/fuzz.h"

#define SLOT_BYTES 64
#define SLOTS      2

static int make_segment(size_t bytes, struct fuzz_input *input)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) abort();
    /* The pages that matter begin with what the input has for them, 80 bytes each. */
    for (size_t at = 0; at < bytes && input->bytes > 0; at += SEGMENT_PAGE) {
        unsigned char page[80];
        fuzz_take(page, sizeof page, input);
        size_t part = bytes - at < sizeof page ? bytes - at : sizeof page;
        if (pwrite(fd, page, part, (off_t)at) != (ssize_t)part) abort();
    }
    return fd;
}

/* An attached producer looks for room and posts. */
static void produce(struct edge *edge)
{
    for (int i = 0; i < 2 * SLOTS; i++) {
        if (fifo_room(&edge->fifo) == 0 || fifo_room(&edge->fifo) > SLOTS) return;
        memset(fifo_slot(&edge->fifo), 1, SLOT_BYTES);
        fifo_post(&edge->fifo, SLOT_BYTES, 1, 0);
        edge_notify(edge);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    uint8_t mode = fuzz_byte(&input);
    struct edge edge = {.config = {.side = EDGE_PRODUCER, .peer = 1, .slot_bytes = SLOT_BYTES, .slot_count = SLOTS},
        .transport = &transport_shm};
    edge.fifo.slot_bytes = SLOT_BYTES;
    edge.fifo.slot_count = SLOTS;
    struct edge_offer own;
    if (edge.transport->offer(&edge, &own) != STATUS_OK) abort();
    FUZZ_EXPECT(fifo_room(&edge.fifo) == 0); /* the door is closed before the segment is there */

    struct shm_offer offer;
    fuzz_take(&offer, sizeof offer, &input);
    size_t right = segment_bytes(&edge.config);
    int fd = make_segment(mode & 2 ? right - SEGMENT_PAGE : right, &input);
    if (mode & 1) {
        struct segment_head head;
        if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) abort();
        offer.segment.nonce = head.nonce;
        offer.segment.bytes = right;
    }
    offer.segment.pid = getpid(); /* a path of this process's own: only the number of the descriptor may lie */
    offer.segment.fd = fd;
    offer.bell.pid = offer.bell.pid != 0 ? getpid() : 0;
    offer.bell.fd = mode & 4 ? fd : -1;
    memcpy(edge.peer_offer.bytes, &offer, sizeof offer);
    bool ready = false;
    enum status status = edge.transport->connect(&edge, &ready);
    FUZZ_EXPECT((status == STATUS_OK) == ready);
    if (ready) {
        FUZZ_EXPECT(!(mode & 2));
        produce(&edge);
    }
    edge.transport->close(&edge);
    close(fd);
    return 0;
}
