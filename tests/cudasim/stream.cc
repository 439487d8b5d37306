/* stream: queues, tickets, the rules of the legacy default stream, and host functions.
 *
 * A ticket is the value of `done` at which an item has run. A queue has room for 64 items: whoever
 * comes when it is full waits for the oldest.
 *
 * The legacy default stream of a device waits for all its blocking streams, and they for it: here
 * by a wait_stream item in front of the work, so that the host does not wait.
 */
#include "stream.h"

#include <cstdio>
#include <cstring>
#include <thread>

#include "fiber.h"
#include "graph.h"
#include "library.h"

namespace cudasim {
namespace {

/* As the rest of the runtime, state of the process. */
stream streams[STREAM_MAX];
std::mutex streams_mutex; /* of which are used */
std::atomic<uint32_t> host_saw[STREAM_MAX];
thread_local int device_of_thread;
thread_local bool thread_has_chosen;
std::atomic<bool> has_context[DEVICE_MAX];

cudaError_t put(stream &to, const item &what, uint32_t *ticket) /* to.mutex is held */
{
    stream_queue &queue = queue_of(to);
    uint32_t at = queue.queued;
    if (at - queue.done >= QUEUE_ITEMS) {
        cudaError_t error = stream_wait(to, at - QUEUE_ITEMS + 1);
        if (error != cudaSuccess) return error;
    }
    memcpy(&queue.items[at % QUEUE_ITEMS], &what, offsetof(item, arguments) + what.argument_bytes);
    tsan_release(&queue); /* to host_functions() */
    queue.queued = at + 1;
    counter_wake(queue.queued);
    if (ticket != nullptr) *ticket = at + 1;
    return cudaSuccess;
}

cudaError_t put_wait(stream &to, int other, uint32_t ticket)
{
    fresh_item wait(work::wait_stream);
    wait.stream = {other, ticket};
    return put(to, wait, nullptr);
}

/* What the legacy default stream and blocking streams owe each other. */
cudaError_t put_default_waits(stream &to)
{
    bool is_default = to.index < DEVICE_MAX;
    if (!to.blocking) return cudaSuccess;
    for (stream &other : streams) {
        if (!other.used || &other == &to || other.device != to.device || !other.blocking) continue;
        if (!is_default && other.index >= DEVICE_MAX) continue;
        stream_queue &queue = queue_of(other);
        uint32_t ticket = queue.queued;
        if (queue.done == ticket) continue;
        cudaError_t error = put_wait(to, other.index, ticket);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

/* What the host has waited for comes before what it submits next. The device process cannot see
 * the host wait, so for ThreadSanitizer it is told. */
cudaError_t put_seen_waits(stream &to)
{
    if (!tsan_watches()) return cudaSuccess;
    for (stream &other : streams) {
        uint32_t ticket = host_saw[other.index];
        if (!other.used || &other == &to || to.seen[other.index] == ticket) continue;
        to.seen[other.index] = ticket;
        cudaError_t error = put_wait(to, other.index, ticket);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

/* Starts the worker of a stream that has none. */
cudaError_t hire(stream &stream)
{
    if (stream.worker) return cudaSuccess;
    request question = {};
    question.what = ask::stream;
    question.offset = (uint64_t)stream.index;
    queue_of(stream).device = stream.device;
    if (device_ask(question) != 0) return cudaErrorUnknown;
    stream.worker = true;
    return cudaSuccess;
}

stream *open_default(int device)
{
    std::lock_guard<std::mutex> lock(streams_mutex);
    stream &found = streams[device];
    if (found.used) return &found;
    found.index = found.device = device;
    found.blocking = true;
    if (hire(found) != cudaSuccess) return nullptr;
    found.used = true;
    return &found;
}

cudaError_t open_stream(cudaStream_t *handle, unsigned flags)
{
    std::lock_guard<std::mutex> lock(streams_mutex);
    for (int i = DEVICE_MAX; i < STREAM_MAX; i++) {
        stream &each = streams[i];
        stream_queue &queue = self.shared->streams[i];
        if (each.ended && queue.done == queue.queued) each.used = each.ended = false;
        if (each.used) continue;
        each.index = i;
        each.device = queue.device = device_of_thread;
        has_context[device_of_thread] = true;
        each.blocking = (flags & cudaStreamNonBlocking) == 0;
        each.capture = nullptr;
        cudaError_t error = hire(each);
        if (error != cudaSuccess) return error;
        each.used = true;
        *handle = (cudaStream_t)&each;
        return cudaSuccess;
    }
    fprintf(stderr, "cudasim: %d streams are in use, as many as it has\n", STREAM_MAX - DEVICE_MAX);
    return cudaErrorMemoryAllocation;
}

/* The one thread of a process that calls what cudaLaunchHostFunc() was given, in the order of
 * each stream. */
void host_functions()
{
    forbid_calls(true);
    for (uint32_t known = 0;;) {
        for (uint32_t now; (now = self.shared->host_calls) == known;)
            counter_wait(self.shared->host_calls, now, 1000);
        known = self.shared->host_calls;
        for (stream_queue &queue : self.shared->streams) {
            while (queue.returned != queue.called) {
                host_work what = queue.items[queue.done % QUEUE_ITEMS].host;
                tsan_acquire(&queue);
                what.function(what.argument);
                tsan_release(&queue);
                queue.returned.fetch_add(1);
                counter_wake(queue.returned);
            }
        }
    }
}

void start_host_functions()
{
    static std::once_flag once;
    std::call_once(once, [] { std::thread(host_functions).detach(); });
}

} // namespace

fresh_item::fresh_item(work kind_)
{
    memset((void *)static_cast<item *>(this), 0, offsetof(item, arguments));
    kind = kind_;
}

stream &stream_at(int index) { return streams[index]; }

stream_queue &queue_of(const stream &stream) { return self.shared->streams[stream.index]; }

int current_device() { return device_of_thread; }

cudaError_t set_current_device(int device)
{
    if (device < 0 || device >= self.set.devices) return cudaErrorInvalidDevice;
    device_of_thread = device;
    thread_has_chosen = true;
    has_context[device] = true; /* as since CUDA 12 */
    return cudaSuccess;
}

cudaError_t enter_for(int device)
{
    if (device == device_of_thread) has_context[device] = true;
    if (thread_has_chosen || has_context[device_of_thread]) return cudaSuccess;
    fprintf(stderr,
        "cudasim[%d]: a thread that has chosen no device asks about device %d: hardware makes a "
        "context on device 0 for it; expected cudaSetDevice() in this thread first\n",
        (int)self.host, device);
    return cudaErrorDeviceUninitialized;
}

stream *stream_of(cudaStream_t handle)
{
    if (handle == nullptr || handle == cudaStreamLegacy) return open_default(device_of_thread);
    stream *found = (stream *)handle;
    if (found < streams + DEVICE_MAX || found >= streams + STREAM_MAX) return nullptr;
    return found->used && !found->ended ? found : nullptr;
}

cudaError_t stream_submit(stream &to, const item &what, uint32_t *ticket)
{
    if (to.capture != nullptr) return capture_add(*to.capture, to, what);
    if (to.index < DEVICE_MAX && capture_forbids_default()) return cudaErrorStreamCaptureImplicit;
    std::lock_guard<std::mutex> lock(to.mutex);
    cudaError_t error = put_default_waits(to);
    if (error == cudaSuccess) error = put_seen_waits(to);
    return error != cudaSuccess ? error : put(to, what, ticket);
}

cudaError_t library_call(cudaStream_t handle, void (*function)(const void *arguments),
    const void *arguments, size_t bytes)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    stream *found = stream_of(handle);
    if (found == nullptr || found->device != device_of_thread)
        return leave(cudaErrorInvalidResourceHandle);
    error = library_share((const void *)function);
    if (error != cudaSuccess) return leave(error);
    fresh_item what(work::call);
    what.call.function = function;
    what.argument_bytes = (uint32_t)bytes;
    memcpy(what.arguments, arguments, bytes);
    return leave(stream_submit(*found, what));
}

bool stream_done(const stream &of, uint32_t ticket)
{
    if (!reached(queue_of(of).done, ticket)) return false;
    stream_was_seen(of.index, ticket);
    return true;
}

void stream_was_seen(int index, uint32_t ticket)
{
    tsan_acquire(&self.shared->streams[index]); /* what host functions did */
    uint32_t known = host_saw[index];
    while (!reached(known, ticket) && !host_saw[index].compare_exchange_weak(known, ticket)) {
    }
}

cudaError_t stream_wait(const stream &of, uint32_t ticket)
{
    counter &done = queue_of(of).done;
    while (!stream_done(of, ticket)) {
        uint32_t now = done;
        if (self.shared->error != 0) break;
        if (reached(now, ticket)) continue;
        counter_wait(done, now, 50);
        if (!reached(done, ticket) && device_ended()) break;
    }
    return (cudaError_t)self.shared->error.load();
}

cudaError_t stream_wait_all(int device)
{
    cudaError_t error = (cudaError_t)self.shared->error.load();
    for (stream &each : streams)
        if (each.used && (device < 0 || each.device == device) && error == cudaSuccess)
            error = stream_wait(each, queue_of(each).queued);
    return error;
}

} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : open_stream(handle, flags));
}

cudaError_t cudaStreamCreate(cudaStream_t *handle)
{
    return cudaStreamCreateWithFlags(handle, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(handle, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return leave(enter());
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    stream *found = handle == nullptr ? nullptr : stream_of(handle);
    if (found == nullptr || found->index < DEVICE_MAX) return leave(cudaErrorInvalidResourceHandle);
    error = enter_for(found->device);
    if (error != cudaSuccess) return leave(error);
    std::lock_guard<std::mutex> lock(streams_mutex);
    found->ended = true;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    stream *found = stream_of(handle);
    if (found == nullptr) return leave(cudaErrorInvalidResourceHandle);
    error = enter_for(found->device);
    if (error != cudaSuccess) return leave(error);
    if (found->capture != nullptr) return leave(capture_invalidate(*found->capture));
    return leave(stream_wait(*found, queue_of(*found).queued));
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    stream *found = stream_of(handle);
    if (found == nullptr) return leave(cudaErrorInvalidResourceHandle);
    error = enter_for(found->device);
    if (error != cudaSuccess) return leave(error);
    if (found->capture != nullptr) return leave(capture_invalidate(*found->capture));
    return leave(stream_done(*found, queue_of(*found).queued) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    stream *found = stream_of(handle);
    if (found == nullptr) return leave(cudaErrorInvalidResourceHandle);
    *flags = found->blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    stream *found = stream_of(handle);
    if (found == nullptr) return leave(cudaErrorInvalidResourceHandle);
    *device = found->device;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    cudaError_t error = enter();
    if (error == cudaSuccess && capture_forbids()) error = cudaErrorStreamCaptureUnsupported;
    return leave(error != cudaSuccess ? error : stream_wait_all(device_of_thread));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    stream *found = stream_of(handle);
    if (found == nullptr) return leave(cudaErrorInvalidResourceHandle);
    start_host_functions();
    fresh_item what(work::host_function);
    what.host = {function, argument};
    return leave(stream_submit(*found, what));
}
}
