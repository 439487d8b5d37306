/* arena: memory that is allocated once and laid out once, for what outlives the use it comes from:
 * the checkpoints of blocks (M_D).
 *
 *   | place 0 | place 1 | … | place n−1 |     taken in order as a run opens, never given back
 *
 * Checkpoints are born between scratch that dies soon. From a heap each would lie where scratch
 * left a hole, and cut it for good: after some blocks there is room enough, but no place (replay.h
 * shows it). Here what lives long lies together. Gradients do too: stage.h allocates them at
 * once, unit after unit as layout.h places them.
 *
 * Invariants: every byte is some place's, so there is no fragmentation; nothing is allocated during
 * a step (I6).
 */
#ifndef SHARD_ARENA_H
#define SHARD_ARENA_H

#include "verbs/device.h"

struct arena {
    struct span memory;
    size_t used_bytes;
    enum memory_tag tag;
};

/* `bytes` of a kind, counted under tag. errors: as memory_alloc_kind(). close accepts a zeroed
 * arena. */
MUST_CHECK enum status arena_open(struct arena *arena, size_t bytes, enum memory_kind kind,
    enum memory_tag tag, struct device *device);
void arena_close(struct arena *arena, struct device *device);

/* The next `bytes`; the arena has them: whoever opened it has added up what will be taken. Places
 * follow one another without gaps, so places of whole elements are aligned to elements. */
struct span arena_take(size_t bytes, struct arena *arena);

#endif
