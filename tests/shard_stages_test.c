/* The four stages: the same bits at equal N (case T1), in float32 and 16 bits, with shard groups, accumulation,
 * recomputation, gathers by broadcast, two levels and any bucket; the ledger equals its prediction every time (I3, I4).
 * ctest: timeout=240
 */
#include <math.h>

#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"

static char text_path[256], small_path[256];

/* nano-37 (no unit divides by 3, 4, 5), nano-36 (several heads, rows in blocks), micro-4 (empty shards), nano; a Llama, which
 * has no table of positions. */
static const struct model_config models[] = {
    {.max_t = 13, .vocab = 101, .layers = 2, .heads = 1, .channels = 37},
    {.max_t = 16, .vocab = 101, .layers = 2, .heads = 3, .channels = 36, .vocab_block = 26},
    {.max_t = 4, .vocab = 5, .layers = 1, .heads = 1, .channels = 4},
    {.max_t = 128, .vocab = 256, .layers = 4, .heads = 4, .channels = 128},
    {ARCHITECTURE_LLAMA, .max_t = 16, .vocab = 101, .layers = 2, .heads = 6, .channels = 36,
        .vocab_block = 26, .kv_heads = 2, .hidden = 41},
};
static const char *const model_names[] = {"nano-37", "nano-36", "micro-4", "nano", "llama-36"};

static struct train_config model_config(int model)
{
    struct train_config config = fixture_config(model == 2 ? small_path : text_path);
    config.model = models[model];
    config.batch = 2;
    config.steps = 4;
    config.bucket_bytes = 4096;
    return config;
}

/* What a job has written: the shard files of its checkpoint, one after another. */
struct state {
    size_t bytes;
    unsigned char *values;
};

static struct state read_state(const char *directory, int steps, int files)
{
    struct state state = {0};
    for (int r = 0; r < files; r++) {
        char path[512];
        snprintf(path, sizeof path, "%s/step-%08d/shard-%05d-of-%05d.bin", directory, steps, r, files);
        FILE *file = fopen(path, "r");
        if (!CHECK_MSG(file != NULL, "%s is missing", path)) continue;
        fseek(file, 0, SEEK_END);
        size_t bytes = (size_t)ftell(file);
        rewind(file);
        state.values = realloc(state.values, state.bytes + bytes + 1);
        if (state.values == NULL) abort();
        CHECK(fread(state.values + state.bytes, 1, bytes, file) == bytes);
        state.bytes += bytes;
        fclose(file);
    }
    return state;
}

/* Runs the job; its losses, norms, validation and weights must be those of `expected`, or become it. */
static void run_and_compare(struct job_record *expected, struct state *expected_state,
    const struct train_config *base, int nranks, const char *what)
{
    static int runs;
    char directory[256], name[64];
    struct train_config config = *base;
    struct job_record found;
    snprintf(name, sizeof name, "run-%d", runs++);
    fixture_file(directory, name);
    config.checkpoint_dir = directory;
    config.step_ledger = runs % 2 == 0;
    run_good_job(&found, &config, nranks, "shm");
    CHECK((found.rank[0].step_sent > 0) == (config.step_ledger && nranks > 1));
    fixture_check_ledgers(&found, what);
    int files = config.shard_group > 0 ? config.shard_group : nranks;
    struct state state = read_state(directory, (int)config.steps, files);
    if (expected_state->values == NULL) {
        *expected = found;
        *expected_state = state;
        return;
    }
    const struct rank_record *x = &expected->rank[0], *y = &found.rank[0];
    for (int i = 0; i < x->steps; i++)
        CHECK_MSG(memcmp(&x->loss[i], &y->loss[i], sizeof x->loss[i]) == 0 &&
                      memcmp(&x->norm[i], &y->norm[i], sizeof x->norm[i]) == 0,
            "%s, %d ranks, step %d: loss %.17g, norm %.17g, expected %.17g, %.17g", what, nranks,
            i + 1, y->loss[i], y->norm[i], x->loss[i], x->norm[i]);
    CHECK_MSG(x->validation == y->validation, "%s: validation %.17g, expected %.17g", what,
        y->validation, x->validation);
    CHECK_MSG(state.bytes == expected_state->bytes &&
                  memcmp(state.values, expected_state->values, state.bytes) == 0,
        "%s, %d ranks: the weights or moments differ", what, nranks);
    free(state.values);
}

static void compare_stages(const struct train_config *base, int nranks, const char *what)
{
    struct job_record expected;
    struct state state = {0};
    for (int stage = 0; stage <= 3; stage++) {
        char label[128];
        struct train_config config = *base;
        config.stage = stage;
        snprintf(label, sizeof label, "%s, stage %d", what, stage);
        run_and_compare(&expected, &state, &config, nranks, label);
    }
    free(state.values);
}

