/* exchange_write: how the plan of an exchange is written down, for exchange_plan.c and
 * exchange_star.c: round after round, in each its sends and then its receives, each message piece
 * after piece; and the pieces and sums that they are made of.
 */
#ifndef RING_EXCHANGE_WRITE_H
#define RING_EXCHANGE_WRITE_H

#include "ring/exchange_plan.h"

/* Each is valid until the plan is copied. Sends of a round come before its receives. */
struct exchange_round *exchange_round_begin(struct exchange_plan *plan);
struct exchange_message *exchange_send_begin(struct exchange_plan *plan, int peer);
struct exchange_message *exchange_receive_begin(struct exchange_plan *plan, int peer);

/* To the last message. Neighbouring pieces become one; one of no bytes leaves no trace. */
void exchange_message_add(
    struct exchange_plan *plan, struct exchange_message *message, struct exchange_piece piece);

size_t exchange_element_bytes(const struct operation *operation);

/* Rank c's chunk; is_chunk: the place holds nothing else. */
struct exchange_piece exchange_chunk_at(
    enum exchange_place place, bool is_chunk, int c, const struct operation *operation);

/* `count` elements from the place's beginning: of broadcasts, and of all_reduces. */
struct exchange_piece exchange_whole_at(
    enum exchange_place place, const struct operation *operation);

/* Of a stage that holds blocks of at most so many bytes, each on lines of its own. */
size_t exchange_stage_offset(size_t bytes, int block);

/* `count` elements of rank c's chunk, which begins at `at` in every part, are added up in `to`. */
void exchange_sum_add(struct exchange_plan *plan, int c, size_t at, struct exchange_piece to,
    size_t count, const struct operation *operation);

#endif
