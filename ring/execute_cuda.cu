/* execute_cuda: runs a plan inside one kernel: see kernel_run.h.
 *
 * Grid: block c is channel c; all its threads share the slice in hand. All blocks must be resident at once: there are 16 at most.
 *
 *   thread 0                                             the others
 *   waits for data and room   [ld.acquire.sys]
 *   ───────────────────────── barrier: what to do is in shared memory ─────────────────────────
 *   reduce_run(): bytes moved per element as in reduce_cuda.cuh; of what is small, lines_run(): each thread waits for its own data
 *   ───────────────────────── barrier: the slice is written ───────────────────────────────────
 *   posts and frees           [st.release.sys, which covers what the block wrote before the barrier]
 */
#include "ring/kernel_run.h"
#include "ring/lines_cuda.cuh"
#include "ring/primitive.h"

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

/* The block's own, in shared memory: written by thread 0 between barriers, but for `end` and what it explains. */
struct kernel_block {
    struct kernel_channel channel;
    struct kernel_counter counters[KERNEL_EDGES];
    struct reduce_work work; /* of the slice in hand */
    struct line_operands lines;
    uint64_t received_bytes, sent_bytes;
    uint64_t reference; /* of what is sent; 0: it is in the slot */
    uint32_t borrowed;  /* bit of each edge whose data in hand are in the peer's memory */
    uint32_t lent;      /* bit of each edge by which something went by reference */
    uint32_t end; /* enum kernel_end; the first thread that gives up says it */
    int blamed;   /* edge */
    uint64_t found_tag, found_bytes;
    struct kernel_moment moment; /* of the slice in hand, where somebody watches, */
    uint64_t moments;            /* and how many slices there were before it */
};

/* Thread 0. */
DEVICE_FUNCTION void watch(uint64_t &at, const struct kernel_run &run)
{
    if (run.moments != NULL) at = now_ns();
}

/* Thread 0, at the end of a slice. */
DEVICE_FUNCTION void watch_end(const struct kernel_place &at, const struct kernel_run &run, struct kernel_block &block)
{
    if (run.moments == NULL) return;
    block.moment.ended_ns = now_ns();
    block.moment.slice = (uint32_t)(at.block + at.slice);
    block.moment.step = (uint16_t)at.step;
    if (block.moments < KERNEL_MOMENTS) run.moments[blockIdx.x * KERNEL_MOMENTS + block.moments] = block.moment;
    block.moments++;
}

DEVICE_FUNCTION void give_up(struct kernel_block &block, uint32_t end, int edge, uint64_t tag, uint64_t bytes)
{
    if (atomicCAS(&block.end, (uint32_t)KERNEL_OK, end) != KERNEL_OK) return;
    block.blamed = edge;
    block.found_tag = tag;
    block.found_bytes = bytes;
}

/* How long a thread waits for an edge. */
struct kernel_patience {
    const struct kernel_run &run;
    struct kernel_block &block;
    int edge;
    uint64_t deadline;
    bool is_over, waits; /* waits: it has looked in vain */

    __device__ kernel_patience(const struct kernel_run &of, struct kernel_block &by, int which)
        : run(of), block(by), edge(which), deadline(0), is_over(false), waits(false)
    {
    }

    /* Asked after each look that found nothing; the host's memory and the clock are far away. */
    __device__ __forceinline__ bool ended(uint32_t spins)
    {
        waits = true;
        if (spins % 16 != 0) return false;
        bool aborted = ld_relaxed_sys(&run.control->abort) != 0, late = false;
        if (spins % 64 == 0) {
            uint64_t now = now_ns();
            if (deadline == 0) deadline = now + run.timeout_ns;
            late = now >= deadline;
        }
        if (aborted || late) give_up(block, aborted ? KERNEL_ABORTED : KERNEL_LATE, edge, 0, 0);
        is_over = ld_relaxed_sys(&block.end) != KERNEL_OK; /* or another thread has given up */
        return is_over;
    }
};

/* Thread 0: until the counter, last seen as `seen`, has come this far. */
DEVICE_FUNCTION bool await(
    uint64_t &seen, const uint64_t *counter, uint64_t least, enum kernel_waited what, struct kernel_patience patience)
{
    for (uint32_t spins = 1; (int64_t)(seen - least) < 0; spins++) {
        seen = ld_acquire_sys(counter); /* pairs with the release in finish(), fifo_post(), fifo_free() */
        if ((int64_t)(seen - least) < 0 && patience.ended(spins)) return false;
    }
    if (patience.waits) patience.block.moment.waited |= what;
    return true;
}

