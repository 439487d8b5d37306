/* ibv_memory: what a NIC may read and write. Memory is registered by a means of its kind: host
 * memory by ibv_reg_mr(), which pins its pages and counts against RLIMIT_MEMLOCK; CUDA memory as
 * ibv_gpu.h says.
 *
 *   registration    one span, for one NIC: an edge's slots
 *   registrations   the cache: whole allocations of the device (memory_alloc()) from which users
 *                   send, registered at their first use by a NIC and until memory_free(). Keyed by
 *                   the allocation's id, never by the address: an address may come back with other
 *                   pages behind it, and the NIC would go on reading the old ones
 */
#ifndef VERBS_IBV_MEMORY_H
#define VERBS_IBV_MEMORY_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>

#include "verbs/device.h"
#include "verbs/ibv_gpu.h"

struct nic;

struct registration {
    struct ibv_mr *mr; /* NULL: none */
    enum gpu_way way;  /* of CUDA memory */
};

/* Lets the NIC read the span, and the peer write to it if asked for. The span must live until
 * registration_close(), which accepts a zeroed one.
 * errors: VERBS, with the limit of locked memory where that may be it. cost: pins every page. */
MUST_CHECK enum status registration_open(struct registration *registration, struct span span,
    bool peer_writes, const struct nic *nic, struct device *device);
void registration_close(struct registration *registration);

struct registrations {
    pthread_mutex_t lock; /* of all that follows */
    struct registered *list;
    size_t count, room;
};

void registrations_open(struct registrations *registrations);
void registrations_close(struct registrations *registrations);

/* Whether the NIC may read [ptr, ptr + bytes), and by which key: true when it lies in an allocation
 * of the device of at least REGISTRATION_LEAST_BYTES that is registered, or now is. What cannot be
 * registered is not tried again, with one warning. threads: any. */
#define REGISTRATION_LEAST_BYTES ((size_t)64 << 10)
bool registrations_find(uint32_t *lkey, const void *ptr, size_t bytes, const struct nic *nic,
    struct device *device, struct registrations *registrations);

/* The allocation is about to be freed: no NIC knows it any more. */
void registrations_forget(const struct allocation *allocation, struct registrations *registrations);

#endif
