/* topo_print: the tree of each host, the ranks, and each channel's ring with what lies between its
 * ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/json_line.h"
#include "bench/topo.h"
#include "verbs/plural.h"
#include "verbs/rail.h"

#define MOST_HOPS 32 /* of a ring that are printed; of longer ones those between hosts alone */

/* ---- words ---- */

static const char *bytes_text(char *text, size_t room, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    snprintf(text, room, value < 10 && unit > 0 && value != (int)value ? "%.1f %s" : "%.0f %s",
        value, units[unit]);
    return text;
}

static const char *rate_text(char *text, size_t room, const struct machine_device *device)
{
    if (device->link_mbit == 0) snprintf(text, room, "rate unknown");
    else snprintf(text, room, "%g Gb/s", device->link_mbit / 1000.0);
    return text;
}

static int compare_numbers(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* "0-3,8": the kernel's numbers of a set. */
static const char *pus_text(
    char *text, size_t room, const struct machine *machine, const struct machine_pus *set)
{
    int count = 0, *numbers = malloc((size_t)machine->pu_count * sizeof *numbers);
    size_t used = 0;
    *text = 0;
    for (int i = 0; numbers != NULL && i < machine->pu_count; i++)
        if (machine_pus_has(set, i)) numbers[count++] = machine->pus[i].os;
    if (numbers != NULL) qsort(numbers, (size_t)count, sizeof *numbers, compare_numbers);
    for (int i = 0; i < count && used + 32 < room; i++) {
        int last = i;
        while (last + 1 < count && numbers[last + 1] == numbers[last] + 1) last++;
        used += (size_t)snprintf(text + used, room - used, "%s%d", i > 0 ? "," : "", numbers[i]);
        if (last > i) used += (size_t)snprintf(text + used, room - used, "-%d", numbers[last]);
        i = last;
    }
    free(numbers);
    return text;
}

/* ---- the tree ---- */

static void print_device(const struct machine_device *device, const char *indent)
{
    static const char *const kinds[] = {"GPU", "NIC", "interface"};
    char rate[32];
    printf("%s%s %s", indent, kinds[device->kind], device->name);
    if (device->bus[0] != 0) printf(", PCI %s", device->bus);
    if (device->kind != MACHINE_GPU) printf(", %s", rate_text(rate, sizeof rate, device));
    if (device->kind == MACHINE_NIC) printf(", RDMA");
    if (device->down) printf(", down");
    printf(device->model[0] != 0 ? ", %s\n" : "\n", device->model);
}

static void print_caches(const struct machine *machine, int package, int numa)
{
    for (int c = -1; c < machine->cache_count; c++) {
        struct machine_pus set = {{0}};
        int pus = 0, cores = 0, last = -1;
        char size[32], list[256];
        for (int i = 0; i < machine->pu_count; i++) {
            const struct machine_pu *pu = &machine->pus[i];
            if (pu->package != package || pu->numa != numa || pu->cache != c) continue;
            machine_pus_add(&set, i);
            pus++;
            cores += pu->core != last;
            last = pu->core;
        }
        if (pus == 0) continue;
        if (c >= 0) printf("      L3 %s: ", bytes_text(size, sizeof size, machine->cache_bytes[c]));
        else printf("      ");
        printf("%d core%s, PU%s %s\n", cores, PLURAL(cores), PLURAL(pus),
            pus_text(list, sizeof list, machine, &set));
    }
}

/* The first package with a PU that is nearest to a NUMA node; -1: none is. */
static int package_of_numa(const struct machine *machine, int numa)
{
    for (int i = 0; i < machine->pu_count; i++)
        if (machine->pus[i].numa == numa) return machine->pus[i].package;
    return -1;
}

/* Packages may share a node: it is told in each of them, its devices in the first. */
static bool package_has_numa(const struct machine *machine, int package, int numa)
{
    for (int i = 0; i < machine->pu_count; i++)
        if (machine->pus[i].numa == numa && machine->pus[i].package == package) return true;
    return package < 0 && package_of_numa(machine, numa) < 0;
}

static void print_package(const struct machine *machine, int package)
{
    char size[32];
    for (int m = -1; m < machine->numa_count; m++) {
        if (!package_has_numa(machine, package, m) || (m < 0 && package >= 0)) continue;
        if (m >= 0)
            printf("    NUMA node %d: %s\n", machine->numas[m].os,
                bytes_text(size, sizeof size, machine->numas[m].bytes));
        print_caches(machine, package, m);
        bool first = m >= 0 && package_of_numa(machine, m) == package;
        for (int d = 0; d < machine->device_count && first; d++)
            if (machine->devices[d].numa == m) print_device(&machine->devices[d], "      ");
    }
    for (int d = 0; d < machine->device_count; d++)
        if (machine->devices[d].numa < 0 && machine->devices[d].package == package)
            print_device(&machine->devices[d], package < 0 ? "    nowhere told: " : "    ");
}

static void print_tree(const struct topo_host *host)
{
    const struct machine *machine = host->machine;
    uint64_t memory = 0;
    char text[32];
    for (int m = 0; m < machine->numa_count; m++) memory += machine->numas[m].bytes;
    printf("host %s: %d package%s, %d NUMA node%s, %d core%s, %d PU%s", host->name,
        machine->package_count, PLURAL(machine->package_count), machine->numa_count,
        PLURAL(machine->numa_count), machine->core_count,
        PLURAL(machine->core_count), machine->pu_count, PLURAL(machine->pu_count));
    if (memory > 0) printf(", %s", bytes_text(text, sizeof text, memory));
    if (machine->l2_bytes > 0) printf(", L2 %s", bytes_text(text, sizeof text, machine->l2_bytes));
    if (machine->l1_bytes > 0) printf(", L1 %s", bytes_text(text, sizeof text, machine->l1_bytes));
    printf("\n");
    for (int p = -1; p < machine->package_count; p++) {
        if (p >= 0) printf("  package %d\n", p);
        print_package(machine, p);
    }
}

/* What the NICs of this machine can do with memory of GPUs: no description of another machine tells. */
static void print_gpu_ways(const struct machine *machine)
{
    for (int d = 0; d < machine->device_count; d++) {
        if (machine->devices[d].kind != MACHINE_NIC) continue;
        const char *name = machine->devices[d].name, *way = nic_gpu_way(name);
        if (way != NULL)
            printf("  %s: memory of GPUs %s\n", name,
                strcmp(way, "dma-buf") == 0   ? "directly, by dma-buf"
                : strcmp(way, "peermem") == 0 ? "directly, by nvidia_peermem"
                                              : "through pinned host memory: neither dma-buf nor nvidia_peermem");
    }
}

/* ---- ranks and rings ---- */

static void print_rank(const struct topo *topo, int rank)
{
    const struct topo_host *host = topo_host_of(topo, rank);
    const struct machine *machine = host->machine;
    const struct machine_device *nic = topo_nic(topo, rank, -1);
    char list[128];
    printf("  rank %-4d %s, PU %s", rank, host->name,
        pus_text(list, sizeof list, machine, &topo->pus[rank]));
    if (topo->ranks[rank].numa >= 0) printf(", NUMA node %d", topo->ranks[rank].numa);
    if (topo->gpus[rank] >= 0) printf(", GPU %s", machine->devices[topo->gpus[rank]].name);
    if (nic != NULL) {
        struct machine_pus proxies =
            machine_pus_near(machine, &topo->pus[rank], (int)(nic - machine->devices));
        int place = topology_nic(&topo->topology, rank, -1);
        printf(", nearest NIC %s (%s), its proxy on PU %s", nic->name,
            distance_name((enum distance)topo->devices[rank].nics[place].distance),
            pus_text(list, sizeof list, machine, &proxies));
    }
    printf("\n");
}

static void print_hop(const struct topo *topo, int from, int to, int channel)
{
    enum distance distance = topology_distance(&topo->topology, from, to);
    const struct machine_device *by = topo_nic(topo, from, channel),
                                *into = topo_nic(topo, to, channel);
    char a[32], b[32];
    printf("    %4d ► %-4d %-8s %s", from, to, topo_transport(topo, from, to),
        distance_name(distance));
    if (distance == DISTANCE_NVLINK) {
        const struct topo_host *host = topo_host_of(topo, from);
        printf(
            ", %g GB/s", host->machine->nvlink_mbytes[topo->gpus[from]][topo->gpus[to]] / 1000.0);
    }
    if (distance == DISTANCE_NETWORK && by != NULL && into != NULL)
        printf(": %s of %s, %s ► %s of %s, %s", by->name, topo_host_of(topo, from)->name,
            rate_text(a, sizeof a, by), into->name, topo_host_of(topo, to)->name,
            rate_text(b, sizeof b, into));
    printf("\n");
}

/* How near a channel's ends are to its NIC: why the ring begins and ends in a host where it
 * does. */
static void print_border(const struct topo *topo, int first, int last, int channel)
{
    const struct machine_device *nic = topo_nic(topo, first, channel);
    int at_first = topology_nic(&topo->topology, first, channel),
        at_last = topology_nic(&topo->topology, last, channel);
    printf("    %s: enters at rank %d, leaves from rank %d", topo_host_of(topo, first)->name, first,
        last);
    if (nic != NULL && at_last >= 0)
        printf("; NIC %s: %s and %s away", nic->name,
            distance_name((enum distance)topo->devices[first].nics[at_first].distance),
            distance_name((enum distance)topo->devices[last].nics[at_last].distance));
    printf("\n");
}

static void print_channel(const struct topo *topo, const int *order, int channel)
{
    int n = topo->topology.nranks, first = order[0];
    printf("channel %d:", channel);
    for (int p = 0; p < n; p++) printf(" %d ►", order[p]);
    printf(" %d\n", order[0]);
    for (int p = 0; p < n && topo->host_count > 1; p++) {
        bool leaves =
            p + 1 == n || topo_host_of(topo, order[p]) != topo_host_of(topo, order[p + 1]);
        if (!leaves) continue;
        print_border(topo, first, order[p], channel);
        if (p + 1 < n) first = order[p + 1];
    }
    for (int p = 0; p < n && n > 1; p++) {
        int from = order[p], to = order[(p + 1) % n];
        if (n <= MOST_HOPS || topo_host_of(topo, from) != topo_host_of(topo, to))
            print_hop(topo, from, to, channel);
    }
}

/* Whether reductions would have two levels, and why; and by which NIC each rank then sends. */
static void print_levels(const struct topo *topo, const int *order)
{
    char text[64], rate[32];
    struct topology_shape shape = topology_shape(&topo->topology);
    bool levels = topology_shape_has_two_levels(shape);
    const char *why = levels           ? "the same number on each"
                      : shape.hosts < 2 ? "one host"
                      : shape.most < 2  ? "one rank on each host"
                                        : "not the same number on each";
    printf("%s: %s, %s\n", topology_shape_text(text, shape),
        levels ? "two levels, inside each host and then between hosts" : "flat, round one ring", why);
    if (!levels) return;
    printf("    out of a host 2(H-1)/H = %.3g of an all_reduce's bytes, round one ring 2(n-1)/n = %.3g\n",
        2.0 * (shape.hosts - 1) / shape.hosts, 2.0 * (topo->topology.nranks - 1) / topo->topology.nranks);
    for (int place = 0; place < shape.least; place++) {
        printf("    place %d:", place);
        for (int h = 0; h < shape.hosts; h++) {
            int rank = order[h * shape.least + place], nic = topology_own_nic(&topo->topology, rank, 0);
            const struct machine_device *by = nic < 0 ? NULL : topo_device(topo, rank, nic);
            printf(" %d", rank);
            if (by != NULL) printf(" by %s, %s", by->name, rate_text(rate, sizeof rate, by));
            printf(" ►");
        }
        printf(" %d\n", order[place]);
    }
}

void topo_print(const struct topo *topo)
{
    for (int h = 0; h < topo->host_count; h++) print_tree(&topo->hosts[h]);
    if (topo->xml == NULL && topo->synthetic == NULL && topo->hosts_file == NULL)
        print_gpu_ways(topo->hosts[0].machine);
    printf("\nranks\n");
    for (int r = 0; r < topo->topology.nranks; r++) print_rank(topo, r);
    int *order = malloc((size_t)topo->topology.nranks * sizeof *order);
    if (order == NULL) options_refuse(&topo->common, "no memory for a ring");
    printf("\n");
    topology_ring_order(order, &topo->topology, 0);
    print_levels(topo, order);
    for (int channel = 0; channel < topo->channels; channel++) {
        topology_ring_order(order, &topo->topology, channel);
        print_channel(topo, order, channel);
    }
    free(order);
}

/* ---- JSON ---- */

static cJSON *host_object(const struct topo_host *host)
{
    static const char *const kinds[] = {"gpu", "nic", "interface"};
    const struct machine *machine = host->machine;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "host", host->name);
    cJSON_AddNumberToObject(object, "packages", machine->package_count);
    cJSON_AddNumberToObject(object, "numa_nodes", machine->numa_count);
    cJSON_AddNumberToObject(object, "cores", machine->core_count);
    cJSON_AddNumberToObject(object, "pus", machine->pu_count);
    cJSON *devices = cJSON_AddArrayToObject(object, "devices");
    for (int d = 0; d < machine->device_count; d++) {
        const struct machine_device *device = &machine->devices[d];
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "kind", kinds[device->kind]);
        cJSON_AddStringToObject(one, "name", device->name);
        cJSON_AddStringToObject(one, "pci", device->bus);
        cJSON_AddNumberToObject(
            one, "numa_node", device->numa < 0 ? -1 : machine->numas[device->numa].os);
        cJSON_AddNumberToObject(one, "link_mbit", device->link_mbit);
        cJSON_AddBoolToObject(one, "down", device->down);
        cJSON_AddItemToArray(devices, one);
    }
    return object;
}

