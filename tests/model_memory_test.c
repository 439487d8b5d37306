/* What the model holds, by tag: model_memory() is the device's account to the byte, for any shape
 * and way to run; and how each part grows: activations not with V, with recomputation not with L;
 * workspace with neither, so that the full logits are never held. Sizes alone are asked of models
 * that fit nowhere.
 * ctest: timeout=60
 */
#include <stdlib.h>

#include "model/model.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

static struct params params_of(const struct model_config *config)
{
    struct params params;
    if (!CHECK_OK(params_make(&params, config))) exit(1);
    return params;
}

static struct model_memory memory_of(struct model_config config, struct model_run run)
{
    struct params params = params_of(&config);
    struct model_memory memory = model_memory(&params, &run, NULL);
    params_free(&params);
    return memory;
}

static void check_account(const struct memory_account *account, struct model_memory memory,
    const struct model_config *config)
{
    const uint64_t expected[MEMORY_TAG_COUNT] = {[MEMORY_ACTIVATIONS] = memory.activations,
        [MEMORY_CHECKPOINTS] = memory.checkpoints,
        [MEMORY_WORKSPACE] = memory.workspace};
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        CHECK_MSG(account->peak[tag] == expected[tag],
            "%s of L%d C%d V%d: %llu bytes, predicted %llu", memory_tag_name(tag), config->layers,
            config->channels, config->vocab, (unsigned long long)account->peak[tag],
            (unsigned long long)expected[tag]);
}

/* Of 16 bits, one unit of float32 each, the largest. */
static void check_wide_unit(
    struct model_memory memory, const struct params *params, struct model_run run)
{
    size_t largest = 0, copies = (run.weights != DTYPE_FLOAT32) + (run.gradients != DTYPE_FLOAT32);
    for (int u = 0; u < params->unit_count; u++)
        largest = params->unit_elements[u] > largest ? params->unit_elements[u] : largest;
    run.weights = run.gradients = DTYPE_FLOAT32;
    uint64_t plain = model_memory(params, &run, NULL).workspace;
    CHECK(memory.workspace - plain == copies * ((largest + 15) / 16 * 16) * sizeof(float));
}

static enum status ignore(void *context, int block, struct span x)
{
    (void)context, (void)block, (void)x;
    return STATUS_OK;
}

/* Zeros of any dtype, as many as are asked for. */
struct lender {
    struct params params;
    struct model_run run;
    void *zeros;
};

static enum status lend(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct lender *lender = context;
    size_t elements = lender->params.unit_elements[unit];
    view->weights = span_host(lender->zeros, elements * dtype_bytes(lender->run.weights));
    if (use != UNIT_FORWARD)
        view->gradients = span_host(lender->zeros, elements * dtype_bytes(lender->run.gradients));
    return STATUS_OK;
}

/* The peak of a training step, a forward without targets, and logits. */
static void test_account(const struct model_config *config, struct model_run run, bool carried)
{
    struct lender lender = {.params = params_of(config), .run = run};
    struct model_hooks hooks = {.context = &lender, .enter = lend};
    if (carried) hooks.act_save = hooks.act_load = ignore;
    size_t rows = (size_t)run.batch * (size_t)run.t;
    int32_t *tokens = calloc(rows, sizeof *tokens);
    float *logits = calloc((size_t)config->vocab, sizeof *logits);
    lender.zeros = calloc(lender.params.elements, sizeof(float));
    if (tokens == NULL || logits == NULL || lender.zeros == NULL) abort();
    struct device *device;
    struct model *model;
    double loss;
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) exit(1);
    if (!CHECK_OK(model_open(&model, &lender.params, &hooks, &run, device))) exit(1);
    CHECK_OK(model_forward(&loss, &valid, tokens, tokens, run.batch, run.t, model));
    CHECK_OK(model_backward(1.0f, model));
    CHECK_OK(model_forward(&loss, &valid, tokens, NULL, 1, 1, model));
    CHECK_OK(model_logits(logits, 0, 0, model));
    struct memory_account account = memory_account_read(device);
    struct model_memory kept = model_memory(&lender.params, &run, device);
    run.carried = carried;
    struct model_memory expected = model_memory(&lender.params, &run, device);
    if (carried && run.recompute) { /* one x more, and no checkpoints */
        CHECK(expected.checkpoints == 0);
        CHECK(expected.activations - kept.activations ==
              (rows * (size_t)config->channels + 15) / 16 * 16 * sizeof(float));
    }
    check_account(&account, expected, config);
    check_wide_unit(expected, &lender.params, run);
    model_close(model);
    device_close(device);
    params_free(&lender.params);
    free(tokens), free(logits), free(lender.zeros);
}

