/* edge_ibv: an edge over RDMA: one reliable connection (ibv_queue.h) between the producer's NIC and
 * the consumer's. Both sides stage: each has slots, records and counters of its own, registered
 * once.
 *
 *   producer ──► consumer   step s: an RDMA write with immediate data
 *                           data: bytes, tag, payload[bytes], into the consumer's slot s mod S
 *                           immediate: the low half of s
 *   consumer ──► producer   credit: an empty RDMA write with immediate data,
 *                           the low half of the consumer's head, whenever half of the slots are
 * free
 *
 * A slot on either side, 64 + slot_bytes apart; header and payload lie together, so that a step is
 * one write, of one piece when it is sent from the slot:
 *
 *   offset     0               48      56     64
 *              (unused)        bytes   tag    payload …
 *
 * Slots in CUDA memory that the NIC reaches (ibv_gpu.h) are apart from their headers, which the CPU
 * reads: payloads slot_bytes apart there, headers 64 apart in host memory. A step into such slots
 * is two writes, the payload and then the header with the immediate; and before the consumer sees
 * tail the GPU is told to look (nic_flush) where it does not by itself. Each side has its own
 * layout.
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

#include "verbs/device_ops.h"
#include "verbs/ibv_queue.h"
#include "verbs/log.h"

#define VERBS_MAGIC 0x72696e6769627631u /* "ringibv1" */
#define SLOT_MARGIN                                                                                \
    64 /* before a slot's payload, which so begins a cache line; ends with the header */
#define CREDIT_SENDS    8 /* credits under way; no more than 2 ever are */
#define CREDIT_RECEIVES 4
#define POLL_MOST       16
#define RECEIVE_ID      ((uint64_t)1 << 32) /* of a receive; a send's is the low half of its step */

/* Where the slots are: address of slot 0's payload and header, the way to the next, and the keys by
 * which the peer's NIC may write there. */
struct layout {
    uint64_t payloads, headers;
    uint64_t payload_stride, header_stride;
    uint32_t payload_key, header_key;
};

struct verbs_offer {
    uint64_t magic;
    uint64_t slot_bytes, slot_count;
    struct layout layout;
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
    struct span memory;   /* of all headers, and of the payloads unless they are apart */
    struct span payloads; /* apart: in CUDA memory; ptr NULL: they are not */
    struct registration registration, payload_registration;
    bool flushes; /* consumer: the GPU must be told to look */
    struct fifo_record *records;
    uint64_t tail, head; /* what edge->fifo points at */

