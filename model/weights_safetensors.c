/* weights_safetensors: GPT-2 as Hugging Face names and lays out its tensors: matrices of blocks as (in,
 * out), where ours are (out, in); names with or without "transformer." in front.
 *
 *   ours               theirs
 *   wte[…:…]           wte.weight            (V, C), all rows; lm_head.weight, if there, must be the same
 *   h.3.qkvw           h.3.attn.c_attn.weight                (C, 3C)
 *
 * Others in the file, such as the masks h.N.attn.bias, are left alone.
 */
#include "model/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/weights_kind.h"

#define PREFIX     "transformer."
#define HEADS_KEY  "n_head"
#define HEAD_COLS  64 /* of GPT-2's published sizes */
#define FILE_NAME  "model.safetensors" /* in a folder that transformers loads, beside … */
#define ABOUT_NAME "config.json"
#define DOCUMENT_TOKEN 50256
#define NAME_BYTES 96

static const struct {
    const char *name; /* behind "h.N." for those of a block */
    bool transposed;
} theirs[KIND_COUNT] = {
    [KIND_WTE] = {"wte.weight", false},
    [KIND_WPE] = {"wpe.weight", false},
    [KIND_LN1W] = {"ln_1.weight", false},
    [KIND_LN1B] = {"ln_1.bias", false},
    [KIND_QKVW] = {"attn.c_attn.weight", true},
    [KIND_QKVB] = {"attn.c_attn.bias", false},
    [KIND_ATTPROJW] = {"attn.c_proj.weight", true},
    [KIND_ATTPROJB] = {"attn.c_proj.bias", false},
    [KIND_LN2W] = {"ln_2.weight", false},
    [KIND_LN2B] = {"ln_2.bias", false},
    [KIND_FCW] = {"mlp.c_fc.weight", true},
    [KIND_FCB] = {"mlp.c_fc.bias", false},
    [KIND_FCPROJW] = {"mlp.c_proj.weight", true},
    [KIND_FCPROJB] = {"mlp.c_proj.bias", false},
    [KIND_LNFW] = {"ln_f.weight", false},
    [KIND_LNFB] = {"ln_f.bias", false},
};

struct hugging {
    struct safetensors *from; /* read */
    const char *prefix;       /* "" or PREFIX */
    FILE *file;               /* written */
    uint64_t data_begin;
    float *turned; /* the largest matrix of a block, in their layout */
};

static void their_name(char name[NAME_BYTES], const struct param *param)
{
    const char *kind = theirs[weights_kind(param)].name;
    if (param->layer >= 0) snprintf(name, NAME_BYTES, "h.%d.%s", param->layer, kind);
    else snprintf(name, NAME_BYTES, "%s", kind);
}

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
    hugging->turned = malloc(4 * channels * channels * sizeof *hugging->turned);
    if (hugging->turned != NULL) return STATUS_OK;
    return FAIL(STATUS_SYSTEM, "%s: no memory to turn a matrix of %zu columns", weights->path, channels);
}

/* ---- what model it is ---- */

static const struct safetensors_tensor *find(const char *name, const struct hugging *hugging)
{
    char full[NAME_BYTES + sizeof PREFIX];
    snprintf(full, sizeof full, "%s%s", hugging->prefix, name);
    return safetensors_find(full, hugging->from);
}

