/* stores: a measured choice between two kinds of stores: see stores.h. */
#include "ring/stores.h"

#define SMALLEST_LOG2   16  /* below 64 KiB the lines are few and the next operation wants them in cache: plain */
#define FIRST_TRIES     4   /* plain, streaming, plain, streaming */
#define TRY_OTHER_EVERY 256
#define FORGET          1.05f /* per operation: so that a change of the machine's state is believed after a few dozen */

static int class_of(size_t bytes)
{
    int log2 = bytes == 0 ? 0 : 63 - __builtin_clzll((unsigned long long)bytes);
    int index = log2 - SMALLEST_LOG2;
    return index < STORES_CLASSES ? index : STORES_CLASSES - 1;
}

bool stores_choose(const struct stores *stores, size_t bytes)
{
    int index = class_of(bytes);
    if (index < 0) return false;
    uint32_t turn = stores->size_class[index].operations;
    const float *cost = stores->size_class[index].ns_per_byte;
    if (turn < FIRST_TRIES) return turn % 2 == 1;
    bool streaming_is_better = cost[1] < cost[0];
    return turn % TRY_OTHER_EVERY == TRY_OTHER_EVERY - 1 ? !streaming_is_better : streaming_is_better;
}

void stores_learn(struct stores *stores, size_t bytes, bool streaming, int64_t ns)
{
    int index = class_of(bytes);
    if (index < 0) return;
    float *cost = &stores->size_class[index].ns_per_byte[streaming];
    float seen = (float)ns / (float)bytes;
    *cost = *cost == 0 || seen < *cost * FORGET ? seen : *cost * FORGET;
    stores->size_class[index].operations++;
}
