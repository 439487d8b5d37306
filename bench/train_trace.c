/* train_trace: see train_trace.h. Invariant: memory is bounded: what does not fit is counted, and
 * the line about the files says so.
 */
#include "bench/train_trace.h"

#include <stdlib.h>
#include <string.h>

#include "bench/timeline.h"

#define RING_EVENTS   ((size_t)1 << 15) /* of one communicator: 2.3 MiB */
#define GATHER_SPANS  512               /* of each rank in one all-gather: 36 KiB */
#define LANE_CHANNELS 8                 /* of a communicator; more channels share the last lane */

enum lane { LANE_COMPUTES, LANE_RING, LANE_COMMS };

/* The spans of a rank, growing. */
struct spans {
    struct timeline_span *span;
    size_t count, room;
};

static enum status add(struct spans *spans, const struct timeline_span *span)
{
    if (spans->count == spans->room) {
        size_t room = spans->room > 0 ? 2 * spans->room : 4096;
        struct timeline_span *larger = realloc(spans->span, room * sizeof *larger);
        if (larger == NULL)
            return FAIL(STATUS_SYSTEM, "--trace: no memory for %zu spans: trace fewer steps", room);
        spans->span = larger;
        spans->room = room;
    }
    spans->span[spans->count++] = *span;
    return STATUS_OK;
}

/* ---- this rank's ---- */

static enum status add_profile(
    struct spans *spans, uint64_t *dropped, enum lane lane, const struct profile *profile)
{
    size_t count;
    uint64_t more;
    const struct profile_span *from = profile_spans(&count, &more, profile);
    *dropped += more;
    for (size_t i = 0; i < count; i++) {
        struct timeline_span span = {.begin_ns = from[i].begin_ns,
            .end_ns = from[i].end_ns,
            .bytes = (uint64_t)from[i].bytes,
            .lane = lane,
            .depth = from[i].depth};
        snprintf(span.name, sizeof span.name, "%s", from[i].name);
        TRY(add(spans, &span));
    }
    return STATUS_OK;
}

static int lane_of(int comm, int channel)
{
    int within = channel < LANE_CHANNELS ? channel : LANE_CHANNELS - 1;
    return LANE_COMMS + comm * LANE_CHANNELS + within;
}

/* What a communicator's channels are at while its events are looked at, which come in the order of
 * their ends. */
struct channel {
    int64_t until_ns;          /* what was looked at ends here */
    uint32_t sequence;         /* of the operation, … */
    struct timeline_span open; /* … as far as it goes; lane 0: there is none */
};

/* Copies that a device makes overlap: one of them then begins where the one before ends, so that the
 * spans of a lane do not. */
static struct timeline_span span_of(
    int lane, const struct trace_event *event, struct channel *channel)
{
    int64_t begin_ns = event->begin_ns, end_ns = event->end_ns;
    if (begin_ns < channel->until_ns) begin_ns = channel->until_ns;
    if (end_ns < begin_ns) end_ns = begin_ns;
    channel->until_ns = end_ns;
    struct timeline_span span = {
        .begin_ns = begin_ns, .end_ns = end_ns, .bytes = event->bytes, .lane = lane, .depth = 1};
    if (event->kind == TRACE_WAIT_DATA) snprintf(span.name, sizeof span.name, "wait for data");
    else if (event->kind == TRACE_WAIT_ROOM) snprintf(span.name, sizeof span.name, "wait for room");
    else
        snprintf(span.name, sizeof span.name, "%s c%d",
            primitive_name((enum primitive)event->primitive), event->chunk);
    return span;
}

/* A step belongs to the operation that is open, or opens another. bytes: sent. */
static enum status add_to_operation(struct spans *spans, const struct timeline_span *step,
    const struct trace_event *event, struct channel *channel)
{
    struct timeline_span *open = &channel->open;
    uint64_t sent = event->to >= 0 ? event->bytes : 0;
    if (open->lane != 0 && channel->sequence == event->sequence) {
        open->end_ns = step->end_ns;
        open->bytes += sent;
        return STATUS_OK;
    }
    if (open->lane != 0) TRY(add(spans, open));
    *open = (struct timeline_span){
        .begin_ns = step->begin_ns, .end_ns = step->end_ns, .bytes = sent, .lane = step->lane};
    snprintf(open->name, sizeof open->name, "%s %u",
        collective_name((enum collective)event->collective), event->sequence);
    channel->sequence = event->sequence;
    return STATUS_OK;
}

