/* topo: `ringzero topo` describes this machine, another one, or several, and the rings that ranks
 * on them would have. The rings come from the functions that a communicator calls; no rank is
 * started.
 */
#include "bench/topo.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "bench/programs.h"

#define MOST_CHANNELS 16

enum { KEY_XML = 0x200, KEY_SYNTHETIC, KEY_HOSTS, KEY_CHANNELS, KEY_NO_GPU };

static const struct argp_option topo_options[] = {
    {"xml", KEY_XML, "FILE", 0, "another machine, as `lstopo FILE.xml` wrote it there", 0},
    {"synthetic", KEY_SYNTHETIC, "TEXT", 0,
        "a machine in hwloc's short form: \"package:2 numa:1 core:8 pu:2\"", 0},
    {"hosts", KEY_HOSTS, "FILE", 0,
        "several machines: lines of NAME RANKS FILE.xml, or NAME RANKS TEXT as for --synthetic; "
        "files "
        "are looked for beside FILE; # begins a comment",
        0},
    {"channels", KEY_CHANNELS, "N", 0,
        "rings to draw (as many as a host has NICs of the fastest kind)", 0},
    {"no-gpu", KEY_NO_GPU, NULL, 0,
        "buffers in host memory; else rank r of a host has GPU r where there are enough", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct topo *topo = state->input;
    const struct options *common = &topo->common;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &topo->common; return 0;
    case KEY_XML: topo->xml = text; return 0;
    case KEY_SYNTHETIC: topo->synthetic = text; return 0;
    case KEY_HOSTS: topo->hosts_file = text; return 0;
    case KEY_CHANNELS:
        topo->channels = (int)options_integer(text, "--channels", 1, MOST_CHANNELS, common);
        return 0;
    case KEY_NO_GPU: topo->no_gpu = true; return 0;
    case ARGP_KEY_ARG:
        options_refuse(common, "\"%s\" is no option; expected --xml FILE or none", text);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&options_common, 0, "Common options:", 9}, {0}};
static const struct argp argp = {.options = topo_options,
    .parser = parse_option,
    .children = children,
    .help_filter = options_help_filter,
    .doc =
        "Describes a machine, and the rings that ranks on it would have and why.\v"
        "Ranks have equal shares of their host's cores, as --ranks starts them, one a GPU "
        "unless --ranks says otherwise. Where a ring passes from host to host, both use their NIC "
        "of the channel. In two levels every rank sends to other hosts, by the NIC nearest to it.\n\n"
        "Examples:\n"
        "  ringzero topo\n"
        "  ringzero topo --xml other.xml --ranks 8\n"
        "  printf 'a 8 node.xml\\nb 8 node.xml\\n' > hosts && ringzero topo --hosts hosts\n"};

/* ---- hosts ---- */

static void refuse_unless(enum status status, const char *where, const struct options *common)
{
    if (status == STATUS_OK) return;
    if (status == STATUS_INVALID) options_refuse(common, "%s%s", where, status_text());
    fprintf(stderr, "%s: %s%s\n", common->program, where, status_text());
    exit(1);
}

static struct topo_host *add_host(struct topo *topo)
{
    size_t bytes = ((size_t)topo->host_count + 1) * sizeof *topo->hosts;
    struct topo_host *hosts = realloc(topo->hosts, bytes);
    if (hosts == NULL)
        options_refuse(&topo->common, "no memory for %d hosts", topo->host_count + 1);
    topo->hosts = hosts;
    hosts[topo->host_count] = (struct topo_host){{0}, 0, 0, NULL};
    return &hosts[topo->host_count++];
}

static int count_devices(const struct machine *machine, enum machine_device_kind kind)
{
    int count = 0;
    for (int d = 0; d < machine->device_count; d++) count += machine->devices[d].kind == kind;
    return count;
}

