/* bfloat16 weights rounded by chance: an element's chances go by seed, step and place in the whole model,
 * so every stage has the same bits, an offloaded optimizer too; ranks that share tensors round replicas
 * alike; a resumed run goes on with the bits of the uninterrupted one; and rounding to nearest is another
 * run. Other dtypes are refused.
 * ctest: timeout=60
 */
#include "tests/shard_fixture.h"

static char text_path[256];

static struct train_config chance_config(void)
{
    struct train_config config = fixture_config(text_path);
    config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_BFLOAT16;
    config.stochastic_rounding = true;
    return config;
}

static bool same(
    const struct rank_record *a, int a_step, const struct rank_record *b, int b_step, int steps)
{
    return memcmp(a->loss + a_step, b->loss + b_step, (size_t)steps * sizeof *a->loss) == 0 &&
           memcmp(a->norm + a_step, b->norm + b_step, (size_t)steps * sizeof *a->norm) == 0;
}

static void test_stages(void)
{
    struct job_record first, other;
    struct train_config config = chance_config();
    run_good_job(&first, &config, 3, "shm");
    for (int stage = 1; stage <= 3; stage++) {
        config.stage = stage;
        config.offload_optimizer = stage == 2;
        run_good_job(&other, &config, 3, "shm");
        CHECK_MSG(same(&first.rank[0], 0, &other.rank[0], 0, 6),
            "stage %d: loss %.9g, expected %.9g", stage, other.rank[0].loss[5],
            first.rank[0].loss[5]);
    }
    config.stage = 0;
    config.offload_optimizer = config.stochastic_rounding = false;
    run_good_job(&other, &config, 3, "shm");
    CHECK(!same(&first.rank[0], 0, &other.rank[0], 0, 6));
    CHECK(first.rank[0].loss[0] ==
          other.rank[0].loss[0]); /* starting values are rounded to nearest */
}

/* Gradients of shared tensors are those of one rank within rounding, and chances are its own. */
static void test_tensors(void)
{
    struct job_record one, shared;
    struct train_config config = chance_config();
    run_good_job(&one, &config, 1, "shm");
    config.tensor = 2;
    run_good_job(&shared, &config, 2, "shm");
    for (int i = 0; i < 6; i++) {
        double difference = shared.rank[0].loss[i] - one.rank[0].loss[i];
        CHECK_MSG(difference < 2e-2 && difference > -2e-2, "step %d: loss %.9g, expected %.9g", i,
            shared.rank[0].loss[i], one.rank[0].loss[i]);
    }
}

static void test_resume(int tensor)
{
    struct job_record whole, first, second;
    char directory[256];
    struct train_config config = chance_config();
    config.tensor = tensor;
    run_good_job(&whole, &config, 2 * tensor, "shm");
    snprintf(directory, sizeof directory, "%s/run-%d", fixture_directory(), tensor);
    config.checkpoint_dir = directory;
    config.stop_at = 3;
    run_good_job(&first, &config, 2 * tensor, "shm");
    config.checkpoint_dir = NULL;
    config.stop_at = 0;
    config.resume_dir = directory;
    config.stage = 3;
    run_good_job(&second, &config, 2 * tensor, "shm");
    CHECK_MSG(same(&whole.rank[0], 3, &second.rank[0], 0, 3),
        "tensor %d, resumed: loss %.9g, expected %.9g", tensor, second.rank[0].loss[0],
        whole.rank[0].loss[3]);
}

int main(void)
{
    struct job_record refused;
    fixture_file(text_path, "text");
    fixture_text(text_path, 8000);
    test_stages();
    test_tensors();
    test_resume(1);
    test_resume(2);
    struct train_config config = chance_config();
    config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_FLOAT16;
    run_job(&refused, &config, 1, "shm");
    CHECK(refused.rank[0].status == STATUS_INVALID);
    CHECK_MSG(strstr(refused.rank[0].text, "dtype is float16: expected bfloat16") != NULL, "%s",
        refused.rank[0].text);
    fixture_remove();
    return test_result();
}
