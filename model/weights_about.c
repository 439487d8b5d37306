/* weights_about: see weights_about.h.
 */
#include "model/weights_about.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/mapped_file.h"

#define FILE_NAME      "model.safetensors" /* in a folder that transformers loads, beside … */
#define ABOUT_NAME     "config.json"
#define HEAD_COLS      64 /* of GPT-2's published sizes */
#define DOCUMENT_TOKEN 50256
#define EPSILON        1e-5 /* of our norms */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static enum status path_beside(char beside[PATH_MAX], const char *path)
{
    size_t folder = (size_t)(base_of(path) - path), most = PATH_MAX - sizeof ABOUT_NAME;
    if (folder > most)
        return FAIL(STATUS_INVALID,
            "%.60s…: the path of its folder has %zu bytes, expected at most %zu, since it may hold a "
            ABOUT_NAME ": take a shorter one", path, folder, most);
    memcpy(beside, path, folder);
    memcpy(beside + folder, ABOUT_NAME, sizeof ABOUT_NAME);
    return STATUS_OK;
}

/* ---- reading ---- */

/* What is known, of the file at `path`. */
struct known {
    const char *path;
    const struct safetensors *file;
    cJSON *root; /* config.json; NULL: there is none */
};

/* *root: NULL where there is no such file. */
static enum status parse_beside(cJSON **root, const char *path)
{
    char beside[PATH_MAX];
    struct mapped_file file;
    *root = NULL;
    TRY(path_beside(beside, path));
    if (access(beside, F_OK) != 0 && errno == ENOENT) return STATUS_OK;
    TRY(mapped_file_open(&file, beside, "JSON about a model"));
    *root = cJSON_ParseWithLength((const char *)file.data, file.bytes);
    size_t bytes = file.bytes;
    mapped_file_close(&file);
    if (cJSON_IsObject(*root)) return STATUS_OK;
    const char *found = *root == NULL ? "are no JSON" : "are no JSON object";
    cJSON_Delete(*root);
    *root = NULL;
    return FAIL(STATUS_DATA, "%s: its %zu bytes %s, expected an object about the model: put the model's "
        "own there, or move it away", beside, bytes, found);
}

static const cJSON *find_item(const char *name, const struct known *known)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(known->root, name);
    if (item != NULL) return item;
    return cJSON_GetObjectItemCaseSensitive( /* where transformers 5 keeps what is of rotary positions */
        cJSON_GetObjectItemCaseSensitive(known->root, "rope_parameters"), name);
}

/* A whole number above 0, of the metadata, else of config.json; 0: neither has it. */
static enum status read_number(int *number, const char *name, const struct known *known)
{
    const char *told = safetensors_metadata(name, known->file);
    const cJSON *item = told == NULL ? find_item(name, known) : NULL;
    const char *from = told != NULL ? "metadata of" : ABOUT_NAME " beside";
    char found[48] = "no number", *end = NULL;
    double value = 0.0;
    *number = 0;
    if (told == NULL && item == NULL) return STATUS_OK;
    if (told != NULL) value = strtod(told, &end);
    else if (cJSON_IsNumber(item)) value = item->valuedouble;
    bool is_number = told != NULL ? end != told && *end == '\0' : cJSON_IsNumber(item);
    if (is_number && value >= 1.0 && value <= INT_MAX && value == floor(value)) {
        *number = (int)value;
        return STATUS_OK;
    }
    if (is_number) snprintf(found, sizeof found, "%.12g", value);
    else if (told != NULL) snprintf(found, sizeof found, "\"%.40s\"", told);
    return FAIL(STATUS_DATA, "%s %s: %s is %s, expected a whole number from 1 to %d", from, known->path,
        name, found, INT_MAX);
}

/* Of fields that change what is computed: the value that our models have, or none. */
static enum status check_word(
    const cJSON *parent, const char *name, const char *expected, const char *path)
{
    const char *found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(parent, name));
    if (found == NULL || strcmp(found, expected) == 0) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s beside %s: %s is \"%.40s\", expected \"%s\": no other is computed here",
        ABOUT_NAME, path, name, found, expected);
}

static enum status check_epsilon(const char *name, const struct known *known)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(known->root, name);
    if (!cJSON_IsNumber(item) || fabs(item->valuedouble - EPSILON) <= 1e-9) return STATUS_OK;
    return FAIL(STATUS_DATA, "%s beside %s: %s is %g, expected %g: no other is computed here",
        ABOUT_NAME, known->path, name, item->valuedouble, EPSILON);
}

static enum status read_gpt2(struct model_config *config, const struct known *known)
{
    TRY(check_word(known->root, "activation_function", "gelu_new", known->path));
    TRY(check_epsilon("layer_norm_epsilon", known));
    if (config->heads == 0) TRY(read_number(&config->heads, "n_head", known));
    if (config->heads == 0) config->heads = config->channels / HEAD_COLS;
    if (config->heads == 0) config->heads = 1;
    return STATUS_OK;
}

