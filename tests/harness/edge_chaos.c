/* edge_chaos: see edge_chaos.h.
 *
 *   producer's staging ──(producer's progress, under the lock)──► consumer's slots
 *   consumer's head    ──(consumer's progress, under the lock)──► credit
 */
#include "tests/harness/edge_chaos.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct landing {
    pthread_mutex_t lock;
    unsigned char *slots;
    struct fifo_record *records;
    uint64_t tail, head; /* the consumer's */
    uint64_t arrived;    /* steps put into slots: what tail becomes, later */
    uint64_t credit;     /* what the producer may know of head */
    int references;      /* after a failure the two sides close in any order; the last one frees */
};

struct chaos_edge {
    struct landing *landing; /* the consumer's; the producer borrows it */
    unsigned char *slots;    /* the producer's staging */
    struct fifo_record *records;
    uint64_t tail, head;
    uint64_t random;
};

static uint64_t draw(struct chaos_edge *chaos, uint64_t below)
{
    chaos->random = chaos->random * 6364136223846793005u + 1442695040888963407u;
    return (chaos->random >> 33) % below;
}

static enum status chaos_offer(struct edge *edge, struct edge_offer *offer)
{
    const struct edge_config *config = &edge->config;
    struct chaos_edge *chaos = calloc(1, sizeof *chaos);
    unsigned char *slots = malloc(config->slot_count * config->slot_bytes);
    struct fifo_record *records = calloc(config->slot_count, sizeof *records);
    struct landing *landing = calloc(1, sizeof *landing);
    if (chaos == NULL || slots == NULL || records == NULL || landing == NULL) abort();
    edge->state = chaos;
    edge->fifo.slots = slots;
    edge->fifo.records = records;
    chaos->random = config->key ^ (uint64_t)config->self * 77 ^ (uint64_t)config->side;
    chaos->slots = slots;
    chaos->records = records;
    chaos->tail = chaos->head = config->start;
    edge->fifo.tail = &chaos->tail;
    edge->fifo.head = &chaos->head;
    if (config->side == EDGE_PRODUCER) {
        free(landing);
        return STATUS_OK;
    }
    pthread_mutex_init(&landing->lock, NULL);
    landing->slots = slots;
    landing->records = records;
    landing->references = 2;
    landing->tail = landing->head = landing->arrived = landing->credit = config->start;
    chaos->landing = landing;
    memcpy(offer->bytes, &landing, sizeof landing);
    return STATUS_OK;
}

static enum status chaos_connect(struct edge *edge, bool *ready)
{
    struct chaos_edge *chaos = edge->state;
    if (edge->config.side == EDGE_PRODUCER) memcpy(&chaos->landing, edge->peer_offer.bytes, sizeof chaos->landing);
    *ready = draw(chaos, 3) == 0;
    return STATUS_OK;
}

static void producer_move(struct edge *edge, bool *moved)
{
    struct chaos_edge *chaos = edge->state;
    struct landing *landing = chaos->landing;
    pthread_mutex_lock(&landing->lock);
    for (uint64_t most = draw(chaos, 4); most > 0 && chaos->head != chaos->tail; most--) {
        if (chaos->head - landing->credit >= edge->config.slot_count) break;
        uint64_t index = fifo_index(&edge->fifo, chaos->head);
        unsigned char *slot = chaos->slots + index * edge->config.slot_bytes;
        const struct fifo_record *record = &chaos->records[index];
        const unsigned char *from = record->address != 0 ? (const void *)(uintptr_t)record->address : slot;
        memcpy(landing->slots + index * edge->config.slot_bytes, from, record->bytes);
        landing->records[index] = (struct fifo_record){.bytes = record->bytes, .tag = record->tag};
        memset(slot, 0xEE, edge->config.slot_bytes);
        landing->arrived++;
        chaos->head++;
        *moved = true;
    }
    pthread_mutex_unlock(&landing->lock);
}

/* Moves an arrived step from its slot to where the consumer wants it, as a receive into the caller's buffer would. */
static void land(struct edge *edge, uint64_t step)
{
    struct chaos_edge *chaos = edge->state;
    struct fifo_record *record = &chaos->landing->records[fifo_index(&edge->fifo, step)];
    if (edge->landing == NULL || record->bytes == 0) return;
    void *to = edge->landing(edge->landing_context, step, record->bytes, record->tag);
    if (to == NULL || to == EDGE_LATER) return;
    unsigned char *slot = chaos->landing->slots + fifo_index(&edge->fifo, step) * edge->config.slot_bytes;
    memcpy(to, slot, record->bytes);
    memset(slot, 0xDD, edge->config.slot_bytes);
    record->address = (uint64_t)(uintptr_t)to;
}

static void consumer_move(struct edge *edge, bool *moved)
{
    struct chaos_edge *chaos = edge->state;
    struct landing *landing = chaos->landing;
    pthread_mutex_lock(&landing->lock);
    if (draw(chaos, 2) == 0 && landing->credit != chaos->head) {
        landing->credit = chaos->head;
        *moved = true;
    }
    if (draw(chaos, 3) != 0 && chaos->tail != landing->arrived) {
        land(edge, chaos->tail);
        chaos->tail++;
        *moved = true;
    }
    pthread_mutex_unlock(&landing->lock);
}

static enum status chaos_progress(struct edge *edge, bool *moved)
{
    if (edge->config.side == EDGE_PRODUCER) producer_move(edge, moved);
    else consumer_move(edge, moved);
    return STATUS_OK;
}

static enum status breaking_progress(struct edge *edge, bool *moved)
{
    struct chaos_edge *chaos = edge->state;
    if (edge->config.side == EDGE_PRODUCER && edge->config.self == 1 &&
        chaos->head - edge->config.start >= CHAOS_BREAKS_AFTER)
        return FAIL(STATUS_PEER, "connection with rank %d broke on purpose", edge->config.peer);
    return chaos_progress(edge, moved);
}

static bool chaos_drained(const struct edge *edge)
{
    const struct chaos_edge *chaos = edge->state;
    if (edge->config.side == EDGE_PRODUCER) return chaos->head == chaos->tail;
    pthread_mutex_lock(&chaos->landing->lock);
    bool told = chaos->landing->credit == chaos->head;
    pthread_mutex_unlock(&chaos->landing->lock);
    return told;
}

static void landing_release(struct landing *landing, int references)
{
    pthread_mutex_lock(&landing->lock);
    landing->references -= references;
    bool last = landing->references == 0;
    pthread_mutex_unlock(&landing->lock);
    if (!last) return;
    pthread_mutex_destroy(&landing->lock);
    free(landing->slots);
    free(landing->records);
    free(landing);
}

/* A consumer whose producer never came holds both references; nobody in these tests fails before connecting. */
static void chaos_close(struct edge *edge)
{
    struct chaos_edge *chaos = edge->state;
    if (chaos == NULL) return;
    if (chaos->landing != NULL) landing_release(chaos->landing, 1);
    if (edge->config.side == EDGE_PRODUCER) {
        free(chaos->slots);
        free(chaos->records);
    }
    free(chaos);
}

#define CHAOS(transport_name, transport_progress)                                                                      \
    {                                                                                                                  \
        .name = transport_name, .reads_address = true, .offer = chaos_offer, .connect = chaos_connect,                 \
        .progress = transport_progress, .drained = chaos_drained, .close = chaos_close,                                \
    }

const struct transport transport_chaos = CHAOS("chaos", chaos_progress);
const struct transport transport_chaos_breaking = CHAOS("breaking chaos", breaking_progress);
