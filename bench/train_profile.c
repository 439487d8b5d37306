/* train_profile: where the time of the steps went, as people and programs read it: see
 * train_print.h.
 *
 * Every rank has rows of its own; rank 0 is told all of them, and shows its own, with the slowest
 * rank's beside it; rows that it has not (a pipeline's other stages have) come with the slowest
 * rank's time alone. Invariant: rank 0's rows add up to its steps.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/train_print.h"

#define REST "step" /* the row of what no other has */

/* As ranks tell them. */
struct share {
    int count[2]; /* rows of what computes, then of the ring */
    struct profile_row rows[2][PROFILE_ROWS_MOST];
};

/* One name, over the ranks that have it. */
struct line {
    const char *name;
    const struct profile_row *own; /* rank 0's, or NULL */
    int64_t fastest_ns, slowest_ns;
    int fastest, slowest; /* ranks */
};

struct table {
    int count;
    struct line line[2 * PROFILE_ROWS_MOST];
    int64_t own_ns; /* rank 0's, of all lines inside steps */
};

/* ---- from all ranks ---- */

static void take_share(struct share *share, const struct train_profile *profile)
{
    const struct profile *const from[] = {profile->compute, profile->ring};
    for (int i = 0; i < 2; i++) {
        const struct profile_row *rows = profile_rows(&share->count[i], from[i]);
        memcpy(share->rows[i], rows, (size_t)share->count[i] * sizeof *rows);
    }
}

/* What is beside the steps. */
static bool is_beside(const char *name)
{
    return strcmp(name, "validation") == 0 || strcmp(name, "checkpoint") == 0;
}

static struct line *line_of(const char *name, struct table *table)
{
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->line[i].name, name) == 0) return &table->line[i];
    if (table->count == 2 * PROFILE_ROWS_MOST) return NULL;
    struct line *line = &table->line[table->count++];
    *line = (struct line){.name = name, .fastest_ns = INT64_MAX, .slowest_ns = -1};
    return line;
}

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int64_t x_ns = x->own != NULL ? x->own->ns : -1, y_ns = y->own != NULL ? y->own->ns : -1;
    if (x_ns == y_ns) return (x->slowest_ns < y->slowest_ns) - (x->slowest_ns > y->slowest_ns);
    return (x_ns < y_ns) - (x_ns > y_ns);
}

static void make_table(struct table *table, int which, const struct share *shares, int nranks)
{
    *table = (struct table){0};
    for (int r = 0; r < nranks; r++)
        for (int i = 0; i < shares[r].count[which]; i++) {
            const struct profile_row *row = &shares[r].rows[which][i];
            struct line *line = line_of(row->name, table);
            if (line == NULL) continue;
            if (r == 0) line->own = row;
            if (r == 0 && !is_beside(row->name)) table->own_ns += row->ns;
            if (row->ns > line->slowest_ns) line->slowest_ns = row->ns, line->slowest = r;
            if (row->ns < line->fastest_ns) line->fastest_ns = row->ns, line->fastest = r;
        }
    qsort(table->line, (size_t)table->count, sizeof *table->line, by_time);
}

/* ---- for people ---- */

/* Its time and rates, beside the marks: of FLOPs where there are some. */
static void print_rates(
    const struct profile_row *row, double step_ns, uint64_t steps, const struct marks *marks)
{
    double ns = (double)row->ns, gflops = row->flops / ns, gbps = row->bytes / ns;
    printf(" %8.1f %9.3f %6.1f%%", (double)row->calls / (double)steps, ns * 1e-6 / (double)steps,
        100.0 * ns / step_ns);
    if (row->flops > 0.0)
        printf(" %9.2f %8.1f %5.0f%%", row->flops * 1e-9 / (double)steps, gflops,
            100.0 * gflops / marks->gflops);
    else printf(" %9s %8s %6s", "", "", "");
    if (row->bytes > 0.0) printf(" %9.2f %8.2f", row->bytes * 1e-6 / (double)steps, gbps);
    else printf(" %9s %8s", "", "");
}

static void print_line(const struct line *line, const struct table *table, uint64_t steps,
    const struct marks *marks, int nranks)
{
    const char *name = strcmp(line->name, REST) == 0 ? "the rest" : line->name;
    printf("#   %-24s", name);
    if (line->own != NULL) print_rates(line->own, (double)table->own_ns, steps, marks);
    else printf(" %72s", "");
    if (nranks > 1)
        printf(" %9.3f (%d)", (double)line->slowest_ns * 1e-6 / (double)steps, line->slowest);
    putchar('\n');
}

