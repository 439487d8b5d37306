/* path_exchange: an exchange followed on paper: all ranks' plans side by side, turn by turn, with labels
 * in place of data.
 *
 *   rank 0's plan:  send [SEND, offset 8, 8 bytes] to 1      its SEND place:  |0c0 |0c1 |0c2 |0c3 |
 *   so the message holds 0c1                                                   0    8    16   24
 *
 * A place is a list of stretches, each labelled with whose data it is and of which chunk; a message
 * carries the labels of what its pieces cover, and its receiver writes them where its plan says.
 *
 * Invariant: nothing is guessed from shapes: what is told of a message is what its sender holds there.
 */
#include <assert.h>
#include <stdlib.h>

#include "ring/comm.h"
#include "ring/exchange_plan.h"
#include "ring/exchange_write.h"
#include "ring/path_write.h"

#define STRETCHES                                                                                  \
    (2 * EXCHANGE_MOST_RANKS * EXCHANGE_MOST_RANKS) /* everybody's chunks of everybody */

struct stretch {
    size_t begin, end; /* bytes of the place */
    struct path_block block;
};

struct paper {
    struct stretch stretches[STRETCHES];
    int count;
};

struct side {
    struct exchange_plan plan;
    struct paper places[EXCHANGE_PLACES];
    int round, received; /* messages of this round */
    bool has_sent;
};

/* What a message covers on its sender's paper, one stretch after another. */
struct letter {
    struct stretch stretches[STRETCHES]; /* from 0 on */
    int count;
};

struct follow {
    struct path *path;
    const struct operation *operation;
    struct side *sides;     /* [n] */
    struct letter *letters; /* [n · EXCHANGE_MOST_MESSAGES]: what the path's messages hold */
    int *taken;             /* [n][n]: from, to: where in the path the next message is looked for */
};

/* ---- paper ---- */

static void put(struct paper *paper, size_t begin, size_t end, struct path_block block)
{
    if (begin == end) return;
    assert(paper->count < STRETCHES);
    paper->stretches[paper->count++] = (struct stretch){begin, end, block};
}

/* Over what was there. */
static void overwrite(struct paper *paper, size_t begin, size_t end, struct path_block block)
{
    int count = paper->count;
    struct paper before = *paper;
    paper->count = 0;
    for (int i = 0; i < count; i++) {
        const struct stretch *old = &before.stretches[i];
        if (old->begin < begin)
            put(paper, old->begin, old->end < begin ? old->end : begin, old->block);
        if (old->end > end) put(paper, old->begin > end ? old->begin : end, old->end, old->block);
    }
    put(paper, begin, end, block);
}

/* What a piece covers, in the order of the place, appended to the letter. */
static void read_piece(struct letter *letter, size_t *bytes, const struct exchange_piece *piece,
    const struct side *side)
{
    const struct paper *paper = &side->places[piece->place];
    size_t at = piece->offset, end = piece->offset + piece->bytes;
    while (at < end) {
        const struct stretch *found = NULL;
        for (int i = 0; i < paper->count && found == NULL; i++)
            if (paper->stretches[i].begin <= at && at < paper->stretches[i].end)
                found = &paper->stretches[i];
        assert(found != NULL && letter->count < STRETCHES); /* nobody sends what it does not have */
        size_t next = found->end < end ? found->end : end;
        letter->stretches[letter->count++] =
            (struct stretch){*bytes, *bytes + next - at, found->block};
        *bytes += next - at;
        at = next;
    }
}

/* Bytes [begin, end) of a letter, to where a piece says. */
static void write_piece(struct side *side, const struct exchange_piece *piece, size_t begin,
    const struct letter *letter)
{
    size_t end = begin + piece->bytes;
    for (int i = 0; i < letter->count; i++) {
        const struct stretch *part = &letter->stretches[i];
        size_t first = part->begin > begin ? part->begin : begin,
               last = part->end < end ? part->end : end;
        if (first < last)
            overwrite(&side->places[piece->place], piece->offset + first - begin,
                piece->offset + last - begin, part->block);
    }
}

/* ---- before the first turn ---- */

