/* Devices by their names, memory with tags, limits and companions, and copies between all kinds: of
 * every device that is there. One source: the host, and CUDA on the simulator. Streams:
 * verbs_device_stream_test.c.
 * ctest: timeout=60
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/device_ops.h"

/* Bytes of a span of any kind that are not as expected. */
static size_t count_other(struct span span, unsigned char expected, struct device *device)
{
    size_t other = 0;
    unsigned char *copy = malloc(span.bytes);
    CHECK_OK(span_copy(span_host(copy, span.bytes), span, NULL, device));
    for (size_t i = 0; i < span.bytes; i++) other += copy[i] != expected;
    free(copy);
    return other;
}

static void check_memory(struct device *device)
{
    struct span a, b, none;
    CHECK_OK(memory_alloc(&a, 1000, MEMORY_WEIGHTS, device));
    CHECK_OK(memory_alloc(&b, (size_t)5 << 20, MEMORY_WEIGHTS, device));
    CHECK_OK(memory_alloc(&none, 0, MEMORY_GRADIENTS, device));
    CHECK(none.ptr == NULL && a.kind == device_kind(device) && a.bytes == 1000);
    bool cuda = a.kind == MEMORY_CUDA;
    CHECK((uintptr_t)a.ptr % (cuda ? 256 : 64) == 0 &&
          (uintptr_t)b.ptr % (cuda ? 256 : (size_t)2 << 20) == 0);
    CHECK(count_other(b, 0, device) == 0);
    CHECK(memory_account_read(device).now[MEMORY_WEIGHTS] == 1000 + ((size_t)5 << 20));
    memory_free(&b, MEMORY_WEIGHTS, device);
    memory_free(&none, MEMORY_GRADIENTS, device);
    struct memory_account account = memory_account_read(device);
    CHECK(account.now[MEMORY_WEIGHTS] == 1000 &&
          account.peak[MEMORY_WEIGHTS] == 1000 + ((size_t)5 << 20));
    memory_free(&a, MEMORY_WEIGHTS, device);
    CHECK(a.ptr == NULL && memory_account_read(device).now[MEMORY_WEIGHTS] == 0);
    CHECK_STATUS(memory_alloc(&a, SIZE_MAX / 4, MEMORY_OPTIMIZER, device),
        cuda ? STATUS_CUDA : STATUS_SYSTEM);
    CHECK(a.ptr == NULL && a.bytes == 0 && strstr(status_text(), "optimizer") != NULL &&
          memory_account_read(device).now[MEMORY_OPTIMIZER] == 0);
}

/* Pinned memory is the CPU's too, on every device, and counted beside CUDA memory, which is limited
 * alone. */
static void check_pinned(struct device *device)
{
    struct span pinned, refused;
    bool cuda = device_kind(device) == MEMORY_CUDA;
    device_limit(device, cuda ? 1 : 5000);
    CHECK_OK(memory_alloc_kind(&pinned, 5000, MEMORY_HOST_PINNED, MEMORY_CHECKPOINTS, device));
    CHECK(pinned.kind == MEMORY_HOST_PINNED && count_other(pinned, 0, device) == 0);
    memset(pinned.ptr, 7, pinned.bytes);
    CHECK(count_other(pinned, 7, device) == 0);
    uint64_t own = memory_account_read(device).now[MEMORY_CHECKPOINTS],
             beside = memory_account_read_beside(device).now[MEMORY_CHECKPOINTS];
    CHECK(own == (cuda ? 0 : 5000) && beside == (cuda ? 5000 : 0));
    struct allocation found;
    CHECK(memory_find(&found, pinned.ptr, 5000, device) && found.kind == MEMORY_HOST_PINNED);
    memory_free(&pinned, MEMORY_CHECKPOINTS, device);
    CHECK(memory_account_read(device).now[MEMORY_CHECKPOINTS] == 0);
    CHECK(memory_account_read_beside(device).now[MEMORY_CHECKPOINTS] == 0);
    device_limit(device, 0);
    CHECK_STATUS(
        memory_alloc_kind(&refused, 1, cuda ? MEMORY_HOST : MEMORY_CUDA, MEMORY_WEIGHTS, device),
        STATUS_INVALID);
    CHECK(refused.ptr == NULL);
}

/* Round the kinds and back, at odd places, blocking and on a stream, where a slow call goes ahead:
 * what arrives is what was there when the stream came to it. */
#define COPY_BYTES ((size_t)1000003)
static unsigned char copy_byte(size_t i)
{
    return (unsigned char)(i * 131 + i / 251);
}

static enum status pause_a_while(void *arguments)
{
    (void)arguments;
    usleep(20000);
    return STATUS_OK;
}

