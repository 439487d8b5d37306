/* What a thread asks of a device is asked of that device, also where the thread is new and has chosen none: on hardware it would be
 * device 0's otherwise, and get a context there. The simulator refuses that.
 * ctest: timeout=60
 */
#include <pthread.h>
#include <stdlib.h>

#include "tests/harness/harness.h"
#include "verbs/device_graph.h"
#include "verbs/device_ops.h"

struct held {
    struct device *device;
    struct stream *stream;
    struct event *from, *to;
};

/* A new thread, which has called nothing of CUDA before. */
static void in_thread(void *(*body)(void *), struct held *held)
{
    pthread_t thread;
    if (CHECK(pthread_create(&thread, NULL, body, held) == 0)) pthread_join(thread, NULL);
}

static void *passes(void *argument)
{
    const struct held *held = argument;
    bool passed = false;
    CHECK_OK(event_passed(&passed, held->to, held->device));
    return NULL;
}

static void *synchronizes_event(void *argument)
{
    const struct held *held = argument;
    CHECK_OK(event_synchronize(held->to, held->device));
    return NULL;
}

static void *synchronizes_stream(void *argument)
{
    const struct held *held = argument;
    CHECK_OK(stream_synchronize(held->stream, held->device));
    return NULL;
}

static void *measures(void *argument)
{
    const struct held *held = argument;
    int64_t ns = -1;
    CHECK_OK(event_elapsed(&ns, held->from, held->to, held->device));
    CHECK(ns >= 0);
    return NULL;
}

static void *is_captured(void *argument)
{
    const struct held *held = argument;
    CHECK(stream_is_captured(held->stream, held->device));
    return NULL;
}

static void *closes(void *argument)
{
    struct held *held = argument;
    const struct device_ops *ops = held->device->ops;
    void *native = NULL, *mark = NULL;
    event_close(held->from, held->device);
    event_close(held->to, held->device);
    stream_close(held->stream, held->device);
    CHECK_OK(ops->native_open(&native, held->device)); /* which chooses */
    CHECK_OK(ops->mark_open(&mark, held->device));
    ops->mark_close(mark, held->device);
    ops->native_close(native, held->device);
    return NULL;
}

int main(void)
{
    struct held held = {0};
    setenv("CUDASIM_DEVICES", "2", 1);
    if (!test_has_device("cudasim")) return test_skip("cudasim");
    if (!CHECK_OK(device_open(&held.device, "cudasim:1"))) return test_result();
    CHECK_OK(stream_open(&held.stream, held.device, "test"));
    CHECK_OK(event_open_timed(&held.from, held.device));
    CHECK_OK(event_open_timed(&held.to, held.device));
    CHECK_OK(event_record(held.from, held.stream, held.device));
    CHECK_OK(event_record(held.to, held.stream, held.device));
    in_thread(passes, &held);
    in_thread(synchronizes_event, &held);
    in_thread(synchronizes_stream, &held);
    in_thread(measures, &held);
    struct graph *graph = NULL;
    CHECK_OK(graph_begin(held.stream, held.device));
    in_thread(is_captured, &held);
    CHECK_OK(graph_end(&graph, held.stream, held.device));
    graph_close(graph, held.device);
    in_thread(closes, &held);
    device_close(held.device);
    return test_result();
}
