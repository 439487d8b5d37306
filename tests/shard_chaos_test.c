/* Chaos of combined parallel runs: ranks that share tensors, stages of a pipeline and data ranks train
 * and save, one of them is killed at a random moment of a random step, and whoever is started next, split
 * in another way, goes on from what is on disk.
 *
 *   shard_chaos_test [--seconds N] [--seed N]     about 10 s by default; prints the seed, which brings
 *                                                 the same episodes again
 *
 *   an episode          2 x 2 x 2 ranks, killed ► perhaps again, split at random, killed ► to the end
 *
 *   the victim dies in  a matrix product          of the step that was drawn, or of the next one
 *                       a collective's wait       that has so many of them
 *                       a write of its shard, half of it written, or its fsync
 *                       the manifest's write and rename, before it or after it (rank 0)
 *                       whatever it does then, after some microseconds
 *
 * Every other rank ends with an error that names the dead one, before its deadline; no process and no
 * file in /dev/shm is left; losses are those of an uninterrupted run within 1e-5, and its bits where the
 * split is the same, whatever the ZeRO stage and the way to keep activations.
 * ctest: timeout=120 labels=plain
 */
#include <dlfcn.h>
#include <math.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cblas.h>

#include "model/blas.h"
#include "tests/harness/chaos_operation.h"
#include "verbs/clock.h"
#define FIXTURE_NO_TEXT
#include "tests/shard_fixture.h"

enum { VOCAB = 101, TOKENS = 4000, STEPS = 6, SAVE_EVERY = 2, SEQUENCES = 8 };

/* Until every survivor's train() has returned: wide, since eight ranks share whatever cores there are,
 * and one of them may be amid a step of its own when the news comes; but before any wait's deadline,
 * which so cannot be what ended it. That news take less than a second ring_chaos_test judges. */
#define NEWS_OF_DEATH_MS 15000
#define MOST_RANKS       8
#define DEADLINE_MS      20000
#define ENOUGH           40 /* episodes, for a death in each moment */

/* ---- moments to die at: the test's own functions stand before the libraries' ---- */

enum moment { IN_PRODUCT, IN_WAIT, IN_WRITE, IN_NAMING, IN_TIME, MOMENTS };
static const char *const moment_names[MOMENTS] = {
    "a product", "a wait", "a write", "the manifest", "time"};

/* The functions that ours stand before. */
enum stand_in {
    STAND_IN_SGEMM,
    STAND_IN_YIELD,
    STAND_IN_FWRITE,
    STAND_IN_FSYNC,
    STAND_IN_RENAME,
    STAND_INS
};
static const char *const stand_in_names[STAND_INS] = {
    "cblas_sgemm", "sched_yield", "fwrite", "fsync", "rename"};

/* Of this process. */
static struct {
    int *calls; /* [STAND_INS], by all ranks; NULL: this is none */
    bool armed;
    enum moment moment;
    int left; /* moments until death; IN_TIME: microseconds */
    int64_t *died_ns;
} fate;

static void die(int signal)
{
    (void)signal;
    __atomic_store_n(fate.died_ns, clock_ns(), __ATOMIC_RELEASE);
    kill(getpid(), SIGKILL);
}

static void count_call(enum stand_in function)
{
    if (fate.calls != NULL) __atomic_add_fetch(&fate.calls[function], 1, __ATOMIC_RELAXED);
}

/* Any thread: the communicator's, too. */
static void reach(enum moment moment)
{
    if (!__atomic_load_n(&fate.armed, __ATOMIC_ACQUIRE) || fate.moment != moment) return;
    if (__atomic_sub_fetch(&fate.left, 1, __ATOMIC_ACQ_REL) == 0) die(0);
}

