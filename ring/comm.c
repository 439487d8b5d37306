/* comm: opening a communicator: what ranks tell each other, what must agree, and the edges opened when first needed.
 *
 * Two all-gathers, or three: the first carries each rank's description and tunables, which must agree; the second tells everyone that
 * everyone found them agreeing, and whether each may copy from the others of its host; the third what NICs and GPUs each has, where
 * that matters. Nothing is left behind on an error.
 */
#include "ring/comm_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ring/board.h"
#include "ring/exchange_kept.h"
#include "ring/exchange_star.h"
#include "ring/flight.h"
#include "ring/kernel_host.h"
#include "ring/kernel_run.h"
#include "ring/reach.h"
#include "ring/threshold.h"
#include "ring/tunables.h"
#include "ring/window.h"
#include "ring/window_stage.h"
#include "verbs/clock.h"
#include "verbs/device_ops.h"
#include "verbs/log.h"
#include "verbs/rail.h"

/* What a rank says when a communicator opens. */
struct introduction {
    struct topology_rank rank;
    uint64_t id; /* rank 0's counts */
    struct region_offer book; /* pid 0: none */
    uint64_t board;           /* 0: none */
    struct tunables tunables;
    int64_t cores;
    char device[16];
    unsigned char gpu[DEVICE_IDENTITY_BYTES];
};

/* ---- opening ---- */

/* NICs and GPUs decide only about rings that leave a host, or whose buffers are on GPUs. Alike on all ranks. */
static bool needs_devices(const struct ring_comm *comm)
{
    for (int r = 0; r < comm->nranks; r++)
        if (comm->ranks[r].host != comm->ranks[0].host || comm->ranks[r].gpu != 0) return true;
    return false;
}

static enum status exchange_devices(struct ring_comm *comm)
{
    if (!needs_devices(comm)) return STATUS_OK;
    comm->devices = calloc((size_t)comm->nranks, sizeof *comm->devices);
    if (comm->devices == NULL) return FAIL(STATUS_SYSTEM, "no memory for the devices of %d ranks", comm->nranks);
    comm->devices[comm->rank] = topology_describe_devices(&comm->names, &comm->ranks[comm->rank]);
    return bootstrap_all_gather(comm->devices, sizeof *comm->devices, comm->bootstrap);
}

/* From which ranks share a host, so alike on all. must: it is an error if there cannot be two levels. */
enum status comm_choose_levels(struct ring_comm *comm, bool must)
{
    char text[64];
    struct topology topology = comm_topology(comm);
    struct topology_shape shape = topology_shape(&topology);
    bool can = topology_shape_has_two_levels(shape);
    comm->host_ranks = can && comm->config.hierarchy != HIERARCHY_FLAT ? shape.least : 1;
    if (can || !must) return STATUS_OK;
    return FAIL(STATUS_INVALID, "RINGZERO_HIERARCHY is two_level, but the job has %s: expected at least two hosts, and on each the "
        "same number of ranks, at least two; or set it to auto", topology_shape_text(text, shape));
}

/* A kernel that waits for another rank's must not keep it from running: each needs a GPU of its own. An ordinal does not tell: with
 * CUDA_VISIBLE_DEVICES every rank's GPU may be 0. */
static bool wants_kernels(const struct introduction *all, const struct ring_comm *comm)
{
    if (strcmp(comm->config.cuda_mode, "auto") != 0) return strcmp(comm->config.cuda_mode, "kernel") == 0;
    for (int a = 0; a < comm->nranks; a++)
        for (int b = 0; b < a; b++)
            if (memcmp(all[a].gpu, all[b].gpu, sizeof all[a].gpu) == 0) return false;
    return true;
}

static int64_t ranks_beside(int rank, const struct ring_comm *comm)
{
    int64_t beside = 0;
    for (int r = 0; r < comm->nranks; r++) beside += comm->ranks[r].host == comm->ranks[rank].host;
    return beside;
}

static bool share_cores(const struct introduction *all, const struct ring_comm *comm)
{
    bool share = false;
    for (int r = 0; r < comm->nranks && !share; r++) share = ranks_beside(r, comm) > all[r].cores;
    return share;
}

