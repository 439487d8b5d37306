/* The optimizer offloaded to host memory: the same losses, norms and checkpoints, bit for bit, in
 * every stage and dtype (I3), also where a unit is many pieces; what is held is predicted, counted
 * beside the device's memory, and does not count for its limit. A checkpoint goes on with the other
 * kind.
 * ctest: timeout=120
 */
#include "tests/shard_fixture.h"

static char text_path[256];

static uint64_t entry_of(const struct ledger *ledger, const char *name)
{
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->entry[i].name, name) == 0) return ledger->entry[i].measured;
    return UINT64_MAX;
}

static void check_same(const struct job_record *a, const struct job_record *b, const char *what)
{
    const struct rank_record *found = &a->rank[0], *expected = &b->rank[0];
    CHECK_MSG(found->steps == expected->steps &&
                  memcmp(found->loss, expected->loss, sizeof found->loss) == 0 &&
                  memcmp(found->norm, expected->norm, sizeof found->norm) == 0 &&
                  found->validation == expected->validation,
        "%s, stage %d, %s: loss %.9g, expected %.9g", what, a->config->stage,
        dtype_name(a->config->dtype), found->loss[found->steps - 1],
        expected->loss[expected->steps - 1]);
}

static void test_stage(int stage, enum dtype dtype)
{
    struct job_record plain, offloaded;
    struct train_config config = fixture_config(text_path);
    config.stage = stage;
    config.dtype = config.gradient_dtype = config.reduce_dtype = dtype;
    config.accumulate = 2;
    run_good_job(&plain, &config, 2, "shm");
    config.offload_optimizer = true;
    run_good_job(&offloaded, &config, 2, "shm");
    config.offload_optimizer = false; /* records keep the pointer */
    check_same(&offloaded, &plain, "offloaded");
    for (int r = 0; r < 2; r++) {
        const struct ledger *ledger = &offloaded.rank[r].ledger;
        const struct ledger *before = &plain.rank[r].ledger;
        uint64_t moved = entry_of(before, "optimizer_held");
        if (dtype == DTYPE_FLOAT32) moved = moved / 2 * 3; /* and master weights */
        CHECK(ledger->ok && ledger->differing_ranks == 0);
        CHECK(entry_of(ledger, "optimizer_held") == 0 && entry_of(before, "offloaded_held") == 0);
        CHECK(entry_of(ledger, "offloaded_held") > moved &&
              entry_of(ledger, "weights_held") == entry_of(before, "weights_held"));
    }
}

/* C 160: 4096 positions are 655,360 elements, three pieces. */
static void test_pieces(enum dtype dtype)
{
    struct job_record plain, offloaded;
    struct train_config config = fixture_config(text_path);
    config.model.channels = 160;
    config.model.layers = 1;
    config.model.max_t = 4096;
    config.seq = 8;
    config.steps = 3;
    config.stage = 0;
    config.dtype = config.gradient_dtype = config.reduce_dtype = dtype;
    run_good_job(&plain, &config, 1, "shm");
    config.offload_optimizer = true;
    run_good_job(&offloaded, &config, 1, "shm");
    check_same(&offloaded, &plain, "in pieces");
}

/* Room for everything but the optimizer. */
static void test_limit(void)
{
    struct job_record record;
    struct train_config config = fixture_config(text_path);
    config.stage = 1;
    config.offload_optimizer = true;
    run_good_job(&record, &config, 2, "shm");
    const struct ledger *ledger = &record.rank[0].ledger;
    uint64_t held = 0;
    for (int i = 0; i < ledger->count; i++)
        if (strstr(ledger->entry[i].name, "_held") != NULL &&
            strcmp(ledger->entry[i].name, "offloaded_held") != 0)
            held += ledger->entry[i].measured;
    config.memory_limit_bytes = held;
    run_good_job(&record, &config, 2, "shm");
    config.offload_optimizer = false;
    run_job(&record, &config, 2, "shm");
    CHECK(record.rank[0].status == STATUS_SYSTEM || record.rank[1].status == STATUS_SYSTEM);
}

/* Half of the steps either way. */
static void test_resume(bool offload_first)
{
    struct job_record whole, first, second;
    struct train_config config = fixture_config(text_path);
    char directory[256];
    fixture_file(directory, offload_first ? "down" : "up");
    config.stage = 2;
    config.dtype = DTYPE_BFLOAT16;
    run_good_job(&whole, &config, 2, "shm");
    config.checkpoint_dir = directory;
    config.stop_at = 3;
    config.offload_optimizer = offload_first;
    run_good_job(&first, &config, 2, "shm");
    config.resume_dir = directory;
    config.stop_at = 0;
    config.offload_optimizer = !offload_first;
    run_good_job(&second, &config, 2, "shm");
    CHECK(second.rank[0].first_step == 3 && second.rank[0].steps == 3);
    for (int i = 0; i < 3; i++)
        CHECK(first.rank[0].loss[i] == whole.rank[0].loss[i] &&
              second.rank[0].loss[i] == whole.rank[0].loss[3 + i] &&
              second.rank[0].norm[i] == whole.rank[0].norm[3 + i]);
}

int main(void)
{
    const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_FLOAT16};
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    for (int stage = 0; stage <= 3; stage++)
        for (int i = 0; i < 3; i++) test_stage(stage, dtypes[i]);
    for (int i = 0; i < 3; i++) test_pieces(dtypes[i]);
    test_limit();
    test_resume(true);
    test_resume(false);
    fixture_remove();
    return test_result();
}
