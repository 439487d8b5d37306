/* rail: from the name of a NIC to the rail (struct edge_config) whose edges use it: so that who
 * chooses NICs by where they lie need not know libibverbs, nor in which order it lists them.
 */
#ifndef VERBS_RAIL_H
#define VERBS_RAIL_H

#include "verbs/device.h"

/* -1 where no rail has it: there is no such NIC, its port is not used, RINGZERO_IB_DEVICE says
 * which NICs in which order, or this build has no libibverbs. Opens the rank's NICs, as its
 * first verbs edge would. threads: any. */
int nic_rail(const char *name, struct device *device);

/* How the NIC of that name reaches memory of GPUs here: "dma-buf", "peermem", "staged" (through pinned
 * host memory). What kernel and NIC offer, no GPU asked: an edge that cannot use it says so. NULL where
 * it cannot be told. */
const char *nic_gpu_way(const char *name);

#endif
