/* threshold: up to which size exchanges are quicker than what follows them, measured when a
 * communicator opens.
 *
 * On request only (RINGZERO_EXCHANGE_BYTES=measure): it takes time, and what is measured on a busy
 * machine is not what holds on a quiet one. Bits do not depend on it (I2 holds on both sides of the
 * threshold), nor does agreement: every rank takes what the slowest rank needed, and so comes to
 * the same sizes.
 */
#ifndef RING_THRESHOLD_H
#define RING_THRESHOLD_H

#include <stdint.h>

#include "ring/ring.h"

#define THRESHOLD_MEASURE SIZE_MAX /* ring_config.exchange_bytes: to be measured */

/* Sets comm->exchange_most of each collective that can be an exchange, and config.exchange_bytes to
 * the largest. comm has just opened: nothing has run on it, and to its counters nothing has after
 * this. collective. cost: some 400 operations of at most nranks · 64 KiB. errors: as any
 * collective, and SYSTEM. */
MUST_CHECK enum status threshold_measure(struct ring_comm *comm);

#endif
