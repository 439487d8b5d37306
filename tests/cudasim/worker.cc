/* worker: what each kind of item does, in the device process.
 *
 * ThreadSanitizer is told that an item comes after what its stream, or another that it waited for,
 * has done before, and that copies read and write: so two streams that use the same memory without
 * an event between them are a data race.
 */
#include "worker.h"

#include <cstring>
#include <sched.h>
#include <unistd.h>

#include "fault.h"
#include "fiber.h"
#include "grid.h"
#include "library.h"
#include "process.h"
#include "stream.h"

namespace cudasim {
namespace {

void copy_rows(const copy_work &what)
{
    for (size_t row = 0; row < what.rows; row++) {
        char *to = what.to + row * what.to_pitch;
        const char *from = what.from + row * what.from_pitch;
        tsan_reads(from, what.row_bytes);
        tsan_writes(to, what.row_bytes);
        memmove(to, from, what.row_bytes);
    }
}

void fill_rows(const fill_work &what)
{
    for (size_t row = 0; row < what.rows; row++) {
        tsan_writes(what.to + row * what.pitch, what.row_bytes);
        memset(what.to + row * what.pitch, what.byte, what.row_bytes);
    }
}

void complete(const event_work &what)
{
    event_cell &cell = self.regions[what.region].events->cells[what.index];
    tsan_release(&cell);
    cell.time_ns = clock_ns();
    uint32_t known =
        cell.complete; /* records of one event in two streams may pass in either order */
    while (
        !reached(known, what.number) && !cell.complete.compare_exchange_weak(known, what.number)) {
    }
    counter_wake(cell.complete);
}

void wait_until(counter &word, uint32_t value, const void *order)
{
    for (uint32_t now; !reached(now = word, value);) counter_wait(word, now, 100);
    tsan_acquire(order);
}

void call_host(stream_queue &queue)
{
    uint32_t number = queue.called.fetch_add(1) + 1;
    self.shared->host_calls.fetch_add(1);
    counter_wake(self.shared->host_calls);
    wait_until(queue.returned, number, &queue);
}

bool value_holds(uint64_t found, const value_work &what)
{
    switch (what.flags & 3) {
    case 1: return found == what.value;           /* CU_STREAM_WAIT_VALUE_EQ */
    case 2: return (found & what.value) != 0;     /* CU_STREAM_WAIT_VALUE_AND */
    case 3: return (found | what.value) != ~0ull; /* CU_STREAM_WAIT_VALUE_NOR */
    default:
        return what.bytes == 4 ? (int32_t)(uint32_t)(found - what.value) >= 0
                               : (int64_t)(found - what.value) >= 0;
    }
}

uint64_t load_value(const value_work &what)
{
    return what.bytes == 4 ? __atomic_load_n((uint32_t *)what.at, __ATOMIC_ACQUIRE)
                           : __atomic_load_n((uint64_t *)what.at, __ATOMIC_ACQUIRE);
}

void wait_value(const value_work &what)
{
    for (unsigned i = 0; !value_holds(load_value(what), what); i++) {
        if (i < 100) sched_yield();
        else usleep(20);
    }
    tsan_acquire(what.at);
}

void write_value(const value_work &what)
{
    tsan_release(what.at);
    if (what.bytes == 4)
        __atomic_store_n((uint32_t *)what.at, (uint32_t)what.value, __ATOMIC_RELEASE);
    else __atomic_store_n((uint64_t *)what.at, what.value, __ATOMIC_RELEASE);
}

/* The item is this process's until it is done. */
void run_kernel(item &what, int device)
{
    what.kernel.function = library_here(what.kernel.function);
    what.kernel.invoke = library_here(what.kernel.invoke);
    what.kernel.anchor = library_here(what.kernel.anchor);
    grid_run(what, device);
}

void run(stream_queue &queue, item &what)
{
    stream_queue *streams = self.shared->streams;
    switch (what.kind) {
    case work::kernel: run_kernel(what, queue.device); break;
    case work::call: library_here(what.call.function)(what.arguments); break;
    case work::copy: copy_rows(what.copy); break;
    case work::fill: fill_rows(what.fill); break;
    case work::record: complete(what.event); break;
    case work::wait_event: {
        event_cell &cell = self.regions[what.event.region].events->cells[what.event.index];
        wait_until(cell.complete, what.event.number, &cell);
        break;
    }
    case work::wait_stream: {
        stream_queue &other = streams[what.stream.stream];
        wait_until(other.done, what.stream.ticket, &other.done);
        break;
    }
    case work::host_function: call_host(queue); break;
    case work::wait_value: wait_value(what.value); break;
    case work::write_value: write_value(what.value); break;
    }
}

/* Up to CUDASIM_DELAY_US before each item, other numbers in each stream. */
void delay(uint64_t &random)
{
    if (self.set.delay_us == 0) return;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    usleep((useconds_t)(random % (self.set.delay_us + 1)));
}

} // namespace

void worker_main(int stream)
{
    stream_queue &queue = self.shared->streams[stream];
    uint64_t random = (self.set.seed + (uint64_t)stream) * 0x9E3779B97F4A7C15ull | 1;
    fault_stack();
    for (uint32_t done = queue.done;; done++) {
        uint32_t queued;
        for (int look = 0; (queued = queue.queued) == done; look++) {
            if (look < 20) sched_yield();
            else counter_wait(queue.queued, queued, 1000);
        }
        delay(random);
        device_order();
        run(queue, queue.items[done % QUEUE_ITEMS]);
        tsan_release(&queue.done);
        queue.done = done + 1;
        counter_wake(queue.done);
    }
}

} // namespace cudasim
