/* device_ipc: CUDA memory of one rank that another rank of the same host reaches: by an IPC handle
 * between processes, by its pointer within one.
 *
 *   owner                                          neighbour
 *   1 ipc_offer()  {handle of the base, offset,    2 ipc_open()   the base, opened once per
 *                  id, pid, pointer}                              allocation, whatever lies in it
 *                                                  3 ipc_close()  by the last user: unmapped
 *   4 memory_free(), after that: CUDA leaves it open what happens else
 *
 * An allocation is known by (device object of its owner, id): an address may come again with other
 * memory behind it, an id never does.
 */
#ifndef VERBS_DEVICE_IPC_H
#define VERBS_DEVICE_IPC_H

#include "verbs/device_ops.h"

/* Travels as it is. */
struct ipc_offer {
    unsigned char handle[DEVICE_IPC_HANDLE_BYTES];
    uint64_t owner;      /* a random number of the owner's device object; 0: no offer */
    uint64_t allocation; /* its id */
    uint64_t offset, bytes;
    uint64_t address; /* in the owner's process */
    int64_t pid;
    int32_t ordinal;
    uint32_t has_handle; /* else only ranks of the same process reach it */
};

struct ipc_mapped;

struct ipc_import {
    void *ptr;                 /* NULL: none */
    struct ipc_mapped *mapped; /* NULL: in this process */
};

/* Offers part of what memory_alloc() gave. Memory that cannot be exported is offered to this
 * process alone, with a word in the log. errors: INVALID when it is not CUDA memory of this device;
 * SYSTEM. threads: any. */
MUST_CHECK enum status ipc_offer(struct ipc_offer *offer, struct span part, struct device *device);

/* Where the offered memory is for this device. The caller has made sure that both see one process
 * table (so that a pid says who it is), and that the owner still holds it. errors: CUDA when the
 * devices do not reach one another or IPC does not work here (which happens in containers, too):
 * use memory of the host. close accepts a zeroed one; nothing may be in flight to it. threads: any.
 * */
MUST_CHECK enum status ipc_open(
    struct ipc_import *import, const struct ipc_offer *offer, struct device *device);
void ipc_close(struct ipc_import *import, struct device *device);

#endif
