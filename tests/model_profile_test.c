/* A profile of a model: FLOPs of the products are model_flops_per_token(), calls are those of the
 * uses of units, parts that share tensors add up to the whole, and the bits are those of a model that
 * nobody looks at.
 * ctest: timeout=60
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/uses.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

enum { BATCH = 2, T = 5, LAYERS = 3, VOCAB = 12, ROWS = BATCH * T, USES = 64 };
static const struct model_config configs[] = {
    {.max_t = 6, .vocab = VOCAB, .layers = LAYERS, .heads = 4, .channels = 16, .vocab_block = 4},
    {ARCHITECTURE_LLAMA, .max_t = 6, .vocab = VOCAB, .layers = LAYERS, .heads = 4, .channels = 16,
        .vocab_block = 4, .kv_heads = 4, .hidden = 24},
};

static int32_t tokens[ROWS], targets[ROWS];

/* One forward and its backward. The caller closes the profile, where it asks for one. */
static double run(struct profile **profile, bool recompute, struct model_host *host,
    const struct model_hooks *hooks)
{
    struct model_run how = model_host_run(BATCH, T);
    struct device *device;
    struct model *model;
    double loss = 0.0;
    size_t valid;
    how.recompute = recompute;
    CHECK_OK(device_open(&device, "host"));
    if (profile != NULL) {
        CHECK_OK(profile_open(profile, device));
        CHECK_OK(profile_start(NULL, *profile));
        CHECK_OK(profile_keep(1000, *profile));
        how.profile = *profile;
    }
    CHECK_OK(model_open(&model, &host->params, hooks, &how, device));
    CHECK_OK(model_forward(&loss, &valid, tokens, targets, BATCH, T, model));
    CHECK_OK(model_backward(0.1f, model));
    model_close(model);
    device_close(device);
    return loss;
}

static double sum_flops(const struct profile *profile)
{
    int count;
    double flops = 0.0;
    const struct profile_row *rows = profile_rows(&count, profile);
    for (int i = 0; i < count; i++) flops += rows[i].flops;
    return flops;
}

static uint64_t calls(const char *name, const struct profile *profile)
{
    int count;
    const struct profile_row *rows = profile_rows(&count, profile);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].calls;
    return 0;
}

/* Elements that no matrix product has: norms, biases, positions. */
static double other_elements(const struct params *params)
{
    double count = 0.0;
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        bool product = param->decays && param->unit != params->positions_unit;
        if (!product) count += (double)(param->whole_rows * param->whole_cols);
    }
    return count;
}

/* The uses of units, in their order, are the groups that were kept. */
static void check_groups(const struct params *params, const struct profile *profile)
{
    struct model_use uses[USES];
    int use_count = model_uses(uses, params, true), next = 0;
    size_t count;
    uint64_t dropped;
    const struct profile_span *spans = profile_spans(&count, &dropped, profile);
    CHECK(dropped == 0 && use_count <= USES);
    for (size_t i = 0; i < count && next < use_count; i++) {
        const char *name = spans[i].name;
        bool forward = strstr(name, " forward") != NULL;
        bool group = strncmp(name, "block ", 6) == 0 || strncmp(name, "rows ", 5) == 0 ||
                     strncmp(name, "positions ", 10) == 0 || strncmp(name, "final norm ", 11) == 0;
        int unit = uses[next].unit, block = unit - params->first_block_unit;
        char expected[PROFILE_NAME_BYTES] = "";
        if (spans[i].depth > 0 || !group) continue; /* an operation, perhaps of the positions */
        if (block >= 0 && block < LAYERS) snprintf(expected, sizeof expected, "block %d", block);
        else if (unit < params->embedding_units)
            snprintf(expected, sizeof expected, "rows %d", unit);
        CHECK_MSG(strncmp(name, expected, strlen(expected)) == 0, "use %d: %s, expected %s", next,
            name, expected);
        CHECK(forward == (uses[next].use == UNIT_FORWARD));
        next++;
    }
    CHECK_MSG(next == use_count, "%d of %d uses", next, use_count);
}

static void check_calls(bool recompute, const struct model_config *config,
    const struct params *params, const struct profile *profile)
{
    bool llama = config->architecture == ARCHITECTURE_LLAMA;
    uint64_t forwards = recompute ? 2 * LAYERS : LAYERS, units = (uint64_t)params->embedding_units;
    CHECK(calls("qkv forward", profile) == forwards);
    CHECK(calls("attproj forward", profile) == forwards);
    CHECK(calls("fc forward", profile) == forwards);
    CHECK(calls("fcproj forward", profile) == LAYERS); /* the last product is not needed again */
    CHECK(calls("attention forward", profile) == forwards);
    CHECK(calls("attention backward", profile) == LAYERS);
    static const char *const layers[] = {"qkv", "attproj", "fc", "fcproj"};
    for (int i = 0; i < 4; i++) {
        char name[PROFILE_NAME_BYTES];
        snprintf(name, sizeof name, "%s backward data", layers[i]);
        CHECK(calls(name, profile) == LAYERS);
        snprintf(name, sizeof name, "%s backward weights", layers[i]);
        CHECK(calls(name, profile) == LAYERS);
    }
    CHECK(calls("other linear", profile) == 0);
    CHECK(calls("norm forward", profile) == 2 * forwards + 1);
    CHECK(calls("norm backward", profile) == 2 * LAYERS + 1);
    CHECK(calls("head forward", profile) == units && calls("head backward", profile) == units);
    CHECK(calls("cross-entropy", profile) == 1);
    CHECK(calls("embedding forward", profile) == units);
    CHECK(calls("positions forward", profile) == !llama);
    CHECK(calls("rotary forward", profile) == (llama ? forwards : 0));
    CHECK(calls("swiglu backward", profile) == (llama ? LAYERS : 0));
}

