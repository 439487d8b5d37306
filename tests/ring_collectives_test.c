/* Every collective against a plain reference, to the bit, on one host: the grid of collectives_fixture.h on every transport, as
 * exchanges, by windows and on the ring. ctest: timeout=240
 */
#include "tests/collectives_fixture.h"

int main(void)
{
    static const enum dtype narrow[] = {DTYPE_INT8, DTYPE_BFLOAT16, DTYPE_COUNT};
    static const enum dtype wide[] = {DTYPE_FLOAT16, DTYPE_FLOAT64, DTYPE_COUNT};
    static const struct {
        struct setting setting;
        int nranks[8]; /* up to the first 0 */
    } runs[] = {
        {{{.transport = "shm"}, .large = narrow}, {3, 5, 8}},
        {{{.transport = "shm"}, .large = narrow, .memory = ALLOCATED}, {2, 3}},
        {{{.transport = "shm"}, .large = wide}, {3}},
        {{{.transport = "tcp"}, .large = wide}, {5}},
        /* On the ring whatever the size: exchange_bytes 1, no windows. */
        {{{.transport = "shm", .window_bytes = SIZE_MAX, .slot_bytes = 1024, .slot_count = 4, .exchange_bytes = 1}, .quick = false}, {1, 2, 3, 4, 5, 7, 8}},
        {{{.transport = "shm", .window_bytes = SIZE_MAX, .slot_bytes = 64, .slot_count = 2, .exchange_bytes = 1, .start = UINT64_MAX - 20}, .quick = true},
            {2, 3, 4, 5, 8}},
        {{{.transport = "tcp", .slot_bytes = 1024, .slot_count = 4, .exchange_bytes = 1}, .quick = false}, {2, 3, 5}},
        {{{.transport = "tcp", .slot_bytes = 320, .slot_count = 2, .exchange_bytes = 1, .start = UINT64_MAX - 20}, .quick = true},
            {2, 4, 7}},
        {{{.transport = "verbs", .slot_bytes = 1024, .slot_count = 4, .exchange_bytes = 1}, .quick = true}, {2, 3, 4}},
        {{{.transport = "verbs", .slot_bytes = 320, .slot_count = 2, .channels = 2, .exchange_bytes = 1, .start = UINT64_MAX - 20},
             .quick = true},
            {3}},
        {{{.custom = &transport_chaos, .slot_bytes = 192, .slot_count = 4, .channels = 2, .exchange_bytes = 1}, .quick = true},
            {2, 3, 5, 8}},
        /* Small ones as exchanges, in one hop or two; large ones on the ring, with the threshold among the counts. */
        {{{.transport = "auto", .slot_bytes = 192, .slot_count = 4, .channels = 3}, .quick = true}, {1, 2, 3, 4, 5, 7, 8}},
        {{{.transport = "shm", .exchange_bytes = 2000}, .quick = false}, {2, 3, 8}},
        {{{.transport = "tcp", .exchange_bytes = 2000, .star_bytes = 1}, .quick = true}, {2, 3, 5, 8}},
        {{{.transport = "tcp", .star_bytes = 1}, .quick = true}, {4}},
        /* By way of one rank; with its threshold among the counts; with counters near their wrap. */
        {{{.transport = "tcp", .star_bytes = 65536}, .quick = true}, {4}},
        {{{.transport = "tcp", .exchange_bytes = 2000, .star_bytes = 3000, .channels = 2, .start = UINT64_MAX - 20}, .quick = true}, {3, 5, 8}},
        {{{.custom = &transport_chaos, .exchange_bytes = 300, .star_bytes = 2000}, .small = true}, {16}},
        {{{.transport = "verbs", .exchange_bytes = 2000}, .quick = true}, {2, 4}},
        {{{.custom = &transport_chaos, .slot_bytes = 256, .slot_count = 4}, .quick = true}, {2, 3, 5, 6}},
        {{{.custom = &transport_chaos, .exchange_bytes = 300, .star_bytes = 1}, .small = true}, {16}},
        {{{.transport = "shm", .exchange_bytes = 300}, .small = true}, {16}},
        /* By windows whatever the size, some with counters near their wrap; then with exchanges and the ring beside them. */
        {{{.transport = "shm", .slot_bytes = 64, .slot_count = 2, .exchange_bytes = 1, .window_bytes = 1}, .memory = STAGED},
            {2, 3, 4, 5, 7, 8}},
        {{{.transport = "shm", .exchange_bytes = 1, .window_bytes = 1, .start = UINT64_MAX - 20}, .memory = MIXED}, {2, 3, 5, 8}},
        {{{.transport = "shm", .exchange_bytes = 1, .window_bytes = 1}, .memory = ALLOCATED, .quick = true}, {2, 3, 4, 5, 7, 8}},
        {{{.transport = "auto", .exchange_bytes = 200, .window_bytes = 500}, .memory = MIXED, .quick = true}, {2, 4, 7}},
    };
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++)
        for (int i = runs[r].nranks[1] != 0 ? (int)r % EVERY : 0; i < 8 && runs[r].nranks[i] != 0; i += EVERY) {
            struct setting setting = runs[r].setting;
            if (!test_takes(setting.config.transport)) continue;
            ranks_as_threads(runs[r].nranks[i], 30000, body, &setting);
        }
    return test_result();
}
