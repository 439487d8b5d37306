/* stream: the host's side of streams: what is put into a queue, and what it must wait for. */
#ifndef CUDASIM_STREAM_H
#define CUDASIM_STREAM_H

#include <mutex>

#include "process.h"

namespace cudasim {

struct capture;

struct stream {
    bool used, worker, blocking;
    bool ended; /* destroyed, its last work perhaps still to run */
    int index, device;
    std::mutex mutex; /* of its queue's end */
    cudasim::capture *capture;
    /* For ThreadSanitizer alone: which ticket of each stream the host has seen done, as of this
     * one's last work. */
    uint32_t seen[STREAM_MAX];
};

/* The legacy default stream of a device is its number; others come after. */
stream *stream_of(
    cudaStream_t handle); /* NULL: no such stream; 0 and cudaStreamLegacy: the current device's */
stream &stream_at(int index);
stream_queue &queue_of(const stream &stream);
int current_device();
cudaError_t set_current_device(int device);
/* For a call about a stream or an event of a device. A thread that has chosen no device is device
 * 0's, and hardware makes a context there if the process has none: refused, with a message. */
cudaError_t enter_for(int device);

/* An item to fill in: the head is zero, the arguments are not touched. */
struct fresh_item : item {
    explicit fresh_item(work kind_);
};

/* Puts an item behind all that the stream holds, and whatever CUDA says that it waits for
 * besides before it; or, while the stream is captured, adds it to the graph. *ticket (or NULL):
 * what stream_wait() waits for. */
cudaError_t stream_submit(stream &to, const item &what, uint32_t *ticket = nullptr);
/* function(copy of arguments) runs in the device process, in the order of the stream: how
 * libraries of the simulator do their work. */
cudaError_t library_call(cudaStream_t stream, void (*function)(const void *arguments),
    const void *arguments, size_t bytes);
/* Waits for a ticket; the sticky error when the device has faulted. */
cudaError_t stream_wait(const stream &of, uint32_t ticket);
cudaError_t stream_wait_all(int device); /* of a device; −1: of all */
bool stream_done(const stream &of, uint32_t ticket);
/* The host knows, from an event, that the ticket is done. */
void stream_was_seen(int index, uint32_t ticket);

} // namespace cudasim
#endif
