/* trace: see trace.h. Invariant: what is in the buffer was done by this rank, in the order in which it stands
 * there by channel. */
#include "ring/trace.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/comm.h"
#include "verbs/clock.h"

#define GATHER_EVENTS 1024 /* of each rank in one all-gather: 64 KiB */
#define CLOCK_ROUNDS  16
#define CLOCK_KEY     0x636c6f636b0000u /* of the mailboxes of trace_clock_offset() */
#define CLOCK_ID_BYTES 128

struct trace {
    struct trace_event *events;
    size_t count, capacity;
    uint64_t dropped;
    struct {
        int64_t since_ns; /* 0: it does not wait */
        enum trace_kind kind;
    } waits[RING_MAX_CHANNELS];
};

enum status trace_open(struct trace **out, size_t events)
{
    struct trace *trace = calloc(1, sizeof *trace);
    if (trace != NULL) trace->events = calloc(events > 0 ? events : 1, sizeof *trace->events);
    if (trace == NULL || trace->events == NULL) {
        trace_close(trace);
        *out = NULL;
        return FAIL(STATUS_SYSTEM, "no memory for a trace of %zu events: trace fewer", events);
    }
    trace->capacity = events;
    *out = trace;
    return STATUS_OK;
}

void trace_close(struct trace *trace)
{
    if (trace == NULL) return;
    free(trace->events);
    free(trace);
}

void trace_clear(struct trace *trace)
{
    trace->count = 0;
    trace->dropped = 0;
    memset(trace->waits, 0, sizeof trace->waits);
}

const struct trace_event *trace_events(const struct trace *trace, size_t *count, uint64_t *dropped)
{
    *count = trace->count;
    *dropped = trace->dropped;
    return trace->events;
}

void ring_comm_trace(struct ring_comm *comm, struct trace *trace)
{
    comm->trace = trace;
}

static void add(struct trace *trace, const struct trace_event *event)
{
    if (trace->count < trace->capacity) trace->events[trace->count++] = *event;
    else trace->dropped++;
}

/* What the channel waits for is over at end_ns, and belongs to no step. */
static void end_wait(struct trace *trace, int channel, int64_t end_ns)
{
    struct trace_event event = {.begin_ns = trace->waits[channel].since_ns,
        .end_ns = end_ns,
        .step = -1,
        .chunk = -1,
        .from = -1,
        .to = -1,
        .joins = -1,
        .kind = (uint8_t)trace->waits[channel].kind,
        .channel = (uint8_t)channel};
    if (event.begin_ns != 0) add(trace, &event);
    trace->waits[channel].since_ns = 0;
}

void trace_wait(struct trace *trace, enum trace_kind kind, int channel)
{
    if (trace == NULL) return;
    if (trace->waits[channel].since_ns != 0 && trace->waits[channel].kind == kind) return;
    int64_t now = clock_ns();
    end_wait(trace, channel, now); /* first for data, then for room */
    trace->waits[channel].since_ns = now;
    trace->waits[channel].kind = kind;
}

void trace_wait_end(struct trace *trace, int channel)
{
    if (trace != NULL) end_wait(trace, channel, clock_ns());
}

void trace_step(struct trace *trace, int channel, int64_t begin_ns, const struct trace_event *event)
{
    if (trace == NULL) return;
    assert(channel >= 0 && channel < RING_MAX_CHANNELS);
    struct trace_event step = *event;
    step.channel = (uint8_t)channel;
    if (trace->waits[channel].since_ns != 0) {
        struct trace_event wait = step;
        wait.kind = (uint8_t)trace->waits[channel].kind;
        wait.begin_ns = trace->waits[channel].since_ns;
        wait.end_ns = begin_ns;
        wait.bytes = 0;
        add(trace, &wait);
        trace->waits[channel].since_ns = 0;
    }
    step.kind = TRACE_STEP;
    step.begin_ns = begin_ns;
    step.end_ns = clock_ns();
    add(trace, &step);
}

void trace_put(struct trace *trace, const struct trace_event *event)
{
    assert(event->channel < RING_MAX_CHANNELS);
    add(trace, event);
}

void trace_lose(struct trace *trace, uint64_t count)
{
    trace->dropped += count;
}

/* ---- one clock ---- */

/* Which boot of which machine this is, and which time namespace: those who share both share a clock. Empty where
 * the kernel does not tell. RINGZERO_HOST pretends another host here, too. */
static void read_clock_id(char id[CLOCK_ID_BYTES])
{
    memset(id, 0, CLOCK_ID_BYTES);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t used = read(fd, id, 37);
    close(fd);
    if (used <= 0) {
        id[0] = '\0';
        return;
    }
    ssize_t more = readlink("/proc/self/ns/time", id + used, 32); /* a kernel that has none has one clock */
    used += more > 0 ? more : 0;
    const char *pretended = getenv("RINGZERO_HOST");
    if (pretended != NULL) snprintf(id + used, CLOCK_ID_BYTES - (size_t)used, " %s", pretended);
}

/* Takes a blob that is sure to come; within the deadline. */
static enum status take(int64_t *value, int from, uint64_t key, struct bootstrap *bootstrap)
{
    int64_t deadline = clock_ns() + clock_ms_to_ns(bootstrap_timeout_ms(bootstrap));
    for (bool found = false; !found;) {
        TRY(bootstrap_take(value, sizeof *value, &found, from, key, bootstrap));
        if (!found && clock_ns() > deadline)
            return FAIL(STATUS_TIMEOUT, "rank %d: comparing clocks: nothing came from rank %d for %d ms",
                bootstrap_rank(bootstrap), from, bootstrap_timeout_ms(bootstrap));
    }
    return STATUS_OK;
}

