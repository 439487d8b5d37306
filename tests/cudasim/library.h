/* library: where a function of the host process is in the device process. Kernels, and what calls
 * them, lie in shared libraries; the device process loads the same files, at addresses of its own. */
#ifndef CUDASIM_LIBRARY_H
#define CUDASIM_LIBRARY_H

#include "shared.h"

namespace cudasim {

/* The host's side: has the device process load the library that a function is in, once. An error
 * for a function of the program itself, which cannot be loaded. */
cudaError_t library_share(const void *function);

/* The device's side. Loads what the host asks for; returns an errno. */
int library_load(const request &question);
/* A function of the host as it is here; the process ends when no library of it was loaded. */
void *library_here(const void *function);
template <class F> F library_here(F function)
{
    return (F)library_here((const void *)function);
}

} // namespace cudasim
#endif
