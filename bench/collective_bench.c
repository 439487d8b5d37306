/* collective_bench: `ringzero bench COLLECTIVE` measures one collective over a range of sizes.
 *
 * A row is one size: the operation is checked (every element of the output, beyond it, and that the
 * input of an out-of-place call stayed), then timed, out of place and in place. Its time is the
 * mean of -n operations in a row, of the slowest rank.
 *
 *   size    of the whole array, also for reduce_scatter and all_gather, whose count is one part
 *   algbw   size / time
 *   busbw   algbw · factor: what each rank's link carries, comparable between collectives
 *
 * Invariant I4: at the end every rank's measured bytes must equal the predicted ones.
 * source: nccl-tests, doc/PERFORMANCE.md.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/collective_options.h"
#include "bench/job.h"
#include "bench/limit.h"
#include "bench/pattern.h"
#include "bench/programs.h"
#include "bench/report.h"
#include "verbs/clock.h"

#define DEFAULT_RANKS    2
#define LIMIT_MOST_BYTES ((size_t)128 << 20)
#define GUARD_BYTES      64 /* behind every output: must stay poisoned */

/* ---- one operation ---- */

struct call {
    enum collective collective;
    size_t count;
    enum dtype dtype;
    enum redop redop;
    int root;
};

struct bench {
    const struct bench_options *options;
    struct job *job;
    struct limit limit;
    struct span a, b; /* the largest array and its guard, each */
    struct pattern input, expected;
    uint64_t predicted_bytes; /* of all operations so far */
    uint64_t wrong;
    double bus_bw_sum;
    int measurements;
};

struct place {
    struct span send, recv;
    struct span guard; /* what lies behind recv, or behind the array that recv is in */
};

/* Where the buffers of an operation lie: out of place in a and b, in place in b alone. */
static struct place place_of(const struct call *call, bool in_place, const struct bench *bench)
{
    size_t part = call->count * dtype_bytes(call->dtype);
    size_t whole = part * (collective_has_parts(call->collective) ? (size_t)bench->job->nranks : 1);
    size_t send = call->collective == COLLECTIVE_ALL_GATHER ? part : whole;
    size_t recv = call->collective == COLLECTIVE_REDUCE_SCATTER ? part : whole;
    size_t own = part * (size_t)bench->job->rank;
    struct place place = {
        .send = span_part(in_place ? bench->b : bench->a, in_place && send < whole ? own : 0, send),
        .recv = span_part(bench->b, in_place && recv < whole ? own : 0, recv),
        .guard = span_part(bench->b, in_place ? whole : recv, GUARD_BYTES),
    };
    return place;
}

/* Adds what this rank is to send for so many of these operations. */
static void predict(struct bench *bench, const struct call *call, int operations)
{
    const struct job *job = bench->job;
    int root = call->root < 0 ? 0 : call->root;
    uint64_t sent = ring_predict_sent_bytes(call->collective, call->count, call->dtype, job->nranks,
        job->rank, root, ring_comm_order(job->comm, 0));
    bench->predicted_bytes += (uint64_t)operations * sent;
}

static enum status operate(
    const struct bench *bench, const struct call *call, const struct place *place)
{
    struct ring_comm *comm = bench->job->comm;
    size_t count = call->count;
    enum dtype dtype = call->dtype;
    switch (call->collective) {
    case COLLECTIVE_ALL_REDUCE:
        return ring_all_reduce(place->recv, place->send, count, dtype, call->redop, comm, NULL);
    case COLLECTIVE_REDUCE_SCATTER:
        return ring_reduce_scatter(place->recv, place->send, count, dtype, call->redop, comm, NULL);
    case COLLECTIVE_ALL_GATHER:
        return ring_all_gather(place->recv, place->send, count, dtype, comm, NULL);
    case COLLECTIVE_BROADCAST:
        return ring_broadcast(place->recv, place->send, count, dtype, call->root, comm, NULL);
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_COUNT: break;
    }
    return FAIL(
        STATUS_INVALID, "bench: collective %d is none that can be measured", (int)call->collective);
}

/* ---- right or wrong ---- */

/* Elements of the output that are not what they should be. */
static uint64_t count_wrong_output(struct bench *bench, const struct call *call,
    const struct place *place, const struct pattern_key *key)
{
    const struct job *job = bench->job;
    size_t count = call->count;
    if (call->collective == COLLECTIVE_ALL_GATHER) {
        uint64_t wrong = 0;
        size_t part = count * dtype_bytes(call->dtype);
        for (int r = 0; r < job->nranks; r++) {
            pattern_input(&bench->expected, r, key);
            wrong += pattern_count_wrong(
                (char *)place->recv.ptr + (size_t)r * part, 0, count, &bench->expected);
        }
        return wrong;
    }
    if (call->collective == COLLECTIVE_BROADCAST) pattern_input(&bench->expected, call->root, key);
    else pattern_reduced(&bench->expected, key);
    size_t first = call->collective == COLLECTIVE_REDUCE_SCATTER ? (size_t)job->rank * count : 0;
    return pattern_count_wrong(place->recv.ptr, first, count, &bench->expected);
}

