/* edge_shm: an edge in memory that both processes map. The FIFO of fifo.h is all there is: nothing to carry, so no progress().
 *
 * The consumer creates the segment, anonymous (memfd: no name that could stay behind after SIGKILL), and offers where it is;
 * the producer opens it through /proc/<pid>/fd/<fd>. Ranks that are threads of one process map it twice, so that each may
 * close when it likes (and ThreadSanitizer cannot see across the two: tests/verbs_fifo_test.c shows it the protocol).
 *
 *   offset       bytes          what                  written by
 *   0            64             segment_head          consumer, before the offer
 *   64           64             attached              producer, once
 *   4096         64             tail                  producer (release)
 *   8192         64             head                  consumer (release); a page of the producer's, which touches it first
 *   8256         64             head of the lines     consumer (release)
 *   12288        S·32           records               producer
 *   next page    L·line_bytes   lines (lines.h)       producer
 *   next page    S·slot_bytes   slots                 producer
 *
 * tail and head are on lines of their own: each is written by one core and polled by the other.
 */
#include "verbs/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE           ((size_t)4096)
#define ATTACHED_AT    64
#define TAIL_AT        (1 * PAGE)
#define HEAD_AT        (2 * PAGE)
#define LINES_HEAD_AT  (HEAD_AT + 64)
#define RECORDS_AT     (3 * PAGE)
#define SEGMENT_MAGIC  0x72696e6773686d31u /* "ringshm1" */

struct segment_head {
    uint64_t magic;
    uint64_t nonce; /* the same as in the offer: what was opened is what was offered */
    uint64_t slot_bytes, slot_count;
};

/* The consumer's offer; the producer offers no segment, only its bell. */
struct shm_offer {
    struct bell_offer bell; /* all zero: none */
    uint64_t nonce;
    uint64_t bytes;
    int64_t pid;
    int64_t fd;
};
_Static_assert(sizeof(struct shm_offer) <= EDGE_OFFER_BYTES, "the offer fits");

struct shm_edge {
    unsigned char *segment;
    size_t bytes;
    bool counted; /* consumer: the bytes are in the device's account */
    uint64_t nonce;
    int fd;               /* consumer, until the producer has attached; else -1 */
    uint64_t closed_head; /* producer: its head until it has attached */
};

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static size_t lines_at(const struct edge_config *config)
{
    return RECORDS_AT + round_up(config->slot_count * sizeof(struct fifo_record), PAGE);
}

static size_t slots_at(const struct edge_config *config)
{
    return lines_at(config) + round_up(LINES_COUNT * config->line_bytes, PAGE);
}

static size_t segment_bytes(const struct edge_config *config)
{
    return round_up(slots_at(config) + config->slot_count * config->slot_bytes, PAGE);
}

static void fifo_map(struct edge *edge, unsigned char *segment)
{
    edge->fifo.slots = segment + slots_at(&edge->config);
    edge->fifo.records = (struct fifo_record *)(segment + RECORDS_AT);
    edge->fifo.tail = (uint64_t *)(segment + TAIL_AT);
    edge->fifo.head = (uint64_t *)(segment + HEAD_AT);
    edge->lines.entry_bytes = edge->config.line_bytes;
    edge->lines.head = (uint64_t *)(segment + LINES_HEAD_AT);
    if (edge->config.line_bytes > 0) edge->lines.entries = segment + lines_at(&edge->config);
}

/* Before the segment is attached the producer looks at a head of its own, which says that no slot is free. */
static void fifo_close_door(struct edge *edge)
{
    struct shm_edge *shm = edge->state;
    shm->closed_head = edge->config.start - edge->config.slot_count;
    edge->fifo.head = &shm->closed_head;
    edge->fifo.seen = shm->closed_head;
}

static enum status map_segment(struct shm_edge *shm, const struct edge_config *config)
{
    void *map = mmap(NULL, shm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shm->fd, 0);
    if (map == MAP_FAILED)
        return FAIL(STATUS_SYSTEM,
            "cannot map %zu bytes of shared memory for the edge with rank %d: %s; lower RINGZERO_SLOT_BYTES or RINGZERO_SLOTS",
            shm->bytes, config->peer, strerror(errno));
    shm->segment = map;
    return STATUS_OK;
}

/* Asks for the pages before touching them: where memory is short this is an error with a number, never SIGBUS. */
static enum status create_segment(struct shm_edge *shm, const struct edge_config *config)
{
    shm->fd = memfd_create("ringzero-edge", MFD_CLOEXEC);
    if (shm->fd < 0)
        return FAIL(STATUS_SYSTEM, "memfd_create failed: %s; use --transport tcp", strerror(errno));
    if (ftruncate(shm->fd, (off_t)shm->bytes) != 0 || fallocate(shm->fd, 0, 0, (off_t)shm->bytes) != 0)
        return FAIL(STATUS_SYSTEM,
            "cannot allocate %zu bytes of shared memory for the edge from rank %d: %s; lower RINGZERO_SLOT_BYTES (%zu) or "
            "RINGZERO_SLOTS (%llu), or use --transport tcp",
            shm->bytes, config->peer, strerror(errno), config->slot_bytes, (unsigned long long)config->slot_count);
    return map_segment(shm, config);
}

