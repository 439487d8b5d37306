/* copy: copies and fills, in the order of a stream.
 *
 * Each end of a copy must lie within one allocation, or be other memory of the host. The device
 * process cannot see the latter, so it goes through a staging buffer, piece by piece, and the call
 * returns when it is done; copies between pinned, registered and device memory are asynchronous. A
 * kind other than cudaMemcpyDefault must be true.
 */
#include <condition_variable>
#include <cstring>
#include <vector>

#include "graph.h"
#include "memory.h"
#include "stream.h"

namespace cudasim {
namespace {

constexpr size_t STAGING_BYTES = 1 << 20;
constexpr size_t STAGING_BUFFERS = 8;

/* Buffers of pinned memory for copies of other memory; state of the process. */
struct staging {
    std::mutex mutex;
    std::condition_variable given_back;
    std::vector<char *> free;
    size_t made = 0;
};
forever<staging> the_staging_;
staging &the_staging() { return *the_staging_; }

class staging_buffer {
public:
    staging_buffer()
    {
        staging &all = the_staging();
        std::unique_lock<std::mutex> lock(all.mutex);
        if (all.free.empty() && all.made < STAGING_BUFFERS) {
            all.made++;
            lock.unlock();
            if (cudaHostAlloc((void **)&bytes, STAGING_BYTES, cudaHostAllocDefault) != cudaSuccess)
                bytes = nullptr;
            return;
        }
        all.given_back.wait(lock, [&] { return !all.free.empty(); });
        bytes = all.free.back();
        all.free.pop_back();
    }
    ~staging_buffer()
    {
        staging &all = the_staging();
        {
            std::lock_guard<std::mutex> lock(all.mutex);
            if (bytes != nullptr) all.free.push_back(bytes);
            else all.made--;
        }
        all.given_back.notify_one();
    }
    staging_buffer(const staging_buffer &) = delete;
    char *bytes;
};

/* One end of a copy. */
struct end {
    char *host, *device; /* the address as given; as the device sees it, or NULL */
    bool on_device;      /* device memory, not memory of the host that the device reaches */
};

struct copy {
    end to, from;
    size_t to_pitch, from_pitch, row_bytes, rows;
};

cudaError_t resolve(end &into, const void *address, size_t bytes)
{
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find(address);
    into = {(char *)address, nullptr, false};
    if (found == nullptr)
        return in_device_space(address) || in_pinned_space(address) ? cudaErrorInvalidValue
                                                                    : cudaSuccess;
    if ((const char *)address + bytes > found->begin + found->bytes) return cudaErrorInvalidValue;
    into.device = device_address(*found, address);
    into.on_device = found->kind == memory::device || found->kind == memory::imported;
    return cudaSuccess;
}

bool kind_is_true(cudaMemcpyKind kind, const copy &what)
{
    switch (kind) {
    case cudaMemcpyDefault: return true;
    case cudaMemcpyHostToHost: return !what.to.on_device && !what.from.on_device;
    case cudaMemcpyHostToDevice: return what.to.on_device && !what.from.on_device;
    case cudaMemcpyDeviceToHost: return !what.to.on_device && what.from.on_device;
    default: return what.to.on_device && what.from.on_device;
    }
}

cudaError_t submit_rows(stream &stream, const copy &what, uint32_t *ticket)
{
    fresh_item made(work::copy);
    made.copy = {what.to.device, what.from.device, what.to_pitch, what.from_pitch, what.row_bytes,
        what.rows};
    return stream_submit(stream, made, ticket);
}

cudaError_t submit_bytes(stream &stream, char *to, const char *from, size_t bytes)
{
    fresh_item made(work::copy);
    uint32_t ticket = 0;
    made.copy = {to, from, bytes, bytes, bytes, 1};
    cudaError_t error = stream_submit(stream, made, &ticket);
    return error != cudaSuccess ? error : stream_wait(stream, ticket);
}

/* Either end is memory that only the host sees. */
cudaError_t copy_staged(stream &stream, const copy &what)
{
    if (stream.capture != nullptr) return capture_invalidate(*stream.capture);
    cudaError_t error = stream_wait(stream, queue_of(stream).queued);
    bool neither = what.to.device == nullptr && what.from.device == nullptr;
    staging_buffer buffer;
    if (buffer.bytes == nullptr) return cudaErrorMemoryAllocation;
    for (size_t row = 0; row < what.rows && error == cudaSuccess; row++) {
        for (size_t done = 0; done < what.row_bytes && error == cudaSuccess;) {
            size_t piece = std::min(STAGING_BYTES, what.row_bytes - done);
            size_t to = row * what.to_pitch + done, from = row * what.from_pitch + done;
            if (neither) {
                memcpy(what.to.host + to, what.from.host + from, piece);
            } else if (what.from.device == nullptr) {
                memcpy(buffer.bytes, what.from.host + from, piece);
                error = submit_bytes(stream, what.to.device + to, buffer.bytes, piece);
            } else {
                error = submit_bytes(stream, buffer.bytes, what.from.device + from, piece);
                if (error == cudaSuccess) memcpy(what.to.host + to, buffer.bytes, piece);
            }
            done += piece;
        }
    }
    return error;
}

/* synchronous: the call of the name without Async, which waits unless both ends are on the
 * device. */
cudaError_t copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch,
    size_t row_bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t handle, bool synchronous)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return error;
    stream *stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (row_bytes == 0 || rows == 0) return cudaSuccess;
    if (to_pitch < row_bytes || from_pitch < row_bytes) return cudaErrorInvalidPitchValue;
    copy what = {{}, {}, to_pitch, from_pitch, row_bytes, rows};
    error = resolve(what.to, to, (rows - 1) * to_pitch + row_bytes);
    if (error == cudaSuccess) error = resolve(what.from, from, (rows - 1) * from_pitch + row_bytes);
    if (error != cudaSuccess) return error;
    if (!kind_is_true(kind, what)) return cudaErrorInvalidValue;
    if (what.to.device == nullptr || what.from.device == nullptr) return copy_staged(*stream, what);
    uint32_t ticket = 0;
    error = submit_rows(*stream, what, &ticket);
    bool waits = synchronous && !(what.to.on_device && what.from.on_device);
    return error == cudaSuccess && waits ? stream_wait(*stream, ticket) : error;
}

