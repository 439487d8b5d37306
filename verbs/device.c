/* device: what all devices share: opening by name, the count of bytes held by tag, and the limit on it. */
#include "verbs/device.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/device_host.h"
#include "verbs/device_internal.h"

static const char *const tag_names[MEMORY_TAG_COUNT] = {
    [MEMORY_WEIGHTS] = "weights",
    [MEMORY_GRADIENTS] = "gradients",
    [MEMORY_OPTIMIZER] = "optimizer",
    [MEMORY_ACTIVATIONS] = "activations",
    [MEMORY_CHECKPOINTS] = "checkpoints",
    [MEMORY_GATHERED] = "gathered",
    [MEMORY_COMMUNICATION] = "communication",
    [MEMORY_WORKSPACE] = "workspace",
};

const char *memory_tag_name(enum memory_tag tag) { return tag_names[tag]; }

enum status device_open(struct device **device, const char *name)
{
    *device = NULL;
    if (strcmp(name, device_host_ops.name) != 0)
        return FAIL(STATUS_INVALID, "device is \"%s\"; expected host: this build has no other device", name);
    *device = calloc(1, sizeof **device);
    if (*device == NULL) return FAIL(STATUS_SYSTEM, "no memory for a device");
    (*device)->ops = &device_host_ops;
    if (device_inside_open(*device) == STATUS_OK) return STATUS_OK;
    device_close(*device);
    *device = NULL;
    return STATUS_SYSTEM;
}

void device_close(struct device *device)
{
    if (device == NULL) return;
    device_inside_close(device);
    free(device);
}

void device_limit(struct device *device, uint64_t bytes) { device->limit_bytes = bytes; }

/* "weights 100, optimizer 200", or "nothing": what is held, for a message. */
static void describe_held(char *text, size_t bytes, struct device *device)
{
    struct memory_account account = memory_account_read(device);
    size_t used = 0;
    snprintf(text, bytes, "nothing");
    for (int tag = 0; tag < MEMORY_TAG_COUNT && used < bytes; tag++)
        if (account.now[tag] > 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %llu", used == 0 ? "" : ", ", tag_names[tag],
                (unsigned long long)account.now[tag]);
}

static enum status refuse(uint64_t held, uint64_t bytes, enum memory_tag tag, struct device *device)
{
    char text[256];
    describe_held(text, sizeof text, device);
    return FAIL(STATUS_SYSTEM,
        "%s needs %llu bytes more, but %llu of the limit of %llu are held (%s): raise the limit, or take a higher ZeRO stage, "
        "more ranks, fewer tokens at once, recomputation, or a smaller model",
        memory_tag_name(tag), (unsigned long long)bytes, (unsigned long long)held, (unsigned long long)device->limit_bytes,
        text);
}

/* Takes the bytes out of the limit in one step, so that two threads never both get the last of it. */
static enum status take(uint64_t bytes, enum memory_tag tag, struct device *device)
{
    uint64_t held = __atomic_load_n(&device->held_bytes, __ATOMIC_RELAXED);
    do {
        bool fits = held <= device->limit_bytes && bytes <= device->limit_bytes - held;
        if (device->limit_bytes > 0 && !fits) return refuse(held, bytes, tag, device);
    } while (!__atomic_compare_exchange_n(&device->held_bytes, &held, held + bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return STATUS_OK;
}

/* In the account of the tag; held_bytes has them already. */
static void account(struct device *device, enum memory_tag tag, int64_t bytes)
{
    uint64_t now = __atomic_add_fetch(&device->account.now[tag], (uint64_t)bytes, __ATOMIC_RELAXED);
    assert((int64_t)now >= 0);
    uint64_t peak = __atomic_load_n(&device->account.peak[tag], __ATOMIC_RELAXED);
    while (now > peak && !__atomic_compare_exchange_n(&device->account.peak[tag], &peak, now, true, __ATOMIC_RELAXED,
                             __ATOMIC_RELAXED)) {
    }
}

enum status memory_reserve(struct device *device, enum memory_tag tag, uint64_t bytes)
{
    TRY(take(bytes, tag, device));
    account(device, tag, (int64_t)bytes);
    return STATUS_OK;
}

void memory_count(struct device *device, enum memory_tag tag, int64_t bytes)
{
    __atomic_add_fetch(&device->held_bytes, (uint64_t)bytes, __ATOMIC_RELAXED);
    account(device, tag, bytes);
}

enum status memory_alloc(struct span *span, size_t bytes, enum memory_tag tag, struct device *device)
{
    *span = (struct span){.kind = device->ops->kind, .device = device->index};
    if (bytes == 0) return STATUS_OK;
    TRY(memory_reserve(device, tag, bytes));
    bool allocated = device->ops->alloc(&span->ptr, bytes) == STATUS_OK;
    if (allocated && device_remember(span->ptr, bytes, device) != STATUS_OK) {
        device->ops->free(span->ptr, bytes);
        allocated = false;
    }
    if (!allocated) {
        span->ptr = NULL;
        memory_count(device, tag, -(int64_t)bytes);
        return FAIL(STATUS_SYSTEM, "no memory on %s for %zu bytes of %s: use a smaller model or batch, or more ranks",
            device->ops->name, bytes, memory_tag_name(tag));
    }
    span->bytes = bytes;
    return STATUS_OK;
}

void memory_free(struct span *span, enum memory_tag tag, struct device *device)
{
    if (span->ptr != NULL) {
        device_forget(span->ptr, device);
        device->ops->free(span->ptr, span->bytes);
        memory_count(device, tag, -(int64_t)span->bytes);
    }
    *span = (struct span){0};
}

struct memory_account memory_account_read(struct device *device)
{
    struct memory_account copy;
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        copy.now[tag] = __atomic_load_n(&device->account.now[tag], __ATOMIC_RELAXED);
        copy.peak[tag] = __atomic_load_n(&device->account.peak[tag], __ATOMIC_RELAXED);
    }
    return copy;
}

enum status stream_open(struct stream **stream, struct device *device, const char *name)
{
    return device->ops->stream_open(stream, name);
}

void stream_close(struct stream *stream, struct device *device)
{
    if (stream != NULL) device->ops->stream_close(stream);
}

enum status stream_call(
    struct stream *stream, stream_function function, const void *arguments, size_t bytes, struct device *device)
{
    assert(bytes <= STREAM_ARGUMENT_BYTES);
    return device->ops->stream_call(stream, function, arguments, bytes);
}

enum status stream_synchronize(struct stream *stream, struct device *device)
{
    return device->ops->stream_synchronize(stream);
}

enum status event_open(struct event **event, struct device *device) { return device->ops->event_open(event); }

void event_close(struct event *event, struct device *device)
{
    if (event != NULL) device->ops->event_close(event);
}

enum status event_record(struct event *event, struct stream *stream, struct device *device)
{
    return device->ops->event_record(event, stream);
}

enum status event_wait(struct event *event, struct stream *stream, struct device *device)
{
    return device->ops->event_wait(event, stream);
}

enum status event_synchronize(struct event *event, struct device *device)
{
    return device->ops->event_synchronize(event);
}
