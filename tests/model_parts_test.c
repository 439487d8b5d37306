/* A model in parts, whose inputs, outputs and gradients are carried by hand from one to the next: the
 * losses, logits and gradients are the bits of the whole model. With activations kept, computed again
 * in backward, and carried away by hooks; pass after pass, and in the order of a pipeline, several in
 * flight, where only the embedding's gradients, which the first and the last part add up, are added
 * in another order. Each part enters what uses.h lists, and holds what model_memory() says.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "model/uses.h"
#include "shard/pipeline.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

enum { BATCH = 2, T = 5, C = 12, LAYERS = 5, VOCAB = 10, MICROS = 5, PARTS = 4, USES = 64 };
enum { ROWS = BATCH * T, X_BYTES = ROWS * C * sizeof(float) };
static const struct model_config configs[] = {
    {.max_t = 6, .vocab = VOCAB, .layers = LAYERS, .heads = 3, .channels = C, .vocab_block = 4},
    {ARCHITECTURE_LLAMA, .max_t = 6, .vocab = VOCAB, .layers = LAYERS, .heads = 6, .channels = C,
        .vocab_block = 4, .kv_heads = 3, .hidden = 20},
};
enum way { KEPT, AGAIN, CARRIED, WAYS };

static int32_t tokens[MICROS][ROWS], targets[MICROS][ROWS];

/* One part: its table of what is held, and what its hooks have seen. */
struct part {
    struct params params;
    struct pipeline_place place;
    struct model_host *host;
    struct model_use seen[MICROS * USES];
    int seen_count;
    float carried[PARTS][LAYERS][ROWS * C];
    int slot; /* of the pass in hand */
    struct device *device;
    struct model *model;
    float *between[MICROS][2]; /* what the part before has left here, and the part behind */
    int at;                    /* steps done */
};

static enum status enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct part *part = context;
    part->seen[part->seen_count++] = (struct model_use){unit, use};
    struct model_hooks lender = model_host_hooks(part->host);
    return lender.enter(lender.context, view, unit, use);
}

static enum status act_save(void *context, int block, struct span x)
{
    struct part *part = context;
    memcpy(part->carried[part->slot][block], x.ptr, x.bytes);
    return STATUS_OK;
}

static enum status act_load(void *context, int block, struct span x)
{
    struct part *part = context;
    memcpy(x.ptr, part->carried[part->slot][block], x.bytes);
    return STATUS_OK;
}

static void open_part(struct part *part, int number, int parts, enum way way, bool in_flight)
{
    part->place = (struct pipeline_place){number, parts, MICROS};
    const struct params_part held = {0, 1, number, parts};
    if (!CHECK_OK(params_make_part(&part->params, &part->host->params.config, &held))) exit(1);
    struct model_hooks hooks = {.context = part, .enter = enter, .activations = part};
    if (way == CARRIED) hooks.act_save = act_save, hooks.act_load = act_load;
    struct model_run run = model_host_run(BATCH, T);
    run.recompute = way != KEPT;
    run.carried = way == CARRIED;
    run.passes = in_flight ? pipeline_slots(&part->place) : 0;
    if (!CHECK_OK(device_open(&part->device, "host"))) exit(1);
    if (!CHECK_OK(model_open(&part->model, &part->params, &hooks, &run, part->device))) exit(1);
    struct model_memory memory = model_memory(&part->params, &run, part->device);
    struct memory_account account = memory_account_read(part->device);
    CHECK(memory.checkpoints == 0 || way == AGAIN);
    CHECK(account.now[MEMORY_ACTIVATIONS] == memory.activations);
    CHECK(account.now[MEMORY_CHECKPOINTS] == memory.checkpoints);
    CHECK(account.now[MEMORY_WORKSPACE] == memory.workspace);
}

static void put(struct span to, float **from)
{
    CHECK(to.bytes == X_BYTES);
    memcpy(to.ptr, *from, X_BYTES);
    free(*from);
    *from = NULL;
}

static float *take(struct span from)
{
    float *copy = malloc(X_BYTES);
    if (copy == NULL || !CHECK(from.bytes == X_BYTES)) abort();
    memcpy(copy, from.ptr, X_BYTES);
    return copy;
}

/* A forward or a backward; the next part's, or the part's before, may follow. */
static void run_pass(double *loss, struct part *part, const struct pipeline_step *step)
{
    const struct model_pass pass = {
        step->slot, tokens[step->micro], targets[step->micro], BATCH, T};
    bool first = part->place.stage == 0;
    bool last = part->place.stage == part->place.stage_count - 1;
    float **between = part->between[step->micro];
    part->slot = step->slot;
    if (step->work == PIPELINE_FORWARD) {
        if (!first) put(model_input(&pass, part->model), &between[0]);
        CHECK_OK(model_forward_pass(&pass, part->model));
        if (last) CHECK_OK(model_loss(&loss[step->micro], part->model));
        else part[1].between[step->micro][0] = take(model_output(&pass, part->model));
    } else {
        if (!last) put(model_gradient(&pass, part->model), &between[1]);
        CHECK_OK(model_backward_pass(0.125f, &pass, part->model));
        if (!first) part[-1].between[step->micro][1] = take(model_gradient(&pass, part->model));
    }
}

