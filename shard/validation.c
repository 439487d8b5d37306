/* validation: the mean loss over held-out windows. Every window counts once, whatever the number of
 * ranks and the batch.
 */
#include "shard/trainer.h"

enum status trainer_validate(double *loss, size_t batches, struct trainer *trainer)
{
    const struct train_config *config = &trainer->config;
    size_t all = tokens_validation_batches(trainer->tokens);
    if (batches == 0 || batches > all) batches = all;
    double *own = trainer->gathered + 2 * trainer->rank; /* {sum of losses, valid targets} */
    own[0] = own[1] = 0.0;
    for (size_t i = 0; i < batches; i++) {
        size_t index = i * all / batches, counted; /* spread over the split */
        double sum;
        tokens_validation_batch(trainer->inputs, trainer->targets, index, trainer->tokens);
        TRY(trainer_begin_pass(false, false, trainer));
        TRY(gpt2_forward(&sum, &counted, trainer->inputs, trainer->targets, config->batch,
            config->seq, trainer->model));
        trainer_count_pass(PASS_FORWARD, config->batch, config->seq, trainer);
        own[0] += sum;
        own[1] += (double)counted;
    }
    TRY(stage_gather(trainer->gathered, 2, trainer->comm, trainer->stage));
    TRY(stage_synchronize(trainer->stage));
    trainer->events.validations++;
    double sum = grid_sum_over_data(trainer->gathered, 2, &trainer->grid);
    double valid = grid_sum_over_data(trainer->gathered + 1, 2, &trainer->grid);
    *loss = valid > 0.0 ? sum / valid : 0.0;
    return STATUS_OK;
}