static cJSON *rank_object(const struct topo *topo, int rank)
{
    const struct topo_host *host = topo_host_of(topo, rank);
    const struct machine_device *nic = topo_nic(topo, rank, -1);
    char list[256];
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "rank", rank);
    cJSON_AddStringToObject(object, "host", host->name);
    cJSON_AddNumberToObject(object, "numa_node", topo->ranks[rank].numa);
    cJSON_AddStringToObject(
        object, "pus", pus_text(list, sizeof list, host->machine, &topo->pus[rank]));
    if (topo->gpus[rank] >= 0)
        cJSON_AddStringToObject(object, "gpu", host->machine->devices[topo->gpus[rank]].name);
    if (nic == NULL) return object;
    struct machine_pus proxies =
        machine_pus_near(host->machine, &topo->pus[rank], (int)(nic - host->machine->devices));
    cJSON_AddStringToObject(object, "nic", nic->name);
    cJSON_AddStringToObject(
        object, "proxy_pus", pus_text(list, sizeof list, host->machine, &proxies));
    return object;
}

static cJSON *channel_object(const struct topo *topo, const int *order, int channel)
{
    int n = topo->topology.nranks;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "channel", channel);
    cJSON_AddItemToObject(object, "ring", cJSON_CreateIntArray(order, n));
    cJSON *edges = cJSON_AddArrayToObject(object, "edges");
    for (int p = 0; p < n; p++) {
        int from = order[p], to = order[(p + 1) % n];
        const struct machine_device *by = topo_nic(topo, from, channel),
                                    *into = topo_nic(topo, to, channel);
        enum distance distance = topology_distance(&topo->topology, from, to);
        cJSON *edge = cJSON_CreateObject();
        cJSON_AddNumberToObject(edge, "from", from);
        cJSON_AddNumberToObject(edge, "to", to);
        cJSON_AddStringToObject(edge, "transport", topo_transport(topo, from, to));
        cJSON_AddStringToObject(edge, "distance", distance_name(distance));
        if (distance == DISTANCE_NETWORK && by != NULL)
            cJSON_AddStringToObject(edge, "nic_from", by->name);
        if (distance == DISTANCE_NETWORK && into != NULL)
            cJSON_AddStringToObject(edge, "nic_to", into->name);
        cJSON_AddItemToArray(edges, edge);
    }
    return object;
}

