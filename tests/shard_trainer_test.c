/* Training end to end with ranks as threads: it learns; 1, 2 and 3 ranks agree with each other and
 * with a plain loop; the bits do not depend on buckets, overlap and transport; the ledger is exact;
 * the mean is over valid tokens; a bad configuration is refused. ctest: timeout=90
 */
#include <math.h>

#include "model/model.h"
#include "model/tokens.h"
#include "optim/norm.h"
#include "optim/schedule.h"
#include "tests/shard_fixture.h"

static char text_path[256];

static void check_same_bits(
    const struct job_record *a, const struct job_record *b, const char *what)
{
    const struct rank_record *x = &a->rank[0], *y = &b->rank[0];
    CHECK_MSG(x->steps == y->steps && memcmp(x->loss, y->loss, sizeof x->loss) == 0 &&
                  memcmp(x->norm, y->norm, sizeof x->norm) == 0 && x->validation == y->validation,
        "%s: step 1 %.17g and %.17g, last %.17g and %.17g", what, x->loss[0], y->loss[0],
        x->loss[x->steps - 1], y->loss[y->steps - 1]);
}

static void check_close(
    const struct job_record *a, const struct job_record *b, double bound, const char *what)
{
    for (int i = 0; i < a->rank[0].steps; i++) {
        double x = a->rank[0].loss[i], y = b->rank[0].loss[i];
        CHECK_MSG(fabs(x - y) <= bound * fabs(x), "%s: step %d: %.9g and %.9g", what, i + 1, x, y);
    }
}

static void test_learns(void)
{
    struct job_record record;
    struct train_config config = fixture_config(text_path);
    config.steps = 60;
    config.lr = 1e-2f;
    config.sample_tokens = 40; /* beyond T: the window slides */
    config.sample_prompt = "the ";
    run_good_job(&record, &config, 2, "shm");
    const struct rank_record *zero = &record.rank[0], *one = &record.rank[1];
    CHECK(zero->steps == 60 && zero->text_tokens);
    CHECK_MSG(fabs(zero->loss[0] - log(256.0)) < 0.1, "the first loss is %g, expected about ln 256",
        zero->loss[0]);
    CHECK_MSG(zero->loss[59] < 3.0, "the last loss is %g", zero->loss[59]);
    CHECK_MSG(zero->validation > 0.5 && zero->validation < 3.2, "validation %g", zero->validation);
    CHECK(zero->sample_count == 44 && memcmp(zero->sample, one->sample, sizeof zero->sample) == 0);
    CHECK(zero->sample[0] == 't' && zero->sample[3] == ' ');
    fixture_check_ledgers(&record, "text");
}

/* ---- an oracle: the same training written down plainly, one rank, no stage, no ring ---- */

struct oracle {
    struct params params;
    float *weights, *gradients, *m, *v; /* units one after another */
};

static size_t unit_begin(const struct params *params, int unit)
{
    size_t begin = 0;
    for (int u = 0; u < unit; u++) begin += params->unit_elements[u];
    return begin;
}

static enum status oracle_enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct oracle *oracle = context;
    size_t begin = unit_begin(&oracle->params, unit);
    size_t bytes = oracle->params.unit_elements[unit] * sizeof(float);
    (void)use;
    view->weights = span_host(oracle->weights + begin, bytes);
    view->gradients = span_host(oracle->gradients + begin, bytes);
    return STATUS_OK;
}

/* Clips and updates; returns the norm. */
static double oracle_update(struct oracle *oracle, const struct train_config *config, int step)
{
    const struct schedule schedule = {
        config->lr, config->final_fraction, config->warmup, config->steps};
    double squares = 0.0;
    for (size_t i = 0; i < oracle->params.elements; i++)
        squares += (double)oracle->gradients[i] * (double)oracle->gradients[i];
    double norm = sqrt(squares);
    for (int i = 0; i < oracle->params.param_count; i++) {
        const struct param *param = &oracle->params.param[i];
        size_t at = unit_begin(&oracle->params, param->unit) + param->offset;
        adam_step(oracle->weights + at, oracle->m + at, oracle->v + at, oracle->gradients + at,
            param->rows * param->cols, schedule_lr(&schedule, (uint64_t)step),
            norm_clip_scale(norm, (double)config->clip),
            param->decays ? config->adam.weight_decay : 0.0f, (uint64_t)step + 1, &config->adam);
    }
    return norm;
}

/* Losses and norms of `config` on one rank, without accumulation. Returns the validation loss after
 * the last step. */