/* Thread 0, when a thread has given up. */
DEVICE_FUNCTION void tell(const struct kernel_run &run, const struct kernel_block &block)
{
    struct kernel_word &word = run.control->words[blockIdx.x];
    word.edge = block.blamed;
    word.tag = block.found_tag;
    word.bytes = block.found_bytes;
    word.expected_bytes = block.received_bytes;
    st_release_sys(&word.end, block.end); /* pairs with the acquire in kernel_host.c's first_word() */
}

/* ---- one step ---- */

/* Whether what passes an edge in this run goes by lines. */
DEVICE_FUNCTION bool by_lines(const struct kernel_edge &edge, const struct kernel_run &run)
{
    return run.by_lines && edge.flagged != NULL;
}

/* Line 1 of the next step by lines, and its flag. */
DEVICE_FUNCTION flag_line *lines_of(uint32_t &flag, const struct kernel_edge &edge, const struct kernel_counter &counter)
{
    flag = (uint32_t)(counter.lines + 1);
    return (flag_line *)(edge.flagged + (counter.lines & (edge.slot_count - 1)) * edge.flagged_bytes) + 1;
}

/* Where what arrives on an edge is, or will be, by lines; NULL: it has not come, or does not fit. */
DEVICE_FUNCTION const void *arrived(const flag_line *&lines, uint32_t &flag, int which, const struct kernel_run &run,
    struct kernel_block &block)
{
    const struct kernel_edge &edge = block.channel.edges[which];
    struct kernel_counter &counter = block.counters[which];
    if (by_lines(edge, run)) return lines = lines_of(flag, edge, counter);
    if (!await(counter.seen, edge.tail, counter.step + 1, KERNEL_WAITED_DATA, kernel_patience(run, block, which))) return NULL;
    uint64_t index = counter.step & (edge.slot_count - 1);
    const struct fifo_record *record = &edge.records[index];
    if (record->tag != block.channel.tag || record->bytes != block.received_bytes || record->address != 0) {
        give_up(block, KERNEL_MISFIT, which, record->tag, record->bytes);
        return NULL;
    }
    if (record->reference != 0) {
        const void *data = reach_data(record->reference, block.received_bytes, edge.regions);
        if (data == NULL) give_up(block, KERNEL_MISFIT, which, record->tag, record->bytes); /* never run here: its peer is broken */
        block.borrowed |= 1u << which;
        return data;
    }
    return edge.slots + index * edge.slot_bytes;
}

/* Where what leaves by an edge goes; NULL: there is no room. */
DEVICE_FUNCTION void *leaves(int which, const struct kernel_run &run, struct kernel_block &block)
{
    const struct kernel_edge &edge = block.channel.edges[which];
    struct kernel_counter &counter = block.counters[which];
    uint64_t least = counter.step + 1 - edge.slot_count;
    if (!await(counter.seen, edge.head, least, KERNEL_WAITED_ROOM, kernel_patience(run, block, which))) return NULL;
    if (by_lines(edge, run)) return block.lines.slot = lines_of(block.lines.slot_flag, edge, counter);
    return edge.slots + (counter.step & (edge.slot_count - 1)) * edge.slot_bytes;
}

/* Thread 0: fills block.work for the slice at a place; false: it has given up. */
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
    block.lines = line_operands();
    block.borrowed = 0;
    struct line_operands &lines = block.lines;
    if (step.from >= 0 && (slice.wire = arrived(lines.wire, lines.wire_flag, step.from, run, block)) == NULL) return false;
    if (step.joins >= 0 && (slice.joined = arrived(lines.joined, lines.joined_flag, step.joins, run, block)) == NULL) return false;
    if (step.to >= 0 && (slice.slot = leaves(step.to, run, block)) == NULL) return false;
    block.reference = step.reference == 0 ? 0 : step.reference + skip * block.work.element_bytes;
    if (block.reference != 0) slice.slot = NULL;
    block.work.kind = primitive_work(&slice, (enum primitive)step.primitive, block.work.scales);
    block.work.slice = slice;
    return true;
}

