/* request: a collective call as the caller made it: checked, then run here, on a stream, or with others of its group.
 */
#ifndef RING_REQUEST_H
#define RING_REQUEST_H

#include "ring/comm.h"

struct request {
    struct ring_comm *comm;
    struct stream *stream;  /* that it is called on; NULL: none */
    enum collective collective;
    enum dtype dtype;
    enum redop redop;
    int root;               /* rank; the peer of send and recv */
    struct span recv, send; /* zeroed where the call has none */
    size_t count;           /* of v-forms: of all chunks together */
    size_t stride;          /* elements between chunks; 0: the chunks are an even split of count */
    size_t *begins;         /* v-forms: [nranks + 1], owned; else NULL */
    bool send_is_chunk;     /* holds this rank's chunk only */
    bool recv_is_chunk;
    double premul;
    enum reduce_dtype reduce_dtype;
    bool has_memory; /* comm->has_memory at the time of the call */
    uint64_t sequence;
    uint64_t group;
};

/* Checks and runs. Takes over begins. stream NULL: on the caller's thread. Inside a group: keeps it until ring_group_end(). */
MUST_CHECK enum status request_submit(struct request *request, struct stream *stream);

#endif
