/* kernel: the one header that kernels include. The same source is compiled by nvcc for the GPU and
 * by g++ for the simulator (tests/cudasim), so what C++ cannot say twice is said here, once for
 * each.
 *
 *   gpu_launch(kernel, grid, block, dynamic bytes, stream, arguments…)     instead of <<< >>>
 *   DYN_SHARED(T, name)                      the dynamic shared memory, 16-byte aligned
 *   ld_acquire_sys, st_release_sys, …        flags that others see; never volatile
 *   matrix_product, matrix_load, copy_async  tensor cores, and what feeds them
 *
 * A flag is a 32- or 64-bit word that another device, another process or the CPU writes or reads
 * too. Whatever a block has written before a barrier is seen by whoever acquires what a thread of
 * it released after the barrier. On the host the other side of a 64-bit flag is fifo.h.
 */
#ifndef VERBS_KERNEL_CUH
#define VERBS_KERNEL_CUH

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include <cudasim.h>
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "verbs/dtype.h"

/* For code that a comment has to be written for twice: what only the GPU does, what only the
 * simulator does. */
#if defined(__CUDA_ARCH__)
#define ON_GPU 1
#else
#define ON_GPU 0
#endif
#ifndef __CUDACC__
#define ON_SIMULATOR 1
#else
#define ON_SIMULATOR 0
#endif

#define DEVICE_FUNCTION [[maybe_unused]] static __device__ __forceinline__

/* ---- launch ---- */

/* Queues kernel(arguments…) on the stream; the arguments are copied, converted to the kernel's
 * parameters. Returns what the launch itself says: an error of the kernel shows in a later call. */
template <typename... P, typename... A>
static inline cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, dim3 block,
    size_t dynamic_bytes, cudaStream_t stream, A... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = dynamic_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

#if ON_SIMULATOR
#define DYN_SHARED(T, name) T *name = reinterpret_cast<T *>(cudasim_dynamic_shared)
#else
#define DYN_SHARED(T, name)                                                                        \
    extern __shared__ __align__(16) unsigned char kernel_dynamic_shared[];                         \
    T *name = reinterpret_cast<T *>(kernel_dynamic_shared)
#endif

/* ---- 16-bit floats: to nearest even, bit by bit as dtype.h's; a NaN stays a NaN ---- */

typedef __nv_bfloat16 bfloat16;
typedef __half float16;

DEVICE_FUNCTION float to_float(float x) { return x; }
template <class T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }

#if ON_SIMULATOR
template <class To, class From> static inline To same_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "a reinterpretation");
    To to;
    memcpy((void *)&to, &from, sizeof to);
    return to;
}
DEVICE_FUNCTION float to_float(bfloat16 x) { return bfloat16_to_float32(same_bits<uint16_t>(x)); }
DEVICE_FUNCTION float to_float(float16 x) { return float16_to_float32(same_bits<uint16_t>(x)); }
template <> inline bfloat16 from_float<bfloat16>(float x)
{
    return same_bits<bfloat16>(float32_to_bfloat16(x));
}
template <> inline float16 from_float<float16>(float x)
{
    return same_bits<float16>(float32_to_float16(x));
}
#else
DEVICE_FUNCTION float to_float(bfloat16 x) { return __bfloat162float(x); }
DEVICE_FUNCTION float to_float(float16 x) { return __half2float(x); }
template <> __device__ __forceinline__ bfloat16 from_float<bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ float16 from_float<float16>(float x)
{
    return __float2half_rn(x);
}
#endif

/* ---- flags ---- */

/* The load of a loop that waits: what the releasing thread wrote before is seen after it. */
DEVICE_FUNCTION uint32_t ld_acquire_sys(const uint32_t *flag)
{
    uint32_t value = 0;
#if ON_GPU
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
#elif ON_SIMULATOR
    value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
    cudasim_poll(flag, value);
#endif
    return value;
}

DEVICE_FUNCTION uint64_t ld_acquire_sys(const uint64_t *flag)
{
    uint64_t value = 0;
#if ON_GPU
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
#elif ON_SIMULATOR
    value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
    cudasim_poll(flag, value);
#endif
    return value;
}

DEVICE_FUNCTION void st_release_sys(uint32_t *flag, uint32_t value)
{
#if ON_GPU
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#elif ON_SIMULATOR
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
#endif
}

DEVICE_FUNCTION void st_release_sys(uint64_t *flag, uint64_t value)
{
#if ON_GPU
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
#elif ON_SIMULATOR
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
#endif
}

/* Orders nothing: for a word that says nothing about other memory, as an abort flag. */
DEVICE_FUNCTION uint32_t ld_relaxed_sys(const uint32_t *flag)
{
    uint32_t value = 0;
#if ON_GPU
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
#elif ON_SIMULATOR
    value = __atomic_load_n(flag, __ATOMIC_RELAXED);
    cudasim_poll(flag, value);
#endif
    return value;
}

DEVICE_FUNCTION void st_relaxed_sys(uint32_t *flag, uint32_t value)
{
#if ON_GPU
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#elif ON_SIMULATOR
    __atomic_store_n(flag, value, __ATOMIC_RELAXED);
#endif
}

DEVICE_FUNCTION void st_relaxed_sys(uint64_t *flag, uint64_t value)
{
#if ON_GPU
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
#elif ON_SIMULATOR
    __atomic_store_n(flag, value, __ATOMIC_RELAXED);
#endif
}

/* A line: two words of 8 bytes, 16 bytes aligned, in one access. Each word arrives whole, the
 * two in any order, so a word that is half data and half flag needs no other flag: the
 * low-latency protocol. */
struct alignas(16) flag_line {
    uint64_t word[2];
};

