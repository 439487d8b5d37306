/* launch: what hardware checks before a kernel runs. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "cudasim.h"
#include "library.h"
#include "memory.h"
#include "stream.h"

namespace cudasim {
namespace {

constexpr size_t SHARED_WITHOUT_ASKING = 48 << 10;

/* How much dynamic shared memory a kernel has asked for by cudaFuncSetAttribute(); state of the
 * process. */
struct asked_for {
    std::mutex mutex;
    std::map<const void *, int> shared_bytes;
};
forever<asked_for> asked_;
asked_for &asked() { return *asked_; }

size_t shared_limit(const void *kernel)
{
    asked_for &all = asked();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.shared_bytes.find(kernel);
    return found == all.shared_bytes.end() ? SHARED_WITHOUT_ASKING
                                           : std::max(SHARED_WITHOUT_ASKING, (size_t)found->second);
}

cudaError_t refuse(const char *what, size_t found, size_t most)
{
    fprintf(stderr, "cudasim[%d]: launch with %s %zu; expected at most %zu (CUDASIM_ARCH=%d)\n",
        (int)self.host, what, found, most, self.set.gpu->number);
    return cudaErrorInvalidConfiguration;
}

cudaError_t check(const cudaLaunchConfig_t &config, const void *kernel)
{
    dim3 grid = config.gridDim, block = config.blockDim;
    size_t threads = (size_t)block.x * block.y * block.z, blocks = (size_t)grid.x * grid.y * grid.z;
    if (threads == 0 || blocks == 0) return refuse("a grid or block of threads", 0, 1024);
    if (threads > 1024) return refuse("threads in a block:", threads, 1024);
    if (block.z > 64) return refuse("threads along z:", block.z, 64);
    if (grid.x > 0x7fffffff) return refuse("blocks along x:", grid.x, 0x7fffffff);
    if (std::max(grid.y, grid.z) > 65535)
        return refuse("blocks along y or z:", std::max(grid.y, grid.z), 65535);
    if (blocks > 0xffffffff)
        return refuse("blocks, more than the simulator can count:", blocks, 0xffffffff);
    size_t limit = shared_limit(kernel);
    if (config.dynamicSmemBytes > limit)
        return refuse("bytes of dynamic shared memory:", config.dynamicSmemBytes, limit);
    return cudaSuccess;
}

/* Whatever looks like an address among the arguments: also in structs. */
const void *find_bad_pointer(const void *arguments, size_t bytes, int device)
{
    for (size_t i = 0; i + sizeof(void *) <= bytes; i += sizeof(void *)) {
        const void *word;
        memcpy(&word, (const char *)arguments + i, sizeof word);
        if (word != nullptr && !device_reaches(device, word)) return word;
    }
    return nullptr;
}

cudaError_t set_attribute(const void *kernel, cudaFuncAttribute which, int value)
{
    if (which == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value > self.set.gpu->shared_per_block)
        return cudaErrorInvalidValue;
    asked_for &all = asked();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.shared_bytes[kernel] = value;
    return cudaSuccess;
}

} // namespace
} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudasim_launch(const cudaLaunchConfig_t *config, const void *kernel,
    invoke_function invoke, anchor_function anchor, const void *arguments, size_t bytes,
    int clear_of_padding)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    if (bytes > ARGUMENT_BYTES) return leave(cudaErrorInvalidValue);
    stream *stream = stream_of(config->stream);
    if (stream == nullptr || stream->device != current_device())
        return leave(cudaErrorInvalidResourceHandle);
    error = check(*config, kernel);
    for (const void *each : {kernel, (const void *)invoke, (const void *)anchor})
        if (error == cudaSuccess) error = library_share(each);
    if (error != cudaSuccess) return leave(error);
    fresh_item what(work::kernel);
    const dim3 &grid = config->gridDim, &block = config->blockDim;
    what.kernel = {kernel, invoke, anchor, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z},
        (uint32_t)config->dynamicSmemBytes,
        clear_of_padding ? find_bad_pointer(arguments, bytes, stream->device) : nullptr};
    what.argument_bytes = (uint32_t)bytes;
    memcpy(what.arguments, arguments, bytes);
    return leave(stream_submit(*stream, what));
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute which, int value)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : set_attribute(kernel, which, value));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *into, const void *kernel)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    memset((void *)into, 0, sizeof *into);
    into->maxThreadsPerBlock = 1024;
    into->maxDynamicSharedSizeBytes = (int)shared_limit(kernel);
    into->ptxVersion = into->binaryVersion = self.set.gpu->number;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *, int threads, size_t dynamic_bytes, unsigned)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && (threads <= 0 || threads > 1024)) error = cudaErrorInvalidValue;
    if (error != cudaSuccess) return leave(error);
    const architecture &gpu = *self.set.gpu;
    int rounded = (threads + 31) / 32 * 32;
    *blocks = std::min(gpu.blocks_per_sm, gpu.threads_per_sm / rounded);
    if (dynamic_bytes > 0)
        *blocks = std::min(*blocks, (int)(gpu.shared_per_sm / (dynamic_bytes + 1024)));
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, const void *kernel, int threads, size_t dynamic_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, kernel, threads, dynamic_bytes, 0);
}
}
