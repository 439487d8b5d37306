/* exchange_plan: how small operations run: in a hop or two, or in log2 n of them, instead of the ring's n−1 or 2(n−1). A pure
 * function of the operation, its communicator and the rank; exchange.c runs what it says.
 *
 * Where all ranks share memory a message costs little, and hops are what counts: everyone to everyone.
 *
 *   all_gather, broadcast   one hop: each owner sends its chunk (the root the buffer) to all; in a broadcast the
 *                           others send nothing, and say that where roots are checked (roll_call.h)
 *   reduce_scatter          one hop: chunk c of everyone goes to rank c, which adds them
 *   all_reduce, barrier     a few bytes: one hop, everyone sends all of it to all, and everyone adds everything;
 *                           more: two hops, a reduce_scatter and an all_gather, the bytes of the ring
 *
 * What a rank tells all others alike (all but the parts of a reduce_scatter) it writes once, on its
 * board (board.h), where there are more than two ranks.
 *
 * Where they do not, a message costs two system calls, and messages are what counts: n·⌈log2 n⌉
 * instead of n(n−1), in rounds k = 0, 1, … that reach d = 2^k ranks further; of a power of two of
 * ranks in pairs, whose numbers differ in bit k: what is answered costs less. Rank 0 of 4, blocks by
 * the rank they come from (gather) or go to (scatter):
 *
 *               round 0                 round 1
 *   gather      0 to 1, 1 from 1        01 to 2, 23 from 2          all_gather; inputs of a few bytes
 *   scatter     1 3 to 1, 0 2 from 1    2 and rank 1's 2 to 2,      parts of a sum, each on its way
 *                                       two 0 from 2                to its owner
 *   broadcast   from the parent         to the children of a binomial tree
 *
 * Where ranks of one host share its cores too, turns on a core count as well: a star (exchange_star.h), and broadcasts of a
 * few bytes go along a chain: each rank sends one message a broadcast on, not the root one to every child, so a row of
 * broadcasts goes as fast as one rank sends.
 *
 * Either way whoever adds a chunk holds every rank's own part of it, so it adds them in the order of the plan that a large one has,
 * flat or of two levels, each channel's part in that of its ring (I1, I2): the bits are the same as there, and sums in float32 of 16-bit elements cost no byte more. The rules that decide are static: exchange_fits(), and exchange_shape(): by
 * collective, count, nranks, tunables and the kind of edges alone, so alike on all ranks.
 * source: J. Bruck et al., "Efficient algorithms for all-to-all communications", 1997.
 */
#ifndef RING_EXCHANGE_PLAN_H
#define RING_EXCHANGE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/operation.h"
#include "verbs/lines.h"

#define EXCHANGE_MOST_RANKS    16 /* n(n−1) edges: beyond, the ring */
#define EXCHANGE_MOST_MESSAGES (4 * (EXCHANGE_MOST_RANKS - 1)) /* two hops, both ways */
#define EXCHANGE_MOST_ROUNDS   8                               /* twice log2 n */
#define EXCHANGE_MOST_PIECES   128
_Static_assert(
    2 * (EXCHANGE_MOST_RANKS - 1) <= 2 * RING_MAX_CHANNELS, "its edges fit an operation's room");
#define EXCHANGE_LINE_BYTES                                                                        \
    ((size_t)1088) /* an entry: header and 1 KiB of data, in whole cache lines */
#define EXCHANGE_FEW_BYTES (EXCHANGE_LINE_BYTES - LINES_HEADER_BYTES)

/* What offsets count from. A stage is memory of the communicator for other ranks' parts. */
enum exchange_place { EXCHANGE_SEND, EXCHANGE_RECV, EXCHANGE_STAGE, EXCHANGE_PLACES };

struct exchange_piece {
    enum exchange_place place;
    uint32_t bytes;
    size_t offset;
};

