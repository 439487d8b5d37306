/* device: memory of a kind, streams and events on it, and the count of every byte held.
 *
 * A device is a table of functions; the host's is built in (device_host.c), CUDA's comes from a plugin. Everything above
 * calls the functions of this header, never the table.
 *
 * A span travels, never a naked pointer: whoever receives one can tell how many bytes it may touch and by what means.
 */
#ifndef VERBS_DEVICE_H
#define VERBS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum memory_kind { MEMORY_HOST, MEMORY_HOST_PINNED, MEMORY_CUDA };

struct span {
    void *ptr;
    size_t bytes;
    enum memory_kind kind;
    int device; /* ordinal within its kind; 0 on the host */
};

/* Memory that the caller already has on the host, from malloc or the stack. */
static inline struct span span_host(const void *ptr, size_t bytes)
{
    struct span span = {(void *)(uintptr_t)ptr, bytes, MEMORY_HOST, 0};
    return span;
}

/* bytes from offset on; the caller has checked that they lie within. */
static inline struct span span_part(struct span whole, size_t offset, size_t bytes)
{
    struct span part = {whole.ptr == NULL ? NULL : (char *)whole.ptr + offset, bytes, whole.kind, whole.device};
    return part;
}

/* What a byte is held for. The ground floor only counts by these labels. */
enum memory_tag {
    MEMORY_WEIGHTS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_ACTIVATIONS,
    MEMORY_CHECKPOINTS,
    MEMORY_GATHERED,      /* whole units on the way: gathered for a use, or gradients until they are reduced */
    MEMORY_COMMUNICATION, /* slots, buckets: constant */
    MEMORY_WORKSPACE,
    MEMORY_TAG_COUNT
};
const char *memory_tag_name(enum memory_tag tag);

/* Bytes held now and at most, per tag. One per device object, so one per rank. */
struct memory_account {
    uint64_t now[MEMORY_TAG_COUNT];
    uint64_t peak[MEMORY_TAG_COUNT];
};

struct stream;
struct event;

/* Work of a stream. `arguments` points at the stream's copy of what stream_call() was given. */
typedef enum status (*stream_function)(void *arguments);
#define STREAM_ARGUMENT_BYTES 256

/* Implemented once per device. All members are required. */
struct device_ops {
    const char *name; /* "host" */
    enum memory_kind kind;
    enum status (*alloc)(void **ptr, size_t bytes);
    void (*free)(void *ptr, size_t bytes);
    enum status (*fill)(void *ptr, int byte, size_t bytes);
    enum status (*stream_open)(struct stream **stream, const char *name);
    void (*stream_close)(struct stream *stream);
    enum status (*stream_call)(struct stream *stream, stream_function function, const void *arguments, size_t bytes);
    enum status (*stream_synchronize)(struct stream *stream);
    enum status (*event_open)(struct event **event);
    void (*event_close)(struct event *event);
    enum status (*event_record)(struct event *event, struct stream *stream);
    enum status (*event_wait)(struct event *event, struct stream *stream);
    enum status (*event_synchronize)(struct event *event);
};

struct device_inside;

struct device {
    const struct device_ops *ops;
    int index;
    struct memory_account account;
    uint64_t held_bytes;  /* of all tags together. Used through __atomic builtins, as the account is */
    uint64_t limit_bytes; /* of them; 0: none */
    struct device_inside *inside; /* device_companion.c's */
};

/* Opens a device by name: "host". errors: INVALID for any other name. Close with device_close(); NULL is accepted. */
MUST_CHECK enum status device_open(struct device **device, const char *name);
void device_close(struct device *device);

/* From now on all tags together may hold at most `bytes`; 0: no limit, as after opening. What is held already stays. Before
 * other threads use the device. */
void device_limit(struct device *device, uint64_t bytes);

