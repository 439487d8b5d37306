/* machine_hwloc: fills a struct machine from what hwloc finds. Nothing of hwloc leaves this file.
 *
 * Keeps: the numbers by which two readers of one host agree (PUs, NUMA nodes, ids of packages and
 * caches, device ids) are the kernel's and the bus's, not hwloc's own counting, which starts at
 * what a container shows.
 */
#include <dlfcn.h>
#include <errno.h>
#include <hwloc.h>
#include <hwloc/distances.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/machine.h"

struct reader {
    struct machine *machine;
    hwloc_topology_t topology;
    bool is_this; /* the system that runs us: what hwloc does not tell is in /sys */
    /* Of machine->devices: a GPU's PCI function, else the OS's device. */
    hwloc_obj_t objects[MACHINE_MOST_DEVICES];
};

bool machine_can_read(void)
{
    return true;
}

/* ---- packages, NUMA nodes, caches, cores ---- */

static int index_of(hwloc_obj_t object)
{
    return object == NULL ? -1 : (int)object->logical_index;
}

/* Memory hangs beside the tree of cores. */
static int numa_of_set(hwloc_topology_t topology, hwloc_const_cpuset_t set)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL)
        if (!hwloc_bitmap_iszero(node->cpuset) && hwloc_bitmap_isincluded(set, node->cpuset))
            return index_of(node);
    return -1;
}

static uint64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type, int index)
{
    hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, (unsigned)index);
    return cache == NULL ? 0 : cache->attr->cache.size;
}

static int count_of(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(topology, type);
    return count < 0 ? 0 : count;
}

static enum status allocate(struct machine *machine, hwloc_topology_t topology)
{
    machine->package_count = count_of(topology, HWLOC_OBJ_PACKAGE);
    machine->numa_count = count_of(topology, HWLOC_OBJ_NUMANODE);
    machine->cache_count = count_of(topology, HWLOC_OBJ_L3CACHE);
    machine->core_count = count_of(topology, HWLOC_OBJ_CORE);
    machine->pu_count = count_of(topology, HWLOC_OBJ_PU);
    if (machine->pu_count < 1 || machine->pu_count > MACHINE_MOST_PUS)
        return FAIL(STATUS_INVALID, "the machine has %d PUs; expected 1 to %d", machine->pu_count,
            MACHINE_MOST_PUS);
    machine->pus = calloc((size_t)machine->pu_count, sizeof *machine->pus);
    machine->numas = calloc((size_t)machine->numa_count + 1, sizeof *machine->numas);
    machine->cache_bytes = calloc((size_t)machine->cache_count + 1, sizeof *machine->cache_bytes);
    machine->package_ids = calloc((size_t)machine->package_count + 1, sizeof *machine->package_ids);
    machine->cache_ids = calloc((size_t)machine->cache_count + 1, sizeof *machine->cache_ids);
    if (machine->pus == NULL || machine->numas == NULL || machine->cache_bytes == NULL ||
        machine->package_ids == NULL || machine->cache_ids == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for a machine of %d PUs", machine->pu_count);
    return STATUS_OK;
}

static enum status read_cores(struct reader *reader)
{
    struct machine *machine = reader->machine;
    hwloc_topology_t topology = reader->topology;
    TRY(allocate(machine, topology));
    for (int i = 0; i < machine->pu_count; i++) {
        hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, (unsigned)i);
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
        machine->pus[i] = (struct machine_pu){
            .os = (int)pu->os_index,
            .core = core == NULL ? i : index_of(core),
            .cache = index_of(hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_L3CACHE, pu)),
            .numa = numa_of_set(topology, pu->cpuset),
            .package = index_of(hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, pu)),
        };
    }
    if (machine->core_count == 0) machine->core_count = machine->pu_count;
    for (int i = 0; i < machine->numa_count; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);
        machine->numas[i] =
            (struct machine_numa){(int)node->os_index, node->attr->numanode.local_memory};
    }
    for (int i = 0; i < machine->cache_count; i++) {
        hwloc_obj_t cache = hwloc_get_obj_by_type(topology, HWLOC_OBJ_L3CACHE, (unsigned)i);
        machine->cache_ids[i] = hwloc_bitmap_first(cache->complete_cpuset);
        machine->cache_bytes[i] = cache->attr->cache.size;
    }
    for (int i = 0; i < machine->package_count; i++)
        machine->package_ids[i] = hwloc_bitmap_first(
            hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, (unsigned)i)->complete_cpuset);
    machine->l1_bytes = cache_bytes(topology, HWLOC_OBJ_L1CACHE, 0);
    machine->l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE, 0);
    return STATUS_OK;
}

/* ---- devices ---- */