static double oracle_train(double *loss, double *norm, const struct train_config *config)
{
    struct oracle oracle = {0};
    struct device *device = NULL;
    struct model *model = NULL;
    struct tokens *tokens = NULL;
    int32_t inputs[1024], targets[1024];
    const struct model_hooks hooks = {.context = &oracle, .enter = oracle_enter};
    const struct tokens_config data = {.pattern = config->data,
        .batch = config->batch,
        .t = config->model.max_t,
        .nranks = 1,
        .seed = config->seed};
    CHECK_OK(params_make(&oracle.params, &config->model));
    size_t elements = oracle.params.elements;
    float *memory = calloc(4 * elements, sizeof *memory);
    if (memory == NULL) abort();
    oracle.weights = memory;
    oracle.gradients = memory + elements;
    oracle.m = memory + 2 * elements;
    oracle.v = memory + 3 * elements;
    for (int u = 0; u < oracle.params.unit_count; u++)
        params_initialize(oracle.weights + unit_begin(&oracle.params, u), &oracle.params, u, 0,
            oracle.params.unit_elements[u], config->seed);
    CHECK_OK(device_open(&device, "host"));
    const struct model_run run = {
        .batch = data.batch, .t = data.t, .weights = DTYPE_FLOAT32, .gradients = DTYPE_FLOAT32};
    CHECK_OK(model_open(&model, &oracle.params, &hooks, &run, device));
    CHECK_OK(tokens_open(&tokens, &data));
    for (int step = 0; step < (int)config->steps; step++) {
        size_t valid = 0;
        memset(oracle.gradients, 0, elements * sizeof(float));
        tokens_train_batch(inputs, targets, (uint64_t)step, tokens);
        CHECK_OK(model_forward(&loss[step], &valid, inputs, targets, data.batch, data.t, model));
        loss[step] /= (double)valid;
        CHECK_OK(model_backward(1.0f / (float)valid, model));
        norm[step] = oracle_update(&oracle, config, step);
    }
    double sum = 0.0, counted = 0.0;
    for (size_t i = 0; i < tokens_validation_batches(tokens); i++) {
        double part;
        size_t valid;
        tokens_validation_batch(inputs, targets, i, tokens);
        CHECK_OK(model_forward(&part, &valid, inputs, targets, data.batch, data.t, model));
        sum += part;
        counted += (double)valid;
    }
    tokens_close(tokens);
    model_close(model);
    device_close(device);
    params_free(&oracle.params);
    free(memory);
    return sum / counted;
}

static void test_oracle(void)
{
    double loss[FIXTURE_STEPS], norm[FIXTURE_STEPS];
    struct job_record record;
    struct train_config config = fixture_config(text_path);
    config.batch = 6;
    config.adam.weight_decay = 3.0f; /* what decays and what does not shows in the next loss */
    config.lr = 1e-2f;
    double validation = oracle_train(loss, norm, &config);
    for (int nranks = 1; nranks <= 3; nranks++) {
        config.batch = 6 / nranks;
        run_good_job(&record, &config, nranks, "shm");
        CHECK_MSG(fabs(record.rank[0].validation - validation) < 1e-5 * validation,
            "%d ranks, validation: %.9g, expected %.9g", nranks, record.rank[0].validation,
            validation);
        for (int i = 0; i < (int)config.steps; i++) {
            double found = record.rank[0].loss[i], found_norm = record.rank[0].norm[i];
            CHECK_MSG(fabs(found - loss[i]) < 1e-5 * loss[i],
                "%d ranks, loss of step %d: %.9g, expected %.9g", nranks, i + 1, found, loss[i]);
            CHECK_MSG(fabs(found_norm - norm[i]) < 1e-4 * norm[i],
                "%d ranks, norm of step %d: %.9g, expected %.9g", nranks, i + 1, found_norm,
                norm[i]);
        }
    }
}

/* The same global batch on 1, 2 and 3 ranks. */
static void test_rank_counts(void)
{
    struct job_record one, two, three, accumulated;
    struct train_config config = fixture_config(text_path);
    config.batch = 6;
    run_good_job(&one, &config, 1, "shm");
    fixture_check_ledgers(&one, "one rank");
    config.batch = 3;
    run_good_job(&two, &config, 2, "shm");
    config.batch = 2;
    run_good_job(&three, &config, 3, "shm");
    check_close(&one, &two, 1e-5, "2 ranks for 1");
    check_close(&one, &three, 1e-5, "3 ranks for 1");
    CHECK(fabs(one.rank[0].validation - three.rank[0].validation) < 1e-4 * one.rank[0].validation);
    CHECK(fabs(one.rank[0].norm[0] - two.rank[0].norm[0]) < 1e-4 * one.rank[0].norm[0]);
    config.batch = 1;
    config.accumulate =
        3; /* 2 ranks × 3 × 1: other windows in a micro-batch, the same ones in a step */
    run_good_job(&accumulated, &config, 2, "shm");
    check_close(&one, &accumulated, 1e-5, "accumulation for 1");
    fixture_check_ledgers(&accumulated, "accumulated");
}

