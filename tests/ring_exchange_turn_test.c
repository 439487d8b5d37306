/* What has come is used in the turn in which it came: with more ranks than cores every pass of the wait loop that leaves
 * something behind costs a turn of all others. The middle of a star of 4 ranks, over edges that carry one message whenever
 * they are asked. ctest: timeout=20
 */
#include <stdlib.h>
#include <string.h>

#include "ring/comm.h"
#include "ring/exchange.h"
#include "ring/exchange_kept.h"
#include "tests/harness/harness.h"

#define RANKS      4
#define COUNT      5
#define SLOT_BYTES 4096
#define SLOTS      4

/* An edge whose peer has sent one message, which is still on its way. */
struct fed {
    struct edge edge;
    uint64_t tail, head, tag;
    struct fifo_record records[SLOTS];
    unsigned char *slots;
    int asked;
};

static bool always_drained(const struct edge *edge)
{
    (void)edge;
    return true;
}

static enum status carry(struct edge *edge, bool *moved)
{
    struct fed *fed = edge->state;
    if (edge->config.side == EDGE_PRODUCER || fed->asked++ > 0) return STATUS_OK;
    float *slot = (float *)(void *)fed->slots;
    for (int i = 0; i < COUNT; i++) slot[i] = (float)edge->config.peer;
    fed->records[0] = (struct fifo_record){COUNT * sizeof(float), fed->tag, 0, 0};
    fed->tail = 1;
    *moved = true;
    return STATUS_OK;
}

static const struct transport transport_fed = {
    .name = "fed", .progress = carry, .drained = always_drained};

static void fed_open(struct fed *fed, enum edge_side side, int peer, uint64_t tag)
{
    fed->slots = calloc(SLOTS, SLOT_BYTES);
    fed->tag = tag;
    fed->edge = (struct edge){
        .fifo = {fed->slots, fed->records, &fed->tail, &fed->head, SLOT_BYTES, SLOTS, 0, 0},
        .config = {.side = side, .peer = peer, .slot_bytes = SLOT_BYTES, .slot_count = SLOTS},
        .transport = &transport_fed,
        .phase = EDGE_READY,
        .state = fed};
}

int main(void)
{
    int order[RANKS] = {0, 1, 2, 3}, members[RANKS] = {0, 1, 2, 3};
    struct device *device;
    CHECK_OK(device_open(&device, "host"));
    struct ring_comm comm = {.device = device, .nranks = RANKS, .order = order, .members = members,
        .premul = 1,
        .config = {.exchange_bytes = SLOT_BYTES, .star_bytes = SLOT_BYTES, .channels = 1}};
    comm.edges = calloc((size_t)comm_edge_channels(&comm) * 2 * RANKS, sizeof *comm.edges);
    float values[COUNT] = {0};
    struct operation_room room;
    struct operation operation = {.comm = &comm, .room = &room, .count = COUNT, .sequence = 1,
        .collective = COLLECTIVE_ALL_REDUCE, .exchanges = true,
        .reduction = {.dtype = DTYPE_FLOAT32, .redop = REDOP_SUM, .nranks = RANKS},
        .send = (unsigned char *)values, .recv = (unsigned char *)values};
    struct fed fed[2][RANKS] = {0};
    for (int side = 0; side < 2; side++)
        for (int peer = 1; peer < RANKS; peer++) {
            fed_open(&fed[side][peer], (enum edge_side)side, peer, operation_tag(&operation));
            *comm_edge_place(comm_exchange_channel(&comm), (enum edge_side)side, peer, &comm) =
                &fed[side][peer].edge;
        }
    CHECK(exchange_shape(&operation) == EXCHANGE_STAR);
    bool moved = false, done = false;
    CHECK_OK(operation_begin(&operation));
    CHECK_OK(operation_advance(&operation, &moved, &done));
    CHECK_MSG(done, "one turn does not end it");
    for (int i = 0; i < COUNT; i++) CHECK(values[i] == 6);
    for (int peer = 1; peer < RANKS; peer++) CHECK(fed[EDGE_CONSUMER][peer].asked == 1);
    operation_end(&operation);
    exchange_forget(&comm);
    for (int side = 0; side < 2; side++)
        for (int peer = 1; peer < RANKS; peer++) free(fed[side][peer].slots);
    free(comm.edges);
    device_close(device);
    return test_result();
}
