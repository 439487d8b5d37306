/* topology: from what every rank says of itself to the order of the ring and the transport of each edge. Pure functions of the
 * gathered descriptions, so all ranks come to the same answer without asking.
 */
#ifndef RING_TOPOLOGY_H
#define RING_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "verbs/transport.h"

/* One rank's description of itself. Travels as bytes between ranks of the same build. */
struct topology_rank {
    uint64_t host;         /* same number: same host and same process table. RINGZERO_HOST (any text) pretends another */
    uint32_t shm_works;    /* this rank can share memory */
    uint32_t verbs_work;   /* and reach others by RDMA */
};

/* Describes the calling process. */
struct topology_rank topology_describe_self(void);

/* order[p] = rank at position p of the ring of `channel`. Ranks are taken in order of their hosts' first rank, then by rank,
 * so that a ring enters and leaves a host once. */
void topology_ring_order(int *order, const struct topology_rank *ranks, int nranks, int channel);

/* The transport of the edge between two ranks when the user asked for "auto": shared memory within a host; between hosts RDMA where both
 * have an active port, else TCP. That two ports reach one another is not known here. */
const struct transport *topology_transport(const struct topology_rank *a, const struct topology_rank *b);

#endif
