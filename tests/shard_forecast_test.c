/* The forecast: equal to the ledger's predictions, and so to what is measured (I4), for every
 * stage, dtype, group and accumulation; constant buffers (C_B): nothing for communication grows
 * with the model, gathered units and workspace not with its depth; case T12; and the largest depth
 * and batch, to the byte. ctest: timeout=120
 */
#include "shard/forecast.h"
#include "tests/shard_fixture.h"

static char text_path[256];

static uint64_t entry_of(const struct ledger *ledger, const char *name, bool predicted)
{
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->entry[i].name, name) == 0)
            return predicted ? ledger->entry[i].predicted : ledger->entry[i].measured;
    return 0; /* nothing was sent */
}

static struct forecast forecast_of(const struct train_config *config, int nranks)
{
    struct forecast_config about = {.train = *config, .nranks = nranks};
    struct forecast forecast = {0};
    about.train.data = NULL; /* is not needed */
    CHECK_OK(forecast_make(&forecast, &about));
    return forecast;
}

/* ---- equal to the ledger ---- */

static void compare_held(
    const struct forecast *forecast, const struct ledger *ledger, const char *what)
{
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        char name[64];
        if (tag == MEMORY_COMMUNICATION) continue;
        snprintf(name, sizeof name, "%s_held", memory_tag_name((enum memory_tag)tag));
        for (int predicted = 0; predicted <= 1; predicted++)
            CHECK_MSG(entry_of(ledger, name, predicted) == forecast->held_bytes[tag],
                "%s: %s: forecast %llu, ledger %llu", what, name,
                (unsigned long long)forecast->held_bytes[tag],
                (unsigned long long)entry_of(ledger, name, predicted));
    }
}

static void compare_sent(
    const struct forecast *forecast, const struct ledger *ledger, const char *what)
{
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s_sent", collective_name((enum collective)c));
        for (int predicted = 0; predicted <= 1; predicted++)
            CHECK_MSG(entry_of(ledger, name, predicted) == ledger->steps * forecast->sent_bytes[c],
                "%s: %s: forecast %llu a step, ledger %llu in %llu steps", what, name,
                (unsigned long long)forecast->sent_bytes[c],
                (unsigned long long)entry_of(ledger, name, predicted),
                (unsigned long long)ledger->steps);
    }
}

/* Two steps of a longer run, so that no validation is among them. */
static void check_run(const struct train_config *base, int nranks, const char *what)
{
    char label[128];
    struct job_record record;
    struct train_config config = *base;
    config.stop_at = 2;
    snprintf(label, sizeof label, "%s, stage %d, %d ranks", what, config.stage, nranks);
    struct forecast forecast = forecast_of(&config, nranks);
    run_good_job(&record, &config, nranks, "shm");
    CHECK(record.rank[0].ledger.steps == 2);
    compare_held(&forecast, &record.rank[0].ledger, label);
    compare_sent(&forecast, &record.rank[0].ledger, label);
    uint64_t sum = forecast.scalar_bytes;
    for (int p = 0; p < FORECAST_PART_COUNT; p++) sum += forecast.wire[p].sent_bytes;
    CHECK(sum == forecast.sent_sum);
    if (config.shard_group == 0 || config.shard_group == nranks)
        CHECK(forecast.scalar_bytes == 3 * sizeof(double) * (uint64_t)(nranks - 1));
}

static void test_equals_the_ledger(void)
{
    static const int ranks[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        struct train_config plain = fixture_config(text_path);
        for (plain.stage = 0; plain.stage <= 3; plain.stage++) {
            check_run(&plain, ranks[i], "float32");
            struct train_config config = plain;
            config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_BFLOAT16;
            config.activations = ACTIVATION_INPUT;
            check_run(&config, ranks[i], "bfloat16, recomputed");
            config = plain;
            config.dtype = DTYPE_BFLOAT16;
            config.accumulate = 3;
            check_run(&config, ranks[i], "bfloat16 with float32 gradients, 3 micro-batches");
        }
    }
}

