/* edge_tcp_fuzz: what arrives at either end of a TCP edge: the hello, frames and payloads at the consumer, credits at
 * the producer, and the offer that came by the mailbox.
 *
 * input   mode, { length, bytes }…
 *   mode mod 4   0 consumer: steps   1 consumer: a stranger's hello, then steps   2 producer: credits   3 producer: an offer
 *   bit 2        the consumer has a landing for every second step
 *   bit 4        its twin is open too
 */
#include "verbs/connection.c"
#include "verbs/edge_tcp.c"

#include "tests/fuzz/fuzz.h"

#define SLOT_BYTES 128
#define SLOTS      4
#define NONCE      0x1122334455667788u

static unsigned char landing_place[SLOT_BYTES];

static void *land(void *context, uint64_t step, uint64_t bytes, uint64_t tag)
{
    (void)context;
    (void)tag;
    FUZZ_EXPECT(bytes > 0 && bytes <= SLOT_BYTES); /* what is announced is checked before anyone is asked */
    return step % 2 == 0 ? landing_place : NULL;
}

/* Reads what has come, as an executor would. */
static void consume(struct edge *edge)
{
    FUZZ_EXPECT(fifo_ready(&edge->fifo) <= SLOTS);
    while (fifo_ready(&edge->fifo) > 0) {
        struct fifo_record record = fifo_record(&edge->fifo);
        FUZZ_EXPECT(record.bytes <= SLOT_BYTES);
        const unsigned char *payload = fifo_data(&edge->fifo, &record);
        unsigned sum = 0;
        for (size_t i = 0; i < record.bytes; i++) sum += payload[i];
        FUZZ_EXPECT(sum <= 255 * SLOT_BYTES);
        fifo_free(&edge->fifo);
    }
}

static void produce(struct edge *edge)
{
    FUZZ_EXPECT(fifo_room(&edge->fifo) <= SLOTS);
    while (fifo_room(&edge->fifo) > 0) fifo_post(&edge->fifo, 8, 1, 0);
}

static void carry(struct edge *edge, struct edge *twin, int peer, struct fuzz_input *input)
{
    enum status status = STATUS_OK;
    struct edge *producer = edge->config.side == EDGE_PRODUCER ? edge : twin;
    struct edge *consumer = edge->config.side == EDGE_CONSUMER ? edge : twin;
    unsigned char sink[4096];
    bool moved = false;
    while (input->bytes > 0 && status == STATUS_OK) {
        fuzz_write_piece(peer, input);
        for (int i = 0; i < 8 && status == STATUS_OK; i++) {
            if (producer != NULL) produce(producer);
            status = edge->transport->progress(edge, &moved);
            if (status == STATUS_OK && twin != NULL) status = edge->transport->progress(twin, &moved);
            if (status == STATUS_OK && consumer != NULL) consume(consumer);
        }
        while (recv(peer, sink, sizeof sink, MSG_DONTWAIT) > 0) continue;
    }
    if (producer != NULL) FUZZ_EXPECT(fifo_unfreed(&producer->fifo) <= SLOTS);
    if (consumer != NULL) consume(consumer);
}

/* The hello is one of several connections; whoever knows the nonce is the producer. */
static bool hear_hello(struct connection *connection, int mine, int peer, struct fuzz_input *input)
{
    struct stranger *stranger = &connection->strangers[0];
    *stranger = (struct stranger){
        .fd = mine, .since_ns = clock_ns(), .from = "fuzz"};
    connection->nonce = NONCE;
    bool is_caller = false;
    for (int i = 0; i < 4 && !is_caller && stranger->fd >= 0; i++) {
        fuzz_write_piece(peer, input);
        is_caller = stranger_listen(stranger, connection);
    }
    if (!is_caller) return false;
    FUZZ_EXPECT(stranger->hello.nonce == NONCE);
    connection->fd = stranger->fd;
    stranger->fd = -1;
    return true;
}

/* Parses an offer and starts to connect, to where nothing listens that minds. */
static void meet_offer(struct edge *edge, struct fuzz_input *input)
{
    bool ready = false;
    fuzz_take(&edge->peer_offer, sizeof edge->peer_offer, input);
    struct connection_offer offer;
    memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
    offer.address[sizeof offer.address - 1] = '\0';
    bool numeric = strspn(offer.address, "0123456789.") > 6;
    if (numeric && strncmp(offer.address, "127.", 4) != 0) return; /* no packets to strangers */
    if (strchr(offer.address, ':') != NULL && strcmp(offer.address, "::1") != 0) return;
    enum status status = edge->transport->connect(edge, &ready);
    FUZZ_EXPECT(status == STATUS_OK || !ready);
}

/* One that calls, so that it needs no bootstrap. */
static void open_edge(struct edge *edge, enum edge_side side, struct edge *twin, uint64_t start, struct device *device)
{
    *edge = (struct edge){.config = {.side = side,
                              .self = 1,
                              .peer = 0,
                              .slot_bytes = SLOT_BYTES,
                              .slot_count = SLOTS,
                              .start = start,
                              .shared = true,
                              .twin = twin,
                              .device = device},
        .transport = &transport_tcp,
        .phase = EDGE_READY};
    edge->fifo.slot_bytes = SLOT_BYTES;
    edge->fifo.slot_count = SLOTS;
    fifo_begin(&edge->fifo, start);
    struct edge_offer offer;
    if (edge->transport->offer(edge, &offer) != STATUS_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    uint8_t mode = fuzz_byte(&input);
    enum edge_side side = mode % 4 >= 2 ? EDGE_PRODUCER : EDGE_CONSUMER;
    uint64_t start = mode & 8 ? UINT64_MAX - 1 : 0;
    struct device *device = NULL;
    if (device_open(&device, "host") != STATUS_OK) abort();
    struct edge edge, twin;
    bool twins = (mode & 16) != 0;
    open_edge(&edge, side, NULL, start, device);
    if (twins) open_edge(&twin, side == EDGE_PRODUCER ? EDGE_CONSUMER : EDGE_PRODUCER, &edge, start, device);
    if (mode & 4) edge.landing = twin.landing = land;

    struct connection *connection = &((struct tcp_edge *)edge.state)->line->connection;
    int mine, peer;
    fuzz_connect(&mine, &peer);
    if (mode % 4 == 3) {
        meet_offer(&edge, &input);
        close(mine);
    } else {
        bool connected = mode % 4 != 1 || hear_hello(connection, mine, peer, &input);
        if (mode % 4 != 1) connection->fd = mine;
        if (connected) carry(&edge, twins ? &twin : NULL, peer, &input);
    }
    edge.transport->close(&edge);
    if (twins) twin.transport->close(&twin);
    close(peer);
    device_close(device);
    return 0;
}
