/* Every product of 1, 2, 4 tensor ranks, 1, 2 stages of a pipeline, 1, 2 data ranks and ZeRO stages 0
 * to 3, for nano-H4-C32, nano's own size and a Llama, all with V = 101: losses, norms, and the gradient
 * of each unit are those of one process within 1e-5. Within a product all ZeRO stages, each with
 * another way to keep activations (all, inputs of blocks, P_a, P_a+cpu), have the same bits of losses,
 * gradients and weights (I3); every ledger is as predicted (I4). Case T1: ten steps of nano-37 and
 * nano-36, whose units nothing divides, have the same bits in all stages.
 * ctest: timeout=180
 */
#include <math.h>

#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"
#include "tests/shard_state.h"

#ifdef __SANITIZE_THREAD__
#define FEWER true /* sees as much in a few: every run takes fifty times as long */
#else
#define FEWER false
#endif

enum { STEPS = 2, T1_STEPS = 10 };

static char tokens_path[256];

static const struct model {
    const char *name;
    struct model_config config;
} models[] = {
    {"nano-H4-C32",
        {.max_t = 16, .vocab = 101, .layers = 2, .heads = 4, .channels = 32, .vocab_block = 30}},
    {"nano", {.max_t = 128, .vocab = 101, .layers = 4, .heads = 4, .channels = 128}},
    {"llama", {.architecture = ARCHITECTURE_LLAMA,
                  .max_t = 16,
                  .vocab = 101,
                  .layers = 2,
                  .heads = 8,
                  .channels = 32,
                  .kv_heads = 4,
                  .hidden = 84}},
};

struct split {
    int tensor, pipeline, data;
};

/* One run, and what its checkpoint holds: after the first step, in T1 after the last. */
struct run {
    struct train_config config;
    struct job_record record;
    struct state state;
    char what[96];
};

static void run_and_read(
    struct run *run, const struct model *model, struct split split, int stage, int steps)
{
    char directory[256], path[300];
    *run = (struct run){.config = fixture_config(tokens_path)};
    struct train_config *config = &run->config;
    fixture_file(directory, "run");
    config->model = model->config;
    config->tensor = split.tensor;
    config->pipeline = split.pipeline;
    config->stage = stage;
    config->activations = (enum activation_keep)stage;
    config->unsharded_accumulation = stage >= 2; /* then all reduce at the same moment */
    config->batch = 1;
    config->seq = model->config.max_t < 16 ? 0 : 16;
    config->accumulate = split.data == 3 ? 2 : 4 / split.data;
    config->steps = (uint64_t)steps;
    config->clip = 0.0f; /* the first moment is the gradient's share */
    config->checkpoint_dir = directory;
    config->checkpoint_every = steps == STEPS ? 1 : 0;
    config->step_ledger = true;
    snprintf(run->what, sizeof run->what, "%s, %d x %d x %d, stage %d", model->name, split.tensor,
        split.pipeline, split.data, stage);
    run_good_job(&run->record, config, split.tensor * split.pipeline * split.data, "shm");
    snprintf(path, sizeof path, "%s/step-%08d", directory, steps == STEPS ? 1 : steps);
    run->state = read_state(path, config);
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    CHECK(system(command) == 0);
    config->checkpoint_dir = NULL;
}

static void check_near(const struct run *found, const struct run *one)
{
    const struct rank_record *x = &one->record.rank[0], *y = &found->record.rank[0];
    CHECK(x->steps == STEPS && y->steps == STEPS);
    for (int i = 0; i < STEPS; i++)
        CHECK_MSG(fabs(y->loss[i] / x->loss[i] - 1.0) <= 1e-5 &&
                      fabs(y->norm[i] / x->norm[i] - 1.0) <= 1e-5,
            "%s, step %d: loss %.9g, norm %.9g, expected %.9g, %.9g", found->what, i + 1,
            y->loss[i], y->norm[i], x->loss[i], x->norm[i]);
    check_gradients(&found->state, &one->state, found->what);
}

static void check_same(const struct run *found, const struct run *first)
{
    const struct rank_record *x = &first->record.rank[0], *y = &found->record.rank[0];
    CHECK_MSG(memcmp(y->loss, x->loss, sizeof x->loss) == 0 &&
                  memcmp(y->norm, x->norm, sizeof x->norm) == 0,
        "%s: other bits than stage 0", found->what);
    size_t bytes = first->state.params.elements * sizeof(float);
    for (int s = 0; s < STAGE_STATE_COUNT; s++)
        CHECK_MSG(memcmp(found->state.values[s], first->state.values[s], bytes) == 0,
            "%s: other bits of %s than stage 0", found->what,
            s == STAGE_WEIGHTS ? "weights" : "moments");
}

/* one: NULL in T1. */
static void compare_stages(const struct run *one, const struct model *model, struct split split)
{
    static struct run first, found;
    int steps = one != NULL ? STEPS : T1_STEPS;
    run_and_read(&first, model, split, 0, steps);
    fixture_check_ledgers(&first.record, first.what);
    if (one != NULL) check_near(&first, one);
    for (int stage = 1; stage <= 3; stage += FEWER ? 2 : 1) {
        run_and_read(&found, model, split, stage, steps);
        fixture_check_ledgers(&found.record, found.what);
        if (one != NULL) check_near(&found, one);
        check_same(&found, &first);
        state_free(&found.state);
    }
    state_free(&first.state);
}

static void compare(const struct model *model)
{
    static struct run one;
    run_and_read(&one, model, (struct split){1, 1, 1}, 0, STEPS);
    for (int tensor = 1; tensor <= 4; tensor *= 2)
        for (int pipeline = 1; pipeline <= 2; pipeline++)
            for (int data = 1; data <= 2; data++)
                if (!FEWER || tensor * pipeline * data == 4)
                    compare_stages(&one, model, (struct split){tensor, pipeline, data});
    state_free(&one.state);
}

static void test_t1(void)
{
    static const struct model nano37 = {
        "nano-37", {.max_t = 13, .vocab = 101, .layers = 2, .heads = 1, .channels = 37}};
    static const struct model nano36 = {
        "nano-36", {.max_t = 16, .vocab = 101, .layers = 2, .heads = 3, .channels = 36}};
    compare_stages(NULL, &nano37, (struct split){1, 2, 1});
    compare_stages(NULL, &nano37, (struct split){1, 2, 2});
    compare_stages(NULL, &nano37, (struct split){1, 2, 3});
    compare_stages(NULL, &nano36, (struct split){3, 1, 2});
    compare_stages(NULL, &nano36, (struct split){3, 2, 1});
    compare_stages(NULL, &nano36, (struct split){3, 2, 2});
}

int main(void)
{
    fixture_file(tokens_path, "tokens.bin");
    fixture_tokens(tokens_path, 101, 6000);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (!FEWER || models[i].config.channels == 32) compare(&models[i]);
    test_t1();
    fixture_remove();
    return test_result();
}
