/* chaos_operation: a random operation, drawn alike by all ranks from one seed, run on any communicator, alone or in a group, on
 * known numbers, and every element of its result checked: for tests that do harm meanwhile.
 *
 *     struct chaos_operation operation = chaos_draw(&seed, most_count);
 *     chaos_fill(&operation, &buffers, comm);
 *     TRY(chaos_issue(&operation, &buffers, grouped, comm, stream));
 *     …                                                            until it is complete
 *     chaos_check(text, sizeof text, &operation, &buffers, comm);
 *
 * What is drawn does not depend on the communicator: a root is one of its ranks, whatever their number.
 */
#ifndef TESTS_CHAOS_OPERATION_H
#define TESTS_CHAOS_OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/ring.h"

enum chaos_form {
    CHAOS_ALL_REDUCE,
    CHAOS_REDUCE_SCATTER,
    CHAOS_ALL_GATHER,
    CHAOS_BROADCAST,
    CHAOS_REDUCE,
    CHAOS_SCATTER,
    CHAOS_GATHER,
    CHAOS_ALL_TO_ALL,
    CHAOS_REDUCE_SCATTER_V,
    CHAOS_ALL_GATHER_V,
    CHAOS_SEND_RECV, /* every rank to the one `distance` behind it */
    CHAOS_PAIRS,     /* ranks 2i send to 2i + 1 */
    CHAOS_BARRIER,
    CHAOS_FORM_COUNT,
};

struct chaos_operation {
    enum chaos_form form;
    enum dtype dtype;
    enum redop redop;
    size_t count;       /* of a rank's part; of v-forms: the most */
    unsigned root;      /* modulo the number of ranks */
    unsigned distance;  /* likewise */
    bool in_place;      /* where it can be */
    uint64_t salt;
};

/* Each has room for chaos_room_bytes(): a is read out of place, b is written. */
struct chaos_buffers {
    char *a, *b;
};

/* A random number; the seed goes on to the next. */
uint64_t chaos_random(uint64_t *seed);
unsigned chaos_random_below(uint64_t *seed, unsigned limit);

struct chaos_operation chaos_draw(uint64_t *seed, size_t most_count);
size_t chaos_room_bytes(size_t most_count, int nranks);

/* Premul scalars of a communicator: call once, after opening it. */
void chaos_prepare(struct ring_comm *comm);

void chaos_fill(const struct chaos_operation *operation, const struct chaos_buffers *buffers, struct ring_comm *comm);
/* grouped: between ring_group_begin() and ring_group_end(). */
MUST_CHECK enum status chaos_issue(const struct chaos_operation *operation, const struct chaos_buffers *buffers, bool grouped,
    struct ring_comm *comm, struct stream *stream);
/* False, with a description in text, where an element of this rank's output, or what lies behind it, is not as it must be. */
bool chaos_check(char *text, size_t bytes, const struct chaos_operation *operation, const struct chaos_buffers *buffers,
    struct ring_comm *comm);

#endif
