/* kernels: see kernels.h. Compiled for the simulator; and by nvcc in cuda_nvcc_test.sh, so that
 * what the simulator is tested with is CUDA. */
#include "verbs/kernel.cuh"

#include <assert.h>

#include "tests/cudasim/kernels.h"

/* ---- right ---- */

static __global__ void __launch_bounds__(1024) number(uint32_t *out)
{
    uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    uint32_t i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[i] = i;
}

static __global__ void __launch_bounds__(256) axpy(float *y, const float *x, float a, size_t count)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) y[i] += a * x[i];
}

DEVICE_FUNCTION float sum_of_warp(float x)
{
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <bool FORGET>
static __global__ void __launch_bounds__(1024) sum(float *out, const float *x, size_t count)
{
    __shared__ float parts[32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float mine = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x)
        mine += x[i];
    mine = sum_of_warp(mine);
    if (lane == 0) parts[warp] = mine;
    if (!FORGET) __syncthreads();
    mine = sum_of_warp(lane < warps ? parts[lane] : 0.0f);
    if (threadIdx.x == 0) atomicAdd(out, mine);
}

#define TILE 16

static __global__ void __launch_bounds__(TILE *TILE)
    transpose(float *out, const float *in, size_t rows, size_t cols)
{
    DYN_SHARED(float, tile);
    size_t row = blockIdx.y * (size_t)TILE + threadIdx.x,
           col = blockIdx.x * (size_t)TILE + threadIdx.y;
    if (row < rows && col < cols)
        tile[threadIdx.x * (TILE + 1) + threadIdx.y] = in[col * rows + row];
    __syncthreads();
    row = blockIdx.y * (size_t)TILE + threadIdx.y;
    col = blockIdx.x * (size_t)TILE + threadIdx.x;
    if (row < rows && col < cols)
        out[row * cols + col] = tile[threadIdx.y * (TILE + 1) + threadIdx.x];
}

template <class T>
static __global__ void __launch_bounds__(32) product(float *c, const T *a, const T *b)
{
    __shared__ __align__(16) T a_tile[16 * 16];
    __shared__ __align__(16) T b_tile[16 * 8];
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 16 * 16; i += 32) a_tile[i] = a[i];
    for (int i = lane; i < 16 * 8; i += 32) b_tile[i] = b[i];
    __syncwarp();
    uint32_t a_part[4], b_part[4];
    float d[4] = {0, 0, 0, 0};
    matrix_load(a_part, &a_tile[lane % 16 * 16 + lane / 16 * 8]);
    /* The upper lanes' addresses are of matrices that are not used. */
    matrix_load_transposed(b_part, &b_tile[lane % 16 * 8]);
    uint32_t b_two[2] = {b_part[0], b_part[1]};
    matrix_product(d, a_part, b_two, d, T());
    int row = lane / 4, col = lane % 4 * 2;
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * 8 + col + i % 2] = d[i];
}

static __global__ void __launch_bounds__(1024) votes(uint32_t *out)
{
    unsigned i = threadIdx.x, lane = i % 32;
    uint32_t *mine = out + (blockIdx.x * (size_t)blockDim.x + i) * 8;
    mine[0] = __ballot_sync(0xffffffffu, i % 3 == 0);
    mine[1] = (uint32_t)__syncthreads_count(i % 2);
    mine[2] = (uint32_t)(__syncthreads_or(i == 5) + 2 * __syncthreads_and(i < 5));
    mine[3] = __shfl_sync(0xffffffffu, i, 7);
    mine[4] = __shfl_up_sync(0xffffffffu, i, 3);
    mine[5] = __shfl_down_sync(0xffffffffu, i, 3, 8);
    mine[6] =
        (uint32_t)(__any_sync(0xffffffffu, lane == 31) + 2 * __all_sync(0xffffffffu, lane < 31));
    if (lane % 2) mine[7] = __shfl_xor_sync(0xaaaaaaaau, i, 2); /* the odd lanes */
    else mine[7] = __shfl_xor_sync(0x55555555u, i, 4);          /* and the even ones */
}

template <bool FORGET>
static __global__ void __launch_bounds__(256) copied(uint32_t *out, const uint32_t *in, int count)
{
    __shared__ __align__(16) uint32_t tile[1024];
    int i = (int)threadIdx.x * 4;
    if (i < count) copy_async_16(tile + i, in + i);
    copy_async_commit();
    if (!FORGET) copy_async_wait<0>();
    __syncthreads();
    int from = (i + 4) % count; /* what another thread has copied */
    if (i < count)
        for (int j = 0; j < 4; j++) out[from + j] = tile[from + j];
}

