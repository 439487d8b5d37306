/* weights_safetensors: GPT-2 and Llama as Hugging Face names and lays out their tensors (weights_names.h).
 *
 * Others in the file, such as the masks h.N.attn.bias, are left alone; those that say that the model is
 * another one are refused: a head of its own, biases of Llama's attention or of its MLP.
 */
#include "model/safetensors.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights_about.h"
#include "model/weights_kind.h"
#include "model/weights_names.h"

#define FULL_NAME_BYTES (WEIGHTS_NAME_BYTES + 16) /* with the prefix */

struct hugging {
    struct safetensors *from; /* read */
    const char *prefix;       /* "" or weights_prefix() */
    FILE *file;               /* written */
    uint64_t data_begin;
    float *turned; /* the largest matrix of a block of GPT-2's, in their layout */
};

#define TILE 32

/* to (cols, rows) = from (rows, cols) turned. */
static void transpose(float *to, const float *from, size_t rows, size_t cols)
{
    for (size_t r0 = 0; r0 < rows; r0 += TILE)
        for (size_t c0 = 0; c0 < cols; c0 += TILE)
            for (size_t r = r0; r < rows && r < r0 + TILE; r++)
                for (size_t c = c0; c < cols && c < c0 + TILE; c++) to[c * rows + r] = from[r * cols + c];
}

