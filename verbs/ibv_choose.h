/* ibv_choose: which NIC port and which of its GIDs an edge uses, and the settings that decide. Pure
 * functions of what was read, without libibverbs: so they are tested on tables of machines that we
 * do not have. ibv_device.h does the reading.
 *
 *   variable                   default     meaning
 *   RINGZERO_IB_DEVICE         all active  NAME or NAME:PORT, several with commas: channels are
 *                                          spread over them in this order
 *   RINGZERO_IB_GID_INDEX      chosen      row of the port's GID table
 *   RINGZERO_IB_MTU            4096        at most; an edge takes the smallest of its two ports'
 *                                          and this
 *   RINGZERO_IB_TRAFFIC_CLASS  0           of the packets' global header: DSCP × 4 on RoCE
 *   RINGZERO_IB_SERVICE_LEVEL  0           0 to 15
 *   RINGZERO_IB_TIMEOUT        18          t: a packet without an answer is sent again after
 *                                          4.096 µs × 2^t (18: 1.07 s)
 *   RINGZERO_IB_RETRIES        7           how often: with 18, a peer that is gone is an error
 *                                          after 7.5 s
 *
 * source of the defaults: FIELD_NOTES §2.
 */
#ifndef VERBS_IBV_CHOOSE_H
#define VERBS_IBV_CHOOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

#define NIC_NAME_BYTES 40
#define NIC_GID_BYTES  16

enum nic_fabric { NIC_INFINIBAND, NIC_ROCE_V1, NIC_ROCE_V2 };

struct nic_settings {
    char device[256]; /* "": all */
    int gid_index;    /* -1: choose */
    int mtu_bytes;
    int traffic_class, service_level, timeout, retries;
};

/* The variables, or the defaults. errors: INVALID naming the variable, what it holds and what it
 * may hold. */
MUST_CHECK enum status nic_settings_read(struct nic_settings *settings);

/* Where RINGZERO_IB_DEVICE names this port: 0 first; -1 if it does not. Without the variable every
 * port is at 0. */
int nic_settings_place(const char *device, int port, const struct nic_settings *settings);

/* The entry at a place of RINGZERO_IB_DEVICE into name (empty after the last); returns name. */
const char *nic_settings_entry(
    char *name, size_t bytes, int place, const struct nic_settings *settings);

/* One row of a port's GID table. */
struct nic_gid {
    int32_t index;
    uint32_t fabric; /* enum nic_fabric */
    unsigned char raw[NIC_GID_BYTES];
};

/* The row to use, as its place in the array: RoCE v2 before v1; IPv4-mapped, then other addresses,
 * link-local ones last; of equals the first. On InfiniBand the first. Rows of zeros are none.
 * -1: none is fit. */
int nic_gid_choose(const struct nic_gid *table, int count);

/* A port as the other end must know it: to connect, and for messages. Travels as bytes between
 * ranks of the same build. */
struct nic_address {
    char device[NIC_NAME_BYTES];
    unsigned char gid[NIC_GID_BYTES];
    uint32_t fabric; /* enum nic_fabric */
    uint32_t mtu_bytes, lid;
    int32_t port, gid_index;
};

/* "mlx5_0 port 1, GID 3 ::ffff:10.0.0.1, RoCE v2, MTU 4096"; returns text. */
const char *nic_address_text(char *text, size_t bytes, const struct nic_address *address);

/* Seconds until a peer that does not answer is an error. */
double nic_patience_s(const struct nic_settings *settings);

#endif
