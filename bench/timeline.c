/* timeline: see timeline.h.
 *
 *   rank 0   computes      ├ step ──────────────────────────┤     depth 0
 *                           ├ block 1 backward ─┤├ block 0 …      depth 1
 *                           ├ fcproj ─┤├ gelu ──┤                  depth 2
 *            ring           ·····├ reduce block 2 ┤
 *            world          ·····├ all_reduce ────┤
 *   rank 1   …
 */
#include "bench/timeline.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define WIDTH      1600 /* of the picture */
#define LEFT       150
#define RIGHT      16
#define TOP        72
#define ROW        15 /* of one depth of a lane */
#define LANE_GAP   3
#define RANK_GAP   14
#define LETTER     5.6   /* about the width of one */
#define MOST_DRAWN 40000 /* spans; then those that are thinner than THIN are left out */
#define THIN       0.15

/* What is found out about the spans before they are written. */
struct story {
    const struct timeline *timeline;
    int64_t first_ns, last_ns;
    int depths[TIMELINE_LANES_MOST]; /* of a lane's spans; 0: there are none */
    int lane_y[TIMELINE_LANES_MOST]; /* from its rank's top on */
    int rank_height;
};

static struct story story_of(const struct timeline *timeline)
{
    struct story story = {.timeline = timeline, .first_ns = INT64_MAX, .last_ns = INT64_MIN};
    for (size_t i = 0; i < timeline->count; i++) {
        const struct timeline_span *span = &timeline->spans[i];
        if (span->begin_ns < story.first_ns) story.first_ns = span->begin_ns;
        if (span->end_ns > story.last_ns) story.last_ns = span->end_ns;
        if (span->depth >= story.depths[span->lane]) story.depths[span->lane] = span->depth + 1;
    }
    if (timeline->count == 0) story.first_ns = 0;
    if (story.last_ns <= story.first_ns) story.last_ns = story.first_ns + 1;
    for (int lane = 0; lane < TIMELINE_LANES_MOST; lane++) {
        story.lane_y[lane] = story.rank_height;
        if (story.depths[lane] > 0) story.rank_height += story.depths[lane] * ROW + LANE_GAP;
    }
    return story;
}

/* ---- Chrome trace events ---- */

static void write_names(FILE *file, const struct story *story)
{
    const struct timeline *timeline = story->timeline;
    for (int rank = 0; rank < timeline->nranks; rank++) {
        fprintf(file,
            "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            rank > 0 ? ",\n" : "", rank, rank);
        fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%"
            "d}}",
            rank, rank);
        for (int lane = 0; lane < TIMELINE_LANES_MOST; lane++) {
            if (story->depths[lane] == 0) continue;
            fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{"
                "\"name\":"
                "\"%s\"}}",
                rank, lane, timeline->lanes[lane]);
            fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{"
                "\"sort_index\":%d}}",
                rank, lane, lane);
        }
    }
}

static void write_json(FILE *file, const struct story *story)
{
    const struct timeline *timeline = story->timeline;
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file);
    write_names(file, story);
    for (size_t i = 0; i < timeline->count; i++) {
        const struct timeline_span *span = &timeline->spans[i];
        fprintf(file,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\","
            "\"name\":\"%s\",\"args\":{\"bytes\":%llu}}",
            span->rank, span->lane, (double)(span->begin_ns - story->first_ns) * 1e-3,
            (double)(span->end_ns - span->begin_ns) * 1e-3, timeline->lanes[span->lane], span->name,
            (unsigned long long)span->bytes);
    }
    fprintf(file, "\n],\"otherData\":{\"clocks_within_us\":%.3f}}\n",
        (double)timeline->within_ns * 1e-3);
}

/* ---- the picture ---- */

/* The first whose word is in the name. */
static const struct colour {
    const char *word, *fill, *legend;
} colours[] = {
    {"wait", "#c9c4c4", "waits"},
    {"backward", "#f0a35e", "backward"},
    {"forward", "#6ea8dc", "forward"},
    {"reduce", "#a783c9", "sums on their way"},
    {"sums", "#a783c9", NULL},
    {"join", "#a783c9", NULL},
    {"gather", "#58b5a3", "gathers"},
    {"broadcast", "#58b5a3", NULL},
    {"send", "#58b5a3", NULL},
    {"recv", "#58b5a3", NULL},
    {"adam", "#8fbf5a", "optimizer, norm"},
    {"norm of", "#8fbf5a", NULL},
    {"", "#dfe3e8", "other"},
};

static const char *fill_of(const char *name)
{
    size_t i = 0;
    while (strstr(name, colours[i].word) == NULL) i++;
    return colours[i].fill;
}

