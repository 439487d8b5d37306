/* bootstrap_shrink: how the ranks that are left become a job of their own, over the control connections that they have.
 *
 *   rank r of the failed job               rank 0
 *   ends its service thread                ends its service thread; who has said SHRINK by then is remembered
 *   SHRINK {host}                  ──►     reads every connection that is open until it has said SHRINK, or closes
 *   reads on, drops what comes             drops what else comes
 *                                  ◄──     SHRUNK {new rank, nranks, …}; REFUSED to who has not come in time
 *   a new service thread                   a new service thread, on the connections that are left
 *
 * Keeps: on a connection frames come in order, so what is before SHRINK or SHRUNK belongs to the old job, and what is behind to the
 * new one: no frame needs to say of which it is. A death at any moment is the end of a connection: before SHRUNK it leaves the
 * rank out, after it the new job's service thread meets it.
 */
#include "verbs/bootstrap_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/clock.h"
#include "verbs/log.h"

#define TEXT_BYTES 700 /* at most, of what is quoted in a longer text */

/* The connection goes on in the new job, with what is still to be sent on it. */
static struct link link_take_over(struct link *old, int rank)
{
    struct link link = *old;
    *old = (struct link){.fd = -1, .rank = old->rank};
    link.rank = rank;
    link.shrinks = link.left = false;
    return link;
}

static struct bootstrap *make_survivor(const struct shrunk *place, const struct bootstrap *old)
{
    struct bootstrap_config config = {.rank = place->rank,
        .nranks = place->nranks,
        .local_rank = place->local_rank,
        .local_nranks = place->local_nranks};
    struct bootstrap *b = bootstrap_make(&config, old->timeout_ms);
    if (b == NULL) return NULL;
    b->job = old->job;
    memcpy(b->address, old->address, sizeof b->address);
    return b;
}

/* ---- rank 0 ---- */

bool hub_hear_shrink(struct link *link)
{
    if (link->shrinks) return false;
    size_t bytes = link->frame.bytes < HOST_TEXT_BYTES ? link->frame.bytes : HOST_TEXT_BYTES - 1;
    memset(link->host, 0, sizeof link->host);
    if (bytes > 0) memcpy(link->host, link->payload, bytes);
    link->shrinks = true;
    return true;
}

/* Frames of the old job are dropped. */
static void hear_survivor(struct link *link)
{
    for (;;) {
        enum link_event event = link_receive(link);
        if (event == LINK_NOTHING) return;
        bool dropped = event == LINK_FRAME && !link->shrinks && link->frame.type != FRAME_SHRINK;
        if (dropped || (event == LINK_FRAME && link->frame.type == FRAME_SHRINK && hub_hear_shrink(link))) continue;
        link_close(link); /* it died; or it does not behave */
        return;
    }
}

static bool somebody_hesitates(const struct bootstrap *old)
{
    for (int r = 1; r < old->link_count; r++)
        if (old->links[r].fd >= 0 && !old->links[r].shrinks) return true;
    return false;
}

static enum status hear_survivors(struct bootstrap *old)
{
    struct pollfd *polls = calloc((size_t)old->link_count + 1, sizeof *polls);
    if (polls == NULL) return FAIL(STATUS_SYSTEM, "no memory for the connections of %d ranks", old->nranks);
    int64_t deadline_ns = clock_ns() + clock_ms_to_ns(old->timeout_ms), left_ns;
    while (somebody_hesitates(old) && (left_ns = deadline_ns - clock_ns()) > 0) {
        for (int i = 0; i < old->link_count; i++)
            polls[i] = (struct pollfd){old->links[i].fd, link_flush(&old->links[i]) ? POLLIN : POLLIN | POLLOUT, 0};
        poll(polls, (nfds_t)old->link_count, (int)(left_ns / 1000000) + 1); /* an error is one turn more, until the deadline */
        for (int i = 0; i < old->link_count; i++)
            if (polls[i].revents != 0) hear_survivor(&old->links[i]);
    }
    free(polls);
    return STATUS_OK;
}

/* Who has not come by now is left out. */
static int count_survivors(struct bootstrap *old, bool *alive)
{
    int count = 1;
    alive[0] = true;
    for (int r = 1; r < old->nranks; r++) {
        struct link *link = &old->links[r];
        alive[r] = link->fd >= 0 && link->shrinks;
        count += alive[r];
        if (alive[r] || link->fd < 0) continue;
        char text[160];
        snprintf(text, sizeof text, "rank %d did not come within %d ms to go on with the others, which go on without it", r,
            old->timeout_ms);
        link_send_text(link, FRAME_REFUSED, 0, 0, STATUS_TIMEOUT, text);
        link_close(link);
    }
    return count;
}

static void log_survivors(const struct bootstrap *old, const bool *alive, int count)
{
    char missing[200];
    const char *why = old->failure_text;
    hub_list_missing(missing, sizeof missing, alive, old->nranks);
    if (count == old->nranks) LOG_WARN("bootstrap", "all %d ranks go on after a failure: %s", count, why);
    else
        LOG_WARN("bootstrap", "%s of %d %s out; those left, %d, go on, renumbered in their order (%s)", missing, old->nranks,
            count == old->nranks - 1 ? "is" : "are", count, why);
}

