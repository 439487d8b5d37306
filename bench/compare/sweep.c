/* sweep: see sweep.h. */
#include "bench/compare/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES       5
#define MOST_IN_BATCH 20000
#define PATIENCE_S    1.5 /* an operation that takes longer is measured once */

static const char *const names[SWEEP_COLLECTIVES] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};

/* ---- options ---- */

static size_t parse_bytes(const char *text)
{
    char *end;
    size_t value = strtoull(text, &end, 10);
    if (*end == 'K') value <<= 10;
    if (*end == 'M') value <<= 20;
    return value;
}

static int refuse(const char *option, const char *value, const char *expected)
{
    fprintf(stderr, "sweep: %s is \"%s\"; expected %s\n", option, value, expected);
    return 2;
}

static int take_collective(struct sweep_options *options, const char *name)
{
    for (int c = 0; c < SWEEP_COLLECTIVES; c++) {
        if (strcmp(name, names[c]) != 0) continue;
        options->collectives[c] = true;
        return 0;
    }
    return refuse("--collectives", name, "a list of all_reduce, reduce_scatter, all_gather, broadcast");
}

static int take_size(struct sweep_options *options, const char *text)
{
    size_t bytes = parse_bytes(text);
    if (bytes < 4 || options->size_count == (int)(sizeof options->sizes / sizeof *options->sizes))
        return refuse("--sizes", text, "at most 32 sizes of 4 bytes or more, such as 8,64K,16M");
    options->sizes[options->size_count++] = bytes;
    return 0;
}

static int take_mode(struct sweep_options *options, const char *name)
{
    if (strcmp(name, "in") == 0) options->in_place = true;
    else if (strcmp(name, "out") == 0) options->out_of_place = true;
    else return refuse("--modes", name, "in, out or both");
    return 0;
}

static int take_list(struct sweep_options *options, char *list, int (*take)(struct sweep_options *, const char *))
{
    int wrong = 0;
    char *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word != NULL && wrong == 0; word = strtok_r(NULL, ",", &rest))
        wrong = take(options, word);
    return wrong;
}

int sweep_parse(struct sweep_options *options, int argc, char **argv)
{
    *options = (struct sweep_options){.point_ms = 40};
    int wrong = 0;
    for (int i = 1; i + 1 < argc && wrong == 0; i += 2) {
        if (strcmp(argv[i], "--collectives") == 0) wrong = take_list(options, argv[i + 1], take_collective);
        else if (strcmp(argv[i], "--sizes") == 0) wrong = take_list(options, argv[i + 1], take_size);
        else if (strcmp(argv[i], "--modes") == 0) wrong = take_list(options, argv[i + 1], take_mode);
        else if (strcmp(argv[i], "--ms") == 0) options->point_ms = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--memory") == 0) options->own_memory = strcmp(argv[i + 1], "own") == 0;
    }
    if (!options->in_place && !options->out_of_place) options->in_place = options->out_of_place = true;
    if (wrong == 0 && options->size_count == 0) wrong = refuse("--sizes", "", "a list of sizes");
    return wrong;
}

/* ---- one operation ---- */

static bool has_parts(enum sweep_collective collective)
{
    return collective == SWEEP_REDUCE_SCATTER || collective == SWEEP_ALL_GATHER;
}

static size_t call_elements(const struct sweep_call *call, const struct sweep_peer *peer)
{
    return has_parts(call->collective) ? call->count * (size_t)peer->nranks : call->count;
}

/* a and b: room for the whole array each. Out of place from a to b, in place within b. */
static struct sweep_call make_call(
    enum sweep_collective collective, bool in_place, size_t bytes, float *a, float *b, const struct sweep_peer *peer)
{
    struct sweep_call call = {.collective = collective, .in_place = in_place, .count = bytes / sizeof(float)};
    if (has_parts(collective)) call.count /= (size_t)peer->nranks;
    if (call.count == 0) call.count = 1;
    size_t own = call.count * (size_t)peer->rank;
    call.send = in_place && collective == SWEEP_ALL_GATHER ? b + own : in_place ? b : a;
    bool part = in_place && collective == SWEEP_REDUCE_SCATTER && !peer->in_place_part_first;
    call.recv = part ? b + own : b;
    return call;
}

/* Small integers: sums are exact in any order. */
static float input_value(int rank, size_t i)
{
    return (float)((i * 5 + (size_t)rank * 3) % 17);
}

static float expected_value(const struct sweep_call *call, size_t i, const struct sweep_peer *peer)
{
    if (call->collective == SWEEP_BROADCAST) return input_value(0, i);
    if (call->collective == SWEEP_ALL_GATHER) return input_value((int)(i / call->count), i % call->count);
    if (call->collective == SWEEP_REDUCE_SCATTER) i += call->count * (size_t)peer->rank;
    float sum = 0;
    for (int r = 0; r < peer->nranks; r++) sum += input_value(r, i);
    return sum;
}

