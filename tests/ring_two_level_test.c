/* Reductions and gathers in two levels: hosts that are pretended, on every transport, against a reference that adds in the documented
 * order (collectives_fixture.h), on both sides of every threshold; what leaves a host is what theory says; what ranks disagree
 * about, and who cannot have two levels, is told. ctest: timeout=240
 */
#include <signal.h>

#include "tests/collectives_fixture.h"

/* ---- what leaves a host ---- */

static uint64_t border_bytes(enum collective collective, struct ring_comm *comm)
{
    return ring_comm_counters(comm).border_bytes[collective];
}

static uint64_t sum_of_host(uint64_t own, const int *hosts, struct ring_comm *comm)
{
    uint64_t all[8] = {0}, sum = 0;
    int rank = ring_comm_rank(comm), n = ring_comm_nranks(comm);
    CHECK_OK(ring_all_gather(span_host(all, sizeof all), span_host(&own, 8), 1, DTYPE_UINT64, comm, NULL));
    for (int r = 0; r < n; r++) sum += hosts[r] == hosts[rank] ? all[r] : 0;
    return sum;
}

/* S bytes on each of n ranks: 2(H−1)/H · S leave each host for an all-reduce, half of it for either half; round the flat ring
 * 2(n−1)/n · S and its half. */
static void check_border(const struct setting *setting, struct ring_comm *comm)
{
    static const enum collective which[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER};
    int n = ring_comm_nranks(comm), hosts[8];
    for (int r = 0; r < n; r++) hosts[r] = setting->blocks ? r * setting->hosts / n : r % setting->hosts;
    size_t part = 5000, all = part * (size_t)n, bytes = all * sizeof(float);
    float *x = calloc(all, sizeof *x), *y = calloc(all, sizeof *y);
    struct span send = span_host(x, bytes), recv = span_host(y, bytes);
    for (int i = 0; i < 3; i++) {
        uint64_t before = border_bytes(which[i], comm);
        struct test_case t = {.collective = which[i], .dtype = DTYPE_FLOAT32, .count = i == 0 ? all : part};
        CHECK_OK(call(&t, recv, send, comm, NULL));
        uint64_t left = sum_of_host(border_bytes(which[i], comm) - before, hosts, comm);
        size_t parts = ring_comm_host_ranks(comm) > 1 ? (size_t)setting->hosts : (size_t)n;
        size_t theory = (i == 0 ? 2 : 1) * (parts - 1) * (bytes / parts);
        CHECK_MSG(left == theory, "%s: %zu bytes left the host, expected %zu", collective_name(which[i]), (size_t)left, theory);
    }
    free(x);
    free(y);
}

/* ring_reduce() promises the bits of an all-reduce's chunk. */
static void check_reduce(struct ring_comm *comm)
{
    enum { COUNT = 7001 };
    int n = ring_comm_nranks(comm), rank = ring_comm_rank(comm);
    double *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y), want;
    for (size_t i = 0; i < COUNT; i++) oracle_store(&x[i], value_at(rank, i, DTYPE_FLOAT64, REDOP_SUM), DTYPE_FLOAT64);
    struct span send = span_host(x, COUNT * sizeof *x), recv = span_host(y, COUNT * sizeof *y);
    for (int root = 0; root < n; root++) {
        size_t wrong = 0;
        CHECK_OK(ring_reduce(recv, send, COUNT, DTYPE_FLOAT64, REDOP_SUM, root, comm, NULL));
        for (size_t i = 0; i < COUNT && rank == root; i++) {
            reference_in(channel_of(i, COUNT), (unsigned char *)&want, i, root, DTYPE_FLOAT64, REDOP_SUM, false, n);
            wrong += memcmp(&want, &y[i], sizeof want) != 0;
        }
        CHECK_MSG(wrong == 0, "reduce to %d: %zu of %d differ", root, wrong, COUNT);
    }
    free(x);
    free(y);
}

/* Parts: with a rank of each place there are two levels again where two places are left; a host alone is flat. */
static void check_parts(const struct setting *setting, struct ring_comm *comm)
{
    int rank = ring_comm_rank(comm), m = setting->host_ranks, n = ring_comm_nranks(comm), sum = 1;
    int place = setting->blocks ? rank % m : rank / setting->hosts, host = setting->blocks ? rank / m : rank % setting->hosts;
    struct ring_comm *part = NULL;
    if (m < 2) return;
    CHECK_OK(ring_comm_split(&part, place < 2 ? 0 : -1, n - rank, comm));
    if (part != NULL) {
        CHECK(ring_comm_host_ranks(part) == 2);
        CHECK_OK(ring_all_reduce(span_host(&sum, 4), span_host(&sum, 4), 1, DTYPE_INT32, REDOP_SUM, part, NULL));
        CHECK(sum == 2 * setting->hosts);
    }
    ring_comm_close(part);
    CHECK_OK(ring_comm_split(&part, host, 0, comm));
    CHECK(ring_comm_host_ranks(part) == 1 && ring_comm_nranks(part) == m);
    ring_comm_close(part);
}

