/* ring/topology: the ring's order, the NIC of each channel: laws that hold for every description,
 * and machines of tests/topology. ctest: timeout=60
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"
#include "ring/topology.h"

#define MOST_RANKS 40

struct world {
    struct topology_rank ranks[MOST_RANKS];
    struct topology_devices devices[MOST_RANKS];
    struct topology topology;
};

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

/* ---- laws ---- */

/* Some hosts, ranks on them in any order, each somewhere or nowhere; devices that ranks of one
 * host see alike or not. */
static void make_any_world(struct world *world, uint32_t seed)
{
    uint32_t state = seed * 77777u + 1, hosts = 1 + draw(&state, 5), nics = draw(&state, 5),
             gpus = draw(&state, 2);
    int nranks = 1 + (int)draw(&state, MOST_RANKS);
    memset(world, 0, sizeof *world);
    for (int r = 0; r < nranks; r++) {
        struct topology_rank *rank = &world->ranks[r];
        rank->host = 100 + draw(&state, hosts);
        rank->package = (int)draw(&state, 3) - 1;
        rank->numa = rank->package < 0 ? -1 : rank->package * 2 + (int)draw(&state, 3) - 1;
        rank->cache = (int)draw(&state, 9) - 1;
        rank->core = -1;
        rank->gpu = gpus == 0 ? 0 : draw(&state, 5);
        for (uint32_t i = 0; i < nics; i++)
            world->devices[r].nics[i] =
                (struct topology_link){.id = 7 + (i + draw(&state, 2)) % nics,
                    .gbit = (uint16_t)(100 * draw(&state, 2)),
                    .distance = (uint8_t)draw(&state, 8)};
        for (uint32_t i = 0; i < 4 * gpus; i++)
            world->devices[r].gpus[i] = (struct topology_link){.id = 1 + i,
                .gbit = (uint16_t)draw(&state, 3),
                .distance = (uint8_t)(1 + draw(&state, 7))};
    }
    bool told = draw(&state, 8) > 0;
    world->topology = (struct topology){nranks, world->ranks, told ? world->devices : NULL};
}

static bool is_permutation(const int *order, int n)
{
    bool seen[MOST_RANKS] = {false};
    for (int p = 0; p < n; p++) {
        if (order[p] < 0 || order[p] >= n || seen[order[p]]) return false;
        seen[order[p]] = true;
    }
    return true;
}

/* How often the ring leaves a group of ranks for another one. key: of each rank. */
static int crossings(const int *order, int n, const int64_t *key)
{
    int count = 0;
    for (int p = 0; p < n; p++) count += key[order[p]] != key[order[(p + 1) % n]];
    return count;
}

static int distinct(const int64_t *key, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int j = 0; j < i; j++) seen |= key[j] == key[i];
        count += !seen;
    }
    return count;
}

/* Each host is entered once and left once, whatever is told; and the same is said to everyone
 * who asks. */
static void laws_hold_in_any_world(void)
{
    for (uint32_t seed = 0; seed < 3000; seed++) {
        struct world world, copy;
        make_any_world(&world, seed);
        make_any_world(&copy, seed);
        int n = world.topology.nranks, order[MOST_RANKS], again[MOST_RANKS];
        int64_t host[MOST_RANKS];
        for (int r = 0; r < n; r++) host[r] = (int64_t)world.ranks[r].host;
        int hosts = distinct(host, n);
        for (int channel = 0; channel < 3; channel++) {
            topology_ring_order(order, &world.topology, channel);
            topology_ring_order(again, &copy.topology, channel);
            bool held = CHECK_MSG(is_permutation(order, n), "seed %u channel %d", seed, channel);
            held &= CHECK_MSG(crossings(order, n, host) == (hosts > 1 ? hosts : 0),
                "seed %u channel %d", seed, channel);
            held &= CHECK(memcmp(order, again, (size_t)n * sizeof *order) == 0);
            if (!held) return;
        }
        for (int r = 0; r < n; r++) {
            int nic = topology_nic(&world.topology, r, 1),
                nearest = topology_nic(&world.topology, r, -1),
                own = topology_own_nic(&world.topology, r, 3);
            if (!CHECK(nic < TOPOLOGY_MOST_LINKS && nearest < TOPOLOGY_MOST_LINKS)) return;
            if (!CHECK((own < 0) == (nearest < 0))) return;
            if (own >= 0)
                CHECK(world.devices[r].nics[own].distance == world.devices[r].nics[nearest].distance);
        }
    }
}

