/* The virtual-time run of a plan: equal to the formulas where those are exact, folded equal to unfolded to the
 * last bit, and independent of n for large data.
 * ctest: timeout=60
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"
#include "ring/simulate.h"
#include "tests/harness/harness.h"

#define ALPHA 5000.0 /* ns */
#define BETA  50.0   /* bytes per ns */

static struct simulate_config base(enum collective collective, int n, size_t count)
{
    return (struct simulate_config){
        .collective = collective, .nranks = n, .count = count, .element_bytes = 4, .link = {ALPHA, BETA}};
}

static double run(struct simulate_config config)
{
    struct simulate_result result;
    CHECK_OK(simulate_run(&result, &config));
    return result.time_ns;
}

static bool near(double a, double b, double relative)
{
    return fabs(a - b) <= relative * fabs(b);
}

/* One slice a chunk: each of the 2(n−1) hops takes α and the chunk's own time, and nothing overlaps. */
static void test_formula(void)
{
    for (int n = 2; n <= 64; n++) {
        double hop = ALPHA + 1000 * 4 / BETA, steps = n - 1;
        struct simulate_config config = base(COLLECTIVE_ALL_REDUCE, n, (size_t)n * 1000);
        CHECK_MSG(near(run(config), 2 * steps * hop, 1e-12), "all_reduce of %d: %g, expected %g", n,
            run(config), 2 * steps * hop);
        config.collective = COLLECTIVE_REDUCE_SCATTER;
        CHECK(near(run(config), steps * hop, 1e-12));
        config.collective = COLLECTIVE_ALL_GATHER;
        CHECK(near(run(config), steps * hop, 1e-12));
        struct simulate_config barrier = base(COLLECTIVE_BARRIER, n, 0);
        CHECK(near(run(barrier), 2 * steps * ALPHA, 1e-12));
    }
    struct simulate_result result;
    struct simulate_config alone = base(COLLECTIVE_ALL_REDUCE, 1, 1000);
    CHECK_OK(simulate_run(&result, &alone));
    CHECK(result.time_ns == 0 && result.items == 1);
}

/* Send and recv are one side of a pair each: there is no world in which all ranks run one. */
static bool is_collective(int c)
{
    const char *name = collective_name((enum collective)c);
    return strcmp(name, "send") != 0 && strcmp(name, "recv") != 0;
}

/* Every collective, nodes of several sizes, several blocks: one period gives the time of all positions, bit for
 * bit. */
static void test_folded(void)
{
    static const int node_sizes[] = {1, 2, 4};
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        for (int n = 1; n <= 24 && is_collective(c); n++) {
            for (int s = 0; s < 3; s++) {
                struct simulate_config config = base((enum collective)c, n, (size_t)n * 9000);
                config.node_ranks = node_sizes[s];
                config.node_link = (struct simulate_link){700, 200};
                config.slot_bytes = 4096;
                config.slot_count = 4;
                struct simulate_result folded, whole;
                CHECK_OK(simulate_run(&folded, &config));
                config.every_position = true;
                CHECK_OK(simulate_run(&whole, &config));
                CHECK(whole.positions == n);
                CHECK_MSG(folded.time_ns == whole.time_ns,
                    "%s, %d ranks, %d a node: %g folded to %d, %g in full", collective_name((enum collective)c),
                    n, node_sizes[s], folded.time_ns, folded.positions, whole.time_ns);
            }
        }
    }
    CHECK(simulate_is_symmetric(COLLECTIVE_ALL_REDUCE, 9) && !simulate_is_symmetric(COLLECTIVE_BROADCAST, 9));
}

