/* edge_segment: the memory on the host that both ends of an edge map: for transports whose ends
 * share a host.
 *
 * The consumer creates the segment, anonymous (memfd: no name that could stay behind after
 * SIGKILL), and offers where it is; the producer opens it through /proc/<pid>/fd/<fd>. Ranks that
 * are threads of one process map it twice, so that each may close when it likes (and
 * ThreadSanitizer cannot see across the two: tests/verbs_fifo_test.c shows it the protocol).
 *
 *   offset       bytes          what                      written by
 *   0            64             segment_head              consumer, before the offer
 *   64           8              attached: its process     producer, once
 *   72           56             words of the transport
 *   4096         64             tail                      producer (release)
 *   8192         64             head                      consumer (release); first touched by the producer
 *   8256         64             head of the lines         consumer (release)
 *   12288        S·32           records                   producer
 *   next page    L·line_bytes   lines (lines.h)           producer
 *   next page    S·slot_bytes   slots, if they are here   producer
 *   behind them  S·flagged_bytes  see struct edge         producer
 *
 * tail and head are on lines of their own: each is written by one core and polled by the other.
 */
#ifndef VERBS_EDGE_SEGMENT_H
#define VERBS_EDGE_SEGMENT_H

#include "verbs/transport.h"

#define SEGMENT_PAGE     ((size_t)4096)
#define SEGMENT_WORDS_AT 72

struct segment {
    unsigned char *map; /* NULL: none */
    size_t bytes;       /* of all, slots included */
    uint64_t nonce;
    int fd; /* until it is given back; else -1 */
};

/* All zero: none. */
struct segment_offer {
    uint64_t nonce, bytes;
    int64_t pid, fd;
};

size_t segment_slots_at(const struct edge_config *config);
size_t segment_bytes(const struct edge_config *config);

/* Consumer: creates it, head and counters written. The memory of all but the slots is asked for at
 * once, of the slots too if wanted: where it is short this is an error with a number, never SIGBUS.
 * errors: SYSTEM, with what to do. */
MUST_CHECK enum status segment_create(struct segment *segment, struct segment_offer *offer,
    bool with_slots, const struct edge_config *config);

/* Asks for the memory of the slots, by either side. errors: SYSTEM. */
MUST_CHECK enum status segment_ask_for_slots(
    const struct segment *segment, const struct edge_config *config);

/* Producer: maps what the consumer offers, and says so to it. The descriptor stays, for
 * segment_ask_for_slots(), until segment_give_back(). errors: PEER when it is gone, DATA when the
 * sides disagree, SYSTEM. */
MUST_CHECK enum status segment_attach(
    struct segment *segment, const struct segment_offer *offer, const struct edge_config *config);

/* Gives the descriptor back, if the producer has attached. */
void segment_give_back(struct segment *segment);
/* The producer's process id; 0: it has not attached. */
int64_t segment_attached_by(const struct segment *segment);

/* The edge's records, counters and lines are those of the segment. Its slots are the caller's to
 * set. */
void segment_map_fifo(struct edge *edge, const struct segment *segment);

/* Word 0 to 6 of the transport. */
static inline uint64_t *segment_word(const struct segment *segment, int index)
{
    return (uint64_t *)(void *)(segment->map + SEGMENT_WORDS_AT) + index;
}

/* Accepts a zeroed one. */
void segment_close(struct segment *segment);

/* Whether this host can do it at all: see transport.h. */
bool segment_available(const char **why, const struct device *device);

#endif