/* Also with activations computed again, without overlap, and in other buckets. */
static void compare_ways(const struct train_config *base, int nranks, const char *what)
{
    struct job_record expected;
    struct state state = {0};
    for (int stage = 0; stage <= 3; stage++) {
        char label[128];
        struct train_config config = *base;
        config.stage = stage;
        snprintf(label, sizeof label, "%s, stage %d", what, stage);
        run_and_compare(&expected, &state, &config, nranks, label);
        config.activations = ACTIVATION_INPUT;
        config.overlap = stage % 2 == 0;
        config.bucket_bytes = 1000;
        snprintf(label, sizeof label, "%s, stage %d, recomputed", what, stage);
        run_and_compare(&expected, &state, &config, nranks, label);
    }
    free(state.values);
}

#ifdef __SANITIZE_THREAD__
#define T1_STEPS 2 /* races show in the first; each takes fifty times as long */
#else
#define T1_STEPS 10
#endif

/* T1: ten steps. */
static void test_all_models(void)
{
    static const int ranks[] = {2, 3, 4, 5, 8};
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
            struct train_config config = model_config(m);
            config.steps = T1_STEPS;
            compare_stages(&config, ranks[i], model_names[m]);
        }
    struct train_config config = model_config(3);
    config.steps = T1_STEPS;
    config.batch = 1;
    config.seq = 16;
    compare_stages(&config, 2, model_names[3]);
    config = model_config(2); /* T3: more ranks than a norm has elements */
    compare_ways(&config, 8, model_names[2]);
    for (int m = 0; m < 3; m++) {
        config = model_config(m);
        compare_ways(&config, 3, model_names[m]);
    }
    config = model_config(4);
    compare_ways(&config, 3, model_names[4]);
    config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_BFLOAT16;
    config.shard_group = 2;
    compare_stages(&config, 4, "llama-36, groups of 2 of 4, bfloat16");
    config = model_config(1);
    compare_ways(&config, 1, "one rank");
}

static void test_short_sequences(void)
{
    struct train_config config = model_config(1);
    config.seq = 9; /* T11: positions that no token uses */
    compare_stages(&config, 2, "T 9 of 16");
}

static void test_16_bits(void)
{
    static const enum dtype dtypes[] = {DTYPE_BFLOAT16, DTYPE_FLOAT16};
    for (int d = 0; d < 2; d++)
        for (int wide = 0; wide < 3; wide++) {
            char what[96];
            struct train_config config = model_config(1);
            config.dtype = dtypes[d];
            config.gradient_dtype = wide == 2 ? DTYPE_FLOAT32 : dtypes[d];
            config.reduce_dtype = wide > 0 ? DTYPE_FLOAT32 : dtypes[d];
            snprintf(what, sizeof what, "%s, gradients %s, summed in %s", dtype_name(config.dtype),
                dtype_name(config.gradient_dtype), dtype_name(config.reduce_dtype));
            compare_stages(&config, 3, what);
        }
}

/* Sums that are rounded once are other sums, and two ranks need none of it: their one sum is rounded once anyway. */
static void test_reduce_dtype(void)
{
    for (int nranks = 2; nranks <= 4; nranks++) {
        struct job_record own, wide;
        struct train_config config = model_config(1);
        config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_BFLOAT16;
        run_good_job(&own, &config, nranks, "shm");
        config.reduce_dtype = DTYPE_FLOAT32;
        run_good_job(&wide, &config, nranks, "shm");
        fixture_check_ledgers(&wide, "summed in float32");
        bool same = memcmp(own.rank[0].norm, wide.rank[0].norm, sizeof own.rank[0].norm) == 0;
        CHECK_MSG(same == (nranks == 2), "%d ranks: the reduce dtype %s", nranks,
            same ? "changes nothing" : "changes bits");
    }
}

static void test_groups(void)
{
    for (int d = 0; d < 2; d++) {
        struct train_config config = model_config(0);
        config.shard_group = 2;
        if (d == 1) config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_BFLOAT16;
        compare_stages(&config, 4, "groups of 2 of 4");
        compare_stages(&config, 6, "groups of 2 of 6");
        config.shard_group = 3;
        compare_stages(&config, 6, "groups of 3 of 6");
        config.shard_group = 1;
        compare_stages(&config, 2, "groups of 1");
    }
}