static __global__ void __launch_bounds__(1024) atomics(uint32_t *value, float *total)
{
    uint32_t mine = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&value[0], 1u);
    atomicMax(&value[1], mine);
    atomicMin(&value[2], mine);
    atomicOr(&value[3], 1u << mine % 32);
    atomicExch(&value[4], 7u);
    for (uint32_t seen = 0, found; (found = atomicCAS(&value[5], seen, seen + 2)) != seen;)
        seen = found;
    atomicAdd(total, 0.5f);
}

static __global__ void __launch_bounds__(256) blocks_race(float *x) { x[threadIdx.x] += 1; }

template <bool RELAXED>
static __global__ void __launch_bounds__(256)
    post(uint64_t *flag, uint32_t *data, uint32_t value, int count)
{
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) data[i] = value + (uint32_t)i;
    __syncthreads();
    if (threadIdx.x != 0) return;
#ifndef __CUDACC__
    if (RELAXED) __atomic_store_n(flag, value, __ATOMIC_RELAXED);
    else
#endif
        st_release_sys(flag, (uint64_t)value);
}

static __global__ void __launch_bounds__(256)
    take(uint32_t *out, const uint64_t *flag, const uint32_t *data, uint32_t value, int count)
{
    if (threadIdx.x == 0)
        while (ld_acquire_sys(flag) != value) {}
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) out[i] = data[i];
}

static __global__ void __launch_bounds__(1)
    lines(flag_line *line, uint32_t *turns_done, uint32_t turns)
{
    uint32_t me = blockIdx.x;
    for (uint32_t i = 0; i < turns; i++) {
        uint32_t wanted = 2 * i + me, next = wanted + 1;
        for (;;) { /* each word has the turn as its flag, in its upper half */
            flag_line found = ld_line_sys(line);
            if (found.word[0] >> 32 == wanted && found.word[1] >> 32 == wanted) break;
        }
        flag_line mine = {{(uint64_t)next << 32 | i, (uint64_t)next << 32 | (i + 1)}};
        st_line_sys(line, mine);
    }
    st_relaxed_sys(turns_done + me, turns);
}

static __global__ void __launch_bounds__(32) rendezvous(uint32_t *arrived, uint32_t *left)
{
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (ld_acquire_sys(arrived) < gridDim.x) __nanosleep(100);
    }
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(left, 1u);
}

/* ---- wrong ---- */

static __global__ void __launch_bounds__(1) write(float *p, ptrdiff_t index) { p[index] = 1; }

static __global__ void __launch_bounds__(1) write_deep(kernel_pointers pointers)
{
    for (int i = 0; i < pointers.count; i++) pointers.deep[i] = 1;
}

static __global__ void __launch_bounds__(1) misaligned(float *p)
{
    *reinterpret_cast<float4 *>(p + 1) = float4{1, 2, 3, 4};
}