static void test_same_bits(void)
{
    static const size_t bucket_bytes[] = {1, 28, 1000, 1 << 20};
    for (int nranks = 2; nranks <= 3; nranks++) {
        struct job_record expected, found;
        struct train_config config = fixture_config(text_path);
        config.steps = 3;
        run_good_job(&expected, &config, nranks, "shm");
        for (size_t i = 0; i < sizeof bucket_bytes / sizeof *bucket_bytes; i++) {
            if (bucket_bytes[i] == 1 && nranks == 3)
                continue; /* thousands of operations: once is enough */
            config.bucket_bytes = bucket_bytes[i];
            run_good_job(&found, &config, nranks, "shm");
            check_same_bits(&expected, &found, "other buckets");
            fixture_check_ledgers(&found, "other buckets");
        }
        config.overlap = false;
        run_good_job(&found, &config, nranks, "shm");
        check_same_bits(&expected, &found, "no overlap");
        config.overlap = true;
        run_good_job(&found, &config, nranks, "tcp");
        check_same_bits(&expected, &found, "tcp");
        fixture_check_ledgers(&found, "tcp");
    }
}

/* micro-4 on 4 ranks: units of fewer elements than a bucket, shards that are all padding. */
static void test_tiny_model(void)
{
    struct job_record one, four;
    struct train_config config = fixture_config(text_path);
    char path[256];
    fixture_file(path, "tiny.bin");
    fixture_tokens(path, 5, 2000);
    config.data = path;
    config.model =
        (struct model_config){.max_t = 4, .vocab = 5, .layers = 1, .heads = 1, .channels = 4};
    config.batch = 8;
    config.sample_tokens = 3;
    run_good_job(&one, &config, 1, "shm");
    config.batch = 2;
    run_good_job(&four, &config, 4, "shm");
    check_close(&one, &four, 1e-5, "micro-4 on 4 ranks");
    fixture_check_ledgers(&four, "micro-4 on 4 ranks");
    CHECK(!four.rank[0].text_tokens && four.rank[0].sample_count == 4);
}

static void expect_refusal(
    const struct train_config *config, int nranks, enum status status, const char *word)
{
    struct job_record record;
    run_job(&record, config, nranks, "shm");
    for (int r = 0; r < nranks; r++)
        CHECK_MSG(record.rank[r].status == status && strstr(record.rank[r].text, word) != NULL,
            "rank %d: %s: %s; expected %s", r, status_name(record.rank[r].status),
            record.rank[r].text, word);
}

static void test_refusals(void)
{
    struct train_config good = fixture_config(text_path), config = good;
    config.stage = 4;
    expect_refusal(&config, 1, STATUS_INVALID, "stage is 4");
    config = good;
    config.shard_group = 2;
    expect_refusal(&config, 3, STATUS_INVALID, "shard group is 2");
    config = good;
    config.gradient_dtype = DTYPE_FLOAT16;
    expect_refusal(&config, 1, STATUS_INVALID, "gradient dtype is float16");
    config = good;
    config.broadcast_gather = true;
    expect_refusal(&config, 1, STATUS_INVALID, "stage is 0");
    config = good;
    config.seq = 17;
    expect_refusal(&config, 1, STATUS_INVALID, "seq is 17");
    config = good;
    config.model.heads = 3;
    expect_refusal(&config, 1, STATUS_INVALID, "heads is 3");
    config = good;
    config.lr = NAN;
    expect_refusal(&config, 1, STATUS_INVALID, "lr is nan");
    config = good;
    config.stop_at = 7;
    expect_refusal(&config, 1, STATUS_INVALID, "stop at 7");
    config = good;
    config.data = "/nonexistent/text";
    expect_refusal(&config, 2, STATUS_DATA, "/nonexistent/text");
    config = good;
    config.batch = 5000;
    expect_refusal(&config, 2, STATUS_DATA, "batch 5000");
    config = good;
    config.lr = 999.0f; /* weights of 1e3 and more: products overflow soon */
    config.clip = 0.0f;
    config.steps = 60;
    config.warmup = 0;
    config.adam.weight_decay = 900.0f;
    expect_refusal(&config, 2, STATUS_DATA, "norm is");
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    test_learns();
    test_oracle();
    test_rank_counts();
    test_same_bits();
    test_tiny_model();
    test_refusals();
    fixture_remove();
    return test_result();
}
