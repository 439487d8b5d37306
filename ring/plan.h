/* plan: a collective as a list of steps. A pure function of (collective, nranks, position, root); it moves nothing.
 *
 * The buffer is cut into nranks chunks; chunk c belongs to position c of the ring. A step is one primitive: it may receive a
 * chunk from one position, may combine it with the caller's own, may keep it, may send it on. An executor runs the steps on
 * each slice of the chunks in turn (execute_host.c); `ringzero show` prints them; tests/ring_plan_test.c proves every
 * collective for all nranks ≤ 64.
 *
 * Two families. On the ring (all_reduce, reduce_scatter, all_gather, broadcast, reduce) a position talks to its neighbours only,
 * and what step i of one position receives, step i−1 of its predecessor sent, so the order of sends on an edge is the order of
 * receives on it, however the buffer is sliced. Direct plans (scatter, gather, all_to_all, send, recv) use each edge in one
 * step only, so the order on it is that of the slices. Positions of a direct plan may have different numbers of steps.
 *
 * Where several hosts have several positions each, all_reduce, reduce_scatter, all_gather, reduce and barrier have a plan of two
 * levels beside the flat one (plan_two_level.c): the same primitives and chunks, other peers, another order of sums.
 */
#ifndef RING_PLAN_H
#define RING_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum collective {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_REDUCE,
    COLLECTIVE_SCATTER,
    COLLECTIVE_GATHER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_SEND, /* to root */
    COLLECTIVE_RECV, /* from root */
    COLLECTIVE_BARRIER,
    COLLECTIVE_COUNT
};
/* "all_reduce", … */
const char *collective_name(enum collective collective);
/* 0 and *collective, or -1. */
int collective_from_name(enum collective *collective, const char *name);
/* Has a root (for send and recv: the peer); reduces; talks to neighbours on the ring only. */
bool collective_is_rooted(enum collective collective);
bool collective_is_reduction(enum collective collective);
bool collective_is_on_ring(enum collective collective);
/* Has a plan of two levels. */
bool collective_has_two_levels(enum collective collective);
/* Into how many chunks the buffer is cut: nranks, or 1 (broadcast, reduce, send, recv). */
int collective_chunks(enum collective collective, int nranks);

/* What a step does with chunk c. in: the caller's send buffer; out: its receive buffer; ⊕: the reduction. "finish" is what
 * a reduction does last (an integer average divides there). */
enum primitive {
    PRIMITIVE_NONE,                   /* nothing: this position rests in this step */
    PRIMITIVE_COPY,                   /*                          out[c] = finish(in[c])                        */
    PRIMITIVE_SEND,                   /*                                                          wire ← in[c]  */
    PRIMITIVE_COPY_SEND,              /*                          out[c] = in[c]                  wire ← out[c] */
    PRIMITIVE_RECV,                   /* wire → x                 out[c] = x                                    */
    PRIMITIVE_RECV_COPY_SEND,         /* wire → x                 out[c] = x                      wire ← x      */
    PRIMITIVE_RECV_REDUCE_SEND,       /* wire → x                                                 wire ← x ⊕ in[c] */
    PRIMITIVE_RECV_REDUCE_COPY,       /* wire → x                 out[c] = finish(x ⊕ in[c])                    */
    PRIMITIVE_RECV_REDUCE_COPY_SEND,  /* wire → x                 out[c] = finish(x ⊕ in[c])      wire ← out[c] */
    PRIMITIVE_FORWARD,                /*                                                          wire ← out[c] */
    PRIMITIVE_COUNT
};
const char *primitive_name(enum primitive primitive);
bool primitive_receives(enum primitive primitive);
bool primitive_sends(enum primitive primitive);
/* Whether what is received or sent is a partial sum, not yet the owner's complete one. A send alone is one in reductions only, a
 * forward never. */
bool primitive_receives_partial(enum primitive primitive);
bool primitive_sends_partial(enum primitive primitive, enum collective collective);

struct plan_step {
    enum primitive primitive;
    int from;  /* position that the chunk comes from; -1: nothing is received */
    int to;    /* position that it goes to; -1: nothing is sent */
    int chunk; /* 0 ≤ chunk < plan.chunks */
    int joins; /* position whose partial sum y of other hosts joins a reduction, then y ⊕ (x ⊕ in[c]); -1: nobody's */
};

/* One position's plan. Small enough to pass by value; steps are computed, not stored. */
struct plan {
    enum collective collective;
    int nranks;
    int position;
    int root;   /* position, of rooted collectives; else 0 */
    int steps;  /* on the ring the same for all positions */
    int chunks; /* collective_chunks() */
    int host_ranks; /* two levels: this many neighbouring positions are on each host; 1: the plan is flat */
};

/* 0 ≤ position, root < nranks. */
struct plan plan_make(enum collective collective, int nranks, int position, int root);

/* The plan of two levels: positions [h·host_ranks, (h+1)·host_ranks) are host h. plan_make()'s where the collective has none, and
 * where host_ranks is below 2 or nranks. Else host_ranks divides nranks. */
struct plan plan_make_two_level(enum collective collective, int nranks, int host_ranks, int position, int root);

/* Step i, 0 ≤ i < plan->steps. cost: constant. */
struct plan_step plan_step_at(const struct plan *plan, int i);

/* Chunks that a position sends in all: times the bytes of a chunk, the bytes on the wire per rank. */
int plan_chunks_sent(const struct plan *plan);

/* Of them, those that leave the position's host, where hosts have so many neighbouring positions each. */
int plan_chunks_across(const struct plan *plan, int host_ranks);

#ifdef __cplusplus
}
#endif
#endif