static double bytes(const char *name, const struct profile *profile)
{
    int count;
    const struct profile_row *rows = profile_rows(&count, profile);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].bytes;
    return 0;
}

/* Of some operations of GPT-2: each tensor once, in float32. */
static void check_bytes(const struct profile *profile)
{
    double c = 16, x = ROWS * c, qkv = 3 * c;
    CHECK(bytes("qkv forward", profile) == LAYERS * 4 * (x + qkv * c + qkv + ROWS * qkv));
    CHECK(bytes("qkv backward data", profile) == LAYERS * 4 * (x + qkv * c + ROWS * qkv));
    CHECK(bytes("qkv backward weights", profile) ==
          LAYERS * 4 * (x + ROWS * qkv + 2 * (qkv * c + qkv)));
    CHECK(bytes("bias and residual", profile) == 2 * LAYERS * 4 * 3 * x);
    CHECK(bytes("norm forward", profile) == (2 * LAYERS + 1) * 4 * (2 * x + 2 * c + 2 * ROWS));
    CHECK(bytes("embedding forward", profile) == 4 * 2 * x);
    CHECK(bytes("attention forward", profile) == LAYERS * 4 * (ROWS * qkv + x + ROWS * 4));
}

static void check_whole(const struct model_config *config)
{
    for (int recompute = 0; recompute < 2; recompute++) {
        struct model_host host = model_host_make(config, 7), bare = model_host_make(config, 7);
        struct model_hooks hooks = model_host_hooks(&host), bare_hooks = model_host_hooks(&bare);
        struct profile *profile = NULL;
        double loss = run(&profile, recompute, &host, &hooks);
        double bare_loss = run(NULL, recompute, &bare, &bare_hooks);
        CHECK(memcmp(&loss, &bare_loss, sizeof loss) == 0);
        CHECK(memcmp(host.gradients, bare.gradients,
                  host.params.elements * sizeof *host.gradients) == 0);
        check_calls(recompute, config, &host.params, profile);
        check_groups(&host.params, profile);
        if (!recompute && config->architecture == ARCHITECTURE_GPT2) check_bytes(profile);
        double expected =
            ROWS * (model_flops_per_token(&host.params, T) - 6.0 * other_elements(&host.params));
        double c = config->channels, hidden = (double)model_hidden(config);
        double fc = config->architecture == ARCHITECTURE_LLAMA ? 2.0 * hidden : hidden;
        double again = 2.0 * ROWS * (3.0 * c * c + c * c + c * fc) + 4.0 * ROWS * T * c;
        if (recompute) expected += LAYERS * again;
        CHECK_MSG(sum_flops(profile) == expected, "%.0f FLOPs, expected %.0f", sum_flops(profile),
            expected);
        profile_close(profile);
        model_host_free(&host);
        model_host_free(&bare);
    }
}

/* A part of every tensor: its numbers are nonsense, since nobody sums, but it computes its share. */
struct part {
    struct params params;
    float *weights, *gradients; /* of the largest unit */
};

static enum status enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    const struct part *part = context;
    size_t bytes = part->params.unit_elements[unit] * sizeof(float);
    if (use != UNIT_BACKWARD_GRAD) view->weights = span_host(part->weights, bytes);
    if (use != UNIT_FORWARD) view->gradients = span_host(part->gradients, bytes);
    return STATUS_OK;
}

static enum status stay(void *context, struct span x, size_t count)
{
    (void)context, (void)x, (void)count;
    return STATUS_OK;
}

static void check_parts(const struct model_config *config, int tensor_count)
{
    double flops = 0.0, expected = 0.0;
    for (int r = 0; r < tensor_count; r++) {
        const struct params_part which = {r, tensor_count, 0, 1};
        struct model_host host = {0};
        struct part part = {0};
        struct profile *profile = NULL;
        CHECK_OK(params_make_part(&part.params, config, &which));
        host.params = part.params;
        part.weights = calloc(part.params.whole_elements, sizeof *part.weights);
        part.gradients = calloc(part.params.whole_elements, sizeof *part.gradients);
        if (part.weights == NULL || part.gradients == NULL) abort();
        const struct model_hooks hooks = {
            .context = &part, .enter = enter, .sum = stay, .max = stay};
        run(&profile, false, &host, &hooks);
        flops += sum_flops(profile);
        expected =
            ROWS * (model_flops_per_token(&part.params, T) - 6.0 * other_elements(&part.params));
        CHECK(calls("other linear", profile) == 0);
        profile_close(profile);
        params_free(&part.params);
        free(part.weights);
        free(part.gradients);
    }
    CHECK_MSG(
        flops == expected, "%d parts: %.0f FLOPs, expected %.0f", tensor_count, flops, expected);
}

int main(void)
{
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = i * 5 % VOCAB;
        targets[i] = (i * 7 + 3) % VOCAB;
    }
    for (size_t c = 0; c < sizeof configs / sizeof *configs; c++) {
        check_whole(&configs[c]);
        for (int m = 1; m <= 4; m *= 2) check_parts(&configs[c], m);
    }
    return test_result();
}
