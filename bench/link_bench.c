/* link_bench: `ringzero link` measures one edge between two ranks through verbs/transport.h alone (link_edge.c): no
 * ring, no reduction. It is the mark against which busbw is read.
 *
 *   one way     rank 0 puts, rank 1 takes            latency        one slice there and one back, halved
 *   both ways   both put and take at once            message rate   slices of 8 bytes, one way
 *
 * Every byte is copied into a slot by its sender, unless the transport sends from the source, and out of it by its
 * receiver.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/job.h"
#include "bench/json_line.h"
#include "bench/limit.h"
#include "bench/link_edge.h"
#include "bench/programs.h"
#include "verbs/clock.h"

#define LINK_RANKS    2
#define MESSAGE_BYTES 8
#define WANTED_NS     100000000 /* of one measurement */
#define MOST_PASSES   200000

struct link_options {
    struct options common;
    size_t min_bytes, max_bytes, factor; /* -b, -e, -f */
};

struct link {
    struct job *job;
    struct link_edge edge;
    struct span source, target;
};

/* ---- measurements ---- */

enum way { ONE_WAY, BOTH_WAYS, THERE_AND_BACK };

static enum status run_passes(struct link *link, enum way way, size_t bytes, int passes)
{
    bool first = link->job->rank == 0;
    char *to = link->target.ptr;
    const char *from = link->source.ptr;
    for (int i = 0; i < passes; i++) {
        if (way == BOTH_WAYS) TRY(link_edge_move(to, bytes, from, bytes, &link->edge));
        if (way == ONE_WAY) TRY(link_edge_move(to, first ? 0 : bytes, from, first ? bytes : 0, &link->edge));
        if (way != THERE_AND_BACK) continue;
        TRY(link_edge_move(to, first ? 0 : bytes, from, first ? bytes : 0, &link->edge));
        TRY(link_edge_move(to, first ? bytes : 0, from, first ? 0 : bytes, &link->edge));
    }
    return link_edge_drain(&link->edge);
}

/* Nanoseconds of one pass: of as many as fill the wanted time, judged by a few that do not count. */
static enum status measure(double *pass_ns, struct link *link, enum way way, size_t bytes)
{
    struct job *job = link->job;
    double ns = 0;
    for (int passes = 4, round = 0; round < 2; round++) {
        TRY(bootstrap_barrier(job->bootstrap));
        int64_t start = clock_ns();
        TRY(run_passes(link, way, bytes, passes));
        ns = (double)(clock_ns() - start) / passes;
        TRY(job_max(&ns, job));
        double wanted = WANTED_NS / (ns + 1);
        passes = wanted < 4 ? 4 : wanted > MOST_PASSES ? MOST_PASSES : (int)wanted;
    }
    *pass_ns = ns;
    return STATUS_OK;
}

/* Opens the connection, and sees that what arrives is what was sent. */
static enum status check(struct link *link, size_t bytes)
{
    unsigned char *source = link->source.ptr;
    const unsigned char *target = link->target.ptr;
    int rank = link->job->rank;
    for (size_t i = 0; i < bytes; i++) source[i] = (unsigned char)(i * 131 + i / 251 + (size_t)rank);
    memset(link->target.ptr, 0, bytes);
    TRY(run_passes(link, BOTH_WAYS, bytes, 1));
    for (size_t i = 0; i < bytes; i++)
        if (target[i] != (unsigned char)(i * 131 + i / 251 + (size_t)(1 - rank)))
            return FAIL(STATUS_DATA, "link over %s: byte %zu of %zu from rank %d is %d, expected what was sent",
                link_edge_transport(&link->edge), i, bytes, 1 - rank, target[i]);
    return STATUS_OK;
}

/* ---- output ---- */

struct link_limits {
    struct limit one_way, both_ways;
};

static enum status write_line(cJSON *object, const struct link *link)
{
    if (link->job->json != NULL) return json_line_write(link->job->json, object);
    cJSON_Delete(object);
    return STATUS_OK;
}

