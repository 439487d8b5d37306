/* comm: the inside of a communicator: who is where on each ring, and the edges opened so far.
 */
#ifndef RING_COMM_H
#define RING_COMM_H

#include <pthread.h>

#include "ring/operation.h"
#include "ring/progress.h"
#include "ring/ring.h"
#include "ring/stores.h"
#include "ring/topology.h"
#include "verbs/region.h"

#define COMM_EXCHANGE_BYTES ((size_t)16 << 10) /* RINGZERO_EXCHANGE_BYTES, unless it is given */
#define COMM_STAR_BYTES     ((size_t)64 << 10) /* RINGZERO_STAR_BYTES where cores are shared, unless it is given */
#define COMM_NO_STAR        1                  /* ring_config.star_bytes: never */
#define COMM_STAR_AUTO      SIZE_MAX           /* not given: until the ranks have told one another of their cores */

struct ring_comm {
    struct bootstrap *bootstrap;
    struct device *device;
    int rank, nranks;
    int *members; /* [nranks]: rank in the job of each rank here: for edges, mailboxes and messages */
    uint64_t splits; /* of this communicator so far, alike on all ranks */
    uint64_t id; /* the same on all ranks: names this communicator's edges */
    struct ring_config config;
    char *host;        /* that the caller gave; NULL: none */
    const struct transport *transport; /* NULL: auto */
    bool one_memory;                   /* every edge between two of its ranks is in memory that both see */
    bool on_loopback;                  /* not so, though all are on one host: alike on all ranks */
    struct topology_rank *ranks;       /* [nranks] */
    struct topology_devices *devices;  /* [nranks]; NULL where all are on one host, in host memory */
    struct topology_names names;       /* of this rank's NICs */
    int host_ranks;                    /* as ring_comm_host_ranks() */
    int *order;                        /* [channels][nranks]: rank at a position */
    bool orders_differ;                /* between channels */
    int *position;                     /* [channels]: of this rank */
    struct edge **edges;               /* [comm_edge_channels()][2 sides][nranks], NULL until opened: the rings', that of */
                                       /* direct plans, that of exchanges, and that of their chains; then the first two */
                                       /* again for CUDA memory */
    bool all_cuda;                     /* every rank has a device of the same CUDA kind: alike on all ranks */
    bool has_windows;                  /* all ranks are on one host and can read one another's regions: alike on all ranks */
    bool has_copies;                   /* and the kernel lets them copy from any memory of one another: alike on all ranks */
    bool has_memory;                   /* of ring_alloc(), once and for all: in the order of the calls, so alike on all ranks */
    struct region_book *book;          /* this rank's regions; shared with the parts of this communicator; NULL: none */
    struct window_stage *stage;        /* for windows on plain memory: the driver's alone; NULL until the first */
    struct region_offer *books;        /* [nranks] */
    char *may_copy;                    /* [nranks]: whether that rank may copy from all whose books it can open */
    struct region_view **views;        /* [nranks], NULL until opened */
    bool exchange_measured;            /* RINGZERO_EXCHANGE_BYTES=measure: then, of each collective that can be an exchange, */
    size_t exchange_most[COLLECTIVE_COUNT]; /* bytes of the largest part. 0: config.exchange_bytes says it */
    bool star_is_auto;                 /* RINGZERO_STAR_BYTES was not given */
    struct board *board;               /* what small operations tell all ranks; NULL: none. Alike on all ranks */
    uint64_t *boards;                  /* [nranks]: references of everyone's; 0: none */
    struct exchange_store *exchanges;  /* plans of small operations, by and for exchange_kept.c: the driver's alone */
    bool kernels;                      /* collectives on CUDA memory run in kernels, where edges allow it: alike on all ranks */
    struct flights *flights;           /* what its device works on; NULL until the first operation on CUDA memory */
    struct kernel_state *kernel;       /* likewise, its kernels'; by and for kernel_host.c */
    struct reach *reach;               /* its CUDA memory that others read; NULL: none */
    struct progress *progress;
    struct trace *trace; /* NULL: nobody watches */
    bool opened;
    uint64_t tags[8]; /* of the last collectives, by sequence mod 8: written by the engine, for statements */

    double premul; /* of this rank's premul_sum calls */
    enum reduce_dtype reduce_dtype;
    uint64_t sequence, pair_sequence; /* of collectives; of sends and receives. Used through __atomic builtins */
    struct ring_counters counters;    /* too */
    struct ring_counters small;       /* small.c's part of them: written by the driver alone, read through __atomic builtins */
    bool failed;                      /* too; once it is true failure_text stays as it is */

