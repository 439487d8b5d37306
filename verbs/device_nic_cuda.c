/* device_nic_cuda: a GPU's memory as NICs reach it. Part of the module (plugin.h). The driver's
 * functions are asked for by name: a program that is linked to the driver's library does not start
 * where there is none. No hardware has confirmed this yet.
 */
#include "verbs/device_nic_cuda.h"

#include <cuda.h>

#include "verbs/cuda_status.h"

static enum status driver_function(void **function, const char *name, unsigned since)
{
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    *function = NULL;
#if CUDART_VERSION >= 12050
    TRY_CUDA(cudaGetDriverEntryPointByVersion(name, function, since, cudaEnableDefault, &result));
#else
    (void)since;
    TRY_CUDA(cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &result));
#endif
    if (result == cudaDriverEntryPointSuccess && *function != NULL) return STATUS_OK;
    return FAIL(STATUS_CUDA, "the NVIDIA driver has no %s: a newer one has", name);
}

enum status cuda_dmabuf_export(int *fd, void *ptr, size_t bytes, struct device *device)
{
    CUresult (*range_handle)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
    void *function;
    TRY_CUDA(cudaSetDevice(device->index));
    TRY(driver_function(&function, "cuMemGetHandleForAddressRange", 11070));
    *(void **)&range_handle = function;
    CUresult result = range_handle(
        fd, (CUdeviceptr)(uintptr_t)ptr, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (result == CUDA_SUCCESS) return STATUS_OK;
    return FAIL(STATUS_CUDA,
        "the GPU gives no descriptor of %zu bytes (CUDA driver error %d): that takes NVIDIA's open "
        "kernel modules",
        bytes, (int)result);
}

/* Unless the GPU orders what arrives from a NIC before what its own kernels load after. */
bool cuda_nic_flush_needed(struct device *device)
{
    int ordering = 0;
    cudaError_t error =
        cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, device->index);
    return error != cudaSuccess || ordering < cudaGPUDirectRDMAWritesOrderingOwner;
}

enum status cuda_nic_flush(struct device *device)
{
    CUresult (*flush)(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope);
    void *function;
    TRY_CUDA(cudaSetDevice(device->index));
    TRY(driver_function(&function, "cuFlushGPUDirectRDMAWrites", 11030));
    *(void **)&flush = function;
    CUresult result = flush(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    if (result == CUDA_SUCCESS) return STATUS_OK;
    return FAIL(STATUS_CUDA,
        "cuFlushGPUDirectRDMAWrites failed (CUDA driver error %d): set RINGZERO_GPU_DIRECT=staged",
        (int)result);
}
