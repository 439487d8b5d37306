/* Checkpoints as files of weights: what a checkpoint of any split gives is what was in it, bit for bit; what is written is resumed at
 * any split, from step 0; Hugging Face's GPT-2 has the loss there that it has in its own file; damage is named; what is not whole is
 * not there. ctest: timeout=60
 */
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

#include "model/model.h"
#include "model/tokens.h"
#include "model/tokens_write.h"
#include "model/weights.h"
#include "shard/checkpoint_manifest.h"
#include "shard/checkpoint_weights.h"
#include "tests/harness/model_host.h"
#include "tests/shard_fixture.h"

static char text_path[256];

static float *at_param(const struct model_host *host, const struct param *param)
{
    return host->weights + host->unit_begin[param->unit] + param->offset;
}

static void read_all(struct model_host *host, struct weights *weights)
{
    for (int i = 0; i < host->params.param_count; i++)
        CHECK_OK(weights_read(at_param(host, &host->params.param[i]), &host->params.param[i], weights));
}

/* Of a file, in units of this size; 0: of the file's own. */
static struct model_host host_of(const char *path, const struct weights_format *format, int vocab_block)
{
    struct weights *weights;
    if (!CHECK_OK(weights_open(&weights, path, format, 0))) exit(test_result());
    struct model_config config = weights->config;
    if (vocab_block > 0) config.vocab_block = vocab_block;
    struct model_host host = model_host_make(&config, 1);
    memset(host.weights, 0xff, host.params.elements * sizeof *host.weights);
    read_all(&host, weights);
    weights_close(weights);
    return host;
}

static void write_host(const char *path, const struct model_host *host)
{
    char manifest[512];
    struct weights *weights;
    snprintf(manifest, sizeof manifest, "%s/step-00000000/manifest.json", path);
    if (!CHECK_OK(weights_create(&weights, path, &weights_checkpoint, &host->params.config, DTYPE_FLOAT32))) return;
    for (int i = 0; i < host->params.param_count; i++)
        CHECK_OK(weights_write(at_param(host, &host->params.param[i]), &host->params.param[i], weights));
    CHECK(access(manifest, F_OK) != 0); /* not before it is whole */
    CHECK_OK(weights_finish(weights));
    weights_close(weights);
    CHECK(access(manifest, F_OK) == 0);
}

static void check_same(const struct model_host *a, const struct model_host *b, const char *what)
{
    size_t wrong = 0;
    if (!CHECK(a->params.elements == b->params.elements)) return;
    for (size_t i = 0; i < a->params.elements; i++) wrong += memcmp(&a->weights[i], &b->weights[i], sizeof(float)) != 0;
    CHECK_MSG(wrong == 0, "%s: %zu of %zu weights differ", what, wrong, a->params.elements);
}

/* ---- every split ---- */

static struct model_config small_model(enum architecture architecture)
{
    return (struct model_config){.architecture = architecture, .max_t = 16, .vocab = 256, .layers = 3, .heads = 4,
        .channels = 24, .kv_heads = architecture == ARCHITECTURE_LLAMA ? 2 : 0, .hidden = architecture == ARCHITECTURE_LLAMA ? 40 : 0,
        .vocab_block = 100};
}

/* Every value another one, where initial biases are all zero. */
static struct model_host host_with_values(const struct model_config *config)
{
    struct model_host host = model_host_make(config, 3);
    for (size_t i = 0; i < host.params.elements; i++) host.weights[i] = 0.05f * (float)sin(0.37 * (double)i + 1.0);
    return host;
}

static const struct split {
    int nranks, tensor, pipeline, stage, group;
} splits[] = {{1, 1, 1, 0, 0}, {3, 1, 1, 3, 0}, {4, 1, 1, 1, 2}, {2, 2, 1, 2, 0}, {3, 1, 3, 1, 0}, {8, 2, 2, 3, 0}};

