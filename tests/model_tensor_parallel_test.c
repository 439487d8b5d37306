/* Ranks, as threads, that each hold a slice of every matrix (params_make_part) and the hooks sum and max:
 * loss and gradients are those of one rank that holds everything, and so are logits. The slices are uneven:
 * of 2 ranks, 1 and 2 heads, 1 and 2 rows of a unit; of 3, units of 2 rows, of which one rank has none. Heads of
 * Llama's queries are cut in pairs, with the keys and values that they share. With
 * blocks computed again in backward the bits are the same. With rows of x cut, evenly or not, so are loss,
 * logits, and gradients but those of norms. The calls of every hook are those that uses.h tells.
 * ctest: timeout=60
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "model/uses.h"
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
    uint64_t calls[4], elements[4]; /* by enum model_tensor_hook */
};

enum way { KEPT, AGAIN, CUT, CUT_AGAIN, WAYS }; /* computed again; rows cut */

struct rank {
    const struct model_host *whole;
    struct member member;
    struct params params;
    float weights[MOST_UNITS][LARGEST], gradients[MOST_UNITS][LARGEST];
    enum way way;
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

static void count_call(enum model_tensor_hook hook, size_t elements, struct member *member)
{
    member->calls[hook]++;
    member->elements[hook] += elements;
}

static enum status sum(void *tensor, struct span x, size_t count)
{
    count_call(MODEL_SUM, count, tensor);
    return combine(tensor, x, count, false);
}

static enum status max(void *tensor, struct span x, size_t count)
{
    count_call(MODEL_MAX, count, tensor);
    return combine(tensor, x, count, true);
}

/* Of (rows, C), those of a rank. */
static struct span rows_of(struct span whole, size_t rows, int rank, const struct meeting *meeting)
{
    struct params_slice own = params_share(rows, rank, meeting->ranks);
    size_t row = whole.bytes / rows;
    return span_part(whole, own.begin * row, own.count * row);
}

static enum status scatter_sum(void *tensor, struct span own, struct span whole, size_t rows)
{
    struct member *member = tensor;
    struct span mine = rows_of(whole, rows, member->number, member->meeting);
    count_call(MODEL_SCATTER_SUM, whole.bytes / sizeof(float), member);
    TRY(combine(member, whole, whole.bytes / sizeof(float), false));
    CHECK(own.bytes == mine.bytes);
    memmove(own.ptr, mine.ptr, own.bytes);
    for (char *at = whole.ptr, *end = at + whole.bytes; at < end; at++) /* others' rows are lost */
        if (at < (char *)mine.ptr || at >= (char *)mine.ptr + mine.bytes) *at = 0x7f;
    return STATUS_OK;
}

static enum status gather(void *tensor, struct span whole, struct span own, size_t rows)
{
    struct member *member = tensor;
    struct meeting *meeting = member->meeting;
    count_call(MODEL_GATHER, whole.bytes / sizeof(float), member);
    CHECK(own.bytes == rows_of(whole, rows, member->number, meeting).bytes);
    meeting->part[member->number] = own.ptr;
    pthread_barrier_wait(&meeting->barrier);
    for (int r = 0; r < meeting->ranks; r++) {
        struct span theirs = rows_of(whole, rows, r, meeting);
        if (theirs.ptr != meeting->part[r]) /* own rows may be there already, and others read them */
            memmove(theirs.ptr, meeting->part[r], theirs.bytes);
    }
    pthread_barrier_wait(&meeting->barrier);
    return STATUS_OK;
}

/* What uses.h tells of a pass and of logits, which step() asks for. */
static void check_calls(const struct rank *rank)
{
    struct model_tensor_call calls[MODEL_TENSOR_CALLS_MOST];
    const struct model_run run = {.recompute = rank->way % 2 == 1, .cut_rows = rank->way >= CUT};
    uint64_t times[4] = {[MODEL_SUM] = 1}, elements[4] = {[MODEL_SUM] = VOCAB};
    int count = model_tensor_calls(calls, PASS_TRAIN, BATCH, T, &rank->params, &run);
    for (int i = 0; i < count; i++) {
        times[calls[i].hook] += calls[i].times;
        elements[calls[i].hook] += calls[i].times * calls[i].count;
    }
    for (int hook = 0; hook < 4; hook++)
        CHECK_MSG(rank->member.calls[hook] == times[hook] &&
                      rank->member.elements[hook] == elements[hook],
            "way %d, hook %d: %llu calls of %llu elements, expected %llu of %llu", (int)rank->way,
            hook, (unsigned long long)rank->member.calls[hook],
            (unsigned long long)rank->member.elements[hook], (unsigned long long)times[hook],
            (unsigned long long)elements[hook]);
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
    const struct model_hooks *hooks, enum way way)
{
    struct device *device;
    struct model *model;
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    struct model_run run = model_host_run(BATCH, T);
    run.recompute = way % 2 == 1;
    run.cut_rows = way >= CUT;
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
    struct model_hooks hooks = {.context = rank,
        .enter = enter,
        .tensor = &rank->member,
        .sum = sum,
        .max = max,
        .scatter_sum = scatter_sum,
        .gather = gather};
    step(&rank->loss, rank->logits, &rank->params, &hooks, rank->way);
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
static struct rank *run_ranks(const struct model_host *whole, int count, enum way way)
{
    struct meeting meeting = {.ranks = count};
    pthread_barrier_init(&meeting.barrier, NULL, (unsigned)count);
    struct rank *ranks = calloc((size_t)count, sizeof *ranks);
    if (ranks == NULL) abort();
    for (int r = 0; r < count; r++) {
        ranks[r].member.number = r;
        ranks[r].member.meeting = &meeting;
        ranks[r].whole = whole;
        ranks[r].way = way;
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) != 0) abort();
    }
    for (int r = 0; r < count; r++) pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&meeting.barrier);
    return ranks;
}

