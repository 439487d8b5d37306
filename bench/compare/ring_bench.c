/* ring_bench: the sweep on ringzero: ring_bench --ranks N --transport T [options of sweep.h]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/compare/sweep.h"
#include "ring/ring.h"
#include "verbs/launch.h"
#include "verbs/log.h"

struct ring_peer {
    struct bootstrap *bootstrap;
    struct device *device;
    struct ring_comm *comm;
};

static enum status call_ring(const struct sweep_call *call, struct ring_comm *comm)
{
    size_t part = call->count * sizeof(float), whole = part * (size_t)ring_comm_nranks(comm);
    struct span recv = span_host(call->recv, part), send = span_host(call->send, part);
    switch (call->collective) {
    case SWEEP_ALL_REDUCE: return ring_all_reduce(recv, send, call->count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    case SWEEP_REDUCE_SCATTER:
        return ring_reduce_scatter(
            recv, span_host(call->send, whole), call->count, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    case SWEEP_ALL_GATHER:
        return ring_all_gather(span_host(call->recv, whole), send, call->count, DTYPE_FLOAT32, comm, NULL);
    case SWEEP_BROADCAST: return ring_broadcast(recv, recv, call->count, DTYPE_FLOAT32, 0, comm, NULL);
    case SWEEP_COLLECTIVES: break;
    }
    return FAIL(STATUS_INVALID, "no such collective");
}

static int complain(enum status status)
{
    if (status != STATUS_OK) fprintf(stderr, "ring_bench: %s\n", status_text());
    return status != STATUS_OK;
}

static int operate(const struct sweep_call *call, void *context)
{
    struct ring_peer *peer = context;
    return complain(call_ring(call, peer->comm));
}

/* By the collectives themselves, as the MPIs do it: ranks that were woken one after another by the job's control connections
 * would begin a batch apart, and the first of them would count how long the last one slept. */
static int maximum(double *value, void *context)
{
    struct ring_peer *peer = context;
    struct span span = span_host(value, sizeof *value);
    return complain(ring_all_reduce(span, span, 1, DTYPE_FLOAT64, REDOP_MAX, peer->comm, NULL));
}

static float *allocate(size_t bytes, void *context)
{
    struct ring_peer *peer = context;
    struct span span;
    if (complain(ring_alloc(&span, bytes, MEMORY_WORKSPACE, peer->comm))) return NULL;
    return span.ptr;
}

static void release(float *buffer, size_t bytes, void *context)
{
    struct ring_peer *peer = context;
    struct span span = span_host(buffer, bytes);
    ring_free(&span, MEMORY_WORKSPACE, peer->comm);
}

static int run_rank(const struct bootstrap_config *job, const char *transport, const struct sweep_options *options)
{
    struct ring_peer ring = {0};
    struct sweep_peer peer = {
        .rank = job->rank, .nranks = job->nranks, .context = &ring, .operate = operate, .maximum = maximum,
        .allocate = allocate, .release = release};
    struct ring_config config = {.transport = transport};
    log_set_rank(job->rank, job->nranks);
    int failed = complain(bootstrap_open(&ring.bootstrap, job)) ||
                 complain(device_open(&ring.device, "host")) ||
                 complain(ring_comm_open(&ring.comm, &config, ring.bootstrap, ring.device)) ||
                 sweep_run(options, &peer) != 0;
    if (failed && ring.bootstrap != NULL) bootstrap_abort("the sweep failed", ring.bootstrap);
    ring_comm_close(ring.comm);
    bootstrap_close(ring.bootstrap);
    device_close(ring.device);
    return failed;
}

int main(int argc, char **argv)
{
    struct sweep_options options;
    struct bootstrap_config job = bootstrap_config_single();
    const char *transport = NULL;
    int nranks = 2, exit_code = 1;
    bool is_parent = false;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ranks") == 0) nranks = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--transport") == 0) transport = argv[i + 1];
    }
    int wrong = sweep_parse(&options, argc, argv);
    if (wrong != 0) return wrong;
    if (complain(launch_local(&job, &is_parent, &exit_code, nranks, LAUNCH_END_ALL))) return 1;
    return is_parent ? exit_code : run_rank(&job, transport, &options);
}
