/* bootstrap: the public calls. bootstrap_internal.h says which part does what.
 *
 * Keeps I5: every wait here is wait_until(), which has a deadline and ends at the job's first failure.
 */
#include "verbs/bootstrap_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/log.h"

#define CLOSE_BROKEN_MS 1000 /* after a given-up collective nobody is sure to come */
#define FLUSH_MS        1000
#define AFTER_DEATH_MS  50 /* the kernel closes a dying process's sockets before its parent can reap it */
#define TIMEOUT_MS_MAX  1000000000 /* 11 days: sums of it stay within an int */

struct bootstrap_config bootstrap_config_single(void)
{
    return (struct bootstrap_config){.nranks = 1, .local_nranks = 1, .listen_fd = -1};
}

uint64_t bootstrap_draw_job(void)
{
    uint64_t job = 0;
    while (job == 0)
        if (getrandom(&job, sizeof job, 0) != (ssize_t)sizeof job)
            job = (uint64_t)clock_ns() ^ (uint64_t)getpid() << 40;
    return job;
}

/* ---- open and close ---- */

enum status bootstrap_read_timeout(int *timeout_ms)
{
    const char *text = getenv("RINGZERO_TIMEOUT_MS");
    *timeout_ms = BOOTSTRAP_DEFAULT_TIMEOUT_MS;
    if (text == NULL) return STATUS_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value <= 0 || value > TIMEOUT_MS_MAX)
        return FAIL(STATUS_INVALID,
            "RINGZERO_TIMEOUT_MS is \"%s\"; expected a number of milliseconds from 1 to %d: correct or "
            "unset it",
            text, TIMEOUT_MS_MAX);
    *timeout_ms = (int)value;
    return STATUS_OK;
}

static enum status check_config(const struct bootstrap_config *config)
{
    if (config->nranks < 1)
        return FAIL(STATUS_INVALID, "the number of ranks is %d; expected 1 or more", config->nranks);
    if (config->rank < 0 || config->rank >= config->nranks)
        return FAIL(STATUS_INVALID, "the rank is %d; expected 0 to %d, because the number of ranks is %d",
            config->rank, config->nranks - 1, config->nranks);
    if (config->timeout_ms < 0 || config->timeout_ms > TIMEOUT_MS_MAX)
        return FAIL(STATUS_INVALID, "the timeout is %d ms; expected 0 (the default) to %d",
            config->timeout_ms, TIMEOUT_MS_MAX);
    if (config->local_nranks < 0 || config->local_nranks > config->nranks || config->local_rank < 0 ||
        (config->local_nranks > 0 && config->local_rank >= config->local_nranks))
        return FAIL(STATUS_INVALID,
            "the local rank is %d of %d; expected 0 to %d, and at most %d local ranks", config->local_rank,
            config->local_nranks, config->local_nranks - 1, config->nranks);
    bool needs_port = config->nranks > 1 && (config->rank > 0 || config->listen_fd < 0);
    int least_port = config->rank > 0 ? 1 : 0;
    if (needs_port && (config->port < least_port || config->port > 65535))
        return FAIL(
            STATUS_INVALID, "the port of rank 0 is %d; expected 1 to 65535: set MASTER_PORT", config->port);
    if (needs_port && memchr(config->address, '\0', sizeof config->address) == NULL)
        return FAIL(STATUS_INVALID, "the address of rank 0 has %zu bytes or more; expected fewer",
            sizeof config->address);
    if (needs_port && config->address[0] == '\0')
        return FAIL(STATUS_INVALID,
            "the address of rank 0 is empty; expected a name or an IP address: set MASTER_ADDR");
    return STATUS_OK;
}

static void init_lock(struct bootstrap *b)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&b->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&b->lock, NULL);
}

struct bootstrap *bootstrap_make(const struct bootstrap_config *config, int timeout_ms)
{
    struct bootstrap *b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    b->rank = config->rank;
    b->nranks = config->nranks;
    b->local_rank = config->local_rank;
    b->local_nranks = config->local_nranks;
    b->timeout_ms = timeout_ms;
    b->wake_fd = -1;
    b->mail_end = &b->mail;
    b->hub.sequence = 1;
    b->call.done = true;
    init_lock(b);
    b->link_count = config->nranks == 1 ? 0 : config->rank == 0 ? config->nranks : 1;
    b->links = calloc((size_t)b->link_count + 1, sizeof *b->links);
    b->hub.in = calloc((size_t)config->nranks, sizeof *b->hub.in);
    if (b->links == NULL || b->hub.in == NULL) {
        b->link_count = 0;
        bootstrap_free(b);
        return NULL;
    }
    for (int i = 0; i <= b->link_count; i++) {
        b->links[i].fd = -1;
        b->links[i].rank = config->rank == 0 ? i : 0;
    }
    return b;
}

