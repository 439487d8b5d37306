/* progress: the one wait loop. It advances every operation that has been submitted and is not done, so operations of several
 * communicators and threads cannot block one another by order.
 *
 * Whoever waits for an operation drives: it advances all of them until its own is done. While one thread drives, others that
 * wait sleep until theirs is done or the driver leaves, when one of them drives on. So nobody needs a thread of its own.
 *
 * Operations of one communicator run one after another in submission order (they share its edges).
 *
 * Invariant I5: an operation that has not moved for its communicator's timeout, or whose job has failed, ends with a status whose text
 * has own rank, operation, sequence number, peer and what was waited for.
 *
 * Waiting spins briefly, then sleeps: on the bell that neighbours in shared memory ring, or in poll() where the transports have
 * descriptors. So with more ranks than cores a rank that waits gives its core to the one it waits for.
 */
#ifndef RING_PROGRESS_H
#define RING_PROGRESS_H

#include "verbs/status.h"

struct bell;
struct operation;
struct progress;

MUST_CHECK enum status progress_open(struct progress **progress);
void progress_close(struct progress *progress);

/* What edges are to be opened with, so that their peers can wake the driver. */
struct bell *progress_bell(const struct progress *progress);

/* Runs the operation to its end and returns its status, with its text. The operation must stay in place until then.
 * threads: any. */
MUST_CHECK enum status progress_run(struct operation *operation, struct progress *progress);

#endif
