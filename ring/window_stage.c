/* window_stage: see window_stage.h. A turn is posted on the edges of exchanges; how far a peer has freed such an edge tells what it
 * has read, whatever else went over it since. */
#include "ring/window_stage.h"

#include <stdlib.h>

#include "ring/comm.h"

struct window_stage {
    unsigned char *memory;
    uint64_t reference;
    size_t area_bytes;
    uint64_t turn; /* the next */
    uint64_t step[WINDOW_AREAS][WINDOW_MOST_RANKS]; /* of the edge to each rank, after the area's last turn was posted */
};

enum status window_stage_open(struct ring_comm *comm)
{
    size_t bytes = comm_stage_bytes(comm);
    if (comm->stage != NULL) return STATUS_OK;
    struct window_stage *stage = calloc(1, sizeof *stage);
    if (stage == NULL) return FAIL(STATUS_SYSTEM, "no memory for a stage");
    enum status status = memory_reserve(comm->device, MEMORY_COMMUNICATION, bytes);
    if (status == STATUS_OK) {
        stage->memory = region_alloc_stage(bytes, comm->book);
        if (stage->memory == NULL) {
            memory_count(comm->device, MEMORY_COMMUNICATION, -(int64_t)bytes);
            status = FAIL(STATUS_SYSTEM, "cannot allocate %zu bytes of shared memory to stage data in; lower RINGZERO_SLOT_BYTES or "
                "RINGZERO_SLOTS, close some of more than %d communicators, or set RINGZERO_WINDOW_BYTES to 0", bytes, REGION_STAGES);
        }
    }
    if (status != STATUS_OK) {
        free(stage);
        return status;
    }
    stage->reference = region_reference(stage->memory, 1, comm->book);
    stage->area_bytes = bytes / WINDOW_AREAS / 64 * 64;
    comm->stage = stage;
    return STATUS_OK;
}

void window_stage_close(struct ring_comm *comm)
{
    if (comm->stage == NULL) return;
    region_free(comm->stage->memory, comm->book);
    memory_count(comm->device, MEMORY_COMMUNICATION, -(int64_t)comm_stage_bytes(comm));
    free(comm->stage);
    comm->stage = NULL;
}

static struct fifo *fifo_to(int peer, const struct ring_comm *comm)
{
    return &(*comm_edge_place(comm_exchange_channel(comm), EDGE_PRODUCER, peer, comm))->fifo;
}

unsigned char *window_stage_area(const struct ring_comm *comm)
{
    const struct window_stage *stage = comm->stage;
    uint64_t area = stage->turn % WINDOW_AREAS;
    for (int r = 0; r < comm->nranks && stage->turn >= WINDOW_AREAS; r++) {
        if (r == comm->rank) continue;
        struct fifo *fifo = fifo_to(r, comm);
        uint64_t head = fifo->step - fifo_unfreed(fifo);
        if ((int64_t)(head - stage->step[area][r]) < 0) return NULL;
    }
    return stage->memory + area * stage->area_bytes;
}

size_t window_stage_area_bytes(const struct ring_comm *comm) { return comm->stage->area_bytes; }

uint64_t window_stage_reference(const unsigned char *staged, const struct ring_comm *comm)
{
    return comm->stage->reference + (uint64_t)(staged - comm->stage->memory);
}

void window_stage_end_turn(struct ring_comm *comm)
{
    struct window_stage *stage = comm->stage;
    for (int r = 0; r < comm->nranks; r++)
        if (r != comm->rank) stage->step[stage->turn % WINDOW_AREAS][r] = fifo_to(r, comm)->step;
    stage->turn++;
}