static enum status find_matrix(uint64_t shape[2], const char *name, const struct hugging *hugging,
    const struct weights *weights)
{
    const struct safetensors_tensor *tensor = find(name, hugging);
    if (tensor == NULL)
        return FAIL(STATUS_DATA, "%s: has no tensor \"%s\", expected GPT-2's by Hugging Face's names",
            weights->path, name);
    if (tensor->dims != 2 || tensor->shape[0] > INT_MAX || tensor->shape[1] > INT_MAX)
        return FAIL(STATUS_DATA, "%s: tensor \"%s\" has %d dimensions, expected a matrix", weights->path,
            name, tensor->dims);
    shape[0] = tensor->shape[0];
    shape[1] = tensor->shape[1];
    return STATUS_OK;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* config.json in the same folder. */
static void path_beside(char beside[PATH_MAX], const char *path)
{
    snprintf(beside, PATH_MAX, "%.*s" ABOUT_NAME, (int)(base_of(path) - path), path);
}

/* 0: it does not tell. */
static int heads_of_config(const char *path)
{
    char beside[PATH_MAX], text[16384];
    path_beside(beside, path);
    FILE *file = fopen(beside, "re");
    if (file == NULL) return 0;
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(root, HEADS_KEY);
    int found = cJSON_IsNumber(heads) && heads->valueint > 0 ? heads->valueint : 0;
    cJSON_Delete(root);
    return found;
}

static int find_heads(const struct weights *weights, const struct hugging *hugging)
{
    if (weights->config.heads != 0) return weights->config.heads;
    const char *told = safetensors_metadata(HEADS_KEY, hugging->from);
    int heads = told != NULL ? atoi(told) : 0;
    if (heads <= 0) heads = heads_of_config(weights->path);
    if (heads <= 0) heads = weights->config.channels / HEAD_COLS;
    return heads > 0 ? heads : 1;
}

static enum status find_config(struct weights *weights, const struct hugging *hugging)
{
    uint64_t wte[2], wpe[2];
    char name[NAME_BYTES];
    TRY(find_matrix(wte, "wte.weight", hugging, weights));
    TRY(find_matrix(wpe, "wpe.weight", hugging, weights));
    weights->config.vocab = (int)wte[0];
    weights->config.channels = (int)wte[1];
    weights->config.max_t = (int)wpe[0];
    do snprintf(name, sizeof name, "h.%d.ln_1.weight", weights->config.layers++);
    while (find(name, hugging) != NULL);
    weights->config.layers--;
    weights->config.heads = find_heads(weights, hugging);
    weights->dtype = find("wte.weight", hugging)->dtype;
    return STATUS_OK;
}

/* lm_head.weight of a file that has both: a model of ours has one table. */
static enum status check_tied(const struct weights *weights, const struct hugging *hugging)
{
    const struct safetensors_tensor *head = safetensors_find("lm_head.weight", hugging->from),
                                    *table = find("wte.weight", hugging);
    if (head == NULL || head->data == NULL || table->data == NULL) return STATUS_OK;
    if (head->bytes == table->bytes && memcmp(head->data, table->data, head->bytes) == 0)
        return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s: tensor \"lm_head.weight\" differs from \"wte.weight\", expected the same: models whose head is "
        "another table are not known here",
        weights->path);
}

/* ---- reading ---- */

