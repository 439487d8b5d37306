/* params: the table of parameters, of a whole model or of a part of it.
 *
 * Invariant: parts that hold the same element of the model agree on its place there: what is held follows from
 * (config, part) alone, tensor by tensor.
 */
#include "model/params.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    struct model_config config;
} presets[] = {
    {"nano", {.max_t = 128, .vocab = 256, .layers = 4, .heads = 4, .channels = 128}},
    {"mini", {.max_t = 256, .vocab = 256, .layers = 6, .heads = 8, .channels = 384}},
    {"gpt2-124m", {.max_t = 1024, .vocab = 50257, .layers = 12, .heads = 12, .channels = 768}},
    {"gpt2-350m", {.max_t = 1024, .vocab = 50257, .layers = 24, .heads = 16, .channels = 1024}},
    {"gpt2-774m", {.max_t = 1024, .vocab = 50257, .layers = 36, .heads = 20, .channels = 1280}},
    {"gpt2-1558m", {.max_t = 1024, .vocab = 50257, .layers = 48, .heads = 25, .channels = 1600}},
    {"llama-nano",
        {ARCHITECTURE_LLAMA, .max_t = 128, .vocab = 256, .layers = 4, .heads = 8, .channels = 128,
            .kv_heads = 4, .hidden = 384}},
    {"llama-mini",
        {ARCHITECTURE_LLAMA, .max_t = 256, .vocab = 256, .layers = 6, .heads = 8, .channels = 384,
            .kv_heads = 4, .hidden = 1024}},
    {"llama-1b",
        {ARCHITECTURE_LLAMA, .max_t = 8192, .vocab = 128256, .layers = 16, .heads = 32,
            .channels = 2048, .kv_heads = 8, .hidden = 8192, .rotary_base = 500000}},
};
#define PRESET_COUNT (sizeof presets / sizeof *presets)

const char *architecture_name(enum architecture architecture)
{
    return architecture == ARCHITECTURE_LLAMA ? "llama" : "gpt2";
}

