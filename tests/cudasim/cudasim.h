/* cudasim: what a kernel's source means to g++. verbs/kernel.cuh includes it where nvcc does not
 * compile; nobody else does.
 *
 * A kernel becomes a plain function that one fiber per CUDA thread calls. A block runs on one OS
 * thread, so __shared__ is static thread_local; threadIdx and its like are variables of that
 * thread. Barriers, warp operations and polls are calls of the simulator, which know their file and
 * line.
 */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "verbs/dtype.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __shared__      static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define warpSize 32

#define CUDASIM_THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))
/* Variables, not macros: cudaLaunchConfig_t has members of the same names. */
extern CUDASIM_THREAD_LOCAL uint3 threadIdx, blockIdx;
extern CUDASIM_THREAD_LOCAL dim3 blockDim, gridDim;
extern CUDASIM_THREAD_LOCAL void *cudasim_dynamic_shared;

enum cudasim_shuffle_kind {
    CUDASIM_SHUFFLE_INDEX,
    CUDASIM_SHUFFLE_UP,
    CUDASIM_SHUFFLE_DOWN,
    CUDASIM_SHUFFLE_XOR,
};
enum cudasim_matrix_type { CUDASIM_BFLOAT16, CUDASIM_FLOAT16 };

extern "C" {
/* Returns the sum of the predicates of the block. kind: what must be alike in all threads. */
int cudasim_barrier(const char *file, int line, int kind, int predicate);
uint64_t cudasim_shuffle(enum cudasim_shuffle_kind kind, unsigned mask, uint64_t value,
    int argument, int width, const char *file, int line);
unsigned cudasim_ballot(unsigned mask, int predicate, const char *file, int line);
void cudasim_warp_barrier(unsigned mask, const char *file, int line);
void cudasim_matrix_product(float *d, const uint32_t *a, const uint32_t *b, const float *c,
    enum cudasim_matrix_type type, const char *file, int line);
void cudasim_matrix_load(uint32_t *d, const void *row, int transposed, const char *file, int line);
void cudasim_copy_async(void *to, const void *from, unsigned bytes);
void cudasim_copy_commit();
void cudasim_copy_wait(unsigned groups_left);
/* A load of a flag found this value; a thread that finds the same again and again gives way to
 * others. */
void cudasim_poll(const void *flag, uint64_t value);
void cudasim_nanosleep();
[[noreturn]] void cudasim_trap(const char *why);
cudaError_t cudasim_launch(const cudaLaunchConfig_t *config, const void *kernel,
    void (*invoke)(const void *kernel, const void *arguments), const void *(*anchor)(),
    const void *arguments, size_t bytes, int clear_of_padding);
int cudasim_at_exit_of_device(void (*function)());
}

#ifdef CUDASIM_COVERAGE /* the device process leaves by _exit: its counters are written before */
extern "C" void __gcov_dump();
static const int cudasim_coverage = cudasim_at_exit_of_device(__gcov_dump);
#endif

/* ---- barriers ---- */

#define __syncthreads()        ((void)cudasim_barrier(__FILE__, __LINE__, 0, 0))
#define __syncthreads_count(p) cudasim_barrier(__FILE__, __LINE__, 1, (p) ? 1 : 0)
#define __syncthreads_or(p)    (cudasim_barrier(__FILE__, __LINE__, 2, (p) ? 1 : 0) != 0)
#define __syncthreads_and(p)   (cudasim_barrier(__FILE__, __LINE__, 3, (p) ? 0 : 1) == 0)
struct cudasim_warp_barrier_at {
    const char *file;
    int line;
    void operator()(unsigned mask = 0xffffffffu) const { cudasim_warp_barrier(mask, file, line); }
};
#define __syncwarp(...) cudasim_warp_barrier_at{__FILE__, __LINE__}(__VA_ARGS__)

static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) { cudasim_nanosleep(); }
#define __trap() cudasim_trap("__trap()")

/* ---- warps ---- */

template <class T>
static inline T cudasim_shuffle_of(cudasim_shuffle_kind kind, const char *file, int line,
    unsigned mask, T value, int argument, int width = 32)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "what a shuffle moves");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = cudasim_shuffle(kind, mask, bits, argument, width, file, line);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
