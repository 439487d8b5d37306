/* Sequence parallelism: M tensor ranks that each hold their rows of x and of norms. Losses and norms are
 * those of one rank within 1e-5, and the first loss, before any norm's weight has changed, has the bits
 * of the same ranks without it; stages have the same bits, and so have all ways to keep activations (I3).
 * Everything held and sent is what the ledger and the forecast say (I4): of x and of norms' outputs 1/M
 * is held, and what the M ranks send is told by a formula here. With pipelines, 16 bits, a Llama,
 * samples of few tokens, a checkpoint resumed without it. ctest: timeout=120
 */
#include <math.h>

#define FIXTURE_NO_TEXT
#include "shard/forecast.h"
#include "tests/shard_fixture.h"

static char tokens_path[256];

/* nano-H4-C32 with V = 101, and a Llama with 2 heads of keys and values. A global batch of 4 sequences. */
static struct train_config config_of(enum architecture architecture, int tensor, int data)
{
    struct train_config config = fixture_config(tokens_path);
    config.model = (struct model_config){.architecture = architecture,
        .max_t = 16,
        .vocab = 101,
        .layers = 2,
        .heads = 4,
        .channels = 32,
        .kv_heads = architecture == ARCHITECTURE_LLAMA ? 2 : 0,
        .hidden = architecture == ARCHITECTURE_LLAMA ? 84 : 0};
    config.tensor = tensor;
    config.sequence_parallel = true;
    config.batch = 4 / data;
    config.seq = 16;
    config.steps = 3;
    config.step_ledger = true;
    return config;
}

static uint64_t measured(const struct job_record *job, const char *name)
{
    const struct ledger *ledger = &job->rank[0].ledger;
    for (int i = 0; i < ledger->count; i++)
        if (strcmp(ledger->entry[i].name, name) == 0) return ledger->entry[i].measured;
    return 0; /* nothing was sent */
}

static void check_near(const struct job_record *found, const struct job_record *one,
    double tolerance, const char *what)
{
    const struct rank_record *x = &one->rank[0], *y = &found->rank[0];
    CHECK(y->steps == x->steps && x->steps > 0);
    for (int i = 0; i < x->steps; i++)
        CHECK_MSG(fabs(y->loss[i] / x->loss[i] - 1.0) <= tolerance &&
                      fabs(y->norm[i] / x->norm[i] - 1.0) <= tolerance,
            "%s, step %d: loss %.9g, norm %.9g, expected %.9g, %.9g", what, i + 1, y->loss[i],
            y->norm[i], x->loss[i], x->norm[i]);
    CHECK_MSG(fabs(y->validation / x->validation - 1.0) <= tolerance,
        "%s: validation %.9g and %.9g", what, y->validation, x->validation);
}

static void check_same(
    const struct job_record *found, const struct job_record *first, const char *what)
{
    const struct rank_record *x = &first->rank[0], *y = &found->rank[0];
    CHECK_MSG(memcmp(y->loss, x->loss, sizeof x->loss) == 0 &&
                  memcmp(y->norm, x->norm, sizeof x->norm) == 0 && y->validation == x->validation,
        "%s: other bits, first loss %.17g, expected %.17g", what, y->loss[0], x->loss[0]);
}

/* ---- losses ---- */

static void compare_splits(enum architecture architecture, const int *stages, int stage_count)
{
    struct job_record one, plain, found, first;
    struct train_config config = config_of(architecture, 1, 1), whole;
    run_good_job(&one, &config, 1, "shm"); /* one tensor rank: the option changes nothing */
    fixture_check_ledgers(&one, "one rank");
    for (int tensor = 2; tensor <= (architecture == ARCHITECTURE_LLAMA ? 2 : 4); tensor *= 2)
        for (int data = 1; data <= 2; data++) {
            config = whole = config_of(architecture, tensor, data);
            whole.sequence_parallel = false;
            run_good_job(&plain, &whole, tensor * data, "shm");
            for (int s = 0; s < stage_count; s++) {
                char what[64];
                config.stage = stages[s];
                config.activations = (enum activation_keep)s; /* changes no bits (I3) */
                snprintf(what, sizeof what, "%s, %d x %d, stage %d",
                    architecture_name(architecture), tensor, data, stages[s]);
                run_good_job(&found, &config, tensor * data, "shm");
                fixture_check_ledgers(&found, what);
                check_near(&found, &one, 1e-5, what);
                CHECK(found.rank[0].loss[0] == plain.rank[0].loss[0]);
                if (s == 0) first = found;
                check_same(&found, &first, what);
            }
        }
}

/* ---- bytes ---- */

