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
