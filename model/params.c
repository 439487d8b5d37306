/* params: the table of parameters, and their starting values.
 *
 * Invariant: what a starting value is depends on (seed, canonical name, element) alone. The canonical name of
 * a block of wte is "wte", its elements counted from the table's first row, so that the bits do not depend on
 * how rows are cut into units either. No library function takes part in a value: libm may round log and cos
 * differently from machine to machine.
 *
 *   element 2i   ← r·cos(θ)      r = √(−2 ln u₁)   u₁, u₂ from words 2i + 1, 2i + 2 of a counter-based generator
 *   element 2i+1 ← r·sin(θ)      θ = 2π u₂         keyed by (seed, name)
 */
#include "model/params.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    struct gpt2_config config;
} presets[] = {
    {"nano", {.max_t = 128, .vocab = 256, .layers = 4, .heads = 4, .channels = 128}},
    {"mini", {.max_t = 256, .vocab = 256, .layers = 6, .heads = 8, .channels = 384}},
    {"gpt2-124m", {.max_t = 1024, .vocab = 50257, .layers = 12, .heads = 12, .channels = 768}},
    {"gpt2-350m", {.max_t = 1024, .vocab = 50257, .layers = 24, .heads = 16, .channels = 1024}},
    {"gpt2-774m", {.max_t = 1024, .vocab = 50257, .layers = 36, .heads = 20, .channels = 1280}},
    {"gpt2-1558m", {.max_t = 1024, .vocab = 50257, .layers = 48, .heads = 25, .channels = 1600}},
};
#define PRESET_COUNT (sizeof presets / sizeof *presets)

const char *gpt2_preset_name(size_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

enum status gpt2_preset(struct gpt2_config *config, const char *name)
{
    char names[128] = "";
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *config = presets[i].config;
            return STATUS_OK;
        }
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ", presets[i].name);
    }
    return FAIL(STATUS_INVALID, "model is \"%s\"; expected one of: %s", name, names);
}

enum status gpt2_config_check(const struct gpt2_config *config)
{
    const struct {
        const char *name;
        int value;
    } fields[] = {{"max_t (positions)", config->max_t}, {"vocab", config->vocab}, {"layers", config->layers},
        {"heads", config->heads}, {"channels", config->channels}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value <= 0)
            return FAIL(STATUS_INVALID, "model: %s is %d; expected at least 1", fields[i].name, fields[i].value);
    if (config->channels % config->heads != 0)
        return FAIL(STATUS_INVALID, "model: channels is %d, heads is %d; expected channels to be a multiple of heads",
            config->channels, config->heads);
    if (config->vocab_block < 0)
        return FAIL(STATUS_INVALID, "model: vocab_block is %d; expected rows of an embedding unit, or 0 to leave it",
            config->vocab_block);
    return STATUS_OK;
}

/* The tensors of a block in order. rows and cols count channels, except that cols 0 marks a vector. */
static const struct {
    const char *name;
    int rows, cols;
    enum param_init init;
    bool residual; /* its output is added to the residual stream: starts smaller by √(2L) */
} block_tensors[] = {
    {"ln1w", 1, 0, INIT_ONE, false},
    {"ln1b", 1, 0, INIT_ZERO, false},
    {"qkvw", 3, 1, INIT_NORMAL, false},
    {"qkvb", 3, 0, INIT_ZERO, false},
    {"attprojw", 1, 1, INIT_NORMAL, true},
    {"attprojb", 1, 0, INIT_ZERO, false},
    {"ln2w", 1, 0, INIT_ONE, false},
    {"ln2b", 1, 0, INIT_ZERO, false},
    {"fcw", 4, 1, INIT_NORMAL, false},
    {"fcb", 4, 0, INIT_ZERO, false},
    {"fcprojw", 1, 4, INIT_NORMAL, true},
    {"fcprojb", 1, 0, INIT_ZERO, false},
};
#define BLOCK_TENSOR_COUNT ((int)(sizeof block_tensors / sizeof *block_tensors))

