/* trace_files: see trace_files.h.
 *
 * Who receives what: on an edge the k-th slice that leaves is the k-th that arrives, so a send and its receive
 * are found by counting, without a word on the wire.
 */
#include "bench/trace_files.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH        1400 /* of the picture */
#define LEFT         84
#define TOP          64
#define LANE         26    /* of one channel of one rank */
#define GAP          8     /* between ranks */
#define MOST_DRAWN   20000 /* events; more would be dust */
#define MOST_ARROWS  2000
#define MOST_COLOURS 64
#define NO_RECEIVER  SIZE_MAX

/* A trace, and what is found out about it before it is written. */
struct story {
    const struct trace_all *all;
    size_t count;
    size_t *receivers; /* [count]: event that receives what this one sends, or NO_RECEIVER */
    int channels, chunks;
    int64_t last_ns;
};

static int rank_of(const struct trace_all *all, size_t event)
{
    int rank = 0;
    while (all->begins[rank + 1] <= event) rank++;
    return rank;
}

/* The next event of `to` at or after `from_event` that receives on this edge. */
static size_t next_receive(const struct trace_all *all, size_t at, int from, int to, int channel)
{
    for (; at < all->begins[to + 1]; at++) {
        const struct trace_event *event = &all->events[at];
        bool receives = event->from == from || event->joins == from;
        if (event->kind == TRACE_STEP && receives && event->channel == channel) return at;
    }
    return NO_RECEIVER;
}

static enum status match(struct story *story)
{
    const struct trace_all *all = story->all;
    size_t n = (size_t)all->nranks, channels = (size_t)story->channels;
    size_t *next = calloc(n * n * channels + 1, sizeof *next); /* by edge: where the search goes on */
    story->receivers = calloc(story->count + 1, sizeof *story->receivers);
    if (next == NULL || story->receivers == NULL) {
        free(next);
        return FAIL(STATUS_SYSTEM, "--trace: no memory for %zu events", story->count);
    }
    for (size_t i = 0; i < story->count; i++) {
        const struct trace_event *event = &all->events[i];
        story->receivers[i] = NO_RECEIVER;
        if (event->kind != TRACE_STEP || event->to < 0 || event->to >= all->nranks) continue;
        int from = rank_of(all, i);
        size_t *at = &next[((size_t)from * n + (size_t)event->to) * channels + event->channel];
        if (*at == NO_RECEIVER) continue;
        if (*at < all->begins[event->to]) *at = all->begins[event->to];
        size_t found = next_receive(all, *at, from, event->to, event->channel);
        story->receivers[i] = found;
        *at = found == NO_RECEIVER ? NO_RECEIVER : found + 1;
    }
    free(next);
    return STATUS_OK;
}

static enum status story_begin(struct story *story, const struct trace_all *all)
{
    *story = (struct story){.all = all,
        .count = all->begins[all->nranks],
        .channels = 1,
        .chunks = 1,
        .last_ns = all->first_ns + 1};
    for (size_t i = 0; i < story->count; i++) {
        const struct trace_event *event = &all->events[i];
        if (event->channel >= story->channels) story->channels = event->channel + 1;
        if (event->chunk >= story->chunks) story->chunks = event->chunk + 1;
        if (event->end_ns > story->last_ns) story->last_ns = event->end_ns;
    }
    return match(story);
}

/* ---- Chrome trace events ---- */

static const char *wait_name(const struct trace_event *event)
{
    return event->kind == TRACE_WAIT_DATA ? "wait for data" : "wait for room";
}