/* Symmetry is judged at four positions: here at all. */
static void test_symmetry(void)
{
    for (int c = 0; c < COLLECTIVE_COUNT; c++)
        for (int n = 1; n <= 24 && is_collective(c); n++) {
            struct plan zero = plan_make((enum collective)c, n, 0, 0);
            bool same = true;
            for (int p = 1; p < n; p++) {
                struct plan plan = plan_make((enum collective)c, n, p, 0);
                same = same && plan.steps == zero.steps;
                for (int i = 0; i < plan.steps && same; i++) {
                    struct plan_step a = plan_step_at(&zero, i), b = plan_step_at(&plan, i);
                    same = a.primitive == b.primitive && (a.to < 0 || (a.to + p) % n == b.to) &&
                           (a.from < 0 || (a.from + p) % n == b.from);
                }
            }
            CHECK_MSG(simulate_is_symmetric((enum collective)c, n) == same, "%s of %d ranks",
                collective_name((enum collective)c), n);
        }
}

/* What the ring is for: 1 GiB takes the same time on 4 and on 64 ranks, within the latency term and the ends of
 * the pipeline. */
static void test_independent_of_n(void)
{
    double bytes = (double)(1 << 30);
    for (int n = 4; n <= 64; n *= 2) {
        double t = run(base(COLLECTIVE_ALL_REDUCE, n, (1 << 30) / 4));
        double formula = 2.0 * (n - 1) * ALPHA + 2.0 * (n - 1) / n * bytes / BETA;
        CHECK_MSG(near(t, formula, 0.06) && t >= 2.0 * (n - 1) / n * bytes / BETA,
            "%d ranks: %g ns, formula %g", n, t, formula);
    }
    double small_16 = run(base(COLLECTIVE_ALL_REDUCE, 16, 16)),
           small_1024 = run(base(COLLECTIVE_ALL_REDUCE, 1024, 1024));
    CHECK(near(small_1024 / small_16, 1023.0 / 15, 1e-3)); /* latency alone: n−1 */
    double chain = run(base(COLLECTIVE_BROADCAST, 16, 1 << 26));
    CHECK(near(chain, 15 * ALPHA + (1 << 28) / BETA, 0.06)); /* slices follow one another down the chain */
}

/* The textbooks' all-reduce: log n, or n, whole buffers. */
static void test_naive(void)
{
    double buffer = 4e6 / BETA;
    for (int n = 2; n <= 256; n *= 2) {
        struct simulate_config config = base(COLLECTIVE_ALL_REDUCE, n, 1000000);
        config.algorithm = SIMULATE_TREE;
        CHECK_MSG(near(run(config), 2 * log2(n) * (ALPHA + buffer), 1e-12), "tree of %d: %g", n, run(config));
        config.algorithm = SIMULATE_STAR;
        CHECK_MSG(
            near(run(config), 2 * ALPHA + 2.0 * (n - 1) * buffer, 1e-12), "star of %d: %g", n, run(config));
    }
    struct simulate_config odd = base(COLLECTIVE_ALL_REDUCE, 5, 1000000);
    odd.algorithm = SIMULATE_TREE;
    CHECK(run(odd) <= 6 * (ALPHA + buffer) &&
          run(odd) > 4 * (ALPHA + buffer)); /* rank 4 has sent long before it is its turn */
}

/* 8 ranks on 2 nodes: the slow links between nodes set the bandwidth, all links together the latency. */
static void test_nodes(void)
{
    struct simulate_config config = base(COLLECTIVE_ALL_REDUCE, 8, 1 << 26);
    config.node_ranks = 4;
    config.node_link = (struct simulate_link){100, 500};
    CHECK(near(run(config), 2 * 7.0 / 8 * (1 << 28) / BETA, 0.06));
    config.count = 0;
    CHECK(near(run(config), 2 * (2 * ALPHA + 5 * 100),
        1e-12));           /* 7 of the 8 links, twice; one that is left out is in a node */
    config.node_ranks = 3; /* nodes of 3, 3 and 2: nothing repeats, all positions run */
    struct simulate_result result;
    CHECK_OK(simulate_run(&result, &config));
    CHECK(result.positions == 8);
}

