/* plan_fragmentation: `ringzero plan --fragmentation`: one trace of allocations in the same memory,
 * by a first-fit heap and by arenas (shard/replay.h).
 */
#include <inttypes.h>

#include "bench/plan_print.h"
#include "shard/replay.h"

static double mib(uint64_t bytes)
{
    return (double)bytes * 0x1p-20;
}

static void print_outcome(const char *name, const struct replay_outcome *outcome)
{
    const struct replay_event *failed = &outcome->failed;
    char block[24] = "";
    if (failed->layer >= 0 && failed->life != REPLAY_GRADIENT) /* whose names say it */
        snprintf(block, sizeof block, " of block %d", failed->layer);
    if (outcome->fits) printf("  %-8s succeeds\n", name);
    else if (failed->bytes == 0) printf("  %-8s FAILS before the first\n", name);
    else
        printf("  %-8s FAILS at %s%s: %.2f MiB, with %.2f MiB free, of which %.2f in the largest "
               "hole\n",
            name, failed->name, block, mib(failed->bytes), mib(outcome->free_bytes),
            mib(outcome->largest_hole));
}

static void json_outcome(FILE *json, const char *name, uint64_t memory,
    const struct replay_outcome *outcome, const struct replay_outcome *endless)
{
    if (json == NULL) return;
    fprintf(json,
        "{\"allocator\":\"%s\",\"memory\":%" PRIu64 ",\"fits\":%s,\"needs\":%" PRIu64
        ",\"peak\":%" PRIu64 ",\"fragmentation\":%" PRIu64,
        name, memory, outcome->fits ? "true" : "false", endless->extent_bytes, endless->peak_bytes,
        endless->extent_bytes - endless->peak_bytes);
    if (outcome->fits) fputs(",\"event\":null}\n", json);
    else
        fprintf(json,
            ",\"event\":\"%s\",\"bytes\":%" PRIu64 ",\"free\":%" PRIu64 ",\"largest_hole\":%" PRIu64
            "}\n",
            outcome->failed.bytes > 0 ? outcome->failed.name : "arenas", outcome->failed.bytes,
            outcome->free_bytes, outcome->largest_hole);
}

/* endless: what each takes where there is no end of memory. */
static enum status replay_both(
    FILE *json, const struct replay_trace *trace, const struct plan_options *options)
{
    struct replay_outcome heap, arenas, endless_heap, endless_arenas;
    TRY(replay_heap(&endless_heap, trace, UINT64_MAX));
    TRY(replay_arenas(&endless_arenas, trace, UINT64_MAX));
    uint64_t memory =
        options->memory_bytes > 0 ? options->memory_bytes : endless_arenas.extent_bytes;
    TRY(replay_heap(&heap, trace, memory));
    TRY(replay_arenas(&arenas, trace, memory));
    const uint64_t *life = endless_arenas.life_bytes;
    printf("#\n# in %" PRIu64 " bytes (%.2f MiB)\n", memory, mib(memory));
    print_outcome("heap", &heap);
    print_outcome("arenas", &arenas);
    printf("#\n# MiB            needs   alive at most\n"
           "  heap     %11.2f     %11.2f   first fit: holes that are too small are the difference\n"
           "  arenas   %11.2f     %11.2f   checkpoints %.2f and gradients %.2f, without a gap; "
           "scratch "
           "%.2f\n",
        mib(endless_heap.extent_bytes), mib(endless_heap.peak_bytes),
        mib(endless_arenas.extent_bytes), mib(endless_arenas.peak_bytes),
        mib(life[REPLAY_CHECKPOINT]), mib(life[REPLAY_GRADIENT]), mib(life[REPLAY_SCRATCH]));
    json_outcome(json, "heap", memory, &heap, &endless_heap);
    json_outcome(json, "arenas", memory, &arenas, &endless_arenas);
    return STATUS_OK;
}

enum status plan_print_fragmentation(FILE *json, const struct plan_options *options)
{
    const struct train_config *train = &options->config.train;
    int t = train->seq > 0 ? train->seq : train->model.max_t;
    struct params params = {0};
    struct replay_trace trace = {0};
    TRY(model_config_check(&train->model));
    enum status status = params_make(&params, &train->model);
    if (status == STATUS_OK) status = replay_make(&trace, &params, train->batch, t);
    if (status == STATUS_OK) {
        printf(
            "# %d allocations of two micro-batches of %d x %d tokens, %s: checkpoints, gradients, "
            "scratch\n",
            trace.ids, train->batch, t, options->run.model);
        status = replay_both(json, &trace, options);
    }
    replay_free(&trace);
    params_free(&params);
    return status;
}
