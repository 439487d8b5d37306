/* Bugs that the simulator must catch. Each is planted in a process of its own; what the program is
 * told, and what stands in the message, is looked at. Bugs that show by their results alone are
 * planted in several orders of threads, or with delays.
 * ctest: timeout=120
 */
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudasim/kernels.h"
#include "tests/harness/harness.h"

#if defined(__SANITIZE_THREAD__)
enum { UNDER_TSAN = 1 };
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0"; /* it would wait for a second in each process */
}
#else
enum { UNDER_TSAN = 0 };
#endif

/* Returns the error that the program sees. */
typedef cudaError_t (*bug_function)(void);

struct bug {
    const char *name;
    bug_function plant;
    const char *setting;     /* "NAME=VALUE", or NULL */
    const char *expected[3]; /* what is said: each is one of several, "this|or that" */
};

/* Runs a bug in a process of its own; its stderr, and what it returned, is the text. */
static void run_bug(char *text, size_t bytes, bug_function plant, const char *setting)
{
    int ends[2], state;
    size_t used = 0;
    fflush(NULL);
    if (!CHECK(pipe(ends) == 0)) return;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        if (setting != NULL) putenv((char *)(uintptr_t)setting);
        dprintf(2, "\nreturned %s", cudaGetErrorName(plant()));
        exit(0);
    }
    close(ends[1]);
    for (ssize_t got; used < bytes - 1 && (got = read(ends[0], text + used, bytes - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    CHECK(waitpid(child, &state, 0) == child);
    if (WIFSIGNALED(state)) snprintf(text + used, bytes - used, "\nsignal %d", WTERMSIG(state));
}

/* Whether one of "these|alternatives" stands in the text. */
static bool says(const char *text, const char *these)
{
    char words[256];
    snprintf(words, sizeof words, "%s", these);
    for (char *rest = words, *word; (word = strsep(&rest, "|")) != NULL;)
        if (strstr(text, word) != NULL) return true;
    return false;
}

static void check_bug(const struct bug *bug)
{
    static char text[1 << 16];
    run_bug(text, sizeof text, bug->plant, bug->setting);
    for (int i = 0; i < 3 && bug->expected[i] != NULL; i++)
        CHECK_MSG(says(text, bug->expected[i]), "%s: expected \"%s\" in: %s", bug->name,
            bug->expected[i], text);
}

static void *bytes_on_device(size_t bytes)
{
    void *p = NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess) exit(3);
    return p;
}

static cudaError_t after(cudaError_t launched)
{
    return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
}

/* ---- memory ---- */

static cudaError_t write_past_end(void)
{
    return after(kernel_write(bytes_on_device(4000), 1100, NULL));
}

static cudaError_t write_freed(void)
{
    float *p = bytes_on_device(4000);
    cudaFree(p);
    return after(kernel_write(p, 0, NULL));
}

/* Less than a page past the end, or before: seen when it is freed. */
static cudaError_t write_just_past(void)
{
    float *p = bytes_on_device(4000);
    if (after(kernel_write(p, 1000, NULL)) != cudaSuccess) return cudaErrorUnknown;
    return cudaFree(p);
}

static cudaError_t write_just_before(void)
{
    float *p = bytes_on_device(256);
    if (after(kernel_write(p, -1, NULL)) != cudaSuccess) return cudaErrorUnknown;
    return cudaFree(p);
}

static cudaError_t write_freed_pinned(void)
{
    float *p;
    if (cudaMallocHost((void **)&p, 100) != cudaSuccess || cudaFreeHost(p) != cudaSuccess)
        return cudaErrorUnknown;
    return after(kernel_write(p, 0, NULL));
}

static cudaError_t host_reads_device(void)
{
    volatile float *p = bytes_on_device(64);
    return p[0] == 0 ? cudaErrorUnknown : cudaSuccess;
}

static cudaError_t kernel_gets_host(void)
{
    float *p = malloc(64);
    cudaFree(NULL);
    return after(kernel_write(p, 0, NULL));
}

static cudaError_t kernel_gets_host_deep(void)
{
    struct kernel_pointers pointers = {4, NULL};
    cudaFree(NULL);
    pointers.deep = malloc(64);
    return after(kernel_write_deep(pointers, NULL));
}

/* Registered memory has another address on the device. */
static cudaError_t kernel_gets_registered(void)
{
    float *p = malloc(8192);
    if (cudaHostRegister(p, 8192, cudaHostRegisterMapped) != cudaSuccess) return cudaErrorUnknown;
    return after(kernel_write(p, 0, NULL));
}

static cudaError_t kernel_gets_stranger(void)
{
    cudaSetDevice(1);
    float *p = bytes_on_device(64);
    cudaSetDevice(0);
    return after(kernel_write(p, 0, NULL));
}

static cudaError_t write_misaligned(void)
{
    return after(kernel_misaligned(bytes_on_device(64), NULL));
}

static cudaError_t copy_past_end(void)
{
    char here[200];
    return cudaMemcpy(here, bytes_on_device(100), 200, cudaMemcpyDeviceToHost);
}

static cudaError_t stack_overflow(void)
{
    return after(kernel_overflow(bytes_on_device(64), 100000, NULL));
}

/* ---- threads ---- */

static cudaError_t divergent(void)
{
    return after(kernel_divergent(bytes_on_device(400), 64, NULL));
}
static cudaError_t lonely(void) { return after(kernel_lonely(bytes_on_device(400), NULL)); }
static cudaError_t wrong_mask(void) { return after(kernel_wrong_mask(bytes_on_device(400), NULL)); }
static cudaError_t trapped(void) { return after(kernel_trap(0, NULL)); }
static cudaError_t asserted(void) { return after(kernel_trap(1, NULL)); }
static cudaError_t product_of_bfloat16(void)
{
    return after(kernel_product(
        bytes_on_device(512), bytes_on_device(512), bytes_on_device(256), 1, NULL));
}
static cudaError_t too_many_threads(void)
{
    return kernel_divergent(bytes_on_device(400), 1025, NULL);
}
static cudaError_t too_much_shared(void)
{
    return kernel_transpose(bytes_on_device(64), bytes_on_device(64), 4, 4, (64 << 10) + 16, NULL);
}

/* ---- kernels that wait ---- */

static cudaError_t spin(void)
{
    return after(
        kernel_take(bytes_on_device(4), bytes_on_device(8), bytes_on_device(4), 1, 1, NULL));
}

/* The kernel that would set the flag is behind the one that waits for it. */
static cudaError_t wait_for_a_later_one(void)
{
    uint64_t *flag = bytes_on_device(8);
    uint32_t *data = bytes_on_device(4);
    if (kernel_take(data, flag, data, 1, 0, NULL) != cudaSuccess) return cudaErrorUnknown;
    return after(kernel_post(flag, data, 1, 0, 0, NULL));
}

/* The kernel that would set the flag finds no room: the one that waits has all the device's. */
static cudaError_t wait_for_no_room(void)
{
    cudaStream_t one, two;
    uint64_t *flag = bytes_on_device(8);
    uint32_t *data = bytes_on_device(4);
    cudaDeviceSynchronize();
    if (cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking) != cudaSuccess ||
        cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking) != cudaSuccess)
        return cudaErrorUnknown;
    if (kernel_take(data, flag, data, 1, 0, one) != cudaSuccess) return cudaErrorUnknown;
    usleep(20000); /* it runs */
    return after(kernel_post(flag, data, 1, 0, 0, two));
}