/* Appends a tensor to the end of its unit. cols 1: a vector. */
static struct param *add_param(struct params *params, int unit, size_t rows, size_t cols, enum param_init init)
{
    struct param *param = &params->param[params->param_count++];
    *param = (struct param){.unit = unit, .offset = params->unit_elements[unit], .rows = rows, .cols = cols,
        .init = init,
        .std = init == INIT_NORMAL ? 0.02f : 0.0f, .decays = init == INIT_NORMAL, .layer = -1};
    params->unit_elements[unit] += rows * cols;
    params->elements += rows * cols;
    return param;
}

static void add_embedding(struct params *params)
{
    size_t vocab = (size_t)params->config.vocab, units = (size_t)params->embedding_units, first = 0;
    for (size_t u = 0; u < units; u++) {
        size_t rows = vocab / units + (u < vocab % units ? 1 : 0);
        struct param *param = add_param(params, (int)u, rows, (size_t)params->config.channels, INIT_NORMAL);
        param->first_row = first;
        if (units == 1)
            snprintf(param->name, sizeof param->name, "wte");
        else
            snprintf(param->name, sizeof param->name, "wte[%d:%d]", (int)first, (int)(first + rows));
        first += rows;
    }
}

static void add_block(struct params *params, int layer)
{
    size_t channels = (size_t)params->config.channels;
    for (int i = 0; i < BLOCK_TENSOR_COUNT; i++) {
        size_t cols = block_tensors[i].cols == 0 ? 1 : (size_t)block_tensors[i].cols * channels;
        struct param *param = add_param(params, params->first_block_unit + layer,
            (size_t)block_tensors[i].rows * channels, cols, block_tensors[i].init);
        param->layer = layer;
        if (block_tensors[i].residual) param->std = (float)(0.02 / sqrt(2.0 * params->config.layers));
        snprintf(param->name, sizeof param->name, "h.%d.%s", layer, block_tensors[i].name);
    }
}

static int embedding_units(const struct gpt2_config *config)
{
    int most = config->vocab_block;
    if (most == 0) most = 12 * config->channels + 13; /* rows of C that fill a block's 12C² + 13C */
    return (int)(((int64_t)config->vocab + most - 1) / most);
}

enum status params_make(struct params *params, const struct gpt2_config *config)
{
    *params = (struct params){0};
    TRY(gpt2_config_check(config));
    params->config = *config;
    params->embedding_units = embedding_units(config);
    params->positions_unit = params->embedding_units;
    params->first_block_unit = params->positions_unit + 1;
    params->final_norm_unit = params->first_block_unit + config->layers;
    params->unit_count = params->final_norm_unit + 1;
    size_t params_most = (size_t)params->embedding_units + 3 + (size_t)config->layers * (size_t)BLOCK_TENSOR_COUNT;
    params->unit_elements = calloc((size_t)params->unit_count, sizeof *params->unit_elements);
    params->param = calloc(params_most, sizeof *params->param);
    if (params->unit_elements == NULL || params->param == NULL) {
        params_free(params);
        return FAIL(STATUS_SYSTEM, "no memory for a table of %zu parameter tensors", params_most);
    }
    add_embedding(params);
    size_t channels = (size_t)config->channels;
    struct param *param = add_param(params, params->positions_unit, (size_t)config->max_t, channels, INIT_NORMAL);
    snprintf(param->name, sizeof param->name, "wpe");
    for (int layer = 0; layer < config->layers; layer++) add_block(params, layer);
    param = add_param(params, params->final_norm_unit, channels, 1, INIT_ONE);
    snprintf(param->name, sizeof param->name, "lnfw");
    param = add_param(params, params->final_norm_unit, channels, 1, INIT_ZERO);
    snprintf(param->name, sizeof param->name, "lnfb");
    assert((size_t)params->param_count == params_most);
    return STATUS_OK;
}

