/* path.c: what is told of a call, on paper and beside a run.
 * ctest: timeout=60
 *
 * On paper, for 2 to 16 ranks, each collective, over memory and over a transport, with stars and
 * without: nobody sends what it does not have, everyone ends with what the collective promises, and
 * the bytes are those of the prediction.
 * In a run: bytes counted are those that were told, whichever way was taken.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/path.h"
#include "tests/harness/harness.h"

#define MOST_RANKS 16

/* ---- on paper ---- */

/* What a rank has after some turns: of every chunk the inputs, a bit for each rank, and whether it
 * is complete. */
struct has {
    unsigned inputs[MOST_RANKS];
    bool complete[MOST_RANKS];
};

struct check {
    const struct ring_call *call;
    const struct path *path;
    int n, chunks;
    struct has has[MOST_RANKS];
};

static bool is_empty(int c, const struct check *check)
{
    size_t count = check->call->count;
    if (check->call->collective != COLLECTIVE_ALL_REDUCE) return count == 0;
    return ring_chunk_begin(count, check->n, c + 1) == ring_chunk_begin(count, check->n, c);
}

static bool reduces(const struct check *check)
{
    return collective_is_reduction(check->call->collective);
}

static void begin(struct check *check)
{
    for (int r = 0; r < check->n; r++)
        for (int c = 0; c < check->chunks; c++) {
            bool gathered = check->call->collective == COLLECTIVE_ALL_GATHER && r == c;
            bool root = check->call->collective == COLLECTIVE_BROADCAST && r == check->call->root;
            if (reduces(check)) check->has[r].inputs[c] = 1u << r;
            check->has[r].complete[c] = gathered || root;
        }
}

static void check_block(
    struct path_block block, const struct path_message *message, bool arrives, struct check *check)
{
    for (int c = 0; c < check->chunks; c++) {
        if ((block.chunk >= 0 && block.chunk != c) || is_empty(c, check)) continue;
        struct has *from = &check->has[message->from], *to = &check->has[message->to];
        if (!arrives && block.from < 0)
            CHECK_MSG(from->complete[c], "turn %d: rank %d sends chunk %d, not complete there",
                message->turn, message->from, c);
        if (!arrives && block.from >= 0)
            CHECK_MSG(from->inputs[c] >> block.from & 1,
                "turn %d: rank %d sends rank %d's input to chunk %d, which it does not have",
                message->turn, message->from, block.from, c);
        if (arrives && block.from < 0) to->complete[c] = true;
        if (arrives && block.from >= 0) to->inputs[c] |= 1u << block.from;
    }
}

static void check_messages(int turn, bool arrive, struct check *check)
{
    for (int m = 0; m < check->path->message_count; m++) {
        const struct path_message *message = &check->path->messages[m];
        if (message->turn != turn) continue;
        CHECK(message->from != message->to);
        CHECK((message->blocks > 0) == (message->bytes > 0));
        for (int b = 0; b < message->blocks; b++)
            check_block(check->path->blocks[message->first_block + b], message, arrive, check);
    }
}

static void check_sums(int turn, struct check *check)
{
    for (int s = 0; s < check->path->sum_count; s++) {
        const struct path_sum *sum = &check->path->sums[s];
        for (int c = 0; c < check->chunks && sum->turn == turn; c++) {
            if ((sum->chunk >= 0 && sum->chunk != c) || is_empty(c, check)) continue;
            struct has *has = &check->has[sum->rank];
            CHECK_MSG(has->inputs[c] == (1u << check->n) - 1,
                "%s of %zu by %s, turn %d: rank %d adds chunk %d of the inputs %x",
                collective_name(check->call->collective), check->call->count,
                path_kind_name(check->path->kind), turn, sum->rank, c, has->inputs[c]);
            has->complete[c] = true;
        }
    }
}

static void check_end(const struct check *check)
{
    for (int r = 0; r < check->n; r++)
        for (int c = 0; c < check->chunks; c++) {
            bool wanted = check->call->collective != COLLECTIVE_REDUCE_SCATTER || r == c;
            if (wanted && !is_empty(c, check))
                CHECK_MSG(check->has[r].complete[c], "rank %d ends without chunk %d", r, c);
        }
}

