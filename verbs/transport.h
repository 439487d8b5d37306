/* transport: the edge contract. An edge is one directed FIFO between two ranks (fifo.h); a transport makes it look like shared
 * memory where memory is not shared. This header is all that one needs to write another transport.
 *
 * Life of an edge. Both ends know from the plan that they will talk, so each opens its side when it first needs it, in any
 * order, and nobody waits inside edge_open():
 *
 *      edge_open()        offer() fills this side's offer, which is posted to the peer's mailbox (bootstrap)
 *      edge_progress() …  the peer's offer is taken from the mailbox; connect() is called until it says ready
 *      edge_progress() …  progress() carries slots, records and counters across, both ways
 *      edge_close()       both sides; what is still in flight is lost, so callers drain first
 *
 * Before an edge is ready its consumer finds nothing ready, and its producer finds no room, or room in its own staging, from
 * which nothing leaves yet: executors need no special case.
 *
 * What a transport promises
 *   - Steps arrive in order, each once, complete: when the consumer sees tail, the step's bytes and record are visible in the
 *     consumer's memory kind. Fences and flushes that this needs are the transport's business.
 *   - The producer's head moves past a step only when its source (slot or address) may be reused.
 *   - Slots in CUDA memory are written by copies and kernels: a producer posts a step only when they are done (an event has passed), or
 *     from the kernel itself; a consumer frees it only when what reads it is done. Before edge_close() nothing is in flight to them.
 *   - Nothing blocks: a call does what can be done now. Deadlines and aborts belong to the caller's wait loop (I5); a failure
 *     of the connection is a status at once, naming the peer.
 *   - It knows bytes. No dtype, no reduction, no rank order, no algorithm.
 */
#ifndef VERBS_TRANSPORT_H
#define VERBS_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/bell.h"
#include "verbs/bootstrap.h"
#include "verbs/device.h"
#include "verbs/fifo.h"
#include "verbs/lines.h"
#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum edge_side { EDGE_PRODUCER, EDGE_CONSUMER };

struct edge_config {
    enum edge_side side;
    int self;            /* my rank and the peer's, in the job of `bootstrap`: for the mailbox and for messages */
    int peer;
    uint64_t key;        /* names this edge among all edges between these two ranks; same on both sides */
    size_t slot_bytes;   /* a multiple of 64; same on both sides */
    uint64_t slot_count; /* a power of two; same on both sides */
    bool shared;         /* a transport that has connections may carry this edge and its twin, the one of the other direction between the
                          * same two ranks with the same key, on one: good for messages that are answered. Same on both sides */
    struct edge *twin;   /* shared: that other edge's side here, of the same transport, if it is open already; else NULL. Both are used by
                          * one thread at a time */
    int rail;            /* a transport with several NICs takes number rail mod NICs, so that channels are spread over them */
    size_t line_bytes;   /* of an entry of lines.h, a multiple of 64, where the transport has them; 0: none wanted. Same on both sides */
    size_t flagged_bytes; /* beside each slot, a multiple of 64, where the transport has such memory; 0: none wanted. Same on both sides */
    uint64_t start;      /* first step: 0, or near the wrap in tests; same on both sides */
    struct bootstrap *bootstrap;
    struct device *device; /* whose account counts the slots */
    struct bell *bell;     /* by which this side sleeps; NULL: it never sleeps. Must outlive the edge */
};

/* What one side tells the other before they are connected. Opaque to all but the transport. */
#define EDGE_OFFER_BYTES 256
struct edge_offer {
    unsigned char bytes[EDGE_OFFER_BYTES];
};

#define EDGE_HAS_WORK (-2)

enum edge_phase { EDGE_OFFERED, EDGE_CONNECTING, EDGE_READY };

/* A consumer that knows where the bytes of a coming step belong may say so: a transport that receives into this process's memory
 * asks before the payload arrives, once per step, in order, and puts it there instead of into the slot; the record's address
 * then tells. NULL: into the slot. EDGE_LATER: whoever knows is not here yet; a transport that can leaves the payload where it is and asks
 * again later, else it takes the slot. Bytes and tag are what the producer announced. Called within edge_progress(). */
#define EDGE_LATER ((void *)(uintptr_t)1)
typedef void *(*edge_landing)(void *context, uint64_t step, uint64_t bytes, uint64_t tag);

