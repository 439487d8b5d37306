/* progress: see progress.h.
 *
 *   submit   operations ──► incoming (lock) ──► live list (the driver's alone)
 *   drive    pass over live: advance each communicator's oldest; a finished one leaves the list and is marked done (lock),
 *            `changed` is broadcast
 *   wait     not done and somebody drives: sleep on `changed`; not done and nobody drives: drive
 *
 * A submission rings the own bell, in case the driver sleeps on it.
 */
#include "ring/progress.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring/comm.h"
#include "ring/kernel_host.h"
#include "ring/operation.h"
#include "ring/statement.h"
#include "verbs/bell.h"
#include "verbs/clock.h"

#define SPINS_BEFORE_YIELD  200 /* about 20 µs: longer than a neighbour on another core takes for a slice */
#define BARE_SPINS          40  /* passes of LOOKS looks */
#define LOOKS               20
#define YIELDS_BEFORE_SLEEP 4   /* whoever shares this core goes first */
#define YIELD_NS            500000 /* and goes first for so long: waking from sleep costs tens of microseconds at both ends */
#define YIELDS_WHEN_SHARED  100 /* cores shared by ranks: each yield is one turn of the others */
#define SLEEP_NS            1000000 /* at most: deadlines and the job's failure are looked at in between */
#define DEVICE_NS           20000   /* between looks at what a device works on */
#define CARRYING_YIELDS     2000    /* before those, where its kernel waits for this thread: about a millisecond */
#define POLL_MS             1
#define DEATH_NEWS_MS       200
#define POLL_DESCRIPTORS    32

struct progress {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int references;             /* communicators that share it */
    int spins, yields;          /* before sleep */
    struct bell *bell;
    bool driven;                /* claimed by compare-and-swap: claim(), release() */
    int waiters;                /* threads that sleep on `changed` */
    struct operation *incoming; /* newest first */
    struct operation *live;     /* oldest first; only the driver touches it */
};

enum status progress_open(struct progress **progress)
{
    *progress = calloc(1, sizeof **progress);
    if (*progress == NULL) return FAIL(STATUS_SYSTEM, "no memory for a progress engine");
    pthread_mutex_init(&(*progress)->lock, NULL);
    pthread_cond_init(&(*progress)->changed, NULL);
    (*progress)->references = 1;
    (*progress)->spins = SPINS_BEFORE_YIELD;
    (*progress)->yields = YIELDS_BEFORE_SLEEP;
    if (bell_open(&(*progress)->bell) == STATUS_OK) return STATUS_OK;
    progress_close(*progress);
    *progress = NULL;
    return STATUS_SYSTEM;
}

void progress_share_cores(struct progress *progress)
{
    progress->spins = 0;
    progress->yields = YIELDS_WHEN_SHARED;
}

bool progress_shares_cores(const struct progress *progress) { return progress->spins == 0; }

struct bell *progress_bell(const struct progress *progress) { return progress->bell; }

struct progress *progress_share(struct progress *progress)
{
    __atomic_add_fetch(&progress->references, 1, __ATOMIC_RELAXED);
    return progress;
}

