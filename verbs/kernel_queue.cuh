/* kernel_queue: an operation of a device's table as a lambda over copies of its arguments, queued
 * on a stream.
 *
 *     enqueue(stream, device, [=](cudaStream_t native) { return …_cuda(out, in, count, native); });
 *
 * stream_launch() keeps the order of calls and of events: it runs the lambda at once where nothing
 * is queued ahead, else in its turn. A failure is the stream's: stream_synchronize() reports it.
 */
#ifndef VERBS_KERNEL_QUEUE_CUH
#define VERBS_KERNEL_QUEUE_CUH

#include <cuda_runtime_api.h>
#include <type_traits>

#include "verbs/cuda_status.h"
#include "verbs/device.h"

template <class Operation> struct queued_operation {
    const struct stream *stream;
    int device;
    Operation operation;
};

template <class Operation> static enum status run_queued(void *arguments)
{
    auto *queued = static_cast<queued_operation<Operation> *>(arguments);
    TRY_CUDA(cudaSetDevice(queued->device)); /* whichever thread this is */
    return queued->operation((cudaStream_t)stream_native(queued->stream));
}

template <class Operation>
static void enqueue(struct stream *stream, struct device *device, Operation operation)
{
    typedef queued_operation<Operation> queued;
    static_assert(std::is_trivially_copyable<queued>::value, "arguments are copied as bytes");
    static_assert(sizeof(queued) <= STREAM_ARGUMENT_BYTES, "a stream takes no more arguments");
    queued call = {stream, device->index, operation};
    enum status status = stream_launch(stream, run_queued<Operation>, &call, sizeof call, device);
    (void)status; /* the stream has it */
}

#endif
