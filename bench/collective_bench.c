/* collective_bench: `ringzero bench COLLECTIVE` measures one collective over a range of sizes.
 *
 * A row is one size: the operation is checked (every element of the output, beyond it, and that the input of an
 * out-of-place call stayed), then timed, out of place and in place. Its time is the mean of -n operations in a
 * row, of the slowest rank; with -I each operation is timed by itself. With -m a group of operations takes the place
 * of one, and what is told of its time is divided by their number.
 *
 *   size    of the whole array, also where count is one rank's part
 *   algbw   size / time
 *   busbw   algbw · factor: what each rank's link carries, comparable between collectives
 *
 * Invariant I4: at the end every rank's measured bytes must equal the predicted ones.
 * source: nccl-tests, doc/PERFORMANCE.md.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/collective_call.h"
#include "bench/collective_options.h"
#include "bench/job.h"
#include "bench/limit.h"
#include "bench/plot.h"
#include "bench/programs.h"
#include "bench/report.h"
#include "bench/statistics.h"
#include "bench/trace_files.h"
#include "verbs/clock.h"
#include "verbs/plural.h"

#define DEFAULT_RANKS    2
#define LIMIT_MOST_BYTES ((size_t)128 << 20)
#define TRACE_EVENTS     ((size_t)1 << 17) /* of a rank: 8 MiB */

struct bench {
    const struct bench_options *options;
    struct job *job;
    struct limit limit;
    struct call_buffers buffers;
    size_t stride_bytes;      /* in them, from one operation of a group to the next */
    double *times_ns;         /* [iterations] of one measurement; NULL: only their sum is wanted */
    struct call_bytes predicted; /* of all operations so far */
    uint64_t wrong;
    double bus_bw_sum;
    int measurements;
    struct call last; /* measured */
    uint64_t row, rows_done; /* this pass over all sizes; of them, not to be measured again after a loss */
    int first_nranks;
    FILE *plot;       /* rank 0's data for --plot, or NULL */
};

static void predict(struct bench *bench, const struct call *call, uint64_t times)
{
    struct call_bytes once = call_predict_bytes(call, bench->job);
    bench->predicted.sent += times * once.sent;
    bench->predicted.border += times * once.border;
}

static enum status operate(struct bench *bench, const struct call *call, const struct call_place *place)
{
    predict(bench, call, 1);
    return call_run(call, place, bench->job);
}

/* ---- time ---- */

/* busbw ÷ algbw. */
static double bus_factor(enum collective collective, int nranks)
{
    double n = nranks;
    if (collective == COLLECTIVE_ALL_REDUCE) return 2 * (n - 1) / n;
    return collective_has_parts(collective) ? (n - 1) / n : 1;
}

/* Times -n operations (or groups), as one and, where wanted, one by one; *us is their mean. With a barrier before each (-z)
 * only what lies between barriers counts, of the rank that was slowest in each. */
static enum status time_operations(double *us, struct statistics *each, struct bench *bench,
    const struct call *call, const struct call_place *place)
{
    const struct bench_options *options = bench->options;
    struct job *job = bench->job;
    int64_t start = clock_ns();
    for (int i = 0; i < options->iterations; i++) {
        if (options->blocking) TRY(ring_barrier(job->comm, NULL));
        int64_t began = bench->times_ns != NULL ? clock_ns() : 0;
        TRY(call_run(call, place, job));
        if (bench->times_ns != NULL) bench->times_ns[i] = (double)(clock_ns() - began) / call->group;
    }
    *us = (double)(clock_ns() - start) / 1e3 / options->iterations / call->group;
    TRY(job_max(us, job));
    if (bench->times_ns != NULL) TRY(statistics_of_slowest(each, bench->times_ns, options->iterations, job));
    if (options->blocking) *us = each->mean_us;
    return STATUS_OK;
}

