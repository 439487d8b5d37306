/* slice: how a chunk is cut into slices, the same in the executor and in virtual time (simulate.c).
 *
 *   a chunk   |<- slice ->|<- slice ->|… the rest|      each of at most one slot, in whole cache lines
 *
 * Small chunks are cut too, so that they overlap with themselves: into half as many slices as an
 * edge has slots (what is under way at once: operation.h), but not below some least, where cutting
 * costs more than it overlaps. In one memory that is soon; where slices are messages, each costs
 * the system several microseconds at both ends, what it takes to copy 64 KiB. That is worth it for
 * the full number of slices, and in rings of four or more, where one rank goes on with what another
 * has while the rest are busy with theirs.
 */
#ifndef RING_SLICE_H
#define RING_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLICE_LEAST_MEMORY_BYTES  ((size_t)16 << 10)
#define SLICE_LEAST_RELAY_BYTES   ((size_t)64 << 10) /* and a chunk that does not give so many is cut as */
#define SLICE_LEAST_MESSAGE_BYTES ((size_t)256 << 10)

#define SLICE_RELAY_RANKS         4 /* with three, 1 MiB is a tenth slower, 2 MiB a twentieth quicker */

enum slice_kind {
    SLICE_MEMORY,  /* all ranks share one memory */
    SLICE_RELAY,   /* some do not, and SLICE_RELAY_RANKS or more of one host pass it round a ring */
    SLICE_MESSAGE, /* else */
};

struct slice_cut {
    size_t slice_count; /* elements of a full slice */
    size_t slices;      /* of the longest chunk, at least 1: an empty one still meets its neighbours */
};

/* chunk_count: elements of the longest chunk; element_bytes: as they travel; kind: of all ranks, so
 * that all cut alike. Pure. */
static inline struct slice_cut slice_cut(size_t chunk_count, size_t element_bytes,
    enum slice_kind kind, size_t slot_bytes, uint64_t slot_count)
{
    size_t in_flight = (size_t)(slot_count / 2), bytes = (chunk_count * element_bytes + in_flight - 1) / in_flight;
    size_t least = kind == SLICE_MEMORY ? SLICE_LEAST_MEMORY_BYTES : SLICE_LEAST_MESSAGE_BYTES;
    bool relays = kind == SLICE_RELAY && bytes >= SLICE_LEAST_RELAY_BYTES;
    if (bytes < least && !relays) bytes = least;
    if (bytes > slot_bytes) bytes = slot_bytes;
    size_t slice_count = (bytes + 63) / 64 * 64 / element_bytes;
    return (struct slice_cut){slice_count, chunk_count == 0 ? 1 : (chunk_count + slice_count - 1) / slice_count};
}

#endif