static cudaError_t more_blocks_than_fit(void)
{
    return after(kernel_rendezvous(bytes_on_device(4), bytes_on_device(4), 5, NULL));
}

/* ---- other processes ---- */

/* A process that has memory of this one open, until it is told. */
struct borrower {
    pid_t process;
    int tell, hear;
};

static bool borrow(struct borrower *borrower, void **p)
{
    int to[2], from[2];
    cudaIpcMemHandle_t handle;
    char done = 0;
    if (pipe(to) != 0 || pipe(from) != 0) return false;
    *borrower = (struct borrower){fork(), to[1], from[0]};
    if (borrower->process == 0) {
        if (read(to[0], &handle, sizeof handle) != (ssize_t)sizeof handle) _exit(1);
        done = cudaIpcOpenMemHandle(p, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
        if (write(from[1], &done, 1) != 1 || read(to[0], &done, 1) != 1) _exit(1);
        done = cudaIpcCloseMemHandle(*p) == cudaSuccess;
        if (write(from[1], &done, 1) != 1) _exit(1);
        exit(0);
    }
    *p = bytes_on_device(1000);
    return cudaIpcGetMemHandle(&handle, *p) == cudaSuccess &&
           write(to[1], &handle, sizeof handle) == (ssize_t)sizeof handle &&
           read(from[0], &done, 1) == 1 && done;
}

static cudaError_t free_what_others_use(void)
{
    struct borrower borrower;
    void *p;
    char done = 0;
    if (!borrow(&borrower, &p)) return cudaErrorUnknown;
    cudaError_t found = cudaFree(p);
    if (write(borrower.tell, &done, 1) != 1 || read(borrower.hear, &done, 1) != 1 || !done)
        return cudaErrorUnknown;
    if (cudaFree(p) != cudaSuccess) return cudaErrorUnknown; /* closed there: now it may go */
    waitpid(borrower.process, NULL, 0);
    return found;
}

/* Killed, and perhaps not yet gone: no bug of who frees. */
static cudaError_t free_what_the_dead_used(void)
{
    struct borrower borrower;
    void *p;
    if (!borrow(&borrower, &p)) return cudaErrorUnknown;
    kill(borrower.process, SIGKILL);
    cudaError_t found = cudaFree(p);
    waitpid(borrower.process, NULL, 0);
    return found;
}

static cudaError_t open_own_handle(void)
{
    cudaIpcMemHandle_t handle;
    void *p = bytes_on_device(1000);
    cudaIpcGetMemHandle(&handle, p);
    return cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess);
}