static hwloc_obj_t pci_of(hwloc_obj_t object)
{
    while (object != NULL && object->type != HWLOC_OBJ_PCI_DEVICE) object = object->parent;
    return object;
}

/* Display and 3D controllers, and accelerators, of the makers whose GPUs are computed on: not a
 * server's console. */
static bool is_gpu(hwloc_obj_t pci)
{
    unsigned class_id = pci->attr->pcidev.class_id, vendor = pci->attr->pcidev.vendor_id;
    bool maker = vendor == 0x10de || vendor == 0x1002;
    return maker && (class_id >> 8 == 0x03 || class_id == 0x1200);
}

static uint32_t id_of_name(const char *name)
{
    uint32_t hash = 0x811c9dc5u;
    for (; *name != 0; name++) hash = (hash ^ (unsigned char)*name) * 0x01000193u;
    return hash | 1;
}

static struct machine_device *add_device(
    struct reader *reader, enum machine_device_kind kind, hwloc_obj_t object, const char *name)
{
    struct machine *machine = reader->machine;
    if (machine->device_count == MACHINE_MOST_DEVICES) return NULL;
    struct machine_device *device = &machine->devices[machine->device_count];
    hwloc_obj_t pci = pci_of(object),
                near = hwloc_get_non_io_ancestor_obj(reader->topology, object);
    reader->objects[machine->device_count++] = object;
    *device = (struct machine_device){.kind = kind, .numa = -1, .package = -1};
    device->id = id_of_name(name);
    if (pci != NULL) {
        const struct hwloc_pcidev_attr_s *at = &pci->attr->pcidev;
        snprintf(device->bus, sizeof device->bus, "%04x:%02x:%02x.%x", (unsigned)at->domain,
            at->bus, at->dev, at->func);
        device->id =
            (uint32_t)at->domain << 16 ^ (uint32_t)at->bus << 8 ^ (uint32_t)at->dev << 3 ^ at->func;
        if (device->id == 0) device->id = id_of_name(name);
        const char *model = hwloc_obj_get_info_by_name(pci, "PCIDevice");
        snprintf(device->model, sizeof device->model, "%s", model == NULL ? "" : model);
    }
    snprintf(device->name, sizeof device->name, "%s", name);
    if (near != NULL && near->nodeset != NULL && hwloc_bitmap_weight(near->nodeset) == 1) {
        hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(
            reader->topology, (unsigned)hwloc_bitmap_first(near->nodeset));
        device->numa = index_of(node);
    }
    hwloc_obj_t package = near;
    while (package != NULL && package->type != HWLOC_OBJ_PACKAGE) package = package->parent;
    device->package = index_of(package);
    if (reader->machine->package_count == 1) device->package = 0;
    return device;
}

/* "nvml0" rather than "card0" rather than nothing: whatever names the GPU to its users. */
static const char *gpu_name(hwloc_obj_t pci, const char *otherwise)
{
    static const char *const prefixes[] = {"nvml", "cuda", "rsmi", "card"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        for (hwloc_obj_t child = pci->io_first_child; child != NULL; child = child->next_sibling)
            if (child->name != NULL && strncmp(child->name, prefixes[i], strlen(prefixes[i])) == 0)
                return child->name;
    return otherwise;
}

/* First line of a file of /sys; "" if there is none. */
static const char *read_line(
    char *text, int bytes, const char *folder, const char *name, const char *file)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s/%s", folder, name, file);
    *text = 0;
    FILE *in = fopen(path, "r");
    if (in == NULL) return text;
    if (fgets(text, bytes, in) == NULL) *text = 0;
    fclose(in);
    return text;
}

/* The rate of the wire: /sys has it; a stored machine may carry it as hwloc's info "LinkMbps". */
static void read_link(
    struct machine_device *device, hwloc_obj_t object, const struct reader *reader)
{
    char text[64];
    const char *stored = hwloc_obj_get_info_by_name(object, "LinkMbps"),
               *state = hwloc_obj_get_info_by_name(object, "Port1State");
    device->down = state != NULL && strcmp(state, "4") != 0; /* IBV_PORT_ACTIVE */
    if (stored != NULL) device->link_mbit = (uint32_t)strtoul(stored, NULL, 10);
    if (!reader->is_this) return;
    if (device->kind == MACHINE_NIC) { /* "100 Gb/sec (4X EDR)" */
        double gbit = strtod(
            read_line(text, sizeof text, "/sys/class/infiniband", device->name, "ports/1/rate"),
            NULL);
        device->link_mbit = gbit > 0 && gbit < 1e6 ? (uint32_t)(gbit * 1000) : 0;
        read_line(text, sizeof text, "/sys/class/infiniband", device->name, "ports/1/state");
        device->down = *text != 0 && strstr(text, "ACTIVE") == NULL;
    } else { /* Mbit/s, or -1, or an error */
        long mbit =
            strtol(read_line(text, sizeof text, "/sys/class/net", device->name, "speed"), NULL, 10);
        device->link_mbit = mbit > 0 && mbit < INT32_MAX ? (uint32_t)mbit : 0;
        read_line(text, sizeof text, "/sys/class/net", device->name, "operstate");
        device->down = strncmp(text, "down", 4) == 0;
    }
}

