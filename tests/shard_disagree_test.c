/* Case T13: ranks that were given different things. Other numbers of batches (another file, batch, accumulation, last step), a save or
 * a validation asked for on one rank only: every rank is told what differs, before anything is trained; nobody waits for another.
 * ctest: timeout=60
 */
#include "tests/choices_fixture.h"
#include "tests/shard_fixture.h"

static char text_path[256], short_path[256], directory[256];
static char questions_path[256], fewer_path[256];

static void other_lr(struct train_config *config) { config->lr *= 2.0f; }
static void other_data(struct train_config *config) { config->data = short_path; }
static void no_data(struct train_config *config) { config->data = "/nonexistent/text"; }
static void other_batch(struct train_config *config) { config->batch++; }
static void other_accumulation(struct train_config *config) { config->accumulate = 2; }
static void other_steps(struct train_config *config) { config->steps++; }
static void other_stop(struct train_config *config) { config->stop_at = 3; }
static void other_stage(struct train_config *config) { config->stage = 2; }
static void other_dtype(struct train_config *config) { config->dtype = DTYPE_BFLOAT16; }
static void other_validation(struct train_config *config) { config->validate_every = 1; }
static void no_questions(struct train_config *config) { config->hellaswag = NULL; }
static void other_questions(struct train_config *config) { config->hellaswag = fewer_path; }
static void other_choosing(struct train_config *config) { config->hellaswag_every = 0; }
static void no_sample(struct train_config *config) { config->sample_tokens = 0; }
static void no_checkpoint(struct train_config *config) { config->checkpoint_dir = NULL; }
static void other_checkpoints(struct train_config *config)
{
    config->checkpoint_every = 2;
}
static void some_resume(struct train_config *config) { config->resume_dir = directory; }

/* The last rank has its own configuration; what every rank must say. */
struct disagreement {
    void (*change)(struct train_config *config);
    enum status status;
    const char *word;
};
static const struct disagreement disagreements[] = {
    {other_lr, STATUS_INVALID, "lr is 0.006 on rank 0 and 0.012 on rank 2"},
    {other_data, STATUS_INVALID, "tokens to train on is 18001 on rank 0 and 4501 on rank 2"},
    {no_data, STATUS_DATA, "/nonexistent/text"},
    {other_batch, STATUS_INVALID, "batch is 2 on rank 0 and 3 on rank 2"},
    {other_accumulation, STATUS_INVALID, "accumulate is 1 on rank 0 and 2 on rank 2"},
    {other_steps, STATUS_INVALID, "steps is 6 on rank 0 and 7 on rank 2"},
    {other_stop, STATUS_INVALID, "stop_at is 6 on rank 0 and 3 on rank 2"},
    {other_stage, STATUS_INVALID, "stage is 0 on rank 0 and 2 on rank 2"},
    {other_dtype, STATUS_INVALID, "dtype is float32 on rank 0 and bfloat16 on rank 2"},
    {other_validation, STATUS_INVALID, "validate_every is 0 on rank 0 and 1 on rank 2"},
    {no_questions, STATUS_INVALID, "hellaswag (given or not) is 1 on rank 0 and 0 on rank 2"},
    {other_questions, STATUS_INVALID, "examples of hellaswag is 6 on rank 0 and 5 on rank 2"},
    {other_choosing, STATUS_INVALID, "hellaswag_every is 100 on rank 0 and 0 on rank 2"},
    {no_sample, STATUS_INVALID, "sample length is 4 on rank 0 and 0 on rank 2"},
    {no_checkpoint, STATUS_INVALID, "checkpoint (given or not) is 1 on rank 0 and 0 on rank 2"},
    {other_checkpoints, STATUS_INVALID, "checkpoint_every is 0 on rank 0 and 2 on rank 2"},
    {some_resume, STATUS_INVALID, "resume (given or not) is 0 on rank 0 and 1 on rank 2"},
};

static void rank_disagrees(struct bootstrap *bootstrap, void *argument)
{
    const struct disagreement *disagreement = argument;
    struct train_config config = fixture_config(text_path);
    struct ring_config ring = {.transport = "shm"};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    config.checkpoint_dir = directory;
    config.hellaswag = questions_path;
    config.sample_tokens = 4;
    if (bootstrap_rank(bootstrap) == bootstrap_nranks(bootstrap) - 1) disagreement->change(&config);
    if (!CHECK_OK(device_open(&device, "host"))) return;
    if (CHECK_OK(ring_comm_open(&comm, &ring, bootstrap, device))) {
        CHECK_STATUS(train(&config, NULL, comm, bootstrap, device), disagreement->status);
        CHECK_MSG(strstr(status_text(), disagreement->word) != NULL, "\"%s\", expected \"%s\"",
            status_text(), disagreement->word);
    }
    ring_comm_close(comm);
    device_close(device);
}

static void write_questions(char path[256], const char *name, int examples)
{
    static struct questions questions;
    fixture_file(path, name);
    questions_fill(&questions, examples, 4, 256, 16);
    questions_write(&questions, path);
}

int main(void)
{
    fixture_file(text_path, "text");
    fixture_file(short_path, "short");
    fixture_file(directory, "checkpoint");
    fixture_text(text_path, 20000);
    write_questions(questions_path, "questions", 6);
    write_questions(fewer_path, "fewer", 5);
    fixture_text(short_path, 5000);
    for (size_t i = 0; i < sizeof disagreements / sizeof *disagreements; i++) {
        struct disagreement disagreement = disagreements[i];
        ranks_as_threads(3, 10000, rank_disagrees, &disagreement);
    }
    CHECK(access(directory, F_OK) != 0); /* nobody has begun */
    fixture_remove();
    return test_result();
}
