/* Weights in others' files: Hugging Face's GPT-2 and Llama give the logits that they gave there; what is written is read again, bit for bit, and
 * lies where the formats say; what is damaged is refused, naming file, tensor or field.
 * ctest: timeout=60
 */
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "model/weights_about.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

static char folder[] = "/tmp/ringzero_weights_XXXXXX", path[PATH_MAX];

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *golden_path(const char *name)
{
    static char golden[PATH_MAX];
    const char *source = getenv("RINGZERO_SOURCE");
    snprintf(golden, sizeof golden, "%s/tests/golden/%s_hf_golden.safetensors", source != NULL ? source : ".", name);
    return golden;
}

/* ---- what Hugging Face computes ---- */

static float *at_param(const struct model_host *host, const struct param *param)
{
    return host->weights + host->unit_begin[param->unit] + param->offset;
}

static void check_logits(const struct model_host *host, const struct safetensors *golden)
{
    const struct safetensors_tensor *tokens = safetensors_find("golden.tokens", golden),
                                    *expected = safetensors_find("golden.logits", golden);
    int batch = (int)tokens->shape[0], t = (int)tokens->shape[1], vocab = host->params.config.vocab;
    int32_t ids[64];
    float logits[64], wanted;
    double loss, worst = 0.0;
    size_t counted;
    struct model *model;
    struct device *device;
    struct model_host lent = *host;
    struct model_hooks hooks = model_host_hooks(&lent);
    struct model_run run = model_host_run(batch, t);
    memcpy(ids, tokens->data, tokens->bytes);
    if (!CHECK_OK(device_open(&device, "host")) ||
        !CHECK_OK(model_open(&model, &host->params, &hooks, &run, device)))
        return;
    CHECK_OK(model_forward(&loss, &counted, ids, NULL, batch, t, model));
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < t; i++) {
            CHECK_OK(model_logits(logits, b, i, model));
            for (int v = 0; v < vocab; v++) {
                size_t at = ((size_t)b * (size_t)t + (size_t)i) * (size_t)vocab + (size_t)v;
                memcpy(&wanted, (const char *)expected->data + at * sizeof wanted, sizeof wanted);
                worst = fmax(worst, fabs((double)logits[v] - (double)wanted));
            }
        }
    CHECK_MSG(worst < 1e-4, "logits differ by up to %g", worst);
    printf("logits differ from Hugging Face's by at most %.2g\n", worst);
    model_close(model);
    device_close(device);
}

/* heads: given, or 0. In blocks of 10 rows, so that the embedding comes in parts. */
static struct model_host read_golden(const char *name, int heads)
{
    struct weights *weights;
    if (!CHECK_OK(weights_open(&weights, golden_path(name), &weights_safetensors, heads))) exit(test_result());
    struct model_config config = weights->config;
    config.vocab_block = 10;
    struct model_host host = model_host_make(&config, 1);
    memset(host.weights, 0xff, host.params.elements * sizeof *host.weights);
    for (int i = 0; i < host.params.param_count; i++)
        CHECK_OK(weights_read(at_param(&host, &host.params.param[i]), &host.params.param[i], weights));
    weights_close(weights);
    return host;
}

static struct model_host check_golden(const char *name, int heads, const struct model_config *expected)
{
    struct safetensors *golden;
    struct model_host host = read_golden(name, heads);
    CHECK(memcmp(&host.params.config, expected, sizeof *expected) == 0);
    if (!CHECK_OK(safetensors_open(&golden, golden_path(name)))) exit(test_result());
    check_logits(&host, golden);
    safetensors_close(golden);
    return host;
}

/* ---- there and back ---- */

