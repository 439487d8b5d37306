/* bootstrap_join: how ranks come together.
 *
 *   rank r                              rank 0
 *   connect, again and again  ───────►  accept → pending (5 s to say HELLO)
 *   HELLO {job, rank, nranks,       ──► admit, or REFUSED with the reason
 *          host, address}
 *                             ◄───────  when all are in: WELCOME {job, local rank, local nranks, address}
 *
 * Keeps I5 for the start: one deadline for all of it, and the missing ranks by name. A stranger at the
 * port, whatever it sends or keeps from sending, costs a warning: it waits among the pending ones,
 * where nobody waits for it.
 */
#include "verbs/bootstrap_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/log.h"

#define PENDING_MS    5000
#define PENDING_SPARE 64 /* strangers at once, beside all ranks */
#define WHY_BYTES     200

#define BIT(type)   (1u << (type))
#define HUB_ACCEPTS (BIT(FRAME_GATHER) | BIT(FRAME_POST) | BIT(FRAME_ABORT) | BIT(FRAME_BYE) | BIT(FRAME_SHRINK))
#define MEMBER_ACCEPTS                                                                                     \
    (BIT(FRAME_GATHERED) | BIT(FRAME_VERDICT) | BIT(FRAME_POST) | BIT(FRAME_DEAD) | BIT(FRAME_ABORT) |     \
        BIT(FRAME_BYE))

/* What a rank says of itself. */
static void introduce(struct hello *hello, const struct bootstrap *b, uint64_t job)
{
    *hello = (struct hello){.job = job, .version = FRAME_VERSION, .rank = b->rank, .nranks = b->nranks};
    socket_host_identity(hello->host);
    memcpy(hello->address, b->address, sizeof hello->address);
}

static void take_place(struct bootstrap *b, const struct welcome *welcome)
{
    memcpy(b->address, welcome->address, sizeof b->address);
    if (b->local_nranks > 0) return; /* the launcher has told */
    b->local_rank = welcome->local_rank;
    b->local_nranks = welcome->local_nranks;
}

/* ---- rank 0 ---- */

/* A connection that has not yet said HELLO. */
struct pending {
    struct link link;
    int64_t deadline_ns;
};

struct lobby {
    struct bootstrap *bootstrap;
    int listen_fd;
    struct pending *pending; /* oldest first */
    int pending_count, pending_room;
    int in_count; /* ranks that are in, rank 0 among them */
    bool *in;
    bool ran_out; /* of file descriptors: who waited for one was dropped, perhaps a rank */
    struct hello *hellos; /* by rank: what each says of itself, rank 0 too */
    struct pollfd *polls; /* listener, pending, links by rank */
};

static void drop_pending(struct lobby *lobby, int index, const char *reason)
{
    struct pending *pending = &lobby->pending[index];
    if (reason != NULL)
        LOG_WARN("bootstrap",
            "a stranger at %s connected to rank 0's port and %s: dropped, the start goes on",
            pending->link.address, reason);
    link_close(&pending->link);
    lobby->pending_count--;
    memmove(pending, pending + 1, (size_t)(lobby->pending_count - index) * sizeof *pending);
}

/* Gives away a pending link that goes on living as a rank's. */
static struct link take_pending(struct lobby *lobby, int index)
{
    struct link link = lobby->pending[index].link;
    lobby->pending_count--;
    memmove(&lobby->pending[index], &lobby->pending[index + 1],
        (size_t)(lobby->pending_count - index) * sizeof *lobby->pending);
    return link;
}

