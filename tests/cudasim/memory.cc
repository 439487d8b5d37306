/* memory: the book; cudaMalloc and its kin. device_process.cc draws how an allocation lies. */
#include "memory.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#include "graph.h"
#include "stream.h"

namespace cudasim {
namespace {

constexpr size_t ALIGNMENT = 256;

/* State of the process, guarded by its mutex. */
struct book {
    std::mutex mutex;
    std::map<const char *, allocation> by_address;
    size_t next_offset = PAGE, next_pinned = PAGE, used_bytes[DEVICE_MAX] = {};
    uint64_t last_id = 0;
};
forever<book> the_book_;
book &the_book() { return *the_book_; }

cudaError_t allocate(void **pointer, size_t bytes)
{
    *pointer = nullptr;
    if (capture_forbids()) return cudaErrorStreamCaptureUnsupported;
    if (bytes == 0) return cudaSuccess;
    book &book = the_book();
    std::lock_guard<std::mutex> lock(book.mutex);
    int device = current_device();
    size_t size = (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1),
           mapped = (size + PAGE - 1) & ~(PAGE - 1);
    if (bytes > self.set.memory_bytes || book.used_bytes[device] + mapped > self.set.memory_bytes)
        return cudaErrorMemoryAllocation;
    char *page = take_device_space(mapped);
    if (page == nullptr) return cudaErrorMemoryAllocation;
    char *begin = page + mapped - size;
    request question = {};
    question.what = ask::map;
    question.at = (uint64_t)page;
    question.bytes = mapped;
    question.offset = (uint64_t)(page - self.device_space);
    question.begin = (uint64_t)begin;
    question.end = (uint64_t)begin + bytes;
    if (device_ask(question) != 0) return cudaErrorMemoryAllocation;
    book_add({memory::device, begin, bytes, page, mapped, question.offset, ++book.last_id, device,
        self.host, 1, false, page});
    book.used_bytes[device] += mapped;
    *pointer = begin;
    return cudaSuccess;
}

/* A process that was killed may not have been reaped, or may not be gone yet. */
bool lives(int process)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "re");
    const char *state =
        file != nullptr && fgets(line, sizeof line, file) != nullptr ? strrchr(line, ')') : nullptr;
    if (file != nullptr) fclose(file);
    return state != nullptr && state[1] == ' ' && strchr("ZXx", state[2]) == nullptr;
}

/* Another process that has it open, or 0. */
int borrower(uint64_t id)
{
    for (lease &each : self.regions[0].events->leases) {
        int process = each.process;
        if (process != 0 && each.allocation == id && lives(process)) return process;
    }
    return 0;
}

/* One that is about to die, or to close it, is given time: what has it open still is a bug. */
int lasting_borrower(uint64_t id)
{
    int process = borrower(id);
    for (int i = 0; process != 0 && i < 100; i++) {
        usleep(2000);
        process = borrower(id);
    }
    return process;
}

cudaError_t release(void *pointer)
{
    if (pointer == nullptr) return cudaSuccess;
    if (capture_forbids()) return cudaErrorStreamCaptureUnsupported;
    cudaError_t error = stream_wait_all(-1);
    if (error != cudaSuccess) return error;
    book &book = the_book();
    std::lock_guard<std::mutex> lock(book.mutex);
    allocation *found = book_find_exact(pointer);
    if (found == nullptr || found->kind != memory::device) return cudaErrorInvalidValue;
    int process = lasting_borrower(found->id);
    if (process != 0) {
        fprintf(stderr,
            "cudasim[%d]: cudaFree(%p): process %d still has it open; expected "
            "cudaIpcCloseMemHandle() "
            "there first, or what happens is undefined\n",
            (int)self.host, pointer, process);
        return cudaErrorInvalidValue;
    }
    request question = {};
    question.what = ask::unmap;
    question.at = (uint64_t)found->page;
    question.bytes = found->mapped_bytes;
    question.offset = found->offset;
    book.used_bytes[found->device] -= found->mapped_bytes;
    book_remove(pointer);
    return device_ask(question) == 0 ? cudaSuccess : (cudaError_t)self.shared->error.load();
}

