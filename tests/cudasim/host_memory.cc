/* host_memory: memory of the host that the device reaches: pinned, and registered.
 *
 * Pinned memory is mapped at one address in both processes. Registered memory keeps its address in
 * the host, and has another on the device (cudaHostGetDevicePointer), for at its own the device
 * process may have something else:
 *
 *   pages of a shared mapping      the device maps the same file
 *   private pages                  become pages of the device file, with the same contents, until
 *                                  they are unregistered
 *
 * Not exact: another thread's write to a page while it is exchanged can be lost, which concerns
 * only the first and last page of a range that is not whole pages.
 */
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "graph.h"
#include "memory.h"
#include "stream.h"

namespace cudasim {
namespace {

uint64_t page_up(uint64_t at) { return (at + PAGE - 1) & ~(PAGE - 1); }

/* Past the sanitizers, which would take an exchange of pages for accesses to all that lies in
 * them. */
bool map_over(char *page, size_t bytes, int flags, int file, uint64_t offset)
{
    return syscall(SYS_mmap, page, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, file,
               offset) == (long)page;
}

void hide(char *page, size_t bytes)
{
    syscall(SYS_mmap, page, bytes, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

request about(const allocation &memory, ask what)
{
    request question = {};
    question.what = what;
    question.at = (uint64_t)memory.alias;
    question.bytes = memory.mapped_bytes;
    question.offset = memory.offset;
    question.begin = (uint64_t)memory.alias + (uint64_t)(memory.begin - memory.page);
    question.end = question.begin + memory.bytes;
    return question;
}

cudaError_t pin(void **pointer, size_t bytes)
{
    *pointer = nullptr;
    if (capture_forbids()) return cudaErrorStreamCaptureUnsupported;
    if (bytes == 0) return cudaSuccess;
    std::lock_guard<std::mutex> lock(book_mutex());
    size_t mapped = page_up(bytes);
    char *page = take_pinned_space(mapped);
    if (page == nullptr) return cudaErrorMemoryAllocation;
    uint64_t offset = DEVICE_SPACE + (uint64_t)(page - self.pinned_space);
    allocation added = {memory::pinned, page, bytes, page, mapped, offset, 0, current_device(),
        self.host, 1, false, page};
    request question = about(added, ask::map);
    if (!map_over(page, mapped, MAP_SHARED, self.device_file, offset))
        return cudaErrorMemoryAllocation;
    if (device_ask(question) != 0) return cudaErrorMemoryAllocation;
    book_add(added);
    *pointer = page;
    return cudaSuccess;
}

cudaError_t unpin(void *pointer)
{
    if (pointer == nullptr) return cudaSuccess;
    cudaError_t error = stream_wait_all(-1);
    if (error != cudaSuccess) return error;
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find_exact(pointer);
    if (found == nullptr || found->kind != memory::pinned) return cudaErrorInvalidValue;
    request question = about(*found, ask::unmap);
    hide(found->page, found->mapped_bytes); /* used after it is freed: a fault */
    book_remove(pointer);
    return device_ask(question) == 0 ? cudaSuccess : (cudaError_t)self.shared->error.load();
}

/* ---- what a range of the host's memory is ---- */

struct mapped_file {
    bool shared;
    uint64_t offset; /* of the range in the file */
    char path[256];  /* how another process opens it */
};

/* The descriptor of a file that has no name any more. */
bool find_descriptor(
    mapped_file &into, unsigned major_number, unsigned minor_number, uint64_t inode)
{
    DIR *files = opendir("/proc/self/fd");
    bool found = false;
    for (struct dirent *each; files != nullptr && !found && (each = readdir(files)) != nullptr;) {
        struct stat status;
        /* By its name: other threads may open and close what they like. */
        if (*each->d_name == '.' || fstatat(dirfd(files), each->d_name, &status, 0) != 0) continue;
        found = status.st_ino == inode && status.st_dev == makedev(major_number, minor_number);
        if (found)
            snprintf(
                into.path, sizeof into.path, "/proc/%d/fd/%d", (int)self.host, atoi(each->d_name));
    }
    if (files != nullptr) closedir(files);
    return found;
}

/* False when a part of the range is not mapped for reading and writing. */
bool look_up(mapped_file &into, uint64_t begin, uint64_t end)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    bool any_shared = false, one_mapping = false;
    uint64_t reached_to = begin;
    while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
        uint64_t low, high, offset, inode;
        unsigned major_number, minor_number;
        char rights[8];
        int name = 0;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64 " %n", &low,
                &high, rights, &offset, &major_number, &minor_number, &inode, &name) < 7)
            continue;
        if (high <= reached_to || low >= end) continue;
        if (low > reached_to || rights[0] != 'r' || rights[1] != 'w') break;
        reached_to = high;
        if (rights[3] != 's') continue;
        any_shared = true;
        one_mapping = low <= begin && high >= end;
        into.offset = offset + (begin - low);
        line[strcspn(line, "\n")] = '\0';
        bool has_name = line[name] == '/' && strstr(line + name, " (deleted)") == nullptr;
        if (has_name) snprintf(into.path, sizeof into.path, "%s", line + name);
        else one_mapping = one_mapping && find_descriptor(into, major_number, minor_number, inode);
    }
    if (maps != nullptr) fclose(maps);
    into.shared = any_shared;
    return reached_to >= end && any_shared == one_mapping;
}

