/* The ledger's own arithmetic: the paper's volume for every stage, with micro-batches and shard groups; memory falls from
 * stage to stage; one rank whose bytes differ is told to all. (That measured equals predicted is what the tests of stages and trainer look at.)
 */
#include <math.h>
#include <stdio.h>

#include "shard/ledger.h"
#include "tests/harness/harness.h"

/* Ψ = 288 on 4 ranks, or 2 groups of 2. */
static struct ledger_volume volume_of(
    int stage, bool unsharded, int group, int accumulate, enum dtype weights)
{
    struct params params = {0};
    struct layout layout = {0};
    struct model_config model = {.max_t = 4, .vocab = 5, .layers = 1, .heads = 1, .channels = 4};
    CHECK_OK(params_make(&params, &model));
    CHECK_OK(layout_make(&layout, &params, group));
    const struct stage_config config = {.ops = stage_by_number(stage),
        .params = &params,
        .layout = &layout,
        .replica_count = 4 / group,
        .dtype = weights,
        .gradient_dtype = DTYPE_FLOAT32,
        .unsharded_accumulation = unsharded};
    const uint64_t steps = 10, trains = steps * (uint64_t)accumulate;
    bool each = stage_keeps(&config).gradients == KEEP_SHARD;
    const struct ledger_events events = {
        .steps = steps, .updates = steps, .trains = trains, .reductions = each ? trains : steps};
    struct ledger_volume volume = ledger_volume(&events, &config);
    layout_free(&layout);
    params_free(&params);
    return volume;
}

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void test_volume(void)
{
    const double psi_bytes = 288 * 4, share = 3.0 / 4.0, steps = 10;
    static const double one[4] = {2, 2, 2, 3}, three[4] = {2, 2, 4, 9}, kept[4] = {0, 0, 2, 7};
    for (int stage = 0; stage <= 3; stage++) {
        struct ledger_volume v = volume_of(stage, false, 4, 1, DTYPE_FLOAT32);
        CHECK(v.paper_psi == one[stage] && v.done_psi == one[stage]);
        CHECK(close_to(v.paper_bytes, one[stage] * psi_bytes * share * steps));
        v = volume_of(stage, false, 4, 3, DTYPE_FLOAT32); /* A = 3: (A+1)Ψ and 3AΨ */
        CHECK(v.paper_psi == one[stage] && v.done_psi == three[stage]);
        CHECK(close_to(v.done_bytes, three[stage] * psi_bytes * share * steps));
        if (stage < 2) continue;
        v = volume_of(
            stage, true, 4, 3, DTYPE_FLOAT32); /* 2Ψ, and a gather forward and backward: (2A+1)Ψ */
        CHECK(v.done_psi == kept[stage]);
    }
    struct ledger_volume v =
        volume_of(0, false, 2, 1, DTYPE_FLOAT32); /* groups change nothing in stage 0 */
    CHECK(close_to(v.paper_bytes, 2 * psi_bytes * share * steps));
    v = volume_of(3, false, 2, 1, DTYPE_FLOAT32); /* two gathers in groups of 2, a sum over all 4 */
    CHECK(close_to(v.paper_bytes, (2 * 0.5 + 0.5 + 2 * 0.5 * 0.5) * psi_bytes * steps));
    v = volume_of(3, false, 4, 1, DTYPE_BFLOAT16); /* weights are half as long */
    CHECK(close_to(v.paper_bytes, (2 * 0.5 + 1) * psi_bytes * share * steps));
}

/* Case T12: what stage 2 holds, buffers included, is not more than what stage 1 holds. */
static uint64_t held_bytes(int stage, int nranks, enum dtype dtype, const char *preset)
{
    struct params params = {0};
    struct layout layout = {0};
    struct model_config model;
    CHECK_OK(model_preset(&model, preset));
    CHECK_OK(params_make(&params, &model));
    CHECK_OK(layout_make(&layout, &params, nranks));
    const struct stage_config config = {.ops = stage_by_number(stage),
        .params = &params,
        .layout = &layout,
        .replica_count = 1,
        .dtype = dtype,
        .gradient_dtype = dtype,
        .reduce_dtype = dtype,
        .bucket_bytes = (size_t)4 << 20};
    struct stage_prediction prediction;
    uint64_t sum = 0;
    stage_predict(&prediction, &config);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) sum += prediction.held_bytes[tag];
    layout_free(&layout);
    params_free(&params);
    return sum;
}

static void test_stage_memory(void)
{
    static const char *const presets[] = {"mini", "gpt2-124m"};
    for (int p = 0; p < 2; p++)
        for (int nranks = 2; nranks <= 64; nranks++)
            for (int d = 0; d < 2; d++) {
                enum dtype dtype = d == 0 ? DTYPE_FLOAT32 : DTYPE_BFLOAT16;
                uint64_t before = held_bytes(0, nranks, dtype, presets[p]);
                for (int stage = 1; stage <= 3; stage++) {
                    uint64_t held = held_bytes(stage, nranks, dtype, presets[p]);
                    CHECK_MSG(held <= before, "%s, %d ranks, stage %d: %llu bytes, before %llu",
                        presets[p], nranks, stage, (unsigned long long)held,
                        (unsigned long long)before);
                    before = held;
                }
            }
}

static void rank_agrees(struct bootstrap *bootstrap, void *argument)
{
    int rank = bootstrap_rank(bootstrap), bad = *(const int *)argument;
    struct ledger ledger = {.count = 3, .ok = rank < bad};
    for (int i = 0; i < 3; i++) {
        bool differs = rank >= bad && i > 0;
        ledger.entry[i] = (struct ledger_entry){
            .measured = 100, .predicted = differs ? 99 : 100, .has_prediction = true};
        snprintf(ledger.entry[i].name, sizeof ledger.entry[i].name, "entry_%d", i);
    }
    ledger.entry[0].has_prediction = false;
    ledger.entry[0].predicted = 1;
    CHECK_OK(ledger_agree(&ledger, bootstrap));
    CHECK(ledger.nranks == 3 && ledger.differing_ranks == 3 - bad);
    if (bad < 3)
        CHECK_MSG(ledger.first_rank == bad && strcmp(ledger.first.name, "entry_1") == 0 &&
                      ledger.first.measured == 100 && ledger.first.predicted == 99,
            "rank %d: %s", ledger.first_rank, ledger.first.name);
}

int main(void)
{
    test_volume();
    test_stage_memory();
    for (int bad = 0; bad <= 3; bad++) ranks_as_threads(3, 10000, rank_agrees, &bad);
    return test_result();
}
