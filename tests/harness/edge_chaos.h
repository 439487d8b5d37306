/* edge_chaos: an edge in the memory of one process that delays, cuts short and fails on purpose: for tests of the ring that want
 * neither sockets nor shared segments. Ranks must be threads. Both sides stage, as over a network, so an executor that looks
 * at the wrong counter shows.
 *
 * Each progress() call moves a random number of steps or credits, often none; nothing else is random. A step that has left is
 * scribbled over at the source, so a consumer that reads late or a producer that reuses early gives wrong sums.
 */
#ifndef TESTS_EDGE_CHAOS_H
#define TESTS_EDGE_CHAOS_H

#include "verbs/transport.h"

extern const struct transport transport_chaos;

/* Fails with PEER, as a broken connection does, after this many steps: rank 1's producers. */
extern const struct transport transport_chaos_breaking;
#define CHAOS_BREAKS_AFTER 40

#endif
