/* Streams and events of every device that is there: order, asynchrony, failures, and that nothing
 * waits for what will never run. One source: the host, CUDA on the simulator, and a device whose
 * native streams are streams of the host, so that ThreadSanitizer sees all of it. Memory and
 * copies: verbs_device_test.c.
 * ctest: timeout=60
 */
#include <string.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/clock.h"
#include "verbs/device_ops.h"

struct step {
    int *log;
    int *length;
    int value;
    int sleep_us;
    enum status result;
};

static enum status append(void *arguments)
{
    struct step *step = arguments;
    if (step->sleep_us > 0) usleep((useconds_t)step->sleep_us);
    if (step->result != STATUS_OK)
        return FAIL(step->result, "step %d failed on purpose", step->value);
    step->log[(*step->length)++] = step->value;
    return STATUS_OK;
}

static void check_order(struct device *device)
{
    struct stream *stream;
    int log[1000], length = 0;
    CHECK_OK(stream_open(&stream, device, "test"));
    for (int i = 0; i < 1000; i++) { /* more than the queue holds */
        struct step step = {log, &length, i, i == 0 ? 20000 : 0, STATUS_OK};
        CHECK_OK(
            stream_call(stream, append, &step, sizeof step, device)); /* the arguments are copied */
    }
    CHECK_OK(stream_synchronize(stream, device));
    CHECK(length == 1000);
    int wrong = 0;
    for (int i = 0; i < length; i++) wrong += log[i] != i;
    CHECK(wrong == 0);
    stream_close(stream, device);
}

static void check_failure(struct device *device)
{
    struct stream *stream;
    int log[8], length = 0;
    CHECK_OK(stream_open(&stream, device, "test"));
    for (int i = 0; i < 4; i++) {
        struct step step = {log, &length, i, 0,
            i == 1   ? STATUS_PEER
            : i == 2 ? STATUS_DATA
                     : STATUS_OK};
        CHECK_OK(stream_call(stream, append, &step, sizeof step, device));
    }
    CHECK_STATUS(
        stream_synchronize(stream, device), STATUS_PEER); /* the first failure, with its text */
    CHECK(strcmp(status_text(), "step 1 failed on purpose") == 0);
    CHECK(length == 1); /* later calls were skipped */
    struct step step = {log, &length, 9, 0, STATUS_OK};
    CHECK_OK(stream_call(stream, append, &step, sizeof step, device));
    CHECK_OK(stream_synchronize(stream, device)); /* reported once, then it goes on */
    CHECK(length == 2 && log[1] == 9);
    stream_close(stream, device);
}

/* Between two events lies what the stream did between them, once both have passed; recorded again,
 * they are new. */
static void check_elapsed(struct device *device)
{
    struct stream *stream;
    struct event *begin, *end;
    int log[2], length = 0;
    CHECK_OK(stream_open(&stream, device, "test"));
    CHECK_OK(event_open_timed(&begin, device));
    CHECK_OK(event_open_timed(&end, device));
    for (int i = 0; i < 2; i++) {
        struct step step = {log, &length, i, 2000, STATUS_OK};
        int64_t ns = 0, before_ns = clock_ns();
        CHECK_OK(event_record(begin, stream, device));
        CHECK_OK(stream_call(stream, append, &step, sizeof step, device));
        CHECK_OK(event_record(end, stream, device));
        CHECK_OK(event_synchronize(end, device));
        CHECK_OK(event_elapsed(&ns, begin, end, device));
        CHECK(ns >= 0 && ns <= clock_ns() - before_ns);
        CHECK_OK(event_elapsed(&ns, begin, begin, device));
        CHECK(ns == 0);
    }
    stream_close(stream, device);
    event_close(begin, device);
    event_close(end, device);
}

/* Launches keep their place among calls, also those that launch in turn; a failing one is the
 * stream's failure. */
struct launcher {
    struct step step;
    struct stream *stream;
    struct device *device;
};

static enum status append_and_launch(void *arguments)
{
    struct launcher *launcher = arguments;
    TRY(append(&launcher->step));
    launcher->step.value++;
    return launcher->stream == NULL ? STATUS_OK
                                    : stream_launch(launcher->stream, append, &launcher->step,
                                          sizeof launcher->step, launcher->device);
}