void progress_close(struct progress *progress)
{
    if (progress == NULL || __atomic_sub_fetch(&progress->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    bell_close(progress->bell);
    pthread_cond_destroy(&progress->changed);
    pthread_mutex_destroy(&progress->lock);
    free(progress);
}

/* ---- waiting ---- */

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

int progress_spins(const struct progress *progress, bool staged)
{
    if (progress->spins == 0) return YIELDS_WHEN_SHARED;
    return progress->spins + (staged ? 0 : BARE_SPINS);
}

int progress_looks(const struct progress *progress) { return progress->spins == 0 ? 0 : LOOKS; }

/* On a core of its own it looks without a pause at first: a pause is as long as a message takes. */
void progress_pause(int idle, const struct progress *progress)
{
    if (progress->spins == 0) sched_yield();
    else if (idle > BARE_SPINS) cpu_relax();
}

/* How many there are to sleep on; EDGE_HAS_WORK: no time to sleep. */
static int live_descriptors(struct pollfd *descriptors, const struct progress *progress)
{
    int count = 0;
    for (const struct operation *operation = progress->live; operation != NULL; operation = operation->next) {
        for (int e = 0; e < operation->edge_count && count < POLL_DESCRIPTORS; e++) {
            short events = 0;
            int fd = edge_descriptor(operation->edges[e], &events);
            if (fd == EDGE_HAS_WORK) return EDGE_HAS_WORK;
            if (fd >= 0) descriptors[count++] = (struct pollfd){fd, events, 0};
        }
    }
    return count;
}

/* A kernel waits for what this thread carries. */
static bool carries(const struct progress *progress)
{
    for (const struct operation *operation = progress->live; operation != NULL; operation = operation->next)
        if (kernel_has_proxy(operation)) return true;
    return false;
}

static bool device_works(const struct progress *progress)
{
    for (const struct operation *operation = progress->live; operation != NULL; operation = operation->next)
        if (operation->oldest != NULL || operation->kernel == KERNEL_RUNS) return true;
    return false;
}

/* Passes that moved nothing, since the last that did. */
struct idle {
    int passes;
    int64_t yields_until_ns; /* 0: not that far */
    bool listening;          /* the next pass is the last look before sleep, */
    uint32_t rings;          /* and so often the bell had rung before it */
};

/* With a core for every rank the time counts, else the turns that it has given. */
static bool still_yields(struct idle *idle, const struct progress *progress)
{
    if (idle->passes < progress->spins + progress->yields) return true;
    if (progress->spins == 0) return false;
    int64_t now = clock_ns();
    if (idle->yields_until_ns == 0) idle->yields_until_ns = now + YIELD_NS;
    return now < idle->yields_until_ns;
}

/* Gives the core up a little more with every pass that moved nothing. */
static void idle_wait(struct idle *idle, struct progress *progress)
{
    if (idle->passes < progress->spins) {
        cpu_relax();
        return;
    }
    if (still_yields(idle, progress)) {
        sched_yield();
        return;
    }
    if (carries(progress) && idle->passes < CARRYING_YIELDS) {
        sched_yield();
        return;
    }
    if (device_works(progress)) { /* it rings no bell */
        nanosleep(&(struct timespec){0, DEVICE_NS}, NULL);
        return;
    }
    struct pollfd descriptors[POLL_DESCRIPTORS];
    int count = live_descriptors(descriptors, progress);
    if (count == EDGE_HAS_WORK) return;
    if (count > 0) {
        poll(descriptors, (nfds_t)count, POLL_MS);
    } else if (!idle->listening) {
        idle->rings = bell_listen(progress->bell);
        idle->listening = true;
    } else {
        bell_sleep(progress->bell, idle->rings, SLEEP_NS);
        idle->listening = false;
    }
}

/* ---- one operation's end ---- */

static enum status fail_waiting(const struct operation *operation, enum status status, const char *reason)
{
    char what[160], wait[160], why[STATUS_TEXT_BYTES];
    int peer;
    snprintf(why, sizeof why, "%s", reason); /* may be status_text() itself */
    operation_describe(what, sizeof what, operation);
    operation_describe_wait(wait, sizeof wait, &peer, operation);
    return FAIL(status, "rank %d: %s: %s, while waiting for %s", comm_name(operation->comm, operation->comm->rank), what, why, wait);
}

/* Says what the operation was doing. A connection that breaks and the news of a death are one event: the death explains it,
 * and comes within milliseconds. */
static enum status explain(const struct operation *operation, enum status status)
{
    if (status == STATUS_DATA) return status; /* the slice that did not fit has described itself */
    char text[STATUS_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", status_text());
    int64_t until = clock_ns() + clock_ms_to_ns(DEATH_NEWS_MS);
    while (status == STATUS_PEER && !bootstrap_failed(operation->comm->bootstrap) && clock_ns() < until) {
        struct timespec sleep = {0, 1000000};
        nanosleep(&sleep, NULL);
    }
    enum status job = bootstrap_check(NULL, operation->comm->bootstrap);
    if (job != STATUS_OK) return fail_waiting(operation, job, status_text());
    return fail_waiting(operation, status, text);
}

/* Asked when an operation did not move. */
static enum status check_patience(struct operation *operation, int64_t now)
{
    const struct ring_comm *comm = operation->comm;
    if (bootstrap_failed(comm->bootstrap))
        return fail_waiting(operation, bootstrap_check(NULL, comm->bootstrap), status_text());
    int64_t waited = now - operation->progress_ns;
    if (waited >= clock_ms_to_ns(STATEMENT_AFTER_MS) && now >= operation->statement_ns) {
        if (operation->statement_ns == 0) TRY(statement_make(operation));
        operation->statement_ns = now + clock_ms_to_ns(STATEMENT_EVERY_MS);
        TRY(statement_compare(operation));
    }
    if (waited < clock_ms_to_ns(comm->config.timeout_ms)) return STATUS_OK;
    char reason[128];
    snprintf(reason, sizeof reason, "nothing moved for %.1f s (RINGZERO_TIMEOUT_MS %d)", (double)waited * 1e-9,
        comm->config.timeout_ms);
    return fail_waiting(operation, STATUS_TIMEOUT, reason);
}

static enum status operation_step(struct operation *operation, bool *moved, bool *done)
{
    bool moved_here = false;
    if (!operation->begun) TRY(comm_check(operation->comm)); /* a neighbour would take its slices for those of the failed one */
    enum status status = operation->begun ? STATUS_OK : operation_begin(operation);
    if (status == STATUS_OK) status = operation_advance(operation, &moved_here, done);
    if (status != STATUS_OK) return explain(operation, status);
    if (moved_here) {
        *moved = true;
        operation->progress_ns = 0; /* stamped by the first pass that does not move: a clock per slice is not needed */
        return STATUS_OK;
    }
    if (*done) return STATUS_OK;
    int64_t now = clock_ns();
    if (operation->progress_ns == 0) operation->progress_ns = now;
    return check_patience(operation, now);
}

/* ---- driving ---- */

static void take_incoming(struct progress *progress)
{
    pthread_mutex_lock(&progress->lock);
    struct operation *newest_first = progress->incoming, *oldest_first = NULL;
    progress->incoming = NULL;
    pthread_mutex_unlock(&progress->lock);
    while (newest_first != NULL) {
        struct operation *next = newest_first->next;
        newest_first->next = oldest_first;
        oldest_first = newest_first;
        newest_first = next;
    }
    struct operation **end = &progress->live;
    while (*end != NULL) end = &(*end)->next;
    *end = oldest_first;
}

/* An older operation that it has to follow is still running. */
static bool must_queue(const struct operation *operation, const struct progress *progress)
{
    for (const struct operation *older = progress->live; older != operation; older = older->next)
        if (older->comm == operation->comm && operation_must_follow(operation, older)) return true;
    return false;
}

static void finish(struct operation **link, enum status status, struct progress *progress)
{
    struct operation *operation = *link;
    *link = operation->next;
    operation_end(operation);
    operation->status = status;
    if (status != STATUS_OK) {
        snprintf(operation->room->text, sizeof operation->room->text, "%s", status_text());
        comm_fail(operation->comm); /* at once: those behind it must not each wait for a deadline of their own */
    }
    pthread_mutex_lock(&progress->lock);
    operation->done = true; /* from here on the operation is its owner's again */
    pthread_cond_broadcast(&progress->changed);
    pthread_mutex_unlock(&progress->lock);
}

/* Advances every live operation once. True if `mine` finished. */
static bool pass(const struct operation *mine, bool *moved, struct progress *progress)
{
    bool mine_done = false;
    for (struct operation **link = &progress->live; *link != NULL;) {
        struct operation *operation = *link;
        bool done = false;
        enum status status = STATUS_OK;
        if (must_queue(operation, progress)) {
            operation->progress_ns = 0; /* its own patience begins with its turn */
        } else {
            status = operation_step(operation, moved, &done);
        }
        if (status == STATUS_OK && !done) {
            link = &operation->next;
            continue;
        }
        mine_done = mine_done || operation == mine;
        finish(link, status, progress);
    }
    return mine_done;
}

static void drive(const struct operation *mine, struct progress *progress)
{
    struct idle idle = {0};
    bool mine_done = false;
    while (!mine_done) {
        if (__atomic_load_n(&progress->incoming, __ATOMIC_ACQUIRE) != NULL) take_incoming(progress);
        bool moved = false;
        mine_done = pass(mine, &moved, progress);
        if (moved || mine_done) {
            if (idle.listening) bell_awake(progress->bell);
            idle = (struct idle){0};
        } else {
            idle.passes++;
            idle_wait(&idle, progress);
        }
    }
}

static bool claim(struct progress *progress)
{
    bool free_now = false;
    return __atomic_compare_exchange_n(&progress->driven, &free_now, true, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* Whoever began to wait before the claim was given up is counted and woken; whoever comes later finds it free. */
static void release(struct progress *progress)
{
    (void)__atomic_exchange_n(&progress->driven, false, __ATOMIC_SEQ_CST); /* a full barrier before the look at waiters */
    if (__atomic_load_n(&progress->waiters, __ATOMIC_SEQ_CST) == 0) return;
    pthread_mutex_lock(&progress->lock);
    pthread_cond_broadcast(&progress->changed);
    pthread_mutex_unlock(&progress->lock);
}

bool progress_claim(struct progress *progress)
{
    if (!claim(progress)) return false;
    if (progress->live == NULL && __atomic_load_n(&progress->incoming, __ATOMIC_ACQUIRE) == NULL) return true;
    release(progress);
    return false;
}

void progress_release(struct progress *progress) { release(progress); }

/* ---- submitting ---- */

static void submit(struct operation *operations, int count, struct progress *progress)
{
    pthread_mutex_lock(&progress->lock);
    for (int i = 0; i < count; i++) {
        operations[i].next = progress->incoming;
        __atomic_store_n(&progress->incoming, &operations[i], __ATOMIC_RELEASE); /* pairs with the acquire in drive() */
    }
    pthread_mutex_unlock(&progress->lock);
    bell_ring(bell_own_page(progress->bell));
}

static bool is_done(const struct operation *operation, struct progress *progress)
{
    pthread_mutex_lock(&progress->lock);
    bool done = operation->done;
    pthread_mutex_unlock(&progress->lock);
    return done;
}

/* Sleeps until an operation has finished or the driver has left. Bounded by the driver's deadlines: it drives this one too. */
static void wait_for_driver(const struct operation *operation, struct progress *progress)
{
    pthread_mutex_lock(&progress->lock);
    __atomic_add_fetch(&progress->waiters, 1, __ATOMIC_SEQ_CST);
    if (!operation->done && __atomic_load_n(&progress->driven, __ATOMIC_SEQ_CST))
        pthread_cond_wait(&progress->changed, &progress->lock);
    __atomic_sub_fetch(&progress->waiters, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&progress->lock);
}

static enum status run(struct operation *operations, int count, bool claimed, struct progress *progress)
{
    enum status status = STATUS_OK;
    submit(operations, count, progress);
    for (int i = 0; i < count; i++) {
        while (!is_done(&operations[i], progress)) {
            if (claimed || claim(progress)) {
                if (!is_done(&operations[i], progress)) drive(&operations[i], progress); /* another may just have ended it */
                release(progress);
                claimed = false;
            } else {
                wait_for_driver(&operations[i], progress);
            }
        }
    }
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        status = operations[i].status;
        if (status != STATUS_OK) status_set_text(operations[i].room->text);
    }
    return status;
}

enum status progress_run(struct operation *operations, int count, struct progress *progress)
{
    return run(operations, count, false, progress);
}

enum status progress_resume(struct operation *operation, struct progress *progress)
{
    return run(operation, 1, true, progress);
}
