/* The NIC of each channel, and rings that differ by channel: from the description of a machine with several to the edge that is opened: two pretended hosts, each
 * a machine with eight GPUs and eight NICs, of which a rank has one GPU. ctest: timeout=60
 *
 * What stands in for hardware: ranks describe themselves from tests/topology/dgx.xml, NICs are known under numbers of their own,
 * and an edge over verbs becomes one in memory, after its rail was written down. From the rail to a port: tests/rdma/faults.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "ring/topology.h"
#include "tests/harness/edge_chaos.h"
#include "tests/harness/harness.h"

#define RANKS    8 /* on two hosts, by turns */
#define CHANNELS 8

static struct machine *dgx;
static _Thread_local int self_rank;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int rails[RANKS][CHANNELS + 2][2], edges[RANKS][CHANNELS + 2][2]; /* by rank, channel and side */

/* ---- what stands in ---- */

static int nth_gpu(int n)
{
    for (int d = 0; d < dgx->device_count; d++)
        if (dgx->devices[d].kind == MACHINE_GPU && n-- == 0) return d;
    return -1;
}

static void describe(struct topology_rank *rank, struct topology_devices *devices)
{
    struct machine_pus all = {{0}}, share;
    for (int i = 0; i < dgx->pu_count; i++) machine_pus_add(&all, i);
    CHECK(machine_share(&share, dgx, &all, self_rank / 2, 8));
    topology_describe(rank, devices, dgx, &share, nth_gpu(self_rank / 2));
}

struct topology_rank __real_topology_describe_self(const char *pretended);
struct topology_rank __wrap_topology_describe_self(const char *pretended);
struct topology_rank __wrap_topology_describe_self(const char *pretended)
{
    struct topology_rank rank;
    describe(&rank, NULL);
    rank.host = __real_topology_describe_self(pretended).host;
    rank.shm_works = rank.verbs_work = 1;
    return rank;
}

struct topology_devices __wrap_topology_describe_devices(struct topology_names *names, const struct topology_rank *self);
struct topology_devices __wrap_topology_describe_devices(struct topology_names *names, const struct topology_rank *self)
{
    struct topology_rank rank;
    struct topology_devices devices;
    (void)self;
    memset(names, 0, sizeof *names);
    describe(&rank, &devices);
    for (int i = 0; i < TOPOLOGY_MOST_LINKS && devices.nics[i].id != 0; i++)
        snprintf(names->nics[i], sizeof names->nics[i], "%s", dgx->devices[devices.nics[i].place].name);
    return devices;
}

/* libibverbs lists NICs in an order of its own. */
static int number_of(int nic) { return 15 - nic; }

int __wrap_nic_rail(const char *name, struct device *device);
int __wrap_nic_rail(const char *name, struct device *device)
{
    int nic = -1;
    (void)device;
    CHECK_MSG(sscanf(name, "mlx5_%d", &nic) == 1, "a NIC named %s", name);
    return number_of(nic);
}

enum status __real_edge_open(struct edge **edge, const struct transport *transport, const struct edge_config *config);
enum status __wrap_edge_open(struct edge **edge, const struct transport *transport, const struct edge_config *config);
enum status __wrap_edge_open(struct edge **edge, const struct transport *transport, const struct edge_config *config)
{
    if (transport != &transport_verbs) return __real_edge_open(edge, transport, config);
    int channel = (int)(config->key & 0xff);
    CHECK(config->self % 2 != config->peer % 2 && channel < CHANNELS + 2);
    pthread_mutex_lock(&lock);
    rails[config->self][channel][config->side] = config->rail;
    edges[config->self][channel][config->side]++;
    pthread_mutex_unlock(&lock);
    return __real_edge_open(edge, &transport_chaos, config);
}

/* ---- which rails ---- */

static void body(struct bootstrap *bootstrap, void *argument)
{
    const enum hierarchy *hierarchy = argument;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    self_rank = bootstrap_rank(bootstrap);
    struct ring_config config = {.hierarchy = *hierarchy, .channels = CHANNELS, .exchange_bytes = 1, .host = self_rank % 2 ? "b" : "a"};
    float x[1000] = {1};
    if (CHECK_OK(device_open(&device, "host")) && CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) {
        CHECK_OK(ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 1000, DTYPE_FLOAT32, REDOP_SUM, comm, NULL));
        CHECK(x[0] == RANKS);
    }
    ring_comm_close(comm);
    device_close(device);
}

static void run(enum hierarchy hierarchy)
{
    memset(edges, 0, sizeof edges);
    ranks_as_threads(RANKS, 10000, body, &hierarchy);
}

