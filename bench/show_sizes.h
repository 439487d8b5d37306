/* show_sizes: which sizes of a collective go which way: in a table, and in a line below one size's drawing.
 */
#ifndef BENCH_SHOW_SIZES_H
#define BENCH_SHOW_SIZES_H

#include <stdio.h>

#include "bench/show_options.h"
#include "ring/path.h"

/* "sizes          hops, by lines, to 1024 bytes; hops to 65536; then ring" */
MUST_CHECK enum status show_sizes_print_line(
    const struct show_options *show, struct path_comm *comm);

/* Of --bytes FIRST..LAST, a row for each stretch that goes one way. json: NULL: none. errors: SYSTEM. */
MUST_CHECK enum status show_sizes_print_table(
    FILE *json, const struct show_options *show, struct path_comm *comm);

#endif
