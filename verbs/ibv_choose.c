/* ibv_choose: see ibv_choose.h. */
#include "verbs/ibv_choose.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- settings ---- */

static enum status read_number(int *value, const char *name, int least, int most)
{
    const char *text = getenv(name);
    if (text == NULL) return STATUS_OK;
    char *end;
    long number = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || number < least || number > most)
        return FAIL(STATUS_INVALID, "%s is \"%s\"; expected a number from %d to %d", name, text,
            least, most);
    *value = (int)number;
    return STATUS_OK;
}

enum status nic_settings_read(struct nic_settings *settings)
{
    *settings =
        (struct nic_settings){.gid_index = -1, .mtu_bytes = 4096, .timeout = 18, .retries = 7};
    const char *device = getenv("RINGZERO_IB_DEVICE");
    if (device != NULL && strlen(device) >= sizeof settings->device)
        return FAIL(STATUS_INVALID, "RINGZERO_IB_DEVICE has %zu characters; expected at most %zu",
            strlen(device), sizeof settings->device - 1);
    if (device != NULL) snprintf(settings->device, sizeof settings->device, "%s", device);
    TRY(read_number(&settings->gid_index, "RINGZERO_IB_GID_INDEX", 0, 255));
    TRY(read_number(&settings->mtu_bytes, "RINGZERO_IB_MTU", 256, 4096));
    TRY(read_number(&settings->traffic_class, "RINGZERO_IB_TRAFFIC_CLASS", 0, 255));
    TRY(read_number(&settings->service_level, "RINGZERO_IB_SERVICE_LEVEL", 0, 15));
    TRY(read_number(
        &settings->timeout, "RINGZERO_IB_TIMEOUT", 1, 31)); /* 0 would be: wait for ever */
    TRY(read_number(&settings->retries, "RINGZERO_IB_RETRIES", 0, 7));
    if ((settings->mtu_bytes & (settings->mtu_bytes - 1)) != 0)
        return FAIL(STATUS_INVALID, "RINGZERO_IB_MTU is %d; expected 256, 512, 1024, 2048 or 4096",
            settings->mtu_bytes);
    return STATUS_OK;
}

const char *nic_settings_entry(
    char *name, size_t bytes, int place, const struct nic_settings *settings)
{
    const char *begin = settings->device;
    for (; place > 0 && *begin != 0; place--) {
        begin += strcspn(begin, ",");
        if (*begin != 0) begin++;
    }
    snprintf(name, bytes, "%.*s", (int)strcspn(begin, ","), begin);
    return name;
}

int nic_settings_place(const char *device, int port, const struct nic_settings *settings)
{
    if (settings->device[0] == 0) return 0;
    char entry[sizeof settings->device], with_port[NIC_NAME_BYTES + 16];
    snprintf(with_port, sizeof with_port, "%s:%d", device, port);
    for (int place = 0; *nic_settings_entry(entry, sizeof entry, place, settings) != 0; place++)
        if (strcmp(entry, device) == 0 || strcmp(entry, with_port) == 0) return place;
    return -1;
}

double nic_patience_s(const struct nic_settings *settings)
{
    return 4.096e-6 * (double)(1u << settings->timeout) *
           (settings->retries > 0 ? settings->retries : 1);
}

/* ---- GIDs ---- */

static bool is_ipv4_mapped(const unsigned char *raw)
{
    static const unsigned char prefix[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(raw, prefix, sizeof prefix) == 0;
}

/* Higher is better; 0: not fit. */
static int gid_worth(const struct nic_gid *gid)
{
    static const unsigned char zeros[NIC_GID_BYTES];
    if (memcmp(gid->raw, zeros, sizeof zeros) == 0) return 0;
    if (gid->fabric == NIC_INFINIBAND) return 1;
    bool link_local = gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
    bool v2 = gid->fabric == NIC_ROCE_V2;
    if (link_local) return v2 ? 2 : 1;
    return (v2 ? 5 : 3) + is_ipv4_mapped(gid->raw);
}

int nic_gid_choose(const struct nic_gid *table, int count)
{
    int best = -1, best_worth = 0;
    for (int i = 0; i < count; i++) {
        int worth = gid_worth(&table[i]);
        if (worth > best_worth) {
            best = i;
            best_worth = worth;
        }
    }
    return best;
}

const char *nic_address_text(char *text, size_t bytes, const struct nic_address *address)
{
    static const char *const names[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
    char gid[INET6_ADDRSTRLEN] = "?", lid[24] = "";
    inet_ntop(AF_INET6, address->gid, gid, sizeof gid);
    if (address->fabric == NIC_INFINIBAND) snprintf(lid, sizeof lid, ", LID %u", address->lid);
    snprintf(text, bytes, "%.*s port %d, GID %d %s%s, %s, MTU %u", NIC_NAME_BYTES, address->device,
        address->port, address->gid_index, gid, lid,
        address->fabric <= NIC_ROCE_V2 ? names[address->fabric] : "?", address->mtu_bytes);
    return text;
}