/* One micro-batch after the other. */
static void run_one_by_one(double *loss, struct part *part, int parts)
{
    for (int m = 0; m < MICROS; m++) {
        for (int p = 0; p < parts; p++)
            run_pass(loss, &part[p], &(struct pipeline_step){PIPELINE_FORWARD, m, 0});
        for (int p = parts; p-- > 0;)
            run_pass(loss, &part[p], &(struct pipeline_step){PIPELINE_BACKWARD, m, 0});
    }
}

/* Each part as far as it can, until all have done all. */
static void run_in_flight(double *loss, struct part *part, int parts)
{
    for (int done = 0; done < parts * 2 * MICROS;) {
        int before = done;
        for (int p = 0; p < parts; p++) {
            if (part[p].at == pipeline_steps(&part[p].place)) continue;
            struct pipeline_step step = pipeline_step_at(&part[p].place, part[p].at);
            bool forward = step.work == PIPELINE_FORWARD;
            bool needs = forward ? p > 0 : p < parts - 1;
            if (needs && part[p].between[step.micro][!forward] == NULL) continue;
            run_pass(loss, &part[p], &step);
            part[p].at++, done++;
        }
        if (!CHECK(done > before)) return;
    }
}

/* Every pass enters the same units, in the order of uses.h; a pipeline mixes forwards and backwards. */
static void check_uses(const struct part *part, bool in_flight)
{
    struct model_use uses[USES];
    int forward = model_uses(uses, &part->params, false);
    int all = model_uses(uses, &part->params, true), at = 0;
    for (int i = 0; i < pipeline_steps(&part->place); i++) {
        enum pipeline_work work = (enum pipeline_work)(i % 2);
        if (in_flight) work = pipeline_step_at(&part->place, i).work;
        int from = work == PIPELINE_FORWARD ? 0 : forward;
        int count = work == PIPELINE_FORWARD ? forward : all - forward;
        CHECK(memcmp(&part->seen[at], &uses[from], (size_t)count * sizeof *uses) == 0);
        at += count;
    }
    CHECK(at == part->seen_count);
}

static struct model_host make_host(const struct model_config *config)
{
    struct model_host host = model_host_make(config, 5);
    for (size_t i = 0; i < host.params.elements; i++)
        host.weights[i] *= 10.0f; /* far from uniform predictions */
    return host;
}

/* Gradients into host's, losses of the micro-batches into loss. */
static void run_parts(
    double *loss, struct model_host *host, int parts, enum way way, bool in_flight)
{
    struct part *part = calloc(PARTS, sizeof *part);
    if (part == NULL) abort();
    for (int p = 0; p < parts; p++) {
        part[p].host = host;
        open_part(&part[p], p, parts, way, in_flight);
    }
    if (in_flight) run_in_flight(loss, part, parts);
    else run_one_by_one(loss, part, parts);
    for (int p = 0; p < parts; p++) {
        check_uses(&part[p], in_flight);
        model_close(part[p].model);
        device_close(part[p].device);
        params_free(&part[p].params);
    }
    free(part);
}

static void check_gradients(
    const struct model_host *found, const struct model_host *whole, bool all_bits)
{
    size_t rows = found->unit_begin[found->params.positions_unit];
    for (size_t i = 0; i < rows; i++) {
        float expected = whole->gradients[i];
        if (!CHECK(fabsf(found->gradients[i] - expected) < 1e-5f * (1.0f + fabsf(expected))))
            return;
    }
    size_t from = all_bits ? 0 : rows, count = found->params.elements - from;
    CHECK(memcmp(found->gradients + from, whole->gradients + from, count * sizeof(float)) == 0);
}

/* The whole model, by its own entry points. */
static void run_whole(double *loss, struct model_host *host)
{
    struct device *device;
    struct model *model;
    struct model_hooks hooks = model_host_hooks(host);
    struct model_run run = model_host_run(BATCH, T);
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) exit(1);
    if (!CHECK_OK(model_open(&model, &host->params, &hooks, &run, device))) exit(1);
    for (int m = 0; m < MICROS; m++) {
        CHECK_OK(model_forward(&loss[m], &valid, tokens[m], targets[m], BATCH, T, model));
        CHECK_OK(model_backward(0.125f, model));
    }
    model_close(model);
    device_close(device);
}

static void test(const struct model_config *config)
{
    struct model_host whole = make_host(config);
    double expected[MICROS], loss[MICROS];
    run_whole(expected, &whole);
    for (int parts = 1; parts <= PARTS; parts++)
        for (int way = KEPT; way < WAYS; way++)
            for (int in_flight = 0; in_flight < 2; in_flight++) {
                struct model_host host = make_host(config);
                memset(loss, 0, sizeof loss);
                run_parts(loss, &host, parts, (enum way)way, in_flight);
                CHECK(memcmp(loss, expected, sizeof loss) == 0);
                check_gradients(&host, &whole, !in_flight || parts == 1);
                model_host_free(&host);
            }
    model_host_free(&whole);
}

int main(void)
{
    for (int m = 0; m < MICROS; m++)
        for (int i = 0; i < ROWS; i++) {
            tokens[m][i] = (7 * m + 3 * i) % VOCAB;
            targets[m][i] = (i + m) % 7 == 0 ? MODEL_IGNORED_TARGET : (5 * m + i * i) % VOCAB;
        }
    for (int i = 0; i < 2; i++) test(&configs[i]);
    return test_result();
}
