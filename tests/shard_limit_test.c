/* A fixed arena: with the same limit per rank on 8 ranks, the largest depth that trains grows from
 * stage to stage as the formulas say; it is the one that the forecast tells, its peak is the
 * forecast's, and one layer more is refused on every rank in one line. ctest: timeout=120
 */
#include "shard/forecast.h"
#include "tests/shard_fixture.h"

#define RANKS 8

static char text_path[256];

static struct train_config arena_config(int stage, int layers)
{
    struct train_config config = fixture_config(text_path);
    config.model = (struct model_config){.max_t = 16,
        .vocab = 256,
        .layers = layers,
        .heads = 2,
        .channels = 64,
        .vocab_block = 128};
    config.stage = stage;
    config.batch = 1;
    config.activations = ACTIVATION_INPUT; /* so that activations are few beside weights, as in the paper */
    config.stop_at = 1;
    return config;
}

/* The most of any rank, of one tag, or of all. */
static uint64_t measured(const struct job_record *record, const char *name)
{
    uint64_t most = 0;
    for (int r = 0; r < RANKS; r++) {
        const struct ledger *ledger = &record->rank[r].ledger;
        uint64_t sum = 0;
        for (int i = 0; i < ledger->count; i++) {
            const char *found = ledger->entry[i].name;
            bool is_held = strstr(found, "_held") != NULL;
            if (name == NULL ? is_held : strcmp(found, name) == 0) sum += ledger->entry[i].measured;
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* Of this stage, and what communication holds, which no prediction tells: measured on one layer. */
static struct forecast_config stage_forecast(int stage)
{
    struct train_config config = arena_config(stage, 1);
    struct job_record record;
    run_good_job(&record, &config, RANKS, "shm");
    return (struct forecast_config){.train = config,
        .nranks = RANKS,
        .communication_bytes = measured(&record, "communication_held")};
}

static uint64_t held_sum(const struct forecast_config *config, int layers)
{
    struct forecast_config deeper = *config;
    struct forecast forecast = {0};
    deeper.train.model.layers = layers;
    CHECK_OK(forecast_make(&forecast, &deeper));
    return forecast.held_sum;
}

/* A layer costs 16Ψ, 8Ψ + 8Ψ/N, 4Ψ + 12Ψ/N or 16Ψ/N bytes of float32, and its checkpoint. */
static void check_slope(int stage, const struct forecast_config *config)
{
    const uint64_t block = 12 * 64 * 64 + 13 * 64, checkpoint = 16 * 64 * 4; /* T·C·4 */
    const uint64_t per_element[] = {16 * RANKS, 8 * RANKS + 8, 4 * RANKS + 12, 16};
    CHECK(block % RANKS == 0);
    uint64_t expected = per_element[stage] * block / RANKS + checkpoint;
    CHECK(held_sum(config, 33) - held_sum(config, 1) == 32 * expected);
}

static void check_fits(struct train_config config, const struct forecast_config *forecast)
{
    struct job_record record;
    run_good_job(&record, &config, RANKS, "shm");
    CHECK(record.rank[0].steps == 1);
    CHECK_MSG(measured(&record, NULL) == held_sum(forecast, config.model.layers),
        "stage %d, %d layers: %llu bytes held, forecast %llu", config.stage, config.model.layers,
        (unsigned long long)measured(&record, NULL),
        (unsigned long long)held_sum(forecast, config.model.layers));
}

static void check_refused(struct train_config config)
{
    struct job_record record;
    run_job(&record, &config, RANKS, "shm");
    for (int r = 0; r < RANKS; r++) {
        const struct rank_record *rank = &record.rank[r];
        CHECK_MSG(rank->status != STATUS_OK && rank->steps == 0,
            "stage %d, %d layers, rank %d: ran", config.stage, config.model.layers, r);
        CHECK_MSG(strstr(rank->text, "bytes more") != NULL && strstr(rank->text, "limit") != NULL &&
                      strchr(rank->text, '\n') == NULL,
            "stage %d, rank %d: \"%s\"", config.stage, r, rank->text);
    }
}

int main(void)
{
    int deepest[4];
    uint64_t limit = 0;
    fixture_file(text_path, "text");
    fixture_text(text_path, 30000);
    for (int stage = 0; stage <= 3; stage++) {
        struct forecast_config forecast = stage_forecast(stage);
        if (stage == 0) limit = held_sum(&forecast, 6) + 100000;
        check_slope(stage, &forecast);
        CHECK_OK(forecast_largest_layers(&deepest[stage], limit, &forecast));
        CHECK_MSG(stage == 0 || deepest[stage] > deepest[stage - 1],
            "stage %d: %d layers, stage %d: %d", stage, deepest[stage], stage - 1,
            deepest[stage - 1]);
        struct train_config config = arena_config(stage, deepest[stage]);
        config.memory_limit_bytes = limit;
        check_fits(config, &forecast);
        config.model.layers++; /* then only communication, which comes last, lacks room */
        check_refused(config);
        config.model.layers *= 2;
        check_refused(config);
    }
    printf("layers that %llu bytes hold on %d ranks: %d, %d, %d, %d\n", (unsigned long long)limit,
        RANKS, deepest[0], deepest[1], deepest[2], deepest[3]);
    fixture_remove();
    return test_result();
}
