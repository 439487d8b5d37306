/* ring: the public collectives. Communicators, and ring all-reduce, reduce-scatter, all-gather, broadcast and barrier on them.
 *
 *     struct ring_comm *comm;
 *     TRY(ring_comm_open(&comm, &(struct ring_config){0}, bootstrap, device));
 *     TRY(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
 *     ring_comm_close(comm);
 *
 * Rules that all collectives share
 *   collective   Every rank of the communicator calls the same collectives in the same order with the same count, dtype, redop
 *                and root. What differs is found by the next rank that receives (tags of the slices) and ends in DATA, on every rank.
 *                Where ranks differ in the root of a small call, on some rank with its next call: see ring_broadcast().
 *   shapes       Counts are elements. Buffers are aligned to their element. count may be 0 (the spans are then not looked at).
 *   aliasing     In place means the address named with each function; any other overlap of send and recv is INVALID.
 *   memory       Both spans in host memory, or both in CUDA memory of the communicator's device; alike on all ranks. The bits are the
 *                same. On CUDA memory every collective takes the ring, or the direct plan, whatever its size.
 *   completion   stream NULL: on return recv holds the result and send may be reused. Else the call returns at once, the
 *                spans must live and send must not change until the stream has passed; failures show at stream_synchronize().
 *                CUDA memory, stream NULL: what writes send or uses recv has run before the call (stream_synchronize()). With a
 *                stream: the collective begins when what the stream was given before has run on the device, and what it is given
 *                afterwards begins when the collective has ended; its worker drives it meanwhile.
 *   graphs       Between graph_begin() and graph_end() (device_graph.h) collectives of the ring on CUDA memory are captured, alike on
 *                all ranks, where they run in kernels and all ranks are on one host; else INVALID. Each launch runs them on what memory
 *                holds then; spans live as long as the graph, graphs end before the communicator. Launches and other calls on one
 *                communicator are ordered by one stream. A launch that failed is told by the communicator's next call.
 *   bits         I1: same bits on all ranks. I2: they depend on data, nranks and the order of sums alone: the ring's, or, in two
 *                levels, that of hosts on the ring and of ranks in each (enum hierarchy). The rule that chooses looks at nothing
 *                but which ranks share a host.
 *   errors       INVALID before anything is sent. PEER, TIMEOUT, DATA, SYSTEM, ABORTED afterwards: the communicator has then
 *                failed, all ranks are told, and every later call returns ABORTED with the first failure's text. recv is undefined.
 *                ring_comm_shrink() gives the ranks that are left another one.
 *   threads      Several threads may call on one communicator; the order of calls must still be the same on all ranks, so in
 *                practice use one thread or one stream per communicator.
 */
#ifndef RING_RING_H
#define RING_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/plan.h"
#include "verbs/bootstrap.h"
#include "verbs/device.h"
#include "verbs/dtype.h"
#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The order is that of the ring (plan.c), one rank after the other; in two levels (plan_two_level.c) one after the other within each
 * host, then one host's sum after the other's. Integers wrap. float16 and bfloat16 are computed in float32
 * and rounded at every rank, unless ring_comm_set_reduce_dtype() lets them be rounded once.
 *   avg          floats are scaled by 1/nranks before they are summed, so that nothing overflows on the way; integers are
 *                divided after the sum, toward zero. One rank alone: unchanged.
 *   min, max     a NaN anywhere gives NaN, on every rank. Of -0 and +0 the one later in the ring's order stays.
 *   premul_sum   every rank's own input is multiplied by its own scalar before it is summed, of one rank alone too. For
 *                integers the scalar's fraction is dropped and the rest wraps; 16-bit floats multiply in float32. */
enum redop { REDOP_SUM, REDOP_PROD, REDOP_MIN, REDOP_MAX, REDOP_AVG, REDOP_PREMUL_SUM, REDOP_COUNT };
const char *redop_name(enum redop redop);
int redop_from_name(enum redop *redop, const char *name); /* 0, or -1 */

