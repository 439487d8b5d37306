/* Ranks, as threads, that each hold a slice of every matrix (params_make_part) and the hooks sum and max:
 * loss and gradients are those of one rank that holds everything, and so are logits. The slices are uneven:
 * of 2 ranks, 1 and 2 heads, 1 and 2 rows of a unit; of 3, units of 2 rows, of which one rank has none. Heads of
 * Llama's queries are cut in pairs, with the keys and values that they share. With
 * blocks computed again in backward the bits are the same, and each block has one sum more.
 * ctest: timeout=60
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"
#include "tests/harness/reference.h"

enum {
    MOST_RANKS = 3,
    BATCH = 2,
    T = 5,
    C = 12,
    HEADS = 3,
    VOCAB = 10,
    MOST_UNITS = 9,
    LARGEST = 12 * C * C + 13 * C
};
static const int32_t tokens[BATCH * T] = {1, 2, 3, 4, 5, 9, 8, 7, 6, 0};
static const int32_t targets[BATCH * T] = {2, 3, -1, 5, 9, 8, 7, 6, 0, 1};

struct meeting {
    pthread_barrier_t barrier;
    int ranks;
    const float *part[MOST_RANKS]; /* written by rank r before the barrier, read by all after it */
};

struct member { /* the context of the tensor hooks */
    int number;
    struct meeting *meeting;
    int sums;
};

struct rank {
    const struct model_host *whole;
    struct member member;
    struct params params;
    float weights[MOST_UNITS][LARGEST], gradients[MOST_UNITS][LARGEST];
    bool recompute;
    double loss;
    float logits[VOCAB];
    pthread_t thread;
};

static float together(const struct meeting *meeting, size_t i, bool largest)
{
    float result = meeting->part[0][i];
    for (int r = 1; r < meeting->ranks; r++) {
        float other = meeting->part[r][i];
        result = !largest ? result + other : result > other ? result : other;
    }
    return result;
}

/* Every rank brings x; all take the same combination. */
static enum status combine(struct member *member, struct span x, size_t count, bool largest)
{
    float *own = x.ptr, *result = malloc(count * sizeof *result);
    if (result == NULL || x.bytes != count * sizeof *result) abort();
    member->meeting->part[member->number] = own;
    pthread_barrier_wait(&member->meeting->barrier);
    for (size_t i = 0; i < count; i++) result[i] = together(member->meeting, i, largest);
    pthread_barrier_wait(&member->meeting->barrier); /* all have read before any writes */
    memcpy(own, result, count * sizeof *result);
    free(result);
    return STATUS_OK;
}

static enum status sum(void *tensor, struct span x, size_t count)
{
    ((struct member *)tensor)->sums++;
    return combine(tensor, x, count, false);
}

static enum status max(void *tensor, struct span x, size_t count)
{
    return combine(tensor, x, count, true);
}

static enum status enter(void *context, struct unit_view *view, int unit, enum unit_use use)
{
    struct rank *rank = context;
    size_t bytes = rank->params.unit_elements[unit] * sizeof(float);
    view->weights = span_host(rank->weights[unit], bytes);
    if (use != UNIT_FORWARD) view->gradients = span_host(rank->gradients[unit], bytes);
    return STATUS_OK;
}

static void step(double *loss, float *logits, const struct params *params,
    const struct model_hooks *hooks, bool recompute)
{
    struct device *device;
    struct model *model;
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    struct model_run run = model_host_run(BATCH, T);
    run.recompute = recompute;
    if (!CHECK_OK(model_open(&model, params, hooks, &run, device))) return;
    CHECK_OK(model_forward(loss, &valid, tokens, targets, BATCH, T, model));
    CHECK(valid == BATCH * T - 1);
    CHECK_OK(model_logits(logits, 1, 3, model));
    CHECK_OK(model_backward(1.0f, model));
    model_close(model);
    device_close(device);
}

static void *rank_main(void *argument)
{
    struct rank *rank = argument;
    const struct model_config *config = &rank->whole->params.config;
    const struct params_part part = {rank->member.number, rank->member.meeting->ranks, 0, 1};
    if (!CHECK_OK(params_make_part(&rank->params, config, &part))) abort();
    for (int u = 0; u < rank->params.unit_count; u++) {
        const float *whole = rank->whole->weights + rank->whole->unit_begin[u];
        struct params_walk walk = params_walk(&rank->params, u, 0, rank->params.unit_elements[u]);
        for (struct params_run run; params_next_run(&run, &walk);)
            memcpy(
                rank->weights[u] + run.begin, whole + run.whole_begin, run.count * sizeof *whole);
    }
    struct model_hooks hooks = {
        .context = rank, .enter = enter, .tensor = &rank->member, .sum = sum, .max = max};
    step(&rank->loss, rank->logits, &rank->params, &hooks, rank->recompute);
    return NULL;
}