void bootstrap_free(struct bootstrap *b)
{
    if (b == NULL) return;
    for (int i = 0; i < b->link_count; i++) link_close(&b->links[i]);
    while (b->mail != NULL) {
        struct mail *mail = b->mail;
        b->mail = mail->next;
        free(mail);
    }
    free(b->links);
    free(b->hub.in);
    free(b->hub.blobs);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static enum status open_checked(
    struct bootstrap **out, const struct bootstrap_config *config, int *listen_fd)
{
    int timeout_ms = config->timeout_ms;
    char address[ADDRESS_TEXT_BYTES] = "";
    const char *interface = getenv("RINGZERO_INTERFACE");
    TRY(check_config(config));
    if (timeout_ms == 0) TRY(bootstrap_read_timeout(&timeout_ms));
    if (interface != NULL && interface[0] != '\0') TRY(socket_interface_address(address, interface));

    enum status status;
    struct bootstrap *b = bootstrap_make(config, timeout_ms);
    if (b == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for a job of %d ranks", config->nranks);
        goto fail;
    }
    memcpy(b->address, address, sizeof b->address);
    if (config->nranks == 1) {
        if (b->address[0] == '\0') snprintf(b->address, sizeof b->address, "127.0.0.1");
        b->job = config->job != 0 ? config->job : bootstrap_draw_job();
        b->local_nranks = 1;
    } else {
        TRY_GOTO(config->rank == 0 ? join_as_hub(b, config, listen_fd) : join_as_member(b, config));
        TRY_GOTO(service_start(b));
    }
    *out = b;
    return STATUS_OK;
fail:
    if (b != NULL) service_stop(b);
    bootstrap_free(b);
    return status;
}

enum status bootstrap_open(struct bootstrap **out, const struct bootstrap_config *config)
{
    *out = NULL;
    int listen_fd = config->rank == 0 ? config->listen_fd : -1;
    enum status status = open_checked(out, config, &listen_fd);
    if (listen_fd >= 0) close(listen_fd); /* ours from the call on, and not needed once all are in */
    return status;
}

/* One turn of a wait loop: returns at a change or at the deadline. False when that has passed. The lock
 * is held. */
static bool wait_until(struct bootstrap *b, int64_t deadline_ns)
{
    struct timespec deadline = {(time_t)(deadline_ns / 1000000000), (long)(deadline_ns % 1000000000)};
    if (clock_ns() >= deadline_ns) return false;
    pthread_cond_timedwait(&b->changed, &b->lock, &deadline);
    return true;
}

static void warn_missing_at_close(const struct bootstrap *b, int waited_ms)
{
    if (b->rank != 0) {
        LOG_WARN("bootstrap", "left the job without a BYE of rank 0 within %d ms", waited_ms);
        return;
    }
    bool *in = calloc((size_t)b->nranks, sizeof *in);
    if (in == NULL) return;
    in[0] = true;
    for (int r = 1; r < b->nranks; r++) in[r] = b->links[r].left;
    char missing[200];
    hub_list_missing(missing, sizeof missing, in, b->nranks);
    free(in);
    LOG_WARN(
        "bootstrap", "left the job, though %s did not come to its end within %d ms", missing, waited_ms);
}

/* Says BYE and waits for that of all. The lock is held. */
static void leave(struct bootstrap *b)
{
    b->closing = true;
    if (b->rank == 0) hub_leave(b, 0);
    else link_send(&b->links[0], (struct frame){.type = FRAME_BYE, .from = b->rank}, NULL);
    bool broken = b->call.broken;
    int wait_ms = broken && b->timeout_ms > CLOSE_BROKEN_MS ? CLOSE_BROKEN_MS : b->timeout_ms;
    int64_t deadline_ns = clock_ns() + clock_ms_to_ns(wait_ms);
    while (!b->all_left && !b->failed && wait_until(b, deadline_ns)) continue;
    if (b->all_left || b->failed) return;
    if (!broken) warn_missing_at_close(b, wait_ms);
    for (int r = 1; b->rank == 0 && r < b->nranks; r++)
        link_send(&b->links[r], (struct frame){.type = FRAME_BYE, .to = r}, NULL);
}

/* Lets a dead rank's end reach the launcher before ours, which is its consequence: the first failure is
 * the one told. */
static void let_the_dead_go_first(const struct bootstrap *b)
{
    struct timespec time = {0, AFTER_DEATH_MS * 1000000};
    if (bootstrap_failed(b) && b->failure == STATUS_PEER) nanosleep(&time, NULL);
}

void bootstrap_close(struct bootstrap *b)
{
    if (b == NULL) return;
    if (b->service_runs) {
        pthread_mutex_lock(&b->lock);
        if (!b->failed) leave(b);
        b->closing = true;
        service_wake(b);
        int64_t deadline_ns = clock_ns() + clock_ms_to_ns(FLUSH_MS);
        while (!service_all_sent(b) && wait_until(b, deadline_ns)) continue;
        pthread_mutex_unlock(&b->lock);
    }
    service_stop(b);
    let_the_dead_go_first(b);
    bootstrap_free(b);
}

int bootstrap_rank(const struct bootstrap *b) { return b->rank; }
int bootstrap_nranks(const struct bootstrap *b) { return b->nranks; }
int bootstrap_local_rank(const struct bootstrap *b) { return b->local_rank; }
int bootstrap_local_nranks(const struct bootstrap *b) { return b->local_nranks; }
int bootstrap_timeout_ms(const struct bootstrap *b) { return b->timeout_ms; }
uint64_t bootstrap_job(const struct bootstrap *b) { return b->job; }
const char *bootstrap_address(const struct bootstrap *b) { return b->address; }

/* ---- collectives ---- */

/* Sends this rank's blob to the hub and waits for what comes of it. The lock is held. */
static void gather_locked(void *blobs, size_t bytes, struct bootstrap *b)
{
    struct gather_call *call = &b->call;
    assert(call->done && "one collective at a time");
    call->sequence++;
    call->done = false;
    call->blobs = blobs;
    call->bytes = bytes;
    const unsigned char *own = bytes > 0 ? (unsigned char *)blobs + bytes * (size_t)b->rank : NULL;
    if (b->rank == 0) {
        bool taken = hub_contribute(b, 0, call->sequence, own, bytes);
        assert(taken);
        (void)taken;
        service_wake(b); /* the deadline may be new */
    } else {
        b->links[0].gathered_bytes = bytes * (size_t)b->nranks;
        link_send(&b->links[0],
            (struct frame){
                .type = FRAME_GATHER, .from = b->rank, .key = call->sequence, .bytes = (uint32_t)bytes},
            own);
        service_wake(b); /* for what could not be sent at once */
    }
    int64_t deadline_ns = clock_ns() + clock_ms_to_ns((int64_t)b->timeout_ms + VERDICT_GRACE_MS);
    while (!call->done && !b->failed && wait_until(b, deadline_ns)) continue;
    call->blobs = NULL; /* whatever comes later must not touch the caller's memory */
    if (call->done || b->failed) return;
    call->done = call->broken = true;
    call->result = STATUS_TIMEOUT;
    snprintf(call->text, sizeof call->text,
        "collective %llu of the bootstrap: rank 0 did not answer within %d ms: see whether it "
        "is stopped",
        (unsigned long long)call->sequence, b->timeout_ms + VERDICT_GRACE_MS);
}

enum status bootstrap_all_gather(void *blobs, size_t bytes, struct bootstrap *b)
{
    /* All blobs together travel in one frame, whose size is a 32-bit word. */
    size_t most = UINT32_MAX / (size_t)b->nranks;
    if (most > BOOTSTRAP_GATHER_BYTES) most = BOOTSTRAP_GATHER_BYTES;
    if (bytes > most)
        return FAIL(STATUS_INVALID,
            "a blob of %zu bytes for the bootstrap's all-gather; expected at most %zu: send it in parts",
            bytes, most);
    TRY(bootstrap_check(NULL, b));
    if (b->nranks == 1) return STATUS_OK;
    pthread_mutex_lock(&b->lock);
    struct gather_call *call = &b->call;
    if (!call->broken) gather_locked(blobs, bytes, b);
    enum status result = call->done ? call->result : STATUS_PEER;
    bool done = call->done;
    char text[STATUS_TEXT_BYTES] = "";
    if (done && result != STATUS_OK) memcpy(text, call->text, sizeof text);
    pthread_mutex_unlock(&b->lock);
    if (!done) return bootstrap_check(NULL, b);
    return result == STATUS_OK ? STATUS_OK : FAIL(result, "%s", text);
}

enum status bootstrap_barrier(struct bootstrap *b) { return bootstrap_all_gather(NULL, 0, b); }

/* ---- mailbox ---- */

static enum status post(int code, int to, uint64_t key, const void *blob, size_t bytes, struct bootstrap *b)
{
    if (to < 0 || to >= b->nranks)
        return FAIL(STATUS_INVALID, "a blob for rank %d; expected a rank of 0 to %d", to, b->nranks - 1);
    if (bytes > BOOTSTRAP_BLOB_BYTES)
        return FAIL(STATUS_INVALID, "a blob of %zu bytes for rank %d; expected at most %d", bytes, to,
            BOOTSTRAP_BLOB_BYTES);
    TRY(bootstrap_check(NULL, b));
    struct frame frame = {.type = FRAME_POST,
        .from = b->rank,
        .to = to,
        .key = key,
        .bytes = (uint32_t)bytes,
        .code = code};
    bool room = true;
    pthread_mutex_lock(&b->lock);
    if (to == b->rank) {
        room = service_deliver_mail(b, &frame, blob);
    } else {
        struct link *link = &b->links[b->rank == 0 ? to : 0];
        link_send(link, frame, blob);
        if (link->out_end > link->out_begin) service_wake(b);
    }
    pthread_mutex_unlock(&b->lock);
    return room ? STATUS_OK
                : FAIL(STATUS_SYSTEM, "rank %d's own mailbox is full: take what was posted", to);
}

enum status bootstrap_post(int to, uint64_t key, const void *blob, size_t bytes, struct bootstrap *b)
{
    return post(0, to, key, blob, bytes, b);
}

enum status bootstrap_post_anew(
    int to, uint64_t key, const void *blob, size_t bytes, struct bootstrap *b)
{
    return post(POST_ANEW, to, key, blob, bytes, b);
}

enum status bootstrap_take(
    void *blob, size_t bytes, bool *found, int from, uint64_t key, struct bootstrap *b)
{
    *found = false;
    TRY(bootstrap_check(NULL, b));
    /* The usual answer in a wait loop, without the lock; pairs with the store in service_deliver_mail(). */
    if (__atomic_load_n(&b->mail_count, __ATOMIC_ACQUIRE) == 0) return STATUS_OK;
    pthread_mutex_lock(&b->lock);
    struct mail **at = service_find_mail(b, from, key);
    size_t mail_bytes = *at != NULL ? (*at)->bytes : bytes;
    if (*at != NULL && mail_bytes == bytes) {
        if (bytes > 0) memcpy(blob, (*at)->blob, bytes);
        service_drop_mail(b, at);
        *found = true;
    }
    pthread_mutex_unlock(&b->lock);
    if (mail_bytes != bytes)
        return FAIL(STATUS_DATA,
            "the blob of rank %d under key %llu has %zu bytes; expected %zu: the two ranks disagree about it",
            from, (unsigned long long)key, mail_bytes, bytes);
    return STATUS_OK;
}

/* ---- failure ---- */

bool bootstrap_failed(const struct bootstrap *b)
{
    return __atomic_load_n(&b->failed, __ATOMIC_ACQUIRE) != 0; /* pairs with the store in service_fail() */
}

enum status bootstrap_check(int *rank, const struct bootstrap *b)
{
    if (!bootstrap_failed(b)) return STATUS_OK;
    if (rank != NULL) *rank = b->failed_rank;
    return FAIL(b->failure, "%s", b->failure_text);
}

void bootstrap_abort(const char *text, struct bootstrap *b)
{
    pthread_mutex_lock(&b->lock);
    service_fail(b, STATUS_ABORTED, b->rank, text);
    if (b->service_runs && !service_all_sent(b)) service_wake(b);
    pthread_mutex_unlock(&b->lock);
}