    uint64_t step;   /* producer: the next to be written. consumer: the next to arrive */
    uint64_t credit; /* producer: the consumer's head as last told. consumer: head as last sent */
    uint64_t completed; /* producer: of these the NIC has said that they are done */
    uint64_t asked;     /* producer: of these it was asked to say so */
    uint64_t in_use;    /* producer: from these the NIC may still read */
    uint64_t lent;      /* producer: from these, in the user's memory */
    int credits_sent;   /* consumer: not yet completed */
    struct layout own, peer;
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

static uint64_t payload_at(const struct layout *layout, uint64_t index)
{
    return layout->payloads + index * layout->payload_stride;
}

static uint64_t header_at(const struct layout *layout, uint64_t index)
{
    return layout->headers + index * layout->header_stride;
}

/* Its payload lies behind its header. */
static bool is_together(const struct layout *layout)
{
    return layout->headers + sizeof(struct step_header) == layout->payloads;
}

static struct step_header *own_header(const struct edge *edge, uint64_t step)
{
    const struct verbs_edge *verbs = edge->state;
    return (struct step_header *)(uintptr_t)header_at(&verbs->own, fifo_index(&edge->fifo, step));
}

/* ---- opening and connecting ---- */

static bool verbs_available(const char **why, const struct device *device)
{
    (void)device;
    if (nics_available()) return true;
    *why = status_text();
    return false;
}

/* Slots in CUDA memory, if the NIC reaches it; else payloads.ptr is NULL, with a word in the log.
 * */
static enum status open_payloads(struct verbs_edge *verbs, const struct edge_config *config)
{
    bool consumer = config->side == EDGE_CONSUMER;
    struct device *device = config->device;
    TRY(memory_alloc(
        &verbs->payloads, config->slot_count * config->slot_bytes, MEMORY_COMMUNICATION, device));
    if (registration_open(&verbs->payload_registration, verbs->payloads, consumer, verbs->nic,
            device) == STATUS_OK) {
        verbs->flushes =
            consumer && device->ops->nic_flush != NULL && device->ops->nic_flush_needed(device);
        return STATUS_OK;
    }
    LOG_WARN("verbs", "to and from rank %d by pinned host memory: %s", config->peer, status_text());
    memory_free(&verbs->payloads, MEMORY_COMMUNICATION, device);
    return STATUS_OK;
}

static enum status open_memory(struct edge *edge)
{
    struct verbs_edge *verbs = edge->state;
    const struct edge_config *config = &edge->config;
    if (device_kind(config->device) == MEMORY_CUDA) TRY(open_payloads(verbs, config));
    bool apart = verbs->payloads.ptr != NULL;
    size_t stride = apart ? SLOT_MARGIN : SLOT_MARGIN + config->slot_bytes;
    TRY(memory_alloc_kind(&verbs->memory, config->slot_count * stride, MEMORY_HOST_PINNED,
        MEMORY_COMMUNICATION, config->device));
    TRY(registration_open(&verbs->registration, verbs->memory, config->side == EDGE_CONSUMER,
        verbs->nic, config->device));
    verbs->records = calloc(config->slot_count, sizeof *verbs->records);
    if (verbs->records == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    uint64_t memory = (uintptr_t)verbs->memory.ptr;
    const struct ibv_mr *headers = verbs->registration.mr,
                        *payloads = apart ? verbs->payload_registration.mr : headers;
    verbs->own = (struct layout){
        .payloads = apart ? (uintptr_t)verbs->payloads.ptr : memory + SLOT_MARGIN,
        .headers = memory + SLOT_MARGIN - sizeof(struct step_header),
        .payload_stride = apart ? config->slot_bytes : stride,
        .header_stride = stride,
        .payload_key = payloads->rkey,
        .header_key = headers->rkey,
    };
    edge->fifo.slots = (unsigned char *)(uintptr_t)verbs->own.payloads;
    edge->fifo.slot_bytes = verbs->own.payload_stride;
    edge->slots_kind = apart ? MEMORY_CUDA : verbs->memory.kind;
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
    uint32_t sends = producer ? 4 * slots : CREDIT_SENDS, /* a step is two writes at most */
        receives = producer ? CREDIT_RECEIVES : slots;
    TRY(queue_open(
        &verbs->queue, sends, receives, config->peer, verbs->nic, &verbs->nics->settings));
    for (uint32_t i = 0; i < receives; i++) TRY(queue_receive(RECEIVE_ID, &verbs->queue));

    struct verbs_offer offer = {
        .magic = VERBS_MAGIC,
        .slot_bytes = config->slot_bytes,
        .slot_count = config->slot_count,
        .layout = verbs->own,
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
        verbs->peer = offer.layout;
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

/* The kind of the memory that a record's address is in. */
static enum memory_kind kind_of(const void *ptr, size_t bytes, struct device *device)
{
    struct allocation found;
    return device_kind(device) == MEMORY_CUDA && memory_find(&found, ptr, bytes, device)
               ? found.kind
               : MEMORY_HOST;
}

/* A step on its way out: its two pieces, and whether the CPU can take both along. */
struct departure {
    struct ibv_sge header, payload;
    bool inlined;
};

/* Writes the header, and finds where the payload can be sent from: the user's memory, the slot. */
static enum status producer_prepare(
    struct departure *out, struct edge *edge, const struct fifo_record *record)
{
    struct verbs_edge *verbs = edge->state;
    struct device *device = edge->config.device;
    uint64_t index = fifo_index(&edge->fifo, verbs->step);
    void *from = (void *)(uintptr_t)record->address;
    const struct registration *slots =
        verbs->payloads.ptr != NULL ? &verbs->payload_registration : &verbs->registration;
    struct span slot = {(void *)(uintptr_t)payload_at(&verbs->own, index), record->bytes,
        edge->slots_kind, device->index};
    enum memory_kind kind = edge->slots_kind;
    *own_header(edge, verbs->step) = (struct step_header){record->bytes, record->tag};
    out->header = (struct ibv_sge){.addr = header_at(&verbs->own, index),
        .length = sizeof(struct step_header),
        .lkey = verbs->registration.mr->lkey};
    out->payload = (struct ibv_sge){
        .addr = (uintptr_t)slot.ptr, .length = (uint32_t)record->bytes, .lkey = slots->mr->lkey};
    bool fits = sizeof(struct step_header) + record->bytes <= verbs->queue.inline_bytes;
    if (from != NULL && record->bytes > 0) {
        uint32_t key = 0;
        kind = kind_of(from, record->bytes, device);
        bool inlined = fits && kind != MEMORY_CUDA;
        if (inlined || registrations_find(&key, from, record->bytes, verbs->nic, device,
                           &verbs->nics->registrations)) {
            out->payload.addr = (uintptr_t)from;
            out->payload.lkey = key;
            if (!inlined) verbs->lent = verbs->step + 1;
        } else {
            struct span source = {from, record->bytes, kind, device->index};
            TRY(span_copy(slot, source, NULL, device));
            kind = edge->slots_kind;
        }
    }
    out->inlined = fits && (kind != MEMORY_CUDA || record->bytes == 0);
    return STATUS_OK;
}

/* One write where the peer's slot is in one piece, else the payload ahead of its header. */
static enum status producer_write(struct edge *edge, const struct departure *out, unsigned flags)
{
    struct verbs_edge *verbs = edge->state;
    uint64_t index = fifo_index(&edge->fifo, verbs->step);
    struct ibv_sge header = out->header, payload = out->payload, pieces[2] = {header, payload};
    bool apart = !is_together(&verbs->peer) && payload.length > 0;
    bool one_piece = header.addr + header.length == payload.addr && header.lkey == payload.lkey;
    struct ibv_send_wr last = {
        .wr_id = (uint32_t)verbs->step,
        .sg_list = pieces,
        .num_sge = apart || one_piece || payload.length == 0 ? 1 : 2,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = flags,
        .imm_data = htonl((uint32_t)verbs->step),
        .wr.rdma = {.rkey = verbs->peer.header_key, .remote_addr = header_at(&verbs->peer, index)},
    };
    struct ibv_send_wr first = {
        .wr_id = (uint32_t)verbs->step,
        .sg_list = &payload,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = flags & ~(unsigned)IBV_SEND_SIGNALED,
        .wr.rdma = {.rkey = verbs->peer.payload_key,
            .remote_addr = payload_at(&verbs->peer, index)},
    };
    if (!apart && one_piece) pieces[0].length += payload.length;
    if (apart) return queue_send_both(&first, &last, &verbs->queue);
    return queue_send(&last, &verbs->queue);
}

static enum status producer_send_step(struct edge *edge)
{
    struct verbs_edge *verbs = edge->state;
    const struct fifo_record *record = &verbs->records[fifo_index(&edge->fifo, verbs->step)];
    struct departure out = {.inlined = false};
    uint64_t every = edge->config.slot_count > 1 ? edge->config.slot_count / 2 : 1;
    TRY(producer_prepare(&out, edge, record));
    uint64_t after = verbs->step + 1;
    unsigned flags = out.inlined ? IBV_SEND_INLINE : 0;
    if (!out.inlined) verbs->in_use = after;
    /* The queue's places come back with completions only, those of short steps too. */
    if ((!out.inlined && after == verbs->tail) || after - verbs->asked >= every) {
        flags |= IBV_SEND_SIGNALED;
        verbs->asked = after;
    }
    TRY(producer_write(edge, &out, flags));
    verbs->step = after;
    return STATUS_OK;
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
        .wr.rdma = {.rkey = verbs->peer.payload_key, .remote_addr = verbs->peer.payloads},
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
    struct step_header header = *own_header(edge, verbs->step);
    if (ntohl(done->imm_data) != (uint32_t)verbs->step || header.bytes > edge->config.slot_bytes ||
        verbs->step - verbs->head >= edge->config.slot_count)
        return FAIL(STATUS_DATA,
            "rank %d sends step %u of %llu bytes, expected step %u of at most %zu",
            edge->config.peer, ntohl(done->imm_data), (unsigned long long)header.bytes,
            (uint32_t)verbs->step, edge->config.slot_bytes);
    verbs->records[fifo_index(&edge->fifo, verbs->step)] =
        (struct fifo_record){.bytes = header.bytes, .tag = header.tag};
    verbs->step++; /* shown by consumer_show() */
    return queue_receive(RECEIVE_ID, &verbs->queue);
}

/* What has arrived, in the consumer's memory kind. */
static enum status consumer_show(struct edge *edge)
{
    struct verbs_edge *verbs = edge->state;
    if (verbs->tail == verbs->step) return STATUS_OK;
    if (verbs->flushes) TRY(edge->config.device->ops->nic_flush(edge->config.device));
    __atomic_store_n(
        &verbs->tail, verbs->step, __ATOMIC_RELEASE); /* pairs with the acquire in fifo_ready() */
    return STATUS_OK;
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
        if (edge->config.side == EDGE_CONSUMER) TRY(consumer_show(edge));
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
    registration_close(&verbs->payload_registration);
    memory_free(&verbs->payloads, MEMORY_COMMUNICATION, edge->config.device);
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
