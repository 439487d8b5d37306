/* graph: streams that are recorded instead of run. */
#ifndef CUDASIM_GRAPH_H
#define CUDASIM_GRAPH_H

#include "shared.h"

namespace cudasim {

struct capture;
struct stream;

/* Adds an item that was submitted to `by` to what a capture records. */
cudaError_t capture_add(capture &capture, stream &by, const item &what);
/* Something was called that cannot be captured: the capture is lost, and ends with an error.
 * Returns that of the call. */
cudaError_t capture_invalidate(capture &capture);
/* Whether a call that waits or allocates is forbidden, because this thread captures, or another
 * in global mode; what they capture is then lost, as on hardware. */
bool capture_forbids();
/* Whether a stream that the legacy default stream waits for is captured: then nothing may go to
 * the latter. */
bool capture_forbids_default();
/* `joined` waits for an event that was recorded in the stream `from` (an index) of the capture,
 * and is part of it. */
void capture_join(capture &capture, stream &joined, int from);

} // namespace cudasim
#endif
