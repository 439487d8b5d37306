/* device_stream: streams and events of every device: a worker thread and a ring of calls each, and,
 * on a device that has them, a native stream that the calls enqueue on.
 *
 *   stream_call ──► calls[queued mod N]      worker: takes calls[done mod N], runs it, done++
 *                   queued++  (lock)                 (lock released while a call runs)
 *
 * `done ≤ queued ≤ done + N` always. Everything is under the stream's one mutex; condition
 * `changed` is signalled when queued, done or closing changes. The mutex is recursive, for a call
 * that stream_launch() runs under it and that launches in turn.
 *
 * Each event_record() makes a moment; whoever waits holds on to the moment that was the event's
 * last when it asked, so a later record moves nothing for it. A moment has passed when the worker
 * has reached it and, where there is a mark, the device has reached that.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "verbs/clock.h"
#include "verbs/device_internal.h"
#include "verbs/device_ops.h"
#include "verbs/log.h"

#include <assert.h>

#define STREAM_CALLS 256

struct call {
    stream_function function;
    bool always; /* also after a failure */
    _Alignas(16) unsigned char arguments[STREAM_ARGUMENT_BYTES];
};

struct stream {
    struct device *device;
    void *native; /* NULL on the host */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t worker;
    char name[16];
    int rank, nranks;      /* the opener's log label */
    uint64_t queued, done; /* calls ever queued and finished */
    bool closing;
    enum status failure; /* of the first call that failed since the last report */
    char failure_text[STATUS_TEXT_BYTES];
    struct call calls[STREAM_CALLS];
};

struct moment {
    struct moment *next; /* of the event's spare ones */
    int users;           /* the event, if it is the last; its record; who waits for it. 0: spare */
    bool reached;        /* by the worker */
    bool marked;         /* the mark is in the native stream */
    void *mark;          /* NULL on the host */
    int64_t reached_ns;  /* of a timed event, on the host */
};

/* Its own lock, since any stream and any thread may wait for it. Taken after a stream's, never
 * before. */
struct event {
    struct device *device;
    bool timed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct moment *last; /* NULL: never recorded */
    struct moment *spare;
};

/* ---- streams ---- */

/* Needs the lock. The text is the calling thread's. */
static void stream_fails(struct stream *stream, enum status status)
{
    if (status == STATUS_OK || stream->failure != STATUS_OK) return;
    stream->failure = status;
    memcpy(stream->failure_text, status_text(), strlen(status_text()) + 1);
}

