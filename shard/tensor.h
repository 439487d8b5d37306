/* tensor: what tensor parallelism sends: the model's hooks sum(), max(), scatter_sum() and gather(),
 * by the ring of the tensor group.
 *
 *   compute   part of x ┬──────────────┬ x is whole …        part of x ┬────────────────┬ own rows …
 *   ring                └ all-reduce x ┘                               └ reduce-scatter ┘
 *
 * Invariant: where the group's M ranks divide the rows, a rank's rows are its chunk of the
 * all-reduce, so that the sum of own rows has the all-reduce's bits (I2).
 *
 * Everything on the group's communicator is queued by the main thread on one stream, the ring's, so
 * that it has the same order on all ranks; the store of checkpoints (activation.h) gathers there
 * too. On the host, where nothing else is queued, the caller's thread sums.
 */
#ifndef SHARD_TENSOR_H
#define SHARD_TENSOR_H

#include "model/model.h"
#include "model/uses.h"
#include "ring/ring.h"
#include "shard/grid.h"

struct tensor_config {
    const struct grid *grid;
    enum dtype dtype;       /* of activations */
    bool shared;            /* others queue on the ring's stream too */
    struct stream *compute; /* the model's; NULL where the caller's thread computes */
    struct device *device;
    struct profile *profile; /* of what computes; NULL: nobody asks */
};

struct tensor_group;

/* Where a grid has one tensor rank there is no group: *tensor is NULL, which the functions below
 * accept, and do nothing then. The grid outlives it. Sums are in the dtype of what is summed. close
 * waits for what is queued. errors: SYSTEM. Not collective. */
MUST_CHECK enum status tensor_open(
    struct tensor_group **tensor, const struct tensor_config *config);
void tensor_close(struct tensor_group *tensor);

/* The ring's stream; NULL on the host where it is not shared. */
struct stream *tensor_stream(const struct tensor_group *tensor);

/* Puts the group's hooks into the table: none where there is no group. Collective over it, in the
 * same order. errors: the ring's. */
void tensor_hooks(struct model_hooks *hooks, struct tensor_group *tensor);

/* Waits for what is queued on the ring's stream. errors: those of the operations. */
MUST_CHECK enum status tensor_synchronize(struct tensor_group *tensor);

/* For how long the caller's thread was blocked: grows. */
uint64_t tensor_wait_ns(const struct tensor_group *tensor);

/* Adds the bytes that the hooks of one pass make this rank send, `times` times; none with one tensor
 * rank. Pure. device: NULL: the host. */
void tensor_predict_sent(uint64_t sent[COLLECTIVE_COUNT], uint64_t times, enum pass_kind pass,
    int batch, int t, const struct params *params, const struct model_run *run,
    const struct grid *grid, struct device *device);

/* The paper's count of the same, of one training pass: 12·b·s·h elements a block with recomputation,
 * 8·b·s·h without, times (M−1)/M; embedding, head, and norms' outputs gathered again not counted. */
double tensor_paper_bytes(const struct params *params, const struct model_run *run,
    const struct grid *grid, struct device *device);

#endif