static void write_event(FILE *file, const struct story *story, size_t i)
{
    const struct trace_all *all = story->all;
    const struct trace_event *event = &all->events[i];
    int rank = rank_of(all, i);
    double ts = (double)(event->begin_ns - all->first_ns) / 1e3,
           dur = (double)(event->end_ns - event->begin_ns) / 1e3;
    fprintf(file, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", rank, event->channel, ts,
        dur);
    if (event->kind != TRACE_STEP) {
        fprintf(file,
            "\"cat\":\"wait\",\"name\":\"%s\",\"args\":{\"step\":%d,\"slice\":%llu,\"from\":%d,\"to\":%d}}",
            wait_name(event), event->step, (unsigned long long)event->slice, event->from, event->to);
        return;
    }
    fprintf(file,
        "\"cat\":\"step\",\"name\":\"%s c%d\",\"args\":{\"operation\":\"%s "
        "#%u\",\"step\":%d,\"slice\":%llu,\"chunk\":%d,"
        "\"bytes\":%llu,\"from\":%d,\"to\":%d}}",
        primitive_name((enum primitive)event->primitive), event->chunk,
        collective_name((enum collective)event->collective), event->sequence, event->step,
        (unsigned long long)event->slice, event->chunk, (unsigned long long)event->bytes, event->from,
        event->to);
    size_t receiver = story->receivers[i];
    if (receiver == NO_RECEIVER) return;
    const struct trace_event *other = &all->events[receiver];
    fprintf(file,
        ",\n{\"ph\":\"s\",\"id\":%zu,\"cat\":\"wire\",\"name\":\"c%d\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}", i,
        event->chunk, rank, event->channel, ts);
    fprintf(file,
        ",\n{\"ph\":\"f\",\"bp\":\"e\",\"id\":%zu,\"cat\":\"wire\",\"name\":\"c%d\",\"pid\":%d,\"tid\":%d,"
        "\"ts\":%.3f}",
        i, event->chunk, event->to, other->channel, (double)(other->begin_ns - all->first_ns) / 1e3);
}

static void write_json(FILE *file, const struct story *story)
{
    fprintf(file, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\","
                  "\"pid\":0,\"args\":{\"name\":\"rank 0\"}}");
    for (int rank = 0; rank < story->all->nranks; rank++) {
        if (rank > 0)
            fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}", rank,
                rank);
        fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}", rank,
            rank);
        for (int c = 0; c < story->channels; c++)
            fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"channel "
                "%d\"}}",
                rank, c, c);
    }
    for (size_t i = 0; i < story->count; i++) write_event(file, story, i);
    fprintf(file, "\n],\"otherData\":{\"clocks_within_us\":%.3f}}\n", (double)story->all->within_ns / 1e3);
}

/* ---- the picture ---- */

static double x_of(const struct story *story, int64_t ns)
{
    double share = (double)(ns - story->all->first_ns) / (double)(story->last_ns - story->all->first_ns);
    return LEFT + share * (WIDTH - LEFT - 16);
}

static int y_of(const struct story *story, int rank, int channel)
{
    return TOP + rank * (story->channels * LANE + GAP) + channel * LANE;
}

/* A hue of its own for each chunk; lighter where the chunk is complete and only copied on. */
static void colour_of(char text[8], const struct story *story, const struct trace_event *event)
{
    enum primitive primitive = (enum primitive)event->primitive;
    bool sums = primitive == PRIMITIVE_SEND || primitive == PRIMITIVE_RECV_REDUCE_SEND ||
                primitive == PRIMITIVE_RECV_REDUCE_COPY || primitive == PRIMITIVE_RECV_REDUCE_COPY_SEND;
    double hue = 6.0 * event->chunk / story->chunks, light = sums ? 0.45 : 0.72;
    int rgb[3];
    for (int i = 0; i < 3; i++) { /* red peaks at hue 0, green at 2, blue at 4 */
        double distance = fabs(hue - 2 * i);
        if (distance > 3) distance = 6 - distance;
        double pure = distance < 1 ? 1 : distance < 2 ? 2 - distance : 0;
        rgb[i] = (int)(255 * (light + (pure - 0.5) * 0.62 * (1 - fabs(2 * light - 1)) * 1.2));
        rgb[i] = rgb[i] < 0 ? 0 : rgb[i] > 255 ? 255 : rgb[i];
    }
    snprintf(
        text, 8, "#%02x%02x%02x", (unsigned)rgb[0] & 0xff, (unsigned)rgb[1] & 0xff, (unsigned)rgb[2] & 0xff);
}