struct edge {
    struct fifo fifo;   /* the executors' view: valid from edge_open() on */
    struct lines lines; /* the same for small messages: entries NULL while the edge is not ready, and where there are none */
    /* What the slots are, for copies: host memory unless the transport says otherwise; known when the edge
     * is ready. */
    enum memory_kind slots_kind;
    /* Kernels find records, counters and lines this many bytes behind where the CPU does, and the slots
     * where fifo.slots says; only where kernels_reach. */
    intptr_t kernel_shift;
    bool kernels_reach;
    /* slot_count · flagged_bytes that the producer's kernels write and the consumer's read, in the consumer's
     * memory, as the slots; zeroed at first. What it holds says itself when it has come: a flag in each word of
     * 8 bytes. NULL while the edge is not ready, and where there is none. */
    unsigned char *flagged;
    uint64_t in_hand; /* the executor's: steps that it has begun and has yet to post or free */
    struct edge_config config;
    const struct transport *transport;
    enum edge_phase phase;
    struct edge_offer peer_offer;
    edge_landing landing; /* the consumer's, may be NULL; it may change between calls of edge_progress() */
    void *landing_context;
    struct bell_page *peer_bell; /* by which the peer sleeps; NULL: it does not, or cannot be rung */
    void *state; /* the transport's */
};

/* One transport. */
struct transport {
    const char *name; /* "shm", "tcp", "verbs", … as --transport takes it. required */

    /* True: a record may carry an address in the producer's memory and the transport sends from there. False: executors write
     * slots. (Shared memory is false: the consumer cannot read the producer's addresses.) default false */
    bool reads_address;

    /* True: the consumer's core reads the slots that the producer's core wrote, so it matters how they are written. default false */
    bool peer_reads_slots;

    /* Whether this host can do it at all, with this device; NULL: with some device. *why, when not, is a
     * phrase for a message, valid until this thread's next failure. default: it can */
    bool (*available)(const char **why, const struct device *device);

    /* Allocates state and this side's part of the FIFO (fills edge->fifo) and describes it for the peer. required */
    enum status (*offer)(struct edge *edge, struct edge_offer *offer);

    /* Given edge->peer_offer, connects; *ready says when it is done. Called again until then; never blocks. required */
    enum status (*connect)(struct edge *edge, bool *ready);

    /* Carries what can be carried now; sets *moved to true if anything was, else leaves it. default: nothing to carry */
    enum status (*progress)(struct edge *edge, bool *moved);

    /* Whether all steps posted (producer) or freed (consumer) have left user space, so that the peer can go on without this
     * process. default: always */
    bool (*drained)(const struct edge *edge);

    /* Asked before sleep. A descriptor whose readiness (poll events in *events) means that progress() has work; -1: none, keep
     * asking; EDGE_HAS_WORK: it has work now. default: -1 */
    int (*descriptor)(const struct edge *edge, short *events);

    /* Frees everything; accepts a state that offer() left half built. required */
    void (*close)(struct edge *edge);
};

extern const struct transport transport_shm;
extern const struct transport transport_tcp;
extern const struct transport transport_verbs; /* built without libibverbs: never available */
extern const struct transport transport_cuda_ipc; /* within a host; needs a CUDA device on both sides */

/* All transports, NULL at the end; and one by its name, NULL if there is none. */
extern const struct transport *const transports[];
const struct transport *transport_by_name(const char *name);

/* Opens this side of an edge; returns at once. The config is copied. On an error *edge is NULL and nothing is left.
 * errors: SYSTEM (memory, descriptors, sockets), with what to do. close accepts NULL. threads: one at a time per edge. */
MUST_CHECK enum status edge_open(
    struct edge **edge, const struct transport *transport, const struct edge_config *config);
void edge_close(struct edge *edge);

/* Does what can be done now, connecting included; sets *moved to true if anything was done, else leaves it.
 * errors: PEER when the connection broke, DATA when the peer broke the protocol, SYSTEM. The edge then stays failed. */
MUST_CHECK enum status edge_progress(struct edge *edge, bool *moved);

/* The slot that the next fifo_post() publishes (producer), or that of the oldest step not yet freed (consumer), whole. */
static inline struct span edge_slot(const struct edge *edge)
{
    int device = edge->slots_kind == MEMORY_CUDA ? edge->config.device->index : 0;
    struct span slot = {fifo_slot(&edge->fifo), edge->config.slot_bytes, edge->slots_kind, device};
    return slot;
}

/* After fifo_post() or fifo_free(): wakes a peer that sleeps. One load when it does not. */
static inline void edge_notify(const struct edge *edge) { bell_ring(edge->peer_bell); }

/* For transports whose two ends have more to say before they are connected: by the mailboxes of the offers, after them, in order.
 * bytes ≤ BOOTSTRAP_BLOB_BYTES; edge_hear() never waits. errors: those of bootstrap_post() and bootstrap_take(). */
MUST_CHECK enum status edge_tell(const struct edge *edge, const void *word, size_t bytes);
MUST_CHECK enum status edge_hear(const struct edge *edge, void *word, size_t bytes, bool *found);

/* See struct transport. */
bool edge_drained(const struct edge *edge);
int edge_descriptor(const struct edge *edge, short *events);

#ifdef __cplusplus
}
#endif
#endif
