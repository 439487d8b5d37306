/* shard_state: the whole model's weights and moments, put together from the files of a checkpoint.
 *
 *     struct state state = read_state("run/step-00000001", &config);
 *     check_gradients(&state, &one, "tensor 2, pipeline 2");
 *     state_free(&state);
 *
 * Include after shard_fixture.h.
 */
#ifndef TESTS_SHARD_STATE_H
#define TESTS_SHARD_STATE_H

#include "shard/checkpoint_manifest.h"
#include "tests/harness/reference.h"

/* The whole model's state, put together from the files. */
struct state {
    struct params params;
    size_t *unit_begin;
    float *values[STAGE_STATE_COUNT]; /* [elements] each, unit after unit */
    int *times;                       /* the same: how many files have it */
};

static struct state state_make(const struct model_config *model)
{
    struct state state = {0};
    CHECK_OK(params_make(&state.params, model));
    size_t count = state.params.elements, begin = 0;
    state.times = calloc(count, sizeof *state.times);
    state.unit_begin = calloc((size_t)state.params.unit_count, sizeof *state.unit_begin);
    for (int s = 0; s < STAGE_STATE_COUNT; s++) state.values[s] = calloc(count, sizeof(float));
    for (int u = 0; u < state.params.unit_count; u++) {
        state.unit_begin[u] = begin;
        begin += state.params.unit_elements[u];
    }
    return state;
}

static void state_free(struct state *state)
{
    for (int s = 0; s < STAGE_STATE_COUNT; s++) free(state->values[s]);
    free(state->times);
    free(state->unit_begin);
    params_free(&state->params);
}

static void take_range(
    struct state *state, FILE *file, const struct manifest_range *range, const struct params *part)
{
    for (int s = 0; s < STAGE_STATE_COUNT; s++) {
        struct params_walk walk =
            params_walk(part, range->unit, range->begin, range->begin + range->count);
        fseek(file, (long)(range->offset + (uint64_t)s * range->count * sizeof(float)), SEEK_SET);
        for (struct params_run run; params_next_run(&run, &walk);) {
            size_t at = state->unit_begin[range->unit] + run.whole_begin;
            CHECK(fread(state->values[s] + at, sizeof(float), run.count, file) == run.count);
            for (size_t i = 0; i < run.count; i++) state->times[at + i] += s == 0;
        }
    }
}

static struct state read_state(const char *directory, const struct train_config *config)
{
    struct state state = state_make(&config->model);
    struct trainer trainer = {.config = *config, .nranks = 1, .rank = 1}; /* warns of nothing */
    struct manifest manifest;
    trainer.grid = grid_at(0, 1, 1, 1, 1);
    CHECK_OK(manifest_read(&manifest, directory, &trainer));
    for (int i = 0; i < manifest.shard_count; i++) {
        const struct manifest_shard *shard = &manifest.shard[i];
        char path[CHECKPOINT_PATH_BYTES];
        CHECK_OK(path_join(path, directory, shard->name));
        FILE *file = fopen(path, "r");
        if (file == NULL) abort();
        for (int k = 0; k < shard->range_count; k++)
            take_range(&state, file, &shard->range[k], &manifest.part[shard->part]);
        fclose(file);
    }
    manifest_free(&manifest);
    return state;
}

/* Every element is in one file, and the gradients of each unit are those of one rank within 1e-5: m
 * after one step is (1 − β₁)·g. */
static __attribute__((unused)) void check_gradients(
    const struct state *found, const struct state *one, const char *what)
{
    const struct params *params = &one->params;
    for (size_t i = 0; i < params->elements; i++)
        CHECK_MSG(found->times[i] == 1, "%s: %d files have element %zu", what, found->times[i], i);
    double *expected = calloc(params->elements, sizeof *expected);
    if (expected == NULL) abort();
    for (int u = 0; u < params->unit_count; u++) {
        size_t begin = one->unit_begin[u], count = params->unit_elements[u];
        for (size_t i = 0; i < count; i++) expected[i] = (double)one->values[STAGE_M][begin + i];
        double error = relative_error(found->values[STAGE_M] + begin, expected, count);
        CHECK_MSG(error <= 1e-5, "%s, unit %d: relative error %.3g", what, u, error);
    }
    free(expected);
}

#endif
