/* Any run resumes any checkpoint: saved at (ranks, stage, shard group, dtype), resumed at another. With the same ranks, group and
 * dtypes the bits are those of the uninterrupted run, whatever the stages; else losses stay close. The loss scale goes on too,
 * and a manifest from before there was one still loads. ctest: timeout=120
 */
#include <cjson/cJSON.h>
#include <math.h>

#include "tests/shard_fixture.h"

#define STEPS 8
#define STOP  4

static char text_path[256];

struct shape {
    int nranks, stage, group; /* group 0: all */
    enum dtype dtype, gradients;
};

#define F32 DTYPE_FLOAT32
#define B16 DTYPE_BFLOAT16
#define F16 DTYPE_FLOAT16
static const struct shape shapes[] = {
    {1, 0, 0, F32, F32},
    {2, 0, 0, F32, F32},
    {2, 3, 0, F32, F32},
    {3, 2, 0, F32, F32},
    {4, 3, 2, F32, F32},
    {4, 1, 2, F32, F32},
    {2, 1, 0, B16, B16},
    {2, 3, 0, B16, B16},
    {3, 3, 0, B16, F32},
    {2, 2, 0, F16, F16},
    {2, 0, 0, F16, F16},
};
#define SHAPES ((int)(sizeof shapes / sizeof *shapes))

/* 12 sequences a step, on any number of ranks. */
static struct train_config config_of(const struct shape *shape)
{
    struct train_config config = fixture_config(text_path);
    config.steps = STEPS;
    config.batch = 12 / shape->nranks;
    config.stage = shape->stage;
    config.shard_group = shape->group;
    config.dtype = shape->dtype;
    config.gradient_dtype = config.reduce_dtype = shape->gradients;
    config.scale.value = 0x1p18; /* two steps overflow; two good ones are known at STOP */
    config.scale.growth_interval = 4;
    return config;
}

static void name_of(char text[64], const struct shape *shape)
{
    snprintf(text, 64, "(N %d, stage %d, group %d, %s/%s)", shape->nranks, shape->stage,
        shape->group, dtype_name(shape->dtype), dtype_name(shape->gradients));
}

static void directory_of(char directory[256], int shape)
{
    char name[32];
    snprintf(name, sizeof name, "shape-%d", shape);
    fixture_file(directory, name);
}

static bool same_bits_promised(const struct shape *a, const struct shape *b)
{
    return a->nranks == b->nranks && a->group == b->group && a->dtype == b->dtype &&
           a->gradients == b->gradients;
}

static void compare(const struct job_record *whole, const struct job_record *rest,
    const struct shape *from, const struct shape *to)
{
    char a[64], b[64];
    name_of(a, from);
    name_of(b, to);
    bool bits = same_bits_promised(from, to), plain = from->dtype == F32 && to->dtype == F32;
    double bound = bits ? 0.0 : plain ? 1e-5 : 5e-3;
    CHECK_MSG(rest->rank[0].first_step == STOP && rest->rank[0].steps == STEPS - STOP,
        "%s to %s: %d steps from step %d", a, b, rest->rank[0].steps,
        (int)rest->rank[0].first_step);
    /* Across dtypes the first loss: what was loaded. Later ones may skip steps of their own. */
    for (int i = 0; i < (bits || plain ? rest->rank[0].steps : 1); i++) {
        double expected = whole->rank[0].loss[STOP + i], found = rest->rank[0].loss[i];
        CHECK_MSG(fabs(found - expected) <= bound * expected,
            "%s to %s: loss of step %d %.17g, expected %.17g", a, b, STOP + i + 1, found, expected);
    }
    if (!bits) return;
    CHECK_MSG(whole->rank[0].validation == rest->rank[0].validation, "%s to %s: validation", a, b);
    CHECK_MSG(whole->rank[0].loss_scale == rest->rank[0].loss_scale,
        "%s to %s: loss scale %g, expected %g", a, b, rest->rank[0].loss_scale,
        whole->rank[0].loss_scale);
}

/* A dtype that is left or entered at the checkpoint is compared with the run it starts as. */
static void test_matrix(void)
{
    static struct job_record whole[sizeof shapes / sizeof *shapes], first, rest;
    char directory[256];
    for (int i = 0; i < SHAPES; i++) {
        struct train_config config = config_of(&shapes[i]);
        run_good_job(&whole[i], &config, shapes[i].nranks, "shm");
        directory_of(directory, i);
        config.checkpoint_dir = directory;
        config.stop_at = STOP;
        run_good_job(&first, &config, shapes[i].nranks, "shm");
    }
    CHECK(whole[SHAPES - 1].rank[0].skipped == 2 && whole[SHAPES - 1].rank[0].loss_scale == 0x1p17);
    for (int from = 0; from < SHAPES; from++)
        for (int to = 0; to < SHAPES; to++) {
            struct train_config config = config_of(&shapes[to]);
            directory_of(directory, from);
            config.resume_dir = directory;
            /* Every pair would take long; every source and every target meets four others. */
            if ((from + 2 * to) % 3 != 0 && !same_bits_promised(&shapes[from], &shapes[to]))
                continue;
            run_good_job(&rest, &config, shapes[to].nranks, "shm");
            compare(&whole[from], &rest, &shapes[from], &shapes[to]);
        }
}

