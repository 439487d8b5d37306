/* Checkpoints of any split: tensor ranks, pipeline stages, data ranks, any ZeRO stage and shard group.
 * Every element of the model is in one file; the gradient (as Adam's first moment after one step) is
 * that of one rank; a run saved under one split goes on under any other, and under its own with the
 * bits of the uninterrupted run. Case T10's rows.
 * ctest: timeout=120
 */
#include <math.h>

#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"
#include "tests/shard_state.h"

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

/* T10: one rank takes up what eight have saved; with a learning rate of 0 it saves the weights that it
 * has read: all 101 rows of the vocabulary, and everything else, bit by bit. */
static void test_export(void)
{
    char saved[256], whole[256], path[300];
    struct job_record record;
    struct train_config config = config_of(&splits[SPLITS - 1]);
    CHECK(config.tensor == 2 && config.pipeline == 2 && ranks_of(&splits[SPLITS - 1]) == 8);
    fixture_file(saved, "parts");
    fixture_file(whole, "whole");
    config.checkpoint_dir = saved;
    config.stop_at = STOP;
    run_good_job(&record, &config, 8, "shm");
    snprintf(path, sizeof path, "%s/step-%08d", saved, STOP);
    struct state parts = read_state(path, &config);
    config = config_of(&splits[0]);
    config.lr = 0.0f;
    config.resume_dir = saved;
    config.checkpoint_dir = whole;
    config.stop_at = STOP + 1;
    run_good_job(&record, &config, 1, "shm");
    snprintf(path, sizeof path, "%s/step-%08d", whole, STOP + 1);
    struct state one = read_state(path, &config);
    size_t rows = 0;
    for (int u = 0; u < one.params.unit_count; u++) {
        const float *x = parts.values[STAGE_WEIGHTS] + one.unit_begin[u];
        const float *y = one.values[STAGE_WEIGHTS] + one.unit_begin[u];
        CHECK_MSG(memcmp(x, y, one.params.unit_elements[u] * sizeof *x) == 0, "unit %d", u);
        if (u < one.params.embedding_units) rows += one.params.unit_elements[u] / 32;
    }
    CHECK_MSG(rows == 101, "%zu rows", rows);
    state_free(&parts);
    state_free(&one);
}

int main(void)
{
    fixture_file(tokens_path, "tokens.bin");
    fixture_tokens(tokens_path, 101, 6000);
    test_gradients();
    test_any_to_any();
    test_export();
    fixture_remove();
    return test_result();
}
