/* device_cuda: a GPU as a device: memory, copies, native streams and events of the CUDA runtime.
 * Part of the module (plugin.h).
 *
 * Every function makes the device current first: that is a setting of the thread, any thread may
 * call, and one may serve several devices. Where nothing is set the runtime takes device 0, and
 * makes a context there, of half a GiB, for a question about a stream of another. Nothing uses the
 * NULL stream, which would order all streams of the process: blocking copies have a stream of their
 * own, `copies`, which is also what makes a copy from device to device blocking (cudaMemcpy() is
 * not, there).
 */
#include "verbs/device_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/cuda_status.h"
#include "verbs/device_nic_cuda.h"
#include "verbs/log.h"

#ifndef RINGZERO_PLUGIN_NAME
#define RINGZERO_PLUGIN_NAME "cuda"
#endif

struct cuda_state {
    cudaStream_t copies;
};

/* ---- failures ---- */

/* After these every later call of the process fails alike: the context is lost. */
static bool is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown: return true;
    default: return false;
    }
}

static const char *advice(cudaError_t error)
{
    if (is_sticky(error))
        return ": the device is lost for this process, and every later call fails alike; the cause "
               "is a kernel or copy before this "
               "call: compute-sanitizer finds it, or --device cudasim";
    switch (error) {
    case cudaErrorInsufficientDriver:
        return ": there is no NVIDIA driver, or it is older than this CUDA needs (nvidia-smi shows "
               "it): install one, or use --device "
               "host";
    case cudaErrorNoDevice:
        return ": no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device "
               "host";
    case cudaErrorInitializationError:
        return ": was CUDA used before fork()? A device is opened after it";
    case cudaErrorMemoryAllocation:
        return ": the GPU's memory is full: nvidia-smi shows who holds it";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return ": libringzero_cuda.so was built for other GPUs, or by a toolkit newer than the "
               "driver: build it with RINGZERO_CUDA_ARCHITECTURES set to this GPU's compute "
               "capability";
    case cudaErrorSystemNotReady:
        return ": on machines with NVSwitch the service nvidia-fabricmanager must run, of the "
               "driver's version: systemctl status nvidia-fabricmanager";
    case cudaErrorDevicesUnavailable:
        return ": other processes hold the GPU, and its compute mode lets nobody else in";
    default: return "";
    }
}

enum status cuda_fail(cudaError_t error, const char *call, const char *file, int line)
{
    (void)cudaGetLastError(); /* told here; the next call shall not be blamed for it */
    size_t name = strcspn(call, "(");
    return status_fail(STATUS_CUDA, file, line, "%.*s failed with %s: %s%s", (int)name, call,
        cudaGetErrorName(error), cudaGetErrorString(error), advice(error));
}

/* ---- opening ---- */

static int ordinal_from_environment(enum status *status)
{
    const char *text = getenv("RINGZERO_CUDA_DEVICE");
    if (text == NULL || *text == '\0') return -1;
    char *end;
    long number = strtol(text, &end, 10);
    if (end != text && *end == '\0' && number >= 0 && number < 1 << 20) return (int)number;
    *status = FAIL(
        STATUS_INVALID, "RINGZERO_CUDA_DEVICE is \"%s\"; expected an ordinal, 0 or more", text);
    return -1;
}

static enum status choose_ordinal(struct device *device, int ordinal)
{
    int count = 0;
    enum status status = STATUS_OK;
    TRY_CUDA(cudaGetDeviceCount(&count));
    if (count == 0) return cuda_fail(cudaErrorNoDevice, "cudaGetDeviceCount", __FILE__, __LINE__);
    if (ordinal < 0) ordinal = ordinal_from_environment(&status);
    if (status != STATUS_OK) return status;
    if (ordinal >= count)
        return FAIL(STATUS_INVALID,
            "device " RINGZERO_PLUGIN_NAME ":%d is not there; expected an ordinal from 0 to %d",
            ordinal, count - 1);
    device->index = ordinal >= 0 ? ordinal : device->index % count;
    return STATUS_OK;
}

static enum status cuda_open(struct device *device, int ordinal)
{
    struct cudaDeviceProp properties;
    TRY(choose_ordinal(device, ordinal));
    struct cuda_state *state = calloc(1, sizeof *state);
    if (state == NULL) return FAIL(STATUS_SYSTEM, "no memory for a device");
    device->state = state;
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaStreamCreateWithFlags(&state->copies, cudaStreamNonBlocking));
    TRY_CUDA(cudaGetDeviceProperties(&properties, device->index));
    LOG_INFO("device", RINGZERO_PLUGIN_NAME ":%d is %s, compute capability %d.%d, %zu MiB",
        device->index, properties.name, properties.major, properties.minor,
        properties.totalGlobalMem >> 20);
    return STATUS_OK;
}

static void cuda_close(struct device *device)
{
    struct cuda_state *state = device->state;
    if (state == NULL) return;
    (void)cudaSetDevice(device->index);
    if (state->copies != NULL) (void)cudaStreamDestroy(state->copies);
    free(state);
    device->state = NULL;
}

