/* device: memory of a kind, streams and events on it, and the count of every byte held.
 *
 * A device is a table of functions (device_ops.h); the host's is built in (device_host.c), CUDA's
 * comes from a module that is loaded when it is asked for (plugin.h). Everything above calls the
 * functions of this header, never the table.
 *
 *   name       memory_alloc() gives    who can load and store it          streams
 *   host       MEMORY_HOST             the CPU                            a worker thread
 *   cuda       MEMORY_CUDA             kernels, copies; never the CPU     a worker that feeds a CUDA stream
 *   cudasim    MEMORY_CUDA             the same, of the simulator         the same
 *
 * MEMORY_HOST_PINNED is host memory that a CUDA device reaches too: copies between the two run
 * beside the CPU, and kernels may load and store it. On the host it is memory as any other.
 *
 * A span travels, never a naked pointer: whoever receives one can tell how many bytes it may touch
 * and by what means.
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

const char *memory_kind_name(enum memory_kind kind); /* "pinned host memory", … */

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
    struct span part = {
        whole.ptr == NULL ? NULL : (char *)whole.ptr + offset, bytes, whole.kind, whole.device};
    return part;
}

/* What a byte is held for. The ground floor only counts by these labels. */
enum memory_tag {
    MEMORY_WEIGHTS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_OFFLOADED, /* in host memory instead: counted beside the device's own, on the host too */
    MEMORY_ACTIVATIONS,
    MEMORY_CHECKPOINTS,
    MEMORY_GATHERED, /* whole units on the way: for a use, or gradients until they are reduced */
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

struct device_ops;
struct device_inside;
struct plugin;

struct device {
    const struct device_ops *ops;
    int index; /* ordinal among the devices of its name; 0 on the host */
    struct memory_account account;
    struct memory_account beside; /* of another kind of memory: pinned host memory of a CUDA device */
    uint64_t held_bytes;  /* of account, all tags. Used through __atomic builtins, as the accounts */
    uint64_t limit_bytes; /* of them; 0: none */
    struct device_inside *inside; /* device_companion.c's */
    const struct plugin *plugin;  /* where its functions come from; NULL: built in */
    void *state;                  /* of its functions */
};

/* Opens a device by name: "host", "cuda" or "cudasim"; "cuda:1" for the one with ordinal 1. Without
 * an ordinal it is RINGZERO_CUDA_DEVICE's, else the local rank's: local_rank mod the number of
 * devices (device_open(): local rank 0). Close with device_close(); NULL is accepted. Ranks that
 * are processes open their device after fork(): CUDA does not survive one. errors: INVALID for any
 * other name or an ordinal that is not there; CUDA when there is no driver, one that is too old, or
 * no device; SYSTEM when the module is not built or cannot be loaded, saying where it was looked
 * for. */
MUST_CHECK enum status device_open(struct device **device, const char *name);
MUST_CHECK enum status device_open_local(struct device **device, const char *name, int local_rank);
void device_close(struct device *device);

/* "host", "cuda" or "cudasim"; and the kind of memory_alloc()'s memory. */
const char *device_name(const struct device *device);
enum memory_kind device_kind(const struct device *device);

/* Whether a device of this name could be opened, as far as can be told without touching it (a
 * parent may ask, and fork then): 0, or a failure as of device_open(). */
MUST_CHECK enum status device_known(const char *name);

/* What a device brings beside memory and streams: the functions of a folder, as that folder defines
 * them. */
enum plugin_table {
    PLUGIN_REDUCE, /* ring: struct reduce_ops */
    PLUGIN_RING,   /* ring: the executor */
    PLUGIN_MODEL,  /* model: struct model_ops */
    PLUGIN_ADAM,   /* optim: struct adam_ops */
    PLUGIN_TABLE_COUNT
};

/* NULL on the host, whose tables are built in, and where the module was built without it. */
const void *device_table(const struct device *device, enum plugin_table table);

/* From now on all tags together may hold at most `bytes`; 0: no limit, as after opening. What is
 * held already stays. Before other threads use the device. */
void device_limit(struct device *device, uint64_t bytes);

/* Zeroed memory of the device's own kind, aligned to 64 bytes on the host (2 MiB and backed by huge
 * pages where large) and to 256 on CUDA, counted under tag. bytes may be 0: ptr is then NULL. *span
 * is yours until memory_free(), which accepts a zeroed span and zeroes the one it frees; of CUDA
 * memory only when no work that uses it is in flight: it waits for the whole device. errors: SYSTEM
 * when there is no memory, naming the tag and the bytes, or when the device's limit would be
 * passed, naming what is held too; nothing is then held. threads: any. cost: on CUDA hundreds of µs
 * and all streams waited for: allocate arenas, not tensors. */
MUST_CHECK enum status memory_alloc(
    struct span *span, size_t bytes, enum memory_tag tag, struct device *device);
/* The same of a kind: MEMORY_HOST_PINNED on every device, counted beside the device's own memory
 * where that is of another kind, and then without limit. errors: INVALID also for a kind that the
 * device does not have. */
MUST_CHECK enum status memory_alloc_kind(struct span *span, size_t bytes, enum memory_kind kind,
    enum memory_tag tag, struct device *device);
void memory_free(struct span *span, enum memory_tag tag, struct device *device);

/* Counts bytes of host memory that come from elsewhere (a shared segment) and are held for this
 * device's rank: of a CUDA device, beside its own and without limit. memory_reserve() before they
 * are fetched, if the limit leaves room for them: errors: SYSTEM, as memory_alloc(). memory_count()
 * where they are there already, limit or not, or (negative) are given back. threads: any. */
MUST_CHECK enum status memory_reserve(struct device *device, enum memory_tag tag, uint64_t bytes);
void memory_count(struct device *device, enum memory_tag tag, int64_t bytes);

/* A consistent copy of the counters: of the device's own kind of memory, and of pinned host memory
 * beside it (all zero on the host, where both are one). threads: any. */
struct memory_account memory_account_read(struct device *device);
struct memory_account memory_account_read_beside(struct device *device);
/* Peaks of both begin anew, at what is held now: before another piece of work whose own peaks are to be known. Nothing
 * is allocated meanwhile. */
void memory_account_forget_peaks(struct device *device);

/* What memory_alloc() gave and memory_free() has not taken back. An address may come again, an id
 * never does: it is by the id that one remembers an allocation, for instance what a NIC was told of
 * it. */
struct allocation {
    const void *ptr;
    size_t bytes;
    uint64_t id;
    enum memory_kind kind;
};

/* The allocation that [ptr, ptr + bytes) lies in, whole; false when there is none: memory from
 * elsewhere. threads: any. */
bool memory_find(
    struct allocation *allocation, const void *ptr, size_t bytes, struct device *device);

/* What is opened once per device, at its first use, and lives as long as the device does: a
 * transport's hardware, and what it has registered of the device's memory. Its maker fills the two
 * functions; the rest is device_companion.c's. */
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

/* The companion that `open` makes: made by the first call, found by those after it. open must not
 * allocate from a device. errors: those of open; nothing is left then, and the next call tries
 * again. threads: any. */
MUST_CHECK enum status device_companion_find(
    struct device_companion **companion, device_companion_open open, struct device *device);

/* A stream is a queue of calls that run one after another, in order, beside the caller, on one
 * worker thread, which carries the log label of the opener. On CUDA the worker's calls enqueue work
 * on a CUDA stream of its own (non-blocking: no implicit order with any other), and what is
 * enqueued runs beside the worker, in that order:
 *
 *   caller   stream_call(a), stream_call(b), event_record(e)
 *   worker     a: launches K1      b: launches K2    e: cudaEventRecord
 *   device       ···K1·····K2···e
 *
 * After a call fails, the later ones are skipped until the failure has been reported by
 * stream_synchronize(). stream_close() runs what is queued, and waits for it, then frees. */
MUST_CHECK enum status stream_open(struct stream **stream, struct device *device, const char *name);
void stream_close(struct stream *stream, struct device *device);

/* Queues function(copy of arguments). bytes ≤ STREAM_ARGUMENT_BYTES. Returns at once, or waits for
 * room in the queue. What the arguments point at must live until the call has run. threads: any,
 * but the stream's own worker. */
MUST_CHECK enum status stream_call(struct stream *stream, stream_function function,
    const void *arguments, size_t bytes, struct device *device);

/* The same for a function that only enqueues on stream_native() and never waits (a kernel, a copy):
 * where nothing is queued ahead of it, it runs before this returns, in the calling thread, and
 * saves the way over the worker. Its failure is the stream's all the same. Called by a function of
 * the same stream it runs at once. On the host it is stream_call(). */
MUST_CHECK enum status stream_launch(struct stream *stream, stream_function function,
    const void *arguments, size_t bytes, struct device *device);

/* The cudaStream_t, to launch on within calls of this stream (anywhere else the launch is not in
 * order with them); NULL on the host. */
void *stream_native(const struct stream *stream);

/* Waits until everything queued so far has run, on the device too; returns the first failure since
 * the last report, with its text. The wait is bounded by the deadlines of the calls queued: each
 * has its own. errors: those of the calls; CUDA when a kernel or a copy failed. Some such errors
 * end the device for this process: the text says so, and every later call fails with it. */
MUST_CHECK enum status stream_synchronize(struct stream *stream, struct device *device);

/* An event marks a place in a stream. record: when the stream reaches this point. wait: the stream
 * goes on only after the event's last record has passed. synchronize: the same for the caller;
 * passed: asks and does not wait. An event never recorded has passed. An event whose stream failed
 * before it passes too: the failure is the stream's to report. event_close(): when the calls that
 * name it have run. threads: any, one at a time per event for record. */
MUST_CHECK enum status event_open(struct event **event, struct device *device);
/* The same, and it knows when it passed: a little dearer to record. */
MUST_CHECK enum status event_open_timed(struct event **event, struct device *device);
void event_close(struct event *event, struct device *device);
MUST_CHECK enum status event_record(
    struct event *event, struct stream *stream, struct device *device);
MUST_CHECK enum status event_wait(
    struct event *event, struct stream *stream, struct device *device);
MUST_CHECK enum status event_synchronize(struct event *event, struct device *device);
MUST_CHECK enum status event_passed(bool *passed, struct event *event, struct device *device);

/* *ns: from where the last record of `from` passed to where that of `to` did. Both are timed, have
 * been recorded and have passed. On CUDA to within about half a µs; where a stream failed
 * before, when its worker passed. errors: CUDA. */
MUST_CHECK enum status event_elapsed(
    int64_t *ns, struct event *from, struct event *to, struct device *device);

/* Copies src to dst, any kind to any kind: dst.bytes ≥ src.bytes, and src.bytes are copied; they do
 * not overlap. With a stream it is queued there, and both must live and src stay unchanged until
 * the stream has passed it; copies from and to MEMORY_HOST hold the worker up meanwhile,
 * MEMORY_HOST_PINNED does not. stream NULL: done when it returns, and not in order with any stream.
 * span_fill(): every byte of dst. errors: INVALID for a kind that this device cannot reach; CUDA.
 * threads: any. */
MUST_CHECK enum status span_copy(
    struct span dst, struct span src, struct stream *stream, struct device *device);
MUST_CHECK enum status span_fill(
    struct span dst, int byte, struct stream *stream, struct device *device);

#ifdef __cplusplus
}
#endif
#endif
