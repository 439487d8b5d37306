/* arena: see arena.h. */
#include "shard/arena.h"

#include <assert.h>

enum status arena_open(struct arena *arena, size_t bytes, enum memory_kind kind,
    enum memory_tag tag, struct device *device)
{
    *arena = (struct arena){.tag = tag};
    return memory_alloc_kind(&arena->memory, bytes, kind, tag, device);
}

void arena_close(struct arena *arena, struct device *device)
{
    memory_free(&arena->memory, arena->tag, device);
    arena->used_bytes = 0;
}

struct span arena_take(size_t bytes, struct arena *arena)
{
    assert(bytes <= arena->memory.bytes - arena->used_bytes);
    struct span place = span_part(arena->memory, arena->used_bytes, bytes);
    arena->used_bytes += bytes;
    return place;
}