static void write_all(const char *name, const struct weights_format *format, enum dtype dtype, const struct model_host *host)
{
    struct weights *weights;
    if (!CHECK_OK(weights_create(&weights, in_folder(name), format, &host->params.config, dtype))) return;
    for (int i = 0; i < host->params.param_count; i++)
        CHECK_OK(weights_write(at_param(host, &host->params.param[i]), &host->params.param[i], weights));
    CHECK(access(in_folder(name), F_OK) != 0); /* not before it is whole */
    CHECK_OK(weights_finish(weights));
    weights_close(weights);
}

static float rounded(float value, enum dtype dtype)
{
    if (dtype == DTYPE_BFLOAT16) return bfloat16_to_float32(float32_to_bfloat16(value));
    if (dtype == DTYPE_FLOAT16) return float16_to_float32(float32_to_float16(value));
    return value;
}

static void check_there_and_back(const char *name, const struct weights_format *format, enum dtype dtype,
    const struct model_host *host)
{
    struct weights *weights;
    write_all(name, format, dtype, host);
    if (!CHECK_OK(weights_open(&weights, in_folder(name), format, 0))) return;
    CHECK(weights->dtype == dtype && weights->config.vocab_block == 0);
    weights->config.vocab_block = host->params.config.vocab_block;
    CHECK(memcmp(&weights->config, &host->params.config, sizeof weights->config) == 0);
    float *values = calloc(host->params.elements, sizeof *values);
    for (int i = 0; i < host->params.param_count; i++) {
        const struct param *param = &host->params.param[i];
        const float *wanted = at_param(host, param);
        CHECK_OK(weights_read(values, param, weights));
        size_t wrong = 0;
        for (size_t e = 0; e < param->rows * param->cols; e++) wrong += values[e] != rounded(wanted[e], dtype);
        CHECK_MSG(wrong == 0, "%s: %zu values of %s differ", name, wrong, param->name);
    }
    free(values);
    weights_close(weights);
}

static size_t file_bytes(char **bytes, const char *name)
{
    FILE *file = fopen(in_folder(name), "rb");
    *bytes = malloc(1 << 20);
    if (file == NULL || *bytes == NULL) abort();
    size_t count = fread(*bytes, 1, 1 << 20, file);
    fclose(file);
    return count;
}

/* Places counted by hand: V 53 padded to 128, C 24, T 12, L 2. */
static void check_places(const struct model_host *host)
{
    char *bytes;
    size_t count = file_bytes(&bytes, "model.bin");
    int32_t header[9];
    float value;
    memcpy(header, bytes, sizeof header);
    const int32_t expected[9] = {20240326, 3, 12, 53, 2, 3, 24, 128, 0};
    CHECK(memcmp(header, expected, sizeof header) == 0);
    const struct {
        int unit; /* of the first parameter with this ending */
        const char *ending;
        size_t place, element;
    } places[] = {{5, "wte", 0, 5}, /* behind its first row */
        {6, "wpe", 128 * 24 + 7, 7}, {8, "qkvw", 140 * 24 + 4 * 24 + 72 * 24 + 3, 3}, {9, "lnfb", count / 4 - 256 - 1, 23}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int p = 0;
        while (host->params.param[p].unit != places[i].unit || strstr(host->params.param[p].name, places[i].ending) == NULL) p++;
        const struct param *param = &host->params.param[p];
        size_t place = places[i].place;
        if (places[i].unit == 5) place = param->first_row * 24 + 5;
        memcpy(&value, bytes + 1024 + 4 * place, sizeof value);
        CHECK_MSG(value == at_param(host, param)[places[i].element], "%s", param->name);
    }
    memcpy(&value, bytes + 1024 + (size_t)53 * 24 * 4, sizeof value);
    CHECK(value == 0.0f); /* padding */
    free(bytes);
}

/* ---- what is refused ---- */

static void put(const char *name, const char *bytes, size_t count)
{
    FILE *file = fopen(in_folder(name), "wb");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) abort();
}

static void refused(const char *name, const struct weights_format *format, const char *words)
{
    struct weights *weights;
    enum status status = weights_open(&weights, in_folder(name), format, 0);
    CHECK(status == STATUS_DATA || status == STATUS_INVALID);
    CHECK(weights == NULL);
    CHECK_TEXT(words);
}

