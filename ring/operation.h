/* operation: one collective call on one rank, from submission to completion, and the cursors that run its plan.
 *
 * How the buffer is cut
 *
 *   |<- chunk of rank 0 ->|<- chunk of rank 1 ->| …      borders: count and nranks alone (I2)
 *   |c0 |c1 |             |c0 |c1 |                      each channel takes its part of every chunk
 *   |s s|s s|             |s s|s s|                      slices of at most one slot
 *
 * A cursor runs the plan of its channel on a block of W slices of every chunk, then on the next block:
 *
 *   for each block of W slices: for each step of the plan: for each slice of the block: one primitive
 *
 * W = S/2, half the slots of an edge. All cursors run this order, so slices leave and arrive on an edge in the same order.
 * Between the send of a slice and its consumption the neighbour consumes W older ones: at most W slots are in use by
 * what the neighbour cannot consume yet, so a cursor never waits in a circle, and the other W let both sides work at once.
 */
#ifndef RING_OPERATION_H
#define RING_OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/plan.h"
#include "ring/reduce.h"
#include "verbs/transport.h"

#define RING_MAX_CHANNELS 16

struct flight;
struct ring_call;
struct ring_comm;

enum cursor_wait { CURSOR_RUNNING, CURSOR_WAITS_DATA, CURSOR_WAITS_ROOM, CURSOR_DRAINING };

/* Where in the order above. */
struct place {
    size_t block; /* first slice of the block in hand */
    int step;
    size_t slice; /* within the block */
};

/* Where what comes from a position belongs: for transports that receive into memory. See cursor_land(). */
#define CURSOR_LANDINGS 2 /* a ring's, and in two levels the other ring's */
struct cursor_landing {
    struct cursor *cursor;
    int from;              /* position */
    struct place ahead;    /* the next receive from there whose landing has not been asked for, */
    uint64_t ahead_step;   /* and its step on the edge */
};

/* One channel's run through its plan. */
struct cursor {
    struct operation *operation;
    struct plan plan;
    int channel;           /* whose order of ranks it follows, and which part of every chunk is its */
    int edge_channel;      /* whose edges it uses: its own, or that of direct plans */
    size_t slice_count;    /* elements of a full slice */
    size_t slices;         /* per chunk, at least 1: an empty operation still meets its neighbours */
    struct place at;
    enum cursor_wait wait;
    int waits_for;         /* rank, when waiting, */
    const struct edge *waits_on; /* and its edge */
    struct edge *producer; /* of the step in hand; NULL: it does not send */
    struct edge *consumer;
    struct edge *joined;   /* of a sum of other hosts */
    struct cursor_landing landings[CURSOR_LANDINGS];
    int consumers;         /* edges that it receives by; more than there are landings: none is used */
};

/* How far a small operation has come: see exchange.h. */
struct exchange {
    struct exchange_plan *plan; /* the communicator's */
    unsigned char *places[3];   /* by enum exchange_place; that of send is only read */
    uint64_t tag;
    const struct operation *watched; /* whose steps are traced; NULL: nobody watches */
    int round, sent, received;  /* messages of this round */
    int looks;                  /* again at a message that has not come, in one pass */
    int misfit;                 /* message that is of another operation; -1: none */
};

/* How far an operation by windows has come: see window.c. */
#define WINDOW_MOST_RANKS 16
#define WINDOW_AREAS      8 /* of a stage */

struct window_peer {
    const unsigned char *input, *result; /* what is left of the record in hand, */
    size_t input_left, result_left;      /* in bytes */
    size_t inputs_seen, results_seen;    /* bytes of the two streams in all records so far, */
    size_t inputs_due, results_due;      /* and in all that will come */
    size_t results_kept;
    bool result_is_bare;                 /* an address in the peer's memory, not in this rank's */
    bool holds_input, holds_result;      /* the oldest record of its edge is that one, and has yet to be freed */
};

struct window {
    struct window_peer peers[WINDOW_MOST_RANKS]; /* by rank */
    uint64_t input_reference, result_reference; /* of what others may read where it is; 0: staged */
    size_t inputs_largest, inputs_posted;       /* bytes of the longest stream of inputs; of each so far */
    size_t results_posted;
    size_t reduced;                             /* bytes of the own chunk */
    size_t own_bytes, own_kept;                 /* of what goes from send to recv on this rank */
    int next_keep;                              /* whose results are copied next */
    bool passes_cache;                          /* results go to memory, not into this core's cache */
    bool ended;                                 /* well: nobody reads this rank's buffers any more */
};

/* How far it has heard what the others call: see roll_call.h. */
struct roll_call {
    int round, rounds; /* rounds 0: the roll is not called */
    bool told;         /* in this round */
};

/* What the caller of progress_run() lends for as long as the operation runs: apart, so that a small operation does not pay for it. */
#define OPERATION_ROOM_EDGES (2 * RING_MAX_CHANNELS + 8) /* of rings, and of the roll call of 16 ranks */
struct operation_room {
    struct cursor cursors[RING_MAX_CHANNELS];
    struct edge *edges[OPERATION_ROOM_EDGES];
    struct window window;
    char text[STATUS_TEXT_BYTES];
};

