/* tensor: see tensor.h. */
#include "shard/tensor.h"

#include <assert.h>
#include <stdlib.h>

#include "shard/computing.h"
#include "verbs/clock.h"

struct tensor_group {
    struct tensor_config config;
    struct stream *ring;
    struct event *summed;
    struct computing computing;
};

enum status tensor_open(struct tensor_group **out, const struct tensor_config *config)
{
    *out = NULL;
    if (config->grid->tensor_count == 1) return STATUS_OK;
    struct tensor_group *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL) return FAIL(STATUS_SYSTEM, "no memory for a tensor group's record");
    enum status status;
    tensor->config = *config;
    ring_comm_set_reduce_dtype(config->grid->tensor_comm, REDUCE_DTYPE_OWN);
    if (config->shared || config->compute != NULL)
        TRY_GOTO(stream_open(&tensor->ring, config->device, "tensor"));
    TRY_GOTO(computing_open(&tensor->computing, config->compute, config->device));
    tensor->computing.profile = config->profile;
    tensor->computing.row = "tensor sums";
    TRY_GOTO(event_open(&tensor->summed, config->device));
    *out = tensor;
    return STATUS_OK;
fail:
    tensor_close(tensor);
    return status;
}

void tensor_close(struct tensor_group *tensor)
{
    if (tensor == NULL) return;
    struct device *device = tensor->config.device;
    stream_close(tensor->ring, device);
    computing_close(&tensor->computing);
    event_close(tensor->summed, device);
    free(tensor);
}

struct stream *tensor_stream(const struct tensor_group *tensor)
{
    return tensor != NULL ? tensor->ring : NULL;
}

enum status tensor_synchronize(struct tensor_group *tensor)
{
    if (tensor == NULL || tensor->ring == NULL) return STATUS_OK;
    return computing_synchronize(tensor->ring, &tensor->computing);
}

uint64_t tensor_wait_ns(const struct tensor_group *tensor)
{
    return tensor != NULL ? tensor->computing.wait_ns : 0;
}

/* ---- hooks ---- */

static enum status queue(
    struct span x, size_t count, enum dtype dtype, enum redop redop, struct tensor_group *tensor)
{
    const struct tensor_config *config = &tensor->config;
    TRY(computing_goes_first(tensor->ring, &tensor->computing));
    TRY(ring_all_reduce(x, x, count, dtype, redop, config->grid->tensor_comm, tensor->ring));
    if (config->compute == NULL) return tensor_synchronize(tensor);
    TRY(event_record(tensor->summed, tensor->ring, config->device));
    return computing_waits(tensor->summed, &tensor->computing);
}

static enum status combine(
    struct span x, size_t count, enum redop redop, struct tensor_group *tensor)
{
    enum dtype dtype = x.bytes == count * sizeof(float) ? DTYPE_FLOAT32 : tensor->config.dtype;
    assert(x.bytes == count * dtype_bytes(dtype));
    if (tensor->ring != NULL) return queue(x, count, dtype, redop, tensor);
    int64_t begin_ns = clock_ns();
    profile_begin(tensor->config.profile, tensor->computing.row, 0);
    enum status status =
        ring_all_reduce(x, x, count, dtype, redop, tensor->config.grid->tensor_comm, NULL);
    profile_end(tensor->config.profile, 0, (double)x.bytes);
    tensor->computing.wait_ns += (uint64_t)(clock_ns() - begin_ns);
    return status;
}

static enum status sum(void *context, struct span x, size_t count)
{
    return combine(x, count, REDOP_SUM, context);
}

static enum status max(void *context, struct span x, size_t count)
{
    return combine(x, count, REDOP_MAX, context);
}

void tensor_hooks(struct model_hooks *hooks, struct tensor_group *tensor)
{
    if (tensor == NULL) return;
    hooks->tensor = tensor;
    hooks->sum = sum;
    hooks->max = max;
}

/* ---- predictions ---- */

uint64_t tensor_predict_sent(enum pass_kind pass, int batch, int t, const struct params *params,
    const struct model_run *run, const struct grid *grid, struct device *device)
{
    struct model_sum sums[MODEL_SUMS_MOST];
    if (grid->tensor_count == 1) return 0;
    bool on_device = device != NULL && device_kind(device) == MEMORY_CUDA;
    int count = model_sums(sums, pass, batch, t, params, run);
    uint64_t sent = 0;
    for (int i = 0; i < count; i++) {
        struct ring_call call = {
            .collective = COLLECTIVE_ALL_REDUCE,
            .dtype = sums[i].activations ? model_activation_dtype(run, device) : DTYPE_FLOAT32,
            .redop = sums[i].max ? REDOP_MAX : REDOP_SUM,
            .count = sums[i].count,
            .on_device = on_device && !sums[i].on_host,
        };
        sent += sums[i].times *
                ring_predict_sent_bytes(&call, grid->tensor_count, grid->tensor, grid->tensor_comm);
    }
    return sent;
}

double tensor_paper_bytes(const struct params *params, const struct model_run *run,
    const struct grid *grid, struct device *device)
{
    double m = grid->tensor_count, channels = params->config.channels;
    double blocks = (double)params_blocks(&params->part, params->config.layers).count;
    double elements = (run->recompute ? 12.0 : 8.0) * run->batch * run->t * channels;
    return blocks * elements * (double)dtype_bytes(model_activation_dtype(run, device)) *
           (m - 1.0) / m;
}
