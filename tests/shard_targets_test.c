/* Case T4: the loss is the mean over the valid targets of the global batch, however they lie among ranks and micro-batches. 5 on
 * rank 0 and 1 on rank 1 count 6, with the losses of one rank that has them all; a step without any has no gradient and no NaN.
 * ctest: timeout=60
 */
#include <math.h>

#include "model/model.h"
#include "model/tokens.h"
#include "tests/shard_fixture.h"

static char text_path[256];

/* How many targets are valid of each sequence of a step's global batch, from its last position back. */
static struct {
    int nranks, batch, accumulate;
    int valid[4];
    int empty_step; /* that has no valid target at all; 0: none */
} mask;

void __real_tokens_train_batch(
    int32_t *inputs, int32_t *targets, uint64_t index, struct tokens *tokens);
void __wrap_tokens_train_batch(
    int32_t *inputs, int32_t *targets, uint64_t index, struct tokens *tokens);

void __wrap_tokens_train_batch(
    int32_t *inputs, int32_t *targets, uint64_t index, struct tokens *tokens)
{
    const int t = 16;
    int micro = (int)(index % (uint64_t)mask.accumulate);
    int step = 1 + (int)(index / (uint64_t)mask.accumulate);
    __real_tokens_train_batch(inputs, targets, index, tokens);
    for (int row = 0; row < mask.batch; row++) {
        int sequence = (micro * mask.nranks + fixture_own_rank) * mask.batch + row;
        int valid = step == mask.empty_step ? 0 : mask.valid[sequence];
        for (int i = 0; i < t - valid; i++) targets[row * t + i] = MODEL_IGNORED_TARGET;
    }
}

static void run_masked(struct job_record *record, int nranks, int batch, int accumulate, int stage)
{
    struct train_config config = fixture_config(text_path);
    config.batch = batch;
    config.accumulate = accumulate;
    config.stage = stage;
    config.steps = 4;
    mask.nranks = nranks;
    mask.batch = batch;
    mask.accumulate = accumulate;
    run_good_job(record, &config, nranks, "shm");
}

static void check_close(
    const struct job_record *expected, const struct job_record *found, int stage)
{
    const struct rank_record *x = &expected->rank[0], *y = &found->rank[0];
    for (int i = 0; i < 4; i++) {
        CHECK_MSG(fabs(x->loss[i] - y->loss[i]) <= 1e-5 * x->loss[i],
            "stage %d, step %d: loss %.9g, expected %.9g", stage, i + 1, y->loss[i], x->loss[i]);
        CHECK_MSG(fabs(x->norm[i] - y->norm[i]) <= 1e-4 * x->norm[i],
            "stage %d, step %d: norm %.9g, expected %.9g", stage, i + 1, y->norm[i], x->norm[i]);
    }
}

/* With no valid target in step `empty`; 0: in no step. */
static void test_mean(int empty)
{
    struct job_record one, two;
    const int counts[4] = {5, 1, 0, 3};
    memcpy(mask.valid, counts, sizeof counts);
    mask.empty_step = empty;
    run_masked(&one, 1, 2, 1, 0);
    for (int stage = 0; stage <= 3; stage++) {
        run_masked(&two, 2, 1, 1, stage);
        check_close(&one, &two, stage);
    }
    run_masked(&one, 1, 4, 1, 0); /* 9 targets */
    for (int stage = 0; stage <= 3; stage++) {
        run_masked(&two, 2, 1, 2, stage);
        check_close(&one, &two, stage);
    }
    if (empty == 0) return;
    CHECK(two.rank[1].loss[empty - 1] == 0.0 && two.rank[1].norm[empty - 1] == 0.0);
    CHECK(two.rank[0].skipped == 0 && two.rank[0].loss[empty] > 0.0);
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    test_mean(0);
    test_mean(2);
    test_mean(1);
    fixture_remove();
    return test_result();
}