static void check_launches(struct device *device)
{
    struct stream *stream;
    int log[64], length = 0, wrong = 0;
    CHECK_OK(stream_open(&stream, device, "test"));
    struct stream *inner = stream_native(stream) != NULL
                               ? stream
                               : NULL; /* where a launch is a call it would come after the next */
    for (int i = 0; i < 20; i++) {
        struct launcher launcher = {
            {log, &length, 2 * i, i == 10 ? 20000 : 0, STATUS_OK}, inner, device};
        if (i % 5 == 0)
            CHECK_OK(stream_call(stream, append_and_launch, &launcher, sizeof launcher, device));
        else CHECK_OK(stream_launch(stream, append_and_launch, &launcher, sizeof launcher, device));
        if (i == 7)
            CHECK_OK(
                stream_synchronize(stream, device)); /* the queue is empty: run by this thread */
        if (i == 8 && inner != NULL) CHECK(length == 18);
    }
    CHECK_OK(stream_synchronize(stream, device));
    int each = inner != NULL ? 1 : 2; /* values 0, 1, 2, … or 0, 2, 4, … */
    CHECK(length == 40 / each);
    for (int i = 0; i < length; i++) wrong += log[i] != i * each;
    CHECK(wrong == 0);
    struct step broken = {log, &length, 5, 0, STATUS_DATA},
                after = {log, &length, 99, 0, STATUS_OK};
    CHECK_OK(stream_launch(stream, append, &broken, sizeof broken, device));
    CHECK_OK(stream_launch(stream, append, &after, sizeof after, device));
    CHECK_STATUS(stream_synchronize(stream, device), STATUS_DATA);
    CHECK(strcmp(status_text(), "step 5 failed on purpose") == 0 && length == 40 / each);
    stream_close(stream, device);
}

/* Stream b goes on only after a's event; the caller too. */
static void check_events(struct device *device)
{
    struct stream *a, *b;
    struct event *event, *never;
    int log[4], length = 0;
    CHECK_OK(stream_open(&a, device, "a"));
    CHECK_OK(stream_open(&b, device, "b"));
    CHECK_OK(event_open(&event, device));
    CHECK_OK(event_open(&never, device));
    CHECK_OK(event_synchronize(never, device)); /* never recorded: has passed */
    CHECK_OK(event_wait(never, b, device));
    struct step slow = {log, &length, 1, 30000, STATUS_OK}, after = {log, &length, 2, 0, STATUS_OK};
    CHECK_OK(stream_call(a, append, &slow, sizeof slow, device));
    CHECK_OK(event_record(event, a, device));
    CHECK_OK(event_wait(event, b, device));
    CHECK_OK(stream_call(b, append, &after, sizeof after, device));
    CHECK_OK(stream_synchronize(b, device));
    CHECK(length == 2 && log[0] == 1 && log[1] == 2);
    CHECK_OK(stream_call(a, append, &slow, sizeof slow, device));
    CHECK_OK(event_record(event, a, device));
    bool passed = true;
    CHECK_OK(event_passed(&passed, event, device));
    CHECK(!passed);
    CHECK_OK(event_synchronize(event, device));
    CHECK(length == 3 && log[2] == 1);
    CHECK_OK(event_passed(&passed, event, device));
    CHECK(passed);
    CHECK_OK(event_passed(&passed, never, device));
    CHECK(passed);

    /* What waits for a record does not wait for a later one, which comes after what waits. */
    CHECK_OK(event_record(event, a, device));
    CHECK_OK(event_wait(event, b, device));
    CHECK_OK(event_record(never, b, device));
    CHECK_OK(event_wait(never, a, device));
    CHECK_OK(event_record(event, a, device));
    CHECK_OK(stream_synchronize(a, device));
    CHECK_OK(stream_synchronize(b, device));

    /* An event behind a failure passes; the failure stays with its stream. */
    struct step broken = {log, &length, 3, 0, STATUS_SYSTEM};
    CHECK_OK(stream_call(a, append, &broken, sizeof broken, device));
    CHECK_OK(event_record(event, a, device));
    CHECK_OK(event_synchronize(event, device));
    CHECK_STATUS(stream_synchronize(a, device), STATUS_SYSTEM);
    stream_close(a, device);
    stream_close(b, device);
    event_close(event, device);
    event_close(never, device);
}

/* A device whose native streams are streams of the host: so ThreadSanitizer sees all of a stream
 * that feeds another. */
static struct device *beneath;

