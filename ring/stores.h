/* stores: how slots in shared memory are written: with plain stores, which leave the lines dirty in the writer's cache, or with streaming
 * stores, which send them to memory. Plain wins where the two cores share a cache, streaming, by far, where they do not; and a
 * virtual machine's cores may move from one state to the other while a job runs. So it is measured, on the real traffic.
 *
 * The choice is this rank's own and changes no bit and no protocol (I2). All ranks try the other kind in the same operations,
 * since they count the same operations, so each measures one kind at a time.
 */
#ifndef RING_STORES_H
#define RING_STORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORES_CLASSES 24 /* by size: 64 KiB to 128 KiB, to 256 KiB, … */

struct stores {
    struct {
        uint32_t operations;
        float ns_per_byte[2]; /* plain, streaming: the best lately seen; 0: not yet */
    } size_class[STORES_CLASSES];
};

/* Whether the next operation of this many bytes should stream. */
bool stores_choose(const struct stores *stores, size_t bytes);

/* What it took. */
void stores_learn(struct stores *stores, size_t bytes, bool streaming, int64_t ns);

#endif