/* Resumed where nothing is learned, and saved again: the same weights in another split, and step 1. */
static void check_split(const struct split *split, const char *from, const struct model_host *host)
{
    struct job_record record;
    char to[256], name[64];
    snprintf(name, sizeof name, "split-%d-%d-%d-%d", split->nranks, split->tensor, split->pipeline, (int)host->params.config.architecture);
    fixture_file(to, name);
    struct train_config config = fixture_config(text_path);
    config.model = host->params.config;
    config.stage = split->stage;
    config.tensor = split->tensor;
    config.pipeline = split->pipeline;
    config.shard_group = split->group;
    config.accumulate = split->pipeline;
    config.lr = 0.0f;
    config.steps = 1;
    config.resume_dir = from;
    config.checkpoint_dir = to;
    run_good_job(&record, &config, split->nranks, "shm");
    CHECK(record.rank[0].first_step == 0 && record.rank[0].steps == 1);
    for (int block = 0; block <= 70; block += 70) { /* other units than the file's too */
        struct model_host saved = host_of(to, &weights_checkpoint, block);
        check_same(&saved, host, name);
        model_host_free(&saved);
    }
}

static void test_splits(enum architecture architecture)
{
    char directory[256];
    fixture_file(directory, architecture == ARCHITECTURE_LLAMA ? "llama" : "gpt2");
    struct model_config model = small_model(architecture);
    struct model_host host = host_with_values(&model);
    write_host(directory, &host);
    struct model_host back = host_of(directory, &weights_checkpoint, 0);
    CHECK(memcmp(&back.params.config, &model, sizeof model) == 0);
    check_same(&back, &host, directory);
    model_host_free(&back);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) check_split(&splits[i], directory, &host);
    model_host_free(&host);
}

/* One table for each part of the model, whose data ranks share it. */
static void check_parts(const char *directory, int files, int parts)
{
    struct manifest manifest;
    CHECK_OK(manifest_read(&manifest, directory, NULL));
    CHECK(manifest.shard_count == files && manifest.part_count == parts);
    for (int i = 0; i < manifest.shard_count; i++) {
        const struct params_part *part = &manifest.part[manifest.shard[i].part].part;
        CHECK(part->tensor_rank == i % 2 && part->stage == i / 4); /* as checkpoint_manifest.h orders them */
    }
    manifest_free(&manifest);
}

/* A run of 8 ranks that has learned something, read at once and resumed at one rank. */
static void test_trained(void)
{
    struct job_record record;
    char eight[256], one[256], step[300];
    fixture_file(eight, "eight");
    fixture_file(one, "one");
    struct train_config config = fixture_config(text_path);
    config.model = small_model(ARCHITECTURE_GPT2);
    config.tensor = config.pipeline = config.accumulate = 2;
    config.stage = 2;
    config.steps = config.stop_at = 3;
    config.checkpoint_dir = eight;
    run_good_job(&record, &config, 8, "shm");
    snprintf(step, sizeof step, "%s/step-00000003", eight);
    check_parts(step, 8, 4);
    config.tensor = config.pipeline = 1;
    config.lr = 0.0f;
    config.steps = config.stop_at = 4;
    config.resume_dir = eight;
    config.checkpoint_dir = one;
    run_good_job(&record, &config, 1, "shm");
    CHECK(record.rank[0].first_step == 3);
    struct model_host a = host_of(eight, &weights_checkpoint, 0), b = host_of(one, &weights_checkpoint, 0);
    check_same(&a, &b, "8 ranks and 1");
    model_host_free(&a);
    model_host_free(&b);
}

/* ---- Hugging Face's ---- */

#define GOLDEN_T 8

