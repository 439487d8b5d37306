/* bootstrap_service: the thread that reads the control connections, and on rank 0 the hub.
 *
 * It sleeps in poll() until a frame, an end of a connection, a deadline or service_wake() comes, and
 * costs nothing between.
 *
 *   a collective, 3 ranks           rank 0 (hub)               a death
 *   GATHER 7 from 2 ──►  in: 2                                 end of rank 2's connection without BYE
 *   GATHER 7 from 1 ──►  in: 1 2    deadline runs from the     ──► failed = PEER, rank 2
 *   own call        ──►  in: 0 1 2  first                      ──► DEAD 2 to ranks 1 and 3
 *   GATHERED 7      ◄──  to 1 and 2
 *   or VERDICT 7    ◄──  to all that came: sizes differ, somebody has not come or has left
 *
 * Keeps I5: a collective ends for every rank with one and the same verdict of rank 0, and the first
 * failure wins.
 */
#include "verbs/bootstrap_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/log.h"

#define MAIL_COUNT_MAX   65536
#define FRAMES_PER_ROUND 64 /* of one link, before the others have their turn */

/* ---- failure ---- */

void service_fail(struct bootstrap *b, enum status failure, int rank, const char *text)
{
    if (b->failed) return;
    b->failure = failure;
    b->failed_rank = rank;
    if (failure == STATUS_ABORTED)
        snprintf(b->failure_text, sizeof b->failure_text, "rank %d: %s", rank, text);
    else snprintf(b->failure_text, sizeof b->failure_text, "%s", text);
    text_clean(b->failure_text);
    __atomic_store_n(&b->failed, 1, __ATOMIC_RELEASE); /* pairs with the load in bootstrap_failed() */
    pthread_cond_broadcast(&b->changed);
    enum frame_type type = failure == STATUS_ABORTED ? FRAME_ABORT : FRAME_DEAD;
    if (b->rank != 0 && !(type == FRAME_ABORT && rank == b->rank)) return; /* rank 0 told us, or is gone */
    for (int i = 0; i < b->link_count; i++)
        if (b->links[i].rank != rank) link_send_text(&b->links[i], type, rank, 0, failure, text);
}

/* ---- mailbox ---- */

struct mail **service_find_mail(struct bootstrap *b, int from, uint64_t key)
{
    struct mail **at = &b->mail;
    while (*at != NULL && ((*at)->from != from || (*at)->key != key)) at = &(*at)->next;
    return at;
}

void service_drop_mail(struct bootstrap *b, struct mail **at)
{
    struct mail *mail = *at;
    *at = mail->next;
    if (b->mail_end == &mail->next) b->mail_end = at;
    __atomic_store_n(&b->mail_count, b->mail_count - 1, __ATOMIC_RELEASE);
    free(mail);
}

bool service_deliver_mail(struct bootstrap *b, const struct frame *post, const void *blob)
{
    if (post->code == POST_ANEW) {
        struct mail **old = service_find_mail(b, post->from, post->key);
        if (*old != NULL) service_drop_mail(b, old);
    }
    struct mail *mail = b->mail_count < MAIL_COUNT_MAX ? malloc(sizeof *mail + post->bytes) : NULL;
    if (mail == NULL) return false;
    mail->next = NULL;
    mail->from = post->from;
    mail->key = post->key;
    mail->bytes = post->bytes;
    if (post->bytes > 0) memcpy(mail->blob, blob, post->bytes);
    *b->mail_end = mail;
    b->mail_end = &mail->next;
    __atomic_store_n(&b->mail_count, b->mail_count + 1, __ATOMIC_RELEASE);
    return true;
}

/* ---- collectives: this rank's call ---- */

/* blobs is NULL where there are none: after a failure, and in a barrier. */
static void end_call(struct bootstrap *b, enum status result, const void *blobs, const char *text)
{
    struct gather_call *call = &b->call;
    if (result == STATUS_OK && call->blobs != NULL && blobs != NULL)
        memcpy(call->blobs, blobs, call->bytes * (size_t)b->nranks);
    call->blobs = NULL;
    call->result = result;
    call->broken = result == STATUS_TIMEOUT || result == STATUS_PEER;
    if (result != STATUS_OK) snprintf(call->text, sizeof call->text, "%s", text);
    call->done = true;
    pthread_cond_broadcast(&b->changed);
}

/* ---- collectives: the hub ---- */

