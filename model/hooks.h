/* hooks: all that the model asks of whoever runs it: where a unit's weights are, where its
 * gradients go, and what happens to activations between forward and backward. The model knows
 * tensors and these calls; who else computes is not its business.
 *
 * A unit is a group of parameters used together, numbered in order of use (params.h). In one step
 * the calls are
 *
 *   forward    per use of a unit:   enter(u, FORWARD)   …  leave(u, FORWARD)
 *              per block:           act_save(block, x)      once its input is complete
 *   backward   per use of a unit:   enter(u, BACKWARD)  …  grad_ready(u)  leave(u, BACKWARD)
 *              per block:           act_load(block, x)      before its backward
 *
 * A unit may be entered several times in a step: the tied embedding's rows are used at both ends of
 * the model, so they are entered for the input, for the head's forward and for the head's backward,
 * and their gradient becomes ready in two parts (the head's first, the input's last). Uses never
 * nest: a unit is left before the next is entered. Units without elements are not entered. The order
 * of calls is the same in every step and on every rank that holds the same part of the model. Where
 * blocks are computed again (model_run.recompute), that happens within the one BACKWARD use of the
 * block, after act_load().
 *
 * Where a model's operations are queued on a stream (model_run.stream), calls come when the model
 * queues, not when it computes. Whoever is called lets that stream wait for what is lent, and lets
 * what looks at a result, or lends the same memory again, wait for that stream: by events, so that
 * the caller goes on. x is then memory of the model's device, and x's elements are of the dtype that
 * the device computes in.
 */
#ifndef MODEL_HOOKS_H
#define MODEL_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#include "verbs/device.h"
#include "verbs/status.h"

enum unit_use {
    UNIT_FORWARD,      /* weights are read */
    UNIT_BACKWARD,     /* weights are read, gradients are added to */
    UNIT_BACKWARD_GRAD /* gradients are added to; weights are not needed (embedding of the input):
                          view.weights may be empty */
};

/* What enter() lends until leave(): the unit's parameters, contiguous, in the order and shapes of
 * params.h. Elements are of model_run.weights and model_run.gradients; the spans have exactly the
 * unit's elements · dtype_bytes. */
struct unit_view {
    struct span weights;
    struct span gradients; /* backward only. The model adds (+=) this use's part; it never clears
                              what is there */
    bool first; /* gradients stand for zeros, whatever is there: the model writes (=) this use's
                   part, all elements, with the bits of what is added to zeros */
};

/* Three groups, each with a context of its own that is passed through: units, activations, tensors.
 * So whoever lends units, whoever carries activations and whoever shares tensors need not know of
 * each other. Every function may be NULL unless marked required; a NULL one means what "default"
 * says. */
struct model_hooks {
    void *context; /* of enter, leave and grad_ready */

    /* Lends the unit. Must be fast or overlap; may wait for a gather. required */
    enum status (*enter)(void *context, struct unit_view *view, int unit, enum unit_use use);

    /* The views of this use are no longer looked at. default: nothing */
    enum status (*leave)(void *context, int unit, enum unit_use use);

    /* This use's part of the unit's gradient is complete in view.gradients, which the model will
     * not touch again until the next enter(). Comes before leave(). default: nothing */
    enum status (*grad_ready)(void *context, int unit);

    void *activations; /* the context of act_save and act_load */

    /* The input of a block, B·T·C elements, is complete: keep it, cut it, or carry it away. Of which
     * pass it is, where several wait for their backward (model_pass), the caller of the passes knows.
     * With recompute the model has two buffers for x and takes turns: x stays untouched until
     * act_save() of the next block has returned, and no longer, so a copy may run beside one block.
     * Without recompute x has a place of its own until act_load(). Together with act_load(), or
     * neither.
     * default: x stays where it is; with recompute the model holds all of them under
     * MEMORY_CHECKPOINTS */
    enum status (*act_save)(void *activations, int block, struct span x);

    /* Brings the same elements back into x, the buffer of act_save(), before the block's backward;
     * on return they are there. The last block's comes first. With recompute the model then leaves
     * the other buffer alone until act_load() of the block before: that block's input may be put
     * there meanwhile. default: they are still there */
    enum status (*act_load)(void *activations, int block, struct span x);

    void *tensor; /* the context of the next four */

    /* Tensor parallelism: element-wise sum and maximum of x over the ranks that share this model's
     * tensors, in place: count elements, float32 or of the dtype that the device computes in.
     * default: one rank, so the identity */
    enum status (*sum)(void *tensor, struct span x, size_t count);
    enum status (*max)(void *tensor, struct span x, size_t count);

    /* The same where x is cut by rows (model_run.cut_rows; rows.h): of `rows` rows each rank has its
     * share (params_slice()), which may be none. Elements are of the dtype that the device computes
     * in; own is either these rows of whole, in place, or memory beside it.
     *   scatter_sum   own = this rank's rows of the element-wise sum over the ranks of whole, which
     *                 may be anything afterwards
     *   gather        whole = the rows of all ranks
     * Both or neither. default: one rank has all rows, and neither is called */
    enum status (*scatter_sum)(void *tensor, struct span own, struct span whole, size_t rows);
    enum status (*gather)(void *tensor, struct span whole, struct span own, size_t rows);
};

#endif
