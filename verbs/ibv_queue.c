/* ibv_queue: see ibv_queue.h. */
#include "verbs/ibv_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define INLINE_BYTES    256 /* wanted; what the NIC has is asked for and then used */
#define SCATTER_ENTRIES 2
#define HOP_LIMIT       255 /* packets may be routed */
#define RECEIVER_TIMER  12  /* 0.64 ms until a sender that found no receive tries again; none does */
#define FOR_EVER        7   /* of rnr_retry */
#define END_TEXT_BYTES  224

static const char *end_text(char *text, size_t bytes, const struct queue_name *end)
{
    char port[160];
    snprintf(text, bytes, "%s, queue pair %u", nic_address_text(port, sizeof port, &end->address),
        end->number);
    return text;
}

/* ---- opening ---- */

static enum status open_pair(struct queue *queue, uint32_t sends, uint32_t receives)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = queue->cq,
        .recv_cq = queue->cq,
        .cap = {.max_send_wr = sends,
            .max_recv_wr = receives,
            .max_send_sge = SCATTER_ENTRIES,
            .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    for (uint32_t inline_bytes = INLINE_BYTES; queue->pair == NULL; inline_bytes /= 2) {
        attr.cap.max_inline_data = inline_bytes;
        queue->pair = ibv_create_qp(queue->nic->pd, &attr);
        if (inline_bytes == 0) break;
    }
    if (queue->pair == NULL) {
        char hint[320];
        int error = errno;
        return FAIL(STATUS_VERBS,
            "%s has no queue pair of %u sends and %u receives for the edge with rank %d: %s%s; "
            "lower RINGZERO_SLOTS or RINGZERO_CHANNELS",
            queue->nic->address.device, sends, receives, queue->peer_rank, strerror(error),
            nic_memlock_hint(hint, sizeof hint, error));
    }
    queue->inline_bytes = attr.cap.max_inline_data;
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
        .port_num = (uint8_t)queue->nic->address.port,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    int error = ibv_modify_qp(
        queue->pair, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0)
        return FAIL(STATUS_VERBS, "%s port %d takes no queue pair: %s", queue->nic->address.device,
            queue->nic->address.port, strerror(error));
    return STATUS_OK;
}

enum status queue_open(struct queue *queue, uint32_t sends, uint32_t receives, int peer_rank,
    const struct nic *nic, const struct nic_settings *settings)
{
    *queue = (struct queue){.nic = nic, .settings = settings, .peer_rank = peer_rank};
    char hint[320];
    queue->channel = ibv_create_comp_channel(nic->context);
    if (queue->channel == NULL ||
        fcntl(queue->channel->fd, F_SETFL, fcntl(queue->channel->fd, F_GETFL) | O_NONBLOCK) != 0)
        return FAIL(STATUS_VERBS, "%s has no completion channel: %s; raise ulimit -n",
            nic->address.device, strerror(errno));
    queue->cq = ibv_create_cq(nic->context, (int)(sends + receives), NULL, queue->channel, 0);
    if (queue->cq == NULL) {
        int error = errno;
        return FAIL(STATUS_VERBS, "%s has no completion queue of %u: %s%s", nic->address.device,
            sends + receives, strerror(error), nic_memlock_hint(hint, sizeof hint, error));
    }
    TRY(open_pair(queue, sends, receives));
    queue->self = (struct queue_name){.address = nic->address, .number = queue->pair->qp_num};
    /* Packets of an earlier connection of this number must not pass for ours. */
    if (getrandom(&queue->self.packet, sizeof queue->self.packet, 0) < 0)
        queue->self.packet = queue->pair->qp_num;
    queue->self.packet &= 0xffffff;
    return STATUS_OK;
}

void queue_close(struct queue *queue)
{
    if (queue->pair != NULL) ibv_destroy_qp(queue->pair);
    if (queue->cq != NULL && queue->events > 0) ibv_ack_cq_events(queue->cq, queue->events);
    if (queue->cq != NULL) ibv_destroy_cq(queue->cq);
    if (queue->channel != NULL) ibv_destroy_comp_channel(queue->channel);
    *queue = (struct queue){0};
}

/* ---- connecting ---- */

static enum status connect_failed(const struct queue *queue, const char *what, int error)
{
    char here[END_TEXT_BYTES], there[END_TEXT_BYTES];
    bool no_way =
        error == ENETUNREACH || error == EHOSTUNREACH || error == ETIMEDOUT || error == EINVAL;
    return FAIL(no_way ? STATUS_PEER : STATUS_VERBS,
        "verbs connection with rank %d: %s: %s%s; here %s, there %s", queue->peer_rank, what,
        strerror(error),
        no_way ? ": the two GIDs do not reach one another: correct RINGZERO_IB_DEVICE or "
                 "RINGZERO_IB_GID_INDEX"
               : "",
        end_text(here, sizeof here, &queue->self), end_text(there, sizeof there, &queue->peer));
}

/* Able to receive. */
static int modify_to_rtr(const struct queue *queue)
{
    const struct nic_address *here = &queue->self.address, *there = &queue->peer.address;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu =
            nic_mtu_enum(here->mtu_bytes < there->mtu_bytes ? here->mtu_bytes : there->mtu_bytes),
        .dest_qp_num = queue->peer.number,
        .rq_psn = queue->peer.packet,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = RECEIVER_TIMER,
        .ah_attr =
            {
                .dlid = (uint16_t)there->lid,
                .sl = (uint8_t)queue->settings->service_level,
                .port_num = (uint8_t)here->port,
                .is_global = queue->nic->global_header,
                .grh = {.sgid_index = (uint8_t)here->gid_index,
                    .hop_limit = HOP_LIMIT,
                    .traffic_class = (uint8_t)queue->settings->traffic_class},
            },
    };
    memcpy(attr.ah_attr.grh.dgid.raw, there->gid, NIC_GID_BYTES);
    return ibv_modify_qp(queue->pair, &attr,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

/* Able to send, too. */
static int modify_to_rts(const struct queue *queue)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = queue->self.packet,
        .timeout = (uint8_t)queue->settings->timeout,
        .retry_cnt = (uint8_t)queue->settings->retries,
        .rnr_retry = FOR_EVER,
        .max_rd_atomic = 1,
    };
    return ibv_modify_qp(queue->pair, &attr,
        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
            IBV_QP_MAX_QP_RD_ATOMIC);
}