static void check_way(
    struct stream *stream, const enum memory_kind *kinds, size_t count, struct device *device)
{
    struct span spans[8];
    unsigned char *from = malloc(COPY_BYTES), *to = calloc(1, COPY_BYTES);
    struct span source = span_host(from, COPY_BYTES), last = source;
    for (size_t i = 0; i < count; i++)
        CHECK_OK(memory_alloc_kind(&spans[i], COPY_BYTES + i, kinds[i], MEMORY_WORKSPACE, device));
    if (stream != NULL) CHECK_OK(stream_call(stream, pause_a_while, NULL, 0, device));
    for (size_t i = 0; i < COPY_BYTES; i++) from[i] = copy_byte(i);
    for (size_t i = 0; i < count; i++) {
        struct span next = span_part(spans[i], i, COPY_BYTES); /* at an odd place */
        CHECK_OK(span_fill(spans[i], 0x5a, stream, device));
        CHECK_OK(span_copy(next, last, stream, device));
        last = next;
    }
    CHECK_OK(span_copy(span_host(to, COPY_BYTES), last, stream, device));
    if (stream != NULL) CHECK(to[1] == 0 && to[COPY_BYTES - 1] == 0); /* beside the caller */
    if (stream != NULL) CHECK_OK(stream_synchronize(stream, device));
    size_t wrong = 0;
    for (size_t i = 0; i < COPY_BYTES; i++) wrong += to[i] != copy_byte(i);
    CHECK_MSG(wrong == 0, "%zu bytes differ", wrong);
    for (size_t i = 0; i < count; i++)
        CHECK(count_other(span_part(spans[i], 0, i), 0x5a, device) == 0);
    for (size_t i = 0; i < count; i++) memory_free(&spans[i], MEMORY_WORKSPACE, device);
    free(from);
    free(to);
}

static void check_copies(struct device *device)
{
    enum memory_kind own = device_kind(device), pinned = MEMORY_HOST_PINNED;
    const enum memory_kind all[] = {own, pinned, pinned, own, own, pinned}, one[] = {own};
    struct stream *stream;
    struct span none = {.kind = own}, elsewhere = {.ptr = &stream, .bytes = 1, .kind = MEMORY_CUDA};
    unsigned char byte = 1;
    CHECK_OK(stream_open(&stream, device, "copies"));
    CHECK((stream_native(stream) != NULL) == (own == MEMORY_CUDA));
    check_way(NULL, all, sizeof all / sizeof *all, device);
    check_way(stream, all, sizeof all / sizeof *all, device);
    check_way(stream, one, 1, device);
    CHECK_OK(span_copy(none, none, NULL, device));
    CHECK_OK(span_fill(none, 1, stream, device));
    if (own == MEMORY_CUDA) { /* told where it was asked for: by the call, or by the stream */
        struct span nowhere = {.ptr = &byte, .bytes = 1, .kind = MEMORY_CUDA};
        CHECK_STATUS(span_copy(nowhere, span_host(&byte, 1), NULL, device), STATUS_CUDA);
        CHECK_MSG(
            strstr(status_text(), "cudaMemcpyAsync failed with cudaErrorInvalidValue") != NULL,
            "%s", status_text());
        CHECK_OK(span_copy(nowhere, span_host(&byte, 1), stream, device));
        CHECK_STATUS(stream_synchronize(stream, device), STATUS_CUDA);
        CHECK_OK(stream_synchronize(stream, device));
    }
    if (own == MEMORY_HOST)
        CHECK_STATUS(span_copy(span_host(&byte, 1), elsewhere, NULL, device), STATUS_INVALID);
    stream_close(stream, device);
}

