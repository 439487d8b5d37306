/* reduce_cuda: what CUDA threads do with one slice: the twin of reduce_host.c, with its bits. Included by the kernel that is
 * launched per slice (reduce_cuda.cu) and by the one that runs a whole plan (execute_cuda.cu).
 *
 *   out, slot = finish(joined ⊕ (wire ⊕ own · factor))      what is absent is left out
 *
 * A thread takes packs of 16 bytes of the caller's elements, in turn with the others, and keeps all of an element's way in
 * registers: memory is passed over once. Bytes moved per element, e those of an element, p those of a partial sum:
 *
 *   copy, scale      e read, e or p written for each of out and slot
 *   combine          p + e read (+ p with joined), e or p written for out or slot, 2e for both
 *
 * The first address of out (else of slot) that is a multiple of 16 begins the packs; elements before it and after the last whole
 * pack go singly. Another operand that is not aligned there too is read and written by elements, from lines that the cache holds.
 *
 * Integers are added and multiplied unsigned, so that they wrap; 16-bit floats are computed in float32 and rounded once; minima
 * and maxima keep the bits that win. Nothing is contracted: nvcc compiles with --fmad=false (I2).
 */
#ifndef RING_REDUCE_CUDA_CUH
#define RING_REDUCE_CUDA_CUH

#include "ring/reduce.h"
#include "verbs/kernel.cuh"

#define REDUCE_PACK_BYTES 16

/* What a kernel is given: a slice, and the reduction as numbers. */
struct reduce_work {
    struct reduce_slice slice;
    enum reduce_kind kind;
    enum dtype dtype;
    enum redop redop;
    size_t element_bytes;
    bool whole;         /* integers */
    bool scales;        /* reduce_scales() */
    bool wide, divides; /* divides: the end of an average of integers */
    int nranks;
    double factor;
    uint64_t whole_factor;
};

/* ---- elements and the numbers that they are computed as ---- */

template <class T> struct number_of {
    typedef T type;
};
template <> struct number_of<int8_t> {
    typedef uint8_t type;
};
template <> struct number_of<int32_t> {
    typedef uint32_t type;
};
template <> struct number_of<int64_t> {
    typedef uint64_t type;
};
template <> struct number_of<float16> {
    typedef float type;
};
template <> struct number_of<bfloat16> {
    typedef float type;
};

template <class T> DEVICE_FUNCTION typename number_of<T>::type number_from(T x)
{
    return (typename number_of<T>::type)x;
}
DEVICE_FUNCTION float number_from(float16 x) { return to_float(x); }
DEVICE_FUNCTION float number_from(bfloat16 x) { return to_float(x); }

/* number is wider than T where small integers are promoted: the cast cuts it, modulo 2^bits. */
template <class T, class N> struct element_from {
    static __device__ __forceinline__ T of(N x) { return (T)x; }
};
template <class N> struct element_from<float16, N> {
    static __device__ __forceinline__ float16 of(N x) { return from_float<float16>(x); }
};
template <class N> struct element_from<bfloat16, N> {
    static __device__ __forceinline__ bfloat16 of(N x) { return from_float<bfloat16>(x); }
};
template <class T, class N> DEVICE_FUNCTION T element_of(N x) { return element_from<T, N>::of(x); }

template <class T> DEVICE_FUNCTION T divide(T sum, int nranks) { return (T)(sum / nranks); }
/* Floats are scaled before they are summed; these are for the compiler: never run here { */
DEVICE_FUNCTION float16 divide(float16 sum, int) { return sum; }
DEVICE_FUNCTION bfloat16 divide(bfloat16 sum, int) { return sum; }
DEVICE_FUNCTION float divide(float sum, int) { return sum; }
DEVICE_FUNCTION double divide(double sum, int) { return sum; }
/* never run here } */

/* ---- operations ----
 *
 * T: an element in memory; P: of a partial sum; N: what they are computed as. */

/* Of sums and products: own is scaled, which the factor 1 does not change; only where it is asked for, else -0 and NaN
 * would pay for it. */