static enum status measure(
    struct bench *bench, const struct call *call, bool in_place, size_t bytes, struct measurement *measurement)
{
    const struct bench_options *options = bench->options;
    struct job *job = bench->job;
    *measurement = (struct measurement){.wrong = options->checks > 0 ? 0 : -1};
    for (int i = 0; i < options->checks; i++) {
        uint64_t wrong;
        predict(bench, call, 1);
        TRY(call_check(&wrong, call, in_place, options->common.seed, &bench->buffers, job));
        measurement->wrong += (int64_t)wrong;
        bench->wrong += wrong;
    }
    struct call_place place = call_place(call, 0, in_place, &bench->buffers, job);
    /* In place a sum feeds the next: of zeros it stays zero, else it would grow without end. */
    struct span written = span_part(bench->buffers.b, 0, (size_t)(call->group - 1) * call->stride_bytes + bytes);
    TRY(span_fill(written, 0, NULL, job->device));
    /* Every size warms up by itself: it touches its pages, and the ring learns how to write its slots. */
    for (int i = 0; i < options->warmups; i++) TRY(operate(bench, call, &place));
    predict(bench, call, (uint64_t)options->iterations);
    TRY(bootstrap_barrier(job->bootstrap));
    TRY(ring_barrier(job->comm, NULL)); /* the same, but tight */
    TRY(time_operations(&measurement->time_us, &measurement->each, bench, call, &place));
    measurement->alg_bw = (double)bytes / measurement->time_us / 1e3;
    measurement->bus_bw = measurement->alg_bw * bus_factor(call->collective, job->nranks);
    bench->bus_bw_sum += measurement->bus_bw;
    bench->measurements++;
    return STATUS_OK;
}

static const char *memory_name(const struct bench_options *options) { return options->own_memory ? "own" : "plain"; }

/* For one operation, by the rank that sends most. */
static uint64_t most_sent_bytes(const struct call *call, const struct job *job)
{
    struct job other = *job;
    uint64_t most = 0;
    for (other.rank = 0; other.rank < job->nranks; other.rank++) {
        uint64_t bytes = call_predict_bytes(call, &other).sent;
        if (bytes > most) most = bytes;
    }
    return most / (uint64_t)call->group;
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
        .redop = with_op ? nccl_op_name(call->redop) : "none",
        .root = call->root,
        .group = call->group,
        .each = bench->options->each,
        .in_place = {.time_us = -1, .wrong = -1},
        .reduce_dtype = bench->options->reduce_dtype_given ? reduce_dtype_name(call->reduce_dtype) : NULL,
        .sent_bytes = most_sent_bytes(call, job),
        .memory = memory_name(bench->options),
    };
    bench->last = *call;
    TRY(measure(bench, call, false, row.bytes, &row.out_of_place));
    if (collective_works_in_place(call->collective)) TRY(measure(bench, call, true, row.bytes, &row.in_place));
    if (job->rank != 0) return STATUS_OK;
    row.of_limit = (job->nranks == 1 ? row.out_of_place.alg_bw : row.out_of_place.bus_bw) / bench->limit.gbps;
    report_row(&row);
    if (bench->plot != NULL && row.bytes > 0) report_row_data(&row, &bench->limit, bench->plot);
    return job->json != NULL ? report_row_json(&row, &bench->limit, job->json) : STATUS_OK;
}

/* ---- all sizes, all kinds ---- */

/* One row for every size that gives a count of its own. Rows are counted before counts are known, so alike for any number of ranks. */
static enum status sweep(struct bench *bench, struct call call)
{
    const struct bench_options *options = bench->options;
    size_t bytes = options->min_bytes, last_count = bytes == 0 ? SIZE_MAX : 0;
    bool measured = false;
    do {
        bool done = bench->row++ < bench->rows_done || call.root >= bench->job->nranks; /* that root is gone */
        call.count = count_of_bytes(bytes, call.collective, call.dtype, bench->job->nranks);
        if (call.count == last_count) continue;
        last_count = call.count;
        if (done) continue;
        TRY(measure_row(bench, &call));
        bench->rows_done = bench->row;
        measured = true;
    } while (bench_options_next(&bytes, options));
    if (bench->plot != NULL && measured) fprintf(bench->plot, "\n"); /* ends a line of the picture */
    return STATUS_OK;
}

