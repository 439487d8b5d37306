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

const char *architecture_name(enum architecture architecture)
{
    return architecture == ARCHITECTURE_LLAMA ? "llama" : "gpt2";
}

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

static enum status check_heads(const struct gpt2_config *config)
{
    if (config->architecture != ARCHITECTURE_GPT2 && config->architecture != ARCHITECTURE_LLAMA)
        return FAIL(STATUS_INVALID, "model: architecture is %d; expected GPT-2's (%d) or Llama's (%d)",
            (int)config->architecture, ARCHITECTURE_GPT2, ARCHITECTURE_LLAMA);
    if (config->channels % config->heads != 0)
        return FAIL(STATUS_INVALID, "model: channels is %d, heads is %d; expected channels to be a multiple of heads",
            config->channels, config->heads);
    if (config->heads % gpt2_kv_heads(config) != 0)
        return FAIL(STATUS_INVALID, "model: heads is %d, kv_heads is %d; expected heads to be a multiple of kv_heads",
            config->heads, config->kv_heads);
    if (config->architecture == ARCHITECTURE_LLAMA && config->channels / config->heads % 2 != 0)
        return FAIL(STATUS_INVALID,
            "model: channels is %d, heads is %d; rotary positions turn pairs of a head's %d columns: expected an even "
            "number of them",
            config->channels, config->heads, config->channels / config->heads);
    return STATUS_OK;
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
    const struct {
        const char *name;
        int value;
        const char *meaning;
    } optional[] = {{"vocab_block", config->vocab_block, "rows of an embedding unit, or 0 to leave it"},
        {"kv_heads", config->kv_heads, "heads of keys and values, or 0 for as many as heads"},
        {"hidden", config->hidden, "columns, or 0 for 4 times the channels"},
        {"rotary_base", config->rotary_base, "at least 1, or 0 for 10000"}};
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        if (optional[i].value < 0)
            return FAIL(STATUS_INVALID, "model: %s is %d; expected %s", optional[i].name,
                optional[i].value, optional[i].meaning);
    return check_heads(config);
}

/* What the rows and columns of a block's tensors count. */
enum extent { ONE, CHANNELS, QKV, HIDDEN, GATED, EXTENT_COUNT };

static size_t extent_of(enum extent extent, const struct gpt2_config *config)
{
    size_t channels = (size_t)config->channels, hidden = (size_t)gpt2_hidden(config);
    size_t kv_cols = channels / (size_t)config->heads * (size_t)gpt2_kv_heads(config);
    const size_t extents[EXTENT_COUNT] = {1, channels, channels + 2 * kv_cols, hidden, 2 * hidden};
    return extents[extent];
}

/* The tensors of a block in order; cols ONE marks a vector. */
struct block_tensor {
    const char *name;
    enum extent rows, cols;
    enum param_init init;
    bool residual; /* its output is added to the residual stream: starts smaller by √(2L) */
};
#define MOST_BLOCK_TENSORS 12
static const struct block_tensor gpt2_block[] = {
    {"ln1w", CHANNELS, ONE, INIT_ONE, false},
    {"ln1b", CHANNELS, ONE, INIT_ZERO, false},
    {"qkvw", QKV, CHANNELS, INIT_NORMAL, false},
    {"qkvb", QKV, ONE, INIT_ZERO, false},
    {"attprojw", CHANNELS, CHANNELS, INIT_NORMAL, true},
    {"attprojb", CHANNELS, ONE, INIT_ZERO, false},
    {"ln2w", CHANNELS, ONE, INIT_ONE, false},
    {"ln2b", CHANNELS, ONE, INIT_ZERO, false},
    {"fcw", HIDDEN, CHANNELS, INIT_NORMAL, false},
    {"fcb", HIDDEN, ONE, INIT_ZERO, false},
    {"fcprojw", CHANNELS, HIDDEN, INIT_NORMAL, true},
    {"fcprojb", CHANNELS, ONE, INIT_ZERO, false},
};
static const struct block_tensor llama_block[] = {
    {"ln1w", CHANNELS, ONE, INIT_ONE, false},
    {"qkvw", QKV, CHANNELS, INIT_NORMAL, false},
    {"attprojw", CHANNELS, CHANNELS, INIT_NORMAL, true},
    {"ln2w", CHANNELS, ONE, INIT_ONE, false},
    {"fcw", GATED, CHANNELS, INIT_NORMAL, false},
    {"fcprojw", CHANNELS, HIDDEN, INIT_NORMAL, true},
};
_Static_assert(sizeof gpt2_block / sizeof *gpt2_block <= MOST_BLOCK_TENSORS, "room in the table");

