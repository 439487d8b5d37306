/* Bugs that show by their results alone: planted in several orders of threads, or with delays,
 * until one of them gives a wrong result, or ThreadSanitizer says where.
 * ctest: timeout=120
 */
#include <math.h>

#include "tests/cudasim_bugs_fixture.h"

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

int main(void)
{
    check_results();
    return test_result();
}
