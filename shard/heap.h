/* heap: a first-fit heap that hands out addresses and no memory, so that one can see what would
 * become of a large one. An allocation takes the lowest hole that has room; neighbouring holes are
 * one.
 *
 *   0                                                          bytes
 *   | block | hole | block | block |  hole  | block |   hole   |
 */
#ifndef SHARD_HEAP_H
#define SHARD_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "verbs/status.h"

struct heap_block {
    uint64_t begin, bytes;
    int id;
};

struct heap {
    uint64_t bytes, used_bytes;
    uint64_t extent_bytes;    /* the end of the highest block that there has been */
    struct heap_block *block; /* [count], by address */
    int count, most;
};

/* Room for `most` blocks at the same time. errors: SYSTEM. close accepts a zeroed heap. */
MUST_CHECK enum status heap_open(struct heap *heap, uint64_t bytes, int most);
void heap_close(struct heap *heap);

/* False where no hole has room; nothing changes then. */
bool heap_take(int id, uint64_t bytes, struct heap *heap);
/* The block of this id, which is there. */
void heap_give(int id, struct heap *heap);

uint64_t heap_largest_hole(const struct heap *heap);

#endif
