/* device: what all devices share: opening by name, the count of bytes held by tag, the limit on it,
 * and copies. */
#include "verbs/device.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/device_host.h"
#include "verbs/device_internal.h"
#include "verbs/plugin.h"

static const char *const tag_names[MEMORY_TAG_COUNT] = {
    [MEMORY_WEIGHTS] = "weights",
    [MEMORY_GRADIENTS] = "gradients",
    [MEMORY_OPTIMIZER] = "optimizer",
    [MEMORY_OFFLOADED] = "offloaded",
    [MEMORY_ACTIVATIONS] = "activations",
    [MEMORY_CHECKPOINTS] = "checkpoints",
    [MEMORY_GATHERED] = "gathered",
    [MEMORY_COMMUNICATION] = "communication",
    [MEMORY_WORKSPACE] = "workspace",
};

const char *memory_tag_name(enum memory_tag tag)
{
    return tag_names[tag];
}

const char *memory_kind_name(enum memory_kind kind)
{
    static const char *const names[] = {"host memory", "pinned host memory", "CUDA memory"};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "memory of an unknown kind";
}

/* "cuda:1" in its parts. ordinal −1: not told. */
static enum status parse_name(char *base, size_t room, int *ordinal, const char *name)
{
    const char *colon = strchr(name, ':');
    size_t length = colon == NULL ? strlen(name) : (size_t)(colon - name);
    *ordinal = -1;
    snprintf(base, room, "%.*s", (int)length, name);
    bool known =
        strcmp(base, "host") == 0 || strcmp(base, "cuda") == 0 || strcmp(base, "cudasim") == 0;
    if (known && colon != NULL) {
        char *end;
        errno = 0;
        long number = strtol(colon + 1, &end, 10);
        known = end != colon + 1 && *end == '\0' && errno == 0 && number >= 0 &&
                number <= INT_MAX && strcmp(base, "host") != 0;
        *ordinal = (int)number;
    }
    return known ? STATUS_OK
                 : FAIL(STATUS_INVALID,
                       "device is \"%s\"; expected host, cuda or cudasim, the last two also with "
                       "an ordinal, as cuda:1",
                       name);
}

enum status device_known(const char *name)
{
    char base[32];
    int ordinal;
    const struct plugin *plugin;
    TRY(parse_name(base, sizeof base, &ordinal, name));
    return strcmp(base, "host") == 0 ? STATUS_OK : plugin_load(&plugin, base);
}

static enum status open_table(struct device *device, const char *name)
{
    char base[32];
    int ordinal;
    TRY(parse_name(base, sizeof base, &ordinal, name));
    device->ops = &device_host_ops;
    if (strcmp(base, "host") == 0) return STATUS_OK;
    TRY(plugin_load(&device->plugin, base));
    device->ops = device->plugin->device;
    return device->ops->open(device, ordinal);
}

enum status device_open_local(struct device **out, const char *name, int local_rank)
{
    *out = NULL;
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL) return FAIL(STATUS_SYSTEM, "no memory for a device");
    device->index = local_rank;
    enum status status = open_table(device, name);
    if (device->ops == &device_host_ops) device->index = 0;
    if (status == STATUS_OK) status = device_inside_open(device);
    if (status == STATUS_OK) *out = device;
    else device_close(device);
    return status;
}

enum status device_open(struct device **device, const char *name)
{
    return device_open_local(device, name, 0);
}

void device_close(struct device *device)
{
    if (device == NULL) return;
    device_inside_close(device);
    if (device->ops != NULL && device->ops->close != NULL) device->ops->close(device);
    free(device);
}

const char *device_name(const struct device *device)
{
    return device->ops->name;
}

enum memory_kind device_kind(const struct device *device)
{
    return device->ops->kind;
}

const void *device_table(const struct device *device, enum plugin_table table)
{
    const void *const *entry = device->plugin == NULL ? NULL : device->plugin->tables[table];
    return entry == NULL ? NULL : *entry;
}

void device_limit(struct device *device, uint64_t bytes)
{
    device->limit_bytes = bytes;
}

/* "weights 100, optimizer 200", or "nothing": what is held, for a message. */
static void describe_held(char *text, size_t bytes, struct device *device)
{
    struct memory_account account = memory_account_read(device);
    size_t used = 0;
    snprintf(text, bytes, "nothing");
    for (int tag = 0; tag < MEMORY_TAG_COUNT && used < bytes; tag++)
        if (account.now[tag] > 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %llu", used == 0 ? "" : ", ",
                tag_names[tag], (unsigned long long)account.now[tag]);
}

