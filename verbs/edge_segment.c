/* edge_segment: see edge_segment.h. */
#include "verbs/edge_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define ATTACHED_AT   64
#define TAIL_AT       (1 * SEGMENT_PAGE)
#define HEAD_AT       (2 * SEGMENT_PAGE)
#define LINES_HEAD_AT (HEAD_AT + 64)
#define RECORDS_AT    (3 * SEGMENT_PAGE)
#define SEGMENT_MAGIC 0x72696e6773686d31u /* "ringshm1" */

struct segment_head {
    uint64_t magic;
    uint64_t nonce; /* the same as in the offer: what was opened is what was offered */
    uint64_t slot_bytes, slot_count;
};
_Static_assert(sizeof(struct segment_head) <= ATTACHED_AT, "the head fits");

static size_t whole_pages(size_t bytes)
{
    return (bytes + SEGMENT_PAGE - 1) / SEGMENT_PAGE * SEGMENT_PAGE;
}

static size_t lines_at(const struct edge_config *config)
{
    return RECORDS_AT + whole_pages(config->slot_count * sizeof(struct fifo_record));
}

size_t segment_slots_at(const struct edge_config *config)
{
    return lines_at(config) + whole_pages(LINES_COUNT * config->line_bytes);
}

size_t segment_bytes(const struct edge_config *config)
{
    return whole_pages(
        segment_slots_at(config) + config->slot_count * (config->slot_bytes + config->flagged_bytes));
}

void segment_map_fifo(struct edge *edge, const struct segment *segment)
{
    unsigned char *map = segment->map;
    edge->fifo.records = (struct fifo_record *)(void *)(map + RECORDS_AT);
    edge->fifo.tail = (uint64_t *)(void *)(map + TAIL_AT);
    edge->fifo.head = (uint64_t *)(void *)(map + HEAD_AT);
    edge->lines.entry_bytes = edge->config.line_bytes;
    edge->lines.head = (uint64_t *)(void *)(map + LINES_HEAD_AT);
    if (edge->config.line_bytes > 0) edge->lines.entries = map + lines_at(&edge->config);
}

static enum status map_segment(struct segment *segment, const struct edge_config *config)
{
    void *map = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);
    if (map == MAP_FAILED)
        return FAIL(STATUS_SYSTEM,
            "cannot map %zu bytes of shared memory for the edge with rank %d: %s; lower "
            "RINGZERO_SLOT_BYTES or RINGZERO_SLOTS",
            segment->bytes, config->peer, strerror(errno));
    segment->map = map;
    return STATUS_OK;
}

static enum status ask_for(
    const struct segment *segment, size_t from, size_t to, const struct edge_config *config)
{
    if (from == to || fallocate(segment->fd, 0, (off_t)from, (off_t)(to - from)) == 0)
        return STATUS_OK;
    return FAIL(STATUS_SYSTEM,
        "cannot allocate %zu bytes of shared memory for the edge with rank %d: %s; lower "
        "RINGZERO_SLOT_BYTES (%zu) or RINGZERO_SLOTS (%llu), or use --transport tcp",
        to - from, config->peer, strerror(errno), config->slot_bytes,
        (unsigned long long)config->slot_count);
}

enum status segment_ask_for_slots(const struct segment *segment, const struct edge_config *config)
{
    return ask_for(segment, segment_slots_at(config), segment->bytes, config);
}

enum status segment_create(struct segment *segment, struct segment_offer *offer, bool with_slots,
    const struct edge_config *config)
{
    segment->bytes = segment_bytes(config);
    segment->fd = memfd_create("ringzero-edge", MFD_CLOEXEC);
    if (segment->fd < 0)
        return FAIL(STATUS_SYSTEM, "memfd_create failed: %s; raise ulimit -n or use --transport tcp",
            strerror(errno));
    if (ftruncate(segment->fd, (off_t)segment->bytes) != 0)
        return FAIL(STATUS_SYSTEM, "cannot size shared memory to %zu bytes: %s", segment->bytes,
            strerror(errno));
    TRY(ask_for(segment, 0, with_slots ? segment->bytes : segment_slots_at(config), config));
    TRY(map_segment(segment, config));
    if (getrandom(&segment->nonce, sizeof segment->nonce, 0) != (ssize_t)sizeof segment->nonce)
        return FAIL(STATUS_SYSTEM, "getrandom failed: %s", strerror(errno));
    *(struct segment_head *)(void *)segment->map = (struct segment_head){
        SEGMENT_MAGIC, segment->nonce, config->slot_bytes, config->slot_count};
    *(uint64_t *)(void *)(segment->map + TAIL_AT) = config->start;
    *(uint64_t *)(void *)(segment->map + HEAD_AT) = config->start;
    *offer = (struct segment_offer){segment->nonce, segment->bytes, getpid(), segment->fd};
    return STATUS_OK;
}

