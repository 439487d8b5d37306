/* lines_cuda: a slice whose bytes travel with their flags, for small messages: the low-latency protocol of kernel.cuh's flag_line. Who
 * waits for data looks at the data themselves: there is no counter to be released behind them, and none to be acquired before.
 *
 *   of a step, in edge->flagged          a line, 16 bytes in one access
 *   line 0    the tag                    data, 4 bytes | flag | data, 4 bytes | flag
 *   line 1 …  the elements
 *
 * Step l of those that went by lines has the flag l + 1, cut to 32 bits, and place l mod S; what stood there before is the flag of
 * S such steps ago, or zero, so a flag that fits says that its word has come. Room is as for every step: head has passed step − S.
 *
 * A thread takes units of 8 bytes of the caller's elements, in turn with the others: one line, or two of partial sums that are twice as
 * wide. What is missing in the last unit is zero. An operand whose edge has no lines is in its slot, as ever. Bytes moved per element, e
 * those of an element: as in reduce_cuda.cuh, but 2e for what arrives and what leaves.
 */
#ifndef RING_LINES_CUDA_CUH
#define RING_LINES_CUDA_CUH

#include "ring/reduce_cuda.cuh"

#define LINE_UNIT_BYTES 8

/* What of the slice goes by lines, from line 1 on; NULL: nothing, it is at the slice's address. */
struct line_operands {
    const flag_line *wire, *joined;
    flag_line *slot;
    uint32_t wire_flag, joined_flag, slot_flag;
};

/* Patience says when to give up: ended(spins). False: it has. */
template <class Patience>
DEVICE_FUNCTION bool line_take(uint64_t &data, const flag_line *line, uint32_t flag, Patience &patience)
{
    for (uint32_t spins = 1;; spins++) {
        flag_line found = ld_line_sys(line); /* written by line_put() */
        if ((uint32_t)(found.word[0] >> 32) == flag && (uint32_t)(found.word[1] >> 32) == flag) {
            data = (uint32_t)found.word[0] | found.word[1] << 32;
            return true;
        }
        if (patience.ended(spins)) return false;
    }
}

DEVICE_FUNCTION void line_put(flag_line *line, uint64_t data, uint32_t flag)
{
    uint64_t upper = (uint64_t)flag << 32;
    flag_line value = {{upper | (uint32_t)data, upper | data >> 32}};
    st_line_sys(line, value); /* read by line_take() */
}

/* COUNT elements of unit u, of which `valid` are there. */
template <class T, int COUNT, class Patience>
DEVICE_FUNCTION bool unit_load(T (&to)[COUNT], const T *plain, const flag_line *lines, uint32_t flag, size_t u, int valid,
    Patience &patience)
{
    const int width = COUNT * sizeof(T) / LINE_UNIT_BYTES;
    if (lines == NULL) {
        for (int k = 0; k < valid; k++) to[k] = plain[u * COUNT + k];
        return true;
    }
    for (int i = 0; i < width; i++) {
        uint64_t data;
        if (!line_take(data, lines + u * width + i, flag, patience)) return false;
        memcpy((char *)to + i * LINE_UNIT_BYTES, &data, LINE_UNIT_BYTES);
    }
    return true;
}

template <class T, int COUNT>
DEVICE_FUNCTION void unit_store(T *plain, flag_line *lines, const T (&from)[COUNT], uint32_t flag, size_t u, int valid)
{
    const int width = COUNT * sizeof(T) / LINE_UNIT_BYTES;
    for (int k = 0; k < valid && lines == NULL; k++) plain[u * COUNT + k] = from[k];
    for (int i = 0; i < width && lines != NULL; i++) {
        uint64_t data;
        memcpy(&data, (const char *)from + i * LINE_UNIT_BYTES, LINE_UNIT_BYTES);
        line_put(lines + u * width + i, data, flag);
    }
}

