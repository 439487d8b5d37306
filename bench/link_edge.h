/* link_edge: the two edges of a link, one there and one back, and bytes moved over them: see
 * link_edge.c.
 */
#ifndef BENCH_LINK_EDGE_H
#define BENCH_LINK_EDGE_H

#include "verbs/transport.h"

#define LINK_SLOT_BYTES ((size_t)256 << 10)
#define LINK_SLOT_COUNT 8

struct link_edge {
    struct edge *out, *in;
    struct bootstrap *bootstrap;
};

/* Between the two ranks of a job. errors: SYSTEM when the transport cannot work here; close what is
 * half open, too. */
MUST_CHECK enum status link_edge_open(struct link_edge *link, const struct transport *transport,
    struct bootstrap *bootstrap, struct device *device);
/* Not before both ranks are done with both edges. */
void link_edge_close(struct link_edge *link);

/* Takes to_receive bytes into `to` and puts to_send of `from`, in slices of at most a slot,
 * whatever can be done first. The peer moves as many the other way. completion: all is received;
 * what was sent may still be on its way, and `from` must stay as it is until link_edge_drain().
 * errors: DATA when a slice is not what it should be, TIMEOUT, PEER, ABORTED. */
MUST_CHECK enum status link_edge_move(
    char *to, size_t to_receive, const char *from, size_t to_send, struct link_edge *link);

/* Until everything posted and freed has left: the peer can then go on without this rank. */
MUST_CHECK enum status link_edge_drain(struct link_edge *link);

const char *link_edge_transport(const struct link_edge *link);

#endif
