/* Pipelines, alone and with tensor and data parallelism, in every ZeRO stage: losses and norms are
 * those of one rank within 1e-5, of the same bits on all ranks and in all stages; every byte held and
 * sent is the one predicted. So it is with checkpoints in all their ways, 16-bit numbers, reductions of
 * each micro-batch, fewer micro-batches than stages, validation and a sample. A rank that is killed is
 * an error on all others.
 * ctest: timeout=120
 */
#include <math.h>
#include <sys/mman.h>

#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"

enum { VOCAB = 101, TOKENS = 4000 };

/* H4 C32 V101: rows of the vocabulary that nothing divides. A global batch of 8 sequences. */
static struct train_config config_of(const char *data, int tensor, int pipeline, int data_ranks)
{
    struct train_config config = fixture_config(data);
    config.model = (struct model_config){
        .max_t = 16, .vocab = VOCAB, .layers = 4, .heads = 4, .channels = 32, .vocab_block = 40};
    config.tensor = tensor;
    config.pipeline = pipeline;
    config.steps = 4;
    config.batch = 1;
    config.accumulate = 8 / data_ranks;
    config.step_ledger = true;
    return config;
}

static void check_ledgers(const struct job_record *record)
{
    char what[64];
    snprintf(what, sizeof what, "M%d P%d of %d ranks, stage %d", record->config->tensor,
        record->config->pipeline, record->nranks, record->config->stage);
    fixture_check_ledgers(record, what);
}

static void check_close(const struct job_record *found, const struct job_record *one)
{
    for (int s = 0; s < one->rank[0].steps; s++) {
        double loss = found->rank[0].loss[s], norm = found->rank[0].norm[s];
        double loss_one = one->rank[0].loss[s], norm_one = one->rank[0].norm[s];
        CHECK_MSG(fabs(loss / loss_one - 1.0) < 1e-5 && fabs(norm / norm_one - 1.0) < 1e-5,
            "M%d P%d of %d ranks, stage %d, step %d: loss %.9g, expected %.9g; norm %.9g, expected "
            "%.9g",
            found->config->tensor, found->config->pipeline, found->nranks, found->config->stage,
            s + 1, loss, loss_one, norm, norm_one);
    }
}

static bool same_losses(const struct job_record *a, const struct job_record *b)
{
    return memcmp(a->rank[0].loss, b->rank[0].loss, sizeof a->rank[0].loss) == 0 &&
           memcmp(a->rank[0].norm, b->rank[0].norm, sizeof a->rank[0].norm) == 0;
}

static void test_grid(
    const char *data, const struct job_record *one, int tensor, int pipeline, int data_ranks)
{
    struct job_record stage[4];
    struct train_config config[4];
    for (int z = 0; z <= 3; z++) {
        config[z] = config_of(data, tensor, pipeline, data_ranks);
        config[z].stage = z;
        /* Then all reduce at the same moment, and their bits are the same (I3). */
        config[z].unsharded_accumulation = z >= 2;
        run_good_job(&stage[z], &config[z], tensor * pipeline * data_ranks, "shm");
        check_ledgers(&stage[z]);
        check_close(&stage[z], one);
        CHECK(same_losses(&stage[z], &stage[0]));
    }
}

/* Runs the job on one rank, or as it is; both have the same losses, as far as rounding allows, the same
 * validation loss, and draw the same sample. */
static void test_way(struct train_config config, double tolerance)
{
    struct job_record one, many;
    struct train_config single = config;
    int parts = config.tensor * config.pipeline;
    single.tensor = single.pipeline = 1;
    single.validate_every = config.validate_every = 2;
    single.sample_tokens = config.sample_tokens = 20;
    run_good_job(&one, &single, 1, "shm");
    run_good_job(&many, &config, parts, "shm");
    check_ledgers(&many);
    for (int s = 0; s < one.rank[0].steps; s++)
        CHECK_MSG(fabs(many.rank[0].loss[s] / one.rank[0].loss[s] - 1.0) < tolerance,
            "step %d: loss %.9g, expected %.9g", s + 1, many.rank[0].loss[s], one.rank[0].loss[s]);
    CHECK(fabs(many.rank[0].validation / one.rank[0].validation - 1.0) < tolerance);
    for (int r = 0; r < parts; r++) {
        CHECK(many.rank[r].validation == many.rank[0].validation);
        CHECK(many.rank[r].sample_count == one.rank[0].sample_count);
        CHECK(memcmp(many.rank[r].sample, many.rank[0].sample, sizeof many.rank[0].sample) == 0);
    }
    if (tolerance < 1e-4)
        CHECK(memcmp(many.rank[0].sample, one.rank[0].sample, sizeof one.rank[0].sample) == 0);
}

