/* comm: opening a communicator: what ranks tell each other, what must agree, and the edges opened when first needed.
 *
 * Two all-gathers: the first carries each rank's description and tunables, which must agree; the second is a barrier that
 * tells everyone that everyone found them agreeing. Nothing is left behind on an error.
 */
#include "ring/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "verbs/log.h"

#define DEFAULT_SLOT_BYTES ((size_t)256 << 10)
#define DEFAULT_SLOT_COUNT 8

/* What a rank says when a communicator opens. */
struct introduction {
    struct topology_rank rank;
    uint64_t id; /* rank 0's counts */
    uint64_t slot_bytes, slot_count;
    int64_t channels, timeout_ms;
    char transport[16];
};

/* ---- tunables ---- */

static enum status tunable_from_environment(uint64_t *value, const char *name, uint64_t least, uint64_t most)
{
    const char *text = getenv(name);
    if (text == NULL || *value != 0) return STATUS_OK;
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text == 0 || *end != 0 || number < least || number > most)
        return FAIL(STATUS_INVALID, "%s is \"%s\"; expected a number from %llu to %llu", name, text,
            (unsigned long long)least, (unsigned long long)most);
    *value = number;
    return STATUS_OK;
}

static enum status resolve_config(struct ring_comm *comm, const struct ring_config *given)
{
    struct ring_config *config = &comm->config;
    *config = *given;
    uint64_t slot_bytes = config->slot_bytes, channels = (uint64_t)config->channels;
    TRY(tunable_from_environment(&slot_bytes, "RINGZERO_SLOT_BYTES", 64, (uint64_t)1 << 30));
    TRY(tunable_from_environment(&config->slot_count, "RINGZERO_SLOTS", 2, 1024));
    TRY(tunable_from_environment(&channels, "RINGZERO_CHANNELS", 1, RING_MAX_CHANNELS));
    if (config->transport == NULL) config->transport = getenv("RINGZERO_TRANSPORT");
    if (config->transport == NULL) config->transport = "auto";
    if (slot_bytes == 0) slot_bytes = DEFAULT_SLOT_BYTES;
    if (config->slot_count == 0) config->slot_count = DEFAULT_SLOT_COUNT;
    if (channels == 0) channels = 1;
    config->slot_bytes = slot_bytes;
    config->channels = (int)channels;
    if (config->timeout_ms == 0) config->timeout_ms = bootstrap_timeout_ms(comm->bootstrap);

    if (slot_bytes % 64 != 0)
        return FAIL(STATUS_INVALID, "RINGZERO_SLOT_BYTES is %llu; expected a multiple of 64",
            (unsigned long long)slot_bytes);
    if (config->slot_count < 2 || (config->slot_count & (config->slot_count - 1)) != 0)
        return FAIL(STATUS_INVALID, "RINGZERO_SLOTS is %llu; expected a power of two, at least 2",
            (unsigned long long)config->slot_count);
    if (config->channels < 1 || config->channels > RING_MAX_CHANNELS)
        return FAIL(STATUS_INVALID, "RINGZERO_CHANNELS is %d; expected 1 to %d", config->channels, RING_MAX_CHANNELS);
    if (config->custom != NULL) {
        comm->transport = config->custom;
        config->transport = config->custom->name;
        return STATUS_OK;
    }
    if (strcmp(config->transport, "auto") == 0) return STATUS_OK;
    comm->transport = transport_by_name(config->transport);
    if (comm->transport == NULL)
        return FAIL(STATUS_INVALID, "transport is \"%s\"; expected auto, shm or tcp", config->transport);
    config->transport = comm->transport->name; /* the caller's text need not outlive the call */
    return STATUS_OK;
}

static enum status compare(const char *name, const char *zero, const char *other, int rank)
{
    if (strcmp(zero, other) == 0) return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is %s on rank 0 and %s on rank %d: give all ranks the same value", name, zero, other, rank);
}

static enum status compare_number(const char *name, uint64_t zero, uint64_t other, int rank)
{
    char a[24], b[24];
    snprintf(a, sizeof a, "%llu", (unsigned long long)zero);
    snprintf(b, sizeof b, "%llu", (unsigned long long)other);
    return compare(name, a, b, rank);
}