/* One message: pieces one after another. A received one that `stays` has none: it is added up where it has arrived. */
struct exchange_message {
    int peer;
    bool stays;
    struct lines *lines; /* exchange_kept.c's: that it goes by, the edge's or a board's; NULL: by a slot */
    bool by_address; /* exchange_kept.c's: it leaves from where it is */
    short first_piece, pieces;
    uint32_t bytes;
    struct edge *edge; /* exchange_kept.c's */
};

/* The next round begins when all messages of this one have been sent and have come. */
struct exchange_round {
    short first_send, sends, first_receive, receives; /* in messages[] */
    bool to_all;    /* everyone is told the same: all messages that are sent are one on a board */
    bool to_owners; /* what a message holds belongs to its receiver; else to its sender */
    bool adds;      /* then the sums are made */
};

/* `count` elements that begin at `at` in every rank's part; the rank at position `last` of the channel's ring is added last. */
struct exchange_sum {
    size_t at, to; /* bytes; to: in `place` */
    size_t count;
    enum exchange_place place;
    short channel, last;
};
/* A chunk has a sum for each channel where their rings differ. */
#define EXCHANGE_MOST_SUMS (EXCHANGE_MOST_RANKS * RING_MAX_CHANNELS)

enum exchange_shape { EXCHANGE_HOPS, EXCHANGE_ROUNDS, EXCHANGE_STAR, EXCHANGE_CHAIN };

struct exchange_plan {
    enum exchange_shape shape;
    /* What it is for; all but `sequence` of the tag. */
    enum collective collective;
    struct reduction reduction;
    int root;
    size_t count, stride;
    uint64_t tag;
    struct board *board; /* exchange_kept.c's: the communicator's; NULL: none */
    bool ready;  /* exchange.c's: all edges are connected, */
    bool staged; /* and some of them ask for system calls */

    size_t send_bytes, recv_bytes, stage_bytes; /* that are read and written there */
    ptrdiff_t in_place;                         /* recv − send, when it works in place */
    struct exchange_piece own_from, own_to;     /* copied first, unless they are the same */
    int round_count, message_count, piece_count, sum_count;
    struct exchange_round rounds[EXCHANGE_MOST_ROUNDS];
    struct exchange_message messages[EXCHANGE_MOST_MESSAGES];
    struct exchange_piece pieces[EXCHANGE_MOST_PIECES];
    struct exchange_sum sums[EXCHANGE_MOST_SUMS];
    unsigned char order[RING_MAX_CHANNELS][EXCHANGE_MOST_RANKS]; /* rank at a position of a ring */
    int host_ranks; /* two levels: sums are made for each of these many positions, then of those; else 1 */
    /* Where the part of each rank is: in a place, or in the message that stays. */
    struct {
        short message; /* −1: in a place */
        enum exchange_place place;
        size_t offset;
    } parts[EXCHANGE_MOST_RANKS];
    uint64_t sent_bytes, received_bytes;
    uint64_t border_bytes; /* of those sent, to other hosts */
};

/* Whether an operation is an exchange: by collective, redop, count and nranks alone. */
bool exchange_fits(const struct operation *operation);

/* How. Needs exchange_fits(). */
enum exchange_shape exchange_shape(const struct operation *operation);

/* Needs of the operation what exchange_fits() needs, and of its communicator nranks, rank, order, one_memory, host_ranks, ranks and the tunables.
 * The buffers are not looked at. */
void exchange_plan_make(struct exchange_plan *plan, const struct operation *operation);

/* Bytes that operation->comm->rank sends for it; *border_bytes: of them, to other hosts. */
uint64_t exchange_sent_bytes(uint64_t *border_bytes, const struct operation *operation);

/* The slots of the edges that exchanges use. More where credits are messages of their own: every
 * half of the slots, one. */
size_t exchange_slot_bytes(const struct ring_comm *comm);
uint64_t exchange_slot_count(const struct ring_comm *comm);

/* Those of the edges of chains, which go one way: many, so that a rank whose turn it is sends many
 * broadcasts on before it has to give its core to the one that reads them. */
#define EXCHANGE_CHAIN_SLOT_BYTES EXCHANGE_LINE_BYTES
#define EXCHANGE_CHAIN_SLOTS      ((uint64_t)256)

#endif
