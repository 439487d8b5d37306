/* fault: messages, signals, the name of a kernel. */
#include "fault.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "block.h"
#include "process.h"

namespace cudasim {
namespace {

forever<std::vector<void (*)()>> exit_functions;

/* A file's table of symbols: dladdr() knows only the exported ones, and kernels are static. */
std::string symbol_in_file(const char *path, uintptr_t offset)
{
    std::string found;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0) return found;
    size_t bytes = fstat(file, &status) == 0 ? (size_t)status.st_size : 0;
    char *image = bytes == 0 ? (char *)MAP_FAILED
                             : (char *)mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (image == MAP_FAILED) return found;
    const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)image;
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(image + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const ElfW(Sym) *symbol = (const ElfW(Sym) *)(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        size_t count = sections[i].sh_size / sizeof *symbol;
        for (size_t j = 0; j < count && found.empty(); j++)
            if (symbol[j].st_value == offset && ELF64_ST_TYPE(symbol[j].st_info) == STT_FUNC)
                found = names + symbol[j].st_name;
    }
    munmap(image, bytes);
    return found;
}

/* Without the types of its parameters. */
std::string readable(const std::string &mangled)
{
    int status;
    char *text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    if (text == nullptr) return mangled;
    std::string name = text;
    free(text);
    if (name.rfind("void ", 0) == 0) name.erase(0, 5);
    int depth = 0;
    for (size_t i = 0; i < name.size(); i++) {
        depth += name[i] == '<';
        depth -= name[i] == '>';
        if (name[i] == '(' && depth == 0 && i > 0 && name.compare(i, 11, "(anonymous ") != 0)
            return name.substr(0, i);
    }
    return name;
}

void on_signal(int signal, siginfo_t *what, void *)
{
    char where[160];
    if (signal == SIGABRT) fault(cudaErrorAssert, "abort%s", current_place().c_str());
    /* Kernels are built with -fsanitize=alignment; and for a vector the processor does not say
     * where. */
    if (signal == SIGILL || (signal == SIGSEGV && what->si_code == SI_KERNEL))
        fault(
            cudaErrorMisalignedAddress, "an access that is not aligned%s", current_place().c_str());
    if (stack_overflowed(what->si_addr) != 0)
        fault(cudaErrorIllegalAddress, "the stack of a thread, %zu bytes, has overflowed%s",
            stack_overflowed(what->si_addr), current_place().c_str());
    describe_address(where, sizeof where, what->si_addr);
    if (signal == SIGFPE)
        fault(cudaErrorLaunchFailure, "%s at %p%s", strsignal(signal), what->si_addr,
            current_place().c_str());
    fault(cudaErrorIllegalAddress, "illegal access to address %p%s%s", what->si_addr, where,
        current_place().c_str());
}

} // namespace

void fault(cudaError_t error, const char *format, ...)
{
    static std::atomic_flag begun = ATOMIC_FLAG_INIT;
    while (begun.test_and_set()) pause(); /* another thread's was first, and ends the process */
    va_list list;
    va_start(list, format);
    vsnprintf(self.shared->message, sizeof self.shared->message, format, list);
    va_end(list);
    dprintf(2, "cudasim[%d]: %s\n", (int)self.host, self.shared->message);
    self.shared->error = error; /* from now on others end this process too */
    for (stream_queue &each : self.shared->streams) counter_wake(each.done);
    device_exit(3);
}

void device_exit(int code)
{
    fflush(stdout);
    for (void (*function)() : *exit_functions) function();
    _exit(code);
}

void at_exit_of_device(void (*function)()) { (*exit_functions).push_back(function); }

void fault_stack()
{
    stack_t stack = {};
    stack.ss_size = 64 << 10;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
}

void fault_install()
{
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int each : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(each, &action, nullptr);
    fault_stack();
}

std::string kernel_name(const void *function)
{
    Dl_info info;
    if (function == nullptr || dladdr(function, &info) == 0) return "?";
    if (info.dli_saddr == function) return readable(info.dli_sname);
    struct link_map *map = nullptr;
    dladdr1(function, &info, (void **)&map, RTLD_DL_LINKMAP);
    const char *path = map != nullptr && *map->l_name ? map->l_name : "/proc/self/exe";
    std::string name =
        symbol_in_file(path, (uintptr_t)function - (map != nullptr ? map->l_addr : 0));
    return name.empty() ? "?" : readable(name);
}

} // namespace cudasim