static enum status report_head(
    const struct link *link, double latency_ns, double message_ns, const struct link_limits *limits)
{
    if (link->job->rank != 0) return STATUS_OK;
    const char *name = link_edge_transport(&link->edge);
    printf("# Link over %s between ranks 0 and 1: %d slots of %zu KiB an edge\n", name, LINK_SLOT_COUNT,
        LINK_SLOT_BYTES >> 10);
    printf("# Latency      : %.2f us (half of a round trip of %d bytes)\n", latency_ns / 1e3, MESSAGE_BYTES);
    printf("# Message rate : %.2f million/s (of %d bytes, one way)\n", 1e3 / message_ns, MESSAGE_BYTES);
    printf("# Limit        : %s %.2f GB/s; %s %.2f GB/s each way\n", limits->one_way.what,
        limits->one_way.gbps, limits->both_ways.what, limits->both_ways.gbps);
    if (limits->both_ways.cached_gbps > 0)
        printf("#                of 256 KiB that stay cached %.2f GB/s; %.2f GB/s each way\n",
            limits->one_way.cached_gbps, limits->both_ways.cached_gbps);
    printf("#\n");
    printf("#%11s  %10s  %9s  %10s  %9s\n#%11s  %10s  %9s  %10s  %9s\n", "size", "one way", "of limit",
        "both ways", "of limit", "(B)", "(GB/s)", "", "(GB/s each)", "");
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "transport", name);
    cJSON_AddNumberToObject(object, "latency_us", latency_ns / 1e3);
    cJSON_AddNumberToObject(object, "messages_per_s", 1e9 / message_ns);
    cJSON_AddNumberToObject(object, "limit_one_way_bw", limits->one_way.gbps);
    cJSON_AddNumberToObject(object, "limit_both_ways_bw", limits->both_ways.gbps);
    return write_line(object, link);
}

static enum status report_size(
    const struct link *link, size_t bytes, double one_ns, double both_ns, const struct link_limits *limits)
{
    if (link->job->rank != 0) return STATUS_OK;
    double one = (double)bytes / one_ns, both = (double)bytes / both_ns;
    printf("%12zu  %10.3f  %8.1f%%  %10.3f  %8.1f%%\n", bytes, one, 100 * one / limits->one_way.gbps, both,
        100 * both / limits->both_ways.gbps);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "transport", link_edge_transport(&link->edge));
    cJSON_AddNumberToObject(object, "size", (double)bytes);
    cJSON_AddNumberToObject(object, "one_way_bw", one);
    cJSON_AddNumberToObject(object, "both_ways_bw", both);
    return write_line(object, link);
}

/* ---- one transport, all sizes ---- */

static enum status measure_limits(struct link_limits *limits, const struct link *link, size_t bytes)
{
    struct job *job = link->job;
    if (strcmp(link_edge_transport(&link->edge), "tcp") != 0) {
        TRY(limit_measure_copy(&limits->both_ways, link->source, link->target, bytes, job));
        limits->one_way = limits->both_ways;
        return STATUS_OK;
    }
    TRY(limit_measure_stream(&limits->one_way, true, link->source, link->target, bytes, job));
    return limit_measure_stream(&limits->both_ways, false, link->source, link->target, bytes, job);
}

static enum status measure_link(struct link *link, const struct link_options *options)
{
    struct link_limits limits;
    double latency_ns = 0, message_ns = 0;
    TRY(check(link, options->max_bytes));
    TRY(measure_limits(&limits, link, link->source.bytes));
    TRY(measure(&latency_ns, link, THERE_AND_BACK, MESSAGE_BYTES));
    TRY(measure(&message_ns, link, ONE_WAY, MESSAGE_BYTES));
    TRY(report_head(link, latency_ns / 2, message_ns, &limits));
    for (size_t bytes = options->min_bytes; bytes <= options->max_bytes; bytes *= options->factor) {
        double one_ns = 0, both_ns = 0;
        TRY(measure(&one_ns, link, ONE_WAY, bytes));
        TRY(measure(&both_ns, link, BOTH_WAYS, bytes));
        TRY(report_size(link, bytes, one_ns, both_ns, &limits));
        if (bytes > options->max_bytes / options->factor) break;
    }
    return STATUS_OK;
}

