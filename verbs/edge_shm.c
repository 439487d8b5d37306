/* edge_shm: an edge in memory of the host that both processes map (edge_segment.h). The FIFO of
 * fifo.h is all there is: nothing to carry, so progress() only gives a descriptor back.
 */
#include <stdlib.h>
#include <string.h>

#include "verbs/edge_segment.h"

/* The consumer's offer; the producer offers no segment, only its bell. */
struct shm_offer {
    struct bell_offer bell; /* all zero: none */
    struct segment_offer segment;
};
_Static_assert(sizeof(struct shm_offer) <= EDGE_OFFER_BYTES, "the offer fits");

struct shm_edge {
    struct segment segment;
    bool counted;         /* consumer: the bytes are in the device's account */
    uint64_t closed_head; /* producer: its head until it has attached */
};

static void fifo_map(struct edge *edge)
{
    struct shm_edge *shm = edge->state;
    segment_map_fifo(edge, &shm->segment);
    edge->fifo.slots = shm->segment.map + segment_slots_at(&edge->config);
}

/* Before the segment is attached the producer looks at a head of its own, which says that no slot
 * is free. */
static void fifo_close_door(struct edge *edge)
{
    struct shm_edge *shm = edge->state;
    shm->closed_head = edge->config.start - edge->config.slot_count;
    edge->fifo.head = &shm->closed_head;
    edge->fifo.seen = shm->closed_head;
}

static enum status shm_offer(struct edge *edge, struct edge_offer *out)
{
    struct shm_edge *shm = calloc(1, sizeof *shm);
    if (shm == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->state = shm;
    shm->segment.fd = -1;
    struct shm_offer offer = {0};
    if (edge->config.bell != NULL) offer.bell = bell_offer(edge->config.bell);
    if (edge->config.side == EDGE_PRODUCER) {
        fifo_close_door(edge);
    } else {
        TRY(memory_reserve(
            edge->config.device, MEMORY_COMMUNICATION, segment_bytes(&edge->config)));
        shm->counted = true;
        TRY(segment_create(&shm->segment, &offer.segment, true, &edge->config));
        fifo_map(edge);
    }
    memcpy(out->bytes, &offer, sizeof offer);
    return STATUS_OK;
}

static enum status shm_connect(struct edge *edge, bool *ready)
{
    struct shm_edge *shm = edge->state;
    struct shm_offer offer;
    memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
    if (edge->config.side == EDGE_PRODUCER) {
        TRY(segment_attach(&shm->segment, &offer.segment, &edge->config));
        segment_give_back(&shm->segment);
        fifo_map(edge);
        edge->fifo.seen = edge->config.start;
    }
    if (offer.bell.pid != 0) edge->peer_bell = bell_attach(&offer.bell);
    *ready = true;
    return STATUS_OK;
}

static enum status shm_progress(struct edge *edge, bool *moved)
{
    (void)moved;
    struct shm_edge *shm = edge->state;
    segment_give_back(&shm->segment);
    return STATUS_OK;
}

static void shm_close(struct edge *edge)
{
    struct shm_edge *shm = edge->state;
    if (shm == NULL) return;
    bell_detach(edge->peer_bell);
    segment_close(&shm->segment);
    if (shm->counted)
        memory_count(
            edge->config.device, MEMORY_COMMUNICATION, -(int64_t)segment_bytes(&edge->config));
    free(shm);
    edge->state = NULL;
}

const struct transport transport_shm = {
    .name = "shm",
    .peer_reads_slots = true,
    .available = segment_available,
    .offer = shm_offer,
    .connect = shm_connect,
    .progress = shm_progress,
    .close = shm_close,
};
