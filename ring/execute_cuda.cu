/* execute_cuda: runs a plan inside one kernel: see kernel_run.h.
 *
 * Grid: block c is channel c; all its threads share the slice in hand. All blocks must be resident at once: there are 16 at most.
 *
 *   thread 0                                             the others
 *   waits for data and room   [ld.acquire.sys]
 *   ───────────────────────── barrier: what to do is in shared memory ─────────────────────────
 *   reduce_run(): bytes moved per element as in reduce_cuda.cuh
 *   ───────────────────────── barrier: the slice is written ───────────────────────────────────
 *   posts and frees           [st.release.sys, which covers what the block wrote before the barrier]
 */
#include "ring/kernel_run.h"
#include "ring/primitive.h"
#include "ring/reduce_cuda.cuh"

#include "verbs/cuda_status.h"
#include "verbs/plugin.h"

#if ON_SIMULATOR
#include <time.h>
#define THREADS 64
#else
#define THREADS 512
#endif

DEVICE_FUNCTION uint64_t now_ns()
{
    uint64_t now = 0;
#if ON_GPU
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
#elif ON_SIMULATOR
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
#endif
    return now;
}

/* Where a block is in the order of operation.h. */
struct kernel_place {
    uint64_t block, slice;
    uint32_t step;
};

/* The block's own. */
struct kernel_block {
    struct kernel_channel channel;
    struct kernel_counter counters[KERNEL_EDGES];
    struct reduce_work work; /* of the slice in hand */
    uint64_t received_bytes, sent_bytes;
    uint64_t began_ns;
    uint32_t end;
};

/* Thread 0: until the counter, last seen as `seen`, has come this far. */
DEVICE_FUNCTION bool await(uint64_t &seen, const uint64_t *counter, uint64_t least, const struct kernel_run &run,
    struct kernel_block &block)
{
    uint64_t deadline = 0;
    if ((int64_t)(seen - least) >= 0) return true;
    for (uint32_t spins = 1;; spins++) {
        seen = ld_acquire_sys(counter); /* pairs with the release in finish(), fifo_post(), fifo_free() */
        if ((int64_t)(seen - least) >= 0) return true;
        if (ld_relaxed_sys(&run.control->abort) != 0) {
            block.end = KERNEL_ABORTED;
            return false;
        }
        if (spins % 64 != 0) continue;
        uint64_t now = now_ns();
        if (deadline == 0) deadline = now + run.timeout_ns;
        if (now < deadline) continue;
        block.end = KERNEL_LATE;
        return false;
    }
}

DEVICE_FUNCTION void tell(const struct kernel_run &run, struct kernel_block &block, int edge, uint64_t tag, uint64_t bytes)
{
    struct kernel_word &word = run.control->words[blockIdx.x];
    word.edge = edge;
    word.tag = tag;
    word.bytes = bytes;
    word.expected_bytes = block.received_bytes;
    st_release_sys(&word.end, block.end); /* pairs with the acquire in kernel_host.c's first_word() */
}

/* What has arrived on an edge; NULL: it has not, or does not fit. */
DEVICE_FUNCTION const void *arrived(int which, const struct kernel_run &run, struct kernel_block &block)
{
    const struct kernel_edge &edge = block.channel.edges[which];
    struct kernel_counter &counter = block.counters[which];
    if (!await(counter.seen, edge.tail, counter.step + 1, run, block)) {
        tell(run, block, which, 0, 0);
        return NULL;
    }
    uint64_t index = counter.step & (edge.slot_count - 1);
    const struct fifo_record *record = &edge.records[index];
    if (record->tag != run.tag || record->bytes != block.received_bytes || record->address != 0) {
        block.end = KERNEL_MISFIT;
        tell(run, block, which, record->tag, record->bytes);
        return NULL;
    }
    return edge.slots + index * edge.slot_bytes;
}