template <class T_, class P_, bool SCALES, bool PRODUCT> struct arithmetic {
    typedef T_ T;
    typedef P_ P;
    typedef typename number_of<P>::type N;
    N factor;
    bool divides;
    int nranks;

    __device__ explicit arithmetic(const struct reduce_work &work)
        : factor(work.whole ? (N)work.whole_factor : (N)work.factor), divides(work.divides),
          nranks(work.nranks)
    {
    }
    __device__ __forceinline__ N own_of(T own) const
    {
        return SCALES ? (N)((N)number_from(own) * factor) : (N)number_from(own);
    }
    static __device__ __forceinline__ N join(N a, N b) { return PRODUCT ? (N)(a * b) : (N)(a + b); }
    __device__ __forceinline__ P scale(T own) const { return element_of<P>(own_of(own)); }
    __device__ __forceinline__ P combine(P wire, T own) const { return element_of<P>(join(number_from(wire), own_of(own))); }
    __device__ __forceinline__ P merge(P theirs, P ours) const
    {
        return element_of<P>(join(number_from(theirs), number_from(ours)));
    }
    __device__ __forceinline__ T finish(P sum) const { return divides ? divide(element_of<T>(sum), nranks) : element_of<T>(sum); }
};

/* Of two: a NaN wins wherever it stands, of equal values (-0 and +0) own stays. */
template <class T_, bool GREATEST> struct extreme {
    typedef T_ T;
    typedef T_ P;

    __device__ explicit extreme(const struct reduce_work &) {}
    /* Only sums are scaled: never run here { */
    __device__ __forceinline__ P scale(T own) const { return own; }
    /* never run here } */
    __device__ __forceinline__ P combine(P wire, T own) const
    {
        return wins(compared(wire), compared(own)) ? wire : own;
    }
    __device__ __forceinline__ P merge(P theirs, P ours) const { return combine(theirs, ours); }
    __device__ __forceinline__ T finish(P sum) const { return sum; }

  private:
    template <class E> static __device__ __forceinline__ E compared(E x) { return x; }
    static __device__ __forceinline__ float compared(float16 x) { return to_float(x); }
    static __device__ __forceinline__ float compared(bfloat16 x) { return to_float(x); }
    template <class N> static __device__ __forceinline__ bool wins(N wire, N own)
    {
        return (GREATEST ? wire > own : wire < own) || wire != wire;
    }
};

/* ---- packs ---- */

template <class T, int COUNT> DEVICE_FUNCTION void pack_load(T (&to)[COUNT], const T *from, bool aligned)
{
    if (aligned) {
        const int parts = COUNT * sizeof(T) / REDUCE_PACK_BYTES;
        for (int i = 0; i < parts; i++) {
            uint4 part = ((const uint4 *)from)[i];
            memcpy((char *)to + i * REDUCE_PACK_BYTES, &part, REDUCE_PACK_BYTES);
        }
    } else {
        for (int i = 0; i < COUNT; i++) to[i] = from[i];
    }
}

template <class T, int COUNT> DEVICE_FUNCTION void pack_store(T *to, const T (&from)[COUNT], bool aligned)
{
    if (aligned) {
        const int parts = COUNT * sizeof(T) / REDUCE_PACK_BYTES;
        for (int i = 0; i < parts; i++) {
            uint4 part;
            memcpy(&part, (const char *)from + i * REDUCE_PACK_BYTES, REDUCE_PACK_BYTES);
            ((uint4 *)to)[i] = part;
        }
    } else {
        for (int i = 0; i < COUNT; i++) to[i] = from[i];
    }
}

