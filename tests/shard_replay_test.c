/* M_D: one trace of allocations, in the same memory: the first-fit heap fails although it has the
 * bytes free, arenas succeed and have not a byte between what lives long. And the heap is a
 * first-fit heap. ctest: timeout=30
 */
#include <stdlib.h>

#include "shard/heap.h"
#include "shard/replay.h"
#include "tests/harness/harness.h"

static void test_first_fit(void)
{
    struct heap heap;
    CHECK_OK(heap_open(&heap, 10, 8));
    CHECK(heap_take(0, 3, &heap) && heap_take(1, 2, &heap) && heap_take(2, 3, &heap));
    CHECK(!heap_take(3, 3, &heap) && heap_largest_hole(&heap) == 2 && heap.used_bytes == 8);
    heap_give(0, &heap);
    CHECK(heap.count == 2 && heap_largest_hole(&heap) == 3);
    CHECK(heap_take(4, 1, &heap) && heap.block[0].id == 4 && heap.block[0].begin == 0);
    CHECK(heap_take(5, 2, &heap) && heap.block[1].id == 5 && heap.block[1].begin == 1);
    CHECK(heap_take(6, 2, &heap) && heap.block[4].begin == 8 && heap.extent_bytes == 10);
    heap_give(5, &heap);
    heap_give(1, &heap); /* two holes side by side are one */
    CHECK(heap_largest_hole(&heap) == 4 && heap_take(7, 4, &heap) && heap.used_bytes == 10);
    heap_close(&heap);
}

/* Everything taken is given back but gradients, each of which is taken once. */
static void check_trace(const struct replay_trace *trace, const struct params *params)
{
    uint64_t *alive = calloc((size_t)trace->ids, sizeof *alive), left = 0, gradients = 0;
    if (alive == NULL) abort();
    for (int i = 0; i < trace->count; i++) {
        const struct replay_event *event = &trace->event[i];
        CHECK((event->bytes > 0) == (alive[event->id] == 0));
        alive[event->id] = event->bytes;
        if (event->life == REPLAY_GRADIENT) gradients += event->bytes;
    }
    for (int i = 0; i < trace->ids; i++) left += alive[i];
    CHECK(left == gradients && gradients == params->elements * sizeof(float));
    free(alive);
}

static void test_model(const char *name, int batch, int t)
{
    struct model_config config;
    struct params params;
    struct replay_trace trace;
    struct replay_outcome heap, arenas, fails, more;
    CHECK_OK(model_preset(&config, name));
    CHECK_OK(params_make(&params, &config));
    CHECK_OK(replay_make(&trace, &params, batch, t));
    check_trace(&trace, &params);
    CHECK_OK(replay_arenas(&arenas, &trace, UINT64_MAX));
    uint64_t rows = (uint64_t)batch * (uint64_t)t, x = rows * (uint64_t)config.channels * 4;
    CHECK(arenas.life_bytes[REPLAY_CHECKPOINT] == (uint64_t)config.layers * x);
    CHECK(arenas.life_bytes[REPLAY_GRADIENT] == params.elements * sizeof(float));
    CHECK(arenas.extent_bytes == arenas.peak_bytes);
    /* In the memory that arenas take, the heap fails; room there was, but in pieces. */
    CHECK_OK(replay_heap(&fails, &trace, arenas.extent_bytes));
    CHECK_MSG(!fails.fits && fails.free_bytes >= fails.failed.bytes &&
                  fails.largest_hole < fails.failed.bytes,
        "%s: %s of %llu bytes, %llu free, the largest hole %llu", name, fails.failed.name,
        (unsigned long long)fails.failed.bytes, (unsigned long long)fails.free_bytes,
        (unsigned long long)fails.largest_hole);
    CHECK_OK(replay_arenas(&more, &trace, arenas.extent_bytes));
    CHECK(arenas.fits && more.fits && more.extent_bytes == arenas.extent_bytes);
    CHECK_OK(replay_arenas(&more, &trace, arenas.extent_bytes - 1));
    CHECK(!more.fits);
    /* What it takes is where its end comes to lie. */
    CHECK_OK(replay_heap(&heap, &trace, UINT64_MAX));
    CHECK(heap.fits && heap.extent_bytes > arenas.extent_bytes &&
          heap.peak_bytes < heap.extent_bytes);
    CHECK_OK(replay_heap(&more, &trace, heap.extent_bytes));
    CHECK(more.fits);
    CHECK_OK(replay_heap(&more, &trace, heap.extent_bytes - 1));
    CHECK(!more.fits);
    replay_free(&trace);
    params_free(&params);
}

int main(void)
{
    test_first_fit();
    test_model("nano", 8, 128);
    test_model("mini", 8, 256);
    test_model("gpt2-124m", 1, 1024);
    test_model("gpt2-124m", 8, 1024);
    test_model("gpt2-1558m", 8, 1024);
    test_model("llama-1b", 4, 1024);
    return test_result();
}
