/* cuda_status: how a failure of the CUDA runtime becomes a status. For files of the module only
 * (…_cuda.c, …_cuda.cu). */
#ifndef VERBS_CUDA_STATUS_H
#define VERBS_CUDA_STATUS_H

#include <cuda_runtime_api.h>

#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* STATUS_CUDA with the call, CUDA's own name and words for the error, and what to do: for an error
 * that ends the device for this process, also that it does. `call` is what was called. */
enum status cuda_fail(cudaError_t error, const char *call, const char *file, int line);

/* Passes a failing call on. A launch reports the failure of earlier work of the same process, too.
 * */
#define TRY_CUDA(call)                                                                             \
    do {                                                                                           \
        cudaError_t cuda_error_ = (call);                                                          \
        if (cuda_error_ != cudaSuccess) return cuda_fail(cuda_error_, #call, __FILE__, __LINE__);  \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