static cJSON *levels_object(const struct topo *topo)
{
    struct topology_shape shape = topology_shape(&topo->topology);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddBoolToObject(object, "two_level", topology_shape_has_two_levels(shape));
    cJSON_AddNumberToObject(object, "hosts", shape.hosts);
    cJSON_AddNumberToObject(object, "fewest_ranks", shape.least);
    cJSON_AddNumberToObject(object, "most_ranks", shape.most);
    return object;
}

enum status topo_print_json(FILE *file, const struct topo *topo)
{
    enum status status = STATUS_OK;
    int *order = malloc((size_t)topo->topology.nranks * sizeof *order);
    if (order == NULL) return FAIL(STATUS_SYSTEM, "out of memory for the order of %d ranks", topo->topology.nranks);
    for (int h = 0; h < topo->host_count; h++) TRY_GOTO(json_line_write(file, host_object(&topo->hosts[h])));
    for (int r = 0; r < topo->topology.nranks; r++) TRY_GOTO(json_line_write(file, rank_object(topo, r)));
    TRY_GOTO(json_line_write(file, levels_object(topo)));
    for (int c = 0; c < topo->channels; c++) {
        topology_ring_order(order, &topo->topology, c);
        TRY_GOTO(json_line_write(file, channel_object(topo, order, c)));
    }
fail:
    free(order);
    return status;
}
