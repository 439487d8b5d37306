/* ibv_queue: a reliable connection between two ports: one queue pair, one completion queue for both
 * its ends of work, and a descriptor to sleep by. Knows verbs; knows nothing of steps.
 *
 *   this side               the peer
 *   queue_open()     INIT   queue_open()        each tells the other its queue_name
 *   queue_connect()  RTS    queue_connect()     nothing may be sent to a side that is not here yet:
 *                                               it would be lost, and missed only after
 *                                               RINGZERO_IB_TIMEOUT
 *
 *   queue_poll()        completions, in order; one that failed is a failure at once: queue_explain()
 *   queue_descriptor()  asked before sleep: asks the NIC for an event at the first completion to
 *                       come, and looks once more whether one came before that. This costs system
 *                       calls, so nobody asks while polls still find something
 */
#ifndef VERBS_IBV_QUEUE_H
#define VERBS_IBV_QUEUE_H

#include <infiniband/verbs.h>

#include "verbs/ibv_device.h"
#include "verbs/transport.h"

/* One end, as the other must know it. */
struct queue_name {
    struct nic_address address;
    uint32_t number, packet; /* of the queue pair; of its first packet */
};

struct queue {
    const struct nic *nic;
    const struct nic_settings *settings;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *pair;
    struct queue_name self, peer;
    int peer_rank;
    /* Messages up to this size are taken along by ibv_post_send(): their source is free at once. */
    size_t inline_bytes;
    bool armed;          /* an event will come, or has come and waits, for a completion since */
    struct ibv_wc early; /* of the last look before sleep: given out by the next poll */
    bool has_early;
    unsigned events; /* taken from the channel: all must be given back before the end */
};

/* Room for so many requests sent and receives posted at a time. nic and settings must outlive it.
 * errors: VERBS. The queue is then half open; queue_close() accepts that, and a zeroed one. */
MUST_CHECK enum status queue_open(struct queue *queue, uint32_t sends, uint32_t receives,
    int peer_rank, const struct nic *nic, const struct nic_settings *settings);
void queue_close(struct queue *queue);

/* errors: DATA when the two ports cannot talk (another kind of network); VERBS, PEER when the way
 * to the peer is not found. May take up to a second on RoCE, where the kernel asks the network for
 * the peer's address. */
MUST_CHECK enum status queue_connect(struct queue *queue, const struct queue_name *peer);

/* Room for one more arrival of a write with immediate data. */
MUST_CHECK enum status queue_receive(uint64_t id, struct queue *queue);

MUST_CHECK enum status queue_send(struct ibv_send_wr *request, struct queue *queue);
/* The second arrives after the first; either both are sent or none. */
MUST_CHECK enum status queue_send_both(
    struct ibv_send_wr *first, struct ibv_send_wr *second, struct queue *queue);

/* Completions into done[most]; *count of them, perhaps 0. Whoever gets one with a status other than
 * IBV_WC_SUCCESS calls queue_explain(). */
MUST_CHECK enum status queue_poll(struct ibv_wc *done, int most, int *count, struct queue *queue);

/* The failure that a completion tells of: its text, what it may come from, and both ends. */
enum status queue_explain(const struct ibv_wc *done, const char *doing, const struct queue *queue);

/* Readable from the first completion on; EDGE_HAS_WORK when there is one now, or when it cannot be
 * told: then do not sleep. */
int queue_descriptor(struct queue *queue);

#endif
