/* edge_ibv: an edge over RDMA: one reliable connection (ibv_queue.h) between the producer's NIC and
 * the consumer's. Both sides stage: each has slots, records and counters of its own, registered
 * once.
 *
 *   producer ──► consumer   step s: an RDMA write with immediate data
 *                           data: bytes, tag, payload[bytes], into the consumer's slot s mod S
 *                           immediate: the low half of s
 *   consumer ──► producer   credit: an empty RDMA write with immediate data,
 *                           the low half of the consumer's head, whenever half of the slots are free
 *
 * A slot on either side, 64 + slot_bytes apart; header and payload lie together, so that a step is
 * one write, of one piece when it is sent from the slot:
 *
 *   offset     0               48      56     64
 *              (unused)        bytes   tag    payload …
 *
 * A step is written only when the consumer has a slot for it (step < credit + S). The immediate
 * tells the consumer that all of the step is there: a NIC may put the bytes of a write in place in
 * any order, so no byte of it is ever polled. Each arrival takes a receive that was posted before:
 * S of them, posted again before the credit for their step leaves, so there is always one.
 *
 * The source of a step is the slot; or the user's memory where the NIC knows it
 * (registrations_find()); or, where it does not, it is copied into the slot. Short steps are taken
 * along by ibv_post_send() itself. Other sources may be used again when the NIC says that the peer
 * has the step: it is asked for the last step of each burst, and for every k-th, or when a credit
 * says so.
 */
#include "verbs/transport.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/ibv_queue.h"

#define VERBS_MAGIC     0x72696e6769627631u /* "ringibv1" */
#define SLOT_MARGIN     64 /* before a slot's payload, which so begins a cache line; ends with the header */
#define CREDIT_SENDS    8  /* credits under way; no more than 2 ever are */
#define CREDIT_RECEIVES 4
#define POLL_MOST       16
#define RECEIVE_ID      ((uint64_t)1 << 32) /* of a receive; a send's is the low half of its step */

struct verbs_offer {
    uint64_t magic;
    uint64_t slots; /* address of slot 0's payload, in the process that offers */
    uint64_t slot_bytes, slot_count;
    uint32_t key; /* by which the peer's NIC may write there */
    struct queue_name queue;
};
_Static_assert(sizeof(struct verbs_offer) <= EDGE_OFFER_BYTES, "the offer fits");

struct step_header {
    uint64_t bytes, tag;
};
_Static_assert(sizeof(struct step_header) <= SLOT_MARGIN, "the header fits");

struct verbs_edge {
    struct nics *nics;
    const struct nic *nic;
    struct queue queue;
    struct span memory; /* of all slots */
    struct registration registration;
    struct fifo_record *records;
    uint64_t tail, head; /* what edge->fifo points at */

    uint64_t step;   /* producer: the next to be written. consumer: the next to arrive */
    uint64_t credit; /* producer: the consumer's head as last told. consumer: head as last sent */
    uint64_t completed; /* producer: of these the NIC has said that they are done */
    uint64_t asked;     /* producer: of these it was asked to say so */
    uint64_t in_use;    /* producer: from these the NIC may still read */
    uint64_t lent;      /* producer: from these, in the user's memory */
    int credits_sent;   /* consumer: not yet completed */
    uint64_t peer_slots;
    uint32_t peer_key;
    bool connected; /* producer: this side is; the consumer has not said so yet */
};

/* Counters may wrap: what matters is the way from one to the other. */
static bool is_past(uint64_t counter, uint64_t mark)
{
    return (int64_t)(counter - mark) >= 0;
}

/* The counter near `known` that has this low half. */
static uint64_t widen(uint32_t low, uint64_t known)
{
    return known + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)known);
}

static struct step_header *header_of(const unsigned char *slot)
{
    return (struct step_header *)(uintptr_t)(slot - sizeof(struct step_header));
}

static unsigned char *slot_at(const struct edge *edge, uint64_t step)
{
    return edge->fifo.slots + fifo_index(&edge->fifo, step) * edge->fifo.slot_bytes;
}

/* ---- opening and connecting ---- */

static bool verbs_available(const char **why, const struct device *device)
{
    (void)device;
    if (nics_available()) return true;
    *why = status_text();
    return false;
}

