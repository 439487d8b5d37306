/* Checkpoints: a resumed run has the bits of an uninterrupted one; damage is found before training,
 * with the older one named; a save that fails on one rank is an error on all and leaves the one
 * before; another number of ranks resumes. ctest: timeout=60
 */
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/shard_fixture.h"

static char text_path[256];

static struct train_config config_in(char directory[256], const char *name)
{
    fixture_file(directory, name);
    struct train_config config = fixture_config(text_path);
    config.checkpoint_dir = directory;
    config.checkpoint_every = 2;
    return config;
}

static bool exists(const char *directory, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

/* Steps 4 to 6 again, from the checkpoint after step 3, on 1 to 3 ranks. */
static void test_resume_bits(void)
{
    for (int nranks = 1; nranks <= 3; nranks++) {
        struct job_record whole, first, rest;
        char directory[256], name[32];
        snprintf(name, sizeof name, "bits-%d", nranks);
        struct train_config config = config_in(directory, name);
        config.accumulate = 2;
        config.checkpoint_dir = NULL;
        config.checkpoint_every = 0;
        run_good_job(&whole, &config, nranks, "shm");
        config.checkpoint_dir = directory;
        config.stop_at = 3;
        run_good_job(&first, &config, nranks, "shm");
        CHECK(first.rank[0].steps == 3);
        config.stop_at = 0;
        config.resume_dir = directory;
        run_good_job(&rest, &config, nranks, "shm");
        CHECK(rest.rank[0].first_step == 3 && rest.rank[0].steps == 3);
        for (int i = 0; i < 3; i++) {
            CHECK_MSG(rest.rank[0].loss[i] == whole.rank[0].loss[3 + i],
                "%d ranks, step %d: %.17g resumed, %.17g in one go", nranks, 4 + i,
                rest.rank[0].loss[i], whole.rank[0].loss[3 + i]);
            CHECK(rest.rank[0].norm[i] == whole.rank[0].norm[3 + i]);
        }
        CHECK(rest.rank[0].validation == whole.rank[0].validation);
        CHECK(exists(directory, "step-00000003") && exists(directory, "step-00000006"));
    }
}

static void test_newest_two_are_kept(char directory[256])
{
    struct job_record record;
    struct train_config config = config_in(directory, "kept");
    run_good_job(&record, &config, 2, "shm");
    CHECK(!exists(directory, "step-00000002"));
    CHECK(exists(directory, "step-00000004") && exists(directory, "step-00000006"));
    CHECK(!exists(directory, "tmp-step-00000006"));
    run_job(&record, &config, 2, "shm"); /* from step 0 again, into the same place */
    for (int r = 0; r < 2; r++)
        CHECK_MSG(record.rank[r].status == STATUS_INVALID &&
                      strstr(record.rank[r].text, "step 6") != NULL,
            "%s", record.rank[r].text);
}

/* Every rank fails with DATA, and says each of the words. */
static void expect_damage(const struct train_config *config, const char *const words[])
{
    struct job_record record;
    run_job(&record, config, 2, "shm");
    for (int r = 0; r < 2; r++) {
        CHECK_MSG(record.rank[r].status == STATUS_DATA, "%s: %s",
            status_name(record.rank[r].status), record.rank[r].text);
        CHECK(record.rank[r].steps == 0);
        for (int w = 0; words[w] != NULL; w++)
            CHECK_MSG(strstr(record.rank[r].text, words[w]) != NULL,
                "rank %d says \"%s\", expected %s", r, record.rank[r].text, words[w]);
    }
}

static void flip_bit(const char *path, long offset)
{
    FILE *file = fopen(path, "r+");
    CHECK(file != NULL && fseek(file, offset, SEEK_SET) == 0);
    int byte = fgetc(file);
    CHECK(fseek(file, offset, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF);
    fclose(file);
}

static void put_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Rank 1's file claims the elements of unit 0 that rank 0's has, and as many are in no file: numbers
 * alone would not tell. */
static void test_overlap(const struct train_config *config, const char *manifest)
{
    char before[1 << 14], text[sizeof before];
    FILE *file = fopen(manifest, "r");
    if (!CHECK(file != NULL && fgets(before, sizeof before, file) != NULL)) return;
    fclose(file);
    memcpy(text, before, sizeof text);
    char *begin = strstr(text, "shard-00001-of-00002.bin");
    begin = begin != NULL ? strstr(begin, "[[0,") : NULL;
    if (!CHECK(begin != NULL && begin[4] != '0')) return;
    for (begin += 4; begin[1] != ','; begin++) *begin = ' ';
    *begin = '0';
    put_text(manifest, text);
    expect_damage(config,
        (const char *const[]){"manifest.json: elements 0 to ",
            " of unit 0 are in shards[0].ranges[0] (shard-00000-of-00002.bin) and in "
            "shards[1].ranges[0] (shard-00001-of-00002.bin), expected in one of them", NULL});
    put_text(manifest, before);
}

static void test_damage(const char *directory)
{
    struct job_record record;
    struct stat about;
    char path[512], manifest[512], older[512];
    snprintf(path, sizeof path, "%s/step-00000006/shard-00001-of-00002.bin", directory);
    snprintf(manifest, sizeof manifest, "%s/step-00000006/manifest.json", directory);
    snprintf(older, sizeof older, "%s/step-00000004", directory);
    struct train_config config = fixture_config(text_path);
    config.steps = 8;
    config.resume_dir = directory;
    CHECK(stat(path, &about) == 0);

    flip_bit(path, (long)about.st_size / 2);
    expect_damage(&config,
        (const char *const[]){"shard-00001-of-00002.bin", "crc32 is", "expected", older, NULL});
    flip_bit(path, (long)about.st_size / 2);
    test_overlap(&config, manifest);
    run_good_job(&record, &config, 2, "shm");
    CHECK(record.rank[0].first_step == 6);

    CHECK(truncate(path, about.st_size - 1) == 0);
    expect_damage(&config,
        (const char *const[]){"shard-00001-of-00002.bin", "size is", "expected", older, NULL});
    CHECK(unlink(path) == 0);
    expect_damage(&config,
        (const char *const[]){"shard-00001-of-00002.bin", "cannot be opened", older, NULL});
    CHECK(truncate(manifest, 100) == 0);
    expect_damage(&config, (const char *const[]){"manifest.json", "JSON", older, NULL});

    config.resume_dir = older;
    run_good_job(&record, &config, 2, "shm");
    CHECK(record.rank[0].first_step == 4);
    config.model.layers = 1;
    run_job(&record, &config, 2, "shm");
    for (int r = 0; r < 2; r++)
        CHECK_MSG(record.rank[r].status == STATUS_INVALID &&
                      strstr(record.rank[r].text, "model.layers is 2") != NULL,
            "%s", record.rank[r].text);
    config.resume_dir = "/nonexistent";
    expect_damage(&config, (const char *const[]){"/nonexistent", "no checkpoint", NULL});
}

/* A limit on the size of files stands for a full disk. */
static void test_failed_save(void)
{
    struct job_record record;
    char directory[256];
    struct rlimit before, small;
    struct train_config config = config_in(directory, "full");
    config.stop_at = 2;
    run_good_job(&record, &config, 2, "shm");
    CHECK(exists(directory, "step-00000002"));
    config.resume_dir = directory;
    config.stop_at = 6;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = (struct rlimit){.rlim_cur = 50000, .rlim_max = before.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    run_job(&record, &config, 2, "tcp"); /* shared memory would be limited too */
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    for (int r = 0; r < 2; r++) {
        CHECK_MSG(record.rank[r].status == STATUS_SYSTEM &&
                      strstr(record.rank[r].text, "cannot be written") != NULL,
            "rank %d: %s: %s", r, status_name(record.rank[r].status), record.rank[r].text);
        CHECK(record.rank[r].steps == 2); /* 3 and 4, then the save */
    }
    CHECK(exists(directory, "step-00000002") && !exists(directory, "step-00000004") &&
          !exists(directory, "tmp-step-00000004"));
    run_good_job(&record, &config, 2, "shm");
    CHECK(record.rank[0].first_step == 2 && exists(directory, "step-00000006"));
}

/* From 2 ranks to 3 and to 1, the same global batch: the losses stay close. */
static void test_other_rank_counts(void)
{
    struct job_record whole, first, three, one;
    char directory[256];
    struct train_config config = config_in(directory, "ranks");
    config.batch = 3;
    config.checkpoint_dir = NULL;
    config.checkpoint_every = 0;
    run_good_job(&whole, &config, 2, "shm");
    config.checkpoint_dir = directory;
    config.stop_at = 3;
    run_good_job(&first, &config, 2, "shm");
    config.checkpoint_dir = NULL;
    config.stop_at = 0;
    config.resume_dir = directory;
    config.batch = 2;
    run_good_job(&three, &config, 3, "shm");
    config.batch = 6;
    run_good_job(&one, &config, 1, "shm");
    for (int i = 0; i < 3; i++) {
        double expected = whole.rank[0].loss[3 + i];
        CHECK_MSG(fabs(three.rank[0].loss[i] - expected) < 1e-5 * expected,
            "3 ranks: %.9g and %.9g", three.rank[0].loss[i], expected);
        CHECK_MSG(fabs(one.rank[0].loss[i] - expected) < 1e-5 * expected, "1 rank: %.9g and %.9g",
            one.rank[0].loss[i], expected);
    }
}

int main(void)
{
    char kept[256];
    signal(SIGXFSZ, SIG_IGN);
    fixture_file(text_path, "text");
    fixture_text(text_path, 20000);
    test_resume_bits();
    test_newest_two_are_kept(kept);
    test_damage(kept);
    test_failed_save();
    test_other_rank_counts();
    fixture_remove();
    return test_result();
}
