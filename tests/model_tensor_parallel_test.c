/* Two ranks, as threads, that each hold a slice of every matrix through the hooks sum, max and
 * local_slice: loss and gradients are those of one rank that holds everything, and so are logits.
 * The slices are uneven: 1 and 2 heads, 1 and 2 rows of a unit. With blocks computed again in
 * backward the bits are the same, and each block has one sum more.
 * ctest: timeout=60
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/gpt2.h"
#include "tests/harness/harness.h"
#include "tests/harness/model_host.h"
#include "tests/harness/reference.h"

enum {
    RANKS = 2,
    BATCH = 2,
    T = 5,
    C = 12,
    HEADS = 3,
    VOCAB = 10,
    UNITS = 7,
    LARGEST = 12 * C * C + 13 * C
};
static const struct gpt2_config config = {
    .max_t = 6, .vocab = VOCAB, .layers = 2, .heads = HEADS, .channels = C, .vocab_block = 4};
static const int32_t tokens[BATCH * T] = {1, 2, 3, 4, 5, 9, 8, 7, 6, 0};
static const int32_t targets[BATCH * T] = {2, 3, -1, 5, 9, 8, 7, 6, 0, 1};

struct meeting {
    pthread_barrier_t barrier;
    const float *part[RANKS]; /* written by rank r before the barrier, read by all after it */
};

struct member { /* the context of the tensor hooks */
    int number;
    struct meeting *meeting;
    int sums;
};

struct rank {
    const struct model_host *whole;
    struct member member;
    size_t map[UNITS][LARGEST]; /* element of the local unit → element of the whole one */
    size_t count[UNITS];
    float weights[UNITS][LARGEST], gradients[UNITS][LARGEST];
    bool recompute;
    double loss;
    float logits[VOCAB];
    pthread_t thread;
};

static void local_slice(void *tensor, size_t *begin, size_t *count, size_t total)
{
    size_t number = (size_t)((struct member *)tensor)->number;
    *begin = total * number / RANKS;
    *count = total * (number + 1) / RANKS - *begin;
}

/* Every rank brings x; all take the same combination. */
static enum status combine(struct member *member, struct span x, size_t count, bool largest)
{
    float *own = x.ptr, *result = malloc(count * sizeof *result);
    if (result == NULL || x.bytes != count * sizeof *result) abort();
    member->meeting->part[member->number] = own;
    pthread_barrier_wait(&member->meeting->barrier);
    const float *a = member->meeting->part[0], *b = member->meeting->part[1];
    for (size_t i = 0; i < count; i++)
        result[i] = largest ? (a[i] > b[i] ? a[i] : b[i]) : a[i] + b[i];
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
    size_t bytes = rank->count[unit] * sizeof(float);
    view->weights = span_host(rank->weights[unit], bytes);
    if (use != UNIT_FORWARD) view->gradients = span_host(rank->gradients[unit], bytes);
    return STATUS_OK;
}

/* Appends to the map the rows and columns [begin, begin + count) of a tensor of `cols` columns. */
static void hold(struct rank *rank, int unit, size_t offset, size_t cols, size_t row, size_t rows,
    size_t col, size_t held_cols)
{
    for (size_t r = row; r < row + rows; r++)
        for (size_t c = col; c < col + held_cols; c++)
            rank->map[unit][rank->count[unit]++] = offset + r * cols + c;
}

static void hold_param(struct rank *rank, const struct param *param)
{
    size_t head, heads, hidden, hiddens, row, rows, head_cols = C / HEADS;
    local_slice(&rank->member, &head, &heads, HEADS);
    local_slice(&rank->member, &hidden, &hiddens, 4 * C);
    local_slice(&rank->member, &row, &rows, param->rows);
    const char *name =
        strrchr(param->name, '.') != NULL ? strrchr(param->name, '.') + 1 : param->name;
    if (strncmp(name, "wte", 3) == 0) hold(rank, param->unit, param->offset, C, row, rows, 0, C);
    else if (strncmp(name, "qkv", 3) == 0)
        for (size_t part = 0; part < 3; part++)
            hold(rank, param->unit, param->offset, param->cols, part * C + head * head_cols,
                heads * head_cols, 0, param->cols);
    else if (strcmp(name, "attprojw") == 0)
        hold(rank, param->unit, param->offset, C, 0, C, head * head_cols, heads * head_cols);
    else if (strcmp(name, "fcw") == 0 || strcmp(name, "fcb") == 0)
        hold(rank, param->unit, param->offset, param->cols, hidden, hiddens, 0, param->cols);
    else if (strcmp(name, "fcprojw") == 0)
        hold(rank, param->unit, param->offset, param->cols, 0, C, hidden, hiddens);
    else hold(rank, param->unit, param->offset, param->cols, 0, param->rows, 0, param->cols);
}

