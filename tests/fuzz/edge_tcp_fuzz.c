/* edge_tcp_fuzz: what arrives at either end of a TCP edge: the hello, frames and payloads at the consumer, credits at
 * the producer, and the offer that came by the mailbox.
 *
 * input   mode, { length, bytes }…
 *   mode mod 4   0 consumer: steps   1 consumer: a stranger's hello, then steps   2 producer: credits   3 producer: an offer
 *   bit 2        the consumer has a landing for every second step
 */
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

static void carry(struct edge *edge, int peer, bool producer, struct fuzz_input *input)
{
    enum status status = STATUS_OK;
    unsigned char sink[4096];
    bool moved = false;
    while (input->bytes > 0 && status == STATUS_OK) {
        fuzz_write_piece(peer, input);
        for (int i = 0; i < 8 && status == STATUS_OK; i++) {
            if (producer) produce(edge);
            status = edge->transport->progress(edge, &moved);
            if (status == STATUS_OK && !producer) consume(edge);
        }
        while (recv(peer, sink, sizeof sink, MSG_DONTWAIT) > 0) continue;
    }
    if (producer) FUZZ_EXPECT(fifo_unfreed(&edge->fifo) <= SLOTS);
    else consume(edge);
}

/* The hello is one of several connections; whoever knows the nonce is the producer. */
static bool hear_hello(struct edge *edge, int mine, int peer, struct fuzz_input *input)
{
    struct tcp_edge *tcp = edge->state;
    struct stranger *stranger = &tcp->strangers[0];
    *stranger = (struct stranger){.fd = mine, .deadline_ns = clock_ns() + clock_ms_to_ns(STRANGER_MS), .from = "fuzz"};
    tcp->nonce = NONCE;
    bool is_producer = false;
    for (int i = 0; i < 4 && !is_producer && stranger->fd >= 0; i++) {
        fuzz_write_piece(peer, input);
        is_producer = stranger_listen(stranger, edge);
    }
    if (!is_producer) return false;
    FUZZ_EXPECT(stranger->hello.nonce == NONCE);
    tcp->fd = stranger->fd;
    stranger->fd = -1;
    return true;
}

/* Parses an offer and starts to connect, to where nothing listens that minds. */
static void meet_offer(struct edge *edge, struct fuzz_input *input)
{
    bool ready = false;
    fuzz_take(&edge->peer_offer, sizeof edge->peer_offer, input);
    struct tcp_offer offer;
    memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
    offer.address[sizeof offer.address - 1] = '\0';
    bool numeric = strspn(offer.address, "0123456789.") > 6;
    if (numeric && strncmp(offer.address, "127.", 4) != 0) return; /* no packets to strangers */
    if (strchr(offer.address, ':') != NULL && strcmp(offer.address, "::1") != 0) return;
    enum status status = edge->transport->connect(edge, &ready);
    FUZZ_EXPECT(status == STATUS_OK || !ready);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input input = {data, bytes};
    uint8_t mode = fuzz_byte(&input);
    bool producer = mode % 4 >= 2;
    struct device *device = NULL;
    if (device_open(&device, "host") != STATUS_OK) abort();
    struct edge edge = {.config = {.side = EDGE_PRODUCER,
                            .self = 0,
                            .peer = 1,
                            .slot_bytes = SLOT_BYTES,
                            .slot_count = SLOTS,
                            .start = mode & 8 ? UINT64_MAX - 1 : 0,
                            .device = device},
        .transport = &transport_tcp};
    edge.fifo.slot_bytes = SLOT_BYTES;
    edge.fifo.slot_count = SLOTS;
    fifo_begin(&edge.fifo, edge.config.start);
    struct edge_offer offer;
    if (edge.transport->offer(&edge, &offer) != STATUS_OK) abort(); /* a producer's: it needs no bootstrap */
    edge.config.side = producer ? EDGE_PRODUCER : EDGE_CONSUMER;
    if (mode & 4) edge.landing = land;

    struct tcp_edge *tcp = edge.state;
    int mine, peer;
    fuzz_connect(&mine, &peer);
    if (mode % 4 == 3) {
        meet_offer(&edge, &input);
        close(mine);
    } else {
        bool connected = mode % 4 != 1 || hear_hello(&edge, mine, peer, &input);
        if (mode % 4 != 1) tcp->fd = mine;
        edge.phase = EDGE_READY;
        if (connected) carry(&edge, peer, producer, &input);
    }
    edge.transport->close(&edge);
    close(peer);
    device_close(device);
    return 0;
}
