/* Chaos: random operations on 2 to 5 ranks over shm and tcp, while ranks are killed, stopped and delayed at random
 * moments. Case C13. ctest: timeout=120
 *
 *   ring_chaos_test [--seconds N] [--seed N]     about 18 s by default; prints the seed, which brings the same episodes again
 *
 * An episode is one job. Its ranks draw the same operations from (seed, episode), check every element of every
 * result, and report when the job is complete; then this process, which is none of them, does what the episode has in
 * store:
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
#include <dirent.h>
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
#define OPERATIONS       300              /* of an episode that nobody dies in */
#define NEWS_OF_DEATH_MS (1000 * SLOWER)  /* until every survivor's call has returned */
#define EPISODE_MS       (40000 * SLOWER) /* the outer limit: beyond it is a hang */

enum fault { FAULT_NONE, FAULT_STOP, FAULT_KILL, FAULT_COUNT };
static const char *const fault_names[FAULT_COUNT] = {"calm", "stop", "kill"};

struct episode {
    uint64_t seed;
    int nranks;
    const char *transport;
    size_t slot_bytes;
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

/* ---- random numbers: a function of a seed that each drawing advances ---- */

static uint64_t draw(uint64_t *seed)
{
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int draw_below(uint64_t *seed, int limit)
{
    return (int)(draw(seed) % (uint64_t)limit);
}

/* ---- elements: small natural numbers, so that every sum is exact in every dtype, in any order ---- */

static int input_value(int rank, size_t index, uint64_t salt)
{
    return (int)((index * 7 + (size_t)rank * 3 + salt) % 13);
}

static void element_store(void *array, size_t index, enum dtype dtype, int value)
{
    switch (dtype) {
    case DTYPE_INT8:
    case DTYPE_UINT8: ((uint8_t *)array)[index] = (uint8_t)value; return;
    case DTYPE_INT32:
    case DTYPE_UINT32: ((int32_t *)array)[index] = value; return;
    case DTYPE_INT64:
    case DTYPE_UINT64: ((int64_t *)array)[index] = value; return;
    case DTYPE_FLOAT16: ((uint16_t *)array)[index] = float32_to_float16((float)value); return;
    case DTYPE_BFLOAT16: ((uint16_t *)array)[index] = float32_to_bfloat16((float)value); return;
    case DTYPE_FLOAT32: ((float *)array)[index] = (float)value; return;
    case DTYPE_FLOAT64: ((double *)array)[index] = value; return;
    case DTYPE_COUNT: return;
    }
}

static double element_load(const void *array, size_t index, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_INT8:
    case DTYPE_UINT8: return ((const uint8_t *)array)[index];
    case DTYPE_INT32:
    case DTYPE_UINT32: return ((const int32_t *)array)[index];
    case DTYPE_INT64:
    case DTYPE_UINT64: return (double)((const int64_t *)array)[index];
    case DTYPE_FLOAT16: return float16_to_float32(((const uint16_t *)array)[index]);
    case DTYPE_BFLOAT16: return bfloat16_to_float32(((const uint16_t *)array)[index]);
    case DTYPE_FLOAT32: return ((const float *)array)[index];
    case DTYPE_FLOAT64: return ((const double *)array)[index];
    case DTYPE_COUNT: break;
    }
    return -1;
}

static int reduced_value(int nranks, size_t index, uint64_t salt, enum redop redop)
{
    int result = input_value(0, index, salt);
    for (int r = 1; r < nranks; r++) {
        int value = input_value(r, index, salt);
        if (redop == REDOP_SUM) result += value;
        else if (value > result) result = value;
    }
    return result;
}

/* ---- one operation ---- */

struct operation_drawn {
    enum collective collective;
    enum dtype dtype;
    enum redop redop;
    size_t count; /* as in the call */
    int root;
    bool in_place;
    uint64_t salt;
};

static const enum collective collectives[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST, COLLECTIVE_BARRIER};

static struct operation_drawn draw_operation(uint64_t *seed, int nranks)
{
    struct operation_drawn drawn = {
        .collective = collectives[draw_below(seed, (int)(sizeof collectives / sizeof *collectives))],
        .dtype = (enum dtype)draw_below(seed, DTYPE_COUNT),
        .redop = draw_below(seed, 2) ? REDOP_SUM : REDOP_MAX,
        .root = draw_below(seed, nranks),
        .in_place = draw_below(seed, 2),
        .salt = draw(seed) % 1000,
    };
    static const size_t most[] = {4, 300, 5000, MOST_COUNT};
    drawn.count = draw(seed) % most[draw_below(seed, 4)];
    return drawn;
}

static bool has_parts(enum collective collective)
{
    return collective == COLLECTIVE_REDUCE_SCATTER || collective == COLLECTIVE_ALL_GATHER;
}

/* What element i of this rank's receive buffer must be. */
static int expected_value(const struct operation_drawn *drawn, size_t i, int rank, int nranks)
{
    switch (drawn->collective) {
    case COLLECTIVE_ALL_GATHER: return input_value((int)(i / drawn->count), i % drawn->count, drawn->salt);
    case COLLECTIVE_BROADCAST: return input_value(drawn->root, i, drawn->salt);
    case COLLECTIVE_REDUCE_SCATTER:
        return reduced_value(nranks, (size_t)rank * drawn->count + i, drawn->salt, drawn->redop);
    default: return reduced_value(nranks, i, drawn->salt, drawn->redop);
    }
}

static enum status call(const struct operation_drawn *drawn, struct span recv, struct span send, struct ring_comm *comm)
{
    switch (drawn->collective) {
    case COLLECTIVE_ALL_REDUCE:
        return ring_all_reduce(recv, send, drawn->count, drawn->dtype, drawn->redop, comm, NULL);
    case COLLECTIVE_REDUCE_SCATTER:
        return ring_reduce_scatter(recv, send, drawn->count, drawn->dtype, drawn->redop, comm, NULL);
    case COLLECTIVE_ALL_GATHER: return ring_all_gather(recv, send, drawn->count, drawn->dtype, comm, NULL);
    case COLLECTIVE_BROADCAST: return ring_broadcast(recv, send, drawn->count, drawn->dtype, drawn->root, comm, NULL);
    default: return ring_barrier(comm, NULL);
    }
}

/* Runs one drawn operation on fresh input and checks the output. a, b: room for nranks parts each. */
static enum status operate(const struct operation_drawn *drawn, char *a, char *b, struct ring_comm *comm)
{
    int rank = ring_comm_rank(comm), nranks = ring_comm_nranks(comm);
    size_t part = drawn->count, whole = has_parts(drawn->collective) ? part * (size_t)nranks : part;
    size_t send_count = drawn->collective == COLLECTIVE_ALL_GATHER ? part : whole;
    size_t recv_count = drawn->collective == COLLECTIVE_REDUCE_SCATTER ? part : whole;
    size_t element = dtype_bytes(drawn->dtype), own = (size_t)rank * part * element;
    char *recv = b + (drawn->in_place && recv_count < whole ? own : 0);
    char *send = (drawn->in_place ? b : a) + (drawn->in_place && send_count < whole ? own : 0);

