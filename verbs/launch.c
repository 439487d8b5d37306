/* launch: ranks started here; launch_environment.c has those that a launcher started.
 *
 * Keeps: no child outlives the launcher, and the first failure is the one that is told. The launcher
 * blocks its signals and takes them one by one with sigtimedwait(), so nothing happens between a look
 * and a sleep:
 *
 *   fork all ─► wait for SIGCHLD ─► reap ─► one failed? ─► 5 s ─► SIGTERM ─► 2 s ─► SIGKILL ─► all reaped
 *                       ▲ SIGINT, SIGTERM: passed on
 */
#include "verbs/launch.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/machine.h"

/* A dying rank's sockets close before it can be reaped: its peers may see that, fail and end first. */
#define SETTLE_MS 50
/* The others learn of a failure by themselves, and say what they saw; then they are asked to end, then made to. */
#define GRACE_MS     5000
#define TERMINATE_MS 2000

struct launch {
    int nranks;
    enum launch_on_death on_death;
    int alive;
    pid_t *pids; /* by rank; 0: ended */
    struct machine *machine; /* by which cores are shared out; NULL: by their numbers */
    sigset_t waited, mask_before;
    struct sigaction child_before;
    int failed_rank;       /* the first that failed, or -1 */
    int failed_status;     /* as of waitpid() */
    int64_t settled_at_ns; /* from then on the first failure stands */
    int64_t urge_at_ns;    /* when the next urging of those that are left is due; 0: they are not urged */
    int urge_signal;
};

static void block_signals(struct launch *launch)
{
    sigemptyset(&launch->waited);
    sigaddset(&launch->waited, SIGCHLD);
    sigaddset(&launch->waited, SIGINT);
    sigaddset(&launch->waited, SIGTERM);
    sigprocmask(SIG_BLOCK, &launch->waited, &launch->mask_before);
    /* A SIGCHLD that is ignored, as some parents leave it, would let the kernel reap the exit codes away. */
    struct sigaction child = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGCHLD, &child, &launch->child_before);
}

static void restore_signals(const struct launch *launch)
{
    sigaction(SIGCHLD, &launch->child_before, NULL);
    sigprocmask(SIG_SETMASK, &launch->mask_before, NULL);
}

/* Neighbouring cores with all their threads of execution, ranks spread over the NUMA nodes. False where the machine does not show the
 * cores of the set. */
static bool choose_by_machine(cpu_set_t *own, const cpu_set_t *cores, int rank, const struct launch *launch)
{
    struct machine_pus from = {{0}}, share;
    int known = 0;
    CPU_ZERO(own);
    for (int i = 0; launch->machine != NULL && i < launch->machine->pu_count; i++) {
        int os = launch->machine->pus[i].os;
        if (os >= CPU_SETSIZE || !CPU_ISSET(os, cores)) continue;
        machine_pus_add(&from, i);
        known++;
    }
    if (known < CPU_COUNT(cores) || !machine_share(&share, launch->machine, &from, rank, launch->nranks)) return false;
    for (int i = 0; i < launch->machine->pu_count; i++)
        if (machine_pus_has(&share, i)) CPU_SET(launch->machine->pus[i].os, own);
    return true;
}

/* By number alone. */
static void choose_by_number(cpu_set_t *own, const cpu_set_t *cores, int first, int count)
{
    CPU_ZERO(own);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, cores)) continue;
        if (seen >= first && seen < first + count) CPU_SET(cpu, own);
        seen++;
    }
}

static bool binds(void)
{
    const char *bind = getenv("RINGZERO_BIND");
    return bind == NULL || strcmp(bind, "none") != 0;
}

/* Ranks of one host share its cores; libraries that start threads read the variable when they are
 * loaded or first used. The rank keeps to its own part of the cores. Without that, two ranks that
 * wake each other are drawn to one core, where each waits for the other to leave it; the scheduler
 * sees one core's worth of work and leaves them there. Of more ranks than cores each core gets
 * equally many, neighbours together, where that comes out even: an operation lasts as long as the
 * fullest core takes to let each of its ranks run, and where they have come to lie five and three,
 * the scheduler, to which all of them are busy, does not soon move one. */