/* One thread's share; false: patience has ended. */
template <class Patience> struct line_runner {
    const struct reduce_slice &slice;
    const struct line_operands &lines;
    size_t thread, threads;
    Patience &patience;

    template <class T> static __device__ __forceinline__ int valid_of(size_t u, size_t count)
    {
        const size_t most = LINE_UNIT_BYTES / sizeof(T);
        return (int)(count - u * most < most ? count - u * most : most);
    }

    template <class T> __device__ __forceinline__ size_t units() const
    {
        const size_t most = LINE_UNIT_BYTES / sizeof(T);
        return (slice.count + most - 1) / most;
    }

    template <class T, int COUNT> __device__ __forceinline__ void keep(const T (&result)[COUNT], size_t u, int valid) const
    {
        if (slice.out != NULL && slice.out != slice.own) unit_store<T, COUNT>((T *)slice.out, NULL, result, 0, u, valid);
        if (slice.slot != NULL) unit_store<T, COUNT>((T *)slice.slot, lines.slot, result, lines.slot_flag, u, valid);
    }

    /* Bytes as they are. */
    template <class T> __device__ __forceinline__ void copy() const
    {
        const int COUNT = LINE_UNIT_BYTES / sizeof(T);
        bool arrives = slice.own == NULL;
        for (size_t u = thread; u < units<T>(); u += threads) {
            T unit[COUNT] = {};
            int valid = valid_of<T>(u, slice.count);
            if (!unit_load<T, COUNT>(unit, (const T *)(arrives ? slice.wire : slice.own), arrives ? lines.wire : NULL,
                    lines.wire_flag, u, valid, patience))
                return;
            keep<T, COUNT>(unit, u, valid);
        }
    }

    template <class Op> __device__ __forceinline__ bool unit(const Op &op, size_t u) const
    {
        typedef typename Op::T T;
        typedef typename Op::P P;
        const int COUNT = LINE_UNIT_BYTES / sizeof(T);
        T own[COUNT] = {}, result[COUNT] = {};
        P sum[COUNT] = {}, more[COUNT] = {};
        int valid = valid_of<T>(u, slice.count);
        unit_load<T, COUNT>(own, (const T *)slice.own, NULL, 0, u, valid, patience);
        if (slice.wire != NULL && !unit_load<P, COUNT>(more, (const P *)slice.wire, lines.wire, lines.wire_flag, u, valid, patience))
            return false;
        for (int k = 0; k < valid; k++) sum[k] = slice.wire != NULL ? op.combine(more[k], own[k]) : op.scale(own[k]);
        if (slice.joined != NULL) {
            if (!unit_load<P, COUNT>(more, (const P *)slice.joined, lines.joined, lines.joined_flag, u, valid, patience)) return false;
            for (int k = 0; k < valid; k++) sum[k] = op.merge(more[k], sum[k]);
        }
        if (slice.out == NULL) {
            unit_store<P, COUNT>((P *)slice.slot, lines.slot, sum, lines.slot_flag, u, valid);
            return true;
        }
        for (int k = 0; k < valid; k++) result[k] = op.finish(sum[k]);
        unit_store<T, COUNT>((T *)slice.out, NULL, result, 0, u, valid);
        if (slice.slot != NULL) unit_store<T, COUNT>((T *)slice.slot, lines.slot, result, lines.slot_flag, u, valid);
        return true;
    }

    template <class Op> __device__ __forceinline__ void run(const Op &op) const
    {
        size_t last = units<typename Op::T>();
        for (size_t u = thread; u < last && unit(op, u); u += threads) {}
    }
};

/* As reduce_run(). All threads of the slice call; those that find that patience has ended leave the rest undone. */
template <class Patience>
DEVICE_FUNCTION void lines_run(const struct reduce_work &work, const struct line_operands &lines, size_t thread, size_t threads,
    Patience &patience)
{
    struct reduce_slice slice = work.slice;
    if (work.kind == REDUCE_SCALE) slice.wire = slice.joined = NULL;
    line_runner<Patience> runner = {slice, lines, thread, threads, patience};
    if (work.kind != REDUCE_COPY) return operation_run(work, runner);
    switch (work.element_bytes) {
    case 1: return runner.template copy<uint8_t>();
    case 2: return runner.template copy<uint16_t>();
    case 4: return runner.template copy<uint32_t>();
    default: return runner.template copy<uint64_t>();
    }
}

#endif