static void test_accounts(void)
{
    const struct model_config configs[] = {
        {.max_t = 8, .vocab = 10, .layers = 1, .heads = 2, .channels = 4, .vocab_block = 4},
        {.max_t = 13, .vocab = 101, .layers = 2, .heads = 1, .channels = 37},
        {.max_t = 16, .vocab = 101, .layers = 3, .heads = 3, .channels = 36, .vocab_block = 30},
        {.max_t = 300,
            .vocab = 5,
            .layers = 2,
            .heads = 1,
            .channels = 2}, /* positions are the largest unit */
        {.max_t = 4, .vocab = 900, .layers = 2, .heads = 1, .channels = 3, .vocab_block = 900},
        {ARCHITECTURE_LLAMA, .max_t = 13, .vocab = 101, .layers = 2, .heads = 6, .channels = 36,
            .kv_heads = 2, .hidden = 41},
        {ARCHITECTURE_LLAMA, .max_t = 8, .vocab = 10, .layers = 1, .heads = 1, .channels = 6,
            .hidden = 5, .vocab_block = 3},
    };
    const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_FLOAT16};
    for (size_t c = 0; c < sizeof configs / sizeof *configs; c++)
        for (int choice = 0; choice < 3 * 3 * 2 * 2; choice++)
            for (int batch = 1; batch <= 3; batch += 2) {
                struct model_run run = {.batch = batch,
                    .t = configs[c].max_t - (batch == 3),
                    .weights = dtypes[choice % 3],
                    .gradients = dtypes[choice / 3 % 3],
                    .recompute = choice / 9 % 2};
                test_account(&configs[c], run, choice / 18);
            }
}

static void test_growth_with_depth(void)
{
    struct model_config config = {
        .max_t = 32, .vocab = 300, .layers = 2, .heads = 2, .channels = 24};
    struct model_run run = {.batch = 2,
        .t = 20,
        .weights = DTYPE_BFLOAT16,
        .gradients = DTYPE_BFLOAT16,
        .recompute = true};
    const size_t x_bytes = 2 * 20 * 24 * sizeof(float);
    struct model_memory two = memory_of(config, run);
    config.layers = 20;
    struct model_memory twenty = memory_of(config, run);
    CHECK(two.activations == twenty.activations);
    CHECK(two.workspace == twenty.workspace);
    CHECK(two.checkpoints == 2 * x_bytes && twenty.checkpoints == 20 * x_bytes);

    run.recompute = false;
    struct model_memory kept = memory_of(config, run);
    config.layers = 2;
    struct model_memory kept_two = memory_of(config, run);
    CHECK(kept.checkpoints == 0 && kept_two.checkpoints == 0);
    CHECK(kept.workspace == two.workspace && kept_two.workspace == two.workspace);
    /* 18 blocks more: at least the paper's 12·h·b·s elements each, and this model keeps a few more. */
    uint64_t more = (kept.activations - kept_two.activations) / 18;
    CHECK_MSG(more >= 12 * x_bytes && more <= 17 * x_bytes, "%llu bytes a block, %zu of x",
        (unsigned long long)more, x_bytes);
    CHECK(kept_two.activations - two.activations == more + x_bytes);
}

/* However large the vocabulary, workspace holds 16 MiB of logits or 64 rows of one block of it. */
static void test_growth_with_vocabulary(void)
{
    struct model_config config = {
        .max_t = 1024, .vocab = 1000, .layers = 2, .heads = 4, .channels = 64};
    struct model_run run = {.batch = 8,
        .t = 1024,
        .weights = DTYPE_FLOAT32,
        .gradients = DTYPE_FLOAT32,
        .recompute = true};
    struct model_memory small = memory_of(config, run);
    const size_t rows = 8 * 1024, most = (16 << 20) + 64 * (12 * 64 + 13) * sizeof(float);
    const int vocabs[] = {5000, 50257, 500000, 5000000};
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++) {
        config.vocab = vocabs[i];
        struct model_memory memory = memory_of(config, run);
        CHECK(memory.activations == small.activations && memory.checkpoints == small.checkpoints);
        uint64_t without_logits = 2 * rows * 64 * sizeof(float);
        CHECK(memory.workspace <= without_logits + rows * 4 * 64 * sizeof(float) + most);
        CHECK(rows * (size_t)config.vocab * sizeof(float) > memory.workspace);
    }
}

/* The paper's example of 100 B: 125 blocks of 8192 channels, batch 32 of 1024: 33.55e9 elements of
 * inputs. */
static void test_models_that_fit_nowhere(void)
{
    struct model_config config = {
        .max_t = 1024, .vocab = 50257, .layers = 125, .heads = 64, .channels = 8192};
    struct model_run run = {.batch = 32,
        .t = 1024,
        .weights = DTYPE_FLOAT16,
        .gradients = DTYPE_FLOAT16,
        .recompute = true};
    struct model_memory memory = memory_of(config, run);
    CHECK(memory.checkpoints == 125ull * 32 * 1024 * 8192 * 4);
    CHECK(memory.workspace >
          2ull * (12ull * 8192 * 8192 + 13 * 8192) * 4); /* a widened unit, its gradient */
    run.recompute = false;
    CHECK(memory_of(config, run).activations > 125ull * 12 * 32 * 1024 * 8192 * 4);
}

int main(void)
{
    test_accounts();
    test_growth_with_depth();
    test_growth_with_vocabulary();
    test_models_that_fit_nowhere();
    return test_result();
}