/* Two hosts of two ranks: sums have another order, the same in all stages. */
static void test_two_level(void)
{
    struct job_record flat, levels;
    struct train_config config = model_config(1);
    run_good_job(&flat, &config, 4, "auto");
    fixture_hosts = 2;
    run_good_job(&levels, &config, 4, "auto");
    CHECK(memcmp(flat.rank[0].norm, levels.rank[0].norm, sizeof flat.rank[0].norm) != 0);
    for (int i = 0; i < flat.rank[0].steps; i++) CHECK(fabs(flat.rank[0].loss[i] - levels.rank[0].loss[i]) < 1e-4);
    compare_ways(&config, 4, "two hosts of 2");
    config.dtype = config.gradient_dtype = DTYPE_BFLOAT16;
    config.reduce_dtype = DTYPE_FLOAT32;
    compare_stages(&config, 4, "two hosts of 2, 16 bits");
    config = model_config(0);
    compare_stages(&config, 6, "two hosts of 3");
    config.shard_group = 2;
    compare_stages(&config, 4, "two hosts of 2, groups of 2");
    config = model_config(3);
    config.batch = 1;
    config.seq = 16;
    config.steps = 2;
    compare_stages(&config, 4, "nano, two hosts of 2");
    fixture_hosts = 0;
}

/* With several micro-batches the bits are equal among stages that reduce at the same moment. */
static void test_accumulation(void)
{
    struct job_record expected;
    struct state state = {0};
    struct train_config config = model_config(1);
    config.accumulate = 3;
    for (config.stage = 0; config.stage <= 1; config.stage++)
        run_and_compare(&expected, &state, &config, 3, "accumulated, gradients whole");
    config.unsharded_accumulation = true;
    for (config.stage = 2; config.stage <= 3; config.stage++)
        run_and_compare(&expected, &state, &config, 3, "accumulated, kept whole by option");
    free(state.values);
    state = (struct state){0};
    config.unsharded_accumulation = false;
    for (config.stage = 2; config.stage <= 3; config.stage++)
        run_and_compare(&expected, &state, &config, 3, "accumulated, reduced each time");
    free(state.values);
}

/* What travels needs two buffers of the largest unit, here a block, whatever the bucket and however long the run. */
static void check_temporary_memory(const struct train_config *config)
{
    struct job_record record;
    const uint64_t block = 12 * 36 * 36 + 13 * 36; /* even: no padding at 2 ranks */
    run_good_job(&record, config, 2, "shm");
    for (int i = 0; i < record.rank[1].ledger.count; i++) {
        const struct ledger_entry *entry = &record.rank[1].ledger.entry[i];
        if (strcmp(entry->name, "gathered_held") != 0) continue;
        CHECK_MSG(entry->measured == 2 * block * sizeof(float), "%llu bytes at most, expected %llu",
            (unsigned long long)entry->measured, (unsigned long long)(2 * block * sizeof(float)));
        return;
    }
    CHECK(!"the ledger has gathered_held");
}

/* T2: buckets of 1, 7, 1000, Ψ and 10Ψ elements, with overlap; the smallest on micro-4, where they are hundreds of operations
 * a step and not tens of thousands. A gather by broadcasts; another transport's turn is in trainer_test. */
static void test_buckets(int model, const size_t *elements, int count)
{
    struct job_record expected;
    struct state state = {0};
    struct train_config config = model_config(model);
    config.steps = 20;
    config.stage = 2;
    for (int i = 0; i < count; i++) {
        config.bucket_bytes = elements[i] * sizeof(float);
        run_and_compare(&expected, &state, &config, 2, "stage 2, buckets");
    }
    config.stage = 3;
    config.broadcast_gather = true;
    run_and_compare(&expected, &state, &config, 2, "stage 3, by broadcast");
    for (int i = 0; i < expected.rank[0].steps; i++) CHECK(isfinite(expected.rank[0].loss[i]));
    free(state.values);
}

static void test_all_buckets(void)
{
    static const size_t micro[] = {2880, 288, 7, 1}, nano_36[] = {363240, 36324, 1000};
    struct train_config config = model_config(1);
    test_buckets(2, micro, 4);
    test_buckets(1, nano_36, 3);
    config.steps = 20;
    config.stage = 2;
    config.bucket_bytes = 4000;
    check_temporary_memory(&config);
}

int main(void)
{
    fixture_file(text_path, "tokens.bin");
    fixture_file(small_path, "small.bin");
    fixture_tokens(text_path, 101, 6000);
    fixture_tokens(small_path, 5, 3000);
    test_all_models();
    test_short_sequences();
    test_16_bits();
    test_reduce_dtype();
    test_groups();
    test_two_level();
    test_accumulation();
    test_all_buckets();
    fixture_remove();
    return test_result();
}
