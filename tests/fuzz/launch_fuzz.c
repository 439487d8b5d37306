/* launch_fuzz: what a launcher says: its variables, Slurm's node list, and the answers of a PMI-1 server.
 *
 * input   mode, then { variable, length, bytes }… until a variable of 255; what is left are the server's answers
 *   mode mod 3   0 the launchers' numbers, with MASTER_ADDR   1 PMI-1: rank 1 of 4   2 Slurm's variables alone
 */
#include <stdio.h>

#include "tests/fuzz/fuzz.h"
#include "verbs/launch.h"
#include "verbs/launch_internal.h"

static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "MASTER_ADDR"};
#define NAMES (sizeof names / sizeof *names)

static void set_variables(struct fuzz_input *input)
{
    for (size_t i = 0; i < NAMES; i++) unsetenv(names[i]);
    while (input->bytes > 0) {
        uint8_t variable = fuzz_byte(input);
        if (variable == 255) return;
        char text[256] = "";
        fuzz_take(text, fuzz_byte(input) % sizeof text, input);
        setenv(names[variable % NAMES], text, 1);
    }
}

static void check_config(const struct bootstrap_config *config)
{
    FUZZ_EXPECT(config->nranks >= 1 && config->rank >= 0 && config->rank < config->nranks);
    FUZZ_EXPECT(config->local_nranks >= 0 && config->local_nranks <= config->nranks);
    FUZZ_EXPECT(config->local_nranks == 0 || (config->local_rank >= 0 && config->local_rank < config->local_nranks));
    if (config->nranks == 1) return;
    FUZZ_EXPECT(config->port >= 1 && config->port <= 65535);
    FUZZ_EXPECT(config->address[0] != '\0' && memchr(config->address, '\0', sizeof config->address) != NULL);
}

static void read_numbers(void)
{
    setenv("MASTER_ADDR", "127.0.0.1", 0); /* no exchange, and no look-up of a name */
    struct bootstrap_config config = bootstrap_config_single();
    bool found = false;
    if (launch_from_environment(&config, &found) == STATUS_OK && found) check_config(&config);
}

/* The answers are all there, and nothing follows them. */
static void hear_server(struct fuzz_input *input)
{
    int mine, theirs;
    char number[16];
    for (size_t i = 0; i < NAMES; i++) unsetenv(names[i]);
    fuzz_connect(&mine, &theirs);
    snprintf(number, sizeof number, "%d", mine);
    setenv("PMI_FD", number, 1);
    setenv("PMI_RANK", "1", 1);
    setenv("PMI_SIZE", "4", 1);
    setenv("RINGZERO_TIMEOUT_MS", "1000", 1);
    ssize_t sent = send(theirs, input->data, input->bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(theirs, SHUT_WR);
    struct bootstrap_config config = bootstrap_config_single();
    bool found = false;
    enum status status = launch_from_environment(&config, &found);
    FUZZ_EXPECT(status == STATUS_OK || sent < 0 || !found);
    FUZZ_EXPECT(status != STATUS_TIMEOUT); /* a server that is gone is not waited for */
    if (status == STATUS_OK) check_config(&config);
    else close(mine);
    close(theirs);
}

static void derive_from_slurm(struct fuzz_input *input)
{
    struct bootstrap_config config = bootstrap_config_single();
    config.rank = 1;
    config.nranks = 4;
    if (launch_slurm_derive(&config) == STATUS_OK) check_config(&config);
    char list[512], host[1 + 32];
    fuzz_take(list, sizeof list - 1, input);
    list[sizeof list - 1] = '\0';
    host[32] = '!';
    if (launch_slurm_first_host(host, 32, list)) FUZZ_EXPECT(host[0] != '\0' && memchr(host, '\0', 32) != NULL);
    FUZZ_EXPECT(host[32] == '!');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    uint8_t mode = fuzz_byte(&input);
    unsetenv("PMIX_NAMESPACE");
    unsetenv("PMIX_RANK");
    set_variables(&input);
    if (mode % 3 == 0) read_numbers();
    else if (mode % 3 == 1) hear_server(&input);
    else derive_from_slurm(&input);
    return 0;
}