static int check_call(const struct sweep_call *call, const struct sweep_peer *peer)
{
    size_t whole = call_elements(call, peer);
    size_t sends = call->collective == SWEEP_ALL_GATHER ? call->count : whole;
    size_t receives = call->collective == SWEEP_REDUCE_SCATTER ? call->count : whole;
    float *send = call->collective == SWEEP_BROADCAST ? call->recv : call->send;
    for (size_t i = 0; i < sends; i++) send[i] = input_value(peer->rank, i);
    if (peer->operate(call, peer->context) != 0) return 1;
    double wrong = 0;
    for (size_t i = 0; i < receives; i++) wrong += call->recv[i] != expected_value(call, i, peer);
    if (peer->maximum(&wrong, peer->context) != 0) return 1;
    if (wrong > 0)
        fprintf(stderr, "sweep: %s of %zu elements: up to %g wrong\n", names[call->collective], whole, wrong);
    return wrong > 0;
}

/* ---- time ---- */

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Mean seconds of an operation in a row of them, of the slowest rank. */
static int batch(double *seconds, int operations, const struct sweep_call *call, const struct sweep_peer *peer)
{
    double ready = 0;
    if (peer->maximum(&ready, peer->context) != 0) return 1;
    double begin = now_s();
    for (int i = 0; i < operations; i++)
        if (peer->operate(call, peer->context) != 0) return 1;
    *seconds = (now_s() - begin) / operations;
    return peer->maximum(seconds, peer->context);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Finds how many operations fill a batch, then measures batches. All ranks decide alike: they see the same maxima. */
static int measure(
    double *median_s, int *operations, const struct sweep_call *call, double point_ms, const struct sweep_peer *peer)
{
    double times[BATCHES], one, goal_s = point_ms / 1000 / BATCHES;
    int in_batch = 1, batches = 0;
    if (batch(&one, 1, call, peer) != 0) return 1;
    while (one * in_batch < goal_s / 2 && in_batch < MOST_IN_BATCH) {
        double grow = one > 0 ? goal_s / (one * in_batch) : 16;
        in_batch = (int)(in_batch * (grow > 16 ? 16 : grow < 2 ? 2 : grow));
        if (in_batch > MOST_IN_BATCH) in_batch = MOST_IN_BATCH;
        if (batch(&one, in_batch, call, peer) != 0) return 1;
    }
    int enough = one > PATIENCE_S ? 1 : one > goal_s ? 3 : BATCHES;
    if (enough == 1) times[batches++] = one;
    while (batches < enough)
        if (batch(&times[batches++], in_batch, call, peer) != 0) return 1;
    qsort(times, (size_t)batches, sizeof *times, compare_doubles);
    *median_s = times[batches / 2];
    *operations = in_batch * batches;
    return 0;
}

static int sweep_point(
    const struct sweep_call *call, const struct sweep_options *options, const struct sweep_peer *peer, size_t bytes)
{
    double median_s = 0;
    int operations = 0;
    if (check_call(call, peer) != 0 || measure(&median_s, &operations, call, options->point_ms, peer) != 0) return 1;
    if (peer->rank == 0) {
        printf("point %s %zu %s %.3f %d\n", names[call->collective], bytes, call->in_place ? "in" : "out",
            median_s * 1e6, operations);
        fflush(stdout);
    }
    return 0;
}

int sweep_run(const struct sweep_options *options, const struct sweep_peer *peer)
{
    size_t most = 0;
    for (int s = 0; s < options->size_count; s++)
        if (options->sizes[s] > most) most = options->sizes[s];
    most += 64 * (size_t)peer->nranks; /* whole elements of every rank, and a fresh line */
    most = (most + 63) / 64 * 64;
    float *a = options->own_memory ? peer->allocate(most, peer->context) : aligned_alloc(64, most);
    float *b = options->own_memory ? peer->allocate(most, peer->context) : aligned_alloc(64, most);
    int failed = a == NULL || b == NULL;
    if (failed) fprintf(stderr, "sweep: no memory for 2 buffers of %zu bytes\n", most);
    if (!failed) {
        memset(a, 0, most); /* no page fault is measured */
        memset(b, 0, most);
    }
    for (int s = 0; s < options->size_count && !failed; s++)
        for (int c = 0; c < SWEEP_COLLECTIVES && !failed; c++)
            for (int in = 0; in < 2 && !failed; in++) {
                bool wanted =
                    in ? options->in_place || c == SWEEP_BROADCAST : options->out_of_place && c != SWEEP_BROADCAST;
                if (!options->collectives[c] || !wanted) continue;
                struct sweep_call call = make_call((enum sweep_collective)c, in, options->sizes[s], a, b, peer);
                failed = sweep_point(&call, options, peer, options->sizes[s]);
            }
    if (options->own_memory) {
        peer->release(a, most, peer->context);
        peer->release(b, most, peer->context);
    } else {
        free(a);
        free(b);
    }
    return failed;
}
