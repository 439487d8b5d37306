/* device_graph: see device_graph.h. */
#include "verbs/device_graph.h"

#include <stdlib.h>
#include <string.h>

#include "verbs/device_internal.h"
#include "verbs/device_ops.h"

struct graph {
    void *native;
};

enum status graph_begin(struct stream *stream, struct device *device)
{
    if (device->ops->capture_begin == NULL)
        return FAIL(STATUS_INVALID, "device %s has no graphs; expected a CUDA device: --device cuda", device_name(device));
    TRY(stream_synchronize(stream, device));
    return device->ops->capture_begin(stream_native(stream), device);
}

enum status graph_end(struct graph **out, struct stream *stream, struct device *device)
{
    *out = NULL;
    struct graph *graph = calloc(1, sizeof *graph);
    enum status noted = graph != NULL ? STATUS_OK : FAIL(STATUS_SYSTEM, "no memory for a graph");
    stream_settle(stream);
    void *native = NULL;
    char text[STATUS_TEXT_BYTES] = "";
    enum status ended = device->ops->capture_end(&native, stream_native(stream), device);
    if (ended != STATUS_OK) memcpy(text, status_text(), sizeof text);
    enum status called = stream_synchronize(stream, device); /* the cause, where there is one, before its consequence */
    if (called == STATUS_OK && ended != STATUS_OK) status_set_text(text);
    enum status status = called != STATUS_OK ? called : ended != STATUS_OK ? ended : noted;
    if (status != STATUS_OK) {
        if (native != NULL) device->ops->graph_close(native, device);
        free(graph);
        return status;
    }
    graph->native = native;
    *out = graph;
    return STATUS_OK;
}

struct launch {
    struct graph *graph;
    struct stream *stream;
    struct device *device;
};

static enum status launch_run(void *arguments)
{
    const struct launch *launch = arguments;
    return launch->device->ops->graph_launch(launch->graph->native, stream_native(launch->stream), launch->device);
}

enum status graph_launch(struct graph *graph, struct stream *stream, struct device *device)
{
    struct launch launch = {graph, stream, device};
    return stream_launch(stream, launch_run, &launch, sizeof launch, device);
}

void graph_close(struct graph *graph, struct device *device)
{
    if (graph == NULL) return;
    device->ops->graph_close(graph->native, device);
    free(graph);
}

bool stream_is_captured(const struct stream *stream, struct device *device)
{
    return device->ops->captures != NULL && device->ops->captures(stream_native(stream), device);
}