/* A slice's operands with their types, and which of them are aligned where the packs begin. */
template <class T, class P> struct operands {
    const P *wire, *joined;
    const T *own;
    T *out;
    void *slot;
    size_t head;
    bool wire_aligned, joined_aligned, own_aligned, out_aligned, slot_aligned;

    static __device__ __forceinline__ bool aligned(const void *at, size_t skipped_bytes)
    {
        return ((uintptr_t)at + skipped_bytes) % REDUCE_PACK_BYTES == 0;
    }
    __device__ explicit operands(const struct reduce_slice &slice)
        : wire((const P *)slice.wire), joined((const P *)slice.joined), own((const T *)slice.own), out((T *)slice.out),
          slot(slice.slot)
    {
        size_t sent = out != NULL ? sizeof(T) : sizeof(P);
        uintptr_t lead = out != NULL ? (uintptr_t)out : (uintptr_t)slot;
        head = (REDUCE_PACK_BYTES - lead % REDUCE_PACK_BYTES) % REDUCE_PACK_BYTES / sent;
        if (head > slice.count) head = slice.count;
        wire_aligned = aligned(wire, head * sizeof(P));
        joined_aligned = aligned(joined, head * sizeof(P));
        own_aligned = aligned(own, head * sizeof(T));
        out_aligned = aligned(out, head * sizeof(T));
        slot_aligned = aligned(slot, head * sent);
    }
};

/* COUNT elements from the i-th on: a pack, or one. */
template <class Op, int COUNT>
DEVICE_FUNCTION void pack_run(const operands<typename Op::T, typename Op::P> &at, size_t i, const Op &op)
{
    typedef typename Op::T T;
    typedef typename Op::P P;
    const bool whole = COUNT > 1;
    T own[COUNT], result[COUNT];
    P sum[COUNT], more[COUNT];
    pack_load<T, COUNT>(own, at.own + i, whole && at.own_aligned);
    if (at.wire != NULL) pack_load<P, COUNT>(more, at.wire + i, whole && at.wire_aligned);
    for (int k = 0; k < COUNT; k++) sum[k] = at.wire != NULL ? op.combine(more[k], own[k]) : op.scale(own[k]);
    if (at.joined != NULL) {
        pack_load<P, COUNT>(more, at.joined + i, whole && at.joined_aligned);
        for (int k = 0; k < COUNT; k++) sum[k] = op.merge(more[k], sum[k]);
    }
    if (at.out == NULL) {
        pack_store<P, COUNT>((P *)at.slot + i, sum, whole && at.slot_aligned);
        return;
    }
    for (int k = 0; k < COUNT; k++) result[k] = op.finish(sum[k]);
    pack_store<T, COUNT>(at.out + i, result, whole && at.out_aligned);
    if (at.slot != NULL) pack_store<T, COUNT>((T *)at.slot + i, result, whole && at.slot_aligned);
}

/* Bytes as they are; only their width matters. */
template <class T_> struct identity {
    typedef T_ T;
    typedef T_ P;
    __device__ __forceinline__ P scale(T own) const { return own; }
    /* It copies, no more: never run here { */
    __device__ __forceinline__ P combine(P, T own) const { return own; }
    __device__ __forceinline__ P merge(P, P ours) const { return ours; }
    /* never run here } */
    __device__ __forceinline__ T finish(P sum) const { return sum; }
};

/* The thread-th of `threads` that share the slice. */
template <class Op> DEVICE_FUNCTION void slice_run(const struct reduce_slice &slice, size_t thread, size_t threads, const Op &op)
{
    const int pack = REDUCE_PACK_BYTES / sizeof(typename Op::T);
    operands<typename Op::T, typename Op::P> at(slice);
    size_t packs = (slice.count - at.head) / pack, in_packs = packs * pack;
    for (size_t i = thread; i < packs; i += threads) pack_run<Op, pack>(at, at.head + i * pack, op);
    for (size_t i = thread; i < slice.count - in_packs; i += threads)
        pack_run<Op, 1>(at, i < at.head ? i : i + in_packs, op);
}

/* ---- which operation ---- */

/* A runner runs what is named by an operation: Runner::run(op). This one the slice, from memory to memory. */
struct slice_runner {
    const struct reduce_slice &slice;
    size_t thread, threads;
    template <class Op> __device__ __forceinline__ void run(const Op &op) const { slice_run(slice, thread, threads, op); }
};