static void test_llama(void)
{
    struct train_config config = fixture_config(text_path);
    config.model.architecture = ARCHITECTURE_LLAMA;
    config.model.kv_heads = 1;
    config.model.hidden = 33;
    for (config.stage = 0; config.stage <= 3; config.stage++) {
        check_run(&config, 3, "llama");
        config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_BFLOAT16;
        config.activations = ACTIVATION_INPUT;
        check_run(&config, 2, "llama, bfloat16, recomputed");
        config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_FLOAT32;
        config.activations = ACTIVATION_ALL;
    }
}

/* Of every stage of a pipeline: also with tensor and data ranks. */
static void test_pipeline(int tensor, int data_ranks)
{
    struct train_config config = fixture_config(text_path);
    config.model.layers = 5;
    config.tensor = tensor;
    config.pipeline = 3;
    config.accumulate = 4;
    config.stop_at = 2;
    int per_stage = tensor * data_ranks;
    for (config.stage = 0; config.stage <= 3; config.stage++) {
        struct job_record record;
        uint64_t most = 0;
        int fullest = 0, found;
        run_good_job(&record, &config, 3 * per_stage, "shm");
        struct forecast_config about = {.train = config, .nranks = 3 * per_stage};
        for (int s = 0; s < 3; s++) {
            struct forecast forecast;
            about.pipeline_stage = s;
            CHECK_OK(forecast_make(&forecast, &about));
            const struct ledger *ledger = &record.rank[s * per_stage].ledger;
            compare_held(&forecast, ledger, "pipeline");
            compare_sent(&forecast, ledger, "pipeline");
            CHECK(forecast.scalar_bytes == 3 * sizeof(double) * (uint64_t)(3 * per_stage - 1));
            CHECK(forecast.bubble == 2.0 / 6.0);
            if (forecast.held_sum > most) fullest = s;
            if (forecast.held_sum > most) most = forecast.held_sum;
        }
        CHECK_OK(forecast_fullest_stage(&found, &about));
        CHECK(found == fullest);
    }
}

static void test_options(void)
{
    struct train_config config = fixture_config(text_path);
    for (config.stage = 0; config.stage <= 3; config.stage++) {
        for (config.shard_group = 1; config.shard_group <= 3; config.shard_group++)
            check_run(&config, 6, "groups");
        config.shard_group = 0;
    }
    config.accumulate = 2;
    config.unsharded_accumulation = true;
    for (config.stage = 2; config.stage <= 3; config.stage++)
        check_run(&config, 3, "gradients kept whole");
    config.stage = 3;
    config.broadcast_gather = true;
    config.bucket_bytes = 1000;
    check_run(&config, 3, "gathered by broadcast");
}

/* ---- C_B ---- */

/* L, and a width such that the ring's edges are used too: a block's share is more than a small
 * message. */
static struct train_config sized_config(int layers, int channels)
{
    struct train_config config = fixture_config(text_path);
    config.model.layers = layers;
    config.model.channels = channels;
    config.batch = 1;
    config.stop_at = 1;
    return config;
}