void params_free(struct params *params)
{
    free(params->unit_elements);
    free(params->param);
    *params = (struct params){0};
}

/* The output function of splitmix64: every bit of the result depends on every bit of x.
 * source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators". */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Word `counter` of the stream of `key`, as a number in (0, 1]. */
static double uniform(uint64_t key, uint64_t counter)
{
    uint64_t word = mix(key + counter * 0x9e3779b97f4a7c15u);
    return ((double)(word >> 11) + 1.0) * 0x1p-53;
}

/* Horner's rule: Σ coefficient[i]·xⁱ. */
static inline double polynomial(const double *coefficient, int count, double x)
{
    double sum = 0.0;
    for (int i = count - 1; i >= 0; i--) sum = sum * x + coefficient[i];
    return sum;
}

/* ln u for u in (0, 1]: u = m·2ᵉ with m near 1, ln m = 2·atanh((m − 1)/(m + 1)). Within 1e-15 of ln u, relatively. */
static double natural_log(double u)
{
    static const double atanh_series[11] = {
        1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    int exponent;
    double m = frexp(u, &exponent); /* exact; m in [½, 1) */
    if (m < 0.70710678118654752) {
        m *= 2.0;
        exponent--;
    }
    double s = (m - 1.0) / (m + 1.0);
    return 2.0 * s * polynomial(atanh_series, 11, s * s) + exponent * 0.69314718055994531;
}

/* cos and sin of 2πu, u in (0, 1]: the nearest quarter turn, and Taylor's series within an eighth of it. */
static void turn(double *cosine, double *sine, double u)
{
    static const double cos_series[9] = {1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    static const double sin_series[9] = {1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
        1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    int quarter = (int)(4.0 * u + 0.5);
    double angle = (4.0 * u - quarter) * 1.57079632679489662, square = angle * angle;
    double c = polynomial(cos_series, 9, square), s = angle * polynomial(sin_series, 9, square);
    const double cosines[4] = {c, -s, -c, s}, sines[4] = {s, c, -s, -c};
    *cosine = cosines[quarter % 4];
    *sine = sines[quarter % 4];
}

static void fill_normal(float *values, uint64_t key, uint64_t begin, size_t count, float std)
{
    for (uint64_t pair = begin / 2; 2 * pair < begin + count; pair++) {
        double radius = sqrt(-2.0 * natural_log(uniform(key, 2 * pair + 1))), normal[2];
        turn(&normal[0], &normal[1], uniform(key, 2 * pair + 2));
        for (uint64_t half = 0; half < 2; half++) {
            uint64_t element = 2 * pair + half;
            if (element >= begin && element < begin + count)
                values[element - begin] = (float)(radius * normal[half] * (double)std);
        }
    }
}

/* FNV-1a of the canonical name: up to a '[', which only blocks of wte have. */
static uint64_t name_hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0' && *name != '['; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return hash;
}

static void initialize_part(float *values, const struct param *param, size_t begin, size_t count, uint64_t seed)
{
    if (param->init == INIT_NORMAL) {
        uint64_t key = mix(mix(seed + 0x9e3779b97f4a7c15u) ^ name_hash(param->name));
        fill_normal(values, key, (uint64_t)param->first_row * param->cols + begin, count, param->std);
        return;
    }
    float value = param->init == INIT_ONE ? 1.0f : 0.0f;
    for (size_t i = 0; i < count; i++) values[i] = value;
}

void params_initialize(float *values, const struct params *params, int unit, size_t begin, size_t count,
    uint64_t seed)
{
    assert(unit >= 0 && unit < params->unit_count && begin + count <= params->unit_elements[unit]);
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        size_t first = param->offset, last = param->offset + param->rows * param->cols;
        if (param->unit != unit || first >= begin + count || last <= begin) continue;
        if (first < begin) first = begin;
        if (last > begin + count) last = begin + count;
        initialize_part(values + (first - begin), param, first - param->offset, last - first, seed);
    }
}
