/* harness: see harness.h. */
#include "tests/harness/harness.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/log.h"
#include "verbs/transport.h"

static int failures, checks; /* of this process; used through __atomic builtins */

bool check_(bool held, const char *file, int line, const char *condition, const char *remark)
{
    __atomic_add_fetch(&checks, 1, __ATOMIC_RELAXED);
    if (held) return true;
    int count = __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    int rank, nranks;
    log_get_rank(&rank, &nranks);
    if (count <= 50)
        fprintf(stderr, "%s:%d: rank %d/%d: failed: %s%s%s\n", file, line, rank, nranks, condition,
            remark != NULL ? ": " : "", remark != NULL ? remark : "");
    return false;
}

bool check_text_(const char *file, int line, const char *condition, const char *format, ...)
{
    char remark[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(remark, sizeof remark, format, arguments);
    va_end(arguments);
    return check_(false, file, line, condition, remark);
}

bool check_status_(enum status found, enum status expected, const char *file, int line, const char *call)
{
    char remark[STATUS_TEXT_BYTES + 64];
    snprintf(remark, sizeof remark, "gave %s, expected %s: %s", status_name(found), status_name(expected), status_text());
    return check_(found == expected, file, line, call, remark);
}

bool check_text_has_(const char *part, const char *file, int line)
{
    if (strstr(status_text(), part) != NULL) return check_(true, file, line, part, NULL);
    return check_text_(file, line, "the failure's text", "\"%s\" is not in \"%s\"", part, status_text());
}

void pause_ms(int ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

int64_t since_ms(int64_t begin_ns) { return (clock_ns() - begin_ns) / 1000000; }

int count_files(const char *directory, const char *part)
{
    DIR *open = opendir(directory);
    if (open == NULL) return -1;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(open)) != NULL;)
        count += strstr(entry->d_name, part) != NULL;
    closedir(open);
    return count;
}

int test_result(void)
{
    int failed = __atomic_load_n(&failures, __ATOMIC_RELAXED), done = __atomic_load_n(&checks, __ATOMIC_RELAXED);
    printf("%d checks, %d failed\n", done, failed);
    if (done == 0) printf("a test that checks nothing is a defect\n");
    return failed != 0 || done == 0;
}

int test_skip(const char *why)
{
    printf("skipped: %s\n", why);
    return 77;
}

bool test_takes(const char *name)
{
    const struct transport *transport = name == NULL ? NULL : transport_by_name(name);
    const char *named = getenv("RINGZERO_TEST_TRANSPORTS"), *why = "";
    char list[128], word[32];
    if (transport == NULL) return named == NULL;
    snprintf(list, sizeof list, ",%s,", named != NULL ? named : "");
    snprintf(word, sizeof word, ",%s,", name);
    if (named != NULL && strstr(list, word) == NULL) return false;
    bool there = transport->available == NULL || transport->available(&why, NULL);
    if (!there) printf("not over %s: %s\n", name, why);
    return named != NULL ? CHECK_MSG(there, "transport %s is not there", name) : there;
}

const char *test_device_name(void)
{
    const char *name = getenv("RINGZERO_TEST_DEVICE");
    return name != NULL ? name : "cudasim";
}

bool test_has_device(const char *name)
{
    if (device_known(name) == STATUS_OK) return true;
    printf("no %s: %s\n", name, status_text());
    return false;
}

struct rank_thread {
    struct bootstrap_config config;
    rank_body body;
    void *argument;
    pthread_t thread;
};

static void run_rank(const struct bootstrap_config *config, rank_body body, void *argument)
{
    log_set_rank(config->rank, config->nranks);
    struct bootstrap *bootstrap = NULL;
    if (!CHECK_OK(bootstrap_open(&bootstrap, config))) return;
    body(bootstrap, argument);
    bootstrap_close(bootstrap);
}