static enum status open_offered(
    struct segment *segment, const struct segment_offer *offer, const struct edge_config *config)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)offer->pid, (long long)offer->fd);
    /* Its number may name something else by now: a pipe is not waited for, a socket is ENXIO. */
    segment->fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    /* it failed and closed, or its process is gone, or is none of this process table */
    if (segment->fd < 0 && (errno == ENOENT || errno == ENXIO || errno == EISDIR))
        return FAIL(STATUS_PEER,
            "rank %d's memory at %s is gone: if it still runs, the two do not share a process "
            "table: use --transport tcp",
            config->peer, path);
    if (segment->fd < 0)
        return FAIL(STATUS_SYSTEM,
            "cannot open rank %d's memory at %s: %s; raise ulimit -n or use --transport tcp",
            config->peer, path, strerror(errno));
    struct stat file;
    if (fstat(segment->fd, &file) != 0 || file.st_size != (off_t)segment->bytes)
        return FAIL(STATUS_PEER,
            "%s of rank %d holds %lld bytes, expected %zu: it has closed its memory; ranks that do "
            "not share a process table need --transport tcp",
            path, config->peer, (long long)file.st_size, segment->bytes);
    TRY(map_segment(segment, config));
    const struct segment_head *head = (const struct segment_head *)(const void *)segment->map;
    if (head->magic == SEGMENT_MAGIC && head->nonce == offer->nonce) return STATUS_OK;
    return FAIL(STATUS_PEER,
        "%s is not the segment that rank %d offered (nonce %llx, expected %llx): it has closed its "
        "memory; ranks that do not share a process table need --transport tcp",
        path, config->peer, (unsigned long long)head->nonce, (unsigned long long)offer->nonce);
}

enum status segment_attach(
    struct segment *segment, const struct segment_offer *offer, const struct edge_config *config)
{
    segment->bytes = segment_bytes(config);
    if (offer->bytes != segment->bytes)
        return FAIL(STATUS_DATA,
            "rank %d offers a segment of %llu bytes, expected %zu: slots differ between ranks",
            config->peer, (unsigned long long)offer->bytes, segment->bytes);
    TRY(open_offered(segment, offer, config));
    segment->nonce = offer->nonce;
    /* read by segment_attached_by() */
    __atomic_store_n(
        (uint64_t *)(void *)(segment->map + ATTACHED_AT), (uint64_t)getpid(), __ATOMIC_SEQ_CST);
    return STATUS_OK;
}

int64_t segment_attached_by(const struct segment *segment)
{
    const uint64_t *attached = (const uint64_t *)(const void *)(segment->map + ATTACHED_AT);
    return (int64_t)__atomic_load_n(attached, __ATOMIC_SEQ_CST); /* written by segment_attach() */
}

void segment_give_back(struct segment *segment)
{
    if (segment->map == NULL || segment->fd < 0 || segment_attached_by(segment) == 0) return;
    close(segment->fd);
    segment->fd = -1;
}

void segment_close(struct segment *segment)
{
    if (segment->bytes == 0) return;
    if (segment->fd >= 0) close(segment->fd);
    if (segment->map != NULL) munmap(segment->map, segment->bytes);
    *segment = (struct segment){.fd = -1};
}

bool segment_available(const char **why, const struct device *device)
{
    (void)device;
    int fd = memfd_create("ringzero-probe", MFD_CLOEXEC);
    if (fd < 0) {
        bool lacks = errno == EMFILE || errno == ENFILE;
        *why = lacks ? "there are too few file descriptors (raise ulimit -n)"
                     : "memfd_create is not allowed here";
        return false;
    }
    close(fd);
    if (access("/proc/self/fd", X_OK) != 0) {
        *why = "/proc is not mounted";
        return false;
    }
    return true;
}
