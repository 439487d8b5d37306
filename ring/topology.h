/* topology: from what every rank says of itself and of its host to the order of each ring, the
 * transport of each edge and the NIC of each channel. Pure functions of the gathered descriptions,
 * so all ranks come to the same answer without asking, and so that they are tested on machines that
 * we do not have (`ringzero topo --hosts`).
 *
 *   host A           channel 0     host B
 *   r0 ─ r1 ─ r3 ─ r2 ──────────► r6 ─ r7 ─ r5 ─ r4
 *    ▲             NIC 0          NIC 0           │
 *    └────────────────────────────────────────────┘
 *
 * A ring enters and leaves each host once. Of the ways through a host that keep near ranks together
 * it takes the one that begins and ends nearest to the channel's NIC; each channel has another NIC.
 *
 * Invariant I2: the order follows from descriptions alone, never from measurements. Ranks that
 * nothing tells apart stand in rank order.
 */
#ifndef RING_TOPOLOGY_H
#define RING_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "verbs/machine.h"
#include "verbs/transport.h"

#define TOPOLOGY_MOST_LINKS 16

/* One rank's description of itself. Travels as bytes between ranks of the same build. */
struct topology_rank {
    uint64_t host; /* same number: same host and process table; or another one is pretended */
    uint32_t shm_works;                 /* this rank can share memory */
    uint32_t verbs_work;                /* and reach others by RDMA */
    int32_t package, numa, cache, core; /* where it runs, by machine.h; -1: in several, unknown */
    uint32_t gpu; /* where its buffers are: machine_device.id; 0: in host memory */
    uint32_t zero;
};

/* From a rank to a device of its host. */
struct topology_link {
    uint32_t id;      /* of the device; 0: no more */
    uint16_t gbit;    /* NIC: of the wire, Gbit/s, 0: unknown; GPU: NVLink's GB/s */
    uint8_t distance; /* enum distance, from the rank's GPU, else from its cores */
    uint8_t place;    /* in the machine's devices: for names */
};

/* What travels too where ranks have several hosts or GPUs. */
struct topology_devices {
    struct topology_link nics[TOPOLOGY_MOST_LINKS]; /* that are not down */
    struct topology_link gpus[TOPOLOGY_MOST_LINKS]; /* other than its own; none if it has none */
};

struct topology {
    int nranks;
    const struct topology_rank *ranks;      /* [nranks] */
    const struct topology_devices *devices; /* [nranks]; NULL: not told */
};

/* Describes the calling process. Where it may run on every core nothing but its host is told,
 * and no machine is read. pretended: any text in place of its host; or NULL. */
struct topology_rank topology_describe_self(const char *pretended);
/* And what it has around it; gpu as in struct topology_rank. names: of its NICs, which do not
 * travel. */
struct topology_names {
    char nics[TOPOLOGY_MOST_LINKS][MACHINE_NAME_BYTES];
};
struct topology_devices topology_describe_devices(
    struct topology_names *names, const struct topology_rank *self);

/* The same for a rank on some machine that runs on these of its PUs and has its buffers on this
 * of its GPUs (-1: in host memory). */
void topology_describe(struct topology_rank *rank, struct topology_devices *devices,
    const struct machine *machine, const struct machine_pus *pus, int gpu);

/* order[p] = rank at position p of the ring of `channel`. Hosts stand in the order of their
 * first ranks. */
void topology_ring_order(int *order, const struct topology *topology, int channel);

/* How ranks are spread over hosts. */
struct topology_shape {
    int hosts, least, most; /* ranks on the host that has fewest, and most */
};
struct topology_shape topology_shape(const struct topology *topology);

/* The rule for two levels (plan_two_level.c): at least two hosts, and at least two ranks on each,
 * the same number everywhere. By that alone: what decides bits depends neither on transports nor
 * on measurements. */
bool topology_shape_has_two_levels(struct topology_shape shape);
/* "2 hosts of 4 ranks", "hosts of 7 to 8 ranks" */
const char *topology_shape_text(char text[64], struct topology_shape shape);

/* What lies between two ranks. */
enum distance topology_distance(const struct topology *topology, int a, int b);

/* The NIC by which `rank`'s host sends and receives on this channel: an entry of
 * devices[rank].nics, or -1. A host's NICs are taken in turn, the fastest wires alone, those
 * that are nearer to a rank of the host before others. channel < 0: the nearest to this rank,
 * for edges that are on no ring; ranks that are equally near to several take them in turn. */
int topology_nic(const struct topology *topology, int rank, int channel);

/* In two levels all ranks of a host send to other hosts at once, each by a NIC that is nearest to
 * itself: channel c by the c-th of those that are equally near. */
int topology_own_nic(const struct topology *topology, int rank, int channel);

/* The transport of the edge between two ranks when the user asked for "auto". */
const struct transport *topology_transport(
    const struct topology_rank *a, const struct topology_rank *b);

#endif
