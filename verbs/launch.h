/* launch: how a process becomes a rank: started here (--ranks N), or by a launcher that set the environment.
 */
#ifndef VERBS_LAUNCH_H
#define VERBS_LAUNCH_H

#include <stdbool.h>

#include "verbs/bootstrap.h"
#include "verbs/status.h"

/* Starts nranks processes by fork() on this host and reaps them. Call before any thread exists.
 *
 * In each child: returns OK with *is_parent false and *config filled (rank 0: the inherited listening socket, which
 * no other process keeps; all: one random job id). The child dies with the parent (PR_SET_PDEATHSIG).
 * OPENBLAS_NUM_THREADS is set to max(1, cores / nranks) there unless it is set already, so that ranks do not fight
 * over cores, and where there are at least as many cores as ranks each rank is bound to a part of its own
 * (RINGZERO_BIND=none: not). OpenBLAS reads the variable when it is loaded: a program that is linked to it must pass the value to
 * openblas_set_num_threads() itself.
 *
 * In the parent: returns after the last child ended, *is_parent true, *exit_code 0 if all ended well, else that of
 * the first that failed (128 + signal if it was killed), after one line "rank 2 exited with code 1" or "rank 2 was
 * killed by signal 9 (Killed)" on standard error; later failures are silent, being consequences. When one fails the
 * others get a grace of 5 s (the death reaches them by their control connections), then SIGTERM, then after 2 s
 * SIGKILL. SIGINT and SIGTERM are passed on (a SIGINT of the terminal is not: the ranks get that from it too).
 *
 * errors: INVALID for nranks < 1; SYSTEM when fork or the socket fails (children already started are killed). */
MUST_CHECK enum status launch_local(
    struct bootstrap_config *config, bool *is_parent, int *exit_code, int nranks);

/* Fills config from RANK, WORLD_SIZE, LOCAL_RANK (optional), LOCAL_WORLD_SIZE (optional), MASTER_ADDR,
 * MASTER_PORT. *found is false, and config untouched, when RANK and WORLD_SIZE are both unset.
 * MASTER_ADDR and MASTER_PORT may be unset when WORLD_SIZE is 1. Without both LOCAL_ variables,
 * bootstrap_open() finds the local rank by comparing hosts.
 * errors: INVALID when only some are set or a value is no number or out of range, naming the variable, the value and
 * what is expected. */
MUST_CHECK enum status launch_from_environment(struct bootstrap_config *config, bool *found);

#endif
