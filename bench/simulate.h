/* simulate: the table and the picture of `ringzero show COLLECTIVE --simulate LINKS`.
 */
#ifndef BENCH_SIMULATE_H
#define BENCH_SIMULATE_H

#include <stdint.h>

#include "bench/options.h"
#include "ring/simulate.h"

/* LINKS, read. */
struct simulate_links {
    struct simulate_link link, node_link;
    int nodes; /* 0: every rank is a node */
    size_t slot_bytes;
    uint64_t slot_count;
};

struct simulate_request {
    const struct options *common;
    enum collective collective;
    int root;
    struct options_range ranks; /* a range is doubled from row to row */
    struct options_range bytes; /* of the whole buffer; first < 0: count says */
    int64_t count;              /* as in the call */
    size_t element_bytes;
    struct simulate_links links;
    const char *plot; /* NULL: none */
};

/* "alpha=5us,beta=50GB/s,nodes=8,…"; refuses what it does not know. */
struct simulate_links simulate_parse_links(const char *text, const struct options *options);

/* Prints a row for every size or number of ranks; JSON and a picture where they are asked for. Returns the exit
 * code. */
int simulate_print(const struct simulate_request *request);

#endif
