/* show: `ringzero show COLLECTIVE --ranks N` draws the plan of a collective: ranks across, steps
 * down. It knows only ring/plan.h: what it draws is what the executors run. No rank is started. With
 * --simulate the same plan runs in virtual time (simulate.c).
 *
 *   up to 4 ranks    every step in words:     c0 ◄3 +own keep ►1
 *   up to 16         every step in marks:     ◄0+=►
 *   beyond           one line per step and rank, for grep
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/options.h"
#include "bench/programs.h"
#include "bench/simulate.h"
#include "ring/plan.h"
#include "ring/ring.h"

#define WORDS_RANKS 4  /* at most, for the table in words: 90 columns */
#define MARKS_RANKS 16 /* at most, for the table in marks: 118 columns */
#define MAX_RANKS   1024
#define CELL_BYTES  96

struct show_options {
    struct options common;
    bool collective_given;
    enum collective collective;
    int root;      /* -1: not given */
    int64_t count; /* -1: not given */
    enum dtype dtype;
    enum reduce_dtype reduce_dtype;
    const char *simulate, *plot; /* NULL: not given */
    struct options_range bytes;  /* first -1: not given */
};

enum { KEY_ROOT = 'r', KEY_DTYPE = 'd', KEY_COUNT = 0x200, KEY_SIMULATE, KEY_BYTES, KEY_PLOT, KEY_REDUCE_DTYPE };

/* "all_reduce, reduce_scatter, … or barrier" */
static const char *collective_list(char text[256])
{
    size_t used = 0;
    text[0] = '\0';
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        const char *before = c == 0 ? "" : c == COLLECTIVE_COUNT - 1 ? " or " : ", ";
        used += (size_t)snprintf(text + used, 256 - used, "%s%s", before, collective_name((enum collective)c));
    }
    return text;
}

static void take_collective(const char *text, struct show_options *show)
{
    char list[256];
    if (show->collective_given)
        options_refuse(&show->common, "found a second collective \"%s\", expected one", text);
    if (collective_from_name(&show->collective, text) != 0)
        options_refuse(&show->common, "collective is \"%s\", expected %s", text, collective_list(list));
    show->collective_given = true;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct show_options *show = state->input;
    const struct options *common = &show->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &show->common; return 0;
    case KEY_ROOT:
        show->root = (int)options_integer(text, "--root", 0, OPTIONS_MOST_DRAWN - 1, common);
        return 0;
    case KEY_COUNT:
        show->count = options_integer(text, "--count", 0, INT64_MAX / 8 / MAX_RANKS, common);
        return 0;
    case KEY_DTYPE:
        if (dtype_from_name(&show->dtype, text) != 0)
            options_refuse(common, "--dtype is \"%s\", expected one of %s", text, dtype_names());
        return 0;
    case KEY_REDUCE_DTYPE:
        if (reduce_dtype_from_name(&show->reduce_dtype, text) != 0)
            options_refuse(common, "--reduce-dtype is \"%s\", expected own or float32", text);
        return 0;
    case KEY_SIMULATE: show->simulate = text; return 0;
    case KEY_BYTES: show->bytes = options_range(text, "--bytes", true, 0, (int64_t)1 << 50, common); return 0;
    case KEY_PLOT: show->plot = text; return 0;
    case ARGP_KEY_ARG: take_collective(text, show); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"root", KEY_ROOT, "R", 0, "of a collective that has one (0); the other side of send and recv (1)", 1},
    {"count", KEY_COUNT, "COUNT", 0, "elements, as in the call: adds the bytes that each rank sends", 1},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "of an element (float32)", 1},
    {"reduce-dtype", KEY_REDUCE_DTYPE, "DTYPE", 0,
        "in what 16-bit sums travel: own (the default), or float32, which makes partial sums twice as wide", 1},
    {"simulate", KEY_SIMULATE, "LINKS", 0,
        "run the plan in virtual time instead, on links of alpha=TIME,beta=BANDWIDTH; nodes=N puts equal runs "
        "of "
        "ranks on N "
        "nodes, with links of alpha_node, beta_node within; slot=BYTES and slots=N of an edge (256K, 8)",
        2},
    {"bytes", KEY_BYTES, "BYTES", 0, "of the whole buffer, for --simulate (1G); also a range, as 1K..1G", 2},
    {"plot", KEY_PLOT, "FILE.svg", 0, "draw the simulated range, by gnuplot", 2},
    {0},
};
static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {
    options,
    parse_option,
    "COLLECTIVE",
    "Draws the steps of a collective: ranks across, steps down. No rank is started (--ranks says how many "
    "to draw, 4 unless given; --transport, --device and --seed change nothing). COLLECTIVE is all_reduce, "
    "reduce_scatter, all_gather, broadcast, reduce, scatter, gather, all_to_all, send, recv or barrier."
    "\vA simulation prints a row for each number of ranks (--ranks 2..1024) or size (--bytes 1K..1G), doubled "
    "from "
    "row to row. "
    "alpha is a link's latency, beta its bandwidth; computing costs nothing. Beside it stand the formula, "
    "2(n-1) "
    "alpha + "
    "2(n-1)/n bytes/beta for an all-reduce, and the textbooks' all-reduce, Reduce and then Broadcast, of whole "
    "buffers.\n\n"
    "Examples:\n  ringzero show all_reduce --ranks 4 --count 1000000\n"
    "  ringzero show all_reduce --ranks 2..1024 --bytes 1G --simulate alpha=5us,beta=50GB/s --plot ring.svg\n"
    "  ringzero show all_reduce --ranks 64 --bytes 1K..1G \\\n"
    "      --simulate alpha=5us,beta=50GB/s,nodes=8,alpha_node=1us,beta_node=300GB/s",
    children,
    options_help_filter,
    NULL,
};