static enum status refuse(uint64_t held, uint64_t bytes, enum memory_tag tag, struct device *device)
{
    char text[256];
    describe_held(text, sizeof text, device);
    return FAIL(STATUS_SYSTEM,
        "%s needs %llu bytes more, but %llu of the limit of %llu are held (%s): raise the limit, "
        "or take a higher ZeRO stage, "
        "more ranks, fewer tokens at once, recomputation, or a smaller model",
        memory_tag_name(tag), (unsigned long long)bytes, (unsigned long long)held,
        (unsigned long long)device->limit_bytes, text);
}

/* Takes the bytes out of the limit in one step, so that two threads never both get the last of it.
 * */
static enum status take(uint64_t bytes, enum memory_tag tag, struct device *device)
{
    uint64_t held = __atomic_load_n(&device->held_bytes, __ATOMIC_RELAXED);
    do {
        bool fits = held <= device->limit_bytes && bytes <= device->limit_bytes - held;
        if (device->limit_bytes > 0 && !fits) return refuse(held, bytes, tag, device);
    } while (!__atomic_compare_exchange_n(
        &device->held_bytes, &held, held + bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return STATUS_OK;
}

static void count(struct memory_account *account, enum memory_tag tag, int64_t bytes)
{
    uint64_t now = __atomic_add_fetch(&account->now[tag], (uint64_t)bytes, __ATOMIC_RELAXED);
    assert((int64_t)now >= 0);
    uint64_t peak = __atomic_load_n(&account->peak[tag], __ATOMIC_RELAXED);
    while (now > peak && !__atomic_compare_exchange_n(&account->peak[tag], &peak, now, true,
                             __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

void device_count(struct device *device, enum memory_tag tag, int64_t bytes)
{
    __atomic_add_fetch(&device->held_bytes, (uint64_t)bytes, __ATOMIC_RELAXED);
    count(&device->account, tag, bytes);
}

static enum status reserve_own(struct device *device, enum memory_tag tag, uint64_t bytes)
{
    TRY(take(bytes, tag, device));
    count(&device->account, tag, (int64_t)bytes);
    return STATUS_OK;
}

/* Memory from elsewhere is the host's. */
enum status memory_reserve(struct device *device, enum memory_tag tag, uint64_t bytes)
{
    if (device->ops->kind == MEMORY_HOST) return reserve_own(device, tag, bytes);
    count(&device->beside, tag, (int64_t)bytes);
    return STATUS_OK;
}

void memory_count(struct device *device, enum memory_tag tag, int64_t bytes)
{
    if (device->ops->kind == MEMORY_HOST) device_count(device, tag, bytes);
    else count(&device->beside, tag, bytes);
}

/* Whether memory is counted beside the device's own, where no limit is. */
static bool is_beside(enum memory_kind kind, enum memory_tag tag, const struct device *device)
{
    return (kind == MEMORY_HOST_PINNED && device->ops->kind == MEMORY_CUDA) ||
           tag == MEMORY_OFFLOADED;
}

static void uncount(enum memory_kind kind, enum memory_tag tag, size_t bytes, struct device *device)
{
    if (is_beside(kind, tag, device)) count(&device->beside, tag, -(int64_t)bytes);
    else device_count(device, tag, -(int64_t)bytes);
}

static enum status allocate(struct span *span, enum memory_tag tag, struct device *device)
{
    enum status status = device->ops->alloc(&span->ptr, span->bytes, span->kind, device);
    if (status != STATUS_OK)
        return FAIL(status,
            "no memory on %s for %zu bytes of %s: use a smaller model or batch, or more ranks (%s)",
            device->ops->name, span->bytes, memory_tag_name(tag), status_text());
    status = device_remember(*span, device);
    if (status != STATUS_OK) device->ops->free(span->ptr, span->bytes, span->kind, device);
    return status;
}

enum status memory_alloc_kind(struct span *span, size_t bytes, enum memory_kind kind,
    enum memory_tag tag, struct device *device)
{
    *span = (struct span){.kind = kind, .device = device->index};
    if (kind != device->ops->kind && kind != MEMORY_HOST_PINNED)
        return FAIL(STATUS_INVALID, "%zu bytes of %s are asked of %s; expected %s or %s", bytes,
            memory_kind_name(kind), device->ops->name, memory_kind_name(device->ops->kind),
            memory_kind_name(MEMORY_HOST_PINNED));
    if (bytes == 0) return STATUS_OK;
    if (is_beside(kind, tag, device)) count(&device->beside, tag, (int64_t)bytes);
    else TRY(reserve_own(device, tag, bytes));
    span->bytes = bytes;
    enum status status = allocate(span, tag, device);
    if (status == STATUS_OK) return STATUS_OK;
    uncount(kind, tag, bytes, device);
    span->ptr = NULL;
    span->bytes = 0;
    return status;
}

enum status memory_alloc(
    struct span *span, size_t bytes, enum memory_tag tag, struct device *device)
{
    return memory_alloc_kind(span, bytes, device->ops->kind, tag, device);
}

void memory_free(struct span *span, enum memory_tag tag, struct device *device)
{
    if (span->ptr != NULL) {
        device_forget(span->ptr, device);
        device->ops->free(span->ptr, span->bytes, span->kind, device);
        uncount(span->kind, tag, span->bytes, device);
    }
    *span = (struct span){0};
}

static struct memory_account read_account(const struct memory_account *account)
{
    struct memory_account copy;
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++) {
        copy.now[tag] = __atomic_load_n(&account->now[tag], __ATOMIC_RELAXED);
        copy.peak[tag] = __atomic_load_n(&account->peak[tag], __ATOMIC_RELAXED);
    }
    return copy;
}

struct memory_account memory_account_read(struct device *device)
{
    return read_account(&device->account);
}

struct memory_account memory_account_read_beside(struct device *device)
{
    return read_account(&device->beside);
}

static void forget_peaks(struct memory_account *account)
{
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        __atomic_store_n(&account->peak[tag], __atomic_load_n(&account->now[tag], __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

void memory_account_forget_peaks(struct device *device)
{
    forget_peaks(&device->account);
    forget_peaks(&device->beside);
}

/* ---- copies ---- */

struct copy_call {
    struct span dst, src;
    int byte;
    struct stream *stream;
    struct device *device;
};

static enum status check_reach(struct span span, const struct device *device)
{
    if (span.kind != MEMORY_CUDA || device->ops->kind == MEMORY_CUDA) return STATUS_OK;
    return FAIL(STATUS_INVALID,
        "%s cannot reach %zu bytes of %s: copy them by the device that they are of",
        device->ops->name, span.bytes, memory_kind_name(span.kind));
}

static enum status copy_run(void *arguments)
{
    const struct copy_call *call = arguments;
    return call->device->ops->copy(call->dst, call->src, stream_native(call->stream), call->device);
}

static enum status fill_run(void *arguments)
{
    const struct copy_call *call = arguments;
    return call->device->ops->fill(
        call->dst, call->byte, stream_native(call->stream), call->device);
}

/* By the worker where the CPU has a part in it (both ends are on the host, or one is memory that
 * may be paged), else at once. */
static enum status run_copy(stream_function function, const struct copy_call *call)
{
    bool by_device = call->dst.kind == MEMORY_CUDA || call->src.kind == MEMORY_CUDA;
    bool pageable = call->dst.kind == MEMORY_HOST || call->src.kind == MEMORY_HOST;
    return !by_device || pageable
               ? stream_call(call->stream, function, call, sizeof *call, call->device)
               : stream_launch(call->stream, function, call, sizeof *call, call->device);
}

enum status span_copy(
    struct span dst, struct span src, struct stream *stream, struct device *device)
{
    assert(dst.bytes >= src.bytes);
    TRY(check_reach(dst, device));
    TRY(check_reach(src, device));
    if (src.bytes == 0) return STATUS_OK;
    if (stream == NULL) return device->ops->copy(dst, src, NULL, device);
    struct copy_call call = {.dst = dst, .src = src, .stream = stream, .device = device};
    return run_copy(copy_run, &call);
}

enum status span_fill(struct span dst, int byte, struct stream *stream, struct device *device)
{
    TRY(check_reach(dst, device));
    if (dst.bytes == 0) return STATUS_OK;
    if (stream == NULL) return device->ops->fill(dst, byte, NULL, device);
    struct copy_call call = {
        .dst = dst, .src = dst, .byte = byte, .stream = stream, .device = device};
    return run_copy(fill_run, &call);
}
