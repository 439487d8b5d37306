/* device_host: host memory, and streams that are one worker thread and a ring of calls each.
 *
 *   stream_call ──► calls[queued mod N]      worker: takes calls[done mod N], runs it, done++
 *                   queued++  (lock)                 (lock released while a call runs)
 *
 * `done ≤ queued ≤ done + N` always. An event remembers (stream's ticket at record); it has passed when done ≥ ticket.
 * Everything is under the stream's one mutex; condition `changed` is signalled when queued, done or closing changes.
 */
#include "verbs/device_host.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "verbs/log.h"

#define STREAM_CALLS     256
#define LARGE_ALLOCATION ((size_t)2 << 20)

struct call {
    stream_function function;
    struct event *waits_for; /* a call that runs nothing but waits: see host_event_wait() */
    uint64_t ticket;         /* of waits_for at the time of the wait */
    _Alignas(16) unsigned char arguments[STREAM_ARGUMENT_BYTES];
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t worker;
    char name[16];
    int rank, nranks;      /* the opener's log label */
    uint64_t queued, done; /* calls ever queued and finished */
    bool closing;
    enum status failure;   /* of the first call that failed since the last report */
    char failure_text[STATUS_TEXT_BYTES];
    struct call calls[STREAM_CALLS];
};

/* Passed when `passed` ≥ the ticket drawn by the record. Its own lock, since any stream and any thread may wait for it. */
struct event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, passed;
};

static enum status host_alloc(void **ptr, size_t bytes)
{
    size_t alignment = bytes >= LARGE_ALLOCATION ? LARGE_ALLOCATION : 64;
    if (posix_memalign(ptr, alignment, bytes) != 0)
        return FAIL(STATUS_SYSTEM, "no memory for %zu bytes", bytes);
    if (alignment == LARGE_ALLOCATION) madvise(*ptr, bytes, MADV_HUGEPAGE); /* advice: failure changes nothing */
    memset(*ptr, 0, bytes);
    return STATUS_OK;
}

static void host_free(void *ptr, size_t bytes)
{
    (void)bytes;
    free(ptr);
}

static enum status host_fill(void *ptr, int byte, size_t bytes)
{
    memset(ptr, byte, bytes);
    return STATUS_OK;
}

static void event_wait_for(struct event *event, uint64_t ticket)
{
    pthread_mutex_lock(&event->lock);
    while (event->passed < ticket) pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

static uint64_t event_last_record(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    uint64_t ticket = event->recorded;
    pthread_mutex_unlock(&event->lock);
    return ticket;
}

/* Runs without the stream's lock. Events pass even after a failure, so that nobody waits for what will never run. */
static enum status call_run(struct call *call, bool failed)
{
    if (call->waits_for != NULL) {
        event_wait_for(call->waits_for, call->ticket);
        return STATUS_OK;
    }
    return failed ? STATUS_OK : call->function(call->arguments);
}

struct record_arguments {
    struct event *event;
    uint64_t ticket;
};

static enum status event_pass(void *arguments)
{
    struct record_arguments *record = arguments;
    pthread_mutex_lock(&record->event->lock);
    if (record->event->passed < record->ticket) record->event->passed = record->ticket;
    pthread_cond_broadcast(&record->event->changed);
    pthread_mutex_unlock(&record->event->lock);
    return STATUS_OK;
}

static void *stream_worker(void *argument)
{
    struct stream *stream = argument;
    log_set_rank(stream->rank, stream->nranks);
    prctl(PR_SET_NAME, stream->name);
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (stream->done == stream->queued && !stream->closing)
            pthread_cond_wait(&stream->changed, &stream->lock);
        if (stream->done == stream->queued) break;
        struct call *call = &stream->calls[stream->done % STREAM_CALLS];
        bool failed = stream->failure != STATUS_OK && call->function != event_pass;
        pthread_mutex_unlock(&stream->lock);
        enum status status = call_run(call, failed);
        pthread_mutex_lock(&stream->lock);
        if (status != STATUS_OK && stream->failure == STATUS_OK) {
            stream->failure = status;
            memcpy(stream->failure_text, status_text(), STATUS_TEXT_BYTES);
        }
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static enum status host_stream_open(struct stream **out, const char *name)
{
    *out = NULL;
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return FAIL(STATUS_SYSTEM, "no memory for stream %s", name);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    strncpy(stream->name, name, sizeof stream->name - 1);
    log_get_rank(&stream->rank, &stream->nranks);
    if (pthread_create(&stream->worker, NULL, stream_worker, stream) != 0) {
        free(stream);
        return FAIL(STATUS_SYSTEM, "no thread for stream %s: raise the limit of processes (ulimit -u)", name);
    }
    *out = stream;
    return STATUS_OK;
}

static void host_stream_close(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->worker, NULL);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

static void stream_queue(struct stream *stream, stream_function function, const void *arguments, size_t bytes,
    struct event *waits_for, uint64_t ticket)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->queued - stream->done == STREAM_CALLS) pthread_cond_wait(&stream->changed, &stream->lock);
    struct call *call = &stream->calls[stream->queued % STREAM_CALLS];
    call->function = function;
    call->waits_for = waits_for;
    call->ticket = ticket;
    if (bytes > 0) memcpy(call->arguments, arguments, bytes);
    stream->queued++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static enum status host_stream_call(
    struct stream *stream, stream_function function, const void *arguments, size_t bytes)
{
    stream_queue(stream, function, arguments, bytes, NULL, 0);
    return STATUS_OK;
}

static enum status host_stream_synchronize(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t target = stream->queued;
    while (stream->done < target) pthread_cond_wait(&stream->changed, &stream->lock);
    enum status failure = stream->failure;
    if (failure != STATUS_OK) status_set_text(stream->failure_text);
    stream->failure = STATUS_OK;
    pthread_mutex_unlock(&stream->lock);
    return failure;
}

static enum status host_event_open(struct event **event)
{
    *event = calloc(1, sizeof **event);
    if (*event == NULL) return FAIL(STATUS_SYSTEM, "no memory for an event");
    pthread_mutex_init(&(*event)->lock, NULL);
    pthread_cond_init(&(*event)->changed, NULL);
    return STATUS_OK;
}

static void host_event_close(struct event *event)
{
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static enum status host_event_record(struct event *event, struct stream *stream)
{
    pthread_mutex_lock(&event->lock);
    struct record_arguments record = {event, ++event->recorded};
    pthread_mutex_unlock(&event->lock);
    stream_queue(stream, event_pass, &record, sizeof record, NULL, 0);
    return STATUS_OK;
}

static enum status host_event_wait(struct event *event, struct stream *stream)
{
    uint64_t ticket = event_last_record(event);
    if (ticket > 0) stream_queue(stream, NULL, NULL, 0, event, ticket);
    return STATUS_OK;
}

static enum status host_event_synchronize(struct event *event)
{
    event_wait_for(event, event_last_record(event));
    return STATUS_OK;
}

const struct device_ops device_host_ops = {
    .name = "host",
    .kind = MEMORY_HOST,
    .alloc = host_alloc,
    .free = host_free,
    .fill = host_fill,
    .stream_open = host_stream_open,
    .stream_close = host_stream_close,
    .stream_call = host_stream_call,
    .stream_synchronize = host_stream_synchronize,
    .event_open = host_event_open,
    .event_close = host_event_close,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
    .event_synchronize = host_event_synchronize,
};