static double loss_of(struct model_host *host, const char *shards)
{
    struct tokens *tokens;
    const struct tokens_config config = {.pattern = shards, .vocab = 53, .batch = 2, .t = GOLDEN_T, .nranks = 1};
    int32_t inputs[2 * GOLDEN_T], targets[2 * GOLDEN_T];
    double sum = 0.0, loss, count = 0.0;
    size_t valid;
    struct model *model;
    struct device *device;
    struct model_hooks hooks = model_host_hooks(host);
    struct model_run run = model_host_run(2, GOLDEN_T);
    if (!CHECK_OK(tokens_open(&tokens, &config)) || !CHECK_OK(device_open(&device, "host")) ||
        !CHECK_OK(model_open(&model, &host->params, &hooks, &run, device)))
        exit(test_result());
    for (size_t i = 0; i < tokens_validation_batches(tokens); i++) {
        tokens_validation_batch(inputs, targets, i, tokens);
        CHECK_OK(model_forward(&loss, &valid, inputs, targets, 2, GOLDEN_T, model));
        sum += loss;
        count += (double)valid;
    }
    model_close(model);
    device_close(device);
    tokens_close(tokens);
    return sum / count;
}

static void write_tokens(const char *prefix)
{
    struct tokens_writer *writer;
    int32_t ids[900];
    for (int i = 0; i < 900; i++) ids[i] = (i * i + 7 * i / 3) % 53;
    CHECK_OK(tokens_writer_open(&writer, prefix, 1000, 53));
    CHECK_OK(tokens_writer_append(ids, 900, writer));
    CHECK_OK(tokens_writer_finish(writer));
    tokens_writer_close(writer);
}

/* transformers' model: in a checkpoint, resumed at several splits, it has the loss of its own file. */
static void test_golden(void)
{
    const char *source = getenv("RINGZERO_SOURCE");
    char golden[PATH_MAX], directory[256], prefix[256], shards[300];
    snprintf(golden, sizeof golden, "%s/tests/golden/gpt2_hf_golden.safetensors", source != NULL ? source : ".");
    fixture_file(directory, "golden");
    fixture_file(prefix, "ids");
    snprintf(shards, sizeof shards, "%s_*.bin", prefix);
    write_tokens(prefix);
    struct weights *weights;
    if (!CHECK_OK(weights_open(&weights, golden, &weights_safetensors, 3))) return;
    struct model_host host = model_host_make(&weights->config, 1);
    read_all(&host, weights);
    weights_close(weights);
    write_host(directory, &host);
    double expected = loss_of(&host, shards);
    CHECK(expected > 3.0 && expected < 20.0);
    static const struct split golden_splits[] = {{1, 1, 1, 0, 0}, {2, 1, 1, 3, 0}, {3, 3, 1, 1, 0}, {2, 1, 2, 2, 0}};
    for (size_t i = 0; i < sizeof golden_splits / sizeof *golden_splits; i++) {
        const struct split *split = &golden_splits[i];
        struct job_record record;
        struct train_config config = fixture_config(shards);
        config.model = host.params.config;
        config.seq = GOLDEN_T;
        config.stage = split->stage;
        config.tensor = split->tensor;
        config.pipeline = config.accumulate = split->pipeline;
        config.lr = 0.0f;
        config.steps = 1;
        config.resume_dir = directory;
        run_good_job(&record, &config, split->nranks, "shm");
        double found = record.rank[0].validation;
        CHECK_MSG(fabs(found - expected) < 1e-5 * expected, "%d ranks, tensor %d, pipeline %d: loss %.9g, expected %.9g",
            split->nranks, split->tensor, split->pipeline, found, expected);
        config.lr = 1e-2f; /* and it trains on */
        config.steps = 6;
        run_good_job(&record, &config, split->nranks, "shm");
        CHECK(record.rank[0].first_step == 0 && record.rank[0].loss[5] < record.rank[0].loss[0]);
        CHECK(record.rank[0].lr[0] == 0.5f * config.lr); /* its own schedule, from its begin: 2 steps of warmup */
    }
    model_host_free(&host);
}

/* ---- what is refused ---- */

static void refused(const char *path, enum status expected, const char *words)
{
    struct weights *weights;
    CHECK_STATUS(weights_open(&weights, path, &weights_checkpoint, 0), expected);
    CHECK(weights == NULL);
    CHECK_TEXT(words);
}