static cudaError_t use_after_fork(void)
{
    int state;
    cudaFree(NULL);
    pid_t child = fork();
    if (child == 0) _exit(cudaFree(NULL) == cudaErrorInitializationError ? 7 : 0);
    waitpid(child, &state, 0);
    return WIFEXITED(state) && WEXITSTATUS(state) == 7 ? cudaErrorInitializationError : cudaSuccess;
}

static const struct bug bugs[] = {
    {"write past the end", write_past_end, NULL,
        {"returned cudaErrorIllegalAddress",
            "400 bytes past the end of an allocation of 4000 bytes",
            "kernel write, block (0,0,0)"}},
    {"write to freed memory", write_freed, NULL,
        {"returned cudaErrorIllegalAddress|data race", "4000 bytes that has been freed|data race"}},
    {"write just past the end", write_just_past, NULL,
        {"returned cudaErrorIllegalAddress", "just behind an allocation of 4000 bytes"}},
    {"write just before", write_just_before, NULL,
        {"returned cudaErrorIllegalAddress", "just before an allocation of 256 bytes"}},
    {"write to freed pinned memory", write_freed_pinned, NULL,
        {"returned cudaErrorIllegalAddress|data race", "100 bytes that has been freed|data race"}},
    {"host reads device memory", host_reads_device, NULL, {"signal 11|SEGV"}},
    {"kernel is given host memory", kernel_gets_host, NULL,
        {"returned cudaErrorIllegalAddress", "neither pinned nor registered"}},
    {"kernel is given host memory in a struct", kernel_gets_host_deep, NULL,
        {"returned cudaErrorIllegalAddress", "kernel write_deep is given the address"}},
    {"kernel is given registered memory", kernel_gets_registered, NULL,
        {"returned cudaErrorIllegalAddress", "is given the address"}},
    {"kernel is given another device's memory", kernel_gets_stranger, "CUDASIM_DEVICES=2",
        {"returned cudaErrorIllegalAddress", "without peer access"}},
    {"misaligned access", write_misaligned, NULL,
        {"returned cudaErrorMisalignedAddress|returned cudaErrorUnknown", "aligned"}},
    {"copy past the end", copy_past_end, NULL, {"returned cudaErrorInvalidValue"}},
    {"stack overflow", stack_overflow, NULL,
        {"returned cudaErrorIllegalAddress", "has overflowed", "kernel overflow"}},
    {"divergent barrier", divergent, NULL,
        {"returned cudaErrorLaunchFailure", "divergent barrier", "kernels.cu:"}},
    {"deadlock in a block", lonely, NULL,
        {"returned cudaErrorLaunchFailure", "deadlock: 64 of 64 threads wait", "kernel lonely"}},
    {"mask without the lane", wrong_mask, NULL,
        {"returned cudaErrorLaunchFailure", "lacks the calling lane 16|lacks the calling lane 31"}},
    {"trap", trapped, NULL, {"returned cudaErrorLaunchFailure", "__trap()"}},
    {"assertion", asserted, NULL, {"returned cudaErrorAssert", "a kernel's own assertion"}},
    {"a product that the GPU has not", product_of_bfloat16, "CUDASIM_ARCH=75",
        {"returned cudaErrorLaunchFailure", "a product of bfloat16", "expected 8.0 or more"}},
    {"too many threads", too_many_threads, NULL,
        {"returned cudaErrorInvalidConfiguration",
            "threads in a block: 1025; expected at most 1024"}},
    {"too much shared memory", too_much_shared, NULL, {"returned cudaErrorInvalidValue"}},
    {"more shared memory on a larger GPU", too_much_shared, "CUDASIM_ARCH=90",
        {"returned cudaSuccess"}},
    {"endless spin", spin, "CUDASIM_WATCHDOG_S=0.2",
        {"returned cudaErrorLaunchTimeout", "without progress", "kernel take"}},
    {"wait for a later kernel", wait_for_a_later_one, "CUDASIM_WATCHDOG_S=0.2",
        {"returned cudaErrorLaunchTimeout", "kernel take"}},
    {"wait for a kernel without room", wait_for_no_room, "CUDASIM_RESIDENT=1",
        {"returned cudaErrorLaunchTimeout", "kernel take"}},
    {"more blocks than fit", more_blocks_than_fit, "CUDASIM_RESIDENT=4",
        {"returned cudaErrorLaunchTimeout", "4 of 5 blocks have begun", "kernel rendezvous"}},
    {"free what others use", free_what_others_use, NULL,
        {"returned cudaErrorInvalidValue", "still has it open"}},
    {"open one's own handle", open_own_handle, NULL, {"returned cudaErrorDeviceUninitialized"}},
    {"use after fork", use_after_fork, NULL, {"returned cudaErrorInitializationError"}},
};

