/* The order of the calls of hooks.h, and that units are touched only while they are lent.
 *
 * The host here lends a fresh copy on enter and poisons and frees it on leave, takes activations
 * away after the forward and brings them back on act_load. Whatever the model did outside of the
 * loans would change the gradients, which must be the bits of the plain host.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

enum { BATCH = 2, T = 5, LAYERS = 2, X_COUNT = BATCH * T * 12 };
/* Three units of rows: 0 1 2; positions 3; blocks 4 5; final norm 6. */
static const struct model_config config = {
    .max_t = 6, .vocab = 10, .layers = LAYERS, .heads = 3, .channels = 12, .vocab_block = 4};

struct recorder {
    struct model_host *host;
    char events[2048];
    int lent_unit; /* -1: none */
    enum unit_use lent_use;
    float *weights, *gradients; /* copies lent */
    float *ready;               /* the gradients as they were when they became ready */
    int fail_at;                /* this call of enter() fails; −1: none */
    struct carrier {            /* the context of activations */
        struct recorder *recorder;
        float *kept[LAYERS];
        struct span x[LAYERS];
    } carrier;
};

static void record(struct recorder *recorder, const char *event, int number)
{
    size_t used = strlen(recorder->events);
    snprintf(recorder->events + used, sizeof recorder->events - used, "%s%d ", event, number);
}

static float *copy_of(const float *from, size_t count)
{
    float *copy = malloc(count * sizeof *copy);
    if (copy == NULL) abort();
    memcpy(copy, from, count * sizeof *copy);
    return copy;
}

static enum status enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct recorder *r = context;
    if (r->fail_at >= 0 && r->fail_at-- == 0) return FAIL(STATUS_TIMEOUT, "as ordered");
    record(r, use == UNIT_FORWARD ? "F" : use == UNIT_BACKWARD ? "B" : "G", unit);
    CHECK(r->lent_unit == -1);
    size_t begin = r->host->unit_begin[unit], count = r->host->params.unit_elements[unit];
    r->lent_unit = unit;
    r->lent_use = use;
    if (use != UNIT_BACKWARD_GRAD) {
        r->weights = copy_of(r->host->weights + begin, count);
        view->weights = span_host(r->weights, count * sizeof(float));
    }
    if (use != UNIT_FORWARD) {
        r->gradients = copy_of(r->host->gradients + begin, count);
        view->gradients = span_host(r->gradients, count * sizeof(float));
    }
    return STATUS_OK;
}

static enum status grad_ready(void *context, int unit)
{
    struct recorder *r = context;
    record(r, "r", unit);
    CHECK(r->lent_unit == unit && r->gradients != NULL && r->ready == NULL);
    r->ready = copy_of(r->gradients, r->host->params.unit_elements[unit]);
    return STATUS_OK;
}

static void poison_and_free(float **x, size_t count)
{
    if (*x != NULL) memset(*x, 0xff, count * sizeof **x);
    free(*x);
    *x = NULL;
}

static enum status leave(void *context, int unit, enum unit_use use)
{
    struct recorder *r = context;
    record(r, "l", unit);
    CHECK(r->lent_unit == unit && r->lent_use == use);
    size_t begin = r->host->unit_begin[unit], count = r->host->params.unit_elements[unit];
    if (r->weights != NULL)
        CHECK(memcmp(r->weights, r->host->weights + begin, count * sizeof(float)) == 0);
    if (use != UNIT_FORWARD && CHECK(r->ready != NULL)) {
        CHECK(memcmp(r->ready, r->gradients, count * sizeof(float)) == 0);
        memcpy(r->host->gradients + begin, r->gradients, count * sizeof(float));
    }
    poison_and_free(&r->weights, count);
    poison_and_free(&r->gradients, count);
    poison_and_free(&r->ready, count);
    r->lent_unit = -1;
    return STATUS_OK;
}

static enum status act_save(void *activations, int block, struct span x)
{
    struct carrier *carrier = activations;
    record(carrier->recorder, "s", block);
    CHECK(x.bytes == X_COUNT * sizeof(float));
    carrier->x[block] = x;
    carrier->kept[block] = copy_of(x.ptr, X_COUNT);
    return STATUS_OK;
}

