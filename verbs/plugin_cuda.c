/* plugin_cuda: the module's side of plugin.h. The program's functions have their own names here and
 * are passed on to it, so that FAIL(), LOG_WARN() and the functions of device.h work in a module as
 * everywhere.
 *
 * `host` is set by the first call of ringzero_plugin(), before anything else of the module runs,
 * always to the same.
 */
#include "verbs/plugin.h"

#include <stdarg.h>
#include <stdio.h>

static const struct plugin_host *host; /* written by ringzero_plugin(), perhaps again by a thread */

/* Acquires what ringzero_plugin() released. */
static const struct plugin_host *program_here(void)
{
    return __atomic_load_n(&host, __ATOMIC_ACQUIRE);
}

static const struct plugin plugin = {
    .version = PLUGIN_VERSION,
    .device = &device_cuda_ops,
    .tables = {&plugin_table_reduce, &plugin_table_ring, &plugin_table_model, &plugin_table_adam},
};

__attribute__((visibility("default"))) const struct plugin *ringzero_plugin(
    uint64_t version, const struct plugin_host *program);

const struct plugin *ringzero_plugin(uint64_t version, const struct plugin_host *program)
{
    if (version != PLUGIN_VERSION) return NULL;
    __atomic_store_n(&host, program, __ATOMIC_RELEASE);
    return &plugin;
}

enum status status_fail(enum status code, const char *file, int line, const char *format, ...)
{
    char text[STATUS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return program_here()->status_fail(code, file, line, text);
}

enum status status_trace(enum status code, const char *file, int line)
{
    return program_here()->status_trace(code, file, line);
}

const char *status_text(void)
{
    return program_here()->status_text();
}

void status_set_text(const char *text)
{
    program_here()->status_set_text(text);
}

enum log_level log_level(void)
{
    return program_here()->log_level();
}

void log_line(enum log_level level, const char *subsystem, const char *format, ...)
{
    char text[STATUS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    program_here()->log_line(level, subsystem, text);
}

enum status memory_alloc_kind(struct span *span, size_t bytes, enum memory_kind kind,
    enum memory_tag tag, struct device *device)
{
    return program_here()->memory_alloc_kind(span, bytes, kind, tag, device);
}

enum status memory_alloc(
    struct span *span, size_t bytes, enum memory_tag tag, struct device *device)
{
    return program_here()->memory_alloc_kind(span, bytes, device->ops->kind, tag, device);
}

void memory_free(struct span *span, enum memory_tag tag, struct device *device)
{
    program_here()->memory_free(span, tag, device);
}

bool memory_find(
    struct allocation *allocation, const void *ptr, size_t bytes, struct device *device)
{
    return program_here()->memory_find(allocation, ptr, bytes, device);
}

void *stream_native(const struct stream *stream)
{
    return program_here()->stream_native(stream);
}

enum status stream_call(struct stream *stream, stream_function function, const void *arguments,
    size_t bytes, struct device *device)
{
    return program_here()->stream_call(stream, function, arguments, bytes, device);
}

enum status stream_launch(struct stream *stream, stream_function function, const void *arguments,
    size_t bytes, struct device *device)
{
    return program_here()->stream_launch(stream, function, arguments, bytes, device);
}

enum status stream_synchronize(struct stream *stream, struct device *device)
{
    return program_here()->stream_synchronize(stream, device);
}

enum status event_record(struct event *event, struct stream *stream, struct device *device)
{
    return program_here()->event_record(event, stream, device);
}

enum status event_wait(struct event *event, struct stream *stream, struct device *device)
{
    return program_here()->event_wait(event, stream, device);
}

enum status event_synchronize(struct event *event, struct device *device)
{
    return program_here()->event_synchronize(event, device);
}

enum status event_passed(bool *passed, struct event *event, struct device *device)
{
    return program_here()->event_passed(passed, event, device);
}

enum status span_copy(
    struct span dst, struct span src, struct stream *stream, struct device *device)
{
    return program_here()->span_copy(dst, src, stream, device);
}

enum status span_fill(struct span dst, int byte, struct stream *stream, struct device *device)
{
    return program_here()->span_fill(dst, byte, stream, device);
}
