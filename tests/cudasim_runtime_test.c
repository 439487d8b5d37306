/* What the simulator runs right: kernels, streams, events, copies, pinned and registered memory,
 * several devices, graphs. The same calls, in the same order, on a GPU have the same results.
 * ctest: timeout=60 orders
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cudasim/kernels.h"
#include "tests/harness/harness.h"
#include "verbs/dtype.h"

#define CHECK_CUDA(call)                                                                           \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        CHECK_MSG(error_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(error_));             \
    } while (0)

static void *device_bytes(size_t bytes, int byte)
{
    void *p = NULL;
    CHECK_CUDA(cudaMalloc(&p, bytes));
    CHECK_CUDA(cudaMemset(p, byte, bytes));
    return p;
}

static void *device_copy(const void *from, size_t bytes)
{
    void *p = device_bytes(bytes, 0);
    CHECK_CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

/* ---- kernels ---- */

static void check_number(void)
{
    const dim3 grids[] = {{1, 1, 1}, {7, 1, 1}, {2, 3, 4}},
               blocks[] = {{1, 1, 1}, {33, 1, 1}, {8, 4, 3}, {1024, 1, 1}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids * 4; i++) {
        dim3 grid = grids[i / 4], block = blocks[i % 4];
        size_t count = (size_t)grid.x * grid.y * grid.z * block.x * block.y * block.z, wrong = 0;
        uint32_t *out = device_bytes(count * 4, 0xff), *found = malloc(count * 4);
        CHECK_CUDA(kernel_number(out, grid, block, NULL));
        CHECK_CUDA(cudaMemcpy(found, out, count * 4, cudaMemcpyDeviceToHost));
        for (size_t j = 0; j < count; j++) wrong += found[j] != j;
        CHECK_MSG(wrong == 0, "%zu of %zu numbers in grid %zu", wrong, count, i);
        CHECK_CUDA(cudaFree(out));
        free(found);
    }
}

static void check_sum(void)
{
    enum { COUNT = 5000 };
    float x[COUNT], total = 0, want = 0;
    for (int i = 0; i < COUNT; i++) want += x[i] = (float)(i % 17) - 8;
    float *in = device_copy(x, sizeof x), *out = device_bytes(4, 0);
    CHECK_CUDA(kernel_sum(out, in, COUNT, 3, 256, 0, NULL));
    CHECK_CUDA(cudaMemcpy(&total, out, 4, cudaMemcpyDeviceToHost));
    CHECK_MSG(total == want, "sum %g, expected %g", (double)total, (double)want);
    CHECK_CUDA(cudaFree(in));
    CHECK_CUDA(cudaFree(out));
}