/* The pages become those of the device file, contents and all. */
bool make_shared(const allocation &memory)
{
    for (size_t done = 0; done < memory.mapped_bytes;) {
        long written = syscall(SYS_pwrite64, self.device_file, memory.page + done,
            memory.mapped_bytes - done, memory.offset + done);
        if (written <= 0) return false;
        done += (size_t)written;
    }
    return map_over(memory.page, memory.mapped_bytes, MAP_SHARED, self.device_file, memory.offset);
}

void make_private(const allocation &memory)
{
    size_t bytes = memory.mapped_bytes;
    void *copied = (void *)syscall(
        SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copied == MAP_FAILED) return; /* shared pages serve as well */
    volatile uint64_t *to = (volatile uint64_t *)copied,
                      *from = (volatile uint64_t *)memory.page; /* unseen, too */
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] = from[i];
    syscall(SYS_mremap, copied, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory.page);
}

cudaError_t register_range(void *pointer, size_t bytes)
{
    if (capture_forbids()) return cudaErrorStreamCaptureUnsupported;
    if (pointer == nullptr || bytes == 0) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> lock(book_mutex());
    char *begin = (char *)pointer, *page = (char *)((uint64_t)begin & ~(PAGE - 1));
    size_t mapped = page_up((uint64_t)begin + bytes) - (uint64_t)page;
    if (book_find(begin) != nullptr || book_find(begin + bytes - 1) != nullptr)
        return cudaErrorHostMemoryAlreadyRegistered;
    mapped_file file = {};
    char *alias = take_pinned_space(mapped);
    if (alias == nullptr || !look_up(file, (uint64_t)page, (uint64_t)page + mapped))
        return cudaErrorInvalidValue;
    uint64_t offset =
        file.shared ? file.offset : DEVICE_SPACE + (uint64_t)(alias - self.pinned_space);
    allocation added = {memory::registered, begin, bytes, page, mapped, offset, 0, current_device(),
        self.host, 1, !file.shared, alias};
    request question = about(added, ask::map_file);
    if (file.shared) snprintf(question.path, sizeof question.path, "%s", file.path);
    else
        snprintf(question.path, sizeof question.path, "/proc/%d/fd/%d", (int)self.host,
            self.device_file);
    if (added.was_private && !make_shared(added)) return cudaErrorMemoryAllocation;
    if (device_ask(question) != 0) return cudaErrorMemoryAllocation;
    book_add(added);
    return cudaSuccess;
}

cudaError_t unregister(void *pointer)
{
    cudaError_t error = stream_wait_all(-1);
    if (error != cudaSuccess) return error;
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find_exact(pointer);
    if (found == nullptr || found->kind != memory::registered)
        return cudaErrorHostMemoryNotRegistered;
    request question = about(*found, ask::release);
    if (found->was_private) make_private(*found);
    book_remove(pointer);
    return device_ask(question) == 0 ? cudaSuccess : (cudaError_t)self.shared->error.load();
}

cudaError_t device_pointer(void **device, const void *host)
{
    std::lock_guard<std::mutex> lock(book_mutex());
    const allocation *found = book_find(host);
    if (found == nullptr || (found->kind != memory::pinned && found->kind != memory::registered))
        return cudaErrorInvalidValue;
    *device = device_address(*found, host);
    return cudaSuccess;
}

} // namespace
} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : pin(pointer, bytes));
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *pointer)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : unpin(pointer));
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && (flags & (cudaHostRegisterIoMemory | cudaHostRegisterReadOnly)))
        error = cudaErrorNotSupported;
    return leave(error != cudaSuccess ? error : register_range(pointer, bytes));
}

cudaError_t cudaHostUnregister(void *pointer)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : unregister(pointer));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
    cudaError_t error = enter();
    return leave(error != cudaSuccess ? error : device_pointer(device, host));
}
}