/* In what sums, products, averages and premul_sums of 16-bit floats travel from rank to rank. min and max round nothing, other
 * dtypes are computed in themselves: for them this changes nothing. */
enum reduce_dtype {
    REDUCE_DTYPE_OWN,     /* in the dtype of the call, rounded at every rank */
    REDUCE_DTYPE_FLOAT32, /* in float32, rounded once, by the chunk's owner: what is gathered is of the call's dtype again */
    REDUCE_DTYPE_COUNT
};
const char *reduce_dtype_name(enum reduce_dtype reduce_dtype); /* "own", "float32" */
int reduce_dtype_from_name(enum reduce_dtype *reduce_dtype, const char *name); /* 0, or -1 */

/* Where several hosts have several ranks each: whether reductions and gathers go round one ring of all ranks, or in two levels,
 * inside each host and between hosts (plan_two_level.c), which sends fewer bytes out of a host: 2(H−1)/H of an all-reduce's buffer
 * by each of H hosts, where the ring sends 2(n−1)/n. Sums have another order there, so other bits. */
enum hierarchy {
    HIERARCHY_GIVEN,     /* by the environment */
    HIERARCHY_AUTO,      /* two levels where at least two hosts have at least two ranks, the same number on each; else flat */
    HIERARCHY_FLAT,
    HIERARCHY_TWO_LEVEL, /* as auto, but opening the job's communicator fails where the ranks' hosts are not like that */
    HIERARCHY_COUNT
};
const char *hierarchy_name(enum hierarchy hierarchy); /* "auto", "flat", "two_level" */
int hierarchy_from_name(enum hierarchy *hierarchy, const char *name); /* 0, or -1 */

struct ring_comm;
struct transport;

/* Zero means: the environment variable, else the default. All must agree on all ranks: checked when the communicator opens. */
struct ring_config {
    const char *transport; /* "auto" (shm within a host, for CUDA memory cuda_ipc; tcp between hosts), "shm", "tcp", "verbs", */
                           /* "cuda_ipc" (host memory then goes as with auto). RINGZERO_TRANSPORT, auto */
    size_t slot_bytes;     /* multiple of 64; host rings within one host, but not over shm, have twice as many. */
                           /* RINGZERO_SLOT_BYTES, 256 KiB */
    uint64_t slot_count;   /* power of two ≥ 2. RINGZERO_SLOTS, 8 */
    size_t exchange_bytes; /* parts up to this size take hops to everyone, or log2 n rounds where memory is not shared, instead */
                           /* of the ring (exchange_plan.h; at most 16 ranks); of two ranks of one host four times that, but */
                           /* once in an all_reduce, and twice in an all_gather, or to where windows that copy from any memory */
                           /* begin. 1 for none; SIZE_MAX: measured as it opens, for each collective, by 400 small operations, and */
                           /* told by --log info (threshold.h). RINGZERO_EXCHANGE_BYTES, 16 KiB; 0 there for none, "measure" for */
                           /* SIZE_MAX */
    size_t star_bytes;     /* exchanges of arrays up to this size go by way of one rank, and broadcasts of up to 1 KiB from rank to */
                           /* rank, where all ranks are on one host and memory is not shared (exchange_star.h). 1 for none; */
                           /* SIZE_MAX: 64 KiB if some host has more ranks than cores, else none. RINGZERO_STAR_BYTES, SIZE_MAX; 0 there for none */
    size_t window_bytes;   /* larger operations among ranks of one host (at most 16) read one another's memory instead of passing */
                           /* slots round the ring, where a rank's chunk has at least this many bytes (window.h). SIZE_MAX for */
                           /* none. RINGZERO_WINDOW_BYTES, 16 KiB; 0 there for none */
    size_t check_roots_bytes; /* rooted calls of so many bytes (count · element) succeed only when all ranks are known to call */
                           /* the same; 1 for all. RINGZERO_CHECK_ROOTS, 256 KiB; 0 there for all */
    const char *cuda_mode; /* what runs collectives on CUDA memory: "copies" and reductions that the host starts one by one; one */
                           /* "kernel" each, whose ranks wait for one another on their GPUs, and which the host serves where edges */
                           /* are not cuda_ipc's; "auto": kernels where no two ranks share a GPU (by its UUID), else copies. */
                           /* The same bits. RINGZERO_CUDA_MODE, auto */
    size_t cuda_line_bytes; /* of a chunk that a channel carries: kernels pass up to so many with a flag in every word (lines_cuda.cuh), */
                           /* where edges are cuda_ipc's: twice the bytes, but no counter is waited for. At most slot_bytes. SIZE_MAX */
                           /* for none. RINGZERO_CUDA_LINE_BYTES, 8 KiB; 0 there for none */
    int channels;          /* rings that share the work, 1 … 16. RINGZERO_CHANNELS, 1 */
    enum hierarchy hierarchy; /* RINGZERO_HIERARCHY, auto */
    int timeout_ms;        /* without progress. RINGZERO_TIMEOUT_MS, the bootstrap's */
    uint64_t start;        /* first step of each edge's counters: for tests. 0 */
    const char *host;      /* any text: ranks that give different ones count as being on different hosts; read when the communicator */
                           /* opens, each rank's own. RINGZERO_HOST, the machine */
    const struct transport *custom; /* a transport that is not in the table: for tests and experiments. NULL */
};