/* Rank 0's part: answers each of a rank's questions with its time. */
static enum status answer(int rank, struct bootstrap *bootstrap)
{
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        int64_t asked;
        TRY(take(&asked, rank, CLOCK_KEY, bootstrap));
        int64_t now = clock_ns();
        TRY(bootstrap_post(rank, CLOCK_KEY + 1, &now, sizeof now, bootstrap));
    }
    return STATUS_OK;
}

static enum status ask(int64_t *offset_ns, int64_t *within_ns, struct bootstrap *bootstrap)
{
    int64_t fastest = INT64_MAX;
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        int64_t before = clock_ns(), theirs;
        TRY(bootstrap_post(0, CLOCK_KEY, &before, sizeof before, bootstrap));
        TRY(take(&theirs, 0, CLOCK_KEY + 1, bootstrap));
        int64_t after = clock_ns();
        if (after - before >= fastest) continue;
        fastest = after - before;
        *offset_ns = theirs - (before + fastest / 2);
    }
    *within_ns = fastest / 2 + 1;
    return STATUS_OK;
}

enum status trace_clock_offset(int64_t *offset_ns, int64_t *within_ns, struct bootstrap *bootstrap)
{
    int rank = bootstrap_rank(bootstrap), n = bootstrap_nranks(bootstrap);
    enum status status;
    *offset_ns = *within_ns = 0;
    char(*ids)[CLOCK_ID_BYTES] = calloc((size_t)n, sizeof *ids);
    if (ids == NULL) return FAIL(STATUS_SYSTEM, "no memory for the names of %d machines", n);
    read_clock_id(ids[rank]);
    TRY_GOTO(bootstrap_all_gather(ids, sizeof *ids, bootstrap));
    for (int r = 1; r < n; r++) { /* one after another: questions must not wait for each other */
        if (ids[0][0] != '\0' && memcmp(ids[r], ids[0], sizeof *ids) == 0) continue;
        if (rank == 0) TRY_GOTO(answer(r, bootstrap));
        if (rank == r) TRY_GOTO(ask(offset_ns, within_ns, bootstrap));
    }
fail:
    free(ids);
    return status;
}

/* ---- everybody's events ---- */

struct share {
    uint64_t count, dropped;
    int64_t offset_ns, within_ns;
};

static enum status gather_events(struct trace_all *all, const struct share *shares, size_t most,
    const struct trace *trace, struct bootstrap *bootstrap)
{
    int rank = bootstrap_rank(bootstrap), n = bootstrap_nranks(bootstrap);
    struct trace_event *blobs = calloc((size_t)n * GATHER_EVENTS, sizeof *blobs);
    if (blobs == NULL) return FAIL(STATUS_SYSTEM, "no memory for the events of %d ranks", n);
    enum status status = STATUS_OK;
    for (size_t done = 0; done < most && status == STATUS_OK; done += GATHER_EVENTS) {
        size_t left = trace->count > done ? trace->count - done : 0,
               part = left < GATHER_EVENTS ? left : GATHER_EVENTS;
        if (part > 0) memcpy(&blobs[rank * GATHER_EVENTS], &trace->events[done], part * sizeof *blobs);
        status = bootstrap_all_gather(blobs, GATHER_EVENTS * sizeof *blobs, bootstrap);
        for (int r = 0; r < n && rank == 0 && status == STATUS_OK; r++)
            for (size_t i = done; i < done + GATHER_EVENTS && i < shares[r].count; i++) {
                struct trace_event *event = &all->events[all->begins[r] + i];
                *event = blobs[(size_t)r * GATHER_EVENTS + i - done];
                event->begin_ns += shares[r].offset_ns;
                event->end_ns += shares[r].offset_ns;
                if (event->begin_ns < all->first_ns) all->first_ns = event->begin_ns;
            }
    }
    free(blobs);
    return status;
}

enum status trace_gather(struct trace_all *all, const struct trace *trace, struct bootstrap *bootstrap)
{
    int rank = bootstrap_rank(bootstrap), n = bootstrap_nranks(bootstrap);
    size_t most = 0;
    enum status status = STATUS_OK;
    *all = (struct trace_all){.nranks = n, .first_ns = INT64_MAX};
    struct share *shares = calloc((size_t)n, sizeof *shares);
    all->begins = calloc((size_t)n + 1, sizeof *all->begins);
    if (shares == NULL || all->begins == NULL)
        TRY_GOTO(FAIL(STATUS_SYSTEM, "no memory for the traces of %d ranks", n));
    shares[rank] = (struct share){.count = trace->count, .dropped = trace->dropped};
    TRY_GOTO(trace_clock_offset(&shares[rank].offset_ns, &shares[rank].within_ns, bootstrap));
    TRY_GOTO(bootstrap_all_gather(shares, sizeof *shares, bootstrap));
    for (int r = 0; r < n; r++) {
        all->begins[r + 1] = all->begins[r] + (rank == 0 ? shares[r].count : 0);
        all->dropped += shares[r].dropped;
        if (shares[r].within_ns > all->within_ns) all->within_ns = shares[r].within_ns;
        if (shares[r].count > most) most = shares[r].count;
    }
    all->events = calloc(all->begins[n] + 1, sizeof *all->events);
    if (all->events == NULL) TRY_GOTO(FAIL(STATUS_SYSTEM, "no memory for %zu traced events", all->begins[n]));
    TRY_GOTO(gather_events(all, shares, most, trace, bootstrap));
fail:
    free(shares);
    if (status != STATUS_OK) trace_all_free(all);
    return status;
}

void trace_all_free(struct trace_all *all)
{
    free(all->begins);
    free(all->events);
    *all = (struct trace_all){0};
}
