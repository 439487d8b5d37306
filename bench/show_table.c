/* show_table: see show_table.h. */
#include "bench/show_table.h"

#include <stdio.h>
#include <string.h>

#include "bench/show_plan.h"

#define WORDS_RANKS 4  /* at most, for the table in words: 90 columns */
#define MARKS_RANKS 16 /* at most, for the table in marks: 118 columns, 134 in two levels */
#define CELL_BYTES  96

/* ---- cells ---- */

static bool step_reduces(struct plan_step step)
{
    return step.primitive == PRIMITIVE_RECV_REDUCE_SEND || step.primitive == PRIMITIVE_RECV_REDUCE_COPY ||
           step.primitive == PRIMITIVE_RECV_REDUCE_COPY_SEND;
}

static bool step_keeps(struct plan_step step)
{
    return step.primitive != PRIMITIVE_NONE && step.primitive != PRIMITIVE_SEND && step.primitive != PRIMITIVE_FORWARD &&
           step.primitive != PRIMITIVE_RECV_REDUCE_SEND;
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
enum field { FIELD_CHUNK, FIELD_FROM, FIELD_OWN, FIELD_JOINS, FIELD_KEEP, FIELD_TO, FIELD_COUNT };

static void field_text(char text[16], enum field field, struct plan_step step, int chunks)
{
    bool rests = step.primitive == PRIMITIVE_NONE;
    text[0] = '\0';
    if (field == FIELD_CHUNK && chunks > 1 && !rests) snprintf(text, 16, "c%d", step.chunk);
    if (field == FIELD_FROM && step.from >= 0) snprintf(text, 16, "◄%d", step.from);
    if (field == FIELD_OWN && !rests && step.from < 0) snprintf(text, 16, "own");
    if (field == FIELD_OWN && step.primitive == PRIMITIVE_FORWARD) snprintf(text, 16, "kept");
    if (field == FIELD_OWN && step_reduces(step)) snprintf(text, 16, "+own");
    if (field == FIELD_JOINS && step.joins >= 0) snprintf(text, 16, "+◄%d", step.joins);
    if (field == FIELD_KEEP && step_keeps(step)) snprintf(text, 16, "keep");
    if (field == FIELD_TO && step.to >= 0) snprintf(text, 16, "►%d", step.to);
}

/* The widest text of each field in the whole table; 0: the field is not used. */
static void measure_fields(int widths[FIELD_COUNT], const struct show_options *show, const struct plan *plan)
{
    memset(widths, 0, FIELD_COUNT * sizeof *widths);
    for (int i = 0, steps = show_most_steps(show); i < steps; i++)
        for (int rank = 0; rank < plan->nranks; rank++)
            for (int f = 0; f < FIELD_COUNT; f++) {
                char text[16];
                field_text(text, (enum field)f, show_step(show, rank, i), plan->chunks);
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

/* Of a peer: nobody, one inside the rank's host, one of another. */
static const char *peer_mark(int peer, int rank, int host_ranks, const char *inside, const char *across)
{
    if (peer < 0) return " ";
    return host_ranks > 1 && peer / host_ranks != rank / host_ranks ? across : inside;
}

/* host_ranks > 1: two levels, which have a column more. */
static void marks_cell(char cell[CELL_BYTES], struct plan_step step, int digits, int rank, int host_ranks)
{
    bool rests = step.primitive == PRIMITIVE_NONE;
    snprintf(cell, CELL_BYTES, "%s%*d%s%s%s%s", peer_mark(step.from, rank, host_ranks, "◄", "⇐"), digits, step.chunk,
        step_reduces(step) ? "+" : " ", host_ranks < 2 ? "" : step.joins >= 0 ? "⇐" : " ", step_keeps(step) ? "=" : " ",
        peer_mark(step.to, rank, host_ranks, "►", "⇒"));
    if (rests) snprintf(cell, CELL_BYTES, "%*s", digits + 4 + (host_ranks > 1), "");
}

/* Whether everybody receives from the rank before and sends to the one after, or in two levels likewise: marks name no peer. */
static bool neighbours_only(const struct show_options *show, const struct plan *plan)
{
    int n = plan->nranks;
    if (plan->host_ranks > 1) return true;
    for (int i = 0, steps = show_most_steps(show); i < steps; i++)
        for (int rank = 0; rank < n; rank++) {
            struct plan_step step = show_step(show, rank, i);
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
    for (int i = 0, steps = show_most_steps(show); i < steps; i++) {
        used = snprintf(line, sizeof line, "%4d", i);
        for (int rank = 0; rank < plan->nranks; rank++) {
            char cell[CELL_BYTES];
            words_cell(cell, show_step(show, rank, i), widths, plan->chunks);
            used +=
                snprintf(line + used, sizeof line - (size_t)used, " │ %s%*s", cell, width - columns(cell), "");
        }
        print_line(line);
    }
    puts("\nc chunk   ◄ receives it from   own takes its own input   +own adds its own input\n"
         "keep stores it in its output   ► sends it to");
    if (plan->host_ranks > 1) puts("+◄ adds the sum of other hosts, received from   kept takes it from its output");
}

static const char *border_before(int rank, int host_ranks)
{
    return host_ranks > 1 && rank > 0 && rank % host_ranks == 0 ? "│" : " ";
}

static void draw_marks(const struct show_options *show, const struct plan *plan)
{
    int digits = plan->chunks > 10 ? 2 : 1, m = plan->host_ranks;
    char line[MARKS_RANKS * CELL_BYTES + 32];
    int used = snprintf(line, sizeof line, "rank");
    for (int rank = 0; rank < plan->nranks; rank++)
        used += snprintf(line + used, sizeof line - (size_t)used, "%s %*d   %s", border_before(rank, m), digits, rank, m > 1 ? " " : "");
    print_line(line);
    for (int i = 0, steps = show_most_steps(show); i < steps; i++) {
        used = snprintf(line, sizeof line, "%4d", i);
        for (int rank = 0; rank < plan->nranks; rank++) {
            char cell[CELL_BYTES];
            marks_cell(cell, show_step(show, rank, i), digits, rank, m);
            used += snprintf(line + used, sizeof line - (size_t)used, "%s%s", border_before(rank, m), cell);
        }
        print_line(line);
    }
    if (m > 1) {
        puts("\nSteps down; a number is a chunk.  ◄ receives it from the rank before in its host (the first from the last)\n"
             "+ adds its own input   ⇐ adds the sum of other hosts, or receives, from the host before\n"
             "= stores it in its output   ► sends it to the rank after in its host   ⇒ to the host after");
        return;
    }
    puts("\nSteps down; a number is a chunk.  ◄ receives it from the rank before (left, rank 0 "
         "from the last)\n"
         "+ adds its own input   = stores it in its output   ► sends it to the rank after");
}

static void draw_list(const struct show_options *show, const struct plan *plan)
{
    int widths[FIELD_COUNT];
    measure_fields(widths, show, plan);
    for (int i = 0, steps = show_most_steps(show); i < steps; i++)
        for (int rank = 0; rank < plan->nranks; rank++) {
            char cell[CELL_BYTES], line[CELL_BYTES + 64];
            struct plan_step step = show_step(show, rank, i);
            if (step.primitive == PRIMITIVE_NONE) continue;
            words_cell(cell, step, widths, plan->chunks);
            snprintf(line, sizeof line, "step %-4d rank %-4d %s", i, rank, cell);
            print_line(line);
        }
}

void show_table_print(const struct show_options *show)
{
    struct plan plan = show_plan(show, 0);
    if (plan.nranks <= WORDS_RANKS) draw_words(show, &plan);
    else if (plan.nranks <= MARKS_RANKS && neighbours_only(show, &plan)) draw_marks(show, &plan);
    else draw_list(show, &plan);
}
