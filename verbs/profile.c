/* profile: see profile.h.
 *
 * A mark is a begin, an end, or an order; applied to the stack of open spans in the order in which
 * it was made, at the time that it has: at once where a thread computes, else when its event is
 * read.
 *
 *   mark ──► marks[made mod N], event in the stream          N − 1 at most are unread: the newest
 *            marks[read mod N] passed ──► apply at its time  that was read is what the next one's
 *                                                            time is counted from
 */
#include "verbs/profile.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/clock.h"

#define MARKS      1024
#define DEPTH_MOST 16
#define OTHER      "other"

enum mark_kind { MARK_ROW, MARK_GROUP, MARK_END, MARK_CLEAR, MARK_KEEP };

struct mark {
    enum mark_kind kind;
    const char *name;
    int number;
    double flops, bytes;
    size_t keep;
    struct event *event;
};

/* An open span. */
struct frame {
    const char *name;
    int number, row; /* -1: a group */
    bool kept;
    int64_t begin_ns, inside_ns; /* that others have of its time */
};

struct profile {
    struct device *device;
    struct stream *stream;
    bool started;
    int hidden; /* spans open inside a whole, it counted too; 0: none is */

    struct frame stack[DEPTH_MOST];
    int depth;
    int row_count;
    const char *names[PROFILE_ROWS_MOST]; /* by which rows are found */
    struct profile_row rows[PROFILE_ROWS_MOST];

    struct profile_span *spans;
    size_t span_count, span_room, keep; /* room: allocated; keep: that may be used from now on */
    uint64_t dropped;

    struct mark marks[MARKS]; /* of a stream */
    uint64_t made, read;
    struct event *begin; /* at the start */
    int64_t read_ns;     /* when the mark read last was passed */
    enum status failure;
    char failure_text[STATUS_TEXT_BYTES];
};

enum status profile_open(struct profile **profile, struct device *device)
{
    *profile = calloc(1, sizeof **profile);
    if (*profile == NULL) return FAIL(STATUS_SYSTEM, "no memory for a profile");
    (*profile)->device = device;
    return STATUS_OK;
}

void profile_close(struct profile *profile)
{
    if (profile == NULL) return;
    for (int i = 0; i < MARKS; i++) event_close(profile->marks[i].event, profile->device);
    event_close(profile->begin, profile->device);
    free(profile->spans);
    free(profile);
}

enum status profile_start(struct stream *stream, struct profile *profile)
{
    if (profile == NULL) return STATUS_OK;
    assert(!profile->started);
    profile->stream = stream;
    if (stream != NULL) {
        for (int i = 0; i < MARKS; i++)
            TRY(event_open_timed(&profile->marks[i].event, profile->device));
        TRY(event_open_timed(&profile->begin, profile->device));
        TRY(event_record(profile->begin, stream, profile->device));
        TRY(event_synchronize(profile->begin, profile->device));
        profile->read_ns = clock_ns();
    }
    profile->started = true;
    return STATUS_OK;
}

/* ---- marks that have a time ---- */

/* The row of that name, made where it is new. */
static int row_of(const char *name, struct profile *profile)
{
    for (int i = 0; i < profile->row_count; i++)
        if (profile->names[i] == name) return i;
    for (int i = 0; i < profile->row_count; i++) /* the same words elsewhere in the program */
        if (strcmp(profile->names[i], name) == 0) return i;
    if (profile->row_count == PROFILE_ROWS_MOST) return PROFILE_ROWS_MOST - 1;
    int row = profile->row_count++;
    if (profile->row_count == PROFILE_ROWS_MOST) name = OTHER;
    const char *place = strstr(name, " #");
    int before = place != NULL ? (int)(place - name) : (int)strlen(name);
    profile->names[row] = name;
    profile->rows[row] = (struct profile_row){0};
    snprintf(profile->rows[row].name, PROFILE_NAME_BYTES, "%.*s%s", before, name,
        place != NULL ? place + 2 : "");
    return row;
}

static void keep_span(
    const struct frame *frame, int64_t end_ns, double bytes, struct profile *profile)
{
    if (profile->span_count >= profile->span_room) {
        profile->dropped++;
        return;
    }
    struct profile_span *span = &profile->spans[profile->span_count++];
    *span = (struct profile_span){frame->begin_ns, end_ns, {0}, bytes, profile->depth};
    const char *place = strchr(frame->name, '#');
    int before = place != NULL ? (int)(place - frame->name) : (int)strlen(frame->name);
    if (place == NULL) snprintf(span->name, PROFILE_NAME_BYTES, "%s", frame->name);
    else
        snprintf(span->name, PROFILE_NAME_BYTES, "%.*s%d%s", before, frame->name, frame->number,
            place + 1);
}

static void apply_end(const struct mark *mark, int64_t ns, struct profile *profile)
{
    assert(profile->depth > 0);
    const struct frame *frame = &profile->stack[--profile->depth];
    int64_t whole_ns = ns - frame->begin_ns, others_ns = frame->inside_ns;
    if (frame->row >= 0) {
        struct profile_row *row = &profile->rows[frame->row];
        row->calls++;
        row->ns += whole_ns - frame->inside_ns;
        row->flops += mark->flops;
        row->bytes += mark->bytes;
        others_ns = whole_ns;
    }
    if (profile->depth > 0) profile->stack[profile->depth - 1].inside_ns += others_ns;
    if (frame->kept) keep_span(frame, ns, mark->bytes, profile);
}