static enum status shm_offer_consumer(struct edge *edge, struct shm_offer *offer)
{
    struct shm_edge *shm = edge->state;
    TRY(memory_reserve(edge->config.device, MEMORY_COMMUNICATION, shm->bytes));
    shm->counted = true;
    TRY(create_segment(shm, &edge->config));
    if (getrandom(&shm->nonce, sizeof shm->nonce, 0) != (ssize_t)sizeof shm->nonce)
        return FAIL(STATUS_SYSTEM, "getrandom failed: %s", strerror(errno));
    struct segment_head *head = (struct segment_head *)shm->segment;
    *head = (struct segment_head){SEGMENT_MAGIC, shm->nonce, edge->config.slot_bytes, edge->config.slot_count};
    fifo_map(edge, shm->segment);
    *edge->fifo.tail = edge->config.start;
    *edge->fifo.head = edge->config.start;
    offer->nonce = shm->nonce;
    offer->bytes = shm->bytes;
    offer->pid = getpid();
    offer->fd = shm->fd;
    return STATUS_OK;
}

static enum status shm_offer(struct edge *edge, struct edge_offer *out)
{
    struct shm_edge *shm = calloc(1, sizeof *shm);
    if (shm == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->state = shm;
    shm->fd = -1;
    shm->bytes = segment_bytes(&edge->config);
    struct shm_offer offer = {0};
    if (edge->config.bell != NULL) offer.bell = bell_offer(edge->config.bell);
    if (edge->config.side == EDGE_PRODUCER) fifo_close_door(edge);
    else TRY(shm_offer_consumer(edge, &offer));
    memcpy(out->bytes, &offer, sizeof offer);
    return STATUS_OK;
}

static enum status shm_connect_producer(struct edge *edge, const struct shm_offer *peer)
{
    struct shm_edge *shm = edge->state;
    struct shm_offer offer = *peer;
    if (offer.bytes != shm->bytes)
        return FAIL(STATUS_DATA, "rank %d offers a segment of %llu bytes, expected %zu: slots differ between ranks",
            edge->config.peer, (unsigned long long)offer.bytes, shm->bytes);

    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)offer.pid, (long long)offer.fd);
    shm->fd = open(path, O_RDWR | O_CLOEXEC);
    if (shm->fd < 0 && errno == ENOENT) /* it failed and closed, or its process is gone, or is none of this process table */
        return FAIL(STATUS_PEER, "rank %d's memory at %s is gone: if it still runs, the two do not share a process table: use "
            "--transport tcp", edge->config.peer, path);
    if (shm->fd < 0)
        return FAIL(STATUS_SYSTEM, "cannot open rank %d's memory at %s: %s; use --transport tcp", edge->config.peer, path,
            strerror(errno));
    struct stat file;
    if (fstat(shm->fd, &file) != 0 || file.st_size != (off_t)shm->bytes)
        return FAIL(STATUS_PEER, "%s of rank %d holds %lld bytes, expected %zu: it has closed its memory; ranks that do not share a "
            "process table need --transport tcp", path, edge->config.peer, (long long)file.st_size, shm->bytes);
    TRY(map_segment(shm, &edge->config));
    close(shm->fd);
    shm->fd = -1;

    const struct segment_head *head = (const struct segment_head *)shm->segment;
    if (head->magic != SEGMENT_MAGIC || head->nonce != offer.nonce)
        return FAIL(STATUS_PEER, "%s is not the segment that rank %d offered (nonce %llx, expected %llx): it has closed its memory; "
            "ranks that do not share a process table need --transport tcp", path, edge->config.peer,
            (unsigned long long)head->nonce, (unsigned long long)offer.nonce);
    fifo_map(edge, shm->segment);
    edge->fifo.seen = edge->config.start;
    __atomic_store_n((uint64_t *)(shm->segment + ATTACHED_AT), 1, __ATOMIC_RELEASE); /* read by shm_progress() */
    return STATUS_OK;
}

static enum status shm_connect(struct edge *edge, bool *ready)
{
    struct shm_offer offer;
    memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
    if (edge->config.side == EDGE_PRODUCER) TRY(shm_connect_producer(edge, &offer));
    if (offer.bell.pid != 0) edge->peer_bell = bell_attach(&offer.bell);
    *ready = true;
    return STATUS_OK;
}

/* Nothing is carried; the consumer only gives its descriptor back once the producer has opened it. */
static enum status shm_progress(struct edge *edge, bool *moved)
{
    (void)moved;
    struct shm_edge *shm = edge->state;
    if (shm->fd < 0) return STATUS_OK;
    if (__atomic_load_n((uint64_t *)(shm->segment + ATTACHED_AT), __ATOMIC_ACQUIRE) == 0) return STATUS_OK;
    close(shm->fd);
    shm->fd = -1;
    return STATUS_OK;
}

static bool shm_available(const char **why)
{
    int fd = memfd_create("ringzero-probe", MFD_CLOEXEC);
    if (fd < 0) {
        *why = "memfd_create is not allowed here";
        return false;
    }
    close(fd);
    if (access("/proc/self/fd", X_OK) != 0) {
        *why = "/proc is not mounted";
        return false;
    }
    return true;
}

static void shm_close(struct edge *edge)
{
    struct shm_edge *shm = edge->state;
    if (shm == NULL) return;
    bell_detach(edge->peer_bell);
    if (shm->fd >= 0) close(shm->fd);
    if (shm->segment != NULL) munmap(shm->segment, shm->bytes);
    if (shm->counted) memory_count(edge->config.device, MEMORY_COMMUNICATION, -(int64_t)shm->bytes);
    free(shm);
    edge->state = NULL;
}

const struct transport transport_shm = {
    .name = "shm",
    .peer_reads_slots = true,
    .available = shm_available,
    .offer = shm_offer,
    .connect = shm_connect,
    .progress = shm_progress,
    .close = shm_close,
};
