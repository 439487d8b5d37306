/* Training with activations kept, and with inputs of blocks kept whole, in parts and in host memory:
 * losses, norms and validations have the same bits (I3), whatever the stage, the overlap and the
 * number of micro-batches, by one, two and four ranks that share tensors; the ledger's predictions
 * hold (I4): L·b·s·h/M elements of checkpoints, none of them the device's when offloaded, and
 * b·s·h (M−1)/M of a block sent. ctest: timeout=60
 */
#include "shard/forecast.h"
#include "tests/shard_fixture.h"

static char text_path[256];

static const struct ledger_entry *entry_of(const struct ledger *ledger, const char *name)
{
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->entry[i].name, name) == 0) return &ledger->entry[i];
    return NULL;
}

static uint64_t held(const struct ledger *ledger, const char *name)
{
    const struct ledger_entry *entry = entry_of(ledger, name);
    CHECK_MSG(entry != NULL && entry->has_prediction, "%s", name);
    return entry != NULL ? entry->measured : 0;
}

/* What is held of checkpoints beside the optimizer's `offloaded` bytes. */
static void check_ledger(
    const struct job_record *job, const struct train_config *config, uint64_t offloaded)
{
    uint64_t inputs = (uint64_t)config->model.layers * (uint64_t)config->batch *
                      (uint64_t)config->model.max_t * (uint64_t)config->model.channels *
                      sizeof(float);
    uint64_t m = (uint64_t)config->tensor, trains = config->steps * (uint64_t)config->accumulate;
    uint64_t sent = activation_is_carried(config->activations) ? trains * inputs / m * (m - 1) : 0;
    if (config->activations != ACTIVATION_INPUT) inputs /= m;
    bool device = config->activations == ACTIVATION_INPUT || config->activations == ACTIVATION_PART;
    bool host = config->activations == ACTIVATION_OFFLOADED;
    struct forecast_config planned = {.train = *config, .nranks = job->nranks};
    struct forecast forecast;
    CHECK_OK(forecast_make(&forecast, &planned));
    CHECK(forecast.checkpoint_bytes * config->steps == sent);
    CHECK(forecast.checkpoint_paper_bytes * (double)config->steps == (double)sent);
    CHECK(forecast.held_bytes[MEMORY_CHECKPOINTS] == (device ? inputs : 0));
    CHECK(forecast.held_bytes[MEMORY_OFFLOADED] == offloaded + (host ? inputs : 0));
    for (int r = 0; r < job->nranks; r++) {
        const struct ledger *ledger = &job->rank[r].ledger;
        CHECK_MSG(ledger->ok, "rank %d, %s", r, activation_keep_name(config->activations));
        CHECK(ledger->differing_ranks == 0 && job->rank[r].step_differences == 0);
        CHECK(held(ledger, "checkpoints_held") == (device ? inputs : 0));
        CHECK(held(ledger, "offloaded_held") == offloaded + (host ? inputs : 0));
        if (sent > 0) CHECK(held(ledger, "checkpoints_sent") == sent);
    }
}

/* All ways to keep activations have the losses of the first. */
static void compare(struct train_config config, int nranks)
{
    struct job_record expected, found;
    uint64_t offloaded = 0;
    for (int keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++)
        for (int overlap = 0; overlap <= activation_is_carried((enum activation_keep)keep);
             overlap++) {
            config.activations = (enum activation_keep)keep;
            config.overlap = overlap == 0;
            config.step_ledger = overlap == 0;
            run_good_job(&found, &config, nranks, "shm");
            if (keep == ACTIVATION_ALL) {
                expected = found;
                offloaded = held(&found.rank[0].ledger, "offloaded_held");
            }
            const struct rank_record *x = &expected.rank[0], *y = &found.rank[0];
            CHECK_MSG(y->steps == x->steps && memcmp(y->loss, x->loss, sizeof x->loss) == 0 &&
                          memcmp(y->norm, x->norm, sizeof x->norm) == 0 &&
                          y->validation == x->validation,
                "stage %d, %s: other bits, first %.17g, expected %.17g", config.stage,
                activation_keep_name(config.activations), y->loss[0], x->loss[0]);
            check_ledger(&found, &config, offloaded);
        }
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    struct train_config config = fixture_config(text_path);
    config.steps = 3;
    config.model.layers = 3;
    config.accumulate = 2;
    config.validate_every = 2; /* a forward without a backward, between steps */
    config.validate_batches = 2;
    config.sample_tokens = 4; /* shorter inputs */
    compare(config, 2);
    config.stage = 3;
    compare(config, 2);
    config.model.heads = 4;
    for (config.tensor = 2; config.tensor <= 4; config.tensor *= 2) {
        config.stage = config.tensor == 2 ? 3 : 0;
        compare(config, 4);
    }
    config.tensor = 1;
    config.model.layers = 1;
    config.dtype = config.gradient_dtype = DTYPE_BFLOAT16;
    config.offload_optimizer = true;
    compare(config, 1);
    fixture_remove();
    return test_result();
}