/* Opens a communicator of all ranks of the job. bootstrap and device must outlive it.
 * collective. cost: two all-gathers of the bootstrap; edges are opened by the first operation that needs them.
 * errors: INVALID when ranks disagree about a tunable (naming it, both values and two ranks) or a value is out of range;
 * SYSTEM when a transport that was asked for by name cannot work here. On an error *comm is NULL. */
MUST_CHECK enum status ring_comm_open(
    struct ring_comm **comm, const struct ring_config *config, struct bootstrap *bootstrap, struct device *device);

/* Divides a communicator: ranks that give the same color (≥ 0) get one together, in the order of key, then of rank in the parent; a
 * negative color gets none (*comm NULL). Tunables are the parent's. The parts share the parent's wait loop, so operations of
 * several cannot block one another by order. Messages name ranks of the job. collective over the parent; close parts as
 * any collective: in the same order on all ranks, and before the bootstrap. errors: as any collective. */
MUST_CHECK enum status ring_comm_split(struct ring_comm **comm, int color, int key, struct ring_comm *parent);

/* Goes on without the dead: after a failure (any status but INVALID of a call, on any rank) the ranks that are left get a new
 * communicator, renumbered in their order, that works at once. Whatever the old one was in is lost: its operations have ended on
 * every rank with an error, recv undefined, and it is for the caller to say where to resume (who has finished what differs between ranks).
 *   old         must be of the whole job, not a part. It is closed, whatever the result; its parts, and other communicators of
 *               the job, have failed with it: close them before, and open or split them anew. Synchronize every stream first.
 *   *comm       has the old one's tunables, scalar and reduce_dtype.
 *   *bootstrap  is the new job, to be closed after *comm as the old one is after its communicators. The old bootstrap stays the caller's.
 * Deaths meanwhile are taken in: it returns when a communicator of living ranks has opened. One rank may be all that is left.
 * When rank 0 of the job died, this fails on every rank with PEER, as bootstrap_shrink() does.
 * collective over the survivors. cost: a few messages; a rank that is alive but does not come is waited for, up to timeout_ms.
 * errors: INVALID for a part, or when nothing has failed (then old is not closed); as bootstrap_shrink() and ring_comm_open().
 * On an error *comm and *bootstrap are NULL. */
MUST_CHECK enum status ring_comm_shrink(struct ring_comm **comm, struct bootstrap **bootstrap, struct ring_comm *old);

/* Ends all that runs on this communicator, on every rank of the job, with ABORTED and this reason. threads: any. */
void ring_comm_abort(struct ring_comm *comm, const char *reason);

/* Synchronize every stream that still has operations of this communicator first. collective, unless it has failed.
 * NULL is accepted. */
void ring_comm_close(struct ring_comm *comm);

