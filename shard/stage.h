/* stage: what the trainer asks of a ZeRO stage. A stage decides what a rank keeps between uses of a
 * unit; who computes what, in which order, is the same in all of them (I3).
 *
 *              weights   gradients   optimizer      a unit's gradient is ready     a unit is updated
 *   stage 0    all       all         all            all-reduce
 *   stage 1    all       all         shard          reduce-scatter                 all-gather
 *   stage 2    all       shard       shard          reduce-scatter, free           all-gather
 *   stage 3    shard     shard       shard          reduce-scatter, free           (all-gather when it is used)
 *
 *   stage_begin_step            gradients are zero
 *   per micro-batch             stage_begin_passes(), stage_begin_backward(), and the model's hooks call
 *       enter                   lends weights and gradients
 *       grad_ready              queues the unit's reduction on the stream
 *   stage_join_ends             in a pipeline: both ends' parts of the embedding's gradient
 *   stage_norm                  waits until all reductions have passed
 *   stage_update
 *
 * All operations of the trainer on its communicators go through stage->stream, so their order is the
 * order of the main thread's calls, which is the same on all ranks. Where a device computes on a stream
 * too, the two wait for each other by events, and the main thread for neither until the norm:
 *
 *   compute   use of unit 5 … ┬ waits for its weights; use of unit 4 …
 *   ring                      └ reduce unit 5
 *
 * N ranks form a shard group, which together keeps one copy of what is sharded. A job may have several
 * groups (replicas of one another): sums are then made inside a group first, and each rank's own shard
 * is summed over the groups afterwards.
 */
#ifndef SHARD_STAGE_H
#define SHARD_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "model/hooks.h"
#include "model/uses.h"
#include "optim/adam.h"
#include "ring/ring.h"
#include "shard/bucket.h"
#include "shard/computing.h"
#include "shard/gather.h"
#include "shard/gradients.h"
#include "shard/grid.h"
#include "shard/layout.h"
#include "shard/pipeline.h"
#include "shard/update.h"

struct stage;

/* Of every unit: all N·S elements, or this rank's S. */
enum keep { KEEP_ALL, KEEP_SHARD };
struct stage_keeps {
    enum keep weights, gradients, optimizer;
};

/* What is kept of each parameter between steps, in the order that files have it. */
enum stage_state { STAGE_WEIGHTS, STAGE_M, STAGE_V, STAGE_STATE_COUNT };

/* Real elements [begin, begin + count) of a unit, and where this rank has them: float32, in memory of
 * whatever kind. With 16-bit weights, STAGE_WEIGHTS is the float32 master copy. */
struct stage_part {
    struct span values;
    size_t begin, count;
};

/* Implemented once per stage. All members are required. */
struct stage_ops {
    int number; /* 0 … 3 */
    struct stage_keeps keeps;

    /* The model's hooks (hooks.h); context is the stage. None needs to be told of leave(): whatever was
     * lent stays until the next enter(). */
    enum status (*enter)(void *context, struct unit_view *view, int unit, enum unit_use use);
    enum status (*grad_ready)(void *context, int unit);

    /* What this rank keeps of a unit's weights has its final value: queues what makes it so everywhere
     * that enter() lends it from. collective. */
    enum status (*publish)(struct stage *stage, int unit);
};

extern const struct stage_ops stage0_ops, stage1_ops, stage2_ops, stage3_ops;

/* NULL: no such stage. */
const struct stage_ops *stage_by_number(int number);

struct stage_config {
    const struct stage_ops *ops;
    const struct params *params; /* these outlive the stage */
    const struct layout *layout; /* of a shard group's ranks */
    const struct grid *grid;     /* not needed for predictions */
    struct ring_comm *world;     /* all ranks: scalars */
    struct ring_comm *group;     /* the shard group; the world itself where that is all ranks */
    struct ring_comm *replicas;  /* who keeps the same shard, one rank of each group; NULL: one group */
    struct ring_comm *ends;      /* the first and the last stage of a pipeline; NULL elsewhere */
    struct pipeline_place place; /* of the passes of a step; zeros: they come one by one */
    int rank;                    /* in the group; it has layout->nranks */
    int replica, replica_count;  /* which group, of how many */
    struct device *device;
    struct adam_config adam;
    enum dtype dtype;          /* of weights */
    enum dtype gradient_dtype; /* of gradients: held, accumulated and sent */
    enum dtype reduce_dtype;   /* in which 16-bit gradients are summed on the way */
    size_t bucket_bytes;
    bool overlap;                /* false: every operation is waited for where it is queued */
    bool unsharded_accumulation; /* gradients are kept whole; only the last micro-batch's pass reduces */
    bool broadcast_gather;       /* stage 3: a unit is gathered by its owners' broadcasts */
    bool offload_optimizer;      /* master weights and moments are in host memory, and AdamW there */
    bool stochastic_rounding;    /* bfloat16 weights are rounded by chance: adam.h */
    uint64_t seed;
    struct profile *profile;      /* of what computes; NULL: nobody asks */
    struct profile *ring_profile; /* of the ring's stream; the same */
};

