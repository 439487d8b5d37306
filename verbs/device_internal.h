/* device_internal: what the files of a device ask of one another. */
#ifndef VERBS_DEVICE_INTERNAL_H
#define VERBS_DEVICE_INTERNAL_H

#include "verbs/device.h"

MUST_CHECK enum status device_inside_open(struct device *device);
/* Closes all companions. A device that was not opened is accepted. */
void device_inside_close(struct device *device);

/* An allocation begins and ends; its companions hear of the end. errors: SYSTEM, no memory to
 * remember it. threads: any. */
MUST_CHECK enum status device_remember(struct span span, struct device *device);
void device_forget(const void *ptr, struct device *device);

/* Counts bytes of the device's own kind that are there already, limit or not, or (negative) are
 * given back. */
void device_count(struct device *device, enum memory_tag tag, int64_t bytes);

/* Until a stream's worker has made all calls that it has been given. */
void stream_settle(struct stream *stream);

#endif