/* ---- bugs that show by their results ---- */

static cudaError_t sum_without_barrier(void)
{
    float x[4096], total = 0, *in = bytes_on_device(sizeof x), *out = bytes_on_device(4);
    for (int i = 0; i < 4096; i++) x[i] = 1;
    cudaMemcpy(in, x, sizeof x, cudaMemcpyHostToDevice);
    kernel_sum(out, in, 4096, 1, 128, 1, NULL);
    cudaError_t error = cudaMemcpy(&total, out, 4, cudaMemcpyDeviceToHost);
    dprintf(2, "%s", total == 4096 ? "right" : "wrong");
    return error;
}

static cudaError_t read_before_copied(void)
{
    uint32_t in[64], out[64];
    uint32_t *from = bytes_on_device(sizeof in), *to = bytes_on_device(sizeof out);
    for (uint32_t i = 0; i < 64; i++) in[i] = i;
    cudaMemcpy(from, in, sizeof in, cudaMemcpyHostToDevice);
    kernel_copy_async(to, from, 64, 1, NULL);
    cudaError_t error = cudaMemcpy(out, to, sizeof out, cudaMemcpyDeviceToHost);
    dprintf(2, "%s", memcmp(in, out, sizeof in) == 0 ? "right" : "wrong");
    return error;
}

/* A copy in one stream, its use in another, and no event between them. */
static cudaError_t use_without_event(void)
{
    cudaStream_t one, two;
    float *pinned, *x = bytes_on_device(400), *y = bytes_on_device(400), found[100];
    cudaMallocHost((void **)&pinned, 400);
    for (int i = 0; i < 100; i++) pinned[i] = 1;
    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking);
    cudaDeviceSynchronize();
    cudaMemcpyAsync(x, pinned, 400, cudaMemcpyHostToDevice, one);
    kernel_axpy(y, x, 1, 100, two);
    cudaError_t error = cudaMemcpyAsync(found, y, 400, cudaMemcpyDeviceToHost, two);
    dprintf(2, "%s", found[99] == 1 ? "right" : "wrong");
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
}

static cudaError_t uninitialised(void)
{
    float *p, *q, found[66];
    if (cudaMalloc((void **)&p, 256) != cudaSuccess || cudaMalloc((void **)&q, 256) != cudaSuccess)
        return cudaErrorUnknown;
    kernel_uninitialised(p, NULL);
    cudaMemcpy(found, p, 256, cudaMemcpyDeviceToHost);
    cudaError_t error = cudaMemcpy(found + 64, q, 8, cudaMemcpyDeviceToHost);
    int numbers = 0;
    for (int i = 0; i < 66; i++) numbers += !isnan(found[i]);
    dprintf(2, "%s",
        numbers == 0 ? "wrong" : "right"); /* a number would hide that nothing was written */
    return error;
}

/* Posts by a relaxed store: x86 hides it, ThreadSanitizer does not. */
static cudaError_t relaxed_post(void)
{
    cudaStream_t one, two;
    uint64_t *flag = bytes_on_device(8);
    uint32_t *data = bytes_on_device(400), *out = bytes_on_device(400);
    cudaDeviceSynchronize();
    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking);
    kernel_take(out, flag, data, 3, 100, one);
    return after(kernel_post(flag, data, 3, 100, 1, two));
}

/* Blocks of a grid write the same elements. */
static cudaError_t race_of_blocks(void)
{
    return after(kernel_blocks_race(bytes_on_device(256), 2, 64, NULL));
}