/* Not of norms: each rank has the part of its rows, which makes another order. */
static void check_same_bits(const struct rank *a, const struct rank *b)
{
    CHECK(a->loss == b->loss);
    CHECK(memcmp(a->logits, b->logits, sizeof a->logits) == 0);
    for (int i = 0; i < a->params.param_count; i++) {
        const struct param *param = &a->params.param[i];
        bool norm = strstr(param->name, "ln") != NULL, cut = (a->way >= CUT) != (b->way >= CUT);
        size_t bytes = param->rows * param->cols * sizeof(float);
        if (norm && cut) continue;
        CHECK_MSG(memcmp(a->gradients[param->unit] + param->offset,
                      b->gradients[param->unit] + param->offset, bytes) == 0,
            "ways %d and %d: %s has other bits", (int)a->way, (int)b->way, param->name);
    }
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
    step(&loss, logits, &whole.params, &hooks, KEPT);

    struct rank *ranks[WAYS];
    for (int way = 0; way < WAYS; way++) {
        ranks[way] = run_ranks(&whole, count, (enum way)way);
        for (int r = 0; r < count; r++) {
            check_rank(&ranks[way][r], &whole, loss, logits);
            check_same_bits(&ranks[way][r], &ranks[KEPT][r]);
            check_same_bits(&ranks[way][r], &ranks[way < CUT ? KEPT : CUT][r]);
            check_calls(&ranks[way][r]);
        }
    }
    for (int way = 0; way < WAYS; way++) {
        for (int r = 0; r < count; r++) params_free(&ranks[way][r].params);
        free(ranks[way]);
    }
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
    struct model_hooks hooks = {.enter = enter, .sum = sum};
    struct model_run run = model_host_run(BATCH, T);
    CHECK_STATUS(model_open(&model, &params, &hooks, &run, device), STATUS_INVALID);
    CHECK_MSG(strstr(status_text(), "3 ranks") != NULL, "%s", status_text());
    hooks.max = max;
    hooks.gather = gather;
    run.cut_rows = true;
    CHECK_STATUS(model_open(&model, &params, &hooks, &run, device), STATUS_INVALID);
    CHECK_MSG(strstr(status_text(), "rows are cut over 3 ranks") != NULL, "%s", status_text());
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