/* Zeroed memory, aligned to 64 bytes (2 MiB and backed by huge pages where large), counted under tag. bytes may be 0: ptr is
 * then NULL. *span is yours until memory_free(), which accepts a zeroed span and zeroes the one it frees.
 * errors: SYSTEM when there is no memory, naming the tag and the bytes, or when the device's limit would be passed, naming
 * what is held too; nothing is then held. threads: any. */
MUST_CHECK enum status memory_alloc(struct span *span, size_t bytes, enum memory_tag tag, struct device *device);
void memory_free(struct span *span, enum memory_tag tag, struct device *device);

/* Counts bytes that come from elsewhere (a shared segment) and are held for this device's rank. memory_reserve() before they
 * are fetched, if the limit leaves room for them: errors: SYSTEM, as memory_alloc(). memory_count() where they are there
 * already, limit or not, or (negative) are given back. threads: any. */
MUST_CHECK enum status memory_reserve(struct device *device, enum memory_tag tag, uint64_t bytes);
void memory_count(struct device *device, enum memory_tag tag, int64_t bytes);

/* A consistent copy of the counters. threads: any. */
struct memory_account memory_account_read(struct device *device);

/* What memory_alloc() gave and memory_free() has not taken back. An address may come again, an id never does: it is by the id that
 * one remembers an allocation, for instance what a NIC was told of it. */
struct allocation {
    const void *ptr;
    size_t bytes;
    uint64_t id;
};

/* The allocation that [ptr, ptr + bytes) lies in, whole; false when there is none: memory from elsewhere. threads: any. */
bool memory_find(struct allocation *allocation, const void *ptr, size_t bytes, struct device *device);

/* What is opened once per device, at its first use, and lives as long as the device does: a transport's hardware, and what it has
 * registered of the device's memory. Its maker fills the two functions; the rest is device_companion.c's. */
struct device_companion;
typedef enum status (*device_companion_open)(struct device_companion **companion);

struct device_companion {
    /* memory_free() is about to free it. optional */
    void (*forget)(const struct allocation *allocation, struct device_companion *companion);
    /* device_close() has come; frees the companion. required */
    void (*close)(struct device_companion *companion);
    device_companion_open open;
    struct device_companion *older;
};

/* The companion that `open` makes: made by the first call, found by those after it. open must not allocate from a device.
 * errors: those of open; nothing is left then, and the next call tries again. threads: any. */
MUST_CHECK enum status device_companion(
    struct device_companion **companion, device_companion_open open, struct device *device);

/* A stream is a queue of calls that run one after another, in order, beside the caller (host: on one worker thread, which
 * carries the log label of the opener). After a call fails, the later ones are skipped until the failure has been reported by
 * stream_synchronize(). stream_close() runs what is queued, then frees. */
MUST_CHECK enum status stream_open(struct stream **stream, struct device *device, const char *name);
void stream_close(struct stream *stream, struct device *device);

/* Queues function(copy of arguments). bytes ≤ STREAM_ARGUMENT_BYTES. Returns at once, or waits for room in the queue.
 * What the arguments point at must live until the call has run. threads: any. */
MUST_CHECK enum status stream_call(struct stream *stream, stream_function function, const void *arguments, size_t bytes,
    struct device *device);

/* Waits until everything queued so far has run; returns the first failure since the last report, with its text. The wait
 * is bounded by the deadlines of the calls queued: each has its own. */
MUST_CHECK enum status stream_synchronize(struct stream *stream, struct device *device);

/* An event marks a place in a stream. record: when the stream reaches this point. wait: the stream goes on only after the
 * event's last record has passed. synchronize: the same for the caller. An event never recorded has passed. An event whose
 * stream failed before it passes too: the failure is the stream's to report. */
MUST_CHECK enum status event_open(struct event **event, struct device *device);
void event_close(struct event *event, struct device *device);
MUST_CHECK enum status event_record(struct event *event, struct stream *stream, struct device *device);
MUST_CHECK enum status event_wait(struct event *event, struct stream *stream, struct device *device);
MUST_CHECK enum status event_synchronize(struct event *event, struct device *device);

#ifdef __cplusplus
}
#endif
#endif
