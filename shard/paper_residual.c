/* paper_residual: see paper_residual.h. */
#include "shard/paper_residual.h"

#include <math.h>

#define BYTES 2.0 /* of a 16-bit number */

const struct paper_configuration *paper_configuration(size_t index)
{
    static const struct paper_configuration all[] = {
        {"C1", "P_os", 1, ACTIVATION_INPUT},
        {"C2", "P_os, P_a", 1, ACTIVATION_PART},
        {"C3", "P_os+g", 2, ACTIVATION_INPUT},
        {"C4", "P_os+g, P_a", 2, ACTIVATION_PART},
        {"C5", "P_os+g, P_a+cpu", 2, ACTIVATION_OFFLOADED},
    };
    return index < sizeof all / sizeof *all ? &all[index] : NULL;
}

struct paper_run paper_run_100b(void)
{
    struct paper_run run = {.shape = {125, 8192, 32, 1024}, .tensor = 16, .data = 25};
    run.elements = 12.0 * run.shape.layers * run.shape.hidden * run.shape.hidden;
    return run;
}

/* ---- what is held ---- */

double paper_states_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run)
{
    return paper_held_bytes(configuration->stage, run->elements / run->tensor, run->data);
}

double paper_checkpoint_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run)
{
    double whole = BYTES * paper_checkpoints(&run->shape);
    if (configuration->activations == ACTIVATION_OFFLOADED) return 0.0;
    return configuration->activations == ACTIVATION_PART ? whole / run->tensor : whole;
}

double paper_host_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run)
{
    if (configuration->activations != ACTIVATION_OFFLOADED) return 0.0;
    return BYTES * paper_checkpoints(&run->shape) / run->tensor;
}

double paper_block_bytes(const struct paper_run *run)
{
    return BYTES * paper_activations(&run->shape) / run->shape.layers / run->tensor;
}

double paper_device_bytes(
    const struct paper_configuration *configuration, const struct paper_run *run)
{
    return paper_states_bytes(configuration, run) + paper_checkpoint_bytes(configuration, run) +
           paper_block_bytes(run);
}

double paper_fused_bytes(const struct paper_run *run)
{
    return 4.0 * run->elements / run->tensor;
}

double paper_largest_batch(const struct paper_configuration *configuration,
    const struct paper_run *run, double memory_bytes)
{
    struct paper_run one = *run;
    one.shape.batch = 1.0;
    double room = memory_bytes - paper_states_bytes(configuration, &one);
    double each = paper_checkpoint_bytes(configuration, &one) + paper_block_bytes(&one);
    return room < each ? 0.0 : floor(room / each);
}

/* ---- what is moved ---- */

double paper_tensor_sent(const struct paper_configuration *configuration)
{
    return activation_is_carried(configuration->activations) ? 13.0 : 12.0;
}

double paper_offload_intensity(const struct paper_shape *shape)
{
    double rows = shape->batch * shape->seq;
    double flops = 4.0 * 24.0 * rows * shape->hidden * shape->hidden;
    return flops / (2.0 * BYTES * rows * shape->hidden);
}

double paper_data_bytes_per_token(const struct paper_run *run)
{
    double sent = 2.0 * BYTES * run->elements / run->tensor * (run->data - 1.0) / run->data;
    return sent / (run->shape.batch * run->shape.seq);
}