static double x_of(const struct story *story, int64_t ns)
{
    double share = (double)(ns - story->first_ns) / (double)(story->last_ns - story->first_ns);
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static int rank_y(const struct story *story, int rank)
{
    return TOP + rank * (story->rank_height + RANK_GAP);
}

static void draw_span(FILE *file, const struct timeline_span *span, const struct story *story)
{
    double x = x_of(story, span->begin_ns), width = x_of(story, span->end_ns) - x;
    int y = rank_y(story, span->rank) + story->lane_y[span->lane] + span->depth * ROW;
    if (story->timeline->count > MOST_DRAWN && width < THIN) return;
    fprintf(file,
        "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s><title>rank %d: %s, "
        "%.1f us",
        x, y, width > 0.3 ? width : 0.3, ROW - 1, fill_of(span->name),
        width > 3 ? " stroke=\"white\" stroke-width=\"0.5\"" : "", span->rank, span->name,
        (double)(span->end_ns - span->begin_ns) * 1e-3);
    if (span->bytes > 0) fprintf(file, ", %llu bytes", (unsigned long long)span->bytes);
    fputs("</title></rect>\n", file);
    size_t room = width > 10 ? (size_t)((width - 4) / LETTER) : 0, length = strlen(span->name);
    if (room < 2) return;
    fprintf(file, "<text x=\"%.2f\" y=\"%d\" font-size=\"10\">%.*s</text>\n", x + 2, y + ROW - 4,
        (int)(length < room ? length : room), span->name);
}

/* Time: about ten marks, at round numbers. */
static void draw_axis(FILE *file, const struct story *story, int bottom)
{
    double span = (double)(story->last_ns - story->first_ns) * 1e-6,
           mark = pow(10, floor(log10(span / 5)));
    if (span / mark > 20) mark *= 5;
    else if (span / mark > 10) mark *= 2;
    for (double ms = 0; ms <= span; ms += mark) {
        double x = x_of(story, story->first_ns + (int64_t)(ms * 1e6));
        fprintf(file,
            "<path d=\"M%.2f %dL%.2f %d\" stroke=\"#e4e4e4\"/><text x=\"%.2f\" y=\"%d\" "
            "text-anchor=\"middle\" fill=\"#666\">%g ms</text>\n",
            x, TOP - 6, x, bottom, x, bottom + 14, ms);
    }
}

static void draw_lanes(FILE *file, const struct story *story)
{
    for (int rank = 0; rank < story->timeline->nranks; rank++) {
        int y = rank_y(story, rank);
        fprintf(
            file, "<text x=\"8\" y=\"%d\" font-size=\"13\">rank %d</text>\n", y + ROW - 3, rank);
        for (int lane = 0; lane < TIMELINE_LANES_MOST; lane++)
            if (story->depths[lane] > 0)
                fprintf(file,
                    "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#555\">%s</text>\n",
                    LEFT - 6, y + story->lane_y[lane] + ROW - 4, story->timeline->lanes[lane]);
    }
}

static void draw_legend(FILE *file, int y)
{
    int x = LEFT;
    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++) {
        if (colours[i].legend == NULL) continue;
        fprintf(file,
            "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" "
            "y=\"%d\">%s</text>\n",
            x, y, colours[i].fill, x + 17, y + 10, colours[i].legend);
        x += 40 + (int)(strlen(colours[i].legend) * 6);
    }
}

static void write_svg(FILE *file, const struct story *story)
{
    const struct timeline *timeline = story->timeline;
    int bottom = rank_y(story, timeline->nranks), height = bottom + 56, deepest = 0;
    fprintf(file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
        "%d\" "
        "font-family=\"sans-serif\" font-size=\"11\" stroke=\"none\">\n<rect width=\"100%%\" "
        "height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" y=\"24\" font-size=\"16\">%s</text>\n",
        WIDTH, height, WIDTH, height, timeline->title);
    if (timeline->remark != NULL)
        fprintf(file, "<text x=\"8\" y=\"44\" fill=\"#555\">%s</text>\n", timeline->remark);
    draw_axis(file, story, bottom);
    draw_lanes(file, story);
    for (int lane = 0; lane < TIMELINE_LANES_MOST; lane++)
        if (story->depths[lane] > deepest) deepest = story->depths[lane];
    for (int depth = 0; depth < deepest; depth++)
        for (size_t i = 0; i < timeline->count; i++)
            if (timeline->spans[i].depth == depth) draw_span(file, &timeline->spans[i], story);
    draw_legend(file, bottom + 30);
    fputs("</svg>\n", file);
}

/* ---- files ---- */

static enum status write_file(
    const char *path, void (*write)(FILE *, const struct story *), const struct story *story)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return FAIL(STATUS_SYSTEM, "--trace: %s cannot be written: %s", path, strerror(errno));
    write(file, story);
    bool failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    return failed ? FAIL(STATUS_SYSTEM, "--trace: writing %s failed: %s; expected room for it",
                        path, strerror(errno))
                  : STATUS_OK;
}

enum status timeline_write(const char *file, const struct timeline *timeline)
{
    char picture[PATH_MAX];
    const struct story story = story_of(timeline);
    snprintf(picture, sizeof picture, "%s.svg", file);
    TRY(write_file(file, write_json, &story));
    return write_file(picture, write_svg, &story);
}
