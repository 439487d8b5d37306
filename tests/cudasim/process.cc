/* process: the host's side: start, questions, end. */
#include "process.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fiber.h"

namespace cudasim {

process_state self;

namespace {

thread_local cudaError_t last_error;
thread_local bool calls_forbidden;

/* Above all that programs, heaps and libraries are given (their places vary by 1 TiB), and where
 * ThreadSanitizer lets memory be. A wish: what is taken, or another processor, gets another place. */
#if defined(__x86_64__)
void *const SPACE_WISH = (void *)0x7e8000000000;
#else
void *const SPACE_WISH = nullptr;
#endif
constexpr int START_TRIES = 16;
constexpr int START_TIMEOUT_MS = 60000;

int nameless_file(const char *label, size_t bytes)
{
    int file = memfd_create(label, MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0) return file;
    if (file >= 0) close(file);
    return -1;
}

void *map_shared(int file, size_t bytes)
{
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

bool map_everything()
{
    void *space = mmap(SPACE_WISH, DEVICE_SPACE + PINNED_SPACE, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    self.device_file = nameless_file("cudasim-device", DEVICE_SPACE + PINNED_SPACE);
    self.event_file_number = nameless_file("cudasim-events", sizeof(event_file));
    self.control_file = nameless_file("cudasim-control", sizeof(control));
    if (space == MAP_FAILED || self.device_file < 0 || self.event_file_number < 0 ||
        self.control_file < 0)
        return false;
    void *events = map_shared(self.event_file_number, sizeof(event_file));
    void *shared = map_shared(self.control_file, sizeof(control));
    if (events == MAP_FAILED || shared == MAP_FAILED) return false;
    self.device_space = (char *)space;
    self.pinned_space = (char *)space + DEVICE_SPACE;
    self.shared = (control *)shared;
    self.host = getpid();
    self.regions[0] = {(event_file *)events, self.host, self.event_file_number};
    self.region_count = 1;
    return true;
}

/* The program beside this library. It inherits the other end of the socket, and nothing else that
 * is of use to it; a program, not a fork: so other threads may hold whatever they hold. */
pid_t spawn_device(int socket)
{
    Dl_info here;
    if (dladdr((const void *)spawn_device, &here) == 0) return -1;
    std::string path = here.dli_fname;
    path.replace(path.rfind('/') + 1, std::string::npos, "cudasim_device");
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, socket, DEVICE_SOCKET);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    char *arguments[] = {(char *)"cudasim_device", nullptr};
    pid_t child;
    int error = posix_spawn(&child, path.c_str(), &files, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
        fprintf(stderr, "cudasim: cannot start %s (%s): it is built beside libcudasim.so\n",
            path.c_str(), strerror(error));
        return -1;
    }
    return child;
}

/* Tells a new device process where all is. Returns an errno: EEXIST when it has something else at
 * the addresses of device memory. */
int introduce()
{
    request question = {};
    question.what = ask::begin;
    question.at = (uint64_t)self.device_space;
    question.process = self.host;
    question.files[0] = self.device_file;
    question.files[1] = self.event_file_number;
    question.files[2] = self.control_file;
    struct pollfd answer = {self.socket, POLLIN, 0};
    if (send(self.socket, &question, sizeof question, MSG_NOSIGNAL) < 0) return errno;
    int ready;
    while ((ready = poll(&answer, 1, START_TIMEOUT_MS)) < 0 && errno == EINTR) {}
    if (ready == 0) return ETIMEDOUT;
    ssize_t got = recv(self.socket, &question, sizeof question, 0);
    return got == (ssize_t)sizeof question ? question.error : EPIPE;
}

/* Starts the device process; where memory lies in it is a matter of chance, so perhaps again. */
int start_device()
{
    int error = EEXIST;
    for (int i = 0; i < START_TRIES && error == EEXIST; i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno;
        self.socket = ends[0];
        self.device = spawn_device(ends[1]);
        close(ends[1]);
        error = self.device < 0 ? ENOENT : introduce();
        if (error == 0) return 0;
        close(self.socket);
        if (self.device > 0) kill(self.device, SIGKILL);
        while (self.device > 0 && waitpid(self.device, nullptr, 0) < 0 && errno == EINTR) {}
    }
    return error;
}

void end_device()
{
    if (!self.started || self.orphan) return;
    request question = {};
    question.what = ask::quit;
    if (send(self.socket, &question, sizeof question, MSG_NOSIGNAL) < 0) return;
    int status;
    while (waitpid(self.device, &status, 0) < 0 && errno == EINTR) {}
}

/* CUDA does not survive fork(), and neither does this: the child has no device. */
void after_fork_in_child()
{
    if (self.started) self.orphan = true;
}

cudaError_t start()
{
    if (!settings_read(self.set)) return cudaErrorInitializationError;
    if (self.set.driver_version < CUDART_VERSION) return cudaErrorInsufficientDriver;
    if (self.set.devices == 0) return cudaErrorNoDevice;
    if (self.shared == nullptr && !map_everything()) {
        fprintf(stderr,
            "cudasim: cannot set up its memory (%s): the process needs 320 GiB of address space, "
            "of which only what is used becomes memory; see ulimit -v\n",
            strerror(errno));
        return cudaErrorInitializationError;
    }
    int error = start_device();
    if (error != 0) {
        fprintf(stderr, "cudasim[%d]: its device process did not start: %s\n", (int)self.host,
            strerror(error));
        return cudaErrorInitializationError;
    }
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    atexit(end_device);
    self.started = true;
    return cudaSuccess;
}

} // namespace

void counter_wait(counter &word, uint32_t seen, int timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void counter_wake(counter &word)
{
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int64_t clock_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

cudaError_t enter()
{
    if (calls_forbidden) return cudaErrorNotPermitted;
    if (!self.started) {
        std::lock_guard<std::mutex> lock(self.mutex);
        if (!self.started) return start();
    }
    if (self.orphan) return cudaErrorInitializationError;
    return (cudaError_t)self.shared->error.load();
}

cudaError_t leave(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

void forbid_calls(bool forbidden) { calls_forbidden = forbidden; }

int device_ask(request &question)
{
    std::lock_guard<std::mutex> lock(self.mutex);
    if (send(self.socket, &question, sizeof question, MSG_NOSIGNAL) == (ssize_t)sizeof question &&
        recv(self.socket, &question, sizeof question, 0) == (ssize_t)sizeof question)
        return question.error;
    device_ended();
    return EPIPE;
}

bool device_ended()
{
    int status;
    if (self.shared->error != 0) return true;
    if (waitpid(self.device, &status, WNOHANG) != self.device) return false;
    if (self.shared->error != 0) return true; /* a fault has said more */
    /* One thread has reaped it; whoever sees the error sees the message. */
    snprintf(self.shared->message, sizeof self.shared->message,
        "the device process has ended, %s %d", WIFSIGNALED(status) ? "by signal" : "with code",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    tsan_release(&self.shared->error);
    self.shared->error = cudaErrorUnknown;
    fprintf(stderr, "cudasim[%d]: %s\n", (int)self.host, self.shared->message);
    return true;
}

} // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaGetLastError()
{
    cudaError_t error = last_error;
    last_error = self.started ? (cudaError_t)self.shared->error.load() : cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char *cudaGetErrorString(cudaError_t error)
{
    bool is_sticky = self.started && error != cudaSuccess && self.shared->error == (int)error;
    if (is_sticky) tsan_acquire(&self.shared->error);
    return is_sticky ? self.shared->message : cudaGetErrorName(error);
}

const char *cudaGetErrorName(cudaError_t error)
{
#define NAME(e)                                                                                    \
    case e: return #e;
    switch (error) {
        NAME(cudaSuccess)
        NAME(cudaErrorInvalidValue)
        NAME(cudaErrorMemoryAllocation)
        NAME(cudaErrorInitializationError)
        NAME(cudaErrorInvalidConfiguration)
        NAME(cudaErrorInsufficientDriver)
        NAME(cudaErrorDeviceUninitialized)
        NAME(cudaErrorNoDevice)
        NAME(cudaErrorInvalidDevice)
        NAME(cudaErrorInvalidPitchValue)
        NAME(cudaErrorInvalidDevicePointer)
        NAME(cudaErrorInvalidDeviceFunction)
        NAME(cudaErrorInvalidResourceHandle)
        NAME(cudaErrorIllegalAddress)
        NAME(cudaErrorMisalignedAddress)
        NAME(cudaErrorLaunchOutOfResources)
        NAME(cudaErrorLaunchFailure)
        NAME(cudaErrorLaunchTimeout)
        NAME(cudaErrorAssert)
        NAME(cudaErrorNotReady)
        NAME(cudaErrorNotPermitted)
        NAME(cudaErrorNotSupported)
        NAME(cudaErrorMapBufferObjectFailed)
        NAME(cudaErrorPeerAccessAlreadyEnabled)
        NAME(cudaErrorPeerAccessNotEnabled)
        NAME(cudaErrorPeerAccessUnsupported)
        NAME(cudaErrorHostMemoryAlreadyRegistered)
        NAME(cudaErrorHostMemoryNotRegistered)
        NAME(cudaErrorStreamCaptureUnsupported)
        NAME(cudaErrorStreamCaptureInvalidated)
        NAME(cudaErrorStreamCaptureUnmatched)
        NAME(cudaErrorStreamCaptureUnjoined)
        NAME(cudaErrorStreamCaptureIsolation)
        NAME(cudaErrorStreamCaptureImplicit)
        NAME(cudaErrorCapturedEvent)
        NAME(cudaErrorIllegalState)
        NAME(cudaErrorUnknown)
    default: return "an error that cudasim never returns";
    }
#undef NAME
}
}