static enum status accept_all(struct lobby *lobby)
{
    for (;;) {
        int fd = accept4(lobby->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return STATUS_OK;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && lobby->pending_count > 0) {
            drop_pending(lobby, 0, "held one of the last file descriptors");
            lobby->ran_out = true;
            continue;
        }
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
            return FAIL(STATUS_SYSTEM,
                "rank 0 cannot accept a connection: %s; it needs one descriptor for each of %d ranks "
                "and about 16 more: raise `ulimit -n`",
                strerror(errno), lobby->bootstrap->nranks);
        if (fd < 0 && (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP))
            return FAIL(STATUS_SYSTEM,
                "rank 0's descriptor %d is no listening socket: %s: pass one, or -1 to open one",
                lobby->listen_fd, strerror(errno));
        if (fd < 0)
            return STATUS_OK; /* a connection broke while it waited; the next round sees the others */
        if (lobby->pending_count == lobby->pending_room)
            drop_pending(lobby, 0, "was in the way of newer connections");
        struct pending *pending = &lobby->pending[lobby->pending_count++];
        link_open(&pending->link, fd, BIT(FRAME_HELLO), lobby->bootstrap->timeout_ms);
        bool loopback;
        socket_address(pending->link.address, &loopback, fd, true, true);
        pending->deadline_ns = clock_ns() + clock_ms_to_ns(PENDING_MS);
    }
}

/* Why this HELLO cannot be admitted; false when it can. */
static bool refusal(
    char *text, size_t bytes, const struct lobby *lobby, const struct hello *hello, const char *address)
{
    const struct bootstrap *b = lobby->bootstrap;
    int used = snprintf(text, bytes, "rank 0 refused rank %d at %s: ", hello->rank, address);
    text += used;
    bytes -= (size_t)used;
    if (hello->version != FRAME_VERSION)
        snprintf(text, bytes, "its protocol version is %u, rank 0's is %u: run the same build everywhere",
            hello->version, FRAME_VERSION);
    else if (hello->job != 0 && hello->job != b->job)
        snprintf(text, bytes,
            "its job id is %016llx, rank 0's is %016llx: it belongs to another or an earlier job; check "
            "MASTER_ADDR and MASTER_PORT",
            (unsigned long long)hello->job, (unsigned long long)b->job);
    else if (hello->nranks != b->nranks)
        snprintf(text, bytes,
            "its world size is %d, rank 0's is %d: start every rank with the same WORLD_SIZE",
            hello->nranks, b->nranks);
    else if (hello->rank < 0 || hello->rank >= b->nranks)
        snprintf(text, bytes, "a rank is expected to lie in 0…%d: check RANK", b->nranks - 1);
    else if (lobby->in[hello->rank])
        snprintf(text, bytes, "rank %d is already taken by %s: give every process its own RANK",
            hello->rank, hello->rank == 0 ? "rank 0 itself" : b->links[hello->rank].address);
    else return false;
    return true;
}

static void hear_hello(struct lobby *lobby, int index)
{
    struct link *link = &lobby->pending[index].link;
    struct hello hello;
    if (link->frame.bytes != sizeof hello) {
        drop_pending(lobby, index, "sent a HELLO of the wrong size");
        return;
    }
    memcpy(&hello, link->payload, sizeof hello);
    hello.host[HOST_TEXT_BYTES - 1] = hello.address[ADDRESS_TEXT_BYTES - 1] = '\0';
    text_clean(hello.address);
    char text[FRAME_TEXT_BYTES];
    if (refusal(text, sizeof text, lobby, &hello, link->address)) {
        LOG_WARN("bootstrap", "%s", text);
        link_send_text(link, FRAME_REFUSED, 0, 0, STATUS_INVALID, text);
        drop_pending(lobby, index, NULL);
        return;
    }
    struct link *admitted = &lobby->bootstrap->links[hello.rank];
    *admitted = take_pending(lobby, index);
    admitted->rank = hello.rank;
    admitted->accepts = HUB_ACCEPTS;
    lobby->in[hello.rank] = true;
    lobby->in_count++;
    lobby->hellos[hello.rank] = hello;
    LOG_INFO("bootstrap", "rank %d is in, from %s", hello.rank, admitted->address);
}

/* Reads one pending connection. True when it is still pending. */
static bool hear_pending(struct lobby *lobby, int index)
{
    struct pending *pending = &lobby->pending[index];
    char reason[256];
    switch (link_receive(&pending->link)) {
    case LINK_FRAME: hear_hello(lobby, index); return false;
    case LINK_BAD: snprintf(reason, sizeof reason, "sent %s", pending->link.why); break;
    case LINK_CLOSED: snprintf(reason, sizeof reason, "closed without a HELLO"); break;
    case LINK_NOTHING:
        if (clock_ns() < pending->deadline_ns) return true;
        snprintf(reason, sizeof reason, "said nothing for %d ms", PENDING_MS);
        break;
    }
    drop_pending(lobby, index, reason);
    return false;
}

