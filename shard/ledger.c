/* ledger: see ledger.h. */
#include "shard/ledger.h"

#include <stdio.h>

#define SCALARS_PER_STEP       3 /* gathers of one double */
#define SCALARS_PER_VALIDATION 2 /* one gather of two doubles */

static void add_entry(struct ledger *ledger, const char *name, const char *what, uint64_t measured,
    const uint64_t *predicted)
{
    struct ledger_entry *entry = &ledger->entry[ledger->count++];
    snprintf(entry->name, sizeof entry->name, "%s%s", name, what);
    entry->measured = measured;
    entry->has_prediction = predicted != NULL;
    if (predicted == NULL) return;
    entry->predicted = *predicted;
    if (entry->predicted != entry->measured) ledger->ok = false;
}

/* What one all-gather of `count` doubles makes this rank send. */
static uint64_t predict_gather(size_t count, const struct stage *stage)
{
    struct ring_call call = {.collective = COLLECTIVE_ALL_GATHER, .dtype = DTYPE_INT32, .redop = REDOP_SUM,
        .count = count * sizeof(double) / sizeof(int32_t)};
    return ring_predict_sent_bytes(&call, stage->nranks, stage->rank, stage->config.comm);
}

void ledger_read(
    struct ledger *ledger, const struct ledger_events *events, const struct stage *stage)
{
    struct memory_account account = memory_account_read(stage->config.device);
    struct ring_counters counters = ring_comm_counters(stage->config.comm);
    struct stage_prediction predicted;
    stage->config.ops->predict(&predicted, stage);
    *ledger = (struct ledger){.ok = true, .steps = events->steps};
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        bool stages = tag == MEMORY_WEIGHTS || tag == MEMORY_GRADIENTS || tag == MEMORY_OPTIMIZER;
        add_entry(ledger, memory_tag_name((enum memory_tag)tag), "_held", account.peak[tag],
            stages ? &predicted.held_bytes[tag] : NULL);
    }
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        uint64_t sent = predicted.step_sent_bytes[c] * events->steps;
        if (c == COLLECTIVE_ALL_GATHER)
            sent += SCALARS_PER_STEP * events->steps * predict_gather(1, stage) +
                    events->validations * predict_gather(SCALARS_PER_VALIDATION, stage);
        uint64_t measured = counters.sent_bytes[c] - events->start.sent_bytes[c];
        if (sent > 0 || measured > 0)
            add_entry(ledger, collective_name((enum collective)c), "_sent", measured, &sent);
    }
    double n = stage->nranks, elements = (double)stage->config.params->elements;
    ledger->paper_sent_bytes =
        2.0 * elements * sizeof(float) * (n - 1.0) / n * (double)events->steps;
}