void hub_list_missing(char *text, size_t text_bytes, const bool *in, int nranks)
{
    int missing = 0, written = 0;
    for (int r = 0; r < nranks; r++) missing += !in[r];
    size_t used = (size_t)snprintf(text, text_bytes, missing == 1 ? "rank" : "ranks");
    for (int r = 0; r < nranks && used + 40 < text_bytes; r++) {
        if (in[r]) continue;
        const char *between = written == 0 ? "" : written == missing - 1 ? " and" : ",";
        used += (size_t)snprintf(text + used, text_bytes - used, "%s %d", between, r);
        written++;
    }
    if (written < missing) snprintf(text + used, text_bytes - used, " and %d more", missing - written);
}

static void tell_verdict(
    struct bootstrap *b, int rank, uint64_t sequence, enum status result, const char *text)
{
    if (rank == 0) end_call(b, result, NULL, text);
    else link_send_text(&b->links[rank], FRAME_VERDICT, 0, sequence, result, text);
}

static void next_gather(struct hub_gather *hub, int nranks)
{
    free(hub->blobs);
    hub->blobs = NULL;
    hub->in_count = 0;
    memset(hub->in, 0, (size_t)nranks * sizeof *hub->in);
    hub->sequence++;
}

/* Ends this collective, and all later ones, for those that wait. */
static void give_up_gather(struct bootstrap *b, enum status result, const char *text)
{
    struct hub_gather *hub = &b->hub;
    hub->given_up = result;
    snprintf(hub->text, sizeof hub->text, "%s", text);
    for (int r = 0; r < b->nranks; r++)
        if (hub->in[r]) tell_verdict(b, r, hub->sequence, result, text);
    next_gather(hub, b->nranks);
}

static void complete_gather(struct bootstrap *b)
{
    struct hub_gather *hub = &b->hub;
    char text[FRAME_TEXT_BYTES];
    if (hub->differs >= 0)
        snprintf(text, sizeof text,
            "collective %llu of the bootstrap: rank %d brought %zu bytes, rank %d brought %zu; expected "
            "the same on every rank: all ranks must make the same calls in the same order",
            (unsigned long long)hub->sequence, hub->first, hub->bytes, hub->differs, hub->differs_bytes);
    for (int r = 0; r < b->nranks; r++) {
        struct frame frame = {.type = FRAME_GATHERED,
            .to = r,
            .key = hub->sequence,
            .bytes = (uint32_t)(hub->bytes * (size_t)b->nranks)};
        if (hub->differs >= 0) tell_verdict(b, r, hub->sequence, STATUS_INVALID, text);
        else if (r == 0) end_call(b, STATUS_OK, hub->blobs, NULL);
        else link_send(&b->links[r], frame, hub->blobs);
    }
    next_gather(hub, b->nranks);
}

/* Ends the collective in progress if all are in, or if somebody will never come. */
static void settle_gather(struct bootstrap *b)
{
    struct hub_gather *hub = &b->hub;
    if (hub->in_count == b->nranks) {
        complete_gather(b);
        return;
    }
    for (int r = 0; r < b->nranks && hub->in_count > 0; r++) {
        bool left = r == 0 ? b->closing : b->links[r].left;
        if (!left || hub->in[r]) continue;
        char text[FRAME_TEXT_BYTES];
        snprintf(text, sizeof text,
            "collective %llu of the bootstrap: rank %d has left the job, rank %d still waits for it: all "
            "ranks must make the same calls",
            (unsigned long long)hub->sequence, r, hub->first);
        give_up_gather(b, STATUS_PEER, text);
    }
}

/* The first blob of a collective sets its size and its deadline. */
static bool begin_gather(struct bootstrap *b, int rank, size_t bytes)
{
    struct hub_gather *hub = &b->hub;
    hub->first = rank;
    hub->bytes = bytes;
    hub->differs = -1;
    hub->deadline_ns = clock_ns() + clock_ms_to_ns(b->timeout_ms);
    if (bytes > 0) hub->blobs = malloc(bytes * (size_t)b->nranks);
    return bytes == 0 || hub->blobs != NULL;
}

bool hub_contribute(struct bootstrap *b, int rank, uint64_t sequence, const void *blob, size_t bytes)
{
    struct hub_gather *hub = &b->hub;
    if (hub->given_up != STATUS_OK) {
        tell_verdict(b, rank, sequence, hub->given_up, hub->text);
        return true;
    }
    if (sequence != hub->sequence || hub->in[rank]) return false;
    if (hub->in_count == 0 && !begin_gather(b, rank, bytes)) {
        service_fail(b, STATUS_ABORTED, 0, "no memory for the blobs of a collective");
        return true;
    }
    if (bytes == hub->bytes) {
        if (bytes > 0) memcpy(hub->blobs + (size_t)rank * bytes, blob, bytes);
    } else if (hub->differs < 0) {
        hub->differs = rank;
        hub->differs_bytes = bytes;
    }
    hub->in[rank] = true;
    hub->in_count++;
    settle_gather(b);
    return true;
}

