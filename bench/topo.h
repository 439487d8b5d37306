/* topo: the hosts, ranks and rings that `ringzero topo` shows; topo.c makes them, topo_print.c
 * prints.
 */
#ifndef BENCH_TOPO_H
#define BENCH_TOPO_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "bench/options.h"
#include "ring/topology.h"
#include "verbs/machine.h"

struct topo_host {
    char name[64];
    int first, ranks; /* ranks [first, first + ranks) */
    struct machine *machine;
};

struct topo {
    struct options common;
    const char *xml, *synthetic, *hosts_file; /* NULL: not given */
    int channels;                             /* 0: not given, until all is read */
    bool no_gpu; /* buffers are in host memory even where there are GPUs */
    int host_count;
    struct topo_host *hosts; /* [host_count] */
    struct topology_rank *ranks;
    struct topology_devices *devices;
    struct machine_pus *pus; /* [ranks]: where each runs */
    int *gpus;               /* [ranks]: of the host's devices; -1: none */
    struct topology topology;
};

/* The host of a rank, and its NIC on a channel (< 0: off the rings); NULL: none. */
const struct topo_host *topo_host_of(const struct topo *topo, int rank);
const struct machine_device *topo_device(const struct topo *topo, int rank, int nic); /* of devices[rank].nics */
const struct machine_device *topo_nic(const struct topo *topo, int rank, int channel);
/* The transport of the edge, as --transport or the two ranks want it. */
const char *topo_transport(const struct topo *topo, int from, int to);

void topo_print(const struct topo *topo);
/* One object a host and a rank, one about two levels, and one a channel. 0, or -1 when writing failed. */
MUST_CHECK enum status topo_print_json(FILE *file, const struct topo *topo);

#endif
