/* launch_meet: where rank 0 is. Given by MASTER_ADDR and MASTER_PORT, worked out (Slurm), or exchanged: rank 0 listens,
 * writes its card and hands it to the launcher's server, which gives it to all.
 *
 *   card: version , address , port , job id , host          "1,10.0.0.1,40123,00c0ffee00c0ffee,<boot id>/<namespace>"
 *
 * Keeps: rank 0 listens before anybody knows where, so the port cannot be lost to another process; and a loopback
 * address on another host's card is refused at once instead of being tried until the deadline.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs/bootstrap_socket.h"
#include "verbs/launch_internal.h"

#define CARD_VERSION 1

/* ---- given ---- */

static enum status read_given(struct bootstrap_config *config)
{
    const char *address = getenv("MASTER_ADDR");
    const char *hint = "set MASTER_ADDR and MASTER_PORT together, the same on every rank";
    TRY(launch_read_number(&config->port, "MASTER_PORT", 1, 65535, "the port of rank 0", hint));
    if (address == NULL || address[0] == '\0' || strlen(address) >= sizeof config->address)
        return FAIL(STATUS_INVALID,
            "MASTER_ADDR is %s; expected the name or IP address of rank 0's host, shorter than %zu bytes: %s",
            address == NULL      ? "not set"
            : address[0] == '\0' ? "empty"
                                 : "too long",
            sizeof config->address, hint);
    snprintf(config->address, sizeof config->address, "%s", address);
    return STATUS_OK;
}

/* ---- exchanged ---- */

static enum status listen_and_write_card(char card[CARD_BYTES], struct bootstrap_config *config)
{
    char address[ADDRESS_TEXT_BYTES] = "127.0.0.1", host[HOST_TEXT_BYTES];
    const char *interface = getenv("RINGZERO_INTERFACE");
    if (interface != NULL && interface[0] != '\0') TRY(socket_interface_address(address, interface));
    else if (config->local_nranks == 0 || config->local_nranks != config->nranks) TRY(socket_best_address(address));
    TRY(socket_listen(&config->listen_fd, address, 0));
    config->port = socket_port(config->listen_fd);
    config->job = bootstrap_draw_job();
    socket_host_identity(host);
    snprintf(config->address, sizeof config->address, "%s", address);
    snprintf(card, CARD_BYTES, "%d,%s,%d,%016llx,%s", CARD_VERSION, address, config->port,
        (unsigned long long)config->job, host);
    return STATUS_OK;
}

#define UNREACHABLE                                                                                                    \
    "but its address is %s, which means nothing there: set RINGZERO_INTERFACE to the network interface between the "   \
    "hosts, on every rank"

/* What came may be of another program that shares the server: nothing in it is believed unseen. */
static enum status read_card(struct bootstrap_config *config, const char *card)
{
    char address[ADDRESS_TEXT_BYTES], host[HOST_TEXT_BYTES], own_host[HOST_TEXT_BYTES];
    unsigned long long job;
    int version, port, end = 0;
    int fields = sscanf(card, "%d,%79[^,],%d,%16llx,%63[^,]%n", &version, address, &port, &job, host, &end);
    if (fields != 5 || card[end] != '\0' || version != CARD_VERSION || port < 1 || port > 65535 || job == 0)
        return FAIL(STATUS_DATA,
            "the launcher hands out \"%.100s\" as the place of rank 0; expected version %d, address, port, job and "
            "host: run the same build on every rank",
            card, CARD_VERSION);
    socket_host_identity(own_host);
    if (socket_is_local_address(address) && strcmp(host, own_host) != 0)
        return FAIL(STATUS_INVALID, "rank 0 runs on another host than rank %d, " UNREACHABLE, config->rank, address);
    snprintf(config->address, sizeof config->address, "%s", address);
    config->port = port;
    config->job = job;
    return STATUS_OK;
}

/* After the exchange, so that the others learn as soon as rank 0 does that they cannot reach it. */
static enum status check_own_card(const struct bootstrap_config *config)
{
    bool several = config->local_nranks > 0 && config->local_nranks < config->nranks;
    if (!several || !socket_is_local_address(config->address)) return STATUS_OK;
    return FAIL(STATUS_INVALID, "rank 0 runs on another host than other ranks, " UNREACHABLE, config->address);
}

static enum status exchange(struct bootstrap_config *config, enum meeting meeting)
{
    char card[CARD_BYTES] = "";
    int timeout_ms, nranks = 0;
    enum status status;
    TRY(bootstrap_read_timeout(&timeout_ms));
    if (config->rank == 0) TRY(listen_and_write_card(card, config));
    if (meeting == MEETING_PMIX) TRY_GOTO(launch_pmix_exchange(card, &nranks, config->rank, timeout_ms));
    else TRY_GOTO(launch_pmi1_exchange(card, config->rank, timeout_ms));
    if (config->nranks == 0) config->nranks = nranks;
    TRY_GOTO(config->rank > 0 ? read_card(config, card) : check_own_card(config));
    if (config->nranks > 1) return STATUS_OK;
fail:
    if (config->listen_fd >= 0) close(config->listen_fd);
    config->listen_fd = -1;
    return status;
}

/* ---- worked out ---- */

/* Rank 0 takes the port now: whether it is free is the one thing that can go wrong. */
static enum status derive(struct bootstrap_config *config)
{
    TRY(launch_slurm_derive(config));
    if (config->rank > 0 || socket_listen(&config->listen_fd, config->address, config->port) == STATUS_OK)
        return STATUS_OK;
    return FAIL(STATUS_SYSTEM,
        "rank 0 cannot listen at port %d, which follows from the ids of Slurm's job and step: %s; expected it free: use "
        "srun --mpi=pmix, or set MASTER_ADDR and MASTER_PORT",
        config->port, strerror(errno));
}

enum status launch_meet(struct bootstrap_config *config, enum meeting meeting)
{
    bool given = getenv("MASTER_ADDR") != NULL || getenv("MASTER_PORT") != NULL;
    if ((given && config->nranks > 0) || meeting == MEETING_GIVEN) return read_given(config);
    if (meeting == MEETING_SLURM && getenv("PMIX_NAMESPACE") != NULL) meeting = MEETING_PMIX;
    if (meeting == MEETING_SLURM) return derive(config);
    return exchange(config, meeting);
}