static void check_gather_deadline(struct bootstrap *b)
{
    struct hub_gather *hub = &b->hub;
    if (b->rank != 0 || hub->in_count == 0 || clock_ns() < hub->deadline_ns) return;
    char missing[200], text[FRAME_TEXT_BYTES];
    hub_list_missing(missing, sizeof missing, hub->in, b->nranks);
    snprintf(text, sizeof text,
        "collective %llu of the bootstrap: %s did not come within %d ms (rank %d came first): see what it "
        "does, or raise RINGZERO_TIMEOUT_MS",
        (unsigned long long)hub->sequence, missing, b->timeout_ms, hub->first);
    give_up_gather(b, STATUS_TIMEOUT, text);
}

void hub_leave(struct bootstrap *b, int rank)
{
    if (rank > 0) b->links[rank].left = true;
    b->left_count++;
    settle_gather(b);
    if (b->left_count < b->nranks) return;
    b->all_left = true;
    for (int r = 1; r < b->nranks; r++)
        link_send(&b->links[r], (struct frame){.type = FRAME_BYE, .to = r}, NULL);
    pthread_cond_broadcast(&b->changed);
}

/* ---- frames ---- */

/* Each handler returns false when the frame is not one that an honest rank sends now. */

static bool hub_post(struct bootstrap *b, const struct link *link)
{
    const struct frame *frame = &link->frame;
    if (frame->to < 0 || frame->to >= b->nranks) return false;
    if (frame->to == 0) return service_deliver_mail(b, frame, link->payload);
    link_send(&b->links[frame->to], *frame, link->payload);
    return true;
}

static bool hub_frame(struct bootstrap *b, struct link *link)
{
    const struct frame *frame = &link->frame;
    if (frame->from != link->rank || link->left) return false;
    char text[FRAME_TEXT_BYTES + 1];
    switch (frame->type) {
    case FRAME_GATHER: return hub_contribute(b, link->rank, frame->key, link->payload, frame->bytes);
    case FRAME_POST: return hub_post(b, link);
    case FRAME_BYE: hub_leave(b, link->rank); return true;
    case FRAME_SHRINK: return b->failed && hub_hear_shrink(link);
    case FRAME_ABORT:
        link_text(text, link);
        service_fail(b, STATUS_ABORTED, link->rank, text);
        return true;
    default: return false;
    }
}

static bool member_frame(struct bootstrap *b, struct link *link)
{
    const struct frame *frame = &link->frame;
    bool of_my_call = frame->key == b->call.sequence && !b->call.done;
    char text[FRAME_TEXT_BYTES + 1];
    link_text(text, link);
    switch (frame->type) {
    case FRAME_GATHERED:
        if (!of_my_call || frame->bytes != link->gathered_bytes) return b->call.broken; /* came too late */
        end_call(b, STATUS_OK, link->payload, NULL);
        return true;
    case FRAME_VERDICT:
        if (!of_my_call) return b->call.broken;
        if (frame->code != STATUS_INVALID && frame->code != STATUS_TIMEOUT && frame->code != STATUS_PEER)
            return false;
        end_call(b, (enum status)frame->code, NULL, text);
        return true;
    case FRAME_POST:
        if (frame->from < 0 || frame->from >= b->nranks || frame->to != b->rank) return false;
        return service_deliver_mail(b, frame, link->payload);
    case FRAME_DEAD:
    case FRAME_ABORT:
        if (frame->from < 0 || frame->from >= b->nranks) return false;
        service_fail(b, frame->type == FRAME_DEAD ? STATUS_PEER : STATUS_ABORTED, frame->from, text);
        return true;
    case FRAME_BYE:
        if (!b->closing)
            service_fail(b, STATUS_PEER, 0, "rank 0 left the job while this rank was still at work");
        b->all_left = true;
        pthread_cond_broadcast(&b->changed);
        return true;
    default: return false;
    }
}

