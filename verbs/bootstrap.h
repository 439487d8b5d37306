/* bootstrap: one rank's membership in a job, before and beside the data path.
 *
 * Every rank keeps one TCP connection, the control connection, to rank 0, whose service thread is the
 * hub. Over it travel small blobs (all-gather, barrier, messages between any two ranks) and the news of
 * deaths. A service thread per rank reads it, so that a death is known within milliseconds even while a
 * rank computes.
 *
 *   rank 1 ──┐
 *   rank 2 ──┼── rank 0 (hub)      HELLO → WELCOME | REFUSED; GATHER → GATHERED; POST → POST; ABORT, DEAD, BYE
 *   rank 3 ──┘                             after a failure, those that are left: SHRINK → SHRUNK
 *
 * Invariant I5: every wait here has a deadline (timeout_ms) and names the rank that it waits for; any
 * rank's death becomes an error on every rank. Strangers that connect to the port (scanners, health
 * checks, silence) cost one warning with their address.
 * Cost: 2 messages per rank and collective, 2(n−1) at rank 0.
 */
#ifndef VERBS_BOOTSTRAP_H
#define VERBS_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BOOTSTRAP_DEFAULT_TIMEOUT_MS 30000

struct bootstrap;

struct bootstrap_config {
    int rank;
    int nranks;
    int local_rank;    /* among the ranks of this host, 0 first */
    int local_nranks;  /* ranks on this host; 0: unknown */
    char address[256]; /* of rank 0: name or IPv4/IPv6 address */
    int port;          /* of rank 0; not used by rank 0 when it has listen_fd */
    int listen_fd;     /* rank 0: a listening socket to take over (bootstrap closes it); -1: open one */
    uint64_t job;      /* id of the job; 0: not known, rank 0 draws a random one and tells */
    int timeout_ms;    /* deadline of every wait; 0: RINGZERO_TIMEOUT_MS or BOOTSTRAP_DEFAULT_TIMEOUT_MS */
};

/* A config of one rank alone: rank 0 of 1, no socket opened at all. */
struct bootstrap_config bootstrap_config_single(void);

/* The deadline of every wait: RINGZERO_TIMEOUT_MS, or BOOTSTRAP_DEFAULT_TIMEOUT_MS. errors: INVALID for no number. */
MUST_CHECK enum status bootstrap_read_timeout(int *timeout_ms);

/* A random job id, never 0: for whoever starts all ranks of a job. */
uint64_t bootstrap_draw_job(void);

/* A listening TCP socket on 127.0.0.1 at a free port, for rank 0's listen_fd: ranks of one host,
 * without a race for a port. */
MUST_CHECK enum status bootstrap_listen_local(int *listen_fd, int *port);

/* Joins the job; returns when all nranks are in. collective: every rank calls once.
 * errors: INVALID when this rank number is out of range or taken, or when ranks disagree about nranks or
 * job (all of it told by name, on the refused rank and in rank 0's log); TIMEOUT naming the missing ranks
 * (rank 0, and those that reached it) or the address (others); SYSTEM when the address cannot be resolved
 * or the port is taken. On an error *bootstrap is NULL; listen_fd is closed either way. */
MUST_CHECK enum status bootstrap_open(struct bootstrap **bootstrap, const struct bootstrap_config *config);

/* Leaves the job. collective: waits until all have come here or the deadline, unless the job has
 * failed: so that nobody takes a rank's clean exit for a death. After a collective that ended in TIMEOUT or
 * PEER it waits at most 1 s. NULL is accepted. */
void bootstrap_close(struct bootstrap *bootstrap);

/* After a failure (bootstrap_failed()): the ranks that are left agree on who they are, over the control connections that they have,
 * and become a job of their own, with ranks renumbered in their order; its id, timeout and addresses are the old one's, its
 * mailboxes empty. The old one stays failed and is the caller's to close, before or after; no thread may be in a call on it.
 * collective over the survivors; a rank that does not come within timeout_ms of rank 0 is left out, as if it had died, and is
 * told so. After an abort, where nobody died, all go on.
 * Rank 0 is the hub of all connections: when it dies nobody can go on, and this fails at once, on every rank. (To pass its part on
 * would take a listening socket at every rank, and a second meeting; a supervisor that starts the job again is simpler.)
 * *survivors may itself fail at any time, by the next death: then shrink again.
 * errors: INVALID when the job has not failed; PEER when rank 0 died; TIMEOUT when this rank came too late, or rank 0 did not answer
 * within timeout_ms and 2 s; SYSTEM. On an error *survivors is NULL, and there is no second try. */
