/* An array beyond 2^31 elements. Case C16: an int8 all-reduce in place of 2 ranks, count 2^31 + 17, right to the last
 * element. ctest: timeout=300 labels=long
 *
 * Needs 4.1 GiB of memory; skipped where there is less.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/ring.h"
#include "tests/harness/harness.h"

#define COUNT  (((size_t)1 << 31) + 17)
#define PERIOD ((size_t)1000003) /* prime: no border of chunks or slices falls on it */
#define NRANKS 2

static int8_t input_value(int rank, size_t index)
{
    return (int8_t)((int)(index % 31) * (rank + 1) - 40);
}

static int8_t expected_value(size_t index)
{
    int sum = 0;
    for (int r = 0; r < NRANKS; r++) sum += input_value(r, index);
    return (int8_t)sum;
}

static void fill(int8_t *array, const int8_t *period)
{
    for (size_t i = 0; i < COUNT; i += PERIOD) memcpy(array + i, period, COUNT - i < PERIOD ? COUNT - i : PERIOD);
}

static void check(const int8_t *array, const int8_t *period)
{
    for (size_t i = 0; i < COUNT; i += PERIOD) {
        size_t part = COUNT - i < PERIOD ? COUNT - i : PERIOD;
        bool right = memcmp(array + i, period, part) == 0;
        size_t k = 0;
        while (!right && array[i + k] == period[k]) k++;
        if (!CHECK_MSG(right, "element %zu is %d, expected %d", i + k, array[i + k], period[k])) return;
    }
}

static void huge_body(struct bootstrap *bootstrap, void *argument)
{
    (void)argument;
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    struct ring_config config = {0};
    CHECK_OK(device_open(&device, "host"));
    CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device));
    int8_t *array = malloc(COUNT + 1), *period = malloc(PERIOD);
    if (CHECK(array != NULL && period != NULL)) {
        for (size_t i = 0; i < PERIOD; i++) period[i] = input_value(bootstrap_rank(bootstrap), i);
        fill(array, period);
        array[COUNT] = 0x5a;
        struct span x = span_host(array, COUNT);
        CHECK_OK(ring_all_reduce(x, x, COUNT, DTYPE_INT8, REDOP_SUM, comm, NULL));
        for (size_t i = 0; i < PERIOD; i++) period[i] = expected_value(i);
        check(array, period);
        CHECK(array[COUNT] == 0x5a);
    }
    free(array);
    free(period);
    ring_comm_close(comm);
    device_close(device);
}

static size_t available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    size_t kib = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) break;
    if (file != NULL) fclose(file);
    return kib << 10;
}

int main(void)
{
    size_t needed = NRANKS * COUNT + ((size_t)512 << 20);
    if (available_bytes() < needed) return test_skip("less than 4.6 GiB of memory are available");
    CHECK(ranks_as_processes(NRANKS, 60000, huge_body, NULL, -1) == 0);
    return test_result();
}
