/* connection: see connection.h. */
#include "verbs/connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs/address.h"
#include "verbs/clock.h"
#include "verbs/log.h"

void connection_begin(struct connection *connection, int peer)
{
    *connection = (struct connection){.peer = peer, .fd = -1, .listen_fd = -1};
    for (int i = 0; i < CONNECTION_STRANGERS; i++) connection->strangers[i].fd = -1;
}

static const char plain[] = "reno"; /* every kernel has it, every user may choose it */

static void take_plain(int fd)
{
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plain, sizeof plain - 1);
}

/* Whether a name has an address of this machine: then the system would call it from there. */
static bool is_here(const struct sockaddr *name, socklen_t length)
{
    struct sockaddr_storage there = {0}, here = {0};
    socklen_t here_length = sizeof here;
    memcpy(&there, name, length);
    int fd = socket(name->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool asked = fd >= 0 && connect(fd, name, length) == 0 && /* of a datagram: nothing is sent */
                 getsockname(fd, (struct sockaddr *)&here, &here_length) == 0;
    if (fd >= 0) close(fd);
    return asked && address_equal(&here, &there);
}

/* As a socket has it that nobody has told anything. */
static void take_systems(int fd, int family)
{
    char name[16] = "";
    socklen_t length = sizeof name;
    int fresh = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fresh < 0) return;
    if (getsockopt(fresh, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0)
        (void)setsockopt(
            fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strnlen(name, sizeof name));
    close(fresh);
}

void connection_tune_listener(int fd)
{
    take_plain(fd);
}

void connection_tune_caller(int fd, const struct sockaddr *to, socklen_t to_bytes)
{
    if (is_here(to, to_bytes)) take_plain(fd);
}

void connection_tune(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_length = sizeof here, there_length = sizeof there;
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (getsockname(fd, (struct sockaddr *)&here, &here_length) != 0) return;
    if (getpeername(fd, (struct sockaddr *)&there, &there_length) != 0) return;
    if (!address_equal(&here, &there)) take_systems(fd, here.ss_family);
}

bool connection_must_wait(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

enum status connection_lost(const struct connection *connection, const char *what, int error)
{
    return FAIL(STATUS_PEER, "tcp connection with rank %d: %s: %s", connection->peer, what,
        error == 0 ? "closed by the peer" : strerror(error));
}

/* ---- the caller ---- */

static enum status start_calling(
    struct connection *connection, const struct connection_offer *offer)
{
    struct sockaddr_storage name;
    socklen_t length;
    if (!address_parse(&name, &length, offer->address, (int)offer->port))
        return FAIL(STATUS_DATA, "rank %d offers no numeric address", connection->peer);
    connection->fd = socket(name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        return FAIL(STATUS_SYSTEM, "no socket: %s; raise ulimit -n", strerror(errno));
    connection_tune_caller(connection->fd, (struct sockaddr *)&name, length);
    if (connect(connection->fd, (struct sockaddr *)&name, length) != 0 && errno != EINPROGRESS)
        return FAIL(STATUS_PEER, "cannot connect to rank %d at %s port %u: %s", connection->peer,
            offer->address, offer->port, strerror(errno));
    return STATUS_OK;
}

enum status connection_call(
    bool *ready, struct connection *connection, const struct connection_offer *given)
{
    struct connection_offer offer = *given;
    offer.address[sizeof offer.address - 1] = 0;
    if (connection->fd < 0) TRY(start_calling(connection, &offer));
    struct pollfd poll_fd = {connection->fd, POLLOUT, 0};
    if (poll(&poll_fd, 1, 0) <= 0) return STATUS_OK;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0)
        return FAIL(STATUS_PEER, "cannot connect to rank %d at %s port %u: %s", connection->peer,
            offer.address, offer.port, strerror(error));
    connection_tune(connection->fd);
    struct connection_hello hello = {CONNECTION_MAGIC, offer.nonce};
    /* A new connection's buffer holds it whole. */
    ssize_t sent = send(connection->fd, &hello, sizeof hello, MSG_NOSIGNAL);
    if (sent != (ssize_t)sizeof hello)
        return connection_lost(connection, "hello", sent < 0 ? errno : 0);
    *ready = true;
    return STATUS_OK;
}

/* ---- the listener ---- */

enum status connection_listen(
    struct connection_offer *offer, struct connection *connection, const char *address)
{
    struct sockaddr_storage name;
    socklen_t length;
    if (getrandom(&offer->nonce, sizeof offer->nonce, 0) != (ssize_t)sizeof offer->nonce)
        return FAIL(STATUS_SYSTEM, "getrandom failed: %s", strerror(errno));
    connection->nonce = offer->nonce;
    snprintf(offer->address, sizeof offer->address, "%s", address);
    if (!address_parse(&name, &length, address, 0))
        return FAIL(STATUS_INVALID, "\"%s\" is no numeric address to listen on", address);
    int fd = socket(name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    connection->listen_fd = fd;
    if (fd >= 0) connection_tune_listener(fd);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, length) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &length) != 0)
        return FAIL(STATUS_SYSTEM,
            "cannot listen on %s: %s; raise ulimit -n or choose another RINGZERO_INTERFACE",
            address, strerror(errno));
    offer->port = (uint32_t)address_port(&name);
    return STATUS_OK;
}