static __global__ void __launch_bounds__(1024) divergent(float *out)
{
    if (threadIdx.x < blockDim.x / 2) {
        out[threadIdx.x] = 1;
        __syncthreads();
    } else {
        out[threadIdx.x] = 2;
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(64) lonely(float *out)
{
    if (threadIdx.x == 40) __syncwarp(0x00000300u); /* with lane 9, which is at the barrier */
    __syncthreads();
    out[threadIdx.x] = 1;
}

static __global__ void __launch_bounds__(32) wrong_mask(float *out)
{
    out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0);
}

static __global__ void __launch_bounds__(32) uninitialised(float *out)
{
    __shared__ float never[32];
    DYN_SHARED(float, nor_this);
    if (threadIdx.x == 64) never[0] = nor_this[0] = 0; /* no such thread */
    __syncthreads();
    out[2 * threadIdx.x] = never[threadIdx.x];
    out[2 * threadIdx.x + 1] = nor_this[threadIdx.x];
}

static __global__ void __launch_bounds__(1) trap(int how)
{
    if (how == 0) __trap();
    assert(how == 0 && "a kernel's own assertion");
}

static __device__ __attribute__((noinline)) int deeper(int depth)
{
    volatile int room[256];
    room[depth % 256] = depth;
    return depth == 0 ? 0 : deeper(depth - 1) + room[depth % 256];
}

static __global__ void __launch_bounds__(1) overflow(int *out, int depth) { *out = deeper(depth); }

/* ---- launches ---- */

extern "C" {

cudaError_t kernel_number(uint32_t *out, dim3 grid, dim3 block, cudaStream_t stream)
{
    return gpu_launch(number, grid, block, 0, stream, out);
}

cudaError_t kernel_axpy(float *y, const float *x, float a, size_t count, cudaStream_t stream)
{
    return gpu_launch(
        axpy, dim3((unsigned)((count + 255) / 256)), dim3(256), 0, stream, y, x, a, count);
}

cudaError_t kernel_sum(float *out, const float *x, size_t count, int blocks, int threads,
    int forget, cudaStream_t stream)
{
    return gpu_launch(forget ? sum<true> : sum<false>, dim3((unsigned)blocks),
        dim3((unsigned)threads), 0, stream, out, x, count);
}

cudaError_t kernel_transpose(float *out, const float *in, size_t rows, size_t cols,
    size_t dynamic_bytes, cudaStream_t stream)
{
    size_t tile_bytes = TILE * (TILE + 1) * sizeof(float);
    if (dynamic_bytes < tile_bytes) dynamic_bytes = tile_bytes;
    cudaError_t error = cudaFuncSetAttribute(
        (const void *)transpose, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)dynamic_bytes);
    if (error != cudaSuccess) return error;
    dim3 grid((unsigned)((cols + TILE - 1) / TILE), (unsigned)((rows + TILE - 1) / TILE));
    return gpu_launch(
        transpose, grid, dim3(TILE, TILE), dynamic_bytes, stream, out, in, rows, cols);
}

cudaError_t kernel_product(
    float *c, const void *a, const void *b, int is_bfloat16, cudaStream_t stream)
{
    if (is_bfloat16)
        return gpu_launch(product<bfloat16>, dim3(1), dim3(32), 0, stream, c, (const bfloat16 *)a,
            (const bfloat16 *)b);
    return gpu_launch(
        product<float16>, dim3(1), dim3(32), 0, stream, c, (const float16 *)a, (const float16 *)b);
}

cudaError_t kernel_votes(uint32_t *out, int threads, cudaStream_t stream)
{
    return gpu_launch(votes, dim3(2), dim3((unsigned)threads), 0, stream, out);
}

cudaError_t kernel_copy_async(
    uint32_t *out, const uint32_t *in, int count, int forget, cudaStream_t stream)
{
    return gpu_launch(
        forget ? copied<true> : copied<false>, dim3(1), dim3(256), 0, stream, out, in, count);
}

cudaError_t kernel_atomics(
    uint32_t *value, float *total, int blocks, int threads, cudaStream_t stream)
{
    return gpu_launch(
        atomics, dim3((unsigned)blocks), dim3((unsigned)threads), 0, stream, value, total);
}

cudaError_t kernel_blocks_race(float *x, int blocks, int threads, cudaStream_t stream)
{
    return gpu_launch(
        blocks_race, dim3((unsigned)blocks), dim3((unsigned)threads), 0, stream, x);
}

cudaError_t kernel_post(
    uint64_t *flag, uint32_t *data, uint32_t value, int count, int relaxed, cudaStream_t stream)
{
    return gpu_launch(
        relaxed ? post<true> : post<false>, dim3(1), dim3(64), 0, stream, flag, data, value, count);
}

cudaError_t kernel_take(uint32_t *out, const uint64_t *flag, const uint32_t *data, uint32_t value,
    int count, cudaStream_t stream)
{
    return gpu_launch(take, dim3(1), dim3(64), 0, stream, out, flag, data, value, count);
}

cudaError_t kernel_lines(void *line, uint32_t *turns_done, int turns, cudaStream_t stream)
{
    return gpu_launch(
        lines, dim3(2), dim3(1), 0, stream, (flag_line *)line, turns_done, (uint32_t)turns);
}

cudaError_t kernel_rendezvous(uint32_t *arrived, uint32_t *left, int blocks, cudaStream_t stream)
{
    return gpu_launch(rendezvous, dim3((unsigned)blocks), dim3(32), 0, stream, arrived, left);
}

cudaError_t kernel_write(float *p, ptrdiff_t index, cudaStream_t stream)
{
    return gpu_launch(write, dim3(1), dim3(1), 0, stream, p, index);
}

cudaError_t kernel_write_deep(struct kernel_pointers pointers, cudaStream_t stream)
{
    return gpu_launch(write_deep, dim3(1), dim3(1), 0, stream, pointers);
}

cudaError_t kernel_misaligned(float *p, cudaStream_t stream)
{
    return gpu_launch(misaligned, dim3(1), dim3(1), 0, stream, p);
}

cudaError_t kernel_divergent(float *out, int threads, cudaStream_t stream)
{
    return gpu_launch(divergent, dim3(1), dim3((unsigned)threads), 0, stream, out);
}

cudaError_t kernel_lonely(float *out, cudaStream_t stream)
{
    return gpu_launch(lonely, dim3(1), dim3(64), 0, stream, out);
}

cudaError_t kernel_wrong_mask(float *out, cudaStream_t stream)
{
    return gpu_launch(wrong_mask, dim3(1), dim3(32), 0, stream, out);
}

cudaError_t kernel_uninitialised(float *out, cudaStream_t stream)
{
    return gpu_launch(uninitialised, dim3(1), dim3(32), 128, stream, out);
}

cudaError_t kernel_trap(int how, cudaStream_t stream)
{
    return gpu_launch(trap, dim3(1), dim3(1), 0, stream, how);
}

cudaError_t kernel_overflow(int *out, int depth, cudaStream_t stream)
{
    return gpu_launch(overflow, dim3(1), dim3(1), 0, stream, out, depth);
}
}
