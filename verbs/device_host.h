/* device_host: the host as a device: see device.h. */
#ifndef VERBS_DEVICE_HOST_H
#define VERBS_DEVICE_HOST_H

#include "verbs/device_ops.h"

extern const struct device_ops device_host_ops;

#endif