/* ---- cells ---- */

static bool step_reduces(struct plan_step step)
{
    return step.primitive == PRIMITIVE_RECV_REDUCE_SEND || step.primitive == PRIMITIVE_RECV_REDUCE_COPY ||
           step.primitive == PRIMITIVE_RECV_REDUCE_COPY_SEND;
}

static bool step_keeps(struct plan_step step)
{
    return step.primitive != PRIMITIVE_NONE && step.primitive != PRIMITIVE_SEND &&
           step.primitive != PRIMITIVE_RECV_REDUCE_SEND;
}

/* A rank's plan. Send and recv are drawn with both sides: rank 0 calls it, the root is its peer. */
static struct plan plan_of(const struct show_options *show, int rank)
{
    enum collective collective = show->collective;
    bool pair = collective == COLLECTIVE_SEND || collective == COLLECTIVE_RECV;
    if (!pair || rank == 0) return plan_make(collective, show->common.ranks, rank, show->root);
    collective = collective == COLLECTIVE_SEND ? COLLECTIVE_RECV : COLLECTIVE_SEND;
    struct plan plan = plan_make(collective, show->common.ranks, rank, 0);
    if (rank != show->root) plan.steps = 0;
    return plan;
}

/* Steps of the rank that has most. */
static int most_steps(const struct show_options *show)
{
    int most = 0;
    for (int rank = 0; rank < show->common.ranks; rank++) {
        struct plan plan = plan_of(show, rank);
        if (plan.steps > most) most = plan.steps;
    }
    return most;
}

/* A rank that is done rests. */
static struct plan_step step_of(const struct show_options *show, int rank, int i)
{
    struct plan plan = plan_of(show, rank);
    return i < plan.steps ? plan_step_at(&plan, i) : (struct plan_step){PRIMITIVE_NONE, -1, -1, 0};
}