static enum status sweep_roots(struct bench *bench, struct call call)
{
    bool has_root = collective_has_root(call.collective);
    if (!has_root) call.root = -1;
    if (has_root && call.root >= bench->job->nranks)
        return FAIL(STATUS_INVALID, "-r is %d, expected less than %d, the number of ranks that are left",
            call.root, bench->job->nranks);
    if (!has_root || call.root != ALL_ROOTS) return sweep(bench, call);
    for (call.root = 0; call.root < bench->first_nranks; call.root++) TRY(sweep(bench, call));
    return STATUS_OK;
}

static enum status sweep_all(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    for (int d = 0; d < DTYPE_COUNT; d++)
        for (int o = 0; o < REDOP_COUNT; o++) {
            bool wanted = collective_reduces(options->collective) ? options->redops[o] : o == 0;
            struct call call = {.collective = options->collective,
                .algorithm = options->algorithm,
                .dtype = (enum dtype)d,
                .redop = (enum redop)o,
                .reduce_dtype = options->reduce_dtype,
                .root = options->root,
                .group = options->group,
                .stride_bytes = bench->stride_bytes};
            if (options->dtypes[d] && wanted) TRY(sweep_roots(bench, call));
        }
    return STATUS_OK;
}

static enum status allocate(struct span *span, struct bench *bench)
{
    size_t bytes = bench->stride_bytes * (size_t)bench->options->group;
    struct job *job = bench->job;
    if (bench->options->own_memory) return ring_alloc(span, bytes, MEMORY_WORKSPACE, job->comm);
    return memory_alloc(span, bytes, MEMORY_WORKSPACE, job->device);
}

static enum status allocate_host(struct span *host, struct span span, struct bench *bench)
{
    *host = span;
    if (span.kind != MEMORY_CUDA) return STATUS_OK;
    return memory_alloc_kind(host, span.bytes, MEMORY_HOST_PINNED, MEMORY_WORKSPACE, bench->job->device);
}

static enum status allocate_buffers(struct bench *bench)
{
    struct call_buffers *buffers = &bench->buffers;
    TRY(allocate(&buffers->a, bench));
    TRY(allocate(&buffers->b, bench));
    TRY(allocate_host(&buffers->host_a, buffers->a, bench));
    TRY(allocate_host(&buffers->host_b, buffers->b, bench));
    /* The communicator is new, or has told the other ranks of these buffers. */
    bench->predicted = call_sent_bytes(bench->options->collective, bench->options->algorithm, bench->job);
    return STATUS_OK;
}

/* Accepts half of them, and none. */
static void free_buffers(struct bench *bench)
{
    struct call_buffers *buffers = &bench->buffers;
    struct span *spans[] = {&buffers->a, &buffers->b};
    struct span *copies[] = {&buffers->host_a, &buffers->host_b};
    for (int i = 0; i < 2; i++) {
        if (copies[i]->ptr != spans[i]->ptr) memory_free(copies[i], MEMORY_WORKSPACE, bench->job->device);
        *copies[i] = (struct span){0};
        if (spans[i]->ptr == NULL) continue; /* then there may be no communicator either */
        if (bench->options->own_memory) ring_free(spans[i], MEMORY_WORKSPACE, bench->job->comm);
        else memory_free(spans[i], MEMORY_WORKSPACE, bench->job->device);
    }
}

static void set_up_reductions(const struct bench *bench)
{
    ring_comm_set_premul(bench->job->comm, pattern_scalar(bench->job->rank));
    ring_comm_set_reduce_dtype(bench->job->comm, bench->options->reduce_dtype);
}

/* After a loss: those that are left agree where to go on, at the row that rank 0, who prints them, has not got. Else the failure. */
static enum status go_on(enum status status, struct bench *bench)
{
    struct job *job = bench->job;
    uint64_t done;
    do {
        free_buffers(bench); /* what is from ring_alloc() does not outlive the communicator */
        TRY(job_shrink(status, job));
        TRY(allocate_buffers(bench));
        set_up_reductions(bench);
        done = job->rank == 0 ? bench->rows_done : 0;
        status = job_sum(&done, job);
    } while (status != STATUS_OK); /* another was lost */
    bench->rows_done = done;
    if (job->rank == 0) printf("# %d rank%s from here on\n", job->nranks, PLURAL(job->nranks));
    return STATUS_OK;
}

