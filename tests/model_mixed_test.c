/* Weights and gradients of 16 bits: the loss has the bits of the float32 model on the widened
 * weights; each use's part of a gradient is computed in float32 and rounded into what is lent once,
 * so A micro-batches round A times, and what was lent first is written as if it had been zeros. And
 * the conversions themselves, against those of dtype.h one by one.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "model/ops_host.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"
#include "tests/harness/reference.h"

enum { BATCH = 2, T = 5, VOCAB = 10 };
static const struct model_config config = {
    .max_t = 6, .vocab = VOCAB, .layers = 2, .heads = 3, .channels = 12, .vocab_block = 4};
static const int32_t tokens[BATCH * T] = {1, 2, 3, 4, 5, 9, 8, 7, 6, 0};
static const int32_t targets[BATCH * T] = {2, 3, -1, 5, 9, 8, 7, 6, 0, 1};

static uint16_t rounded(float value, enum dtype dtype)
{
    return dtype == DTYPE_BFLOAT16 ? float32_to_bfloat16(value) : float32_to_float16(value);
}

static float wide(uint16_t value, enum dtype dtype)
{
    return dtype == DTYPE_BFLOAT16 ? bfloat16_to_float32(value) : float16_to_float32(value);
}

static float round_to(float value, enum dtype dtype)
{
    return dtype == DTYPE_FLOAT32 ? value : wide(rounded(value, dtype), dtype);
}

static void *array(size_t count, size_t bytes)
{
    void *made = calloc(count, bytes);
    if (made == NULL) abort();
    return made;
}

/* A host whose numbers fit the dtypes and that lends them so. Or, as the oracle, lends float32
 * only: the same weights, and zeros that it rounds into its gradients itself when they are ready. */
struct narrow_host {
    struct model_host wide; /* the same weights in float32; gradients where they are float32 */
    enum dtype weights_dtype, gradients_dtype;
    bool oracle;
    bool *begun; /* [unit]: lent before; else it stands for zeros, and is poisoned */
    uint16_t *weights, *gradients;
    float *part; /* the oracle's: one unit's gradient */
};

static struct narrow_host narrow_host_make(enum dtype weights, enum dtype gradients, bool oracle)
{
    struct narrow_host made = {.wide = model_host_make(&config, 5),
        .weights_dtype = weights,
        .gradients_dtype = gradients,
        .oracle = oracle};
    size_t elements = made.wide.params.elements;
    made.weights = array(elements, sizeof(uint16_t));
    made.gradients = array(elements, sizeof(uint16_t));
    made.part = array(elements, sizeof(float));
    made.begun = array((size_t)made.wide.params.unit_count, sizeof *made.begun);
    for (size_t i = 0; i < elements; i++) {
        float value = made.wide.weights[i];
        if (value != 1.0f) value *= 8.0f; /* matrices: far from uniform predictions */
        value = round_to(value, weights);
        made.wide.weights[i] = value;
        if (weights != DTYPE_FLOAT32) made.weights[i] = rounded(value, weights);
    }
    return made;
}

static void narrow_host_free(struct narrow_host *host)
{
    model_host_free(&host->wide);
    free(host->weights), free(host->gradients), free(host->part), free(host->begun);
}

static enum status enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct narrow_host *host = context;
    size_t begin = host->wide.unit_begin[unit], count = host->wide.params.unit_elements[unit];
    size_t weights_bytes = count * dtype_bytes(host->weights_dtype);
    size_t gradients_bytes = count * dtype_bytes(host->gradients_dtype);
    view->weights = span_host(host->wide.weights + begin, count * sizeof(float));
    if (!host->oracle && host->weights_dtype != DTYPE_FLOAT32)
        view->weights = span_host(host->weights + begin, weights_bytes);
    if (use == UNIT_BACKWARD_GRAD) view->weights = (struct span){0}; /* they may be missing there */
    if (use == UNIT_FORWARD) return STATUS_OK;
    memset(host->part, 0, count * sizeof *host->part);
    if (host->gradients_dtype == DTYPE_FLOAT32)
        view->gradients = span_host(host->wide.gradients + begin, gradients_bytes);
    else if (host->oracle) view->gradients = span_host(host->part, count * sizeof(float));
    else view->gradients = span_host(host->gradients + begin, gradients_bytes);
    view->first = !host->oracle && !host->begun[unit];
    host->begun[unit] = true;
    if (view->first) memset(view->gradients.ptr, 0xff, view->gradients.bytes); /* NaNs */
    return STATUS_OK;
}

static enum status grad_ready(void *context, int unit)
{
    struct narrow_host *host = context;
    enum dtype dtype = host->gradients_dtype;
    if (!host->oracle || dtype == DTYPE_FLOAT32) return STATUS_OK;
    uint16_t *gradients = host->gradients + host->wide.unit_begin[unit];
    for (size_t i = 0; i < host->wide.params.unit_elements[unit]; i++)
        gradients[i] = rounded(wide(gradients[i], dtype) + host->part[i], dtype);
    return STATUS_OK;
}

struct outcome {
    double loss;
    float logits[VOCAB];
};

