/* topology_describe: what a rank says of itself: topology.c reckons with it.
 *
 * Keeps: numbers that travel mean the same to every rank of a host, in whatever container it runs
 * (verbs/machine.h).
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/topology.h"
#include "verbs/log.h"

/* FNV-1a: any text to a number that is the same wherever the text is. */
static uint64_t hash_text(const char *text, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    return hash;
}

/* The running kernel, and the process table that /proc/<pid>/fd is looked up in. */
static uint64_t host_identity(const char *pretended)
{
    if (pretended != NULL) return hash_text(pretended, strlen(pretended));
    char text[256] = "";
    size_t used = 0;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file != NULL) {
        used = fread(text, 1, 64, file);
        fclose(file);
    } else {
        gethostname(text, 64);
        used = strnlen(text, 64);
    }
    ssize_t got = readlink("/proc/self/ns/pid", text + used, sizeof text - used);
    return hash_text(text, used + (got > 0 ? (size_t)got : 0));
}

/* The PUs that this process may run on. False where that is all of them, or not known. */
static bool own_pus(cpu_set_t *set)
{
    return sched_getaffinity(0, sizeof *set, set) == 0 &&
           CPU_COUNT(set) < sysconf(_SC_NPROCESSORS_ONLN);
}

static struct machine_pus pus_of_set(const struct machine *machine, const cpu_set_t *set)
{
    struct machine_pus pus = {{0}};
    for (int i = 0; i < machine->pu_count; i++)
        if (set == NULL || (machine->pus[i].os < CPU_SETSIZE && CPU_ISSET(machine->pus[i].os, set)))
            machine_pus_add(&pus, i);
    return pus;
}

/* This machine, or NULL: without it ranks are ordered by host and number. */
static struct machine *read_self(enum machine_depth depth)
{
    struct machine *machine = NULL;
    if (!machine_can_read()) return NULL;
    if (machine_read(&machine, MACHINE_THIS, "", depth) != STATUS_OK)
        LOG_WARN("ring", "no topology: %s", status_text());
    return machine;
}

struct topology_rank topology_describe_self(const char *pretended)
{
    const char *why;
    struct topology_rank rank = {.package = -1, .numa = -1, .cache = -1, .core = -1};
    cpu_set_t set;
    struct machine *machine = own_pus(&set) ? read_self(MACHINE_CORES) : NULL;
    if (machine != NULL) {
        struct machine_pus pus = pus_of_set(machine, &set);
        topology_describe(&rank, NULL, machine, &pus, -1);
        machine_free(machine);
    }
    LOG_INFO("ring", "runs in package %d, NUMA node %d, on core %d (-1: anywhere)", rank.package,
        rank.numa, rank.core);
    rank.host = host_identity(pretended);
    rank.shm_works = transport_shm.available(&why, NULL);
    rank.verbs_work = transport_verbs.available(&why, NULL);
    return rank;
}

struct topology_devices topology_describe_devices(
    struct topology_names *names, const struct topology_rank *self)
{
    memset(names, 0, sizeof *names);
    struct topology_devices devices = {{{0}}, {{0}}};
    struct topology_rank rank;
    struct machine *machine = read_self(MACHINE_DEVICES);
    if (machine == NULL) return devices;
    cpu_set_t set;
    struct machine_pus pus = pus_of_set(machine, own_pus(&set) ? &set : NULL);
    int gpu = machine->device_count - 1;
    while (gpu >= 0 &&
           (machine->devices[gpu].kind != MACHINE_GPU || machine->devices[gpu].id != self->gpu))
        gpu--;
    topology_describe(&rank, &devices, machine, &pus, gpu);
    for (int i = 0; i < TOPOLOGY_MOST_LINKS && devices.nics[i].id != 0; i++) {
        const struct topology_link *nic = &devices.nics[i];
        memcpy(names->nics[i], machine->devices[nic->place].name, sizeof names->nics[i]);
        LOG_INFO("ring", "NIC %d: %s, %d Gbit/s, distance: %s", i, names->nics[i], nic->gbit,
            distance_name((enum distance)nic->distance));
    }
    machine_free(machine);
    return devices;
}

static struct topology_link link_to(
    const struct machine *machine, struct machine_place place, int gpu, int device)
{
    const struct machine_device *to = &machine->devices[device];
    uint32_t rate = to->kind == MACHINE_GPU ? machine->nvlink_mbytes[gpu][device] : to->link_mbit;
    return (struct topology_link){
        .id = to->id,
        .gbit = (uint16_t)(rate / 1000 < UINT16_MAX ? rate / 1000 : UINT16_MAX),
        .distance = (uint8_t)(gpu >= 0 ? machine->distances[gpu][device]
                                       : machine_distance(machine, place, device)),
        .place = (uint8_t)device,
    };
}

static void describe_devices(struct topology_devices *devices, const struct machine *machine,
    struct machine_place place, int gpu)
{
    int nics = 0, gpus = 0;
    memset(devices, 0, sizeof *devices);
    for (int d = 0; d < machine->device_count; d++) {
        const struct machine_device *device = &machine->devices[d];
        if (device->kind == MACHINE_NIC && !device->down && nics < TOPOLOGY_MOST_LINKS)
            devices->nics[nics++] = link_to(machine, place, gpu, d);
        if (device->kind == MACHINE_GPU && gpu >= 0 && d != gpu && gpus < TOPOLOGY_MOST_LINKS)
            devices->gpus[gpus++] = link_to(machine, place, gpu, d);
    }
}

void topology_describe(struct topology_rank *rank, struct topology_devices *devices,
    const struct machine *machine, const struct machine_pus *pus, int gpu)
{
    struct machine_place place = machine_place_of(machine, pus);
    *rank = (struct topology_rank){
        .package = place.package < 0 ? -1 : machine->package_ids[place.package],
        .numa = place.numa < 0 ? -1 : machine->numas[place.numa].os,
        .cache = place.cache < 0 ? -1 : machine->cache_ids[place.cache],
        .core = -1,
        .gpu = gpu < 0 ? 0 : machine->devices[gpu].id,
    };
    for (int i = machine->pu_count - 1; i >= 0 && place.core >= 0; i--)
        if (machine->pus[i].core == place.core) rank->core = machine->pus[i].os;
    if (devices != NULL) describe_devices(devices, machine, place, gpu);
}
