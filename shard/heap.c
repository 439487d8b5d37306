/* heap: see heap.h. */
#include "shard/heap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status heap_open(struct heap *heap, uint64_t bytes, int most)
{
    *heap = (struct heap){.bytes = bytes, .most = most};
    heap->block = calloc((size_t)most, sizeof *heap->block);
    if (heap->block != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "no memory for a heap of %d blocks", most);
}

void heap_close(struct heap *heap)
{
    free(heap->block);
    *heap = (struct heap){0};
}

/* The hole before block i; before the end, where i = count. */
static uint64_t hole_begin(const struct heap *heap, int i)
{
    return i == 0 ? 0 : heap->block[i - 1].begin + heap->block[i - 1].bytes;
}

static uint64_t hole_bytes(const struct heap *heap, int i)
{
    uint64_t end = i == heap->count ? heap->bytes : heap->block[i].begin;
    return end - hole_begin(heap, i);
}

bool heap_take(int id, uint64_t bytes, struct heap *heap)
{
    int i = 0;
    while (i <= heap->count && hole_bytes(heap, i) < bytes) i++;
    if (i > heap->count) return false;
    assert(heap->count < heap->most);
    struct heap_block *block = &heap->block[i];
    uint64_t begin = hole_begin(heap, i);
    memmove(block + 1, block, (size_t)(heap->count - i) * sizeof *block);
    *block = (struct heap_block){begin, bytes, id};
    heap->count++;
    heap->used_bytes += bytes;
    if (begin + bytes > heap->extent_bytes) heap->extent_bytes = begin + bytes;
    return true;
}

void heap_give(int id, struct heap *heap)
{
    int i = 0;
    while (heap->block[i].id != id) assert(i + 1 < heap->count), i++;
    struct heap_block *block = &heap->block[i];
    heap->used_bytes -= block->bytes;
    heap->count--;
    memmove(block, block + 1, (size_t)(heap->count - i) * sizeof *block);
}

uint64_t heap_largest_hole(const struct heap *heap)
{
    uint64_t largest = 0;
    for (int i = 0; i <= heap->count; i++)
        if (hole_bytes(heap, i) > largest) largest = hole_bytes(heap, i);
    return largest;
}