    pthread_mutex_t lock; /* of what follows */
    char failure_text[STATUS_TEXT_BYTES];
    struct stores stores[COLLECTIVE_COUNT]; /* each collective reads and writes slots in its own way */
    bool group_open;
    uint64_t group_id;
    struct request *grouped; /* of the open group, owned */
    int grouped_count;
};

/* Rank at a position of a channel's ring. */
static inline int comm_rank_at(const struct ring_comm *comm, int channel, int position)
{
    return comm->order[channel * comm->nranks + position];
}

static inline bool comm_on_this_host(const struct ring_comm *comm, int rank)
{
    return comm->ranks == NULL || comm->ranks[rank].host == comm->ranks[comm->rank].host;
}

static inline struct topology comm_topology(const struct ring_comm *comm)
{
    return (struct topology){comm->nranks, comm->ranks, comm->devices};
}

/* The rank in the job, by which messages name it. */
static inline int comm_name(const struct ring_comm *comm, int rank) { return comm->members[rank]; }

/* The rank here of an edge's peer, which edges too know by its rank in the job. */
static inline int comm_rank_of(const struct edge *edge, const struct ring_comm *comm)
{
    int rank = 0;
    while (comm_name(comm, rank) != edge->config.peer) rank++;
    return rank;
}

/* Of the edges of host rings. On the loopback twice as large as others: each message costs the system at both ends, so fewer
 * are quicker; direct plans, which have edges to everyone, are spared the memory. Between network namespaces an all_gather of
 * two ranks was a quarter slower so, other operations quicker. */
static inline size_t comm_ring_slot_bytes(const struct ring_comm *comm)
{
    return comm->on_loopback ? 2 * comm->config.slot_bytes : comm->config.slot_bytes;
}

/* What the low byte of a key means: a channel's edge, or a mailbox of the communicator itself. */
enum comm_mailbox { COMM_MAILBOX_LEAVE = 0xfe, COMM_MAILBOX_STATEMENT = 0xff };

static inline size_t comm_stage_bytes(const struct ring_comm *comm)
{
    size_t bytes = comm->config.slot_bytes * comm->config.slot_count;
    return bytes < 8192 ? 8192 : bytes;
}

static inline int comm_direct_channel(const struct ring_comm *comm) { return comm->config.channels; }
static inline int comm_exchange_channel(const struct ring_comm *comm) { return comm->config.channels + 1; }
static inline int comm_chain_channel(const struct ring_comm *comm) { return comm->config.channels + 2; }
static inline int comm_device_channel(const struct ring_comm *comm) { return comm->config.channels + 3; } /* the first of them */
static inline int comm_edge_channels(const struct ring_comm *comm) { return 2 * comm->config.channels + 4; }

/* The edges that a plan uses: a ring's, or (channel −1) those of direct plans; for host or for CUDA memory. */
static inline int comm_edge_channel(const struct ring_comm *comm, int channel, bool on_device)
{
    if (channel < 0) channel = comm_direct_channel(comm);
    return on_device ? comm_device_channel(comm) + channel : channel;
}

/* Where the edge is kept: NULL there until comm_edge() has opened it. */
static inline struct edge **comm_edge_place(int channel, enum edge_side side, int peer, const struct ring_comm *comm)
{
    return &comm->edges[(size_t)(channel * 2 + (int)side) * (size_t)comm->nranks + (size_t)peer];
}

/* The edge to (EDGE_PRODUCER) or from (EDGE_CONSUMER) a peer, opened at its first use. Never waits. threads: the engine's. */
MUST_CHECK enum status comm_edge(
    struct edge **edge, int channel, enum edge_side side, int peer, struct ring_comm *comm);

/* The transport between two ranks for what is in host memory: slots that are CUDA memory do not serve it. Alike on all ranks. */
const struct transport *comm_transport_between(int a, int b, const struct ring_comm *comm);

/* A transport between two of its ranks, for CUDA memory, that needs the host meanwhile; NULL: all edges are cuda_ipc's. Alike on all
 * ranks. */
const struct transport *comm_detour(const struct ring_comm *comm);

/* Whether two ranks read each other's CUDA memory where it is, as far as their places tell. Alike on all ranks. */
bool comm_reads_memory(int a, int b, const struct ring_comm *comm);

/* Remembers status_text() as the communicator's failure, if it is the first, and tells every rank. threads: any. */
void comm_fail(struct ring_comm *comm);
/* ABORTED with that failure's text, if there was one. threads: any. */
MUST_CHECK enum status comm_check(struct ring_comm *comm);

#endif
