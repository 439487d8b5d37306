/* The table of parameters, and starting values that depend on nothing but (seed, name, element).
 *
 * ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/params.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

/* Units follow each other, and within a unit tensors do, without a gap. */
static void check_layout(const struct params *params)
{
    int unit = -1;
    size_t end = 0, sum = 0;
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        if (param->unit != unit) {
            if (unit >= 0) CHECK(end == params->unit_elements[unit]);
            CHECK(param->unit > unit);
            while (++unit < param->unit) CHECK(params->unit_elements[unit] == 0);
            end = 0;
        }
        CHECK_MSG(param->offset == end, "%s begins at %zu, expected %zu", param->name, param->offset, end);
        end += param->rows * param->cols;
        sum += param->rows * param->cols;
        CHECK_MSG(param->decays == (param->cols > 1), "%s", param->name);
    }
    CHECK(unit == params->unit_count - 1 && end == params->unit_elements[unit]);
    CHECK(sum == params->elements);
}

static void check_units(
    const struct model_config *config, size_t elements, int units, const size_t *unit_elements)
{
    struct params params;
    if (!CHECK_OK(params_make(&params, config))) return;
    check_layout(&params);
    CHECK_MSG(params.elements == elements, "%zu parameters, expected %zu", params.elements, elements);
    CHECK_MSG(params.unit_count == units, "%d units, expected %d", params.unit_count, units);
    for (int u = 0; u < units && unit_elements != NULL; u++) CHECK(params.unit_elements[u] == unit_elements[u]);
    params_free(&params);
    params_free(&params);
}

static void test_tables(void)
{
    struct model_config nano, large,
        odd = {.layers = 2, .channels = 37, .heads = 1, .vocab = 101, .max_t = 13};
    CHECK_OK(model_preset(&nano, "nano"));
    CHECK_OK(model_preset(&large, "gpt2-124m"));
    check_units(&nano, 842496, 7, NULL);
    check_units(&odd, 38110, 5, (const size_t[]){3737, 481, 16909, 16909, 74});
    check_units(&large, 124439808, 6 + 1 + 12 + 1, NULL);
}

/* Every preset, by its number of parameters: what the published models are known to have. */
static void test_presets(void)
{
    const struct {
        const char *name;
        size_t elements;
        int units;
    } expected[] = {
        {"nano", 842496, 1 + 1 + 4 + 1},
        {"mini", 10844160, 1 + 1 + 6 + 1},
        {"gpt2-124m", 124439808, 6 + 1 + 12 + 1},
        {"gpt2-350m", 354823168, 5 + 1 + 24 + 1},
        {"gpt2-774m", 774030080, 4 + 1 + 36 + 1},
        {"gpt2-1558m", 1557611200, 3 + 1 + 48 + 1},
        {"llama-nano", 820352, 1 + 1 + 4 + 1},
        {"llama-mini", 9835392, 1 + 1 + 6 + 1},
        {"llama-1b", 1235814400, 5 + 1 + 16 + 1},
    };
    const size_t count = sizeof expected / sizeof *expected;
    for (size_t i = 0; i < count; i++) {
        struct model_config config;
        CHECK(model_preset_name(i) != NULL && strcmp(model_preset_name(i), expected[i].name) == 0);
        if (CHECK_OK(model_preset(&config, expected[i].name)))
            check_units(&config, expected[i].elements, expected[i].units, NULL);
    }
    CHECK(model_preset_name(count) == NULL);
}

static const struct param *find(const struct params *params, const char *name)
{
    for (int i = 0; i < params->param_count; i++)
        if (strcmp(params->param[i].name, name) == 0) return &params->param[i];
    CHECK_MSG(name == NULL, "no parameter is called %s", name);
    return &params->param[0];
}

static void test_entries(void)
{
    struct model_config config = {
        .max_t = 8, .vocab = 10, .layers = 3, .heads = 2, .channels = 4, .vocab_block = 4};
    struct params params;
    if (!CHECK_OK(params_make(&params, &config))) return;
    check_layout(&params);
    CHECK(params.embedding_units == 3 && params.positions_unit == 3);
    CHECK(params.first_block_unit == 4 && params.final_norm_unit == 7);
    CHECK(find(&params, "wte[0:4]")->first_row == 0);
    CHECK(find(&params, "wte[4:7]")->first_row == 4 && find(&params, "wte[4:7]")->rows == 3);
    CHECK(find(&params, "wte[7:10]")->unit == 2);
    const struct param *projection = find(&params, "h.2.fcprojw");
    CHECK(projection->rows == 4 && projection->cols == 16 && projection->layer == 2 && projection->unit == 6);
    CHECK(fabs((double)projection->std - 0.02 / sqrt(6.0)) < 1e-9);
    CHECK(find(&params, "h.0.fcw")->std == 0.02f && find(&params, "h.0.fcw")->rows == 16);
    CHECK(find(&params, "h.1.ln1w")->init == INIT_ONE && find(&params, "lnfb")->init == INIT_ZERO);
    params_free(&params);
}

/* Llama's tensors: no biases, no positions, keys and values of fewer heads, gates above values. */
static void test_llama(void)
{
    struct model_config config = {ARCHITECTURE_LLAMA, .max_t = 8, .vocab = 10, .layers = 2,
        .heads = 4, .channels = 8, .kv_heads = 2, .hidden = 20};
    struct params params;
    if (!CHECK_OK(params_make(&params, &config))) return;
    check_layout(&params);
    CHECK(params.param_count == 1 + 2 * 6 + 1);
    CHECK(params.unit_elements[params.positions_unit] == 0);
    CHECK(params.unit_elements[params.final_norm_unit] == 8);
    const size_t block = 8 + (8 + 2 * 4) * 8 + 8 * 8 + 8 + 2 * 20 * 8 + 8 * 20;
    CHECK(params.unit_elements[params.first_block_unit] == block);
    CHECK(model_block_elements(&config) == (double)block);
    CHECK(find(&params, "h.1.qkvw")->rows == 16 && find(&params, "h.1.fcw")->rows == 40);
    CHECK(find(&params, "h.0.fcprojw")->cols == 20 && find(&params, "lnfw")->init == INIT_ONE);
    params_free(&params);
}