static void put_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) abort();
}

/* Replaces the first `from` of the manifest. text: what it was, for put_text(). */
static void change_manifest(char path[512], char text[8192], const char *directory, const char *from, const char *to)
{
    char changed[8192];
    snprintf(path, 512, "%s/step-00000000/manifest.json", directory);
    FILE *file = fopen(path, "r");
    size_t bytes = file != NULL ? fread(text, 1, 8191, file) : 0;
    if (file == NULL || bytes == 8191 || fclose(file) != 0) abort();
    text[bytes] = '\0';
    const char *place = strstr(text, from);
    if (!CHECK_MSG(place != NULL, "no %s in %s", from, text)) return;
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(place - text), text, to, place + strlen(from));
    put_text(path, changed);
}

static void refused_manifest(const char *directory, const char *from, const char *to, const char *words)
{
    char path[512], text[8192];
    change_manifest(path, text, directory, from, to);
    refused(directory, STATUS_DATA, words);
    CHECK_TEXT("step-00000000/manifest.json: ");
    put_text(path, text);
}

/* Elements that two ranges have, or none: also where as many are twice there as are missing, so that
 * numbers alone tell nothing. The file's ranges are units: 0 to 2 rows of the embedding, 3 positions,
 * 4 to 6 the blocks, 7 the norm. */
