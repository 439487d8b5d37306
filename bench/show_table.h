/* show_table: a plan, drawn: ranks across, steps down.
 *
 *   up to 4 ranks    every step in words:     c0 ◄3 +own keep ►1
 *   up to 16         every step in marks:     ◄0+=►
 *   beyond, or where steps do not keep to neighbours: one line per step and rank, for grep
 */
#ifndef BENCH_SHOW_TABLE_H
#define BENCH_SHOW_TABLE_H

#include "bench/show_options.h"

/* With the key to its words or marks. */
void show_table_print(const struct show_options *show);

#endif
