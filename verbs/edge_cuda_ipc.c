/* edge_cuda_ipc: an edge between ranks of one host whose slots are CUDA memory of the consumer. The
 * producer opens them (device_ipc.h) and its copies and kernels write there; records, counters and
 * lines are in a segment of the host that both map (edge_segment.h), told to CUDA so that kernels
 * reach them too.
 *
 *   consumer                                     producer
 *   1 slots in CUDA memory, a segment; offers
 *                                                2 attaches to the segment, tries to open the slots
 *                                                3 place = PLACE_DEVICE, or, where that does not
 * work,
 *                                                  PLACE_HOST: the slots are at the segment's end,
 *                                                  pinned. A word in the log
 *   4 reads place: keeps its slots, or gives
 *     them back for those of the segment
 *                                   … steps …
 *   5 edge_close(): slots that the producer      5 edge_close(): closes what it opened, then
 *     still has open linger                        detached = 1
 *   6 frees them when it reads detached, or
 *     the producer's process is gone
 *
 * Invariant: memory is freed only when no other process has it open (CUDA leaves it undefined
 * else), and nobody waits for that in edge_close(): two ranks that each wait for the other's close
 * would wait for ever. What lingers is freed by a later open or close of such an edge, at the
 * latest by device_close(), whose wait has a deadline. It is no longer in the account: no edge
 * holds it.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "verbs/clock.h"
#include "verbs/device_internal.h"
#include "verbs/device_ipc.h"
#include "verbs/edge_segment.h"
#include "verbs/log.h"

#define LINGER_DEADLINE_MS 5000

/* Words of the segment. */
enum { WORD_PLACE, WORD_DETACHED, WORD_CLOSED };
enum place { PLACE_UNDECIDED, PLACE_DEVICE, PLACE_HOST };

struct cuda_offer {
    struct bell_offer bell;       /* all zero: none */
    struct segment_offer segment; /* the consumer's */
    struct ipc_offer slots;       /* likewise */
};
_Static_assert(sizeof(struct cuda_offer) <= EDGE_OFFER_BYTES, "the offer fits");

struct cuda_edge {
    struct segment segment;
    struct span slots; /* consumer: its CUDA memory; ptr NULL: none (any more) */
    struct lingerers *lingerers;
    struct lingering *lingering; /* consumer: for when the slots linger */
    struct ipc_import import;    /* producer */
    size_t counted;              /* bytes of the segment in the account */
    bool registered;             /* the segment is, with CUDA */
    uint64_t closed_head;        /* producer: its head until it is ready */
    uint64_t closed_tail;        /* consumer: its tail until it is ready */
};

/* ---- slots that outlive their edge ---- */

struct lingering {
    struct lingering *after;
    struct span slots;
    struct segment segment;
    int64_t peer_pid;
    int peer;
};

struct lingerers {
    struct device_companion companion; /* first */
    struct device *device;
    pthread_mutex_t lock; /* of what follows */
    struct lingering *list;
};

/* Also when it is dead and nobody has reaped it yet. */
static bool process_is_gone(int64_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    if (fd < 0) return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    struct pollfd end = {.fd = fd, .events = POLLIN};
    bool gone = poll(&end, 1, 0) > 0;
    close(fd);
    return gone;
}

static bool is_let_go(const struct lingering *lingering)
{
    return __atomic_load_n(segment_word(&lingering->segment, WORD_DETACHED), __ATOMIC_ACQUIRE) !=
               0 ||
           process_is_gone(lingering->peer_pid); /* detached: written by cuda_close() */
}

static void lingering_free(struct lingering *lingering, struct device *device)
{
    device_count(device, MEMORY_COMMUNICATION,
        (int64_t)lingering->slots.bytes); /* memory_free() takes it out */
    memory_free(&lingering->slots, MEMORY_COMMUNICATION, device);
    segment_close(&lingering->segment);
    free(lingering);
}

/* How many are left. */
static int sweep(struct lingerers *lingerers)
{
    int left = 0;
    pthread_mutex_lock(&lingerers->lock);
    for (struct lingering **link = &lingerers->list; *link != NULL;) {
        struct lingering *lingering = *link;
        if (is_let_go(lingering)) {
            *link = lingering->after;
            lingering_free(lingering, lingerers->device);
        } else {
            link = &lingering->after;
            left++;
        }
    }
    pthread_mutex_unlock(&lingerers->lock);
    return left;
}

