/* kernel_vector: what every kernel over numbers needs: elements of any float dtype in accesses of
 * 16 bytes, loops over flat ranges and over rows, sums in a fixed order, and the launch.
 *
 * A kernel computes in float32 and knows its elements only here:
 *
 *     float x[V];  load(x, p);  …  store(p, x);      V elements, V · sizeof(T) bytes, 16 at a time
 *
 * V is 16 / sizeof of the narrowest type where every pointer is aligned to 16 bytes and rows keep
 * that alignment, else 1: the same code, the same bits, more instructions.
 *
 * Invariant: no sum depends on the order in which threads run: butterflies and trees only, and the
 * shape of a tree is a function of sizes, never of the device.
 */
#ifndef VERBS_KERNEL_VECTOR_CUH
#define VERBS_KERNEL_VECTOR_CUH

#include <stddef.h>
#include <stdint.h>

#include "verbs/cuda_status.h"
#include "verbs/dtype.h"
#include "verbs/kernel.cuh"

/* Before a loop over a small array: on a device it must lie in registers. */
#if ON_SIMULATOR
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

/* ---- one element ---- */

/* a · b + c rounded once, where a device has it: never where bits must equal the host's. */
__device__ __forceinline__ float multiply_add(float a, float b, float c)
{
#if ON_GPU
    return fmaf(a, b, c);
#else
    return a * b + c; /* fmaf() is a call there, and many times slower */
#endif
}

__device__ __forceinline__ uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

__device__ __forceinline__ float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The place of the lowest bit set; x ≠ 0. */
__device__ __forceinline__ unsigned lowest_bit(uint32_t x)
{
#if ON_GPU
    return (unsigned)__ffs((int)x) - 1;
#else
    return (unsigned)__builtin_ctz(x);
#endif
}

/* ---- vectors ---- */

template <class T, int N> struct alignas(N * sizeof(T)) vector_word {
    T element[N];
};

/* Elements per access: 16 bytes of them, or all V where those are fewer. */
template <int V, class T> __host__ __device__ constexpr int vector_step()
{
    return V * sizeof(T) > 16 ? 16 / (int)sizeof(T) : V;
}

template <int V, class T> __device__ __forceinline__ void load(float (&x)[V], const T *p)
{
    constexpr int step = vector_step<V, T>();
    UNROLL
    for (int i = 0; i < V; i += step) {
        vector_word<T, step> word = *reinterpret_cast<const vector_word<T, step> *>(p + i);
        UNROLL
        for (int j = 0; j < step; j++) x[i + j] = to_float(word.element[j]);
    }
}

template <int V, class T> __device__ __forceinline__ void store(T *p, const float (&x)[V])
{
    constexpr int step = vector_step<V, T>();
    UNROLL
    for (int i = 0; i < V; i += step) {
        vector_word<T, step> word;
        UNROLL
        for (int j = 0; j < step; j++) word.element[j] = from_float<T>(x[i + j]);
        *reinterpret_cast<vector_word<T, step> *>(p + i) = word;
    }
}

/* Whether vectors of 16 bytes may be read at each of these; a NULL is not read at all. */
template <class... P> static inline bool vectors_at(P... pointers)
{
    return ((uintptr_t)0 | ... | (uintptr_t)pointers) % 16 == 0;
}

/* ---- sums ---- */

/* Over the `width` neighbouring lanes of a warp that the caller is one of; every one gets it. */
template <int width = 32> __device__ __forceinline__ float warp_sum(float x)
{
    UNROLL
    for (int step = width / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <int width = 32> __device__ __forceinline__ float warp_max(float x)
{
    UNROLL
    for (int step = width / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* ---- a flat range: thread i takes V elements from V·i on, and so on by the grid's stride ---- */

#define FLAT_THREADS    256
#define FLAT_BLOCKS_MAX 4096

template <int V, class Operation>
__global__ void __launch_bounds__(FLAT_THREADS) flat_kernel(Operation operation, size_t count)
{
    size_t threads = (size_t)gridDim.x * blockDim.x;
    size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t whole = count / V * V;
    for (size_t i = first * V; i < whole; i += threads * V) operation.template at<V>(i);
    for (size_t i = whole + first; i < count; i += threads) operation.template at<1>(i);
}

/* ---- rows: blockDim.y rows at a time, each thread V columns ---- */

#define ROW_THREADS    256
#define ROW_BLOCKS_MAX 4096

template <int V, class Operation>
__global__ void __launch_bounds__(ROW_THREADS)
    rows_kernel(Operation operation, size_t rows, size_t cols)
{
    size_t stride = (size_t)gridDim.x * blockDim.y;
    for (size_t r = (size_t)blockIdx.x * blockDim.y + threadIdx.y; r < rows; r += stride) {
        if (!operation.takes(r)) continue;
        for (size_t c = (size_t)threadIdx.x * V; c < cols; c += (size_t)blockDim.x * V)
            operation.template at<V>(r, c);
    }
}

/* ---- launches ---- */

static inline unsigned launch_blocks(size_t work, size_t per_block, size_t most)
{
    size_t blocks = (work + per_block - 1) / per_block;
    return (unsigned)(blocks < most ? blocks : most);
}

/* What a launch said, as a status. */
static inline enum status launch_status(cudaError_t error, const char *what)
{
    return error == cudaSuccess ? STATUS_OK : cuda_fail(error, what, __FILE__, __LINE__);
}

template <int V, class Operation>
static inline enum status launch_flat(
    const char *what, Operation operation, size_t count, bool vectors, cudaStream_t stream)
{
    if (count == 0) return STATUS_OK;
    size_t elements = vectors ? V : 1;
    dim3 grid(launch_blocks(count, FLAT_THREADS * elements, FLAT_BLOCKS_MAX)), block(FLAT_THREADS);
    return launch_status(
        vectors ? gpu_launch(flat_kernel<V, Operation>, grid, block, 0, stream, operation, count)
                : gpu_launch(flat_kernel<1, Operation>, grid, block, 0, stream, operation, count),
        what);
}

template <int V, class Operation>
static inline enum status launch_rows(const char *what, Operation operation, size_t rows,
    size_t cols, bool vectors, cudaStream_t stream)
{
    if (rows == 0 || cols == 0) return STATUS_OK;
    size_t across = (cols + (vectors ? V : 1) - 1) / (vectors ? V : 1);
    unsigned x = across < ROW_THREADS ? (unsigned)(across + 31) / 32 * 32 : ROW_THREADS;
    dim3 block(x, ROW_THREADS / x), grid(launch_blocks(rows, block.y, ROW_BLOCKS_MAX));
    return launch_status(
        vectors
            ? gpu_launch(rows_kernel<V, Operation>, grid, block, 0, stream, operation, rows, cols)
            : gpu_launch(rows_kernel<1, Operation>, grid, block, 0, stream, operation, rows, cols),
        what);
}

/* ---- from a dtype to its type: call(T()) with T float, bfloat16 or float16 ---- */

template <class Call> static inline enum status with_float_type(enum dtype dtype, Call call)
{
    switch (dtype) {
    case DTYPE_FLOAT32: return call(float());
    case DTYPE_BFLOAT16: return call(bfloat16());
    case DTYPE_FLOAT16: return call(float16());
    default: /* a bug of the caller: never run here { */
        return FAIL(STATUS_INVALID,
            "a kernel was asked for dtype %d of dtype.h; expected float32, bfloat16 or float16",
            (int)dtype);
        /* never run here } */
    }
}

#endif