/* Runs the operation once on known inputs and poisoned outputs; adds what is wrong on any rank. */
static enum status check_once(
    struct bench *bench, const struct call *call, bool in_place, int64_t *wrong)
{
    const struct job *job = bench->job;
    struct place place = place_of(call, in_place, bench);
    struct pattern_key key = {bench->options->common.seed, job->nranks, call->dtype,
        collective_reduces(call->collective) ? call->redop : REDOP_MAX};
    size_t send_count = place.send.bytes / dtype_bytes(call->dtype);
    size_t output_bytes = (size_t)((char *)place.guard.ptr - (char *)bench->b.ptr) + GUARD_BYTES;
    bool has_input = call->collective != COLLECTIVE_BROADCAST || job->rank == call->root;

    memset(bench->b.ptr, PATTERN_POISON, output_bytes);
    pattern_input(&bench->input, job->rank, &key);
    if (has_input) pattern_fill(place.send.ptr, 0, send_count, &bench->input);
    predict(bench, call, 1);
    TRY(operate(bench, call, &place));
    uint64_t found = count_wrong_output(bench, call, &place, &key);
    const unsigned char *guard = place.guard.ptr;
    for (size_t i = 0; i < GUARD_BYTES; i++) found += guard[i] != PATTERN_POISON;
    if (has_input && !in_place)
        found += pattern_count_wrong(place.send.ptr, 0, send_count, &bench->input);
    TRY(job_sum(&found, bench->job));
    *wrong += (int64_t)found;
    bench->wrong += found;
    return STATUS_OK;
}

/* ---- time ---- */

/* busbw ÷ algbw. */
static double bus_factor(enum collective collective, int nranks)
{
    double n = nranks;
    switch (collective) {
    case COLLECTIVE_ALL_REDUCE: return 2 * (n - 1) / n;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_GATHER: return (n - 1) / n;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_COUNT: break;
    }
    return 1;
}

static enum status measure(struct bench *bench, const struct call *call, bool in_place,
    size_t bytes, struct measurement *measurement)
{
    const struct bench_options *options = bench->options;
    *measurement = (struct measurement){.wrong = options->checks > 0 ? 0 : -1};
    for (int i = 0; i < options->checks; i++)
        TRY(check_once(bench, call, in_place, &measurement->wrong));

    struct place place = place_of(call, in_place, bench);
    /* In place a sum feeds the next: of zeros it stays zero, else it would grow without end. */
    memset(bench->b.ptr, 0, bytes);
    predict(bench, call, options->warmups + options->iterations);
    /* Every size warms up by itself: it touches its pages, and the ring learns how to write its slots. */
    for (int i = 0; i < options->warmups; i++) TRY(operate(bench, call, &place));
    TRY(bootstrap_barrier(bench->job->bootstrap));
    TRY(ring_barrier(bench->job->comm, NULL)); /* the same, but tight */
    int64_t start = clock_ns();
    for (int i = 0; i < options->iterations; i++) TRY(operate(bench, call, &place));
    double us = (double)(clock_ns() - start) / 1e3 / options->iterations;
    TRY(job_max(&us, bench->job));
    measurement->time_us = us;
    measurement->alg_bw = (double)bytes / us / 1e3;
    measurement->bus_bw = measurement->alg_bw * bus_factor(call->collective, bench->job->nranks);
    bench->bus_bw_sum += measurement->bus_bw;
    bench->measurements++;
    return STATUS_OK;
}

static enum status measure_row(struct bench *bench, const struct call *call)
{
    const struct job *job = bench->job;
    bool with_op = collective_reduces(call->collective);
    size_t parts = collective_has_parts(call->collective) ? (size_t)job->nranks : 1;
    struct row row = {
        .bytes = call->count * parts * dtype_bytes(call->dtype),
        .count = call->count,
        .type = nccl_type_name(call->dtype),
        .redop = with_op ? redop_name(call->redop) : "none",
        .root = call->root,
    };
    TRY(measure(bench, call, false, row.bytes, &row.out_of_place));
    TRY(measure(bench, call, true, row.bytes, &row.in_place));
    if (job->rank != 0) return STATUS_OK;
    row.of_limit =
        (job->nranks == 1 ? row.out_of_place.alg_bw : row.out_of_place.bus_bw) / bench->limit.gbps;
    report_row(&row);
    return job->json != NULL ? report_row_json(&row, &bench->limit, job->json) : STATUS_OK;
}