static void check_bytes(const struct check *check, struct path_comm *comm)
{
    for (int r = 0; r < check->n; r++) {
        uint64_t sent = 0, predicted = path_sent_bytes(check->call, r, comm);
        for (int m = 0; m < check->path->message_count; m++)
            if (check->path->messages[m].from == r) sent += check->path->messages[m].bytes;
        CHECK_MSG(sent == predicted, "rank %d: messages of %llu bytes, %llu predicted", r,
            (unsigned long long)sent, (unsigned long long)predicted);
    }
}

static int kinds_seen[PATH_KIND_COUNT];

static void check_call(const struct ring_call *call, int n, struct path_comm *comm)
{
    struct path path;
    if (!CHECK_OK(path_make(&path, call, comm))) return;
    CHECK(path.kind == path_kind_of(call, comm));
    kinds_seen[path.kind]++;
    struct check check = {.call = call,
        .path = &path,
        .n = n,
        .chunks =
            call->collective == COLLECTIVE_BARRIER ? 0 : collective_chunks(call->collective, n)};
    if (path.kind == PATH_PLAN) CHECK(path.message_count == 0 && path.turns == 0);
    begin(&check);
    for (int turn = 0; turn < path.turns; turn++) {
        check_messages(turn, false, &check); /* what is sent was there before anything has come */
        check_messages(turn, true, &check);
        check_sums(turn, &check);
    }
    if (path.kind != PATH_PLAN) check_end(&check);
    if (path.kind != PATH_PLAN) check_bytes(&check, comm);
    path_free(&path);
}

static void check_place(const struct path_place *place)
{
    static const size_t counts[] = {0, 1, 3, 17, 256, 1003, 4099, 100003};
    struct path_comm *comm;
    if (!CHECK_OK(path_comm_open(&comm, place))) return;
    for (int c = 0; c < COLLECTIVE_COUNT; c++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            bool pair = c == COLLECTIVE_SEND || c == COLLECTIVE_RECV;
            struct ring_call call = {.collective = (enum collective)c,
                .dtype = DTYPE_FLOAT32,
                .redop = i % 2 ? REDOP_SUM : REDOP_MIN,
                .root = pair                                       ? 1
                        : collective_is_rooted((enum collective)c) ? place->nranks / 2
                                                                   : 0,
                .count = c == COLLECTIVE_BARRIER ? 0 : counts[i]};
            check_call(&call, place->nranks, comm);
        }
    path_comm_close(comm);
}

static void on_paper(void)
{
    for (int n = 2; n <= MOST_RANKS; n++)
        for (int i = 0; i < 8; i++) {
            struct path_place place = {.nranks = n,
                .hosts = n % 2 == 0 && i >= 6 ? 2 : 1,
                .cores = i % 2 ? 1 : 64, /* 1: a star */
                .own_memory = i % 4 < 2,
                .config = {.transport = i == 0 || i >= 6 ? "auto"
                                        : i < 4          ? "shm"
                                                         : "tcp",
                    .channels = i == 7 ? 3 : 1}};
            check_place(&place);
        }
    for (int kind = 0; kind < PATH_KIND_COUNT; kind++)
        CHECK_MSG(kinds_seen[kind] > 0, "no call took the way \"%s\"",
            path_kind_name((enum path_kind)kind));
}

/* What is known of some calls. */
static void known(void)
{
    struct path_comm *comm;
    const struct path_place place = {
        .nranks = 4, .hosts = 1, .cores = 4, .config = {.transport = "tcp"}};
    if (!CHECK_OK(path_comm_open(&comm, &place))) return;
    const struct ring_call call = {
        .collective = COLLECTIVE_REDUCE_SCATTER, .dtype = DTYPE_FLOAT32, .count = 2};
    struct path path;
    CHECK_OK(path_make(&path, &call, comm));
    CHECK(path.kind == PATH_ROUNDS && path.turns == 2 && path.message_count == 8);
    const struct path_message *last = &path.messages[4]; /* of rank 0, in the second round */
    CHECK(last->from == 0 && last->to == 2 && last->bytes == 16 && last->blocks == 2 &&
          !last->by_lines);
    const struct path_block *blocks = &path.blocks[last->first_block];
    CHECK(blocks[0].chunk == 2 && blocks[1].chunk == 2); /* its own part, and rank 1's */
    CHECK(blocks[0].from + blocks[1].from == 1);
    CHECK(strcmp(path_transport(0, 3, comm), "tcp") == 0);
    path_free(&path);
    path_comm_close(comm);

    const struct path_place two_level = {
        .nranks = 4, .hosts = 1, .cores = 4, .config = {.hierarchy = HIERARCHY_TWO_LEVEL}};
    CHECK_STATUS(path_comm_open(&comm, &two_level), STATUS_INVALID);
    const struct path_place measured = {
        .nranks = 4, .hosts = 1, .cores = 4, .config = {.exchange_bytes = SIZE_MAX}};
    CHECK_STATUS(path_comm_open(&comm, &measured), STATUS_INVALID);
    CHECK_TEXT("RINGZERO_EXCHANGE_BYTES is measure");
}