#define CUDASIM_SHUFFLE(kind, ...)                                                                 \
    cudasim_shuffle_of(CUDASIM_SHUFFLE_##kind, __FILE__, __LINE__, __VA_ARGS__)
#define __shfl_sync(...)      CUDASIM_SHUFFLE(INDEX, __VA_ARGS__)
#define __shfl_up_sync(...)   CUDASIM_SHUFFLE(UP, __VA_ARGS__)
#define __shfl_down_sync(...) CUDASIM_SHUFFLE(DOWN, __VA_ARGS__)
#define __shfl_xor_sync(...)  CUDASIM_SHUFFLE(XOR, __VA_ARGS__)
#define __ballot_sync(m, p)   cudasim_ballot(m, (p) ? 1 : 0, __FILE__, __LINE__)
#define __any_sync(m, p)      (__ballot_sync(m, p) != 0)
#define __all_sync(m, p)      (__ballot_sync(m, !(p)) == 0)

/* ---- atomics, relaxed as the hardware's are ---- */

#define CUDASIM_RELAXED __ATOMIC_RELAXED
/* *p becomes change(*p); returns what it was. */
template <class T, class Change> static inline T cudasim_update(T *p, Change change)
{
    T old, wanted;
    __atomic_load(p, &old, CUDASIM_RELAXED);
    do wanted = change(old);
    while (!__atomic_compare_exchange(p, &old, &wanted, true, CUDASIM_RELAXED, CUDASIM_RELAXED));
    return old;
}
template <class T> static inline T atomicAdd(T *p, std::common_type_t<T> v)
{
    return cudasim_update(p, [v](T old) { return (T)(old + v); });
}
template <class T> static inline T atomicMax(T *p, std::common_type_t<T> v)
{
    return cudasim_update(p, [v](T old) { return old < v ? v : old; });
}
template <class T> static inline T atomicMin(T *p, std::common_type_t<T> v)
{
    return cudasim_update(p, [v](T old) { return v < old ? v : old; });
}
template <class T> static inline T atomicOr(T *p, std::common_type_t<T> v)
{
    return cudasim_update(p, [v](T old) { return (T)(old | v); });
}
template <class T> static inline T atomicExch(T *p, std::common_type_t<T> v)
{
    return cudasim_update(p, [v](T) { return v; });
}
template <class T>
static inline T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> v)
{
    __atomic_compare_exchange(p, &expected, &v, false, CUDASIM_RELAXED, CUDASIM_RELAXED);
    return expected;
}

/* ---- loads, stores and arithmetic that hardware has instructions for ---- */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stwt(T *p, T v) { *p = v; }

using std::max;
using std::min;
#define __expf(x)    expf(x) /* glibc declares these names */
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __powf(x, y) powf(x, y)
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
static inline int __float_as_int(float x) { return (int)float32_to_bits(x); }
static inline unsigned __float_as_uint(float x) { return float32_to_bits(x); }
static inline float __int_as_float(int x) { return float32_from_bits((uint32_t)x); }
static inline float __uint_as_float(unsigned x) { return float32_from_bits(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

/* ---- launch: the same call as the toolkit's template ---- */

static inline const void *cudasim_anchor()
{
    static thread_local char anchor;
    return &anchor;
}

template <class... P> struct cudasim_kernel {
    using arguments = std::tuple<std::decay_t<P>...>;
    static_assert((std::is_trivially_copyable<std::decay_t<P>>::value && ...), "a launch copies");

    template <size_t... I>
    static void call(const void *kernel, arguments &a, std::index_sequence<I...>)
    {
        ((void (*)(P...))kernel)(std::get<I>(a)...);
    }
    /* What lies between the members of a struct is whatever was on the stack: it may look like a
     * pointer. False where the compiler cannot clear it. */
    static bool clear_padding(arguments &a)
    {
#if __has_builtin(__builtin_clear_padding)
        std::apply([](auto &...each) { (__builtin_clear_padding(&each), ...); }, a);
        return true;
#else
        (void)a;
        return false;
#endif
    }
    static void invoke(const void *kernel, const void *bytes)
    {
        /* Each thread has its own parameters. */
        alignas(arguments) unsigned char copy[sizeof(arguments)];
        std::memcpy(copy, bytes, sizeof copy);
        call(kernel, *std::launder(reinterpret_cast<arguments *>(copy)),
            std::index_sequence_for<P...>());
    }
};

template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(
    const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...arguments)
{
    using known = cudasim_kernel<P...>;
    alignas(typename known::arguments) unsigned char bytes[sizeof(typename known::arguments)] = {};
    bool clear =
        known::clear_padding(*new (bytes) typename known::arguments(std::forward<A>(arguments)...));
    return cudasim_launch(
        config, (const void *)kernel, known::invoke, cudasim_anchor, bytes, sizeof bytes, clear);
}

#endif
