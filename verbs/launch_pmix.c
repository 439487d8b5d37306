/* launch_pmix: rank 0's card through PMIx, which Open MPI's mpirun and Slurm's srun --mpi=pmix offer.
 *
 *   rank ──fork──► child    PMIx_Init
 *     │                     rank 0: PMIx_Put(key, card), PMIx_Commit
 *     │                     PMIx_Fence, collecting       ◄──► server, and through it all ranks
 *     │                     PMIx_Get(job size), PMIx_Get(key of rank 0)
 *     ◄──pipe── answer      PMIx_Finalize
 *
 * A child asks, for two reasons. Keeps I5: PMIx's calls know no deadline that every server honours, but a child can be
 * killed at ours. And the library starts threads, which must not exist when ranks are forked; they end with the child.
 * The library is loaded by the child alone (dlopen), so the program starts where it is not installed.
 */
#include <stdio.h>
#include <string.h>

#include "verbs/launch_internal.h"

#ifdef RINGZERO_PMIX

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pmix.h>

#include "verbs/clock.h"

#define PMIX_LIBRARY "libpmix.so.2"
#define CARD_KEY     "ringzero.rank0"
#define ALTERNATIVES "set MASTER_ADDR and MASTER_PORT, the same on every rank"

/* What the child tells; shorter than PIPE_BUF, so it comes whole. */
struct answer {
    int nranks;            /* 0: it failed */
    char text[CARD_BYTES]; /* the card, or why not */
};
_Static_assert(sizeof(struct answer) <= 4096, "a pipe takes it whole");

struct library {
    __typeof__(PMIx_Init) *init;
    __typeof__(PMIx_Put) *put;
    __typeof__(PMIx_Commit) *commit;
    __typeof__(PMIx_Fence) *fence;
    __typeof__(PMIx_Get) *get;
    __typeof__(PMIx_Finalize) *finalize;
    __typeof__(PMIx_Error_string) *error_string;
};

/* ---- the child ---- */

