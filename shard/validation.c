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
    const struct model_pass pass = {
        0, trainer->inputs, trainer->targets, config->batch, config->seq};
    const size_t tokens = (size_t)config->batch * (size_t)config->seq;
    for (size_t i = 0; i < batches; i++) {
        size_t index = i * all / batches; /* spread over the split */
        tokens_validation_batch(trainer->inputs, trainer->targets, index, trainer->tokens);
        TRY(trainer_forward(&pass, trainer));
        double sum = 0.0;
        if (trainer_has_head(trainer)) TRY(model_loss(&sum, trainer->model));
        else TRY(stage_settle(trainer->stage)); /* a device may still read this batch's ids */
        own[0] += sum;
        for (size_t t = 0; t < tokens; t++) own[1] += trainer->targets[t] != MODEL_IGNORED_TARGET;
    }
    TRY(pipeline_synchronize(trainer->pipeline));
    TRY(stage_gather(trainer->gathered, 2, trainer->comm, trainer->stage));
    TRY(stage_synchronize(trainer->stage));
    trainer->events.validations++;
    double sum = grid_sum_over_data(trainer->gathered, 2, &trainer->grid);
    double valid = grid_sum_over_data(trainer->gathered + 1, 2, &trainer->grid);
    *loss = valid > 0.0 ? sum / valid : 0.0;
    return STATUS_OK;
}
