/* device_nic_cuda: the part of device_cuda.c's table that is for NICs: see device_ops.h. */
#ifndef VERBS_DEVICE_NIC_CUDA_H
#define VERBS_DEVICE_NIC_CUDA_H

#include "verbs/device_ops.h"

MUST_CHECK enum status cuda_dmabuf_export(int *fd, void *ptr, size_t bytes, struct device *device);
bool cuda_nic_flush_needed(struct device *device);
MUST_CHECK enum status cuda_nic_flush(struct device *device);

#endif
