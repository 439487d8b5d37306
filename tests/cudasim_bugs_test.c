/* Bugs of kernels and of their memory that the simulator must catch, and tell by an error and a
 * message. Those that show by their results alone: cudasim_results_test.c; of several processes:
 * cudasim_processes_test.c.
 * ctest: timeout=120
 */
#include "tests/cudasim_bugs_fixture.h"

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
};

int main(void)
{
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        bool short_patience = strstr(bugs[i].expected[0], "Timeout") != NULL;
        if (short_patience) setenv("CUDASIM_WATCHDOG_S", "0.2", 1);
        check_bug(&bugs[i]);
        unsetenv("CUDASIM_WATCHDOG_S");
    }
    return test_result();
}
