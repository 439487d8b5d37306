/* Case T3: micro-4 (288 parameters, units of 8 elements) on 8 ranks: most shards hold one element or only padding. Every element of
 * the gradient and ten losses are those of one rank within 1e-5; saved at 8 and resumed at 8 and at 1. ctest: timeout=60
 */
#include <math.h>

#include "shard/stage.h"
#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"

#define PSI 288

static char text_path[256];
static double gradient[PSI]; /* of the first step: each rank writes what it owns */

enum status __real_stage_norm(double *norm, struct stage *stage);
enum status __wrap_stage_norm(double *norm, struct stage *stage);
static _Thread_local int norms;

/* The gradient is complete and reduced when its norm is taken. */
enum status __wrap_stage_norm(double *norm, struct stage *stage)
{
    TRY(__real_stage_norm(norm, stage));
    if (norms++ > 0) return STATUS_OK;
    const struct layout *layout = stage->config.layout;
    size_t unit_begin = 0;
    for (int u = 0; u < layout->unit_count; u++) {
        struct layout_range owned = layout_owned(layout, u, stage->config.rank);
        const float *values =
            stage_owned(stage->gradients, stage->keeps.gradients, DTYPE_FLOAT32, u, stage).ptr;
        for (size_t i = 0; i < owned.count; i++)
            gradient[unit_begin + owned.begin + i] = (double)values[i];
        unit_begin += layout->unit[u].elements;
    }
    CHECK(unit_begin == PSI);
    return STATUS_OK;
}

static struct train_config micro_config(int nranks, int stage)
{
    struct train_config config = fixture_config(text_path);
    config.model =
        (struct model_config){.max_t = 4, .vocab = 5, .layers = 1, .heads = 1, .channels = 4};
    config.batch = 8 / nranks;
    config.steps = 10;
    config.stage = stage;
    return config;
}

static void check_losses(
    const struct job_record *one, const struct job_record *found, int first, const char *what)
{
    CHECK_MSG(found->rank[0].steps == 10 - first, "%s: %d steps", what, found->rank[0].steps);
    for (int i = first; i < 10; i++) {
        double expected = one->rank[0].loss[i], loss = found->rank[0].loss[i - first];
        CHECK_MSG(fabs(loss - expected) <= 1e-5 * expected,
            "%s: loss of step %d %.9g, expected %.9g", what, i + 1, loss, expected);
    }
}

static void check_gradient(const double *expected, int stage)
{
    double most = 0.0;
    for (int i = 0; i < PSI; i++) most = fmax(most, fabs(expected[i]));
    CHECK(most > 0.0);
    for (int i = 0; i < PSI; i++)
        CHECK_MSG(fabs(gradient[i] - expected[i]) <= 1e-5 * most,
            "stage %d: gradient %d is %.9g, expected %.9g", stage, i, gradient[i], expected[i]);
}

int main(void)
{
    struct job_record one, eight, resumed;
    double expected[PSI];
    char directory[256], name[32];
    fixture_file(text_path, "tokens.bin");
    fixture_tokens(text_path, 5, 3000);
    struct train_config config = micro_config(1, 0);
    run_good_job(&one, &config, 1, "shm");
    memcpy(expected, gradient, sizeof expected);
    for (int stage = 0; stage <= 3; stage++) {
        for (int i = 0; i < PSI; i++) gradient[i] = NAN; /* every element must be somebody's */
        config = micro_config(8, stage);
        run_good_job(&eight, &config, 8, "shm");
        check_gradient(expected, stage);
        check_losses(&one, &eight, 0, "8 ranks");
        snprintf(name, sizeof name, "stage-%d", stage);
        fixture_file(directory, name);
        config.checkpoint_dir = directory;
        config.stop_at = 5;
        run_good_job(&eight, &config, 8, "shm");
        config.checkpoint_dir = NULL;
        config.stop_at = 0;
        config.resume_dir = directory;
        run_good_job(&resumed, &config, 8, "shm");
        check_losses(&one, &resumed, 5, "8 ranks, resumed");
        config.batch = 8;
        run_good_job(&resumed, &config, 1, "shm");
        check_losses(&one, &resumed, 5, "resumed on one rank");
    }
    fixture_remove();
    return test_result();
}