static void print_table(const struct table *table, const char *title, uint64_t steps,
    const struct marks *marks, int nranks)
{
    printf("#   %-24s %8s %9s %7s %9s %8s %6s %9s %8s%s\n", title, "calls", "ms", "share", "GFLOP",
        "GFLOP/s", "mark", "MB", "GB/s", nranks > 1 ? "   slowest rank, ms" : "");
    for (int i = 0; i < table->count; i++)
        if (!is_beside(table->line[i].name))
            print_line(&table->line[i], table, steps, marks, nranks);
    for (int i = 0; i < table->count; i++)
        if (is_beside(table->line[i].name))
            print_line(&table->line[i], table, steps, marks, nranks);
}

static void print_text(const struct table tables[2], const struct train_profile *profile,
    const struct train_printer *printer)
{
    const struct marks *marks = &printer->marks;
    int nranks = printer->job->nranks;
    double step_ns = (double)tables[0].own_ns / (double)profile->steps;
    double gflops = profile->model_flops / step_ns / nranks;
    printf("# profile of rank 0, a step's average of %" PRIu64 ": %.3f ms\n", profile->steps,
        step_ns * 1e-6);
    printf("#   marks: products of %d rows %.1f GFLOP/s, memory copy %.2f GB/s, by all ranks at "
           "once\n",
        marks->size, marks->gflops, marks->copy_gbps);
    printf("#   model FLOPs (6Ψ a token, and attention): %.2f G of all ranks, %.1f GFLOP/s a rank, "
           "%.0f %% of the mark\n",
        profile->model_flops * 1e-9, gflops, 100.0 * gflops / marks->gflops);
    print_table(&tables[0], "computes", profile->steps, marks, nranks);
    if (tables[1].count > 0 && nranks > 1)
        print_table(&tables[1], "its ring, meanwhile", profile->steps, marks, nranks);
}

/* ---- for programs ---- */

static void print_rows(FILE *json, const char *name, const struct table *table)
{
    fprintf(json, ",\"%s\":[", name);
    for (int i = 0; i < table->count; i++) {
        const struct line *line = &table->line[i];
        const struct profile_row none = {0}, *own = line->own != NULL ? line->own : &none;
        fprintf(json,
            "%s{\"name\":\"%s\",\"calls\":%" PRIu64
            ",\"ms\":%.6f,\"share\":%.6f,\"flops\":%.0f,\"bytes\":%.0f,\"fastest_rank\":%d,"
            "\"fastest_ms\":%.6f,\"slowest_rank\":%d,\"slowest_ms\":%.6f}",
            i > 0 ? "," : "", strcmp(line->name, REST) == 0 ? "the rest" : line->name, own->calls,
            (double)own->ns * 1e-6,
            table->own_ns > 0 ? (double)own->ns / (double)table->own_ns : 0.0, own->flops,
            own->bytes, line->fastest, (double)line->fastest_ns * 1e-6, line->slowest,
            (double)line->slowest_ns * 1e-6);
    }
    fputc(']', json);
}

static void print_json(FILE *json, const struct table tables[2],
    const struct train_profile *profile, const struct marks *marks)
{
    fprintf(json,
        "{\"profile\":{\"steps\":%" PRIu64
        ",\"ms\":%.6f,\"model_flops\":%.0f,\"mark_gflops\":%.3f,\"mark_copy_gbps\":%.3f",
        profile->steps, (double)tables[0].own_ns * 1e-6, profile->model_flops, marks->gflops,
        marks->copy_gbps);
    print_rows(json, "rows", &tables[0]);
    print_rows(json, "ring", &tables[1]);
    fputs("}}\n", json);
}

enum status train_print_profile(
    const struct train_profile *profile, const struct train_printer *printer)
{
    struct job *job = printer->job;
    struct share *shares = calloc((size_t)job->nranks, sizeof *shares);
    struct table *tables = calloc(2, sizeof *tables);
    enum status status = STATUS_OK;
    if (shares == NULL || tables == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for the profiles of %d ranks", job->nranks);
        bootstrap_abort(status_text(), job->bootstrap); /* the others would wait for this rank's */
        goto fail;
    }
    take_share(&shares[job->rank], profile);
    TRY_GOTO(bootstrap_all_gather(shares, sizeof *shares, job->bootstrap));
    if (job->rank == 0) {
        for (int i = 0; i < 2; i++) make_table(&tables[i], i, shares, job->nranks);
        print_text(tables, profile, printer);
        if (job->json != NULL) print_json(job->json, tables, profile, &printer->marks);
    }
fail:
    free(shares);
    free(tables);
    return status;
}
