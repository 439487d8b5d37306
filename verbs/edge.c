/* edge: what all transports share: the exchange of offers, and the phases of an edge (see transport.h). */
#include "verbs/transport.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const struct transport *const transports[] = {
    &transport_shm, &transport_tcp, &transport_verbs, &transport_cuda_ipc, NULL};

const struct transport *transport_by_name(const char *name)
{
    for (const struct transport *const *t = transports; *t != NULL; t++)
        if (strcmp((*t)->name, name) == 0) return *t;
    return NULL;
}

/* Each side posts to a key of its own, so that an edge from a rank to itself has two mailboxes. */
static uint64_t offer_key(const struct edge_config *config, enum edge_side from_side)
{
    return config->key * 2 + (uint64_t)from_side;
}

enum status edge_tell(const struct edge *edge, const void *word, size_t bytes)
{
    const struct edge_config *config = &edge->config;
    return bootstrap_post(config->peer, offer_key(config, config->side), word, bytes, config->bootstrap);
}

enum status edge_hear(const struct edge *edge, void *word, size_t bytes, bool *found)
{
    const struct edge_config *config = &edge->config;
    enum edge_side peer_side = config->side == EDGE_PRODUCER ? EDGE_CONSUMER : EDGE_PRODUCER;
    return bootstrap_take(word, bytes, found, config->peer, offer_key(config, peer_side), config->bootstrap);
}

enum status edge_open(struct edge **out, const struct transport *transport, const struct edge_config *config)
{
    assert(config->slot_bytes % 64 == 0 && config->slot_bytes > 0);
    assert(config->slot_count > 0 && (config->slot_count & (config->slot_count - 1)) == 0);
    *out = NULL;
    struct edge *edge = calloc(1, sizeof *edge);
    if (edge == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge to rank %d", config->peer);
    edge->config = *config;
    edge->transport = transport;
    edge->fifo.slot_bytes = config->slot_bytes;
    edge->fifo.slot_count = config->slot_count;
    fifo_begin(&edge->fifo, config->start);

    enum status status;
    struct edge_offer offer = {{0}};
    TRY_GOTO(transport->offer(edge, &offer));
    TRY_GOTO(edge_tell(edge, &offer, sizeof offer));
    *out = edge;
    return STATUS_OK;
fail:
    edge_close(edge);
    return status;
}

void edge_close(struct edge *edge)
{
    if (edge == NULL) return;
    edge->transport->close(edge);
    free(edge);
}

enum status edge_progress(struct edge *edge, bool *moved)
{
    if (edge->phase == EDGE_READY)
        return edge->transport->progress == NULL ? STATUS_OK : edge->transport->progress(edge, moved);

    if (edge->phase == EDGE_OFFERED) {
        bool found = false;
        TRY(edge_hear(edge, &edge->peer_offer, sizeof edge->peer_offer, &found));
        if (!found) return STATUS_OK;
        edge->phase = EDGE_CONNECTING;
        *moved = true;
    }
    bool ready = false;
    TRY(edge->transport->connect(edge, &ready));
    if (ready) {
        edge->phase = EDGE_READY;
        *moved = true;
    }
    return STATUS_OK;
}

bool edge_drained(const struct edge *edge)
{
    if (edge->phase != EDGE_READY) return edge->fifo.step == edge->config.start;
    return edge->transport->drained == NULL || edge->transport->drained(edge);
}

int edge_descriptor(const struct edge *edge, short *events)
{
    if (edge->phase != EDGE_READY || edge->transport->descriptor == NULL) return -1;
    return edge->transport->descriptor(edge, events);
}
