/* launch_internal: how the ranks that a launcher started learn where rank 0 is.
 *
 *   launch_environment.c   who am I: the launchers' variables
 *   launch_meet.c          where is rank 0: MASTER_ADDR and MASTER_PORT, or one of the three below
 *   launch_pmix.c          PMIx: Open MPI's mpirun, srun --mpi=pmix, prterun
 *   launch_pmi1.c          PMI-1, the older text protocol: MPICH's mpirun, srun --mpi=pmi2
 *   launch_slurm.c         no exchange: what every task of a Slurm step can work out alone
 *
 * An exchange carries one short text, the card of rank 0, to all.
 */
#ifndef VERBS_LAUNCH_INTERNAL_H
#define VERBS_LAUNCH_INTERNAL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "verbs/bootstrap.h"
#include "verbs/status.h"

/* Within what every server takes as one value. No space, '=' or ';' may be in it: they part words in PMI-1. */
#define CARD_BYTES 512

/* How the job's ranks meet. */
enum meeting { MEETING_GIVEN, MEETING_PMIX, MEETING_PMI1, MEETING_SLURM };

/* environment: reads a number of least … most. errors: INVALID naming the variable. `hint` says what to do
 * when it is not set. */
MUST_CHECK enum status launch_read_number(
    int *value, const char *name, int least, int most, const char *expected, const char *hint);

/* meet: fills address, port, job and, on rank 0, listen_fd. config has rank, nranks (0: PMIx shall tell) and
 * local_nranks.
 * errors: as launch_from_environment(); no descriptor is left open. */
MUST_CHECK enum status launch_meet(struct bootstrap_config *config, enum meeting meeting);

/* Rank 0's card reaches all: on entry rank 0 has it in card, on return all have. *nranks is what the server says.
 * collective; each has the deadline timeout_ms. errors: SYSTEM, TIMEOUT. */
MUST_CHECK enum status launch_pmix_exchange(char card[CARD_BYTES], int *nranks, int rank, int timeout_ms);
MUST_CHECK enum status launch_pmi1_exchange(char card[CARD_BYTES], int rank, int timeout_ms);

/* The first host of a Slurm node list: "rack[02-04,7]n[1-2]-ib,login" gives "rack02n1-ib". False when there is
 * none or it is too long. */
bool launch_slurm_first_host(char *host, size_t host_bytes, const char *list);
/* Address, port and job id that follow from Slurm's variables alone. errors: INVALID. */
MUST_CHECK enum status launch_slurm_derive(struct bootstrap_config *config);

#endif