static enum status read_llama(struct model_config *config, const struct known *known)
{
    const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(known->root, "rope_scaling");
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(known->root, "rope_parameters");
    TRY(check_word(known->root, "model_type", "llama", known->path));
    TRY(check_word(known->root, "hidden_act", "silu", known->path));
    TRY(check_word(scaling, "rope_type", "default", known->path));
    TRY(check_word(scaling, "type", "default", known->path));
    TRY(check_word(rope, "rope_type", "default", known->path));
    TRY(check_epsilon("rms_norm_eps", known));
    if (config->heads == 0) TRY(read_number(&config->heads, "num_attention_heads", known));
    TRY(read_number(&config->max_t, "max_position_embeddings", known));
    TRY(read_number(&config->rotary_base, "rope_theta", known));
    if (config->heads > 0 && config->max_t > 0) return STATUS_OK;
    return FAIL(STATUS_DATA,
        "%s: neither its metadata nor a " ABOUT_NAME " beside it tells %s, which its tensors do not: put the "
        "model's own " ABOUT_NAME " there",
        known->path, config->heads == 0 ? "num_attention_heads" : "max_position_embeddings");
}

enum status weights_about_read(
    struct model_config *config, const char *path, const struct safetensors *file)
{
    struct known known = {path, file, NULL};
    TRY(parse_beside(&known.root, path));
    enum status status = config->architecture == ARCHITECTURE_LLAMA ? read_llama(config, &known)
                                                                    : read_gpt2(config, &known);
    cJSON_Delete(known.root);
    return status;
}

/* ---- writing ---- */

struct field {
    const char *name;
    int value;
};

#define FIELDS_MOST 8

/* By their names; returns their number. */
static int fields_of(struct field fields[FIELDS_MOST], const struct model_config *config)
{
    const struct field gpt2[] = {{"n_head", config->heads}, {"n_layer", config->layers},
        {"n_embd", config->channels}, {"n_positions", config->max_t}, {"n_ctx", config->max_t},
        {"vocab_size", config->vocab}};
    const struct field llama[] = {{"num_attention_heads", config->heads},
        {"num_key_value_heads", model_kv_heads(config)}, {"max_position_embeddings", config->max_t},
        {"rope_theta", model_rotary_base(config)}, {"num_hidden_layers", config->layers},
        {"hidden_size", config->channels}, {"intermediate_size", (int)model_hidden(config)},
        {"vocab_size", config->vocab}};
    bool is_llama = config->architecture == ARCHITECTURE_LLAMA;
    memcpy(fields, is_llama ? llama : gpt2, is_llama ? sizeof llama : sizeof gpt2);
    return (int)((is_llama ? sizeof llama : sizeof gpt2) / sizeof *fields);
}

void weights_about_fill(struct weights_about *about, const struct model_config *config)
{
    static const char *const names[] = {"n_head", "num_attention_heads", "num_key_value_heads",
        "max_position_embeddings", "rope_theta"}; /* what tensors do not tell */
    struct field fields[FIELDS_MOST];
    int count = fields_of(fields, config), at = 0;
    about->metadata[at++] = "format";
    about->metadata[at++] = "pt";
    for (int i = 0; i < count; i++)
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            if (strcmp(fields[i].name, names[n]) != 0) continue;
            snprintf(about->text[i], sizeof about->text[i], "%d", fields[i].value);
            about->metadata[at++] = fields[i].name;
            about->metadata[at++] = about->text[i];
        }
    about->metadata[at] = NULL;
}

/* What transformers must know to load the folder. */
static cJSON *describe(const struct model_config *config)
{
    bool is_llama = config->architecture == ARCHITECTURE_LLAMA;
    const char *architectures[] = {is_llama ? "LlamaForCausalLM" : "GPT2LMHeadModel"};
    struct field fields[FIELDS_MOST];
    int count = fields_of(fields, config);
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "model_type", is_llama ? "llama" : "gpt2");
    cJSON_AddItemToObject(root, "architectures", cJSON_CreateStringArray(architectures, 1));
    cJSON_AddStringToObject(
        root, is_llama ? "hidden_act" : "activation_function", is_llama ? "silu" : "gelu_new");
    for (int i = 0; i < count; i++)
        cJSON_AddNumberToObject(root, fields[i].name, fields[i].value);
    cJSON_AddNumberToObject(root, is_llama ? "rms_norm_eps" : "layer_norm_epsilon", EPSILON);
    cJSON_AddBoolToObject(root, "tie_word_embeddings", true);
    for (int i = 0; i < 2; i++) { /* GPT-2's documents begin and end with the last of its own tokens */
        const char *name = i == 0 ? "bos_token_id" : "eos_token_id";
        if (!is_llama && config->vocab > DOCUMENT_TOKEN)
            cJSON_AddNumberToObject(root, name, DOCUMENT_TOKEN);
        else cJSON_AddNullToObject(root, name);
    }
    return root;
}

enum status weights_about_write(const char *path, const struct model_config *config)
{
    char beside[PATH_MAX];
    if (strcmp(base_of(path), FILE_NAME) != 0) return STATUS_OK;
    TRY(path_beside(beside, path));
    FILE *file = fopen(beside, "wxe");
    if (file == NULL && errno == EEXIST) return STATUS_OK;
    if (file == NULL) return FAIL(STATUS_SYSTEM, "%s: cannot be written: %s", beside, strerror(errno));
    cJSON *root = describe(config);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    bool written = text != NULL && fprintf(file, "%s\n", text) > 0;
    int error = errno;
    cJSON_free(text);
    if (fclose(file) != 0 && written) {
        error = errno;
        written = false;
    }
    if (written) return STATUS_OK;
    unlink(beside);
    return FAIL(STATUS_SYSTEM, "%s: cannot be written: %s: make room (or raise ulimit -f)", beside,
        strerror(error));
}
