/* ledger: every byte held and sent, measured beside predicted (I4).
 *
 * Held bytes are the peaks of the device's account (device.h), sent bytes those of the
 * communicator's counters (ring.h). The predictions come from the layout, the plan and how often
 * things were done; nothing measured goes into them.
 */
#ifndef SHARD_LEDGER_H
#define SHARD_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/ring.h"
#include "shard/stage.h"

struct ledger_entry {
    char name[40];                /* "weights_held", …, "all_reduce_sent", … */
    uint64_t measured, predicted; /* bytes, of this rank */
    bool has_prediction;
};

#define LEDGER_ENTRIES (MEMORY_TAG_COUNT + COLLECTIVE_COUNT)
struct ledger {
    int count;
    struct ledger_entry entry[LEDGER_ENTRIES];
    uint64_t steps;
    double paper_sent_bytes; /* 2Ψ·(N−1)/N in bytes, times steps: the ZeRO paper's count */
    bool ok;                 /* every entry that has a prediction equals it */
};

/* How often the trainer did what it sends for. */
struct ledger_events {
    uint64_t steps;             /* each also gathers three scalars: valid tokens, loss, norm */
    uint64_t validations;       /* each gathers two: loss, valid tokens */
    struct ring_counters start; /* of the communicator before the first */
};

/* device: the stage's, used for nothing else that is tagged weights, gradients or optimizer. */
void ledger_read(
    struct ledger *ledger, const struct ledger_events *events, const struct stage *stage);

#endif
