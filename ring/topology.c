/* topology: pure functions of what all ranks have told.
 *
 * The way through one host, for channel c:
 *   1. from its lowest rank always to the nearest that is left; of equals the lowest rank
 *   2. turn parts of that round trip round while it gets shorter (2-opt)
 *   3. where other hosts follow: begin anywhere in the round trip and go either way round, so that
 *      both ends are as near as can be to the channel's NIC; of equals the one that leaves out the
 *      longest hop; of equals that of step 2 if it is one, else the first, forwards on even
 *      channels and backwards on odd ones, so that two channels need not meet at one rank
 */
#include "ring/topology.h"

#include <stdio.h>

#include "verbs/plural.h"

#define MOST_SHORTENED 64 /* ranks of a host up to which step 2 is worth its m² work a turn */

/* ---- distances ---- */

static const struct topology_link *gpu_link(const struct topology *topology, int a, uint32_t gpu)
{
    for (int i = 0; topology->devices != NULL && i < TOPOLOGY_MOST_LINKS; i++)
        if (topology->devices[a].gpus[i].id == gpu) return &topology->devices[a].gpus[i];
    return NULL;
}

static bool same(int32_t a, int32_t b)
{
    return a >= 0 && a == b;
}

enum distance topology_distance(const struct topology *topology, int a, int b)
{
    const struct topology_rank *x = &topology->ranks[a], *y = &topology->ranks[b];
    if (x->host != y->host) return DISTANCE_NETWORK;
    if (x->gpu != 0 && y->gpu != 0) {
        if (x->gpu == y->gpu) return DISTANCE_SAME;
        const struct topology_link *link = gpu_link(topology, a, y->gpu);
        return link == NULL ? DISTANCE_HOST : (enum distance)link->distance;
    }
    if (same(x->core, y->core)) return DISTANCE_SAME;
    if (same(x->cache, y->cache)) return DISTANCE_CACHE;
    if (same(x->numa, y->numa)) return DISTANCE_NUMA;
    return same(x->package, y->package) ? DISTANCE_PACKAGE : DISTANCE_HOST;
}

/* Of two NVLinks the wider is the nearer. The same there and back, whatever was reported: else
 * shorten() might never end. */
static int64_t hop_cost(const struct topology *topology, int from, int to)
{
    int a = from < to ? from : to, b = from < to ? to : from;
    enum distance distance = topology_distance(topology, a, b);
    int64_t cost = (int64_t)distance << 16;
    if (distance == DISTANCE_NVLINK) cost -= gpu_link(topology, a, topology->ranks[b].gpu)->gbit;
    return cost;
}

/* ---- the NIC of a channel ---- */

/* One NIC of a host, as its ranks together see it. */
struct candidate {
    uint32_t id;
    int gbit, distance;
};

/* Nearest first, of equals in the order of the list; the fastest alone. Returns how many. */
static int list_candidates(struct candidate *list, const struct topology *topology, uint64_t host)
{
    int count = 0, fastest = 0, kept = 0;
    for (int r = 0; r < topology->nranks; r++) {
        if (topology->ranks[r].host != host) continue;
        for (int i = 0; i < TOPOLOGY_MOST_LINKS && topology->devices[r].nics[i].id != 0; i++) {
            const struct topology_link *nic = &topology->devices[r].nics[i];
            int k = 0;
            while (k < count && list[k].id != nic->id) k++;
            if (k == TOPOLOGY_MOST_LINKS) continue;
            if (k == count) list[count++] = (struct candidate){nic->id, nic->gbit, nic->distance};
            if (nic->distance < list[k].distance) list[k].distance = nic->distance;
            if (list[k].gbit > fastest) fastest = list[k].gbit;
        }
    }
    for (int i = 0; i < count; i++) {
        struct candidate moved = list[i];
        if (moved.gbit < fastest) continue;
        int at = kept++;
        for (; at > 0 && list[at - 1].distance > moved.distance; at--) list[at] = list[at - 1];
        list[at] = moved;
    }
    return kept;
}

