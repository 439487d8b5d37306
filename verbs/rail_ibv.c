/* rail_ibv: see rail.h. */
#include "verbs/rail.h"

#include <string.h>

#include "verbs/ibv_device.h"

int nic_rail(const char *name, struct device *device)
{
    struct nics *nics = NULL;
    if (nics_find(&nics, device) != STATUS_OK || nics->settings.device[0] != 0) return -1;
    for (int i = 0; i < nics->count; i++)
        if (strcmp(nics->nics[i].address.device, name) == 0) return i;
    return -1;
}

static const char *ask(struct ibv_device *device)
{
    enum gpu_way way = GPU_WAY_STAGED;
    struct ibv_context *context = ibv_open_device(device);
    if (context == NULL) return NULL;
    struct ibv_pd *pd = ibv_alloc_pd(context);
    bool told = pd != NULL && gpu_way_probe(&way, pd) == STATUS_OK;
    if (pd != NULL) ibv_dealloc_pd(pd);
    ibv_close_device(context);
    return told ? gpu_way_name(way) : NULL;
}

const char *nic_gpu_way(const char *name)
{
    int count = 0;
    const char *way = NULL;
    struct ibv_device **devices = ibv_get_device_list(&count);
    for (int i = 0; devices != NULL && i < count && way == NULL; i++)
        if (strcmp(ibv_get_device_name(devices[i]), name) == 0) way = ask(devices[i]);
    if (devices != NULL) ibv_free_device_list(devices);
    return way;
}
