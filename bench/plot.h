/* plot: a picture by gnuplot, when it is there. Beside FILE.svg stand the numbers, FILE.dat, and what draws
 * them, FILE.gp.
 *
 *     struct plot plot = {.file = "x.svg", .title = …, .series = {{"ring", 2, PLOT_LINE}, …}};
 *     FILE *data = plot_open(&plot);          one row a line, columns by spaces, "?" for what is not known
 *     fprintf(data, "%zu %g\n", …);
 *     plot_close(data, &plot);
 */
#ifndef BENCH_PLOT_H
#define BENCH_PLOT_H

#include <stdbool.h>
#include <stdio.h>

#include "verbs/status.h"

#define PLOT_SERIES 6

enum plot_style { PLOT_LINE, PLOT_POINTS, PLOT_THIN, PLOT_RIGHT /* by the right axis */ };

struct plot_series {
    const char *title; /* NULL: the series ends the list */
    int column;        /* from 1; x is column 1 */
    enum plot_style style;
};

struct plot {
    const char *file; /* FILE.svg; its ending is cut for the others' names */
    const char *title, *x_label, *y_label;
    const char *y2_label; /* of the axis at the right, from 0 on; NULL: none */
    bool x_bytes; /* x counts bytes: marks at 1K, 1M, … */
    bool x_linear; /* else to the base of 2 */
    bool y_log;
    struct plot_series series[PLOT_SERIES];
};

/* The data file, open for writing. errors: NULL, and status_text() says why. */
FILE *plot_open(const struct plot *plot);

/* Closes it and draws. Without gnuplot: one line on standard error that says so and where the data are, and OK.
 * errors: SYSTEM: a file could not be written; DATA: gnuplot could not draw. */
MUST_CHECK enum status plot_close(FILE *data, const struct plot *plot);

#endif
