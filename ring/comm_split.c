/* comm_split: communicators made of others: the parts of one, and the survivors of one.
 *
 *   split    colours and keys go round by an all-gather; each colour's ranks become a communicator that shares engine, regions
 *            and edges' names of their parent's
 *   shrink   the job without its dead is a new job, and has a new communicator
 */
#include "ring/comm_open.h"

#include <stdlib.h>
#include <string.h>

#include "ring/board.h"
#include "ring/exchange_plan.h"
#include "ring/threshold.h"
#include "verbs/plural.h"

/* ---- splitting ---- */

struct split_word {
    int64_t color, key;
    uint64_t board; /* of this rank, for the part that it will be in; 0: none */
};

/* Fills members and rank of the part that this rank's color names, sorted by key, then by rank in the parent. */
static void choose_members(struct ring_comm *comm, const struct split_word *words, const struct ring_comm *parent)
{
    int64_t color = words[parent->rank].color;
    comm->nranks = 0;
    for (int r = 0; r < parent->nranks; r++) {
        if (words[r].color != color) continue;
        int place = comm->nranks++;
        for (; place > 0 && words[comm->members[place - 1]].key > words[r].key; place--)
            comm->members[place] = comm->members[place - 1];
        comm->members[place] = r;
    }
    for (int r = 0; r < comm->nranks; r++) {
        if (comm->members[r] == parent->rank) comm->rank = r;
        comm->ranks[r] = parent->ranks[comm->members[r]];
        comm->books[r] = parent->books[comm->members[r]];
        comm->boards[r] = words[comm->members[r]].board;
        comm->may_copy[r] = parent->may_copy[comm->members[r]];
        if (comm->devices != NULL) comm->devices[r] = parent->devices[comm->members[r]];
        comm->members[r] = parent->members[comm->members[r]];
    }
}

/* The board is the part's from here on. */
static enum status split_open(struct ring_comm **out, const struct split_word *words,
    struct board *board, const struct ring_comm *parent)
{
    struct ring_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        board_close(board);
        return FAIL(STATUS_SYSTEM, "no memory for a communicator");
    }
    comm->board = board;
    pthread_mutex_init(&comm->lock, NULL);
    comm->bootstrap = parent->bootstrap;
    comm->device = parent->device;
    comm->config = parent->config;
    comm->exchange_measured = parent->exchange_measured;
    comm->star_is_auto = parent->star_is_auto;
    memcpy(comm->exchange_most, parent->exchange_most, sizeof comm->exchange_most);
    comm->transport = parent->transport;
    comm->all_cuda = parent->all_cuda;
    comm->kernels = parent->kernels;
    comm->premul = 1.0;
    comm->reduce_dtype = parent->reduce_dtype;
    comm->progress = progress_share(parent->progress);
    comm->book = region_book_share(parent->book);
    comm->names = parent->names;
    comm->nranks = parent->nranks; /* room for all */
    enum status status = comm_allocate(comm);
    if (parent->devices != NULL) comm->devices = calloc((size_t)parent->nranks, sizeof *comm->devices);
    if (status == STATUS_OK && parent->devices != NULL && comm->devices == NULL)
        status = FAIL(STATUS_SYSTEM, "no memory for the devices of %d ranks", parent->nranks);
    if (status == STATUS_OK) choose_members(comm, words, parent);
    if (status == STATUS_OK) status = comm_choose_levels(comm, false);
    /* Unlike any other of the job: the parent's, this split's, this part's. */
    uint64_t mixed = (parent->id ^ (parent->splits * 0x9e3779b97f4a7c15u)) + (uint64_t)words[parent->rank].color;
    mixed = (mixed ^ mixed >> 31) * 0xbf58476d1ce4e5b9u;
    comm->id = (mixed ^ mixed >> 29) << 8;
    if (status != STATUS_OK) {
        ring_comm_close(comm);
        return status;
    }
    comm_draw_rings(comm);
    comm_tell_rings(comm);
    comm->opened = true;
    *out = comm;
    return STATUS_OK;
}

enum status ring_comm_split(struct ring_comm **comm, int color, int key, struct ring_comm *parent)
{
    *comm = NULL;
    struct board *board = NULL;
    if (color >= 0 && parent->book != NULL && parent->nranks > 2) /* how many its part has is not known yet */
        TRY(board_open(&board, EXCHANGE_LINE_BYTES, parent->book, parent->device));
    struct split_word mine = {color, key, board_reference(board)};
    struct split_word *words = calloc((size_t)parent->nranks, sizeof *words);
    if (words == NULL) {
        board_close(board);
        return FAIL(STATUS_SYSTEM, "no memory for the colors of %d ranks", parent->nranks);
    }
    enum status status = ring_all_gather(span_host(words, (size_t)parent->nranks * sizeof *words),
        span_host(&mine, sizeof mine), sizeof mine / sizeof(int32_t), DTYPE_INT32, parent, NULL);
    parent->splits++;
    if (status == STATUS_OK && color >= 0) status = split_open(comm, words, board, parent);
    else board_close(board);
    free(words);
    return status;
}

/* ---- shrinking ---- */

static bool peer_died(const struct bootstrap *bootstrap)
{
    return bootstrap_failed(bootstrap) && bootstrap_check(NULL, bootstrap) == STATUS_PEER;
}

/* A death while the new communicator opens shrinks the new job again; each turn has fewer ranks. */
static enum status open_survivors(struct ring_comm **comm, struct bootstrap **bootstrap, const struct ring_config *config,
    struct bootstrap *failed, struct device *device)
{
    enum status status = bootstrap_shrink(bootstrap, failed);
    while (status == STATUS_OK) {
        status = ring_comm_open(comm, config, *bootstrap, device);
        if (status == STATUS_OK) return STATUS_OK;
        struct bootstrap *again = NULL;
        if (peer_died(*bootstrap)) status = bootstrap_shrink(&again, *bootstrap);
        bootstrap_close(*bootstrap);
        *bootstrap = again;
    }
    return status;
}

enum status ring_comm_shrink(struct ring_comm **comm, struct bootstrap **bootstrap, struct ring_comm *old)
{
    *comm = NULL;
    *bootstrap = NULL;
    if (old->nranks != bootstrap_nranks(old->bootstrap))
        return FAIL(STATUS_INVALID, "a part of %d of the job's %d ranks cannot be shrunk: shrink the communicator of all, and split "
            "it again", old->nranks, bootstrap_nranks(old->bootstrap));
    if (!bootstrap_failed(old->bootstrap))
        return FAIL(STATUS_INVALID, "the communicator of %d rank%s has not failed: expected a death or an abort before",
            old->nranks, PLURAL(old->nranks));
    struct ring_config config = old->config;
    if (old->exchange_measured) config.exchange_bytes = THRESHOLD_MEASURE; /* of fewer ranks, anew */
    if (old->star_is_auto) config.star_bytes = COMM_STAR_AUTO;
    if (config.hierarchy == HIERARCHY_TWO_LEVEL) config.hierarchy = HIERARCHY_AUTO; /* who is left may not fill their hosts */
    char *host = old->host;
    config.host = host;
    old->host = NULL; /* it is read once more */
    struct bootstrap *failed = old->bootstrap;
    struct device *device = old->device;
    double premul = old->premul;
    enum reduce_dtype reduce_dtype = old->reduce_dtype;
    ring_comm_close(old);
    enum status status = open_survivors(comm, bootstrap, &config, failed, device);
    free(host);
    if (status != STATUS_OK) return status;
    (*comm)->premul = premul;
    (*comm)->reduce_dtype = reduce_dtype;
    return STATUS_OK;
}