static void draw_event(FILE *file, const struct story *story, size_t i)
{
    const struct trace_event *event = &story->all->events[i];
    int rank = rank_of(story->all, i), y = y_of(story, rank, event->channel);
    double x = x_of(story, event->begin_ns), width = x_of(story, event->end_ns) - x,
           us = (double)(event->end_ns - event->begin_ns) / 1e3;
    if (event->kind != TRACE_STEP) {
        fprintf(file,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"4\" fill=\"%s\" "
            "stroke=\"none\"><title>rank %d: %s, %.2f us</title></rect>\n",
            x, y + LANE / 2 - 2, width, event->kind == TRACE_WAIT_DATA ? "#d0d0d0" : "#e8b0a0", rank,
            wait_name(event), us);
        return;
    }
    char colour[8];
    colour_of(colour, story, event);
    fprintf(file,
        "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"white\" "
        "stroke-width=\"0.3\"><title>rank "
        "%d: step %d, %s, chunk %d, slice %llu, %llu bytes, %.2f us</title></rect>\n",
        x, y, width > 0.6 ? width : 0.6, LANE - 4, colour, rank, event->step,
        primitive_name((enum primitive)event->primitive), event->chunk, (unsigned long long)event->slice,
        (unsigned long long)event->bytes, us);
    if (width > 12)
        fprintf(file, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x + width / 2,
            y + LANE / 2 + 2, event->chunk);
}

/* From the end of a slice's send down (or up) to the beginning of its receive. */
static void draw_arrow(FILE *file, const struct story *story, size_t i)
{
    size_t receiver = story->receivers[i];
    if (receiver == NO_RECEIVER) return;
    const struct trace_event *event = &story->all->events[i], *other = &story->all->events[receiver];
    int rank = rank_of(story->all, i);
    fprintf(file, "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\"/>\n", x_of(story, event->end_ns),
        y_of(story, rank, event->channel) + LANE / 2, x_of(story, other->begin_ns),
        y_of(story, event->to, other->channel) + LANE / 2);
}

/* Time: about ten marks, at round numbers. */
static void draw_axis(FILE *file, const struct story *story, int bottom)
{
    double span = (double)(story->last_ns - story->all->first_ns) / 1e3, mark = pow(10, floor(log10(span / 5)));
    if (span / mark > 20) mark *= 5;
    else if (span / mark > 10) mark *= 2;
    for (double us = 0; us <= span; us += mark) {
        double x = x_of(story, story->all->first_ns + (int64_t)(us * 1e3));
        fprintf(file,
            "<path d=\"M%.2f %dL%.2f %d\" stroke=\"#e4e4e4\"/><text x=\"%.2f\" y=\"%d\" "
            "text-anchor=\"middle\" fill=\"#666\">%g us</text>\n",
            x, TOP - 6, x, bottom, x, bottom + 14, us);
    }
}

static void draw_legend(FILE *file, const struct story *story, int y)
{
    int shown = story->chunks < MOST_COLOURS ? story->chunks : MOST_COLOURS;
    fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"#333\">chunk</text>\n", LEFT, y + 11);
    for (int c = 0; c < shown; c++) {
        char sum[8], copy[8];
        colour_of(sum, story, &(struct trace_event){.chunk = c, .primitive = PRIMITIVE_SEND});
        colour_of(copy, story, &(struct trace_event){.chunk = c, .primitive = PRIMITIVE_RECV});
        int x = LEFT + 44 + c % 32 * 38, row = y + c / 32 * 16;
        fprintf(file,
            "<rect x=\"%d\" y=\"%d\" width=\"9\" height=\"12\" fill=\"%s\"/><rect x=\"%d\" y=\"%d\" "
            "width=\"9\" height=\"12\" "
            "fill=\"%s\"/><text x=\"%d\" y=\"%d\">%d</text>\n",
            x, row, sum, x + 9, row, copy, x + 20, row + 10, c);
    }
    fprintf(file,
        "<text x=\"%d\" y=\"%d\" fill=\"#666\">dark: a part of the sum; light: complete, or moved as it "
        "is; thin grey: waits for "
        "data, red: waits for room; lines: a slice on its way</text>\n",
        LEFT, y + 16 * ((shown + 31) / 32) + 12);
}