MUST_CHECK enum status bootstrap_shrink(struct bootstrap **survivors, struct bootstrap *failed);

int bootstrap_rank(const struct bootstrap *bootstrap);
int bootstrap_nranks(const struct bootstrap *bootstrap);
int bootstrap_local_rank(const struct bootstrap *bootstrap);
int bootstrap_local_nranks(const struct bootstrap *bootstrap);
int bootstrap_timeout_ms(const struct bootstrap *bootstrap);
uint64_t bootstrap_job(const struct bootstrap *bootstrap);

/* This host's numeric address by which the other ranks reach it: the local end of the control
 * connection ("127.0.0.1" when all ranks share a host); RINGZERO_INTERFACE overrides it by an interface
 * name. Never loopback when ranks run on several hosts: bootstrap_open() fails with INVALID instead, where rank 0
 * cannot find a better one (it can for ranks of its own host). Valid until close. */
const char *bootstrap_address(const struct bootstrap *bootstrap);

/* All-gather of equal blobs, in place: on entry the caller's blob is at blobs + rank·bytes, on return
 * all are there. bytes ≤ BOOTSTRAP_GATHER_BYTES. threads: one at a time.
 * collective: same order and same bytes on every rank (different bytes: INVALID on every rank, naming two
 * ranks; the next call works).
 * errors: TIMEOUT, the same text on every rank, names the ranks that had not come timeout_ms after the first
 * came; PEER when a rank died or has left; ABORTED. After these three no further collective works: the same
 * error comes at once. */
#define BOOTSTRAP_GATHER_BYTES ((size_t)1 << 20)
MUST_CHECK enum status bootstrap_all_gather(void *blobs, size_t bytes, struct bootstrap *bootstrap);

/* Returns when every rank has entered. An all-gather of nothing. */
MUST_CHECK enum status bootstrap_barrier(struct bootstrap *bootstrap);

/* Sends a blob to one rank's mailbox under a key; never waits for the receiver. bytes ≤
 * BOOTSTRAP_BLOB_BYTES. `to` may be the caller. Blobs of one (from, key) are taken in the order they
 * were posted. threads: any. */
#define BOOTSTRAP_BLOB_BYTES 4096
MUST_CHECK enum status bootstrap_post(
    int to, uint64_t key, const void *blob, size_t bytes, struct bootstrap *bootstrap);

/* The same, in the place of a blob of the same (from, key) that the receiver has not taken: for what is told anew
 * again and again to a rank that may never ask, so that it does not pile up there. */
MUST_CHECK enum status bootstrap_post_anew(
    int to, uint64_t key, const void *blob, size_t bytes, struct bootstrap *bootstrap);

/* Takes a blob of exactly `bytes` from the own mailbox, if it has come: *found says so. Never waits.
 * threads: any.
 * errors: DATA when the blob there has another size (it stays); PEER or ABORTED when the job has failed. */
MUST_CHECK enum status bootstrap_take(
    void *blob, size_t bytes, bool *found, int from, uint64_t key, struct bootstrap *bootstrap);

/* The cheap question for wait loops: one load. True once any rank died or aborted. threads: any. */
bool bootstrap_failed(const struct bootstrap *bootstrap);

/* OK, or the job's failure: PEER "rank 2 died (its control connection closed)" or ABORTED "rank 1: <its
 * text>", in status_text() of the caller. *rank (may be NULL) is the rank that died or aborted.
 * threads: any. */
MUST_CHECK enum status bootstrap_check(int *rank, const struct bootstrap *bootstrap);

/* Tells every rank that this one cannot go on, and why. The first abort or death wins. threads: any. */
void bootstrap_abort(const char *text, struct bootstrap *bootstrap);

#ifdef __cplusplus
}
#endif
#endif
