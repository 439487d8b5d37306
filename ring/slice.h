/* slice: how a chunk is cut into slices, the same in the executor and in virtual time (simulate.c).
 *
 *   a chunk   |<- slice ->|<- slice ->|… the rest|      each of at most one slot, in whole cache lines
 *
 * Small chunks are cut too, so that they overlap with themselves: into half as many slices as an
 * edge has slots (what is under way at once: operation.h), but not below some least, where cutting
 * costs more than it overlaps. In one memory that is soon; where slices are messages, each costs
 * the system several microseconds at both ends, what it takes to copy 64 KiB.
 */
#ifndef RING_SLICE_H
#define RING_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLICE_LEAST_MEMORY_BYTES  ((size_t)16 << 10)  /* all ranks share one memory */
#define SLICE_LEAST_MESSAGE_BYTES ((size_t)256 << 10) /* some do not */

struct slice_cut {
    size_t slice_count; /* elements of a full slice */
    size_t slices;      /* of the longest chunk, at least 1: an empty one still meets its neighbours */
};

/* chunk_count: elements of the longest chunk; element_bytes: as they travel; one_memory: of all
 * ranks, so that all cut alike. Pure. */
static inline struct slice_cut slice_cut(size_t chunk_count, size_t element_bytes, bool one_memory,
    size_t slot_bytes, uint64_t slot_count)
{
    size_t least = one_memory ? SLICE_LEAST_MEMORY_BYTES : SLICE_LEAST_MESSAGE_BYTES;
    size_t in_flight = (size_t)(slot_count / 2), bytes = (chunk_count * element_bytes + in_flight - 1) / in_flight;
    if (bytes < least) bytes = least;
    if (bytes > slot_bytes) bytes = slot_bytes;
    size_t slice_count = (bytes + 63) / 64 * 64 / element_bytes;
    return (struct slice_cut){slice_count, chunk_count == 0 ? 1 : (chunk_count + slice_count - 1) / slice_count};
}

#endif