static enum status open_memory(struct edge *edge)
{
    struct verbs_edge *verbs = edge->state;
    const struct edge_config *config = &edge->config;
    size_t stride = SLOT_MARGIN + config->slot_bytes;
    TRY(memory_alloc_kind(&verbs->memory, config->slot_count * stride, MEMORY_HOST_PINNED,
        MEMORY_COMMUNICATION, config->device));
    TRY(registration_open(
        &verbs->registration, verbs->memory, config->side == EDGE_CONSUMER, verbs->nic));
    verbs->records = calloc(config->slot_count, sizeof *verbs->records);
    if (verbs->records == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->fifo.slots = (unsigned char *)verbs->memory.ptr + SLOT_MARGIN;
    edge->slots_kind = verbs->memory.kind;
    edge->fifo.slot_bytes = stride;
    edge->fifo.records = verbs->records;
    edge->fifo.tail = &verbs->tail;
    edge->fifo.head = &verbs->head;
    return STATUS_OK;
}

static enum status verbs_offer(struct edge *edge, struct edge_offer *out)
{
    const struct edge_config *config = &edge->config;
    struct verbs_edge *verbs = calloc(1, sizeof *verbs);
    if (verbs == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->state = verbs;
    verbs->step = verbs->credit = verbs->tail = verbs->head = config->start;
    verbs->completed = verbs->asked = verbs->in_use = verbs->lent = config->start;
    TRY(nics_find(&verbs->nics, config->device));
    verbs->nic = nics_of_rail(config->rail, verbs->nics);
    TRY(open_memory(edge));

    bool producer = config->side == EDGE_PRODUCER;
    uint32_t slots = (uint32_t)config->slot_count;
    uint32_t sends = producer ? 2 * slots : CREDIT_SENDS,
             receives = producer ? CREDIT_RECEIVES : slots;
    TRY(queue_open(
        &verbs->queue, sends, receives, config->peer, verbs->nic, &verbs->nics->settings));
    for (uint32_t i = 0; i < receives; i++) TRY(queue_receive(RECEIVE_ID, &verbs->queue));

    struct verbs_offer offer = {
        .magic = VERBS_MAGIC,
        .slots = (uint64_t)(uintptr_t)edge->fifo.slots,
        .slot_bytes = config->slot_bytes,
        .slot_count = config->slot_count,
        .key = verbs->registration.mr->rkey,
        .queue = verbs->queue.self,
    };
    memcpy(out->bytes, &offer, sizeof offer);
    return STATUS_OK;
}

/* The producer waits for the consumer's word that it can receive: see ibv_queue.h. */
static enum status verbs_connect(struct edge *edge, bool *ready)
{
    struct verbs_edge *verbs = edge->state;
    uint64_t word = VERBS_MAGIC;
    if (!verbs->connected) {
        struct verbs_offer offer;
        memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
        if (offer.magic != VERBS_MAGIC || offer.slot_bytes != edge->config.slot_bytes ||
            offer.slot_count != edge->config.slot_count)
            return FAIL(STATUS_DATA,
                "rank %d offers a verbs edge of %llu slots of %llu bytes, expected %llu of %zu",
                edge->config.peer, (unsigned long long)offer.slot_count,
                (unsigned long long)offer.slot_bytes, (unsigned long long)edge->config.slot_count,
                edge->config.slot_bytes);
        TRY(queue_connect(&verbs->queue, &offer.queue));
        verbs->peer_slots = offer.slots;
        verbs->peer_key = offer.key;
        verbs->connected = true;
        if (edge->config.side == EDGE_CONSUMER) TRY(edge_tell(edge, &word, sizeof word));
    }
    if (edge->config.side == EDGE_CONSUMER) *ready = true;
    else TRY(edge_hear(edge, &word, sizeof word, ready));
    return STATUS_OK;
}

/* ---- producer: steps out, credits in ---- */

/* How many steps have sources that are free again. Short ones behind a long one that is under way
 * are found free with it. */
static void producer_move_head(struct verbs_edge *verbs)
{
    uint64_t arrived = is_past(verbs->completed, verbs->credit) ? verbs->completed : verbs->credit;
    uint64_t head = is_past(arrived, verbs->in_use) ? verbs->step : arrived;
    if (head != verbs->head && is_past(head, verbs->head))
        __atomic_store_n(
            &verbs->head, head, __ATOMIC_RELEASE); /* pairs with the acquire in fifo_room() */
}

static enum status producer_take(struct edge *edge, const struct ibv_wc *done)
{
    struct verbs_edge *verbs = edge->state;
    if (done->status != IBV_WC_SUCCESS)
        return queue_explain(
            done, done->wr_id == RECEIVE_ID ? "receiving credit" : "sending", &verbs->queue);
    if (done->wr_id != RECEIVE_ID) {
        verbs->completed = widen((uint32_t)done->wr_id, verbs->completed) + 1;
        return STATUS_OK;
    }
    uint64_t credit = widen(ntohl(done->imm_data), verbs->credit);
    if (!is_past(credit, verbs->credit) || !is_past(verbs->step, credit))
        return FAIL(STATUS_DATA, "rank %d gives credit up to step %llu, but only %llu were sent",
            edge->config.peer, (unsigned long long)credit, (unsigned long long)verbs->step);
    verbs->credit = credit;
    return queue_receive(RECEIVE_ID, &verbs->queue);
}

/* The pieces that the step is sent from; returns their number. */
static int producer_gather(
    struct ibv_sge *pieces, struct edge *edge, const struct fifo_record *record)
{
    struct verbs_edge *verbs = edge->state;
    unsigned char *slot = slot_at(edge, verbs->step),
                  *from = (unsigned char *)(uintptr_t)record->address;
    *header_of(slot) = (struct step_header){record->bytes, record->tag};
    size_t bytes = record->bytes;
    pieces[0] = (struct ibv_sge){.addr = (uintptr_t)header_of(slot),
        .length = sizeof(struct step_header),
        .lkey = verbs->registration.mr->lkey};
    if (from != NULL && bytes > 0) {
        bool short_one = sizeof(struct step_header) + bytes <= verbs->queue.inline_bytes;
        pieces[1] = (struct ibv_sge){.addr = (uintptr_t)from, .length = (uint32_t)bytes};
        if (short_one) return 2;
        if (registrations_find(&pieces[1].lkey, from, bytes, verbs->nic, edge->config.device,
                &verbs->nics->registrations)) {
            verbs->lent = verbs->step + 1;
            return 2;
        }
        memcpy(slot, from, bytes);
    }
    pieces[0].length += (uint32_t)bytes;
    return 1;
}

static enum status producer_send_step(struct edge *edge)
{
    struct verbs_edge *verbs = edge->state;
    const struct fifo_record *record = &verbs->records[fifo_index(&edge->fifo, verbs->step)];
    struct ibv_sge pieces[2];
    uint64_t every = edge->config.slot_count > 1 ? edge->config.slot_count / 2 : 1;
    bool short_one = sizeof(struct step_header) + record->bytes <= verbs->queue.inline_bytes;
    struct ibv_send_wr request = {
        .wr_id = (uint32_t)verbs->step,
        .sg_list = pieces,
        .num_sge = producer_gather(pieces, edge, record),
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .imm_data = htonl((uint32_t)verbs->step),
        .wr.rdma = {.rkey = verbs->peer_key,
            .remote_addr = verbs->peer_slots +
                           fifo_index(&edge->fifo, verbs->step) * edge->fifo.slot_bytes -
                           sizeof(struct step_header)},
    };
    verbs->step++;
    if (short_one) request.send_flags |= IBV_SEND_INLINE;
    else verbs->in_use = verbs->step;
    /* The queue's places come back with completions only, those of short steps too. */
    if ((!short_one && verbs->step == verbs->tail) || verbs->step - verbs->asked >= every) {
        request.send_flags |= IBV_SEND_SIGNALED;
        verbs->asked = verbs->step;
    }
    return queue_send(&request, &verbs->queue);
}

static enum status producer_send(struct edge *edge, bool *moved)
{
    struct verbs_edge *verbs = edge->state;
    uint64_t slots = edge->config.slot_count;
    while (verbs->step != verbs->tail && verbs->step - verbs->credit < slots &&
           verbs->step - verbs->completed < 2 * slots) {
        TRY(producer_send_step(edge));
        *moved = true;
    }
    return STATUS_OK;
}

/* ---- consumer: steps in, credits out ---- */

/* Half of the slots at a time: the producer always has the other half to go on with. */
static bool credit_is_due(const struct edge *edge)
{
    const struct verbs_edge *verbs = edge->state;
    uint64_t half = edge->config.slot_count > 1 ? edge->config.slot_count / 2 : 1;
    return verbs->head - verbs->credit >= half;
}

static enum status consumer_send_credit(struct edge *edge, bool *moved)
{
    struct verbs_edge *verbs = edge->state;
    if (!credit_is_due(edge) || verbs->credits_sent == CREDIT_SENDS) return STATUS_OK;
    struct ibv_send_wr request = {
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htonl((uint32_t)verbs->head),
        .wr.rdma = {.rkey = verbs->peer_key, .remote_addr = verbs->peer_slots},
    };
    TRY(queue_send(&request, &verbs->queue));
    verbs->credit = verbs->head;
    verbs->credits_sent++;
    *moved = true;
    return STATUS_OK;
}

static enum status consumer_take(struct edge *edge, const struct ibv_wc *done)
{
    struct verbs_edge *verbs = edge->state;
    if (done->status != IBV_WC_SUCCESS)
        return queue_explain(
            done, done->wr_id == RECEIVE_ID ? "receiving" : "sending credit", &verbs->queue);
    if (done->wr_id != RECEIVE_ID) {
        verbs->credits_sent--;
        return STATUS_OK;
    }
    struct step_header header = *header_of(slot_at(edge, verbs->step));
    if (ntohl(done->imm_data) != (uint32_t)verbs->step || header.bytes > edge->config.slot_bytes ||
        verbs->step - verbs->head >= edge->config.slot_count)
        return FAIL(STATUS_DATA,
            "rank %d sends step %u of %llu bytes, expected step %u of at most %zu",
            edge->config.peer, ntohl(done->imm_data), (unsigned long long)header.bytes,
            (uint32_t)verbs->step, edge->config.slot_bytes);
    verbs->records[fifo_index(&edge->fifo, verbs->step)] =
        (struct fifo_record){.bytes = header.bytes, .tag = header.tag};
    verbs->step++;
    __atomic_store_n(
        &verbs->tail, verbs->step, __ATOMIC_RELEASE); /* pairs with the acquire in fifo_ready() */
    return queue_receive(RECEIVE_ID, &verbs->queue);
}

/* ---- both ---- */

static enum status take_completions(struct edge *edge, bool *moved)
{
    struct verbs_edge *verbs = edge->state;
    struct ibv_wc done[POLL_MOST];
    int count = POLL_MOST;
    while (count == POLL_MOST) {
        TRY(queue_poll(done, POLL_MOST, &count, &verbs->queue));
        for (int i = 0; i < count; i++)
            TRY(edge->config.side == EDGE_PRODUCER ? producer_take(edge, &done[i])
                                                   : consumer_take(edge, &done[i]));
        *moved = *moved || count > 0;
    }
    return STATUS_OK;
}

static enum status verbs_progress(struct edge *edge, bool *moved)
{
    struct verbs_edge *verbs = edge->state;
    TRY(take_completions(edge, moved));
    if (edge->config.side == EDGE_CONSUMER) return consumer_send_credit(edge, moved);
    TRY(producer_send(edge, moved));
    producer_move_head(verbs);
    return STATUS_OK;
}

/* What was handed to the NIC leaves without this process' doing, as long as it lives; the user's
 * memory must stay until it has. */
static bool verbs_drained(const struct edge *edge)
{
    const struct verbs_edge *verbs = edge->state;
    if (edge->config.side == EDGE_CONSUMER) return !credit_is_due(edge);
    return verbs->step == verbs->tail &&
           (is_past(verbs->completed, verbs->lent) || is_past(verbs->credit, verbs->lent));
}

static int verbs_descriptor(const struct edge *edge, short *events)
{
    struct verbs_edge *verbs = edge->state;
    *events = POLLIN;
    if (edge->config.side == EDGE_PRODUCER && verbs_drained(edge))
        return -1; /* waits for nothing */
    return queue_descriptor(&verbs->queue);
}

static void verbs_close(struct edge *edge)
{
    struct verbs_edge *verbs = edge->state;
    if (verbs == NULL) return;
    queue_close(&verbs->queue);
    registration_close(&verbs->registration);
    memory_free(&verbs->memory, MEMORY_COMMUNICATION, edge->config.device);
    free(verbs->records);
    free(verbs);
    edge->state = NULL;
}

const struct transport transport_verbs = {
    .name = "verbs",
    .reads_address = true,
    .available = verbs_available,
    .offer = verbs_offer,
    .connect = verbs_connect,
    .progress = verbs_progress,
    .drained = verbs_drained,
    .descriptor = verbs_descriptor,
    .close = verbs_close,
};