/* A communicator's events, and around those of an operation on a channel the operation. */
static enum status add_ring(
    struct spans *spans, uint64_t *dropped, int comm, const struct trace *ring)
{
    struct channel channels[LANE_CHANNELS] = {0};
    size_t count;
    uint64_t more;
    const struct trace_event *events = trace_events(ring, &count, &more);
    *dropped += more;
    for (size_t i = 0; i < count; i++) {
        int lane = lane_of(comm, events[i].channel);
        struct channel *channel = &channels[(lane - LANE_COMMS) % LANE_CHANNELS];
        const struct timeline_span span = span_of(lane, &events[i], channel);
        TRY(add(spans, &span));
        if (events[i].kind == TRACE_STEP) TRY(add_to_operation(spans, &span, &events[i], channel));
    }
    for (int c = 0; c < LANE_CHANNELS; c++)
        if (channels[c].open.lane != 0) TRY(add(spans, &channels[c].open));
    return STATUS_OK;
}

/* ---- everybody's, on rank 0 ---- */

/* Where a rank alone cannot go on the others must not wait for it. */
static enum status tell(enum status status, struct job *job)
{
    if (status != STATUS_OK) bootstrap_abort(status_text(), job->bootstrap);
    return status;
}

struct share {
    uint64_t count, dropped;
    int64_t within_ns;
};

static enum status gather_spans(
    struct spans *all, const struct spans *own, size_t most, struct job *job)
{
    size_t n = (size_t)job->nranks;
    struct timeline_span *blobs = calloc(n * GATHER_SPANS, sizeof *blobs);
    if (blobs == NULL)
        return FAIL(STATUS_SYSTEM, "--trace: no memory for the spans of %zu ranks", n);
    enum status status = STATUS_OK;
    for (size_t done = 0; done < most && status == STATUS_OK; done += GATHER_SPANS) {
        struct timeline_span *mine = &blobs[(size_t)job->rank * GATHER_SPANS];
        size_t left = own->count > done ? own->count - done : 0;
        size_t part = left < GATHER_SPANS ? left : GATHER_SPANS;
        memset(mine, 0, GATHER_SPANS * sizeof *mine);
        if (part > 0) memcpy(mine, &own->span[done], part * sizeof *mine);
        status = bootstrap_all_gather(blobs, GATHER_SPANS * sizeof *blobs, job->bootstrap);
        for (size_t i = 0; i < n * GATHER_SPANS && job->rank == 0 && status == STATUS_OK; i++) {
            blobs[i].rank = (int32_t)(i / GATHER_SPANS);
            if (blobs[i].name[0] != '\0')
                status = add(all, &blobs[i]); /* an empty place has none */
        }
    }
    free(blobs);
    return status;
}

/* ---- how much of the ring's work was beside computation ---- */

static bool is_wait(const struct timeline_span *span)
{
    return span->lane == LANE_COMPUTES && strncmp(span->name, "wait", 4) == 0;
}

static bool ends_after(const struct timeline_span *span, int64_t ns)
{
    return is_wait(span) && span->end_ns > ns;
}

/* Of the time of rank 0's ring, and of it what rank 0 was not waiting for. Spans of a lane come in the
 * order of their ends, and those looked at do not overlap. */
static void find_overlap(int64_t *busy_ns, int64_t *beside_ns, const struct spans *own)
{
    size_t first = 0; /* waits before it are over */
    *busy_ns = *beside_ns = 0;
    for (size_t i = 0; i < own->count; i++) {
        const struct timeline_span *ring = &own->span[i];
        if (ring->lane != LANE_RING || ring->depth > 0) continue;
        *busy_ns += ring->end_ns - ring->begin_ns;
        *beside_ns += ring->end_ns - ring->begin_ns;
        while (first < own->count && !ends_after(&own->span[first], ring->begin_ns)) first++;
        for (size_t k = first; k < own->count; k++) {
            const struct timeline_span *wait = &own->span[k];
            if (!is_wait(wait)) continue;
            if (wait->begin_ns >= ring->end_ns) break;
            int64_t begin = wait->begin_ns > ring->begin_ns ? wait->begin_ns : ring->begin_ns;
            int64_t end = wait->end_ns < ring->end_ns ? wait->end_ns : ring->end_ns;
            if (begin < end) *beside_ns -= end - begin;
        }
    }
}

/* ---- the files ---- */