static enum status fake_thread_begin(struct device *device)
{
    return device->index == 3 ? STATUS_OK : STATUS_DATA;
}
static enum status fake_native_open(void **native, struct device *device)
{
    (void)device;
    return stream_open((struct stream **)native, beneath, "native");
}
static void fake_native_close(void *native, struct device *device)
{
    (void)device, stream_close(native, beneath);
}
static enum status fake_native_synchronize(void *native, struct device *device)
{
    (void)device;
    return stream_synchronize(native, beneath);
}
static enum status fake_mark_open(void **mark, struct device *device)
{
    (void)device;
    return event_open((struct event **)mark, beneath);
}
static enum status fake_mark_open_timed(void **mark, struct device *device)
{
    (void)device;
    return event_open_timed((struct event **)mark, beneath);
}
static void fake_mark_close(void *mark, struct device *device)
{
    (void)device, event_close(mark, beneath);
}
static enum status fake_mark_record(void *mark, void *native, struct device *device)
{
    (void)device;
    return event_record(mark, native, beneath);
}
static enum status fake_mark_wait(void *mark, void *native, struct device *device)
{
    (void)device;
    return event_wait(mark, native, beneath);
}
static enum status fake_mark_synchronize(void *mark, struct device *device)
{
    (void)device;
    return event_synchronize(mark, beneath);
}
static enum status fake_mark_passed(bool *passed, void *mark, struct device *device)
{
    (void)device;
    return event_passed(passed, mark, beneath);
}

static enum status fake_mark_elapsed(int64_t *ns, void *from, void *to, struct device *device)
{
    (void)device;
    return event_elapsed(ns, from, to, beneath);
}

struct relay {
    struct step step;
    struct stream *stream;
};

static enum status relay_run(void *arguments)
{
    struct relay *relay = arguments;
    return stream_call(
        stream_native(relay->stream), append, &relay->step, sizeof relay->step, beneath);
}

/* What is launched on two native streams, each waiting for the other in turn, comes in order. */
static void check_native_order(struct device *device)
{
    struct stream *streams[2];
    struct event *event;
    int log[200], length = 0, wrong = 0;
    for (int s = 0; s < 2; s++) CHECK_OK(stream_open(&streams[s], device, "test"));
    CHECK_OK(event_open(&event, device));
    for (int i = 0; i < 200; i++) {
        struct relay relay = {{log, &length, i, i % 50 == 0 ? 5000 : 0, STATUS_OK}, streams[i % 2]};
        CHECK_OK(event_wait(event, streams[i % 2], device));
        if (i % 3 == 0)
            CHECK_OK(stream_call(streams[i % 2], relay_run, &relay, sizeof relay, device));
        else CHECK_OK(stream_launch(streams[i % 2], relay_run, &relay, sizeof relay, device));
        CHECK_OK(event_record(event, streams[i % 2], device));
    }
    CHECK_OK(event_synchronize(event, device));
    CHECK(length == 200);
    for (int i = 0; i < length; i++) wrong += log[i] != i;
    CHECK(wrong == 0);
    for (int s = 0; s < 2; s++) stream_close(streams[s], device);
    event_close(event, device);
}

static void check_native(void)
{
    static const struct device_ops ops = {.name = "fake",
        .kind = MEMORY_HOST,
        .thread_begin = fake_thread_begin,
        .native_open = fake_native_open,
        .native_close = fake_native_close,
        .native_synchronize = fake_native_synchronize,
        .mark_open = fake_mark_open,
        .mark_close = fake_mark_close,
        .mark_record = fake_mark_record,
        .mark_wait = fake_mark_wait,
        .mark_synchronize = fake_mark_synchronize,
        .mark_passed = fake_mark_passed,
        .mark_open_timed = fake_mark_open_timed,
        .mark_elapsed = fake_mark_elapsed};
    struct device device = {.ops = &ops, .index = 3};
    CHECK_OK(device_open(&beneath, "host"));
    check_order(&device);
    check_failure(&device);
    check_launches(&device);
    check_events(&device);
    check_elapsed(&device);
    check_native_order(&device);
    device_close(beneath);
}

static void check_device(const char *name)
{
    struct device *device;
    if (!CHECK_OK(device_open(&device, name))) return;
    check_order(device);
    check_failure(device);
    check_launches(device);
    check_events(device);
    check_elapsed(device);
    device_close(device);
}

int main(void)
{
    check_device("host");
    check_native();
    if (test_has_device("cudasim")) check_device("cudasim");
    return test_result();
}
