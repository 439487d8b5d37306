/* link_bench: `ringzero link` measures one edge between two ranks through verbs/transport.h alone: no ring, no
 * reduction. It is the mark against which busbw is read, and the shortest program that shows how an edge is
 * used:
 *
 *   rank 0                         rank 1
 *   producer out(0►1)  ────────►   consumer in(0►1)        put: wait for room, write the slot, post
 *   consumer in (1►0)  ◄────────   producer out(1►0)       take: wait for data, read it, free
 *
 *   one way     rank 0 puts, rank 1 takes            latency        one slice there and one back, halved
 *   both ways   both put and take at once            message rate   slices of 8 bytes, one way
 *
 * Sides do not wait inside put and take: link_move() does what can be done now and asks again, so the two ways
 * cannot block one another. Every byte is copied into a slot by its sender, unless the transport sends from the
 * source, and out of it by its receiver.
 * Invariant I5: a wait ends after the bootstrap's timeout, naming the peer.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "bench/job.h"
#include "bench/limit.h"
#include "bench/programs.h"
#include "verbs/clock.h"
#include "verbs/transport.h"

#define LINK_RANKS      2
#define LINK_KEY        0x6c696e6b0000u /* of the edge 0►1; the next is that of 1►0 */
#define SLOT_BYTES      ((size_t)256 << 10)
#define SLOT_COUNT      8
#define MESSAGE_BYTES   8
#define WANTED_NS       100000000 /* of one measurement */
#define MOST_PASSES     200000
#define LOOKS_PER_YIELD 64   /* of idle looks: the peer may need this core */
#define LOOKS_PER_CHECK 4096 /* between two looks at the clock and the job */

struct link_options {
    struct options common;
    size_t min_bytes, max_bytes, factor; /* -b, -e, -f */
};

struct link {
    struct job *job;
    struct edge *out, *in;
    struct span source, target;
};

/* ---- the edge ---- */

/* Writes the next slice into the edge: into its slot, or where it lies when the transport can send from there.
 * */
static void put(struct edge *out, const char *from, size_t bytes)
{
    uint64_t address = 0;
    if (out->transport->reads_address) address = (uint64_t)(uintptr_t)from;
    else memcpy(fifo_slot(&out->fifo), from, bytes);
    fifo_post(&out->fifo, bytes, 0, address);
    edge_notify(out);
}

/* Reads the oldest slice out of the edge; returns its bytes. */
static size_t take(struct edge *in, char *to)
{
    struct fifo_record record = fifo_record(&in->fifo);
    memcpy(to, fifo_data(&in->fifo, &record), record.bytes);
    fifo_free(&in->fifo);
    edge_notify(in);
    return record.bytes;
}

/* Called when nothing moved: lets others run, and now and then looks at the clock and the job. */
static enum status idle(int64_t *since_ns, unsigned *looks, const struct link *link)
{
    struct bootstrap *bootstrap = link->job->bootstrap;
    if (++*looks % LOOKS_PER_YIELD == 0) sched_yield();
    if (*looks % LOOKS_PER_CHECK != 0) return STATUS_OK;
    TRY(bootstrap_check(NULL, bootstrap));
    int64_t now = clock_ns();
    if (*since_ns == 0) *since_ns = now;
    if (now - *since_ns < clock_ms_to_ns(bootstrap_timeout_ms(bootstrap))) return STATUS_OK;
    return FAIL(STATUS_TIMEOUT,
        "rank %d: link over %s: nothing moved to or from rank %d for %d ms "
        "(RINGZERO_TIMEOUT_MS)",
        link->job->rank, link->out->transport->name, link->out->config.peer, bootstrap_timeout_ms(bootstrap));
}

/* Sends and receives so many bytes, in slices of at most slice_bytes, whatever can be done first. What was sent
 * may still be on its way afterwards: see link_drain(). */
