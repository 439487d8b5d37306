/* adam_host: the host's table: float32 at once, 16 bits by pieces that stay in the first cache.
 *
 * Invariant I3: an element's bits do not depend on the cut; a sum of squares is cut at multiples of
 * SQUARES_ELEMENTS, whatever the caller.
 */
#include "optim/adam.h"
#include "optim/norm.h"
#include "optim/numbers.h"

#define STEP_ELEMENTS    4096
#define SQUARES_ELEMENTS 2048

static void step_piece(const struct adam_range *range, const float *gradients, size_t begin,
    size_t count, const struct adam_update *update)
{
    float *weights = range->weights + begin;
    adam_step(weights, range->m + begin, range->v + begin, gradients, count, update->lr,
        update->gradient_scale, update->decay, update->t, &update->config);
    if (range->lent == NULL) return;
    char *lent = (char *)range->lent + begin * dtype_bytes(range->lent_dtype);
    numbers_narrow(lent, weights, range->lent_dtype, count);
}

static void table_step(const struct adam_range *range, const struct adam_update *update,
    const struct adam_context *context)
{
    (void)context;
    float wide[STEP_ELEMENTS];
    enum dtype dtype = range->gradients_dtype;
    size_t most = dtype == DTYPE_FLOAT32 && range->lent == NULL ? range->count : STEP_ELEMENTS;
    for (size_t i = 0; i < range->count; i += most) {
        size_t count = range->count - i < most ? range->count - i : most;
        const void *gradients = (const char *)range->gradients + i * dtype_bytes(dtype);
        if (dtype != DTYPE_FLOAT32) numbers_widen(wide, gradients, dtype, count);
        step_piece(range, dtype != DTYPE_FLOAT32 ? wide : gradients, i, count, update);
    }
}

static void table_narrow(
    void *out, const float *in, enum dtype dtype, size_t count, const struct adam_context *context)
{
    (void)context;
    numbers_narrow(out, in, dtype, count);
}

static void table_add(
    void *sum, const void *x, enum dtype dtype, size_t count, const struct adam_context *context)
{
    (void)context;
    numbers_add(sum, x, dtype, count);
}

static void table_squares(
    double *sum, const void *x, enum dtype dtype, size_t count, const struct adam_context *context)
{
    (void)context;
    if (dtype == DTYPE_FLOAT32) {
        *sum = norm_sum_of_squares(x, count);
        return;
    }
    float wide[SQUARES_ELEMENTS];
    *sum = 0.0;
    for (size_t begin = 0; begin < count; begin += SQUARES_ELEMENTS) {
        size_t piece = count - begin < SQUARES_ELEMENTS ? count - begin : SQUARES_ELEMENTS;
        numbers_widen(wide, (const char *)x + begin * dtype_bytes(dtype), dtype, piece);
        *sum += norm_sum_of_squares(wide, piece);
    }
}

const struct adam_ops adam_ops_host = {
    .name = "host",
    .queued = false,
    .scratch_bytes = 0,
    .step = table_step,
    .narrow = table_narrow,
    .add = table_add,
    .squares = table_squares,
};

const struct adam_ops *adam_ops_of(const struct device *device)
{
    const struct adam_ops *own = device == NULL ? NULL : device_table(device, PLUGIN_ADAM);
    bool is_host = device == NULL || device_kind(device) == MEMORY_HOST;
    return own == NULL && is_host ? &adam_ops_host : own;
}