/* Columns of a text on a terminal: UTF-8 bytes that continue a character take none. */
static int columns(const char *text)
{
    int count = 0;
    for (; *text != '\0'; text++) count += (*text & 0xc0) != 0x80;
    return count;
}

/* What a cell in words consists of, in reading order; each has its own column, so that a step can
 * be compared with the one above. */
enum field { FIELD_CHUNK, FIELD_FROM, FIELD_OWN, FIELD_KEEP, FIELD_TO, FIELD_COUNT };

static void field_text(char text[16], enum field field, struct plan_step step, int chunks)
{
    bool rests = step.primitive == PRIMITIVE_NONE;
    text[0] = '\0';
    if (field == FIELD_CHUNK && chunks > 1 && !rests) snprintf(text, 16, "c%d", step.chunk);
    if (field == FIELD_FROM && step.from >= 0) snprintf(text, 16, "◄%d", step.from);
    if (field == FIELD_OWN && !rests && step.from < 0) snprintf(text, 16, "own");
    if (field == FIELD_OWN && step_reduces(step)) snprintf(text, 16, "+own");
    if (field == FIELD_KEEP && step_keeps(step)) snprintf(text, 16, "keep");
    if (field == FIELD_TO && step.to >= 0) snprintf(text, 16, "►%d", step.to);
}

/* The widest text of each field in the whole table; 0: the field is not used. */
static void measure_fields(int widths[FIELD_COUNT], const struct show_options *show, const struct plan *plan)
{
    memset(widths, 0, FIELD_COUNT * sizeof *widths);
    for (int i = 0, steps = most_steps(show); i < steps; i++)
        for (int rank = 0; rank < plan->nranks; rank++)
            for (int f = 0; f < FIELD_COUNT; f++) {
                char text[16];
                field_text(text, (enum field)f, step_of(show, rank, i), plan->chunks);
                if (columns(text) > widths[f]) widths[f] = columns(text);
            }
}

static void words_cell(char cell[CELL_BYTES], struct plan_step step, const int widths[FIELD_COUNT], int chunks)
{
    size_t used = 0;
    cell[0] = '\0';
    for (int f = 0; f < FIELD_COUNT; f++) {
        if (widths[f] == 0) continue;
        char text[16];
        field_text(text, (enum field)f, step, chunks);
        int pad = widths[f] - columns(text);
        used += (size_t)snprintf(cell + used, CELL_BYTES - used, "%s%s%*s", used > 0 ? " " : "", text, pad, "");
    }
}

static void marks_cell(char cell[CELL_BYTES], struct plan_step step, int digits)
{
    bool rests = step.primitive == PRIMITIVE_NONE;
    snprintf(cell, CELL_BYTES, "%s%*d%s%s%s", step.from >= 0 ? "◄" : " ", digits, step.chunk,
        step_reduces(step) ? "+" : " ", step_keeps(step) ? "=" : " ", step.to >= 0 ? "►" : " ");
    if (rests) snprintf(cell, CELL_BYTES, "%*s", digits + 4, "");
}

/* Whether everybody receives from the rank before and sends to the one after: marks name no peer.
 */
static bool neighbours_only(const struct show_options *show, const struct plan *plan)
{
    int n = plan->nranks;
    for (int i = 0, steps = most_steps(show); i < steps; i++)
        for (int rank = 0; rank < n; rank++) {
            struct plan_step step = step_of(show, rank, i);
            if (step.from >= 0 && step.from != (rank + n - 1) % n) return false;
            if (step.to >= 0 && step.to != (rank + 1) % n) return false;
        }
    return true;
}

/* ---- the three forms ---- */

/* Prints a line without the spaces at its end. */
static void print_line(char *line)
{
    size_t length = strlen(line);
    while (length > 0 && line[length - 1] == ' ') line[--length] = '\0';
    puts(line);
}