static void check_rank(
    const struct rank *rank, const struct model_host *whole, double loss, const float *logits)
{
    double expected[LARGEST];
    CHECK_MSG(fabs(rank->loss / loss - 1.0) < 1e-6, "loss %.9g, expected %.9g", rank->loss, loss);
    for (int v = 0; v < VOCAB; v++) expected[v] = (double)logits[v];
    CHECK(relative_error(rank->logits, expected, VOCAB) <= 1e-5);
    for (int u = 0; u < rank->params.unit_count; u++) {
        size_t count = rank->params.unit_elements[u];
        const float *gradients = whole->gradients + whole->unit_begin[u];
        struct params_walk walk = params_walk(&rank->params, u, 0, count);
        for (struct params_run run; params_next_run(&run, &walk);)
            for (size_t i = 0; i < run.count; i++)
                expected[run.begin + i] = (double)gradients[run.whole_begin + i];
        double error = count > 0 ? relative_error(rank->gradients[u], expected, count) : 0.0;
        CHECK_MSG(
            error <= 1e-5, "rank %d unit %d: relative error %.3g", rank->member.number, u, error);
    }
}

/* One step of all; the ranks afterwards. */
static struct rank *run_ranks(const struct model_host *whole, int count, bool recompute)
{
    struct meeting meeting = {.ranks = count};
    pthread_barrier_init(&meeting.barrier, NULL, (unsigned)count);
    struct rank *ranks = calloc((size_t)count, sizeof *ranks);
    if (ranks == NULL) abort();
    for (int r = 0; r < count; r++) {
        ranks[r].member.number = r;
        ranks[r].member.meeting = &meeting;
        ranks[r].whole = whole;
        ranks[r].recompute = recompute;
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) != 0) abort();
    }
    for (int r = 0; r < count; r++) pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&meeting.barrier);
    return ranks;
}

static void test_ranks(enum architecture architecture, int count, int vocab_block)
{
    bool llama = architecture == ARCHITECTURE_LLAMA;
    const struct model_config config = {.architecture = architecture,
        .max_t = 6,
        .vocab = VOCAB,
        .layers = 2,
        .heads = llama ? 2 * HEADS : HEADS,
        .channels = C,
        .vocab_block = vocab_block,
        .kv_heads = HEADS,
        .hidden = llama ? 22 : 0};
    struct model_host whole = model_host_make(&config, 5);
    CHECK(whole.params.unit_count <= MOST_UNITS);
    for (size_t i = 0; i < whole.params.elements; i++)
        whole.weights[i] *=
            llama ? 5.0f : 10.0f; /* far from uniform predictions; SwiGLU multiplies */
    struct model_hooks hooks = model_host_hooks(&whole);
    double loss;
    float logits[VOCAB];
    step(&loss, logits, &whole.params, &hooks, false);

    struct rank *kept = run_ranks(&whole, count, false), *again = run_ranks(&whole, count, true);
    for (int r = 0; r < count; r++) {
        check_rank(&kept[r], &whole, loss, logits);
        CHECK(again[r].loss == kept[r].loss);
        CHECK(memcmp(again[r].logits, kept[r].logits, sizeof kept[r].logits) == 0);
        CHECK(memcmp(again[r].gradients, kept[r].gradients, sizeof kept[r].gradients) == 0);
        CHECK_MSG(again[r].member.sums == kept[r].member.sums + config.layers, "%d and %d",
            again[r].member.sums, kept[r].member.sums);
        params_free(&kept[r].params), params_free(&again[r].params);
    }
    free(kept), free(again);
    model_host_free(&whole);
}

/* Parts cannot run alone. */
static void test_hooks_missing(void)
{
    const struct model_config config = {
        .max_t = 6, .vocab = VOCAB, .layers = 2, .heads = HEADS, .channels = C};
    struct params params;
    struct device *device;
    struct model *model;
    if (!CHECK_OK(params_make_part(&params, &config, &(struct params_part){0, 3, 0, 1}))) return;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    const struct model_hooks hooks = {.enter = enter, .sum = sum};
    struct model_run run = model_host_run(BATCH, T);
    CHECK_STATUS(model_open(&model, &params, &hooks, &run, device), STATUS_INVALID);
    CHECK_MSG(strstr(status_text(), "3 ranks") != NULL, "%s", status_text());
    device_close(device);
    params_free(&params);
}

int main(void)
{
    test_ranks(ARCHITECTURE_GPT2, 2, 4);
    test_ranks(ARCHITECTURE_GPT2, 3, 2);
    test_ranks(ARCHITECTURE_LLAMA, 2, 4);
    test_ranks(ARCHITECTURE_LLAMA, 3, 2);
    test_hooks_missing();
    return test_result();
}
