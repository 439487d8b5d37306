/* Several processes on a simulated device: memory that others have open, forks; and whatever dies,
 * nothing is left.
 * ctest: timeout=120
 */
#include <errno.h>
#include <signal.h>

#include "tests/cudasim_bugs_fixture.h"

/* ---- what others have open ---- */

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
    {"free what others use", free_what_others_use, NULL,
        {"returned cudaErrorInvalidValue", "still has it open"}},
    {"open one's own handle", open_own_handle, NULL, {"returned cudaErrorDeviceUninitialized"}},
    {"use after fork", use_after_fork, NULL, {"returned cudaErrorInitializationError"}},
};

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
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) check_bug(&bugs[i]);
    check_deaths();
    return test_result();
}
