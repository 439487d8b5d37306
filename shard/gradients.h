/* gradients: where a unit's gradient is added up until it is reduced.
 *
 * Kept whole (stages 0 and 1), a unit's gradient has a place of its own. Kept as a shard (2 and 3), it is
 * lent one of two buffers, which are used in turn: while the stream reduces one, backward fills the other.
 *
 *   backward   unit 5 into A    unit 4 into B      unit 3 into A (waits for A's event)   …
 *   stream                      reduce A, add to   reduce B, add to
 *                               shard 5: A free    shard 4: B free
 *
 * The tied embedding's gradient becomes ready in two parts, the head's first, the input's last (hooks.h).
 * In the pass that reduces, the input's part always takes a buffer, and is added to what the head's part
 * has become: so the sums are the same in all stages (I3).
 */
#ifndef SHARD_GRADIENTS_H
#define SHARD_GRADIENTS_H

#include <stdbool.h>

#include "model/hooks.h"
#include "ring/plan.h"
#include "shard/temporary.h"
#include "verbs/device.h"

struct stage;
struct stage_config;

struct gradients {
    bool *begun;           /* [unit_count]: kept whole, it has a part of this step; else what is there is
                            * of the step before */
    struct temporary pair; /* passed: the stream is done with the buffer */
    int turn;              /* which of the two is lent next */
    bool lent;             /* between lend and reduce, a buffer and not the unit's own place */
};

/* errors: SYSTEM. close accepts half-open objects. */
MUST_CHECK enum status gradients_open(struct stage *stage);
void gradients_close(struct stage *stage);

/* A step begins: kept shards become zero; what is kept whole, and buffers, are written by whoever is
 * the first to be lent them, so that no pass goes over them to clear them. */
MUST_CHECK enum status gradients_begin_step(struct stage *stage);

/* Lends what backward adds to; real elements only. May wait for a buffer. */
MUST_CHECK enum status gradients_lend(
    struct unit_view *view, int unit, enum unit_use use, struct stage *stage);

/* Queues the reduction of what was lent, by all-reduce (everything is kept everywhere) or reduce-scatter;
 * nothing happens in a pass that does not reduce. collective. */
MUST_CHECK enum status gradients_all_reduce(int unit, struct stage *stage);
MUST_CHECK enum status gradients_reduce_scatter(int unit, struct stage *stage);

/* Adds what stage_join_ends() makes this rank send. Pure. */
void ends_predict_sent(uint64_t sent[COLLECTIVE_COUNT], const struct stage_config *config);

/* Σ x² of what this rank owns of a unit's reduced gradient, of tensors that it stands for, added up in
 * stage->squares, which are zero before: once what is queued has been computed. Returns their number. */
size_t gradients_owned_squares(int unit, const struct stage *stage);

#endif
