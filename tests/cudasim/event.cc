/* event: record, wait, time.
 *
 * Every record of an event gets the next number; an event has passed when the number of its latest
 * record is complete.
 */
#include "event.h"

#include <cstdio>

#include "graph.h"
#include "stream.h"

namespace cudasim {
namespace {

/* Which cells of region 0 are taken; state of the process. */
bool taken[EVENT_MAX];
std::mutex taken_mutex;

int take_cell()
{
    std::lock_guard<std::mutex> lock(taken_mutex);
    for (int i = 0; i < EVENT_MAX; i++) {
        event_cell &cell = self.regions[0].events->cells[i];
        if (taken[i] || cell.recorded != cell.complete) continue;
        taken[i] = true;
        return i;
    }
    fprintf(stderr, "cudasim: %d events are in use, as many as it has\n", EVENT_MAX);
    return -1;
}

cudaError_t create(cudaEvent_t *handle, unsigned flags)
{
    bool between_processes = flags & cudaEventInterprocess;
    if (between_processes && !(flags & cudaEventDisableTiming)) return cudaErrorInvalidValue;
    int index = take_cell();
    if (index < 0) return cudaErrorMemoryAllocation;
    *handle = (cudaEvent_t) new event{0, index, current_device(), flags, nullptr, -1, 0};
    return cudaSuccess;
}

cudaError_t record(event &event, cudaStream_t handle)
{
    stream *to = stream_of(handle);
    if (to == nullptr || (event.region == 0 && to->device != event.device))
        return cudaErrorInvalidResourceHandle;
    event.recorded_in = to->capture;
    event.stream = to->index;
    if (to->capture != nullptr)
        return cudaSuccess; /* a place in the graph: graph.cc keeps everything in order */
    fresh_item what(work::record);
    what.event = {event.region, event.index, cell_of(event).recorded.fetch_add(1) + 1};
    return stream_submit(*to, what, &event.ticket);
}

cudaError_t wait(cudaStream_t handle, event &event)
{
    stream *to = stream_of(handle);
    if (to == nullptr) return cudaErrorInvalidResourceHandle;
    if (event.recorded_in != nullptr) {
        if (to->capture != nullptr && to->capture != event.recorded_in)
            return cudaErrorStreamCaptureIsolation;
        capture_join(*event.recorded_in, *to, event.stream);
        return cudaSuccess;
    }
    if (to->capture != nullptr) return cudaErrorStreamCaptureIsolation;
    fresh_item what(work::wait_event);
    what.event = {event.region, event.index, cell_of(event).recorded};
    return stream_submit(*to, what);
}

bool passed(const event &event)
{
    event_cell &cell = cell_of(event);
    if (!reached(cell.complete, cell.recorded)) return false;
    if (event.stream >= 0) stream_was_seen(event.stream, event.ticket);
    return true;
}

cudaError_t synchronize(const event &event)
{
    event_cell &cell = cell_of(event);
    uint32_t number = cell.recorded;
    for (uint32_t now; !reached(now = cell.complete, number);) {
        counter_wait(cell.complete, now, 50);
        if (!reached(cell.complete, number) && device_ended())
            return (cudaError_t)self.shared->error.load();
    }
    if (event.stream >= 0) stream_was_seen(event.stream, event.ticket);
    return cudaSuccess;
}

cudaError_t elapsed(float *ms, const event &from, const event &to)
{
    if ((from.flags | to.flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
    if (!passed(from) || !passed(to)) return cudaErrorNotReady;
    *ms = (float)((double)(cell_of(to).time_ns - cell_of(from).time_ns) * 1e-6);
    return cudaSuccess;
}

} // namespace

event_cell &cell_of(const event &event)
{
    return self.regions[event.region].events->cells[event.index];
}

event *event_import(int region, int index)
{
    return new event{region, index, current_device(),
        cudaEventDisableTiming | cudaEventInterprocess, nullptr, -1, 0};
}

} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : create(handle, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *handle)
{
    return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && handle == nullptr) error = cudaErrorInvalidResourceHandle;
    return leave(error != cudaSuccess ? error : record(*(event *)handle, stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && handle == nullptr) error = cudaErrorInvalidResourceHandle;
    return leave(error != cudaSuccess ? error : wait(stream, *(event *)handle));
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    cudaError_t error = enter();
    if (error == cudaSuccess) error = enter_for(((event *)handle)->device);
    if (error != cudaSuccess) return leave(error);
    if (((event *)handle)->recorded_in != nullptr) return leave(cudaErrorCapturedEvent);
    return leave(passed(*(event *)handle) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    cudaError_t error = enter();
    if (error == cudaSuccess) error = enter_for(((event *)handle)->device);
    if (error != cudaSuccess) return leave(error);
    if (((event *)handle)->recorded_in != nullptr) return leave(cudaErrorCapturedEvent);
    return leave(synchronize(*(event *)handle));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t error = enter();
    if (error == cudaSuccess) error = enter_for(((event *)from)->device);
    return leave(error != cudaSuccess ? error : elapsed(ms, *(event *)from, *(event *)to));
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    event *old = (event *)handle;
    if (old == nullptr) return leave(cudaErrorInvalidResourceHandle);
    cudaError_t error = enter_for(old->device);
    if (error != cudaSuccess) return leave(error);
    if (old->region == 0) {
        std::lock_guard<std::mutex> lock(taken_mutex);
        taken[old->index] = false;
    }
    delete old;
    return cudaSuccess;
}
}
