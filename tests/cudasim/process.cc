/* process: the host's side: start, questions, end. */
#include "process.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace cudasim {

process_state self;

namespace {

thread_local cudaError_t last_error;
thread_local bool calls_forbidden;

void *reserve(size_t bytes, int protection, int flags)
{
    void *found = mmap(nullptr, bytes, protection, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? nullptr : found;
}

int nameless_file(const char *label, size_t bytes)
{
    int file = memfd_create(label, MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0) return file;
    if (file >= 0) close(file);
    return -1;
}

bool map_everything()
{
    self.device_space = (char *)reserve(DEVICE_SPACE, PROT_NONE, MAP_PRIVATE);
    self.pinned_space = (char *)reserve(PINNED_SPACE, PROT_NONE, MAP_PRIVATE);
    self.shared = (control *)reserve(sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED);
    self.device_file = nameless_file("cudasim-device", DEVICE_SPACE + PINNED_SPACE);
    self.event_file_number = nameless_file("cudasim-events", sizeof(event_file));
    if (!self.device_space || !self.pinned_space || !self.shared || self.device_file < 0 ||
        self.event_file_number < 0)
        return false;
    void *events = mmap(
        nullptr, sizeof(event_file), PROT_READ | PROT_WRITE, MAP_SHARED, self.event_file_number, 0);
    if (events == MAP_FAILED) return false;
    self.host = getpid();
    self.regions[0] = {(event_file *)events, self.host, self.event_file_number};
    self.region_count = 1;
    return true;
}

void end_device()
{
    if (!self.started || self.orphan || self.is_device) return;
    request question = {};
    question.what = ask::quit;
    if (send(self.socket, &question, sizeof question, MSG_NOSIGNAL) < 0) return;
    int status;
    while (waitpid(self.device, &status, 0) < 0 && errno == EINTR) {
    }
}

/* CUDA does not survive fork(), and neither does this: the child has no device. */
void after_fork_in_child()
{
    if (self.started && !self.is_device) self.orphan = true;
}

cudaError_t start()
{
    if (!settings_read(self.set)) return cudaErrorInitializationError;
    if (self.set.driver_version < CUDART_VERSION) return cudaErrorInsufficientDriver;
    if (self.set.devices == 0) return cudaErrorNoDevice;
    int ends[2];
    if (!map_everything() || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        fprintf(stderr,
            "cudasim: cannot set up its memory (%s): the process needs 320 GiB of address space, "
            "of which "
            "only what is used becomes memory; see ulimit -v\n",
            strerror(errno));
        return cudaErrorInitializationError;
    }
    fflush(nullptr); /* or both processes would write what is buffered */
    pid_t child = fork();
    if (child < 0) return cudaErrorInitializationError;
    if (child == 0) {
        close(ends[0]);
        self.socket = ends[1];
        device_main();
    }
    close(ends[1]);
    self.socket = ends[0];
    self.device = child;
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
    int expected = 0;
    if (!self.shared->error.compare_exchange_strong(expected, cudaErrorUnknown)) return true;
    snprintf(self.shared->message, sizeof self.shared->message,
        "the device process has ended, %s %d", WIFSIGNALED(status) ? "by signal" : "with code",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
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
