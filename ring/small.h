/* small: the short way of a small operation that was made before, on the caller's thread, when nothing else is live: its latency is
 * what it costs. No lists, no locks, no clock, no memory: the request is compared with a kept plan (exchange.h), which is run.
 *
 * What does not fit goes the long way, through request.c and progress.c, which also judge: errors of the arguments, mismatches,
 * deadlines and deaths are found and told there.
 */
#ifndef RING_SMALL_H
#define RING_SMALL_H

#include "ring/exchange.h"
#include "ring/request.h"

enum small_end {
    SMALL_REFUSED, /* nothing was done */
    SMALL_DONE,    /* and counted */
    SMALL_UNFINISHED, /* *exchange has begun; the claim on the engine is the caller's: progress_resume() */
};

/* draw: the request has no sequence number yet: it is given one unless it is refused. threads: any. */
enum small_end small_run(struct exchange *exchange, struct request *request, bool draw);

#endif
