/* pipeline: the order in which a stage of a pipeline works on a step's micro-batches: 1F1B.
 *
 * P stages hold the model's blocks, one after another; A micro-batches go through them. Stage s runs
 * min(P−1−s, A) forwards first, then takes turns, one forward, one backward, then does the backwards
 * that are left. P = 4, A = 6; f and b with the number of the micro-batch, backwards twice as long:
 *
 *   stage 0   f0 f1 f2 f3 .  .  .  .  .  .  .  .  b0 b0 f4 b1 b1 f5 b2 b2 .  b3 b3 .  …
 *   stage 1   .  f0 f1 f2 .  .  .  .  .  .  b0 b0 f3 b1 b1 f4 b2 b2 f5 …
 *   stage 2   .  .  f0 f1 .  .  .  .  b0 b0 f2 …
 *   stage 3   .  .  .  f0 b0 b0 f1 b1 b1 f2 …
 *
 * Forwards come in the order of the micro-batches, and so do backwards: sums of gradients have the
 * order of a run without a pipeline.
 * Invariant: at most min(P−s, A) micro-batches have been forward but not yet backward; a slot (where
 * their activations are) is taken by one of them at a time.
 *
 * source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training" (PipeDream-Flush).
 * Everything here is pure: pipeline_run.h executes it.
 */
#ifndef SHARD_PIPELINE_H
#define SHARD_PIPELINE_H

/* One stage of a pipeline, and how many micro-batches go through it in a step. All but `stage` at
 * least 1. */
struct pipeline_place {
    int stage, stage_count; /* s of P */
    int micro_count;        /* A */
};

enum pipeline_work { PIPELINE_FORWARD, PIPELINE_BACKWARD };

struct pipeline_step {
    enum pipeline_work work;
    int micro; /* batch: 0 … A−1 */
    int slot;  /* 0 … pipeline_slots() − 1 */
};

/* Steps of a stage: each micro-batch forward and backward. */
static inline int pipeline_steps(const struct pipeline_place *place)
{
    return 2 * place->micro_count;
}

/* How many micro-batches' activations a stage holds at once: min(P−s, A). */
int pipeline_slots(const struct pipeline_place *place);

/* Step 0 … pipeline_steps() − 1. */
struct pipeline_step pipeline_step_at(const struct pipeline_place *place, int index);

/* The share of a step in which a stage has nothing to do, where all stages take the same time and
 * nothing is spent between them: (P−1)/(A+P−1). */
double pipeline_bubble(const struct pipeline_place *place);

#endif
