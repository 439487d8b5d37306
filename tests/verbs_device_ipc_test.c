/* CUDA memory that a neighbour reaches (verbs/device_ipc.h): parts of one allocation by one mapping, told apart by id and not by
 * address, between processes and within one. Needs the simulator, or any module named cudasim.
 * ctest: timeout=60
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "verbs/device.h"
#include "verbs/device_ipc.h"

#define PATIENCE    20000
#define ARENA_BYTES ((size_t)1 << 20)

static unsigned char byte_of(struct span span, size_t at, struct device *device)
{
    unsigned char byte = 0;
    CHECK_OK(span_copy(span_host(&byte, 1), span_part(span, at, 1), NULL, device));
    return byte;
}

static struct span imported(const struct ipc_import *import, size_t bytes, const struct device *device)
{
    return (struct span){import->ptr, bytes, MEMORY_CUDA, device->index};
}

/* Rank 0 owns, rank 1 writes. */
static void share_body(struct bootstrap *bootstrap, void *argument)
{
    bool owner = bootstrap_rank(bootstrap) == 0, processes = *(bool *)argument;
    struct device *device = NULL;
    struct span arena = {0}, beside = {0};
    struct {
        struct ipc_offer parts[2], beside;
    } offers[2] = {0};
    CHECK_OK(device_open(&device, "cudasim"));
    for (int round = 0; round < 2; round++) { /* the second arena is not the first, wherever it lies */
        if (owner) {
            CHECK_OK(memory_alloc(&arena, ARENA_BYTES, MEMORY_WORKSPACE, device));
            CHECK_OK(memory_alloc(&beside, 100, MEMORY_WORKSPACE, device));
            CHECK_OK(ipc_offer(&offers[0].beside, beside, device));
            CHECK_OK(ipc_offer(&offers[0].parts[0], span_part(arena, 4096, 1000), device));
            CHECK_OK(ipc_offer(&offers[0].parts[1], span_part(arena, ARENA_BYTES - 3, 3), device));
        }
        CHECK_OK(bootstrap_all_gather(offers, sizeof *offers, bootstrap));
        struct ipc_import first = {0}, again = {0}, last = {0}, other = {0};
        if (!owner) {
            const struct ipc_offer *parts = offers[0].parts;
            CHECK_OK(ipc_open(&first, &parts[0], device));
            CHECK_OK(ipc_open(&again, &parts[0], device));
            CHECK_OK(ipc_open(&last, &parts[1], device));
            CHECK_OK(ipc_open(&other, &offers[0].beside, device));
            CHECK_OK(span_fill(imported(&other, 100, device), 31 + round, NULL, device));
            CHECK(first.ptr == again.ptr && (char *)last.ptr - (char *)first.ptr == (ptrdiff_t)ARENA_BYTES - 3 - 4096);
            CHECK(first.mapped == last.mapped && (first.mapped != NULL) == processes);
            ipc_close(&first, device);
            CHECK(first.ptr == NULL);
            CHECK_OK(span_fill(imported(&again, 1000, device), 11 + round, NULL, device)); /* still there */
            ipc_close(&again, device);
            CHECK_OK(span_fill(imported(&last, 3, device), 21 + round, NULL, device));
            ipc_close(&last, device);
            ipc_close(&other, device);
            ipc_close(&last, device); /* a zeroed one */
        }
        CHECK_OK(bootstrap_barrier(bootstrap));
        if (owner) {
            CHECK(byte_of(arena, 4095, device) == 0 && byte_of(arena, 4096, device) == 11 + round);
            CHECK(byte_of(arena, 5095, device) == 11 + round && byte_of(arena, 5096, device) == 0);
            CHECK(byte_of(arena, ARENA_BYTES - 4, device) == 0 && byte_of(arena, ARENA_BYTES - 1, device) == 21 + round);
            CHECK(byte_of(beside, 0, device) == 31 + round);
            memory_free(&beside, MEMORY_WORKSPACE, device);
            memory_free(&arena, MEMORY_WORKSPACE, device);
        }
    }
    CHECK_OK(bootstrap_barrier(bootstrap));
    device_close(device);
}

static void check_refusals(void)
{
    struct device *device = NULL, *host = NULL;
    struct span own, pinned;
    struct ipc_offer offer;
    struct ipc_import import;
    CHECK_OK(device_open(&device, "cudasim"));
    CHECK_OK(device_open(&host, "host"));
    CHECK_OK(memory_alloc(&own, 1000, MEMORY_WORKSPACE, device));
    CHECK_OK(memory_alloc_kind(&pinned, 1000, MEMORY_HOST_PINNED, MEMORY_WORKSPACE, device));
    CHECK_STATUS(ipc_offer(&offer, pinned, device), STATUS_INVALID);
    CHECK_STATUS(ipc_offer(&offer, (struct span){own.ptr, 1001, MEMORY_CUDA, 0}, device), STATUS_INVALID);
    CHECK(offer.owner == 0);
    CHECK_OK(ipc_offer(&offer, own, device));
    CHECK_STATUS(ipc_open(&import, &offer, host), STATUS_CUDA);
    offer.pid = 1; /* not this process; the handle is no handle of it */
    memset(offer.handle, 0, sizeof offer.handle);
    CHECK_STATUS(ipc_open(&import, &offer, device), STATUS_CUDA);
    CHECK(import.ptr == NULL && strstr(status_text(), "cudaIpcOpenMemHandle") != NULL);
    offer.has_handle = 0;
    CHECK_STATUS(ipc_open(&import, &offer, device), STATUS_CUDA);
    memory_free(&own, MEMORY_WORKSPACE, device);
    memory_free(&pinned, MEMORY_WORKSPACE, device);
    device_close(device);
    device_close(host);
}

int main(void)
{
    bool processes = true, threads = false;
    if (!test_has_device("cudasim")) return test_skip("the simulator");
    CHECK(ranks_as_processes(2, PATIENCE, share_body, &processes, -1) == 0);
    ranks_as_threads(2, PATIENCE, share_body, &threads);
    check_refusals();
    return test_result();
}