static uint64_t measured_communication(const struct train_config *config, int nranks)
{
    struct job_record record;
    uint64_t most = 0;
    run_good_job(&record, config, nranks, "shm");
    for (int r = 0; r < nranks; r++) {
        uint64_t bytes = entry_of(&record.rank[r].ledger, "communication_held", false);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void check_communication(int stage, int nranks)
{
    struct train_config config = sized_config(1, 80);
    config.stage = stage;
    uint64_t elements = forecast_of(&config, nranks).elements;
    uint64_t bytes = measured_communication(&config, nranks);
    struct train_config larger[] = {sized_config(13, 80), sized_config(1, 280)};
    for (int i = 0; i < 2; i++) {
        larger[i].stage = stage;
        CHECK(forecast_of(&larger[i], nranks).elements >= 10 * elements);
        uint64_t found = measured_communication(&larger[i], nranks);
        CHECK_MSG(found == bytes,
            "stage %d, %d ranks: communication holds %llu bytes, %llu for ten times the %s", stage,
            nranks, (unsigned long long)bytes, (unsigned long long)found,
            i == 0 ? "depth" : "width");
    }
}

/* Two models that differ in depth alone. */
static void check_depth(int stage, bool half, bool recompute)
{
    struct train_config config = sized_config(2, 80);
    config.stage = stage;
    config.activations = recompute ? ACTIVATION_INPUT : ACTIVATION_ALL;
    if (half) config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_BFLOAT16;
    struct forecast shallow = forecast_of(&config, 8);
    config.model.layers = 200;
    struct forecast deep = forecast_of(&config, 8);
    CHECK(deep.elements > 50 * shallow.elements);
    CHECK(deep.held_bytes[MEMORY_GATHERED] == shallow.held_bytes[MEMORY_GATHERED]);
    CHECK(deep.held_bytes[MEMORY_WORKSPACE] == shallow.held_bytes[MEMORY_WORKSPACE]);
    if (recompute)
        CHECK(deep.held_bytes[MEMORY_ACTIVATIONS] == shallow.held_bytes[MEMORY_ACTIVATIONS]);
}

static void test_constant_buffers(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        check_communication(stage, 2);
        for (int variant = 0; variant < 4; variant++)
            check_depth(stage, variant % 2 == 1, variant / 2 == 1);
    }
    check_communication(3, 5);
}

/* ---- T12 ---- */

static void test_stage_2_is_not_above_stage_1(void)
{
    static const int ranks[] = {2, 3, 4, 8, 64};
    static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_BFLOAT16};
    const char *name;
    for (size_t i = 0; (name = model_preset_name(i)) != NULL; i++)
        for (size_t j = 0; j < 2 * sizeof ranks / sizeof *ranks; j++) {
            struct train_config config = train_config_default();
            CHECK_OK(model_preset(&config.model, name));
            config.dtype = config.gradient_dtype = config.reduce_dtype = dtypes[j % 2];
            config.stage = 1;
            struct forecast one = forecast_of(&config, ranks[j / 2]);
            config.stage = 2;
            struct forecast two = forecast_of(&config, ranks[j / 2]);
            if (one.elements < 10000000) continue;
            CHECK_MSG(two.held_sum <= one.held_sum, "%s, %d ranks: stage 1 %llu, stage 2 %llu",
                name, ranks[j / 2], (unsigned long long)one.held_sum,
                (unsigned long long)two.held_sum);
        }
}

static uint64_t measured_sum(const struct train_config *config)
{
    struct job_record record;
    uint64_t sum = 0;
    run_good_job(&record, config, 2, "shm");
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        char name[64];
        snprintf(name, sizeof name, "%s_held", memory_tag_name((enum memory_tag)tag));
        sum += entry_of(&record.rank[0].ledger, name, false);
    }
    return sum;
}

static void test_stage_2_measured(void)
{
    struct train_config config = fixture_config(text_path);
    CHECK_OK(model_preset(&config.model, "mini"));
    config.batch = 1;
    config.seq = 8;
    config.stop_at = 1;
    config.stage = 1;
    CHECK(forecast_of(&config, 2).elements >= 10000000);
    uint64_t one = measured_sum(&config);
    config.stage = 2;
    uint64_t two = measured_sum(&config);
    CHECK_MSG(two <= one, "stage 1 holds %llu bytes, stage 2 %llu", (unsigned long long)one,
        (unsigned long long)two);
}

/* ---- what fits ---- */

static uint64_t held_with(struct forecast_config config, int layers, int batch)
{
    struct forecast forecast = {0};
    config.train.model.layers = layers;
    config.train.batch = batch;
    CHECK_OK(forecast_make(&forecast, &config));
    return forecast.held_sum;
}