static void draw_words(const struct show_options *show, const struct plan *plan)
{
    int widths[FIELD_COUNT], width = -1;
    measure_fields(widths, show, plan);
    for (int f = 0; f < FIELD_COUNT; f++) width += widths[f] > 0 ? widths[f] + 1 : 0;
    if (width < 6) width = 6; /* "rank 0" */
    char line[WORDS_RANKS * CELL_BYTES + 32];
    int used = snprintf(line, sizeof line, "step");
    for (int rank = 0; rank < plan->nranks; rank++)
        used += snprintf(line + used, sizeof line - (size_t)used, " │ rank %-*d", width - 5, rank);
    print_line(line);
    used = snprintf(line, sizeof line, "─────");
    for (int rank = 0; rank < plan->nranks; rank++) {
        used += snprintf(line + used, sizeof line - (size_t)used, "┼");
        for (int i = 0; i < width + 2; i++) used += snprintf(line + used, sizeof line - (size_t)used, "─");
    }
    print_line(line);
    for (int i = 0, steps = most_steps(show); i < steps; i++) {
        used = snprintf(line, sizeof line, "%4d", i);
        for (int rank = 0; rank < plan->nranks; rank++) {
            char cell[CELL_BYTES];
            words_cell(cell, step_of(show, rank, i), widths, plan->chunks);
            used +=
                snprintf(line + used, sizeof line - (size_t)used, " │ %s%*s", cell, width - columns(cell), "");
        }
        print_line(line);
    }
    puts("\nc chunk   ◄ receives it from   own takes its own input   +own adds its own input\n"
         "keep stores it in its output   ► sends it to");
}

static void draw_marks(const struct show_options *show, const struct plan *plan)
{
    int digits = plan->chunks > 10 ? 2 : 1;
    char line[MARKS_RANKS * CELL_BYTES + 32];
    int used = snprintf(line, sizeof line, "rank");
    for (int rank = 0; rank < plan->nranks; rank++)
        used += snprintf(line + used, sizeof line - (size_t)used, "  %*d   ", digits, rank);
    print_line(line);
    for (int i = 0, steps = most_steps(show); i < steps; i++) {
        used = snprintf(line, sizeof line, "%4d", i);
        for (int rank = 0; rank < plan->nranks; rank++) {
            char cell[CELL_BYTES];
            marks_cell(cell, step_of(show, rank, i), digits);
            used += snprintf(line + used, sizeof line - (size_t)used, " %s", cell);
        }
        print_line(line);
    }
    puts("\nSteps down; a number is a chunk.  ◄ receives it from the rank before (left, rank 0 "
         "from the last)\n"
         "+ adds its own input   = stores it in its output   ► sends it to the rank after");
}

static void draw_list(const struct show_options *show, const struct plan *plan)
{
    int widths[FIELD_COUNT];
    measure_fields(widths, show, plan);
    for (int i = 0, steps = most_steps(show); i < steps; i++)
        for (int rank = 0; rank < plan->nranks; rank++) {
            char cell[CELL_BYTES], line[CELL_BYTES + 64];
            struct plan_step step = step_of(show, rank, i);
            if (step.primitive == PRIMITIVE_NONE) continue;
            words_cell(cell, step, widths, plan->chunks);
            snprintf(line, sizeof line, "step %-4d rank %-4d %s", i, rank, cell);
            print_line(line);
        }
}

/* ---- bytes ---- */

/* Elements of a chunk, when the call's count is `count`: the whole buffer's of an all-reduce, else a
 * chunk's. */
static size_t chunk_count(const struct plan *plan, size_t count, int chunk)
{
    if (plan->collective == COLLECTIVE_BARRIER) return 0;
    if (plan->collective != COLLECTIVE_ALL_REDUCE) return count;
    return ring_chunk_begin(count, plan->nranks, chunk + 1) - ring_chunk_begin(count, plan->nranks, chunk);
}

