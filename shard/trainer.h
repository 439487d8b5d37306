/* trainer: what the parts of train() share: the loop (trainer.c), validation, sampling,
 * checkpoints.
 */
#ifndef SHARD_TRAINER_H
#define SHARD_TRAINER_H

#include "model/choices.h"
#include "model/model.h"
#include "model/tokens.h"
#include "shard/agree.h"
#include "shard/pipeline_run.h"
#include "shard/shard.h"
#include "shard/stage.h"
#include "shard/tensor.h"

struct trainer {
    struct train_config config; /* seq, stop_at and model.vocab resolved */
    const struct train_observer *observer;
    struct ring_comm *comm; /* all ranks */
    struct grid grid;       /* where this one stands among them, and parts of them */
    struct bootstrap *bootstrap;
    struct device *device;
    int rank, nranks;

    struct tokens *tokens;
    struct params params;
    struct layout layout; /* of a shard group */
    struct tensor_group *tensor; /* NULL where no tensor is shared */
    struct stage *stage;
    struct model_run run;
    struct activation_config carries;
    struct activation *activations; /* NULL where the model keeps them */
    struct model *model;
    struct pipeline_place place; /* of a step's passes */
    struct pipeline_run *pipeline;
    uint64_t passes_ns, passes_wait_ns; /* from first forwards to norms: the time, and of it blocked */
    int32_t *inputs, *targets; /* (accumulate, batch, seq) of the step in hand */
    struct choices *choices;   /* of config.hellaswag; NULL: none */
    double *choice_losses;     /* of a block's rows */
    double *gathered;          /* [2·nranks]; see grid_sum_over_data() */

    uint64_t step;      /* steps done, of the whole run */
    uint64_t adam_t;    /* updates done: without skipped steps */
    uint64_t sequences; /* trained on by all ranks together: where the data goes on */
    struct loss_scale scale;
    struct ledger_events events;
    struct ledger_traffic start; /* before the first event */
    struct profile *profile, *ring_profile; /* NULL: nobody asks */
    struct profile *waits; /* how long a device waits in a pipeline; NULL, or not started: elsewhere */
};

/* trainer_open.c: everything that a run needs, from config, comm, bootstrap and device; a checkpoint is
 * loaded if one is to be resumed. trainer_close() accepts what a failed open has left. collective. */
MUST_CHECK enum status trainer_open(struct trainer *trainer);
void trainer_close(struct trainer *trainer);

/* observe.c: where the time goes, for who asks: profile and ring_profile. open comes before what is
 * looked at, start when all of it is open, begin_step and end_step around every step, tell at the
 * end. collective. */
MUST_CHECK enum status observe_open(struct trainer *trainer);
MUST_CHECK enum status observe_start(struct trainer *trainer);
MUST_CHECK enum status observe_begin_step(struct trainer *trainer);
MUST_CHECK enum status observe_end_step(struct trainer *trainer);
MUST_CHECK enum status observe_tell(struct trainer *trainer);
/* What is no step: one row of each profile, which does not look into it. */
void observe_begin_beside(const char *name, struct trainer *trainer);
void observe_end_beside(struct trainer *trainer);
/* Adds how long the device's stream waited, in steps: for neighbours, and at their ends for the norm. */
MUST_CHECK enum status observe_waits(uint64_t *ns, struct trainer *trainer);
void observe_close(struct trainer *trainer);

/* Waits for what neighbours, and ranks that share tensors, still have to do. */
MUST_CHECK enum status trainer_settle_passes(struct trainer *trainer);

/* passes.c: forwards and backwards of a step's micro-batches. *valid: targets of the global batch.
 * Once the stage's stream has passed, trainer->gathered holds every rank's sum of losses.
 * collective. */
MUST_CHECK enum status trainer_run_passes(double *valid, struct trainer *trainer);
/* The forward of one pass alone, in slot 0; model_loss() or model_logits() may follow where the head
 * is. collective. */
MUST_CHECK enum status trainer_forward(const struct model_pass *pass, struct trainer *trainer);
/* Whether this rank's part of the model has the head: the others know neither losses nor logits. */
bool trainer_has_head(const struct trainer *trainer);

/* Of the global batch. */
static inline uint64_t trainer_sequences_per_batch(const struct trainer *trainer)
{
    return (uint64_t)trainer->grid.data_count * (uint64_t)trainer->config.batch;
}

/* True where float16 gradients make the dynamic loss scale necessary. */
bool train_config_scales(const struct train_config *config);

/* The place of a rank; resolves shard_group: 0 becomes all data ranks. errors: INVALID when tensor does not
 * divide the ranks, or shard_group the data ranks. */
MUST_CHECK enum status train_config_grid(
    struct grid *grid, struct train_config *config, int nranks, int rank);

/* How a rank of this grid shards and runs the model of a configuration in which seq and shard_group (as
 * layout->nranks) are resolved. The stage still lacks its device. Pure: also for predictions. */
struct stage_config train_stage_config(const struct train_config *config,
    const struct params *params, const struct layout *layout, const struct grid *grid);
struct pipeline_place train_place(const struct train_config *config, const struct grid *grid);
struct model_run train_model_run(const struct train_config *config, const struct grid *grid);
/* The pipeline of that run; it still lacks the model. device: NULL: the host. */
struct pipeline_config train_pipeline_config(
    const struct model_run *run, const struct grid *grid, struct device *device);
/* The store of that run's checkpoints; it still lacks the ring's stream. device: NULL: the host. */
struct activation_config train_activation_config(const struct train_config *config,
    const struct params *params, const struct model_run *run, const struct grid *grid,
    struct device *device);

/* Every number of the configuration that must agree on all ranks; those marked decide the bits of a
 * run. */
enum train_value_kind {
    VALUE_MODEL, /* another value is another model: its checkpoint cannot be loaded */
    VALUE_BITS,  /* another value gives other losses */
    VALUE_ORDER, /* another value gives the same losses, but all ranks need the same */
};
struct train_value {
    struct agree_value is;
    enum train_value_kind kind;
};
#define TRAIN_VALUES_MOST 64
/* Return their number. Those of a model come first. */
int train_model_values(
    struct train_value values[TRAIN_VALUES_MOST], const struct model_config *model);
int train_values(
    struct train_value values[TRAIN_VALUES_MOST], const struct train_config *config, int nranks);

/* validation.c: the mean loss over the validation split, or over at most `batches` of its batches
 * (0: all), in nats per token. collective. */
MUST_CHECK enum status trainer_validate(double *loss, size_t batches, struct trainer *trainer);

/* choose.c: config.hellaswag's score. collective. */
MUST_CHECK enum status trainer_choose(struct choices_score *score, struct trainer *trainer);

/* sample.c: continues the prompt and tells the observer. collective: every rank draws the same
 * tokens. */
MUST_CHECK enum status trainer_sample(struct trainer *trainer);

#endif