/* In at least one of these settings the result is wrong, or ThreadSanitizer says where. */
static void check_shows(const char *name, bug_function plant, const char *const *settings)
{
    static char text[1 << 16];
    bool shown = false;
    for (; *settings != NULL && !shown; settings++) {
        run_bug(text, sizeof text, plant, *settings);
        shown = UNDER_TSAN
                    ? strstr(text, "data race") != NULL && strstr(text, "kernels.cu:") != NULL
                    : strstr(text, "wrong") != NULL;
    }
    CHECK_MSG(shown, "%s shows in no order: %s", name, text);
}

static void check_results(void)
{
    static const char *const orders[] = {"CUDASIM_ORDER=forward", "CUDASIM_ORDER=reverse",
        "CUDASIM_ORDER=random:1", "CUDASIM_ORDER=random:2", NULL};
    check_shows("a missing barrier", sum_without_barrier, orders);
    putenv("CUDASIM_DELAY_US=20000");
    check_shows("a missing event", use_without_event, orders + 2);
    unsetenv("CUDASIM_DELAY_US");
    char text[1 << 12];
    if (UNDER_TSAN) {
        check_shows("a relaxed store", relaxed_post, orders);
        for (int i = 0; i < 3; i++) /* in any order */
            check_shows("blocks that write the same", race_of_blocks,
                (const char *const[]){orders[i], NULL});
    } else {
        check_shows("a copy that is not waited for", read_before_copied, orders);
        run_bug(text, sizeof text, uninitialised, NULL);
        CHECK_MSG(strstr(text, "wrong") != NULL, "uninitialised memory holds numbers");
    }
}

/* ---- whatever dies, nothing is left ---- */

/* The device process of another: its only child. */
static pid_t device_of(pid_t process)
{
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)process, (int)process);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%d", &child) != 1) child = 0;
    if (file != NULL) fclose(file);
    return child;
}

/* Gone, or waiting for init to take note. */
static bool is_gone(pid_t process)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "r");
    if (file == NULL) return true;
    if (fscanf(file, "%*d %*s %c", &state) != 1) state = 'Z';
    fclose(file);
    return state == 'Z' || state == 'X';
}

static void check_host_dies(int signal)
{
    int ends[2], state;
    char ready;
    if (!CHECK(pipe(ends) == 0)) return;
    pid_t host = fork();
    if (host == 0) {
        close(ends[0]);
        kernel_take(bytes_on_device(4), bytes_on_device(8), bytes_on_device(4), 1, 1,
            NULL); /* spins when its host dies */
        ready = 1;
        if (write(ends[1], &ready, 1) != 1) _exit(1);
        if (signal == 0) _exit(0);
        pause();
    }
    CHECK(read(ends[0], &ready, 1) == 1);
    pid_t device = device_of(host);
    if (signal != 0) CHECK(device > 0 && kill(host, signal) == 0);
    CHECK(waitpid(host, &state, 0) == host);
    bool gone = false;
    for (int i = 0; device > 0 && i < 500 && !(gone = is_gone(device)); i++) usleep(10000);
    CHECK_MSG(gone || signal == 0, "the device process %d is still there", (int)device);
    close(ends[0]);
    close(ends[1]);
}

static cudaError_t device_dies(void)
{
    void *p = bytes_on_device(4);
    cudaDeviceSynchronize();
    kill(device_of(getpid()), SIGKILL);
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 1000 && error == cudaSuccess; i++) {
        error = cudaMemset(p, 0, 4);
        if (error == cudaSuccess) error = cudaDeviceSynchronize();
    }
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) dprintf(2, "a zombie is left");
    return error;
}

static void check_dead_borrower(void)
{
    char text[1 << 12];
    run_bug(text, sizeof text, free_what_the_dead_used, NULL);
    CHECK_MSG(strcmp(text, "\nreturned cudaSuccess") == 0, "memory of the dead: %s", text);
}

static void check_deaths(void)
{
    static const struct bug dies = {"the device dies", device_dies, NULL,
        {"returned cudaErrorUnknown", "the device process has ended, by signal 9"}};
    check_host_dies(SIGKILL);
    check_host_dies(SIGTERM);
    check_host_dies(0);
    check_bug(&dies);
    check_dead_borrower();
}

int main(void)
{
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        bool short_patience = strstr(bugs[i].expected[0], "Timeout") != NULL;
        if (short_patience) setenv("CUDASIM_WATCHDOG_S", "0.2", 1);
        check_bug(&bugs[i]);
        unsetenv("CUDASIM_WATCHDOG_S");
    }
    check_results();
    check_deaths();
    return test_result();
}
