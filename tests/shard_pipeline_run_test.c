/* A pipeline of ranks, each with its part of a model: losses and gradients of a step of several
 * micro-batches are those of the whole model, the bits of all but the embedding's, which the first
 * and the last stage add up; whatever is kept of activations, and where. Slots so small that sends
 * wait for their receivers. What is sent is what is predicted. A stage that leaves before its time
 * is an error on all others. ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/uses.h"
#include "shard/activation.h"
#include "shard/pipeline.h"
#include "shard/pipeline_run.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"

enum { BATCH = 2, T = 5, C = 12, LAYERS = 5, VOCAB = 10, MICROS = 6, ROWS = BATCH * T };
static const struct model_config config = {
    .max_t = 6, .vocab = VOCAB, .layers = LAYERS, .heads = 3, .channels = C, .vocab_block = 4};
static const float scale = 0.125f;

struct job {
    int micros;
    enum activation_keep keep;
    int leaver; /* this stage leaves in the middle; -1: none does */
    const struct model_host *whole;
    const double *loss; /* of the whole model, of each micro-batch */
    int32_t tokens[MICROS][ROWS], targets[MICROS][ROWS];
    struct model_host host[LAYERS]; /* of each stage */
};

/* One stage. */
struct stage {
    struct job *job;
    struct pipeline_place place;
    struct params params;
    struct device *device;
    struct ring_comm *world, *onward, *back;
    struct model *model;
    struct pipeline_run *run;
    struct activation *activations;
    double loss[MICROS];
};

static struct model_pass pass_of(const struct job *job, int micro, int slot)
{
    return (struct model_pass){slot, job->tokens[micro], job->targets[micro], BATCH, T};
}

/* Where inputs of blocks are carried: by whom. */
static void open_activations(
    struct model_hooks *hooks, const struct model_run *run, struct stage *stage)
{
    const struct model_span span = model_span(&stage->params);
    const struct activation_config carries = {.keep = stage->job->keep,
        .first_block = span.begin,
        .block_count = span.end - span.begin,
        .pass_count = run->passes,
        .elements = (size_t)ROWS * C,
        .dtype = DTYPE_FLOAT32,
        .nranks = 1,
        .overlap = true,
        .device = stage->device};
    if (!activation_is_carried(carries.keep)) return;
    if (!CHECK_OK(activation_open(&stage->activations, &carries))) exit(1);
    hooks->activations = stage->activations;
    hooks->act_save = activation_save;
    hooks->act_load = activation_load;
}

static void open_stage(struct stage *stage, struct job *job, struct bootstrap *bootstrap)
{
    int rank = bootstrap_rank(bootstrap), nranks = bootstrap_nranks(bootstrap);
    const struct params_part part = {0, 1, rank, nranks};
    const struct ring_config ring = {.slot_bytes = 64, .slot_count = 2, .exchange_bytes = 1};
    *stage = (struct stage){.job = job, .place = {rank, nranks, job->micros}};
    struct model_hooks hooks = model_host_hooks(&job->host[rank]);
    struct model_run run = model_host_run(BATCH, T);
    run.recompute = activation_recomputes(job->keep);
    run.passes = pipeline_slots(&stage->place);
    if (!CHECK_OK(params_make_part(&stage->params, &config, &part))) exit(1);
    if (!CHECK_OK(device_open(&stage->device, "host"))) exit(1);
    if (!CHECK_OK(ring_comm_open(&stage->world, &ring, bootstrap, stage->device))) exit(1);
    if (!CHECK_OK(ring_comm_split(&stage->onward, 0, rank, stage->world))) exit(1);
    if (!CHECK_OK(ring_comm_split(&stage->back, 0, rank, stage->world))) exit(1);
    open_activations(&hooks, &run, stage);
    if (!CHECK_OK(model_open(&stage->model, &stage->params, &hooks, &run, stage->device))) exit(1);
    const struct pipeline_config pipeline = {.stage = rank,
        .stage_count = nranks,
        .onward = stage->onward,
        .back = stage->back,
        .model = stage->model,
        .dtype = DTYPE_FLOAT32,
        .carried = activation_is_carried(job->keep),
        .device = stage->device};
    if (!CHECK_OK(pipeline_open(&stage->run, &pipeline))) exit(1);
}

static void close_stage(struct stage *stage)
{
    pipeline_close(stage->run);
    model_close(stage->model);
    activation_close(stage->activations);
    ring_comm_close(stage->back);
    ring_comm_close(stage->onward);
    ring_comm_close(stage->world);
    device_close(stage->device);
    params_free(&stage->params);
}

static bool is_backward(const struct pipeline_place *place, int index)
{
    return index < pipeline_steps(place) &&
           pipeline_step_at(place, index).work == PIPELINE_BACKWARD;
}

/* The first `steps` of a stage. */
static enum status run_steps(int steps, struct stage *stage)
{
    const struct pipeline_place *place = &stage->place;
    for (int i = 0; i < steps; i++) {
        struct pipeline_step step = pipeline_step_at(place, i);
        struct model_pass pass = pass_of(stage->job, step.micro, step.slot);
        if (step.work == PIPELINE_BACKWARD) {
            activation_begin_backward(step.slot, stage->activations);
            TRY(pipeline_backward(scale, &pass, stage->run));
            continue;
        }
        TRY(activation_begin_forward(step.slot, true, stage->activations));
        TRY(pipeline_forward(&pass, is_backward(place, i + 1), stage->run));
        if (place->stage == place->stage_count - 1)
            TRY(model_loss(&stage->loss[step.micro], stage->model));
    }
    return pipeline_synchronize(stage->run);
}

