/* forecast: what a run will hold and send, before any of it is allocated: the predictions of the
 * ledger, for ranks and models of any size, and the largest model and batch that fit a given
 * memory.
 *
 * Invariant I4: for a run that train() can do, every number equals the ledger's prediction, and so
 * what is measured. The one exception is communication: how many edges a rank opens is the ring's
 * to choose.
 *
 *   held   weights, gradients, optimizer, gathered   stage_predict_held()   shrink with N by stage
 *          activations, checkpoints, workspace       model_memory()          grow with the tokens
 *          communication                             about                  constant
 *   sent   a step: A micro-batches, one update       ledger_predict()
 */
#ifndef SHARD_FORECAST_H
#define SHARD_FORECAST_H

#include <stdint.h>

#include "shard/shard.h"

struct forecast_config {
    struct train_config train; /* of it what shapes memory and the wire; data need not be given */
    int nranks;
    int pipeline_stage;           /* whose ranks are asked about: 0 … P−1 */
    uint64_t communication_bytes; /* 0: forecast_communication_bytes() */
};

/* Units of one kind: what they cost on the wire in a step. */
enum forecast_part {
    FORECAST_EMBEDDING,
    FORECAST_POSITIONS,
    FORECAST_BLOCKS,
    FORECAST_FINAL_NORM,
    FORECAST_PART_COUNT
};
const char *forecast_part_name(enum forecast_part part);

struct forecast_wire {
    uint64_t units;
    uint64_t elements, padded; /* of all of them */
    uint64_t reductions;       /* unit by unit, added up: to their owners */
    uint64_t gathers;          /* from their owners; an all-reduce is both */
    uint64_t sent_bytes;
};

struct forecast {
    uint64_t elements;                     /* Ψ, of the whole model */
    uint64_t held_elements;                /* of the part that the ranks of a shard group have */
    uint64_t padded;                       /* Ψp: what the ranks of a shard group have together */
    uint64_t held_bytes[MEMORY_TAG_COUNT]; /* peaks, of any rank of the stage */
    uint64_t held_sum;
    uint64_t sent_bytes[COLLECTIVE_COUNT]; /* by the stage's first rank, in one step */
    uint64_t sent_sum;
    struct forecast_wire wire[FORECAST_PART_COUNT];
    uint64_t tensor_sum_bytes;     /* of sent_sum: sums over the tensor group */
    uint64_t tensor_gather_bytes;  /* of sent_sum: rows of x that it puts together again */
    double tensor_paper_bytes;     /* the paper's count of them: tensor.h */
    uint64_t checkpoint_bytes;     /* of sent_sum: checkpoints put together again (P_a) */
    double checkpoint_paper_bytes; /* the paper's count of them: activation.h */
    uint64_t pipeline_bytes;       /* of sent_sum: to other stages of the pipeline */
    uint64_t ends_bytes;           /* of sent_sum: the embedding's gradients between both ends */
    double bubble;                 /* pipeline_bubble() */
    uint64_t scalar_bytes;         /* of sent_sum: valid tokens, loss, norm */
    double formula_held;         /* the paper's: weights, gradients and optimizer without padding */
    struct ledger_volume volume; /* of a step, by the paper's formulas */
};

/* errors: INVALID (train_config_check(); the shard group does not divide the ranks; more bytes than
 * can be counted), SYSTEM (memory for the tables). cost: time in proportion to layers · ranks. */
MUST_CHECK enum status forecast_make(
    struct forecast *forecast, const struct forecast_config *config);

/* The stage of a pipeline whose ranks hold the most. errors: as forecast_make(). */
MUST_CHECK enum status forecast_fullest_stage(int *stage, const struct forecast_config *config);

/* The slots of the edges that a rank has on one host with the ring's defaults: from the previous
 * rank and, up to 16 ranks, small ones from everybody, in each communicator. Over tcp about twice
 * that. */
uint64_t forecast_communication_bytes(const struct grid *grid);

/* The largest number of layers, or sequences per micro-batch, that every rank can hold in
 * memory_bytes, the rest of the configuration as it is; 0 if not even 1 (a layer for each stage),
 * `most` if that many or more. errors: as forecast_make(). */
#define FORECAST_MOST_LAYERS 100000
#define FORECAST_MOST_BATCH  (1 << 20)
MUST_CHECK enum status forecast_largest_layers(
    int *layers, uint64_t memory_bytes, const struct forecast_config *config);
MUST_CHECK enum status forecast_largest_batch(
    int *batch, uint64_t memory_bytes, const struct forecast_config *config);

#endif