static enum status run_transport(
    const struct transport *transport, const struct link_options *options, struct job *job)
{
    struct link link = {.job = job};
    size_t bytes =
        options->max_bytes > LIMIT_LEAST_BUFFER_BYTES ? options->max_bytes : LIMIT_LEAST_BUFFER_BYTES;
    enum status status;
    TRY_GOTO(memory_alloc(&link.source, bytes, MEMORY_WORKSPACE, job->device));
    TRY_GOTO(memory_alloc(&link.target, bytes, MEMORY_WORKSPACE, job->device));
    TRY_GOTO(link_edge_open(&link.edge, transport, job->bootstrap, job->device));
    TRY_GOTO(measure_link(&link, options));
    TRY_GOTO(bootstrap_barrier(job->bootstrap)); /* nobody's slots go away before both are done */
fail:
    link_edge_close(&link.edge);
    memory_free(&link.source, MEMORY_WORKSPACE, job->device);
    memory_free(&link.target, MEMORY_WORKSPACE, job->device);
    return status;
}

/* "auto" takes what there is. */
static bool is_wanted(const struct transport *transport, const struct link_options *options, const struct job *job)
{
    const char *why = "", *name = options->common.transport;
    if (name != NULL && strcmp(name, "auto") != 0) return strcmp(transport->name, name) == 0;
    if (transport->available == NULL || transport->available(&why, job->device)) return true;
    if (job->rank == 0) printf("# No link over %s: %s\n", transport->name, why);
    return false;
}

static enum status run_link(struct job *job, void *argument)
{
    const struct link_options *options = argument;
    for (int i = 0; transports[i] != NULL; i++)
        if (is_wanted(transports[i], options, job)) TRY(run_transport(transports[i], options, job));
    return STATUS_OK;
}

/* ---- options ---- */

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct link_options *link = state->input;
    const struct options *common = &link->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &link->common; return 0;
    case ARGP_KEY_ARG: options_refuse(common, "found \"%s\", expected options only", text);
    case 'b': link->min_bytes = options_bytes(text, "-b", common); return 0;
    case 'e': link->max_bytes = options_bytes(text, "-e", common); return 0;
    case 'f': link->factor = (size_t)options_integer(text, "-f", 2, 1 << 20, common); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option option_list[] = {
    {"minbytes", 'b', "BYTES", 0, "smallest size (8); suffixes K, M, G are binary", 1},
    {"maxbytes", 'e', "BYTES", 0, "largest size (16M)", 1},
    {"stepfactor", 'f', "N", 0, "multiply the size by N from row to row (8)", 1},
    {0},
};
static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {
    option_list,
    parse_option,
    NULL,
    "Measures one edge between two ranks, without a ring: bandwidth one way and both ways at once, latency, "
    "message "
    "rate. "
    "--transport auto measures every transport that there is, in turn."
    "\vThe limit beside it is a memory copy by both ranks at once, or a raw TCP stream without framing "
    "through as much memory, measured in the same run. "
    "Every byte is copied into a slot and out of it, so a link over shared memory copies twice.\n\n"
    "Example:\n  ringzero link --transport tcp -b 8 -e 64M -f 8",
    children,
    options_help_filter,
    NULL,
};

int link_main(int argc, char **argv)
{
    struct link_options options = {
        .common = options_default("ringzero link"), .min_bytes = 8, .max_bytes = (size_t)16 << 20, .factor = 8};
    options_parse(&argp, argc, argv, &options.common, &options);
    if (options.min_bytes == 0 || options.min_bytes > options.max_bytes)
        options_refuse(&options.common, "-b is %zu bytes, expected at least 1 and at most -e, which is %zu",
            options.min_bytes, options.max_bytes);
    struct job job;
    job_prepare(&job, &options.common, LINK_RANKS);
    if (job.nranks != LINK_RANKS)
        options_refuse(&options.common, "--ranks is %d, expected 2: a link has two ends", job.nranks);
    return job_run(&job, run_link, &options);
}