/* Thread 0: fills block.work for the slice at a place; false: the block ends. */
DEVICE_FUNCTION bool prepare(const struct kernel_place &at, const struct kernel_step &step, const struct kernel_run &run,
    struct kernel_block &block)
{
    const struct kernel_channel &channel = block.channel;
    uint64_t skip = (at.block + at.slice) * channel.slice_count;
    if (skip > step.count) skip = step.count;
    struct reduce_slice slice = {};
    slice.count = step.count - skip < channel.slice_count ? step.count - skip : channel.slice_count;
    if (step.own != NULL) slice.own = step.own + skip * block.work.element_bytes;
    if (step.out != NULL) slice.out = step.out + skip * block.work.element_bytes;
    block.received_bytes = slice.count * step.wire_bytes;
    block.sent_bytes = slice.count * step.slot_bytes;
    if (step.from >= 0 && (slice.wire = arrived(step.from, run, block)) == NULL) return false;
    if (step.joins >= 0 && (slice.joined = arrived(step.joins, run, block)) == NULL) return false;
    if (step.to >= 0) {
        const struct kernel_edge &edge = channel.edges[step.to];
        struct kernel_counter &counter = block.counters[step.to];
        if (!await(counter.seen, edge.head, counter.step + 1 - edge.slot_count, run, block)) {
            tell(run, block, step.to, 0, 0);
            return false;
        }
        slice.slot = edge.slots + (counter.step & (edge.slot_count - 1)) * edge.slot_bytes;
    }
    block.work.kind = primitive_work(&slice, (enum primitive)step.primitive, block.work.scales);
    block.work.slice = slice;
    return true;
}

/* Thread 0. */
DEVICE_FUNCTION void finish(const struct kernel_step &step, const struct kernel_run &run, struct kernel_block &block)
{
    int consumed[2] = {step.from, step.joins};
    for (int i = 0; i < 2; i++)
        if (consumed[i] >= 0) /* pairs with fifo_room(), await() */
            st_release_sys(block.channel.edges[consumed[i]].head, ++block.counters[consumed[i]].step);
    if (step.to < 0) return;
    struct kernel_edge &edge = block.channel.edges[step.to];
    uint64_t &posted = block.counters[step.to].step;
    struct fifo_record *record = &edge.records[posted & (edge.slot_count - 1)];
    record->bytes = block.sent_bytes;
    record->tag = run.tag;
    record->address = 0;
    st_release_sys(edge.tail, ++posted); /* pairs with fifo_ready(), await() */
}

static __global__ void __launch_bounds__(THREADS) plan_kernel(struct kernel_run run, struct reduce_work work)
{
    DYN_SHARED(struct kernel_step, steps);
    __shared__ struct kernel_block block;
    if (threadIdx.x == 0) {
        block.channel = run.control->channels[blockIdx.x];
        block.work = work;
        block.end = KERNEL_OK;
        for (uint32_t i = 0; i < block.channel.edge_count; i++) block.counters[i] = *block.channel.edges[i].counter;
    }
    __syncthreads();
    const struct kernel_step *laid_out = run.control->steps + block.channel.first_step;
    for (uint32_t i = threadIdx.x; i < block.channel.step_count; i += blockDim.x) steps[i] = laid_out[i];
    __syncthreads();

    const uint64_t slices = block.channel.slices, most = block.channel.in_flight;
    struct kernel_place at = {0, 0, 0};
    for (; at.block < slices; at.block += most)
        for (at.step = 0; at.step < block.channel.step_count; at.step++)
            for (at.slice = 0; at.slice < most && at.block + at.slice < slices; at.slice++) {
                if (threadIdx.x == 0) (void)prepare(at, steps[at.step], run, block);
                __syncthreads();
                if (block.end != KERNEL_OK) return;
                if (block.work.slice.count > 0 && block.work.kind != REDUCE_NOTHING)
                    reduce_run(block.work, threadIdx.x, blockDim.x);
                __syncthreads();
                if (threadIdx.x == 0) finish(steps[at.step], run, block);
            }
    if (threadIdx.x != 0) return;
    for (uint32_t i = 0; i < block.channel.edge_count; i++) *block.channel.edges[i].counter = block.counters[i];
}

static enum status cuda_launch(const struct kernel_run *run, uint32_t most_steps, void *native, struct device *device)
{
    struct reduce_slice none = {};
    struct reduce_work work = reduce_work_make(REDUCE_NOTHING, &none, &run->reduction);
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(gpu_launch(plan_kernel, dim3((unsigned)run->channels), dim3(THREADS), most_steps * sizeof(struct kernel_step),
        (cudaStream_t)native, *run, work));
    return STATUS_OK;
}

static const struct kernel_ops kernel_cuda_ops = {cuda_launch};
extern "C" const void *const plugin_table_ring = &kernel_cuda_ops;