    memset(b, 0x7b, whole * element + 8);
    for (size_t i = 0; i < send_count; i++) element_store(send, i, drawn->dtype, input_value(rank, i, drawn->salt));
    TRY(call(drawn, span_host(recv, recv_count * element), span_host(send, send_count * element), comm));
    if (drawn->collective == COLLECTIVE_BARRIER) return STATUS_OK;
    size_t wrong = 0, first = 0;
    for (size_t i = recv_count; i-- > 0;) {
        if (element_load(recv, i, drawn->dtype) == expected_value(drawn, i, rank, nranks)) continue;
        wrong++;
        first = i;
    }
    expect(CHECK_MSG(wrong == 0, "%s of %zu %s, %s, root %d, %s place: %zu wrong, the first at %zu: %g, expected %d",
        collective_name(drawn->collective), drawn->count, dtype_name(drawn->dtype), redop_name(drawn->redop),
        drawn->root, drawn->in_place ? "in" : "out of", wrong, first, element_load(recv, first, drawn->dtype),
        expected_value(drawn, first, rank, nranks)));
    bool guarded = true;
    for (int i = 0; i < 8; i++) guarded = guarded && b[whole * element + (size_t)i] == 0x7b;
    expect(CHECK_MSG(guarded, "%s of %zu wrote behind its output", collective_name(drawn->collective), drawn->count));
    return STATUS_OK;
}

/* ---- a rank ---- */

/* Every second rank or so dawdles now and then, each at moments of its own. */
static void dawdle(uint64_t *own_seed)
{
    if (draw_below(own_seed, 20) == 0) usleep((useconds_t)draw_below(own_seed, 15000));
}

static void run_operations(const struct episode *episode, struct ring_comm *comm, struct report *report)
{
    int rank = report->rank;
    size_t room = MOST_COUNT * 8 * MOST_RANKS + 64;
    char *a = malloc(room), *b = malloc(room);
    uint64_t seed = episode->seed, own_seed = episode->seed ^ (uint64_t)(rank + 1);
    enum status status = STATUS_OK;
    int64_t limit_ns = clock_ns() + clock_ms_to_ns(EPISODE_MS / 2);
    for (int i = 0; status == STATUS_OK && (episode->fault == FAULT_KILL || i < OPERATIONS); i++) {
        struct operation_drawn drawn = draw_operation(&seed, episode->nranks);
        dawdle(&own_seed);
        status = operate(&drawn, a, b, comm);
        if (clock_ns() > limit_ns) break;
    }
    report->at_ns = clock_ns();
    free(a);
    free(b);
    if (episode->fault != FAULT_KILL) {
        expect(CHECK_MSG(status == STATUS_OK, "%s: %s", status_name(status), status_text()));
        return;
    }
    char victim[16];
    snprintf(victim, sizeof victim, "rank %d", episode->victim);
    expect(CHECK_MSG((status == STATUS_PEER || status == STATUS_ABORTED) && strstr(status_text(), victim) != NULL,
        "expected PEER or ABORTED and \"%s\", found %s: %s", victim, status_name(status), status_text()));
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
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct report report = {.rank = config->rank};
    struct ring_config ring = {
        .transport = episode->transport, .slot_bytes = episode->slot_bytes, .channels = episode->channels};
    if (expect(CHECK_OK(bootstrap_open(&bootstrap, config))) && expect(CHECK_OK(device_open(&device, "host"))) &&
        expect(CHECK_OK(ring_comm_open(&comm, &ring, bootstrap, device)))) {
        tell(fd, &report);
        run_operations(episode, comm, &report);
    }
    ring_comm_close(comm);
    bootstrap_close(bootstrap);
    device_close(device);
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
    usleep((useconds_t)draw_below(seed, 120000));
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

static int count_files(const char *directory, const char *part)
{
    DIR *open = opendir(directory);
    int count = 0;
    for (struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;)
        count += strstr(entry->d_name, part) != NULL;
    if (open != NULL) closedir(open);
    return count;
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
            "in episode %d: %s, %d ranks over %s, slots of %zu bytes, %d channels, victim %d, stopped for %lld ms\n",
            number, fault_names[episode->fault], episode->nranks, episode->transport, episode->slot_bytes,
            episode->channels, episode->victim, (long long)episode->stop_ms);
}

/* Kinds of harm come in turn, all else at random. */
static struct episode draw_episode(uint64_t *seed, int number)
{
    static const size_t slots[] = {0, 64, 4096};
    struct episode episode = {
        .seed = draw(seed),
        .nranks = 2 + draw_below(seed, MOST_RANKS - 1),
        .transport = draw_below(seed, 2) ? "shm" : "tcp",
        .slot_bytes = slots[draw_below(seed, 3)],
        .channels = draw_below(seed, 3) == 0 ? 2 : 1,
        .fault = (enum fault)((number + 1) % FAULT_COUNT),
        .stop_ms = 20 + draw_below(seed, 600),
    };
    episode.victim = draw_below(seed, episode.nranks);
    return episode;
}

int main(int argc, char **argv)
{
    int seconds = 14;
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
