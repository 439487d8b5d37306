/* plugin: what needs CUDA is in a module of its own, loaded when it is asked for, so that one
 * program starts with and without a GPU.
 *
 *   program                                             module: libringzero_cuda.so, …_cudasim.so
 *     device_open("cuda")
 *       plugin_load() ── dlopen, ringzero_plugin() ───►   the device's functions (device_cuda.c) and
 *                     ◄── struct plugin ──────────────   each folder's table (…_cuda.c, …_cuda.cu)
 *     FAIL, LOG, memory, …  ◄── struct plugin_host ───   the same names, passed on (plugin_cuda.c)
 *
 * Both modules have the same sources: one is linked to the CUDA runtime and cuBLAS, the other to
 * the simulator. A module is looked for, in this order: in RINGZERO_PLUGIN_DIR alone, if that is
 * set; beside the program, in the folder above it, in its ../lib; where dlopen() looks. It is never
 * unloaded.
 */
#ifndef VERBS_PLUGIN_H
#define VERBS_PLUGIN_H

#include "verbs/device_ops.h"
#include "verbs/log.h"
#include "verbs/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change of this header, device.h, device_ops.h, or a table. A module of another
 * version is refused. */
#define PLUGIN_VERSION 10

/* What a module may call in the program: all as in status.h, log.h and device.h, texts formatted
 * already. */
struct plugin_host {
    enum status (*status_fail)(enum status code, const char *file, int line, const char *text);
    enum status (*status_trace)(enum status code, const char *file, int line);
    const char *(*status_text)(void);
    void (*status_set_text)(const char *text);
    enum log_level (*log_level)(void);
    void (*log_line)(enum log_level level, const char *subsystem, const char *text);
    enum status (*memory_alloc_kind)(struct span *span, size_t bytes, enum memory_kind kind,
        enum memory_tag tag, struct device *device);
    void (*memory_free)(struct span *span, enum memory_tag tag, struct device *device);
    bool (*memory_find)(
        struct allocation *allocation, const void *ptr, size_t bytes, struct device *device);
    void *(*stream_native)(const struct stream *stream);
    enum status (*stream_call)(struct stream *stream, stream_function function,
        const void *arguments, size_t bytes, struct device *device);
    enum status (*stream_launch)(struct stream *stream, stream_function function,
        const void *arguments, size_t bytes, struct device *device);
    enum status (*stream_synchronize)(struct stream *stream, struct device *device);
    enum status (*event_record)(struct event *event, struct stream *stream, struct device *device);
    enum status (*event_wait)(struct event *event, struct stream *stream, struct device *device);
    enum status (*event_synchronize)(struct event *event, struct device *device);
    enum status (*event_passed)(bool *passed, struct event *event, struct device *device);
    enum status (*span_copy)(
        struct span dst, struct span src, struct stream *stream, struct device *device);
    enum status (*span_fill)(
        struct span dst, int byte, struct stream *stream, struct device *device);
};

struct plugin {
    uint64_t version;
    const struct device_ops *device;
    const void *const
        *tables[PLUGIN_TABLE_COUNT]; /* NULL, or where the table is told: see device_table() */
};

/* The one function of a module. host must live on. NULL: the module is of another version. */
#define PLUGIN_ENTRY "ringzero_plugin"
typedef const struct plugin *(*plugin_entry)(uint64_t version, const struct plugin_host *host);

/* name: "cuda" or "cudasim". errors: SYSTEM when the module is not there or cannot be loaded,
 * saying where it was looked for and what to do. The device is not touched: a process may fork()
 * after it. threads: any. */
MUST_CHECK enum status plugin_load(const struct plugin **plugin, const char *name);

/* Within a module: what each folder contributes. It defines its own, the others are missing then:
 *
 *     extern "C" const void *const plugin_table_reduce = &reduce_cuda_ops;
 */
#define PLUGIN_PART __attribute__((weak, visibility("hidden")))
extern const void *const plugin_table_reduce PLUGIN_PART;
extern const void *const plugin_table_ring PLUGIN_PART;
extern const void *const plugin_table_model PLUGIN_PART;
extern const void *const plugin_table_adam PLUGIN_PART;
extern const struct device_ops device_cuda_ops; /* device_cuda.c */

#ifdef __cplusplus
}
#endif
#endif