struct operation {
    struct operation *next; /* list of the progress engine */
    struct ring_comm *comm;
    struct operation_room *room;

    enum collective collective;
    struct reduction reduction;
    int root;              /* rank */
    const unsigned char *send;
    unsigned char *recv;
    size_t count;          /* as the caller gave it */
    size_t stride;         /* elements between chunks; 0: the chunks are an even split of count */
    const size_t *begins;  /* [nranks + 1], of v-forms: chunk c is [begins[c], begins[c + 1]); else NULL */
    bool send_is_chunk;    /* send (recv) holds this rank's chunk only, at offset 0 */
    bool recv_is_chunk;
    bool on_device;        /* send and recv are CUDA memory */
    bool sends_pinned;     /* send is memory that a device's driver has mapped */
    bool exchanges;        /* small: runs as an exchange, not on the ring */
    bool has_memory;       /* comm->has_memory when it was called */
    bool windows;          /* everyone reads from everyone, not on the ring */
    bool slots_are_shared; /* the next rank's core reads the slots that this one writes, */
    bool streaming;        /* with streaming stores */
    bool passes_cache;     /* what a plan only keeps goes to memory, not into this core's cache */

    uint64_t sequence;     /* of this communicator, from 1 */
    uint64_t group;        /* operations of one group run together; 0: alone */
    uint64_t tag;          /* what every slice of it carries: see operation_tag() */
    struct exchange exchange;
    struct roll_call roll_call;
    int cursor_count;
    struct edge **edges;   /* all that it uses: room->edges, or allocated where those do not suffice */
    int edge_count;
    enum { KERNEL_OFF, KERNEL_WAITS, KERNEL_RUNS, KERNEL_DONE } kernel; /* that runs the plan: kernel_run.h */
    void *captured;        /* the native stream whose graph keeps the kernel; NULL: it is run now */
    bool by_lines;         /* the kernel: over edges that have them */
    struct flight *oldest, *youngest; /* slices that the device works on: flight.h */
    bool lends;            /* a neighbour reads the caller's memory (reach.h): until it has, this is not done */
    uint64_t sent_bytes, received_bytes;
    uint64_t border_bytes; /* of those sent, to other hosts */
    bool begun;            /* by the engine, when its turn has come */
    int64_t progress_ns;   /* when it last moved; 0: just now */
    int64_t statement_ns;  /* when the mailbox is to be looked at again; 0: no statement made yet */

    bool done;             /* written under the engine's lock */
    enum status status;    /* its text is room->text */
};

/* One that is never run: for predictions. comm may be only described; begins: as the operation's. */
struct operation operation_of_call(
    const struct ring_call *call, const size_t *begins, struct ring_comm *comm);

/* Prepares the cursors or the exchange; opens every edge that the plan needs, without waiting. Needs comm, room, collective …
 * exchanges, sequence. By the engine only, when all older operations that it must follow are done. */
MUST_CHECK enum status operation_begin(struct operation *operation);

/* Nothing of the operation is looked at any more after this, whether it ended well or not. */
void operation_end(struct operation *operation);

/* Does what can be done now; sets *moved if anything was, *done when the last byte and credit have left user space.
 * errors: as struct edge's, and DATA when a neighbour sends a slice of another operation. */
MUST_CHECK enum status operation_advance(struct operation *operation, bool *moved, bool *done);

/* Whether `operation` must wait until `older`, of the same communicator and still running, is done. */
bool operation_must_follow(const struct operation *operation, const struct operation *older);

/* "all_reduce #17 (1003 float32, sum)" */
void operation_describe(char *text, size_t bytes, const struct operation *operation);
/* Whether the neighbour that an edge leads to has yet to read what this rank's memory holds; an edge where it has, or NULL. */
bool operation_is_read(const struct operation *operation, struct edge *edge);
const struct edge *operation_reader(const struct operation *operation);
/* "data from rank 2 (step 3 of 7, slice 5 of 9)": what the first cursor that is not done waits for; *rank is the peer. */
void operation_describe_wait(char *text, size_t bytes, int *rank, const struct operation *operation);

/* Elements [*begin, *begin + *count) of the buffer are rank c's chunk. */
void operation_chunk(size_t *begin, size_t *count, const struct operation *operation, int c);

/* All that neighbours must agree on, in one word: see operation.c. */
#define OPERATION_TAG_SEQUENCE ((uint64_t)0xffff)
uint64_t operation_tag(const struct operation *operation);
/* The same words as operation_describe() from a tag alone; false: it is none. */
bool operation_describe_tag(char *text, size_t bytes, uint64_t tag);
/* DATA, naming what this rank calls and what the other does. */
MUST_CHECK enum status operation_mismatch(const struct operation *operation, int other, uint64_t tag);

/* What arrived from a rank must carry this operation's tag and have the expected size: else DATA, with both sides' values. */
MUST_CHECK enum status operation_check_slice(
    const struct operation *operation, int from, uint64_t tag, uint64_t bytes, size_t expected_bytes);

#endif