/* Thread 0: line 0 of what comes must have this operation's tag; false: it has given up. */
DEVICE_FUNCTION bool check_line(const flag_line *lines, uint32_t flag, int which, const struct kernel_run &run,
    struct kernel_block &block)
{
    uint64_t tag;
    struct kernel_patience patience(run, block, which);
    if (lines == NULL) return true;
    if (!line_take(tag, lines - 1, flag, patience)) return false;
    if (patience.waits) block.moment.waited |= KERNEL_WAITED_DATA;
    if (tag != block.channel.tag) give_up(block, KERNEL_MISFIT, which, tag, block.received_bytes);
    return tag == block.channel.tag;
}

/* All threads; false: this one has given up. */
DEVICE_FUNCTION bool work_on(const struct kernel_step &step, const struct kernel_run &run, struct kernel_block &block)
{
    bool works = block.work.slice.count > 0 && block.work.kind != REDUCE_NOTHING;
    if (!run.by_lines) {
        if (works) reduce_run(block.work, threadIdx.x, blockDim.x);
        return true;
    }
    const struct line_operands &lines = block.lines;
    if (threadIdx.x == 0) {
        if (lines.slot != NULL) line_put(lines.slot - 1, block.channel.tag, lines.slot_flag);
        if (!check_line(lines.wire, lines.wire_flag, step.from, run, block)) return false;
        if (!check_line(lines.joined, lines.joined_flag, step.joins, run, block)) return false;
        watch(block.moment.ready_ns, run);
    }
    struct kernel_patience patience(run, block, lines.wire != NULL ? step.from : step.joins);
    if (works) lines_run(block.work, lines, threadIdx.x, blockDim.x, patience);
    return !patience.is_over;
}

/* Thread 0: whether what an edge lent was still there when all had read it. */
DEVICE_FUNCTION void check_lent(int which, struct kernel_block &block)
{
    const struct kernel_edge &edge = block.channel.edges[which];
    const struct fifo_record *record = &edge.records[block.counters[which].step & (edge.slot_count - 1)];
    if ((block.borrowed >> which & 1) == 0) return;
    uint64_t tag = ld_acquire_sys(&record->tag); /* all have read, before the barrier: pairs with take_back(), fifo_take_back() */
    if (tag != block.channel.tag) give_up(block, KERNEL_ABORTED, which, tag, 0); /* never run here: the peer gives up just now */
}

/* Thread 0. What came by lines is in registers, or further, before the barrier: nothing is left to be released with head. */
DEVICE_FUNCTION void release_one(int which, const struct kernel_run &run, struct kernel_block &block)
{
    const struct kernel_edge &edge = block.channel.edges[which];
    struct kernel_counter &counter = block.counters[which];
    counter.step++;
    if (by_lines(edge, run)) {
        counter.lines++;
        st_relaxed_sys(edge.head, counter.step);
    } else {
        st_release_sys(edge.head, counter.step); /* pairs with fifo_room(), await() */
    }
}

/* Thread 0. Behind lines tail follows at last, for who expects no lines: end_of(). */
DEVICE_FUNCTION void finish(const struct kernel_step &step, const struct kernel_run &run, struct kernel_block &block)
{
    if (step.from >= 0) check_lent(step.from, block);
    if (step.joins >= 0) check_lent(step.joins, block);
    if (step.from >= 0) release_one(step.from, run, block);
    if (step.joins >= 0) release_one(step.joins, run, block);
    if (step.to < 0) return;
    const struct kernel_edge &edge = block.channel.edges[step.to];
    struct kernel_counter &counter = block.counters[step.to];
    struct fifo_record *record = &edge.records[counter.step & (edge.slot_count - 1)];
    counter.step++;
    record->bytes = block.sent_bytes;
    record->tag = block.channel.tag;
    record->address = 0;
    record->reference = block.reference;
    if (block.reference != 0) block.lent |= 1u << step.to;
    if (by_lines(edge, run)) counter.lines++;
    else st_release_sys(edge.tail, counter.step); /* pairs with fifo_ready(), await() */
}

/* ---- all steps ---- */

/* All threads; false: an older kernel has failed. */
DEVICE_FUNCTION bool begin(struct kernel_step *steps, const struct kernel_run &run, const struct reduce_work &work,
    struct kernel_block &block)
{
    if (threadIdx.x == 0) {
        block.channel = run.control->channels[blockIdx.x];
        block.work = work;
        block.end = ld_relaxed_sys(run.failed) == 0 ? KERNEL_OK : KERNEL_ABORTED;
        block.blamed = 0;
        block.found_tag = block.found_bytes = block.received_bytes = 0;
        block.moments = 0;
        block.lent = 0;
        watch(run.control->words[blockIdx.x].began_ns, run);
        for (uint32_t i = 0; i < block.channel.edge_count; i++) block.counters[i] = *block.channel.edges[i].counter;
    }
    __syncthreads();
    bool goes_on = block.end == KERNEL_OK;
    const struct kernel_step *laid_out = run.control->steps + block.channel.first_step;
    for (uint32_t i = threadIdx.x; i < block.channel.step_count; i += blockDim.x) steps[i] = laid_out[i];
    __syncthreads();
    return goes_on;
}

