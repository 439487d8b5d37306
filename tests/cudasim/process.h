/* process: the two processes of the simulator.
 *
 *   host process                            device process, the program cudasim_device, started
 *                                           at the first CUDA call
 *     cudaX() puts items into a stream's  ->    one worker thread a stream runs them; a kernel's
 *     queue                                     blocks run on a pool of OS threads, and the
 *                                               threads of a block are fibers
 *     device addresses are reserved, and        device addresses are mapped there, and there
 *     cannot be read or written, ever           alone: from a file without a name, which is what
 *                                               a CUDA IPC handle points at
 *     pinned memory is mapped             =     at the same address
 *
 * Whatever dies, nothing is left: the files have no names, the device process goes when the host
 * process has gone, and the host process finds a sticky error when the device process has.
 *
 * The CUDA runtime is state of a process by its nature, so this is: `self` is the one global of the
 * simulator.
 */
#ifndef CUDASIM_PROCESS_H
#define CUDASIM_PROCESS_H

#include <atomic>
#include <mutex>
#include <new>
#include <sys/types.h>

#include "settings.h"
#include "shared.h"

namespace cudasim {

constexpr size_t DEVICE_SPACE = 1ull << 38, PINNED_SPACE = 1ull << 36;
constexpr int DEVICE_SOCKET = 3; /* the descriptor that the device process is started with */
constexpr int REGION_MAX = 64;

/* The events of a process; region 0 is this one's own. */
struct region {
    event_file *events;
    int process, file;
};

struct process_state {
    settings set;
    control *shared;
    char *device_space, *pinned_space; /* the second directly behind the first */
    int device_file, event_file_number, control_file, socket;
    pid_t host, device;
    std::atomic<bool> started, orphan; /* orphan: forked from a process that had started */
    std::mutex mutex;                  /* of starting, and of one question at a time */
    region regions[REGION_MAX];
    int region_count;
};
extern process_state self;

/* State of the process: there from the loading of the library, before any thread, to the very end,
 * since threads may outlive main(). */
template <class T> class forever {
public:
    forever() { new (bytes) T(); }
    T &operator*() { return *std::launder(reinterpret_cast<T *>(bytes)); }

private:
    alignas(T) unsigned char bytes[sizeof(T)];
};

inline bool in_device_space(const void *p)
{
    return (const char *)p >= self.device_space &&
           (const char *)p < self.device_space + DEVICE_SPACE;
}
inline bool in_pinned_space(const void *p)
{
    return (const char *)p >= self.pinned_space &&
           (const char *)p < self.pinned_space + PINNED_SPACE;
}

/* ---- the host's side ---- */

/* Every API function begins with it: starts the device process at the first call. Returns the
 * sticky error, if any. */
cudaError_t enter();
/* Ends every API function: remembers an error for cudaGetLastError(). */
cudaError_t leave(cudaError_t error);

/* Asks the device process; returns an errno, 0 for done. */
int device_ask(request &question);
/* Whether the device process has ended: then the sticky error is set, and the process reaped. */
bool device_ended();

/* While a host function of a stream runs on this thread, it may not call CUDA. */
void forbid_calls(bool forbidden);

/* ---- the device's side ---- */

/* All of the program cudasim_device. */
[[noreturn]] void device_main();
/* A descriptor of another process, for reading and writing; -1 and errno. */
int foreign_file(int process, int file);
/* The allocation that an address is in or near, as a sentence for messages; "" when there is
 * none. */
void describe_address(char *text, size_t bytes, const void *address);
/* For ThreadSanitizer: the caller comes after every allocation so far. */
void device_order();
/* Runs at the end of the device process. */
[[noreturn]] void device_exit(int code);

} // namespace cudasim
#endif