static void test_ways(const char *data)
{
    for (enum activation_keep keep = ACTIVATION_ALL; keep <= ACTIVATION_OFFLOADED; keep++)
        for (int stage = 1; stage <= 3; stage += 2) {
            struct train_config config = config_of(data, keep % 2 + 1, 2, 1);
            config.stage = stage;
            config.activations = keep;
            config.offload_optimizer = stage == 3;
            config.overlap = keep != ACTIVATION_PART;
            test_way(config, 1e-5);
        }
    struct train_config few = config_of(data, 1, 4, 1);
    few.accumulate = 2;
    few.stage = 2;
    test_way(few, 1e-5);
    few.accumulate = 1;
    few.model.layers = 7;
    test_way(few, 1e-5);
    struct train_config narrow = config_of(data, 2, 2, 1);
    narrow.dtype = narrow.gradient_dtype = narrow.reduce_dtype = DTYPE_BFLOAT16;
    narrow.stage = 3;
    test_way(narrow, 0.02);
}

/* ---- a rank dies ---- */

struct killed_job {
    struct train_config config;
    int victim;
    enum status status[4];
};

static _Thread_local bool is_victim;

static void die(void *context, const struct train_report *report)
{
    (void)context;
    if (is_victim && report->step == 2) raise(SIGKILL);
}

static void rank_job(struct bootstrap *bootstrap, void *argument)
{
    struct killed_job *job = argument;
    int rank = bootstrap_rank(bootstrap);
    const struct train_observer observer = {.step = die};
    struct ring_config ring = {.transport = "shm"};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    is_victim = rank == job->victim;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    if (CHECK_OK(ring_comm_open(&comm, &ring, bootstrap, device)))
        job->status[rank] = train(&job->config, &observer, comm, bootstrap, device);
    ring_comm_close(comm);
    device_close(device);
}

static void test_death(const char *data)
{
    for (int victim = 0; victim < 4; victim++) {
        struct killed_job *job =
            mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (job == MAP_FAILED) abort();
        *job = (struct killed_job){.config = config_of(data, 2, 2, 1), .victim = victim};
        job->config.stage = victim;
        job->config.steps = 1000;
        CHECK(ranks_as_processes(4, 10000, rank_job, job, victim) == 0);
        for (int r = 0; r < 4; r++)
            CHECK_MSG(r == victim || job->status[r] != STATUS_OK, "rank %d has not noticed", r);
        munmap(job, sizeof *job);
    }
}

static void test_refusals(const char *data)
{
    struct train_config config = config_of(data, 1, 5, 1);
    CHECK_STATUS(train_config_check(&config), STATUS_INVALID);
    CHECK_TEXT("pipeline is 5, expected 1 to 4 stages");
    config = config_of(data, 3, 1, 1);
    CHECK_STATUS(train_config_check(&config), STATUS_INVALID);
    CHECK_TEXT("tensor is 3, heads are 4");
    struct job_record record;
    config = config_of(data, 2, 2, 1);
    run_job(&record, &config, 2, "shm");
    for (int r = 0; r < 2; r++) CHECK(record.rank[r].status == STATUS_INVALID);
    CHECK(strstr(record.rank[1].text, "expected their product to divide the 2 ranks") != NULL);
}

int main(void)
{
    char data[256];
    fixture_file(data, "tokens.bin");
    fixture_learnable_tokens(data, VOCAB, TOKENS);
    test_death(data); /* before any thread */
    struct job_record one;
    struct train_config single = config_of(data, 1, 1, 1);
    run_good_job(&one, &single, 1, "shm");
    test_grid(data, &one, 1, 2, 1);
    test_grid(data, &one, 1, 4, 1);
    test_grid(data, &one, 1, 2, 2);
    test_grid(data, &one, 2, 2, 1);
    test_grid(data, &one, 2, 2, 2);
    test_ways(data);
    test_refusals(data);
    fixture_remove();
    return test_result();
}
