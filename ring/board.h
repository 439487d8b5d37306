/* board: what a rank tells all other ranks of its host, written once and read by each of them in
 * place. To tell it to each by itself (lines.h) takes n−1 lines, of which those to ranks on other
 * cores cross one by one; of a board one line crosses to a core, whichever of its ranks looks first,
 * and serves the others there. So this is for more than two ranks.
 *
 * Every rank has one, in a region (region.h) that the others can only read:
 *
 *   offset   bytes             what                                      written by
 *   0        16·8              heads: steps read of each rank's board    owner (release), last → that rank (acquire)
 *   128      L·line_bytes      entries of lines.h                        owner (release) → all others (acquire)
 *
 *   owner                                             another
 *   1 board_room()       [acquire heads, rarely]      1 lines_ready(board_read())    [acquire flag]
 *   2 write lines_entry(board_own())->data            2 read data
 *   3 lines_post(board_own())   [release flag]        3 lines_free(board_read())     [release head, in its own region]
 *
 * Everybody reads every step of every other board, once and in order. source: as lines.h.
 */
#ifndef RING_BOARD_H
#define RING_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "verbs/device.h"
#include "verbs/lines.h"
#include "verbs/region.h"

#define BOARD_MOST_RANKS 16

/* Of two ranks each has one other to tell. */
static inline bool board_serves(int nranks) { return nranks > 2 && nranks <= BOARD_MOST_RANKS; }

struct board; /* of a communicator, as one rank sees it */

/* The own one, and room for what the others' are. *board is NULL, with OK, where regions are not to
 * be had. ownership: board_close(), before the book; NULL is accepted.
 * errors: SYSTEM (memory). threads: the engine's, as of all here. */
MUST_CHECK enum status board_open(
    struct board **board, size_t line_bytes, struct region_book *book, struct device *device);
void board_close(struct board *board);

/* By which others find it; 0 of NULL. */
uint64_t board_reference(const struct board *board);

/* Rank `other` has its board in that book there. Once is enough. The view is the board's own: nobody
 * else's sweep (region.h) takes it away. errors: those of region_view_open() and region_view_find(). */
MUST_CHECK enum status board_attach(struct board *board, int other, int self, uint64_t reference,
    const struct region_offer *offer);

/* Whether every attached rank has read enough for one more step; and the one that has read least. */
bool board_room(struct board *board);
int board_slowest(const struct board *board);

/* What is written to, and what is read from. */
struct lines *board_own(struct board *board);
struct lines *board_read(struct board *board, int other);

#endif
