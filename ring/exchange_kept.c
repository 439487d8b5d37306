/* exchange_kept: see exchange_kept.h. A plan's place follows from what it is for; whoever comes to a taken one takes it over. */
#include "ring/exchange_kept.h"

#include <stdlib.h>

#include "ring/board.h"
#include "ring/comm.h"

#define KEPT_PLANS 8 /* a power of two */

struct exchange_store {
    struct exchange_plan
        *plans[KEPT_PLANS]; /* owned, NULL until used; placed by what they are for */
    struct span stage;
};

static struct exchange_plan **place_of(enum collective collective,
    const struct reduction *reduction, size_t count, const struct exchange_store *store)
{
    size_t mixed = count * 0x9e3779b97f4a7c15u >> 40;
    mixed += (size_t)collective + (size_t)reduction->redop * 3 + (size_t)reduction->dtype * 5;
    return (struct exchange_plan **)(uintptr_t)&store->plans[mixed % KEPT_PLANS];
}

struct exchange_plan *exchange_recall(enum collective collective, const struct reduction *reduction,
    int root, size_t count, size_t stride, const struct ring_comm *comm)
{
    if (comm->exchanges == NULL) return NULL;
    struct exchange_plan *plan = *place_of(collective, reduction, count, comm->exchanges);
    bool same = plan != NULL && plan->ready && plan->collective == collective &&
                plan->count == count && plan->reduction.dtype == reduction->dtype &&
                plan->reduction.redop == reduction->redop && plan->root == root &&
                plan->stride == stride && plan->reduction.wide == reduction->wide;
    return same ? plan : NULL;
}

/* ---- a new one ---- */

/* A run of bytes that can leave from where it is: in a star nothing comes back before all of it has
 * left; in rounds something may, to the same place. */
static bool can_lend(const struct exchange_plan *plan, const struct exchange_message *message)
{
    return plan->shape == EXCHANGE_STAR && message->edge->transport->reads_address &&
           message->pieces == 1 && message->bytes > EXCHANGE_FEW_BYTES;
}

/* What everyone is told goes by the board of who tells it. Both sides choose alike: by the round and
 * what that rank has to say. */
static enum status choose_lines(struct exchange_message *message, bool to_all, bool sends,
    const struct exchange_plan *plan, struct ring_comm *comm)
{
    int peer = message->peer;
    if (!exchange_has_lines(message->edge) || message->bytes > EXCHANGE_FEW_BYTES) return STATUS_OK;
    message->lines = &message->edge->lines;
    if (!to_all || plan->board == NULL) return STATUS_OK;
    TRY(board_attach(plan->board, peer, comm->rank, comm->boards[peer], &comm->books[peer]));
    message->lines = sends ? board_own(plan->board) : board_read(plan->board, peer);
    return STATUS_OK;
}

static enum status open_edges(struct exchange_plan *plan, struct ring_comm *comm)
{
    int channel =
        plan->shape == EXCHANGE_CHAIN ? comm_chain_channel(comm) : comm_exchange_channel(comm);
    for (int i = 0; i < plan->round_count; i++) {
        const struct exchange_round *round = &plan->rounds[i];
        for (int m = round->first_send; m < round->first_receive + round->receives; m++) {
            struct exchange_message *message = &plan->messages[m];
            enum edge_side side = m < round->first_receive ? EDGE_PRODUCER : EDGE_CONSUMER;
            TRY(comm_edge(&message->edge, channel, side, message->peer, comm));
            plan->staged = plan->staged || exchange_is_staged(message->edge);
            TRY(choose_lines(message, round->to_all, side == EDGE_PRODUCER, plan, comm));
            message->by_address = side == EDGE_PRODUCER && can_lend(plan, message);
        }
    }
    return STATUS_OK;
}

static enum status make_room(size_t stage_bytes, struct ring_comm *comm)
{
    if (comm->exchanges == NULL) comm->exchanges = calloc(1, sizeof *comm->exchanges);
    if (comm->exchanges == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for the plans of small operations");
    struct span *stage = &comm->exchanges->stage;
    if (stage->bytes >= stage_bytes) return STATUS_OK;
    memory_free(stage, MEMORY_COMMUNICATION, comm->device);
    return memory_alloc(stage, stage_bytes, MEMORY_COMMUNICATION, comm->device);
}

enum status exchange_make(struct exchange_plan **out, const struct operation *operation)
{
    struct ring_comm *comm = operation->comm;
    TRY(make_room(0, comm));
    struct exchange_plan **place =
        place_of(operation->collective, &operation->reduction, operation->count, comm->exchanges);
    if (*place == NULL) *place = malloc(sizeof **place);
    if (*place == NULL) return FAIL(STATUS_SYSTEM, "no memory for the plan of a small operation");
    exchange_plan_make(*place, operation);
    (*place)->tag = operation->tag & ~OPERATION_TAG_SEQUENCE;
    (*place)->board = comm->board;
    *out = *place;
    TRY(make_room((*out)->stage_bytes, comm));
    return open_edges(*out, comm);
}

unsigned char *exchange_stage(const struct ring_comm *comm)
{
    return comm->exchanges->stage.ptr;
}

void exchange_forget(struct ring_comm *comm)
{
    if (comm->exchanges == NULL) return;
    for (int i = 0; i < KEPT_PLANS; i++) free(comm->exchanges->plans[i]);
    memory_free(&comm->exchanges->stage, MEMORY_COMMUNICATION, comm->device);
    free(comm->exchanges);
    comm->exchanges = NULL;
}