static bool is_llama(const struct gpt2_config *config)
{
    return config->architecture == ARCHITECTURE_LLAMA;
}

/* The tensors of a block of this model. */
static const struct block_tensor *block_of(int *count, const struct gpt2_config *config)
{
    size_t count_of_gpt2 = sizeof gpt2_block / sizeof *gpt2_block,
           count_of_llama = sizeof llama_block / sizeof *llama_block;
    *count = (int)(is_llama(config) ? count_of_llama : count_of_gpt2);
    return is_llama(config) ? llama_block : gpt2_block;
}

double gpt2_block_elements(const struct gpt2_config *config)
{
    int count;
    const struct block_tensor *tensor = block_of(&count, config);
    double sum = 0.0;
    for (int i = 0; i < count; i++)
        sum += (double)extent_of(tensor[i].rows, config) * (double)extent_of(tensor[i].cols, config);
    return sum;
}

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
    const struct gpt2_config *config = &params->config;
    int count;
    const struct block_tensor *tensor = block_of(&count, config);
    for (int i = 0; i < count; i++) {
        struct param *param = add_param(params, params->first_block_unit + layer,
            extent_of(tensor[i].rows, config), extent_of(tensor[i].cols, config), tensor[i].init);
        param->layer = layer;
        if (tensor[i].residual) param->std = (float)(0.02 / sqrt(2.0 * config->layers));
        snprintf(param->name, sizeof param->name, "h.%d.%s", layer, tensor[i].name);
    }
}

/* A tensor of a unit that has no number. */
static void add_named(struct params *params, const char *name, int unit, size_t rows, size_t cols,
    enum param_init init)
{
    struct param *param = add_param(params, unit, rows, cols, init);
    snprintf(param->name, sizeof param->name, "%s", name);
}

/* So many that a unit of them is at most as large as a block. */
static int embedding_units(const struct gpt2_config *config)
{
    double most = config->vocab_block;
    if (config->vocab_block == 0) most = floor(gpt2_block_elements(config) / config->channels);
    return (int)ceil(config->vocab / most);
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
    size_t params_most = (size_t)params->embedding_units + 3 + (size_t)config->layers * MOST_BLOCK_TENSORS;
    params->unit_elements = calloc((size_t)params->unit_count, sizeof *params->unit_elements);
    params->param = calloc(params_most, sizeof *params->param);
    if (params->unit_elements == NULL || params->param == NULL) {
        params_free(params);
        return FAIL(STATUS_SYSTEM, "no memory for a table of %zu parameter tensors", params_most);
    }
    add_embedding(params);
    size_t channels = (size_t)config->channels;
    bool llama = is_llama(config);
    if (!llama)
        add_named(params, "wpe", params->positions_unit, (size_t)config->max_t, channels, INIT_NORMAL);
    for (int layer = 0; layer < config->layers; layer++) add_block(params, layer);
    add_named(params, "lnfw", params->final_norm_unit, channels, 1, INIT_ONE);
    if (!llama) add_named(params, "lnfb", params->final_norm_unit, channels, 1, INIT_ZERO);
    assert((size_t)params->param_count <= params_most);
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