template <class T, class Runner> DEVICE_FUNCTION void run_of(const struct reduce_work &work, const Runner &runner)
{
    bool scales = work.redop == REDOP_PREMUL_SUM || (work.redop == REDOP_AVG && !work.whole);
    if (work.redop == REDOP_PROD) runner.run(arithmetic<T, T, false, true>(work));
    else if (work.redop == REDOP_MIN) runner.run(extreme<T, false>(work));
    else if (work.redop == REDOP_MAX) runner.run(extreme<T, true>(work));
    else if (scales) runner.run(arithmetic<T, T, true, false>(work));
    else runner.run(arithmetic<T, T, false, false>(work));
}

template <class T, class Runner> DEVICE_FUNCTION void run_wide(const struct reduce_work &work, const Runner &runner)
{
    if (work.redop == REDOP_PROD) runner.run(arithmetic<T, float, false, true>(work));
    else runner.run(arithmetic<T, float, true, false>(work));
}

/* Of all that is not copied. */
template <class Runner> DEVICE_FUNCTION void operation_run(const struct reduce_work &work, const Runner &runner)
{
    if (work.wide && work.dtype == DTYPE_FLOAT16) return run_wide<float16>(work, runner);
    if (work.wide) return run_wide<bfloat16>(work, runner);
    switch (work.dtype) {
    case DTYPE_INT8: return run_of<int8_t>(work, runner);
    case DTYPE_UINT8: return run_of<uint8_t>(work, runner);
    case DTYPE_INT32: return run_of<int32_t>(work, runner);
    case DTYPE_UINT32: return run_of<uint32_t>(work, runner);
    case DTYPE_INT64: return run_of<int64_t>(work, runner);
    case DTYPE_UINT64: return run_of<uint64_t>(work, runner);
    case DTYPE_FLOAT16: return run_of<float16>(work, runner);
    case DTYPE_BFLOAT16: return run_of<bfloat16>(work, runner);
    case DTYPE_FLOAT32: return run_of<float>(work, runner);
    case DTYPE_FLOAT64: return run_of<double>(work, runner);
    default: break; /* never run here: there are no other dtypes */
    }
}

DEVICE_FUNCTION void run_copy(const struct reduce_work &work, size_t thread, size_t threads)
{
    struct reduce_slice slice = work.slice;
    if (slice.own == NULL) slice.own = slice.wire;
    slice.wire = slice.joined = NULL;
    if (slice.out == slice.own) slice.out = NULL;
    if (slice.out == NULL && slice.slot == NULL) return;
    switch (work.element_bytes) {
    case 1: slice_run(slice, thread, threads, identity<uint8_t>()); break;
    case 2: slice_run(slice, thread, threads, identity<uint16_t>()); break;
    case 4: slice_run(slice, thread, threads, identity<uint32_t>()); break;
    default: slice_run(slice, thread, threads, identity<uint64_t>()); break;
    }
}

/* All threads of the slice call; the work is the same for all. */
DEVICE_FUNCTION void reduce_run(const struct reduce_work &work, size_t thread, size_t threads)
{
    if (work.kind == REDUCE_COPY) return run_copy(work, thread, threads);
    operation_run(work, slice_runner{work.slice, thread, threads});
}

/* On the host. */
static inline struct reduce_work reduce_work_make(
    enum reduce_kind kind, const struct reduce_slice *slice, const struct reduction *reduction)
{
    struct reduce_work work = {};
    bool scales = reduction->redop == REDOP_PREMUL_SUM || reduction->redop == REDOP_AVG;
    work.slice = *slice;
    if (kind == REDUCE_SCALE) work.slice.wire = work.slice.joined = NULL;
    work.kind = kind;
    work.dtype = reduction->dtype;
    work.redop = reduction->redop;
    work.element_bytes = dtype_bytes(reduction->dtype);
    work.scales = reduce_scales(reduction);
    work.whole = dtype_is_integer(reduction->dtype);
    work.wide = reduction->wide;
    work.divides = !reduction->wide && reduce_finishes(reduction);
    work.nranks = reduction->nranks;
    work.factor = scales ? reduce_factor(reduction) : 1.0;
    work.whole_factor = reduce_whole_factor(reduction);
    return work;
}

#endif
