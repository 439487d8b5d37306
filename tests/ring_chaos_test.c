/* Chaos: random operations on 2 to 5 ranks over shm and tcp, while ranks are killed, stopped and delayed at random
 * moments. Case C13. ctest: timeout=120
 *
 *   ring_chaos_test [--seconds N] [--seed N]     about 12 s by default; prints the seed, which brings the same episodes again
 *
 * An episode is one job. Its ranks draw the same turns from (seed, episode): any collective, a v-form, sends and receives, alone or
 * several in a group, by the thread or on a stream, of all ranks or of a part that the communicator was split into, or a new
 * split. They check every element of every result, and report when the job is complete; then this process, which is none
 * of them, does what the episode has in store:
 *
 *   episode   what happens                              every rank must
 *   calm      ranks pause at random before operations   finish all operations
 *   stop      SIGSTOP, later SIGCONT, of any rank       finish all operations: no false death (I5)
 *   kill      SIGKILL of any rank                       fail with PEER or ABORTED, naming the dead rank, soon
 *
 * and afterwards: no process, no listening socket, no file in /dev/shm is left. Moments of kills depend on the
 * machine, not on the seed: the same seed gives the same operations, victims and delays.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/ring.h"
#include "tests/harness/chaos_operation.h"
#include "tests/harness/harness.h"
#include "verbs/clock.h"
#include "verbs/log.h"

#ifdef RINGZERO_SANITIZED
#define SLOWER 5
#else
#define SLOWER 1
#endif

#define MOST_RANKS       5
#define MOST_COUNT       ((size_t)20000) /* elements of a rank's part */
#define DEADLINE_MS      20000
#define MOST_GROUPED     5
#define TURNS            250              /* of an episode that nobody dies in */
#define NEWS_OF_DEATH_MS (1000 * SLOWER)  /* until every survivor's call has returned */
#define EPISODE_MS       (40000 * SLOWER) /* the outer limit: beyond it is a hang */

enum fault { FAULT_NONE, FAULT_STOP, FAULT_KILL, FAULT_COUNT };
static const char *const fault_names[FAULT_COUNT] = {"calm", "stop", "kill"};

struct episode {
    uint64_t seed;
    int nranks;
    const char *transport;
    size_t slot_bytes, exchange_bytes;
    int channels;
    enum fault fault;
    int victim;
    int64_t stop_ms;
};

/* What a rank writes to the parent: once when the job is complete, once at its end. */
struct report {
    int32_t rank;
    int32_t ended; /* 0: all ranks are in */
    int32_t good;
    int64_t at_ns; /* ended: when the last operation returned */
};

static int complaints; /* checks that failed in this process */

static bool expect(bool held)
{
    complaints += !held;
    return held;
}

/* ---- a rank ---- */

/* What a rank works with. part: its communicator of those that the whole one was split into last, or NULL. */
struct worker {
    const struct episode *episode;
    struct ring_comm *whole, *part;
    struct device *device;
    struct stream *stream;
    struct chaos_buffers buffers[MOST_GROUPED];
};

/* Every second rank or so dawdles now and then, each at moments of its own. */
static void dawdle(uint64_t *own_seed)
{
    if (chaos_random_below(own_seed, 20) == 0) usleep((useconds_t)chaos_random_below(own_seed, 15000));
}

/* By colours at random, one of which is none; ranks of a part are in any order. */
static enum status split_anew(struct worker *worker, uint64_t *seed)
{
    uint64_t drawn[MOST_RANKS];
    for (int r = 0; r < worker->episode->nranks; r++) drawn[r] = chaos_random(seed);
    uint64_t mine = drawn[ring_comm_rank(worker->whole)];
    ring_comm_close(worker->part);
    worker->part = NULL;
    TRY(ring_comm_split(&worker->part, (int)(mine % 3) - 1, (int)(mine >> 8 & 0xff), worker->whole));
    if (worker->part != NULL) chaos_prepare(worker->part);
    return STATUS_OK;
}

static void check(const struct chaos_operation *operation, const struct chaos_buffers *buffers, bool grouped, struct ring_comm *comm)
{
    char text[512];
    bool right = chaos_check(text, sizeof text, operation, buffers, comm);
    expect(CHECK_MSG(right, "%s%s", grouped ? "in a group: " : "", text));
}

