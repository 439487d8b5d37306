/* graph: capture and launch.
 *
 * The items of all streams of a capture stand in one list, in the order of the calls. A launch puts
 * them into one stream in that order: an order that the graph allows, so results are right; what
 * hardware would run side by side runs here one after another, so kernels of one graph that wait
 * for each other would hang, and the watchdog says so.
 */
#include "graph.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "stream.h"

namespace cudasim {

/* As many bytes of an item as it has. */
struct stored_item {
    std::unique_ptr<item> what;
    explicit stored_item(const item &of) : what(new item)
    {
        memcpy((void *)what.get(), &of, offsetof(item, arguments) + of.argument_bytes);
    }
};

struct graph {
    std::vector<stored_item> items;
};

struct capture {
    cudasim::graph *recorded;
    stream *origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool lost;
    std::vector<stream *> members;
    std::vector<int> unjoined; /* members with work that the origin does not wait for yet */
};

namespace {

/* Those that go on now; state of the process. */
struct captures {
    std::mutex mutex;
    std::vector<capture *> open, ended; /* events may still point at one that has ended */
};
forever<captures> all_captures_;
captures &all_captures() { return *all_captures_; }

cudaError_t begin(cudaStream_t handle, cudaStreamCaptureMode mode)
{
    stream *origin = stream_of(handle);
    if (origin == nullptr) return cudaErrorInvalidResourceHandle;
    if (origin->index < DEVICE_MAX) return cudaErrorStreamCaptureUnsupported;
    if (origin->capture != nullptr) return cudaErrorIllegalState;
    capture *made =
        new capture{new graph(), origin, mode, std::this_thread::get_id(), false, {origin}, {}};
    captures &all = all_captures();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.open.push_back(made);
    origin->capture = made;
    return cudaSuccess;
}

cudaError_t end(cudaStream_t handle, cudaGraph_t *into)
{
    *into = nullptr;
    stream *origin = stream_of(handle);
    if (origin == nullptr) return cudaErrorInvalidResourceHandle;
    capture *ended = origin->capture;
    if (ended == nullptr) return cudaErrorIllegalState;
    if (ended->origin != origin) return cudaErrorStreamCaptureUnmatched;
    captures &all = all_captures();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.open.erase(std::find(all.open.begin(), all.open.end(), ended));
    all.ended.push_back(ended);
    for (stream *each : ended->members) each->capture = nullptr;
    cudaError_t error = ended->lost               ? cudaErrorStreamCaptureInvalidated
                        : ended->unjoined.empty() ? cudaSuccess
                                                  : cudaErrorStreamCaptureUnjoined;
    if (error == cudaSuccess) *into = (cudaGraph_t)ended->recorded;
    else delete ended->recorded;
    return error;
}

cudaError_t launch(const graph &of, cudaStream_t handle)
{
    stream *to = stream_of(handle);
    if (to == nullptr) return cudaErrorInvalidResourceHandle;
    cudaError_t error = cudaSuccess;
    for (const stored_item &each : of.items)
        if (error == cudaSuccess) error = stream_submit(*to, *each.what);
    return error;
}

cudaError_t copy(cudaGraphExec_t *into, const graph &from)
{
    graph *made = new graph();
    for (const stored_item &each : from.items) made->items.emplace_back(*each.what);
    *into = (cudaGraphExec_t)made;
    return cudaSuccess;
}

} // namespace

cudaError_t capture_add(capture &capture, stream &by, const item &what)
{
    std::lock_guard<std::mutex> lock(all_captures().mutex);
    if (capture.lost) return cudaErrorStreamCaptureInvalidated;
    capture.recorded->items.emplace_back(what);
    bool known = std::count(capture.unjoined.begin(), capture.unjoined.end(), by.index) != 0;
    if (&by != capture.origin && !known) capture.unjoined.push_back(by.index);
    return cudaSuccess;
}

cudaError_t capture_invalidate(capture &capture)
{
    capture.lost = true;
    return cudaErrorStreamCaptureUnsupported;
}

bool capture_forbids()
{
    captures &all = all_captures();
    bool forbidden = false;
    std::lock_guard<std::mutex> lock(all.mutex);
    for (capture *each : all.open) {
        bool mine = each->thread == std::this_thread::get_id() &&
                    each->mode != cudaStreamCaptureModeRelaxed;
        if (!mine && each->mode != cudaStreamCaptureModeGlobal) continue;
        each->lost = forbidden = true;
    }
    return forbidden;
}

bool capture_forbids_default()
{
    captures &all = all_captures();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (capture *each : all.open)
        for (stream *member : each->members)
            if (member->blocking) return each->lost = true;
    return false;
}

void capture_join(capture &capture, stream &joined, int from)
{
    std::lock_guard<std::mutex> lock(all_captures().mutex);
    auto &unjoined = capture.unjoined;
    unjoined.erase(std::remove(unjoined.begin(), unjoined.end(), from), unjoined.end());
    if (joined.capture != nullptr) return;
    joined.capture = &capture;
    capture.members.push_back(&joined);
    unjoined.push_back(joined.index);
}

} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : begin(stream, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : end(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    const stream *found = stream_of(handle);
    if (found == nullptr) return leave(cudaErrorInvalidResourceHandle);
    error = enter_for(found->device);
    if (error != cudaSuccess) return leave(error);
    *status = found->capture == nullptr ? cudaStreamCaptureStatusNone
              : found->capture->lost    ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *into, cudaGraph_t graph_, unsigned long long)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : copy(into, *(const graph *)graph_));
}

cudaError_t cudaGraphInstantiateWithFlags(
    cudaGraphExec_t *into, cudaGraph_t graph_, unsigned long long flags)
{
    return cudaGraphInstantiate(into, graph_, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t of, cudaStream_t stream)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : launch(*(const graph *)of, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t old)
{
    delete (graph *)old;
    return leave(enter());
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t old)
{
    delete (graph *)old;
    return leave(enter());
}
}
