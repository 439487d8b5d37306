/* ibv_device: the RDMA ports of this host, opened once per rank and kept with its device.
 *
 *   struct nics           a companion of struct device: opened at the rank's first verbs edge,
 *                         closed by device_close()
 *     nics[0], nics[1] …  a port each: context, protection domain, chosen GID; an edge of rail r
 *                         uses nics[r mod count]
 *     registrations       which allocations which NIC knows (ibv_memory.h)
 *
 * Ports that are down, have no usable GID, or speak iWARP (which needs a connection manager) are
 * left out. In containers some rows of the GID table cannot be read (EINVAL): they are left out
 * too.
 */
#ifndef VERBS_IBV_DEVICE_H
#define VERBS_IBV_DEVICE_H

#include <infiniband/verbs.h>
#include <pthread.h>

#include "verbs/device.h"
#include "verbs/ibv_choose.h"
#include "verbs/ibv_memory.h"

#define NIC_MOST 16

struct nic {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct nic_address address; /* mtu_bytes: of the port, at most RINGZERO_IB_MTU */
    /* Packets carry GIDs: RoCE, and InfiniBand where the port asks for it or the user chose a GID. */
    bool global_header;
};

struct nics {
    struct device_companion companion; /* first */
    struct nic_settings settings;
    int count;
    struct nic nics[NIC_MOST];
    struct registrations registrations;
};

/* The calling rank's NICs, at least one; owned by the device. errors: INVALID (a RINGZERO_IB_*
 * variable), VERBS when no port can be used, naming those that there are and why not.
 * threads: any. */
MUST_CHECK enum status nics_find(struct nics **nics, struct device *device);

/* Whether an edge could be opened here: looks, and opens nothing for longer than the call. false:
 * status_text() says why. */
bool nics_available(void);

/* The NIC of a rail. */
static inline struct nic *nics_of_rail(int rail, struct nics *nics)
{
    return &nics->nics[rail % nics->count];
}

/* Whether its port is active now: for messages about failures. */
bool nic_is_active(const struct nic *nic);

/* "": or, where the failure of a call with this errno may come from it, what the limit of locked
 * memory is and how to raise it. Returns text. */
const char *nic_memlock_hint(char *text, size_t bytes, int error);

enum ibv_mtu nic_mtu_enum(uint32_t mtu_bytes);

#endif