/* By what all have told, so alike on all: the star serves ranks that share cores, those of splits too, which take the choice over. */
void comm_choose_star(struct ring_comm *comm, bool share_cores)
{
    comm->star_is_auto = comm->config.star_bytes == COMM_STAR_AUTO;
    if (comm->star_is_auto) comm->config.star_bytes = share_cores ? COMM_STAR_BYTES : COMM_NO_STAR;
}

/* Whether each may copy from all others of its host. */
static enum status try_copies(struct ring_comm *comm)
{
    char *mine = &comm->may_copy[comm->rank];
    *mine = 1;
    for (int r = 0; r < comm->nranks; r++)
        if (comm_on_this_host(comm, r) && !region_offer_may_copy(&comm->books[r])) *mine = 0;
    return bootstrap_all_gather(comm->may_copy, sizeof *comm->may_copy, comm->bootstrap);
}

static enum status introduce(struct ring_comm *comm, struct introduction *all)
{
    struct introduction *mine = &all[comm->rank];
    const char *pretended = comm->host != NULL ? comm->host : getenv("RINGZERO_HOST");
    *mine = (struct introduction){
        .rank = topology_describe_self(pretended),
        .tunables = tunables_told(&comm->config),
        .cores = sysconf(_SC_NPROCESSORS_ONLN),
    };
    if (comm->book != NULL) mine->book = region_book_offer(comm->book);
    mine->board = board_reference(comm->board);
    snprintf(mine->device, sizeof mine->device, "%s", device_name(comm->device));
    if (comm->device->ops->identify != NULL) TRY(comm->device->ops->identify(mine->gpu, comm->device));
    if (getrandom(&mine->id, sizeof mine->id, 0) != (ssize_t)sizeof mine->id)
        return FAIL(STATUS_SYSTEM, "getrandom failed");
    const char *why = "";
    if (comm->transport != NULL && comm->transport->available != NULL && !comm->transport->available(&why, comm->device))
        return FAIL(STATUS_SYSTEM, "transport %s cannot work here: %s; use --transport tcp", comm->transport->name, why);

    TRY(bootstrap_all_gather(all, sizeof *all, comm->bootstrap));
    for (int r = 1; r < comm->nranks; r++) TRY(tunables_compare(&all[0].tunables, &all[r].tunables, r));
    comm->id = all[0].id << 8; /* the low byte tells channels apart */
    comm->kernels = wants_kernels(all, comm);
    comm->all_cuda = device_kind(comm->device) == MEMORY_CUDA;
    for (int r = 0; r < comm->nranks; r++) {
        comm->all_cuda = comm->all_cuda && memcmp(all[r].device, all[0].device, sizeof all[0].device) == 0;
        comm->ranks[r] = all[r].rank;
        comm->books[r] = all[r].book;
        comm->boards[r] = all[r].board;
    }
    comm_choose_star(comm, share_cores(all, comm));
    TRY(comm_choose_levels(comm, comm->config.hierarchy == HIERARCHY_TWO_LEVEL));
    TRY(try_copies(comm));
    return exchange_devices(comm);
}

static size_t edge_count(const struct ring_comm *comm)
{
    return (size_t)comm->nranks * (size_t)comm_edge_channels(comm) * 2;
}

