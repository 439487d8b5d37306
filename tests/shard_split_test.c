/* Checkpoints of any split: tensor ranks, pipeline stages, data ranks, any ZeRO stage and shard group. Every element of the
 * model is in one file; the gradient (as Adam's first moment after one step) is that of one rank; a run saved
 * under one split goes on under any other, and under its own with the bits of the uninterrupted run.
 * ctest: timeout=120
 */
#include <math.h>

#include "shard/checkpoint_manifest.h"
#include "tests/harness/reference.h"
#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"

#define STEPS 6
#define STOP  3

#ifdef __SANITIZE_THREAD__
#define FAR 3 /* to some others: each run takes fifty times as long */
#else
#define FAR 1
#endif

static char tokens_path[256];

struct split {
    int tensor, pipeline, data, stage, group; /* group 0: all data ranks */
};
static const struct split splits[] = {
    {1, 1, 1, 0, 0},
    {2, 1, 1, 0, 0},
    {1, 1, 2, 3, 0},
    {2, 1, 2, 3, 0},
    {4, 1, 2, 2, 1},
    {1, 2, 1, 1, 0},
    {2, 2, 1, 3, 0},
    {2, 2, 2, 2, 0},
};
#define SPLITS ((int)(sizeof splits / sizeof *splits))

static int ranks_of(const struct split *split)
{
    return split->tensor * split->pipeline * split->data;
}

/* 4 sequences a step; V = 101 is even nowhere; rows in blocks of 30. */
static struct train_config config_of(const struct split *split)
{
    struct train_config config = fixture_config(tokens_path);
    config.model = (struct model_config){
        .max_t = 16, .vocab = 101, .layers = 2, .heads = 4, .channels = 32, .vocab_block = 30};
    config.steps = STEPS;
    config.tensor = split->tensor;
    config.pipeline = split->pipeline;
    config.batch = 4 / split->data;
    config.stage = split->stage;
    config.shard_group = split->group;
    return config;
}

static void write_tokens(void)
{
    FILE *file = fopen(tokens_path, "w");
    uint32_t header[256] = {20240520, 1, 6000};
    if (file == NULL || fwrite(header, sizeof header, 1, file) != 1) abort();
    for (int i = 0; i < 6000; i++) {
        uint16_t token = (uint16_t)((i * i / 3) % 101);
        if (fwrite(&token, sizeof token, 1, file) != 1) abort();
    }
    fclose(file);
}

/* ---- what files hold ---- */

/* The whole model's state, put together from the files. */
struct state {
    struct params params;
    size_t *unit_begin;
    float *values[STAGE_STATE_COUNT]; /* [elements] each, unit after unit */
    int *times;                       /* the same: how many files have it */
};

static struct state state_make(const struct model_config *model)
{
    struct state state = {0};
    CHECK_OK(params_make(&state.params, model));
    size_t count = state.params.elements, begin = 0;
    state.times = calloc(count, sizeof *state.times);
    state.unit_begin = calloc((size_t)state.params.unit_count, sizeof *state.unit_begin);
    for (int s = 0; s < STAGE_STATE_COUNT; s++) state.values[s] = calloc(count, sizeof(float));
    for (int u = 0; u < state.params.unit_count; u++) {
        state.unit_begin[u] = begin;
        begin += state.params.unit_elements[u];
    }
    return state;
}

static void state_free(struct state *state)
{
    for (int s = 0; s < STAGE_STATE_COUNT; s++) free(state->values[s]);
    free(state->times);
    free(state->unit_begin);
    params_free(&state->params);
}

static void take_range(
    struct state *state, FILE *file, const struct manifest_range *range, const struct params *part)
{
    for (int s = 0; s < STAGE_STATE_COUNT; s++) {
        struct params_walk walk =
            params_walk(part, range->unit, range->begin, range->begin + range->count);
        fseek(file, (long)(range->offset + (uint64_t)s * range->count * sizeof(float)), SEEK_SET);
        for (struct params_run run; params_next_run(&run, &walk);) {
            size_t at = state->unit_begin[range->unit] + run.whole_begin;
            CHECK(fread(state->values[s] + at, sizeof(float), run.count, file) == run.count);
            for (size_t i = 0; i < run.count; i++) state->times[at + i] += s == 0;
        }
    }
}