static bool load(struct library *library, struct answer *answer)
{
    /* Global, because the library's own plugins look for it there. */
    void *handle = dlopen(PMIX_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    struct {
        const char *name;
        void *pointer; /* to the member */
    } const symbols[] = {{"PMIx_Init", &library->init}, {"PMIx_Put", &library->put}, {"PMIx_Commit", &library->commit},
        {"PMIx_Fence", &library->fence}, {"PMIx_Get", &library->get}, {"PMIx_Finalize", &library->finalize},
        {"PMIx_Error_string", &library->error_string}};
    for (size_t i = 0; handle != NULL && i < sizeof symbols / sizeof *symbols; i++) {
        void *address = dlsym(handle, symbols[i].name);
        if (address == NULL) handle = NULL;
        else memcpy(symbols[i].pointer, &address, sizeof address); /* POSIX lets a function's address be a void * */
    }
    if (handle != NULL) return true;
    const char *why = dlerror();
    snprintf(answer->text, sizeof answer->text, "the library cannot be loaded: %s (Debian: apt install libpmix2)",
        why != NULL ? why : PMIX_LIBRARY);
    return false;
}

static bool good(const struct library *library, pmix_status_t status, const char *call, struct answer *answer)
{
    if (status == PMIX_SUCCESS) return true;
    snprintf(answer->text, sizeof answer->text, "%s: %s", call, library->error_string(status));
    return false;
}

static bool publish(const struct library *library, char *card, struct answer *answer)
{
    pmix_value_t value = {.type = PMIX_STRING};
    value.data.string = card;
    return good(library, library->put(PMIX_GLOBAL, CARD_KEY, &value), "PMIx_Put", answer) &&
           good(library, library->commit(), "PMIx_Commit", answer);
}

/* All ranks of the job meet, and what they put reaches all. */
static bool fence(const struct library *library, const pmix_proc_t *all, struct answer *answer)
{
    pmix_info_t collect = {.key = PMIX_COLLECT_DATA, .value = {.type = PMIX_BOOL}};
    collect.value.data.flag = true;
    return good(library, library->fence(all, 1, &collect, 1), "PMIx_Fence", answer);
}

static void talk(struct answer *answer, char *card, int rank)
{
    struct library library;
    if (!load(&library, answer)) return;
    pmix_proc_t self = {.rank = 0};
    if (!good(&library, library.init(&self, NULL, 0), "PMIx_Init", answer)) return;
    pmix_proc_t all = self, first = self;
    all.rank = PMIX_RANK_WILDCARD;
    first.rank = 0;
    pmix_value_t *size = NULL, *found = NULL;
    bool got = (rank > 0 || publish(&library, card, answer)) && fence(&library, &all, answer) &&
               good(&library, library.get(&all, PMIX_JOB_SIZE, NULL, 0, &size), "PMIx_Get of the job's size", answer) &&
               good(&library, library.get(&first, CARD_KEY, NULL, 0, &found), "PMIx_Get of rank 0's address", answer);
    if (got && (int)self.rank != rank) {
        snprintf(answer->text, sizeof answer->text, "its server says that this is rank %u, the environment says %d",
            self.rank, rank);
    } else if (got && (size->type != PMIX_UINT32 || size->data.uint32 < 1 || size->data.uint32 > INT_MAX ||
                          found->type != PMIX_STRING)) {
        snprintf(answer->text, sizeof answer->text,
            "its server answers in types %d and %d; expected a number and a text", size->type, found->type);
    } else if (got) {
        snprintf(answer->text, sizeof answer->text, "%s", found->data.string);
        answer->nranks = (int)size->data.uint32;
    }
    library.finalize(NULL, 0); /* whatever it says, the card is here or not */
}

static void run_child(int pipe_fd, char *card, int rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    struct answer answer = {.nranks = 0};
    talk(&answer, card, rank);
    _exit(write(pipe_fd, &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
}

/* ---- the rank ---- */

/* True when the child's answer is there; its end without one counts as read bytes of 0. */
static bool wait_for_answer(struct answer *answer, ssize_t *got, int fd, int64_t deadline_ns)
{
    for (;;) {
        int64_t left_ns = deadline_ns - clock_ns();
        struct pollfd wait = {fd, POLLIN, 0};
        int ready = left_ns <= 0 ? 0 : poll(&wait, 1, (int)(left_ns / 1000000) + 1);
        if (ready == 0) return false;
        if (ready < 0 && errno == EINTR) continue;
        *got = ready < 0 ? -1 : read(fd, answer, sizeof *answer);
        return true;
    }
}

/* Reaps the child, whatever it does now. */
static void end_child(pid_t child, bool answered)
{
    if (!answered) kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
}

enum status launch_pmix_exchange(char card[CARD_BYTES], int *nranks, int rank, int timeout_ms)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return FAIL(STATUS_SYSTEM, "no pipe for PMIx: %s; raise ulimit -n", strerror(errno));
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) run_child(fds[1], card, rank, parent);
    int error = errno;
    close(fds[1]);
    struct answer answer = {.nranks = 0};
    ssize_t got = 0;
    bool answered = child > 0 && wait_for_answer(&answer, &got, fds[0], clock_ns() + clock_ms_to_ns(timeout_ms));
    close(fds[0]);
    if (child < 0) return FAIL(STATUS_SYSTEM, "no process for PMIx: %s; raise ulimit -u", strerror(error));
    end_child(child, answered);
    if (!answered)
        return FAIL(STATUS_TIMEOUT,
            "PMIx did not hand out rank 0's address to rank %d within %d ms: see whether every rank was started; or "
            ALTERNATIVES,
            rank, timeout_ms);
    answer.text[CARD_BYTES - 1] = '\0';
    if (got != (ssize_t)sizeof answer || answer.nranks == 0)
        return FAIL(STATUS_SYSTEM, "rank %d learns rank 0's address from PMIx, but %s: " ALTERNATIVES, rank,
            got == (ssize_t)sizeof answer ? answer.text : "the process that asks has died");
    *nranks = answer.nranks;
    memcpy(card, answer.text, CARD_BYTES);
    return STATUS_OK;
}

#else

enum status launch_pmix_exchange(char card[CARD_BYTES], int *nranks, int rank, int timeout_ms)
{
    (void)card;
    (void)nranks;
    (void)timeout_ms;
    return FAIL(STATUS_SYSTEM,
        "rank %d learns rank 0's address from PMIx, but this program was built without it: install libpmix-dev and "
        "build again, or set MASTER_ADDR and MASTER_PORT, the same on every rank",
        rank);
}

#endif