/* Whether --reduce-dtype makes partial sums wider than the elements. The sum stands for all operations that round. */
static bool sums_are_wide(const struct show_options *show)
{
    return collective_is_reduction(show->collective) && dtype_bytes(show->dtype) == 2 &&
           show->reduce_dtype == REDUCE_DTYPE_FLOAT32 && show->common.ranks > 1;
}

static size_t rank_sent_bytes(const struct show_options *show, int rank)
{
    struct plan plan = plan_of(show, rank);
    size_t sent = 0, element = dtype_bytes(show->dtype), partial = sums_are_wide(show) ? sizeof(float) : element;
    for (int i = 0; i < plan.steps; i++) {
        struct plan_step step = plan_step_at(&plan, i);
        bool is_partial = primitive_sends_partial(step.primitive, plan.collective);
        if (step.to >= 0) sent += chunk_count(&plan, (size_t)show->count, step.chunk) * (is_partial ? partial : element);
    }
    return sent;
}

/* What a rank's chunks weigh when partial sums have two elements' bytes: in own-dtype chunks. */
static void print_wide_cost(const struct show_options *show, const struct plan *plan)
{
    int partial = 0, complete = 0;
    for (int i = 0; i < plan->steps; i++) {
        struct plan_step step = plan_step_at(plan, i);
        bool is_partial = primitive_sends_partial(step.primitive, plan->collective);
        partial += step.to >= 0 && is_partial;
        complete += step.to >= 0 && !is_partial;
    }
    printf("in float32     partial sums are twice as wide as %s: %d chunks of 4 bytes an element, %d of 2: %g times the bytes\n",
        dtype_name(show->dtype), partial, complete, (2.0 * partial + complete) / (partial + complete));
}

/* The laws behind the table. n: ranks. */
static const struct {
    const char *steps, *sent;
} laws[COLLECTIVE_COUNT] = {
    [COLLECTIVE_ALL_REDUCE] = {"2n − 1", "2(n−1) chunks of 1/n of the buffer: 2(n−1)/n of its bytes"},
    [COLLECTIVE_REDUCE_SCATTER] = {"n", "n−1 chunks of 1/n of the send buffer: (n−1)/n of its bytes"},
    [COLLECTIVE_ALL_GATHER] = {"n", "n−1 chunks of 1/n of the receive buffer: (n−1)/n of its bytes"},
    [COLLECTIVE_BROADCAST] = {NULL,
        "the whole buffer, by every rank but the last; slices follow one another down n−1 hops"},
    [COLLECTIVE_REDUCE] = {NULL,
        "the whole buffer, by every rank but the root; slices follow one another down n−1 hops"},
    [COLLECTIVE_SCATTER] = {"n at the root, 1 elsewhere", "all chunks but its own, by the root"},
    [COLLECTIVE_GATHER] = {"n at the root, 1 elsewhere", "its own chunk, by every rank but the root"},
    [COLLECTIVE_ALL_TO_ALL] = {"2n − 1",
        "n−1 chunks, each to another rank: (n−1)/n of the send buffer's bytes"},
    [COLLECTIVE_SEND] = {NULL, "the whole buffer, by the sender"},
    [COLLECTIVE_RECV] = {NULL, "the whole buffer, by the sender"},
    [COLLECTIVE_BARRIER] = {"2n − 1", "2(n−1) empty messages: an all-reduce of nothing"},
};