static void put_safetensors(const char *name, const char *json, size_t data)
{
    char bytes[4096] = {0};
    uint64_t length = strlen(json);
    memcpy(bytes, &length, sizeof length);
    memcpy(bytes + 8, json, length);
    put(name, bytes, 8 + (size_t)length + data);
}

static void safetensors_text(const char *json, size_t data, const char *words)
{
    put_safetensors("bad.safetensors", json, data);
    refused("bad.safetensors", &weights_safetensors, words);
}

#define TENSOR(name, shape, offsets) "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void check_faults(void)
{
    char *bytes;
    size_t count = file_bytes(&bytes, "model.bin");
    put("cut.bin", bytes, count - 4);
    refused("cut.bin", &weights_llmc, "bytes follow its header, expected");
    put("short.bin", bytes, 1000);
    refused("short.bin", &weights_llmc, "1000 bytes, expected llm.c's model file");
    const struct {
        int word;
        int32_t value;
        const char *words;
    } headers[] = {{0, 7, "header[0] (magic) is 7"}, {1, 1, "header[1] (version) is 1"}, {4, 0, "header[4] (L) is 0"},
        {6, INT32_MAX, "expected a model that can be"}, {7, 52, "header[7] (Vp) is 52"}, {5, 5, "heads"}};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        char *damaged = malloc(count);
        memcpy(damaged, bytes, count);
        memcpy(damaged + 4 * headers[i].word, &headers[i].value, 4);
        put("bad.bin", damaged, count);
        refused("bad.bin", &weights_llmc, headers[i].words);
        free(damaged);
    }
    free(bytes);
    refused("none.bin", &weights_llmc, "cannot be read");
    refused("none.safetensors", &weights_safetensors, "cannot be read");
    put("tiny", "1234", 4);
    refused("tiny", &weights_safetensors, "4 bytes, expected a safetensors file");
    put("long", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refused("long", &weights_safetensors, "its header would have 18446744073709551615 bytes");
    safetensors_text("[1]", 0, "no JSON object");
    safetensors_text("{}", 0, "has no tensor \"wte.weight\"");
    safetensors_text("{\"a\":{}}", 0, "tensor \"a\": dtype");
    safetensors_text("{" TENSOR("a", "[2,2]", "[0,8]") "}", 16, "8 bytes apart, expected 16");
    safetensors_text("{" TENSOR("a", "[2,2]", "[0,16]") "}", 8, "tensor \"a\": data_offsets");
    safetensors_text("{" TENSOR("a", "[2,2]", "[16,0]") "}", 32, "tensor \"a\": data_offsets");
    safetensors_text("{" TENSOR("a", "[-2,2]", "[0,16]") "}", 16, "tensor \"a\": shape");
    safetensors_text("{" TENSOR("a", "[1e15,1e15]", "[0,16]") "}", 16, "tensor \"a\": shape");
    safetensors_text("{" TENSOR("a", "[1,1,1,1,1]", "[0,4]") "}", 4, "tensor \"a\": shape");
    safetensors_text("{" TENSOR("wte.weight", "[4]", "[0,16]") "}", 16, "\"wte.weight\" has 1 dimensions, expected a matrix");
    safetensors_text("{" TENSOR("wte.weight", "[2,2]", "[0,16]") "," TENSOR("wpe.weight", "[2,2]", "[0,16]") "}", 16, "layers");
    safetensors_text("{" TENSOR("wte.weight", "[2,2]", "[0,16]") "," TENSOR("wpe.weight", "[2,2]", "[0,16]") "," TENSOR("lm_head.weight", "[1,2]", "[0,8]") "}",
        16, "\"lm_head.weight\" differs from \"wte.weight\"");
    struct weights *weights;
    struct model_config llama;
    CHECK_OK(model_preset(&llama, "llama-nano"));
    CHECK_STATUS(weights_create(&weights, in_folder("llama.bin"), &weights_llmc, &llama, DTYPE_FLOAT32), STATUS_INVALID);
    CHECK_TEXT("hold GPT-2's tensors only");
    CHECK_OK(model_preset(&llama, "nano"));
    CHECK_STATUS(weights_create(&weights, in_folder("half.bin"), &weights_llmc, &llama, DTYPE_FLOAT16), STATUS_INVALID);
    CHECK_STATUS(weights_create(&weights, "/nonexistent/a.bin", &weights_llmc, &llama, DTYPE_FLOAT32), STATUS_SYSTEM);
    CHECK_OK(weights_create(&weights, in_folder("unfinished.bin"), &weights_llmc, &llama, DTYPE_FLOAT32));
    weights_close(weights);
    CHECK(access(in_folder("unfinished.bin.part"), F_OK) != 0);
}

