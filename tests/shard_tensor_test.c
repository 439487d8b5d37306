/* Tensor parallelism in training: M ranks that share every tensor, times data ranks, in every ZeRO stage,
 * train as one rank alone does (loss and norm within 1e-5); stages have the same bits (I3), and the ledger
 * equals its prediction, sums of the tensor group included (I4). Cases T1, T10.
 * ctest: timeout=120
 */
#include <math.h>

#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"

static char tokens_path[256];

/* nano-H4-C32 and nano, both with V = 101; a Llama with 2 heads of keys and values. */
static const struct model_config models[] = {
    {.max_t = 16, .vocab = 101, .layers = 2, .heads = 4, .channels = 32},
    {.max_t = 128, .vocab = 101, .layers = 4, .heads = 4, .channels = 128},
    {.architecture = ARCHITECTURE_LLAMA,
        .max_t = 16,
        .vocab = 101,
        .layers = 2,
        .heads = 4,
        .channels = 32,
        .kv_heads = 2,
        .hidden = 84},
};

/* A global batch of 4 sequences. */
static struct train_config config_of(int model, int tensor, int data)
{
    struct train_config config = fixture_config(tokens_path);
    config.model = models[model];
    config.tensor = tensor;
    config.batch = 4 / data;
    config.seq = 16;
    config.steps = 3;
    config.step_ledger = true;
    return config;
}

static void check_near(
    const struct job_record *found, const struct job_record *one, const char *what)
{
    const struct rank_record *x = &one->rank[0], *y = &found->rank[0];
    CHECK(y->steps == x->steps && x->steps > 0);
    for (int i = 0; i < x->steps; i++)
        CHECK_MSG(fabs(y->loss[i] / x->loss[i] - 1.0) <= 1e-5 &&
                      fabs(y->norm[i] / x->norm[i] - 1.0) <= 1e-5,
            "%s, step %d: loss %.9g, norm %.9g, expected %.9g, %.9g", what, i + 1, y->loss[i],
            y->norm[i], x->loss[i], x->norm[i]);
    CHECK_MSG(fabs(y->validation / x->validation - 1.0) <= 1e-5, "%s: validation %.9g and %.9g",
        what, y->validation, x->validation);
}

/* Every split of this model against one rank; stages of one split against each other. */
static void compare_splits(int model, const int *stages, int stage_count)
{
    struct job_record one, found, first;
    struct train_config config = config_of(model, 1, 1);
    run_good_job(&one, &config, 1, "shm");
    for (int tensor = 1; tensor <= 4; tensor *= 2)
        for (int data = 1; data <= 2; data++)
            for (int s = 0; s < stage_count; s++) {
                char what[64];
                if (model_kv_heads(&models[model]) % tensor != 0) continue;
                config = config_of(model, tensor, data);
                config.stage = stages[s];
                config.activations = (enum activation_keep)(s % 3); /* changes no bits (I3) */
                snprintf(what, sizeof what, "model %d, %d x %d, stage %d", model, tensor, data,
                    stages[s]);
                run_good_job(&found, &config, tensor * data, "shm");
                fixture_check_ledgers(&found, what);
                check_near(&found, &one, what);
                if (s == 0) first = found;
                CHECK_MSG(memcmp(found.rank[0].loss, first.rank[0].loss,
                              sizeof found.rank[0].loss) == 0 &&
                              memcmp(found.rank[0].norm, first.rank[0].norm,
                                  sizeof found.rank[0].norm) == 0,
                    "%s: other bits than stage %d", what, stages[0]);
            }
}

/* T10: twenty steps; a sample goes over all 101 rows. Shard groups are groups of data ranks. */
static void test_twenty_steps(void)
{
    struct job_record one, found;
    struct train_config config = config_of(0, 1, 1);
    config.steps = 20;
    config.sample_tokens = 12;
    config.temperature = 0.01f;
    run_good_job(&one, &config, 1, "shm");
    config.tensor = 2;
    run_good_job(&found, &config, 2, "shm");
    check_near(&found, &one, "T10");
    fixture_check_ledgers(&found, "T10");
    CHECK(found.rank[0].sample_count == one.rank[0].sample_count);
    CHECK(memcmp(found.rank[1].sample, one.rank[0].sample, sizeof one.rank[0].sample) == 0);
    config.sample_tokens = 0;
    config.batch = 1;
    config.stage = 3;
    config.shard_group = 2;
    config.accumulate = 1;
    run_good_job(&found, &config, 8, "shm");
    check_near(&found, &one, "shard groups");
    fixture_check_ledgers(&found, "shard groups");
}

/* What cannot be cut evenly is refused before anything is held. */
static void test_refusals(void)
{
    struct job_record record;
    struct train_config config = config_of(0, 2, 1);
    config.model =
        (struct model_config){.max_t = 16, .vocab = 101, .layers = 2, .heads = 25, .channels = 50};
    run_job(&record, &config, 2, "shm");
    for (int r = 0; r < 2; r++) {
        CHECK(record.rank[r].status == STATUS_INVALID);
        CHECK_MSG(strstr(record.rank[r].text, "tensor is 2, heads are 25") != NULL, "%s",
            record.rank[r].text);
    }
    config.model = models[2];
    config.model.hidden = 85;
    run_job(&record, &config, 2, "shm");
    CHECK_MSG(record.rank[0].status == STATUS_INVALID &&
                  strstr(record.rank[0].text, "hidden columns are 85") != NULL,
        "%s", record.rank[0].text);
    config.model = models[0];
    run_job(&record, &config, 3, "shm");
    CHECK_MSG(record.rank[2].status == STATUS_INVALID &&
                  strstr(record.rank[2].text, "tensor is 2, pipeline 1, expected their product to divide the 3 ranks"),
        "%s", record.rank[2].text);
    config.shard_group = 3;
    run_job(&record, &config, 4, "shm");
    CHECK_MSG(record.rank[0].status == STATUS_INVALID &&
                  strstr(record.rank[0].text, "shard group is 3, expected a divisor of the 2 data"),
        "%s", record.rank[0].text);
}

int main(void)
{
    static const int all[] = {0, 1, 2, 3}, ends[] = {0, 3};
    fixture_file(tokens_path, "tokens.bin");
    fixture_tokens(tokens_path, 101, 6000);
    compare_splits(0, all, 4);
#ifndef __SANITIZE_THREAD__ /* which sees as much in a smaller one */
    compare_splits(1, ends, 2);
#endif
    compare_splits(2, ends, 2);
    test_twenty_steps();
    test_refusals();
    fixture_remove();
    return test_result();
}