/* Two steps of a longer run, so that no validation is among them. */
static void run_planned(struct job_record *found, struct train_config *config, int nranks)
{
    config->stop_at = 2;
    config->steps = 6;
    for (int s = 0; s < config->pipeline; s++) {
        struct forecast_config about = {.train = *config, .nranks = nranks, .pipeline_stage = s};
        struct forecast forecast;
        char name[64];
        CHECK_OK(forecast_make(&forecast, &about));
        if (s == 0) run_good_job(found, config, nranks, "shm");
        if (s == 0) fixture_check_ledgers(found, activation_keep_name(config->activations));
        struct job_record stage = {.rank[0] = found->rank[s * nranks / config->pipeline]};
        for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
            snprintf(name, sizeof name, "%s_held", memory_tag_name((enum memory_tag)tag));
            CHECK_MSG(
                tag == MEMORY_COMMUNICATION || measured(&stage, name) == forecast.held_bytes[tag],
                "stage %d, %s: %llu, forecast %llu", s, name,
                (unsigned long long)measured(&stage, name),
                (unsigned long long)forecast.held_bytes[tag]);
        }
        for (int c = 0; c < COLLECTIVE_COUNT; c++) {
            snprintf(name, sizeof name, "%s_sent", collective_name((enum collective)c));
            CHECK_MSG(measured(&stage, name) == 2 * forecast.sent_bytes[c],
                "stage %d, %s: %llu, forecast 2 x %llu", s, name,
                (unsigned long long)measured(&stage, name),
                (unsigned long long)forecast.sent_bytes[c]);
        }
    }
}

/* M ranks, 2 blocks of 64 rows of 32 columns, float32: what falls, and what is sent. */
static void test_bytes(int m)
{
    const uint64_t layers = 2, rows = 64, x = rows * 32 * sizeof(float);
    const uint64_t row = rows * sizeof(float), others = (uint64_t)m - 1;
    for (int keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++) {
        struct job_record plain, cut;
        struct train_config config = config_of(ARCHITECTURE_GPT2, m, 1), whole;
        bool again = keep != ACTIVATION_ALL, host = keep == ACTIVATION_OFFLOADED;
        config.activations = (enum activation_keep)keep;
        whole = config;
        whole.sequence_parallel = false;
        run_planned(&plain, &whole, m);
        run_planned(&cut, &config, m);

        /* x, norms' outputs, x2, two or four statistics; where blocks share them, norms' stay whole. */
        uint64_t kept = layers * (4 * x + 4 * row) + x + 2 * row;
        if (again) kept = x + 4 * row + x + 2 * row; /* x2, and the last block's output */
        if (host) kept += x;                         /* the other of two buffers */
        uint64_t fell = measured(&plain, "activations_held") - measured(&cut, "activations_held");
        if (keep == ACTIVATION_PART) fell -= x, kept = x + 4 * row + x + 2 * row;
        CHECK_MSG(fell == kept / (uint64_t)m * others, "%s by %d: %llu bytes, expected %llu",
            activation_keep_name(config.activations), m, (unsigned long long)fell,
            (unsigned long long)(kept / (uint64_t)m * others));
        uint64_t inputs = layers * x / (uint64_t)m;
        CHECK(measured(&cut, "checkpoints_held") == (again && !host ? inputs : 0));
        CHECK(measured(&cut, "offloaded_held") == (host ? inputs : 0));

        /* Sums are as many as without, and each half of one; gathers are the other half, and one more a
         * block, which P_a sends too, or two. Few bytes go whole to everyone: 5 pairs of vectors, and
         * 3 rows of the head's. */
        uint64_t share = x / (uint64_t)m * others, sums = (again ? 5 : 4) * layers + 2;
        uint64_t vectors = 5 * 2 * 32 * sizeof(float) * others, head = 3 * row * others;
        CHECK(measured(&plain, "tensor_sum_sent") == 2 * (2 * sums * share + head));
        CHECK(measured(&cut, "reduce_scatter_sent") == 2 * sums * share);
        CHECK(measured(&cut, "tensor_sum_sent") == 2 * (sums * share + head + vectors));
        CHECK(measured(&cut, "tensor_gather_sent") == 2 * (6 * layers + 2) * share);
    }
}

/* ---- with everything else ---- */

static void test_pipeline(void)
{
    struct job_record one, found, first;
    struct train_config single = config_of(ARCHITECTURE_GPT2, 1, 1), config;
    single.model.layers = 4;
    single.accumulate = 2;
    single.stop_at = 2;
    single.steps = 6;
    run_good_job(&one, &single, 1, "shm");
    for (int keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++) {
        config = single;
        config.tensor = config.pipeline = 2;
        config.activations = (enum activation_keep)keep;
        config.stage = keep == ACTIVATION_INPUT ? 1 : 0;
        config.overlap = keep != ACTIVATION_PART;
        run_planned(&found, &config, 4);
        one.rank[0].validation = found.rank[0].validation = 1.0; /* none was due */
        check_near(&found, &one, 1e-5, "pipeline");
        if (keep == ACTIVATION_ALL) first = found;
        check_same(&found, &first, "pipeline");
        /* Forward to the second stage: a rank's rows, of 2 steps of 2 micro-batches. */
        CHECK(measured(&found, "send_sent") == 2 * 2 * 64 / 2 * 32 * sizeof(float));
    }
}