struct stage {
    struct stage_config config;
    struct stage_keeps keeps;      /* the table's, or gradients all by unsharded_accumulation */
    struct stream *stream;         /* the ring's: see above */
    struct computing computing;    /* the model's and AdamW's; its stream, if any, is the stage's */
    struct adam_context adam;      /* operations on gradients and weights */
    struct span adam_scratch;      /* MEMORY_OPTIMIZER */
    struct span squares;           /* a double per parameter tensor, on the host */
    struct span weights;           /* of config.dtype, as much as keeps says */
    struct span gradients;         /* of config.gradient_dtype */
    struct span master, m, v;      /* float32; master is empty where weights are it themselves */
    struct update_pieces pieces;   /* of an offloaded optimizer */
    struct gradients lent;         /* gradient buffers */
    struct gather gather;          /* gathered units: stage 3 */
    struct event **published;      /* [unit_count], recorded after a unit's all-gather: stages 1, 2 */
    bool reduce;                   /* this pass's gradients are reduced */
    uint64_t t;                    /* of the step that made the weights; 0: none has */
};

/* Allocates, and sets the reduce dtype of group and replicas; master weights have the starting values of (params, seed), and lent weights none before
 * stage_publish(). stage_close() accepts NULL. errors: SYSTEM (memory, thread). Not collective. */
MUST_CHECK enum status stage_open(struct stage **stage, const struct stage_config *config);
void stage_close(struct stage *stage);

/* Copies elements [begin, begin + count) of the unit, all of them in the part, to or from host memory.
 * Nothing queued may touch them: see stage_settle(). */
MUST_CHECK enum status stage_read_part(float *to, const struct stage_part *part, size_t begin,
    size_t count, const struct stage *stage);
MUST_CHECK enum status stage_write_part(const struct stage_part *part, const float *from,
    size_t begin, size_t count, const struct stage *stage);

/* Makes what enter() lends from what stage_part() keeps: after opening, and after a checkpoint has been
 * read into the parts. t: that of the step which made them; 0: none. Synchronizes. collective. errors: the ring's. */
MUST_CHECK enum status stage_publish(struct stage *stage, uint64_t t);

/* The table for model_open(). */
struct model_hooks stage_hooks(struct stage *stage);

/* Gradients become zero, or will be written as if they were: gradients.h. */
MUST_CHECK enum status stage_begin_step(struct stage *stage);

/* The passes of a step follow, in the order of config.place; where that is no pipeline, the forward
 * and the backward of one micro-batch. backward false: one forward alone. */
void stage_begin_passes(struct stage *stage, bool backward);

/* A backward follows. last: of the step's last micro-batch, which is the one that reduces where
 * gradients are kept whole. */
void stage_begin_backward(struct stage *stage, bool last);

/* After a step's last reduction: where rows of the embedding are held by both ends of a pipeline,
 * queues the sum of their gradients, of what this rank keeps reduced. Both ends then make the same
 * update. collective over config.ends; nothing elsewhere. */
MUST_CHECK enum status stage_join_ends(struct stage *stage);

/* Waits until everything queued on the ring's stream has passed; counts the time. errors: those of the operations
 * queued. */
MUST_CHECK enum status stage_synchronize(struct stage *stage);
/* The same for what is computed too. */
MUST_CHECK enum status stage_settle(struct stage *stage);

/* Queues an all-gather of `count` doubles of every rank of `comm`, in place: the caller's are at all +
 * rank·count. `all` must live until stage_synchronize(). collective over comm. */
MUST_CHECK enum status stage_gather(
    double *all, size_t count, struct ring_comm *comm, struct stage *stage);