static void apply_begin(const struct mark *mark, int64_t ns, struct profile *profile)
{
    assert(profile->depth < DEPTH_MOST);
    profile->stack[profile->depth++] = (struct frame){
        .name = mark->name,
        .number = mark->number,
        .row = mark->kind == MARK_GROUP ? -1 : row_of(mark->name, profile),
        .kept = profile->keep > 0,
        .begin_ns = ns,
    };
}

static void apply(const struct mark *mark, int64_t ns, struct profile *profile)
{
    switch (mark->kind) {
    case MARK_ROW:
    case MARK_GROUP: apply_begin(mark, ns, profile); return;
    case MARK_END: apply_end(mark, ns, profile); return;
    case MARK_CLEAR:
        assert(profile->depth == 0);
        profile->row_count = 0;
        return;
    case MARK_KEEP: profile->keep = mark->keep; return;
    }
}

/* ---- marks in a stream ---- */

static void note_failure(enum status status, struct profile *profile)
{
    if (status == STATUS_OK || profile->failure != STATUS_OK) return;
    profile->failure = status;
    snprintf(profile->failure_text, sizeof profile->failure_text, "%s", status_text());
}

/* Waits for the oldest mark that is unread, and applies it. */
static void read_mark(struct profile *profile)
{
    const struct mark *mark = &profile->marks[profile->read % MARKS];
    struct event *before =
        profile->read == 0 ? profile->begin : profile->marks[(profile->read - 1) % MARKS].event;
    int64_t ns = 0;
    enum status status = event_synchronize(mark->event, profile->device);
    if (status == STATUS_OK) status = event_elapsed(&ns, before, mark->event, profile->device);
    note_failure(status, profile);
    profile->read++;
    profile->read_ns += ns;
    apply(mark, profile->read_ns, profile);
}

static void put(struct mark mark, struct profile *profile)
{
    if (profile->stream == NULL) {
        apply(&mark, clock_ns(), profile);
        return;
    }
    while (profile->made - profile->read >= MARKS - 1) read_mark(profile);
    struct mark *place = &profile->marks[profile->made % MARKS];
    mark.event = place->event;
    *place = mark;
    enum status status = event_record(place->event, profile->stream, profile->device);
    note_failure(status, profile);
    if (status == STATUS_OK) profile->made++;
}

/* ---- what callers say ---- */

/* Whether this begin is looked at. */
static bool enters(bool whole, struct profile *profile)
{
    if (profile == NULL || !profile->started) return false;
    bool seen = profile->hidden == 0;
    if (!seen || whole) profile->hidden++;
    return seen;
}

void profile_begin(struct profile *profile, const char *name, int number)
{
    if (enters(false, profile))
        put((struct mark){.kind = MARK_ROW, .name = name, .number = number}, profile);
}

void profile_begin_group(struct profile *profile, const char *name, int number)
{
    if (enters(false, profile))
        put((struct mark){.kind = MARK_GROUP, .name = name, .number = number}, profile);
}

void profile_begin_whole(struct profile *profile, const char *name, int number)
{
    if (enters(true, profile))
        put((struct mark){.kind = MARK_ROW, .name = name, .number = number}, profile);
}

void profile_end(struct profile *profile, double flops, double bytes)
{
    if (profile == NULL || !profile->started) return;
    if (profile->hidden > 0 && --profile->hidden > 0) return;
    put((struct mark){.kind = MARK_END, .flops = flops, .bytes = bytes}, profile);
}

void profile_clear(struct profile *profile)
{
    if (profile != NULL && profile->started) put((struct mark){.kind = MARK_CLEAR}, profile);
}

enum status profile_keep(size_t most, struct profile *profile)
{
    if (profile == NULL || !profile->started) return STATUS_OK;
    if (most > profile->span_room) {
        struct profile_span *spans = realloc(profile->spans, most * sizeof *spans);
        if (spans == NULL)
            return FAIL(STATUS_SYSTEM, "no memory to keep %zu spans: keep fewer", most);
        profile->spans = spans;
        profile->span_room = most;
    }
    put((struct mark){.kind = MARK_KEEP, .keep = most}, profile);
    return STATUS_OK;
}

enum status profile_settle(struct profile *profile)
{
    if (profile == NULL) return STATUS_OK;
    while (profile->read < profile->made) read_mark(profile);
    if (profile->failure != STATUS_OK) status_set_text(profile->failure_text);
    return profile->failure;
}

const struct profile_row *profile_rows(int *count, const struct profile *profile)
{
    *count = profile->row_count;
    return profile->rows;
}

const struct profile_span *profile_spans(
    size_t *count, uint64_t *dropped, const struct profile *profile)
{
    *count = profile->span_count;
    *dropped = profile->dropped;
    return profile->spans;
}
