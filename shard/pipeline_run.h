/* pipeline_run: passes of a part of the model between its neighbours in a pipeline: the input comes
 * from the stage before, the output goes to the stage behind, gradients the other way.
 *
 *   stage s     caller's thread                       onward stream      back stream
 *   forward m   wait for the input                    recv x₀ from s−1   recv dx′ of the next backward
 *               forward                                                  from s+1, ahead of time
 *               (goes on)                             send x′ to s+1
 *   backward k  wait for dx′, if there is none yet
 *               backward
 *               (goes on)                                                send dx to s−1
 *
 * Each direction has a communicator and a stream of its own: in one queue for both, two neighbours
 * that each wait to send would block one another (tests/shard_pipeline_test.c). Tensors are sent from
 * and received into the model's own memory; what is on its way waits in the ring's slots, at the
 * receiver. Where the device computes on a stream, it and the two wait for each other by events.
 *
 * Invariant I5: a neighbour that is gone is an error of one of the streams, told by
 * pipeline_synchronize() at the end of a step at the latest; until then numbers are undefined.
 */
#ifndef SHARD_PIPELINE_RUN_H
#define SHARD_PIPELINE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"
#include "ring/ring.h"
#include "verbs/device.h"

#define PIPELINE_WAITS "wait in a pipeline"

struct pipeline_config {
    int stage, stage_count;
    struct ring_comm *onward,
        *back;              /* of the pipeline's stages, as ranks; NULL where there is one */
    struct model *model;    /* this stage's part. It, device and streams outlive the run */
    bool carried;           /* its hooks carry inputs of blocks away (model_run.carried) */
    enum dtype dtype;       /* of activations: model_activation_dtype() */
    struct stream *compute; /* the model's; NULL where the caller's thread computes */
    struct device *device;
    struct profile *profile; /* of what computes; NULL: nobody asks */
    struct profile *waits;   /* of how long neighbours keep it waiting, in this row; NULL: the same */
};

struct pipeline_run;

/* errors: SYSTEM, CUDA. close accepts NULL, and waits for what is queued. Not collective. */
MUST_CHECK enum status pipeline_open(
    struct pipeline_run **run, const struct pipeline_config *config);
void pipeline_close(struct pipeline_run *run);

/* model_forward_pass() and model_backward_pass(), once the input has come; the output then goes on its
 * way. backward_follows: the next pass of this stage is a backward. All stages do the passes of the
 * same micro-batches, in an order that pipeline.h gives. Of one stage: nothing but the pass.
 * errors: as those; the ring's. */
MUST_CHECK enum status pipeline_forward(
    const struct model_pass *pass, bool backward_follows, struct pipeline_run *run);
MUST_CHECK enum status pipeline_backward(
    float scale, const struct model_pass *pass, struct pipeline_run *run);

/* Waits until all that was queued has passed. errors: of what was sent and received. */
MUST_CHECK enum status pipeline_synchronize(struct pipeline_run *run);

/* For how long the caller's thread was blocked: grows. */
uint64_t pipeline_wait_ns(const struct pipeline_run *run);

/* Adds what passes of so many rows (Σ batch · t) make a stage send, forward and backward. Pure. */
void pipeline_predict_sent(uint64_t sent[COLLECTIVE_COUNT], uint64_t forward_rows,
    uint64_t backward_rows, int channels, const struct pipeline_config *config);

#endif
