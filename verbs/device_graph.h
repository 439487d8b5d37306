/* device_graph: what a stream is given once, to be launched again and again: a CUDA graph.
 *
 *     TRY(graph_begin(stream, device));
 *     …                                         calls on the stream: noted, not run
 *     TRY(graph_end(&graph, stream, device));
 *     TRY(graph_launch(graph, stream, device));  each launch runs all of it, in order, on what memory holds then
 *
 * Between begin and end only what is enqueued on the device may be called on the stream: kernels, copies that do not touch
 * MEMORY_HOST, collectives that run in kernels (ring.h), event_record() and event_wait() of events of this capture; not
 * stream_synchronize().
 */
#ifndef VERBS_DEVICE_GRAPH_H
#define VERBS_DEVICE_GRAPH_H

#include "verbs/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct graph; /* own */

/* begin waits for all that the stream was given before, and reports its failure. errors: INVALID on the host, which has no
 * graphs; CUDA. */
MUST_CHECK enum status graph_begin(struct stream *stream, struct device *device);

/* Waits until the stream's worker has noted everything. errors: of the calls since begin, the first; CUDA. *graph is then NULL, and
 * the stream works as before. */
MUST_CHECK enum status graph_end(struct graph **graph, struct stream *stream, struct device *device);

/* Queued, like a kernel: on any stream of the device, one launch of a graph at a time. */
MUST_CHECK enum status graph_launch(struct graph *graph, struct stream *stream, struct device *device);

/* When its launches have run. NULL is accepted. */
void graph_close(struct graph *graph, struct device *device);

/* Whether what the stream is given now is noted. For its worker, or when it has nothing to do. */
bool stream_is_captured(const struct stream *stream, struct device *device);

#ifdef __cplusplus
}
#endif
#endif
