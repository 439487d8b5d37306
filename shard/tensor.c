/* tensor: see tensor.h. */
#include "shard/tensor.h"

#include <assert.h>
#include <stdlib.h>

#include "shard/computing.h"
#include "verbs/clock.h"

struct tensor_group {
    struct tensor_config config;
    struct stream *ring;
    struct event *done; /* the last operation */
    size_t *counts;     /* [M]: elements of each rank's rows */
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
    TRY_GOTO(event_open(&tensor->done, config->device));
    tensor->counts = calloc((size_t)config->grid->tensor_count, sizeof *tensor->counts);
    if (tensor->counts == NULL)
        TRY_GOTO(FAIL(STATUS_SYSTEM, "no memory for the rows of a tensor group's ranks"));
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
    event_close(tensor->done, device);
    free(tensor->counts);
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

/* One operation: its place in the order of what computes and what the ring's stream does. */
enum operation { ALL_REDUCE, REDUCE_ROWS, GATHER_ROWS };
struct operand {
    struct span to, from; /* an all-reduce's are the same */
    size_t count, rows;   /* elements of all rows together */
    enum dtype dtype;
    enum redop redop;
};

/* Fills counts; whether they are equal. */
static bool rows_of_ranks(size_t counts[], const struct operand *x, int ranks)
{
    for (int r = 0; r < ranks; r++)
        counts[r] = params_share(x->rows, r, ranks).count * (x->count / x->rows);
    return x->rows % (size_t)ranks == 0;
}

static enum status call(
    enum operation operation, const struct operand *x, struct tensor_group *tensor)
{
    const struct grid *grid = tensor->config.grid;
    struct ring_comm *comm = grid->tensor_comm;
    struct stream *ring = tensor->ring;
    size_t *counts = tensor->counts;
    if (operation == ALL_REDUCE)
        return ring_all_reduce(x->to, x->from, x->count, x->dtype, x->redop, comm, ring);
    bool even = rows_of_ranks(counts, x, grid->tensor_count);
    if (operation == REDUCE_ROWS && even)
        return ring_reduce_scatter(x->to, x->from, counts[0], x->dtype, x->redop, comm, ring);
    if (operation == REDUCE_ROWS)
        return ring_reduce_scatter_v(x->to, x->from, counts, x->dtype, x->redop, comm, ring);
    if (even) return ring_all_gather(x->to, x->from, counts[0], x->dtype, comm, ring);
    return ring_all_gather_v(x->to, x->from, counts, x->dtype, comm, ring);
}

static enum status queue(
    enum operation operation, const struct operand *x, struct tensor_group *tensor)
{
    const struct tensor_config *config = &tensor->config;
    TRY(computing_goes_first(tensor->ring, &tensor->computing));
    TRY(call(operation, x, tensor));
    if (config->compute == NULL) return tensor_synchronize(tensor);
    TRY(event_record(tensor->done, tensor->ring, config->device));
    return computing_waits(tensor->done, &tensor->computing);
}

static enum status combine(
    enum operation operation, const struct operand *x, struct tensor_group *tensor)
{
    if (tensor->ring != NULL) return queue(operation, x, tensor);
    int64_t begin_ns = clock_ns();
    profile_begin(tensor->config.profile, tensor->computing.row, 0);
    enum status status = call(operation, x, tensor);
    profile_end(tensor->config.profile, 0, (double)(x->count * dtype_bytes(x->dtype)));
    tensor->computing.wait_ns += (uint64_t)(clock_ns() - begin_ns);
    return status;
}

static enum status all_reduce(
    struct span x, size_t count, enum redop redop, struct tensor_group *tensor)
{
    enum dtype dtype = x.bytes == count * sizeof(float) ? DTYPE_FLOAT32 : tensor->config.dtype;
    const struct operand operand = {x, x, count, 0, dtype, redop};
    assert(x.bytes == count * dtype_bytes(dtype));
    return combine(ALL_REDUCE, &operand, tensor);
}

static enum status sum(void *context, struct span x, size_t count)
{
    return all_reduce(x, count, REDOP_SUM, context);
}

static enum status max(void *context, struct span x, size_t count)
{
    return all_reduce(x, count, REDOP_MAX, context);
}

static enum status rows(enum operation operation, struct span to, struct span from,
    struct span whole, size_t rows, struct tensor_group *tensor)
{
    enum dtype dtype = tensor->config.dtype;
    size_t count = whole.bytes / dtype_bytes(dtype);
    const struct operand operand = {to, from, count, rows, dtype, REDOP_SUM};
    assert(rows > 0 && count % rows == 0);
    return combine(operation, &operand, tensor);
}

static enum status scatter_sum(void *context, struct span own, struct span whole, size_t row_count)
{
    return rows(REDUCE_ROWS, own, whole, whole, row_count, context);
}

static enum status gather(void *context, struct span whole, struct span own, size_t row_count)
{
    return rows(GATHER_ROWS, whole, own, whole, row_count, context);
}

void tensor_hooks(struct model_hooks *hooks, struct tensor_group *tensor)
{
    if (tensor == NULL) return;
    hooks->tensor = tensor;
    hooks->sum = sum;
    hooks->max = max;
    hooks->scatter_sum = scatter_sum;
    hooks->gather = gather;
}

/* ---- predictions ---- */

/* The ring's call of a hook's; counts: where it may lie. */
static struct ring_call ring_call_of(const struct model_tensor_call *call, size_t counts[],
    enum dtype activations, const struct grid *grid)
{
    struct ring_call ring = {
        .collective = COLLECTIVE_ALL_REDUCE,
        .dtype = call->activations ? activations : DTYPE_FLOAT32,
        .redop = call->hook == MODEL_MAX ? REDOP_MAX : REDOP_SUM,
        .count = call->count,
    };
    const struct operand rows = {.count = call->count, .rows = call->rows};
    if (call->hook == MODEL_SUM || call->hook == MODEL_MAX) return ring;
    bool even = rows_of_ranks(counts, &rows, grid->tensor_count);
    bool scatter = call->hook == MODEL_SCATTER_SUM;
    ring.collective = scatter ? COLLECTIVE_REDUCE_SCATTER : COLLECTIVE_ALL_GATHER;
    ring.count = counts[0];
    ring.counts = even ? NULL : counts;
    return ring;
}

void tensor_predict_sent(uint64_t sent[COLLECTIVE_COUNT], uint64_t times, enum pass_kind pass,
    int batch, int t, const struct params *params, const struct model_run *run,
    const struct grid *grid, struct device *device)
{
    struct model_tensor_call calls[MODEL_TENSOR_CALLS_MOST];
    if (grid->tensor_count == 1) return;
    bool on_device = device != NULL && device_kind(device) == MEMORY_CUDA;
    int count = model_tensor_calls(calls, pass, batch, t, params, run);
    size_t *counts = calloc((size_t)grid->tensor_count, sizeof *counts);
    if (counts == NULL) abort(); /* a few bytes */
    for (int i = 0; i < count; i++) {
        struct ring_call call =
            ring_call_of(&calls[i], counts, model_activation_dtype(run, device), grid);
        call.on_device = on_device && !calls[i].on_host;
        sent[call.collective] +=
            times * calls[i].times *
            ring_predict_sent_bytes(&call, grid->tensor_count, grid->tensor, grid->tensor_comm);
    }
    free(counts);
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