static void share_cores(int rank, const struct launch *launch)
{
    cpu_set_t set, own;
    bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    int cores = known ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int share = cores / launch->nranks;
    char text[16];
    snprintf(text, sizeof text, "%d", share > 1 ? share : 1);
    setenv("OPENBLAS_NUM_THREADS", text, 0);
    if (!known || !binds() || (share == 0 && launch->nranks % cores != 0)) return;
    if (share == 0) choose_by_number(&own, &set, rank / (launch->nranks / cores), 1);
    else if (!choose_by_machine(&own, &set, rank, launch)) choose_by_number(&own, &set, rank * share, share);
    sched_setaffinity(0, sizeof own, &own); /* advice: without it ranks are slower, not wrong */
}

static void become_rank(
    struct bootstrap_config *config, int rank, pid_t parent, const struct launch *launch)
{
    /* Asked for first, looked at second: a parent that dies in between is noticed by one of the two. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    restore_signals(launch);
    free(launch->pids);
    share_cores(rank, launch);
    machine_free(launch->machine);
    config->rank = config->local_rank = rank;
    if (rank > 0 && config->listen_fd >= 0) {
        close(config->listen_fd);
        config->listen_fd = -1;
    }
}

/* Says how a rank ended; returns that as an exit code. */
static int tell_end(int rank, int wait_status, const char *consequence)
{
    if (WIFSIGNALED(wait_status)) {
        int number = WTERMSIG(wait_status);
        fprintf(stderr, "rank %d was killed by signal %d (%s)%s\n", rank, number, strsignal(number), consequence);
        return 128 + number;
    }
    fprintf(stderr, "rank %d exited with code %d%s\n", rank, WEXITSTATUS(wait_status), consequence);
    return WEXITSTATUS(wait_status);
}

/* Says how the first failed rank ended. Returns the launcher's exit code. */
static int tell_failure(const struct launch *launch)
{
    return launch->failed_rank < 0 ? 0 : tell_end(launch->failed_rank, launch->failed_status, "");
}

/* The job is over for one of its ranks; the others get their grace. */
static void begin_grace(struct launch *launch)
{
    int64_t now_ns = clock_ns();
    launch->settled_at_ns = now_ns + clock_ms_to_ns(SETTLE_MS);
    launch->urge_at_ns = now_ns + clock_ms_to_ns(GRACE_MS);
    launch->urge_signal = SIGTERM;
}

/* Where the others go on without it, only the end of rank 0 is an event for the job. */
static void reap_one_of_many(struct launch *launch, int rank, int wait_status)
{
    bool over = launch->urge_at_ns != 0;
    if (rank != 0 && wait_status != 0 && !over) tell_end(rank, wait_status, ": the others go on");
    if (rank != 0) return;
    if (wait_status != 0) {
        launch->failed_rank = 0;
        launch->failed_status = wait_status;
    }
    begin_grace(launch);
}

static void reap(struct launch *launch, int rank)
{
    int wait_status = 0;
    pid_t ended = launch->pids[rank] > 0 ? waitpid(launch->pids[rank], &wait_status, WNOHANG) : 0;
    if (ended <= 0) return;
    launch->pids[rank] = 0;
    launch->alive--;
    if (launch->on_death == LAUNCH_GO_ON) {
        reap_one_of_many(launch, rank, wait_status);
        return;
    }
    if (wait_status == 0) return;
    bool first = launch->failed_rank < 0;
    /* Within that moment a rank that was killed is a cause, and one that exited may be a consequence. */
    bool cause = !first && clock_ns() < launch->settled_at_ns && WIFSIGNALED(wait_status) &&
                 !WIFSIGNALED(launch->failed_status);
    if (first || cause) {
        launch->failed_rank = rank;
        launch->failed_status = wait_status;
    }
    if (first) begin_grace(launch);
}

/* A pending SIGCHLD carries the pid of the child that raised it first; later ones merge into it. So
 * that child is reaped first, and the first failure is told even when others follow it within
 * microseconds. */
static void reap_all(struct launch *launch, pid_t first)
{
    for (int r = 0; r < launch->nranks; r++)
        if (launch->pids[r] == first) reap(launch, r);
    for (int r = 0; r < launch->nranks; r++) reap(launch, r);
}

static void signal_all(const struct launch *launch, int number)
{
    for (int r = 0; r < launch->nranks; r++)
        if (launch->pids[r] > 0) kill(launch->pids[r], number);
}

/* For a launch that came to nothing. */
static void kill_all(struct launch *launch)
{
    signal_all(launch, SIGKILL);
    for (int r = 0; r < launch->nranks; r++)
        if (launch->pids[r] > 0) waitpid(launch->pids[r], NULL, 0);
    launch->alive = 0;
}

static void urge(struct launch *launch)
{
    signal_all(launch, launch->urge_signal);
    launch->urge_signal = SIGKILL;
    launch->urge_at_ns = clock_ns() + clock_ms_to_ns(TERMINATE_MS);
}

/* Returns when all ranks have ended, with the exit code of the first failure; that is told as soon as
 * it is sure. */
static int wait_all(struct launch *launch)
{
    int exit_code = 0;
    while (launch->alive > 0) {
        bool told = exit_code != 0, failed = launch->failed_rank >= 0, over = launch->urge_at_ns != 0;
        int64_t wake_ns = clock_ns() + clock_ms_to_ns(60000);
        if (over) wake_ns = told || !failed ? launch->urge_at_ns : launch->settled_at_ns;
        int64_t left_ns = wake_ns > clock_ns() ? wake_ns - clock_ns() : 0;
        struct timespec left = {(time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000)};
        siginfo_t info;
        int number = sigtimedwait(&launch->waited, &info, &left);
        /* A terminal sends its SIGINT to the whole foreground group: the ranks have it already. */
        if (number == SIGTERM || (number == SIGINT && info.si_code != SI_KERNEL))
            signal_all(launch, number);
        reap_all(launch, number == SIGCHLD ? info.si_pid : -1);
        if (failed && !told && clock_ns() >= launch->settled_at_ns) exit_code = tell_failure(launch);
        if (over && clock_ns() >= launch->urge_at_ns) urge(launch);
    }
    return exit_code != 0 ? exit_code : tell_failure(launch);
}

/* Forks one rank. True in the parent and in the child; false when fork failed. */
static bool start_rank(
    struct launch *launch, struct bootstrap_config *config, int rank, pid_t parent, bool *is_parent)
{
    pid_t pid = fork();
    if (pid < 0) return false;
    *is_parent = pid != 0;
    if (pid == 0) {
        become_rank(config, rank, parent, launch);
        return true;
    }
    launch->pids[rank] = pid;
    launch->alive++;
    return true;
}

enum status launch_local(
    struct bootstrap_config *config, bool *is_parent, int *exit_code, int nranks, enum launch_on_death on_death)
{
    *is_parent = true;
    *exit_code = 1;
    if (nranks < 1) return FAIL(STATUS_INVALID, "%d ranks; expected 1 or more: correct --ranks", nranks);
    struct launch launch = {
        .nranks = nranks, .on_death = on_death, .failed_rank = -1, .pids = calloc((size_t)nranks, sizeof(pid_t))};
    if (launch.pids == NULL) return FAIL(STATUS_SYSTEM, "no memory for %d ranks", nranks);
    struct bootstrap_config job = bootstrap_config_single();
    job.nranks = job.local_nranks = nranks;
    job.job = bootstrap_draw_job();
    snprintf(job.address, sizeof job.address, "127.0.0.1");
    enum status status = nranks > 1 ? bootstrap_listen_local(&job.listen_fd, &job.port) : STATUS_OK;
    if (status != STATUS_OK) {
        free(launch.pids);
        return status;
    }
    if (nranks > 1 && binds() && machine_can_read() &&
        machine_read(&launch.machine, MACHINE_THIS, "", MACHINE_CORES) != STATUS_OK)
        launch.machine = NULL;
    fflush(NULL); /* what is buffered must not be printed once per rank */
    block_signals(&launch);
    pid_t parent = getpid();
    for (int r = 0; r < nranks && status == STATUS_OK; r++) {
        if (!start_rank(&launch, &job, r, parent, is_parent)) {
            status = FAIL(STATUS_SYSTEM,
                "cannot start rank %d of %d: %s: raise the limit of processes (ulimit -u)", r, nranks,
                strerror(errno));
            kill_all(&launch);
        } else if (!*is_parent) {
            *config = job;
            return STATUS_OK;
        }
    }
    if (job.listen_fd >= 0) close(job.listen_fd);
    int first_code = wait_all(&launch);
    restore_signals(&launch);
    machine_free(launch.machine);
    free(launch.pids);
    *exit_code = status == STATUS_OK ? first_code : 1;
    return status;
}