static void write_svg(FILE *file, const char *title, const struct story *story)
{
    int n = story->all->nranks, bottom = y_of(story, n, 0),
        height = bottom + 30 + 16 * (story->chunks / 32 + 1) + 24;
    size_t drawn = story->count < MOST_DRAWN ? story->count : MOST_DRAWN,
           every = story->count / (drawn + 1) + 1;
    fprintf(file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" "
        "font-size=\"11\" stroke=\"none\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text "
        "x=\"%d\" "
        "y=\"24\" font-size=\"16\">%s</text>\n",
        WIDTH, height, WIDTH, height, LEFT, title);
    if (every > 1 || story->all->dropped > 0)
        fprintf(file,
            "<text x=\"%d\" y=\"42\" fill=\"#a00\">%zu events, 1 in %zu drawn; %llu more did not fit the "
            "trace</text>\n",
            LEFT, story->count, every, (unsigned long long)story->all->dropped);
    else if (story->all->within_ns > 0)
        fprintf(file, "<text x=\"%d\" y=\"42\" fill=\"#666\">clocks of several hosts, which agree to within %.1f us</text>\n", LEFT,
            (double)story->all->within_ns / 1e3);
    draw_axis(file, story, bottom);
    for (int rank = 0; rank < n; rank++)
        fprintf(file, "<text x=\"8\" y=\"%d\" font-size=\"13\">rank %d</text>\n",
            y_of(story, rank, 0) + LANE / 2 + 3, rank);
    for (int kind = TRACE_KINDS - 1; kind >= TRACE_STEP; kind--) /* waits lie below the steps */
        for (size_t i = 0; i < story->count; i += every)
            if (story->all->events[i].kind == kind) draw_event(file, story, i);
    fprintf(file, "<g stroke=\"#404040\" stroke-width=\"0.5\" stroke-opacity=\"0.55\">\n");
    for (size_t i = 0; i < story->count && story->count <= MOST_ARROWS; i++) draw_arrow(file, story, i);
    fprintf(file, "</g>\n");
    draw_legend(file, story, bottom + 24);
    fprintf(file, "</svg>\n");
}

/* ---- files ---- */

static enum status close_file(FILE *file, const char *path)
{
    bool failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    return failed ? FAIL(STATUS_SYSTEM, "--trace: writing %s failed: %s; expected room for it", path,
                        strerror(errno))
                  : STATUS_OK;
}

static enum status write_files(const char *path, const char *title, const struct story *story)
{
    char picture[PATH_MAX];
    snprintf(picture, sizeof picture, "%s.svg", path);
    FILE *file = fopen(path, "w");
    if (file == NULL) return FAIL(STATUS_SYSTEM, "--trace: %s cannot be written: %s", path, strerror(errno));
    write_json(file, story);
    TRY(close_file(file, path));
    file = fopen(picture, "w");
    if (file == NULL) return FAIL(STATUS_SYSTEM, "--trace: %s cannot be written: %s", picture, strerror(errno));
    write_svg(file, title, story);
    return close_file(file, picture);
}

enum status trace_files_write(const char *file, const char *title, const struct trace_all *all)
{
    struct story story;
    enum status status = story_begin(&story, all);
    if (status == STATUS_OK) status = write_files(file, title, &story);
    free(story.receivers);
    return status;
}