static void test_largest(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        struct forecast_config config = {.train = train_config_default(), .nranks = 6};
        config.train.stage = stage;
        for (uint64_t memory = 30000000; memory < 3000000000; memory = memory * 3 + 12345) {
            int layers, batch, l = config.train.model.layers, b = config.train.batch;
            CHECK_OK(forecast_largest_layers(&layers, memory, &config));
            CHECK(layers == 0 || held_with(config, layers, b) <= memory);
            CHECK(held_with(config, layers + 1, b) > memory);
            CHECK_OK(forecast_largest_batch(&batch, memory, &config));
            CHECK(batch == 0 || held_with(config, l, batch) <= memory);
            CHECK(held_with(config, l, batch + 1) > memory);
        }
        int layers, batch;
        uint64_t exact = held_with(config, 7, config.train.batch); /* to the byte */
        CHECK_OK(forecast_largest_layers(&layers, exact, &config));
        CHECK(layers == 7);
        CHECK_OK(forecast_largest_layers(&layers, exact - 1, &config));
        CHECK(layers == 6);
        exact = held_with(config, config.train.model.layers, 13);
        CHECK_OK(forecast_largest_batch(&batch, exact, &config));
        CHECK(batch == 13);
        CHECK_OK(forecast_largest_batch(&batch, exact - 1, &config));
        CHECK(batch == 12);
        CHECK_OK(forecast_largest_layers(&layers, 1000, &config));
        CHECK_OK(forecast_largest_batch(&batch, 1000, &config));
        CHECK(layers == 0 && batch == 0);
        CHECK_OK(forecast_largest_layers(&layers, UINT64_MAX - 1, &config));
        CHECK_OK(forecast_largest_batch(&batch, UINT64_MAX - 1, &config));
        CHECK(layers == FORECAST_MOST_LAYERS && batch == FORECAST_MOST_BATCH);
    }
}

/* 13 · 37 elements are no whole cache lines: depth is no straight line, and every answer is still exact. */
static void test_largest_of_odd_sizes(void)
{
    struct forecast_config config = {.train = train_config_default(), .nranks = 3};
    config.train.model =
        (struct model_config){.max_t = 13, .vocab = 101, .layers = 1, .heads = 1, .channels = 37};
    config.train.batch = 1;
    for (int layers = 1; layers <= 64; layers++)
        for (int off = -1; off <= 1; off++) {
            int found;
            uint64_t memory = held_with(config, layers, 1) + (uint64_t)off;
            CHECK_OK(forecast_largest_layers(&found, memory, &config));
            CHECK_MSG(found == (off < 0 ? layers - 1 : layers), "%d layers and %d bytes: %d", layers,
                off, found);
        }
}

static void test_refused(void)
{
    struct forecast forecast;
    struct forecast_config config = {.train = train_config_default(), .nranks = 6};
    config.train.shard_group = 4;
    CHECK_STATUS(forecast_make(&forecast, &config), STATUS_INVALID);
    config.train.shard_group = 0;
    config.train.model.layers = FORECAST_MOST_LAYERS + 1;
    CHECK_STATUS(forecast_make(&forecast, &config), STATUS_INVALID);
    config.train.model = (struct model_config){
        .max_t = 1 << 30, .vocab = 1 << 30, .layers = 100000, .heads = 1, .channels = 1 << 30};
    CHECK_STATUS(forecast_make(&forecast, &config), STATUS_INVALID);
    config.train.model.vocab = 256;
    config.train.model.channels = 8;
    config.train.batch = 1 << 30;
    CHECK_STATUS(forecast_make(&forecast, &config), STATUS_INVALID);
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 30000);
    test_equals_the_ledger();
    test_llama();
    test_pipeline(1, 1);
    test_pipeline(2, 1);
    test_pipeline(1, 2);
    test_options();
    test_constant_buffers();
    test_stage_2_is_not_above_stage_1();
    test_stage_2_measured();
    test_largest();
    test_largest_of_odd_sizes();
    test_refused();
    fixture_remove();
    return test_result();
}