static enum status cuda_thread_begin(struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    return STATUS_OK;
}

/* ---- memory ---- */

static enum status cuda_copy(struct span dst, struct span src, void *native, struct device *device)
{
    static const enum cudaMemcpyKind ways[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
        {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};
    struct cuda_state *state = device->state;
    cudaStream_t stream = native != NULL ? (cudaStream_t)native : state->copies;
    TRY_CUDA(cudaSetDevice(device->index));
    if (dst.kind != MEMORY_CUDA &&
        src.kind != MEMORY_CUDA) { /* the CPU's work, after all that is queued */
        if (native != NULL) TRY_CUDA(cudaStreamSynchronize(stream));
        memcpy(dst.ptr, src.ptr, src.bytes);
        return STATUS_OK;
    }
    enum cudaMemcpyKind way = ways[src.kind == MEMORY_CUDA][dst.kind == MEMORY_CUDA];
    TRY_CUDA(cudaMemcpyAsync(dst.ptr, src.ptr, src.bytes, way, stream));
    if (native == NULL) TRY_CUDA(cudaStreamSynchronize(stream));
    return STATUS_OK;
}

static enum status cuda_fill(struct span dst, int byte, void *native, struct device *device)
{
    struct cuda_state *state = device->state;
    cudaStream_t stream = native != NULL ? (cudaStream_t)native : state->copies;
    TRY_CUDA(cudaSetDevice(device->index));
    if (dst.kind != MEMORY_CUDA) {
        if (native != NULL) TRY_CUDA(cudaStreamSynchronize(stream));
        memset(dst.ptr, byte, dst.bytes);
        return STATUS_OK;
    }
    TRY_CUDA(cudaMemsetAsync(dst.ptr, byte, dst.bytes, stream));
    if (native == NULL) TRY_CUDA(cudaStreamSynchronize(stream));
    return STATUS_OK;
}

static void cuda_free(void *ptr, size_t bytes, enum memory_kind kind, struct device *device)
{
    (void)bytes;
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess) error = kind == MEMORY_CUDA ? cudaFree(ptr) : cudaFreeHost(ptr);
    if (error != cudaSuccess)
        LOG_WARN("device", "memory could not be freed: %s", cudaGetErrorString(error));
}

static enum status cuda_alloc(
    void **ptr, size_t bytes, enum memory_kind kind, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    if (kind == MEMORY_CUDA)
        TRY_CUDA(cudaMalloc(ptr, bytes)); /* not cudaMallocAsync: that memory has no IPC handle */
    else TRY_CUDA(cudaHostAlloc(ptr, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    struct span span = {*ptr, bytes, kind, device->index};
    enum status status = cuda_fill(span, 0, NULL, device);
    if (status != STATUS_OK) cuda_free(*ptr, bytes, kind, device);
    return status;
}

/* ---- streams and events ---- */

static enum status cuda_native_open(void **native, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaStreamCreateWithFlags((cudaStream_t *)native, cudaStreamNonBlocking));
    return STATUS_OK;
}

static void cuda_native_close(void *native, struct device *device)
{
    (void)cudaSetDevice(device->index);
    (void)cudaStreamDestroy((cudaStream_t)native);
}

static enum status cuda_native_synchronize(void *native, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaStreamSynchronize((cudaStream_t)native));
    return STATUS_OK;
}

static enum status cuda_mark_open(void **mark, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaEventCreateWithFlags((cudaEvent_t *)mark, cudaEventDisableTiming));
    return STATUS_OK;
}

static enum status cuda_mark_open_timed(void **mark, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaEventCreateWithFlags((cudaEvent_t *)mark, cudaEventDefault));
    return STATUS_OK;
}

static void cuda_mark_close(void *mark, struct device *device)
{
    (void)cudaSetDevice(device->index);
    (void)cudaEventDestroy((cudaEvent_t)mark);
}

static enum status cuda_mark_record(void *mark, void *native, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaEventRecord((cudaEvent_t)mark, (cudaStream_t)native));
    return STATUS_OK;
}

static enum status cuda_mark_wait(void *mark, void *native, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaStreamWaitEvent((cudaStream_t)native, (cudaEvent_t)mark, 0));
    return STATUS_OK;
}

static enum status cuda_mark_synchronize(void *mark, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaEventSynchronize((cudaEvent_t)mark));
    return STATUS_OK;
}

static enum status cuda_mark_passed(bool *passed, void *mark, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    cudaError_t error = cudaEventQuery((cudaEvent_t)mark);
    *passed = error == cudaSuccess;
    if (error == cudaErrorNotReady) return STATUS_OK;
    return *passed ? STATUS_OK : cuda_fail(error, "cudaEventQuery", __FILE__, __LINE__);
}

static enum status cuda_mark_elapsed(int64_t *ns, void *from, void *to, struct device *device)
{
    float ms = 0.0f;
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to));
    *ns = (int64_t)((double)ms * 1e6);
    return STATUS_OK;
}

/* ---- memory that others reach ---- */

_Static_assert(sizeof(cudaIpcMemHandle_t) == DEVICE_IPC_HANDLE_BYTES, "a handle fits");

