/* shared: what the host process and the device process of the simulator both see. Addresses of
 * device and pinned memory mean the same in both; those of functions are the host's (library.h).
 *
 *                     written by             read by
 *   stream.items      host, in queue order   its worker in the device process; the host's thread
 *                                            of host functions
 *   stream.queued     host (release)         the worker (acquire)
 *   stream.done       the worker (release)   host (acquire): room in the queue, synchronize
 *   stream.called     the worker             that thread of the host: so many calls are to be made
 *   stream.returned   that thread            the worker: so many have returned
 *   error, message    the device process     host: sticky, as on hardware
 *   event.recorded    host (any process)     host: the number of the latest record
 *   event.complete    a worker               everyone: the latest record that has passed
 *
 * Every counter only grows, is compared modulo 2^32, and is waited for with a futex.
 */
#ifndef CUDASIM_SHARED_H
#define CUDASIM_SHARED_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace cudasim {

constexpr int DEVICE_MAX = 16, STREAM_MAX = 256, QUEUE_ITEMS = 64, EVENT_MAX = 4096,
              LEASE_MAX = 1024;
constexpr size_t ARGUMENT_BYTES = 4096; /* of a kernel: the limit of hardware */
constexpr size_t PAGE = 4096;

using counter = std::atomic<uint32_t>;

/* Waits until *word is no longer `seen`, at most so long; may return early. */
void counter_wait(counter &word, uint32_t seen, int timeout_ms);
void counter_wake(counter &word);
/* Whether a counter has come as far as a value. */
inline bool reached(uint32_t now, uint32_t value) { return (int32_t)(now - value) >= 0; }
int64_t clock_ns();

struct event_cell {
    counter recorded, complete;
    std::atomic<int64_t> time_ns;
};

/* Calls a kernel with the arguments as they lie in an item. */
using invoke_function = void (*)(const void *kernel, const void *arguments);
/* Touches the thread-local block that the kernel's __shared__ variables live in. */
using anchor_function = const void *(*)();

enum class work : uint32_t {
    kernel,
    call, /* a function of the simulator's own libraries: a matrix product */
    copy, /* rows of bytes */
    fill,
    record,
    wait_event,
    wait_stream,
    host_function,
    wait_value,
    write_value,
};

struct kernel_work {
    const void *function;
    invoke_function invoke;
    anchor_function anchor;
    uint32_t grid[3], block[3], dynamic_bytes;
    const void *bad_pointer; /* an argument that the device cannot follow, or NULL */
};
struct call_work {
    void (*function)(const void *arguments);
};
struct copy_work {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, row_bytes, rows;
};
struct fill_work {
    char *to;
    size_t pitch, row_bytes, rows;
    int byte;
};
struct event_work {
    int region, index; /* where the event lives: process.h */
    uint32_t number;
};
struct stream_work {
    int stream;
    uint32_t ticket;
};
struct host_work {
    cudaHostFn_t function;
    void *argument;
};
struct value_work {
    void *at;
    uint64_t value;
    unsigned flags, bytes;
};

struct item {
    work kind;
    uint32_t argument_bytes;
    union {
        kernel_work kernel;
        call_work call;
        copy_work copy;
        fill_work fill;
        event_work event;
        stream_work stream;
        host_work host;
        value_work value;
    };
    alignas(16) unsigned char arguments[ARGUMENT_BYTES]; /* the first argument_bytes are used */
};

struct stream_queue {
    counter queued, done, called, returned;
    int device;
    item items[QUEUE_ITEMS];
};

struct control {
    std::atomic<int> error; /* a cudaError_t */
    char message[1024];
    counter host_calls; /* grows with any stream's `called` */
    stream_queue streams[STREAM_MAX];
};

/* An event file: the events that one process made, and which processes have its device memory
 * open. */
struct lease {
    std::atomic<int> process;
    std::atomic<uint64_t> allocation;
};
struct event_file {
    event_cell cells[EVENT_MAX];
    lease leases[LEASE_MAX];
};

/* What the host asks of the device process, one at a time, over a socket. */
enum class ask : int { begin, map, unmap, map_file, import, release, events, library, stream, quit };
struct request {
    ask what;
    int error;           /* of the answer: an errno, or 0 */
    uint64_t at, bytes;  /* page-aligned addresses, the same in both; library: the host's */
    uint64_t offset;     /* in the file */
    int process, file;   /* whose descriptor */
    int files[3];        /* begin: of device memory, events, control */
    uint64_t begin, end; /* map: the allocation proper; unmap: likewise */
    char path[1024];     /* map_file, library */
};

} // namespace cudasim
#endif
