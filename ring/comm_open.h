/* comm_open: the steps in which a communicator opens, for all the ways there are: comm.c, comm_split.c, and path.c, which only describes one.
 *
 *   allocate       rank, nranks and config are known
 *   …              ranks, books and devices of its members
 *   choose levels  flat or two levels: a rule on hosts alone
 *   draw rings     order and position on each channel
 *   tell rings     --log info
 */
#ifndef RING_COMM_OPEN_H
#define RING_COMM_OPEN_H

#include "ring/comm.h"

/* errors: SYSTEM. ring_comm_close() frees what there is then. */
MUST_CHECK enum status comm_allocate(struct ring_comm *comm);
/* must: RINGZERO_HIERARCHY=two_level is an error where there cannot be two; else it is flat there. */
MUST_CHECK enum status comm_choose_levels(struct ring_comm *comm, bool must);
/* Whether some host has more ranks than cores decides, where RINGZERO_STAR_BYTES is not given. */
void comm_choose_star(struct ring_comm *comm, bool share_cores);
void comm_draw_rings(struct ring_comm *comm);
void comm_tell_rings(const struct ring_comm *comm);

#endif
