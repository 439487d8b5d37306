/* computing: what computes (the model, AdamW), for those whose work goes on beside it on streams of
 * their own: a stream, which they and it keep in order by events; or the caller's thread, for which
 * what has been called is done, and which itself waits where the stream would.
 *
 *   computing   use of x ────────┬ waits ─────────── use of x
 *   stream                       └ carries x away, or brings another
 *   calls         computing_goes_first()   computing_waits()
 */
#ifndef SHARD_COMPUTING_H
#define SHARD_COMPUTING_H

#include <stdint.h>

#include "verbs/device.h"
#include "verbs/profile.h"

struct computing {
    struct stream *stream; /* NULL: the caller's thread computes */
    struct device *device;
    struct event *reached; /* what a stream waits for */
    uint64_t wait_ns;      /* the caller's thread was blocked: grows */
    struct profile *profile; /* where waits are noted (NULL: nowhere), … */
    const char *row;         /* … as what: the owner says, before them */
};

/* The stream stays its owner's, and outlives it. errors: SYSTEM. close accepts a zeroed object. */
MUST_CHECK enum status computing_open(
    struct computing *computing, struct stream *stream, struct device *device);
void computing_close(struct computing *computing);

/* What is computed from now on comes after the event. */
MUST_CHECK enum status computing_waits(struct event *event, struct computing *computing);

/* What the stream does from now on comes after what has been computed so far. */
MUST_CHECK enum status computing_goes_first(struct stream *stream, struct computing *computing);

/* Blocks until the stream has passed; counts the time. errors: those of its operations. */
MUST_CHECK enum status computing_synchronize(struct stream *stream, struct computing *computing);

#endif
