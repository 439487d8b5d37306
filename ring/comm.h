/* comm: the inside of a communicator: who is where on each ring, and the edges opened so far.
 */
#ifndef RING_COMM_H
#define RING_COMM_H

#include <pthread.h>

#include "ring/operation.h"
#include "ring/progress.h"
#include "ring/ring.h"
#include "ring/stores.h"
#include "ring/topology.h"

struct ring_comm {
    struct bootstrap *bootstrap;
    struct device *device;
    int rank, nranks;
    uint64_t id; /* the same on all ranks: names this communicator's edges */
    struct ring_config config;
    const struct transport *transport; /* NULL: auto */
    struct topology_rank *ranks;       /* [nranks] */
    int *order;                        /* [channels][nranks]: rank at a position */
    int *position;                     /* [channels]: of this rank */
    struct edge **edges;               /* [channels][2 sides][nranks], NULL until opened */
    struct progress *progress;
    bool opened;

    pthread_mutex_t lock; /* of what follows */
    uint64_t sequence;
    struct ring_counters counters;
    struct stores stores;
    enum status failure; /* of the first operation that failed; its text */
    char failure_text[STATUS_TEXT_BYTES];
};

/* Rank at a position of a channel's ring. */
static inline int comm_rank_at(const struct ring_comm *comm, int channel, int position)
{
    return comm->order[channel * comm->nranks + position];
}

/* The edge to (EDGE_PRODUCER) or from (EDGE_CONSUMER) a peer, opened at its first use. Never waits. threads: the engine's. */
MUST_CHECK enum status comm_edge(
    struct edge **edge, int channel, enum edge_side side, int peer, struct ring_comm *comm);

#endif