/* All threads; false: one of them has given up, and all know it. */
DEVICE_FUNCTION bool slice_step(const struct kernel_place &at, const struct kernel_step &step, const struct kernel_run &run,
    struct kernel_block &block)
{
    bool goes_on = true;
    if (threadIdx.x == 0) {
        block.moment.waited = 0;
        watch(block.moment.began_ns, run);
        goes_on = block.end == KERNEL_OK && prepare(at, step, run, block);
        watch(block.moment.ready_ns, run);
    }
    if (__syncthreads_or(!goes_on)) return false;
    goes_on = work_on(step, run, block);
    if (__syncthreads_or(!goes_on)) return false;
    if (threadIdx.x == 0) {
        finish(step, run, block);
        watch_end(at, run, block);
    }
    return true;
}

DEVICE_FUNCTION void walk(const struct kernel_step *steps, const struct kernel_run &run, struct kernel_block &block)
{
    const uint64_t slices = block.channel.slices, most = block.channel.in_flight;
    struct kernel_place at = {0, 0, 0};
    for (; at.block < slices; at.block += most)
        for (at.step = 0; at.step < block.channel.step_count; at.step++)
            for (at.slice = 0; at.slice < most && at.block + at.slice < slices; at.slice++)
                if (!slice_step(at, steps[at.step], run, block)) return;
}

/* Thread 0, of a kernel that does not come to its end: the caller's memory is the caller's again. What changes it does so after the
 * kernel, and so after this. Pairs with check_lent(), step_check_lent(). */
DEVICE_FUNCTION void take_back(const struct kernel_block &block)
{
    for (uint32_t i = 0; i < block.channel.edge_count; i++) {
        const struct kernel_edge &edge = block.channel.edges[i];
        const uint64_t last = block.counters[i].step;
        if ((block.lent >> i & 1) == 0) continue;
        for (uint64_t step = ld_acquire_sys(edge.head); step != last; step++)
            st_relaxed_sys(&edge.records[step & (edge.slot_count - 1)].tag, REACH_TAKEN_BACK);
    }
}

/* Thread 0: until all neighbours have read what was lent to them. */
DEVICE_FUNCTION void await_readers(const struct kernel_run &run, struct kernel_block &block)
{
    for (uint32_t i = 0; i < block.channel.edge_count && block.end == KERNEL_OK; i++) {
        struct kernel_counter &counter = block.counters[i];
        struct kernel_patience patience(run, block, (int)i);
        if (block.lent >> i & 1) await(counter.seen, block.channel.edges[i].head, counter.step, KERNEL_WAITED_ROOM, patience);
    }
}

/* Thread 0. */
DEVICE_FUNCTION void end_of(const struct kernel_run &run, const struct kernel_block &block)
{
    if (block.end != KERNEL_OK) {
        take_back(block);
        tell(run, block);
        st_relaxed_sys(run.failed, 1);
        return;
    }
    struct kernel_word &word = run.control->words[blockIdx.x];
    word.runs++; /* read by kernel_host.c's runs_of() */
    word.moments = block.moments;
    watch(word.ended_ns, run);
    for (uint32_t i = 0; i < block.channel.edge_count; i++) {
        const struct kernel_edge &edge = block.channel.edges[i];
        *edge.counter = block.counters[i];
        if (edge.produces && by_lines(edge, run)) st_release_sys(edge.tail, block.counters[i].step);
    }
}

/* At most 16 blocks, so one to a multiprocessor: its threads may have twice the registers that they get by default, and spill none. */
static __global__ void __launch_bounds__(THREADS, 1) plan_kernel(struct kernel_run run, struct reduce_work work)
{
    DYN_SHARED(struct kernel_step, steps);
    __shared__ struct kernel_block block;
    if (begin(steps, run, work, block)) walk(steps, run, block);
    if (threadIdx.x != 0) return;
    await_readers(run, block);
    end_of(run, block);
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
