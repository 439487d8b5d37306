/* fault: the end of the device: an error that every later call of the host returns, as on
 * hardware, with a message that names the kernel, the block, the thread and the address. */
#ifndef CUDASIM_FAULT_H
#define CUDASIM_FAULT_H

#include <cuda_runtime_api.h>
#include <string>

namespace cudasim {

[[noreturn]] void fault(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Signals of the device process become faults. fault_stack() is for each thread that runs
 * kernels: the handler needs a stack, and a kernel's may be what has overflowed. */
void fault_install();
void fault_stack();

/* The name of a kernel as it stands in the source. */
std::string kernel_name(const void *function);

/* Runs when the device process ends, whether well or by a fault: a hook for coverage. */
void at_exit_of_device(void (*function)());

} // namespace cudasim
#endif