/* Where NICs give channels rings of different orders, an exchange adds each channel's part in that of its ring: no size moves a bit. */
static void sizes_body(struct bootstrap *bootstrap, void *argument)
{
    enum { MOST = 1000 };
    static const size_t counts[] = {3, 101, MOST}; /* whole inputs to everyone; the same, near its limit; in two hops */
    struct device *device = NULL;
    struct ring_comm *plans = NULL, *exchanges = NULL;
    self_rank = bootstrap_rank(bootstrap);
    struct ring_config config = {.hierarchy = *(enum hierarchy *)argument, .channels = CHANNELS, .host = self_rank % 2 ? "b" : "a"};
    if (!CHECK_OK(device_open(&device, "host")) || !CHECK_OK(ring_comm_open(&exchanges, &config, bootstrap, device))) return;
    config.exchange_bytes = 1;
    CHECK_OK(ring_comm_open(&plans, &config, bootstrap, device));
    bool differ = false;
    for (int channel = 1; channel < CHANNELS; channel++)
        differ |= memcmp(ring_comm_order(plans, 0), ring_comm_order(plans, channel), RANKS * sizeof(int)) != 0;
    CHECK(differ);
    for (int k = 0; k < 3; k++) {
        double x[MOST], y[MOST], z[MOST];
        size_t bytes = counts[k] * sizeof *x;
        for (size_t i = 0; i < counts[k]; i++) x[i] = 1.0 / (double)(1 + (i * 7919 + (size_t)self_rank * 104729) % 10007);
        CHECK_OK(ring_all_reduce(span_host(y, bytes), span_host(x, bytes), counts[k], DTYPE_FLOAT64, REDOP_SUM, plans, NULL));
        CHECK_OK(ring_all_reduce(span_host(z, bytes), span_host(x, bytes), counts[k], DTYPE_FLOAT64, REDOP_SUM, exchanges, NULL));
        CHECK_MSG(memcmp(y, z, bytes) == 0, "%zu elements: an exchange has other bits than the plan", counts[k]);
    }
    ring_comm_close(plans);
    ring_comm_close(exchanges);
    device_close(device);
}

/* Round the flat ring channel c enters and leaves each host by NIC c, once: near ones are numbered first. */
static void check_flat(void)
{
    run(HIERARCHY_FLAT);
    for (int channel = 0; channel < CHANNELS; channel++)
        for (int host = 0; host < 2; host++)
            for (int side = 0; side < 2; side++) {
                int opened = 0, rank = host;
                for (int r = host; r < RANKS; r += 2) {
                    opened += edges[r][channel][side];
                    if (edges[r][channel][side] > 0) rank = r;
                }
                CHECK_MSG(opened == 1 && rails[rank][channel][side] == number_of(channel), "channel %d, host %d, side %d: %d edges, rail %d",
                    channel, host, side, opened, rails[rank][channel][side]);
            }
}

/* In two levels every rank enters and leaves by a NIC that shares a PCI switch with its GPU. GPUs and NICs 0 and 1 share one, and 2 and 3:
 * each rank of a host has one of its own, and the other on the next channel. */
static void check_two_level(void)
{
    run(HIERARCHY_TWO_LEVEL);
    for (int rank = 0; rank < RANKS; rank++)
        for (int channel = 0; channel < CHANNELS; channel++)
            for (int side = 0; side < 2; side++)
                CHECK_MSG(edges[rank][channel][side] == 1 &&
                              rails[rank][channel][side] == number_of(rank / 4 * 2 + (rank / 2 + channel) % 2),
                    "rank %d, channel %d, side %d: %d edges, rail %d", rank, channel, side, edges[rank][channel][side],
                    rails[rank][channel][side]);
}

int main(void)
{
    const char *source = getenv("RINGZERO_SOURCE");
    char path[512];
    if (!machine_can_read()) return test_skip("built without hwloc");
    if (source == NULL) return test_skip("RINGZERO_SOURCE is not set: run it by ctest");
    snprintf(path, sizeof path, "%s/tests/topology/dgx.xml", source);
    if (!CHECK_OK(machine_read(&dgx, MACHINE_XML, path, MACHINE_DEVICES))) return test_result();
    check_flat();
    check_two_level();
    for (int h = 0; h < 2; h++) ranks_as_threads(RANKS, 10000, sizes_body, (enum hierarchy[]){h == 0 ? HIERARCHY_FLAT : HIERARCHY_TWO_LEVEL});
    machine_free(dgx);
    return test_result();
}
