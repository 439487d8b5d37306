/* Going on with a text: greedy tokens are those of a forward of the whole context, also after it was full; another text after the same
 * prompt; the same seed; weights of 16 bits are those that were rounded. Both architectures.
 * ctest: timeout=60
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/generate.h"
#include "model/model.h"
#include "model/resident.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

#define T     24
#define VOCAB 37
#define COUNT 60

static const struct model_config configs[] = {
    {.max_t = T, .vocab = VOCAB, .layers = 2, .heads = 3, .channels = 24, .vocab_block = 10},
    {.architecture = ARCHITECTURE_LLAMA, .max_t = T, .vocab = VOCAB, .layers = 2, .heads = 6, .kv_heads = 2,
        .channels = 48, .hidden = 40},
};
static const struct draw_config greedy = {.temperature = 0.0f, .top_p = 1.0f};
static const struct draw_config loose = {.temperature = 3.0f, .top_k = 20, .top_p = 0.9f};
static struct device *device;

static int best(const float *logits, int vocab)
{
    int most = 0;
    for (int v = 1; v < vocab; v++)
        if (logits[v] > logits[most]) most = v;
    return most;
}

/* What generate.h says, with nothing kept: the context is computed anew for every token. */
static void expect(int32_t *tokens, int prompt, int count, struct model_host *host)
{
    struct model *model;
    struct model_hooks hooks = model_host_hooks(host);
    struct model_run run = model_host_run(1, T);
    double loss;
    size_t counted;
    float logits[VOCAB];
    if (!CHECK_OK(model_open(&model, &host->params, &hooks, &run, device))) exit(test_result());
    int seen = prompt <= T ? prompt : T / 2;
    for (int i = prompt; i < prompt + count; i++) {
        CHECK_OK(model_forward(&loss, &counted, tokens + i - seen, NULL, 1, seen, model));
        CHECK_OK(model_logits(logits, 0, seen - 1, model));
        tokens[i] = best(logits, VOCAB);
        seen = seen == T ? T / 2 : seen + 1;
    }
    model_close(model);
}

static void check_next(const int32_t *expected, int count, struct generator *generator, const char *what)
{
    uint64_t state = 1;
    int32_t token;
    for (int i = 0; i < count; i++) {
        if (!CHECK_OK(generator_next(&token, VOCAB, &greedy, &state, generator))) return;
        if (!CHECK_MSG(token == expected[i], "%s: token %d is %d, expected %d", what, i, token, expected[i])) return;
    }
}

static void check_prompt(int prompt, struct generator *generator, struct model_host *host)
{
    int32_t tokens[3 * T + COUNT];
    for (int i = 0; i < prompt; i++) tokens[i] = (int32_t)((i * 17 + i * i / 3) % VOCAB);
    expect(tokens, prompt, COUNT, host);
    CHECK_OK(generator_begin(tokens, (size_t)prompt, generator));
    CHECK(generator_restarts(generator) == (prompt > T));
    check_next(tokens + prompt, 5, generator, "begun");
    CHECK_OK(generator_again(generator));
    check_next(tokens + prompt, COUNT, generator, "again");
    /* COUNT - 1 of them are read: the first of every T/2 or so finds the context full. */
    int seen = prompt <= T ? prompt : T / 2, full = (seen + COUNT - 1 - T + T / 2) / (T / 2 + 1);
    CHECK_MSG(generator_restarts(generator) - (prompt > T) == full, "prompt of %d: full %d times, expected %d", prompt,
        generator_restarts(generator), full);
    CHECK_OK(generator_again(generator));
    CHECK(generator_restarts(generator) == (prompt > T));
    check_next(tokens + prompt, 5, generator, "again, after the context was full");
}

/* ---- draws ---- */

static void draw(int32_t *tokens, uint64_t seed, int vocab, struct generator *generator)
{
    CHECK_OK(generator_again(generator));
    for (int i = 0; i < COUNT; i++) CHECK_OK(generator_next(&tokens[i], vocab, &loose, &seed, generator));
}

