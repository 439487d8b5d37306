/* block: runs one, thread by thread; barriers, polls, deadlocks. See block.h.
 *
 * A thread that ends hands its fiber to the next that has not begun: a kernel that never waits
 * needs one stack.
 *
 * To ThreadSanitizer each fiber is a thread, and a race is seen only between two fibers that nothing
 * orders. So there threads take turns at several fibers; the OS thread makes all fibers, since
 * whoever makes one comes before all that it does; and the OS thread itself never acquires what
 * CUDA threads did. Blocks of one OS thread are in order, since they use the same shared memory:
 * grid.cc gives each block to another OS thread than the one before.
 */
#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <sched.h>
#include <unistd.h>

#include "cudasim.h"
#include "fault.h"
#include "process.h"

CUDASIM_THREAD_LOCAL uint3 threadIdx, blockIdx;
CUDASIM_THREAD_LOCAL dim3 blockDim, gridDim;
CUDASIM_THREAD_LOCAL void *cudasim_dynamic_shared;

namespace cudasim {
namespace {

constexpr size_t DYNAMIC_SHARED_MOST = 228 << 10;
constexpr unsigned QUIET_ROUNDS = 64; /* in which all threads polled: then the OS thread sleeps */
constexpr unsigned RESTING = 7; /* fibers, for ThreadSanitizer: no divisor of a block's threads */

thread_local block *running;

/* ---- the memory that __shared__ variables live in ---- */

struct thread_locals {
    uintptr_t address; /* of the kernel */
    void *block;
    size_t bytes;
};

int find_thread_locals(struct dl_phdr_info *info, size_t, void *argument)
{
    thread_locals *wanted = (thread_locals *)argument;
    bool inside = false;
    size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_LOAD && wanted->address >= begin &&
            wanted->address < begin + part.p_memsz)
            inside = true;
        if (part.p_type == PT_TLS) bytes = part.p_memsz;
    }
    if (!inside) return 0;
    wanted->block = info->dlpi_tls_data;
    wanted->bytes = bytes;
    return 1;
}

/* Not memset(), which ThreadSanitizer would take for an access that nothing orders. */
void poison(void *memory, size_t bytes)
{
    volatile unsigned char *at = (volatile unsigned char *)memory, *end = at + bytes;
    for (; at < end && (uintptr_t)at % 8 != 0; at++) *at = 0xff;
    for (; end - at >= 8; at += 8) *(volatile uint64_t *)at = ~0ull;
    for (; at < end; at++) *at = 0xff;
}

/* __shared__ variables are thread-local ones of the kernel's library: all of it becomes 0xff,
 * NaN, before each block. */
void poison_shared(block &here, const kernel_work &kernel)
{
    thread_local thread_locals known;
    if (known.address != (uintptr_t)kernel.function) {
        kernel.anchor(); /* without a first touch the thread has no such block yet */
        known = {(uintptr_t)kernel.function, nullptr, 0};
        dl_iterate_phdr(find_thread_locals, &known);
        auto &seen = here.shared_seen;
        if (std::find(seen.begin(), seen.end(), known.block) == seen.end()) {
            seen.push_back(known.block);
            tsan_release(&here.made);
        }
    }
    if (known.block != nullptr) poison(known.block, known.bytes);
}

/* ---- order ---- */

uint64_t random_next(block &here)
{
    here.random ^= here.random << 13;
    here.random ^= here.random >> 7;
    return here.random ^= here.random << 17;
}

void choose_order(block &here)
{
    unsigned count = (unsigned)here.threads.size();
    if (here.order.size() == count && self.set.order != thread_order::random) return;
    here.order.resize(count);
    for (unsigned i = 0; i < count; i++)
        here.order[i] = self.set.order == thread_order::reverse ? count - 1 - i : i;
    if (self.set.order != thread_order::random) return;
    for (unsigned i = count; i > 1; i--)
        std::swap(here.order[i - 1], here.order[random_next(here) % i]);
}

/* ---- who runs ---- */

[[noreturn]] void deadlock(block &here)
{
    std::string text;
    int shown = 0;
    for (cuda_thread &each : here.threads) {
        if (each.now == state::done || shown++ >= 4) continue;
        text += "; thread " + std::to_string(each.linear) + " at " + each.waits.file + ":" +
                std::to_string(each.waits.line) +
                (each.now == state::at_barrier ? " (barrier)" : " (warp operation)");
    }
    fault(cudaErrorLaunchFailure, "deadlock: %u of %zu threads wait, none can run%s%s", here.live,
        here.threads.size(), text.c_str(), current_place().c_str());
}

cuda_thread *next_thread(block &here)
{
    if (!here.ready.empty()) return here.ready.pop();
    if (here.live != 0) deadlock(here);
    return nullptr;
}

void begin(block &here, cuda_thread *thread)
{
    here.current = thread;
    threadIdx = thread->index;
}