/* One operation, or a group of several, on the caller's thread or a stream. comm NULL: it is for others. */
static enum status operate(struct worker *worker, struct ring_comm *comm, int group, uint64_t *seed)
{
    struct chaos_operation operations[MOST_GROUPED];
    bool grouped = group > 1;
    struct stream *stream = chaos_random_below(seed, 4) == 0 ? worker->stream : NULL;
    for (int k = 0; k < group; k++) operations[k] = chaos_draw(seed, grouped ? MOST_COUNT / 4 : MOST_COUNT);
    if (comm == NULL) return STATUS_OK;
    for (int k = 0; k < group; k++) chaos_fill(&operations[k], &worker->buffers[k], comm);
    if (grouped) TRY(ring_group_begin(comm));
    for (int k = 0; k < group; k++) TRY(chaos_issue(&operations[k], &worker->buffers[k], grouped, comm, stream));
    if (grouped) TRY(ring_group_end(comm, stream));
    if (stream != NULL) TRY(stream_synchronize(stream, worker->device));
    for (int k = 0; k < group; k++) check(&operations[k], &worker->buffers[k], grouped, comm);
    return STATUS_OK;
}

/* All ranks draw the same turns, also those that have no part in one. */
static enum status take_turn(struct worker *worker, uint64_t *seed)
{
    if (chaos_random_below(seed, 30) == 0) return split_anew(worker, seed);
    struct ring_comm *comm = chaos_random_below(seed, 3) == 0 ? worker->part : worker->whole;
    int group = chaos_random_below(seed, 4) == 0 ? 2 + (int)chaos_random_below(seed, MOST_GROUPED - 1) : 1;
    return operate(worker, comm, group, seed);
}

static void run_turns(struct worker *worker, uint64_t *seed, struct report *report)
{
    const struct episode *episode = worker->episode;
    uint64_t own_seed = episode->seed ^ (uint64_t)(report->rank + 1);
    enum status status = STATUS_OK;
    int64_t limit_ns = clock_ns() + clock_ms_to_ns(EPISODE_MS / 2);
    for (int i = 0; status == STATUS_OK && (episode->fault == FAULT_KILL || i < TURNS); i++) {
        dawdle(&own_seed);
        status = take_turn(worker, seed);
        if (clock_ns() > limit_ns) break;
    }
    report->at_ns = clock_ns();
    if (episode->fault != FAULT_KILL) {
        expect(CHECK_MSG(status == STATUS_OK, "%s: %s", status_name(status), status_text()));
        return;
    }
    char victim[16];
    snprintf(victim, sizeof victim, "rank %d", episode->victim);
    expect(CHECK_MSG((status == STATUS_PEER || status == STATUS_ABORTED) && strstr(status_text(), victim) != NULL,
        "expected PEER or ABORTED and \"%s\", found %s: %s", victim, status_name(status), status_text()));
}

static bool worker_open(struct worker *worker, struct bootstrap *bootstrap, uint64_t *seed)
{
    const struct episode *episode = worker->episode;
    struct ring_config ring = {.transport = episode->transport, .slot_bytes = episode->slot_bytes,
        .channels = episode->channels, .exchange_bytes = episode->exchange_bytes};
    if (!expect(CHECK_OK(device_open(&worker->device, "host"))) ||
        !expect(CHECK_OK(stream_open(&worker->stream, worker->device, "chaos"))) ||
        !expect(CHECK_OK(ring_comm_open(&worker->whole, &ring, bootstrap, worker->device))))
        return false;
    chaos_prepare(worker->whole);
    for (int k = 0; k < MOST_GROUPED; k++) {
        size_t room = chaos_room_bytes(k == 0 ? MOST_COUNT : MOST_COUNT / 4, MOST_RANKS);
        worker->buffers[k] = (struct chaos_buffers){malloc(room), malloc(room)};
    }
    return expect(CHECK_OK(split_anew(worker, seed)));
}

static void worker_close(struct worker *worker)
{
    for (int k = 0; k < MOST_GROUPED; k++) {
        free(worker->buffers[k].a);
        free(worker->buffers[k].b);
    }
    ring_comm_close(worker->part);
    ring_comm_close(worker->whole);
    stream_close(worker->stream, worker->device);
}

static void tell(int fd, const struct report *report)
{
    if (write(fd, report, sizeof *report) != (ssize_t)sizeof *report) abort(); /* the parent is gone */
}

