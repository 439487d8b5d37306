/* The whole model, GPT-2's and Llama's, against PyTorch in float64 (golden/make_…_golden.py): loss
 * within 1e-6, logits and every gradient tensor within 1e-5, for several cuts of the vocabulary and
 * with blocks computed again. Then what model.h says
 * of bad tokens, ignored targets, accumulation and short sequences.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"
#include "tests/harness/reference.h"

struct golden {
    struct model_config config;
    int batch, t;
    size_t valid, elements;
    int32_t *tokens, *targets;
    double loss, *logits, *gradients;
    float *weights;
};

static void *read_array(FILE *file, size_t count, size_t bytes)
{
    void *array = calloc(count, bytes);
    if (array == NULL || fread(array, bytes, count, file) != count) {
        fprintf(stderr, "the golden file ends early\n");
        exit(1);
    }
    return array;
}

/* Version 2 is Llama's, and tells three numbers more. */
static struct golden golden_header(FILE *file)
{
    int32_t *header = read_array(file, 10, 4);
    CHECK(header[0] == 0x325A5247 && (header[1] == 1 || header[1] == 2));
    struct golden golden = {.batch = header[7], .t = header[8], .valid = (size_t)header[9]};
    golden.config = (struct model_config){.max_t = header[2],
        .vocab = header[3],
        .layers = header[4],
        .heads = header[5],
        .channels = header[6]};
    if (header[1] == 2) {
        int32_t *more = read_array(file, 3, 4);
        golden.config.architecture = ARCHITECTURE_LLAMA;
        golden.config.kv_heads = more[0];
        golden.config.hidden = more[1];
        golden.config.rotary_base = more[2];
        free(more);
    }
    free(header);
    return golden;
}

static struct golden golden_read(const char *name)
{
    const char *source = getenv("RINGZERO_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/%s", source != NULL ? source : ".", name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s cannot be opened; run from the source folder or set RINGZERO_SOURCE\n",
            path);
        exit(1);
    }
    struct golden golden = golden_header(file);
    size_t rows = (size_t)golden.batch * (size_t)golden.t;
    golden.tokens = read_array(file, rows, 4);
    golden.targets = read_array(file, rows, 4);
    double *loss = read_array(file, 1, 8);
    golden.loss = *loss;
    free(loss);
    golden.logits = read_array(file, (size_t)golden.config.vocab, 8);
    struct params params;
    if (!CHECK_OK(params_make(&params, &golden.config))) exit(1);
    golden.elements = params.elements;
    params_free(&params);
    golden.weights = read_array(file, golden.elements, 4);
    float *gradients = read_array(file, golden.elements, 4);
    golden.gradients = calloc(golden.elements, sizeof *golden.gradients);
    if (golden.gradients == NULL) abort();
    for (size_t i = 0; i < golden.elements; i++) golden.gradients[i] = (double)gradients[i];
    free(gradients);
    CHECK(fgetc(file) == EOF);
    fclose(file);
    return golden;
}

static void golden_free(struct golden *golden)
{
    free(golden->tokens), free(golden->targets), free(golden->logits), free(golden->gradients),
        free(golden->weights);
}

/* Each tensor's gradient, divided by `times`. */
static void check_gradients(const struct model_host *host, const struct golden *golden, float times)
{
    for (int i = 0; i < host->params.param_count; i++) {
        const struct param *param = &host->params.param[i];
        size_t begin = host->unit_begin[param->unit] + param->offset,
               count = param->rows * param->cols;
        float *scaled = malloc(count * sizeof *scaled);
        if (scaled == NULL) abort();
        for (size_t e = 0; e < count; e++) scaled[e] = host->gradients[begin + e] / times;
        double error = relative_error(scaled, golden->gradients + begin, count);
        CHECK_MSG(error <= 1e-5, "gradient of %s: relative error %.3g", param->name, error);
        free(scaled);
    }
}

/* Forward, logits and backward with units of vocab_block rows; once more to see gradients added
 * up. */