static int place_of_nic(const struct topology_devices *devices, uint32_t id)
{
    for (int i = 0; i < TOPOLOGY_MOST_LINKS && devices->nics[i].id != 0; i++)
        if (devices->nics[i].id == id) return i;
    return -1;
}

int topology_own_nic(const struct topology *topology, int rank, int channel)
{
    if (topology->devices == NULL) return -1;
    struct candidate list[TOPOLOGY_MOST_LINKS];
    int count = list_candidates(list, topology, topology->ranks[rank].host);
    int nearest[TOPOLOGY_MOST_LINKS], equals = 0, least = DISTANCE_COUNT, before = 0;
    for (int i = 0; i < count; i++) {
        int place = place_of_nic(&topology->devices[rank], list[i].id);
        if (place < 0 || topology->devices[rank].nics[place].distance > least) continue;
        if (topology->devices[rank].nics[place].distance < least) equals = 0;
        least = topology->devices[rank].nics[place].distance;
        nearest[equals++] = place;
    }
    for (int r = 0; r < rank; r++) before += topology->ranks[r].host == topology->ranks[rank].host;
    return equals == 0 ? -1 : nearest[(before + channel) % equals];
}

/* The id of the NIC that the rank's host has for the channel; 0: none. */
static uint32_t channel_nic(const struct topology *topology, int rank, int channel)
{
    struct candidate list[TOPOLOGY_MOST_LINKS];
    if (topology->devices == NULL) return 0;
    int count = list_candidates(list, topology, topology->ranks[rank].host);
    return count == 0 ? 0 : list[channel % count].id;
}

int topology_nic(const struct topology *topology, int rank, int channel)
{
    if (topology->devices == NULL) return -1;
    if (channel < 0) return topology_own_nic(topology, rank, 0);
    uint32_t id = channel_nic(topology, rank, channel);
    return id == 0 ? -1 : place_of_nic(&topology->devices[rank], id);
}

/* ---- the way through a host ---- */

static void swap(int *a, int *b)
{
    int kept = *a;
    *a = *b;
    *b = kept;
}

static void go_to_nearest(int *way, int m, const struct topology *topology)
{
    for (int at = 0; at + 2 < m; at++) {
        int best = at + 1;
        int64_t least = hop_cost(topology, way[at], way[best]);
        for (int i = at + 2; i < m; i++) {
            int64_t cost = hop_cost(topology, way[at], way[i]);
            if (cost > least || (cost == least && way[i] > way[best])) continue;
            least = cost;
            best = i;
        }
        swap(&way[at + 1], &way[best]);
    }
}

static void reverse(int *way, int first, int last)
{
    for (; first < last; first++, last--) swap(&way[first], &way[last]);
}

/* 2-opt: way[i]..way[j] the other way round. Each turn shortens the trip, so it ends. */
static void shorten(int *way, int m, const struct topology *topology)
{
    bool shorter = m > 3 && m <= MOST_SHORTENED;
    while (shorter) {
        shorter = false;
        for (int i = 1; i + 1 < m; i++)
            for (int j = i + 1; j < m; j++) {
                int before = way[i - 1], after = way[(j + 1) % m];
                int64_t now =
                    hop_cost(topology, before, way[i]) + hop_cost(topology, way[j], after);
                int64_t then =
                    hop_cost(topology, before, way[j]) + hop_cost(topology, way[i], after);
                if (then >= now) continue;
                reverse(way, i, j);
                shorter = true;
            }
    }
}

/* From a rank to its host's NIC of the channel. */
static int64_t nic_distance(const struct topology *topology, int rank, uint32_t nic)
{
    int place = nic == 0 ? -1 : place_of_nic(&topology->devices[rank], nic);
    return place < 0 ? 0 : topology->devices[rank].nics[place].distance;
}