void fiber_main();

void give_stack(block &here, cuda_thread *thread)
{
    if (here.spare.size() < (tsan_watches() ? RESTING : 1)) thread->stack = fiber_new(fiber_main);
    else thread->stack = tsan_watches() ? here.spare.pop() : here.spare.pop_last();
}

void resume(block &here, fiber &from, cuda_thread *thread)
{
    if (thread->stack == nullptr && tsan_watches() && &from != &here.os_thread &&
        here.spare.size() < RESTING) {
        here.wanted = thread;
        fiber_switch(from, here.os_thread);
        return;
    }
    if (thread->stack == nullptr) give_stack(here, thread);
    begin(here, thread);
    fiber_switch(from, *thread->stack);
}

void progress(block &here) { here.idle = 0; }

void open_barrier(block &here)
{
    choose_order(here);
    for (unsigned i : here.order) {
        cuda_thread &each = here.threads[i];
        if (each.now != state::at_barrier) continue;
        each.now = state::ready;
        each.result = here.barrier_sum;
        each.poll_count = 0;
        here.ready.push(&each);
    }
    here.arrived = 0;
    here.barrier_sum = 0;
    here.barrier.file = nullptr;
    here.phase++;
    progress(here);
}

/* One CUDA thread from its first instruction to its last. */
void run_thread(block &here)
{
    const item &what = *here.grid->what;
    tsan_acquire(&here.grid->begun);
    tsan_acquire(&here.made);
    tsan_acquire(&here.ends[~here.count & 1]);
    what.kernel.invoke(what.kernel.function, what.arguments);
    tsan_release(&here.grid->ended);
    tsan_release(&here.ends[here.count & 1]);
    tsan_release(&here.barrier_order[0]);
    tsan_release(&here.barrier_order[1]);
    here.current->now = state::done;
    here.live--;
    warp_lane_ended(here, *here.current);
    progress(here);
    if (here.arrived != 0 && here.arrived == here.live)
        open_barrier(here); /* who has ended is waited for no more */
}

void fiber_main()
{
    fiber_entered();
    for (;;) {
        block &here = *running;
        fiber *mine = here.current->stack;
        run_thread(here);
        cuda_thread *next = next_thread(here);
        if (next != nullptr && next->stack == nullptr && !tsan_watches()) {
            next->stack = mine; /* and no switch */
            begin(here, next);
            continue;
        }
        here.spare.push(mine);
        if (next != nullptr) resume(here, *mine, next);
        else fiber_switch(*mine, here.os_thread);
    }
}

void set_up(block &here, grid &grid, unsigned index)
{
    const kernel_work &kernel = grid.what->kernel;
    unsigned count = block_thread_count(kernel), x = kernel.block[0], y = kernel.block[1];
    here.grid = &grid;
    here.random = self.set.seed * 0x9E3779B97F4A7C15ull + index + 1;
    here.threads.resize(count);
    here.warps.assign((count + 31) / 32, warp());
    here.ready.clear();
    for (unsigned i = 0; i < count; i++) {
        cuda_thread &each = here.threads[i];
        each.index = {i % x, i / x % y, i / x / y};
        each.linear = i;
        each.stack = nullptr;
        each.now = state::ready;
        each.poll_count = 0;
        each.copies.clear();
        each.copy_group = 0;
    }
    here.live = count;
    here.arrived = here.phase = here.idle = 0;
    here.idle_seen = ~0u;
    here.barrier.file = nullptr;
    here.barrier_sum = 0;

    blockDim = dim3(kernel.block[0], kernel.block[1], kernel.block[2]);
    gridDim = dim3(kernel.grid[0], kernel.grid[1], kernel.grid[2]);
    blockIdx = {index % gridDim.x, index / gridDim.x % gridDim.y, index / gridDim.x / gridDim.y};
    poison_shared(here, kernel);
    /* Dynamic shared memory ends where its buffer does, so that the sanitizers see a kernel
     * leave it. */
    size_t bytes = (kernel.dynamic_bytes + 15) & ~15u;
    cudasim_dynamic_shared = (char *)here.dynamic_shared + DYNAMIC_SHARED_MOST - bytes;
    poison(cudasim_dynamic_shared, bytes);
}

block &block_of_thread()
{
    static thread_local block *made;
    if (made == nullptr) {
        made = new block();
        made->threads.reserve(1024);
        made->warps.reserve(32);
        made->dynamic_shared = aligned_alloc(1024, DYNAMIC_SHARED_MOST);
        fiber_here(made->os_thread);
        tsan_release(&made->made);
    }
    return *made;
}