/* What containers and virtual machines add to a host leads nowhere. */
static bool leads_out(const char *name)
{
    static const char *const inner[] = {
        "lo", "docker", "veth", "virbr", "br-", "ifb", "dummy", "tun", "tap"};
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
        if (strncmp(name, inner[i], strlen(inner[i])) == 0) return false;
    return true;
}

static void read_nics(
    struct reader *reader, hwloc_obj_osdev_type_t type, enum machine_device_kind kind)
{
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_osdev(reader->topology, object)) != NULL) {
        if (object->attr->osdev.type != type || object->name == NULL) continue;
        if (kind == MACHINE_ETHERNET && !leads_out(object->name)) continue;
        struct machine_device *device = add_device(reader, kind, object, object->name);
        if (device != NULL) read_link(device, object, reader);
    }
}

/* ---- distances ---- */

static int height_of(hwloc_obj_t object)
{
    int height = 0;
    for (; object != NULL; object = object->parent) height++;
    return height;
}

static hwloc_obj_t meeting_of(hwloc_obj_t a, hwloc_obj_t b)
{
    int above = height_of(a) - height_of(b);
    for (; above > 0; above--) a = a->parent;
    for (; above < 0; above++) b = b->parent;
    for (; a != b; a = a->parent) b = b->parent;
    return a;
}

static enum distance distance_between(int i, int j, const struct reader *reader)
{
    const struct machine_device *a = &reader->machine->devices[i],
                                *b = &reader->machine->devices[j];
    hwloc_obj_t meeting = meeting_of(reader->objects[i], reader->objects[j]);
    if (i == j || meeting->type == HWLOC_OBJ_PCI_DEVICE || meeting->type == HWLOC_OBJ_OS_DEVICE)
        return DISTANCE_SAME;
    if (meeting->type == HWLOC_OBJ_BRIDGE)
        return meeting->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? DISTANCE_SWITCH
                                                                           : DISTANCE_BRIDGE;
    if (a->numa >= 0 && a->numa == b->numa) return DISTANCE_NUMA;
    return a->package >= 0 && a->package == b->package ? DISTANCE_PACKAGE : DISTANCE_HOST;
}

static int device_of(hwloc_obj_t object, const struct reader *reader)
{
    hwloc_obj_t pci = pci_of(object);
    for (int i = 0; i < reader->machine->device_count; i++)
        if (pci != NULL && reader->machine->devices[i].kind == MACHINE_GPU &&
            reader->objects[i] == pci)
            return i;
    return -1;
}

/* Where GPUs meet in NVSwitches hwloc tells GPU to switch, and can turn that into GPU to GPU
 * (and all else into nothing). */
static void look_through_switches(struct hwloc_distances_s *links, const struct reader *reader)
{
    bool switches = false;
    for (unsigned i = 0; i < links->nbobjs; i++)
        switches |= links->objs[i] != NULL && links->objs[i]->subtype != NULL &&
                    strcmp(links->objs[i]->subtype, "NVSwitch") == 0;
    if (!switches) return;
    hwloc_distances_transform(
        reader->topology, links, HWLOC_DISTANCES_TRANSFORM_MERGE_SWITCH_PORTS, NULL, 0);
    hwloc_distances_transform(
        reader->topology, links, HWLOC_DISTANCES_TRANSFORM_TRANSITIVE_CLOSURE, NULL, 0);
}

static void read_nvlinks(struct reader *reader)
{
    unsigned count = 1;
    struct hwloc_distances_s *links = NULL;
    struct machine *machine = reader->machine;
    if (hwloc_distances_get_by_name(reader->topology, "NVLinkBandwidth", &count, &links, 0) != 0 ||
        count == 0)
        return;
    look_through_switches(links, reader);
    for (unsigned i = 0; i < links->nbobjs; i++)
        for (unsigned j = 0; j < links->nbobjs; j++) {
            int a = device_of(links->objs[i], reader), b = device_of(links->objs[j], reader);
            hwloc_uint64_t mbytes = links->values[i * links->nbobjs + j];
            if (a < 0 || b < 0 || a == b || mbytes == 0) continue;
            machine->nvlink_mbytes[a][b] = mbytes < UINT32_MAX ? (uint32_t)mbytes : UINT32_MAX;
            machine->distances[a][b] = DISTANCE_NVLINK;
        }
    hwloc_distances_release(reader->topology, links);
}