/* Gives every survivor its place: new ranks in the order of the old, local ones among those of its host. */
static void place_survivors(struct bootstrap *b, struct bootstrap *old, const bool *alive)
{
    int next = 1;
    for (int r = 1; r < old->nranks; r++) {
        if (!alive[r]) continue;
        b->links[next] = link_take_over(&old->links[r], next);
        next++;
    }
    for (int r = 1; r < b->nranks; r++) {
        struct shrunk place = {.rank = r, .nranks = b->nranks};
        for (int other = 0; other < b->nranks; other++) {
            if (strcmp(b->links[other].host, b->links[r].host) != 0) continue;
            place.local_nranks++;
            place.local_rank += other < r;
        }
        link_send(&b->links[r], (struct frame){.type = FRAME_SHRUNK, .to = r, .bytes = sizeof place}, &place);
    }
}

static enum status shrink_hub(struct bootstrap **out, struct bootstrap *old)
{
    bool *alive = calloc((size_t)old->nranks, sizeof *alive);
    if (alive == NULL) return FAIL(STATUS_SYSTEM, "no memory for the survivors of %d ranks", old->nranks);
    enum status status = hear_survivors(old);
    int count = status == STATUS_OK ? count_survivors(old, alive) : 0;
    char host[HOST_TEXT_BYTES];
    socket_host_identity(host);
    struct shrunk place = {.rank = 0, .nranks = count, .local_nranks = 1};
    for (int r = 1; r < old->nranks; r++) place.local_nranks += alive[r] && strcmp(old->links[r].host, host) == 0;
    struct bootstrap *b = status == STATUS_OK ? make_survivor(&place, old) : NULL;
    if (b != NULL) {
        memcpy(b->links[0].host, host, sizeof host);
        log_survivors(old, alive, count);
        place_survivors(b, old, alive);
    } else if (status == STATUS_OK) {
        status = FAIL(STATUS_SYSTEM, "no memory for a job of %d ranks", count);
    }
    free(alive);
    *out = b;
    return status;
}

/* ---- the others ---- */

static enum status hear_place(struct shrunk *place, struct bootstrap *old)
{
    const struct link *link = &old->links[0];
    char text[FRAME_TEXT_BYTES + 1];
    if (link->frame.type == FRAME_REFUSED) {
        link_text(text, link);
        return FAIL(link->frame.code == STATUS_TIMEOUT ? STATUS_TIMEOUT : STATUS_SYSTEM, "%s", text);
    }
    if (link->frame.bytes == sizeof *place) memcpy(place, link->payload, sizeof *place);
    if (link->frame.bytes == sizeof *place && place->rank > 0 && place->rank < place->nranks && place->nranks <= old->nranks &&
        place->local_rank >= 0 && place->local_rank < place->local_nranks && place->local_nranks <= place->nranks)
        return STATUS_OK;
    return FAIL(STATUS_DATA, "rank 0 sent a place of %u bytes that fits no part of a job of %d ranks", link->frame.bytes, old->nranks);
}

static enum status hub_is_gone(const struct bootstrap *old)
{
    return FAIL(STATUS_PEER, "rank %d: the others cannot go on without rank 0, through which all control connections lead; first "
        "failure: %.*s", old->rank, TEXT_BYTES, old->failure_text);
}

/* Reads until the answer; what else comes is the old job's. */
static enum status wait_for_place(struct shrunk *place, struct bootstrap *old)
{
    struct link *link = &old->links[0];
    int64_t deadline_ns = clock_ns() + clock_ms_to_ns((int64_t)old->timeout_ms + VERDICT_GRACE_MS), left_ns;
    while ((left_ns = deadline_ns - clock_ns()) > 0) {
        enum link_event event = link_receive(link);
        if (event == LINK_CLOSED || event == LINK_BAD) return hub_is_gone(old);
        bool answer = event == LINK_FRAME && (link->frame.type == FRAME_SHRUNK || link->frame.type == FRAME_REFUSED);
        if (answer) return hear_place(place, old);
        if (event == LINK_FRAME) continue;
        struct pollfd wait = {link->fd, link_flush(link) ? POLLIN : POLLIN | POLLOUT, 0};
        poll(&wait, 1, (int)(left_ns / 1000000) + 1);
    }
    return FAIL(STATUS_TIMEOUT, "rank %d: rank 0 did not say within %d ms who goes on: see whether it is stopped", old->rank,
        old->timeout_ms + VERDICT_GRACE_MS);
}

static enum status shrink_member(struct bootstrap **out, struct bootstrap *old)
{
    struct link *link = &old->links[0];
    uint32_t accepts = link->accepts;
    struct shrunk place;
    char host[HOST_TEXT_BYTES];
    if (link->fd < 0) return hub_is_gone(old);
    link->accepts |= 1u << FRAME_SHRUNK | 1u << FRAME_REFUSED;
    socket_host_identity(host);
    link_send(link, (struct frame){.type = FRAME_SHRINK, .from = old->rank, .bytes = (uint32_t)strlen(host)}, host);
    TRY(wait_for_place(&place, old));
    struct bootstrap *b = make_survivor(&place, old);
    if (b == NULL) return FAIL(STATUS_SYSTEM, "no memory for a job of %d ranks", place.nranks);
    link->accepts = accepts;
    b->links[0] = link_take_over(link, 0);
    *out = b;
    return STATUS_OK;
}

enum status bootstrap_shrink(struct bootstrap **survivors, struct bootstrap *old)
{
    *survivors = NULL;
    if (!bootstrap_failed(old))
        return FAIL(STATUS_INVALID, "the job of %d ranks has not failed; expected a death or an abort before it is shrunk", old->nranks);
    service_stop(old); /* from here on the links are this thread's alone */
    struct bootstrap *b = NULL;
    TRY(old->rank == 0 ? shrink_hub(&b, old) : shrink_member(&b, old));
    enum status status = b->nranks > 1 ? service_start(b) : STATUS_OK;
    if (status == STATUS_OK) *survivors = b;
    else bootstrap_free(b);
    return status;
}
