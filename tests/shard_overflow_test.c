/* Case T5: an infinity in one gradient of one rank. All ranks skip the step together, in every stage: weights, moments, Adam's t
 * and the learning rate stay, the loss scale is halved; at its floor the run ends with an error on every rank, as it does at once
 * where there is no loss scale. ctest: timeout=60
 */
#include <math.h>

#include "shard/bucket.h"
#include "tests/shard_fixture.h"

#define BAD_RANK 1

static char text_path[256];
static int reductions_of_a_step, bad_step; /* 0: none */
static _Thread_local int reductions;

/* Reductions are queued by the main thread of a rank, in the same order in every step. */
static void spoil(struct span whole, const struct bucket *bucket)
{
    int step = 1 + reductions++ / reductions_of_a_step;
    if (fixture_own_rank != BAD_RANK || step != bad_step) return;
    if (bucket->dtype == DTYPE_FLOAT32) ((float *)whole.ptr)[1] = INFINITY;
    else ((uint16_t *)whole.ptr)[1] = bucket->dtype == DTYPE_FLOAT16 ? 0x7c00 : 0x7f80;
}

enum status __real_bucket_all_reduce(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream);
enum status __wrap_bucket_all_reduce(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream);
enum status __wrap_bucket_all_reduce(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream)
{
    if (unit == 0) spoil(whole, bucket);
    return __real_bucket_all_reduce(whole, unit, bucket, stream);
}

enum status __real_bucket_reduce_scatter(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream);
enum status __wrap_bucket_reduce_scatter(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream);
enum status __wrap_bucket_reduce_scatter(
    struct span whole, int unit, const struct bucket *bucket, struct stream *stream)
{
    if (unit == 0) spoil(whole, bucket);
    return __real_bucket_reduce_scatter(whole, unit, bucket, stream);
}

static struct train_config config_of(int stage)
{
    struct train_config config = fixture_config(text_path);
    config.stage = stage;
    config.dtype = config.gradient_dtype = config.reduce_dtype = DTYPE_FLOAT16;
    config.scale.growth_interval = 0;
    reductions_of_a_step = 2; /* unit 0: the head's part, the input's */
    return config;
}

/* Both files of the checkpoint after `step`: weights, m and v. */
static size_t read_shards(unsigned char *bytes, size_t most, const char *directory, int step)
{
    size_t count = 0;
    for (int r = 0; r < 2; r++) {
        char path[512];
        snprintf(path, sizeof path, "%s/step-%08d/shard-%05d-of-00002.bin", directory, step, r);
        FILE *file = fopen(path, "r");
        if (!CHECK_MSG(file != NULL, "%s is missing", path)) continue;
        count += fread(bytes + count, 1, most - count, file);
        fclose(file);
    }
    return count;
}

static void test_skipping(int stage)
{
    static unsigned char before[1 << 20], after[1 << 20];
    struct job_record record;
    char directory[256], name[32];
    struct train_config config = config_of(stage);
    snprintf(name, sizeof name, "stage-%d", stage);
    fixture_file(directory, name);
    config.checkpoint_dir = directory;
    config.checkpoint_every = 1;
    config.stop_at = 3;
    bad_step = 3;
    config.scale.value = 0x1p14; /* of no harm to this model */
    run_good_job(&record, &config, 2, "shm");
    for (int r = 0; r < 2; r++)
        CHECK_MSG(record.rank[r].skipped == 1 && !isfinite(record.rank[r].norm[2]) &&
                      isfinite(record.rank[r].loss[2]),
            "stage %d, rank %d: %d skipped, norm %g", stage, r, record.rank[r].skipped,
            record.rank[r].norm[2]);
    float lr = record.rank[0].lr[2];
    size_t bytes = read_shards(before, sizeof before, directory, 2);
    CHECK(bytes > 0 && bytes == read_shards(after, sizeof after, directory, 3));
    CHECK_MSG(
        memcmp(before, after, bytes) == 0, "stage %d: the skipped step changed the state", stage);

    config.stop_at = 5; /* the scale that is saved; Adam's t gives the learning rate */
    config.resume_dir = directory;
    bad_step = 0;
    run_good_job(&record, &config, 2, "shm");
    CHECK(record.rank[1].skipped == 0 && record.rank[1].loss_scale == 0x1p13);
    CHECK_MSG(record.rank[1].lr[0] == lr && record.rank[1].lr[1] != lr,
        "stage %d: learning rate %g, expected %g again", stage, (double)record.rank[1].lr[0],
        (double)lr);
}

static void test_end(int stage, enum dtype dtype, const char *word)
{
    struct job_record record;
    struct train_config config = config_of(stage);
    config.dtype = config.gradient_dtype = config.reduce_dtype = dtype;
    config.scale.value = config.scale.floor = 0x1p14;
    bad_step = 2;
    run_job(&record, &config, 2, "shm");
    /* The rank that sees it first ends the job: the other may hear of it while it still gathers the norm. */
    for (int r = 0; r < 2; r++)
        CHECK_MSG((record.rank[r].status == STATUS_DATA || record.rank[r].status == STATUS_ABORTED) &&
                      record.rank[r].steps == 1 && strstr(record.rank[r].text, word) != NULL,
            "stage %d, rank %d: %s: %s", stage, r, status_name(record.rank[r].status),
            record.rank[r].text);
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    for (int stage = 0; stage <= 3; stage++) {
        test_skipping(stage);
        test_end(stage, DTYPE_FLOAT16, "lowest loss scale, 16384");
        test_end(stage, DTYPE_BFLOAT16, "the gradient's norm is");
        test_end(stage, DTYPE_FLOAT32, "the gradient's norm is");
    }
    fixture_remove();
    return test_result();
}