static void ranks_that_nothing_tells_apart_keep_their_order(void)
{
    struct world world = {.topology = {9, NULL, NULL}};
    static const uint64_t host[] = {8, 5, 8, 8, 5, 5, 3, 8, 3};
    static const int expected[] = {0, 2, 3, 7, 1, 4, 5, 6, 8};
    int order[MOST_RANKS];
    for (int told = 0; told < 2; told++) {
        for (int r = 0; r < 9; r++)
            world.ranks[r] = (struct topology_rank){.host = host[r],
                .package = told - 1,
                .numa = told - 1,
                .cache = told - 1,
                .core = -1};
        world.topology.ranks = world.ranks;
        world.topology.devices = told ? world.devices : NULL;
        for (int channel = 0; channel < 4; channel++) {
            topology_ring_order(order, &world.topology, channel);
            for (int p = 0; p < 9; p++)
                CHECK_MSG(order[p] == expected[p], "position %d: rank %d", p, order[p]);
        }
    }
}

/* The rule for two levels looks at how many ranks each host has, in whatever order they are numbered. */
static void two_levels_need_equal_hosts(void)
{
    static const struct {
        const char *hosts; /* of each rank, a letter */
        bool levels;
        const char *text;
    } cases[] = {
        {"aabb", true, "2 hosts of 2 ranks"},
        {"abcabc", true, "3 hosts of 2 ranks"},
        {"abbaab", true, "2 hosts of 3 ranks"},
        {"aaaabbbbccccdddd", true, "4 hosts of 4 ranks"},
        {"a", false, "1 host of 1 rank"},
        {"aaaaaaaa", false, "1 host of 8 ranks"},
        {"abcd", false, "4 hosts of 1 rank"},
        {"aab", false, "2 hosts of 1 to 2 ranks"},
        {"aaaaaaabbbbbbbb", false, "2 hosts of 7 to 8 ranks"},
        {"aaabbbcc", false, "3 hosts of 2 to 3 ranks"},
        {"abcabcab", false, "3 hosts of 2 to 3 ranks"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct world world = {.topology = {(int)strlen(cases[c].hosts), NULL, NULL}};
        char text[64];
        for (int r = 0; r < world.topology.nranks; r++)
            world.ranks[r] = (struct topology_rank){.host = (uint64_t)cases[c].hosts[r]};
        world.topology.ranks = world.ranks;
        struct topology_shape shape = topology_shape(&world.topology);
        CHECK_MSG(topology_shape_has_two_levels(shape) == cases[c].levels, "%s", cases[c].hosts);
        CHECK_MSG(strcmp(topology_shape_text(text, shape), cases[c].text) == 0, "%s: %s", cases[c].hosts, text);
    }
}

/* ---- machines ---- */

static struct machine *read_file(const char *name)
{
    char path[512];
    struct machine *machine = NULL;
    const char *source = getenv("RINGZERO_SOURCE");
    snprintf(path, sizeof path, "%s/tests/topology/%s.xml", source == NULL ? "." : source, name);
    CHECK_OK(machine_read(&machine, MACHINE_XML, path, MACHINE_DEVICES));
    if (machine == NULL) exit(test_result());
    return machine;
}

/* Ranks [first, first + count) of the world are this host's, bound to shares of its cores; rank
 * i of them to GPU i, if asked. */
static void add_host(struct world *world, const struct machine *machine, int count, bool on_gpus)
{
    int first = world->topology.nranks;
    struct machine_pus all = {{0}}, share;
    for (int i = 0; i < machine->pu_count; i++) machine_pus_add(&all, i);
    for (int r = 0; r < count; r++) {
        CHECK(machine_share(&share, machine, &all, r, count));
        topology_describe(&world->ranks[first + r], &world->devices[first + r], machine, &share,
            on_gpus ? r : -1);
        world->ranks[first + r].host = 1000 + (uint64_t)first;
    }
    world->topology = (struct topology){first + count, world->ranks, world->devices};
}

static bool is_order(const struct world *world, int channel, const char *expected)
{
    int order[MOST_RANKS];
    char text[256] = "";
    topology_ring_order(order, &world->topology, channel);
    for (int p = 0; p < world->topology.nranks; p++)
        snprintf(text + strlen(text), sizeof text - strlen(text), p ? " %d" : "%d", order[p]);
    return CHECK_MSG(
        strcmp(text, expected) == 0, "channel %d: found %s, expected %s", channel, text, expected);
}

static const char *nic_name(
    const struct world *world, const struct machine *machine, int rank, int channel)
{
    int nic = topology_nic(&world->topology, rank, channel);
    return nic < 0 ? "none" : machine->devices[world->devices[rank].nics[nic].place].name;
}

static void dgx_channels_enter_and_leave_by_their_own_nics(void)
{
    struct machine *dgx = read_file("dgx");
    struct world one = {0}, two = {0};
    CHECK(dgx->package_count == 2 && dgx->numa_count == 4 && dgx->core_count == 16 &&
          dgx->device_count == 18);
    CHECK(dgx->distances[0][1] == DISTANCE_NVLINK && dgx->distances[0][7] == DISTANCE_NVLINK &&
          dgx->nvlink_mbytes[0][7] > 0);
    add_host(&one, dgx, 8, true);
    is_order(&one, 0, "0 1 2 3 4 5 6 7");
    is_order(&one, 1, "0 1 2 3 4 5 6 7");
    add_host(&two, dgx, 8, true);
    add_host(&two, dgx, 8, true);
    is_order(&two, 0, "1 2 3 4 5 6 7 0 9 10 11 12 13 14 15 8");
    is_order(&two, 1, "0 7 6 5 4 3 2 1 8 15 14 13 12 11 10 9");
    is_order(&two, 6, "7 0 1 2 3 4 5 6 15 8 9 10 11 12 13 14");
    for (int channel = 0; channel < 16; channel++) {
        char expected[16];
        snprintf(expected, sizeof expected, "mlx5_%d", channel % 8); /* never the slow mlx5_8 */
        CHECK_MSG(strcmp(nic_name(&two, dgx, channel, channel), expected) == 0, "channel %d: %s",
            channel, nic_name(&two, dgx, 0, channel));
    }
    for (int r = 0; r < 8; r++) /* two are equally near: pairs take turns */
        CHECK_MSG(
            two.devices[r].nics[topology_nic(&two.topology, r, -1)].distance == DISTANCE_SWITCH,
            "rank %d", r);
    machine_free(dgx);
}

/* Of the 2520 rings through the cube one is of double links alone. */
static void a_cube_of_nvlinks_is_walked_along_double_links(void)
{
    struct machine *cube = read_file("cube");
    struct world world = {0};
    int order[MOST_RANKS];
    add_host(&world, cube, 8, true);
    topology_ring_order(order, &world.topology, 0);
    for (int p = 0; p < 8; p++) {
        int a = order[p], b = order[(p + 1) % 8];
        CHECK_MSG(
            cube->nvlink_mbytes[a][b] == 50000, "%d to %d: %u", a, b, cube->nvlink_mbytes[a][b]);
    }
    machine_free(cube);
}

static void asymmetric_hosts_use_what_is_up(void)
{
    struct machine *machine = read_file("asymmetric");
    struct world world = {0};
    add_host(&world, machine, 4, false);
    add_host(&world, machine, 1, false);
    CHECK(world.ranks[0].numa == 0 && world.ranks[2].numa == 0 && world.ranks[3].numa == 1);
    CHECK(world.ranks[4].numa == 0 && world.ranks[4].cache == 0); /* most of its cores */
    CHECK(strcmp(nic_name(&world, machine, 0, 0), "mlx5_0") == 0);
    CHECK(strcmp(nic_name(&world, machine, 0, 1), "mlx5_2") == 0); /* mlx5_1 is down */
    CHECK(strcmp(nic_name(&world, machine, 0, 2), "mlx5_0") == 0);
    CHECK(strcmp(nic_name(&world, machine, 3, -1), "mlx5_2") == 0);
    is_order(&world, 0, "1 2 3 0 4"); /* both ends by mlx5_0, which is far from rank 3 */
    is_order(&world, 1, "0 1 2 3 4"); /* and one of them by mlx5_2 */
    machine_free(machine);
}

static void a_container_shows_less_and_means_the_same(void)
{
    struct machine *machine = read_file("container");
    struct world world = {0};
    add_host(&world, machine, 3, false);
    CHECK(machine->pu_count == 3 && machine->device_count == 3);
    CHECK(world.ranks[0].core == 5 && world.ranks[1].core == 9 && world.ranks[2].numa == 1 &&
          world.ranks[2].package == 9);
    CHECK(machine->devices[0].numa == -1 && machine->devices[0].bus[0] == 0 &&
          machine->devices[0].id != 0);
    CHECK(machine->devices[0].id != machine->devices[1].id);
    is_order(&world, 0, "0 1 2");
    CHECK(strcmp(nic_name(&world, machine, 0, 0), "mlx5_0") == 0 &&
          strcmp(nic_name(&world, machine, 0, 1), "mlx5_1") == 0);
    machine_free(machine);
}

/* Ranks dealt out over the nodes, as some launchers do: neighbours on the ring are of one node
 * all the same. */
static void numa_nodes_are_walked_one_after_another(void)
{
    static const char *const machines[] = {
        "package:2 numa:1 core:8 pu:2", "package:4 numa:2 l3:2 core:2 pu:1", "numa:3 core:4 pu:1"};
    for (int m = 0; m < 3; m++) {
        struct machine *machine = NULL;
        struct world world = {0};
        int order[MOST_RANKS], n = 24;
        int64_t numa[MOST_RANKS], package[MOST_RANKS];
        if (!CHECK_OK(machine_read(&machine, MACHINE_SYNTHETIC, machines[m], MACHINE_DEVICES)))
            return;
        for (int r = 0; r < n; r++) {
            struct machine_pus own = {{0}};
            machine_pus_add(&own, (r * 7) % machine->pu_count);
            topology_describe(&world.ranks[r], &world.devices[r], machine, &own, -1);
            numa[r] = world.ranks[r].numa;
            package[r] = world.ranks[r].package;
        }
        world.topology = (struct topology){n, world.ranks, NULL};
        topology_ring_order(order, &world.topology, 0);
        CHECK(is_permutation(order, n) && order[0] == 0);
        CHECK_MSG(crossings(order, n, numa) == machine->numa_count, "%s: %d", machines[m],
            crossings(order, n, numa));
        int packages = distinct(package, n);
        CHECK_MSG(crossings(order, n, package) == (packages > 1 ? packages : 0), "%s", machines[m]);
        machine_free(machine);
    }
}

static void shares_of_cores_are_disjoint_and_whole(void)
{
    struct machine *machine = NULL;
    if (!CHECK_OK(machine_read(&machine, MACHINE_SYNTHETIC,
            "package:2 numa:1 core:4 pu:2(indexes=package:core:1)", MACHINE_CORES)))
        return;
    struct machine_pus all = {{0}};
    for (int i = 0; i < 16; i++) machine_pus_add(&all, i);
    for (int n = 1; n <= 17; n++) {
        struct machine_pus taken = {{0}};
        for (int r = 0; r < n; r++) {
            struct machine_pus share;
            CHECK(machine_share(&share, machine, &all, r, n) == (n <= 16));
            int count = 0;
            for (int i = 0; i < 16; i++) {
                bool has = machine_pus_has(&share, i);
                CHECK(!has || !machine_pus_has(&taken, i));
                if (has) machine_pus_add(&taken, i);
                count += has;
            }
            CHECK_MSG(count == (n <= 8 ? 8 / n * 2 : n <= 16 ? 1 : 0), "%d of %d: %d", r, n, count);
            struct machine_place place = machine_place_of(machine, &share);
            if (n % 2 == 0 && n <= 16)
                CHECK_MSG(place.numa == (2 * r >= n), "%d of %d in node %d", r, n, place.numa);
        }
    }
    machine_free(machine);
}

static void what_is_no_machine_is_refused(void)
{
    struct machine *machine = NULL;
    CHECK_STATUS(
        machine_read(&machine, MACHINE_SYNTHETIC, "package:two", MACHINE_CORES), STATUS_INVALID);
    CHECK_STATUS(
        machine_read(&machine, MACHINE_XML, "/no/such/file.xml", MACHINE_CORES), STATUS_INVALID);
    CHECK_STATUS(machine_read(&machine, MACHINE_XML, "/dev/null", MACHINE_CORES), STATUS_INVALID);
    CHECK(machine == NULL);
}

int main(void)
{
    laws_hold_in_any_world();
    ranks_that_nothing_tells_apart_keep_their_order();
    two_levels_need_equal_hosts();
    if (!machine_can_read()) return test_result() != 0 ? 1 : test_skip("built without hwloc");
    dgx_channels_enter_and_leave_by_their_own_nics();
    a_cube_of_nvlinks_is_walked_along_double_links();
    asymmetric_hosts_use_what_is_up();
    a_container_shows_less_and_means_the_same();
    numa_nodes_are_walked_one_after_another();
    shares_of_cores_are_disjoint_and_whole();
    what_is_no_machine_is_refused();
    return test_result();
}