static void open_side(struct side *side, int rank, const struct operation *operation)
{
    bool in_chunks = collective_chunks(operation->collective, operation->comm->nranks) > 1;
    size_t element = exchange_element_bytes(operation), begin, count;
    struct paper *send = &side->places[EXCHANGE_SEND];
    operation->comm->rank = rank;
    exchange_plan_make(&side->plan, operation);
    if (operation->send_is_chunk) {
        put(send, 0, operation->count * element, (struct path_block){-1, (short)rank});
    } else if (!in_chunks && rank == operation->root) {
        put(send, 0, operation->count * element, (struct path_block){-1, -1});
    } else if (in_chunks) {
        for (int c = 0; c < operation->comm->nranks; c++) {
            operation_chunk(&begin, &count, operation, c);
            put(send, begin * element, (begin + count) * element,
                (struct path_block){(short)rank, (short)c});
        }
    }
    bool copies = side->plan.own_to.bytes > 0 && side->plan.own_from.place == EXCHANGE_SEND;
    if (!copies) return;
    struct letter own = {0};
    size_t bytes = 0;
    read_piece(&own, &bytes, &side->plan.own_from, side);
    write_piece(side, &side->plan.own_to, 0, &own);
}

/* ---- messages ---- */

static bool is_same(struct path_block a, struct path_block b)
{
    return a.from == b.from && a.chunk == b.chunk;
}

/* How many stretches from `i` on are all chunks of one rank's input, or of the result; 0: none. */
static int whole_from(int i, const struct letter *letter, const struct operation *operation)
{
    int n = operation->comm->nranks, taken = 0;
    size_t begin, count;
    for (int c = 0; c < n; c++) {
        operation_chunk(&begin, &count, operation, c);
        if (count == 0) continue;
        const struct path_block expected = {letter->stretches[i].block.from, (short)c};
        if (i + taken >= letter->count || !is_same(letter->stretches[i + taken].block, expected))
            return 0;
        taken++;
    }
    return taken;
}

static enum status tell_blocks(struct follow *follow, const struct letter *letter)
{
    bool in_chunks =
        collective_chunks(follow->operation->collective, follow->operation->comm->nranks) > 1;
    for (int i = 0; i < letter->count; i++) {
        struct path_block block = letter->stretches[i].block;
        int whole = in_chunks ? whole_from(i, letter, follow->operation) : 0;
        if (whole > 0) {
            block.chunk = -1;
            i += whole - 1;
        }
        TRY(path_add_block(follow->path, block));
    }
    return STATUS_OK;
}

static enum status send_one(
    struct follow *follow, int turn, int rank, const struct exchange_message *message)
{
    const struct side *side = &follow->sides[rank];
    const struct path_message told = {
        .turn = turn, .from = rank, .to = message->peer, .bytes = message->bytes};
    struct letter *letter = &follow->letters[follow->path->message_count];
    size_t bytes = 0;
    for (int p = 0; p < message->pieces; p++)
        read_piece(letter, &bytes, &side->plan.pieces[message->first_piece + p], side);
    TRY(path_add_message(follow->path, &told));
    return tell_blocks(follow, letter);
}

/* The next message from a rank to another; −1: none is there yet. */
static int next_message(struct follow *follow, int from, int to)
{
    int *at = &follow->taken[from * follow->operation->comm->nranks + to];
    for (; *at < follow->path->message_count; (*at)++) {
        const struct path_message *message = &follow->path->messages[*at];
        if (message->from == from && message->to == to) return (*at)++;
    }
    return -1;
}

static bool receive_one(
    struct follow *follow, int turn, int rank, const struct exchange_message *expected)
{
    struct side *side = &follow->sides[rank];
    int m = next_message(follow, expected->peer, rank);
    if (m < 0) return false;
    assert(follow->path->messages[m].turn == turn); /* plans let nobody come late */
    size_t begin = 0;
    for (int p = 0; p < expected->pieces; p++) {
        const struct exchange_piece *piece = &side->plan.pieces[expected->first_piece + p];
        write_piece(side, piece, begin, &follow->letters[m]);
        begin += piece->bytes;
    }
    return true;
}

/* ---- sums ---- */

/* Makes a sum: which chunks it is of, one or several, the rank's own part tells. */
static void make_sum(bool is_told[], struct side *side, int rank, const struct exchange_sum *sum,
    const struct operation *operation)
{
    struct letter own = {0};
    size_t bytes = 0;
    const struct exchange_piece part = {side->plan.parts[rank].place,
        (uint32_t)(sum->count * exchange_element_bytes(operation)),
        side->plan.parts[rank].offset + sum->at};
    read_piece(&own, &bytes, &part, side);
    for (int i = 0; i < own.count; i++) {
        const struct stretch *stretch = &own.stretches[i];
        short chunk = stretch->block.chunk;
        overwrite(&side->places[sum->place], sum->to + stretch->begin, sum->to + stretch->end,
            (struct path_block){-1, chunk});
        is_told[chunk] = true;
    }
}

