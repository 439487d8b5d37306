/* worker: the thread of the device process that runs a stream's items, in order. */
#ifndef CUDASIM_WORKER_H
#define CUDASIM_WORKER_H

namespace cudasim {

void worker_main(int stream);

} // namespace cudasim
#endif