void cblas_sgemm(const enum CBLAS_ORDER order, const enum CBLAS_TRANSPOSE a_way,
    const enum CBLAS_TRANSPOSE b_way, const blasint m, const blasint n, const blasint k,
    const float alpha, const float *a, const blasint lda, const float *b, const blasint ldb,
    const float beta, float *c, const blasint ldc)
{
    typedef void product(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, blasint,
        blasint, blasint, float, const float *, blasint, const float *, blasint, float, float *,
        blasint);
    static product *real;
    product *found = __atomic_load_n(&real, __ATOMIC_RELAXED);
    if (found == NULL) found = (product *)dlsym(RTLD_NEXT, "cblas_sgemm");
    __atomic_store_n(&real, found, __ATOMIC_RELAXED);
    count_call(STAND_IN_SGEMM);
    reach(IN_PRODUCT);
    found(order, a_way, b_way, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

int sched_yield(void)
{
    count_call(STAND_IN_YIELD);
    reach(IN_WAIT);
    return (int)syscall(SYS_sched_yield);
}

size_t fwrite(const void *values, size_t bytes, size_t count, FILE *file)
{
    size_t (*real)(const void *, size_t, size_t, FILE *) =
        (size_t(*)(const void *, size_t, size_t, FILE *))dlsym(RTLD_NEXT, "fwrite");
    count_call(STAND_IN_FWRITE);
    if (!fate.armed) return real(values, bytes, count, file);
    size_t half = real(values, bytes, count / 2, file);
    fflush(file);
    reach(IN_WRITE);
    return half + real((const char *)values + half * bytes, bytes, count - half, file);
}

int fsync(int fd)
{
    count_call(STAND_IN_FSYNC);
    reach(IN_WRITE);
    int result = (int)syscall(SYS_fsync, fd);
    reach(IN_NAMING);
    return result;
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    count_call(STAND_IN_RENAME);
    reach(IN_NAMING);
    int result = real(from, to);
    reach(IN_NAMING);
    return result;
}

/* ---- a run ---- */

static bool good = true; /* in this process, so far */

static void expect(bool held)
{
    good &= held;
}

struct split {
    int tensor, pipeline, data, group;
};
static const struct split splits[] = {{2, 2, 2, 0}, {2, 2, 2, 1}, {1, 1, 1, 0}, {4, 2, 1, 0},
    {2, 1, 4, 2}, {1, 4, 2, 0}, {1, 2, 1, 0}, {4, 1, 1, 0}, {1, 1, 4, 0}};
#define SPLITS ((int)(sizeof splits / sizeof *splits))

/* Shared by the processes of a job. */
struct attempt {
    struct train_config config;
    int split, nranks;
    int victim; /* -1: nobody */
    uint64_t step;
    enum moment moment;
    int moments;
    int64_t died_ns;
    int calls[STAND_INS];
    struct {
        struct rank_record record;
        int64_t ended_ns;
    } rank[MOST_RANKS];
};

static _Thread_local const struct attempt *own_attempt; /* of the victim */

static void arm(uint64_t steps_done)
{
    const struct attempt *attempt = own_attempt;
    if (attempt == NULL || fate.armed || steps_done + 1 != attempt->step) return;
    fate.moment = attempt->moment;
    fate.left = attempt->moments;
    __atomic_store_n(&fate.armed, true, __ATOMIC_RELEASE);
    if (attempt->moment != IN_TIME) return;
    struct itimerval time = {.it_value = {0, attempt->moments}};
    signal(SIGALRM, die);
    setitimer(ITIMER_REAL, &time, NULL);
}

static void start(void *context, const struct train_start *start)
{
    fixture_start(context, start);
    arm(start->first_step);
}

static void step(void *context, const struct train_report *report)
{
    fixture_step(context, report);
    if (report->step < STEPS) arm(report->step);
}

/* After the last save others may be done before this rank is. */
static void saved(void *context, const char *directory, uint64_t step)
{
    (void)context, (void)directory;
    if (step == STEPS) {
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
        __atomic_store_n(&fate.armed, false, __ATOMIC_RELEASE);
    }
}

static void rank_body_of(struct bootstrap *bootstrap, void *argument)
{
    struct attempt *attempt = argument;
    int rank = bootstrap_rank(bootstrap);
    struct rank_record *record = &attempt->rank[rank].record;
    const struct train_observer observer = {
        .context = record, .start = start, .step = step, .saved = saved};
    struct ring_config ring = {.transport = "shm", .slot_bytes = 4096};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    blas_set_threads(1); /* and so the program is linked to it, whose product ours calls */
    fate.died_ns = &attempt->died_ns;
    fate.calls = attempt->calls;
    if (rank == attempt->victim) own_attempt = attempt;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    if (CHECK_OK(ring_comm_open(&comm, &ring, bootstrap, device))) {
        record->status = train(&attempt->config, &observer, comm, bootstrap, device);
        if (record->status != STATUS_OK)
            snprintf(record->text, sizeof record->text, "%s", status_text());
        attempt->rank[rank].ended_ns = clock_ns();
    }
    ring_comm_close(comm);
    device_close(device);
}

static void check_survivors(const struct attempt *attempt)
{
    char name[16];
    snprintf(name, sizeof name, "rank %d", attempt->victim);
    for (int r = 0; r < attempt->nranks; r++) {
        const struct rank_record *record = &attempt->rank[r].record;
        if (r == attempt->victim) continue;
        bool told = record->status == STATUS_PEER || record->status == STATUS_ABORTED;
        expect(CHECK_MSG(told && strstr(record->text, name) != NULL,
            "rank %d: expected PEER or ABORTED and \"%s\", found %s: %s", r, name,
            status_name(record->status), record->text));
        int64_t ms = (attempt->rank[r].ended_ns - attempt->died_ns) / 1000000;
        expect(CHECK_MSG(
            ms <= NEWS_OF_DEATH_MS, "rank %d ended %lld ms after the death", r, (long long)ms));
    }
}

/* Returns whether the victim has died. */
static bool run_attempt(struct attempt *attempt)
{
    int failed =
        ranks_as_processes(attempt->nranks, DEADLINE_MS, rank_body_of, attempt, attempt->victim);
    bool died = attempt->died_ns != 0;
    /* A victim whose moment never came ends as all others do. */
    expect(
        CHECK_MSG(failed == (attempt->victim >= 0 && !died), "%d ranks ended otherwise", failed));
    if (died) check_survivors(attempt);
    for (int r = 0; r < attempt->nranks && !died; r++)
        expect(CHECK_MSG(attempt->rank[r].record.status == STATUS_OK, "rank %d: %s", r,
            attempt->rank[r].record.text));
    expect(CHECK_MSG(waitpid(-1, NULL, WNOHANG) < 0, "a process is left"));
    expect(CHECK_MSG(count_files("/dev/shm", "ringzero") == 0, "a file is left in /dev/shm"));
    return died;
}

/* ---- episodes ---- */

static char tokens_path[256], directory[256];

static struct train_config config_of(const struct split *split, int stage, int keep)
{
    struct train_config config = fixture_config(tokens_path);
    config.model = (struct model_config){
        .max_t = 16, .vocab = VOCAB, .layers = 4, .heads = 4, .channels = 32, .vocab_block = 40};
    config.tensor = split->tensor;
    config.pipeline = split->pipeline;
    config.shard_group = split->group;
    config.stage = stage;
    config.activations = (enum activation_keep)keep;
    config.unsharded_accumulation =
        stage >= 2; /* then all reduce at the same moment: the same bits */
    config.steps = STEPS;
    config.batch = 1;
    config.accumulate = SEQUENCES / split->data;
    config.checkpoint_dir = directory;
    config.checkpoint_every = SAVE_EVERY;
    return config;
}

static bool is_saved(void)
{
    for (int step = SAVE_EVERY; step <= STEPS; step += SAVE_EVERY) {
        char path[300];
        snprintf(path, sizeof path, "%s/step-%08d/manifest.json", directory, step);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

/* Draws everything but whether somebody dies. */
static void draw_attempt(struct attempt *attempt, int split, uint64_t *seed)
{
    *attempt = (struct attempt){.split = split, .victim = -1};
    const struct split *of = &splits[split];
    int stage = (int)chaos_random_below(seed, 4), keep = (int)chaos_random_below(seed, 4);
    attempt->nranks = of->tensor * of->pipeline * of->data;
    attempt->config = config_of(of, stage, keep);
    if (is_saved()) attempt->config.resume_dir = directory;
}

/* In a step that saves where that is what the moment is about. */
static void draw_death(struct attempt *attempt, enum moment moment, uint64_t *seed)
{
    static const int most[MOMENTS] = {60, 60, 12, 6, 30000};
    attempt->moment = moment;
    attempt->moments = 1 + (int)chaos_random_below(seed, (unsigned)most[moment]);
    attempt->victim = (int)chaos_random_below(seed, (unsigned)attempt->nranks);
    attempt->step = 1 + chaos_random_below(seed, STEPS - 1);
    if (moment == IN_NAMING) attempt->victim = 0;
    if (moment == IN_NAMING || moment == IN_WRITE) attempt->step += attempt->step % SAVE_EVERY;
}

/* Of the losses that any rank has reported. */
static void check_losses(const struct attempt *attempt, const struct attempt *whole, bool same_bits)
{
    for (int r = 0; r < attempt->nranks; r++) {
        const struct rank_record *found = &attempt->rank[r].record;
        for (int s = 0; s < found->steps; s++) {
            double loss = found->loss[s];
            double expected = whole->rank[0].record.loss[found->first_step + (uint64_t)s];
            expect(CHECK_MSG(same_bits ? loss == expected : fabs(loss / expected - 1.0) <= 1e-5,
                "rank %d, step %d: loss %.17g, expected %.17g", r, (int)found->first_step + s + 1,
                loss, expected));
        }
    }
}

static void remove_checkpoints(void)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    expect(CHECK(system(command) == 0));
}

/* What happened, for a failure. */
static void tell(const struct attempt *attempt, int number, bool died)
{
    const struct train_config *config = &attempt->config;
    fprintf(stderr,
        "episode %d: %d x %d x %d, stage %d, activations %s, from step %d: rank %d, step %d, %d of "
        "%s: %s\n",
        number, config->tensor, config->pipeline, splits[attempt->split].data, config->stage,
        activation_keep_name(config->activations), (int)attempt->rank[0].record.first_step,
        attempt->victim, (int)attempt->step, attempt->moments, moment_names[attempt->moment],
        died ? "died" : "lived");
}

/* Both splits of 2 x 2 x 2 ranks but for the shard group, which decides the order of sums. */
static bool run_episode(int number, int deaths[MOMENTS], struct attempt *attempt,
    const struct attempt *whole, uint64_t *seed)
{
    bool same_bits = true, died = true;
    for (int turn = 0; died && good; turn++) {
        int split = turn > 0 ? (int)chaos_random_below(seed, SPLITS) : 0;
        draw_attempt(attempt, split, seed);
        if (turn == 0 || (turn == 1 && attempt->nranks > 1 && chaos_random_below(seed, 2) == 0))
            draw_death(attempt, (enum moment)((number + turn) % MOMENTS), seed);
        died = run_attempt(attempt);
        same_bits &= split == 0;
        deaths[attempt->moment] += died;
        check_losses(attempt, whole, same_bits);
        if (!good) tell(attempt, number, died);
    }
    remove_checkpoints();
    return good;
}

/* Nobody dies in a function that training does not call any more. */
static void check_stand_ins(const struct attempt *whole)
{
    for (int f = 0; f < STAND_INS; f++)
        CHECK_MSG(whole->calls[f] > 0, "training never called %s: what does it call now?",
            stand_in_names[f]);
}

/* Of the moments that do not hang on the machine's speed. */
static bool all_have_died(const int deaths[MOMENTS])
{
    return deaths[IN_PRODUCT] > 0 && deaths[IN_WRITE] > 0 && deaths[IN_NAMING] > 0;
}

int main(int argc, char **argv)
{
    int seconds = 10, number = 0, deaths[MOMENTS] = {0};
    uint64_t seed = (uint64_t)clock_ns() ^ (uint64_t)getpid() << 32;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) seconds = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 0);
    }
    printf("seed %llu\n", (unsigned long long)seed);
    fixture_file(tokens_path, "tokens.bin");
    fixture_file(directory, "saved");
    fixture_learnable_tokens(tokens_path, VOCAB, TOKENS);
    struct attempt *shared =
        mmap(NULL, 2 * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) abort();
    struct attempt *whole = &shared[0], *attempt = &shared[1];
    *whole = (struct attempt){.victim = -1, .nranks = MOST_RANKS};
    whole->config = config_of(&splits[0], 1, ACTIVATION_ALL);
    CHECK(!run_attempt(whole));
    check_stand_ins(whole);
    remove_checkpoints();
    int64_t end_ns = clock_ns() + clock_ms_to_ns(1000 * (int64_t)seconds);
    /* On a slow machine these may be too few; but then for so many alone. */
    while ((clock_ns() < end_ns || (number < ENOUGH && !all_have_died(deaths))) &&
           run_episode(number, deaths, attempt, whole, &seed))
        number++;
    printf("%d episodes; deaths:", number);
    for (int m = 0; m < MOMENTS; m++)
        printf(" %d in %s%s", deaths[m], moment_names[m], m + 1 < MOMENTS ? "," : "\n");
    CHECK_MSG(!good || all_have_died(deaths), "in a product, a write or the manifest nobody died");
    munmap(shared, 2 * sizeof *shared);
    fixture_remove();
    return test_result();
}
