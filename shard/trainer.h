/* trainer: what the parts of train() share: the loop (trainer.c), validation, sampling,
 * checkpoints.
 */
#ifndef SHARD_TRAINER_H
#define SHARD_TRAINER_H

#include "model/gpt2.h"
#include "model/tokens.h"
#include "shard/agree.h"
#include "shard/shard.h"
#include "shard/stage.h"

struct trainer {
    struct train_config config; /* seq, stop_at and model.vocab resolved */
    const struct train_observer *observer;
    struct ring_comm *comm;             /* all ranks */
    struct ring_comm *group, *replicas; /* parts of it; NULL where all ranks are one shard group */
    struct bootstrap *bootstrap;
    struct device *device;
    int rank, nranks;

    struct tokens *tokens;
    struct params params;
    struct layout layout; /* of a shard group */
    struct stage *stage;
    struct gpt2_run run;
    struct activation_config carries;
    struct activation *activations; /* NULL where the model keeps them */
    struct gpt2 *model;
    int32_t *inputs, *targets; /* (accumulate, batch, seq) of the step in hand */
    double *gathered;          /* [2·nranks] */

    uint64_t step;      /* steps done, of the whole run */
    uint64_t adam_t;    /* updates done: without skipped steps */
    uint64_t sequences; /* trained on by all ranks together: where the data goes on */
    struct loss_scale scale;
    struct ledger_events events;
    struct ledger_traffic start; /* before the first event */
};

/* trainer_open.c: everything that a run needs, from config, comm, bootstrap and device; a checkpoint is
 * loaded if one is to be resumed. trainer_close() accepts what a failed open has left. collective. */
MUST_CHECK enum status trainer_open(struct trainer *trainer);
void trainer_close(struct trainer *trainer);

/* trainer.c: before a forward, which its backward follows if `backward`; last: the step's. */
MUST_CHECK enum status trainer_begin_pass(bool backward, bool last, struct trainer *trainer);

/* True where float16 gradients make the dynamic loss scale necessary. */
bool train_config_scales(const struct train_config *config);

/* Resolves shard_group: 0 becomes all ranks. errors: INVALID when it does not divide them. */
MUST_CHECK enum status train_config_group(struct train_config *config, int nranks);

/* How rank `rank` of nranks shards and runs the model of a configuration in which seq and shard_group (as
 * layout->nranks) are resolved. The stage still lacks communicators and device. Pure: also for predictions. */
struct stage_config train_stage_config(const struct train_config *config,
    const struct params *params, const struct layout *layout, int nranks, int rank);
struct gpt2_run train_gpt2_run(const struct train_config *config);
/* The store of that run's checkpoints. device: NULL: the host. */
struct activation_config train_activation_config(const struct train_config *config,
    const struct params *params, const struct gpt2_run *run, struct device *device);

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
/* Returns their number. */
int train_values(
    struct train_value values[TRAIN_VALUES_MOST], const struct train_config *config, int nranks);

/* validation.c: the mean loss over the validation split, or over at most `batches` of its batches
 * (0: all), in nats per token. collective. */
MUST_CHECK enum status trainer_validate(double *loss, size_t batches, struct trainer *trainer);

/* sample.c: continues the prompt and tells the observer. collective: every rank draws the same
 * tokens. */
MUST_CHECK enum status trainer_sample(struct trainer *trainer);

#endif