/* Two slots on a long link: after every two slices the sender waits for their slots, a round trip. */
static void test_slots(void)
{
    struct simulate_config config = base(COLLECTIVE_BROADCAST, 2, 2 * 10 * 1024);
    config.slot_bytes = 4096;
    config.slot_count = 2;
    double slice = 4096 / BETA, expected = 9 * (2 * ALPHA + slice) + 2 * slice + ALPHA;
    CHECK_MSG(near(run(config), expected, 1e-12), "20 slices: %g, expected %g", run(config), expected);
    config.slot_count = 32;
    CHECK(near(run(config), 20 * slice + ALPHA, 1e-12));
    config.slot_count = 3;
    struct simulate_result result;
    CHECK_STATUS(simulate_run(&result, &config), STATUS_INVALID);
}

/* Full nodes in two levels: one node stands for all, bit for bit; and where the link between nodes is what counts, all-reduce of S
 * bytes takes 2(H-1)/H S/β, round the ring 2(n-1)/n S/β. */
static void test_two_level(void)
{
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        if (!collective_has_two_levels((enum collective)c)) continue;
        for (int n = 4; n <= 24; n++)
            for (int m = 2; m < n; m++) {
                if (n % m != 0) continue;
                struct simulate_config config = base((enum collective)c, n, (size_t)n * 9000);
                config.node_ranks = m;
                config.node_link = (struct simulate_link){700, 200};
                config.slot_bytes = 4096;
                config.slot_count = 4;
                config.two_level = true;
                struct simulate_result folded, whole;
                CHECK_OK(simulate_run(&folded, &config));
                config.every_position = true;
                CHECK_OK(simulate_run(&whole, &config));
                CHECK_MSG(folded.time_ns == whole.time_ns && whole.time_ns > 0, "%s, %d ranks, %d a node: %g folded to %d, %g in full",
                    collective_name((enum collective)c), n, m, folded.time_ns, folded.positions, whole.time_ns);
            }
    }
    struct simulate_config config = base(COLLECTIVE_ALL_REDUCE, 8, 1 << 26);
    config.node_link = (struct simulate_link){10, 100000};
    for (config.node_ranks = 2; config.node_ranks <= 4; config.node_ranks *= 2) {
        double hosts = 8.0 / config.node_ranks, bytes = 1 << 28;
        config.two_level = false;
        double flat = run(config);
        config.two_level = true;
        double levels = run(config);
        CHECK_MSG(near(flat, 2 * 7.0 / 8 * bytes / BETA, 0.06) && near(levels, 2 * (hosts - 1) / hosts * bytes / BETA, 0.06),
            "%d a node: flat %g, two levels %g", config.node_ranks, flat, levels);
    }
    config.node_ranks = 3;
    struct simulate_result result;
    CHECK_STATUS(simulate_run(&result, &config), STATUS_INVALID);
}

static void test_large_and_bad(void)
{
    struct simulate_result result;
    struct simulate_config config = base(COLLECTIVE_ALL_REDUCE, 65536, (size_t)1 << 28);
    CHECK_OK(simulate_run(&result, &config));
    CHECK(result.positions == 1 && result.items == 2 * 65536 - 1);
    config.every_position = true;
    CHECK_STATUS(simulate_run(&result, &config), STATUS_INVALID);
    config = base(COLLECTIVE_ALL_REDUCE, 4, 10);
    config.link.bytes_per_ns = 0;
    CHECK_STATUS(simulate_run(&result, &config), STATUS_INVALID);
    config = base(COLLECTIVE_BROADCAST, 4, 10);
    config.algorithm = SIMULATE_TREE;
    CHECK_STATUS(simulate_run(&result, &config), STATUS_INVALID);
}

int main(void)
{
    test_formula();
    test_folded();
    test_symmetry();
    test_independent_of_n();
    test_naive();
    test_nodes();
    test_slots();
    test_two_level();
    test_large_and_bad();
    return test_result();
}
