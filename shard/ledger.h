/* ledger: every byte held and sent, measured beside predicted (I4).
 *
 * Held bytes are the peaks of the device's account (device.h), sent bytes those of the
 * communicators' counters (ring.h). The predictions come from the layout, the plan and how often
 * things were done; nothing measured goes into them.
 */
#ifndef SHARD_LEDGER_H
#define SHARD_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"
#include "ring/ring.h"
#include "shard/activation.h"
#include "shard/stage.h"
#include "verbs/bootstrap.h"

struct ledger_entry {
    char name[40];                /* "weights_held", …, "all_reduce_sent", … */
    uint64_t measured, predicted; /* bytes, of this rank */
    bool has_prediction;
};

/* What the ZeRO paper's formulas say of the whole run, in bytes that one rank sends: Ψ elements
 * reduce-scattered or gathered are Ψ(N−1)/N elements sent. It counts each parameter once; the tied
 * embedding, used at both ends of the model, is reduced in two parts and gathered (stage 3) more
 * often, and every unit is padded: what is sent is a little more. */
struct ledger_volume {
    double paper_psi;   /* a step of one micro-batch: 2, or 3 in stage 3 */
    double paper_bytes; /* the same for all steps */
    double done_psi;    /* a step as it was done: A+1 (stage 2) or 3A (stage 3), and validations */
    double done_bytes;  /* the same for all steps */
};

#define LEDGER_ENTRIES (MEMORY_TAG_COUNT + 2 * COLLECTIVE_COUNT + 3)
struct ledger {
    int count;
    struct ledger_entry entry[LEDGER_ENTRIES];
    uint64_t steps;
    uint64_t elements; /* Ψ; of a part of the model, those of the part */
    int data_count;    /* N of the formulas */
    double tensor_paper_bytes; /* the paper's count of tensor sums: tensor.h */
    double checkpoint_paper_bytes; /* and of P_a's gathers: activation.h */
    struct ledger_volume volume;
    bool ok; /* every entry that has a prediction equals it */

    /* Of all ranks, once they have compared: ledger_agree(). */
    int nranks, differing_ranks;
    int first_rank; /* that differs, if any does, and in what */
    struct ledger_entry first;
};

/* Bytes of one step, of this rank. */
struct ledger_step {
    uint64_t now[MEMORY_TAG_COUNT], peak[MEMORY_TAG_COUNT]; /* held */
    uint64_t sent[COLLECTIVE_COUNT], received[COLLECTIVE_COUNT];
    uint64_t predicted_sent[COLLECTIVE_COUNT];
    uint64_t tensor_sums, predicted_tensor_sums; /* of reductions': those of the tensor group */
};

/* How often the trainer did what it sends for. */
struct ledger_events {
    uint64_t steps;       /* each also gathers three scalars: valid tokens, loss, norm */
    uint64_t trains;      /* forward and backward: micro-batches */
    uint64_t reductions;  /* backwards whose gradients were reduced */
    uint64_t updates;     /* steps that were not skipped */
    uint64_t forwards;    /* without a backward */
    uint64_t validations; /* each gathers two scalars: loss, valid tokens; or a score */
    uint64_t tensor_sent[COLLECTIVE_COUNT]; /* predicted of these passes' tensor hooks: tensor.h */
    uint64_t pipeline_bytes;   /* and of what they sent to other stages: pipeline_run.h */
    uint64_t tokens_told;      /* of a sample, to the stages of a pipeline that do not know: one scalar */
};

/* What a rank's communicators have sent and received together since they were opened. */
struct ledger_traffic {
    uint64_t sent[COLLECTIVE_COUNT], received[COLLECTIVE_COUNT];
    uint64_t tensor[COLLECTIVE_COUNT]; /* of what was sent: by the tensor group */
};
struct ledger_traffic ledger_traffic(const struct grid *grid);

/* Of what a tensor group sends, or is predicted to: the sums. */
static inline uint64_t ledger_tensor_sums(const uint64_t sent[COLLECTIVE_COUNT])
{
    return sent[COLLECTIVE_ALL_REDUCE] + sent[COLLECTIVE_REDUCE_SCATTER];
}

/* The payload bytes that these events make this rank send, by collective. Pure. */
void ledger_predict(uint64_t sent[COLLECTIVE_COUNT], const struct ledger_events *events,
    const struct activation_config *carries, const struct stage_config *config);

/* The bytes that stage, model and store of checkpoints hold together, by tag, but for
 * communication's: how many edges a rank opens is the ring's to choose. memory: what the model is
 * opened with. Pure. */
void ledger_predict_held(uint64_t held[MEMORY_TAG_COUNT], const struct model_memory *memory,
    const struct activation_config *carries, const struct stage_config *config);

/* start: ledger_traffic() before the first event. memory: what the model was opened with. carries:
 * the store of checkpoints. device: the stage's and the model's, used for nothing else that is
 * tagged so. */
void ledger_read(struct ledger *ledger, const struct ledger_events *events,
    const struct ledger_traffic *start, const struct model_memory *memory,
    const struct activation_config *carries, const struct stage *stage);

/* Compares the ranks: fills in what the ledger says of all of them. collective over the bootstrap.
 * */
MUST_CHECK enum status ledger_agree(struct ledger *ledger, struct bootstrap *bootstrap);

/* What the formulas say of these events. Pure. */
struct ledger_volume ledger_volume(
    const struct ledger_events *events, const struct stage_config *config);

/* From the state before a step (traffic, events) to now. */
void ledger_read_step(struct ledger_step *step, const struct ledger_events *before,
    const struct ledger_events *now, const struct ledger_traffic *start,
    const struct activation_config *carries, const struct stage *stage);

#endif