#define GPT2 TENSOR("wte.weight", "[2,2]", "[0,16]") "," TENSOR("wpe.weight", "[2,2]", "[0,16]")

/* What lies beside a file and cannot be read is not as if nothing lay there. */
static void check_beside(void)
{
    char text[20001];
    put("config.json", "", 0);
    safetensors_text("{" GPT2 "}", 16, "config.json: its 0 bytes are no JSON, expected an object about");
    put("config.json", "{\"n_head\":2", 11);
    safetensors_text("{" GPT2 "}", 16, "config.json: its 11 bytes are no JSON, expected an object about");
    put("config.json", "[{}]", 4);
    safetensors_text("{" GPT2 "}", 16, "config.json: its 4 bytes are no JSON object");
    snprintf(text, sizeof text, "{%*s\"n_head\":0.5}", (int)sizeof text - 20, "");
    put("config.json", text, strlen(text));
    safetensors_text("{" GPT2 "}", 16, "n_head is 0.5");
    CHECK(unlink(in_folder("config.json")) == 0 && mkdir(in_folder("config.json"), 0777) == 0);
    safetensors_text("{" GPT2 "}", 16, "config.json: found a directory, expected a regular file of JSON");
    CHECK(rmdir(in_folder("config.json")) == 0);
}

/* The same file by a path of this many bytes. */
static const char *long_path(size_t bytes, const char *name)
{
    static char longer[2 * PATH_MAX];
    size_t begin = strlen(folder), end = bytes - strlen(name);
    memcpy(longer, folder, begin);
    memset(longer + begin, '/', end - begin);
    memcpy(longer + end, name, strlen(name) + 1);
    return longer;
}

/* A path that fits while the name beside it does not is refused: cut short it would be another file's. */
static void check_long_paths(const struct model_host *host)
{
    struct weights *weights;
    put("x", "", 0);
    CHECK_STATUS(weights_open(&weights, long_path(PATH_MAX - 1, "x"), &weights_safetensors, 0), STATUS_DATA);
    put_safetensors("x", "{" GPT2 "}", 16);
    CHECK_STATUS(weights_open(&weights, long_path(PATH_MAX - 1, "x"), &weights_safetensors, 0), STATUS_INVALID);
    CHECK_TEXT("the path of its folder has 4094 bytes, expected at most 4084");
    for (size_t bytes = PATH_MAX - 5; bytes >= PATH_MAX - 6; bytes--) {
        const char *to = long_path(bytes, "long.safetensors");
        enum status status = weights_create(
            &weights, to, &weights_safetensors, &host->params.config, DTYPE_FLOAT32);
        CHECK_STATUS(status, bytes == PATH_MAX - 6 ? STATUS_OK : STATUS_INVALID);
        if (status != STATUS_OK) CHECK_TEXT("the path has 4091 bytes, expected at most 4090: take a shorter one");
        weights_close(weights);
    }
}