static void test_golden(const struct golden *golden, int vocab_block, bool recompute)
{
    struct model_config config = golden->config;
    config.vocab_block = vocab_block;
    struct model_host host = model_host_make(&config, 1);
    CHECK(host.params.elements == golden->elements);
    memcpy(host.weights, golden->weights, golden->elements * sizeof *host.weights);
    struct model_hooks hooks = model_host_hooks(&host);
    struct device *device;
    struct model *model;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    /* Room for more than is used: the model must not depend on it. */
    struct model_run run = model_host_run(golden->batch + 1, golden->config.max_t);
    run.recompute = recompute;
    if (!CHECK_OK(model_open(&model, &host.params, &hooks, &run, device))) return;
    for (int round = 1; round <= 2; round++) {
        double loss;
        size_t valid;
        CHECK_OK(model_forward(
            &loss, &valid, golden->tokens, golden->targets, golden->batch, golden->t, model));
        CHECK(valid == golden->valid);
        CHECK_MSG(fabs(loss / golden->loss - 1.0) <= 1e-6, "loss %.9g, expected %.9g", loss,
            golden->loss);
        float *logits = calloc((size_t)config.vocab, sizeof *logits);
        CHECK_OK(model_logits(logits, golden->batch - 1, golden->t - 1, model));
        CHECK(relative_error(logits, golden->logits, (size_t)config.vocab) <= 1e-5);
        free(logits);
        CHECK_OK(model_backward(1.0f / (float)valid, model));
        check_gradients(&host, golden, (float)round);
    }
    model_close(model);
    struct memory_account account = memory_account_read(device);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        CHECK_MSG(account.now[tag] == 0, "left: %s", memory_tag_name(tag));
    device_close(device);
    model_host_free(&host);
}

static const struct model_config small = {
    .max_t = 8, .vocab = 11, .layers = 1, .heads = 2, .channels = 6};

struct small_model {
    struct model_host host;
    struct device *device;
    struct model *model;
};

static void small_open(struct small_model *s)
{
    s->host = model_host_make(&small, 3);
    struct model_hooks hooks = model_host_hooks(&s->host);
    if (!CHECK_OK(device_open(&s->device, "host"))) exit(1);
    struct model_run run = model_host_run(2, 4);
    if (!CHECK_OK(model_open(&s->model, &s->host.params, &hooks, &run, s->device))) exit(1);
}

static void small_close(struct small_model *s)
{
    model_close(s->model);
    device_close(s->device);
    model_host_free(&s->host);
}

static void check_says(const char *a, const char *b)
{
    CHECK_MSG(strstr(status_text(), a) != NULL && strstr(status_text(), b) != NULL,
        "\"%s\" lacks \"%s\" or \"%s\"", status_text(), a, b);
}

static void test_bad_ids(void)
{
    struct small_model s;
    small_open(&s);
    int32_t tokens[8] = {0}, targets[8] = {0};
    double loss;
    size_t valid;
    tokens[6] = 11;
    CHECK_STATUS(model_forward(&loss, &valid, tokens, targets, 2, 4, s.model), STATUS_DATA);
    check_says("token at sequence 1 position 2 is 11", "0 to 10");
    tokens[6] = -1;
    CHECK_STATUS(model_forward(&loss, &valid, tokens, NULL, 2, 4, s.model), STATUS_DATA);
    tokens[6] = 10;
    targets[3] = -2;
    CHECK_STATUS(model_forward(&loss, &valid, tokens, targets, 2, 4, s.model), STATUS_DATA);
    check_says("target at sequence 0 position 3 is -2", "or -1");
    targets[3] = 12;
    CHECK_STATUS(model_forward(&loss, &valid, tokens, targets, 2, 4, s.model), STATUS_DATA);
    targets[3] = 10;
    CHECK_OK(model_forward(&loss, &valid, tokens, targets, 2, 4, s.model));
    small_close(&s);
}

/* No valid target at all: no loss, no gradient, no NaN. */
static void test_all_ignored(void)
{
    struct small_model s;
    small_open(&s);
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8},
                  targets[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    double loss = 1.0;
    size_t valid = 1;
    CHECK_OK(model_forward(&loss, &valid, tokens, targets, 2, 4, s.model));
    CHECK(loss == 0.0 && valid == 0);
    CHECK_OK(model_backward(1.0f, s.model));
    for (size_t i = 0; i < s.host.params.elements; i++) CHECK(s.host.gradients[i] == 0.0f);
    small_close(&s);
}

