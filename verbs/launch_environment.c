/* launch_environment: who this process is, from the variables of whoever started it. launch.h has the table.
 *
 * Keeps: the first launcher of the table that left its mark decides, and half a mark is an error, never a guess.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "verbs/launch.h"
#include "verbs/launch_internal.h"
#include "verbs/log.h"

struct launcher {
    const char *name;
    const char *rank, *nranks;             /* variables; nranks NULL: PMIx tells */
    const char *mark;                      /* also needed; NULL: nothing else */
    const char *local_rank, *local_nranks; /* NULL: not told */
    const char *hint;                      /* what to do when one of the variables is missing */
    enum meeting meeting;
};

static const struct launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", NULL, "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together", MEETING_GIVEN},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI's mpirun sets both", MEETING_PMIX},
    {"MPICH", "PMI_RANK", "PMI_SIZE", NULL, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPICH's mpirun sets both",
        MEETING_PMI1},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_LOCALID", NULL, "srun sets both", MEETING_SLURM},
    {"PMIx", "PMIX_RANK", NULL, "PMIX_NAMESPACE", NULL, NULL, "prterun sets it", MEETING_PMIX},
};

static bool is_set(const char *name) { return name != NULL && getenv(name) != NULL; }

enum status launch_read_number(
    int *value, const char *name, int least, int most, const char *expected, const char *hint)
{
    const char *text = getenv(name);
    char *end = NULL;
    errno = 0;
    long number = text == NULL ? 0 : strtol(text, &end, 10);
    if (text == NULL) return FAIL(STATUS_INVALID, "%s is not set; expected %s: %s", name, expected, hint);
    if (end == text || *end != '\0' || errno != 0 || number < least || number > most)
        return FAIL(STATUS_INVALID, "%s is \"%s\"; expected %s (%d to %d): correct or unset it", name, text,
            expected, least, most);
    *value = (int)number;
    return STATUS_OK;
}

static const struct launcher *find_launcher(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *launcher = &launchers[i];
        bool marked = launcher->mark == NULL || is_set(launcher->mark);
        if (marked && (is_set(launcher->rank) || is_set(launcher->nranks))) return launcher;
    }
    return NULL;
}

/* One without the other says nothing, except that a step on one node has all its tasks there. */
static enum status read_local(struct bootstrap_config *config, const struct launcher *launcher)
{
    const char *hint = launcher->hint;
    if (is_set(launcher->local_nranks))
        TRY(launch_read_number(&config->local_nranks, launcher->local_nranks, 1, config->nranks,
            "the number of ranks on this host", hint));
    const char *nodes = launcher->meeting == MEETING_SLURM ? getenv("SLURM_STEP_NUM_NODES") : NULL;
    if (nodes != NULL && atoi(nodes) == 1) config->local_nranks = config->nranks;
    int local_most = (config->local_nranks > 0 ? config->local_nranks : config->nranks) - 1;
    if (is_set(launcher->local_rank))
        TRY(launch_read_number(
            &config->local_rank, launcher->local_rank, 0, local_most, "this rank's number on its host", hint));
    else config->local_nranks = 0;
    return STATUS_OK;
}

enum status launch_from_environment(struct bootstrap_config *config, bool *found)
{
    *found = false;
    const struct launcher *launcher = find_launcher();
    if (launcher == NULL) return STATUS_OK;
    struct bootstrap_config read = bootstrap_config_single();
    read.nranks = read.local_nranks = 0;
    if (launcher->nranks != NULL) {
        char below[64];
        snprintf(below, sizeof below, "a number below %s", launcher->nranks);
        TRY(launch_read_number(&read.nranks, launcher->nranks, 1, INT_MAX, "the number of ranks", launcher->hint));
        TRY(launch_read_number(&read.rank, launcher->rank, 0, read.nranks - 1, below, launcher->hint));
        TRY(read_local(&read, launcher));
    } else {
        TRY(launch_read_number(&read.rank, launcher->rank, 0, INT_MAX - 1, "the number of this rank", launcher->hint));
    }
    if (read.nranks != 1) TRY(launch_meet(&read, launcher->meeting));
    LOG_INFO("launch", "rank %d of %d, started by %s; rank 0 is at %s port %d", read.rank, read.nranks, launcher->name,
        read.address, read.port);
    *config = read;
    *found = true;
    return STATUS_OK;
}

const char *launch_size_variable(void)
{
    const struct launcher *launcher = find_launcher();
    if (launcher == NULL) return NULL;
    return launcher->nranks != NULL ? launcher->nranks : "PMIx's job size";
}
