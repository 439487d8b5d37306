/* ops_profile: a table of operations that times and counts what it passes on to a device's table:
 * put between model and table where somebody asks, so that whoever is not asked pays nothing.
 *
 *   model ──► ops_profile.table.linear_forward ──► begin "qkv forward"
 *                                                  ops->linear_forward     (the device's)
 *                                                  end, with FLOPs and bytes
 *
 * FLOPs are those of matrix products alone, as the model's mathematics has them, 2·m·n·k each;
 * attention's without regard to the mask, and without what an operation computes again for itself
 * (probabilities, logits). So a forward and its backward without recomputation have
 * model_flops_per_token() but for 6 FLOPs a token and element of what no product has: norms,
 * biases, positions.
 * Bytes are of what an operation reads and writes, each tensor once.
 *
 * Which linear layer is meant, its weight's place in the unit tells.
 */
#ifndef MODEL_OPS_PROFILE_H
#define MODEL_OPS_PROFILE_H

#include "model/hooks.h"
#include "model/ops.h"
#include "model/params.h"
#include "verbs/profile.h"

struct ops_profile {
    struct model_ops table;      /* this one */
    const struct model_ops *ops; /* the device's */
    struct profile *profile;
    const struct params *params;
    int unit;            /* in use */
    const char *weights; /* where it has them, from element `begin` on; NULL: not needed */
    size_t begin;
};

/* profile and params outlive it; *own is to stay where it is. */
void ops_profile_open(struct ops_profile *own, const struct model_ops *ops,
    const struct params *params, struct profile *profile);

/* A use of a unit, around all that the model does with it; own NULL: nobody asks. */
void ops_profile_enter(int unit, enum unit_use use, struct ops_profile *own);
void ops_profile_weights(const void *weights, size_t begin, struct ops_profile *own);
void ops_profile_leave(struct ops_profile *own);

#endif