/* All of it written, up to finishing; which is tried with no room for files if `full`. */
static enum status finish_at(const char *name, const struct model_host *host, bool full)
{
    struct weights *weights;
    struct rlimit before, none;
    if (!CHECK_OK(weights_create(&weights, in_folder(name), &weights_safetensors, &host->params.config, DTYPE_FLOAT32))) return STATUS_OK;
    for (int i = 0; i < host->params.param_count; i++)
        CHECK_OK(weights_write(at_param(host, &host->params.param[i]), &host->params.param[i], weights));
    if (getrlimit(RLIMIT_FSIZE, &before) != 0) abort();
    none = (struct rlimit){.rlim_cur = full ? 0 : before.rlim_cur, .rlim_max = before.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) abort();
    enum status status = weights_finish(weights);
    if (full) {
        CHECK_TEXT("model.safetensors.part: cannot be written: File too large");
        CHECK_STATUS(weights_about_write(in_folder(name), &host->params.config), STATUS_SYSTEM);
        CHECK_TEXT("config.json: cannot be written: File too large");
    }
    if (setrlimit(RLIMIT_FSIZE, &before) != 0) abort();
    weights_close(weights);
    return status;
}

/* A config.json is not left without the weights that it is about. */
static void check_finish_faults(const struct model_host *host)
{
    CHECK(mkdir(in_folder("taken"), 0777) == 0 && mkdir(in_folder("taken/model.safetensors"), 0777) == 0);
    CHECK_STATUS(finish_at("taken/model.safetensors", host, false), STATUS_SYSTEM);
    CHECK_TEXT("cannot be renamed to");
    CHECK(access(in_folder("taken/config.json"), F_OK) != 0);
    CHECK(rmdir(in_folder("taken/model.safetensors")) == 0);
    signal(SIGXFSZ, SIG_IGN);
    CHECK_STATUS(finish_at("taken/model.safetensors", host, true), STATUS_SYSTEM);
    signal(SIGXFSZ, SIG_DFL);
    CHECK(rmdir(in_folder("taken")) == 0); /* nothing was left */
    CHECK(mkdir(in_folder("taken"), 0777) == 0);
    CHECK_OK(finish_at("taken/model.safetensors", host, false));
    CHECK(access(in_folder("taken/config.json"), F_OK) == 0);
}

/* A file of Llama's that has enough to be asked for what it is, and what config.json beside it says. */
#define EMBED TENSOR("model.embed_tokens.weight", "[2,4]", "[0,32]")
#define GATE  TENSOR("model.layers.0.mlp.gate_proj.weight", "[6,4]", "[0,96]")
#define KEYS  TENSOR("model.layers.0.self_attn.k_proj.weight", "[2,4]", "[0,32]")
#define BIAS  TENSOR("model.layers.0.self_attn.q_proj.bias", "[4]", "[0,16]")
#define MLP_BIAS TENSOR("model.layers.0.mlp.gate_proj.bias", "[6]", "[0,24]")

static void about_text(const char *about, const char *words)
{
    put("config.json", about, strlen(about));
    safetensors_text("{" EMBED "," GATE "," KEYS "}", 96, words);
}