static void levels_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    struct ring_config config = config_of(setting, bootstrap);
    struct device *device = NULL;
    config.exchange_bytes = 1;
    if (CHECK_OK(device_open(&device, "host")) && CHECK_OK(ring_comm_open(&tested, &config, bootstrap, device))) {
        check_border(setting, tested);
        check_reduce(tested);
        check_parts(setting, tested);
    }
    ring_comm_close(tested);
    device_close(device);
}

/* ---- what goes wrong ---- */

/* Opens, and returns what that came to. */
static enum status open_on(struct ring_comm **comm, struct device **device, const struct ring_config *config, struct bootstrap *bootstrap)
{
    *comm = NULL;
    CHECK_OK(device_open(device, "host"));
    return ring_comm_open(comm, config, bootstrap, *device);
}

static void disagree_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct ring_comm *comm;
    struct device *device;
    struct ring_config config = {.hierarchy = bootstrap_rank(bootstrap) == 1 ? HIERARCHY_FLAT : HIERARCHY_AUTO};
    enum status status = open_on(&comm, &device, &config, bootstrap);
    CHECK(status == STATUS_INVALID || status == STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(), "RINGZERO_HIERARCHY is auto on rank 0 and flat on rank 1") != NULL, "%s", status_text());
    ring_comm_close(comm);
    device_close(device);
}

/* Hosts of two ranks and of one. */
static void uneven_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct ring_comm *comm;
    struct device *device;
    struct ring_config config = {.hierarchy = HIERARCHY_TWO_LEVEL, .host = bootstrap_rank(bootstrap) == 1 ? "b" : "a"};
    enum status status = open_on(&comm, &device, &config, bootstrap);
    CHECK(status == STATUS_INVALID || status == STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(), "RINGZERO_HIERARCHY is two_level, but the job has 2 hosts of 1 to 2 ranks") != NULL, "%s", status_text());
    ring_comm_close(comm);
    device_close(device);
}

