/* machine: what a host looks like: packages, NUMA nodes, caches, cores, GPUs and NICs, and how near
 * they are to one another. Read by hwloc from this system, from an XML file or from a synthetic
 * string; a plain value afterwards, with which anyone may reckon.
 *
 *   machine ─┬─ package ─┬─ NUMA node ─┬─ L3 ─── core ─── PU (what the kernel schedules on)
 *            │           │             └─ L3 …
 *            │           └─ host bridge ─── PCI switch ─┬─ GPU
 *            └─ package …                               └─ NIC
 *
 * PUs are listed from left to right, so that neighbours in the list are neighbours in the machine.
 *
 * Built without hwloc there are no machines: machine_read() says so, and callers go on without.
 */
#ifndef VERBS_MACHINE_H
#define VERBS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MACHINE_MOST_DEVICES 48
#define MACHINE_NAME_BYTES   24

/* From near to far. What lies between two devices, two cores, a device and a core, or two ranks. */
enum distance {
    DISTANCE_SAME,    /* one device, one core */
    DISTANCE_NVLINK,  /* GPUs that reach each other without PCI */
    DISTANCE_SWITCH,  /* PCI switches */
    DISTANCE_BRIDGE,  /* a host bridge */
    DISTANCE_CACHE,   /* cores that share an L3 */
    DISTANCE_NUMA,    /* one NUMA node */
    DISTANCE_PACKAGE, /* one package */
    DISTANCE_HOST,    /* one host: between packages, or nothing more is known */
    DISTANCE_NETWORK,
    DISTANCE_COUNT
};
const char *distance_name(enum distance distance); /* "PCI switch" */

/* A PU and where it lies: indices into the machine's arrays. */
struct machine_pu {
    int os; /* the kernel's number */
    int core, cache, numa, package;
};

struct machine_numa {
    int os;
    uint64_t bytes; /* of memory */
};

enum machine_device_kind { MACHINE_GPU, MACHINE_NIC, MACHINE_ETHERNET };

struct machine_device {
    enum machine_device_kind kind; /* NIC: reached by verbs; ETHERNET: the kernel's interface */
    char name[MACHINE_NAME_BYTES]; /* "mlx5_0", "eth0", "nvml0" */
    char model[64];                /* "": unknown */
    char bus[16];                  /* PCI address "0000:18:00.0"; "": none is told */
    uint32_t id; /* within its host, never 0: from the PCI address, else from the name */
    int numa, package;  /* that it belongs to; -1: not one, or not told */
    uint32_t link_mbit; /* of the wire, Mbit/s; 0: unknown */
    bool down;          /* known to be not active */
};

struct machine {
    char name[64]; /* "": not told */
    int package_count, numa_count, cache_count, core_count, pu_count, device_count;
    struct machine_pu *pus;     /* [pu_count] */
    struct machine_numa *numas; /* [numa_count] */
    uint64_t *cache_bytes;      /* [cache_count] of L3; 0: unknown */
    /* The lowest PU of each, disabled ones too: the same seen from every container of a host. */
    int *package_ids, *cache_ids;
    uint64_t l1_bytes, l2_bytes; /* of a core; 0: unknown */
    struct machine_device devices[MACHINE_MOST_DEVICES];
    uint8_t distances[MACHINE_MOST_DEVICES][MACHINE_MOST_DEVICES]; /* enum distance */
    /* MB/s between two GPUs; 0: none. */
    uint32_t nvlink_mbytes[MACHINE_MOST_DEVICES][MACHINE_MOST_DEVICES];
};

enum machine_source {
    MACHINE_THIS,      /* text: not looked at */
    MACHINE_XML,       /* text: the file that `lstopo FILE.xml` wrote */
    MACHINE_SYNTHETIC, /* text: as lstopo takes it, "package:2 numa:1 core:4 pu:2" */
};
enum machine_depth { MACHINE_CORES, MACHINE_DEVICES }; /* without devices: 5 ms; with them: 40 ms */

/* Reads a machine. ownership: close with machine_free(). errors: INVALID when text describes
 * none; SYSTEM where this system does not tell, or this build has no hwloc. *machine is NULL
 * then. threads: any. */
MUST_CHECK enum status machine_read(struct machine **machine, enum machine_source source,
    const char *text, enum machine_depth depth);
void machine_free(struct machine *machine);
bool machine_can_read(void); /* whether this build has hwloc */

/* ---- pure functions ---- */

/* A set of PUs, each by its place in machine.pus. */
#define MACHINE_MOST_PUS 4096
struct machine_pus {
    uint64_t words[MACHINE_MOST_PUS / 64];
};
static inline bool machine_pus_has(const struct machine_pus *set, int pu)
{
    return set->words[pu / 64] >> (pu % 64) & 1;
}
static inline void machine_pus_add(struct machine_pus *set, int pu)
{
    set->words[pu / 64] |= (uint64_t)1 << (pu % 64);
}

/* Where somebody runs: his PUs' package, NUMA node and L3, where most of his PUs lie in one;
 * core: where all do. Indices; -1: spread. */
struct machine_place {
    int package, numa, cache, core;
};
struct machine_place machine_place_of(const struct machine *machine, const struct machine_pus *pus);

/* The part of `from` that rank r of nranks has for itself: neighbouring cores with all their
 * PUs, ranks spread evenly over the whole machine; PUs where there are fewer cores than ranks.
 * False, and nothing, where there are fewer PUs. */
bool machine_share(struct machine_pus *share, const struct machine *machine,
    const struct machine_pus *from, int rank, int nranks);

/* The PUs by which a thread that serves this device should run: those of `own` in the device's
 * NUMA node; all of `own` if there are none. */
struct machine_pus machine_pus_near(
    const struct machine *machine, const struct machine_pus *own, int device);

/* From cores to a device. */
enum distance machine_distance(
    const struct machine *machine, struct machine_place place, int device);

#ifdef __cplusplus
}
#endif
#endif
