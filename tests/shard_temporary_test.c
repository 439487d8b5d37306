/* C_B: a model ten times as deep holds the same temporary memory, measured in runs and predicted
 * for large models: what is gathered, lent and computed in does not grow; checkpoints do, tenfold,
 * and offloaded ones in host memory. ctest: timeout=60
 */
#include "shard/forecast.h"
#include "tests/shard_fixture.h"

enum { SHALLOW = 2, DEEP = 20 };

static char text_path[256];

static uint64_t held(const struct job_record *job, const char *name)
{
    const struct ledger *ledger = &job->rank[1].ledger;
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->entry[i].name, name) == 0) return ledger->entry[i].measured;
    fprintf(stderr, "the ledger has no %s\n", name);
    CHECK(!"the ledger has every tag");
    return 0;
}

static void check_runs(struct train_config config)
{
    static const char *const constant[] = {
        "gathered_held", "workspace_held", "activations_held", "communication_held"};
    struct job_record shallow, deep;
    config.model.layers = SHALLOW;
    run_good_job(&shallow, &config, 2, "shm");
    struct train_config deeper = config;
    deeper.model.layers = DEEP;
    run_good_job(&deep, &deeper, 2, "shm");
    CHECK(shallow.rank[1].ledger.ok && deep.rank[1].ledger.ok);
    for (int i = 0; i < 4; i++) {
        uint64_t before = held(&shallow, constant[i]), after = held(&deep, constant[i]);
        CHECK_MSG(before > 0 && after == before, "stage %d, %s: %s %llu, ten times as deep %llu",
            config.stage, activation_keep_name(config.activations), constant[i],
            (unsigned long long)before, (unsigned long long)after);
    }
    CHECK(held(&deep, "checkpoints_held") == 10 * held(&shallow, "checkpoints_held"));
    CHECK((held(&deep, "checkpoints_held") == 0) == (config.activations == ACTIVATION_OFFLOADED));
    bool host = config.activations == ACTIVATION_OFFLOADED && !config.offload_optimizer;
    if (host) CHECK(held(&deep, "offloaded_held") == 10 * held(&shallow, "offloaded_held"));
}

/* Gathered and workspace of gpt2-1558m's width, 48 and 480 blocks: less than 4Ψ, and the same. */
static void check_forecast(int stage)
{
    struct forecast_config config = {.train = train_config_default(), .nranks = 64};
    struct forecast shallow, deep;
    CHECK_OK(model_preset(&config.train.model, "gpt2-1558m"));
    config.train.stage = stage;
    config.train.activations = ACTIVATION_PART;
    config.train.dtype = config.train.gradient_dtype = config.train.reduce_dtype = DTYPE_BFLOAT16;
    CHECK_OK(forecast_make(&shallow, &config));
    config.train.model.layers *= 10;
    CHECK_OK(forecast_make(&deep, &config));
    for (int tag = MEMORY_ACTIVATIONS; tag < MEMORY_TAG_COUNT; tag++)
        CHECK_MSG(tag == MEMORY_CHECKPOINTS || shallow.held_bytes[tag] == deep.held_bytes[tag],
            "%s", memory_tag_name((enum memory_tag)tag));
    CHECK(deep.held_bytes[MEMORY_CHECKPOINTS] == 10 * shallow.held_bytes[MEMORY_CHECKPOINTS]);
    CHECK(deep.held_bytes[MEMORY_GATHERED] < 4 * shallow.elements / 10);
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    struct train_config config = fixture_config(text_path);
    config.steps = 2;
    for (config.stage = 0; config.stage <= 3; config.stage++) {
        config.activations = config.stage == 0 ? ACTIVATION_INPUT : ACTIVATION_PART;
        check_runs(config);
        config.activations = ACTIVATION_OFFLOADED;
        check_runs(config);
        check_forecast(config.stage);
    }
    config.stage = 3;
    config.offload_optimizer = true;
    config.dtype = config.gradient_dtype = DTYPE_BFLOAT16;
    check_runs(config);
    fixture_remove();
    return test_result();
}
