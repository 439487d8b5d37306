/* show_sizes: see show_sizes.h. A stretch of sizes begins where the way changes: doubled steps find one
 * where it is another, halving then finds the first.
 */
#include "bench/show_sizes.h"

#include "bench/json_line.h"
#include "bench/show_path.h"
#include "bench/show_plan.h"

#define LINE_BYTES ((int64_t)1 << 30) /* how far the line looks */

/* How the calls of one size go. */
struct way {
    enum path_kind kind;
    bool by_lines;
    int turns;
};

/* Sizes from first to last, in units. */
struct stretch {
    struct way way;
    size_t first, last;
};

static enum status way_of(
    struct way *way, size_t units, const struct show_options *show, struct path_comm *comm)
{
    struct path path;
    const struct ring_call call = show_path_call(units * show_path_unit_bytes(show), show);
    enum status status = path_make(&path, &call, comm);
    *way = (struct way){path.kind, show_path_is_by_lines(&path),
        path.kind == PATH_PLAN ? show_most_steps(show) : path.turns};
    path_free(&path);
    return status;
}

static bool is_same(const struct way *a, const struct way *b)
{
    return a->kind == b->kind && a->by_lines == b->by_lines && a->turns == b->turns;
}

/* The stretch that begins at `first`, as far as `most`. */
static enum status find_stretch(struct stretch *stretch, size_t first, size_t most,
    const struct show_options *show, struct path_comm *comm)
{
    struct way other;
    size_t same = first, step = 1, beyond = most + 1;
    stretch->first = first;
    TRY(way_of(&stretch->way, first, show, comm));
    while (same < most && beyond > most) {
        size_t next = most - same > step ? same + step : most;
        TRY(way_of(&other, next, show, comm));
        if (is_same(&other, &stretch->way)) same = next;
        else beyond = next;
        step *= 2;
    }
    while (beyond <= most && beyond - same > 1) {
        size_t middle = same + (beyond - same) / 2;
        TRY(way_of(&other, middle, show, comm));
        if (is_same(&other, &stretch->way)) same = middle;
        else beyond = middle;
    }
    stretch->last = same;
    return STATUS_OK;
}

enum status show_sizes_print_line(const struct show_options *show, struct path_comm *comm)
{
    size_t unit = show_path_unit_bytes(show), most = (size_t)LINE_BYTES / unit;
    if (show->collective == COLLECTIVE_BARRIER) return STATUS_OK;
    printf("sizes         ");
    for (size_t first = 1; first <= most;) {
        struct stretch stretch;
        TRY(find_stretch(&stretch, first, most, show, comm));
        const char *name = show_path_way(stretch.way.kind, show, comm);
        printf("%s %s", first > 1 && stretch.last == most ? " then" : "", name);
        if (stretch.way.by_lines) printf(" by lines");
        if (stretch.way.kind != PATH_PLAN)
            printf(" in %d turn%s", stretch.way.turns, stretch.way.turns == 1 ? "" : "s");
        if (stretch.last < most) printf(" to %zu,", stretch.last * unit);
        first = stretch.last + 1;
    }
    printf("\n");
    return STATUS_OK;
}

/* ---- the table ---- */

/* What the rank that sends most sends of the stretch's last size. */
struct most {
    int messages;
    uint64_t bytes;
};

static enum status most_sent(struct most *most, const struct ring_call *call,
    const struct show_options *show, struct path_comm *comm)
{
    struct path path;
    enum status status = path_make(&path, call, comm);
    *most = (struct most){0, 0};
    for (int rank = 0; rank < show->common.ranks && status == STATUS_OK; rank++) {
        int messages = 0;
        for (int m = 0; m < path.message_count; m++) messages += path.messages[m].from == rank;
        struct plan plan = show_plan(show, rank);
        if (path.kind == PATH_PLAN) messages = plan_chunks_sent(&plan);
        uint64_t bytes = path_sent_bytes(call, rank, comm);
        if (messages > most->messages) most->messages = messages;
        if (bytes > most->bytes) most->bytes = bytes;
    }
    path_free(&path);
    return status;
}

static enum status write_row(FILE *json, const struct stretch *stretch, const struct most *most,
    size_t unit, const char *name)
{
    if (json == NULL) return STATUS_OK;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "from", (double)(stretch->first * unit));
    cJSON_AddNumberToObject(object, "to", (double)(stretch->last * unit));
    cJSON_AddStringToObject(object, "way", name);
    cJSON_AddBoolToObject(object, "by_lines", stretch->way.by_lines);
    cJSON_AddNumberToObject(object, "turns", stretch->way.turns);
    cJSON_AddNumberToObject(object, "messages", most->messages);
    cJSON_AddNumberToObject(object, "sent_bytes", (double)most->bytes);
    return json_line_write(json, object);
}

static enum status print_row(FILE *json, const struct stretch *stretch,
    const struct show_options *show, struct path_comm *comm)
{
    size_t unit = show_path_unit_bytes(show);
    struct most most;
    char way[40];
    const struct ring_call call = show_path_call(stretch->last * unit, show);
    TRY(most_sent(&most, &call, show, comm));
    const char *name = show_path_way(stretch->way.kind, show, comm);
    snprintf(way, sizeof way, "%s%s", name, stretch->way.by_lines ? ", by lines" : "");
    printf("%12zu  %12zu  %-16s  %5d  %8d  %14llu  %6.2f\n", stretch->first * unit,
        stretch->last * unit, way, stretch->way.turns, most.messages,
        (unsigned long long)most.bytes, (double)most.bytes / (double)(stretch->last * unit));
    return write_row(json, stretch, &most, unit, name);
}

enum status show_sizes_print_table(
    FILE *json, const struct show_options *show, struct path_comm *comm)
{
    size_t unit = show_path_unit_bytes(show), most = (size_t)show->bytes.last / unit,
           first = ((size_t)show->bytes.first + unit - 1) / unit;
    if (first == 0) first = 1;
    printf("# %s of %s, ", collective_name(show->collective), dtype_name(show->dtype));
    show_path_print_ranks(show, comm);
    printf("; what a rank sends at most, of the last size\n");
    printf("#%11s  %12s  %-16s  %5s  %8s  %14s  %6s\n", "from", "to", "way", "turns", "messages",
        "bytes", "/ size");
    while (first <= most) {
        struct stretch stretch;
        TRY(find_stretch(&stretch, first, most, show, comm));
        TRY(print_row(json, &stretch, show, comm));
        first = stretch.last + 1;
    }
    return STATUS_OK;
}
