/* driver: the functions of the driver that one asks the runtime for by name. */
#include <cstring>
#include <cuda.h>

#include "memory.h"
#include "stream.h"

namespace cudasim {
namespace {

CUresult driver_error(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return CUDA_SUCCESS;
    case cudaErrorInvalidValue: return CUDA_ERROR_INVALID_VALUE;
    case cudaErrorInvalidResourceHandle: return CUDA_ERROR_INVALID_HANDLE;
    default: return CUDA_ERROR_UNKNOWN;
    }
}

CUresult submit_value(
    work kind, CUstream handle, CUdeviceptr at, uint64_t value, unsigned flags, unsigned bytes)
{
    cudaError_t error = enter();
    stream *stream = error == cudaSuccess ? stream_of((cudaStream_t)handle) : nullptr;
    if (error != cudaSuccess) return driver_error(error);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    fresh_item what(kind);
    {
        std::lock_guard<std::mutex> lock(book_mutex());
        const allocation *found = book_find((const void *)at);
        if (found == nullptr || at % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
        what.value = {device_address(*found, (const void *)at), value, flags, bytes};
    }
    return driver_error(stream_submit(*stream, what));
}

CUresult wait_value_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return submit_value(work::wait_value, stream, at, value, flags, 4);
}
CUresult wait_value_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    return submit_value(work::wait_value, stream, at, value, flags, 8);
}
CUresult write_value_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    return submit_value(work::write_value, stream, at, value, flags, 4);
}
CUresult write_value_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    return submit_value(work::write_value, stream, at, value, flags, 8);
}

CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr within)
{
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find((const void *)within);
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (base != nullptr) *base = (CUdeviceptr)found->begin;
    if (bytes != nullptr) *bytes = found->bytes;
    return CUDA_SUCCESS;
}

CUresult pointer_attribute(void *into, CUpointer_attribute which, CUdeviceptr at)
{
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find((const void *)at);
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    bool on_device = found->kind == memory::device || found->kind == memory::imported;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)into = found->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(CUmemorytype *)into = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)into = found->device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)into = on_device;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult set_pointer_attribute(const void *, CUpointer_attribute which, CUdeviceptr)
{
    return which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* No device here can hand its memory to a NIC. */
CUresult range_handle(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult flush_writes(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < self.set.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult device_attribute(int *value, CUdevice_attribute which, CUdevice device)
{
    *value = 0; /* what the runtime has no name for, no device here can do */
    if (which == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED ||
        which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)
        return CUDA_SUCCESS;
    return driver_error(
        cudaDeviceGetAttribute(value, (cudaDeviceAttr)which, device)); /* the same numbers */
}

const struct {
    const char *name;
    void *function;
} functions[] = {
    {"cuStreamWaitValue32", (void *)wait_value_32},
    {"cuStreamWaitValue64", (void *)wait_value_64},
    {"cuStreamWriteValue32", (void *)write_value_32},
    {"cuStreamWriteValue64", (void *)write_value_64},
    {"cuMemGetAddressRange", (void *)address_range},
    {"cuMemGetHandleForAddressRange", (void *)range_handle},
    {"cuPointerGetAttribute", (void *)pointer_attribute},
    {"cuPointerSetAttribute", (void *)set_pointer_attribute},
    {"cuFlushGPUDirectRDMAWrites", (void *)flush_writes},
    {"cuDeviceGet", (void *)device_get},
    {"cuDeviceGetAttribute", (void *)device_attribute},
};

} // namespace
} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
    unsigned long long, cudaDriverEntryPointQueryResult *result)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    *function = nullptr;
    for (const auto &each : functions)
        if (strcmp(each.name, name) == 0) *function = each.function;
    if (result != nullptr)
        *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
    cudaDriverEntryPointQueryResult *result)
{
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, result);
}
}
