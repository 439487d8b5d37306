/* path: see path.h. */
#include "ring/path.h"

#include <stdlib.h>

#include "ring/comm_open.h"
#include "ring/exchange_plan.h"
#include "ring/path_write.h"
#include "ring/threshold.h"
#include "ring/tunables.h"
#include "ring/window.h"
#include "ring/window_part.h"

#define TIMEOUT_MS 30000 /* of nothing: nobody waits */

/* Its rank is that of whose plan is looked at. */
struct path_comm {
    struct ring_comm *comm;
};

const char *path_kind_name(enum path_kind kind)
{
    static const char *const names[PATH_KIND_COUNT] = {
        "plan", "hops", "rounds", "star", "chain", "windows"};
    return names[kind];
}

/* ---- a communicator on paper ---- */

/* As every rank would have told of itself, where all works that may. */
static void fill_ranks(struct ring_comm *comm, int host_ranks)
{
    for (int r = 0; r < comm->nranks; r++) {
        comm->ranks[r] = (struct topology_rank){.host = 1 + (uint64_t)(r / host_ranks),
            .shm_works = 1,
            .package = -1,
            .numa = -1,
            .cache = -1,
            .core = -1};
        comm->books[r].pid = 1;
        comm->may_copy[r] = 1;
    }
}

static enum status describe(struct ring_comm *comm, const struct path_place *place)
{
    int host_ranks = place->nranks / place->hosts;
    comm->nranks = place->nranks;
    comm->has_memory = place->own_memory;
    TRY(tunables_resolve(&comm->config, &comm->transport, &place->config, TIMEOUT_MS));
    if (comm->config.exchange_bytes == THRESHOLD_MEASURE)
        return FAIL(STATUS_INVALID, "RINGZERO_EXCHANGE_BYTES is measure, expected a number: what "
                                    "is found is known when ranks "
                                    "run (--log info tells it)");
    TRY(comm_allocate(comm));
    fill_ranks(comm, host_ranks);
    comm_choose_star(comm, host_ranks > place->cores);
    TRY(comm_choose_levels(comm, comm->config.hierarchy == HIERARCHY_TWO_LEVEL));
    comm_draw_rings(comm);
    return STATUS_OK;
}

enum status path_comm_open(struct path_comm **out, const struct path_place *place)
{
    *out = NULL;
    struct path_comm *described = calloc(1, sizeof *described);
    struct ring_comm *comm = calloc(1, sizeof *comm);
    if (described == NULL || comm == NULL) {
        free(described);
        free(comm);
        return FAIL(STATUS_SYSTEM, "no memory to describe a communicator");
    }
    pthread_mutex_init(&comm->lock, NULL);
    described->comm = comm;
    enum status status = describe(comm, place);
    if (status == STATUS_OK) *out = described;
    else path_comm_close(described);
    return status;
}

void path_comm_close(struct path_comm *described)
{
    if (described == NULL) return;
    ring_comm_close(described->comm);
    free(described);
}

int path_host_ranks(const struct path_comm *described) { return described->comm->host_ranks; }

const char *path_transport(int a, int b, const struct path_comm *described)
{
    return comm_transport_between(a, b, described->comm)->name;
}

/* ---- which way ---- */

static enum path_kind kind_of(const struct operation *operation, const struct ring_call *call)
{
    static const enum path_kind kinds[] = {[EXCHANGE_HOPS] = PATH_HOPS,
        [EXCHANGE_ROUNDS] = PATH_ROUNDS,
        [EXCHANGE_STAR] = PATH_STAR,
        [EXCHANGE_CHAIN] = PATH_CHAIN};
    if (call->grouped || call->on_device) return PATH_PLAN;
    if (exchange_fits(operation)) return kinds[exchange_shape(operation)];
    return window_fits(operation) ? PATH_WINDOWS : PATH_PLAN;
}

enum path_kind path_kind_of(const struct ring_call *call, struct path_comm *described)
{
    struct operation operation = operation_of_call(call, NULL, described->comm);
    return kind_of(&operation, call);
}

uint64_t path_sent_bytes(const struct ring_call *call, int rank, struct path_comm *described)
{
    return ring_predict_sent_bytes(call, described->comm->nranks, rank, described->comm);
}

