/* launch: local ranks and what the launcher says of their ends. ctest: timeout=60
 */
#include "tests/harness/harness.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/launch.h"

/* ---- local ranks ---- */

/* What one rank does; its return value is its exit code. */
typedef int (*launch_body)(const struct bootstrap_config *config);

/* Launches, with standard error in `text`. Only the parent returns. */
static int launch_with(
    int nranks, enum launch_on_death on_death, launch_body body, char *text, size_t text_bytes)
{
    FILE *file = tmpfile();
    fflush(NULL);
    int saved = dup(STDERR_FILENO), exit_code = -1;
    dup2(fileno(file), STDERR_FILENO);
    bool is_parent = false;
    struct bootstrap_config config;
    enum status status = launch_local(&config, &is_parent, &exit_code, nranks, on_death);
    if (!is_parent) {
        close(saved);
        _exit(body(&config));
    }
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, text_bytes - 1, file)] = '\0';
    fclose(file);
    CHECK_STATUS(status, STATUS_OK);
    return exit_code;
}

static int launch(int nranks, launch_body body, char *text, size_t text_bytes)
{
    return launch_with(nranks, LAUNCH_END_ALL, body, text, text_bytes);
}

static int good_body(const struct bootstrap_config *config)
{
    struct bootstrap *b = NULL;
    if (bootstrap_open(&b, config) != STATUS_OK) return 1;
    int ranks[5] = {0};
    ranks[config->rank] = config->rank + 10;
    if (bootstrap_all_gather(ranks, sizeof *ranks, b) != STATUS_OK) return 2;
    for (int r = 0; r < config->nranks; r++)
        if (ranks[r] != r + 10) return 3;
    if (bootstrap_local_rank(b) != config->rank || bootstrap_local_nranks(b) != config->nranks) return 4;
    const char *threads = getenv("OPENBLAS_NUM_THREADS");
    if (threads == NULL || strcmp(threads, "1000") == 0 || atoi(threads) < 1) return 5;
    bootstrap_close(b);
    return 0;
}

/* Only rank 0 holds the listening socket, and it is close-on-exec. */
static int socket_body(const struct bootstrap_config *config)
{
    int listening = 0;
    for (int fd = 3; fd < 64; fd++) {
        int value = 0;
        socklen_t bytes = sizeof value;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &bytes) == 0 && value) {
            listening++;
            if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC)) return 9;
        }
    }
    return listening == (config->rank == 0) && (config->listen_fd >= 0) == (config->rank == 0) ? 0 : 8;
}

static int exit_body(const struct bootstrap_config *config)
{
    struct bootstrap *b = NULL;
    if (bootstrap_open(&b, config) != STATUS_OK) return 1;
    if (config->rank == 2) _exit(7);
    enum status status = bootstrap_barrier(b);
    bootstrap_close(b);
    return status == STATUS_PEER ? 3 : 4; /* fails too, but as a consequence: 7 is to be reported */
}

static int killed_body(const struct bootstrap_config *config)
{
    struct bootstrap *b = NULL;
    if (bootstrap_open(&b, config) != STATUS_OK) return 1;
    if (config->rank == 1) kill(getpid(), SIGKILL);
    enum status status = bootstrap_barrier(b);
    bootstrap_close(b);
    return status == STATUS_PEER ? 3 : 4;
}

/* Shared by all ranks of a launch. */
static pid_t *first_pid;

/* Rank 1 fails, and rank 0 right after it. */
static int chain_body(const struct bootstrap_config *config)
{
    if (config->rank == 1) {
        __atomic_store_n(first_pid, getpid(), __ATOMIC_RELEASE);
        return 5;
    }
    char path[64], line[256] = "";
    do {
        pause_ms(1);
        snprintf(path, sizeof path, "/proc/%d/stat", __atomic_load_n(first_pid, __ATOMIC_ACQUIRE));
        FILE *file = fopen(path, "r");
        if (file == NULL && strcmp(path, "/proc/0/stat") != 0) break; /* it is reaped */
        if (file != NULL && fgets(line, sizeof line, file) == NULL) line[0] = '\0';
        if (file != NULL) fclose(file);
    } while (strstr(line, ") Z") == NULL);
    pause_ms(5);
    return 6;
}

