/* ibv_device: see ibv_device.h. */
#include "verbs/ibv_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "verbs/log.h"

#define GIDS_MOST 256 /* rows that a connection can name */

/* What was found, for the message when nothing of it can be used. */
struct survey {
    char text[480];
    size_t used;
};

static void survey_add(struct survey *survey, const char *device, int port, const char *what)
{
    size_t left = sizeof survey->text - survey->used;
    int wrote = snprintf(survey->text + survey->used, left, "%s%s:%d %s",
        survey->used > 0 ? ", " : "", device, port, what);
    survey->used += wrote > 0 && (size_t)wrote < left ? (size_t)wrote : 0;
}

/* ---- one port ---- */

enum ibv_mtu nic_mtu_enum(uint32_t mtu_bytes)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && 256u << mtu <= mtu_bytes) mtu++;
    return mtu;
}

static uint32_t mtu_bytes(enum ibv_mtu mtu)
{
    return 128u << mtu;
}

static int gid_table_read(
    struct nic_gid *table, struct ibv_context *context, int port, const struct ibv_port_attr *attr)
{
    bool ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET;
    int count = 0;
    for (int i = 0; i < attr->gid_tbl_len && i < GIDS_MOST; i++) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(context, (uint32_t)port, (uint32_t)i, &entry, 0) != 0)
            continue; /* empty; or EINVAL in a container */
        enum nic_fabric fabric = !ethernet                                ? NIC_INFINIBAND
                                 : entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? NIC_ROCE_V2
                                                                          : NIC_ROCE_V1;
        table[count] = (struct nic_gid){.index = i, .fabric = (uint32_t)fabric};
        memcpy(table[count++].raw, entry.gid.raw, NIC_GID_BYTES);
    }
    return count;
}

/* Fills the address; NULL, or why the port cannot be used. */
static const char *port_choose(struct nic *nic, int port, const struct ibv_port_attr *attr,
    const struct nic_settings *settings)
{
    struct nic_gid table[GIDS_MOST];
    int count = gid_table_read(table, nic->context, port, attr), chosen = -1;
    bool ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET;
    if (attr->state != IBV_PORT_ACTIVE) return "is not active (ibv_devinfo shows its state)";
    if (settings->gid_index < 0) chosen = nic_gid_choose(table, count);
    else
        for (int i = 0; i < count; i++)
            if (table[i].index == settings->gid_index) chosen = i;
    if (chosen < 0 && settings->gid_index >= 0)
        return "has no such row in its GID table: correct or unset RINGZERO_IB_GID_INDEX";
    if (chosen < 0) return "has no GID: give its network interface an address";
    struct nic_address *address = &nic->address;
    address->port = port;
    address->lid = attr->lid;
    address->fabric = table[chosen].fabric;
    address->gid_index = table[chosen].index;
    memcpy(address->gid, table[chosen].raw, NIC_GID_BYTES);
    address->mtu_bytes = mtu_bytes(attr->active_mtu);
    if (address->mtu_bytes > (uint32_t)settings->mtu_bytes)
        address->mtu_bytes = (uint32_t)settings->mtu_bytes;
    nic->global_header =
        ethernet || settings->gid_index >= 0 || (attr->flags & IBV_QPF_GRH_REQUIRED) != 0;
    return NULL;
}

static void nic_close(struct nic *nic)
{
    if (nic->pd != NULL) ibv_dealloc_pd(nic->pd);
    if (nic->context != NULL) ibv_close_device(nic->context);
    *nic = (struct nic){0};
}

/* One port of a device into *nic; false, and a line in the survey, when it cannot be used. */
static bool nic_open(struct nic *nic, struct ibv_device *device, int port,
    const struct nic_settings *settings, struct survey *survey)
{
    *nic = (struct nic){0};
    const char *name = ibv_get_device_name(device), *why = NULL;
    struct ibv_port_attr attr;
    snprintf(nic->address.device, sizeof nic->address.device, "%s", name);
    nic->context = ibv_open_device(device);
    if (nic->context == NULL)
        why = "cannot be opened: are /dev/infiniband/uverbs* readable and writable?";
    else if (ibv_query_port(nic->context, (uint8_t)port, &attr) != 0) why = "cannot be asked";
    else why = port_choose(nic, port, &attr, settings);
    if (why == NULL && (nic->pd = ibv_alloc_pd(nic->context)) == NULL)
        why = "has no protection domain left";
    if (why == NULL) return true;
    survey_add(survey, name, port, why);
    nic_close(nic);
    return false;
}

static int port_count(struct ibv_device *device)
{
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_device_attr attr;
    int count = context != NULL && ibv_query_device(context, &attr) == 0 ? attr.phys_port_cnt : 1;
    if (context != NULL) ibv_close_device(context);
    return count;
}

/* ---- all of them ---- */