/* ---- all sizes, all kinds ---- */

/* One row for every size that gives a count of its own. */
static enum status sweep(struct bench *bench, struct call call)
{
    const struct bench_options *options = bench->options;
    size_t bytes = options->min_bytes, last_count = bytes == 0 ? SIZE_MAX : 0;
    do {
        call.count = count_of_bytes(bytes, call.collective, call.dtype, bench->job->nranks);
        if (call.count == last_count) continue;
        last_count = call.count;
        TRY(measure_row(bench, &call));
    } while (bench_options_next(&bytes, options));
    return STATUS_OK;
}

static enum status sweep_roots(struct bench *bench, struct call call)
{
    bool has_root = call.collective == COLLECTIVE_BROADCAST;
    if (!has_root) call.root = -1;
    if (!has_root || call.root != ALL_ROOTS) return sweep(bench, call);
    for (call.root = 0; call.root < bench->job->nranks; call.root++) TRY(sweep(bench, call));
    return STATUS_OK;
}

static enum status sweep_all(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    for (int d = 0; d < DTYPE_COUNT; d++)
        for (int o = 0; o < REDOP_COUNT; o++) {
            bool wanted = collective_reduces(options->collective) ? options->redops[o] : o == 0;
            struct call call = {
                options->collective, 0, (enum dtype)d, (enum redop)o, options->root};
            if (options->dtypes[d] && wanted) TRY(sweep_roots(bench, call));
        }
    return STATUS_OK;
}

static void print_title(const struct bench_options *options)
{
    printf("# ringzero %s: %s minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d "
           "validation: %d\n",
        RINGZERO_VERSION, collective_name(options->collective), options->min_bytes,
        options->max_bytes, options->factor > 1 ? options->factor : options->step_bytes,
        options->factor > 1 ? "factor" : "bytes", options->warmups, options->iterations,
        options->checks);
}

static enum status run_with_buffers(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    struct job *job = bench->job;
    size_t limit_bytes = bench->a.bytes - GUARD_BYTES;
    if (limit_bytes > LIMIT_MOST_BYTES) limit_bytes = LIMIT_MOST_BYTES;
    if (job->rank == 0) print_title(options);
    TRY(limit_measure(&bench->limit, bench->a, bench->b, limit_bytes, job));
    TRY(report_ranks(&bench->limit, job));
    if (job->rank == 0) report_columns();
    TRY(sweep_all(bench));
    if (bench->measurements == 0)
        return FAIL(STATUS_INVALID,
            "no size from -b %zu on, up to -e %zu, is a whole element: choose other steps",
            options->min_bytes, options->max_bytes);

    bool equal;
    uint64_t measured = ring_comm_counters(job->comm).sent_bytes[options->collective];
    if (job->rank == 0)
        printf("# Out of bounds values : %" PRIu64 " %s\n# Avg bus bandwidth    : %g\n",
            bench->wrong, bench->wrong == 0 ? "OK" : "FAILED",
            bench->bus_bw_sum / bench->measurements);
    TRY(report_sent_bytes(&equal, measured, bench->predicted_bytes, job));
    if (bench->wrong > 0)
        return FAIL(STATUS_DATA,
            "%s gave %" PRIu64 " wrong elements, expected 0: see column #wrong",
            collective_name(options->collective), bench->wrong);
    if (!equal)
        return FAIL(STATUS_DATA,
            "%s sent %" PRIu64 " bytes from here, predicted %" PRIu64
            ": a rank's bytes differ from its plan",
            collective_name(options->collective), measured, bench->predicted_bytes);
    return STATUS_OK;
}

static enum status run_bench(struct job *job, void *argument)
{
    struct bench bench = {.options = argument, .job = job};
    size_t bytes = bench.options->max_bytes;
    if (bytes < LIMIT_LEAST_BUFFER_BYTES) bytes = LIMIT_LEAST_BUFFER_BYTES;
    enum status status = memory_alloc(&bench.a, bytes + GUARD_BYTES, MEMORY_WORKSPACE, job->device);
    if (status == STATUS_OK)
        status = memory_alloc(&bench.b, bytes + GUARD_BYTES, MEMORY_WORKSPACE, job->device);
    if (status == STATUS_OK) status = run_with_buffers(&bench);
    memory_free(&bench.a, MEMORY_WORKSPACE, job->device);
    memory_free(&bench.b, MEMORY_WORKSPACE, job->device);
    return status;
}

int bench_main(int argc, char **argv)
{
    struct bench_options options = bench_options_parse(argc, argv);
    struct job job;
    job_prepare(&job, &options.common, DEFAULT_RANKS);
    bench_options_check(&options, job.nranks);
    return job_run(&job, run_bench, &options);
}
