/* bootstrap_internal: what the parts of bootstrap share, and which part does what.
 *
 *   bootstrap.c          the public calls: they change state under the lock, send, and wait on `changed`
 *   bootstrap_join.c     the start: HELLO, WELCOME, REFUSED, strangers; one thread, no lock
 *   bootstrap_address.c  which address of each rank the others are given
 *   bootstrap_service.c  the service thread: reads every link; on rank 0 it is the hub
 *   bootstrap_shrink.c   after a failure: those that are left; one thread again
 *   bootstrap_wire.c     frames and links
 *   bootstrap_socket.c   listening, connecting, addresses
 *
 * One lock guards everything that both threads touch, sending included; only poll() and waiting happen
 * outside it, so it is never held for long. Links are opened before the service thread starts, and
 * closed by it or after it has ended.
 */
#ifndef VERBS_BOOTSTRAP_INTERNAL_H
#define VERBS_BOOTSTRAP_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "verbs/bootstrap_socket.h"
#include "verbs/bootstrap_wire.h"

/* How long the others wait for rank 0 to say what it decided at a deadline: it wakes at the deadline,
 * they soon after. */
#define VERDICT_GRACE_MS 2000

/* A blob in the mailbox. */
struct mail {
    struct mail *next;
    uint64_t key;
    int from;
    size_t bytes;
    unsigned char blob[];
};

/* This rank's own part of the collective it is in. */
struct gather_call {
    uint64_t sequence; /* of the collective entered last; the first is 1 */
    bool done;
    void *blobs; /* the caller's buffer, while it waits */
    size_t bytes;
    enum status result;
    char text[STATUS_TEXT_BYTES]; /* of a result that is not OK */
    bool broken;                  /* result is final: collectives no longer work */
};

/* Rank 0: the collective that is being gathered. */
struct hub_gather {
    uint64_t sequence; /* the one that is awaited or in progress */
    int64_t deadline_ns;
    size_t bytes; /* of the first blob */
    int first;    /* who brought it */
    int differs;  /* a rank that brought another size, or -1 */
    size_t differs_bytes;
    int in_count;
    bool *in;             /* nranks */
    unsigned char *blobs; /* nranks · bytes */
    enum status given_up; /* not OK: every further call gets this and `text` */
    char text[FRAME_TEXT_BYTES];
};

struct bootstrap {
    int rank, nranks, local_rank, local_nranks, timeout_ms;
    uint64_t job;
    char address[ADDRESS_TEXT_BYTES]; /* before joining: RINGZERO_INTERFACE's, or "" */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    pthread_t service;
    bool service_runs;
    int wake_fd; /* eventfd: ends the service thread's poll; -1: none */

    /* Rank 0: one per rank, its own stays closed. Others: one, to rank 0. A rank alone: none. */
    struct link *links;
    int link_count;

    struct hub_gather hub; /* rank 0 */
    struct gather_call call;
    struct mail *mail, **mail_end;
    int mail_count; /* also read without the lock, atomically */

    bool closing;  /* this rank has said BYE */
    bool all_left; /* all have */
    bool stopping; /* the service thread shall end */
    int left_count;

    /* Written once, under the lock, before `failed` is set with release; so readers that acquire it
     * need no lock. */
    int failed;
    enum status failure;
    int failed_rank;
    char failure_text[STATUS_TEXT_BYTES];
};

/* One that has no links yet and no service thread; NULL when memory is out. Free accepts NULL, and closes its links. */
struct bootstrap *bootstrap_make(const struct bootstrap_config *config, int timeout_ms);
void bootstrap_free(struct bootstrap *bootstrap);

/* join: fills links, job, local ranks, address. errors: as bootstrap_open(). */
MUST_CHECK enum status join_as_hub(
    struct bootstrap *bootstrap, const struct bootstrap_config *config, int *listen_fd);
MUST_CHECK enum status join_as_member(struct bootstrap *bootstrap, const struct bootstrap_config *config);

/* Rank 0, when all are in: gives every rank's HELLO, its own among them, the address by which the others shall reach
 * that rank. errors: INVALID when a rank has none that means anything on the other hosts. */
MUST_CHECK enum status join_settle_addresses(struct hello *hellos, const struct bootstrap *bootstrap);

/* service; the lock is held by the caller of each but the first two. */
MUST_CHECK enum status service_start(struct bootstrap *bootstrap);
void service_stop(struct bootstrap *bootstrap);
void service_wake(struct bootstrap *bootstrap);

/* Records the job's first failure and tells the others; later ones are dropped. */
void service_fail(struct bootstrap *bootstrap, enum status failure, int rank, const char *text);
/* The oldest mail of (from, key), by the pointer that leads to it; *NULL if there is none. */
struct mail **service_find_mail(struct bootstrap *bootstrap, int from, uint64_t key);
/* Takes it out of the mailbox and frees it. */
void service_drop_mail(struct bootstrap *bootstrap, struct mail **at);
/* What a POST brings. False when the mailbox is full or memory is out. */
bool service_deliver_mail(struct bootstrap *bootstrap, const struct frame *post, const void *blob);
bool service_all_sent(const struct bootstrap *bootstrap);

/* Rank 0. One rank's blob has come; false when the rank broke the protocol. */
bool hub_contribute(
    struct bootstrap *bootstrap, int rank, uint64_t sequence, const void *blob, size_t bytes);
/* Rank 0. A rank of the failed job wants to go on: remembered until rank 0 does, too. False for a protocol broken. */
bool hub_hear_shrink(struct link *link);
/* Rank 0. A rank has said BYE. */
void hub_leave(struct bootstrap *bootstrap, int rank);
/* Writes "rank 2" or "ranks 2, 5 and 7" for those whose flag is false. */
void hub_list_missing(char *text, size_t text_bytes, const bool *in, int nranks);

#endif
