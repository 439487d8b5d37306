/* Case T9's kill: a rank dies by SIGKILL at one moment after another of a save: in the middle of a write, before and after each
 * fsync and the rename. Every time the other rank ends with an error, and a resumed run finds a whole checkpoint: the one before,
 * or the new one once it has its name. And a rank of a combined run dies between two steps. ctest: timeout=120 labels=plain
 */
#include <dlfcn.h>
#include <sys/mman.h>

#include "tests/shard_fixture.h"

/* Of this process. The test's own fsync, rename and fwrite stand before the C library's. */
static struct {
    bool armed;
    int moment, kill_at;
    int writes;
    uint64_t kill_step;
} fault;

static void reach_moment(void)
{
    if (fault.armed && ++fault.moment == fault.kill_at) raise(SIGKILL);
}

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    reach_moment();
    int result = real(fd);
    reach_moment();
    return result;
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    reach_moment();
    int result = real(from, to);
    reach_moment();
    return result;
}

/* The first and the fifth write stop half-way, on their way to the file. */
size_t fwrite(const void *values, size_t bytes, size_t count, FILE *file)
{
    size_t (*real)(const void *, size_t, size_t, FILE *) =
        (size_t(*)(const void *, size_t, size_t, FILE *))dlsym(RTLD_NEXT, "fwrite");
    if (fault.armed && (++fault.writes == 1 || fault.writes == 5)) {
        size_t half = real(values, bytes, count / 2, file);
        fflush(file);
        reach_moment();
        return half + real((const char *)values + half * bytes, bytes, count - half, file);
    }
    return real(values, bytes, count, file);
}

/* The manifest is one text. */
int fputs(const char *text, FILE *file)
{
    size_t bytes = strlen(text);
    if (fault.armed) {
        bool written = fprintf(file, "%.*s", (int)(bytes / 2), text) >= 0 && fflush(file) == 0;
        reach_moment();
        return written ? fprintf(file, "%s", text + bytes / 2) : EOF;
    }
    return fprintf(file, "%s", text);
}

/* ---- */

struct killed_job {
    struct train_config config;
    int victim, kill_at; /* -1: nobody */
    uint64_t kill_step;  /* the victim dies in place of this step's report; 0: it does not */
    struct rank_record rank[FIXTURE_RANKS];
    int moments; /* that the victim has reached: known when it was not killed */
};

static void step_or_die(void *context, const struct train_report *report)
{
    (void)context;
    if (report->step == fault.kill_step) raise(SIGKILL);
}

static void rank_job(struct bootstrap *bootstrap, void *argument)
{
    struct killed_job *job = argument;
    int rank = bootstrap_rank(bootstrap);
    struct train_observer observer = {
        .context = &job->rank[rank], .start = fixture_start, .step = step_or_die};
    struct ring_config ring = {.transport = "shm"};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    fault.armed = rank == job->victim;
    fault.kill_at = job->kill_at;
    if (rank == job->victim) fault.kill_step = job->kill_step;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    if (CHECK_OK(ring_comm_open(&comm, &ring, bootstrap, device)))
        job->rank[rank].status = train(&job->config, &observer, comm, bootstrap, device);
    if (fault.armed) job->moments = fault.moment;
    ring_comm_close(comm);
    device_close(device);
}

/* Processes write what they found into memory that they share. */
static struct killed_job *new_job(const struct train_config *config, int victim, int kill_at)
{
    struct killed_job *job =
        mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED) abort();
    *job = (struct killed_job){.config = *config, .victim = victim, .kill_at = kill_at};
    return job;
}

static void end_job(struct killed_job *job)
{
    munmap(job, sizeof *job);
}

static void run_well(const struct train_config *config, uint64_t first_step, const char *what)
{
    struct killed_job *job = new_job(config, -1, -1);
    CHECK(ranks_as_processes(2, 10000, rank_job, job, -1) == 0);
    for (int r = 0; r < 2; r++)
        CHECK_MSG(job->rank[r].status == STATUS_OK && job->rank[r].first_step == first_step,
            "%s: %s from step %d, expected step %d", what, status_name(job->rank[r].status),
            (int)job->rank[r].first_step, (int)first_step);
    end_job(job);
}