static enum status safetensors_file_open(struct weights *weights)
{
    struct hugging *hugging = calloc(1, sizeof *hugging);
    weights->state = hugging;
    if (hugging == NULL) return FAIL(STATUS_SYSTEM, "%s: no memory for its record", weights->path);
    TRY(safetensors_open(&hugging->from, weights->path));
    hugging->prefix = "";
    if (find("wte.weight", hugging) == NULL) hugging->prefix = PREFIX;
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

/* The tensor of a parameter, if it has the shape that it should have. */
static enum status find_tensor(const struct safetensors_tensor **tensor, const struct param *param,
    const struct weights *weights)
{
    char name[NAME_BYTES];
    enum weights_kind kind = weights_kind(param);
    uint64_t rows = kind == KIND_WTE ? (uint64_t)weights->config.vocab : param->whole_rows;
    uint64_t expected[2] = {rows, param->whole_cols};
    int dims = param->whole_cols == 1 ? 1 : 2;
    their_name(name, param);
    *tensor = find(name, weights->state);
    if (*tensor == NULL) return FAIL(STATUS_DATA, "%s: has no tensor \"%s\"", weights->path, name);
    if (theirs[kind].transposed) {
        expected[0] = param->whole_cols;
        expected[1] = rows;
    }
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
    const struct safetensors_tensor *tensor;
    size_t rows = param->whole_rows, cols = param->whole_cols;
    TRY(find_tensor(&tensor, param, weights));
    bool turned = theirs[weights_kind(param)].transposed;
    const unsigned char *from = tensor->data;
    from += param->first_row * cols * dtype_bytes(tensor->dtype);
    weights_widen(turned ? hugging->turned : values, from, rows * cols, tensor->dtype);
    if (turned) transpose(values, hugging->turned, cols, rows);
    return STATUS_OK;
}

/* ---- writing ---- */

/* Of each of their tensors one, in the order of our parameters. */
static int plan(struct safetensors_tensor *tensors, char (*names)[NAME_BYTES], const struct params *params,
    const struct weights *weights)
{
    int count = 0;
    for (int i = 0; i < params->param_count; i++) {
        const struct param *param = &params->param[i];
        enum weights_kind kind = weights_kind(param);
        if (param->first_row > 0) continue;
        uint64_t rows = kind == KIND_WTE ? (uint64_t)weights->config.vocab : param->whole_rows;
        uint64_t cols = param->whole_cols;
        bool turned = theirs[kind].transposed;
        their_name(names[count], param);
        tensors[count] = (struct safetensors_tensor){.name = names[count], .dtype = weights->dtype,
            .dims = cols == 1 ? 1 : 2, .shape = {turned ? cols : rows, turned ? rows : cols}};
        count++;
    }
    return count;
}

static enum status write_header(struct hugging *hugging, const struct params *params,
    const struct weights *weights)
{
    size_t most = (size_t)params->param_count;
    struct safetensors_tensor *tensors = calloc(most, sizeof *tensors);
    char(*names)[NAME_BYTES] = calloc(most, sizeof *names), heads[16];
    const char *const metadata[] = {"format", "pt", HEADS_KEY, heads, NULL};
    snprintf(heads, sizeof heads, "%d", weights->config.heads);
    enum status status = tensors == NULL || names == NULL
                             ? FAIL(STATUS_SYSTEM, "%s: no memory for its header", weights->path)
                             : STATUS_OK;
    if (status == STATUS_OK) {
        int count = plan(tensors, names, params, weights);
        status = safetensors_write_header(
            &hugging->data_begin, hugging->file, tensors, count, metadata);
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
    TRY(weights_check_gpt2(weights));
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
    if (theirs[weights_kind(param)].transposed) {
        transpose(hugging->turned, values, rows, cols);
        values = hugging->turned;
    }
    TRY(weights_put(hugging->file, hugging->data_begin, values, rows * cols, weights));
    hugging->data_begin += (uint64_t)rows * cols * dtype_bytes(weights->dtype);
    return STATUS_OK;
}

/* What transformers must know to load the folder. */
static cJSON *describe(const struct model_config *config)
{
    const char *architectures[] = {"GPT2LMHeadModel"};
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "model_type", "gpt2");
    cJSON_AddItemToObject(root, "architectures", cJSON_CreateStringArray(architectures, 1));
    cJSON_AddStringToObject(root, "activation_function", "gelu_new");
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"vocab_size", config->vocab}, {"n_positions", config->max_t},
        {"n_ctx", config->max_t}, {"n_embd", config->channels}, {"n_layer", config->layers},
        {HEADS_KEY, config->heads}, {"layer_norm_epsilon", 1e-5}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(root, numbers[i].name, numbers[i].value);
    cJSON_AddBoolToObject(root, "tie_word_embeddings", true);
    for (int i = 0; i < 2; i++) { /* documents begin and end with the last of GPT-2's own tokens */
        const char *name = i == 0 ? "bos_token_id" : "eos_token_id";
        if (config->vocab > DOCUMENT_TOKEN) cJSON_AddNumberToObject(root, name, DOCUMENT_TOKEN);
        else cJSON_AddNullToObject(root, name);
    }
    return root;
}

/* config.json beside a file of Hugging Face's own name, unless there is one. */
static enum status write_about(const struct weights *weights)
{
    char path[PATH_MAX];
    if (strcmp(base_of(weights->path), FILE_NAME) != 0) return STATUS_OK;
    path_beside(path, weights->path);
    FILE *file = fopen(path, "wxe");
    if (file == NULL && errno == EEXIST) return STATUS_OK;
    if (file == NULL) return FAIL(STATUS_SYSTEM, "%s: cannot be written: %s", path, strerror(errno));
    cJSON *root = describe(&weights->config);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    bool written = text != NULL && fprintf(file, "%s\n", text) > 0;
    if (fclose(file) == 0 && written) {
        cJSON_free(text);
        return STATUS_OK;
    }
    cJSON_free(text);
    unlink(path);
    return FAIL(STATUS_SYSTEM, "%s: cannot be written: make room", path);
}

static enum status safetensors_file_finish(struct weights *weights)
{
    struct hugging *hugging = weights->state;
    TRY(write_about(weights));
    FILE *file = hugging->file;
    hugging->file = NULL;
    return weights_name_part(file, weights);
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
