/* launch_pmi1: rank 0's card through PMI-1, which MPICH's mpirun (and srun --mpi=pmi2) speaks with each rank over the
 * inherited descriptor PMI_FD. Lines of text, each answered by one:
 *
 *   rank                                            server
 *   cmd=init pmi_version=1 pmi_subversion=1    ──►  cmd=response_to_init rc=0 …
 *   cmd=get_maxes                              ──►  cmd=maxes vallen_max=1024 …
 *   cmd=get_my_kvsname                         ──►  cmd=my_kvsname kvsname=K …
 *   cmd=put kvsname=K key=… value=CARD         ──►  cmd=put_result rc=0 …          rank 0 only
 *   cmd=barrier_in                             ──►  cmd=barrier_out                when all ranks are in
 *   cmd=get kvsname=K key=…                    ──►  cmd=get_result rc=0 value=CARD …
 *   cmd=finalize                               ──►  cmd=finalize_ack
 *
 * Keeps I5: one deadline for the whole talk.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/launch_internal.h"

#define LINE_BYTES 2048
#define CARD_KEY   "ringzero-rank-0"

struct pmi1 {
    int fd, timeout_ms;
    int64_t deadline_ns;
    char answer[LINE_BYTES]; /* the last one, without its line end */
};

static enum status pmi1_wait(const struct pmi1 *pmi, short events, const char *request)
{
    for (;;) {
        int64_t left_ns = pmi->deadline_ns - clock_ns();
        struct pollfd fd = {pmi->fd, events, 0};
        int ready = left_ns <= 0 ? 0 : poll(&fd, 1, (int)(left_ns / 1000000) + 1);
        if (ready > 0) return STATUS_OK;
        if (ready == 0)
            return FAIL(STATUS_TIMEOUT,
                "mpirun did not answer \"%.40s\" over PMI_FD within %d ms: see whether every rank was started; or set "
                "MASTER_ADDR and MASTER_PORT",
                request, pmi->timeout_ms);
        if (errno != EINTR)
            return FAIL(STATUS_SYSTEM, "cannot poll PMI_FD (descriptor %d): %s", pmi->fd, strerror(errno));
    }
}

/* Why the descriptor is of no use, as a failure. */
static enum status pmi1_lost(const struct pmi1 *pmi, const char *request, const char *why)
{
    return FAIL(STATUS_SYSTEM,
        "PMI-1 over PMI_FD (descriptor %d), \"%.40s\": %s; expected mpirun to answer: set MASTER_ADDR and MASTER_PORT, "
        "or start the ranks by another launcher",
        pmi->fd, request, why);
}

static enum status pmi1_send(struct pmi1 *pmi, const char *request)
{
    char line[LINE_BYTES];
    int bytes = snprintf(line, sizeof line, "%s\n", request);
    if (bytes >= (int)sizeof line) return pmi1_lost(pmi, request, "the request is too long");
    for (int sent = 0; sent < bytes;) {
        TRY(pmi1_wait(pmi, POLLOUT, request));
        ssize_t now = write(pmi->fd, line + sent, (size_t)(bytes - sent));
        if (now < 0 && errno != EINTR && errno != EAGAIN) return pmi1_lost(pmi, request, strerror(errno));
        if (now > 0) sent += (int)now;
    }
    return STATUS_OK;
}

/* Sends a request and reads one line, which must begin with the command that answers it and not say that it failed. */
static enum status pmi1_ask(struct pmi1 *pmi, const char *request, const char *expected)
{
    TRY(pmi1_send(pmi, request));
    size_t have = 0;
    for (bool whole = false; !whole;) {
        TRY(pmi1_wait(pmi, POLLIN, request));
        ssize_t got = read(pmi->fd, pmi->answer + have, 1); /* few and short: never a byte of the next answer */
        if (got == 0) return pmi1_lost(pmi, request, "closed");
        if (got < 0 && errno != EINTR && errno != EAGAIN) return pmi1_lost(pmi, request, strerror(errno));
        if (got <= 0) continue;
        whole = pmi->answer[have++] == '\n';
        if (!whole && have == sizeof pmi->answer) return pmi1_lost(pmi, request, "the answer has no end");
    }
    pmi->answer[have - 1] = '\0';
    const char *code = strstr(pmi->answer, " rc=");
    size_t length = strlen(expected);
    bool answers = strncmp(pmi->answer, expected, length) == 0 && strchr(" ", pmi->answer[length]) != NULL;
    if (answers && (code == NULL || atoi(code + 4) == 0)) return STATUS_OK;
    char why[128];
    snprintf(why, sizeof why, "the answer is \"%.80s\"", pmi->answer);
    return pmi1_lost(pmi, request, why);
}

/* Copies one word of the last answer: "name=WORD". False when it is not there or does not fit. */
static bool pmi1_word(char *word, size_t word_bytes, const struct pmi1 *pmi, const char *name)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, " %s=", name);
    const char *begin = strstr(pmi->answer, prefix);
    if (begin == NULL) return false;
    begin += strlen(prefix);
    size_t bytes = strcspn(begin, " ");
    if (bytes == 0 || bytes >= word_bytes) return false;
    memcpy(word, begin, bytes);
    word[bytes] = '\0';
    return true;
}

static enum status pmi1_talk(struct pmi1 *pmi, char card[CARD_BYTES], int rank)
{
    char request[LINE_BYTES], space[300], most[16];
    TRY(pmi1_ask(pmi, "cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init"));
    TRY(pmi1_ask(pmi, "cmd=get_maxes", "cmd=maxes"));
    if (!pmi1_word(most, sizeof most, pmi, "vallen_max") || atoi(most) <= (int)strlen(card))
        return pmi1_lost(pmi, "cmd=get_maxes", "values there are too short for an address");
    TRY(pmi1_ask(pmi, "cmd=get_my_kvsname", "cmd=my_kvsname"));
    if (!pmi1_word(space, sizeof space, pmi, "kvsname"))
        return pmi1_lost(pmi, "cmd=get_my_kvsname", "the answer has no kvsname");
    if (rank == 0) {
        snprintf(request, sizeof request, "cmd=put kvsname=%s key=" CARD_KEY " value=%.*s", space, CARD_BYTES, card);
        TRY(pmi1_ask(pmi, request, "cmd=put_result"));
    }
    TRY(pmi1_ask(pmi, "cmd=barrier_in", "cmd=barrier_out"));
    snprintf(request, sizeof request, "cmd=get kvsname=%s key=" CARD_KEY, space);
    TRY(pmi1_ask(pmi, request, "cmd=get_result"));
    if (!pmi1_word(card, CARD_BYTES, pmi, "value")) return pmi1_lost(pmi, request, "the answer has no value");
    return pmi1_ask(pmi, "cmd=finalize", "cmd=finalize_ack");
}

enum status launch_pmi1_exchange(char card[CARD_BYTES], int rank, int timeout_ms)
{
    struct pmi1 pmi = {.timeout_ms = timeout_ms, .deadline_ns = clock_ns() + clock_ms_to_ns(timeout_ms)};
    TRY(launch_read_number(&pmi.fd, "PMI_FD", 0, INT_MAX, "the descriptor of mpirun's PMI-1 server",
        "start the ranks by MPICH's mpirun, or set MASTER_ADDR and MASTER_PORT"));
    /* After a failure it stays open: mpirun kills a rank whose descriptor closes early, before the rank could say why. */
    TRY(pmi1_talk(&pmi, card, rank));
    close(pmi.fd);
    return STATUS_OK;
}
