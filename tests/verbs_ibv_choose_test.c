/* Which port and GID an RDMA edge takes, on tables of machines that we do not have; and the
 * settings that decide.
 * ctest: timeout=30
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/harness.h"
#include "verbs/ibv_choose.h"

static struct nic_gid row(int index, enum nic_fabric fabric, const char *text)
{
    struct nic_gid gid = {.index = index, .fabric = (uint32_t)fabric};
    CHECK(inet_pton(AF_INET6, text, gid.raw) == 1);
    return gid;
}

/* The index of the row chosen. */
static int chosen(const struct nic_gid *table, int count)
{
    int place = nic_gid_choose(table, count);
    return place < 0 ? -1 : table[place].index;
}

static void check_gids(void)
{
    /* A ConnectX on Ethernet, as the kernel fills its table. */
    struct nic_gid connectx[] = {row(0, NIC_ROCE_V1, "fe80::63f:72ff:feaa:1"),
        row(1, NIC_ROCE_V2, "fe80::63f:72ff:feaa:1"), row(2, NIC_ROCE_V1, "::ffff:10.0.0.7"),
        row(3, NIC_ROCE_V2, "::ffff:10.0.0.7"), row(4, NIC_ROCE_V1, "2001:db8::7"),
        row(5, NIC_ROCE_V2, "2001:db8::7")};
    CHECK(chosen(connectx, 6) == 3);
    CHECK(chosen(connectx, 3) == 2); /* v2 without an address beyond the link: v1 with one */
    CHECK(chosen(connectx, 2) == 1);
    struct nic_gid ipv6_only[] = {connectx[0], connectx[1], connectx[4], connectx[5]};
    CHECK(chosen(ipv6_only, 4) == 5);
    struct nic_gid v6_before_v1[] = {connectx[2], connectx[5]};
    CHECK(chosen(v6_before_v1, 2) == 5);
    /* Rows of zeros are holes, whatever they claim to be; of two good ones the first. */
    struct nic_gid holes[] = {row(0, NIC_ROCE_V2, "::"), row(9, NIC_ROCE_V2, "::ffff:10.0.0.8"),
        row(11, NIC_ROCE_V2, "::ffff:10.0.0.9")};
    CHECK(chosen(holes, 3) == 9 && chosen(holes, 1) == -1 && chosen(holes, 0) == -1);
    /* InfiniBand: the port's own first row, link-local prefix and all. */
    struct nic_gid infiniband[] = {
        row(0, NIC_INFINIBAND, "fe80::506b:4b03:f6:a1"), row(1, NIC_INFINIBAND, "fec0::1")};
    CHECK(chosen(infiniband, 2) == 0);
}

static const char *const variables[] = {"RINGZERO_IB_DEVICE", "RINGZERO_IB_GID_INDEX",
    "RINGZERO_IB_MTU", "RINGZERO_IB_TRAFFIC_CLASS", "RINGZERO_IB_SERVICE_LEVEL",
    "RINGZERO_IB_TIMEOUT", "RINGZERO_IB_RETRIES"};

static void refused(const char *name, const char *value)
{
    struct nic_settings settings;
    setenv(name, value, 1);
    CHECK_STATUS(nic_settings_read(&settings), STATUS_INVALID);
    CHECK_MSG(strstr(status_text(), name) != NULL && strstr(status_text(), value) != NULL, "%s",
        status_text());
    unsetenv(name);
}

static void check_settings(void)
{
    struct nic_settings settings;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    CHECK_OK(nic_settings_read(&settings));
    CHECK(settings.device[0] == 0 && settings.gid_index == -1 && settings.mtu_bytes == 4096 &&
          settings.traffic_class == 0 && settings.service_level == 0 && settings.timeout == 18 &&
          settings.retries == 7);
    CHECK(nic_patience_s(&settings) > 7.4 && nic_patience_s(&settings) < 7.6);
    refused("RINGZERO_IB_GID_INDEX", "-1");
    refused("RINGZERO_IB_GID_INDEX", "256");
    refused("RINGZERO_IB_GID_INDEX", "three");
    refused("RINGZERO_IB_MTU", "9000");
    refused("RINGZERO_IB_MTU", "1500");
    refused("RINGZERO_IB_TRAFFIC_CLASS", "256");
    refused("RINGZERO_IB_SERVICE_LEVEL", "16");
    refused("RINGZERO_IB_TIMEOUT", "0"); /* would be: for ever */
    refused("RINGZERO_IB_RETRIES", "8");
    for (size_t i = 1; i < sizeof variables / sizeof *variables; i++)
        setenv(variables[i], i == 2 ? "1024" : "4", 1);
    CHECK_OK(nic_settings_read(&settings));
    CHECK(settings.gid_index == 4 && settings.mtu_bytes == 1024 && settings.traffic_class == 4 &&
          settings.service_level == 4 && settings.timeout == 4 && settings.retries == 4);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
}

static void check_places(void)
{
    struct nic_settings settings = {.device = ""};
    char name[64];
    CHECK(nic_settings_place("mlx5_0", 1, &settings) == 0);
    CHECK(*nic_settings_entry(name, sizeof name, 0, &settings) == 0);
    snprintf(settings.device, sizeof settings.device, "mlx5_2:1,mlx5_0");
    CHECK(nic_settings_place("mlx5_2", 1, &settings) == 0 &&
          nic_settings_place("mlx5_2", 2, &settings) == -1);
    CHECK(nic_settings_place("mlx5_0", 1, &settings) == 1 &&
          nic_settings_place("mlx5_0", 2, &settings) == 1);
    CHECK(nic_settings_place("mlx5_1", 1, &settings) == -1 &&
          nic_settings_place("mlx5", 2, &settings) == -1);
    CHECK(strcmp(nic_settings_entry(name, sizeof name, 0, &settings), "mlx5_2:1") == 0);
    CHECK(strcmp(nic_settings_entry(name, sizeof name, 1, &settings), "mlx5_0") == 0);
    CHECK(*nic_settings_entry(name, sizeof name, 2, &settings) == 0 &&
          *nic_settings_entry(name, sizeof name, 9, &settings) == 0);
}

static void check_texts(void)
{
    struct nic_address address = {
        .device = "mlx5_0", .fabric = NIC_ROCE_V2, .mtu_bytes = 4096, .port = 1, .gid_index = 3};
    char text[160];
    inet_pton(AF_INET6, "::ffff:10.0.0.1", address.gid);
    CHECK(strcmp(nic_address_text(text, sizeof text, &address),
              "mlx5_0 port 1, GID 3 ::ffff:10.0.0.1, RoCE v2, MTU 4096") == 0);
    address.fabric = NIC_INFINIBAND;
    address.lid = 12;
    CHECK(strstr(nic_address_text(text, sizeof text, &address), ", LID 12, InfiniBand, ") != NULL);
    address.fabric = 77; /* came over the wire */
    CHECK(strstr(nic_address_text(text, sizeof text, &address), ", ?, MTU") != NULL);
}

int main(void)
{
    check_gids();
    check_settings();
    check_places();
    check_texts();
    return test_result();
}