static void end_of_link(struct bootstrap *b, struct link *link, const char *what)
{
    char text[FRAME_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %d %s", link->rank, what);
    if (!link->left && !b->all_left) service_fail(b, STATUS_PEER, link->rank, text);
    link_close(link);
}

static void read_link(struct bootstrap *b, struct link *link)
{
    char what[FRAME_TEXT_BYTES - 16];
    for (int i = 0; i < FRAMES_PER_ROUND; i++) {
        enum link_event event = link_receive(link);
        switch (event) {
        case LINK_NOTHING: return;
        case LINK_FRAME:
            if (b->rank == 0 ? hub_frame(b, link) : member_frame(b, link)) continue;
            snprintf(what, sizeof what,
                "broke the protocol (a frame of type %u at the wrong time, or its mail was too much)",
                link->frame.type);
            break;
        case LINK_CLOSED: snprintf(what, sizeof what, "died (its control connection %s)", link->why); break;
        case LINK_BAD: snprintf(what, sizeof what, "broke the protocol (it sent %s)", link->why); break;
        }
        end_of_link(b, link, what);
        return;
    }
}

/* ---- the thread ---- */

bool service_all_sent(const struct bootstrap *b)
{
    for (int i = 0; i < b->link_count; i++)
        if (b->links[i].fd >= 0 && b->links[i].out_end > b->links[i].out_begin) return false;
    return true;
}

void service_wake(struct bootstrap *b)
{
    uint64_t one = 1;
    ssize_t written = write(b->wake_fd, &one, sizeof one);
    (void)written; /* it cannot fill up: it is read whole at each wake */
}

static int fill_polls(const struct bootstrap *b, struct pollfd *polls)
{
    polls[0] = (struct pollfd){b->wake_fd, POLLIN, 0};
    for (int i = 0; i < b->link_count; i++) {
        const struct link *link = &b->links[i];
        short events = link->out_end > link->out_begin ? POLLIN | POLLOUT : POLLIN;
        polls[1 + i] = (struct pollfd){link->fd, events, 0}; /* poll() skips fd -1 */
    }
    if (b->rank != 0 || b->hub.in_count == 0) return -1;
    int64_t left_ns = b->hub.deadline_ns - clock_ns();
    return left_ns <= 0 ? 0 : (int)(left_ns / 1000000) + 1;
}

static void serve_round(struct bootstrap *b, const struct pollfd *polls)
{
    uint64_t count;
    if (polls[0].revents != 0 && read(b->wake_fd, &count, sizeof count) < 0)
        count = 0; /* woken without a reason: no harm */
    for (int i = 0; i < b->link_count; i++) {
        if (polls[1 + i].revents == 0) continue;
        link_flush(&b->links[i]);
        read_link(b, &b->links[i]);
    }
    if (b->closing && service_all_sent(b)) pthread_cond_broadcast(&b->changed);
    check_gather_deadline(b);
}

struct service {
    struct bootstrap *bootstrap;
    struct pollfd *polls;
};

static void *service_main(void *argument)
{
    struct service service = *(struct service *)argument;
    free(argument);
    struct bootstrap *b = service.bootstrap;
    log_set_rank(b->rank, b->nranks);
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        int wait_ms = fill_polls(b, service.polls);
        pthread_mutex_unlock(&b->lock);
        int ready = poll(service.polls, (nfds_t)b->link_count + 1, wait_ms);
        pthread_mutex_lock(&b->lock);
        if (ready >= 0) serve_round(b, service.polls);
        else if (errno != EINTR)
            service_fail(b, STATUS_ABORTED, b->rank, "poll() of the control connections failed");
        if (ready < 0 && errno != EINTR) break;
    }
    pthread_mutex_unlock(&b->lock);
    free(service.polls);
    return NULL;
}

enum status service_start(struct bootstrap *b)
{
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->wake_fd < 0)
        return FAIL(STATUS_SYSTEM, "no eventfd for the service thread: %s", strerror(errno));
    struct service *service = malloc(sizeof *service);
    struct pollfd *polls = calloc((size_t)b->link_count + 1, sizeof *polls);
    int error = service == NULL || polls == NULL ? ENOMEM : 0;
    if (error == 0) {
        *service = (struct service){b, polls};
        /* Signals are the program's business: none is handled on this thread. */
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&b->service, NULL, service_main, service);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    b->service_runs = error == 0;
    if (error == 0) return STATUS_OK;
    free(service);
    free(polls);
    return FAIL(STATUS_SYSTEM,
        "cannot start the service thread: %s: raise the limit of threads (ulimit -u)", strerror(error));
}

void service_stop(struct bootstrap *b)
{
    if (b->service_runs) {
        pthread_mutex_lock(&b->lock);
        b->stopping = true;
        service_wake(b);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->service, NULL);
        b->service_runs = false;
    }
    if (b->wake_fd >= 0) close(b->wake_fd);
    b->wake_fd = -1;
}
