/* device: which devices there are, what they can do, and who may reach whom. */
#include <cstdio>
#include <cstring>

#include "memory.h"
#include "stream.h"

namespace cudasim {
namespace {

/* Which device of this process may reach which; state of the process. */
std::atomic<bool> peers[DEVICE_MAX][DEVICE_MAX];

bool exists(int device) { return device >= 0 && device < self.set.devices; }

int sm_count()
{
    int blocks = self.set.resident_blocks / self.set.gpu->blocks_per_sm;
    return blocks > 0 ? blocks : 1;
}

void describe(cudaDeviceProp &of, int device)
{
    const architecture &gpu = *self.set.gpu;
    memset((void *)&of, 0, sizeof of);
    snprintf(of.name, sizeof of.name, "cudasim %d", device);
    memcpy(of.uuid.bytes, "cudasim-device-", 15);
    of.uuid.bytes[15] = (char)device;
    of.major = gpu.number / 10;
    of.minor = gpu.number % 10;
    of.totalGlobalMem = self.set.memory_bytes;
    of.warpSize = 32;
    of.maxThreadsPerBlock = 1024;
    of.maxThreadsDim[0] = of.maxThreadsDim[1] = 1024;
    of.maxThreadsDim[2] = 64;
    of.maxGridSize[0] = 0x7fffffff;
    of.maxGridSize[1] = of.maxGridSize[2] = 65535;
    of.maxThreadsPerMultiProcessor = gpu.threads_per_sm;
    of.maxBlocksPerMultiProcessor = gpu.blocks_per_sm;
    of.multiProcessorCount = sm_count();
    of.regsPerBlock = of.regsPerMultiprocessor = 65536;
    of.sharedMemPerBlock = 48 << 10;
    of.sharedMemPerBlockOptin = gpu.shared_per_block;
    of.sharedMemPerMultiprocessor = gpu.shared_per_sm;
    of.l2CacheSize = 4 << 20;
    of.memoryBusWidth = 64;
    of.textureAlignment = 512;
    of.memPitch = 0x7fffffff;
    of.pciBusID = device + 1;
    of.unifiedAddressing = of.canMapHostMemory = of.concurrentKernels = of.hostRegisterSupported =
        1;
    of.asyncEngineCount = 2;
    of.ipcEventSupported = self.set.ipc;
}

int attribute(cudaDeviceAttr which, int device, bool &known)
{
    cudaDeviceProp of;
    describe(of, device);
    switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: return of.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return of.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimZ: return of.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX: return of.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return of.maxGridSize[1];
    case cudaDevAttrMaxSharedMemoryPerBlock: return (int)of.sharedMemPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)of.sharedMemPerBlockOptin;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)of.sharedMemPerMultiprocessor;
    case cudaDevAttrWarpSize: return of.warpSize;
    case cudaDevAttrMultiProcessorCount: return of.multiProcessorCount;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return of.maxThreadsPerMultiProcessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return of.maxBlocksPerMultiProcessor;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return of.regsPerBlock;
    case cudaDevAttrComputeCapabilityMajor: return of.major;
    case cudaDevAttrComputeCapabilityMinor: return of.minor;
    case cudaDevAttrPciBusId: return of.pciBusID;
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
    case cudaDevAttrComputeMode:
    case cudaDevAttrIntegrated:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrGPUDirectRDMASupported:
    case cudaDevAttrGPUDirectRDMAFlushWritesOptions:
    case cudaDevAttrGPUDirectRDMAWritesOrdering:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem: return 0;
    case cudaDevAttrL2CacheSize: return of.l2CacheSize;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrHostRegisterSupported: return 1;
    case cudaDevAttrIpcEventSupport: return of.ipcEventSupported;
    case cudaDevAttrAsyncEngineCount: return of.asyncEngineCount;
    default: known = false; return 0;
    }
}

} // namespace

bool peer_enabled(int device, int peer) { return peers[device][peer]; }

} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = enter();
    *count = error == cudaSuccess ? self.set.devices : 0;
    return leave(error);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : set_current_device(device));
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t error = enter();
    *device = current_device();
    return leave(error);
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    cudaError_t error = enter();
    return leave(error == cudaSuccess && !exists(device) ? cudaErrorInvalidDevice : error);
}

cudaError_t cudaSetDeviceFlags(unsigned) { return leave(enter()); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && !exists(device)) error = cudaErrorInvalidDevice;
    if (error == cudaSuccess) describe(*properties, device);
    return leave(error);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int device)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && !exists(device)) error = cudaErrorInvalidDevice;
    if (error != cudaSuccess) return leave(error);
    bool known = true;
    *value = attribute(which, device, known);
    return leave(known ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && !exists(device)) error = cudaErrorInvalidDevice;
    if (error == cudaSuccess) snprintf(text, (size_t)bytes, "0000:%02x:00.0", device + 1);
    return leave(error);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && (!exists(device) || !exists(peer))) error = cudaErrorInvalidDevice;
    if (error == cudaSuccess) *can = device != peer && self.set.peers;
    return leave(error);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    if (flags != 0) return leave(cudaErrorInvalidValue);
    if (!exists(peer) || peer == current_device()) return leave(cudaErrorInvalidDevice);
    if (!self.set.peers) return leave(cudaErrorPeerAccessUnsupported);
    return leave(peers[current_device()][peer].exchange(true) ? cudaErrorPeerAccessAlreadyEnabled
                                                              : cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    if (!exists(peer)) return leave(cudaErrorInvalidDevice);
    return leave(peers[current_device()][peer].exchange(false) ? cudaSuccess
                                                               : cudaErrorPeerAccessNotEnabled);
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr which, int device, int peer)
{
    int can = 0;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, device, peer);
    *value = which == cudaDevP2PAttrPerformanceRank ? 0 : can;
    return leave(error);
}

/* Without a driver its version is 0, and the call succeeds. */
cudaError_t cudaDriverGetVersion(int *version)
{
    enter();
    *version = self.set.driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
}
