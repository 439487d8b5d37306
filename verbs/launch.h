/* launch: how a process becomes a rank: started here (--ranks N), or by a launcher that set the environment.
 */
#ifndef VERBS_LAUNCH_H
#define VERBS_LAUNCH_H

#include <stdbool.h>

#include "verbs/bootstrap.h"
#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a rank's death means for the others. */
enum launch_on_death {
    LAUNCH_END_ALL, /* the job has failed: they are given a grace and then ended */
    LAUNCH_GO_ON    /* they go on (ring_comm_shrink()), as long as rank 0 does */
};

/* Starts nranks processes by fork() on this host and reaps them. Call before any thread exists.
 *
 * In each child: returns OK with *is_parent false and *config filled (rank 0: the inherited listening socket, which
 * no other process keeps; all: one random job id). The child dies with the parent (PR_SET_PDEATHSIG).
 * OPENBLAS_NUM_THREADS is set to max(1, cores / nranks) there unless it is set already, so that ranks do not fight
 * over cores. Each rank is bound (RINGZERO_BIND=none: not): where there are at least as many cores
 * as ranks to a part of its own, neighbouring cores, ranks spread over the NUMA nodes; where nranks
 * is a multiple of the cores to one core, so that each has equally many. OpenBLAS reads the variable
 * when it is loaded: a program that is linked to it must pass the value to
 * openblas_set_num_threads() itself.
 *
 * In the parent: returns after the last child ended, *is_parent true, *exit_code 0 if all ended well, else that of
 * the first that failed (128 + signal if it was killed), after one line "rank 2 exited with code 1" or "rank 2 was
 * killed by signal 9 (Killed)" on standard error; later failures are silent, being consequences. When one fails the
 * others get a grace of 5 s (the death reaches them by their control connections), then SIGTERM, then after 2 s
 * SIGKILL. SIGINT and SIGTERM are passed on (a SIGINT of the terminal is not: the ranks get that from it too).
 *
 * With LAUNCH_GO_ON the end of rank 0 is that of the job: *exit_code is rank 0's, and those that are left then get the same
 * grace. Of each other rank that fails before there is one line, "rank 2 was killed by signal 9 (Killed): the others go on".
 *
 * errors: INVALID for nranks < 1; SYSTEM when fork or the socket fails (children already started are killed). */
MUST_CHECK enum status launch_local(
    struct bootstrap_config *config, bool *is_parent, int *exit_code, int nranks, enum launch_on_death on_death);

/* Fills config where a launcher started this process as one rank of several. The first of these that is set decides:
 *
 *   launcher   rank and number of ranks                      address of rank 0, unless MASTER_ADDR and MASTER_PORT
 *                                                            give it
 *   torchrun   RANK, WORLD_SIZE                              they must give it
 *   Open MPI   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE    PMIx
 *   MPICH      PMI_RANK, PMI_SIZE                            PMI-1 over PMI_FD
 *   Slurm      SLURM_PROCID, SLURM_NTASKS, in a step         PMIx (srun --mpi=pmix), else the step's first node and a
 *                                                            port of 15000 to 34999 drawn from the ids of job and step
 *   PMIx       PMIX_RANK, PMIX_NAMESPACE                     PMIx
 *
 * A Slurm batch script's own shell is no rank: only inside a step (SLURM_STEP_ID) are the variables read.
 * Local ranks are read too where the launcher tells them (LOCAL_RANK and LOCAL_WORLD_SIZE, …); else bootstrap_open()
 * finds them by comparing hosts.
 *
 * *found is false, and config untouched, when there is no launcher. PMIx and PMI-1 carry {address, port, job id} of
 * rank 0, which listens already (config->listen_fd), and are left again before this returns. When the launcher says
 * that all ranks share a host the address is 127.0.0.1, else RINGZERO_INTERFACE's, else that of socket_best_address().
 * collective: with PMIx or PMI-1 every rank of the job calls. threads: call before any thread exists (a forked child
 * asks PMIx).
 * errors: INVALID when only some variables are set or a value is no number or out of range, naming the variable, the
 * value and what is expected; or when rank 0 is on another host and told a loopback address. SYSTEM when PMIx or PMI-1
 * is missing or fails, or the port is taken, naming the alternatives; TIMEOUT when there is no answer before the
 * deadline; DATA when what comes is no address of ours. */
MUST_CHECK enum status launch_from_environment(struct bootstrap_config *config, bool *found);

/* What tells the number of ranks there, for messages: "WORLD_SIZE", "PMI_SIZE", …; NULL when there is no launcher. */
const char *launch_size_variable(void);

#ifdef __cplusplus
}
#endif
#endif