/* The norm of the whole gradient: √ Σ over ranks of the first shard groups, in rank order, of the sum of
 * squares of what each owns, unit by unit, in double; of tensors that several parts of the model hold, the
 * one that stands for all (params.h). So its bits are the same on all ranks and in all stages
 * (I3). Not finite if any gradient is not. Synchronizes. collective. */
MUST_CHECK enum status stage_norm(double *norm, struct stage *stage);

/* One update of the weights. */
struct stage_step {
    float lr;
    float gradient_scale; /* multiplies gradients first: clipping, and the loss scale's inverse */
    uint64_t t;           /* from 1 */
};

/* AdamW on what the optimizer keeps, unit after unit, each published once it is done. Afterwards enter()
 * lends the new weights. collective. */
MUST_CHECK enum status stage_update(struct stage *stage, const struct stage_step *step);

/* What this rank keeps of a unit: at least what it owns. Only between steps. */
struct stage_part stage_part(const struct stage *stage, int unit, enum stage_state state);

/* ---- predictions: pure, for ranks and models of any size; config's communicators may be NULL ---- */

/* The moments at which a stage sends. */
enum stage_moment {
    MOMENT_FORWARD, /* a forward alone */
    MOMENT_TRAIN,   /* the passes of a stage_begin_passes() with backward, without reductions */
    MOMENT_REDUCE,  /* the gradients of one backward */
    MOMENT_STEP,    /* every step's stage_join_ends() */
    MOMENT_UPDATE,  /* also stage_publish() */
    MOMENT_COUNT
};

struct stage_prediction {
    uint64_t held_bytes[MEMORY_TAG_COUNT]; /* weights, gradients, optimizer, offloaded, gathered */
    uint64_t sent_bytes[MOMENT_COUNT][COLLECTIVE_COUNT]; /* by this rank */
};

void stage_predict(struct stage_prediction *prediction, const struct stage_config *config);

/* The held bytes alone: quick, whatever the number of ranks. Other tags stay as they are. */
void stage_predict_held(uint64_t held_bytes[MEMORY_TAG_COUNT], const struct stage_config *config);

/* In how many parts a unit's gradient is reduced: the tied embedding's has the head's and the input's,
 * which in a pipeline are of different stages. 0: the unit is not held here. */
int stage_gradient_parts(int unit, const struct stage_config *config);

/* The passes that come together: config->place, or those of one micro-batch. */
struct pipeline_place stage_place(const struct stage_config *config);

/* What a stage keeps under this configuration. */
struct stage_keeps stage_keeps(const struct stage_config *config);

/* ---- for stages ---- */

/* A unit's place in one of the stage's flat arrays, of elements of dtype: N·S of them, or S. */
struct span stage_unit(
    struct span flat, enum keep keep, enum dtype dtype, int unit, const struct stage *stage);

/* Of it, the real elements that this rank owns. */
struct span stage_owned(
    struct span flat, enum keep keep, enum dtype dtype, int unit, const struct stage *stage);

/* What the optimizer keeps of a unit, real elements, and a flat array there. */
struct layout_range stage_kept_range(int unit, const struct stage *stage);
struct span stage_kept(
    struct span flat, enum keep keep, enum dtype dtype, int unit, const struct stage *stage);

/* Whether the optimizer has float32 weights of its own. */
bool stage_has_master(const struct stage_config *config);

/* How units of the weights' dtype travel. */
struct bucket stage_bucket(const struct stage_config *config);

/* What is computed from now on comes after the event. Where the caller's thread computes it waits, and
 * the time is counted, in a profile as what is waited for. */
MUST_CHECK enum status stage_compute_waits(
    struct event *event, const char *what, struct stage *stage);
/* What the ring does from now on comes after what has been computed so far. */
MUST_CHECK enum status stage_ring_waits(struct stage *stage);

/* What is queued on the ring's stream between the two is one span of its profile, of a unit. */
enum stage_work { STAGE_GATHER, STAGE_REDUCE };
void stage_ring_begin(enum stage_work work, int unit, struct stage *stage);
void stage_ring_end(size_t bytes, struct stage *stage);

/* The real elements of a unit's weights, kept whole. */
struct span stage_whole_weights(int unit, const struct stage *stage);

/* Queues the all-gather of a unit's weights, kept whole, from the ranks' own shards. */
MUST_CHECK enum status stage_all_gather_weights(int unit, struct stage *stage);
/* What is computed from now on comes after that one. */
MUST_CHECK enum status stage_await_weights(int unit, struct stage *stage);

#endif
