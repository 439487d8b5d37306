/* reach: CUDA memory from ring_alloc(), which the other ranks of a host read where it is. What a step of the ring sends, and what lies
 * unchanged in such memory, is not copied into a slot: its record refers to it, and who receives it copies or adds it from there.
 *
 *   owner                                            every other rank of its host
 *   1 reach_alloc()  memory, an offer of it ───────► opens it (verbs/device_ipc.h), says whether it can
 *   2 posts a record with a reference       ───────► reads there, then frees the step
 *   3 its operation ends when all such steps have been freed: then the caller may write there again
 *
 *   reference, one word    bits 0–39  offset in the region    40–47  region + 1; 0: the data are in the slot
 *
 * Only the steps of the ring do that, and only what they never write again within the operation (execute_host.c's sends_from()): so
 * nobody reads what has changed. The bits are those of slots (I2), and so are the bytes (I4).
 *
 * Who gives up says so first, in the records (fifo_take_back()), and who reads looks there after its last load, so that data that were
 * overwritten under a reader never pass for a result.
 *
 * Invariant: memory is freed only when nobody has it open, which CUDA leaves undefined else: reach_free() keeps it for the next
 * reach_alloc(), and ring_comm_close() frees it, when all have closed what they opened.
 */
#ifndef RING_REACH_H
#define RING_REACH_H

#include "ring/primitive.h"
#include "verbs/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define REACH_REGIONS 64 /* of a rank */
#define REACH_TAKEN_BACK UINT64_MAX /* tag of a record whose data their owner has taken back */

struct ring_comm;
struct reach;

/* A region where this rank finds it; at NULL: it does not. */
struct reach_region {
    const unsigned char *at;
    uint64_t bytes;
};

/* Where the data of a reference are; NULL: nowhere. regions: REACH_REGIONS of who posted it, or NULL for none. */
ON_EVERY_DEVICE const unsigned char *reach_data(uint64_t reference, uint64_t bytes, const struct reach_region *regions)
{
    uint64_t region = (reference >> 40 & 0xff) - 1, offset = reference & (((uint64_t)1 << 40) - 1);
    if (regions == NULL || region >= REACH_REGIONS || regions[region].at == NULL) return NULL;
    if (offset > regions[region].bytes || bytes > regions[region].bytes - offset) return NULL;
    return regions[region].at + offset;
}

/* ring_alloc() and ring_free() of a CUDA device. errors of reach_alloc(): as memory_alloc(), and those of a collective. false: the
 * memory is not from here. */
MUST_CHECK enum status reach_alloc(struct span *span, size_t bytes, enum memory_tag tag, struct ring_comm *comm);
bool reach_free(struct span *span, struct ring_comm *comm);

/* A reference to memory of this rank that a rank reads where it is; 0: it does not. */
uint64_t reach_reference(const void *ptr, size_t bytes, int rank, struct ring_comm *comm);

/* What this rank has opened of another one's, in pinned memory; NULL: nothing. */
const struct reach_region *reach_regions(int rank, const struct ring_comm *comm);

/* When a communicator closes: before all have met, and, unless it failed, after. A communicator that failed leaves what others may
 * have open to the end of the process. */
void reach_let_go(struct ring_comm *comm);
void reach_close(struct ring_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
