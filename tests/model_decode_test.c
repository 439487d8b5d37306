/* Reading token by token: the logits are those of a forward of the whole text, whatever the pieces in which it is read, for both
 * architectures; and after going back. What is held does not depend on how it is read.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/decode.h"
#include "model/model.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

#define T     150
#define VOCAB 37

static const struct model_config configs[] = {
    {.max_t = T, .vocab = VOCAB, .layers = 2, .heads = 3, .channels = 24, .vocab_block = 10},
    {.architecture = ARCHITECTURE_LLAMA,
        .max_t = T,
        .vocab = VOCAB,
        .layers = 2,
        .heads = 6,
        .kv_heads = 2,
        .channels = 48,
        .hidden = 40},
};

static int32_t tokens[T];
static float expected[T][VOCAB];
static struct device *device;

static void compute_expected(struct model_host *host)
{
    struct model *model;
    struct model_hooks hooks = model_host_hooks(host);
    struct model_run run = model_host_run(1, T);
    double loss;
    size_t counted;
    if (!CHECK_OK(model_open(&model, &host->params, &hooks, &run, device))) exit(test_result());
    CHECK_OK(model_forward(&loss, &counted, tokens, NULL, 1, T, model));
    for (int t = 0; t < T; t++) CHECK_OK(model_logits(expected[t], 0, t, model));
    model_close(model);
}

static void check_logits(const float *logits, int t, const char *how)
{
    double worst = 0.0, largest = 0.0;
    for (int v = 0; v < VOCAB; v++) {
        worst = fmax(worst, fabs((double)logits[v] - (double)expected[t][v]));
        largest = fmax(largest, fabs((double)expected[t][v]));
    }
    CHECK_MSG(worst <= 1e-5 * largest, "%s, position %d: off by %g of %g", how, t, worst, largest);
}

/* Pieces of these sizes, again and again. */
static void check_pieces(const int *sizes, int count, struct model_host *host)
{
    struct decoder *decoder;
    struct model_hooks hooks = model_host_hooks(host);
    float logits[VOCAB];
    char how[32];
    if (!CHECK_OK(decoder_open(&decoder, &host->params, &hooks, DTYPE_FLOAT32, T, device))) return;
    snprintf(how, sizeof how, "pieces of %d, …", sizes[0]);
    for (int at = 0, i = 0; at < T; i++) {
        int now = sizes[i % count] < T - at ? sizes[i % count] : T - at;
        CHECK_OK(decoder_read(logits, tokens + at, now, decoder));
        at += now;
        CHECK(decoder_position(decoder) == at);
        check_logits(logits, at - 1, how);
    }
    CHECK_STATUS(decoder_read(logits, tokens, 1, decoder), STATUS_INVALID);
    CHECK_TEXT("1 tokens after 150, expected at most 150 in all");
    decoder_rewind(40, decoder);
    CHECK_OK(decoder_read(logits, tokens + 40, 71, decoder));
    check_logits(logits, 110, "after going back");
    decoder_rewind(0, decoder);
    CHECK_STATUS(decoder_read(logits, &(int32_t){VOCAB}, 1, decoder), STATUS_DATA);
    decoder_close(decoder);
}

static void check_model(const struct model_config *config)
{
    struct model_host host = model_host_make(config, 3);
    for (size_t i = 0; i < host.params.elements; i++) host.weights[i] *= 3.0f; /* so that attention looks at something */
    for (int t = 0; t < T; t++) tokens[t] = (int32_t)((t * 17 + t * t / 3) % VOCAB);
    compute_expected(&host);
    check_pieces((int[]){1}, 1, &host);
    check_pieces((int[]){7, 1, 64, 1}, 4, &host);
    check_pieces((int[]){150}, 1, &host);
    check_pieces((int[]){65}, 1, &host);
    struct decoder *decoder;
    struct model_hooks hooks = model_host_hooks(&host);
    CHECK_STATUS(decoder_open(&decoder, &host.params, &hooks, DTYPE_FLOAT32, T + 1, device), STATUS_INVALID);
    CHECK_TEXT("151 tokens to read, expected 1 to 150");
    model_host_free(&host);
}

int main(void)
{
    if (!CHECK_OK(device_open(&device, "host"))) return test_result();
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) check_model(&configs[i]);
    device_close(device);
    return test_result();
}
