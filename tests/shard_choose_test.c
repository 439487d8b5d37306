/* Questions with endings in training: the score is the same for any number of data ranks, tensor ranks and stages of a pipeline, in every
 * ZeRO stage, for every batch, and that of a plain loop; the ledger stays exact; rows that are too long are refused. ctest: timeout=90
 */
#include "model/choices.h"
#include "model/model.h"
#include "tests/choices_fixture.h"
#include "tests/harness/model_host.h"
#include "tests/shard_fixture.h"

#define EXAMPLES 23
#define ENDINGS  4
#define T        16

static char text_path[256], questions_path[256];

static struct train_config config_of(void)
{
    struct train_config config = fixture_config(text_path);
    config.steps = 2;
    config.lr = 0.0f; /* so that the model is the same after every step, whoever trains it */
    config.batch = 5;
    config.hellaswag = questions_path;
    config.hellaswag_every = 1;
    return config;
}

/* ---- a plain loop: every row alone ---- */

static struct choices_score expect(void)
{
    const struct train_config config = config_of();
    struct model_host host = model_host_make(&config.model, config.seed);
    struct model_hooks hooks = model_host_hooks(&host);
    struct model_run run = model_host_run(1, T);
    struct choices_score score = {0};
    struct choices *choices;
    struct device *device;
    struct model *model;
    int32_t inputs[T], targets[T];
    size_t counted;
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(choices_open(&choices, questions_path, config.model.vocab, T));
    if (!CHECK_OK(model_open(&model, &host.params, &hooks, &run, device))) exit(test_result());
    for (size_t e = 0; e < choices_count(choices); e++) {
        double losses[ENDINGS];
        for (int i = 0; i < ENDINGS; i++) {
            struct choices_pass row = choices_pass(e, i, 1, choices);
            choices_fill(inputs, targets, &row, choices);
            CHECK_OK(model_forward(&losses[i], &counted, inputs, targets, 1, row.t, model));
        }
        choices_judge(&score, losses, e, choices);
    }
    model_close(model);
    choices_close(choices);
    device_close(device);
    model_host_free(&host);
    return score;
}

/* ---- runs ---- */

static void check_run(const struct train_config *config, int nranks, const struct choices_score *expected)
{
    struct job_record record;
    char what[128];
    snprintf(what, sizeof what, "%d ranks, stage %d, tensor %d, pipeline %d, batch %d", nranks, config->stage, config->tensor,
        config->pipeline, config->batch);
    run_good_job(&record, config, nranks, "shm");
    for (int r = 0; r < nranks; r++) {
        const struct rank_record *rank = &record.rank[r];
        CHECK_MSG(rank->scores == 2 && rank->score.by_mean == expected->by_mean && rank->score.by_sum == expected->by_sum,
            "%s, rank %d: %d scores, %u and %u, expected %u and %u", what, r, rank->scores, (unsigned)rank->score.by_mean,
            (unsigned)rank->score.by_sum, (unsigned)expected->by_mean, (unsigned)expected->by_sum);
        CHECK_MSG(rank->ledger.ok, "%s, rank %d: the ledger differs", what, r);
    }
}

static void test_same(const struct choices_score *expected)
{
    static const struct {
        int nranks, stage, tensor, pipeline, batch;
        bool rows;
    } runs[] = {{1, 0, 1, 1, 1, false}, {1, 0, 1, 1, 3, false}, {1, 0, 1, 1, 4, false}, {1, 0, 1, 1, 17, false}, {2, 1, 1, 1, 5, false}, {3, 2, 1, 1, 2, false},
        {3, 3, 1, 1, 9, false}, {4, 3, 2, 1, 5, false}, {2, 0, 1, 2, 8, false}, {4, 2, 1, 2, 1, false}, {2, 1, 2, 1, 3, true}, {4, 3, 2, 1, 5, true}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct train_config config = config_of();
        config.stage = runs[i].stage;
        config.tensor = runs[i].tensor;
        config.pipeline = runs[i].pipeline;
        config.batch = runs[i].batch;
        config.accumulate = runs[i].pipeline;
        config.sequence_parallel = runs[i].rows;
        check_run(&config, runs[i].nranks, expected);
    }
}

static void test_faults(void)
{
    struct job_record record;
    struct train_config config = config_of();
    config.seq = 8;
    run_job(&record, &config, 2, "shm");
    CHECK(record.rank[0].status == STATUS_DATA && strstr(record.rank[0].text, "expected at most 8: take longer sequences") != NULL);
}

int main(void)
{
    static struct questions questions;
    fixture_file(text_path, "text");
    fixture_file(questions_path, "questions.bin");
    fixture_text(text_path, 6000);
    questions_fill(&questions, EXAMPLES, ENDINGS, 256, T);
    questions_write(&questions, questions_path);
    struct choices_score expected = expect();
    printf("%u by mean, %u by sum of %d\n", (unsigned)expected.by_mean, (unsigned)expected.by_sum, EXAMPLES);
    CHECK(expected.by_mean > 0 && expected.by_mean < EXAMPLES && expected.by_sum > 0 && expected.by_mean != expected.by_sum);
    test_same(&expected);
    test_faults();
    fixture_remove();
    return test_result();
}
