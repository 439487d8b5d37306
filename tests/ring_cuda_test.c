/* Every collective on CUDA memory, in kernels and driven by the host: the grid of collectives_fixture.h on the simulator, over slots in
 * CUDA memory and over those of the host, against the reference that host memory is held to: the same bits (I2).
 *
 * RINGZERO_TEST_DEVICE=cuda runs it on a GPU, which the ranks share.
 * ctest: timeout=240 labels=plain
 */
#include "tests/collectives_fixture.h"

int main(void)
{
    static const struct {
        struct setting setting;
        int nranks[8]; /* up to the first 0 */
    } runs[] = {
        {{{.transport = "auto"}, .quick = true}, {1, 2, 3}},
        {{{.transport = "cuda_ipc", .slot_bytes = 1024, .slot_count = 4}, .quick = false}, {2}},
        {{{.transport = "cuda_ipc", .slot_bytes = 64, .slot_count = 2, .start = UINT64_MAX - 20}, .quick = true}, {3}},
        {{{.transport = "shm", .slot_bytes = 1024, .slot_count = 4, .channels = 2}, .quick = true}, {2, 5}},
        {{{.transport = "tcp", .slot_bytes = 320, .slot_count = 2}, .quick = true}, {3}},
        {{{.custom = &transport_chaos, .slot_bytes = 192, .slot_count = 4, .channels = 2}, .quick = true}, {3}},
        {{{.cuda_mode = "kernel"}, .quick = true}, {2, 3}},
        {{{.cuda_mode = "kernel", .slot_bytes = 1024, .slot_count = 4, .channels = 2}, .quick = false}, {2}},
        {{{.cuda_mode = "kernel", .slot_bytes = 64, .slot_count = 2, .start = UINT64_MAX - 20}, .quick = true}, {3}},
        {{{.cuda_mode = "kernel", .cuda_line_bytes = 200, .start = UINT64_MAX - 20, .channels = 2}, .quick = false}, {3}}, /* on both sides */
        {{{.cuda_mode = "kernel", .cuda_line_bytes = SIZE_MAX}, .quick = true}, {3}},
        /* memory that neighbours read where it is */
        {{{.slot_bytes = 1024, .slot_count = 4}, .quick = false, .memory = SHARED}, {2}},
        {{{.slot_bytes = 192, .slot_count = 4, .channels = 2}, .quick = true, .memory = SHARED}, {1, 3}},
        {{{.cuda_mode = "kernel", .slot_bytes = 1024, .slot_count = 4, .start = UINT64_MAX - 20}, .quick = false, .memory = SHARED}, {3}},
        {{{.cuda_mode = "kernel", .slot_bytes = 192, .cuda_line_bytes = SIZE_MAX, .channels = 2}, .quick = true, .memory = SHARED}, {2}},
        {{{.cuda_mode = "copies", .slot_bytes = 1024, .slot_count = 4}, .quick = true, .hosts = 2, .blocks = true, .host_ranks = 2, .memory = SHARED}, {4}},
        {{{.cuda_mode = "kernel", .slot_bytes = 1024, .slot_count = 4}, .quick = true, .hosts = 2, .blocks = true, .host_ranks = 2, .memory = SHARED}, {4}},
        /* by a proxy: its slots are the edge's, or its own; to another host of two or four, in one level and in two */
        {{{.cuda_mode = "kernel", .transport = "tcp", .slot_bytes = 320}, .quick = true}, {2}},
        {{{.cuda_mode = "kernel", .transport = "shm", .slot_bytes = 1024, .slot_count = 4, .channels = 2}, .quick = true}, {3}},
        {{{.cuda_mode = "kernel", .custom = &transport_chaos, .slot_bytes = 192, .slot_count = 4, .start = UINT64_MAX - 20}, .quick = true}, {3}},
        {{{.cuda_mode = "kernel", .slot_bytes = 1024, .slot_count = 4}, .quick = true, .hosts = 2, .blocks = true}, {3}},
        {{{.cuda_mode = "kernel", .slot_bytes = 1024, .slot_count = 4, .channels = 2}, .quick = true, .hosts = 2, .blocks = true, .host_ranks = 2}, {4}},
    };
    const char *name = test_device_name();
    if (!test_has_device(name)) return test_skip(name);
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++)
        for (int i = 0; i < 8 && runs[r].nranks[i] != 0; i++) {
            struct setting setting = runs[r].setting;
            setting.device = name;
            ranks_as_threads(runs[r].nranks[i], 30000, body, &setting);
        }
    return test_result();
}