static void print_costs(const struct show_options *show, const struct plan *plan)
{
    int n = plan->nranks, least = plan->chunks * n, most = 0;
    for (int rank = 0; rank < n; rank++) {
        struct plan other = plan_of(show, rank);
        int sent = plan_chunks_sent(&other);
        if (sent < least) least = sent;
        if (sent > most) most = sent;
    }
    const char *law = n > 1 ? laws[show->collective].steps : NULL;
    printf("\nsteps          %d%s%s\n", most_steps(show), law != NULL ? " = " : "", law != NULL ? law : "");
    printf("sent per rank  ");
    if (least != most) printf("%d or ", least);
    printf("%d chunk%s", most, most == 1 ? "" : "s");
    printf(n > 1 ? " = %s\n" : "\n", laws[show->collective].sent);
    struct plan sender = plan_of(show, (show->root + 1) % n); /* of reduce all but the root send */
    if (sums_are_wide(show)) print_wide_cost(show, &sender);
    if (show->count < 0) return;
    printf("sent bytes     --count %lld, %s:", (long long)show->count, dtype_name(show->dtype));
    size_t first = rank_sent_bytes(show, 0);
    bool all_same = true;
    for (int rank = 1; rank < n; rank++) all_same &= rank_sent_bytes(show, rank) == first;
    if (all_same) {
        printf(" %zu by every rank\n", first);
        return;
    }
    printf("\n");
    for (int rank = 0; rank < n; rank++)
        printf("               rank %-4d %zu\n", rank, rank_sent_bytes(show, rank));
}

/* ---- JSON: one object per step and rank, then one with the sums ---- */

static int write_line(FILE *file, cJSON *object)
{
    char *text = object == NULL ? NULL : cJSON_PrintUnformatted(object);
    int failed = text == NULL || fprintf(file, "%s\n", text) < 0;
    cJSON_free(text);
    cJSON_Delete(object);
    return failed;
}

static int write_json(FILE *file, const struct show_options *show, const struct plan *plan)
{
    int failed = 0;
    for (int i = 0, steps = most_steps(show); i < steps && !failed; i++)
        for (int rank = 0; rank < plan->nranks && !failed; rank++) {
            struct plan_step step = step_of(show, rank, i);
            if (step.primitive == PRIMITIVE_NONE) continue;
            cJSON *object = cJSON_CreateObject();
            cJSON_AddNumberToObject(object, "step", i);
            cJSON_AddNumberToObject(object, "rank", rank);
            cJSON_AddStringToObject(object, "primitive", primitive_name(step.primitive));
            cJSON_AddNumberToObject(object, "chunk", step.chunk);
            cJSON_AddNumberToObject(object, "from", step.from);
            cJSON_AddNumberToObject(object, "to", step.to);
            failed = write_line(file, object);
        }
    cJSON *sums = cJSON_CreateObject();
    cJSON_AddStringToObject(sums, "collective", collective_name(show->collective));
    cJSON_AddNumberToObject(sums, "ranks", plan->nranks);
    cJSON_AddNumberToObject(sums, "root", show->root);
    cJSON_AddNumberToObject(sums, "steps", most_steps(show));
    cJSON *chunks = cJSON_AddArrayToObject(sums, "sent_chunks");
    cJSON *bytes = show->count >= 0 ? cJSON_AddArrayToObject(sums, "sent_bytes") : NULL;
    for (int rank = 0; rank < plan->nranks; rank++) {
        struct plan other = plan_of(show, rank);
        cJSON_AddItemToArray(chunks, cJSON_CreateNumber(plan_chunks_sent(&other)));
        if (bytes != NULL) cJSON_AddItemToArray(bytes, cJSON_CreateNumber((double)rank_sent_bytes(show, rank)));
    }
    failed |= write_line(file, sums);
    return failed;
}

static void draw(const struct show_options *show, const struct plan *plan)
{
    int n = plan->nranks;
    printf("%s, %d rank%s", collective_name(show->collective), n, n == 1 ? "" : "s");
    if (n > 1 && n <= 8 && collective_is_on_ring(show->collective)) {
        printf(", ring ");
        for (int rank = 0; rank < n; rank++) printf("%d ► ", rank);
        printf("0");
    }
    if (plan->chunks > 1) printf(": %d chunks, chunk c belongs to rank c", plan->chunks);
    else if (n > 1) printf(": one chunk");
    if (collective_is_rooted(show->collective)) printf(", root %d", show->root);
    printf("\n\n");
    if (n <= WORDS_RANKS) {
        draw_words(show, plan);
    } else if (n <= MARKS_RANKS && neighbours_only(show, plan)) {
        draw_marks(show, plan);
    } else {
        draw_list(show, plan);
    }
    print_costs(show, plan);
}