/* A rank that is in has nothing to say before WELCOME: it went away, and may come again. */
static void hear_admitted(struct lobby *lobby, int rank)
{
    struct link *link = &lobby->bootstrap->links[rank];
    enum link_event event = link_receive(link);
    if (event == LINK_NOTHING) return;
    LOG_WARN("bootstrap",
        "rank %d at %s went away before all ranks were in (%s): waiting for another rank %d", rank,
        link->address, event == LINK_FRAME ? "it spoke too early" : link->why, rank);
    link_close(link);
    lobby->in[rank] = false;
    lobby->in_count--;
}

static int64_t next_deadline(const struct lobby *lobby, int64_t deadline_ns)
{
    for (int i = 0; i < lobby->pending_count; i++)
        if (lobby->pending[i].deadline_ns < deadline_ns) deadline_ns = lobby->pending[i].deadline_ns;
    return deadline_ns;
}

static enum status lobby_round(struct lobby *lobby, int64_t deadline_ns)
{
    struct bootstrap *b = lobby->bootstrap;
    int used = 0, waiting = lobby->pending_count;
    lobby->polls[used++] = (struct pollfd){lobby->listen_fd, POLLIN, 0};
    for (int i = 0; i < waiting; i++)
        lobby->polls[used++] = (struct pollfd){lobby->pending[i].link.fd, POLLIN, 0};
    for (int r = 1; r < b->nranks; r++) lobby->polls[used++] = (struct pollfd){b->links[r].fd, POLLIN, 0};
    int64_t wait_ns = next_deadline(lobby, deadline_ns) - clock_ns();
    if (poll(lobby->polls, (nfds_t)used, wait_ns <= 0 ? 0 : (int)(wait_ns / 1000000) + 1) < 0 &&
        errno != EINTR)
        return FAIL(STATUS_SYSTEM,
            "rank 0 cannot poll its connections: %s; it needs one descriptor for each of %d ranks and about 16 "
            "more: raise `ulimit -n`",
            strerror(errno), b->nranks);

    for (int r = 1; r < b->nranks; r++)
        if (lobby->in[r] && lobby->polls[waiting + r].revents != 0) hear_admitted(lobby, r);
    /* Backwards, because whoever is heard may leave the list. */
    for (int i = waiting - 1; i >= 0; i--) hear_pending(lobby, i);
    return accept_all(lobby);
}

/* The start has failed: every rank that is in is told so. */
static void refuse_all(const struct lobby *lobby, enum status code, const char *text)
{
    for (int r = 1; r < lobby->bootstrap->nranks; r++)
        if (lobby->in[r]) link_send_text(&lobby->bootstrap->links[r], FRAME_REFUSED, 0, 0, code, text);
}

static enum status lobby_missing(struct lobby *lobby)
{
    struct bootstrap *b = lobby->bootstrap;
    char missing[200], text[FRAME_TEXT_BYTES];
    hub_list_missing(missing, sizeof missing, lobby->in, b->nranks);
    snprintf(text, sizeof text,
        "rank 0 waited %d ms for %d ranks and misses %s: %s",
        b->timeout_ms, b->nranks, missing,
        lobby->ran_out ? "its file descriptors did not suffice: raise `ulimit -n` where it runs"
                       : "see whether it was started, whether it reaches this address, or raise RINGZERO_TIMEOUT_MS");
    refuse_all(lobby, STATUS_TIMEOUT, text);
    return FAIL(STATUS_TIMEOUT, "%s", text);
}

/* Every rank learns its place among the ranks of its host, and its address. */
static void welcome_all(struct lobby *lobby)
{
    struct bootstrap *b = lobby->bootstrap;
    for (int r = 0; r < b->nranks; r++) {
        struct welcome welcome = {.job = b->job};
        memcpy(welcome.address, lobby->hellos[r].address, sizeof welcome.address);
        for (int other = 0; other < b->nranks; other++) {
            if (strcmp(lobby->hellos[other].host, lobby->hellos[r].host) != 0) continue;
            welcome.local_nranks++;
            if (other < r) welcome.local_rank++;
        }
        if (r > 0)
            link_send(&b->links[r], (struct frame){.type = FRAME_WELCOME, .to = r, .bytes = sizeof welcome},
                &welcome);
        else take_place(b, &welcome);
    }
}

