/* roll_call: see roll_call.h. Messages go over the exchange's edges, which operations of a communicator use one after another. */
#include "ring/roll_call.h"

#include <assert.h>

#include "ring/comm.h"
#include "ring/exchange.h"

bool roll_call_wanted(const struct operation *operation)
{
    enum collective collective = operation->collective;
    bool pair = collective == COLLECTIVE_SEND || collective == COLLECTIVE_RECV;
    if (!collective_is_rooted(collective) || pair || operation->comm->nranks < 2) return false;
    size_t from_bytes = operation->comm->config.check_roots_bytes;
    return from_bytes <= 1 || operation->count * dtype_bytes(operation->reduction.dtype) >= from_bytes;
}

int roll_call_rounds(int nranks)
{
    int rounds = 0;
    while (1LL << rounds < nranks) rounds++;
    return rounds;
}

/* Whom it tells in a round; and, backwards, whom it hears. */
static int peer(const struct operation *operation, int round, bool backwards)
{
    int n = operation->comm->nranks, hop = 1 << round;
    return (operation->comm->rank + (backwards ? n - hop : hop)) % n;
}

static enum status open_edge(struct operation *operation, enum edge_side side, int other)
{
    struct ring_comm *comm = operation->comm;
    TRY(comm_edge(&operation->edges[operation->edge_count], comm_exchange_channel(comm), side, other, comm));
    operation->edge_count++;
    return STATUS_OK;
}

enum status roll_call_begin(struct operation *operation)
{
    int rounds = roll_call_rounds(operation->comm->nranks);
    assert(rounds <= ROLL_CALL_MOST_ROUNDS);
    for (int round = 0; round < rounds; round++) {
        TRY(open_edge(operation, EDGE_PRODUCER, peer(operation, round, false)));
        TRY(open_edge(operation, EDGE_CONSUMER, peer(operation, round, true)));
    }
    operation->roll_call = (struct roll_call){.rounds = rounds};
    return STATUS_OK;
}

static struct edge *edge_of(const struct operation *operation, enum edge_side side)
{
    const struct ring_comm *comm = operation->comm;
    int other = peer(operation, operation->roll_call.round, side == EDGE_CONSUMER);
    return *comm_edge_place(comm_exchange_channel(comm), side, other, comm);
}

enum status roll_call_advance(struct operation *operation, bool *moved, bool *done)
{
    struct roll_call *roll = &operation->roll_call;
    *done = false;
    while (roll->round < roll->rounds) {
        struct edge *next = edge_of(operation, EDGE_PRODUCER), *before = edge_of(operation, EDGE_CONSUMER);
        if (!roll->told) {
            if (!exchange_tell(next, operation->tag)) return STATUS_OK;
            roll->told = *moved = true;
            TRY(edge_progress(next, moved));
        }
        uint64_t tag;
        if (!exchange_hear(&tag, before)) return STATUS_OK;
        if (tag != operation->tag) return operation_mismatch(operation, roll_call_waits_for(operation), tag);
        roll->round++;
        roll->told = false;
        *moved = true;
        TRY(edge_progress(before, moved));
    }
    *done = true;
    return STATUS_OK;
}

int roll_call_waits_for(const struct operation *operation)
{
    const struct roll_call *roll = &operation->roll_call;
    return roll->round < roll->rounds ? peer(operation, roll->round, true) : -1;
}