static enum status check_agreement(const struct introduction *all, int nranks)
{
    for (int r = 1; r < nranks; r++) {
        TRY(compare("RINGZERO_TRANSPORT (--transport)", all[0].transport, all[r].transport, r));
        TRY(compare_number("RINGZERO_SLOT_BYTES", all[0].slot_bytes, all[r].slot_bytes, r));
        TRY(compare_number("RINGZERO_SLOTS", all[0].slot_count, all[r].slot_count, r));
        TRY(compare_number("RINGZERO_CHANNELS", (uint64_t)all[0].channels, (uint64_t)all[r].channels, r));
        TRY(compare_number("RINGZERO_TIMEOUT_MS", (uint64_t)all[0].timeout_ms, (uint64_t)all[r].timeout_ms, r));
    }
    return STATUS_OK;
}

/* ---- opening ---- */

static enum status introduce(struct ring_comm *comm, struct introduction *all)
{
    struct introduction *mine = &all[comm->rank];
    *mine = (struct introduction){
        .rank = topology_describe_self(),
        .slot_bytes = comm->config.slot_bytes,
        .slot_count = comm->config.slot_count,
        .channels = comm->config.channels,
        .timeout_ms = comm->config.timeout_ms,
    };
    snprintf(mine->transport, sizeof mine->transport, "%s", comm->config.transport);
    if (getrandom(&mine->id, sizeof mine->id, 0) != (ssize_t)sizeof mine->id)
        return FAIL(STATUS_SYSTEM, "getrandom failed");
    const char *why = "";
    if (comm->transport != NULL && comm->transport->available != NULL && !comm->transport->available(&why))
        return FAIL(STATUS_SYSTEM, "transport %s cannot work here: %s; use --transport tcp", comm->transport->name, why);

    TRY(bootstrap_all_gather(all, sizeof *all, comm->bootstrap));
    TRY(check_agreement(all, comm->nranks));
    TRY(bootstrap_barrier(comm->bootstrap));
    comm->id = all[0].id << 8; /* the low byte tells channels apart */
    for (int r = 0; r < comm->nranks; r++) comm->ranks[r] = all[r].rank;
    return STATUS_OK;
}

static enum status allocate(struct ring_comm *comm)
{
    size_t n = (size_t)comm->nranks, channels = (size_t)comm->config.channels;
    comm->ranks = calloc(n, sizeof *comm->ranks);
    comm->order = calloc(n * channels, sizeof *comm->order);
    comm->position = calloc(channels, sizeof *comm->position);
    comm->edges = calloc(n * channels * 2, sizeof *comm->edges);
    if (comm->ranks == NULL || comm->order == NULL || comm->position == NULL || comm->edges == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a communicator of %d ranks", comm->nranks);
    return progress_open(&comm->progress);
}

static void draw_rings(struct ring_comm *comm)
{
    for (int channel = 0; channel < comm->config.channels; channel++) {
        int *order = comm->order + channel * comm->nranks;
        topology_ring_order(order, comm->ranks, comm->nranks, channel);
        char text[256] = "";
        size_t used = 0;
        for (int p = 0; p < comm->nranks; p++) {
            if (order[p] == comm->rank) comm->position[channel] = p;
            if (used < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, " %d", order[p]);
        }
        if (comm->rank == 0) LOG_INFO("ring", "channel %d: ring%s, next by %s", channel, text, ring_comm_transport(comm));
    }
    if (comm->rank == 0)
        LOG_INFO("ring", "RINGZERO_TRANSPORT %s, RINGZERO_SLOT_BYTES %zu, RINGZERO_SLOTS %llu, RINGZERO_CHANNELS %d, "
            "RINGZERO_TIMEOUT_MS %d", comm->config.transport, comm->config.slot_bytes,
            (unsigned long long)comm->config.slot_count, comm->config.channels, comm->config.timeout_ms);
}

enum status ring_comm_open(
    struct ring_comm **out, const struct ring_config *config, struct bootstrap *bootstrap, struct device *device)
{
    *out = NULL;
    enum status status = STATUS_OK;
    struct introduction *all = NULL;
    struct ring_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) return FAIL(STATUS_SYSTEM, "no memory for a communicator");
    pthread_mutex_init(&comm->lock, NULL);
    comm->bootstrap = bootstrap;
    comm->device = device;
    comm->rank = bootstrap_rank(bootstrap);
    comm->nranks = bootstrap_nranks(bootstrap);
    TRY_GOTO(resolve_config(comm, config));
    TRY_GOTO(allocate(comm));
    all = calloc((size_t)comm->nranks, sizeof *all);
    if (all == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for %d introductions", comm->nranks);
        goto fail;
    }
    TRY_GOTO(introduce(comm, all));
    free(all);
    draw_rings(comm);
    comm->opened = true;
    *out = comm;
    return STATUS_OK;
fail:
    bootstrap_abort(status_text(), bootstrap); /* the others must not wait for this rank */
    free(all);
    ring_comm_close(comm);
    return status;
}