static enum status lobby_wait(struct lobby *lobby)
{
    struct bootstrap *b = lobby->bootstrap;
    int64_t deadline_ns = clock_ns() + clock_ms_to_ns(b->timeout_ms);
    while (lobby->in_count < b->nranks) {
        if (clock_ns() >= deadline_ns) return lobby_missing(lobby);
        TRY(lobby_round(lobby, deadline_ns));
    }
    while (lobby->pending_count > 0) {
        int last = lobby->pending_count - 1;
        if (hear_pending(lobby, last)) drop_pending(lobby, last, "had said nothing when all ranks were in");
    }
    enum status status = join_settle_addresses(lobby->hellos, b);
    if (status == STATUS_OK) welcome_all(lobby);
    else refuse_all(lobby, status, status_text());
    return status;
}

enum status join_as_hub(struct bootstrap *b, const struct bootstrap_config *config, int *listen_fd)
{
    if (*listen_fd < 0) TRY(socket_listen(listen_fd, config->address, config->port));
    /* One that was given may be blocking, and a stranger that leaves early must not hold accept(). */
    int flags = fcntl(*listen_fd, F_GETFL);
    if (flags < 0 || fcntl(*listen_fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(*listen_fd, F_SETFD, FD_CLOEXEC) < 0)
        return FAIL(STATUS_SYSTEM,
            "rank 0's descriptor %d is no listening socket: %s: pass one, or -1 to open one", *listen_fd,
            strerror(errno));
    b->job = config->job != 0 ? config->job : bootstrap_draw_job();
    size_t nranks = (size_t)b->nranks, room = nranks + PENDING_SPARE;
    struct lobby lobby = {
        .bootstrap = b, .listen_fd = *listen_fd, .pending_room = (int)room, .in_count = 1};
    lobby.pending = calloc(room, sizeof *lobby.pending);
    lobby.in = calloc(nranks, sizeof *lobby.in);
    lobby.hellos = calloc(nranks, sizeof *lobby.hellos);
    lobby.polls = calloc(room + nranks, sizeof *lobby.polls);
    enum status status;
    if (lobby.pending == NULL || lobby.in == NULL || lobby.hellos == NULL || lobby.polls == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for the connections of %d ranks", b->nranks);
    } else {
        lobby.in[0] = true;
        introduce(&lobby.hellos[0], b, b->job);
        status = lobby_wait(&lobby);
    }
    while (lobby.pending_count > 0) drop_pending(&lobby, lobby.pending_count - 1, NULL);
    free(lobby.pending);
    free(lobby.in);
    free(lobby.hellos);
    free(lobby.polls);
    return status;
}

/* ---- the other ranks ---- */

/* What became of one connection. */
enum answer { ANSWER_WELCOME, ANSWER_FAILED, ANSWER_AGAIN };

static void say_hello(struct bootstrap *b, uint64_t job)
{
    struct hello hello;
    introduce(&hello, b, job);
    bool loopback;
    if (hello.address[0] == '\0') socket_address(hello.address, &loopback, b->links[0].fd, false, false);
    link_send(
        &b->links[0], (struct frame){.type = FRAME_HELLO, .from = b->rank, .bytes = sizeof hello}, &hello);
}

static enum answer hear_welcome(struct bootstrap *b, uint64_t job, enum status *status, const char *where)
{
    struct link *link = &b->links[0];
    struct welcome welcome;
    char text[FRAME_TEXT_BYTES + 1];
    if (link->frame.type == FRAME_REFUSED) {
        link_text(text, link);
        *status = FAIL(link->frame.code == STATUS_TIMEOUT ? STATUS_TIMEOUT : STATUS_INVALID, "%s", text);
        return ANSWER_FAILED;
    }
    if (link->frame.bytes == sizeof welcome) memcpy(&welcome, link->payload, sizeof welcome);
    if (link->frame.bytes != sizeof welcome || welcome.job == 0 || (job != 0 && welcome.job != job) ||
        welcome.local_rank < 0 || welcome.local_rank >= welcome.local_nranks ||
        welcome.local_nranks > b->nranks || memchr(welcome.address, '\0', sizeof welcome.address) == NULL) {
        *status = FAIL(STATUS_INVALID,
            "rank 0 at %s sent a WELCOME of %u bytes that fits no job of %d ranks: run the same build "
            "everywhere",
            where, link->frame.bytes, b->nranks);
        return ANSWER_FAILED;
    }
    b->job = welcome.job;
    take_place(b, &welcome);
    link->accepts = MEMBER_ACCEPTS;
    return ANSWER_WELCOME;
}

/* Waits on one connection for rank 0's answer. */
static enum answer hear_answer(struct bootstrap *b, uint64_t job, int64_t deadline_ns, enum status *status,
    char why[WHY_BYTES], const char *where)
{
    struct link *link = &b->links[0];
    for (;;) {
        int64_t left_ns = deadline_ns - clock_ns();
        if (left_ns <= 0) {
            *status = FAIL(STATUS_TIMEOUT,
                "rank %d reached %s but was not let in within %d ms: rank 0 still waits for other ranks, "
                "or something else listens there",
                b->rank, where, b->timeout_ms);
            return ANSWER_FAILED;
        }
        struct pollfd wait = {link->fd, (short)(POLLIN | (link_flush(link) ? 0 : POLLOUT)), 0};
        if (poll(&wait, 1, (int)(left_ns / 1000000) + 1) < 0 && errno != EINTR) {
            *status =
                FAIL(STATUS_SYSTEM, "rank %d cannot poll its connection: %s", b->rank, strerror(errno));
            return ANSWER_FAILED;
        }
        switch (link_receive(link)) {
        case LINK_FRAME: return hear_welcome(b, job, status, where);
        case LINK_BAD:
            *status = FAIL(STATUS_INVALID,
                "%s answered with %s, which is not rank 0 of a job of ours: check MASTER_ADDR and "
                "MASTER_PORT",
                where, link->why);
            return ANSWER_FAILED;
        case LINK_CLOSED: snprintf(why, WHY_BYTES, "connected, then %s", link->why); return ANSWER_AGAIN;
        case LINK_NOTHING: break;
        }
    }
}

static void sleep_until(int64_t wake_ns)
{
    struct timespec wake = {(time_t)(wake_ns / 1000000000), (long)(wake_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR) continue;
}

enum status join_as_member(struct bootstrap *b, const struct bootstrap_config *config)
{
    struct link *link = &b->links[0];
    char why[WHY_BYTES] = "", where[sizeof config->address + 8];
    snprintf(where, sizeof where, "%s:%d", config->address, config->port);
    const int64_t deadline_ns = clock_ns() + clock_ms_to_ns(b->timeout_ms);
    int64_t pause_ns = clock_ms_to_ns(10);
    while (clock_ns() < deadline_ns) {
        int fd;
        TRY(socket_connect(&fd, why, sizeof why, config->address, config->port, deadline_ns));
        if (fd >= 0) {
            link_open(link, fd, BIT(FRAME_WELCOME) | BIT(FRAME_REFUSED), b->timeout_ms);
            link->rank = 0;
            snprintf(link->address, sizeof link->address, "%.*s", (int)sizeof link->address - 1, where);
            say_hello(b, config->job);
            enum status status = STATUS_OK;
            int64_t answer_ns = deadline_ns + clock_ms_to_ns(VERDICT_GRACE_MS);
            enum answer answer = hear_answer(b, config->job, answer_ns, &status, why, where);
            if (answer != ANSWER_AGAIN) return status; /* bootstrap_open() closes what failed */
            link_close(link);
        }
        int64_t wake_ns = clock_ns() + pause_ns;
        sleep_until(wake_ns < deadline_ns ? wake_ns : deadline_ns);
        if (pause_ns < clock_ms_to_ns(300)) pause_ns *= 2;
    }
    return FAIL(STATUS_TIMEOUT,
        "rank %d found no rank 0 at %s within %d ms (last try: %s): see that rank 0 runs, and that "
        "MASTER_ADDR and MASTER_PORT are its",
        b->rank, where, b->timeout_ms, why);
}
