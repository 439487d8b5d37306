/* show_path: `ringzero show COLLECTIVE --bytes SIZE`: the way that a call of this size takes, and what
 * everyone sends and receives on it: ranks across, turns down.
 *
 *   turn │ rank 0      │ rank 1
 *   ─────┼─────────────┼────────────
 *      0 │ ►1 0c1      │ ►0 1c0         rank 0 sends its input to chunk 1 to rank 1,
 *        │ ◄1 1c0      │ ◄0 0c1         receives rank 1's to chunk 0,
 *        │ adds c0     │ adds c1        adds both
 *
 * Of more than 4 ranks: a line per turn, rank and thing done, for grep.
 */
#ifndef BENCH_SHOW_PATH_H
#define BENCH_SHOW_PATH_H

#include <stdio.h>

#include "bench/show_options.h"
#include "ring/path.h"

/* The ranks that show's options describe. errors: path_comm_open()'s. */
MUST_CHECK enum status show_path_open(struct path_comm **comm, const struct show_options *show);

/* The call whose whole array has so many bytes, as `ringzero bench` counts them, rounded down to
 * elements, of every rank where its count is one rank's: units. */
struct ring_call show_path_call(size_t bytes, const struct show_options *show);
size_t show_path_unit_bytes(const struct show_options *show);

/* "hops", "ring", "two levels", … */
const char *show_path_way(
    enum path_kind kind, const struct show_options *show, const struct path_comm *comm);
/* Whether all messages are so short that flag and data share cache lines. */
bool show_path_is_by_lines(const struct path *path);

/* "4 ranks of one host over shm" */
void show_path_print_ranks(const struct show_options *show, const struct path_comm *comm);

/* Any way but a plan's. */
void show_path_print(const struct path *path, const struct ring_call *call,
    const struct show_options *show, struct path_comm *comm);
/* A line a message, then the sums of it. errors: SYSTEM. */
MUST_CHECK enum status show_path_write_json(FILE *json, const struct path *path,
    const struct ring_call *call, const struct show_options *show, struct path_comm *comm);

#endif
