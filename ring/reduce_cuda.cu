/* reduce_cuda: reductions on CUDA memory, a kernel per slice: the table of reduce.h for a GPU. What a thread does is in
 * reduce_cuda.cuh, with the bytes moved per element.
 *
 * Grid: a thread for every PACKS_PER_THREAD packs of 16 bytes, at most MOST_BLOCKS blocks, which then take several turns.
 */
#include "ring/reduce_cuda.cuh"

#include "verbs/cuda_status.h"
#include "verbs/plugin.h"

#define BLOCK            256
#define MOST_BLOCKS      1024
#define PACKS_PER_THREAD 4

static __global__ void __launch_bounds__(BLOCK) reduce_kernel(struct reduce_work work)
{
    reduce_run(work, (size_t)blockIdx.x * blockDim.x + threadIdx.x, (size_t)gridDim.x * blockDim.x);
}

static enum status launch(enum reduce_kind kind, const struct reduce_slice *slice, const struct reduction *reduction,
    void *native, struct device *device)
{
    if (slice->count == 0) return STATUS_OK;
    struct reduce_work work = reduce_work_make(kind, slice, reduction);
    size_t packs = slice->count * dtype_bytes(reduction->dtype) / REDUCE_PACK_BYTES;
    size_t blocks = (packs + BLOCK * PACKS_PER_THREAD - 1) / (BLOCK * PACKS_PER_THREAD);
    if (blocks < 1) blocks = 1;
    if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(gpu_launch(reduce_kernel, dim3((unsigned)blocks), dim3(BLOCK), 0, (cudaStream_t)native, work));
    return STATUS_OK;
}

static enum status cuda_copy(
    const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device)
{
    return launch(REDUCE_COPY, slice, reduction, native, device);
}

static enum status cuda_scale(
    const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device)
{
    return launch(REDUCE_SCALE, slice, reduction, native, device);
}

static enum status cuda_combine(
    const struct reduce_slice *slice, const struct reduction *reduction, void *native, struct device *device)
{
    return launch(REDUCE_COMBINE, slice, reduction, native, device);
}

static const struct reduce_ops reduce_cuda_ops = {cuda_copy, cuda_scale, cuda_combine};
extern "C" const void *const plugin_table_reduce = &reduce_cuda_ops;