static void stranger_drop(struct stranger *stranger, const char *why, int peer)
{
    LOG_WARN("tcp", "connection from %s dropped while waiting for rank %d: %s", stranger->from,
        peer, why);
    close(stranger->fd);
    stranger->fd = -1;
}

/* A free place, else that of the one that has been silent the longest. */
static struct stranger *choose_place(struct connection *connection)
{
    struct stranger *oldest = &connection->strangers[0];
    for (int i = 0; i < CONNECTION_STRANGERS; i++) {
        struct stranger *stranger = &connection->strangers[i];
        if (stranger->fd < 0) return stranger;
        if (stranger->since_ns < oldest->since_ns) oldest = stranger;
    }
    return oldest;
}

static bool is_silent_for(int64_t ms, const struct stranger *stranger)
{
    return clock_ns() - stranger->since_ns > clock_ms_to_ns(ms);
}

static void stranger_take(struct stranger *stranger, int fd, const struct sockaddr_storage *name)
{
    *stranger = (struct stranger){.fd = fd, .since_ns = clock_ns()};
    const void *raw = name->ss_family == AF_INET
                          ? (const void *)&((const struct sockaddr_in *)name)->sin_addr
                          : (const void *)&((const struct sockaddr_in6 *)name)->sin6_addr;
    inet_ntop(name->ss_family, raw, stranger->from, sizeof stranger->from);
}

static bool lacks_descriptors(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

/* Until none waits; one that broke while it waited is as none. */
static enum status strangers_accept(struct connection *connection)
{
    for (;;) {
        struct stranger *place = choose_place(connection);
        if (place->fd >= 0 && !is_silent_for(CONNECTION_CROWDED_MS, place)) return STATUS_OK;
        struct sockaddr_storage name = {0};
        socklen_t length = sizeof name;
        int fd = accept4(
            connection->listen_fd, (struct sockaddr *)&name, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && lacks_descriptors(errno))
            return FAIL(STATUS_SYSTEM, "cannot accept the connection of rank %d: %s; raise ulimit -n",
                connection->peer, strerror(errno));
        if (fd < 0) return STATUS_OK;
        if (place->fd >= 0)
            stranger_drop(place, "it stayed silent, and others wait", connection->peer);
        stranger_take(place, fd, &name);
    }
}

/* True when this one is the caller; one that closes, lies or stays silent is dropped. */
static bool stranger_listen(struct stranger *stranger, const struct connection *connection)
{
    unsigned char *into = (unsigned char *)&stranger->hello + stranger->got;
    ssize_t got = recv(stranger->fd, into, sizeof stranger->hello - stranger->got, 0);
    if (got == 0) {
        stranger_drop(stranger, "it closed without a hello", connection->peer);
    } else if (got < 0 && !connection_must_wait(errno)) {
        stranger_drop(stranger, strerror(errno), connection->peer);
    } else if (got < 0) {
        if (is_silent_for(CONNECTION_STRANGER_MS, stranger))
            stranger_drop(stranger, "it stayed silent", connection->peer);
    } else {
        stranger->got += (size_t)got;
        if (stranger->got < sizeof stranger->hello) return false;
        if (stranger->hello.magic == CONNECTION_MAGIC && stranger->hello.nonce == connection->nonce)
            return true;
        stranger_drop(stranger, "it is not of this job", connection->peer);
    }
    return false;
}

enum status connection_accept(bool *ready, struct connection *connection)
{
    TRY(strangers_accept(connection));
    for (int i = 0; i < CONNECTION_STRANGERS; i++) {
        struct stranger *stranger = &connection->strangers[i];
        if (stranger->fd < 0 || !stranger_listen(stranger, connection)) continue;
        connection->fd = stranger->fd;
        stranger->fd = -1;
        connection_tune(connection->fd);
        for (int j = 0; j < CONNECTION_STRANGERS; j++)
            if (connection->strangers[j].fd >= 0)
                stranger_drop(&connection->strangers[j], "the peer has come", connection->peer);
        close(connection->listen_fd);
        connection->listen_fd = -1;
        *ready = true;
        return STATUS_OK;
    }
    return STATUS_OK;
}

void connection_close(struct connection *connection)
{
    if (connection->fd >= 0) close(connection->fd);
    if (connection->listen_fd >= 0) close(connection->listen_fd);
    for (int i = 0; i < CONNECTION_STRANGERS; i++)
        if (connection->strangers[i].fd >= 0) close(connection->strangers[i].fd);
    connection->fd = connection->listen_fd = -1;
}