/* All threads poll: the OS thread lets others run, and looks whether it should go on at all. */
void wait_idle(block &here)
{
    if (self.shared->error != 0) device_exit(3);
    grid_give_way(*here.grid);
    unsigned rounds = here.idle / (here.ready.size() + 1);
    if (here.idle < here.idle_seen)
        here.idle_since = clock_ns(); /* there was progress since the last time */
    here.idle_seen = here.idle;
    if (rounds < QUIET_ROUNDS) sched_yield();
    else usleep(20);
    double idle_s = (double)(clock_ns() - here.idle_since) * 1e-9;
    if (rounds < QUIET_ROUNDS || idle_s < self.set.watchdog_s) return;
    unsigned begun = here.grid->next < here.grid->total ? here.grid->next.load() : here.grid->total;
    fault(cudaErrorLaunchTimeout, "spins for %.1f s without progress; %u of %u blocks have begun%s",
        idle_s, begun, here.grid->total, current_place().c_str());
}

void yield_polling(block &here)
{
    if (++here.idle > here.ready.size()) wait_idle(here);
    here.ready.push(here.current);
    block_switch(here);
}

} // namespace

bool place::is(const place &other) const
{
    return line == other.line && (file == other.file || strcmp(file, other.file) == 0);
}

unsigned block_thread_count(const kernel_work &kernel)
{
    return kernel.block[0] * kernel.block[1] * kernel.block[2];
}

block *block_here() { return running; }

void block_switch(block &here)
{
    cuda_thread *left = here.current, *next = next_thread(here);
    if (next != left) resume(here, *left->stack, next);
}

void block_ready_warp(block &here, unsigned number, unsigned mask)
{
    bool forward = self.set.order != thread_order::reverse;
    for (int i = 0; i < 32; i++) {
        unsigned lane = forward ? 31u - (unsigned)i : (unsigned)i;
        if ((mask >> lane & 1) == 0) continue;
        cuda_thread &each = here.threads[number * 32 + lane];
        each.now = state::ready;
        here.ready.push_front(&each);
    }
    progress(here);
}

void block_run(grid &grid, unsigned index)
{
    block &here = block_of_thread();
    running = &here;
    here.count++;
    set_up(here, grid, index);
    choose_order(here);
    for (unsigned i : here.order) here.ready.push(&here.threads[i]);
    /* It returns when every thread has ended, or one needs a stack. */
    for (cuda_thread *next = here.ready.pop(); next != nullptr; next = here.wanted) {
        here.wanted = nullptr;
        resume(here, here.os_thread, next);
    }
    running = nullptr;
}

size_t stack_overflowed(const void *address)
{
    const fiber *stack = running != nullptr && running->current ? running->current->stack : nullptr;
    size_t below = stack != nullptr ? (size_t)(stack->stack - (const char *)address) : 0;
    return below > 0 && below <= PAGE ? stack->stack_bytes : 0;
}

std::string current_place()
{
    if (running == nullptr) return "";
    auto triple = [](uint3 i) {
        return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) +
               ")";
    };
    return "; kernel " + kernel_name(running->grid->what->kernel.function) + ", block " +
           triple(blockIdx) + ", thread " + triple(threadIdx);
}

} // namespace cudasim

using namespace cudasim;
extern "C" {

int cudasim_barrier(const char *file, int line, int kind, int predicate)
{
    block &here = *running;
    cuda_thread &me = *here.current;
    place where = {file, line};
    if (here.barrier.file == nullptr) {
        here.barrier = where;
        here.barrier_kind = kind;
    } else if (!here.barrier.is(where)) {
        fault(cudaErrorLaunchFailure,
            "divergent barrier: this thread is at %s:%d, others at %s:%d%s", file, line,
            here.barrier.file, here.barrier.line, current_place().c_str());
    }
    me.now = state::at_barrier;
    me.waits = where;
    here.barrier_sum += predicate;
    char *order = &here.barrier_order[here.phase & 1];
    tsan_release(order);
    if (++here.arrived == here.live) open_barrier(here);
    block_switch(here);
    tsan_acquire(order);
    return me.result;
}

/* Called with what each load of a flag has found. To find the same again is a loop that waits; a
 * change is progress. */
void cudasim_poll(const void *flag, uint64_t value)
{
    block &here = *running;
    cuda_thread &me = *here.current;
    for (unsigned i = 0; i < me.poll_count && i < POLLS_KEPT; i++) {
        if (me.polled[i].flag != flag) continue;
        if (me.polled[i].value == value) {
            yield_polling(here);
            return;
        }
        me.polled[i].value = value;
        progress(here);
        return;
    }
    me.polled[me.poll_count++ % POLLS_KEPT] = {flag, value};
}

void cudasim_nanosleep() { yield_polling(*running); }

[[noreturn]] void cudasim_trap(const char *why)
{
    fault(cudaErrorLaunchFailure, "%s%s", why, current_place().c_str());
}

int cudasim_at_exit_of_device(void (*function)())
{
    at_exit_of_device(function);
    return 0;
}
}