int ring_comm_rank(const struct ring_comm *comm);
int ring_comm_nranks(const struct ring_comm *comm);
/* The tunables in force, and the transport of the edge to the next rank ("self" for one rank alone). */
const struct ring_config *ring_comm_config(const struct ring_comm *comm);
/* Of the slots of its rings' edges in host memory: config's slot_bytes, or twice as many where slices are messages within one host. */
size_t ring_comm_slot_bytes(const struct ring_comm *comm);
const char *ring_comm_transport(const struct ring_comm *comm);

/* Memory that the ranks of this rank's host read in place: collectives on it copy less. Zeroed, aligned to 4096 bytes, counted under
 * tag; any other memory works too, and gives the same bits, with a copy more. Good for comm and for those split from
 * it or from which it was split. Where ranks do not share a host, and beyond 63 buffers, it is memory_alloc(). On a CUDA device it is
 * memory of the device, good for comm: what collectives of the ring send from it unchanged its neighbours of the same host read there
 * (reach.h), and the call, or the stream, goes on when they have. ring_free() keeps it for the next ring_alloc(), zeroed anew;
 * ring_comm_close() frees it; until then it is counted.
 * *span is yours until ring_free(), which is due before ring_comm_close() of all these, and so before
 * ring_comm_shrink(): copy out what is to outlive them. It accepts a zeroed span.
 * collective: its place among the calls is the same on all ranks, sizes need not be: from the first one on reductions expect such
 * memory on all ranks, and two ranks read each other's at once (window.h).
 * errors: SYSTEM when there is no memory, or the device's limit leaves no room; on a CUDA device, where ranks tell one another of it
 * (two small all-gathers on comm, outside of groups), on every rank, and those of a collective. threads: any. */
MUST_CHECK enum status ring_alloc(struct span *span, size_t bytes, enum memory_tag tag, struct ring_comm *comm);
void ring_free(struct span *span, enum memory_tag tag, struct ring_comm *comm);

/* Payload bytes this rank has put on its edges and taken from them, by collective, and time its callers and streams spent
 * inside operations. threads: any. */
struct ring_counters {
    uint64_t operations[COLLECTIVE_COUNT];
    uint64_t sent_bytes[COLLECTIVE_COUNT];
    uint64_t received_bytes[COLLECTIVE_COUNT];
    uint64_t border_bytes[COLLECTIVE_COUNT]; /* of sent_bytes, what went to ranks of other hosts */
    uint64_t busy_ns;
};
struct ring_counters ring_comm_counters(const struct ring_comm *comm);

/* The rank at each position of a channel's ring; nranks entries, valid until close. */
const int *ring_comm_order(const struct ring_comm *comm, int channel);

/* The host that a rank is on, as the first rank that is on it: two ranks with the same one share it. */
int ring_comm_host(const struct ring_comm *comm, int rank);

/* In two levels the ranks on each host, at least 2: positions [h·m, (h+1)·m) of each ring are host h. Flat: 1. */
int ring_comm_host_ranks(const struct ring_comm *comm);

/* A call, for predictions: what the functions below take. */
struct ring_call {
    enum collective collective;
    enum dtype dtype;
    enum redop redop;
    int root;             /* or peer */
    size_t count;         /* as in the call */
    size_t stride;        /* of a column call; else 0 */
    const size_t *counts; /* of a v-form; else NULL */
    enum reduce_dtype reduce_dtype;
    bool grouped;         /* in a group, which knows no short way for small operations */
    bool on_device;       /* on CUDA memory, where there is none either */
};

/* What ring_counters.sent_bytes grows by at `rank` for one call. comm gives the ring's order, the tunables and whether its ranks
 * share memory; NULL: rank order, the defaults, and that they do. Pure. */
uint64_t ring_predict_sent_bytes(const struct ring_call *call, int nranks, int rank, const struct ring_comm *comm);
/* And ring_counters.border_bytes, at a rank of this communicator. */
uint64_t ring_predict_border_bytes(const struct ring_call *call, int rank, const struct ring_comm *comm);

