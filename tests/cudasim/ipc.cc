/* ipc: memory and events of other processes.
 *
 *   memory handle    the exporting process, the file and the place in it: the importing device
 *                    process opens that file through /proc and maps the same pages
 *   event handle     the process, its event file and the event's number in it
 *   lease            an entry in the exporter's event file, as long as its memory is open
 *                    elsewhere: cudaFree() looks for it
 *
 * As on hardware: a handle is of a whole allocation, cannot be opened by its own process, and gives
 * the same address when it is opened again.
 */
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "event.h"
#include "memory.h"
#include "stream.h"

namespace cudasim {
namespace {

constexpr uint32_t MEMORY_HANDLE = 0xC0DA0001, EVENT_HANDLE = 0xC0DA0002;

struct memory_handle {
    uint32_t kind;
    int process, device_file, event_file, device;
    uint32_t before; /* bytes of the first page in front of the allocation */
    uint64_t id, offset, mapped_bytes, bytes;
};
static_assert(sizeof(memory_handle) <= sizeof(cudaIpcMemHandle_t), "a handle holds it");

struct event_handle {
    uint32_t kind;
    int process, event_file, index;
};
static_assert(sizeof(event_handle) <= sizeof(cudaIpcEventHandle_t), "a handle holds it");

/* The region of another process's events, opened by both of our processes at its first use; −1.
 * The book is held. */
int open_region(int process, int file)
{
    for (int i = 0; i < self.region_count; i++)
        if (self.regions[i].process == process && self.regions[i].file == file) return i;
    if (self.region_count == REGION_MAX) {
        fprintf(stderr,
            "cudasim: memory or events of %d other processes are open, as many as it can\n",
            REGION_MAX - 1);
        return -1;
    }
    int number = self.region_count, opened = foreign_file(process, file);
    if (opened < 0) return -1;
    void *events = mmap(nullptr, sizeof(event_file), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    request question = {};
    question.what = ask::events;
    question.offset = (uint64_t)number;
    question.process = process;
    question.file = file;
    if (events == MAP_FAILED || device_ask(question) != 0) return -1;
    self.regions[number] = {(event_file *)events, process, file};
    self.region_count++;
    return number;
}

bool take_lease(int region, uint64_t id)
{
    for (lease &each : self.regions[region].events->leases) {
        int nobody = 0;
        if (!each.process.compare_exchange_strong(nobody, self.host)) continue;
        each.allocation = id;
        return true;
    }
    return false;
}

void give_lease_back(int process, uint64_t id)
{
    for (int i = 1; i < self.region_count; i++) {
        if (self.regions[i].process != process) continue;
        for (lease &each : self.regions[i].events->leases) {
            if (each.process != self.host || each.allocation != id) continue;
            each.allocation = 0;
            each.process = 0;
            return;
        }
    }
}

cudaError_t export_memory(cudaIpcMemHandle_t *handle, void *pointer)
{
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find_exact(pointer);
    if (found == nullptr || found->kind != memory::device) return cudaErrorInvalidValue;
    memory_handle made = {MEMORY_HANDLE, self.host, self.device_file, self.event_file_number,
        found->device, (uint32_t)(found->begin - found->page), found->id, found->offset,
        found->mapped_bytes, found->bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return cudaSuccess;
}

cudaError_t import_new(void **pointer, const memory_handle &of)
{
    int region = open_region(of.process, of.event_file);
    char *page = take_device_space(of.mapped_bytes);
    if (region < 0 || page == nullptr) return cudaErrorMapBufferObjectFailed;
    request question = {};
    question.what = ask::import;
    question.at = (uint64_t)page;
    question.bytes = of.mapped_bytes;
    question.offset = of.offset;
    question.process = of.process;
    question.file = of.device_file;
    if (device_ask(question) != 0 || !take_lease(region, of.id))
        return cudaErrorMapBufferObjectFailed;
    book_add({memory::imported, page + of.before, of.bytes, page, of.mapped_bytes, of.offset, of.id,
        current_device(), of.process, 1, false, page});
    *pointer = page + of.before;
    return cudaSuccess;
}

cudaError_t import_memory(void **pointer, const cudaIpcMemHandle_t &handle, unsigned flags)
{
    memory_handle of;
    memcpy(&of, &handle, sizeof of);
    if (of.kind != MEMORY_HANDLE || flags != cudaIpcMemLazyEnablePeerAccess)
        return cudaErrorInvalidValue;
    if (of.process == self.host)
        return cudaErrorDeviceUninitialized; /* as hardware: not in the exporting process */
    if (!self.set.ipc) return cudaErrorMapBufferObjectFailed;
    if (!self.set.peers && of.device != current_device()) return cudaErrorPeerAccessUnsupported;
    std::lock_guard<std::mutex> lock(book_mutex());
    allocation *known = book_find_import(of.process, of.id);
    if (known == nullptr) return import_new(pointer, of);
    known->references++;
    *pointer = known->begin;
    return cudaSuccess;
}

cudaError_t close_memory(void *pointer)
{
    cudaError_t error = stream_wait_all(-1);
    if (error != cudaSuccess) return error;
    std::lock_guard<std::mutex> lock(book_mutex());
    allocation *found = book_find_exact(pointer);
    if (found == nullptr || found->kind != memory::imported) return cudaErrorInvalidValue;
    if (--found->references > 0) return cudaSuccess;
    request question = {};
    question.what = ask::release;
    question.at = (uint64_t)found->page;
    question.bytes = found->mapped_bytes;
    int failed = device_ask(question);
    give_lease_back(found->process, found->id);
    book_remove(pointer);
    return failed == 0 ? cudaSuccess : (cudaError_t)self.shared->error.load();
}

cudaError_t export_event(cudaIpcEventHandle_t *handle, const event &of)
{
    if (!(of.flags & cudaEventInterprocess) || of.region != 0)
        return cudaErrorInvalidResourceHandle;
    event_handle made = {EVENT_HANDLE, self.host, self.event_file_number, of.index};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return cudaSuccess;
}

cudaError_t import_event(cudaEvent_t *event, const cudaIpcEventHandle_t &handle)
{
    event_handle of;
    memcpy(&of, &handle, sizeof of);
    if (of.kind != EVENT_HANDLE) return cudaErrorInvalidValue;
    if (of.process == self.host) return cudaErrorDeviceUninitialized;
    if (!self.set.ipc) return cudaErrorMapBufferObjectFailed;
    std::lock_guard<std::mutex> lock(book_mutex());
    int region = open_region(of.process, of.event_file);
    if (region < 0) return cudaErrorMapBufferObjectFailed;
    *event = (cudaEvent_t)event_import(region, of.index);
    return cudaSuccess;
}

} // namespace
} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : export_memory(handle, pointer));
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : import_memory(pointer, handle, flags));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : close_memory(pointer));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t of)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : export_event(handle, *(event *)of));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : import_event(event, handle));
}
}