static void read_one_machine(struct topo *topo)
{
    enum machine_source source = MACHINE_THIS;
    if (topo->xml != NULL) source = MACHINE_XML;
    if (topo->synthetic != NULL) source = MACHINE_SYNTHETIC;
    const char *text = topo->xml != NULL ? topo->xml : topo->synthetic;
    struct topo_host *host = add_host(topo);
    refuse_unless(machine_read(&host->machine, source, text, MACHINE_DEVICES), "", &topo->common);
    const char *name = host->machine->name[0] != 0 ? host->machine->name : "machine";
    snprintf(host->name, sizeof host->name, "%s", name);
    int gpus = topo->no_gpu ? 0 : count_devices(host->machine, MACHINE_GPU);
    host->ranks = topo->common.ranks;
    if (host->ranks == 0) host->ranks = gpus > 0 ? gpus : host->machine->numa_count;
    if (host->ranks < 2 && topo->common.ranks == 0) host->ranks = 2;
}

/* "alpha 8 dgx.xml" */
static void read_host(char *line, int number, struct topo *topo)
{
    char where[320], name[64], path[PATH_MAX + 1024];
    int ranks = 0, used = 0;
    snprintf(where, sizeof where, "%.256s line %d: ", topo->hosts_file, number);
    size_t length = strlen(line);
    while (length > 0 && isspace((unsigned char)line[length - 1])) line[--length] = 0;
    int fields = sscanf(line, "%63s %d %n", name, &ranks, &used);
    if (fields < 2 || line[used] == 0 || used == 0)
        options_refuse(&topo->common,
            "%s\"%.80s\", expected NAME RANKS and FILE.xml or \"package:2 core:4 pu:1\"", where, line);
    if (ranks < 1 || ranks > OPTIONS_MOST_RANKS)
        options_refuse(
            &topo->common, "%s%d ranks, expected 1 to %d", where, ranks, OPTIONS_MOST_RANKS);
    for (int h = 0; h < topo->host_count; h++)
        if (strcmp(topo->hosts[h].name, name) == 0)
            options_refuse(&topo->common, "%shost %s comes twice, expected each once", where, name);
    char *text = line + used;
    bool is_xml = strlen(text) > 4 && strcmp(text + strlen(text) - 4, ".xml") == 0;
    const char *slash = text[0] == '/' ? NULL : strrchr(topo->hosts_file, '/');
    int folder = slash == NULL ? 0 : (int)(slash + 1 - topo->hosts_file);
    snprintf(path, sizeof path, "%.*s%s", is_xml ? folder : 0, topo->hosts_file, text);
    struct topo_host *host = add_host(topo);
    snprintf(host->name, sizeof host->name, "%s", name);
    host->ranks = ranks;
    enum machine_source source = is_xml ? MACHINE_XML : MACHINE_SYNTHETIC;
    refuse_unless(
        machine_read(&host->machine, source, path, MACHINE_DEVICES), where, &topo->common);
}

static void read_hosts(struct topo *topo)
{
    char line[1024];
    FILE *file = fopen(topo->hosts_file, "r");
    if (file == NULL)
        options_refuse(
            &topo->common, "--hosts %s cannot be read: %s", topo->hosts_file, strerror(errno));
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        line[strcspn(line, "#")] = 0;
        if (line[strspn(line, " \t\r\n")] != 0) read_host(line, number, topo);
    }
    fclose(file);
    if (topo->host_count == 0)
        options_refuse(&topo->common,
            "--hosts %s has no hosts, expected lines of NAME RANKS FILE.xml", topo->hosts_file);
}

/* ---- ranks ---- */

static int nth_gpu(const struct machine *machine, int n)
{
    for (int d = 0; d < machine->device_count; d++)
        if (machine->devices[d].kind == MACHINE_GPU && n-- == 0) return d;
    return -1;
}

static void place_ranks(struct topo *topo, const struct topo_host *host)
{
    struct machine_pus all = {{0}};
    for (int i = 0; i < host->machine->pu_count; i++) machine_pus_add(&all, i);
    bool enough = !topo->no_gpu && count_devices(host->machine, MACHINE_GPU) >= host->ranks;
    for (int i = 0; i < host->ranks; i++) {
        int r = host->first + i;
        struct topology_rank *rank = &topo->ranks[r];
        if (!machine_share(&topo->pus[r], host->machine, &all, i, host->ranks)) topo->pus[r] = all;
        topo->gpus[r] = enough ? nth_gpu(host->machine, i) : -1;
        topology_describe(rank, &topo->devices[r], host->machine, &topo->pus[r], topo->gpus[r]);
        rank->host = (uint64_t)(host - topo->hosts) + 1;
        rank->shm_works = 1;
        rank->verbs_work = topo->devices[r].nics[0].id != 0;
    }
}