enum status comm_allocate(struct ring_comm *comm)
{
    size_t n = (size_t)comm->nranks, channels = (size_t)comm->config.channels;
    comm->ranks = calloc(n, sizeof *comm->ranks);
    comm->order = calloc(n * channels, sizeof *comm->order);
    comm->position = calloc(channels, sizeof *comm->position);
    comm->edges = calloc(edge_count(comm), sizeof *comm->edges);
    comm->members = calloc(n, sizeof *comm->members);
    comm->books = calloc(n, sizeof *comm->books);
    comm->boards = calloc(n, sizeof *comm->boards);
    comm->views = calloc(n, sizeof *comm->views);
    comm->may_copy = calloc(n, sizeof *comm->may_copy);
    if (comm->books == NULL || comm->boards == NULL || comm->may_copy == NULL || comm->views == NULL || comm->ranks == NULL || comm->order == NULL || comm->position == NULL || comm->edges == NULL || comm->members == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a communicator of %d ranks", comm->nranks);
    for (int r = 0; r < comm->nranks; r++) comm->members[r] = r;
    return STATUS_OK;
}

const struct transport *comm_transport_between(int a, int b, const struct ring_comm *comm)
{
    bool given = comm->transport != NULL && comm->transport != &transport_cuda_ipc;
    return given ? comm->transport : topology_transport(&comm->ranks[a], &comm->ranks[b]);
}

/* Of what is in CUDA memory. */
static const struct transport *device_transport_between(int a, int b, const struct ring_comm *comm)
{
    if (comm->transport != NULL) return comm->transport;
    bool reach = comm->ranks[a].host == comm->ranks[b].host && comm->all_cuda;
    return reach ? &transport_cuda_ipc : topology_transport(&comm->ranks[a], &comm->ranks[b]);
}

const struct transport *comm_detour(const struct ring_comm *comm)
{
    for (int a = 0; a < comm->nranks; a++)
        for (int b = 0; b < a; b++) {
            const struct transport *transport = device_transport_between(a, b, comm);
            if (transport != &transport_cuda_ipc) return transport;
        }
    return NULL;
}

bool comm_reads_memory(int a, int b, const struct ring_comm *comm)
{
    return device_transport_between(a, b, comm) == &transport_cuda_ipc;
}

static const struct transport *edge_transport(int channel, int peer, const struct ring_comm *comm)
{
    bool of_device = channel >= comm_device_channel(comm);
    return (of_device ? device_transport_between : comm_transport_between)(comm->rank, peer, comm);
}

static bool shares_one_memory(const struct ring_comm *comm)
{
    for (int a = 0; a < comm->nranks; a++)
        for (int b = 0; b < a; b++)
            if (!comm_transport_between(a, b, comm)->peer_reads_slots) return false;
    return true;
}

/* Before anything is known of others. */
static bool may_have_windows(const struct ring_comm *comm)
{
    const char *why;
    bool shares = comm->transport == NULL ? transport_shm.available(&why, comm->device) : comm->transport == &transport_shm;
    return comm->nranks > 1 && comm->config.window_bytes != WINDOW_NONE && shares;
}

/* From what all ranks have said, so alike on all. */
static bool can_have_windows(const struct ring_comm *comm)
{
    if (comm->nranks < 2 || comm->nranks > WINDOW_MOST_RANKS || comm->config.window_bytes == WINDOW_NONE) return false;
    if (comm->host_ranks > 1 || comm->orders_differ) return false; /* hosts that are pretended: windows add in the order of one ring */
    for (int r = 0; r < comm->nranks; r++) {
        if (comm_transport_between(0, r, comm) != &transport_shm || comm->books[r].pid == 0) return false;
    }
    return true;
}

static void choose_board(struct ring_comm *comm)
{
    bool all = comm->has_windows && board_serves(comm->nranks);
    for (int r = 0; r < comm->nranks; r++) all = all && comm->boards[r] != 0;
    if (all) return;
    board_close(comm->board);
    comm->board = NULL;
}

void comm_draw_rings(struct ring_comm *comm)
{
    comm->one_memory = shares_one_memory(comm);
    comm->on_loopback = !comm->one_memory && ranks_beside(comm->rank, comm) == comm->nranks;
    struct topology topology = comm_topology(comm);
    for (int channel = 0; channel < comm->config.channels; channel++) {
        int *order = comm->order + channel * comm->nranks;
        topology_ring_order(order, &topology, channel);
        for (int p = 0; p < comm->nranks; p++)
            if (order[p] == comm->rank) comm->position[channel] = p;
        if (memcmp(order, comm->order, (size_t)comm->nranks * sizeof *order) != 0) comm->orders_differ = true;
    }
    comm->has_windows = can_have_windows(comm);
    comm->has_copies = comm->has_windows && memchr(comm->may_copy, 0, (size_t)comm->nranks) == NULL;
    choose_board(comm);
}

/* The channel's NIC; edges that are on no ring take the nearest, in two levels all do. -1: topology knows none. */
static int nic_of(int channel, const struct ring_comm *comm)
{
    struct topology topology = comm_topology(comm);
    bool on_ring = channel < comm->config.channels;
    if (on_ring && comm->host_ranks > 1) return topology_own_nic(&topology, comm->rank, channel);
    return topology_nic(&topology, comm->rank, on_ring ? channel : -1);
}

static void tell_ring(const struct ring_comm *comm, int channel)
{
    char text[256] = "", by[32] = "";
    size_t used = 0;
    for (int p = 0; p < comm->nranks && used < sizeof text; p++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %d", comm_rank_at(comm, channel, p));
    int nic = nic_of(channel, comm);
    if (nic >= 0) snprintf(by, sizeof by, ", NIC %s", comm->names.nics[nic]);
    LOG_INFO("ring", "channel %d: ring%s, next by %s%s", channel, text, ring_comm_transport(comm), by);
}

void comm_tell_rings(const struct ring_comm *comm)
{
    char text[64];
    struct topology topology = comm_topology(comm);
    if (comm->rank != 0) return;
    for (int channel = 0; channel < comm->config.channels; channel++) tell_ring(comm, channel);
    LOG_INFO("ring", "%s: %s", topology_shape_text(text, topology_shape(&topology)),
        comm->host_ranks > 1 ? "sums in two levels, inside each host and then between hosts" : "sums round the ring");
    LOG_INFO("ring", "RINGZERO_TRANSPORT %s, RINGZERO_SLOT_BYTES %zu (of a ring %zu), RINGZERO_SLOTS %llu, RINGZERO_CHANNELS %d, "
        "RINGZERO_EXCHANGE_BYTES %zu, RINGZERO_STAR_BYTES %zu (%s), RINGZERO_WINDOW_BYTES %zu (%s), RINGZERO_CHECK_ROOTS %zu, "
        "RINGZERO_HIERARCHY %s, RINGZERO_TIMEOUT_MS %d",
        comm->config.transport, comm->config.slot_bytes, comm_ring_slot_bytes(comm),
        (unsigned long long)comm->config.slot_count, comm->config.channels,
        comm->config.exchange_bytes, comm->config.star_bytes == COMM_NO_STAR ? 0 : comm->config.star_bytes,
        exchange_has_star(comm) ? "in use" : "not in use", comm->config.window_bytes,
        !comm->has_windows ? "not in use" : comm->has_copies ? "in use, on any memory" : "in use",
        comm->config.check_roots_bytes, hierarchy_name(comm->config.hierarchy), comm->config.timeout_ms);
}

/* The caller's text need not outlive the call; who shrinks the communicator needs it again. */
static enum status keep_host(struct ring_comm *comm)
{
    const char *given = comm->config.host;
    comm->config.host = NULL;
    if (given != NULL) comm->host = strdup(given);
    return given == NULL || comm->host != NULL ? STATUS_OK : FAIL(STATUS_SYSTEM, "no memory for the name of a host");
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
    comm->premul = 1.0;
    comm->bootstrap = bootstrap;
    comm->device = device;
    comm->rank = bootstrap_rank(bootstrap);
    comm->nranks = bootstrap_nranks(bootstrap);
    TRY_GOTO(tunables_resolve(&comm->config, &comm->transport, config, bootstrap_timeout_ms(bootstrap)));
    TRY_GOTO(keep_host(comm));
    TRY_GOTO(comm_allocate(comm));
    TRY_GOTO(progress_open(&comm->progress));
    all = calloc((size_t)comm->nranks, sizeof *all);
    if (all == NULL) {
        status = FAIL(STATUS_SYSTEM, "no memory for %d introductions", comm->nranks);
        goto fail;
    }
    if (may_have_windows(comm)) TRY_GOTO(region_book_open(&comm->book));
    if (comm->book != NULL && board_serves(comm->nranks))
        TRY_GOTO(board_open(&comm->board, EXCHANGE_LINE_BYTES, comm->book, device));
    TRY_GOTO(introduce(comm, all));
    free(all);
    all = NULL;
    if (ranks_beside(comm->rank, comm) > sysconf(_SC_NPROCESSORS_ONLN)) progress_share_cores(comm->progress);
    comm_draw_rings(comm);
    if (comm->config.exchange_bytes == THRESHOLD_MEASURE) TRY_GOTO(threshold_measure(comm));
    comm_tell_rings(comm);
    comm->opened = true;
    *out = comm;
    return STATUS_OK;
fail:
    bootstrap_abort(status_text(), bootstrap); /* the others must not wait for this rank */
    free(all);
    ring_comm_close(comm);
    return status;
}

/* Ranks of a part of the job meet by mailboxes: all tell the first, and the first tells all. */
static enum status meet_members(const struct ring_comm *comm)
{
    uint64_t key = (comm->id | COMM_MAILBOX_LEAVE) * 2;
    int64_t deadline = clock_ns() + clock_ms_to_ns(comm->config.timeout_ms);
    bool first = comm->rank == 0;
    char here = 1;
    if (!first) TRY(bootstrap_post(comm_name(comm, 0), key, &here, sizeof here, comm->bootstrap));
    for (int r = first ? 1 : 0; r < (first ? comm->nranks : 1); r++) {
        bool found = false;
        for (;;) {
            TRY(bootstrap_take(&here, sizeof here, &found, comm_name(comm, r), key, comm->bootstrap));
            if (found) break;
            if (clock_ns() > deadline)
                return FAIL(STATUS_TIMEOUT, "rank %d has not closed the communicator within %d ms", comm_name(comm, r),
                    comm->config.timeout_ms);
            usleep(200);
        }
    }
    for (int r = 1; r < comm->nranks && first; r++)
        TRY(bootstrap_post(comm_name(comm, r), key, &here, sizeof here, comm->bootstrap));
    return STATUS_OK;
}

/* Nobody takes its edges down while a neighbour may still read from them. Who cannot wait says first that
 * what the others have yet to read is taken back. */
static void wait_for_all(struct ring_comm *comm)
{
    if (!comm->opened) return;
    bool can_wait = !comm->failed && !bootstrap_failed(comm->bootstrap);
    bool whole_job = comm->nranks == bootstrap_nranks(comm->bootstrap);
    enum status status = STATUS_PEER;
    if (can_wait) status = whole_job ? bootstrap_barrier(comm->bootstrap) : meet_members(comm);
    if (status == STATUS_OK) return;
    if (can_wait) LOG_WARN("ring", "closing alone: %s", status_text());
    if (comm->book != NULL) region_book_give_up(comm->book);
}

void ring_comm_close(struct ring_comm *comm)
{
    if (comm == NULL) return;
    reach_let_go(comm);
    wait_for_all(comm);
    reach_close(comm);
    exchange_forget(comm);
    kernel_forget(comm);
    flights_close(comm);
    for (size_t i = 0; comm->edges != NULL && i < edge_count(comm); i++) edge_close(comm->edges[i]);
    for (int r = 0; comm->views != NULL && r < comm->nranks; r++) region_view_close(comm->views[r]);
    window_stage_close(comm);
    board_close(comm->board);
    region_book_close(comm->book);
    progress_close(comm->progress);
    pthread_mutex_destroy(&comm->lock);
    free(comm->host);
    free(comm->edges);
    free(comm->position);
    free(comm->order);
    free(comm->members);
    free(comm->books);
    free(comm->boards);
    free(comm->may_copy);
    free(comm->views);
    free(comm->ranks);
    free(comm->devices);
    free(comm);
}

/* ---- edges ---- */

/* Where topology knows no NICs they are taken in turn: by channels, and in two levels by the ranks of a host too. */
static int rail_of(int channel, int peer, const struct ring_comm *comm)
{
    const struct transport *transport = edge_transport(channel, peer, comm);
    if (channel >= comm_device_channel(comm)) channel -= comm_device_channel(comm);
    int turn = channel;
    if (comm->host_ranks > 1 && channel < comm->config.channels) turn += comm->position[channel] % comm->host_ranks;
    if (transport != &transport_verbs) return turn;
    int nic = nic_of(channel, comm);
    int rail = nic < 0 ? -1 : nic_rail(comm->names.nics[nic], comm->device);
    return rail < 0 ? turn : rail;
}

/* Exchanges have edges between all pairs of ranks: a few small slots, and lines. */
static struct edge_config edge_config_of(int channel, enum edge_side side, int peer, const struct ring_comm *comm)
{
    struct edge_config config = {
        .side = side,
        .self = comm_name(comm, comm->rank),
        .peer = comm_name(comm, peer),
        .key = comm->id + (uint64_t)channel,
        .slot_bytes = comm->config.slot_bytes,
        .slot_count = comm->config.slot_count,
        .start = comm->config.start,
        .rail = rail_of(channel, peer, comm),
        .bootstrap = comm->bootstrap,
        .device = comm->device,
        .bell = progress_bell(comm->progress),
    };
    if (channel < comm->config.channels) config.slot_bytes = comm_ring_slot_bytes(comm);
    if (comm->kernels && channel >= comm_device_channel(comm) && comm->config.cuda_line_bytes != KERNEL_NO_LINES)
        config.flagged_bytes = kernel_flagged_bytes(comm->config.cuda_line_bytes);
    if (channel == comm_chain_channel(comm)) {
        config.slot_bytes = EXCHANGE_CHAIN_SLOT_BYTES;
        config.slot_count = EXCHANGE_CHAIN_SLOTS;
    }
    if (channel != comm_exchange_channel(comm)) return config;
    enum edge_side other = side == EDGE_PRODUCER ? EDGE_CONSUMER : EDGE_PRODUCER;
    config.shared = peer != comm->rank; /* what is small is mostly answered */
    config.twin = *comm_edge_place(channel, other, peer, comm);
    config.slot_bytes = exchange_slot_bytes(comm);
    config.slot_count = exchange_slot_count(comm);
    config.line_bytes = EXCHANGE_LINE_BYTES;
    return config;
}

enum status comm_edge(struct edge **edge, int channel, enum edge_side side, int peer, struct ring_comm *comm)
{
    struct edge **place = comm_edge_place(channel, side, peer, comm);
    if (*place == NULL) {
        struct edge_config config = edge_config_of(channel, side, peer, comm);
        TRY(edge_open(place, edge_transport(channel, peer, comm), &config));
    }
    *edge = *place;
    return STATUS_OK;
}

/* ---- what a communicator says of itself ---- */

int ring_comm_rank(const struct ring_comm *comm) { return comm->rank; }
int ring_comm_nranks(const struct ring_comm *comm) { return comm->nranks; }
const struct ring_config *ring_comm_config(const struct ring_comm *comm) { return &comm->config; }
size_t ring_comm_slot_bytes(const struct ring_comm *comm) { return comm_ring_slot_bytes(comm); }

const int *ring_comm_order(const struct ring_comm *comm, int channel)
{
    return comm->order + (size_t)channel * (size_t)comm->nranks;
}

int ring_comm_host(const struct ring_comm *comm, int rank)
{
    int first = 0;
    while (comm->ranks[first].host != comm->ranks[rank].host) first++;
    return first;
}

int ring_comm_host_ranks(const struct ring_comm *comm) { return comm->host_ranks; }

const char *ring_comm_transport(const struct ring_comm *comm)
{
    if (comm->nranks == 1) return "self";
    int next = comm_rank_at(comm, 0, (comm->position[0] + 1) % comm->nranks);
    return edge_transport(comm_edge_channel(comm, 0, comm->all_cuda), next, comm)->name;
}

static uint64_t counter_read(const uint64_t *counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }

struct ring_counters ring_comm_counters(const struct ring_comm *comm)
{
    struct ring_counters copy;
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        copy.operations[c] = counter_read(&comm->counters.operations[c]) + counter_read(&comm->small.operations[c]);
        copy.sent_bytes[c] = counter_read(&comm->counters.sent_bytes[c]) + counter_read(&comm->small.sent_bytes[c]);
        copy.border_bytes[c] = counter_read(&comm->counters.border_bytes[c]) + counter_read(&comm->small.border_bytes[c]);
        copy.received_bytes[c] =
            counter_read(&comm->counters.received_bytes[c]) + counter_read(&comm->small.received_bytes[c]);
    }
    copy.busy_ns = counter_read(&comm->counters.busy_ns);
    kernel_count_replays(&copy, (struct ring_comm *)(uintptr_t)comm); /* its lock */
    return copy;
}