/* The round trip `way` becomes a way that begins at its place `begin` and goes forwards or
 * backwards. */
static void unroll(int *way, int m, int begin, bool backwards)
{
    int cut = backwards ? (begin + 1) % m : begin;
    reverse(way, 0, cut - 1);
    reverse(way, cut, m - 1);
    if (!backwards) reverse(way, 0, m - 1); /* three reversals turn, two turn and face about */
}

/* What a way costs that begins at place i of the round trip. The NIC's distance weighs more than
 * any hop. */
static int64_t opening_cost(
    const int *trip, int m, int i, bool backwards, uint32_t nic, const struct topology *topology)
{
    int first = trip[i], last = trip[(i + (backwards ? 1 : m - 1)) % m];
    int64_t to_nic = nic_distance(topology, first, nic) + nic_distance(topology, last, nic);
    return to_nic * ((int64_t)1 << 32) - hop_cost(topology, first, last);
}

static void open_trip(int *way, int m, const struct topology *topology, int channel)
{
    uint32_t nic = channel_nic(topology, way[0], channel);
    int begin = 0;
    bool backwards = false;
    int64_t least = opening_cost(way, m, 0, false, nic, topology);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < m; i++) {
            bool about = turn != channel % 2;
            int64_t cost = opening_cost(way, m, i, about, nic, topology);
            if (cost >= least) continue;
            least = cost;
            begin = i;
            backwards = about;
        }
    unroll(way, m, begin, backwards);
}

/* The m ranks of a host, in rank order, become this channel's way through it. */
static void order_host(int *way, int m, const struct topology *topology, int channel)
{
    go_to_nearest(way, m, topology);
    shorten(way, m, topology);
    if (m < topology->nranks && m > 1)
        open_trip(way, m, topology, channel); /* a ring within one host has no ends */
}

void topology_ring_order(int *order, const struct topology *topology, int channel)
{
    const struct topology_rank *ranks = topology->ranks;
    int placed = 0;
    for (int first = 0; first < topology->nranks; first++) {
        bool host_seen = false;
        for (int r = 0; r < first && !host_seen; r++)
            host_seen = ranks[r].host == ranks[first].host;
        int begin = placed;
        for (int r = first; r < topology->nranks && !host_seen; r++)
            if (ranks[r].host == ranks[first].host) order[placed++] = r;
        if (placed > begin) order_host(order + begin, placed - begin, topology, channel);
    }
}

/* ---- two levels ---- */

struct topology_shape topology_shape(const struct topology *topology)
{
    struct topology_shape shape = {0, topology->nranks, 0};
    for (int first = 0; first < topology->nranks; first++) {
        int before = 0, ranks = 0;
        for (int r = 0; r < topology->nranks; r++) {
            bool same_host = topology->ranks[r].host == topology->ranks[first].host;
            before += same_host && r < first;
            ranks += same_host;
        }
        if (before > 0) continue;
        shape.hosts++;
        if (ranks < shape.least) shape.least = ranks;
        if (ranks > shape.most) shape.most = ranks;
    }
    return shape;
}

bool topology_shape_has_two_levels(struct topology_shape shape)
{
    return shape.hosts > 1 && shape.least > 1 && shape.least == shape.most;
}

const char *topology_shape_text(char text[64], struct topology_shape shape)
{
    char most[24] = "";
    if (shape.most > shape.least) snprintf(most, sizeof most, " to %d", shape.most);
    snprintf(text, 64, "%d host%s of %d%s rank%s", shape.hosts, PLURAL(shape.hosts),
        shape.least, most, PLURAL(shape.most));
    return text;
}

const struct transport *topology_transport(
    const struct topology_rank *a, const struct topology_rank *b)
{
    bool share = a->host == b->host && a->shm_works && b->shm_works;
    if (share) return &transport_shm;
    bool reach = a->host != b->host && a->verbs_work && b->verbs_work;
    return reach ? &transport_verbs : &transport_tcp;
}