const char *model_preset_name(size_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

enum status model_preset(struct model_config *config, const char *name)
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

void model_shape(char text[MODEL_SHAPE_BYTES], const struct model_config *config)
{
    char kv[16] = "", hidden[16] = "";
    if (model_kv_heads(config) != config->heads) snprintf(kv, sizeof kv, " KV%d", config->kv_heads);
    if (model_hidden(config) != 4 * (int64_t)config->channels)
        snprintf(hidden, sizeof hidden, " H%d", config->hidden);
    snprintf(text, MODEL_SHAPE_BYTES, "L%d NH%d%s C%d%s V%d, T up to %d", config->layers,
        config->heads, kv, config->channels, hidden, config->vocab, config->max_t);
}

static enum status check_heads(const struct model_config *config)
{
    if (config->architecture != ARCHITECTURE_GPT2 && config->architecture != ARCHITECTURE_LLAMA)
        return FAIL(STATUS_INVALID, "model: architecture is %d; expected GPT-2's (%d) or Llama's (%d)",
            (int)config->architecture, ARCHITECTURE_GPT2, ARCHITECTURE_LLAMA);
    if (config->channels % config->heads != 0)
        return FAIL(STATUS_INVALID, "model: channels is %d, heads is %d; expected channels to be a multiple of heads",
            config->channels, config->heads);
    if (config->heads % model_kv_heads(config) != 0)
        return FAIL(STATUS_INVALID, "model: heads is %d, kv_heads is %d; expected heads to be a multiple of kv_heads",
            config->heads, config->kv_heads);
    if (config->architecture == ARCHITECTURE_LLAMA && config->channels / config->heads % 2 != 0)
        return FAIL(STATUS_INVALID,
            "model: channels is %d, heads is %d; rotary positions turn pairs of a head's %d columns: expected an even "
            "number of them",
            config->channels, config->heads, config->channels / config->heads);
    return STATUS_OK;
}

enum status model_config_check(const struct model_config *config)
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

/* What the rows and columns of a block's tensors count. HEADS are channels too, but those of heads: cut. */
enum extent { ONE, CHANNELS, HEADS, QKV, HIDDEN, GATED, EXTENT_COUNT };

static size_t extent_of(enum extent extent, const struct model_config *config)
{
    size_t channels = (size_t)config->channels, hidden = (size_t)model_hidden(config);
    size_t kv_cols = channels / (size_t)config->heads * (size_t)model_kv_heads(config);
    const size_t extents[EXTENT_COUNT] = {
        1, channels, channels, channels + 2 * kv_cols, hidden, 2 * hidden};
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
    {"attprojw", CHANNELS, HEADS, INIT_NORMAL, true},
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
    {"attprojw", CHANNELS, HEADS, INIT_NORMAL, true},
    {"ln2w", CHANNELS, ONE, INIT_ONE, false},
    {"fcw", GATED, CHANNELS, INIT_NORMAL, false},
    {"fcprojw", CHANNELS, HIDDEN, INIT_NORMAL, true},
};
_Static_assert(sizeof gpt2_block / sizeof *gpt2_block <= MOST_BLOCK_TENSORS, "room in the table");

static bool is_llama(const struct model_config *config)
{
    return config->architecture == ARCHITECTURE_LLAMA;
}

/* The tensors of a block of this model. */
static const struct block_tensor *block_of(int *count, const struct model_config *config)
{
    size_t count_of_gpt2 = sizeof gpt2_block / sizeof *gpt2_block,
           count_of_llama = sizeof llama_block / sizeof *llama_block;
    *count = (int)(is_llama(config) ? count_of_llama : count_of_gpt2);
    return is_llama(config) ? llama_block : gpt2_block;
}

double model_block_elements(const struct model_config *config)
{
    int count;
    const struct block_tensor *tensor = block_of(&count, config);
    double sum = 0.0;
    for (int i = 0; i < count; i++)
        sum += (double)extent_of(tensor[i].rows, config) * (double)extent_of(tensor[i].cols, config);
    return sum;
}

/* The bands of an extent that a part holds; returns their number. */
static int bands_of(struct param_band band[PARAM_BANDS_MOST], enum extent extent, const struct params *params)
{
    const struct model_config *config = &params->config;
    size_t kv_heads = (size_t)model_kv_heads(config), hidden = (size_t)model_hidden(config);
    size_t heads = (size_t)config->heads, head_cols = (size_t)config->channels / heads;
    struct params_slice kv = params_slice(&params->part, kv_heads);
    struct params_slice columns = params_slice(&params->part, hidden);
    size_t q_begin = kv.begin * (heads / kv_heads) * head_cols, q_rows = kv.count * (heads / kv_heads) * head_cols;
    size_t k = heads * head_cols, v = k + kv_heads * head_cols; /* where they begin in qkvw */
    switch (extent) {
    case HEADS: band[0] = (struct param_band){q_begin, q_rows}; return 1;
    case QKV:
        band[0] = (struct param_band){q_begin, q_rows};
        band[1] = (struct param_band){k + kv.begin * head_cols, kv.count * head_cols};
        band[2] = (struct param_band){v + kv.begin * head_cols, kv.count * head_cols};
        return 3;
    case HIDDEN: band[0] = (struct param_band){columns.begin, columns.count}; return 1;
    case GATED:
        band[0] = (struct param_band){columns.begin, columns.count};
        band[1] = (struct param_band){hidden + columns.begin, columns.count};
        return 2;
    default: band[0] = (struct param_band){0, extent_of(extent, config)}; return 1;
    }
}

static bool holds_unit(int unit, const struct params *params)
{
    const struct params_part *part = &params->part;
    bool first = part->stage == 0, last = part->stage == part->stage_count - 1;
    if (unit < params->embedding_units) return first || last;
    if (unit == params->positions_unit) return first;
    if (unit == params->final_norm_unit) return last;
    struct params_slice blocks = params_blocks(part, params->config.layers);
    size_t layer = (size_t)(unit - params->first_block_unit);
    return layer >= blocks.begin && layer < blocks.begin + blocks.count;
}

/* A part holds all of a tensor, until hold_rows() or hold_columns() say otherwise. */
static struct param begin_param(int unit, size_t rows, size_t cols, enum param_init init)
{
    return (struct param){.unit = unit, .rows = rows, .cols = cols, .whole_rows = rows, .whole_cols = cols,
        .band_count = 1, .band = {{0, rows}}, .init = init, .std = init == INIT_NORMAL ? 0.02f : 0.0f,
        .decays = init == INIT_NORMAL, .layer = -1};
}

static void hold_rows(struct param *param, const struct param_band *band, int count)
{
    param->cut = CUT_ROWS;
    param->band_count = count;
    param->rows = 0;
    for (int i = 0; i < count; i++) {
        param->band[i] = band[i];
        param->rows += band[i].rows;
    }
}

static void hold_columns(struct param *param, const struct param_band *band)
{
    param->cut = CUT_COLS;
    param->whole_col = band->whole_row;
    param->cols = band->rows;
}

/* Appends it to the end of its unit. */
static void end_param(struct params *params, const struct param *made)
{
    int unit = made->unit;
    struct param *param = &params->param[params->param_count++];
    *param = *made;
    param->offset = params->unit_elements[unit];
    param->whole_offset = params->whole_unit_elements[unit];
    if (!holds_unit(unit, params)) param->rows = 0;
    size_t held = param->rows * param->cols, whole = param->whole_rows * param->whole_cols;
    params->unit_elements[unit] += held;
    params->elements += held;
    params->whole_unit_elements[unit] += whole;
    params->whole_elements += whole;
}

static void add_embedding(struct params *params)
{
    size_t vocab = (size_t)params->config.vocab, units = (size_t)params->embedding_units, first = 0;
    for (size_t u = 0; u < units; u++) {
        size_t rows = vocab / units + (u < vocab % units ? 1 : 0);
        struct params_slice held = params_slice(&params->part, rows);
        struct param param = begin_param((int)u, rows, (size_t)params->config.channels, INIT_NORMAL);
        param.first_row = first;
        if (params->part.tensor_count > 1) hold_rows(&param, &(struct param_band){held.begin, held.count}, 1);
        if (units == 1)
            snprintf(param.name, sizeof param.name, "wte");
        else
            snprintf(param.name, sizeof param.name, "wte[%d:%d]", (int)first, (int)(first + rows));
        end_param(params, &param);
        first += rows;
    }
}

static bool is_cut(enum extent extent)
{
    return extent != ONE && extent != CHANNELS;
}

static void add_block(struct params *params, int layer)
{
    const struct model_config *config = &params->config;
    bool parts = params->part.tensor_count > 1;
    int count;
    const struct block_tensor *tensor = block_of(&count, config);
    for (int i = 0; i < count; i++) {
        enum extent rows = tensor[i].rows, cols = tensor[i].cols;
        struct param_band band[PARAM_BANDS_MOST];
        struct param param = begin_param(params->first_block_unit + layer, extent_of(rows, config),
            extent_of(cols, config), tensor[i].init);
        if (parts && is_cut(rows)) hold_rows(&param, band, bands_of(band, rows, params));
        if (parts && is_cut(cols) && bands_of(band, cols, params) == 1) hold_columns(&param, band);
        param.layer = layer;
        if (tensor[i].residual) param.std = (float)(0.02 / sqrt(2.0 * config->layers));
        snprintf(param.name, sizeof param.name, "h.%d.%s", layer, tensor[i].name);
        end_param(params, &param);
    }
}

/* A tensor of a unit that has no number. */
static void add_named(struct params *params, const char *name, int unit, size_t rows, size_t cols,
    enum param_init init)
{
    struct param param = begin_param(unit, rows, cols, init);
    snprintf(param.name, sizeof param.name, "%s", name);
    end_param(params, &param);
}

/* So many that a unit of them is at most as large as a block. */
static int embedding_units(const struct model_config *config)
{
    double most = config->vocab_block;
    if (config->vocab_block == 0) most = floor(model_block_elements(config) / config->channels);
    return (int)ceil(config->vocab / most);
}

double model_elements(const struct model_config *config)
{
    double channels = config->channels, positions = is_llama(config) ? 0.0 : config->max_t;
    double norm = is_llama(config) ? 1.0 : 2.0;
    return (config->vocab + positions + norm) * channels +
           config->layers * model_block_elements(config);
}

double model_unit_count(const struct model_config *config)
{
    return (double)embedding_units(config) + config->layers + 2.0;
}

enum status params_make(struct params *params, const struct model_config *config)
{
    return params_make_part(params, config, &(struct params_part){0, 1, 0, 1});
}

static enum status open_tables(struct params *params, size_t params_most)
{
    size_t units = (size_t)params->unit_count;
    params->unit_elements = calloc(units, sizeof *params->unit_elements);
    params->whole_unit_elements = calloc(units, sizeof *params->whole_unit_elements);
    params->param = calloc(params_most, sizeof *params->param);
    if (params->unit_elements != NULL && params->whole_unit_elements != NULL && params->param != NULL)
        return STATUS_OK;
    params_free(params);
    return FAIL(STATUS_SYSTEM, "no memory for a table of %zu parameter tensors", params_most);
}

enum status params_make_part(
    struct params *params, const struct model_config *config, const struct params_part *part)
{
    *params = (struct params){0};
    TRY(model_config_check(config));
    assert(part->tensor_rank >= 0 && part->tensor_rank < part->tensor_count);
    assert(part->stage >= 0 && part->stage < part->stage_count);
    params->config = *config;
    params->part = *part;
    params->embedding_units = embedding_units(config);
    params->positions_unit = params->embedding_units;
    params->first_block_unit = params->positions_unit + 1;
    params->final_norm_unit = params->first_block_unit + config->layers;
    params->unit_count = params->final_norm_unit + 1;
    size_t params_most = (size_t)params->embedding_units + 3 + (size_t)config->layers * MOST_BLOCK_TENSORS;
    TRY(open_tables(params, params_most));
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
    free(params->whole_unit_elements);
    free(params->param);
    *params = (struct params){0};
}

size_t params_largest_unit(const struct params *params)
{
    size_t most = 0;
    for (int u = 0; u < params->unit_count; u++)
        if (params->unit_elements[u] > most) most = params->unit_elements[u];
    return most;
}
