/* window_stage: where a rank's plain memory is copied for the others to read it: the stage of a communicator, a region of its own.
 *
 *   area     0           1           …   WINDOW_AREAS − 1     each is filled for all peers at once: a turn; then the next one,
 *   turn     0, 8, 16 …  1, 9, 17 …      7, 15, 23 …          round and round, operation after operation
 *
 * Invariant: an area is filled again only when every peer has freed the last step of its turn before. So an operation need not
 * wait until what it has staged has been read: its caller's memory is free as soon as it has been copied. And operations of
 * several communicators, the parts of one among them, may stage at the same time and in any order.
 */
#ifndef RING_WINDOW_STAGE_H
#define RING_WINDOW_STAGE_H

#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

struct ring_comm;
struct window_stage; /* of one communicator; used by the driver alone */

/* Opens it, unless it is open: comm_stage_bytes() of communication memory. errors: SYSTEM when there is none, with what to do. */
MUST_CHECK enum status window_stage_open(struct ring_comm *comm);
void window_stage_close(struct ring_comm *comm);

/* The area of the next turn, and its bytes; NULL: somebody still reads what is in it. */
unsigned char *window_stage_area(const struct ring_comm *comm);
size_t window_stage_area_bytes(const struct ring_comm *comm);

/* What others find it by. */
uint64_t window_stage_reference(const unsigned char *staged, const struct ring_comm *comm);

/* All that refers to the area has been posted. */
void window_stage_end_turn(struct ring_comm *comm);

#endif