/* ---- the manifest ---- */

static cJSON *read_json(const char *path)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "r");
    if (!CHECK(file != NULL)) abort();
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    return cJSON_Parse(text);
}

static void write_json(const char *path, const cJSON *root)
{
    char *text = cJSON_PrintUnformatted(root);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && text != NULL && fputs(text, file) >= 0);
    fclose(file);
    free(text);
}

/* The float16 checkpoint, edited as `edit` says; resumed, on every rank, with this status and word. */
static void resume_edited(
    void (*edit)(cJSON *root), enum status status, const char *word, double scale_after)
{
    struct job_record record;
    char directory[256], path[512];
    struct train_config config = config_of(&shapes[SHAPES - 1]);
    directory_of(directory, SHAPES - 1);
    snprintf(path, sizeof path, "%s/step-%08d/manifest.json", directory, STOP);
    cJSON *root = read_json(path), *original = cJSON_Duplicate(root, true);
    edit(root);
    write_json(path, root);
    config.resume_dir = directory;
    config.scale.value = 0x1p12;
    config.scale.growth_interval = 0;
    run_job(&record, &config, 2, "shm");
    write_json(path, original);
    cJSON_Delete(root);
    cJSON_Delete(original);
    for (int r = 0; r < 2; r++) {
        CHECK_MSG(record.rank[r].status == status && strstr(record.rank[r].text, word) != NULL,
            "rank %d: %s: %s; expected %s", r, status_name(record.rank[r].status),
            record.rank[r].text, word);
        CHECK_MSG(record.rank[r].loss_scale == scale_after, "loss scale %g, expected %g",
            record.rank[r].loss_scale, scale_after);
    }
}

static void edit_nothing(cJSON *root)
{
    const cJSON *settings = cJSON_GetObjectItem(root, "settings");
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItem(settings, "gradient_dtype"));
    CHECK(dtype != NULL && strcmp(dtype, "float16") == 0);
    cJSON *scale = cJSON_GetObjectItem(root, "loss_scale");
    CHECK(cJSON_GetNumberValue(cJSON_GetObjectItem(scale, "good_steps")) >= 0);
    cJSON_ReplaceItemInObject(scale, "value", cJSON_CreateNumber(0x1p7));
}

/* What version 1 had when there were no stages. */
static void edit_to_older(cJSON *root)
{
    static const char *const later[] = {"shard_group", "dtype", "gradient_dtype", "reduce_dtype",
        "loss_scale", "loss_scale_floor", "loss_scale_interval"};
    cJSON_DeleteItemFromObject(root, "loss_scale");
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        cJSON_DeleteItemFromObject(cJSON_GetObjectItem(root, "settings"), later[i]);
    static const char *const of_llama[] = {"architecture", "kv_heads", "hidden", "rotary_base"};
    for (size_t i = 0; i < sizeof of_llama / sizeof *of_llama; i++)
        cJSON_DeleteItemFromObject(cJSON_GetObjectItem(root, "model"), of_llama[i]);
}

static void edit_below_floor(cJSON *root)
{
    cJSON_ReplaceItemInObject(
        cJSON_GetObjectItem(root, "loss_scale"), "value", cJSON_CreateNumber(0x1p-3));
}

static void edit_bad_scale(cJSON *root)
{
    cJSON_ReplaceItemInObject(
        cJSON_GetObjectItem(root, "loss_scale"), "value", cJSON_CreateNumber(-1));
}

static void edit_bad_dtype(cJSON *root)
{
    cJSON_ReplaceItemInObject(
        cJSON_GetObjectItem(root, "settings"), "dtype", cJSON_CreateNumber(1e9));
}

static void edit_no_layers(cJSON *root)
{
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(root, "model"), "layers");
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    test_matrix();
    resume_edited(edit_nothing, STATUS_OK, "", 0x1p7);
    resume_edited(edit_to_older, STATUS_OK, "", 0x1p12); /* the run's own */
    resume_edited(edit_below_floor, STATUS_OK, "", 1.0);
    resume_edited(edit_bad_scale, STATUS_DATA, "loss_scale.value is -1", 0.0);
    resume_edited(edit_bad_dtype, STATUS_DATA, "settings.dtype is missing or no word", 0.0);
    resume_edited(edit_no_layers, STATUS_DATA, "model.layers is missing", 0.0);
    fixture_remove();
    return test_result();
}
