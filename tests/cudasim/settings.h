/* settings: the environment variables of the simulator, read once. README.md says what each is
 * for. */
#ifndef CUDASIM_SETTINGS_H
#define CUDASIM_SETTINGS_H

#include <cstddef>
#include <cstdint>

namespace cudasim {

enum class thread_order { forward, reverse, random };

/* What a GPU of a compute capability can do; the figures of the CUDA C++ Programming Guide,
 * "Compute Capabilities". */
struct architecture {
    int number; /* 75: compute capability 7.5 */
    int threads_per_sm, blocks_per_sm;
    size_t shared_per_sm;
    size_t shared_per_block; /* after cudaFuncSetAttribute; 48 KiB without */
};

struct settings {
    int devices;
    const architecture *gpu;
    int driver_version;
    size_t memory_bytes; /* of each device */
    int resident_blocks; /* at once, of each device */
    thread_order order;
    uint64_t seed;
    unsigned delay_us;
    double watchdog_s;
    bool peers, ipc, algorithms;
    int processors;
};

/* False when a variable holds what it cannot; the message is on stderr. */
bool settings_read(settings &into);

} // namespace cudasim
#endif