/* ---- lists ---- */

/* Makes room for one more of `bytes` each; NULL: there is none. */
static void *grow(void *list, int count, size_t bytes)
{
    bool is_full = count == 0 || (count & (count - 1)) == 0; /* room is the next power of two */
    return is_full ? realloc(list, (count == 0 ? 1 : 2 * (size_t)count) * bytes) : list;
}

static enum status no_room(void)
{
    return FAIL(STATUS_SYSTEM, "no memory for the messages of a path: choose fewer ranks");
}

enum status path_add_message(struct path *path, const struct path_message *message)
{
    struct path_message *more = grow(path->messages, path->message_count, sizeof *more);
    if (more == NULL) return no_room();
    path->messages = more;
    more[path->message_count] = *message;
    more[path->message_count++].first_block = path->block_count;
    return STATUS_OK;
}

enum status path_add_block(struct path *path, struct path_block block)
{
    struct path_block *more = grow(path->blocks, path->block_count, sizeof *more);
    if (more == NULL) return no_room();
    path->blocks = more;
    more[path->block_count++] = block;
    path->messages[path->message_count - 1].blocks++;
    return STATUS_OK;
}

enum status path_add_sum(struct path *path, struct path_sum sum)
{
    struct path_sum *more = grow(path->sums, path->sum_count, sizeof *more);
    if (more == NULL) return no_room();
    path->sums = more;
    more[path->sum_count++] = sum;
    return STATUS_OK;
}

void path_free(struct path *path)
{
    free(path->messages);
    free(path->blocks);
    free(path->sums);
    *path = (struct path){0};
}

/* ---- windows ---- */

static enum status add_reading(
    struct path *path, int turn, int from, int to, size_t bytes, struct path_block block)
{
    const struct path_message message = {.turn = turn, .from = from, .to = to, .bytes = bytes};
    if (bytes == 0) return STATUS_OK;
    TRY(path_add_message(path, &message));
    return path_add_block(path, block);
}

/* First inputs, which their readers add; then results. */
static enum status follow_windows(struct path *path, const struct operation *operation)
{
    int n = operation->comm->nranks;
    bool one_chunk = collective_chunks(operation->collective, n) == 1;
    for (int from = 0; from < n && window_adds(operation); from++)
        for (int i = 1; i < n; i++) {
            int to = (from + i) % n;
            const struct path_block input = {(short)from, (short)to};
            TRY(add_reading(path, 0, from, to, window_input_bytes(to, operation), input));
        }
    for (int rank = 0; rank < n && window_adds(operation); rank++) {
        const struct path_sum sum = {0, rank, (short)rank};
        if (window_chunk_bytes(rank, operation) > 0) TRY(path_add_sum(path, sum));
    }
    int turn = window_adds(operation);
    for (int from = 0; from < n && window_has_results(operation); from++)
        for (int i = 1; i < n; i++) {
            const struct path_block result = {-1, (short)(one_chunk ? -1 : from)};
            size_t bytes = window_result_bytes(from, operation);
            TRY(add_reading(path, turn, from, (from + i) % n, bytes, result));
        }
    path->turns = turn + window_has_results(operation);
    return STATUS_OK;
}

/* ---- all of it ---- */

static void mark_lines(struct path *path, const struct ring_comm *comm)
{
    for (int m = 0; m < path->message_count; m++) {
        struct path_message *message = &path->messages[m];
        const struct transport *transport =
            comm_transport_between(message->from, message->to, comm);
        message->by_lines = transport->peer_reads_slots && message->bytes <= EXCHANGE_FEW_BYTES;
    }
}

enum status path_make(struct path *path, const struct ring_call *call, struct path_comm *described)
{
    struct operation operation = operation_of_call(call, NULL, described->comm);
    *path = (struct path){.kind = kind_of(&operation, call)};
    if (path->kind == PATH_PLAN) return STATUS_OK;
    if (path->kind == PATH_WINDOWS) return follow_windows(path, &operation);
    TRY(path_follow_exchange(path, &operation));
    mark_lines(path, described->comm);
    return STATUS_OK;
}