cudaError_t attributes(cudaPointerAttributes *into, const void *pointer)
{
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find(pointer);
    *into = cudaPointerAttributes();
    into->type = cudaMemoryTypeUnregistered;
    into->device = -1;
    if (found == nullptr) {
        into->hostPointer = (void *)pointer;
        return cudaSuccess;
    }
    bool on_device = found->kind == memory::device || found->kind == memory::imported;
    into->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    into->device = found->device;
    into->devicePointer = device_address(*found, pointer);
    into->hostPointer = on_device ? nullptr : (void *)pointer;
    return cudaSuccess;
}

char *no_more_addresses(size_t bytes)
{
    fprintf(stderr,
        "cudasim[%d]: %zu GiB of addresses have been given out, which is all there are: those of "
        "freed memory are never used again, so that its use shows; allocate less often\n",
        (int)self.host, bytes >> 30);
    return nullptr;
}

} // namespace

std::mutex &book_mutex() { return the_book().mutex; }

allocation *book_find(const void *address)
{
    auto &book = the_book().by_address;
    auto after = book.upper_bound((const char *)address);
    if (after == book.begin()) return nullptr;
    allocation &found = std::prev(after)->second;
    return (const char *)address < found.begin + found.bytes ? &found : nullptr;
}

allocation *book_find_exact(const void *begin)
{
    auto found = the_book().by_address.find((const char *)begin);
    return found == the_book().by_address.end() ? nullptr : &found->second;
}

allocation *book_find_import(int process, uint64_t id)
{
    for (auto &each : the_book().by_address) {
        allocation &found = each.second;
        if (found.kind == memory::imported && found.process == process && found.id == id)
            return &found;
    }
    return nullptr;
}

allocation &book_add(const allocation &added) { return the_book().by_address[added.begin] = added; }

void book_remove(const void *begin) { the_book().by_address.erase((const char *)begin); }

char *take_device_space(size_t bytes)
{
    book &book = the_book();
    if (book.next_offset + bytes + PAGE > DEVICE_SPACE) return no_more_addresses(DEVICE_SPACE);
    char *page = self.device_space + book.next_offset;
    book.next_offset += bytes + PAGE;
    return page;
}

char *take_pinned_space(size_t bytes)
{
    book &book = the_book();
    if (book.next_pinned + bytes + PAGE > PINNED_SPACE) return no_more_addresses(PINNED_SPACE);
    char *page = self.pinned_space + book.next_pinned;
    book.next_pinned += bytes + PAGE;
    return page;
}

char *device_address(const allocation &of, const void *address)
{
    return of.alias + ((const char *)address - of.page);
}

bool device_reaches(int device, const void *address)
{
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find(address);
    if (found != nullptr && found->kind == memory::device)
        return found->device == device || peer_enabled(device, found->device);
    if (in_device_space(address) || in_pinned_space(address))
        return true; /* or it faults when it is used */
    /* Programs, their heaps and stacks lie above 2^45; what is below is a number, and so is what
     * is not mapped. */
    uintptr_t number = (uintptr_t)address;
    unsigned char resident;
    if (number >> 45 == 0 || number >> 48 != 0) return true;
    return mincore((void *)(number & ~(PAGE - 1)), 1, &resident) != 0;
}

} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : allocate(pointer, bytes));
}

cudaError_t cudaFree(void *pointer)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : release(pointer));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cudaError_t error = enter();
    if (error != cudaSuccess) return leave(error);
    std::lock_guard<std::mutex> lock(book_mutex());
    *total_bytes = self.set.memory_bytes;
    *free_bytes = self.set.memory_bytes - the_book().used_bytes[current_device()];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *into, const void *pointer)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : attributes(into, pointer));
}
}