static enum status write_files(struct timeline *timeline, uint64_t dropped, const struct spans *own,
    const struct train_trace *told, const struct train_tracer *tracer)
{
    char names[TIMELINE_LANES_MOST][TIMELINE_NAME_BYTES], remark[256];
    int64_t busy_ns, beside_ns;
    find_overlap(&busy_ns, &beside_ns, own);
    int used = snprintf(remark, sizeof remark,
        "rank 0's ring was at work for %.3f ms, %.3f ms of it beside rank 0's computation",
        (double)busy_ns * 1e-6, (double)beside_ns * 1e-6);
    if (dropped > 0)
        used += snprintf(remark + used, sizeof remark - (size_t)used,
            "; %llu more spans did not fit: trace fewer steps", (unsigned long long)dropped);
    if (timeline->within_ns > 0)
        snprintf(remark + used, sizeof remark - (size_t)used,
            "; clocks of several hosts, which agree to within %.1f us",
            (double)timeline->within_ns * 1e-3);
    timeline->remark = remark;
    timeline->lanes[LANE_COMPUTES] = "computes";
    timeline->lanes[LANE_RING] = "ring";
    for (int comm = 0; comm < told->comm_count; comm++)
        for (int channel = 0; channel < LANE_CHANNELS; channel++) {
            int lane = lane_of(comm, channel);
            snprintf(
                names[lane], TIMELINE_NAME_BYTES, "%s, channel %d", told->comm_name[comm], channel);
            timeline->lanes[lane] = names[lane];
        }
    TRY(timeline_write(tracer->file, timeline));
    printf("# trace: %zu spans in %s and %s.svg; %s\n", timeline->count, tracer->file, tracer->file,
        remark);
    return STATUS_OK;
}

/* own: on this rank's clock; then on rank 0's. */
static enum status gather_and_write(struct spans *own, uint64_t dropped,
    const struct train_trace *told, const struct train_tracer *tracer, struct job *job)
{
    _Static_assert(
        LANE_COMMS + TRAIN_COMMS_MOST * LANE_CHANNELS <= TIMELINE_LANES_MOST, "a lane each");
    struct spans all = {0};
    int64_t offset_ns, within_ns;
    size_t most = 0;
    struct share *shares = calloc((size_t)job->nranks, sizeof *shares);
    enum status status = STATUS_OK;
    if (shares == NULL)
        TRY_GOTO(tell(FAIL(STATUS_SYSTEM, "--trace: no memory for %d ranks", job->nranks), job));
    TRY_GOTO(trace_clock_offset(&offset_ns, &within_ns, job->bootstrap));
    for (size_t i = 0; i < own->count; i++) {
        own->span[i].begin_ns += offset_ns;
        own->span[i].end_ns += offset_ns;
    }
    shares[job->rank] = (struct share){own->count, dropped, within_ns};
    TRY_GOTO(bootstrap_all_gather(shares, sizeof *shares, job->bootstrap));
    struct timeline timeline = {.title = tracer->title, .nranks = job->nranks};
    dropped = 0;
    for (int r = 0; r < job->nranks; r++) {
        dropped += shares[r].dropped;
        if (shares[r].within_ns > timeline.within_ns) timeline.within_ns = shares[r].within_ns;
        if (shares[r].count > most) most = shares[r].count;
    }
    TRY_GOTO(tell(gather_spans(&all, own, most, job), job));
    timeline.spans = all.span;
    timeline.count = all.count;
    if (job->rank == 0) TRY_GOTO(write_files(&timeline, dropped, own, told, tracer));
fail:
    free(shares);
    free(all.span);
    return status;
}

/* ---- */

enum status train_tracer_told(
    const struct train_trace *told, struct train_tracer *tracer, struct job *job)
{
    struct spans own = {0};
    uint64_t dropped = 0;
    enum status status = STATUS_OK;
    for (int i = 0; i < told->comm_count && !told->over; i++) {
        if (told->comm[i] == NULL) continue;
        TRY(trace_open(&tracer->rings[i], RING_EVENTS));
        ring_comm_trace(told->comm[i], tracer->rings[i]);
    }
    if (!told->over) return STATUS_OK;
    TRY_GOTO(tell(add_profile(&own, &dropped, LANE_COMPUTES, told->compute), job));
    TRY_GOTO(tell(add_profile(&own, &dropped, LANE_RING, told->ring), job));
    for (int i = 0; i < told->comm_count; i++) {
        if (told->comm[i] != NULL) ring_comm_trace(told->comm[i], NULL);
        if (tracer->rings[i] != NULL)
            TRY_GOTO(tell(add_ring(&own, &dropped, i, tracer->rings[i]), job));
    }
    TRY_GOTO(gather_and_write(&own, dropped, told, tracer, job));
    tracer->written = true;
fail:
    free(own.span);
    return status;
}

void train_tracer_close(struct train_tracer *tracer, struct job *job)
{
    ring_comm_trace(job->comm, NULL); /* a run that failed left it there; the others are closed */
    for (int i = 0; i < TRAIN_COMMS_MOST; i++) trace_close(tracer->rings[i]);
    *tracer = (struct train_tracer){0};
}
