/* device_host: the host as a device: its memory. A stream's worker does the work itself. */
#include "verbs/device_host.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE_ALLOCATION ((size_t)2 << 20)

static enum status host_alloc(
    void **ptr, size_t bytes, enum memory_kind kind, struct device *device)
{
    (void)kind; /* pinned memory is memory as any other here */
    (void)device;
    size_t alignment = bytes >= LARGE_ALLOCATION ? LARGE_ALLOCATION : 64;
    if (posix_memalign(ptr, alignment, bytes) != 0)
        return FAIL(STATUS_SYSTEM, "no memory for %zu bytes", bytes);
    if (alignment == LARGE_ALLOCATION)
        madvise(*ptr, bytes, MADV_HUGEPAGE); /* advice: failure changes nothing */
    memset(*ptr, 0, bytes);
    return STATUS_OK;
}

static void host_free(void *ptr, size_t bytes, enum memory_kind kind, struct device *device)
{
    (void)bytes, (void)kind, (void)device;
    free(ptr);
}

static enum status host_copy(struct span dst, struct span src, void *native, struct device *device)
{
    (void)native, (void)device;
    if (src.bytes > 0) memcpy(dst.ptr, src.ptr, src.bytes);
    return STATUS_OK;
}

static enum status host_fill(struct span dst, int byte, void *native, struct device *device)
{
    (void)native, (void)device;
    if (dst.bytes > 0) memset(dst.ptr, byte, dst.bytes);
    return STATUS_OK;
}

const struct device_ops device_host_ops = {
    .name = "host",
    .kind = MEMORY_HOST,
    .alloc = host_alloc,
    .free = host_free,
    .copy = host_copy,
    .fill = host_fill,
};