/* The chunk of `count` elements that belongs to rank c: the first count mod nranks chunks have one element more. Pure. */
static inline size_t ring_chunk_begin(size_t count, int nranks, int c)
{
    size_t n = (size_t)nranks, i = (size_t)c, extra = count % n;
    return i * (count / n) + (i < extra ? i : extra);
}

/* recv[i] = Σ over ranks of send[i]. count elements in each. In place: recv == send.
 * cost: 2n−1 steps; 2(n−1)/n · count elements sent per rank; in two levels of them 2(H−1)/n to other hosts. source: plan.c,
 * plan_two_level.c. */
MUST_CHECK enum status ring_all_reduce(struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop,
    struct ring_comm *comm, struct stream *stream);

/* recv = this rank's chunk of the sum. send: nranks·count elements, recv: count. In place: recv == send + rank·count.
 * Out of place send stays as it was. cost: n steps; (n−1)·count elements sent per rank. */
MUST_CHECK enum status ring_reduce_scatter(struct span recv, struct span send, size_t count, enum dtype dtype,
    enum redop redop, struct ring_comm *comm, struct stream *stream);

/* recv = all ranks' send, in rank order. send: count elements, recv: nranks·count. In place: send == recv + rank·count.
 * cost: n steps; (n−1)·count elements sent per rank. */
MUST_CHECK enum status ring_all_gather(
    struct span recv, struct span send, size_t count, enum dtype dtype, struct ring_comm *comm, struct stream *stream);

/* Rooted calls (broadcast, reduce, scatter, gather) and ranks that name different roots or otherwise differ. From RINGZERO_CHECK_ROOTS
 * bytes on every rank gets an error instead of success: the ranks call the roll beside the data (roll_call.h), which over shm costs
 * nothing that can be measured from 256 KiB on (over TCP up to a fifth at 256 KiB). Below, a rank that only sends returns at once and learns with its next call: the check would make
 * every call a barrier. Measured for 64 bytes over shm with a core per rank (2 ranks): broadcast 0.20 → 0.33 us, reduce 0.53 →
 * 0.63; with 2 and 4 ranks a core: broadcast 0.8 → 3.3 and 1.6 → 7. */

/* recv = root's send. count elements in each; send is looked at on root only. In place: recv == send.
 * cost: n−1 hops, pipelined by slices; count elements sent by every rank but the last. As an exchange or by windows: one hop,
 * (n−1)·count elements sent by the root. */
MUST_CHECK enum status ring_broadcast(struct span recv, struct span send, size_t count, enum dtype dtype, int root,
    struct ring_comm *comm, struct stream *stream);

/* recv on root = Σ over ranks of send, with the bits of an all-reduce's chunk `root`. count elements in each; recv is looked at on root
 * only. In place: recv == send. cost: n−1 hops, pipelined; count elements sent by every rank but the root. */
MUST_CHECK enum status ring_reduce(struct span recv, struct span send, size_t count, enum dtype dtype, enum redop redop,
    int root, struct ring_comm *comm, struct stream *stream);

/* recv = chunk `rank` of root's send (nranks·count elements, looked at on root only). In place on root: recv == send + root·count.
 * cost: root sends (n−1)·count elements, directly to each. */
MUST_CHECK enum status ring_scatter(struct span recv, struct span send, size_t count, enum dtype dtype, int root,
    struct ring_comm *comm, struct stream *stream);

/* recv on root (nranks·count elements) = all ranks' send, in rank order. In place on root: send == recv + root·count.
 * cost: every rank but the root sends count elements, directly. */
MUST_CHECK enum status ring_gather(struct span recv, struct span send, size_t count, enum dtype dtype, int root,
    struct ring_comm *comm, struct stream *stream);

/* Chunk c of send goes to rank c, which keeps it as chunk `rank` of recv. nranks·count elements in each; not in place.
 * cost: (n−1)·count elements sent per rank, directly to each. */
MUST_CHECK enum status ring_all_to_all(
    struct span recv, struct span send, size_t count, enum dtype dtype, struct ring_comm *comm, struct stream *stream);