static struct state read_state(const char *directory, const struct train_config *config)
{
    struct state state = state_make(&config->model);
    struct trainer trainer = {.config = *config, .nranks = 1, .rank = 1}; /* warns of nothing */
    struct manifest manifest;
    trainer.grid = grid_at(0, 1, 1, 1, 1);
    CHECK_OK(manifest_read(&manifest, directory, &trainer));
    for (int i = 0; i < manifest.shard_count; i++) {
        const struct manifest_shard *shard = &manifest.shard[i];
        char path[CHECKPOINT_PATH_BYTES];
        struct params part;
        CHECK_OK(path_join(path, directory, shard->name));
        CHECK_OK(params_make_part(&part, &config->model, &shard->part));
        FILE *file = fopen(path, "r");
        if (file == NULL) abort();
        for (int k = 0; k < shard->range_count; k++)
            take_range(&state, file, &shard->range[k], &part);
        fclose(file);
        params_free(&part);
    }
    manifest_free(&manifest);
    return state;
}

/* m after one step is (1 − β₁)·g. */
static void check_gradients(const struct state *found, const struct state *one, const char *what)
{
    const struct params *params = &one->params;
    for (size_t i = 0; i < params->elements; i++)
        CHECK_MSG(found->times[i] == 1, "%s: %d files have element %zu", what, found->times[i], i);
    double *expected = calloc(params->elements, sizeof *expected);
    if (expected == NULL) abort();
    for (int u = 0; u < params->unit_count; u++) {
        size_t begin = one->unit_begin[u], count = params->unit_elements[u];
        for (size_t i = 0; i < count; i++) expected[i] = (double)one->values[STAGE_M][begin + i];
        double error = relative_error(found->values[STAGE_M] + begin, expected, count);
        CHECK_MSG(error <= 1e-5, "%s, unit %d: relative error %.3g", what, u, error);
    }
    free(expected);
}

static void test_gradients(void)
{
    struct state one = {0};
    for (int i = 0; i < SPLITS; i++) {
        char directory[256], name[32], path[300];
        struct job_record record;
        struct train_config config = config_of(&splits[i]);
        snprintf(name, sizeof name, "first-%d", i);
        fixture_file(directory, name);
        config.checkpoint_dir = directory;
        config.steps = 1;
        config.clip = 0.0f;
        run_good_job(&record, &config, ranks_of(&splits[i]), "shm");
        snprintf(path, sizeof path, "%s/step-00000001", directory);
        struct state state = read_state(path, &config);
        if (i > 0) {
            check_gradients(&state, &one, name);
            state_free(&state);
        } else one = state;
    }
    state_free(&one);
}

/* ---- going on ---- */

static void resume(const struct job_record *whole, int from, int to)
{
    char directory[256], name[32], what[64];
    struct job_record record;
    struct train_config config = config_of(&splits[to]);
    snprintf(name, sizeof name, "stop-%d", from);
    fixture_file(directory, name);
    config.resume_dir = directory;
    run_good_job(&record, &config, ranks_of(&splits[to]), "shm");
    snprintf(what, sizeof what, "from split %d to %d", from, to);
    CHECK_MSG(record.rank[0].first_step == STOP, "%s", what);
    const struct rank_record *x = &whole[from].rank[0], *y = &record.rank[0];
    for (int i = 0; i < STEPS - STOP; i++) {
        double loss = x->loss[STOP + i], norm = x->norm[STOP + i];
        CHECK_MSG(fabs(y->loss[i] / loss - 1.0) <= 1e-5 && fabs(y->norm[i] / norm - 1.0) <= 1e-4,
            "%s, step %d: loss %.9g, norm %.9g, expected %.9g, %.9g", what, STOP + i + 1,
            y->loss[i], y->norm[i], loss, norm);
        if (from == to) CHECK_MSG(y->loss[i] == loss && y->norm[i] == norm, "%s: other bits", what);
    }
}

static void test_any_to_any(void)
{
    static struct job_record whole[SPLITS];
    for (int i = 0; i < SPLITS; i++) {
        char directory[256], name[32];
        struct job_record record;
        struct train_config config = config_of(&splits[i]);
        run_good_job(&whole[i], &config, ranks_of(&splits[i]), "shm");
        snprintf(name, sizeof name, "stop-%d", i);
        fixture_file(directory, name);
        config.checkpoint_dir = directory;
        config.stop_at = STOP;
        run_good_job(&record, &config, ranks_of(&splits[i]), "shm");
    }
    for (int from = 0; from < SPLITS; from++)
        for (int to = 0; to < SPLITS; to += FAR) resume(whole, from, (from + to) % SPLITS);
}

int main(void)
{
    fixture_file(tokens_path, "tokens.bin");
    write_tokens();
    test_gradients();
    test_any_to_any();
    fixture_remove();
    return test_result();
}
