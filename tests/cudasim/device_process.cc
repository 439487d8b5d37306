/* device_process: the main thread of the device process: maps memory as the host asks, and starts
 * the workers.
 *
 *   an allocation   guard | 0xff… | begin … end | 0xff… | guard     guards: a page, never mapped
 *                         page                          page + bytes
 *
 * Memory begins as 0xff bytes, NaN in every float dtype. end is as near to the guard as the
 * alignment of 256 lets it be, and what lies around is looked at when the memory is given back: a
 * write past an allocation is a fault at once, or is found then. Addresses are never used again: an
 * access to freed memory is a fault too.
 */
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "fault.h"
#include "fiber.h"
#include "library.h"
#include "process.h"
#include "worker.h"

namespace cudasim {
namespace {

struct mapping {
    uint64_t at, bytes, begin, end;
    bool freed;
};
/* Written by the main thread, only added to; read by it and, for the text of a fault, by whoever
 * faults. */
std::vector<mapping> mappings;

/* To ThreadSanitizer a write of all that is mapped: released to device_order(). */
bool map_at(const request &question, int file)
{
    bool mapped = file >= 0 && mmap((void *)question.at, question.bytes, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_FIXED, file,
                                   (off_t)question.offset) != MAP_FAILED;
    tsan_release(&mappings);
    return mapped;
}

void unmap_at(const request &question)
{
    mmap((void *)question.at, question.bytes, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void fill_new(const request &question)
{
    memset((void *)question.at, 0xff, question.bytes);
    tsan_release(&mappings);
    mappings.push_back({question.at, question.bytes, question.begin, question.end, false});
}

bool untouched(uint64_t from, uint64_t to)
{
    return std::all_of(
        (unsigned char *)from, (unsigned char *)to, [](unsigned char c) { return c == 0xff; });
}

void check_margins(const mapping &of)
{
    bool before = untouched(of.at, of.begin), after = untouched(of.end, of.at + of.bytes);
    if (before && after) return;
    fault(cudaErrorIllegalAddress,
        "bytes just %s an allocation of %zu bytes were written; seen now that it is freed",
        before ? "behind" : "before", (size_t)(of.end - of.begin));
}

int take_back(const request &question)
{
    for (mapping &each : mappings) {
        if (each.at != question.at || each.freed) continue;
        check_margins(each);
        each.freed = true;
    }
    unmap_at(question);
    fallocate(self.device_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)question.offset,
        (off_t)question.bytes);
    return 0;
}

int open_region(const request &question)
{
    int file = foreign_file(question.process, question.file);
    void *events =
        file < 0 ? MAP_FAILED
                 : mmap(nullptr, sizeof(event_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int error = events == MAP_FAILED ? errno : 0;
    if (file >= 0) close(file);
    if (error == 0) self.regions[question.offset].events = (event_file *)events;
    return error;
}

int map_foreign(const request &question, int file)
{
    int error = map_at(question, file) ? 0 : errno;
    if (file >= 0) close(file);
    return error;
}

int answer(request &question)
{
    switch (question.what) {
    case ask::map:
        if (!map_at(question, self.device_file)) return errno;
        fill_new(question);
        return 0;
    case ask::unmap: return take_back(question);
    case ask::map_file: return map_foreign(question, open(question.path, O_RDWR | O_CLOEXEC));
    case ask::import: return map_foreign(question, foreign_file(question.process, question.file));
    case ask::release: unmap_at(question); return 0;
    case ask::events: return open_region(question);
    case ask::stream: std::thread(worker_main, (int)question.offset).detach(); return 0;
    case ask::library: return library_load(question);
    case ask::quit: device_exit(0);
    case ask::begin: break;
    }
    return EINVAL;
}

/* The host process may go without a word. Where the kernel has no pidfd, its going is a change
 * of our parent. */
void watch_host()
{
    int file = (int)syscall(SYS_pidfd_open, self.host, 0);
    if (file >= 0) {
        struct pollfd gone = {file, POLLIN, 0};
        while (poll(&gone, 1, -1) < 0 && errno == EINTR) {}
    } else {
        while (getppid() == self.host) usleep(100000);
    }
    device_exit(0);
}

void *map_file(int process, int number, size_t bytes)
{
    int file = foreign_file(process, number);
    if (file < 0) return MAP_FAILED;
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at;
}

/* What the host says first: where all is. Returns an errno. */
int begin(const request &question)
{
    self.host = question.process;
    self.device_file = foreign_file(question.process, question.files[0]);
    void *events = map_file(question.process, question.files[1], sizeof(event_file));
    void *shared = map_file(question.process, question.files[2], sizeof(control));
    if (self.device_file < 0 || events == MAP_FAILED || shared == MAP_FAILED) return errno;
    self.shared = (control *)shared;
    self.regions[0] = {(event_file *)events, self.host, question.files[1]};
    self.region_count = 1;
    void *wanted = (void *)question.at,
         *space = mmap(wanted, DEVICE_SPACE + PINNED_SPACE, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (space != wanted) return space == MAP_FAILED ? errno : EEXIST;
    self.device_space = (char *)space;
    self.pinned_space = (char *)space + DEVICE_SPACE;
    return 0;
}

} // namespace

int foreign_file(int process, int file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
    return open(path, O_RDWR | O_CLOEXEC);
}

void device_order() { tsan_acquire(&mappings); }

void describe_address(char *text, size_t bytes, const void *address)
{
    uint64_t at = (uint64_t)address;
    *text = '\0';
    for (size_t i = 0; i < mappings.size(); i++) {
        const mapping &each = mappings[i];
        size_t size = each.end - each.begin;
        if (at < each.at || at >= each.at + each.bytes + PAGE) continue;
        if (each.freed)
            snprintf(text, bytes, ": an allocation of %zu bytes that has been freed", size);
        else if (at >= each.end)
            snprintf(text, bytes, ": %zu bytes past the end of an allocation of %zu bytes",
                (size_t)(at - each.end), size);
        else snprintf(text, bytes, ": in an allocation of %zu bytes", size);
        return;
    }
    if (in_device_space(address)) snprintf(text, bytes, ": no allocation of the device");
}

void device_main()
{
    request question;
    self.socket = DEVICE_SOCKET;
    self.device = getpid();
    /* The host's other sockets, pipes and locked files must close when the host closes them. */
    syscall(SYS_close_range, DEVICE_SOCKET + 1, ~0u, 0);
    if (!settings_read(self.set)) _exit(3);
    if (recv(self.socket, &question, sizeof question, 0) != (ssize_t)sizeof question) _exit(3);
    question.error = question.what == ask::begin ? begin(question) : EPROTO;
    if (send(self.socket, &question, sizeof question, MSG_NOSIGNAL) < 0 || question.error != 0)
        _exit(3);
    mappings.reserve(1 << 16); /* it does not move while somebody faults */
    fault_install();
    for (int terminal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
        signal(terminal, SIG_IGN); /* the host decides */
    std::thread(watch_host).detach();
    while (recv(self.socket, &question, sizeof question, 0) == (ssize_t)sizeof question) {
        question.error = answer(question);
        if (send(self.socket, &question, sizeof question, MSG_NOSIGNAL) < 0) break;
    }
    device_exit(0);
}

} // namespace cudasim
