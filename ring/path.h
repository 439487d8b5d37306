/* path: which way a call takes, and what each rank sends to whom on it, without running it: the same
 * rules and plans as in a run, followed on paper. For `ringzero show`, and whoever wants to know before.
 *
 *   small   an exchange (exchange_plan.h): hops, rounds, a star or a chain
 *   large   among ranks of one host windows (window.h): who needs data reads them where they are
 *   else    the plan of plan.h: round the ring, in two levels, or direct
 *
 * Time passes in turns. What is sent in a turn is there in the same one, and a rank that has received
 * all that it waits for goes on in the next:
 *
 *   a star of 3     turn 0              turn 1
 *   rank 0          ◄1  ◄2  adds        ►2  ►1
 *   rank 1          ►0                  ◄0
 *   rank 2          ►0                  ◄0
 *
 * Invariant: the messages' bytes are those that ring_predict_sent_bytes() tells and a run counts (I4).
 */
#ifndef RING_PATH_H
#define RING_PATH_H

#include <stdbool.h>
#include <stddef.h>

#include "ring/ring.h"

#ifdef __cplusplus
extern "C" {
#endif

enum path_kind {
    PATH_PLAN, /* of plan.h: no messages are told here */
    PATH_HOPS,
    PATH_ROUNDS,
    PATH_STAR,
    PATH_CHAIN,
    PATH_WINDOWS,
    PATH_KIND_COUNT
};
const char *path_kind_name(enum path_kind kind); /* "hops", … */

/* Where ranks are, and what they have agreed on. */
struct path_place {
    int nranks;
    int hosts;       /* neighbouring ranks share one, equally many on each: divides nranks */
    int cores;       /* of each host */
    bool own_memory; /* ring_alloc() has been called */
    struct ring_config config; /* as ring_comm_open() takes it */
};

/* What a message holds, in whole chunks or rests of them. */
struct path_block {
    short from;  /* the rank whose own input it is; −1: it is complete */
    short chunk; /* −1: all chunks, in their order */
};

/* Read by `to` where it lies, in windows. */
struct path_message {
    int turn; /* in which it is sent and received */
    int from, to;
    size_t bytes;
    bool by_lines; /* flag and data in the same cache lines; else in slots */
    int first_block, blocks;
};

/* A rank adds everyone's inputs to a chunk. */
struct path_sum {
    int turn, rank;
    short chunk; /* −1: all */
};

/* Zeroed at first. The arrays are its own. */
struct path {
    enum path_kind kind;
    int turns;
    int message_count, block_count, sum_count;
    struct path_message
        *messages; /* [message_count]: in the order of turns, and of senders in each */
    struct path_block *blocks;
    struct path_sum *sums;
};

/* A communicator that is only described. errors: INVALID: a tunable is out of range, or is to be
 * measured; SYSTEM: no memory. close accepts NULL. */
struct path_comm;
MUST_CHECK enum status path_comm_open(struct path_comm **comm, const struct path_place *place);
void path_comm_close(struct path_comm *comm);

/* "shm": by which two of its ranks talk. */
const char *path_transport(int a, int b, const struct path_comm *comm);
/* As ring_comm_host_ranks(). */
int path_host_ranks(const struct path_comm *comm);

/* The way alone. The call has neither counts nor stride. Calls in groups, and on CUDA memory, take
 * the plan. cost: a µs. */
enum path_kind path_kind_of(const struct ring_call *call, struct path_comm *comm);

/* All of it. errors: SYSTEM: no memory. *path is to be freed all the same. */
MUST_CHECK enum status path_make(
    struct path *path, const struct ring_call *call, struct path_comm *comm);
void path_free(struct path *path);

/* What a rank sends, in whatever way. */
uint64_t path_sent_bytes(const struct ring_call *call, int rank, struct path_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