static void check_transpose(void)
{
    enum { ROWS = 37, COLS = 50 };
    float in[COLS][ROWS], out[ROWS][COLS];
    for (int i = 0; i < ROWS * COLS; i++) in[i / ROWS][i % ROWS] = (float)i;
    float *from = device_copy(in, sizeof in), *to = device_bytes(sizeof out, 0xff);
    CHECK_CUDA(kernel_transpose(to, from, ROWS, COLS, 64 << 10, NULL));
    CHECK_CUDA(cudaMemcpy(out, to, sizeof out, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) wrong += out[r][c] != in[c][r];
    CHECK_MSG(wrong == 0, "%d elements", wrong);
    CHECK_CUDA(cudaFree(from));
    CHECK_CUDA(cudaFree(to));
}

static void check_product(bool brain)
{
    uint16_t a[16 * 16], b[16 * 8];
    float c[16 * 8], found[16 * 8];
    for (int i = 0; i < 256; i++) {
        float x = (float)(i % 23 - 11) / 4, y = (float)(i % 19 - 9) / 8;
        a[i] = brain ? float32_to_bfloat16(x) : float32_to_float16(x);
        if (i < 128) b[i] = brain ? float32_to_bfloat16(y) : float32_to_float16(y);
    }
    for (int i = 0; i < 128; i++) {
        c[i] = 0;
        for (int k = 0; k < 16; k++) {
            uint16_t x = a[i / 8 * 16 + k], y = b[k * 8 + i % 8];
            c[i] += brain ? bfloat16_to_float32(x) * bfloat16_to_float32(y)
                          : float16_to_float32(x) * float16_to_float32(y);
        }
    }
    void *da = device_copy(a, sizeof a), *db = device_copy(b, sizeof b);
    float *dc = device_bytes(sizeof c, 0xff);
    CHECK_CUDA(kernel_product(dc, da, db, brain, NULL));
    CHECK_CUDA(cudaMemcpy(found, dc, sizeof c, cudaMemcpyDeviceToHost));
    CHECK(memcmp(found, c, sizeof c) == 0); /* these sums are exact */
    CHECK_CUDA(cudaFree(da));
    CHECK_CUDA(cudaFree(db));
    CHECK_CUDA(cudaFree(dc));
}

static void check_votes(void)
{
    enum { THREADS = 96 };
    uint32_t found[2 * THREADS][8];
    uint32_t *out = device_bytes(sizeof found, 0xff);
    CHECK_CUDA(kernel_votes(out, THREADS, NULL));
    CHECK_CUDA(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        uint32_t t = i % THREADS, first = t / 32 * 32, lane = t % 32, thirds = 0;
        for (uint32_t l = 0; l < 32; l++) thirds |= (uint32_t)((first + l) % 3 == 0) << l;
        uint32_t want[8] = {thirds, THREADS / 2, 1, first + 7, lane < 3 ? t : t - 3,
            lane % 8 > 4 ? t : t + 3, 1, lane % 2 ? t ^ 2 : t ^ 4};
        wrong += memcmp(found[i], want, sizeof want) != 0;
    }
    CHECK_MSG(wrong == 0, "%d threads", wrong);
    CHECK_CUDA(cudaFree(out));
}

static void check_atomics(void)
{
    uint32_t values[6] = {0, 0, ~0u, 0, 0, 0};
    float total = 0;
    uint32_t *value = device_copy(values, sizeof values);
    float *sum = device_copy(&total, sizeof total);
    CHECK_CUDA(kernel_atomics(value, sum, 5, 64, NULL));
    CHECK_CUDA(cudaMemcpy(values, value, sizeof values, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(&total, sum, sizeof total, cudaMemcpyDeviceToHost));
    CHECK(values[0] == 320 && values[1] == 319 && values[2] == 0 && values[3] == ~0u);
    CHECK(values[4] == 7 && values[5] == 640 && total == 160);
    CHECK_CUDA(cudaFree(value));
    CHECK_CUDA(cudaFree(sum));
}

static void check_copy_async(void)
{
    uint32_t in[1000], out[1000];
    for (uint32_t i = 0; i < 1000; i++) in[i] = i * 7;
    uint32_t *from = device_copy(in, sizeof in), *to = device_bytes(sizeof out, 0xff);
    CHECK_CUDA(kernel_copy_async(to, from, 1000, 0, NULL));
    CHECK_CUDA(cudaMemcpy(out, to, sizeof out, cudaMemcpyDeviceToHost));
    CHECK(memcmp(in, out, sizeof in) == 0);
    CHECK_CUDA(cudaFree(from));
    CHECK_CUDA(cudaFree(to));
}

/* ---- kernels that wait for one another, and for the host ---- */

static void check_flags(void)
{
    enum { COUNT = 300 };
    cudaStream_t one, two;
    uint64_t *flag = device_bytes(8, 0);
    uint32_t *data = device_bytes(COUNT * 4, 0), *out = device_bytes(COUNT * 4, 0xff), found[COUNT];
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CHECK_CUDA(kernel_take(out, flag, data, 9, COUNT, one));
    CHECK(cudaStreamQuery(one) == cudaErrorNotReady);
    CHECK_CUDA(kernel_post(flag, data, 9, COUNT, 0, two));
    CHECK_CUDA(cudaMemcpyAsync(found, out, sizeof found, cudaMemcpyDeviceToHost, one));
    CHECK(found[0] == 9 && found[COUNT - 1] == 9 + COUNT - 1);

    uint64_t *pinned;
    CHECK_CUDA(cudaHostAlloc((void **)&pinned, 8, cudaHostAllocMapped));
    *pinned = 0;
    CHECK_CUDA(kernel_take(out, pinned, data, 5, COUNT, one));
    CHECK(cudaStreamQuery(one) == cudaErrorNotReady);
    __atomic_store_n(pinned, 5, __ATOMIC_RELEASE);
    CHECK_CUDA(cudaStreamSynchronize(one));

    void *line = device_bytes(16, 0);
    uint32_t *turns = device_bytes(8, 0), done[2];
    CHECK_CUDA(kernel_lines(line, turns, 50, NULL));
    CHECK_CUDA(cudaMemcpy(done, turns, 8, cudaMemcpyDeviceToHost));
    CHECK(done[0] == 50 && done[1] == 50);
    uint32_t *left = turns + 1;
    CHECK_CUDA(cudaMemset(turns, 0, 8));
    CHECK_CUDA(kernel_rendezvous(turns, left, 20, NULL));
    CHECK_CUDA(cudaMemcpy(done, turns, 8, cudaMemcpyDeviceToHost));
    CHECK(done[0] == 20 && done[1] == 20);

    CHECK_CUDA(cudaStreamDestroy(one));
    CHECK_CUDA(cudaStreamDestroy(two));
    CHECK_CUDA(cudaFreeHost(pinned));
    for (void *p[] = {flag, data, out, line, turns}, **each = p; each < p + 5; each++)
        CHECK_CUDA(cudaFree(*each));
}

/* ---- streams and events ---- */

static void CUDART_CB set_to_seven(void *argument)
{
    CHECK(cudaFree(NULL) == cudaErrorNotPermitted);
    *(int *)argument = 7;
}

static void check_streams(void)
{
    enum { COUNT = 1 << 14 };
    cudaStream_t one, two;
    cudaEvent_t event, first, last;
    float *x = device_bytes(COUNT * 4, 0), *y = device_bytes(COUNT * 4, 0), *pinned, ms = -1;
    int seen = 0;
    CHECK_CUDA(cudaMallocHost((void **)&pinned, COUNT * 4));
    for (int i = 0; i < COUNT; i++) pinned[i] = 1;
    CHECK_CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK_CUDA(cudaEventCreate(&first));
    CHECK_CUDA(cudaEventCreate(&last));
    CHECK_CUDA(cudaEventSynchronize(event)); /* never recorded */
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaEventRecord(first, one));
    CHECK_CUDA(cudaMemcpyAsync(x, pinned, COUNT * 4, cudaMemcpyHostToDevice, one));
    CHECK_CUDA(cudaEventRecord(event, one));
    CHECK_CUDA(cudaStreamWaitEvent(two, event, 0));
    for (int i = 0; i < 10; i++) CHECK_CUDA(kernel_axpy(y, x, 1, COUNT, two));
    CHECK_CUDA(cudaEventRecord(event, two));
    CHECK_CUDA(cudaStreamWaitEvent(one, event, 0));
    CHECK_CUDA(cudaMemcpyAsync(pinned, y, COUNT * 4, cudaMemcpyDeviceToHost, one));
    CHECK_CUDA(cudaLaunchHostFunc(one, set_to_seven, &seen));
    CHECK_CUDA(cudaEventRecord(last, one));
    CHECK_CUDA(cudaEventSynchronize(last));
    CHECK(pinned[0] == 10 && pinned[COUNT - 1] == 10 && seen == 7);
    CHECK_CUDA(cudaEventElapsedTime(&ms, first, last));
    CHECK(ms > 0 && cudaEventQuery(last) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&ms, first, event) == cudaErrorInvalidResourceHandle);
    CHECK(
        cudaGetLastError() == cudaErrorInvalidResourceHandle && cudaGetLastError() == cudaSuccess);
    for (cudaEvent_t e[] = {event, first, last}, *each = e; each < e + 3; each++)
        CHECK_CUDA(cudaEventDestroy(*each));
    CHECK_CUDA(cudaStreamDestroy(one));
    CHECK_CUDA(cudaStreamDestroy(two));
    CHECK_CUDA(cudaFree(x));
    CHECK_CUDA(cudaFree(y));
    CHECK_CUDA(cudaFreeHost(pinned));
}