static size_t edge_count(const struct ring_comm *comm)
{
    return (size_t)comm->nranks * (size_t)comm->config.channels * 2;
}

/* Nobody takes its edges down while a neighbour may still read from them. */
static void wait_for_all(struct ring_comm *comm)
{
    if (!comm->opened || comm->failure != STATUS_OK || bootstrap_failed(comm->bootstrap)) return;
    if (bootstrap_barrier(comm->bootstrap) != STATUS_OK) LOG_WARN("ring", "closing alone: %s", status_text());
}

void ring_comm_close(struct ring_comm *comm)
{
    if (comm == NULL) return;
    wait_for_all(comm);
    for (size_t i = 0; comm->edges != NULL && i < edge_count(comm); i++) edge_close(comm->edges[i]);
    progress_close(comm->progress);
    pthread_mutex_destroy(&comm->lock);
    free(comm->edges);
    free(comm->position);
    free(comm->order);
    free(comm->ranks);
    free(comm);
}

enum status comm_edge(struct edge **edge, int channel, enum edge_side side, int peer, struct ring_comm *comm)
{
    struct edge **place = &comm->edges[(size_t)(channel * 2 + (int)side) * (size_t)comm->nranks + (size_t)peer];
    if (*place == NULL) {
        const struct transport *transport = comm->transport;
        if (transport == NULL) transport = topology_transport(&comm->ranks[comm->rank], &comm->ranks[peer]);
        struct edge_config config = {
            .side = side,
            .self = comm->rank,
            .peer = peer,
            .key = comm->id + (uint64_t)channel,
            .slot_bytes = comm->config.slot_bytes,
            .slot_count = comm->config.slot_count,
            .start = comm->config.start,
            .bootstrap = comm->bootstrap,
            .device = comm->device,
            .bell = progress_bell(comm->progress),
        };
        TRY(edge_open(place, transport, &config));
    }
    *edge = *place;
    return STATUS_OK;
}

/* ---- what a communicator says of itself ---- */

int ring_comm_rank(const struct ring_comm *comm) { return comm->rank; }
int ring_comm_nranks(const struct ring_comm *comm) { return comm->nranks; }
const struct ring_config *ring_comm_config(const struct ring_comm *comm) { return &comm->config; }

const int *ring_comm_order(const struct ring_comm *comm, int channel)
{
    return comm->order + (size_t)channel * (size_t)comm->nranks;
}

const char *ring_comm_transport(const struct ring_comm *comm)
{
    if (comm->nranks == 1) return "self";
    if (comm->transport != NULL) return comm->transport->name;
    int next = comm_rank_at(comm, 0, (comm->position[0] + 1) % comm->nranks);
    return topology_transport(&comm->ranks[comm->rank], &comm->ranks[next])->name;
}

struct ring_counters ring_comm_counters(const struct ring_comm *comm)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&comm->lock;
    pthread_mutex_lock(lock);
    struct ring_counters copy = comm->counters;
    pthread_mutex_unlock(lock);
    return copy;
}
