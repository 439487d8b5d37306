/* connection: one TCP connection between two ranks, from the first word about it to its end. What
 * travels on it is its owner's business (edge_tcp.c).
 *
 *   listener                                        caller
 *   connection_listen() fills an offer  ─────────►  by the bootstrap's mailbox
 *   connection_accept() …               ◄─────────  connection_call() …: connects and
 *                                                   says hello { magic, the offer's nonce }
 *
 * Whoever connects and cannot say the nonce is a stranger, a port scanner perhaps: it is dropped
 * with a warning, and neither hangs nor ends the job; many silent ones cannot keep the caller out. All words are in host order: both ends run
 * the same build (the bootstrap refuses another).
 */
#ifndef VERBS_CONNECTION_H
#define VERBS_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "verbs/status.h"

#define CONNECTION_MAGIC       0x72696e6774637031u /* "ringtcp1" */
#define CONNECTION_STRANGERS   16                  /* accepted ones that have not said hello yet */
#define CONNECTION_STRANGER_MS 5000                /* how long one may stay silent, */
#define CONNECTION_CROWDED_MS  500                 /* and when newer ones wait for its place */

struct connection_offer {
    uint64_t nonce;
    uint32_t port;
    char address[64]; /* numeric */
};

struct connection_hello {
    uint64_t magic;
    uint64_t nonce;
};

/* One that has not proved to be the caller. */
struct stranger {
    int fd; /* -1: free place */
    int64_t since_ns;
    size_t got;
    struct connection_hello hello;
    char from[64];
};

struct connection {
    int peer;      /* rank, for messages */
    int fd;        /* -1 until connected */
    int listen_fd; /* -1: it does not listen, or no more */
    uint64_t nonce;
    struct stranger strangers[CONNECTION_STRANGERS];
};

/* Neither side yet. */
void connection_begin(struct connection *connection, int peer);

/* Listens at a numeric address of this host, at a port of the system's choice, and says where.
 * errors: INVALID (the address), SYSTEM (descriptors). */
MUST_CHECK enum status connection_listen(
    struct connection_offer *offer, struct connection *connection, const char *address);

/* Called until *ready; neither ever blocks. errors: PEER, DATA (an offer without an address),
 * SYSTEM (descriptors). */
MUST_CHECK enum status connection_accept(bool *ready, struct connection *connection);
MUST_CHECK enum status connection_call(
    bool *ready, struct connection *connection, const struct connection_offer *offer);

/* What a TCP connection that carries data is told, by connection_accept(), connection_call() and
 * whatever is to be compared with them. Small messages leave at once; and where both ends have one
 * address, so are on one machine, there is no line that could be congested: an algorithm that paces
 * (bbr) would only make the sender wait, so the plain one is taken. Between machines the choice is
 * the system's. Advice: where the system refuses, a connection is slower, not wrong.
 *
 * A socket that has once been connected with bbr goes on being paced whatever it is told later: so
 * both ends are told before. A listener does not know yet who will call: what it accepts has the
 * plain algorithm until connection_tune() has seen where the other end is. */
void connection_tune_listener(int fd); /* before listen() */
void connection_tune_caller(int fd, const struct sockaddr *to, socklen_t to_bytes); /* connect() */
void connection_tune(int fd);                                                       /* connected */

/* An error of send() or recv() that means: not now. */
bool connection_must_wait(int error);

/* PEER, saying that the connection was lost while doing `what`. error: an errno; 0: closed. */
MUST_CHECK enum status connection_lost(
    const struct connection *connection, const char *what, int error);

void connection_close(struct connection *connection);

#endif