static enum status open_turned(struct hugging *hugging, const struct weights *weights)
{
    size_t channels = (size_t)weights->config.channels;
    if (weights->config.architecture == ARCHITECTURE_LLAMA) return STATUS_OK;
    hugging->turned = malloc(4 * channels * channels * sizeof *hugging->turned);
    if (hugging->turned != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s: no memory to turn a matrix of %zu columns", weights->path, channels);
}

/* ---- what model it is ---- */

static const struct safetensors_tensor *find(const char *name, const struct hugging *hugging)
{
    char full[FULL_NAME_BYTES];
    snprintf(full, sizeof full, "%.15s%.*s", hugging->prefix, WEIGHTS_NAME_BYTES, name);
    return safetensors_find(full, hugging->from);
}

static enum status find_matrix(uint64_t shape[2], const char *name, const struct hugging *hugging,
    const struct weights *weights)
{
    const struct safetensors_tensor *tensor = find(name, hugging);
    if (tensor == NULL)
        return FAIL(STATUS_DATA, "%s: has no tensor \"%s\", expected GPT-2's or Llama's by Hugging Face's names",
            weights->path, name);
    if (tensor->dims != 2 || tensor->shape[0] > INT_MAX || tensor->shape[1] > INT_MAX)
        return FAIL(STATUS_DATA, "%s: tensor \"%s\" has %d dimensions, expected a matrix", weights->path,
            name, tensor->dims);
    shape[0] = tensor->shape[0];
    shape[1] = tensor->shape[1];
    return STATUS_OK;
}

/* Blocks that have a tensor of this name, from 0 on. */
static int count_layers(const char *folder, const char *tensor, const struct hugging *hugging)
{
    char name[WEIGHTS_NAME_BYTES];
    int layers = 0;
    do snprintf(name, sizeof name, "%s.%d.%s", folder, layers++, tensor);
    while (find(name, hugging) != NULL);
    return layers - 1;
}

static enum status find_gpt2(struct weights *weights, const struct hugging *hugging)
{
    struct model_config *config = &weights->config;
    uint64_t wte[2], wpe[2];
    TRY(find_matrix(wte, "wte.weight", hugging, weights));
    TRY(find_matrix(wpe, "wpe.weight", hugging, weights));
    config->architecture = ARCHITECTURE_GPT2;
    config->vocab = (int)wte[0];
    config->channels = (int)wte[1];
    config->max_t = (int)wpe[0];
    config->layers = count_layers("h", "ln_1.weight", hugging);
    return weights_about_read(config, weights->path, hugging->from);
}

/* Llama's attention_bias and mlp_bias, which give the first block these. */
static enum status check_biases(const struct weights *weights, const struct hugging *hugging)
{
    static const char *const names[] = {
        "layers.0.self_attn.q_proj.bias", "layers.0.mlp.gate_proj.bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (find(names[i], hugging) != NULL)
            return FAIL(STATUS_DATA, "%s: has a tensor \"%s\", expected a Llama without biases",
                weights->path, names[i]);
    return STATUS_OK;
}

/* 0 stands for what it stands for in a model_config, so that a model has one description. */
static enum status find_llama(struct weights *weights, const struct hugging *hugging)
{
    struct model_config *config = &weights->config;
    uint64_t wte[2], gate[2], keys[2];
    TRY(find_matrix(wte, "embed_tokens.weight", hugging, weights));
    TRY(find_matrix(gate, "layers.0.mlp.gate_proj.weight", hugging, weights));
    TRY(find_matrix(keys, "layers.0.self_attn.k_proj.weight", hugging, weights));
    TRY(check_biases(weights, hugging));
    config->architecture = ARCHITECTURE_LLAMA;
    config->vocab = (int)wte[0];
    config->channels = (int)wte[1];
    config->layers = count_layers("layers", "input_layernorm.weight", hugging);
    config->hidden = gate[0] == 4 * wte[1] ? 0 : (int)gate[0];
    TRY(weights_about_read(config, weights->path, hugging->from));
    if (config->rotary_base == 10000) config->rotary_base = 0;
    uint64_t heads = (uint64_t)config->heads, head_cols = wte[1] / heads;
    if (head_cols == 0 || wte[1] % heads != 0 || keys[0] % head_cols != 0)
        return FAIL(STATUS_DATA,
            "%s: %llu heads have %llu columns, and k_proj %llu: expected a multiple of a head's", weights->path,
            (unsigned long long)heads, (unsigned long long)wte[1], (unsigned long long)keys[0]);
    config->kv_heads = keys[0] == wte[1] ? 0 : (int)(keys[0] / head_cols);
    return STATUS_OK;
}

static const char *table_name(const struct weights *weights)
{
    return weights->config.architecture == ARCHITECTURE_LLAMA ? "embed_tokens.weight" : "wte.weight";
}

/* Whose names they are, and with which prefix. */
static enum status find_config(struct weights *weights, struct hugging *hugging)
{
    static const struct {
        enum architecture architecture;
        bool prefixed;
    } looked_for[] = {{ARCHITECTURE_GPT2, false}, {ARCHITECTURE_GPT2, true}, {ARCHITECTURE_LLAMA, false},
        {ARCHITECTURE_LLAMA, true}};
    for (size_t i = 0; i < sizeof looked_for / sizeof *looked_for; i++) {
        weights->config.architecture = looked_for[i].architecture;
        hugging->prefix = looked_for[i].prefixed ? weights_prefix(looked_for[i].architecture) : "";
        if (find(table_name(weights), hugging) == NULL) continue;
        weights->dtype = find(table_name(weights), hugging)->dtype;
        return looked_for[i].architecture == ARCHITECTURE_LLAMA ? find_llama(weights, hugging)
                                                                : find_gpt2(weights, hugging);
    }
    hugging->prefix = "";
    return find_gpt2(weights, hugging); /* which says what is missing */
}

/* lm_head.weight of a file that has both: a model of ours has one table. */
static enum status check_tied(const struct weights *weights, const struct hugging *hugging)
{
    const struct safetensors_tensor *head = safetensors_find("lm_head.weight", hugging->from),
                                    *table = find(table_name(weights), hugging);
    if (head == NULL || head->data == NULL || table->data == NULL) return STATUS_OK;
    if (head->bytes == table->bytes && memcmp(head->data, table->data, head->bytes) == 0)
        return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s: tensor \"lm_head.weight\" differs from \"%s\", expected the same: models whose head is another "
        "table are not known here",
        weights->path, table->name);
}

/* ---- reading ---- */

static enum status safetensors_file_open(struct weights *weights)
{
    struct hugging *hugging = calloc(1, sizeof *hugging);
    weights->state = hugging;
    if (hugging == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its record", weights->path);
    TRY(safetensors_open(&hugging->from, weights->path));
    TRY(find_config(weights, hugging));
    TRY(check_tied(weights, hugging));
    TRY(model_config_check(&weights->config));
    return open_turned(hugging, weights);
}

static bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_FLOAT32 || dtype == DTYPE_FLOAT16 || dtype == DTYPE_BFLOAT16 ||
           dtype == DTYPE_FLOAT64;
}

/* Their shape of a piece: of wte all rows, of which a parameter may have some. */
static int shape_of(uint64_t shape[2], const struct weights_piece *piece, const struct param *param,
    const struct weights *weights)
{
    bool table = weights_kind(param) == KIND_WTE;
    uint64_t rows = table ? (uint64_t)weights->config.vocab : piece->rows, cols = param->whole_cols;
    shape[0] = piece->turned ? cols : rows;
    shape[1] = piece->turned ? rows : cols;
    return param->whole_cols == 1 ? 1 : 2;
}

/* The tensor of a piece, if it has the shape that it should have. */
static enum status find_tensor(const struct safetensors_tensor **tensor,
    const struct weights_piece *piece, const struct param *param, const struct weights *weights)
{
    uint64_t expected[2];
    const char *name = piece->name;
    int dims = shape_of(expected, piece, param, weights);
    *tensor = find(name, weights->state);
    if (*tensor == NULL) return FAIL(STATUS_DATA, "%s: has no tensor \"%s\"", weights->path, name);
    if (!is_float((*tensor)->dtype))
        return FAIL(STATUS_DATA, "%s: tensor \"%s\" is not of F32, F16, BF16 or F64", weights->path, name);
    if ((*tensor)->dims == dims && (*tensor)->shape[0] == expected[0] &&
        (dims == 1 || (*tensor)->shape[1] == expected[1]))
        return STATUS_OK;
    return FAIL(STATUS_DATA, "%s: tensor \"%s\" has shape [%llu, %llu], expected [%llu, %llu]",
        weights->path, name, (unsigned long long)(*tensor)->shape[0],
        (unsigned long long)(*tensor)->shape[1], (unsigned long long)expected[0],
        (unsigned long long)(dims == 1 ? 0 : expected[1]));
}

static enum status safetensors_file_read(
    float *values, const struct param *param, struct weights *weights)
{
    struct hugging *hugging = weights->state;
    struct weights_piece piece[WEIGHTS_PIECES];
    size_t cols = param->whole_cols;
    int count = weights_pieces(piece, param, &weights->config);
    for (int i = 0; i < count; i++) {
        const struct safetensors_tensor *tensor;
        float *to = values + piece[i].first_row * cols;
        TRY(find_tensor(&tensor, &piece[i], param, weights));
        const unsigned char *from = tensor->data;
        from += param->first_row * cols * dtype_bytes(tensor->dtype);
        weights_widen(
            piece[i].turned ? hugging->turned : to, from, piece[i].rows * cols, tensor->dtype);
        if (piece[i].turned) transpose(to, hugging->turned, cols, piece[i].rows);
    }
    return STATUS_OK;
}

/* ---- writing ---- */

/* Of each of their tensors one, in the order of our parameters. */
static int plan(struct safetensors_tensor *tensors, char (*names)[FULL_NAME_BYTES],
    const struct params *params, const struct weights *weights)
{
    enum architecture architecture = weights->config.architecture;
    const char *prefix = weights_writes_prefix(architecture) ? weights_prefix(architecture) : "";
    int count = 0;
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        struct weights_piece piece[WEIGHTS_PIECES];
        int pieces = param->first_row > 0 ? 0 : weights_pieces(piece, param, &weights->config);
        for (int p = 0; p < pieces; p++, count++) {
            snprintf(names[count], sizeof names[count], "%.15s%.*s", prefix, WEIGHTS_NAME_BYTES,
                piece[p].name);
            tensors[count] =
                (struct safetensors_tensor){.name = names[count], .dtype = weights->dtype};
            tensors[count].dims = shape_of(tensors[count].shape, &piece[p], param, weights);
        }
    }
    return count;
}

