/* machine: reckoning with a description; machine_hwloc.c makes one. Pure: nothing here asks the
 * system. */
#include "verbs/machine.h"

#include <stdlib.h>

static const char *const distance_names[DISTANCE_COUNT] = {
    "same", "NVLink", "PCI switch", "host bridge", "L3", "NUMA node", "package", "host", "network"};

const char *distance_name(enum distance distance)
{
    return distance_names[distance];
}

void machine_free(struct machine *machine)
{
    if (machine == NULL) return;
    free(machine->pus);
    free(machine->numas);
    free(machine->cache_bytes);
    free(machine->package_ids);
    free(machine->cache_ids);
    free(machine);
}

/* The value that more than half of the set's PUs have, or -1. Boyer and Moore's vote, then a
 * count. */
static int majority(const struct machine *machine, const struct machine_pus *pus, size_t member)
{
    int candidate = -1, lead = 0, votes = 0, all = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < machine->pu_count; i++) {
            if (!machine_pus_has(pus, i)) continue;
            int value = *(const int *)((const char *)&machine->pus[i] + member);
            if (pass == 1) {
                votes += value == candidate;
                all++;
            } else if (lead == 0) {
                candidate = value;
                lead = 1;
            } else {
                lead += value == candidate ? 1 : -1;
            }
        }
    return votes * 2 > all ? candidate : -1;
}

struct machine_place machine_place_of(const struct machine *machine, const struct machine_pus *pus)
{
    struct machine_place place = {
        .package = majority(machine, pus, offsetof(struct machine_pu, package)),
        .numa = majority(machine, pus, offsetof(struct machine_pu, numa)),
        .cache = majority(machine, pus, offsetof(struct machine_pu, cache)),
        .core = majority(machine, pus, offsetof(struct machine_pu, core)),
    };
    for (int i = 0; i < machine->pu_count && place.core >= 0; i++)
        if (machine_pus_has(pus, i) && machine->pus[i].core != place.core) place.core = -1;
    return place;
}

bool machine_share(struct machine_pus *share, const struct machine *machine,
    const struct machine_pus *from, int rank, int nranks)
{
    int cores = 0, pus = 0, last = -1;
    *share = (struct machine_pus){{0}};
    for (int i = 0; i < machine->pu_count; i++) {
        if (!machine_pus_has(from, i)) continue;
        pus++;
        cores += machine->pus[i].core != last;
        last = machine->pus[i].core;
    }
    bool by_core = cores >= nranks;
    int64_t parts = by_core ? cores : pus;
    if (parts < nranks) return false;
    int64_t first = rank * parts / nranks, end = first + parts / nranks, part = -1;
    last = -1;
    for (int i = 0; i < machine->pu_count; i++) {
        if (!machine_pus_has(from, i)) continue;
        part += !by_core || machine->pus[i].core != last;
        last = machine->pus[i].core;
        if (part >= first && part < end) machine_pus_add(share, i);
    }
    return true;
}

struct machine_pus machine_pus_near(
    const struct machine *machine, const struct machine_pus *own, int device)
{
    struct machine_pus near = {{0}};
    int numa = machine->devices[device].numa;
    bool some = false;
    for (int i = 0; i < machine->pu_count; i++) {
        if (!machine_pus_has(own, i) || machine->pus[i].numa != numa) continue;
        machine_pus_add(&near, i);
        some = true;
    }
    return some ? near : *own;
}

enum distance machine_distance(
    const struct machine *machine, struct machine_place place, int device)
{
    const struct machine_device *d = &machine->devices[device];
    if (place.numa >= 0 && place.numa == d->numa) return DISTANCE_NUMA;
    return place.package >= 0 && place.package == d->package ? DISTANCE_PACKAGE : DISTANCE_HOST;
}