static void *stream_worker(void *argument)
{
    struct stream *stream = argument;
    const struct device_ops *ops = stream->device->ops;
    log_set_rank(stream->rank, stream->nranks);
    prctl(PR_SET_NAME, stream->name);
    enum status begun = ops->thread_begin == NULL ? STATUS_OK : ops->thread_begin(stream->device);
    pthread_mutex_lock(&stream->lock);
    stream_fails(stream, begun);
    for (;;) {
        while (stream->done == stream->queued && !stream->closing)
            pthread_cond_wait(&stream->changed, &stream->lock);
        if (stream->done == stream->queued) break;
        struct call *call = &stream->calls[stream->done % STREAM_CALLS];
        bool skip = stream->failure != STATUS_OK && !call->always;
        pthread_mutex_unlock(&stream->lock);
        enum status status = skip ? STATUS_OK : call->function(call->arguments);
        pthread_mutex_lock(&stream->lock);
        stream_fails(stream, status);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static void stream_free(struct stream *stream)
{
    if (stream->native != NULL) stream->device->ops->native_close(stream->native, stream->device);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

enum status stream_open(struct stream **out, struct device *device, const char *name)
{
    *out = NULL;
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return FAIL(STATUS_SYSTEM, "no memory for stream %s", name);
    stream->device = device;
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&stream->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    pthread_cond_init(&stream->changed, NULL);
    strncpy(stream->name, name, sizeof stream->name - 1);
    log_get_rank(&stream->rank, &stream->nranks);

    enum status status = STATUS_OK;
    if (device->ops->native_open != NULL)
        status = device->ops->native_open(&stream->native, device);
    if (status == STATUS_OK && pthread_create(&stream->worker, NULL, stream_worker, stream) != 0)
        status = FAIL(STATUS_SYSTEM,
            "no thread for stream %s: raise the limit of processes (ulimit -u)", name);
    if (status == STATUS_OK) *out = stream;
    else stream_free(stream);
    return status;
}

void stream_close(struct stream *stream, struct device *device)
{
    if (stream == NULL) return;
    assert(stream->device == device);
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->worker, NULL);
    if (stream->native != NULL &&
        device->ops->native_synchronize(stream->native, device) != STATUS_OK)
        LOG_WARN("device", "stream %s was closed with a failure that nobody asked for: %s",
            stream->name, status_text());
    stream_free(stream);
}

void *stream_native(const struct stream *stream)
{
    return stream->native;
}

/* Needs the lock. Waits for room. */
static void stream_queue(struct stream *stream, stream_function function, const void *arguments,
    size_t bytes, bool always)
{
    while (stream->queued - stream->done == STREAM_CALLS)
        pthread_cond_wait(&stream->changed, &stream->lock);
    struct call *call = &stream->calls[stream->queued % STREAM_CALLS];
    call->function = function;
    call->always = always;
    if (bytes > 0) memcpy(call->arguments, arguments, bytes);
    stream->queued++;
    pthread_cond_broadcast(&stream->changed);
}

enum status stream_call(struct stream *stream, stream_function function, const void *arguments,
    size_t bytes, struct device *device)
{
    assert(bytes <= STREAM_ARGUMENT_BYTES && stream->device == device);
    pthread_mutex_lock(&stream->lock);
    stream_queue(stream, function, arguments, bytes, false);
    pthread_mutex_unlock(&stream->lock);
    return STATUS_OK;
}

/* A call that never waits, so it need not be the worker that makes it: where the queue is empty,
 * the caller does. */
static void stream_enqueue(struct stream *stream, stream_function function, const void *arguments,
    size_t bytes, bool always)
{
    _Alignas(16) unsigned char copy[STREAM_ARGUMENT_BYTES];
    pthread_mutex_lock(&stream->lock);
    bool is_worker = pthread_equal(stream->worker, pthread_self());
    if (stream->native == NULL || (stream->queued != stream->done && !is_worker)) {
        stream_queue(stream, function, arguments, bytes, always);
    } else if (always || stream->failure == STATUS_OK) {
        if (bytes > 0) memcpy(copy, arguments, bytes);
        stream_fails(stream, function(copy));
    }
    pthread_mutex_unlock(&stream->lock);
}

enum status stream_launch(struct stream *stream, stream_function function, const void *arguments,
    size_t bytes, struct device *device)
{
    assert(bytes <= STREAM_ARGUMENT_BYTES && stream->device == device);
    stream_enqueue(stream, function, arguments, bytes, false);
    return STATUS_OK;
}

void stream_settle(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t target = stream->queued;
    while (stream->done < target) pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

enum status stream_synchronize(struct stream *stream, struct device *device)
{
    assert(stream->device == device);
    stream_settle(stream);
    enum status status = STATUS_OK;
    if (stream->native != NULL) status = device->ops->native_synchronize(stream->native, device);
    pthread_mutex_lock(&stream->lock);
    if (stream->failure !=
        STATUS_OK) { /* the first cause, before what the device says of its consequences */
        status = stream->failure;
        status_set_text(stream->failure_text);
        stream->failure = STATUS_OK;
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* ---- events ---- */

enum status event_open(struct event **event, struct device *device)
{
    *event = calloc(1, sizeof **event);
    if (*event == NULL) return FAIL(STATUS_SYSTEM, "no memory for an event");
    (*event)->device = device;
    pthread_mutex_init(&(*event)->lock, NULL);
    pthread_cond_init(&(*event)->changed, NULL);
    return STATUS_OK;
}

enum status event_open_timed(struct event **event, struct device *device)
{
    TRY(event_open(event, device));
    (*event)->timed = true;
    return STATUS_OK;
}

/* Needs the lock, or nobody else. */
static void moment_drop(struct moment *moment, struct event *event)
{
    if (moment == NULL || --moment->users > 0) return;
    moment->next = event->spare;
    event->spare = moment;
}

void event_close(struct event *event, struct device *device)
{
    if (event == NULL) return;
    assert(event->device == device);
    moment_drop(event->last, event);
    for (struct moment *moment = event->spare; moment != NULL;) {
        struct moment *next = moment->next;
        if (moment->mark != NULL) device->ops->mark_close(moment->mark, device);
        free(moment);
        moment = next;
    }
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

/* Needs the lock. A new moment, the event's last from now on. */
static enum status event_advance(struct event *event)
{
    struct moment *moment = event->spare;
    if (moment != NULL) event->spare = moment->next;
    else if ((moment = calloc(1, sizeof *moment)) == NULL)
        return FAIL(STATUS_SYSTEM, "no memory for an event");
    enum status status = STATUS_OK;
    const struct device_ops *ops = event->device->ops;
    if (ops->mark_open != NULL && moment->mark == NULL)
        status = (event->timed ? ops->mark_open_timed : ops->mark_open)(&moment->mark, event->device);
    moment->users = 1;
    moment->reached = moment->marked = false;
    if (status != STATUS_OK) {
        moment_drop(moment, event);
        return status;
    }
    moment_drop(event->last, event);
    event->last = moment;
    return STATUS_OK;
}

struct moment_call {
    struct event *event;
    struct moment *moment;
    struct stream *stream;
};

/* Also after a failure, so that nobody waits for what will never come. */
static enum status record_run(void *arguments)
{
    const struct moment_call *call = arguments;
    struct event *event = call->event;
    enum status status = STATUS_OK;
    if (call->moment->mark != NULL)
        status = event->device->ops->mark_record(
            call->moment->mark, call->stream->native, event->device);
    pthread_mutex_lock(&event->lock);
    if (event->timed) call->moment->reached_ns = clock_ns();
    call->moment->reached = true;
    call->moment->marked = call->moment->mark != NULL && status == STATUS_OK;
    moment_drop(call->moment, event);
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
    return status;
}

enum status event_record(struct event *event, struct stream *stream, struct device *device)
{
    assert(event->device == device && stream->device == device);
    pthread_mutex_lock(&event->lock);
    enum status status = event_advance(event);
    struct moment_call call = {event, event->last, stream};
    if (status == STATUS_OK) call.moment->users++;
    pthread_mutex_unlock(&event->lock);
    if (status == STATUS_OK) stream_enqueue(stream, record_run, &call, sizeof call, true);
    return status;
}

/* The event's last moment, with one more user; NULL: never recorded. */
static struct moment *event_last(bool *reached, struct event *event)
{
    pthread_mutex_lock(&event->lock);
    struct moment *moment = event->last;
    if (moment != NULL) moment->users++;
    *reached = moment != NULL && moment->reached;
    pthread_mutex_unlock(&event->lock);
    return moment;
}

/* Until its worker has reached the moment. Whether it is marked. */
static bool moment_await(struct moment *moment, struct event *event)
{
    pthread_mutex_lock(&event->lock);
    while (!moment->reached) pthread_cond_wait(&event->changed, &event->lock);
    bool marked = moment->marked;
    pthread_mutex_unlock(&event->lock);
    return marked;
}

static void moment_leave(struct moment *moment, struct event *event)
{
    pthread_mutex_lock(&event->lock);
    moment_drop(moment, event);
    pthread_mutex_unlock(&event->lock);
}

static enum status wait_run(void *arguments)
{
    const struct moment_call *call = arguments;
    struct device *device = call->event->device;
    enum status status = STATUS_OK;
    if (moment_await(call->moment, call->event))
        status = device->ops->mark_wait(call->moment->mark, call->stream->native, device);
    moment_leave(call->moment, call->event);
    return status;
}

enum status event_wait(struct event *event, struct stream *stream, struct device *device)
{
    assert(event->device == device && stream->device == device);
    bool reached;
    struct moment_call call = {event, event_last(&reached, event), stream};
    if (call.moment == NULL) return STATUS_OK;
    if (reached) {
        stream_enqueue(stream, wait_run, &call, sizeof call, true);
        return STATUS_OK;
    }
    pthread_mutex_lock(&stream->lock); /* the worker waits, not the caller */
    stream_queue(stream, wait_run, &call, sizeof call, true);
    pthread_mutex_unlock(&stream->lock);
    return STATUS_OK;
}

enum status event_synchronize(struct event *event, struct device *device)
{
    assert(event->device == device);
    bool reached;
    enum status status = STATUS_OK;
    struct moment *moment = event_last(&reached, event);
    if (moment == NULL) return STATUS_OK;
    if (moment_await(moment, event)) status = device->ops->mark_synchronize(moment->mark, device);
    moment_leave(moment, event);
    return status;
}

enum status event_passed(bool *passed, struct event *event, struct device *device)
{
    assert(event->device == device);
    enum status status = STATUS_OK;
    pthread_mutex_lock(&event->lock);
    const struct moment *moment = event->last;
    *passed = moment == NULL || moment->reached;
    if (moment != NULL && moment->reached && moment->marked)
        status = device->ops->mark_passed(passed, moment->mark, device);
    pthread_mutex_unlock(&event->lock);
    return status;
}

/* Where an event's last record passed; on the host when, too. */
static void event_where(void **mark, int64_t *reached_ns, struct event *event)
{
    pthread_mutex_lock(&event->lock);
    const struct moment *moment = event->last;
    assert(event->timed && moment != NULL && moment->reached);
    *mark = moment->marked ? moment->mark : NULL;
    *reached_ns = moment->reached_ns;
    pthread_mutex_unlock(&event->lock);
}

enum status event_elapsed(
    int64_t *ns, struct event *from, struct event *to, struct device *device)
{
    void *from_mark, *to_mark;
    int64_t from_ns, to_ns;
    assert(from->device == device && to->device == device);
    event_where(&from_mark, &from_ns, from);
    event_where(&to_mark, &to_ns, to);
    *ns = to_ns - from_ns;
    if (from_mark == NULL || to_mark == NULL) return STATUS_OK; /* the host, or a stream that failed */
    return device->ops->mark_elapsed(ns, from_mark, to_mark, device);
}
