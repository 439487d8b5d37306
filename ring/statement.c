/* statement: see statement.h. */
#include "ring/statement.h"

#include <string.h>

#include "ring/comm.h"

struct statement {
    uint64_t sequence;             /* of the collective in hand */
    uint64_t tags[STATEMENT_TAGS]; /* of collective s: tags[s mod STATEMENT_TAGS] */
};

_Static_assert(sizeof ((struct ring_comm *)0)->tags == sizeof ((struct statement *)0)->tags, "one place a collective");

static uint64_t mailbox(const struct ring_comm *comm) { return (comm->id | COMM_MAILBOX_STATEMENT) * 2; }

static int neighbour(const struct ring_comm *comm, int step)
{
    return comm_rank_at(comm, 0, (comm->position[0] + comm->nranks + step) % comm->nranks);
}

static bool is_collective(const struct operation *operation)
{
    return operation->collective != COLLECTIVE_SEND && operation->collective != COLLECTIVE_RECV;
}

void statement_remember(const struct operation *operation)
{
    if (is_collective(operation)) operation->comm->tags[operation->sequence % STATEMENT_TAGS] = operation->tag;
}

enum status statement_make(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    if (!is_collective(operation) || comm->nranks < 2) return STATUS_OK;
    struct statement mine = {.sequence = operation->sequence};
    memcpy(mine.tags, comm->tags, sizeof mine.tags);
    TRY(bootstrap_post_anew(comm_name(comm, neighbour(comm, 1)), mailbox(comm), &mine, sizeof mine, comm->bootstrap));
    if (comm->nranks == 2) return STATUS_OK;
    return bootstrap_post_anew(comm_name(comm, neighbour(comm, -1)), mailbox(comm), &mine, sizeof mine, comm->bootstrap);
}

/* Whether a place of the tags still, or already, is that of collective s: operations of a group begin out of order. */
static bool is_of(uint64_t tag, uint64_t s) { return (tag & 0xffff) == (s & 0xffff); }

/* A neighbour that is further on still knows what it called when it was where this rank is; one that is behind has yet to say. */
static enum status compare_with(const struct operation *operation, int peer)
{
    const struct ring_comm *comm = operation->comm;
    for (;;) {
        struct statement theirs;
        bool found = false;
        TRY(bootstrap_take(&theirs, sizeof theirs, &found, comm_name(comm, peer), mailbox(comm), comm->bootstrap));
        if (!found) return STATUS_OK;
        uint64_t first = theirs.sequence < STATEMENT_TAGS ? 1 : theirs.sequence - STATEMENT_TAGS + 1;
        for (uint64_t s = first; s <= theirs.sequence && s <= operation->sequence; s++) {
            uint64_t mine = comm->tags[s % STATEMENT_TAGS], other = theirs.tags[s % STATEMENT_TAGS];
            if (is_of(mine, s) && is_of(other, s) && mine != other) return operation_mismatch(operation, peer, other);
        }
    }
}

enum status statement_compare(const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    if (!is_collective(operation) || comm->nranks < 2) return STATUS_OK;
    TRY(compare_with(operation, neighbour(comm, 1)));
    return compare_with(operation, neighbour(comm, -1));
}