static enum status sweep_surviving(struct bench *bench)
{
    enum status status = sweep_all(bench);
    while (status != STATUS_OK) {
        TRY(go_on(status, bench));
        bench->row = 0;
        status = sweep_all(bench);
    }
    return STATUS_OK;
}

/* ---- the picture, and the trace ---- */

static struct plot plot_of(const struct bench *bench, char title[256])
{
    const struct job *job = bench->job;
    snprintf(title, 256, "%s, %d rank%s, %s%s", collective_title(bench->options), job->nranks, PLURAL(job->nranks),
        ring_comm_transport(job->comm),
        bench->options->algorithm == ALGORITHM_NAIVE ? ": Reduce + Broadcast" : "");
    return (struct plot){
        .file = bench->options->plot,
        .title = title,
        .x_label = "size",
        .y_label = "busbw, GB/s",
        .x_bytes = true,
        .series = {{"out of place", 2, PLOT_LINE}, {"in place", 3, PLOT_LINE},
            {bench->limit.what, 4, PLOT_THIN}},
    };
}

static enum status sweep_and_plot(struct bench *bench)
{
    char title[256];
    if (bench->options->plot == NULL || bench->job->rank != 0) return sweep_surviving(bench);
    struct plot plot = plot_of(bench, title);
    bench->plot = plot_open(&plot);
    if (bench->plot == NULL) return STATUS_SYSTEM;
    enum status status = sweep_surviving(bench);
    if (status == STATUS_OK && bench->measurements > 0) return plot_close(bench->plot, &plot);
    fclose(bench->plot);
    return status;
}

/* The last row's operation once more, out of place, watched. */
static enum status run_traced(struct bench *bench, struct trace *trace)
{
    struct job *job = bench->job;
    struct call_place place = call_place(&bench->last, 0, false, &bench->buffers, job);
    TRY(operate(bench, &bench->last, &place));
    TRY(ring_barrier(job->comm, NULL));
    ring_comm_trace(job->comm, trace);
    enum status status = operate(bench, &bench->last, &place);
    ring_comm_trace(job->comm, NULL);
    return status;
}

static enum status trace_last(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    struct job *job = bench->job;
    struct trace *trace = NULL;
    struct trace_all all = {0};
    char title[256];
    enum status status = STATUS_OK;
    TRY_GOTO(trace_open(&trace, TRACE_EVENTS));
    TRY_GOTO(run_traced(bench, trace));
    TRY_GOTO(trace_gather(&all, trace, job->bootstrap));
    if (job->rank == 0) {
        size_t events = all.begins[job->nranks];
        snprintf(title, sizeof title, "%s of %zu %s on %d rank%s over %s", collective_title(options),
            bench->last.count, dtype_name(bench->last.dtype), job->nranks,
            PLURAL(job->nranks), ring_comm_transport(job->comm));
        TRY_GOTO(trace_files_write(options->trace, title, &all));
        printf("# Trace of the last row   : %zu event%s in %s and %s.svg\n", events, PLURAL(events),
            options->trace, options->trace);
    }
fail:
    trace_close(trace);
    trace_all_free(&all);
    return status;
}

/* ---- the whole run ---- */

static void print_title(const struct bench_options *options)
{
    printf("# ringzero %s: %s%s minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d "
           "agg iters: %d validation: %d memory: %s\n",
        RINGZERO_VERSION, collective_title(options),
        options->algorithm == ALGORITHM_NAIVE ? " as Reduce + Broadcast" : "", options->min_bytes, options->max_bytes,
        options->factor > 1 ? options->factor : options->step_bytes, options->factor > 1 ? "factor" : "bytes",
        options->warmups, options->iterations, options->group, options->checks, memory_name(options));
}

