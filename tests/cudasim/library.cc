/* library: see library.h.
 *
 *     host      [begin, begin + bytes) of a file  -- ask::library -->  device  dlopen(file), at + shift
 */
#include "library.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <mutex>
#include <vector>

#include "fault.h"
#include "process.h"

namespace cudasim {
namespace {

struct library {
    uintptr_t begin, bytes; /* in the host process */
    uintptr_t shift;        /* from there to here */
};

/* Those that both processes have; each process has its own list. State of the process. */
struct shelf {
    std::mutex mutex;
    std::vector<library> known;
};
forever<shelf> libraries;

const library *find(uintptr_t address)
{
    for (const library &each : (*libraries).known)
        if (address - each.begin < each.bytes) return &each;
    return nullptr;
}

/* What the loader says of the file that an address is in. */
struct loaded {
    uintptr_t address;
    const char *path;
    uintptr_t base, bytes;
};

int is_within(struct dl_phdr_info *info, size_t, void *argument)
{
    loaded *wanted = (loaded *)argument;
    uintptr_t end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD && part.p_vaddr + part.p_memsz > end)
            end = part.p_vaddr + part.p_memsz;
    }
    if (wanted->address - info->dlpi_addr >= end) return 0;
    wanted->path = info->dlpi_name;
    wanted->base = info->dlpi_addr;
    wanted->bytes = end;
    return 1;
}

} // namespace

cudaError_t library_share(const void *function)
{
    std::lock_guard<std::mutex> lock((*libraries).mutex);
    if (find((uintptr_t)function) != nullptr) return cudaSuccess;
    loaded found = {(uintptr_t)function, "", 0, 0};
    dl_iterate_phdr(is_within, &found);
    request question = {};
    char path[PATH_MAX];
    bool fits = *found.path != '\0' && realpath(found.path, path) != nullptr &&
                snprintf(question.path, sizeof question.path, "%s", path) <
                    (int)sizeof question.path;
    if (!fits) {
        fprintf(stderr,
            "cudasim[%d]: the kernel at %p is in \"%s\"; expected a shared library, which the "
            "device process can load too\n",
            (int)self.host, function, *found.path == '\0' ? "the program" : found.path);
        return cudaErrorInvalidDeviceFunction;
    }
    question.what = ask::library;
    question.at = found.base;
    question.bytes = found.bytes;
    if (device_ask(question) != 0) return cudaErrorInvalidDeviceFunction;
    (*libraries).known.push_back({found.base, found.bytes, 0});
    return cudaSuccess;
}

int library_load(const request &question)
{
    void *handle = dlopen(question.path, RTLD_NOW | RTLD_LOCAL);
    struct link_map *map = nullptr;
    if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) {
        fprintf(stderr, "cudasim[%d]: the device process cannot load the kernels: %s\n",
            (int)self.host, dlerror());
        return ENOEXEC;
    }
    std::lock_guard<std::mutex> lock((*libraries).mutex);
    (*libraries).known.push_back({question.at, question.bytes, map->l_addr - question.at});
    return 0;
}

void *library_here(const void *function)
{
    std::lock_guard<std::mutex> lock((*libraries).mutex);
    const library *found = find((uintptr_t)function);
    if (found == nullptr) fault(cudaErrorInvalidDeviceFunction, "no library has %p", function);
    return (void *)((uintptr_t)function + found->shift);
}

} // namespace cudasim