static enum status link_move(struct link *link, size_t to_send, size_t to_receive, size_t slice_bytes)
{
    const char *from = link->source.ptr;
    char *to = link->target.ptr;
    int64_t idle_since_ns = 0;
    unsigned looks = 0;
    while (to_send > 0 || to_receive > 0) {
        bool moved = false;
        TRY(edge_progress(link->out, &moved));
        TRY(edge_progress(link->in, &moved));
        while (to_send > 0 && fifo_room(&link->out->fifo) > 0) {
            size_t bytes = to_send < slice_bytes ? to_send : slice_bytes;
            put(link->out, from, bytes);
            from += bytes;
            to_send -= bytes;
            moved = true;
        }
        while (to_receive > 0 && fifo_ready(&link->in->fifo) > 0) {
            size_t bytes = take(link->in, to);
            to += bytes;
            to_receive -= bytes;
            moved = true;
        }
        if (moved) idle_since_ns = 0;
        else TRY(idle(&idle_since_ns, &looks, link));
    }
    return STATUS_OK;
}

/* Until everything posted and freed has left: the peer can then go on without this rank. */
static enum status link_drain(struct link *link)
{
    int64_t idle_since_ns = 0;
    unsigned looks = 0;
    while (!edge_drained(link->out) || !edge_drained(link->in)) {
        bool moved = false;
        TRY(edge_progress(link->out, &moved));
        TRY(edge_progress(link->in, &moved));
        if (moved) idle_since_ns = 0;
        else TRY(idle(&idle_since_ns, &looks, link));
    }
    return STATUS_OK;
}

static enum status link_open(struct link *link, const struct transport *transport, struct job *job)
{
    const char *why = "";
    link->job = job;
    if (transport->available != NULL && !transport->available(&why))
        return FAIL(STATUS_SYSTEM, "--transport %s cannot work here: %s", transport->name, why);
    struct edge_config config = {.self = job->rank,
        .peer = 1 - job->rank,
        .slot_bytes = SLOT_BYTES,
        .slot_count = SLOT_COUNT,
        .bootstrap = job->bootstrap,
        .device = job->device};
    config.side = EDGE_PRODUCER;
    config.key = LINK_KEY + (uint64_t)job->rank;
    TRY(edge_open(&link->out, transport, &config));
    config.side = EDGE_CONSUMER;
    config.key = LINK_KEY + (uint64_t)config.peer;
    return edge_open(&link->in, transport, &config);
}

/* ---- measurements ---- */

enum way { ONE_WAY, BOTH_WAYS, THERE_AND_BACK };

static enum status run_passes(struct link *link, enum way way, size_t bytes, int passes)
{
    size_t slice = bytes < SLOT_BYTES ? bytes : SLOT_BYTES;
    bool first = link->job->rank == 0;
    for (int i = 0; i < passes; i++) {
        if (way == BOTH_WAYS) TRY(link_move(link, bytes, bytes, slice));
        if (way == ONE_WAY) TRY(link_move(link, first ? bytes : 0, first ? 0 : bytes, slice));
        if (way != THERE_AND_BACK) continue;
        TRY(link_move(link, first ? bytes : 0, first ? 0 : bytes, slice));
        TRY(link_move(link, first ? 0 : bytes, first ? bytes : 0, slice));
    }
    return link_drain(link);
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
                link->out->transport->name, i, bytes, 1 - rank, target[i]);
    return STATUS_OK;
}

/* ---- output ---- */

struct link_limits {
    struct limit one_way, both_ways;
};

static enum status write_line(FILE *file, cJSON *object)
{
    if (file == NULL) {
        cJSON_Delete(object);
        return STATUS_OK;
    }
    char *text = object == NULL ? NULL : cJSON_PrintUnformatted(object);
    bool written = text != NULL && fprintf(file, "%s\n", text) > 0;
    cJSON_free(text);
    cJSON_Delete(object);
    return written ? STATUS_OK
                   : FAIL(STATUS_SYSTEM, "--json: a line could not be written: %s", strerror(errno));
}

