/* choose: how often the model finds the right one of several endings the likeliest (choices.h).
 *
 *   block      0  1  2  3  4         of examples: data rank 0 computes 0, 2, 4, data rank 1 computes 1, 3
 *   data 0     ×     ×     ×
 *   data 1        ×     ×     –      and then a token without a target, so that both enter the same units
 *
 * Invariant: a block's bits depend on the file, the weights and B, and what is summed over ranks is
 * whole numbers, so the score is the same for every number of data ranks and in every stage.
 */
#include "shard/trainer.h"

/* The rows of a block, or what stands for them where there is none. */
static enum status run_block(struct choices_score *score, size_t block, struct trainer *trainer)
{
    const struct choices *choices = trainer->choices;
    int batch = trainer->config.batch, passes = choices_passes(batch, choices);
    double *losses = trainer->choice_losses;
    for (int i = 0; i < passes; i++) {
        struct choices_pass rows = choices_pass(block, i, batch, choices);
        choices_fill(trainer->inputs, trainer->targets, &rows, choices);
        const struct model_pass pass = {
            0, trainer->inputs, trainer->targets, rows.rows > 0 ? rows.rows : 1, rows.t};
        TRY(trainer_forward(&pass, trainer));
        if (trainer_has_head(trainer)) TRY(model_sequence_losses(losses, trainer->model));
        else TRY(stage_settle(trainer->stage)); /* a device may still read these rows' ids */
        losses += rows.rows;
    }
    if (trainer_has_head(trainer))
        choices_judge_block(score, trainer->choice_losses, block, batch, choices);
    return STATUS_OK;
}

enum status trainer_choose(struct choices_score *score, struct trainer *trainer)
{
    const struct grid *grid = &trainer->grid;
    size_t blocks = choices_blocks(trainer->config.batch, trainer->choices);
    size_t data_count = (size_t)grid->data_count, rounds = (blocks + data_count - 1) / data_count;
    struct choices_score own = {0};
    for (size_t i = 0; i < rounds; i++)
        TRY(run_block(&own, i * data_count + (size_t)grid->data, trainer));
    double *gathered = trainer->gathered;
    gathered[2 * trainer->rank] = (double)own.by_mean;
    gathered[2 * trainer->rank + 1] = (double)own.by_sum;
    TRY(pipeline_synchronize(trainer->pipeline));
    TRY(stage_gather(gathered, 2, trainer->comm, trainer->stage));
    TRY(stage_synchronize(trainer->stage));
    trainer->events.validations++;
    score->by_mean = (uint64_t)grid_sum_over_data(gathered, 2, grid);
    score->by_sum = (uint64_t)grid_sum_over_data(gathered + 1, 2, grid);
    return STATUS_OK;
}
