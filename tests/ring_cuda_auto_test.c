/* RINGZERO_CUDA_MODE=auto: kernels where every rank has a GPU of its own, whatever its ordinal is called; copies where two share one,
 * also if they count as being on different hosts.
 *
 * ctest: timeout=60
 */
#include <stdlib.h>

#include "ring/comm.h"
#include "tests/harness/harness.h"

struct setting {
    const char *devices[2];
    bool hosts, kernels;
};

static void auto_body(struct bootstrap *bootstrap, void *argument)
{
    const struct setting *setting = argument;
    int rank = bootstrap_rank(bootstrap);
    struct ring_config config = {.cuda_mode = "auto", .host = setting->hosts && rank == 1 ? "there" : "here"};
    struct device *device = NULL;
    struct ring_comm *comm = NULL;
    if (!CHECK_OK(device_open(&device, setting->devices[rank]))) return;
    if (CHECK_OK(ring_comm_open(&comm, &config, bootstrap, device))) CHECK(comm->kernels == setting->kernels);
    ring_comm_close(comm);
    device_close(device);
}

int main(void)
{
    static struct setting settings[] = {{{"cudasim:0", "cudasim:0"}, false, false}, {{"cudasim:0", "cudasim:1"}, false, true},
        {{"cudasim:0", "cudasim:0"}, true, false}, {{"host", "host"}, false, false}};
    if (!test_has_device("cudasim")) return test_skip("cudasim");
    setenv("CUDASIM_DEVICES", "2", 1);
    for (int i = 0; i < 4; i++) CHECK(ranks_as_processes(2, 30000, auto_body, &settings[i], -1) == 0);
    return test_result();
}