/* To the byte, over all tags; refused, nothing is held; what is given back may be had again. */
static void check_limit(struct device *device)
{
    struct span a, b;
    device_limit(device, 1000);
    CHECK_OK(memory_alloc(&a, 600, MEMORY_WEIGHTS, device));
    CHECK_STATUS(memory_alloc(&b, 401, MEMORY_ACTIVATIONS, device), STATUS_SYSTEM);
    const char *const words[] = {"activations", "401", "600", "1000", "weights 600", "stage"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_MSG(
            strstr(status_text(), words[i]) != NULL, "%s lacks \"%s\"", status_text(), words[i]);
    CHECK(b.ptr == NULL && memory_account_read(device).now[MEMORY_ACTIVATIONS] == 0);
    memory_free(&a, MEMORY_WEIGHTS, device);
    CHECK_OK(memory_alloc(&a, 1000, MEMORY_WEIGHTS, device));
    memory_free(&a, MEMORY_WEIGHTS, device);
    device_limit(device, 0);
    CHECK_OK(memory_alloc(&a, 5000, MEMORY_WEIGHTS, device));
    memory_free(&a, MEMORY_WEIGHTS, device);
}

/* Memory from elsewhere is the host's: of its limit there, beside a CUDA device's. */
static void check_elsewhere(struct device *device)
{
    struct span a, b;
    device_limit(device, 1000);
    if (device_kind(device) == MEMORY_CUDA) {
        CHECK_OK(memory_reserve(device, MEMORY_COMMUNICATION, 2000));
        CHECK(memory_account_read_beside(device).now[MEMORY_COMMUNICATION] == 2000);
        CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 0);
        memory_count(device, MEMORY_COMMUNICATION, -2000);
        CHECK(memory_account_read_beside(device).now[MEMORY_COMMUNICATION] == 0);
        device_limit(device, 0);
        return;
    }
    CHECK_OK(memory_alloc(&a, 600, MEMORY_WEIGHTS, device));
    CHECK_OK(memory_reserve(device, MEMORY_COMMUNICATION, 400));
    CHECK_STATUS(memory_reserve(device, MEMORY_COMMUNICATION, 1), STATUS_SYSTEM);
    CHECK_STATUS(memory_reserve(device, MEMORY_COMMUNICATION, UINT64_MAX), STATUS_SYSTEM);
    memory_count(device, MEMORY_COMMUNICATION, 50); /* there already: counted beyond the limit */
    CHECK(memory_account_read(device).now[MEMORY_COMMUNICATION] == 450);
    CHECK_STATUS(memory_alloc(&b, 1, MEMORY_GRADIENTS, device), STATUS_SYSTEM);
    memory_count(device, MEMORY_COMMUNICATION, -450);
    CHECK_OK(memory_alloc(&b, 400, MEMORY_GRADIENTS, device));
    memory_free(&a, MEMORY_WEIGHTS, device);
    memory_free(&b, MEMORY_GRADIENTS, device);
    device_limit(device, 0);
}

struct taker {
    pthread_t thread;
    struct device *device;
    uint64_t had; /* bytes */
};

static void *take_all(void *argument)
{
    struct taker *taker = argument;
    for (int i = 0; i < 1000; i++)
        if (memory_reserve(taker->device, MEMORY_COMMUNICATION, 7) == STATUS_OK) taker->had += 7;
    return NULL;
}

