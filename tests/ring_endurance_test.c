/* What only shows after long use, and near the end of a resource. Cases C11 and C15. ctest: timeout=180
 *
 *   C11   70,000 all-reduces alternating 8 bytes and 64 KiB, every element checked, over edges whose counters wrap on the way
 *   C15   16 ranks that may have 64 descriptors each: a clean error or success; 300 communicators, one after another, leave no
 *         descriptor and no mapping behind
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ring/ring.h"
#include "tests/harness/harness.h"

#define DEADLINE_MS 30000

/* Opens a device and a communicator, runs body, closes both. Returns what opening the communicator gave. */
static enum status with_comm(
    struct bootstrap *bootstrap, const struct ring_config *config, void (*body)(struct ring_comm *comm))
{
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    CHECK_OK(device_open(&device, "host"));
    enum status status = ring_comm_open(&comm, config, bootstrap, device);
    if (status == STATUS_OK) body(comm);
    ring_comm_close(comm);
    device_close(device);
    return status;
}

/* ---- C11 ---- */

#ifdef RINGZERO_SANITIZED
#define ALTERNATIONS 3000
#else
#define ALTERNATIONS 35000
#endif
#define LARGE_COUNT ((size_t)16384) /* 64 KiB of float32 */
#define PATTERNS    5               /* no result equals the one that was in the buffer or the slot before */

struct alternating {
    float *input[PATTERNS], *expected[PATTERNS];
    float *output;
};

static struct alternating alternating_make(int rank, int nranks)
{
    struct alternating all;
    size_t bytes = LARGE_COUNT * sizeof(float);
    all.output = calloc(1, bytes);
    for (int p = 0; p < PATTERNS; p++) {
        all.input[p] = malloc(bytes);
        all.expected[p] = malloc(bytes);
        for (size_t i = 0; i < LARGE_COUNT; i++) {
            all.input[p][i] = (float)((int)(i % 1009) * (p + 1) + rank);
            all.expected[p][i] = (float)((int)(i % 1009) * (p + 1) * nranks + nranks * (nranks - 1) / 2);
        }
    }
    return all;
}

static void alternating_free(struct alternating *all)
{
    for (int p = 0; p < PATTERNS; p++) {
        free(all->input[p]);
        free(all->expected[p]);
    }
    free(all->output);
}

static void alternate(struct ring_comm *comm)
{
    struct alternating all = alternating_make(ring_comm_rank(comm), ring_comm_nranks(comm));
    bool good = true;
    for (int i = 0; i < 2 * ALTERNATIONS && good; i++) {
        size_t count = i % 2 == 0 ? 2 : LARGE_COUNT, bytes = count * sizeof(float);
        int p = i % PATTERNS;
        good = CHECK_OK(ring_all_reduce(span_host(all.output, bytes), span_host(all.input[p], bytes), count,
                   DTYPE_FLOAT32, REDOP_SUM, comm, NULL)) &&
               CHECK_MSG(
                   memcmp(all.output, all.expected[p], bytes) == 0, "all-reduce %d of %zu elements is wrong", i, count);
    }
    alternating_free(&all);
}

/* The counters pass 2^64 in the middle: each edge makes at least a step an operation. */
static void alternate_body(struct bootstrap *bootstrap, void *argument)
{
    struct ring_config config = {.transport = argument, .start = UINT64_MAX - ALTERNATIONS};
    CHECK_OK(with_comm(bootstrap, &config, alternate));
}

/* ---- C15 ---- */

#define NARROW_DESCRIPTORS 64
#define CYCLES             300

static void reduce_once(struct ring_comm *comm)
{
    float x[3] = {1, 2, 3}, n = (float)ring_comm_nranks(comm);
    enum status status =
        ring_all_reduce(span_host(x, sizeof x), span_host(x, sizeof x), 3, DTYPE_FLOAT32, REDOP_SUM, comm, NULL);
    if (status == STATUS_OK) CHECK_MSG(x[0] == n && x[2] == 3 * n, "%g, expected %g", (double)x[0], (double)n);
    else CHECK_MSG(status_text()[0] != '\0', "%s without a text", status_name(status));
}

/* Runs in processes that were forked with the narrow limit. */
static void narrow_body(struct bootstrap *bootstrap, void *argument)
{
    struct ring_config config = {.transport = argument};
    if (with_comm(bootstrap, &config, reduce_once) != STATUS_OK)
        CHECK_MSG(strstr(status_text(), "ulimit -n") != NULL, "says nothing of `ulimit -n`: %s", status_text());
}

static void with_few_descriptors(char *transport)
{
    struct rlimit saved, narrow;
    CHECK(getrlimit(RLIMIT_NOFILE, &saved) == 0);
    narrow = saved;
    narrow.rlim_cur = NARROW_DESCRIPTORS;
    CHECK(setrlimit(RLIMIT_NOFILE, &narrow) == 0);
    CHECK(ranks_as_processes(16, DEADLINE_MS, narrow_body, transport, -1) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &saved) == 0);
}

/* Maps of shared memory: slots that nobody unmapped. */
static int count_shared_maps(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) count += strstr(line, "memfd:ringzero") != NULL;
    if (maps != NULL) fclose(maps);
    return count;
}

static void cycles_body(struct bootstrap *bootstrap, void *argument)
{
    struct ring_config config = {.transport = argument, .slot_bytes = 4096};
    CHECK_OK(with_comm(bootstrap, &config, reduce_once)); /* whatever is opened once for all is open now */
    int descriptors = count_files("/proc/self/fd", ""), maps = count_shared_maps();
    for (int i = 0; i < CYCLES; i++) CHECK_OK(with_comm(bootstrap, &config, reduce_once));
    CHECK_MSG(count_files("/proc/self/fd", "") == descriptors, "%d descriptors after %d communicators, %d before",
        count_files("/proc/self/fd", ""), CYCLES, descriptors);
    CHECK_MSG(count_shared_maps() == maps, "%d shared maps after, %d before", count_shared_maps(), maps);
}

int main(void)
{
    static char *const names[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        CHECK(ranks_as_processes(2, DEADLINE_MS, alternate_body, names[t], -1) == 0);
        with_few_descriptors(names[t]);
        CHECK(ranks_as_processes(3, DEADLINE_MS, cycles_body, names[t], -1) == 0);
    }
    return test_result();
}
