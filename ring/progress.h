/* progress: the one wait loop. It advances every operation that has been submitted and is not done, so operations of several
 * communicators and threads cannot block one another by order.
 *
 * Whoever waits for an operation drives: it advances all of them until its own is done. While one thread drives, others that
 * wait sleep until theirs is done or the driver leaves, when one of them drives on. So nobody needs a thread of its own.
 *
 * Operations of one communicator run one after another in submission order, but for those of a group (operation_must_follow()).
 * A small one that comes when nothing else is live is run on the spot, without lists and locks: small.c.
 *
 * Invariant I5: an operation that has not moved for its communicator's timeout, or whose job has failed, ends with a status whose text
 * has own rank, operation, sequence number, peer and what was waited for.
 *
 * Waiting spins briefly, then sleeps: on the bell that neighbours in shared memory ring, or in poll() where the transports have
 * descriptors. So with more ranks than cores a rank that waits gives its core to the one it waits for.
 */
#ifndef RING_PROGRESS_H
#define RING_PROGRESS_H

#include <stdbool.h>

#include "verbs/status.h"

struct bell;
struct operation;
struct progress;

/* Shared ones are closed as often as they were opened and shared. */
MUST_CHECK enum status progress_open(struct progress **progress);
struct progress *progress_share(struct progress *progress);
void progress_close(struct progress *progress);

/* With more ranks on this host than cores, whoever is waited for needs the core: then waiting yields at once instead of spinning. */
void progress_share_cores(struct progress *progress);
bool progress_shares_cores(const struct progress *progress);

/* What edges are to be opened with, so that their peers can wake the driver. */
struct bell *progress_bell(const struct progress *progress);

/* ---- for an operation that is run without the engine: small.c ---- */

/* True: nothing is live, and the caller alone drives until progress_release(). */
bool progress_claim(struct progress *progress);
void progress_release(struct progress *progress);

/* How to wait meanwhile: passes that move nothing before the engine should take over; looks in each of them; what to do after the
 * idle-th. staged: a pass asks the system. */
int progress_spins(const struct progress *progress, bool staged);
int progress_looks(const struct progress *progress);
void progress_pause(int idle, const struct progress *progress);

/* Runs an operation that has begun to its end; the caller's claim is given up. */
MUST_CHECK enum status progress_resume(struct operation *operation, struct progress *progress);

/* Runs operations of one communicator to their ends, in order or, where they are one group, together; returns the first failure
 * with its text. They must stay in place until then. threads: any. */
MUST_CHECK enum status progress_run(struct operation *operations, int count, struct progress *progress);

#endif