static void read_devices(struct reader *reader)
{
    struct machine *machine = reader->machine;
    hwloc_obj_t pci = NULL;
    while ((pci = hwloc_get_next_pcidev(reader->topology, pci)) != NULL) {
        char otherwise[MACHINE_NAME_BYTES];
        snprintf(otherwise, sizeof otherwise, "gpu%d", machine->device_count);
        if (is_gpu(pci)) add_device(reader, MACHINE_GPU, pci, gpu_name(pci, otherwise));
    }
    read_nics(reader, HWLOC_OBJ_OSDEV_OPENFABRICS, MACHINE_NIC);
    read_nics(reader, HWLOC_OBJ_OSDEV_NETWORK, MACHINE_ETHERNET);
    for (int i = 0; i < machine->device_count; i++)
        for (int j = 0; j < machine->device_count; j++)
            machine->distances[i][j] = (uint8_t)distance_between(i, j, reader);
    read_nvlinks(reader);
}

/* ---- reading ---- */

static int find_bus_library(struct dl_phdr_info *info, size_t bytes, void *path)
{
    (void)bytes;
    if (strstr(info->dlpi_name, "/libpciaccess.so") == NULL) return 0;
    snprintf(path, PATH_MAX, "%s", info->dlpi_name);
    return 1;
}

/* hwloc's plugin for PCI is unloaded with the last topology, and its library with it, which leaves
 * its table of names (600 KiB) behind: a leak at each reading, if the library did not stay. */
static void keep_bus_library(void)
{
    char path[PATH_MAX];
    if (dl_iterate_phdr(find_bus_library, path) == 0) return;
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (library != NULL) dlclose(library);
}

static enum status refuse(enum machine_source source, const char *text)
{
    if (source == MACHINE_THIS)
        return FAIL(STATUS_SYSTEM, "hwloc cannot read this machine: %s", strerror(errno));
    if (source == MACHINE_XML)
        return FAIL(STATUS_INVALID,
            "%s is no machine that hwloc reads (%s); expected what "
            "`lstopo FILE.xml` writes",
            text, strerror(errno));
    return FAIL(STATUS_INVALID,
        "\"%s\" describes no machine; expected hwloc's synthetic form, as "
        "\"package:2 numa:1 core:4 pu:2\"",
        text);
}

static enum status load(hwloc_topology_t topology, enum machine_source source, const char *text,
    enum machine_depth depth)
{
    /* Drivers that would wake GPUs, or start threads, in every rank; those that this hwloc does
     * not know are no loss. */
    static const char *const unwanted[] = {"cuda", "opencl", "gl", "levelzero", "rsmi"};
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
        hwloc_topology_set_components(
            topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unwanted[i]);
    hwloc_topology_set_icache_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    if (depth == MACHINE_DEVICES) {
        hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
        hwloc_topology_set_type_filter(
            topology, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL); /* Soft-RoCE has no bus */
    }
    bool taken = true;
    if (source == MACHINE_XML) taken = hwloc_topology_set_xml(topology, text) == 0;
    if (source == MACHINE_SYNTHETIC) taken = hwloc_topology_set_synthetic(topology, text) == 0;
    if (!taken || hwloc_topology_load(topology) != 0) return refuse(source, text);
    if (depth == MACHINE_DEVICES) keep_bus_library();
    return STATUS_OK;
}

enum status machine_read(
    struct machine **out, enum machine_source source, const char *text, enum machine_depth depth)
{
    *out = NULL;
    struct reader reader = {.machine = calloc(1, sizeof *reader.machine)};
    if (reader.machine == NULL) return FAIL(STATUS_SYSTEM, "no memory for a machine");
    if (hwloc_topology_init(&reader.topology) != 0) {
        machine_free(reader.machine);
        return FAIL(STATUS_SYSTEM, "hwloc cannot start: %s", strerror(errno));
    }
    enum status status;
    TRY_GOTO(load(reader.topology, source, text, depth));
    reader.is_this = hwloc_topology_is_thissystem(reader.topology) == 1;
    const char *name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(reader.topology), "HostName");
    snprintf(reader.machine->name, sizeof reader.machine->name, "%s", name == NULL ? "" : name);
    TRY_GOTO(read_cores(&reader));
    if (depth == MACHINE_DEVICES) read_devices(&reader);
    hwloc_topology_destroy(reader.topology);
    *out = reader.machine;
    return STATUS_OK;
fail:
    hwloc_topology_destroy(reader.topology);
    machine_free(reader.machine);
    return status;
}
