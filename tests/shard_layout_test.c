/* The layout of units over ranks: shards, padding, owners (nano-37, nano-36 and micro-4, 1 to 8
 * ranks), and the columns of buckets: every element of every shard once, and the bytes predicted
 * for them. ctest: timeout=30
 */
#include "shard/bucket.h"
#include "shard/layout.h"
#include "tests/harness/harness.h"

static const struct model_config models[] = {
    {.max_t = 13, .vocab = 101, .layers = 2, .heads = 1, .channels = 37},
    {.max_t = 16, .vocab = 101, .layers = 2, .heads = 3, .channels = 36},
    {.max_t = 4, .vocab = 5, .layers = 1, .heads = 1, .channels = 4},
    {.max_t = 13, .vocab = 101, .layers = 2, .heads = 1, .channels = 37, .vocab_block = 17},
};
static const size_t elements_expected[] = {38110, 36324, 288, 38110};

static void check_unit(const struct layout *layout, int unit, size_t elements)
{
    int n = layout->nranks;
    const struct layout_unit *place = &layout->unit[unit];
    CHECK(place->elements == elements);
    CHECK(place->shard * (size_t)n >= elements);
    CHECK(place->shard == 0 ||
          (place->shard - 1) * (size_t)n < elements); /* the smallest that holds them */
    CHECK(layout_padded(layout, unit) == place->shard * (size_t)n);
    size_t next = 0;
    for (int r = 0; r < n; r++) {
        struct layout_range owned = layout_owned(layout, unit, r);
        CHECK_MSG(owned.begin == next, "unit %d rank %d begins at %zu, expected %zu", unit, r,
            owned.begin, next);
        CHECK(owned.count <= place->shard);
        CHECK(owned.count == 0 || owned.begin == (size_t)r * place->shard);
        next = owned.begin + owned.count;
    }
    CHECK(next == elements); /* together: every element once, no padding */
}

/* Whole shards on the wire, however they are cut: N−1 of them per phase. */
static void check_predictions(int unit, size_t bucket_bytes, const struct layout *layout)
{
    static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_BFLOAT16};
    for (int d = 0; d < 2; d++) {
        struct bucket bucket = {.layout = layout, .rank = layout->nranks / 2,
            .replica_count = 1, .dtype = dtypes[d],
            .bytes = bucket_bytes};
        uint64_t phase = (uint64_t)(layout->nranks - 1) * layout->unit[unit].shard *
                         dtype_bytes(dtypes[d]);
        uint64_t sent[COLLECTIVE_COUNT] = {0};
        bucket_predict_all_reduce(sent, unit, &bucket);
        bucket_predict_reduce_scatter(sent, unit, &bucket);
        bucket_predict_gather(sent, unit, false, &bucket);
        CHECK(sent[COLLECTIVE_ALL_REDUCE] == 2 * phase);
        CHECK(sent[COLLECTIVE_REDUCE_SCATTER] == phase);
        CHECK(sent[COLLECTIVE_ALL_GATHER] == phase);
        bucket_predict_gather(sent, unit, true, &bucket);
        CHECK(sent[COLLECTIVE_BROADCAST] == phase);
        bucket.replica_count = 3; /* two levels: 2·(G−1)/G of the own shard more, chunks rounded */
        memset(sent, 0, sizeof sent);
        bucket_predict_all_reduce(sent, unit, &bucket);
        CHECK(sent[COLLECTIVE_REDUCE_SCATTER] == phase && sent[COLLECTIVE_ALL_GATHER] == phase);
        CHECK(layout->unit[unit].shard < 3 || sent[COLLECTIVE_ALL_REDUCE] > 0);
    }
}

static void check_layout(const struct params *params, int nranks)
{
    struct layout layout;
    if (!CHECK_OK(layout_make(&layout, params, nranks))) return;
    size_t begin = 0, n = (size_t)nranks, least = n * LAYOUT_ALIGNMENT;
    for (int u = 0; u < params->unit_count; u++) {
        size_t here = layout.unit[u].begin;
        CHECK(here >= begin && here - begin < least); /* the gap */
        CHECK(here % n == 0 && here % LAYOUT_ALIGNMENT == 0);
        check_unit(&layout, u, params->unit_elements[u]);
        begin = here + layout_padded(&layout, u);
        for (size_t bytes = 1; bytes < 100000; bytes *= 7) check_predictions(u, bytes, &layout);
    }
    CHECK(layout.elements >= begin && layout.elements - begin < least && layout.elements % n == 0);
    layout_free(&layout);
}

static void check_known_numbers(void)
{
    struct params params;
    struct layout layout;
    if (!CHECK_OK(params_make(&params, &models[0]))) return;
    const size_t units[] = {3737, 481, 16909, 16909, 74};
    for (int u = 0; u < 5; u++) CHECK(params.unit_elements[u] == units[u]);
    if (CHECK_OK(layout_make(&layout, &params, 4))) {
        CHECK(layout.unit[0].shard == 935 && layout.unit[1].shard == 121 &&
              layout.unit[4].shard == 19);
        CHECK(layout.unit[1].begin == 4 * 936 && layout.unit[2].begin == 4 * (936 + 122));
        CHECK(layout_owned(&layout, 0, 3).count == 3737 - 3 * 935);
        CHECK(layout_owned(&layout, 4, 3).begin == 57 && layout_owned(&layout, 4, 3).count == 17);
    }
    layout_free(&layout);
    params_free(&params);
    if (!CHECK_OK(params_make(&params, &models[2]))) return;
    if (CHECK_OK(layout_make(&layout, &params,
            7))) { /* final norm: 8 elements, shards of 2: the last ranks own nothing */
        int last = params.final_norm_unit;
        CHECK(layout.unit[last].shard == 2);
        CHECK(layout_owned(&layout, last, 3).count == 2);
        CHECK(
            layout_owned(&layout, last, 4).count == 0 && layout_owned(&layout, last, 6).begin == 8);
    }
    layout_free(&layout);
    params_free(&params);
}

int main(void)
{
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct params params;
        if (!CHECK_OK(params_make(&params, &models[m]))) continue;
        CHECK(params.elements == elements_expected[m]);
        for (int nranks = 1; nranks <= 8; nranks++) check_layout(&params, nranks);
        params_free(&params);
    }
    check_known_numbers();
    return test_result();
}