static enum status cuda_ipc_export(unsigned char *handle, const void *base, struct device *device)
{
    cudaIpcMemHandle_t made;
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaIpcGetMemHandle(&made, (void *)(uintptr_t)base));
    memcpy(handle, &made, sizeof made);
    return STATUS_OK;
}

static enum status cuda_ipc_import(void **base, const unsigned char *handle, struct device *device)
{
    cudaIpcMemHandle_t given;
    memcpy(&given, handle, sizeof given);
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaIpcOpenMemHandle(base, given, cudaIpcMemLazyEnablePeerAccess));
    return STATUS_OK;
}

static void cuda_ipc_import_close(void *base, struct device *device)
{
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess) error = cudaIpcCloseMemHandle(base);
    if (error != cudaSuccess)
        LOG_WARN(
            "device", "a neighbour's memory could not be closed: %s", cudaGetErrorString(error));
}

static enum status cuda_peer_enable(int ordinal, struct device *device)
{
    int can = 0;
    if (ordinal == device->index) return STATUS_OK;
    TRY_CUDA(cudaDeviceCanAccessPeer(&can, device->index, ordinal));
    if (!can)
        return FAIL(STATUS_CUDA,
            "GPU %d cannot reach the memory of GPU %d: neither NVLink nor PCIe does it",
            device->index, ordinal);
    TRY_CUDA(cudaSetDevice(device->index));
    cudaError_t error = cudaDeviceEnablePeerAccess(ordinal, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
    else TRY_CUDA(error);
    return STATUS_OK;
}

static enum status cuda_host_register(
    void **address, void *ptr, size_t bytes, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaHostRegister(ptr, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    cudaError_t error = cudaHostGetDevicePointer(address, ptr, 0);
    if (error != cudaSuccess) (void)cudaHostUnregister(ptr);
    TRY_CUDA(error);
    return STATUS_OK;
}

static void cuda_host_unregister(void *ptr, struct device *device)
{
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess) error = cudaHostUnregister(ptr);
    if (error != cudaSuccess)
        LOG_WARN("device", "host memory could not be unregistered: %s", cudaGetErrorString(error));
}

/* ---- graphs ---- */

/* Relaxed: memory may be allocated and edges may connect meanwhile, by any thread. */
static enum status cuda_capture_begin(void *native, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaStreamBeginCapture((cudaStream_t)native, cudaStreamCaptureModeRelaxed));
    return STATUS_OK;
}

static enum status cuda_capture_end(void **graph, void *native, struct device *device)
{
    cudaGraph_t captured = NULL;
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaStreamEndCapture((cudaStream_t)native, &captured));
    cudaError_t error = cudaGraphInstantiateWithFlags((cudaGraphExec_t *)graph, captured, 0);
    (void)cudaGraphDestroy(captured);
    TRY_CUDA(error);
    return STATUS_OK;
}

static bool cuda_captures(void *native, struct device *device)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess) error = cudaStreamIsCapturing((cudaStream_t)native, &status);
    return error == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

static enum status cuda_graph_launch(void *graph, void *native, struct device *device)
{
    TRY_CUDA(cudaSetDevice(device->index));
    TRY_CUDA(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)native));
    return STATUS_OK;
}

static void cuda_graph_close(void *graph, struct device *device)
{
    (void)cudaSetDevice(device->index);
    (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

_Static_assert(sizeof(cudaUUID_t) == DEVICE_IDENTITY_BYTES, "an id fits");

static enum status cuda_identify(unsigned char id[DEVICE_IDENTITY_BYTES], struct device *device)
{
    struct cudaDeviceProp properties;
    TRY_CUDA(cudaGetDeviceProperties(&properties, device->index));
    memcpy(id, &properties.uuid, DEVICE_IDENTITY_BYTES);
    return STATUS_OK;
}

const struct device_ops device_cuda_ops = {
    .name = RINGZERO_PLUGIN_NAME,
    .kind = MEMORY_CUDA,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .thread_begin = cuda_thread_begin,
    .native_open = cuda_native_open,
    .native_close = cuda_native_close,
    .native_synchronize = cuda_native_synchronize,
    .mark_open = cuda_mark_open,
    .mark_open_timed = cuda_mark_open_timed,
    .mark_close = cuda_mark_close,
    .mark_record = cuda_mark_record,
    .mark_wait = cuda_mark_wait,
    .mark_synchronize = cuda_mark_synchronize,
    .mark_passed = cuda_mark_passed,
    .mark_elapsed = cuda_mark_elapsed,
    .ipc_export = cuda_ipc_export,
    .ipc_import = cuda_ipc_import,
    .ipc_import_close = cuda_ipc_import_close,
    .peer_enable = cuda_peer_enable,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .dmabuf_export = cuda_dmabuf_export,
    .nic_flush_needed = cuda_nic_flush_needed,
    .nic_flush = cuda_nic_flush,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .captures = cuda_captures,
    .graph_launch = cuda_graph_launch,
    .graph_close = cuda_graph_close,
    .identify = cuda_identify,
};