static enum status add_up(struct follow *follow, int turn, int rank)
{
    struct side *side = &follow->sides[rank];
    const struct operation *operation = follow->operation;
    int n = operation->comm->nranks, chunks = 0, told = 0;
    bool is_told[EXCHANGE_MOST_RANKS] = {false};
    for (int s = 0; s < side->plan.sum_count; s++)
        make_sum(is_told, side, rank, &side->plan.sums[s], operation);
    for (int c = 0; c < n; c++) {
        size_t begin, count;
        operation_chunk(&begin, &count, operation, c);
        chunks += count > 0;
        told += is_told[c];
    }
    if (told > 0 && told == chunks)
        return path_add_sum(follow->path, (struct path_sum){turn, rank, -1});
    for (int c = 0; c < n; c++)
        if (is_told[c]) TRY(path_add_sum(follow->path, (struct path_sum){turn, rank, (short)c}));
    return STATUS_OK;
}

/* ---- turns ---- */

/* Rounds in which a rank has nothing to do take no turn. */
static void skip_rounds(struct side *side)
{
    while (side->round < side->plan.round_count) {
        const struct exchange_round *round = &side->plan.rounds[side->round];
        if (round->sends + round->receives > 0) return;
        side->round++;
    }
}

static bool is_over(const struct side *side)
{
    return side->round == side->plan.round_count;
}

static enum status send_all(struct follow *follow, int turn, int rank)
{
    struct side *side = &follow->sides[rank];
    skip_rounds(side);
    if (is_over(side) || side->has_sent) return STATUS_OK;
    const struct exchange_round *round = &side->plan.rounds[side->round];
    for (int i = 0; i < round->sends; i++)
        TRY(send_one(follow, turn, rank, &side->plan.messages[round->first_send + i]));
    side->has_sent = true;
    return STATUS_OK;
}

static enum status receive_all(struct follow *follow, int turn, int rank)
{
    struct side *side = &follow->sides[rank];
    if (is_over(side) || !side->has_sent) return STATUS_OK;
    const struct exchange_round *round = &side->plan.rounds[side->round];
    while (side->received < round->receives &&
           receive_one(
               follow, turn, rank, &side->plan.messages[round->first_receive + side->received]))
        side->received++;
    if (side->received < round->receives) return STATUS_OK;
    if (round->adds) TRY(add_up(follow, turn, rank));
    side->round++;
    side->received = 0;
    side->has_sent = false;
    return STATUS_OK;
}

static enum status follow_turns(struct follow *follow)
{
    int n = follow->operation->comm->nranks;
    for (int turn = 0;; turn++) {
        bool all_over = true;
        for (int rank = 0; rank < n; rank++) TRY(send_all(follow, turn, rank));
        for (int rank = 0; rank < n; rank++) all_over &= is_over(&follow->sides[rank]);
        if (all_over) return STATUS_OK;
        for (int rank = 0; rank < n; rank++) TRY(receive_all(follow, turn, rank));
        follow->path->turns = turn + 1;
        assert(turn < 2 * EXCHANGE_MOST_RANKS); /* a plan that waits for ever */
    }
}

enum status path_follow_exchange(struct path *path, const struct operation *operation)
{
    size_t n = (size_t)operation->comm->nranks;
    enum status status = STATUS_OK;
    struct follow follow = {.path = path, .operation = operation};
    follow.sides = calloc(n, sizeof *follow.sides);
    follow.letters = calloc(n * EXCHANGE_MOST_MESSAGES, sizeof *follow.letters);
    follow.taken = calloc(n * n, sizeof *follow.taken);
    if (follow.sides == NULL || follow.letters == NULL || follow.taken == NULL)
        TRY_GOTO(FAIL(STATUS_SYSTEM, "no memory to follow the exchange of %zu ranks", n));
    for (int rank = 0; rank < (int)n; rank++) open_side(&follow.sides[rank], rank, operation);
    TRY_GOTO(follow_turns(&follow));
fail:
    free(follow.sides);
    free(follow.letters);
    free(follow.taken);
    return status;
}