/* I4, and every element right. */
static enum status judge(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    bool equal, border_equal;
    struct call_bytes measured = call_sent_bytes(options->collective, options->algorithm, bench->job);
    TRY(report_bytes(&equal, "sent", measured.sent, bench->predicted.sent, bench->job));
    TRY(report_bytes(&border_equal, "to other hosts", measured.border, bench->predicted.border, bench->job));
    if (bench->wrong > 0)
        return FAIL(STATUS_DATA, "%s gave %" PRIu64 " wrong element%s, expected 0: see column #wrong",
            collective_title(options), bench->wrong, PLURAL(bench->wrong));
    if (!equal || !border_equal)
        return FAIL(STATUS_DATA,
            "%s sent %" PRIu64 " bytes from here, %" PRIu64 " to other hosts, predicted %" PRIu64 " and %" PRIu64
            ": a rank's bytes differ from its plan",
            collective_title(options), measured.sent, measured.border, bench->predicted.sent, bench->predicted.border);
    return STATUS_OK;
}

static enum status finish(struct bench *bench)
{
    if (bench->options->trace != NULL) TRY(trace_last(bench));
    return judge(bench);
}

static enum status run_with_buffers(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    struct job *job = bench->job;
    size_t limit_bytes = (bench->stride_bytes - CALL_GUARD_BYTES) & ~(size_t)4095;
    if (limit_bytes > LIMIT_MOST_BYTES) limit_bytes = LIMIT_MOST_BYTES;
    set_up_reductions(bench);
    if (job->rank == 0) print_title(options);
    TRY(limit_measure(&bench->limit, bench->buffers.a, bench->buffers.b, limit_bytes, job));
    TRY(report_ranks(&bench->limit, job));
    if (job->rank == 0) report_columns(options->each, options->reduce_dtype_given);
    TRY(sweep_and_plot(bench));
    if (bench->measurements == 0)
        return FAIL(STATUS_INVALID,
            "no size from -b %zu on, up to -e %zu, is a whole element: choose other steps", options->min_bytes,
            options->max_bytes);
    if (job->rank == 0)
        printf("# Out of bounds values : %" PRIu64 " %s\n# Avg bus bandwidth    : %g\n", bench->wrong,
            bench->wrong == 0 ? "OK" : "FAILED", bench->bus_bw_sum / bench->measurements);
    enum status status = finish(bench);
    while (status != STATUS_OK) {
        TRY(go_on(status, bench));
        status = finish(bench);
    }
    return STATUS_OK;
}

/* Each operation of a group has its place: the largest array and its guard, in whole cache lines. */
static enum status size_places(struct bench *bench)
{
    size_t bytes;
    const struct bench_options *options = bench->options;
    size_t largest = options->max_bytes, group = (size_t)options->group;
    if (largest < LIMIT_LEAST_BUFFER_BYTES) largest = LIMIT_LEAST_BUFFER_BYTES;
    bench->stride_bytes = (largest / 64 + 1) * 64 + CALL_GUARD_BYTES;
    if (__builtin_mul_overflow(bench->stride_bytes, group, &bytes))
        return FAIL(STATUS_INVALID, "-e is %zu bytes and -m %zu, more together than memory can hold: choose smaller ones",
            largest, group);
    return STATUS_OK;
}

static enum status run_bench(struct job *job, void *argument)
{
    struct bench bench = {.options = argument, .job = job, .first_nranks = job->nranks};
    const struct bench_options *options = bench.options;
    enum status status = STATUS_OK;
    TRY(size_places(&bench));
    if (options->each || options->blocking) {
        bench.times_ns = calloc((size_t)options->iterations, sizeof *bench.times_ns);
        if (bench.times_ns == NULL)
            return FAIL(STATUS_SYSTEM, "no memory for %d times: choose a smaller -n", options->iterations);
    }
    TRY_GOTO(allocate_buffers(&bench));
    TRY_GOTO(run_with_buffers(&bench));
fail:
    free_buffers(&bench);
    free(bench.times_ns);
    return status;
}

int bench_main(int argc, char **argv)
{
    struct bench_options options = bench_options_parse(argc, argv);
    struct job job;
    job_prepare(&job, &options.common, DEFAULT_RANKS);
    bench_options_check(&options, job.nranks);
    job.shrinks = options.shrinks;
    if (options.algorithm == ALGORITHM_RING) job.hierarchy = HIERARCHY_FLAT;
    if (options.algorithm == ALGORITHM_TWO_LEVEL) job.hierarchy = HIERARCHY_TWO_LEVEL;
    return job_run(&job, run_bench, &options);
}