/* Samples begin with one token, of which one rank has no row; 16-bit gradients are added in float32. */
static void test_sample(enum dtype dtype, double tolerance)
{
    struct job_record one, found;
    struct train_config config = config_of(ARCHITECTURE_GPT2, 4, 1), single;
    config.dtype = config.gradient_dtype = config.reduce_dtype = dtype;
    config.stage = 3;
    config.accumulate = 2;
    config.validate_every = 2;
    config.sample_tokens = 12;
    config.temperature = 0.01f;
    single = config;
    single.tensor = 1;
    run_good_job(&one, &single, 1, "shm");
    run_good_job(&found, &config, 4, "shm");
    fixture_check_ledgers(&found, dtype_name(dtype));
    check_near(&found, &one, tolerance, dtype_name(dtype));
    CHECK(found.rank[3].sample_count == one.rank[0].sample_count);
    if (dtype == DTYPE_FLOAT32)
        CHECK(memcmp(found.rank[3].sample, one.rank[0].sample, sizeof one.rank[0].sample) == 0);
}

/* A checkpoint is of the model, not of the way it was trained. */
static void test_resume(void)
{
    struct job_record whole, first, second;
    char directory[256];
    fixture_file(directory, "saved");
    struct train_config config = config_of(ARCHITECTURE_GPT2, 2, 1);
    run_good_job(&whole, &config, 2, "shm");
    config.stop_at = 2;
    config.checkpoint_dir = directory;
    run_good_job(&first, &config, 2, "shm");
    config.stop_at = 0;
    config.checkpoint_dir = NULL;
    config.resume_dir = directory;
    run_good_job(&second, &config, 2, "shm");
    CHECK(second.rank[0].loss[0] == whole.rank[0].loss[2]);
    config.sequence_parallel = false;
    run_good_job(&second, &config, 2, "shm");
    CHECK(
        second.rank[0].loss[0] == whole.rank[0].loss[2]); /* the same weights, and its first loss */
}

/* Two levels of sums are another order, but one order for both. */
static void test_hosts(void)
{
    struct job_record plain, found;
    struct train_config config = config_of(ARCHITECTURE_GPT2, 4, 1), whole = config;
    whole.sequence_parallel = false;
    fixture_hosts = 2;
    run_good_job(&plain, &whole, 4, "shm");
    run_good_job(&found, &config, 4, "shm");
    fixture_hosts = 0;
    fixture_check_ledgers(&found, "two hosts");
    check_near(&found, &plain, 1e-5, "two hosts");
    CHECK(found.rank[0].loss[0] == plain.rank[0].loss[0]);
}

static void test_refusals(void)
{
    struct train_config config = config_of(ARCHITECTURE_GPT2, 2, 4);
    config.seq = 15;
    CHECK_STATUS(train_config_check(&config), STATUS_INVALID);
    CHECK_TEXT("tensor is 2, rows are 15, a batch of 1 sequence of 15 tokens");
    config.sequence_parallel = false;
    CHECK_OK(train_config_check(&config));
    config.sequence_parallel = true;
    struct forecast_config about = {.train = config, .nranks = 2};
    int batch;
    CHECK_OK(
        forecast_largest_batch(&batch, (uint64_t)100 << 20, &about)); /* even ones are asked for */
    CHECK(batch > 0 && batch % 2 == 0);
}

int main(void)
{
    static const int all[] = {0, 1, 2, 3}, ends[] = {0, 3};
    fixture_file(tokens_path, "tokens.bin");
    fixture_tokens(tokens_path, 101, 6000);
#ifdef __SANITIZE_THREAD__ /* which sees as much in fewer */
    (void)all;
    compare_splits(ARCHITECTURE_GPT2, ends, 2);
#else
    test_bytes(4);
    compare_splits(ARCHITECTURE_GPT2, all, 4);
    compare_splits(ARCHITECTURE_LLAMA, ends, 2);
#endif
    test_bytes(2);
    test_pipeline();
    test_sample(DTYPE_FLOAT32, 1e-5);
    test_sample(DTYPE_BFLOAT16, 0.02);
    test_hosts();
    test_resume();
    test_refusals();
    fixture_remove();
    return test_result();
}
