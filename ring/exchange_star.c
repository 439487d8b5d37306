/* exchange_star: see exchange_star.h. */
#include "ring/exchange_star.h"

#include "ring/comm.h"
#include "ring/exchange_write.h"

#define MIDDLE 0

bool exchange_has_star(const struct ring_comm *comm)
{
    if (comm->one_memory || comm->nranks < 3 || comm->config.star_bytes <= COMM_NO_STAR)
        return false;
    for (int r = 0; r < comm->nranks; r++)
        if (!comm_on_this_host(comm, r)) return false;
    return true;
}

/* Of the whole array, whose chunks follow one another. */
static size_t array_bytes(const struct operation *operation)
{
    size_t chunks = operation->stride == 0 ? 1 : (size_t)operation->comm->nranks;
    return chunks * operation->count * exchange_element_bytes(operation);
}

/* A column, whose chunks lie apart, would need its parts packed, and the middle's own too. */
bool exchange_star_fits(const struct operation *operation)
{
    bool packed = operation->stride == 0 || operation->stride == operation->count;
    return operation->collective != COLLECTIVE_BROADCAST && packed &&
           exchange_has_star(operation->comm) &&
           array_bytes(operation) <= operation->comm->config.star_bytes;
}

/* What a rank tells the middle, and hears from it; at that rank if `there`, else at the middle. */
static struct exchange_piece told(bool there, int rank, const struct operation *operation)
{
    if (operation->collective == COLLECTIVE_ALL_GATHER)
        return exchange_chunk_at(
            there ? EXCHANGE_SEND : EXCHANGE_RECV, there, rank, operation);
    return (struct exchange_piece){EXCHANGE_SEND, (uint32_t)array_bytes(operation), 0};
}

static struct exchange_piece heard(bool there, int rank, const struct operation *operation)
{
    if (operation->collective != COLLECTIVE_REDUCE_SCATTER)
        return (struct exchange_piece){EXCHANGE_RECV, (uint32_t)array_bytes(operation), 0};
    struct exchange_piece chunk = exchange_chunk_at(EXCHANGE_RECV, true, rank, operation);
    if (there || rank == MIDDLE) return chunk;
    chunk.place = EXCHANGE_STAGE;
    chunk.offset = exchange_stage_offset(chunk.bytes, rank);
    return chunk;
}

/* Where everyone's part is, and what is made of them. */
static void plan_sums(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks;
    size_t element = exchange_element_bytes(operation);
    plan->parts[MIDDLE].message = -1;
    plan->parts[MIDDLE].place = EXCHANGE_SEND;
    bool scatters = operation->collective == COLLECTIVE_REDUCE_SCATTER;
    for (int c = 0; c < n; c++) {
        size_t begin, count;
        operation_chunk(&begin, &count, operation, c);
        struct exchange_piece to = heard(false, c, operation);
        if (!scatters) to.offset = begin * element;
        exchange_sum_add(plan, c, begin * element, to, count, operation);
    }
    if (scatters) plan->stage_bytes = exchange_stage_offset(operation->count * element, n);
}

static void plan_middle(struct exchange_plan *plan, const struct operation *operation)
{
    int n = operation->comm->nranks;
    bool adds = operation->collective != COLLECTIVE_ALL_GATHER;
    exchange_round_begin(plan)->adds = adds;
    for (int r = 1; r < n; r++) {
        plan->parts[r].message = (short)plan->message_count;
        struct exchange_message *message = exchange_receive_begin(plan, r);
        message->stays = adds;
        if (adds) message->bytes = told(true, r, operation).bytes;
        else exchange_message_add(plan, message, told(false, r, operation));
    }
    if (adds) plan_sums(plan, operation);
    exchange_round_begin(plan)->to_owners = operation->recv_is_chunk;
    /* The last that hears is the first that is listened to in the next operation: when its part has
     * come, the others' have too, and the middle waits once, not for each of them. */
    for (int r = n - 1; r > 0; r--)
        exchange_message_add(plan, exchange_send_begin(plan, r), heard(false, r, operation));
}

void exchange_star_plan(struct exchange_plan *plan, const struct operation *operation)
{
    int self = operation->comm->rank;
    if (self == MIDDLE) {
        plan_middle(plan, operation);
        return;
    }
    exchange_round_begin(plan);
    exchange_message_add(plan, exchange_send_begin(plan, MIDDLE), told(true, self, operation));
    exchange_message_add(
        plan, exchange_receive_begin(plan, MIDDLE), heard(true, self, operation));
}