DEVICE_FUNCTION flag_line ld_line_sys(const flag_line *line)
{
    flag_line found = {{0, 0}};
#if ON_GPU
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                 : "=l"(found.word[0]), "=l"(found.word[1])
                 : "l"(line)
                 : "memory");
#elif ON_SIMULATOR
    found.word[1] = __atomic_load_n(&line->word[1], __ATOMIC_RELAXED);
    found.word[0] = __atomic_load_n(&line->word[0], __ATOMIC_RELAXED);
    cudasim_poll(line, found.word[0] * 31 + found.word[1]);
#endif
    return found;
}

DEVICE_FUNCTION void st_line_sys(flag_line *line, flag_line value)
{
#if ON_GPU
    asm volatile(
        "st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(line), "l"(value.word[0]), "l"(value.word[1])
        : "memory");
#elif ON_SIMULATOR
    __atomic_store_n(&line->word[1], value.word[1], __ATOMIC_RELAXED);
    __atomic_store_n(&line->word[0], value.word[0], __ATOMIC_RELAXED);
#endif
}

/* ---- tensor cores ----
 *
 * All 32 lanes call; lane = 4 g + t. The fragments of one product
 * d (16, 8) = a (16, 16) · b (16, 8) + c, two 16-bit elements a register, the lower k in the lower
 * half:
 *
 *   a[0]  row g      k 2t, 2t+1     b[0]  col g  k 2t, 2t+1     c[0] c[1]  row g      col 2t, 2t+1
 *   a[1]  row g + 8  k 2t, 2t+1     b[1]  col g  k 2t+8, 2t+9   c[2] c[3]  row g + 8  col 2t, 2t+1
 *   a[2]  row g      k 2t+8, 2t+9
 *   a[3]  row g + 8  k 2t+8, 2t+9
 *
 * source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
 */

/* matrix_product(d, a, b, c, T()): T is float16 or, from sm_80 on, bfloat16 (before, it traps: ask
 * the device). d may be c. Products are exact, sums are of float32, in an order of the hardware's
 * own.
 *
 * matrix_load(d, row), matrix_load_transposed(d, row): four matrices of 8 rows of 16 bytes in
 * shared memory. Lane i gives the address, aligned to 16 bytes, of row i % 8 of matrix i / 8; it
 * gets in d[m] the elements 2t and 2t + 1 of row g of matrix m or, transposed, the elements g of
 * its rows 2t and 2t + 1.
 *
 * copy_async_16(to, from): 16 bytes from global to shared memory, aligned, beside the thread.
 * copy_async_commit() ends a group of them; copy_async_wait<N>() waits until at most the N latest
 * groups are under way. Other threads see the bytes after a barrier that follows. Before sm_80 the
 * copy is done at once.
 */

#if ON_SIMULATOR
#define KERNEL_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
DEVICE_FUNCTION void matrix_product(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
    const float (&c)[4], bfloat16, KERNEL_PLACE)
{
    cudasim_matrix_product(d, a, b, c, CUDASIM_BFLOAT16, file, line);
}
DEVICE_FUNCTION void matrix_product(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
    const float (&c)[4], float16, KERNEL_PLACE)
{
    cudasim_matrix_product(d, a, b, c, CUDASIM_FLOAT16, file, line);
}
DEVICE_FUNCTION void matrix_load(uint32_t (&d)[4], const void *row, KERNEL_PLACE)
{
    cudasim_matrix_load(d, row, 0, file, line);
}
DEVICE_FUNCTION void matrix_load_transposed(uint32_t (&d)[4], const void *row, KERNEL_PLACE)
{
    cudasim_matrix_load(d, row, 1, file, line);
}
DEVICE_FUNCTION void copy_async_16(void *to, const void *from) { cudasim_copy_async(to, from, 16); }
DEVICE_FUNCTION void copy_async_commit() { cudasim_copy_commit(); }
template <int N> static inline void copy_async_wait() { cudasim_copy_wait(N); }

#else
#if ON_GPU && __CUDA_ARCH__ >= 800
#define KERNEL_SM80 1
#else
#define KERNEL_SM80 0
#endif

DEVICE_FUNCTION void matrix_product(
    float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], bfloat16)
{
#if KERNEL_SM80
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]),
                 "f"(c[1]), "f"(c[2]), "f"(c[3]));
#elif ON_GPU /* no such instruction */
    for (int i = 0; i < 4; i++) d[i] = c[i];
    __trap();
#endif
}

DEVICE_FUNCTION void matrix_product(
    float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], float16)
{
#if KERNEL_SM80
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]),
                 "f"(c[1]), "f"(c[2]), "f"(c[3]));
#elif ON_GPU /* two products with half of k each */
    float sum[4] = {c[0], c[1], c[2], c[3]};
#pragma unroll
    for (int part = 0; part < 2; part++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, "
                     "{%6}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[2 * part]), "r"(a[2 * part + 1]), "r"(b[part]));
    for (int i = 0; i < 4; i++) d[i] = sum[i];
#endif
}

DEVICE_FUNCTION void matrix_load(uint32_t (&d)[4], const void *row)
{
#if ON_GPU
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at)
                 : "memory");
#endif
}

DEVICE_FUNCTION void matrix_load_transposed(uint32_t (&d)[4], const void *row)
{
#if ON_GPU
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at)
                 : "memory");
#endif
}

DEVICE_FUNCTION void copy_async_16(void *to, const void *from)
{
#if KERNEL_SM80
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
    *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
#endif
}

DEVICE_FUNCTION void copy_async_commit()
{
#if KERNEL_SM80
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> static __device__ __forceinline__ void copy_async_wait()
{
#if KERNEL_SM80
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
#endif

#endif