cudaError_t fill_rows(
    void *to, size_t pitch, int byte, size_t row_bytes, size_t rows, cudaStream_t handle)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return error;
    stream *stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (row_bytes == 0 || rows == 0) return cudaSuccess;
    if (pitch < row_bytes) return cudaErrorInvalidPitchValue;
    end where;
    error = resolve(where, to, (rows - 1) * pitch + row_bytes);
    if (error == cudaSuccess && where.device == nullptr) error = cudaErrorInvalidValue;
    if (error != cudaSuccess) return error;
    fresh_item made(work::fill);
    made.fill = {where.device, pitch, row_bytes, rows, byte};
    return stream_submit(*stream, made);
}

} // namespace
} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    return leave(copy_rows(to, bytes, from, bytes, bytes, 1, kind, stream, false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return leave(copy_rows(to, bytes, from, bytes, bytes, 1, kind, nullptr, true));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
    size_t row_bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t stream)
{
    return leave(copy_rows(to, to_pitch, from, from_pitch, row_bytes, rows, kind, stream, false));
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
    size_t row_bytes, size_t rows, cudaMemcpyKind kind)
{
    return leave(copy_rows(to, to_pitch, from, from_pitch, row_bytes, rows, kind, nullptr, true));
}

cudaError_t cudaMemcpyPeerAsync(
    void *to, int, const void *from, int, size_t bytes, cudaStream_t stream)
{
    return leave(
        copy_rows(to, bytes, from, bytes, bytes, 1, cudaMemcpyDeviceToDevice, stream, false));
}

/* In order with all work of both devices, before and after it. */
cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    cudaError_t error = enter();
    if (error == cudaSuccess) error = stream_wait_all(to_device);
    if (error == cudaSuccess) error = stream_wait_all(from_device);
    if (error == cudaSuccess)
        error =
            copy_rows(to, bytes, from, bytes, bytes, 1, cudaMemcpyDeviceToDevice, nullptr, false);
    return leave(error == cudaSuccess ? stream_wait_all(current_device()) : error);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    return leave(fill_rows(to, bytes, byte, bytes, 1, stream));
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    return cudaMemsetAsync(to, byte, bytes, nullptr);
}

cudaError_t cudaMemset2DAsync(
    void *to, size_t pitch, int byte, size_t row_bytes, size_t rows, cudaStream_t stream)
{
    return leave(fill_rows(to, pitch, byte, row_bytes, rows, stream));
}
}