static void check_llama_faults(void)
{
    safetensors_text("{" EMBED "}", 32, "has no tensor \"layers.0.mlp.gate_proj.weight\"");
    safetensors_text("{" EMBED "," GATE "," KEYS "," BIAS "}", 96, "\"layers.0.self_attn.q_proj.bias\", expected a Llama without biases");
    safetensors_text("{" EMBED "," GATE "," KEYS "," MLP_BIAS "}", 96, "\"layers.0.mlp.gate_proj.bias\", expected a Llama without biases");
    safetensors_text("{" EMBED "," GATE "," KEYS "}", 96, "nor a config.json beside it tells num_attention_heads");
    about_text("{\"num_attention_heads\":2}", "tells max_position_embeddings");
    about_text("{\"num_attention_heads\":3,\"max_position_embeddings\":8}", "3 heads have 4 columns, and k_proj 2");
    about_text("{\"num_attention_heads\":2,\"max_position_embeddings\":8.5}", "max_position_embeddings is 8.5, expected a whole number from 1 to 2147483647");
    about_text("{\"num_attention_heads\":2,\"max_position_embeddings\":8,\"rope_theta\":2147483648}", "rope_theta is 2147483648, expected a whole");
    about_text("{\"num_attention_heads\":2,\"max_position_embeddings\":8,\"rope_parameters\":{\"rope_theta\":0}}", "rope_theta is 0, expected a whole");
    about_text("{\"num_attention_heads\":null}", "config.json beside ");
    CHECK_TEXT("num_attention_heads is no number, expected a whole");
    about_text("{\"model_type\":\"qwen2\"}", "model_type is \"qwen2\", expected \"llama\"");
    about_text("{\"hidden_act\":\"gelu\"}", "hidden_act is \"gelu\", expected \"silu\"");
    about_text("{\"rms_norm_eps\":1e-6}", "rms_norm_eps is 1e-06, expected 1e-05");
    about_text("{\"rope_scaling\":{\"rope_type\":\"llama3\"}}", "rope_type is \"llama3\", expected \"default\"");
    about_text("{\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "rope_type is \"yarn\", expected \"default\"");
    put("config.json", "{\"activation_function\":\"relu\"}", 30);
    safetensors_text("{" GPT2 "}", 16, "activation_function is \"relu\"");
    put("config.json", "{\"n_head\":-1}", 13);
    safetensors_text("{\"__metadata__\":{\"n_head\":\"2x\"}," GPT2 "}", 16, "metadata of ");
    CHECK_TEXT("n_head is \"2x\", expected a whole number from 1 to");
    safetensors_text("{" GPT2 "}", 16, "n_head is -1, expected a whole");
    CHECK(unlink(in_folder("config.json")) == 0);
}

int main(void)
{
    if (mkdtemp(folder) == NULL) abort();
    struct weights *weights;
    const struct model_config gpt2 = {.max_t = 12, .vocab = 53, .layers = 2, .heads = 3, .channels = 24, .vocab_block = 10};
    const struct model_config llama = {.architecture = ARCHITECTURE_LLAMA, .max_t = 14, .vocab = 31, .layers = 2, .heads = 6, .channels = 24,
        .kv_heads = 2, .hidden = 40, .rotary_base = 500, .vocab_block = 10};
    CHECK_STATUS(weights_open(&weights, golden_path("gpt2"), &weights_safetensors, 7), STATUS_INVALID); /* 24 / 7 */
    CHECK(weights == NULL);
    struct model_host host = check_golden("gpt2", 3, &gpt2), other = check_golden("llama", 0, &llama);
    check_there_and_back("model.bin", &weights_llmc, DTYPE_FLOAT32, &host);
    check_there_and_back("half.bin", &weights_llmc, DTYPE_BFLOAT16, &host);
    check_there_and_back("model.safetensors", &weights_safetensors, DTYPE_FLOAT32, &host);
    check_there_and_back("half.safetensors", &weights_safetensors, DTYPE_FLOAT16, &host);
    check_there_and_back("bhalf.safetensors", &weights_safetensors, DTYPE_BFLOAT16, &host);
    CHECK(unlink(in_folder("config.json")) == 0); /* beside model.safetensors, and of another model than these: */
    check_there_and_back("llama.safetensors", &weights_safetensors, DTYPE_FLOAT32, &other);
    check_there_and_back("bllama.safetensors", &weights_safetensors, DTYPE_BFLOAT16, &other);
    check_places(&host);
    check_faults();
    check_finish_faults(&host);
    check_beside();
    check_long_paths(&host);
    check_llama_faults();
    model_host_free(&host);
    model_host_free(&other);
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? test_result() : 1;
}