/* `accumulate` micro-batches, each shorter than the one before. */
static struct outcome run_steps(struct model_run run, struct narrow_host *host, int accumulate)
{
    struct outcome outcome = {0};
    struct model_hooks hooks = {.context = host, .enter = enter, .grad_ready = grad_ready};
    struct device *device;
    struct model *model;
    double loss;
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) return outcome;
    if (!CHECK_OK(model_open(&model, &host->wide.params, &hooks, &run, device))) return outcome;
    for (int a = 0; a < accumulate; a++) {
        CHECK_OK(model_forward(&loss, &valid, tokens, targets, BATCH, T - a, model));
        CHECK_OK(model_logits(outcome.logits, 1, 2, model));
        CHECK_OK(model_backward(0.125f, model));
        outcome.loss += loss;
    }
    model_close(model);
    device_close(device);
    return outcome;
}

static struct model_run run_of(enum dtype weights, enum dtype gradients, bool recompute)
{
    return (struct model_run){
        .batch = BATCH, .t = T, .weights = weights, .gradients = gradients, .recompute = recompute};
}

static void test_against_oracle(
    enum dtype weights, enum dtype gradients, int accumulate, bool recompute)
{
    struct narrow_host lender = narrow_host_make(weights, gradients, false);
    struct narrow_host oracle = narrow_host_make(weights, gradients, true);
    struct outcome expected =
        run_steps(run_of(DTYPE_FLOAT32, DTYPE_FLOAT32, false), &oracle, accumulate);
    struct outcome found = run_steps(run_of(weights, gradients, recompute), &lender, accumulate);
    size_t elements = lender.wide.params.elements;
    CHECK_MSG(found.loss == expected.loss, "%s: %.9g, in float32 %.9g", dtype_name(weights),
        found.loss, expected.loss);
    CHECK(memcmp(found.logits, expected.logits, sizeof found.logits) == 0);
    CHECK(memcmp(lender.gradients, oracle.gradients, elements * sizeof(uint16_t)) == 0);
    CHECK(memcmp(lender.wide.gradients, oracle.wide.gradients, elements * sizeof(float)) == 0);
    narrow_host_free(&lender), narrow_host_free(&oracle);
}

/* What the oracle does is the rounding of plain float32 gradients, but for the tied embedding,
 * whose two parts are rounded one by one, and where micro-batches add up. */
static void test_against_plain(enum dtype dtype, int accumulate)
{
    struct narrow_host lender = narrow_host_make(dtype, dtype, false);
    struct narrow_host plain = narrow_host_make(dtype, DTYPE_FLOAT32, true);
    run_steps(run_of(DTYPE_FLOAT32, DTYPE_FLOAT32, false), &plain, accumulate);
    run_steps(run_of(dtype, dtype, false), &lender, accumulate);
    size_t tied_end = plain.wide.unit_begin[plain.wide.params.positions_unit];
    size_t elements = plain.wide.params.elements, unequal = 0;
    for (size_t i = tied_end; i < elements; i++)
        unequal += lender.gradients[i] != rounded(plain.wide.gradients[i], dtype);
    CHECK_MSG((unequal == 0) == (accumulate == 1), "%zu of %zu gradients are not the rounded ones",
        unequal, elements - tied_end);
    narrow_host_free(&lender), narrow_host_free(&plain);
}

/* Against weights that are not rounded: near, tensor by tensor. */
static void test_near_float32(enum dtype dtype)
{
    struct narrow_host lender = narrow_host_make(dtype, dtype, false);
    struct narrow_host plain = narrow_host_make(DTYPE_FLOAT32, DTYPE_FLOAT32, false);
    double loss = run_steps(run_of(dtype, dtype, false), &lender, 1).loss;
    double expected_loss = run_steps(run_of(DTYPE_FLOAT32, DTYPE_FLOAT32, false), &plain, 1).loss;
    CHECK(loss != expected_loss);
    CHECK_MSG(
        fabs(loss / expected_loss - 1.0) < 0.01, "%.9g, in float32 %.9g", loss, expected_loss);
    for (int p = 0; p < plain.wide.params.param_count; p++) {
        const struct param *param = &plain.wide.params.param[p];
        size_t begin = plain.wide.unit_begin[param->unit] + param->offset,
               count = param->rows * param->cols;
        float *found = array(count, sizeof *found);
        double *expected = array(count, sizeof *expected);
        for (size_t i = 0; i < count; i++) {
            found[i] = wide(lender.gradients[begin + i], dtype);
            expected[i] = (double)plain.wide.gradients[begin + i];
        }
        double error = relative_error(found, expected, count),
               most = dtype == DTYPE_BFLOAT16 ? 0.05 : 0.01;
        CHECK_MSG(
            error < most, "%s of %s: relative error %.3g", dtype_name(dtype), param->name, error);
        free(found), free(expected);
    }
    narrow_host_free(&lender), narrow_host_free(&plain);
}

