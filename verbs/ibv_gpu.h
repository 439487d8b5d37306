/* ibv_gpu: how a NIC is told of CUDA memory (GPUDirect RDMA). The first of these that works here:
 *
 *   dma-buf   the GPU's driver gives a descriptor of its pages, ibv_reg_dmabuf_mr() takes it
 *             (Linux 5.12, NVIDIA's open kernel modules)
 *   peermem   the module nvidia_peermem lets ibv_reg_mr() take addresses of the GPU
 *   staged    neither: what is sent and received goes through pinned host memory
 *
 * RINGZERO_GPU_DIRECT: auto (the default), dma-buf, peermem or staged.
 */
#ifndef VERBS_IBV_GPU_H
#define VERBS_IBV_GPU_H

#include <infiniband/verbs.h>

#include "verbs/device_ops.h"

enum gpu_way { GPU_WAY_STAGED, GPU_WAY_DMABUF, GPU_WAY_PEERMEM };
const char *gpu_way_name(enum gpu_way way);

/* What this system offers to a NIC, no GPU asked. errors: INVALID (RINGZERO_GPU_DIRECT). */
MUST_CHECK enum status gpu_way_probe(enum gpu_way *way, struct ibv_pd *pd);

/* Tells the NIC of CUDA memory, by dma-buf, else by peermem. *way: by which. errors: VERBS with
 * what was tried and why it failed, and what to do; INVALID. *mr is NULL then. */
MUST_CHECK enum status gpu_register(struct ibv_mr **mr, enum gpu_way *way, struct span span,
    int access, struct ibv_pd *pd, struct device *device);

#endif