enum status queue_connect(struct queue *queue, const struct queue_name *peer)
{
    queue->peer = *peer;
    queue->peer.address.device[NIC_NAME_BYTES - 1] = 0;
    char here[END_TEXT_BYTES], there[END_TEXT_BYTES];
    if (queue->peer.address.fabric != queue->self.address.fabric)
        return FAIL(STATUS_DATA,
            "verbs connection with rank %d: the two ends are of different networks: here %s, "
            "there %s; choose with RINGZERO_IB_DEVICE and RINGZERO_IB_GID_INDEX, or use "
            "--transport tcp",
            queue->peer_rank, end_text(here, sizeof here, &queue->self),
            end_text(there, sizeof there, &queue->peer));
    int error = modify_to_rtr(queue);
    if (error != 0) return connect_failed(queue, "no way to the peer", error);
    error = modify_to_rts(queue);
    if (error != 0) return connect_failed(queue, "cannot begin to send", error);
    return STATUS_OK;
}

/* ---- work ---- */

enum status queue_receive(uint64_t id, struct queue *queue)
{
    struct ibv_recv_wr request = {.wr_id = id}, *bad;
    int error = ibv_post_recv(queue->pair, &request, &bad);
    if (error != 0)
        return FAIL(STATUS_VERBS, "verbs edge with rank %d: ibv_post_recv failed: %s",
            queue->peer_rank, strerror(error));
    return STATUS_OK;
}

enum status queue_send(struct ibv_send_wr *request, struct queue *queue)
{
    struct ibv_send_wr *bad;
    int error = ibv_post_send(queue->pair, request, &bad);
    if (error != 0)
        return FAIL(STATUS_VERBS, "verbs edge with rank %d: ibv_post_send failed: %s",
            queue->peer_rank, strerror(error));
    return STATUS_OK;
}

enum status queue_send_both(
    struct ibv_send_wr *first, struct ibv_send_wr *second, struct queue *queue)
{
    first->next = second;
    return queue_send(first, queue);
}

enum status queue_poll(struct ibv_wc *done, int most, int *count, struct queue *queue)
{
    int early = queue->has_early;
    if (early) done[0] = queue->early;
    queue->has_early = false;
    *count = ibv_poll_cq(queue->cq, most - early, done + early);
    if (*count < 0)
        return FAIL(STATUS_VERBS, "verbs edge with rank %d: ibv_poll_cq failed", queue->peer_rank);
    *count += early;
    return STATUS_OK;
}

int queue_descriptor(struct queue *queue)
{
    if (queue->has_early) return EDGE_HAS_WORK;
    struct ibv_cq *cq;
    void *context;
    if (queue->armed && ibv_get_cq_event(queue->channel, &cq, &context) == 0) {
        queue->events++;
        queue->armed = false;
    }
    if (queue->armed) return queue->channel->fd; /* its event is still to come, and will wake */
    if (ibv_req_notify_cq(queue->cq, 0) != 0) return EDGE_HAS_WORK;
    queue->armed = true;
    queue->has_early = ibv_poll_cq(queue->cq, 1, &queue->early) > 0; /* before it was asked for */
    return queue->has_early ? EDGE_HAS_WORK : queue->channel->fd;
}

/* ---- failures ---- */

static const char *cause_text(
    char *text, size_t bytes, const struct ibv_wc *done, const struct queue *queue)
{
    text[0] = 0;
    if (!nic_is_active(queue->nic)) {
        snprintf(text, bytes, ": port %d of %s is down", queue->nic->address.port,
            queue->nic->address.device);
    } else if (done->status == IBV_WC_RETRY_EXC_ERR) {
        snprintf(text, bytes,
            ": no answer for %.2g s (RINGZERO_IB_TIMEOUT %d, RINGZERO_IB_RETRIES %d): the peer is "
            "gone, a link is down, or the two GIDs or the "
            "MTU do not fit the network",
            nic_patience_s(queue->settings), queue->settings->timeout, queue->settings->retries);
    } else if (done->status == IBV_WC_LOC_QP_OP_ERR) { /* the port may be about to say that it is down */
        snprintf(text, bytes, ": the port could not send: its link is down, or its driver failed (dmesg)");
    }
    return text;
}

enum status queue_explain(const struct ibv_wc *done, const char *doing, const struct queue *queue)
{
    char here[END_TEXT_BYTES], there[END_TEXT_BYTES], cause[280];
    bool by_peer = done->status == IBV_WC_RETRY_EXC_ERR || done->status == IBV_WC_REM_ACCESS_ERR ||
                   done->status == IBV_WC_REM_OP_ERR || done->status == IBV_WC_REM_INV_REQ_ERR;
    return FAIL(by_peer ? STATUS_PEER : STATUS_VERBS,
        "verbs connection with rank %d failed %s: %s (%d, vendor's %u)%s; here %s, there %s",
        queue->peer_rank, doing, ibv_wc_status_str(done->status), (int)done->status,
        done->vendor_err, cause_text(cause, sizeof cause, done, queue),
        end_text(here, sizeof here, &queue->self), end_text(there, sizeof there, &queue->peer));
}