static void make_world(struct topo *topo)
{
    int nranks = 0, most = 1;
    for (int h = 0; h < topo->host_count; h++) {
        topo->hosts[h].first = nranks;
        nranks += topo->hosts[h].ranks;
    }
    if (nranks > OPTIONS_MOST_RANKS)
        options_refuse(&topo->common, "%d ranks on all hosts, expected at most %d", nranks,
            OPTIONS_MOST_RANKS);
    size_t n = (size_t)nranks;
    topo->ranks = calloc(n, sizeof *topo->ranks);
    topo->devices = calloc(n, sizeof *topo->devices);
    topo->pus = calloc(n, sizeof *topo->pus);
    topo->gpus = calloc(n, sizeof *topo->gpus);
    if (topo->ranks == NULL || topo->devices == NULL || topo->pus == NULL || topo->gpus == NULL)
        options_refuse(&topo->common, "no memory for %d ranks", nranks);
    for (int h = 0; h < topo->host_count; h++) place_ranks(topo, &topo->hosts[h]);
    topo->topology = (struct topology){nranks, topo->ranks, topo->devices};
    for (int h = 0; h < topo->host_count && topo->channels == 0 && topo->host_count > 1; h++)
        for (int c = 1; c < MOST_CHANNELS; c++) { /* until the first NIC's turn comes again */
            int first = topo->hosts[h].first;
            if (topology_nic(&topo->topology, first, c) == topology_nic(&topo->topology, first, 0))
                break;
            if (c + 1 > most) most = c + 1;
        }
    if (topo->channels == 0) topo->channels = most;
}

const struct topo_host *topo_host_of(const struct topo *topo, int rank)
{
    return &topo->hosts[topo->ranks[rank].host - 1];
}

const struct machine_device *topo_device(const struct topo *topo, int rank, int nic)
{
    return &topo_host_of(topo, rank)->machine->devices[topo->devices[rank].nics[nic].place];
}

const struct machine_device *topo_nic(const struct topo *topo, int rank, int channel)
{
    int nic = topology_nic(&topo->topology, rank, channel);
    return nic < 0 ? NULL : topo_device(topo, rank, nic);
}

const char *topo_transport(const struct topo *topo, int from, int to)
{
    const char *asked = topo->common.transport;
    if (asked != NULL && strcmp(asked, "auto") != 0) return asked;
    return topology_transport(&topo->ranks[from], &topo->ranks[to])->name;
}

static int write_json(const struct topo *topo)
{
    const char *path = topo->common.json;
    FILE *file = options_open_json(&topo->common);
    enum status status = topo_print_json(file, topo);
    if (fclose(file) == 0 && status == STATUS_OK) return 0;
    fprintf(stderr, "ringzero topo: --json %s: writing failed: %s; expected room for it\n", path,
        strerror(errno));
    return 1;
}

int topo_main(int argc, char **argv)
{
    struct topo topo = {.common = options_default("ringzero topo")};
    options_parse(&argp, argc, argv, &topo.common, &topo);
    if ((topo.xml != NULL) + (topo.synthetic != NULL) + (topo.hosts_file != NULL) > 1)
        options_refuse(&topo.common,
            "--xml, --synthetic and --hosts are given together, expected one of them");
    if (topo.hosts_file != NULL && topo.common.ranks > 0)
        options_refuse(
            &topo.common, "--ranks is given with --hosts, expected none: the file says how many");
    if (topo.hosts_file != NULL) read_hosts(&topo);
    else read_one_machine(&topo);
    make_world(&topo);
    topo_print(&topo);
    int code = topo.common.json == NULL ? 0 : write_json(&topo);
    for (int h = 0; h < topo.host_count; h++) machine_free(topo.hosts[h].machine);
    free(topo.hosts);
    free(topo.ranks);
    free(topo.devices);
    free(topo.pus);
    free(topo.gpus);
    return fflush(stdout) == 0 ? code : 1;
}
