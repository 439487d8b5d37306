/* adam_host: the host's table: float32 at once, bfloat16 too where nothing is left to chance; all else of 16 bits
 * by pieces that stay in the first cache.
 *
 * Invariant I3: an element's bits do not depend on the cut.
 */
#include "optim/adam.h"
#include "optim/adam_round.h"
#include "optim/norm.h"
#include "optim/numbers.h"

#define STEP_ELEMENTS 4096

/* lent (count) = x, each rounded up or down by chance; first: the index of the first one. */
static void narrow_by_chance(
    uint16_t *lent, const float *x, size_t count, uint64_t first, const struct adam_update *update)
{
    uint64_t key = adam_key(update->seed, update->t);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = float32_to_bits(x[i]);
        lent[i] = adam_is_number(bits) ? adam_round_bits(bits, key, first + i)
                                       : float32_to_bfloat16(x[i]);
    }
}

static void step_piece(const struct adam_range *range, const float *gradients, size_t begin,
    size_t count, const struct adam_update *update)
{
    enum dtype dtype = range->lent_dtype;
    char *lent = range->lent == NULL ? NULL : (char *)range->lent + begin * dtype_bytes(dtype);
    float wide[STEP_ELEMENTS], *weights = range->weights == NULL ? wide : range->weights + begin;
    if (range->weights == NULL) numbers_widen(wide, lent, dtype, count);
    adam_step(weights, range->m + begin, range->v + begin, gradients, count, update->lr,
        update->gradient_scale, update->decay, update->t, &update->config);
    if (lent != NULL && update->stochastic && dtype == DTYPE_BFLOAT16)
        narrow_by_chance((uint16_t *)(void *)lent, weights, count, update->first + begin, update);
    else if (lent != NULL) numbers_narrow(lent, weights, dtype, count);
}

static bool is_one_pass(const struct adam_range *range, const struct adam_update *update)
{
    return range->gradients_dtype == DTYPE_BFLOAT16 && range->lent_dtype == DTYPE_BFLOAT16 &&
           range->lent != NULL && range->weights != NULL && !update->stochastic;
}

static void table_step(const struct adam_range *range, const struct adam_update *update,
    const struct adam_context *context)
{
    (void)context;
    if (is_one_pass(range, update)) {
        adam_step_bfloat16(range, update);
        return;
    }
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

static void table_narrow(void *out, const float *in, enum dtype dtype, size_t count,
    const struct adam_update *update, const struct adam_context *context)
{
    (void)context;
    if (update != NULL && update->stochastic && dtype == DTYPE_BFLOAT16)
        narrow_by_chance(out, in, count, update->first, update);
    else numbers_narrow(out, in, dtype, count);
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
    *sum = norm_sum_of_squares(x, dtype, count);
}

static void table_scale(void *x, uint32_t *not_finite, enum dtype dtype, float factor, size_t count,
    const struct adam_context *context)
{
    (void)context;
    float wide[STEP_ELEMENTS];
    for (size_t begin = 0; begin < count; begin += STEP_ELEMENTS) {
        size_t piece = count - begin < STEP_ELEMENTS ? count - begin : STEP_ELEMENTS;
        char *at = (char *)x + begin * dtype_bytes(dtype);
        numbers_widen(wide, at, dtype, piece);
        for (size_t i = 0; i < piece; i++) wide[i] *= factor;
        numbers_narrow(at, wide, dtype, piece);
        numbers_widen(wide, at, dtype, piece); /* what is too large for 16 bits is infinite now */
        for (size_t i = 0; i < piece; i++)
            if (!adam_is_number(float32_to_bits(wide[i]))) *not_finite = 1;
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
    .scale = table_scale,
};

const struct adam_ops *adam_ops_of(const struct device *device)
{
    const struct adam_ops *own = device == NULL ? NULL : device_table(device, PLUGIN_ADAM);
    bool is_host = device == NULL || device_kind(device) == MEMORY_HOST;
    return own == NULL && is_host ? &adam_ops_host : own;
}