static enum status act_load(void *activations, int block, struct span x)
{
    struct carrier *carrier = activations;
    record(carrier->recorder, "a", block);
    CHECK(x.ptr == carrier->x[block].ptr && x.bytes == X_COUNT * sizeof(float));
    memcpy(x.ptr, carrier->kept[block], x.bytes);
    free(carrier->kept[block]);
    carrier->kept[block] = NULL;
    return STATUS_OK;
}

static const int32_t tokens[BATCH * T] = {1, 2, 3, 4, 5, 9, 8, 7, 6, 0};
static const int32_t targets[BATCH * T] = {2, 3, -1, 5, 9, 8, 7, 6, 0, 1};

/* One step with these hooks; the loss. */
static double run_step(
    struct model_host *host, const struct model_hooks *hooks, struct recorder *recorder)
{
    struct device *device;
    struct model *model;
    double loss = NAN;
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) return loss;
    struct model_run run = model_host_run(BATCH, T);
    if (!CHECK_OK(model_open(&model, &host->params, hooks, &run, device))) return loss;
    CHECK_OK(model_forward(&loss, &valid, tokens, targets, BATCH, T, model));
    if (recorder != NULL) /* the inputs of blocks are elsewhere until act_load() */
        for (int layer = 0; layer < LAYERS; layer++)
            memset(recorder->carrier.x[layer].ptr, 0xff, recorder->carrier.x[layer].bytes);
    CHECK_OK(model_backward(0.125f, model));
    model_close(model);
    device_close(device);
    return loss;
}

static struct model_hooks recording_hooks(struct recorder *recorder)
{
    recorder->carrier.recorder = recorder;
    return (struct model_hooks){.context = recorder,
        .enter = enter,
        .leave = leave,
        .grad_ready = grad_ready,
        .activations = &recorder->carrier,
        .act_save = act_save,
        .act_load = act_load};
}

static void test_order_and_loans(void)
{
    struct model_host plain = model_host_make(&config, 5), lending = model_host_make(&config, 5);
    struct recorder recorder = {.host = &lending, .lent_unit = -1, .fail_at = -1};
    struct model_hooks plain_hooks = model_host_hooks(&plain), hooks = recording_hooks(&recorder);
    double loss = run_step(&plain, &plain_hooks, NULL);
    CHECK(run_step(&lending, &hooks, &recorder) == loss);
    CHECK(memcmp(plain.gradients, lending.gradients, plain.params.elements * sizeof(float)) == 0);
    const char *expected = "F0 l0 F1 l1 F2 l2 F3 l3 "              /* rows, positions */
                           "s0 F4 l4 s1 F5 l5 F6 l6 "              /* blocks, final norm */
                           "F0 l0 F1 l1 F2 l2 "                    /* head */
                           "B2 r2 l2 B1 r1 l1 B0 r0 l0 B6 r6 l6 "  /* head, final norm */
                           "a1 B5 r5 l5 a0 B4 r4 l4 "              /* blocks */
                           "G3 r3 l3 G2 r2 l2 G1 r1 l1 G0 r0 l0 "; /* positions, rows */
    CHECK_MSG(strcmp(recorder.events, expected) == 0, "\n  found    %s\n  expected %s",
        recorder.events, expected);
    model_host_free(&plain);
    model_host_free(&lending);
}

/* Whichever enter() fails, its status comes out, and nothing more is called. */
static void test_failures_pass(void)
{
    const int enters = 20;
    for (int at = 0; at < enters; at++) {
        struct model_host host = model_host_make(&config, 5);
        struct recorder recorder = {.host = &host, .lent_unit = -1, .fail_at = at};
        struct model_hooks hooks = recording_hooks(&recorder);
        struct device *device;
        struct model *model;
        double loss;
        size_t valid;
        if (!CHECK_OK(device_open(&device, "host"))) return;
        struct model_run run = model_host_run(BATCH, T);
        if (!CHECK_OK(model_open(&model, &host.params, &hooks, &run, device))) return;
        enum status status = model_forward(&loss, &valid, tokens, targets, BATCH, T, model);
        if (status == STATUS_OK) status = model_backward(1.0f, model);
        CHECK_MSG(status == STATUS_TIMEOUT, "enter() number %d failed, the step says %s", at,
            status_name(status));
        CHECK(recorder.fail_at == -1);
        for (int layer = 0; layer < LAYERS; layer++) free(recorder.carrier.kept[layer]);
        model_close(model);
        device_close(device);
        model_host_free(&host);
    }
}

int main(void)
{
    test_order_and_loans();
    test_failures_pass();
    return test_result();
}