/* What can only be judged when all options are known. */
static void check_options(struct show_options *show)
{
    const struct options *common = &show->common;
    char list[256];
    if (!show->collective_given)
        options_refuse(common, "no collective given, expected %s", collective_list(list));
    bool pair = show->collective == COLLECTIVE_SEND || show->collective == COLLECTIVE_RECV;
    if (common->ranks == 0) show->common.ranks = show->common.ranks_last = WORDS_RANKS;
    if (show->simulate == NULL && common->ranks != common->ranks_last)
        options_refuse(common, "--ranks is a range, expected one number to draw: ranges are for --simulate");
    if (show->simulate == NULL && common->ranks > MAX_RANKS)
        options_refuse(common, "--ranks is %d, expected at most %d to draw", common->ranks, MAX_RANKS);
    if (show->simulate == NULL && (show->plot != NULL || show->bytes.first >= 0))
        options_refuse(common,
            "--plot and --bytes are for a simulation, expected --simulate alpha=5us,beta=50GB/s "
            "with them");
    if (show->simulate != NULL && pair)
        options_refuse(common, "--simulate of %s, expected a collective that all ranks call",
            collective_name(show->collective));
    if (show->count >= 0 && show->bytes.first >= 0)
        options_refuse(common, "--count and --bytes are both given, expected one of them");
    if (show->root > 0 && !collective_is_rooted(show->collective))
        options_refuse(common, "--root is %d, expected none: %s has no root", show->root,
            collective_name(show->collective));
    if (show->root < 0) show->root = pair ? 1 : 0;
    if (show->root >= common->ranks)
        options_refuse(common, "--root is %d, expected a rank below --ranks %d", show->root, common->ranks);
    if (show->simulate != NULL && show->reduce_dtype != REDUCE_DTYPE_OWN)
        options_refuse(common, "--reduce-dtype is given with --simulate, expected one of them: elements of one width are simulated");
    if (pair && show->root == 0)
        options_refuse(
            common, "--root is 0, expected another rank: rank 0 calls %s", collective_name(show->collective));
}

static int simulate(const struct show_options *show)
{
    struct simulate_request request = {
        .common = &show->common,
        .collective = show->collective,
        .root = show->root,
        .ranks = {show->common.ranks, show->common.ranks_last},
        .bytes = show->bytes,
        .count = show->count,
        .element_bytes = dtype_bytes(show->dtype),
        .links = simulate_parse_links(show->simulate, &show->common),
        .plot = show->plot,
    };
    if (show->count < 0 && show->bytes.first < 0) request.bytes = (struct options_range){1 << 30, 1 << 30};
    return simulate_print(&request);
}

int show_main(int argc, char **argv)
{
    struct show_options show = {.common = options_default("ringzero show"),
        .root = -1,
        .count = -1,
        .dtype = DTYPE_FLOAT32,
        .bytes = {-1, -1}};
    show.common.takes_range = true;
    options_parse(&argp, argc, argv, &show.common, &show);
    check_options(&show);
    if (show.simulate != NULL) return simulate(&show);
    struct plan plan = plan_of(&show, 0);
    if (show.common.json != NULL) {
        FILE *file = fopen(show.common.json, "w");
        if (file == NULL)
            options_refuse(&show.common, "--json %s cannot be written: %s", show.common.json, strerror(errno));
        int failed = write_json(file, &show, &plan);
        if (fclose(file) != 0 || failed) {
            fprintf(stderr, "ringzero show: writing %s failed: %s\n", show.common.json, strerror(errno));
            return 1;
        }
    }
    draw(&show, &plan);
    return fflush(stdout) == 0 ? 0 : 1;
}