/* ---- beside a run ---- */

struct run {
    struct path_place place;
    size_t count;
};

static uint64_t told_bytes(const struct ring_call *call, int rank, struct path_comm *comm)
{
    struct path path;
    uint64_t bytes = 0;
    if (!CHECK_OK(path_make(&path, call, comm))) return 0;
    for (int m = 0; m < path.message_count; m++)
        if (path.messages[m].from == rank) bytes += path.messages[m].bytes;
    if (path.kind == PATH_PLAN) bytes = path_sent_bytes(call, rank, comm);
    path_free(&path);
    return bytes;
}

static enum status run_call(
    const struct ring_call *call, float *send, float *recv, struct ring_comm *comm)
{
    size_t bytes = call->count * sizeof(float), all = bytes * (size_t)ring_comm_nranks(comm);
    struct span chunk = span_host(send, bytes), whole = span_host(recv, all);
    switch (call->collective) {
    case COLLECTIVE_ALL_REDUCE:
        return ring_all_reduce(
            span_host(recv, bytes), chunk, call->count, call->dtype, call->redop, comm, NULL);
    case COLLECTIVE_REDUCE_SCATTER:
        return ring_reduce_scatter(chunk, whole, call->count, call->dtype, call->redop, comm, NULL);
    case COLLECTIVE_ALL_GATHER:
        return ring_all_gather(whole, chunk, call->count, call->dtype, comm, NULL);
    default:
        return ring_broadcast(
            span_host(recv, bytes), chunk, call->count, call->dtype, call->root, comm, NULL);
    }
}

static void run_rank(struct bootstrap *bootstrap, void *argument)
{
    const struct run *run = argument;
    int n = run->place.nranks;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct path_comm *paper = NULL;
    float *send = calloc(run->count, sizeof *send),
          *recv = calloc(run->count * (size_t)n, sizeof *recv);
    CHECK_OK(device_open(&device, "host"));
    if (!CHECK_OK(ring_comm_open(&comm, &run->place.config, bootstrap, device))) goto end;
    if (!CHECK_OK(path_comm_open(&paper, &run->place))) goto end;
    for (int c = COLLECTIVE_ALL_REDUCE; c <= COLLECTIVE_BROADCAST; c++) {
        const struct ring_call call = {.collective = (enum collective)c,
            .dtype = DTYPE_FLOAT32,
            .redop = REDOP_SUM,
            .root = c == COLLECTIVE_BROADCAST ? n - 1 : 0,
            .count = run->count};
        uint64_t before = ring_comm_counters(comm).sent_bytes[c];
        CHECK_OK(run_call(&call, send, recv, comm));
        uint64_t sent = ring_comm_counters(comm).sent_bytes[c] - before,
                 told = told_bytes(&call, ring_comm_rank(comm), paper);
        CHECK_MSG(sent == told,
            "%s of %zu on %d ranks over %s: rank %d sent %llu bytes, %llu were told",
            collective_name((enum collective)c), run->count, n, run->place.config.transport,
            ring_comm_rank(comm), (unsigned long long)sent, (unsigned long long)told);
    }
end:
    path_comm_close(paper);
    ring_comm_close(comm);
    device_close(device);
    free(send);
    free(recv);
}

int main(void)
{
    static const size_t counts[] = {2, 256, 300, 4000, 5000, 40000};
    on_paper();
    known();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int k = 0; k < 6; k++) {
            struct run run = {.count = counts[i],
                .place = {.nranks = 2 + k / 2,
                    .hosts = 1,
                    .cores = 64,
                    .config = {
                        .transport = k % 2 ? "tcp" : "shm", .star_bytes = i % 2 ? 65536 : 1}}};
            ranks_as_threads(run.place.nranks, 10000, run_rank, &run);
        }
    return test_result();
}