static void *rank_thread_main(void *argument)
{
    struct rank_thread *rank = argument;
    run_rank(&rank->config, rank->body, rank->argument);
    return NULL;
}

/* RINGZERO_TEST_HOST: see harness.h. */
struct host_part {
    int self, hosts, port;
    char address[64];
};

static struct host_part host_part(void)
{
    static int jobs; /* so far, of the one thread that starts them */
    struct host_part part = {.hosts = 1};
    const char *text = getenv("RINGZERO_TEST_HOST");
    if (text == NULL) return part;
    if (sscanf(text, "%d/%d %63s %d", &part.self, &part.hosts, part.address, &part.port) != 4 || part.hosts < 1) {
        fprintf(stderr, "harness: RINGZERO_TEST_HOST is \"%s\"; expected SELF/HOSTS ADDRESS PORT\n", text);
        exit(1);
    }
    part.port += jobs++;
    return part;
}

static void job_config(struct bootstrap_config *config, const struct host_part *part, int nranks, int timeout_ms)
{
    *config = bootstrap_config_single();
    config->nranks = config->local_nranks = nranks;
    config->timeout_ms = timeout_ms;
    config->job = ((uint64_t)getpid() << 32) ^ 0x5eed;
    snprintf(config->address, sizeof config->address, "127.0.0.1");
    if (part->hosts > 1) {
        config->job = 0x5eed0000u + (uint64_t)part->port;
        config->local_nranks = 0;
        config->port = part->port;
        snprintf(config->address, sizeof config->address, "%s", part->address);
        return;
    }
    if (nranks > 1 && bootstrap_listen_local(&config->listen_fd, &config->port) != STATUS_OK) {
        fprintf(stderr, "harness: %s\n", status_text());
        exit(1);
    }
}

void ranks_as_threads(int nranks, int timeout_ms, rank_body body, void *argument)
{
    struct bootstrap_config job;
    struct host_part part = host_part();
    job_config(&job, &part, nranks, timeout_ms);
    struct rank_thread *ranks = calloc((size_t)nranks, sizeof *ranks);
    for (int r = part.self; r < nranks; r += part.hosts) {
        ranks[r] = (struct rank_thread){.config = job, .body = body, .argument = argument};
        ranks[r].config.rank = ranks[r].config.local_rank = r;
        if (r > 0) ranks[r].config.listen_fd = -1;
        if (pthread_create(&ranks[r].thread, NULL, rank_thread_main, &ranks[r]) != 0) abort();
    }
    for (int r = part.self; r < nranks; r += part.hosts) pthread_join(ranks[r].thread, NULL);
    free(ranks);
}

int ranks_as_processes(int nranks, int timeout_ms, rank_body body, void *argument, int expected_dead)
{
    struct bootstrap_config job;
    struct host_part part = host_part();
    job_config(&job, &part, nranks, timeout_ms);
    pid_t *pids = calloc((size_t)nranks, sizeof *pids);
    fflush(NULL);
    for (int r = part.self; r < nranks; r += part.hosts) {
        pids[r] = fork();
        if (pids[r] < 0) abort();
        if (pids[r] != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        __atomic_store_n(&failures, 0, __ATOMIC_RELAXED);
        struct bootstrap_config config = job;
        config.rank = config.local_rank = r;
        if (r > 0) {
            if (job.listen_fd >= 0) close(job.listen_fd);
            config.listen_fd = -1;
        }
        run_rank(&config, body, argument);
        free(pids);
        fflush(NULL);
        _exit(__atomic_load_n(&failures, __ATOMIC_RELAXED) != 0);
    }
    if (job.listen_fd >= 0) close(job.listen_fd);
    int failed = 0;
    for (int r = part.self; r < nranks; r += part.hosts) {
        int wait_status = 0;
        waitpid(pids[r], &wait_status, 0);
        bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
        bool ended_well = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
        if (r == expected_dead ? !killed : !ended_well) failed++;
    }
    free(pids);
    return failed;
}