static void check_draws(struct generator *generator)
{
    int32_t one[COUNT], two[COUNT];
    CHECK_OK(generator_begin((int32_t[]){1, 2, 3}, 3, generator));
    draw(one, 5, VOCAB, generator);
    draw(two, 6, VOCAB, generator);
    CHECK(memcmp(one, two, sizeof one) != 0);
    draw(two, 5, VOCAB, generator);
    CHECK(memcmp(one, two, sizeof one) == 0);
    draw(two, 5, 9, generator);
    for (int i = 0; i < COUNT; i++) CHECK(two[i] < 9); /* the rest of V is padding */
}

/* ---- weights in memory, from a file ---- */

static void check_resident(enum dtype dtype, struct weights *weights, struct model_host *host)
{
    struct resident *resident;
    struct generator *generator;
    int32_t tokens[3 + COUNT] = {4, 8, 15};
    if (!CHECK_OK(resident_load(&resident, weights, dtype, device))) return;
    for (size_t i = 0; i < host->params.elements; i++)
        if (dtype == DTYPE_BFLOAT16) host->weights[i] = bfloat16_to_float32(float32_to_bfloat16(host->weights[i]));
    expect(tokens, 3, COUNT, host);
    struct model_hooks hooks = resident_hooks(resident);
    CHECK(resident_dtype(resident) == dtype && resident_params(resident)->elements == host->params.elements);
    CHECK(device->account.now[MEMORY_WEIGHTS] - host->params.elements * dtype_bytes(dtype) <
          (size_t)(64 * host->params.unit_count));
    if (CHECK_OK(generator_open(&generator, resident_params(resident), &hooks, dtype, device))) {
        CHECK_OK(generator_begin(tokens, 3, generator));
        check_next(tokens + 3, COUNT, generator, dtype_name(dtype));
        generator_close(generator);
    }
    resident_close(resident);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) CHECK(device->account.now[tag] == 0);
}

static void check_file(struct model_host *host)
{
    char folder[] = "/tmp/ringzero_generate_XXXXXX", path[64];
    struct weights *weights;
    if (mkdtemp(folder) == NULL) abort();
    snprintf(path, sizeof path, "%s/model.bin", folder);
    CHECK_OK(weights_create(&weights, path, &weights_llmc, &host->params.config, DTYPE_FLOAT32));
    for (int p = 0; p < host->params.param_count; p++) {
        const struct param *param = &host->params.param[p];
        CHECK_OK(weights_write(host->weights + host->unit_begin[param->unit] + param->offset, param, weights));
    }
    CHECK_OK(weights_finish(weights));
    weights_close(weights);
    if (CHECK_OK(weights_open(&weights, path, &weights_llmc, 0))) {
        check_resident(DTYPE_FLOAT32, weights, host);
        check_resident(DTYPE_BFLOAT16, weights, host);
    }
    weights_close(weights);
    unlink(path);
    rmdir(folder);
}

static void check_model(const struct model_config *config)
{
    struct generator *generator;
    struct model_host host = model_host_make(config, 3);
    struct model_hooks hooks = model_host_hooks(&host);
    for (size_t i = 0; i < host.params.elements; i++) host.weights[i] *= 3.0f; /* so that attention looks at something */
    if (!CHECK_OK(generator_open(&generator, &host.params, &hooks, DTYPE_FLOAT32, device))) return;
    const int prompts[] = {1, T - 1, T, T + 1, 3 * T};
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) check_prompt(prompts[i], generator, &host);
    check_draws(generator);
    CHECK_STATUS(generator_begin(&(int32_t){VOCAB}, 1, generator), STATUS_DATA);
    generator_close(generator);
    if (config->architecture == ARCHITECTURE_GPT2) check_file(&host); /* llm.c's files have no other */
    model_host_free(&host);
}

int main(void)
{
    if (!CHECK_OK(device_open(&device, "host"))) return test_result();
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) check_model(&configs[i]);
    device_close(device);
    return test_result();
}