static void lingerers_close(struct device_companion *companion)
{
    struct lingerers *lingerers = (struct lingerers *)(void *)companion;
    int64_t deadline = clock_ns() + clock_ms_to_ns(LINGER_DEADLINE_MS);
    struct timespec moment = {0, 1000000};
    while (sweep(lingerers) > 0 && clock_ns() < deadline) nanosleep(&moment, NULL);
    for (struct lingering *lingering = lingerers->list; lingering != NULL;) {
        struct lingering *after = lingering->after;
        LOG_WARN("cuda_ipc",
            "rank %d still has %zu bytes of this rank's memory open after %d ms; expected it to "
            "close its edges: "
            "they are freed all the same",
            lingering->peer, lingering->slots.bytes, LINGER_DEADLINE_MS);
        lingering_free(lingering, lingerers->device);
        lingering = after;
    }
    pthread_mutex_destroy(&lingerers->lock);
    free(lingerers);
}

static enum status lingerers_open(struct device_companion **companion)
{
    struct lingerers *lingerers = calloc(1, sizeof *lingerers);
    if (lingerers == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    pthread_mutex_init(&lingerers->lock, NULL);
    lingerers->companion.close = lingerers_close;
    *companion = &lingerers->companion;
    return STATUS_OK;
}

static enum status lingerers_of(struct lingerers **lingerers, struct device *device)
{
    struct device_companion *companion = NULL;
    TRY(device_companion_find(&companion, lingerers_open, device));
    *lingerers = (struct lingerers *)(void *)companion;
    pthread_mutex_lock(&(*lingerers)->lock);
    (*lingerers)->device = device;
    pthread_mutex_unlock(&(*lingerers)->lock);
    return STATUS_OK;
}

/* Takes the slots and the segment over. */
static void slots_linger(struct edge *edge, int64_t peer_pid)
{
    struct cuda_edge *cuda = edge->state;
    struct lingerers *lingerers = cuda->lingerers;
    struct lingering *lingering = cuda->lingering;
    device_count(edge->config.device, MEMORY_COMMUNICATION, -(int64_t)cuda->slots.bytes);
    segment_give_back(&cuda->segment);
    *lingering = (struct lingering){.slots = cuda->slots,
        .segment = cuda->segment,
        .peer_pid = peer_pid,
        .peer = edge->config.peer};
    cuda->lingering = NULL;
    cuda->slots = (struct span){0};
    cuda->segment = (struct segment){.fd = -1};
    pthread_mutex_lock(&lingerers->lock);
    lingering->after = lingerers->list;
    lingerers->list = lingering;
    pthread_mutex_unlock(&lingerers->lock);
    (void)sweep(lingerers);
}

/* ---- opening ---- */

static bool cuda_available(const char **why, const struct device *device)
{
    if (device != NULL && device_kind(device) != MEMORY_CUDA) {
        *why = "the device is host: --device cuda";
        return false;
    }
    if (device == NULL && device_known("cuda") != STATUS_OK &&
        device_known("cudasim") != STATUS_OK) {
        *why = status_text();
        return false;
    }
    return segment_available(why, device);
}

/* And what is flagged, behind them. */
static size_t slots_bytes(const struct edge_config *config)
{
    return config->slot_count * (config->slot_bytes + config->flagged_bytes);
}

static enum status offer_consumer(struct edge *edge, struct cuda_offer *offer)
{
    struct cuda_edge *cuda = edge->state;
    const struct edge_config *config = &edge->config;
    struct device *device = config->device;
    TRY(lingerers_of(&cuda->lingerers, device));
    (void)sweep(cuda->lingerers);
    cuda->lingering = calloc(1, sizeof *cuda->lingering);
    if (cuda->lingering == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    TRY(memory_alloc(&cuda->slots, slots_bytes(config), MEMORY_COMMUNICATION, device));
    TRY(ipc_offer(&offer->slots, cuda->slots, device));
    TRY(memory_reserve(device, MEMORY_COMMUNICATION, segment_slots_at(config)));
    cuda->counted = segment_slots_at(config);
    TRY(segment_create(&cuda->segment, &offer->segment, false, config));
    /* What the producer posts is not seen before this side knows where the slots are. */
    segment_map_fifo(edge, &cuda->segment);
    cuda->closed_tail = config->start;
    edge->fifo.tail = &cuda->closed_tail;
    edge->fifo.slots = cuda->slots.ptr;
    return STATUS_OK;
}

static enum status cuda_offer(struct edge *edge, struct edge_offer *out)
{
    struct device *device = edge->config.device;
    if (device_kind(device) != MEMORY_CUDA)
        return FAIL(STATUS_INVALID,
            "transport cuda_ipc is asked of device %s; expected a CUDA device: --device cuda",
            device_name(device));
    struct cuda_edge *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) return FAIL(STATUS_SYSTEM, "no memory for an edge");
    edge->state = cuda;
    cuda->segment.fd = -1;
    struct cuda_offer offer = {0};
    if (edge->config.bell != NULL) offer.bell = bell_offer(edge->config.bell);
    if (edge->config.side == EDGE_CONSUMER) {
        TRY(offer_consumer(edge, &offer));
    } else { /* a head of its own that says that no slot is free */
        cuda->closed_head = edge->config.start - edge->config.slot_count;
        edge->fifo.head = &cuda->closed_head;
        edge->fifo.seen = cuda->closed_head;
    }
    memcpy(out->bytes, &offer, sizeof offer);
    return STATUS_OK;
}

/* ---- connecting ---- */

/* The segment for kernels, and, with its slots, for copies. Where that fails copies are slower, and
 * only the CPU keeps counters. */
static void register_segment(enum place place, struct edge *edge)
{
    struct cuda_edge *cuda = edge->state;
    struct device *device = edge->config.device;
    size_t bytes = place == PLACE_HOST ? cuda->segment.bytes : segment_slots_at(&edge->config);
    void *address = NULL;
    enum status status = device->ops->host_register(&address, cuda->segment.map, bytes, device);
    cuda->registered = edge->kernels_reach = status == STATUS_OK;
    if (cuda->registered) edge->kernel_shift = (intptr_t)address - (intptr_t)cuda->segment.map;
    else
        LOG_WARN("cuda_ipc",
            "memory shared with rank %d cannot be pinned, and is copied more slowly: %s",
            edge->config.peer, status_text());
}

static void use_place(enum place place, struct edge *edge)
{
    struct cuda_edge *cuda = edge->state;
    register_segment(place, edge);
    segment_map_fifo(edge, &cuda->segment);
    edge->slots_kind = MEMORY_CUDA;
    if (place == PLACE_DEVICE) return;
    edge->slots_kind = cuda->registered ? MEMORY_HOST_PINNED : MEMORY_HOST;
    edge->fifo.slots = cuda->segment.map + segment_slots_at(&edge->config);
}

/* Once it is known where the slots are. */
static void find_flagged(struct edge *edge)
{
    const struct edge_config *config = &edge->config;
    if (config->flagged_bytes > 0)
        edge->flagged = edge->fifo.slots + config->slot_count * config->slot_bytes;
}

/* RINGZERO_CUDA_IPC=0: as if it did not work. */
static enum status open_slots(
    struct cuda_edge *cuda, const struct cuda_offer *offer, struct device *device)
{
    const char *wanted = getenv("RINGZERO_CUDA_IPC");
    if (wanted != NULL && strcmp(wanted, "0") == 0)
        return FAIL(STATUS_CUDA, "RINGZERO_CUDA_IPC is 0");
    return ipc_open(&cuda->import, &offer->slots, device);
}

static enum status connect_producer(struct edge *edge, const struct cuda_offer *offer)
{
    struct cuda_edge *cuda = edge->state;
    const struct edge_config *config = &edge->config;
    enum place place = PLACE_DEVICE;
    TRY(segment_attach(&cuda->segment, &offer->segment, config));
    /* The other order than in cuda_close(): either this side sees closed, or that one sees
     * attached. */
    if (__atomic_load_n(segment_word(&cuda->segment, WORD_CLOSED), __ATOMIC_SEQ_CST) != 0)
        return FAIL(STATUS_PEER, "rank %d has closed its side of the edge already", config->peer);
    if (offer->slots.bytes != slots_bytes(config))
        return FAIL(STATUS_DATA,
            "rank %d offers %llu bytes of slots, expected %zu: slots differ between ranks",
            config->peer, (unsigned long long)offer->slots.bytes, slots_bytes(config));
    if (open_slots(cuda, offer, config->device) != STATUS_OK) {
        LOG_WARN("cuda_ipc", "to rank %d by pinned host memory: %s", config->peer, status_text());
        place = PLACE_HOST;
        TRY(segment_ask_for_slots(&cuda->segment, config));
    }
    use_place(place, edge); /* by the descriptor a simulator finds the pages */
    segment_give_back(&cuda->segment);
    if (place == PLACE_DEVICE) edge->fifo.slots = cuda->import.ptr;
    edge->fifo.seen = config->start;
    /* read by connect_consumer() */
    __atomic_store_n(segment_word(&cuda->segment, WORD_PLACE), (uint64_t)place, __ATOMIC_RELEASE);
    return STATUS_OK;
}

static enum status connect_consumer(struct edge *edge, bool *ready)
{
    struct cuda_edge *cuda = edge->state;
    struct device *device = edge->config.device;
    /* written by connect_producer() */
    uint64_t place = __atomic_load_n(segment_word(&cuda->segment, WORD_PLACE), __ATOMIC_ACQUIRE);
    if (place == PLACE_UNDECIDED) return STATUS_OK;
    if (place != PLACE_DEVICE && place != PLACE_HOST)
        return FAIL(STATUS_DATA, "rank %d says that slots are at place %llu, expected 1 or 2",
            edge->config.peer, (unsigned long long)place);
    if (place == PLACE_HOST) {
        size_t bytes = cuda->segment.bytes - cuda->counted;
        memory_free(&cuda->slots, MEMORY_COMMUNICATION, device);
        memory_count(device, MEMORY_COMMUNICATION, (int64_t)bytes);
        cuda->counted += bytes;
    }
    use_place((enum place)place, edge);
    segment_give_back(&cuda->segment);
    *ready = true;
    return STATUS_OK;
}

static enum status cuda_connect(struct edge *edge, bool *ready)
{
    struct cuda_offer offer;
    memcpy(&offer, edge->peer_offer.bytes, sizeof offer);
    if (edge->config.side == EDGE_CONSUMER) {
        TRY(connect_consumer(edge, ready));
    } else {
        TRY(connect_producer(edge, &offer));
        *ready = true;
    }
    if (*ready) find_flagged(edge);
    if (*ready && offer.bell.pid != 0) edge->peer_bell = bell_attach(&offer.bell);
    return STATUS_OK;
}

/* ---- closing ---- */

static void close_consumer(struct edge *edge)
{
    struct cuda_edge *cuda = edge->state;
    int64_t attached_by = 0;
    if (cuda->segment.map != NULL) { /* see connect_producer() */
        __atomic_store_n(segment_word(&cuda->segment, WORD_CLOSED), 1, __ATOMIC_SEQ_CST);
        attached_by = segment_attached_by(&cuda->segment);
    }
    if (cuda->slots.ptr != NULL && attached_by != 0) slots_linger(edge, attached_by);
    memory_free(&cuda->slots, MEMORY_COMMUNICATION, edge->config.device);
    if (cuda->counted > 0)
        memory_count(edge->config.device, MEMORY_COMMUNICATION, -(int64_t)cuda->counted);
}

static void cuda_close(struct edge *edge)
{
    struct cuda_edge *cuda = edge->state;
    struct device *device = edge->config.device;
    if (cuda == NULL) return;
    bell_detach(edge->peer_bell);
    if (cuda->registered) device->ops->host_unregister(cuda->segment.map, device);
    if (edge->config.side == EDGE_CONSUMER) {
        close_consumer(edge);
    } else {
        ipc_close(&cuda->import, device);
        if (cuda->segment.map != NULL) /* read by is_let_go() */
            __atomic_store_n(segment_word(&cuda->segment, WORD_DETACHED), 1, __ATOMIC_RELEASE);
    }
    segment_close(&cuda->segment);
    free(cuda->lingering);
    free(cuda);
    edge->state = NULL;
}

const struct transport transport_cuda_ipc = {
    .name = "cuda_ipc",
    .available = cuda_available,
    .offer = cuda_offer,
    .connect = cuda_connect,
    .close = cuda_close,
};