/* At once, one rank exits and another is killed: the killed one is the cause. */
static int both_body(const struct bootstrap_config *config)
{
    if (config->rank == 1) kill(getpid(), SIGKILL);
    return 6;
}

/* Rank 1 fails; rank 0 ends when it is asked to; rank 2 must be made to. */
static int stubborn_body(const struct bootstrap_config *config)
{
    if (config->rank == 1) return 5;
    if (config->rank == 2) signal(SIGTERM, SIG_IGN);
    for (;;) pause();
}

/* Ranks 1 and 2 are lost; rank 0 goes on long after a grace would have ended it, and ends well. */
static int losses_body(const struct bootstrap_config *config)
{
    if (config->rank == 1) kill(getpid(), SIGKILL);
    if (config->rank == 2) return 6;
    pause_ms(config->rank == 0 ? 6000 : 0);
    return 0;
}

/* Rank 0 is the job: whoever outlives it gets a grace and no more. */
static int hub_fails_body(const struct bootstrap_config *config)
{
    if (config->rank == 0) return 9;
    for (;;) pause();
}

static void test_going_on(void)
{
    char text[4096];
    int code = launch_with(4, LAUNCH_GO_ON, losses_body, text, sizeof text);
    CHECK_MSG(code == 0, "%d: %s", code, text);
    CHECK_MSG(strstr(text, "rank 1 was killed by signal 9 (Killed): the others go on\n") != NULL, "%s", text);
    CHECK_MSG(strstr(text, "rank 2 exited with code 6: the others go on\n") != NULL, "%s", text);
    code = launch_with(3, LAUNCH_GO_ON, hub_fails_body, text, sizeof text);
    CHECK_MSG(code == 9 && strcmp(text, "rank 0 exited with code 9\n") == 0, "%d: %s", code, text);
}

static void test_local(void)
{
    char text[4096];
    unsetenv("OPENBLAS_NUM_THREADS");
    for (int nranks = 1; nranks <= 5; nranks += 2) {
        CHECK_MSG(launch(nranks, good_body, text, sizeof text) == 0, "%s", text);
        CHECK_MSG(text[0] == '\0', "%s", text);
    }
    CHECK_MSG(launch(3, socket_body, text, sizeof text) == 0, "%s", text);
    int code = launch(4, exit_body, text, sizeof text);
    CHECK_MSG(code == 7, "%d: %s", code, text);
    CHECK_MSG(strstr(text, "rank 2 exited with code 7\n") != NULL && strstr(text, "rank 0 exited") == NULL,
        "%s", text);
    code = launch(3, killed_body, text, sizeof text);
    CHECK_MSG(code == 128 + SIGKILL, "%d: %s", code, text);
    CHECK_MSG(strstr(text, "rank 1 was killed by signal 9 (Killed)\n") != NULL, "%s", text);

    for (int i = 0; i < 10; i++) {
        *first_pid = 0;
        code = launch(2, chain_body, text, sizeof text);
        CHECK_MSG(code == 5 && strcmp(text, "rank 1 exited with code 5\n") == 0, "%d: %s", code, text);
    }
    code = launch(2, both_body, text, sizeof text);
    CHECK_MSG(code == 128 + SIGKILL, "%d: %s", code, text);

    setenv("OPENBLAS_NUM_THREADS", "1000", 1); /* what the user has set stays */
    CHECK_MSG(launch(1, good_body, text, sizeof text) == 5, "%s", text);

    struct bootstrap_config config;
    bool is_parent;
    CHECK_STATUS(launch_local(&config, &is_parent, &code, 0, LAUNCH_END_ALL), STATUS_INVALID);
}