/* Never returns. */
static void rank_main(const struct episode *episode, struct bootstrap_config *config, int fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    log_set_rank(config->rank, config->nranks);
    struct bootstrap *bootstrap = NULL;
    struct worker worker = {.episode = episode};
    struct report report = {.rank = config->rank};
    uint64_t seed = episode->seed;
    if (expect(CHECK_OK(bootstrap_open(&bootstrap, config))) && worker_open(&worker, bootstrap, &seed)) {
        tell(fd, &report);
        run_turns(&worker, &seed, &report);
    }
    worker_close(&worker);
    bootstrap_close(bootstrap);
    device_close(worker.device);
    report.ended = 1;
    report.good = complaints == 0;
    tell(fd, &report);
    fflush(NULL);
    _exit(0);
}

/* ---- the parent ---- */

struct job {
    pid_t pids[MOST_RANKS];
    int read_fd;
    int port;
};

static void start_job(struct job *job, const struct episode *episode)
{
    struct bootstrap_config config = bootstrap_config_single();
    config.nranks = config.local_nranks = episode->nranks;
    config.timeout_ms = DEADLINE_MS;
    config.job = episode->seed | 1;
    snprintf(config.address, sizeof config.address, "127.0.0.1");
    int fds[2];
    if (!expect(CHECK_OK(bootstrap_listen_local(&config.listen_fd, &config.port))) || pipe(fds) != 0) exit(1);
    job->port = config.port;
    fflush(NULL);
    for (int r = 0; r < episode->nranks; r++) {
        job->pids[r] = fork();
        if (job->pids[r] < 0) abort();
        if (job->pids[r] != 0) continue;
        close(fds[0]);
        struct bootstrap_config own = config;
        own.rank = own.local_rank = r;
        if (r > 0) {
            close(config.listen_fd);
            own.listen_fd = -1;
        }
        rank_main(episode, &own, fds[1]);
    }
    close(config.listen_fd);
    close(fds[1]);
    job->read_fd = fds[0];
}

/* Reads one report; false at the end of all ranks or at the deadline. */
static bool hear(struct report *report, const struct job *job, int64_t deadline_ns)
{
    struct pollfd wait = {job->read_fd, POLLIN, 0};
    int64_t left_ms = (deadline_ns - clock_ns()) / 1000000;
    if (left_ms <= 0 || poll(&wait, 1, (int)left_ms + 1) <= 0) return false;
    return read(job->read_fd, report, sizeof *report) == (ssize_t)sizeof *report;
}

/* Does the episode's harm; returns when it was done, or 0. */
static int64_t do_harm(const struct episode *episode, const struct job *job, uint64_t *seed)
{
    if (episode->fault == FAULT_NONE) return 0;
    usleep((useconds_t)chaos_random_below(seed, 120000));
    pid_t victim = job->pids[episode->victim];
    if (episode->fault == FAULT_STOP) {
        kill(victim, SIGSTOP);
        usleep((useconds_t)(episode->stop_ms * 1000));
        kill(victim, SIGCONT);
        return 0;
    }
    int64_t at_ns = clock_ns();
    kill(victim, SIGKILL);
    return at_ns;
}

static void check_reports(const struct episode *episode, struct job *job, uint64_t *seed)
{
    int64_t deadline_ns = clock_ns() + clock_ms_to_ns(EPISODE_MS), killed_ns = 0, last_ns = 0;
    int in = 0, ended = 0, good = 0;
    struct report report;
    while (in < episode->nranks && hear(&report, job, deadline_ns)) in += !report.ended;
    if (expect(CHECK_MSG(in == episode->nranks, "%d of %d ranks came in", in, episode->nranks)))
        killed_ns = do_harm(episode, job, seed);
    int expected = episode->nranks - (episode->fault == FAULT_KILL);
    while (ended < expected && hear(&report, job, deadline_ns)) {
        ended += report.ended;
        good += report.good;
        if (report.at_ns > last_ns) last_ns = report.at_ns;
    }
    expect(CHECK_MSG(ended == expected, "a hang: %d of %d ranks ended within %d ms", ended, expected, EPISODE_MS));
    expect(CHECK_MSG(good == ended, "%d of %d ranks met something wrong", ended - good, ended));
    if (killed_ns == 0) return;
    int64_t news_ms = (last_ns - killed_ns) / 1000000;
    expect(CHECK_MSG(
        news_ms <= NEWS_OF_DEATH_MS, "the last survivor heard of the death after %lld ms", (long long)news_ms));
}