static void check_sent(const struct stage *stage)
{
    const struct pipeline_place *place = &stage->place;
    const struct pipeline_config ends = {
        .stage = place->stage, .stage_count = place->stage_count, .dtype = DTYPE_FLOAT32};
    uint64_t sent[COLLECTIVE_COUNT] = {0}, rows = (uint64_t)place->micro_count * ROWS;
    pipeline_predict_sent(sent, rows, rows, C, &ends);
    int neighbours = (place->stage > 0) + (place->stage < place->stage_count - 1);
    CHECK(sent[COLLECTIVE_SEND] == (uint64_t)neighbours * rows * C * sizeof(float));
    struct ring_counters onward = ring_comm_counters(stage->onward);
    struct ring_counters back = ring_comm_counters(stage->back);
    for (int c = 0; c < COLLECTIVE_COUNT; c++)
        CHECK(onward.sent_bytes[c] + back.sent_bytes[c] == sent[c]);
}

static void stage_main(struct bootstrap *bootstrap, void *argument)
{
    struct job *job = argument;
    struct stage stage;
    open_stage(&stage, job, bootstrap);
    int all = pipeline_steps(&stage.place);
    bool leaves = job->leaver == stage.place.stage;
    enum status status = run_steps(leaves ? all / 2 : all, &stage);
    if (leaves) ring_comm_abort(stage.world, "this stage has left");
    if (job->leaver < 0) {
        CHECK_OK(status);
        check_sent(&stage);
        if (stage.place.stage == stage.place.stage_count - 1)
            CHECK(memcmp(stage.loss, job->loss, (size_t)job->micros * sizeof *job->loss) == 0);
    } else if (!leaves) {
        CHECK(status == STATUS_ABORTED);
        CHECK_TEXT("this stage has left");
    }
    close_stage(&stage);
}

/* ---- */

static void fill(struct job *job)
{
    for (int m = 0; m < MICROS; m++)
        for (int i = 0; i < ROWS; i++) {
            job->tokens[m][i] = (7 * m + 3 * i) % VOCAB;
            job->targets[m][i] = (i + m) % 7 == 0 ? MODEL_IGNORED_TARGET : (5 * m + i * i) % VOCAB;
        }
}

/* The whole model, by itself. */
static void run_whole(double *loss, struct model_host *host, const struct job *job)
{
    struct device *device;
    struct model *model;
    struct model_hooks hooks = model_host_hooks(host);
    struct model_run run = model_host_run(BATCH, T);
    if (!CHECK_OK(device_open(&device, "host"))) exit(1);
    if (!CHECK_OK(model_open(&model, &host->params, &hooks, &run, device))) exit(1);
    for (int m = 0; m < job->micros; m++) {
        struct model_pass pass = pass_of(job, m, 0);
        CHECK_OK(model_forward_pass(&pass, model));
        CHECK_OK(model_loss(&loss[m], model));
        CHECK_OK(model_backward_pass(scale, &pass, model));
    }
    model_close(model);
    device_close(device);
}

/* Each unit's gradient is on the stage that has it; the embedding's on the first and the last. */
static void check_gradients(const struct job *job, int stages)
{
    const struct params *params = &job->whole->params;
    for (int u = 0; u < params->unit_count; u++) {
        size_t begin = job->whole->unit_begin[u];
        for (size_t i = begin; i < begin + params->unit_elements[u]; i++) {
            float sum = 0.0f, expected = job->whole->gradients[i];
            for (int s = 0; s < stages; s++) sum += job->host[s].gradients[i];
            bool same = u < params->embedding_units
                            ? fabsf(sum - expected) <= 1e-5f * (1.0f + fabsf(expected))
                            : sum == expected;
            if (!CHECK_MSG(same, "unit %d: %.9g, expected %.9g", u, (double)sum, (double)expected))
                return;
        }
    }
}

static void test_pipeline(int stages, int micros, enum activation_keep keep, int leaver)
{
    struct model_host whole = model_host_make(&config, 5);
    double loss[MICROS];
    struct job job = {
        .micros = micros, .keep = keep, .leaver = leaver, .whole = &whole, .loss = loss};
    fill(&job);
    run_whole(loss, &whole, &job);
    for (int s = 0; s < stages; s++) job.host[s] = model_host_make(&config, 5);
    ranks_as_threads(stages, 10000, stage_main, &job);
    if (leaver < 0) check_gradients(&job, stages);
    for (int s = 0; s < stages; s++) model_host_free(&job.host[s]);
    model_host_free(&whole);
}

int main(void)
{
    for (int stages = 1; stages <= LAYERS; stages++)
        for (int micros = 1; micros <= MICROS; micros += micros == 1 ? 2 : 3)
            test_pipeline(stages, micros, micros == 3 ? ACTIVATION_INPUT : ACTIVATION_ALL, -1);
    for (int stages = 2; stages <= 3; stages++) {
        test_pipeline(stages, MICROS, ACTIVATION_PART, -1);
        test_pipeline(stages, MICROS, ACTIVATION_OFFLOADED, -1);
    }
    for (int leaver = 0; leaver < 3; leaver++) test_pipeline(3, MICROS, ACTIVATION_ALL, leaver);
    test_pipeline(3, MICROS, ACTIVATION_OFFLOADED, 2);
    return test_result();
}