/* One rank to another, in the order of the calls between the two; counts and dtypes must be equal. A send to oneself meets its recv
 * in one group. send_recv does both at once: no order of ranks can block it. */
MUST_CHECK enum status ring_send(
    struct span send, size_t count, enum dtype dtype, int to, struct ring_comm *comm, struct stream *stream);
MUST_CHECK enum status ring_recv(
    struct span recv, size_t count, enum dtype dtype, int from, struct ring_comm *comm, struct stream *stream);
MUST_CHECK enum status ring_send_recv(struct span recv, size_t recv_count, int from, struct span send, size_t send_count,
    int to, enum dtype dtype, struct ring_comm *comm, struct stream *stream);

/* As reduce_scatter and all_gather, rank r's chunk having counts[r] elements (0 is legal), one after another in the whole buffer.
 * counts is copied, and the same on all ranks. cost: as those, of the chunks' sizes. */
MUST_CHECK enum status ring_reduce_scatter_v(struct span recv, struct span send, const size_t *counts, enum dtype dtype,
    enum redop redop, struct ring_comm *comm, struct stream *stream);
MUST_CHECK enum status ring_all_gather_v(struct span recv, struct span send, const size_t *counts, enum dtype dtype,
    struct ring_comm *comm, struct stream *stream);

/* Between begin and end, calls on this communicator are only checked and kept; end issues them as one, here or on its stream: so sends
 * and receives cannot block one another by their order. Calls that use the same edge (collectives; sends to one peer) run in the
 * order of the calls. One group at a time per communicator, by one thread; a collective in a group is in one on all ranks. drop
 * forgets what was kept. */
MUST_CHECK enum status ring_group_begin(struct ring_comm *comm);
MUST_CHECK enum status ring_group_end(struct ring_comm *comm, struct stream *stream);
void ring_group_drop(struct ring_comm *comm);

/* The scalar of this rank's REDOP_PREMUL_SUM calls from now on; 1 at first. */
void ring_comm_set_premul(struct ring_comm *comm, double scalar);

/* How this communicator's reductions accumulate from now on; REDUCE_DTYPE_OWN at first, in parts
 * the parent's. A setting of the communicator, because who
 * trains chooses once for all gradients; and of the program, not of the environment, because it decides bits (I2). The same on all
 * ranks, else their next reduction that it concerns ends in DATA.
 * cost: on the ring partial sums have 4 bytes an element instead of 2: all_reduce 3(n−1)/n · count · 2 bytes per rank instead of
 * 2(n−1)/n · count · 2, reduce_scatter and reduce twice as many. Exchanges and windows: not a byte more. */
void ring_comm_set_reduce_dtype(struct ring_comm *comm, enum reduce_dtype reduce_dtype);

/* Returns (or lets the stream pass) when every rank has entered. */
MUST_CHECK enum status ring_barrier(struct ring_comm *comm, struct stream *stream);

/* Columns: the same collectives on nranks chunks of `count` elements that start `stride` elements apart, chunk c belonging to
 * rank c. A gradient bucket is such a column of a unit's shards, so that no bucket moves a chunk's border (I2).
 * send and recv of the all-reduce, send of the reduce-scatter and recv of the all-gather are columns of
 * (nranks−1)·stride + count elements; the other side is `count` elements, in place: column + rank·stride. count ≤ stride. */
MUST_CHECK enum status ring_all_reduce_column(struct span recv, struct span send, size_t count, size_t stride,
    enum dtype dtype, enum redop redop, struct ring_comm *comm, struct stream *stream);
MUST_CHECK enum status ring_reduce_scatter_column(struct span recv, struct span send, size_t count, size_t stride,
    enum dtype dtype, enum redop redop, struct ring_comm *comm, struct stream *stream);
MUST_CHECK enum status ring_all_gather_column(struct span recv, struct span send, size_t count, size_t stride,
    enum dtype dtype, struct ring_comm *comm, struct stream *stream);

#ifdef __cplusplus
}
#endif
#endif
