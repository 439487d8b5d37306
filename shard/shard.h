/* shard: training a GPT-2 on many ranks. The one call, its configuration, and what it tells while
 * it runs.
 *
 *     struct train_config config = train_config_default();
 *     TRY(model_preset(&config.model, "nano"));
 *     config.data = "bible.txt";
 *     TRY(train_config_check(&config));
 *     TRY(train(&config, &observer, comm, bootstrap, device));
 *
 * The loss is the mean over the valid tokens of the global batch: of all ranks and all
 * micro-batches of a step.
 * Invariants: I1 (all ranks hold the same weights), I3 (the same bits in all stages, and whatever
 * bucket_bytes, overlap, activations, broadcast_gather and offload_optimizer), I4 (the ledger), I5.
 */
#ifndef SHARD_SHARD_H
#define SHARD_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/choices.h"
#include "model/params.h"
#include "optim/adam.h"
#include "optim/loss_scale.h"
#include "ring/ring.h"
#include "shard/activation.h"
#include "shard/ledger.h"
#include "verbs/profile.h"

struct train_config {
    int stage;                /* 0 … 3: stage.h */
    int tensor;               /* M: ranks that share every tensor (grid.h) */
    bool sequence_parallel;   /* tensor ranks each hold their rows of x and of norms (model/rows.h) */
    int pipeline;             /* P: stages that share the blocks (pipeline.h) */
    int shard_group;          /* data ranks that keep one copy of what is sharded; 0: all. Divides them */
    struct model_config model; /* vocab: at most; text makes it 256 */
    const char *data;         /* file or glob (tokens.h) */
    const char *validation;   /* NULL: the last tenth of data */
    int batch;                /* sequences per data rank and micro-batch */
    int seq;                  /* T: tokens per sequence; 0: the model's max_t */
    int accumulate;           /* micro-batches per step */
    uint64_t steps;           /* of the whole run: shapes the schedule */
    uint64_t stop_at;         /* stop after this step, as if interrupted; 0: after `steps` */
    float lr, final_fraction; /* schedule.h */
    uint64_t warmup;          /* steps */
    float clip;               /* largest gradient norm; 0: not clipped */
    struct adam_config adam;
    uint64_t seed;              /* of weights, order of data and sample; below 2^53 */
    uint64_t validate_every;    /* steps; 0: only at the end */
    size_t validate_batches;    /* at most, spread over the split; 0: all */
    size_t validate_last_batches; /* the same of the validation at the end */
    const char *hellaswag;     /* questions with endings (choices.h); NULL: none */
    uint64_t hellaswag_every;  /* steps; 0: only at the end */
    const char *checkpoint_dir; /* NULL: none. One is written at the end, … */
    uint64_t checkpoint_every;  /* … and every so many steps; 0: only at the end */
    const char *resume_dir; /* NULL: start from the seed. A checkpoint_dir, or a step-… in it */
    int sample_tokens;      /* 0: no sample at the end */
    const char *sample_prompt; /* text models only */
    float temperature;         /* of the sample; 0: the likeliest token */
    enum dtype dtype;          /* of weights: float32, or 16 bits with float32 master weights */
    bool stochastic_rounding;  /* of bfloat16 weights, to lend them: up or down by chance, by how near each is */
    enum dtype gradient_dtype; /* held, accumulated and sent: float32 or dtype */
    enum dtype reduce_dtype;   /* in which 16-bit gradients are summed on the way: float32 or theirs */
    struct loss_scale scale;   /* used with float16 gradients */
    enum activation_keep activations; /* activation checkpointing: activation.h */
    bool unsharded_accumulation; /* stages 2, 3: gradients are kept whole until a step's last reduction */
    bool broadcast_gather;     /* stage 3: units are gathered by broadcasts of their owners */
    bool offload_optimizer;    /* master weights and moments in host memory, and AdamW there */
    size_t bucket_bytes;       /* bucket.h */
    bool overlap;              /* reductions and gathers run beside computation */
    uint64_t memory_limit_bytes; /* that a rank may hold, of all tags together (device_limit()); 0: none */
    bool step_ledger;          /* reports have a ledger: each step then waits for its last operation */
    bool profile;              /* the observer is told where the time of the steps goes */
    uint64_t trace_first, trace_last; /* steps of which it is told what was done when, counted from
                                         the first that this call does: 1 ≤ first ≤ last; 0: none */
};

/* No data; the model is nano. */
struct train_config train_config_default(void);

