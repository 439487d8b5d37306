/* kernel_edges: see kernel_edges.h. */
#include "ring/kernel_edges.h"

#include <assert.h>

#include "verbs/device_ops.h"

static size_t counter_at(int channel, int place)
{
    return (size_t)(channel * KERNEL_EDGES + place) * sizeof(struct kernel_counter);
}

enum status kernel_edges_open(struct kernel_edges *edges, struct device *device)
{
    edges->device = device;
    return memory_alloc(&edges->counters, counter_at(RING_MAX_CHANNELS, 0) + 64, MEMORY_COMMUNICATION, device);
}

uint32_t *kernel_edges_failed(const struct kernel_edges *edges)
{
    return (uint32_t *)(void *)((char *)edges->counters.ptr + counter_at(RING_MAX_CHANNELS, 0));
}

void kernel_edges_close(struct kernel_edges *edges)
{
    for (int c = 0; c < RING_MAX_CHANNELS; c++)
        for (int i = 0; i < KERNEL_EDGES; i++) bridge_close(edges->links[c][i].bridge);
    memory_free(&edges->counters, MEMORY_COMMUNICATION, edges->device);
}

int kernel_edges_find(const struct kernel_edges *edges, int channel, const struct edge *edge)
{
    for (int i = 0; i < KERNEL_EDGES; i++)
        if (edges->links[channel][i].edge == edge) return i;
    return -1;
}

/* Kernels reach the slots of such an edge where the CPU does, but for those at the end of a shared segment. */
static bool needs_bridge(const struct edge *edge) { return !edge->kernels_reach || edge->slots_kind == MEMORY_HOST; }

enum status kernel_edges_add(struct kernel_edges *edges, int channel, struct edge *edge)
{
    int place = 0;
    if (kernel_edges_find(edges, channel, edge) >= 0) return STATUS_OK;
    if (edge->flagged != NULL && needs_bridge(edge)) /* the peer cannot know it, and would send by lines */
        return FAIL(STATUS_CUDA, "kernels do not reach what is shared with rank %d: set RINGZERO_CUDA_MODE=copies", edge->config.peer);
    while (edges->links[channel][place].edge != NULL) place++;
    assert(place < KERNEL_EDGES);
    struct kernel_link *link = &edges->links[channel][place];
    if (needs_bridge(edge) && link->bridge == NULL) TRY(bridge_open(&link->bridge, edge));
    link->fifo = link->bridge != NULL ? link->bridge->fifo : edge->fifo;
    bool produces = edge->config.side == EDGE_PRODUCER;
    uint64_t step = edge->fifo.step;
    struct kernel_counter begin = {step, produces ? step - edge->fifo.slot_count : step, 0}; /* not seen: looked at when first asked */
    TRY(edges->device->ops->copy(span_part(edges->counters, counter_at(channel, place), sizeof begin),
        span_host(&begin, sizeof begin), NULL, edges->device));
    link->edge = edge;
    return STATUS_OK;
}

uint32_t kernel_edges_describe(struct kernel_edge *table, const struct kernel_edges *edges, int channel)
{
    uint32_t count = 0;
    for (; count < KERNEL_EDGES && edges->links[channel][count].edge != NULL; count++) {
        const struct kernel_link *link = &edges->links[channel][count];
        const struct fifo *fifo = &link->fifo;
        intptr_t shift = link->bridge != NULL ? 0 : link->edge->kernel_shift;
        intptr_t slots_shift = link->edge->slots_kind == MEMORY_CUDA ? 0 : shift;
        table[count] = (struct kernel_edge){
            .slots = fifo->slots + slots_shift,
            .records = (struct fifo_record *)(void *)((char *)fifo->records + shift),
            .tail = (uint64_t *)(void *)((char *)fifo->tail + shift),
            .head = (uint64_t *)(void *)((char *)fifo->head + shift),
            .flagged = link->edge->flagged == NULL ? NULL : link->edge->flagged + slots_shift,
            .flagged_bytes = link->edge->config.flagged_bytes,
            .produces = link->edge->config.side == EDGE_PRODUCER,
            .slot_bytes = fifo->slot_bytes,
            .slot_count = fifo->slot_count,
            .counter = (struct kernel_counter *)(void *)((char *)edges->counters.ptr + counter_at(channel, (int)count)),
        };
    }
    return count;
}

const struct edge *kernel_edges_bridged(const struct kernel_edges *edges, int channels)
{
    for (int c = 0; c < channels; c++)
        for (int i = 0; i < KERNEL_EDGES; i++)
            if (edges->links[c][i].bridge != NULL) return edges->links[c][i].edge;
    return NULL;
}

enum status kernel_edges_progress(struct kernel_edges *edges, int channels, bool *moved)
{
    for (int c = 0; c < channels; c++)
        for (int i = 0; i < KERNEL_EDGES; i++)
            if (edges->links[c][i].bridge != NULL) TRY(bridge_progress(edges->links[c][i].bridge, moved));
    return STATUS_OK;
}

bool kernel_edges_drained(struct kernel_edges *edges, int channels)
{
    for (int c = 0; c < channels; c++)
        for (int i = 0; i < KERNEL_EDGES; i++)
            if (edges->links[c][i].bridge != NULL && !bridge_drained(edges->links[c][i].bridge)) return false;
    return true;
}