static void step(double *loss, float *logits, const struct params *params,
    const struct model_hooks *hooks, bool recompute)
{
    struct device *device;
    struct gpt2 *model;
    size_t valid;
    if (!CHECK_OK(device_open(&device, "host"))) return;
    struct gpt2_run run = model_host_run(BATCH, T);
    run.recompute = recompute;
    if (!CHECK_OK(gpt2_open(&model, params, hooks, &run, device))) return;
    CHECK_OK(gpt2_forward(loss, &valid, tokens, targets, BATCH, T, model));
    CHECK(valid == BATCH * T - 1);
    CHECK_OK(gpt2_logits(logits, 1, 3, model));
    CHECK_OK(gpt2_backward(1.0f, model));
    gpt2_close(model);
    device_close(device);
}

static void *rank_main(void *argument)
{
    struct rank *rank = argument;
    const struct params *params = &rank->whole->params;
    for (int i = 0; i < params->param_count; i++) hold_param(rank, &params->param[i]);
    for (int u = 0; u < UNITS; u++)
        for (size_t i = 0; i < rank->count[u]; i++)
            rank->weights[u][i] =
                rank->whole->weights[rank->whole->unit_begin[u] + rank->map[u][i]];
    struct model_hooks hooks = {.context = rank,
        .enter = enter,
        .tensor = &rank->member,
        .sum = sum,
        .max = max,
        .local_slice = local_slice};
    step(&rank->loss, rank->logits, params, &hooks, rank->recompute);
    return NULL;
}

static void check_rank(
    const struct rank *rank, const struct model_host *whole, double loss, const float *logits)
{
    double expected[LARGEST];
    CHECK_MSG(fabs(rank->loss / loss - 1.0) < 1e-6, "loss %.9g, expected %.9g", rank->loss, loss);
    for (int v = 0; v < VOCAB; v++) expected[v] = (double)logits[v];
    CHECK(relative_error(rank->logits, expected, VOCAB) <= 1e-5);
    for (int u = 0; u < UNITS; u++) {
        for (size_t i = 0; i < rank->count[u]; i++)
            expected[i] = (double)whole->gradients[whole->unit_begin[u] + rank->map[u][i]];
        double error = relative_error(rank->gradients[u], expected, rank->count[u]);
        CHECK_MSG(error <= 1e-5, "rank %d unit %d: relative error %.3g", rank->member.number, u,
            error);
    }
}

/* One step of all; the ranks afterwards. */
static struct rank *run_ranks(const struct model_host *whole, bool recompute)
{
    struct meeting meeting;
    pthread_barrier_init(&meeting.barrier, NULL, RANKS);
    struct rank *ranks = calloc(RANKS, sizeof *ranks);
    if (ranks == NULL) abort();
    for (int r = 0; r < RANKS; r++) {
        ranks[r].member.number = r;
        ranks[r].member.meeting = &meeting;
        ranks[r].whole = whole;
        ranks[r].recompute = recompute;
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) != 0) abort();
    }
    for (int r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&meeting.barrier);
    return ranks;
}

int main(void)
{
    struct model_host whole = model_host_make(&config, 5);
    CHECK(whole.params.unit_count == UNITS);
    for (size_t i = 0; i < whole.params.elements; i++)
        whole.weights[i] *= 10.0f; /* far from uniform predictions */
    struct model_hooks hooks = model_host_hooks(&whole);
    double loss;
    float logits[VOCAB];
    step(&loss, logits, &whole.params, &hooks, false);

    struct rank *kept = run_ranks(&whole, false), *again = run_ranks(&whole, true);
    for (int r = 0; r < RANKS; r++) {
        check_rank(&kept[r], &whole, loss, logits);
        CHECK(again[r].loss == kept[r].loss);
        CHECK(memcmp(again[r].logits, kept[r].logits, sizeof kept[r].logits) == 0);
        CHECK(memcmp(again[r].gradients, kept[r].gradients, sizeof kept[r].gradients) == 0);
        CHECK_MSG(again[r].member.sums == kept[r].member.sums + config.layers, "%d and %d",
            again[r].member.sums, kept[r].member.sums);
    }
    free(kept), free(again);
    model_host_free(&whole);
    return test_result();
}