/* A blocking stream and the legacy default one wait for each other; a stream that does not block
 * waits for nobody. */
static void check_default_stream(void)
{
    cudaStream_t blocking, other;
    uint64_t *flag;
    uint32_t *data = device_bytes(12, 0);
    CHECK_CUDA(cudaMallocHost((void **)&flag, 8));
    *flag = 0;
    CHECK_CUDA(cudaStreamCreate(&blocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(kernel_take(data, flag, data, 1, 0, blocking));
    CHECK_CUDA(cudaMemsetAsync(data + 1, 1, 4, NULL));
    CHECK_CUDA(cudaMemsetAsync(data + 2, 1, 4, other));
    CHECK_CUDA(cudaStreamSynchronize(other));
    usleep(2000);
    CHECK(cudaStreamQuery(NULL) == cudaErrorNotReady);
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    CHECK_CUDA(cudaStreamSynchronize(NULL));
    CHECK(cudaStreamQuery(blocking) == cudaSuccess);
    CHECK_CUDA(cudaStreamDestroy(blocking));
    CHECK_CUDA(cudaStreamDestroy(other));
    CHECK_CUDA(cudaFreeHost(flag));
    CHECK_CUDA(cudaFree(data));
}

/* ---- memory ---- */

static void check_copies(void)
{
    enum { BYTES = 3 << 20 }; /* more than one staging buffer */
    unsigned char *from = malloc(BYTES), *to = malloc(BYTES), rows[3][5] = {{0}};
    for (int i = 0; i < BYTES; i++) from[i] = (unsigned char)(i * 7 + i / 256);
    memset(to, 0, BYTES);
    unsigned char *x = device_copy(from, BYTES), *y = device_bytes(BYTES, 0);
    CHECK_CUDA(cudaMemcpy(y, x, BYTES, cudaMemcpyDeviceToDevice));
    CHECK_CUDA(cudaMemcpy(to, y, BYTES, cudaMemcpyDefault));
    CHECK(memcmp(from, to, BYTES) == 0);
    CHECK_CUDA(cudaMemcpy2DAsync(rows, 5, x + 1, 100, 4, 3, cudaMemcpyDeviceToHost, NULL));
    for (int r = 0; r < 3; r++)
        CHECK(memcmp(rows[r], from + 1 + r * 100, 4) == 0 && rows[r][4] == 0);
    CHECK(cudaMemcpy(to, x + 1, BYTES, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(to, x, BYTES, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemset(to, 0, 4) == cudaErrorInvalidValue);
    CHECK_CUDA(cudaFree(x));
    CHECK_CUDA(cudaFree(y));
    CHECK(cudaFree(x) == cudaErrorInvalidValue);
    free(from);
    free(to);
}

/* Memory of the host, `bytes` from `at`: while it is registered a kernel uses it by another
 * address. */
static void check_one_registration(char *at, size_t count)
{
    float *x = (float *)at, *seen = NULL, *ones;
    struct cudaPointerAttributes attributes;
    for (size_t i = 0; i < count; i++) x[i] = 1;
    CHECK_CUDA(cudaHostRegister(at, count * 4, cudaHostRegisterMapped));
    CHECK(cudaHostRegister(at, 4, cudaHostRegisterMapped) == cudaErrorHostMemoryAlreadyRegistered);
    CHECK_CUDA(cudaHostGetDevicePointer((void **)&seen, x + 1, 0));
    CHECK_CUDA(cudaPointerGetAttributes(&attributes, x + 1));
    CHECK(attributes.type == cudaMemoryTypeHost && attributes.devicePointer == seen &&
          attributes.hostPointer == x + 1);
    ones = device_bytes(count * 4, 0);
    CHECK_CUDA(cudaMemcpyAsync(ones, x, count * 4, cudaMemcpyHostToDevice, NULL));
    CHECK_CUDA(kernel_axpy(seen, ones, 2, count - 1, NULL));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK(x[0] == 1 && x[1] == 3 && x[count - 1] == 3);
    CHECK_CUDA(cudaHostUnregister(at));
    CHECK(cudaHostUnregister(at) == cudaErrorHostMemoryNotRegistered);
    CHECK(x[0] == 1 && x[1] == 3 && x[count - 1] == 3);
    CHECK_CUDA(cudaPointerGetAttributes(&attributes, x));
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
    CHECK_CUDA(cudaFree(ones));
}

static void check_registration(void)
{
    enum { COUNT = 5000 };
    char *heap = malloc(COUNT * 4 + 100);
    int file = memfd_create("shared", MFD_CLOEXEC);
    CHECK(file >= 0 && ftruncate(file, 1 << 16) == 0);
    char *shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check_one_registration(heap + 20, COUNT);
    check_one_registration(shared + 8192, COUNT);
    float last = 0;
    CHECK(pread(file, &last, 4, 8192 + (COUNT - 1) * 4) == 4 && last == 3);
    CHECK(cudaHostRegister((void *)(uintptr_t)4096, 4096, 0) == cudaErrorInvalidValue);
    munmap(shared, 1 << 16);
    close(file);
    free(heap);
}

static void check_attributes(void)
{
    struct cudaPointerAttributes attributes;
    struct cudaDeviceProp properties;
    char *p, *pinned;
    int here, least, greatest, value = 0;
    size_t room, all, room_after;
    CHECK_CUDA(cudaMemGetInfo(&room, &all));
    CHECK_CUDA(cudaMalloc((void **)&p, 5000));
    CHECK_CUDA(cudaMemGetInfo(&room_after, &all));
    CHECK(room > room_after && room - room_after >= 5000 && all >= room);
    CHECK((uintptr_t)p % 256 == 0);
    CHECK_CUDA(cudaMallocHost((void **)&pinned, 5000));
    CHECK_CUDA(cudaPointerGetAttributes(&attributes, p + 4999));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0 &&
          attributes.devicePointer == p + 4999);
    CHECK_CUDA(cudaPointerGetAttributes(&attributes, pinned + 4999));
    CHECK(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == pinned + 4999);
    CHECK_CUDA(cudaPointerGetAttributes(&attributes, &here));
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
    CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
    CHECK_CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK(value == properties.major && properties.warpSize == 32 &&
          properties.sharedMemPerBlockOptin >= 64 << 10);
    CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK_CUDA(cudaFree(p));
    CHECK_CUDA(cudaFreeHost(pinned));
    CHECK_CUDA(cudaFree(NULL));
    CHECK_CUDA(cudaMalloc((void **)&p, 0));
    CHECK(p == NULL && cudaMalloc((void **)&p, (size_t)1 << 50) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
}

/* ---- several devices ---- */

static void check_devices(void)
{
    int count, can = 0, device = -1;
    float *here = device_bytes(4096, 0), *there, found[2] = {0};
    cudaStream_t stream;
    CHECK_CUDA(cudaGetDeviceCount(&count));
    CHECK(count == 2);
    CHECK_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 1 && cudaSetDevice(2) == cudaErrorInvalidDevice);
    CHECK_CUDA(cudaSetDevice(1));
    CHECK_CUDA(cudaGetDevice(&device));
    CHECK(device == 1);
    float ones[2] = {1, 1};
    there = device_copy(ones, sizeof ones);
    CHECK_CUDA(cudaMemcpyPeer(here, 0, there, 1, sizeof ones));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaDeviceEnablePeerAccess(1, 0));
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CHECK_CUDA(kernel_axpy(here, there, 2, 2, stream));
    CHECK_CUDA(cudaMemcpyAsync(found, here, sizeof found, cudaMemcpyDeviceToHost, stream));
    CHECK(found[0] == 3 && found[1] == 3);
    CHECK_CUDA(cudaSetDevice(1)); /* a stream belongs to the device that was current */
    CHECK(kernel_axpy(there, there, 2, 2, stream) == cudaErrorInvalidResourceHandle);
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaStreamDestroy(stream));
    CHECK_CUDA(cudaFree(here));
    CHECK_CUDA(cudaFree(there));
}

/* ---- graphs ---- */

static void check_graph(void)
{
    cudaStream_t one, two;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    enum cudaStreamCaptureStatus status;
    float *x = device_bytes(400, 0), *y = device_bytes(400, 0), *z, found[100] = {0}, one_value = 1;
    CHECK_CUDA(cudaMemcpy(x, &one_value, 4, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK_CUDA(cudaDeviceSynchronize());

    CHECK_CUDA(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    CHECK_CUDA(kernel_axpy(y, x, 1, 100, one));
    CHECK_CUDA(cudaEventRecord(event, one));
    CHECK_CUDA(cudaStreamWaitEvent(two, event, 0));
    CHECK_CUDA(kernel_axpy(y, x, 2, 100, two));
    CHECK_CUDA(cudaStreamIsCapturing(two, &status));
    CHECK(
        status == cudaStreamCaptureStatusActive && cudaEventQuery(event) == cudaErrorCapturedEvent);
    CHECK_CUDA(cudaEventRecord(event, two));
    CHECK_CUDA(cudaStreamWaitEvent(one, event, 0));
    CHECK_CUDA(cudaStreamEndCapture(one, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    CHECK_CUDA(cudaStreamSynchronize(one));
    for (int i = 0; i < 3; i++) CHECK_CUDA(cudaGraphLaunch(ready, one));
    CHECK_CUDA(cudaMemcpyAsync(found, y, 400, cudaMemcpyDeviceToHost, one));
    CHECK_MSG(found[0] == 9 && found[1] == 0, "%g %g", (double)found[0], (double)found[1]);
    CHECK_CUDA(cudaGraphExecDestroy(ready));

    /* What cannot be captured, and a stream that is not joined. */
    CHECK_CUDA(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    CHECK(cudaMalloc((void **)&z, 4) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(one, &graph) == cudaErrorStreamCaptureInvalidated && graph == NULL);
    CHECK_CUDA(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    CHECK_CUDA(cudaMalloc((void **)&z, 4));
    CHECK(cudaStreamSynchronize(one) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(one, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK_CUDA(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    CHECK_CUDA(cudaEventRecord(event, one));
    CHECK_CUDA(cudaStreamWaitEvent(two, event, 0));
    CHECK_CUDA(kernel_axpy(y, x, 2, 100, two));
    CHECK(cudaStreamEndCapture(one, &graph) == cudaErrorStreamCaptureUnjoined);
    CHECK(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal) ==
          cudaErrorStreamCaptureUnsupported);
    CHECK(cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
    CHECK_CUDA(cudaEventDestroy(event));
    CHECK_CUDA(cudaStreamDestroy(one));
    CHECK_CUDA(cudaStreamDestroy(two));
    for (void *p[] = {x, y, z}, **each = p; each < p + 3; each++) CHECK_CUDA(cudaFree(*each));
}

int main(void)
{
    setenv("CUDASIM_DEVICES", "2", 1);
    setenv("CUDASIM_ARCH", "80", 1); /* products of bfloat16 */
    check_number();
    check_sum();
    check_transpose();
    check_product(true);
    check_product(false);
    check_votes();
    check_atomics();
    check_copy_async();
    check_flags();
    check_streams();
    check_default_stream();
    check_copies();
    check_registration();
    check_attributes();
    check_devices();
    check_graph();
    CHECK_CUDA(cudaDeviceSynchronize());
    return test_result();
}