/* Sequences shorter than the model's positions: the gradients are those of a model that has no more
 * positions, and the others' are zero. */
static void test_unused_positions(void)
{
    enum { USED = 4 };
    struct model_config short_config = small;
    short_config.max_t = USED;
    struct model_host whole = model_host_make(&small, 3), exact = model_host_make(&short_config, 3);
    struct model_host *hosts[] = {&whole, &exact};
    const int32_t tokens[2 * USED] = {1, 2, 3, 4, 5, 6, 7, 8},
                             targets[2 * USED] = {2, 3, 4, -1, 6, 7, 8, 9};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        struct model_hooks hooks = model_host_hooks(hosts[i]);
        struct model_run run = model_host_run(2, USED);
        struct device *device;
        struct model *model;
        size_t valid;
        if (!CHECK_OK(device_open(&device, "host"))) exit(1);
        if (!CHECK_OK(model_open(&model, &hosts[i]->params, &hooks, &run, device))) exit(1);
        CHECK_OK(model_forward(&loss[i], &valid, tokens, targets, 2, USED, model));
        CHECK_OK(model_backward(0.125f, model));
        model_close(model);
        device_close(device);
    }
    CHECK(loss[0] == loss[1]);
    for (int u = 0; u < whole.params.unit_count; u++) {
        const float *a = whole.gradients + whole.unit_begin[u],
                    *b = exact.gradients + exact.unit_begin[u];
        size_t count = exact.params.unit_elements[u];
        CHECK_MSG(memcmp(a, b, count * sizeof *a) == 0, "unit %d", u);
        for (size_t i = count; i < whole.params.unit_elements[u]; i++) CHECK(a[i] == 0.0f);
    }
    model_host_free(&whole), model_host_free(&exact);
}

static enum status refuse(void *context, int block, struct span x)
{
    (void)context, (void)block, (void)x;
    return STATUS_ABORTED;
}

static void test_open_errors(void)
{
    struct model_host host = model_host_make(&small, 3);
    struct model_hooks hooks = model_host_hooks(&host);
    struct device *device;
    struct model *model;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    struct model_run run = model_host_run(1, 9);
    CHECK_STATUS(model_open(&model, &host.params, &hooks, &run, device), STATUS_INVALID);
    check_says("9", "8");
    run = model_host_run(0, 8);
    CHECK_STATUS(model_open(&model, &host.params, &hooks, &run, device), STATUS_INVALID);
    run = model_host_run(1, 8);
    run.gradients = DTYPE_FLOAT64;
    CHECK_STATUS(model_open(&model, &host.params, &hooks, &run, device), STATUS_INVALID);
    check_says("float64", "bfloat16");
    run = model_host_run(1, 8);
    hooks.act_save = refuse;
    CHECK_STATUS(model_open(&model, &host.params, &hooks, &run, device), STATUS_INVALID);
    check_says("act_save", "both or neither");
    hooks.enter = NULL;
    CHECK_STATUS(model_open(&model, &host.params, &hooks, &run, device), STATUS_INVALID);
    check_says("enter", "required");
    CHECK(model == NULL);
    model_close(NULL);
    device_close(device);
    CHECK(model_flops_per_token(&host.params, 4) ==
          6.0 * (double)host.params.elements + 12.0 * 1 * 6 * 4);
    model_host_free(&host);
}

int main(void)
{
    const char *const files[] = {"gpt2_golden.bin", "llama_golden.bin"};
    for (int i = 0; i < 2; i++) {
        struct golden golden = golden_read(files[i]);
        CHECK(golden.config.architecture == (i == 0 ? ARCHITECTURE_GPT2 : ARCHITECTURE_LLAMA));
        test_golden(&golden, 0, false);
        test_golden(&golden, 8, true);
        test_golden(&golden, 5, false);
        test_golden(&golden, 1, false);
        golden_free(&golden);
    }
    test_bad_ids();
    test_all_ignored();
    test_unused_positions();
    test_open_errors();
    return test_result();
}