/* Four threads ask for 28,000 bytes of 10,000 together, seven at a time. */
static void check_limit_of_threads(struct device *device)
{
    struct taker taker[4] = {0};
    uint64_t all = 0;
    device_limit(device, 10000);
    for (int i = 0; i < 4; i++) {
        taker[i].device = device;
        CHECK(pthread_create(&taker[i].thread, NULL, take_all, &taker[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(taker[i].thread, NULL);
        all += taker[i].had;
    }
    CHECK(all == 9996 && memory_account_read(device).now[MEMORY_COMMUNICATION] == 9996);
    memory_count(device, MEMORY_COMMUNICATION, -9996);
    device_limit(device, 0);
}

/* What is alive is found by any part of it, under an id of its own, even where an address comes
 * again. */
static void check_allocations(struct device *device)
{
    struct span spans[100];
    struct allocation found = {0}, again = {0};
    for (size_t i = 0; i < 100; i++)
        CHECK_OK(memory_alloc(&spans[i], 128 + i, MEMORY_WORKSPACE, device));
    uint64_t last_id = 0;
    for (size_t i = 0; i < 100; i++) {
        CHECK(memory_find(&found, (char *)spans[i].ptr + 100, 28 + i, device));
        CHECK(found.ptr == spans[i].ptr && found.bytes == spans[i].bytes && found.id > last_id);
        last_id = found.id;
        CHECK(!memory_find(
            &again, (char *)spans[i].ptr + 100, 29 + i, device)); /* reaches past its end */
    }
    CHECK(!memory_find(&found, &found, sizeof found, device));
    const void *address = spans[50].ptr;
    CHECK(memory_find(&found, address, 1, device));
    memory_free(&spans[50], MEMORY_WORKSPACE, device);
    CHECK(!memory_find(&again, address, 1, device));
    CHECK_OK(memory_alloc(&spans[50], 178, MEMORY_WORKSPACE, device));
    CHECK(memory_find(&again, spans[50].ptr, 1, device) && again.id > last_id &&
          again.id != found.id);
    for (size_t i = 0; i < 100; i++) memory_free(&spans[i], MEMORY_WORKSPACE, device);
}

/* A companion is opened once, hears of each end, and is closed with the device. One that cannot be
 * opened is tried again. */
struct listener {
    struct device_companion companion;
    uint64_t forgotten_bytes;
};
static int opened, refused, closed; /* of this test's one thread */

static void listener_forget(const struct allocation *allocation, struct device_companion *companion)
{
    ((struct listener *)(void *)companion)->forgotten_bytes += allocation->bytes;
}

static void listener_close(struct device_companion *companion)
{
    closed++;
    free(companion);
}

static enum status listener_open(struct device_companion **companion)
{
    if (refused++ == 0) return FAIL(STATUS_SYSTEM, "refused on purpose");
    struct listener *listener = calloc(1, sizeof *listener);
    listener->companion =
        (struct device_companion){.forget = listener_forget, .close = listener_close};
    *companion = &listener->companion;
    opened++;
    return STATUS_OK;
}

static void check_companions(const char *name)
{
    opened = refused = closed = 0;
    struct device *device;
    struct device_companion *first = NULL, *second = NULL;
    struct span before, after;
    CHECK_OK(device_open(&device, name));
    CHECK_OK(memory_alloc(&before, 100, MEMORY_WORKSPACE, device));
    CHECK_STATUS(device_companion_find(&first, listener_open, device), STATUS_SYSTEM);
    CHECK_OK(device_companion_find(&first, listener_open, device));
    CHECK_OK(device_companion_find(&second, listener_open, device));
    CHECK(first == second && opened == 1);
    CHECK_OK(memory_alloc(&after, 11, MEMORY_WORKSPACE, device));
    memory_free(&before, MEMORY_WORKSPACE, device);
    memory_free(&after, MEMORY_WORKSPACE, device);
    memory_free(&after, MEMORY_WORKSPACE, device);
    CHECK(((struct listener *)(void *)first)->forgotten_bytes == 111);
    device_close(device);
    CHECK(closed == 1);
}

static void check_names(void)
{
    struct device *device = (struct device *)1;
    const char *const wrong[] = {
        "gpu", "", "host:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(device_open(&device, wrong[i]), STATUS_INVALID);
        CHECK(device == NULL && strstr(status_text(), "expected host, cuda or cudasim") != NULL);
        CHECK_STATUS(device_known(wrong[i]), STATUS_INVALID);
    }
    CHECK_OK(device_known("host"));
    setenv("RINGZERO_PLUGIN_DIR", "/nonexistent", 1);
    CHECK_STATUS(device_open(&device, "cuda"), STATUS_SYSTEM);
    CHECK_MSG(
        strstr(status_text(), "/nonexistent (RINGZERO_PLUGIN_DIR)") != NULL, "%s", status_text());
    unsetenv("RINGZERO_PLUGIN_DIR");
}

/* Without a GPU "cuda" is one clear line; with one it is a device as any other. */
static void check_cuda(void)
{
    struct device *device = NULL;
    enum status status = device_open(&device, "cuda");
    CHECK(status == STATUS_OK || status == STATUS_CUDA);
    if (status != STATUS_OK)
        CHECK_MSG(strstr(status_text(), "use --device host") != NULL, "%s", status_text());
    device_close(device);
}

static void check_ordinals(const char *name)
{
    struct device *device = NULL;
    char text[64];
    snprintf(text, sizeof text, "%s:99", name);
    CHECK_STATUS(device_open(&device, text), STATUS_INVALID);
    CHECK(device == NULL && strstr(status_text(), "expected an ordinal from 0 to") != NULL);
    CHECK_OK(device_open_local(&device, name, 1000)); /* mod the number of devices */
    device_close(device);
    setenv("RINGZERO_CUDA_DEVICE", "99", 1);
    CHECK_STATUS(device_open(&device, name), STATUS_INVALID);
    setenv("RINGZERO_CUDA_DEVICE", "first", 1);
    CHECK_STATUS(device_open(&device, name), STATUS_INVALID);
    CHECK(strstr(status_text(), "\"first\"") != NULL);
    unsetenv("RINGZERO_CUDA_DEVICE");
}

static void check_device(const char *name)
{
    struct device *device;
    if (!CHECK_OK(device_open(&device, name))) return;
    CHECK(strcmp(device_name(device), name) == 0);
    if (device_kind(device) == MEMORY_HOST)
        for (int t = 0; t < PLUGIN_TABLE_COUNT; t++)
            CHECK(device_table(device, (enum plugin_table)t) == NULL);
    else check_ordinals(name);
    check_memory(device);
    check_pinned(device);
    check_limit(device);
    check_elsewhere(device);
    if (device_kind(device) == MEMORY_HOST) check_limit_of_threads(device);
    check_allocations(device);
    check_companions(name);
    check_copies(device);
    device_close(device);
}

int main(void)
{
    check_names();
    check_device("host");
    if (test_has_device("cudasim")) check_device("cudasim");
    if (test_has_device("cuda")) check_cuda();
    return test_result();
}