static bool port_is_open(int port)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool open = connect(fd, (struct sockaddr *)&name, sizeof name) == 0;
    close(fd);
    return open;
}

static void check_nothing_left(const struct episode *episode, struct job *job, int descriptors)
{
    for (int r = 0; r < episode->nranks; r++) {
        int wait_status = 0;
        bool dies = episode->fault == FAULT_KILL && r == episode->victim;
        for (int waited_ms = 0; waitpid(job->pids[r], &wait_status, WNOHANG) == 0; waited_ms++) {
            if (waited_ms == 5000 * SLOWER) kill(job->pids[r], SIGKILL); /* a hang: shows as a signal below */
            usleep(1000);
        }
        bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
        expect(CHECK_MSG(dies ? killed : WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0,
            "rank %d ended with wait status %x", r, wait_status));
    }
    close(job->read_fd);
    expect(CHECK_MSG(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "a process is left"));
    expect(CHECK_MSG(!port_is_open(job->port), "something still listens at rank 0's port %d", job->port));
    expect(CHECK_MSG(count_files("/dev/shm", "ringzero") == 0, "a file is left in /dev/shm"));
    expect(CHECK(count_files("/proc/self/fd", "") == descriptors));
}

static void run_episode(const struct episode *episode, int number)
{
    int before = complaints, descriptors = count_files("/proc/self/fd", "");
    struct job job = {0};
    uint64_t seed = ~episode->seed;
    start_job(&job, episode);
    check_reports(episode, &job, &seed);
    check_nothing_left(episode, &job, descriptors);
    if (complaints > before)
        fprintf(stderr,
            "in episode %d: %s, %d ranks over %s, slots of %zu bytes, exchanges up to %zu, %d channels, victim %d, stopped for %lld ms\n",
            number, fault_names[episode->fault], episode->nranks, episode->transport, episode->slot_bytes,
            episode->exchange_bytes, episode->channels, episode->victim, (long long)episode->stop_ms);
}

/* Kinds of harm come in turn, all else at random. */
static struct episode draw_episode(uint64_t *seed, int number)
{
    static const size_t slots[] = {0, 64, 4096}, exchanges[] = {0, 1, 2000};
    struct episode episode = {
        .seed = chaos_random(seed),
        .nranks = 2 + (int)chaos_random_below(seed, MOST_RANKS - 1),
        .transport = chaos_random_below(seed, 2) ? "shm" : "tcp",
        .slot_bytes = slots[chaos_random_below(seed, 3)],
        .exchange_bytes = exchanges[chaos_random_below(seed, 3)],
        .channels = chaos_random_below(seed, 3) == 0 ? 2 : 1,
        .fault = (enum fault)((number + 1) % FAULT_COUNT),
        .stop_ms = 20 + (int64_t)chaos_random_below(seed, 600),
    };
    episode.victim = (int)chaos_random_below(seed, (unsigned)episode.nranks);
    return episode;
}

int main(int argc, char **argv)
{
    int seconds = 8;
    uint64_t seed = (uint64_t)clock_ns() ^ (uint64_t)getpid() << 32;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) seconds = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 0);
    }
    printf("seed %llu\n", (unsigned long long)seed);
    signal(SIGPIPE, SIG_IGN);
    int counts[FAULT_COUNT] = {0}, number = 0;

    /* C13: a rank that rests for 3 s is not dead. */
    struct episode rests = {
        .seed = seed, .nranks = 3, .transport = "tcp", .fault = FAULT_STOP, .victim = 1, .stop_ms = 3000};
    run_episode(&rests, number++);
    int64_t end_ns = clock_ns() + clock_ms_to_ns(1000 * (int64_t)seconds);
    while (clock_ns() < end_ns && complaints == 0) {
        struct episode episode = draw_episode(&seed, number);
        run_episode(&episode, number++);
        counts[episode.fault]++;
    }
    for (int f = 0; f < FAULT_COUNT; f++) printf("%d %s, ", counts[f], fault_names[f]);
    printf("and C13\n");
    return test_result();
}