/* One rank gives another count: an error on every rank, naming both. */
static void mismatch_body(struct bootstrap *bootstrap, void *argument)
{
    struct setting setting = {.config = {.transport = argument, .exchange_bytes = 1}, .hosts = 2};
    struct ring_config config = config_of(&setting, bootstrap);
    struct ring_comm *comm;
    struct device *device;
    static float x[9000], y[6][9000];
    int rank = bootstrap_rank(bootstrap);
    if (CHECK_OK(open_on(&comm, &device, &config, bootstrap))) {
        enum status status = ring_all_reduce(span_host(y[rank], sizeof y[rank]), span_host(x, sizeof x), rank == 4 ? 8998 : 9000,
            DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
        CHECK(status == STATUS_DATA || status == STATUS_ABORTED);
        CHECK_MSG(strstr(status_text(), "8998") != NULL && strstr(status_text(), "9000") != NULL, "%s", status_text());
    }
    ring_comm_close(comm);
    device_close(device);
}

/* A rank is killed in mid-operation; the others know, whose hosts are no longer alike, and go on round one ring. */
static void death_body(struct bootstrap *bootstrap, void *argument)
{
    struct setting setting = {.config = {.transport = argument, .hierarchy = HIERARCHY_TWO_LEVEL}, .hosts = 2, .blocks = true};
    struct ring_config config = config_of(&setting, bootstrap);
    struct ring_comm *comm, *rest = NULL;
    struct bootstrap *job = NULL;
    struct device *device;
    enum { COUNT = 300000 };
    float *x = calloc(COUNT, sizeof *x);
    struct span span = span_host(x, COUNT * sizeof *x);
    enum status status = STATUS_OK;
    if (!CHECK_OK(open_on(&comm, &device, &config, bootstrap))) return;
    for (int i = 0; i < 100000 && status == STATUS_OK; i++) {
        if (i == 5 && bootstrap_rank(bootstrap) == 3) raise(SIGKILL);
        status = ring_all_reduce(span, span, COUNT, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    }
    CHECK(status == STATUS_PEER || status == STATUS_ABORTED);
    CHECK_MSG(strstr(status_text(), "rank 3") != NULL, "%s", status_text());
    setenv("RINGZERO_HOST", bootstrap_rank(bootstrap) < 2 ? "h0" : "h1", 1); /* config.host is of the first opening alone */
    if (CHECK_OK(ring_comm_shrink(&rest, &job, comm))) {
        CHECK(ring_comm_nranks(rest) == 3 && ring_comm_host_ranks(rest) == 1);
        x[0] = 1;
        CHECK_OK(ring_all_reduce(span, span, 1, DTYPE_FLOAT32, REDOP_SUM, rest, NULL));
        CHECK(x[0] == 3);
    }
    free(x);
    ring_comm_close(rest);
    bootstrap_close(job);
    device_close(device);
}

/* ---- all of it ---- */

static const struct {
    struct setting setting;
    int nranks;
} runs[] = {
    /* Whatever the size by the plan: slots of all sizes, several channels, whose ways through a host differ. */
    {{{.transport = "auto", .exchange_bytes = 1, .slot_bytes = 1024, .slot_count = 4}, .hosts = 2, .host_ranks = 2}, 4},
    {{{.transport = "auto", .exchange_bytes = 1, .slot_bytes = 192, .slot_count = 4, .channels = 3}, .quick = true, .hosts = 2, .blocks = true,
         .host_ranks = 4}, 8},
    {{{.transport = "shm", .exchange_bytes = 1, .slot_bytes = 64, .slot_count = 2, .start = UINT64_MAX - 20}, .quick = true, .hosts = 3,
         .blocks = true, .host_ranks = 2}, 6},
    {{{.transport = "tcp", .exchange_bytes = 1, .slot_bytes = 320, .slot_count = 2, .channels = 2, .start = UINT64_MAX - 20}, .quick = true,
         .hosts = 2, .host_ranks = 3}, 6},
    {{{.transport = "verbs", .exchange_bytes = 1, .slot_bytes = 320, .slot_count = 2}, .quick = true, .hosts = 2, .host_ranks = 2}, 4},
    {{{.custom = &transport_chaos, .slot_bytes = 192, .slot_count = 4, .channels = 2, .exchange_bytes = 1}, .quick = true, .hosts = 4,
         .blocks = true, .host_ranks = 2}, 8},
    {{{.custom = &transport_chaos, .slot_bytes = 256, .slot_count = 4, .exchange_bytes = 1}, .quick = true, .hosts = 2, .host_ranks = 3}, 6},
    /* Small ones as exchanges, in hops and in rounds, with the threshold among the counts. */
    {{{.transport = "auto", .exchange_bytes = 2000, .channels = 2}, .quick = true, .hosts = 2, .blocks = true, .host_ranks = 2}, 4},
    {{{.transport = "shm", .exchange_bytes = 2000}, .quick = true, .hosts = 2, .host_ranks = 4}, 8},
    {{{.transport = "tcp", .exchange_bytes = 300}, .quick = true, .hosts = 3, .host_ranks = 2}, 6},
    {{{.transport = "auto"}, .quick = true, .hosts = 2, .blocks = true, .host_ranks = 3}, 6},
    /* Where two levels would be chosen, but were refused; where they are not. */
    {{{.transport = "auto", .exchange_bytes = 2000, .channels = 2, .hierarchy = HIERARCHY_FLAT}, .quick = true, .hosts = 2, .host_ranks = 1}, 4},
    {{{.transport = "shm", .exchange_bytes = 300, .window_bytes = 1, .channels = 2}, .quick = true, .hosts = 2}, 5},
};

int main(void)
{
    static const enum dtype large[] = {DTYPE_FLOAT32, DTYPE_COUNT};
    CHECK(ranks_as_processes(4, 30000, death_body, "auto", 3) == 0);
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r += EVERY) {
        struct setting setting = runs[r].setting;
        if (!test_takes(setting.config.transport)) continue;
        ranks_as_threads(runs[r].nranks, 30000, body, &setting);
        if (setting.config.slot_bytes == 0 && setting.host_ranks > 0)
            ranks_as_threads(runs[r].nranks, 30000, levels_body, &setting);
    }
    struct setting setting = {.config = {.transport = "auto"}, .large = large, .hosts = 2, .blocks = true, .host_ranks = 2};
    if (test_takes("tcp")) ranks_as_threads(4, 30000, body, &setting);
    static char *const names[] = {"shm", "tcp", "auto"};
    for (int t = 0; t < 3; t++) ranks_as_threads(6, 10000, mismatch_body, names[t]);
    ranks_as_threads(3, 10000, disagree_body, NULL);
    ranks_as_threads(3, 10000, uneven_body, NULL);
    return test_result();
}