/* What can be told before anything is allocated. errors: INVALID naming the field, the value and
 * what is expected. */
MUST_CHECK enum status train_config_check(const struct train_config *config);

/* What is about to run. */
struct train_start {
    const struct params *params;
    bool text; /* tokens are bytes */
    int nranks;
    int shard_group;          /* ranks that share what is sharded */
    struct grid grid;         /* this rank's place; without communicators */
    struct stage_keeps keeps; /* what of it a rank has */
    uint64_t held_bytes[MEMORY_TAG_COUNT]; /* predicted, of this rank; without what the ring holds */
    const char *transport;    /* to the next rank */
    uint64_t first_step;      /* 0, or what the checkpoint has done */
    uint64_t last_step;       /* that this call does */
    uint64_t tokens_per_step; /* of the global batch */
    uint64_t train_tokens, validation_tokens;
};

/* One step. All but the times are the same bits on every rank. */
struct train_report {
    uint64_t step; /* from 1 */
    double loss;   /* nats per token, before the update; 0 when no target was valid */
    double norm;   /* of the gradient, before clipping */
    float lr;
    double step_ms;
    double wait_ms;      /* of it, the main thread was blocked on the ring */
    double tokens_per_s; /* of all ranks together */
    bool skipped;        /* no update was made: a float16 gradient overflowed. norm is then not finite */
    double loss_scale;   /* of this step; 1 but for float16 */
    struct ledger_step ledger; /* with step_ledger: bytes held, and sent and received by it */
    bool validated;
    double validation_loss;
    bool chosen; /* a score of hellaswag */
    struct choices_score score;
    uint64_t choice_count; /* of questions */
};

/* How much of the steps' time, from the first forward to the norm, ranks had nothing to do: without
 * the first step where there are more. */
struct train_bubble {
    int stage_count, micro_count;
    double predicted; /* pipeline_bubble() */
    double measured;  /* mean over ranks of the share that the main thread was blocked, on neighbours and on
                         whoever reduces with it; on a device, that its stream waited for neighbours, and
                         from its last backward to the norm */
};

/* Where the time of the steps went, without the first where there are more: it opens edges and
 * touches memory. Bits and bytes are those of a run that nobody looks at. */
struct train_profile {
    uint64_t steps;
    const struct profile *compute; /* the rows of this rank: what computes, what it waited for, and
                                      beside the steps "validation" and "checkpoint"; "step" is what
                                      no other row has */
    const struct profile *ring;    /* what its ring did meanwhile, unit by unit */
    double model_flops;            /* of a step, of all ranks together: model_flops_per_token() */
};

/* Steps that are traced. */
#define TRAIN_COMMS_MOST 7
struct train_trace {
    bool over;                     /* false: they begin now, and nothing is on its way */
    uint64_t step;                 /* done before */
    const struct profile *compute; /* once they are over: their spans, of this rank's … */
    const struct profile *ring;    /* … computation and of its ring's stream */
    /* The communicators that the steps use, and what for: the same of each number on all ranks. NULL
     * where this rank has none, or has named it before. */
    int comm_count;
    struct ring_comm *comm[TRAIN_COMMS_MOST];
    const char *comm_name[TRAIN_COMMS_MOST];
};

/* Called on every rank, in the order of the calls of train(). Every function may be NULL. */
struct train_observer {
    void *context;
    void (*start)(void *context, const struct train_start *start);
    void (*step)(void *context, const struct train_report *report);
    void (*saved)(void *context, const char *directory, uint64_t step);
    /* prompt_count of the tokens were given, the rest is the model's. */
    void (*sample)(void *context, const int32_t *tokens, int count, int prompt_count, bool text);
    void (*bubble)(void *context, const struct train_bubble *bubble); /* of a pipeline only */
    void (*profile)(void *context, const struct train_profile *profile); /* if config asks */
    void (*trace)(void *context, const struct train_trace *trace);       /* the same */
    void (*ledger)(void *context, const struct ledger *ledger);
};

/* Trains. collective: the same config on every rank (compared). One call at a time per
 * communicator; queued operations are complete on return. errors: INVALID (as train_config_check();
 * ranks that disagree; a checkpoint of another model), DATA (data files, checkpoints; a gradient
 * that is not finite), SYSTEM, and the ring's. A failure on one rank is an error on every rank. */
MUST_CHECK enum status train(const struct train_config *config,
    const struct train_observer *observer, struct ring_comm *comm, struct bootstrap *bootstrap,
    struct device *device);

#endif
