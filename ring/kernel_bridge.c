/* kernel_bridge: see kernel_bridge.h. */
#include "ring/kernel_bridge.h"

#include <stdlib.h>
#include <string.h>

#define TAIL_AT    0
#define HEAD_AT    64
#define RECORDS_AT 128

static size_t slots_at(const struct edge *edge)
{
    return (RECORDS_AT + edge->fifo.slot_count * sizeof(struct fifo_record) + 63) / 64 * 64;
}

enum status bridge_open(struct kernel_bridge **out, struct edge *edge)
{
    struct kernel_bridge *bridge = calloc(1, sizeof *bridge);
    *out = bridge;
    if (bridge == NULL) return FAIL(STATUS_SYSTEM, "no memory for a kernel's edge");
    bridge->edge = edge;
    bridge->copies = edge->slots_kind == MEMORY_HOST;
    size_t slots = bridge->copies ? edge->fifo.slot_bytes * edge->fifo.slot_count : 0;
    TRY(memory_alloc_kind(&bridge->memory, slots_at(edge) + slots, MEMORY_HOST_PINNED, MEMORY_COMMUNICATION, edge->config.device));
    unsigned char *memory = bridge->memory.ptr;
    bridge->fifo = edge->fifo;
    bridge->fifo.tail = (uint64_t *)(void *)(memory + TAIL_AT);
    bridge->fifo.head = (uint64_t *)(void *)(memory + HEAD_AT);
    bridge->fifo.records = (struct fifo_record *)(void *)(memory + RECORDS_AT);
    if (bridge->copies) bridge->fifo.slots = memory + slots_at(edge);
    fifo_begin(&bridge->fifo, edge->fifo.step);
    *bridge->fifo.tail = *bridge->fifo.head = edge->fifo.step;
    return STATUS_OK;
}

void bridge_close(struct kernel_bridge *bridge)
{
    if (bridge == NULL) return;
    memory_free(&bridge->memory, MEMORY_COMMUNICATION, bridge->edge->config.device);
    free(bridge);
}

/* What the kernel has posted leaves by the edge; copied, its slot is free at once, else when the edge is done with it. */
static void carry_away(struct kernel_bridge *bridge, bool *moved)
{
    struct fifo *edge = &bridge->edge->fifo;
    while (fifo_ready_beyond(&bridge->fifo, bridge->in_hand) > 0 && fifo_room(edge) > 0) {
        struct fifo_record record = fifo_record_beyond(&bridge->fifo, bridge->in_hand);
        if (bridge->copies) memcpy(fifo_slot(edge), fifo_slot_beyond(&bridge->fifo, bridge->in_hand), record.bytes);
        fifo_post(edge, record.bytes, record.tag, 0);
        edge_notify(bridge->edge);
        bridge->in_hand++;
        *moved = true;
    }
    for (uint64_t kept = bridge->copies || bridge->in_hand == 0 ? 0 : fifo_unfreed(edge); bridge->in_hand > kept; bridge->in_hand--) {
        fifo_free(&bridge->fifo); /* pairs with the acquire in execute_cuda.cu's await() */
        *moved = true;
    }
}

/* What has come is the kernel's. A record is of another process, perhaps. */
static enum status carry_in(struct kernel_bridge *bridge, bool *moved)
{
    struct fifo *edge = &bridge->edge->fifo;
    while (fifo_ready_beyond(edge, bridge->in_hand) > 0 && fifo_room(&bridge->fifo) > 0) {
        struct fifo_record record = fifo_record_beyond(edge, bridge->in_hand);
        if (record.address != 0 || record.bytes > bridge->edge->config.slot_bytes)
            return FAIL(STATUS_DATA, "rank %d sent %llu bytes%s over %s, expected at most %zu in a slot", bridge->edge->config.peer,
                (unsigned long long)record.bytes, record.address != 0 ? " at an address" : "", bridge->edge->transport->name,
                bridge->edge->config.slot_bytes);
        if (bridge->copies) memcpy(fifo_slot(&bridge->fifo), fifo_slot_beyond(edge, bridge->in_hand), record.bytes);
        fifo_post(&bridge->fifo, record.bytes, record.tag, 0); /* pairs with the acquire in execute_cuda.cu's await() */
        bridge->in_hand++;
        *moved = true;
    }
    for (uint64_t kept = bridge->copies || bridge->in_hand == 0 ? 0 : fifo_unfreed(&bridge->fifo); bridge->in_hand > kept;
         bridge->in_hand--) {
        fifo_free(edge);
        edge_notify(bridge->edge);
        *moved = true;
    }
    return STATUS_OK;
}

enum status bridge_progress(struct kernel_bridge *bridge, bool *moved)
{
    if (bridge->edge->config.side == EDGE_CONSUMER) return carry_in(bridge, moved);
    carry_away(bridge, moved);
    return STATUS_OK;
}

bool bridge_drained(struct kernel_bridge *bridge)
{
    if (bridge->edge->config.side == EDGE_PRODUCER) return fifo_ready_beyond(&bridge->fifo, bridge->in_hand) == 0;
    uint64_t freed = __atomic_load_n(bridge->fifo.head, __ATOMIC_ACQUIRE); /* by the kernel; the next operation's steps may be here too */
    return (int64_t)(bridge->edge->fifo.step - freed) >= 0;
}
