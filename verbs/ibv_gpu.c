/* ibv_gpu: see ibv_gpu.h. */
#include "verbs/ibv_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {
    [GPU_WAY_STAGED] = "staged", [GPU_WAY_DMABUF] = "dma-buf", [GPU_WAY_PEERMEM] = "peermem"};

const char *gpu_way_name(enum gpu_way way)
{
    return names[way];
}

/* Which ways the user lets be tried: a bit each. */
static enum status wanted_ways(unsigned *ways)
{
    const char *text = getenv("RINGZERO_GPU_DIRECT");
    *ways = ~0u;
    if (text == NULL || *text == 0 || strcmp(text, "auto") == 0) return STATUS_OK;
    for (int way = GPU_WAY_STAGED; way <= GPU_WAY_PEERMEM; way++)
        if (strcmp(text, names[way]) == 0) {
            *ways = 1u << way;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID,
        "RINGZERO_GPU_DIRECT is \"%s\"; expected auto, dma-buf, peermem or staged", text);
}

/* The kernel looks at the descriptor last: that −1 is what it dislikes says that it knows the call.
 * */
static bool dmabuf_is_known(struct ibv_pd *pd)
{
    errno = 0;
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
    if (mr != NULL) ibv_dereg_mr(mr);
    return mr != NULL || errno == EBADF;
}

/* Under its old name, too. */
static bool peermem_is_loaded(void)
{
    return access("/sys/module/nvidia_peermem/version", F_OK) == 0 ||
           access("/sys/module/nv_peer_mem/version", F_OK) == 0;
}

enum status gpu_way_probe(enum gpu_way *way, struct ibv_pd *pd)
{
    unsigned wanted;
    *way = GPU_WAY_STAGED;
    TRY(wanted_ways(&wanted));
    if ((wanted >> GPU_WAY_DMABUF & 1) && dmabuf_is_known(pd)) *way = GPU_WAY_DMABUF;
    else if ((wanted >> GPU_WAY_PEERMEM & 1) && peermem_is_loaded()) *way = GPU_WAY_PEERMEM;
    return STATUS_OK;
}

/* Whole pages around the span; the descriptor is not needed once the NIC knows the memory. */
static enum status register_dmabuf(
    struct ibv_mr **mr, struct span span, int access, struct ibv_pd *pd, struct device *device)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)span.ptr;
    uintptr_t first = begin / page * page;
    size_t bytes = (begin + span.bytes - first + page - 1) / page * page;
    int fd = -1;
    if (device->ops->dmabuf_export == NULL)
        return FAIL(STATUS_VERBS, "device %s gives no descriptor of its memory", device->ops->name);
    if (!dmabuf_is_known(pd))
        return FAIL(STATUS_VERBS, "the NIC's driver does not take it: %s", strerror(errno));
    TRY(device->ops->dmabuf_export(&fd, (void *)first, bytes, device));
    errno = 0;
    *mr = ibv_reg_dmabuf_mr(pd, begin - first, span.bytes, begin, fd, access);
    int error = errno;
    close(fd);
    if (*mr == NULL) return FAIL(STATUS_VERBS, "ibv_reg_dmabuf_mr failed: %s", strerror(error));
    return STATUS_OK;
}

static enum status register_peermem(
    struct ibv_mr **mr, struct span span, int access, struct ibv_pd *pd)
{
    if (!peermem_is_loaded()) return FAIL(STATUS_VERBS, "nvidia_peermem is not loaded");
    errno = 0;
    *mr = ibv_reg_mr(pd, span.ptr, span.bytes, access);
    if (*mr == NULL) return FAIL(STATUS_VERBS, "ibv_reg_mr failed: %s", strerror(errno));
    return STATUS_OK;
}

enum status gpu_register(struct ibv_mr **mr, enum gpu_way *way, struct span span, int access,
    struct ibv_pd *pd, struct device *device)
{
    unsigned wanted;
    char dmabuf[256] = "not wanted", peermem[256] = "not wanted";
    *mr = NULL;
    *way = GPU_WAY_DMABUF;
    TRY(wanted_ways(&wanted));
    if (wanted >> GPU_WAY_DMABUF & 1) {
        if (register_dmabuf(mr, span, access, pd, device) == STATUS_OK) return STATUS_OK;
        snprintf(dmabuf, sizeof dmabuf, "%s", status_text());
    }
    *way = GPU_WAY_PEERMEM;
    if (wanted >> GPU_WAY_PEERMEM & 1) {
        if (register_peermem(mr, span, access, pd) == STATUS_OK) return STATUS_OK;
        snprintf(peermem, sizeof peermem, "%s", status_text());
    }
    *way = GPU_WAY_STAGED;
    return FAIL(STATUS_VERBS,
        "CUDA memory is not reached: dma-buf: %s; peermem: %s: it goes through pinned host memory "
        "(modprobe nvidia_peermem, or NVIDIA's open kernel modules, would spare that)",
        dmabuf, peermem);
}
