/* grid: blocks on OS threads.
 *
 * A device has room for CUDASIM_RESIDENT blocks at once, of all kernels together. A block that has
 * begun keeps its place until it ends, as on hardware: so a kernel that waits for one that finds no
 * room waits for ever, here too.
 *
 * Invariant: room[device] = CUDASIM_RESIDENT − OS threads that run blocks of that device.
 */
#include "grid.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

#include "block.h"
#include "fault.h"
#include "fiber.h"
#include "process.h"

namespace cudasim {
namespace {

/* The device's OS threads beyond those of the streams; like `self`, state of a process by its
 * nature. */
struct pool {
    std::mutex mutex;
    std::condition_variable work, space;
    std::deque<grid *> waiting;
    int idle = 0;
    int used[DEVICE_MAX] = {};
};
forever<pool> the_pool_;
pool &the_pool() { return *the_pool_; }

void leave_device(pool &pool, grid &grid)
{
    {
        std::lock_guard<std::mutex> lock(pool.mutex);
        pool.used[grid.device]--;
    }
    pool.space.notify_all();
}

void helper_main();

/* Another OS thread for a grid, in a place that is counted already. The pool is locked. */
void call_helper(pool &pool, grid &grid)
{
    pool.waiting.push_back(&grid);
    if (pool.idle < (int)pool.waiting.size()) std::thread(helper_main).detach();
    pool.work.notify_one();
}

/* Under ThreadSanitizer (block.cc): another OS thread goes on in the place of this one. */
bool pass_on(grid &grid)
{
    if (!tsan_watches() || grid.next >= grid.total) return false;
    pool &pool = the_pool();
    std::lock_guard<std::mutex> lock(pool.mutex);
    call_helper(pool, grid);
    return true;
}

/* Afterwards the grid may be gone. */
void run_blocks(grid &grid)
{
    for (uint32_t i; (i = grid.next.fetch_add(1)) < grid.total;) {
        block_run(grid, (unsigned)(((uint64_t)i * grid.step + grid.offset) % grid.total));
        if (pass_on(grid)) return;
    }
    leave_device(the_pool(), grid);
    grid.running.fetch_sub(1);
    counter_wake(grid.running);
}

void helper_main()
{
    pool &pool = the_pool();
    fault_stack();
    for (;;) {
        grid *grid;
        {
            std::unique_lock<std::mutex> lock(pool.mutex);
            pool.idle++;
            pool.work.wait(lock, [&] { return !pool.waiting.empty(); });
            pool.idle--;
            grid = pool.waiting.front();
            pool.waiting.pop_front();
        }
        run_blocks(*grid);
    }
}

/* One more OS thread for a grid, if it has blocks left and the device has room. */
void help(grid &grid)
{
    pool &pool = the_pool();
    std::lock_guard<std::mutex> lock(pool.mutex);
    if (grid.next >= grid.total || pool.used[grid.device] >= self.set.resident_blocks) return;
    pool.used[grid.device]++;
    grid.running.fetch_add(1);
    call_helper(pool, grid);
}

/* Blocks start in the order that is asked for; a random one is a step that has no divisor in
 * common with their number. */
void choose_order(grid &grid)
{
    grid.step = 1;
    if (self.set.order == thread_order::reverse) {
        grid.step = grid.total - 1;
        grid.offset = grid.total - 1;
    } else if (self.set.order == thread_order::random) {
        static std::atomic<uint64_t> launches;
        uint64_t mixed = (self.set.seed + launches.fetch_add(1)) * 0x9E3779B97F4A7C15ull;
        grid.offset = (unsigned)((mixed >> 32) % grid.total);
        grid.step = (unsigned)((mixed >> 20) % grid.total) | 1;
        while (std::gcd(grid.step, grid.total) != 1) grid.step += 2;
    }
}

} // namespace

void grid_run(const item &what, int device)
{
    const kernel_work &kernel = what.kernel;
    if (kernel.bad_pointer != nullptr)
        fault(cudaErrorIllegalAddress,
            "kernel %s is given the address %p, which its device cannot reach: memory of the "
            "host that is neither pinned nor registered, or of a device without peer access",
            kernel_name(kernel.function).c_str(), kernel.bad_pointer);
    grid grid = {
        &what, device, kernel.grid[0] * kernel.grid[1] * kernel.grid[2], 1, 0, {0}, {1}, 0, 0};
    pool &pool = the_pool();
    choose_order(grid);
    {
        std::unique_lock<std::mutex> lock(pool.mutex);
        pool.space.wait(lock, [&] { return pool.used[device] < self.set.resident_blocks; });
        pool.used[device]++;
    }
    tsan_release(&grid.begun);
    for (int i = 1; i < self.set.processors && i < (int)grid.total; i++) help(grid);
    run_blocks(grid);
    for (uint32_t running; (running = grid.running) != 0;) counter_wait(grid.running, running, 100);
    tsan_acquire(&grid.ended);
}

void grid_give_way(grid &grid) { help(grid); }

} // namespace cudasim