/* The usable ports that RINGZERO_IB_DEVICE names at `place`, or all where it is not set. */
static void nics_open_place(struct nics *nics, struct ibv_device **devices, int device_count,
    int place, struct survey *survey)
{
    for (int d = 0; d < device_count; d++) {
        const char *name = ibv_get_device_name(devices[d]);
        int ports = port_count(devices[d]);
        for (int port = 1; port <= ports && nics->count < NIC_MOST; port++) {
            if (nic_settings_place(name, port, &nics->settings) != place) continue;
            if (devices[d]->transport_type == IBV_TRANSPORT_IWARP)
                survey_add(survey, name, port, "speaks iWARP: not supported");
            else if (nic_open(&nics->nics[nics->count], devices[d], port, &nics->settings, survey))
                nics->count++;
        }
    }
}

static enum status nics_open_devices(
    struct nics *nics, struct ibv_device **devices, int device_count)
{
    struct survey survey = {.text = ""};
    char entry[sizeof nics->settings.device];
    bool named = nics->settings.device[0] != 0;
    for (int place = 0;; place++) {
        nic_settings_entry(entry, sizeof entry, place, &nics->settings);
        if (entry[0] == 0 && (named || place > 0)) break;
        int before = nics->count;
        nics_open_place(nics, devices, device_count, place, &survey);
        if (nics->count > before || !named) continue;
        if (survey.used > 0)
            return FAIL(
                STATUS_INVALID, "RINGZERO_IB_DEVICE names \"%s\", but %s", entry, survey.text);
        char names[256] = "";
        for (int d = 0; d < device_count; d++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", d > 0 ? ", " : "",
                ibv_get_device_name(devices[d]));
        return FAIL(
            STATUS_INVALID, "RINGZERO_IB_DEVICE names \"%s\"; RDMA devices here: %s", entry, names);
    }
    if (nics->count == 0) return FAIL(STATUS_VERBS, "no RDMA port can be used: %s", survey.text);
    return STATUS_OK;
}

static enum status nics_open(struct nics *nics)
{
    TRY(nic_settings_read(&nics->settings));
    int device_count = 0;
    struct ibv_device **devices = ibv_get_device_list(&device_count);
    enum status status;
    if (devices == NULL || device_count == 0)
        status = FAIL(STATUS_VERBS, "this host has no RDMA device (ibv_devices lists none)");
    else status = nics_open_devices(nics, devices, device_count);
    if (devices != NULL) ibv_free_device_list(devices);
    return status;
}

static void nics_close(struct device_companion *companion)
{
    struct nics *nics = (struct nics *)(void *)companion;
    registrations_close(&nics->registrations);
    for (int i = 0; i < nics->count; i++) nic_close(&nics->nics[i]);
    free(nics);
}

static void nics_forget(const struct allocation *allocation, struct device_companion *companion)
{
    struct nics *nics = (struct nics *)(void *)companion;
    registrations_forget(allocation, &nics->registrations);
}

static enum status companion_open(struct device_companion **companion)
{
    struct nics *nics = calloc(1, sizeof *nics);
    if (nics == NULL) return FAIL(STATUS_SYSTEM, "no memory for the list of NICs");
    nics->companion = (struct device_companion){.forget = nics_forget, .close = nics_close};
    registrations_open(&nics->registrations);
    enum status status = nics_open(nics);
    if (status != STATUS_OK) {
        nics_close(&nics->companion);
        return status;
    }
    for (int i = 0; i < nics->count; i++) {
        char text[160];
        LOG_INFO(
            "verbs", "rail %d: %s", i, nic_address_text(text, sizeof text, &nics->nics[i].address));
    }
    *companion = &nics->companion;
    return STATUS_OK;
}

enum status nics_find(struct nics **nics, struct device *device)
{
    struct device_companion *companion = NULL;
    TRY(device_companion_find(&companion, companion_open, device));
    *nics = (struct nics *)(void *)companion;
    return STATUS_OK;
}

bool nics_available(void)
{
    struct nics *nics = calloc(1, sizeof *nics);
    if (nics == NULL) return false;
    registrations_open(&nics->registrations);
    bool available = nics_open(nics) == STATUS_OK;
    nics_close(&nics->companion);
    return available;
}

bool nic_is_active(const struct nic *nic)
{
    struct ibv_port_attr attr;
    return ibv_query_port(nic->context, (uint8_t)nic->address.port, &attr) == 0 &&
           attr.state == IBV_PORT_ACTIVE;
}

const char *nic_memlock_hint(char *text, size_t bytes, int error)
{
    struct rlimit limit;
    text[0] = 0;
    bool limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if ((error == ENOMEM || error == EAGAIN || error == EPERM) && limited)
        snprintf(text, bytes,
            "; RLIMIT_MEMLOCK is %llu KiB: raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity "
            "of the service that starts the "
            "ranks), or lower RINGZERO_SLOT_BYTES or RINGZERO_SLOTS",
            (unsigned long long)limit.rlim_cur >> 10);
    return text;
}