static enum status write_header(struct hugging *hugging, const struct params *params,
    const struct weights *weights)
{
    size_t most = (size_t)params->param_count * WEIGHTS_PIECES;
    struct safetensors_tensor *tensors = calloc(most, sizeof *tensors);
    char(*names)[FULL_NAME_BYTES] = calloc(most, sizeof *names);
    struct weights_about about;
    enum status status = tensors == NULL || names == NULL
                             ? FAIL(STATUS_SYSTEM, "%s: no memory for its header", weights->path)
                             : STATUS_OK;
    weights_about_fill(&about, &weights->config);
    if (status == STATUS_OK) {
        int count = plan(tensors, names, params, weights);
        status = safetensors_write_header(
            &hugging->data_begin, hugging->file, tensors, count, about.metadata);
    }
    free(tensors);
    free(names);
    return status;
}

static enum status safetensors_file_create(struct weights *weights)
{
    struct hugging *hugging = calloc(1, sizeof *hugging);
    struct params params;
    enum status status;
    weights->state = hugging;
    if (hugging == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its record", weights->path);
    if (weights->config.architecture == ARCHITECTURE_GPT2) TRY(weights_check_gpt2(weights));
    TRY(open_turned(hugging, weights));
    hugging->file = weights_open_part(&status, weights);
    TRY(status);
    TRY(params_make(&params, &weights->config));
    status = write_header(hugging, &params, weights);
    params_free(&params);
    return status;
}

/* Our parameters come in the order of theirs, so one follows the other. */
static enum status safetensors_file_write(
    const float *values, const struct param *param, struct weights *weights)
{
    struct hugging *hugging = weights->state;
    size_t rows = param->whole_rows, cols = param->whole_cols;
    struct weights_piece piece[WEIGHTS_PIECES];
    weights_pieces(piece, param, &weights->config);
    if (piece[0].turned) {
        transpose(hugging->turned, values, rows, cols);
        values = hugging->turned;
    }
    TRY(weights_put(hugging->file, hugging->data_begin, values, rows * cols, weights));
    hugging->data_begin += (uint64_t)rows * cols * dtype_bytes(weights->dtype);
    return STATUS_OK;
}

static enum status safetensors_file_finish(struct weights *weights)
{
    struct hugging *hugging = weights->state;
    FILE *file = hugging->file;
    hugging->file = NULL;
    TRY(weights_name_part(file, weights));
    return weights_about_write(weights->path, &weights->config); /* of weights that are there */
}

static void safetensors_file_close(struct weights *weights)
{
    struct hugging *hugging = weights->state;
    if (hugging == NULL) return;
    safetensors_close(hugging->from);
    if (hugging->file != NULL) fclose(hugging->file);
    weights_drop_part(weights);
    free(hugging->turned);
    free(hugging);
}

const struct weights_format weights_safetensors = {.name = "Hugging Face's",
    .open = safetensors_file_open,
    .read = safetensors_file_read,
    .create = safetensors_file_create,
    .write = safetensors_file_write,
    .finish = safetensors_file_finish,
    .close = safetensors_file_close};