static void test_cover(const char *directory)
{
    static const char *const words[][3] = {
        {"[4,0,", "[5,0,", "elements 0 to 7223 of unit 4 are in none of its files, expected each in one"},
        {"[4,0,7224,", "[4,1,7223,", "elements 0 to 0 of unit 4 are in none of its files"},
        {"[4,0,7224,", "[4,0,10,", "elements 10 to 7223 of unit 4 are in none of its files"},
        {"[4,0,7224,", "[4,0,7000,78336],[4,7001,223,", "elements 7000 to 7000 of unit 4 are in none"},
        {"[5,0,7224,", "[4,7000,100,0],[5,0,7224,",
            "elements 7000 to 7099 of unit 4 are in shards[0].ranges[4] (shard-00000-of-00001.bin) and in "
            "shards[0].ranges[5] (shard-00000-of-00001.bin), expected in one of them: it is damaged"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        refused_manifest(directory, words[i][0], words[i][1], words[i][2]);
}

static void flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    if (file == NULL || fseek(file, at, SEEK_SET) != 0) abort();
    int byte = fgetc(file);
    if (fseek(file, at, SEEK_SET) != 0 || fputc(byte ^ 4, file) == EOF || fclose(file) != 0) abort();
}

static void test_damage(void)
{
    char directory[256], path[512], empty[256];
    struct stat about;
    fixture_file(directory, "gpt2"); /* as test_splits() has left it */
    fixture_file(empty, "empty");
    snprintf(path, sizeof path, "%s/step-00000000/shard-00000-of-00001.bin", directory);
    refused_manifest(directory, "\"version\":1", "\"version\":7", "version is 7, expected 1");
    refused_manifest(directory, "ringzero checkpoint", "other", "format is \"other\"");
    refused_manifest(directory, "\"layers\":3", "\"layers\":2", "expected 12 for each of the model's");
    refused_manifest(directory, "\"layers\":3", "\"layers\":2000000000", "expected 12 for each of the model's");
    refused_manifest(directory, "\"vocab_block\":100", "\"vocab_block\":1", "expected one at least for each of the model's 261 units");
    refused_manifest(directory, "\"heads\":4", "\"heads\":5", "heads is 5");
    refused_manifest(directory, "\"channels\":24", "\"channels\":0", "channels is 0");
    refused_manifest(directory, "\"channels\":24", "\"channels\":2.5", "channels is 2.5, expected a whole number");
    refused_manifest(directory, "\"max_t\":16,", "", "max_t (positions) is 0");
    refused_manifest(directory, "\"gpt2\"", "\"rnn\"", "model.architecture is \"rnn\", expected");
    refused_manifest(directory, "shard-00000", "../00000", "expected the name of a file");
    refused_manifest(directory, "\"shards\":", "\"others\":", "shards have 0 bytes");
    refused_manifest(directory, "\"ranges\":", "\"part\":[0,0,0,1],\"ranges\":", "shards[0].part[1] is 0, expected a whole number from 1 to 65536: it is damaged");
    refused_manifest(directory, "\"ranges\":", "\"part\":[0,1,3,3],\"ranges\":", "shards[0].part[2] is 3, expected a whole number from 0 to 2: it is damaged");
    refused_manifest(directory, "\"ranges\":", "\"part\":[0,1,0],\"ranges\":", "shards[0].part[3] is missing or no number");
    refused_manifest(directory, "[4,0,", "[4,-1,", "shards[0].ranges[4][1] is -1, expected a whole number from 0 to");
    test_cover(directory);
    flip(path, 100);
    refused(directory, STATUS_DATA, "shard-00000-of-00001.bin: crc32 is");
    flip(path, 100);
    CHECK(stat(path, &about) == 0 && truncate(path, about.st_size - 1) == 0);
    refused(directory, STATUS_DATA, "shard-00000-of-00001.bin: size is");
    CHECK(truncate(path, about.st_size) == 0); /* that was a moment: zero again */
    struct model_host whole = host_of(directory, &weights_checkpoint, 0);
    model_host_free(&whole);
    struct weights *weights;
    CHECK_STATUS(weights_open(&weights, directory, &weights_checkpoint, 7), STATUS_INVALID);
    CHECK_TEXT("model.heads is 4, 7 were asked for");
    refused("/nonexistent", STATUS_DATA, "found no checkpoint");
    CHECK(unlink(path) == 0);
    refused(directory, STATUS_DATA, "shard-00000-of-00001.bin: cannot be opened");
}

/* Nothing is left of what was not finished, and a directory with a checkpoint is not written into. */
static void test_unfinished(void)
{
    char directory[256], inside[512];
    struct weights *weights;
    struct model_config model = small_model(ARCHITECTURE_GPT2);
    struct model_host host = host_with_values(&model);
    fixture_file(directory, "unfinished");
    snprintf(inside, sizeof inside, "%s/tmp-step-00000000", directory);
    CHECK_OK(weights_create(&weights, directory, &weights_checkpoint, &model, DTYPE_FLOAT32));
    CHECK_OK(weights_write(at_param(&host, &host.params.param[0]), &host.params.param[0], weights));
    CHECK(access(inside, F_OK) == 0);
    refused(directory, STATUS_DATA, "found no checkpoint"); /* as after a kill */
    weights_close(weights);
    CHECK(access(directory, F_OK) != 0);
    CHECK_STATUS(weights_create(&weights, directory, &weights_checkpoint, &model, DTYPE_BFLOAT16), STATUS_INVALID);
    CHECK_TEXT("dtype is bfloat16, expected float32");
    CHECK_STATUS(weights_create(&weights, "/nonexistent/a", &weights_checkpoint, &model, DTYPE_FLOAT32), STATUS_SYSTEM);
    CHECK_TEXT("/nonexistent/a: cannot be made");
    CHECK(mkdir(directory, 0777) == 0 && mkdir(inside, 0777) == 0); /* what a kill leaves is written over */
    write_host(directory, &host);
    CHECK(access(inside, F_OK) != 0);
    CHECK_STATUS(weights_create(&weights, directory, &weights_checkpoint, &model, DTYPE_FLOAT32), STATUS_INVALID);
    CHECK_TEXT("holds a checkpoint of step 0 already");
    model_host_free(&host);
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    test_splits(ARCHITECTURE_GPT2);
    test_splits(ARCHITECTURE_LLAMA);
    test_trained();
    test_golden();
    test_damage();
    test_unfinished();
    fixture_remove();
    return test_result();
}
