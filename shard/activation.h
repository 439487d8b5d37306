/* activation: what becomes of the inputs of blocks (checkpoints) from forward to backward. Behind
 * the model's hooks act_save() and act_load().
 *
 * The M ranks of a tensor group all hold the same input x of a block, B·T·C elements. With P_a each
 * keeps one part of it, about 1/M, and they put x together again before the block's backward; with
 * P_a+cpu the parts wait in host memory, and the device holds none.
 *
 *   M = 2          rank 0              rank 1
 *   act_save       x = [a b] keeps a   x = [a b] keeps b      a copy of 1/M of x
 *   act_load       x = [a ·]           x = [· b]
 *                  x = [a b]           x = [a b]              all-gather: (M−1)/M of x is sent
 *
 * The parts of all blocks lie in one arena, a place per block and pass. Where overlap is on, the
 * next block's input is fetched while this one is computed: into the model's other buffer, which is
 * free then (hooks.h). A copy to or from host memory has a stream of its own, and takes turns in
 * the same two buffers: nothing is held for the way.
 *
 *   compute   block 5 again, backward ·········· block 4 again, backward ··
 *   ring      gather x₄ ▸ sums of block 5 ······ gather x₃ ▸ sums of block 4
 *   copy      x₃'s part ▸                        x₂'s part ▸                     (P_a+cpu)
 *
 * Invariants: x comes back with the bits that it had (I3); what is held and sent is predicted (I4);
 * nothing is allocated after opening (I6). A pass without a backward keeps nothing.
 */
#ifndef SHARD_ACTIVATION_H
#define SHARD_ACTIVATION_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/ring.h"
#include "verbs/device.h"
#include "verbs/dtype.h"

/* What is kept of a block's activations. Whatever it is, the bits of a run are the same. */
enum activation_keep {
    ACTIVATION_ALL,      /* all that backward needs. Below, the input; the rest is computed again */
    ACTIVATION_INPUT,    /* the model has it, whole */
    ACTIVATION_PART,     /* P_a: this rank's part of it */
    ACTIVATION_OFFLOADED /* P_a+cpu: the same, in host memory */
};
/* "none", "full", "partitioned", "offload": the words of --checkpoint-activations. */
const char *activation_keep_name(enum activation_keep keep);
/* Whether blocks are computed again in backward; whether a store carries their inputs. */
bool activation_recomputes(enum activation_keep keep);
bool activation_is_carried(enum activation_keep keep);

struct activation_config {
    enum activation_keep keep;    /* a carried one */
    int first_block, block_count; /* that this rank computes */
    int pass_count;         /* forwards that may wait for their backward at the same time */
    size_t elements;        /* of x, at most */
    enum dtype dtype;       /* of x */
    int rank, nranks;       /* in the tensor group */
    bool overlap;           /* false: every operation is waited for where it is queued */
    struct ring_comm *comm; /* the tensor group's; NULL: one rank, and for predictions */
    struct stream *ring;    /* on which its operations are queued; NULL, where the caller's thread
                               computes: it gathers too, in act_load() */
    struct stream *compute; /* the model's; NULL where the caller's thread computes */
    struct device *device;
    struct profile *profile; /* of what computes; NULL: nobody asks */
};

struct activation;

/* Where no input is carried there is no store: the functions below but the hooks accept NULL and do
 * nothing then.
 *
 * Everything that config names outlives the store. close waits for all that is queued on the
 * streams, and so may come after a failure. errors: SYSTEM. Not collective. */
MUST_CHECK enum status activation_open(
    struct activation **store, const struct activation_config *config);
void activation_close(struct activation *store);

/* Before each forward and each backward: its number among those that wait, 0 … pass_count − 1.
 * backward: one will follow, with the same number. Passes take turns as micro-batches do; one is
 * computed at a time. */
MUST_CHECK enum status activation_begin_forward(int pass, bool backward, struct activation *store);
void activation_begin_backward(int pass, struct activation *store);

/* The hooks; context is the store. x: elements of config.dtype, config.elements or fewer.
 * act_load() is collective over the group, blocks in falling order. errors: the ring's. */
enum status activation_save(void *context, int block, struct span x);
enum status activation_load(void *context, int block, struct span x);

/* Waits for copies to and from host memory, and reports the first that failed. */
MUST_CHECK enum status activation_synchronize(struct activation *store);

/* For how long the caller's thread was blocked: grows. */
uint64_t activation_wait_ns(const struct activation *store);

/* Bytes of the arena, and which memory they are of. Pure. */
uint64_t activation_predict_bytes(const struct activation_config *config);
enum memory_tag activation_tag(const struct activation_config *config);
/* Adds what one backward of `elements` makes this rank send. Pure. */
void activation_predict_sent(
    uint64_t sent[COLLECTIVE_COUNT], size_t elements, const struct activation_config *config);
/* The paper's count of the same: b·s·h elements a block, times (M−1)/M. Pure. */
double activation_paper_bytes(const struct activation_config *config);

#endif
