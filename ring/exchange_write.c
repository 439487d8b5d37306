/* exchange_write: see exchange_write.h. Keeps that nothing is written beyond the room of a plan. */
#include "ring/exchange_write.h"

#include <assert.h>

#include "ring/comm.h"

struct exchange_round *exchange_round_begin(struct exchange_plan *plan)
{
    assert(plan->round_count < EXCHANGE_MOST_ROUNDS);
    short next = (short)plan->message_count;
    plan->rounds[plan->round_count] =
        (struct exchange_round){.first_send = next, .first_receive = next};
    return &plan->rounds[plan->round_count++];
}

static struct exchange_message *message_begin(struct exchange_plan *plan, int peer)
{
    assert(plan->message_count < EXCHANGE_MOST_MESSAGES);
    struct exchange_message *message = &plan->messages[plan->message_count++];
    *message = (struct exchange_message){.peer = peer, .first_piece = (short)plan->piece_count};
    return message;
}

struct exchange_message *exchange_send_begin(struct exchange_plan *plan, int peer)
{
    struct exchange_round *round = &plan->rounds[plan->round_count - 1];
    assert(round->receives == 0);
    round->sends++;
    round->first_receive++;
    return message_begin(plan, peer);
}

struct exchange_message *exchange_receive_begin(struct exchange_plan *plan, int peer)
{
    plan->rounds[plan->round_count - 1].receives++;
    return message_begin(plan, peer);
}

void exchange_message_add(
    struct exchange_plan *plan, struct exchange_message *message, struct exchange_piece piece)
{
    if (piece.bytes == 0) return;
    message->bytes += piece.bytes;
    struct exchange_piece *last = message->pieces > 0 ? &plan->pieces[plan->piece_count - 1] : NULL;
    if (last != NULL && last->place == piece.place && last->offset + last->bytes == piece.offset) {
        last->bytes += piece.bytes;
        return;
    }
    assert(plan->piece_count < EXCHANGE_MOST_PIECES);
    plan->pieces[plan->piece_count++] = piece;
    message->pieces++;
}

size_t exchange_element_bytes(const struct operation *operation)
{
    return dtype_bytes(operation->reduction.dtype);
}

struct exchange_piece exchange_chunk_at(
    enum exchange_place place, bool is_chunk, int c, const struct operation *operation)
{
    size_t begin, count, element = exchange_element_bytes(operation);
    operation_chunk(&begin, &count, operation, c);
    return (struct exchange_piece){
        place, (uint32_t)(count * element), is_chunk ? 0 : begin * element};
}

struct exchange_piece exchange_whole_at(
    enum exchange_place place, const struct operation *operation)
{
    size_t bytes = operation->count * exchange_element_bytes(operation);
    return (struct exchange_piece){place, (uint32_t)bytes, 0};
}

size_t exchange_stage_offset(size_t bytes, int block)
{
    return (bytes + 63) / 64 * 64 * (size_t)block;
}

void exchange_sum_add(struct exchange_plan *plan, int c, size_t at, struct exchange_piece to,
    size_t count, const struct operation *operation)
{
    const struct ring_comm *comm = operation->comm;
    int channels = comm->orders_differ ? comm->config.channels : 1;
    for (int channel = 0; channel < channels; channel++) {
        size_t begin = ring_chunk_begin(count, channels, channel);
        size_t end = ring_chunk_begin(count, channels, channel + 1);
        size_t skip = begin * exchange_element_bytes(operation);
        short last = 0;
        while (plan->order[channel][last] != c) last++;
        if (end > begin)
            plan->sums[plan->sum_count++] = (struct exchange_sum){.at = at + skip,
                .place = to.place,
                .to = to.offset + skip,
                .count = end - begin,
                .channel = (short)channel,
                .last = last};
    }
}