static void copy_directory(const char *from, const char *to)
{
    char command[1024];
    snprintf(command, sizeof command, "rm -rf %s && cp -r %s %s", to, from, to);
    CHECK(system(command) == 0);
}

/* The save of step 6, with the victim's n-th moment as its last. False when it has no n-th moment. */
static bool kill_at(const char *good, int victim, int moment, const struct train_config *base)
{
    char directory[256], step[300], what[64];
    struct train_config config = *base;
    snprintf(what, sizeof what, "rank %d, moment %d", victim, moment);
    fixture_file(directory, "killed");
    copy_directory(good, directory);
    config.checkpoint_dir = config.resume_dir = directory;
    config.stop_at = 6;
    struct killed_job *job = new_job(&config, victim, moment);
    int failed = ranks_as_processes(2, 10000, rank_job, job, victim);
    bool survived = job->moments > 0;
    CHECK_MSG(survived ? failed == 1 : failed == 0, "%s: %d ranks ended otherwise", what, failed);
    CHECK_MSG(
        survived || job->rank[1 - victim].status != STATUS_OK, "%s: nobody has noticed", what);
    end_job(job);
    if (survived) return false;

    snprintf(step, sizeof step, "%s/step-00000006/manifest.json", directory);
    bool is_new = access(step, F_OK) == 0;
    config.stop_at = 7;
    run_well(&config, is_new ? 6 : 4, what);
    snprintf(step, sizeof step, "%s/tmp-step-00000006", directory);
    CHECK_MSG(access(step, F_OK) != 0, "%s: %s is left after the next save", what, step);
    return true;
}

#define COMBINED_RANKS 8

/* Tensor ranks times stages of a pipeline times data ranks: whoever dies in the middle, everybody else ends
 * with an error, and what is left trains on from the checkpoint under another split. */
static void test_combined(const struct train_config *base)
{
    char directory[256];
    struct train_config config = *base;
    fixture_file(directory, "combined");
    config.checkpoint_dir = directory;
    config.checkpoint_every = 2;
    config.stop_at = 0;
    config.stage = 3;
    config.tensor = config.pipeline = 2;
    config.accumulate = 2;
    for (int victim = 0; victim < COMBINED_RANKS; victim += 3) {
        struct killed_job *job = new_job(&config, victim, -1);
        job->kill_step = 3;
        CHECK(ranks_as_processes(COMBINED_RANKS, 20000, rank_job, job, victim) == 0);
        for (int r = 0; r < COMBINED_RANKS; r++)
            CHECK_MSG(r == victim || job->rank[r].status != STATUS_OK,
                "rank %d died, rank %d has not noticed", victim, r);
        end_job(job);
        struct train_config rest = config;
        rest.resume_dir = directory;
        rest.checkpoint_dir = NULL;
        rest.checkpoint_every = 0;
        rest.tensor = rest.pipeline = 1;
        run_well(&rest, 2, "what is left");
        char command[300];
        snprintf(command, sizeof command, "rm -rf %s", directory);
        CHECK(system(command) == 0);
    }
}

int main(void)
{
    char text[256], good[256];
    signal(SIGXFSZ, SIG_IGN);
    fixture_file(text, "text");
    fixture_text(text, 20000);
    fixture_file(good, "good");
    struct train_config config = fixture_config(text);
    config.steps = 8;
    config.stage = 2;
    config.checkpoint_dir = good;
    config.stop_at = 4;
    run_well(&config, 0, "a good save");
    int moments[2] = {0, 0};
    for (int victim = 0; victim < 2; victim++)
        while (moments[victim] < 30 && kill_at(good, victim, moments[victim] + 1, &config))
            moments[victim]++;
    /* Two writes and an fsync each; rank 0 also writes and fsyncs the manifest, fsyncs both directories, and renames. */
    CHECK_MSG(moments[0] == 13 && moments[1] == 4, "%d and %d moments", moments[0], moments[1]);
    test_combined(&config);
    fixture_remove();
    return test_result();
}