/* Every value, and every length about the vector's, with guards. */
static void test_conversions(enum dtype dtype)
{
    enum { ALL = 1 << 16, GUARD = 8 };
    uint16_t *in = array(ALL + GUARD, sizeof *in), *sum = array(ALL + GUARD, sizeof *sum);
    float *out = array(ALL + GUARD, sizeof *out), *x = array(ALL + GUARD, sizeof *x);
    float *part = array(ALL + GUARD, sizeof *part), *other = array(ALL + GUARD, sizeof *other);
    uint16_t *first = array(ALL + GUARD, sizeof *first);
    uint16_t *back = array(ALL + GUARD, sizeof *back);
    for (int i = 0; i < ALL; i++) {
        in[i] = (uint16_t)i;
        float value = wide(in[i], dtype);
        x[i] = value * (float)((double)reference_word(7, (uint64_t)i) * 0x1p-64) * 0.01f;
    }
    for (size_t count = ALL;; count = count == ALL ? 70 : count - 1) {
        memset(out, 0x5a, (ALL + GUARD) * sizeof *out);
        memcpy(sum, in, (ALL + GUARD) * sizeof *sum);
        memset(part, 0x5a, (ALL + GUARD) * sizeof *part);
        memcpy(part, x, count * sizeof *x);
        memset(back, 0x5a, (ALL + GUARD) * sizeof *back);
        memset(first, 0x5a, (ALL + GUARD) * sizeof *first);
        memcpy(other, x, (ALL + GUARD) * sizeof *x);
        narrow(back, x, dtype, count);
        widen(out, in, dtype, count);
        narrow_add(sum, part, dtype, count);
        narrow_first(first, other, dtype, count);
        size_t wrong = 0;
        for (size_t i = 0; i < count; i++) {
            float value = wide(in[i], dtype);
            uint16_t expected = rounded(value + x[i], dtype);
            wrong += memcmp(&out[i], &value, sizeof value) != 0 && !isnan(value);
            wrong += isnan(value) ? !isnan(wide(sum[i], dtype)) : sum[i] != expected;
            wrong += float32_to_bits(part[i]) != 0;
            wrong += back[i] != rounded(x[i], dtype);
            wrong += first[i] != rounded(0.0f + x[i], dtype) || float32_to_bits(other[i]) != 0;
        }
        CHECK_MSG(wrong == 0, "%zu of %zu of %s", wrong, count, dtype_name(dtype));
        for (size_t i = count; i < count + GUARD; i++)
            CHECK(float32_to_bits(out[i]) == 0x5a5a5a5au && sum[i] == in[i] && back[i] == 0x5a5au &&
                  first[i] == 0x5a5au && float32_to_bits(part[i]) == 0x5a5a5a5au);
        if (count == 0) break;
    }
    free(in), free(sum), free(out), free(x), free(part), free(back);
    free(other), free(first);
}

/* As many as are streamed past the caches, from every place in a line's quarter on; the same bits as
 * few at a time. */
static void test_streaming(enum dtype dtype, size_t shift)
{
    enum { COUNT = (1 << 20) + 77, GUARD = 8, FEW = 1000 };
    uint16_t *first = array(COUNT + 2 * GUARD, sizeof *first);
    uint16_t *few = array(COUNT, sizeof *few);
    float *x = array(COUNT, sizeof *x), *same = array(COUNT, sizeof *same);
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = same[i] = float32_from_bits((uint32_t)reference_word(9, i));
        if (isnan(x[i])) x[i] = same[i] = -0.0f;
    }
    memset(first, 0x5a, (COUNT + 2 * GUARD) * sizeof *first);
    narrow_first(first + shift, x, dtype, COUNT);
    for (size_t i = 0; i < COUNT; i += FEW)
        narrow_first(few + i, same + i, dtype, COUNT - i < FEW ? COUNT - i : FEW);
    CHECK_MSG(memcmp(first + shift, few, COUNT * sizeof *few) == 0, "%s, shift %zu",
        dtype_name(dtype), shift);
    CHECK(memcmp(x, same, COUNT * sizeof *x) == 0);
    for (size_t i = 0; i < shift; i++) CHECK(first[i] == 0x5a5au);
    for (size_t i = shift + COUNT; i < COUNT + 2 * GUARD; i++) CHECK(first[i] == 0x5a5au);
    free(first), free(few), free(x), free(same);
}

int main(void)
{
    const enum dtype dtypes[] = {DTYPE_BFLOAT16, DTYPE_FLOAT16, DTYPE_FLOAT32};
    for (size_t w = 0; w < 3; w++)
        for (size_t g = 0; g < 3; g++)
            for (int accumulate = 1; accumulate <= 3; accumulate++) {
                test_against_oracle(dtypes[w], dtypes[g], accumulate, false);
                test_against_oracle(dtypes[w], dtypes[g], accumulate, true);
            }
    for (size_t i = 0; i < 2; i++) {
        test_conversions(dtypes[i]);
        for (size_t shift = 0; shift < 8; shift++) test_streaming(dtypes[i], shift);
        for (int accumulate = 1; accumulate <= 3; accumulate++)
            test_against_plain(dtypes[i], accumulate);
        test_near_float32(dtypes[i]);
    }
    return test_result();
}