static void test_stubborn(void)
{
    char text[4096];
    int64_t begin = clock_ns();
    int code = launch(3, stubborn_body, text, sizeof text);
    int64_t took_ms = (clock_ns() - begin) / 1000000;
    CHECK_MSG(code == 5, "%d: %s", code, text);
    CHECK_MSG(strcmp(text, "rank 1 exited with code 5\n") == 0, "%s", text);
    CHECK_MSG(took_ms >= 6500 && took_ms < 15000, "%lld ms", (long long)took_ms);
}

/* ---- signals ---- */

static int idle_body(const struct bootstrap_config *config)
{
    for (;;) pause();
    return config->rank;
}

/* A process that only launches idle ranks, so that it can be signalled. The ranks hold `pipe_fd` open. */
static pid_t start_launcher(int pipe_fd[2])
{
    if (pipe(pipe_fd) != 0) abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(pipe_fd[0]);
        char text[4096];
        int code = launch(3, idle_body, text, sizeof text);
        if (write(pipe_fd[1], text, strlen(text)) < 0) code = 99;
        _exit(code);
    }
    close(pipe_fd[1]);
    pause_ms(300);
    return pid;
}

/* Everything written until the last holder of the other end is gone. */
static void read_to_end(char *text, size_t text_bytes, int fd)
{
    size_t used = 0;
    ssize_t got;
    while ((got = read(fd, text + used, text_bytes - 1 - used)) > 0) used += (size_t)got;
    text[used] = '\0';
    close(fd);
}

static void test_signals(void)
{
    int pipe_fd[2], wait_status;
    char text[4096];
    pid_t launcher = start_launcher(pipe_fd);
    kill(launcher, SIGTERM);
    read_to_end(text, sizeof text, pipe_fd[0]);
    waitpid(launcher, &wait_status, 0);
    CHECK(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 128 + SIGTERM);
    CHECK_MSG(strstr(text, "was killed by signal 15 (Terminated)\n") != NULL, "%s", text);

    launcher = start_launcher(pipe_fd);
    kill(launcher, SIGKILL);
    int64_t begin = clock_ns();
    read_to_end(text, sizeof text, pipe_fd[0]); /* ends only when the ranks are gone too */
    waitpid(launcher, &wait_status, 0);
    CHECK(clock_ns() - begin < clock_ms_to_ns(5000));
}

/* ---- cores ---- */

static int two_cores[2];

static int core_count(cpu_set_t *set)
{
    return sched_getaffinity(0, sizeof *set, set) == 0 ? CPU_COUNT(set) : 0;
}

static int even_body(const struct bootstrap_config *config)
{
    cpu_set_t set;
    return core_count(&set) == 1 && CPU_ISSET(two_cores[config->rank / 2], &set) ? 0 : 3;
}

static int uneven_body(const struct bootstrap_config *config)
{
    (void)config;
    cpu_set_t set;
    return core_count(&set) == 2 ? 0 : 4;
}

/* Of two cores the first has ranks 0 and 1, the second 2 and 3; three ranks move as they please. */
static void test_shared_cores(void)
{
    cpu_set_t all, two;
    char text[2000];
    if (core_count(&all) < 2) return;
    CPU_ZERO(&two);
    for (int cpu = 0; CPU_COUNT(&two) < 2; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        two_cores[CPU_COUNT(&two)] = cpu;
        CPU_SET(cpu, &two);
    }
    unsetenv("RINGZERO_BIND");
    CHECK(sched_setaffinity(0, sizeof two, &two) == 0);
    CHECK(launch(4, even_body, text, sizeof text) == 0);
    CHECK(launch(3, uneven_body, text, sizeof text) == 0);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
}

int main(void)
{
    first_pid = mmap(NULL, sizeof *first_pid, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (first_pid == MAP_FAILED) abort();
    test_local();
    test_signals();
    test_stubborn();
    test_going_on();
    test_shared_cores();
    return test_result();
}