static enum status report_head(
    const struct link *link, double latency_ns, double message_ns, const struct link_limits *limits)
{
    if (link->job->rank != 0) return STATUS_OK;
    const char *name = link->out->transport->name;
    printf("# Link over %s between ranks 0 and 1: %d slots of %zu KiB an edge\n", name, SLOT_COUNT,
        SLOT_BYTES >> 10);
    printf("# Latency      : %.2f us (half of a round trip of %d bytes)\n", latency_ns / 1e3, MESSAGE_BYTES);
    printf("# Message rate : %.2f million/s (of %d bytes, one way)\n", 1e3 / message_ns, MESSAGE_BYTES);
    printf("# Limit        : %s %.2f GB/s; %s %.2f GB/s each way\n#\n", limits->one_way.what,
        limits->one_way.gbps, limits->both_ways.what, limits->both_ways.gbps);
    printf("#%11s  %10s  %9s  %10s  %9s\n#%11s  %10s  %9s  %10s  %9s\n", "size", "one way", "of limit",
        "both ways", "of limit", "(B)", "(GB/s)", "", "(GB/s each)", "");
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "transport", name);
    cJSON_AddNumberToObject(object, "latency_us", latency_ns / 1e3);
    cJSON_AddNumberToObject(object, "messages_per_s", 1e9 / message_ns);
    cJSON_AddNumberToObject(object, "limit_one_way_bw", limits->one_way.gbps);
    cJSON_AddNumberToObject(object, "limit_both_ways_bw", limits->both_ways.gbps);
    return write_line(link->job->json, object);
}

static enum status report_size(
    const struct link *link, size_t bytes, double one_ns, double both_ns, const struct link_limits *limits)
{
    if (link->job->rank != 0) return STATUS_OK;
    double one = (double)bytes / one_ns, both = (double)bytes / both_ns;
    printf("%12zu  %10.3f  %8.1f%%  %10.3f  %8.1f%%\n", bytes, one, 100 * one / limits->one_way.gbps, both,
        100 * both / limits->both_ways.gbps);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "transport", link->out->transport->name);
    cJSON_AddNumberToObject(object, "size", (double)bytes);
    cJSON_AddNumberToObject(object, "one_way_bw", one);
    cJSON_AddNumberToObject(object, "both_ways_bw", both);
    return write_line(link->job->json, object);
}

/* ---- one transport, all sizes ---- */

static enum status measure_limits(struct link_limits *limits, const struct link *link, size_t bytes)
{
    struct job *job = link->job;
    if (strcmp(link->out->transport->name, "tcp") != 0) {
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
    struct link link = {0};
    size_t bytes =
        options->max_bytes > LIMIT_LEAST_BUFFER_BYTES ? options->max_bytes : LIMIT_LEAST_BUFFER_BYTES;
    enum status status;
    TRY_GOTO(memory_alloc(&link.source, bytes, MEMORY_WORKSPACE, job->device));
    TRY_GOTO(memory_alloc(&link.target, bytes, MEMORY_WORKSPACE, job->device));
    TRY_GOTO(link_open(&link, transport, job));
    TRY_GOTO(measure_link(&link, options));
    TRY_GOTO(bootstrap_barrier(job->bootstrap)); /* nobody's slots go away before both are done */
fail:
    edge_close(link.out);
    edge_close(link.in);
    memory_free(&link.source, MEMORY_WORKSPACE, job->device);
    memory_free(&link.target, MEMORY_WORKSPACE, job->device);
    return status;
}

/* "auto" takes what there is. */
static bool is_wanted(const struct transport *transport, const struct link_options *options, const struct job *job)
{
    const char *why = "", *name = options->common.transport;
    if (name != NULL && strcmp(name, "auto") != 0) return strcmp(transport->name, name) == 0;
    if (transport->available == NULL || transport->available(&why)) return true;
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
    "\vThe limit beside it is a memory copy by both ranks at once, or a raw TCP stream without framing, "
    "measured in "
    "the same run. "
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