static void test_errors(void)
{
    struct model_config config;
    CHECK_STATUS(model_preset(&config, "huge"), STATUS_INVALID);
    CHECK_MSG(strstr(status_text(), "huge") && strstr(status_text(), "nano, mini, gpt2-124m"), "%s", status_text());
    const struct model_config good = {
        .max_t = 8, .vocab = 10, .layers = 3, .heads = 2, .channels = 4};
    const struct {
        size_t field;
        int value;
        const char *says;
    } bad[] = {
        {offsetof(struct model_config, max_t), 0, "max_t"},
        {offsetof(struct model_config, vocab), -5, "vocab is -5"},
        {offsetof(struct model_config, layers), 0, "layers is 0"},
        {offsetof(struct model_config, heads), 3, "heads is 3"},
        {offsetof(struct model_config, channels), -4, "channels is -4"},
        {offsetof(struct model_config, vocab_block), -1, "vocab_block is -1"},
        {offsetof(struct model_config, kv_heads), -2, "kv_heads is -2"},
        {offsetof(struct model_config, kv_heads), 4, "heads is 2, kv_heads is 4"},
        {offsetof(struct model_config, hidden), -1, "hidden is -1"},
        {offsetof(struct model_config, rotary_base), -1, "rotary_base is -1"},
        {offsetof(struct model_config, architecture), 2, "architecture is 2"},
    };
    CHECK_OK(model_config_check(&good));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config = good;
        memcpy((char *)&config + bad[i].field, &bad[i].value, sizeof(int));
        struct params params;
        CHECK_STATUS(params_make(&params, &config), STATUS_INVALID);
        CHECK_MSG(strstr(status_text(), bad[i].says) != NULL, "\"%s\" lacks \"%s\"", status_text(), bad[i].says);
        CHECK(params.param == NULL);
    }
    config = good;
    config.architecture = ARCHITECTURE_LLAMA;
    CHECK_OK(model_config_check(&config));
    config.heads = 4;
    CHECK_STATUS(model_config_check(&config), STATUS_INVALID);
    CHECK_MSG(strstr(status_text(), "a head's 1 columns") != NULL, "%s", status_text());
}

/* Any range of any unit, and any cut of the vocabulary, gives the same bits; another seed does not. */
static void test_initial_bits(void)
{
    struct model_config config = {.max_t = 7, .vocab = 23, .layers = 2, .heads = 1, .channels = 5};
    struct model_host whole = model_host_make(&config, 42), other = model_host_make(&config, 43);
    config.vocab_block = 6;
    struct model_host cut = model_host_make(&config, 42);
    CHECK(whole.params.embedding_units == 1 && cut.params.embedding_units == 4);
    CHECK(memcmp(whole.weights, cut.weights, whole.params.elements * sizeof(float)) == 0);
    CHECK(memcmp(whole.weights, other.weights, whole.params.elements * sizeof(float)) != 0);
    float part[64];
    for (int u = 0; u < cut.params.unit_count; u++)
        for (size_t begin = 0; begin < cut.params.unit_elements[u]; begin += 13)
            for (size_t count = 0; count <= 31 && begin + count <= cut.params.unit_elements[u]; count += 31) {
                memset(part, 0xff, sizeof part);
                params_initialize(part, &cut.params, u, begin, count, 42);
                CHECK(memcmp(part, cut.weights + cut.unit_begin[u] + begin, count * sizeof *part) == 0);
                CHECK(isnan(part[count]));
            }
    model_host_free(&whole), model_host_free(&other), model_host_free(&cut);
}

/* Mean, deviation, and the share within one deviation of 131,072 values; and no two tensors alike. */
static void test_initial_distribution(void)
{
    struct model_config config = {
        .max_t = 512, .vocab = 1024, .layers = 1, .heads = 1, .channels = 128, .vocab_block = 1024};
    struct model_host host = model_host_make(&config, 7);
    size_t count = 1024 * 128, within = 0;
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < count; i++) {
        double x = (double)host.weights[i] / 0.02;
        sum += x;
        squares += x * x;
        within += fabs(x) < 1.0;
    }
    CHECK_MSG(fabs(sum / (double)count) < 0.012, "mean %g deviations", sum / (double)count);
    CHECK_MSG(fabs(squares / (double)count - 1.0) < 0.016, "variance %g", squares / (double)count);
    CHECK_MSG(fabs((double)within / (double)count - 0.6827) < 0.006, "%zu of %zu within one deviation", within,
        count);
    CHECK(memcmp(host.weights, host.weights + host.unit_begin[1], 1024) != 0);
    /* These bits are everybody's: checkpoints of different builds and machines must start alike. */
    CHECK_MSG(host.weights[0] == -0x1.19c922p-8f && host.weights[1] == 0x1.ef4b7p-6f,
        "the first two values are %a and %a", (double)host.weights[0], (double)host.weights[1]);
    model_host_free(&host);
}

int main(void)
{
    test_tables();
    test_presets();
    test_entries();
    test_llama();
    test_errors();
    test_initial_bits();
    test_initial_distribution();
    return test_result();
}
