/* stage: what the trainer asks of a ZeRO stage. A stage decides what a rank keeps between uses of a
 * unit; who computes what, in which order, is the same in all of them (I3).
 *
 *   stage_begin_step            gradients are zero
 *   per micro-batch             stage->reduce: is it the step's last? The model's hooks then call
 *       enter                   lends weights and gradients
 *       grad_ready              queues the unit's reduction on the stream
 *   stage_norm                  waits until all reductions have passed
 *   update
 *
 * All operations of the trainer on its communicator go through stage->stream, so their order is the
 * order of the main thread's calls, which is the same on all ranks.
 *
 * The tied embedding's gradient becomes ready in two parts, the head's first, the input's last
 * (hooks.h). In the last micro-batch the head's part (and what earlier micro-batches left) is
 * reduced where it lies. The input's part is gathered in one of two buffers, which are used in
 * turn; the stream reduces it by itself and adds it to the first:
 *
 *   backward   head rows R−1 … 0   blocks, positions   rows 2 into A   rows 1 into B   rows 0 into A
 *   stream     reduce in place     reduce in place     reduce A, add   reduce B, add   …
 *                                                       then A is free: event
 */
#ifndef SHARD_STAGE_H
#define SHARD_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "model/hooks.h"
#include "optim/adam.h"
#include "ring/ring.h"
#include "shard/layout.h"

struct stage;

/* What is kept of each parameter between steps, in the order that files have it. */
enum stage_state { STAGE_WEIGHTS, STAGE_M, STAGE_V, STAGE_STATE_COUNT };

/* Real elements [begin, begin + count) of a unit, and where this rank has them. */
struct stage_part {
    float *values;
    size_t begin, count;
};

/* What a stage will hold and send, from the layout and the plan alone. */
struct stage_prediction {
    uint64_t held_bytes[MEMORY_TAG_COUNT];      /* weights, gradients and optimizer only */
    uint64_t step_sent_bytes[COLLECTIVE_COUNT]; /* by one step's gradients and weights, this rank */
};

/* Implemented once per stage. All members are required. */
struct stage_ops {
    int number; /* 0 … 3 */

    /* Allocates stage->weights, gradients, m and v as this stage keeps them, zeroed. On an error
     * close() frees. */
    enum status (*open)(struct stage *stage);
    void (*close)(struct stage *stage);

    /* The model's hooks (hooks.h); context is the stage. */
    enum status (*enter)(void *context, struct unit_view *view, int unit, enum unit_use use);
    enum status (*leave)(void *context, int unit, enum unit_use use);
    enum status (*grad_ready)(void *context, int unit);

    /* The reduced gradient of what this rank owns of a unit; valid from stage_synchronize() to
     * update(). */
    const float *(*owned_gradient)(const struct stage *stage, int unit);

    /* AdamW with this learning rate, gradients scaled by gradient_scale, t from 1. Afterwards the
     * next enter() lends the new weights. collective. */
    enum status (*update)(struct stage *stage, float lr, float gradient_scale, uint64_t t);

    /* What this rank keeps of a unit: at least what it owns. */
    struct stage_part (*part)(const struct stage *stage, int unit, enum stage_state state);

    void (*predict)(struct stage_prediction *prediction, const struct stage *stage);
};

extern const struct stage_ops stage0_ops;

/* NULL: no such stage in this build. */
const struct stage_ops *stage_by_number(int number);

struct stage_config {
    const struct stage_ops *ops;
    const struct params *params; /* these four outlive the stage */
    const struct layout *layout;
    struct ring_comm *comm;
    struct device *device;
    struct adam_config adam;
    size_t bucket_bytes;
    bool overlap; /* false: every reduction is waited for where it is queued */
    uint64_t seed;
};

struct stage {
    struct stage_config config;
    int rank, nranks;
    struct stream *stream;
    struct span weights, gradients, m, v; /* float32; how much of the layout: the stage's choice */
    struct span input_part[2];   /* MEMORY_COMMUNICATION; the largest embedding unit, padded */
    struct event *input_free[2]; /* recorded when the stream has added the buffer */
    int input_turn;              /* which of the two is lent next */
    bool input_lent;             /* between enter() and grad_ready() of an input part */
    bool reduce;                 /* set by the trainer: this micro-batch is the step's last */
    uint64_t wait_ns;            /* the main thread was blocked on the stream: grows */
};

/* Opens with the starting weights of (params, seed). The stage is freed by stage_close(), which
 * accepts NULL. errors: SYSTEM (memory, thread). Not collective. */
MUST_CHECK enum status stage_open(struct stage **stage, const struct stage_config *config);
void stage_close(struct stage *stage);

/* The table for gpt2_open(). */
struct model_hooks stage_hooks(struct stage *stage);

/* Gradients become zero. */
void stage_begin_step(struct stage *stage);

/* Waits until everything queued has passed; counts the time. errors: those of the operations
 * queued. */
MUST_CHECK enum status stage_synchronize(struct stage *stage);

/* Queues an all-gather of `count` doubles of every rank, in place: the caller's are at all +
 * rank·count. `all` must live until stage_synchronize(). collective. */
MUST_CHECK enum status stage_gather(double *all, size_t count, struct stage *stage);

/* The norm of the whole gradient: √ Σ over ranks, in rank order, of the sum of squares of what each
 * owns, unit by unit, in double. So its bits are the same on all ranks and in all stages (I3).
 * Synchronizes. collective. */
MUST_CHECK enum status stage_norm(double *norm, struct stage *stage);

/* ---- for stages ---- */

/* AdamW on elements [begin, begin + count) of a unit, tensor by tensor, since only matrices decay.
 * The four pointers are of element `begin`. */
void stage_adam(float *weights, float *m, float *v, const float *gradients, int unit, size_t begin,
    size_t count, float lr, float gradient_scale, uint64_t t, const struct stage *stage);

/* True when this use's gradient goes to a buffer of its own. */
bool stage_is_input_part(const struct stage *stage, int unit, enum unit_use use);
/* Lends the buffer whose turn it is, zeroed: N·S elements of the unit. May wait until it is
 * free. */
MUST_CHECK enum status stage_lend_input(struct span *buffer, int unit, struct stage *stage);
/* The buffer that was lent last, for grad_ready(). */
struct span stage_input(int unit, const struct stage *stage);
/* Queues: count elements of the buffer from offset on are added to `to`, then the buffer is free.
 * Ends grad_ready(). */
MUST_CHECK enum status stage_add_input(float *to, size_t offset, size_t count, struct stage *stage);

#endif
