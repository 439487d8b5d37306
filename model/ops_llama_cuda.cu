/* ops_llama_cuda: SwiGLU and rotary positions. RMS norm is layer norm's file's.
 *
 * Each is a struct of pointers with at<V>(row, column), 256 threads a block (kernel_vector.cuh);
 * s = bytes of an activation:
 *
 *   operation          a row is                    bytes moved per element of out
 *   swiglu forward     2·cols gates and values     3s
 *   swiglu backward    the same                    5s (2 of them out)
 *   rotary             the points of all heads     2s; turns stay in cache over heads and batch
 */
#include "model/ops_cuda.h"

#include "verbs/kernel_vector.cuh"

/* ---- SwiGLU ---- */

__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <class T> struct swiglu_forwards {
    T *out;
    const T *in;
    size_t cols;

    __device__ bool takes(size_t) const { return true; }

    template <int V> __device__ void at(size_t r, size_t c) const
    {
        float gate[V], value[V];
        load(gate, in + r * 2 * cols + c);
        load(value, in + r * 2 * cols + cols + c);
        UNROLL
        for (int j = 0; j < V; j++) value[j] *= gate[j] * sigmoid(gate[j]);
        store(out + r * cols + c, value);
    }
};

enum status swiglu_forward_cuda(
    void *out, const void *in, enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        return launch_rows<V>("swiglu_forward", swiglu_forwards<T>{(T *)out, (const T *)in, cols},
            rows, cols, cols % V == 0 && vectors_at(out, in), stream);
    });
}

/* silu′(x) = σ(x)·(1 + x·(1 − σ(x))). */
template <class T> struct swiglu_backwards {
    T *d_in;
    const T *d_out, *in;
    size_t cols;

    __device__ bool takes(size_t) const { return true; }

    template <int V> __device__ void at(size_t r, size_t c) const
    {
        float gate[V], value[V], d[V];
        load(gate, in + r * 2 * cols + c);
        load(value, in + r * 2 * cols + cols + c);
        load(d, d_out + r * cols + c);
        UNROLL
        for (int j = 0; j < V; j++) {
            float x = gate[j], s = sigmoid(x);
            gate[j] = d[j] * value[j] * (s * (1.0f + x * (1.0f - s)));
            value[j] = d[j] * (x * s);
        }
        store(d_in + r * 2 * cols + c, gate);
        store(d_in + r * 2 * cols + cols + c, value);
    }
};

enum status swiglu_backward_cuda(void *d_in, const void *d_out, const void *in, enum dtype dtype,
    size_t rows, size_t cols, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        return launch_rows<V>("swiglu_backward",
            swiglu_backwards<T>{(T *)d_in, (const T *)d_out, (const T *)in, cols}, rows, cols,
            cols % V == 0 && vectors_at(d_in, d_out, in), stream);
    });
}

/* ---- rotary positions ---- */

/* Column c of a row is point c % half of head c / half, queries before keys. */
template <class T> struct turning {
    T *qkv;
    const float *turns; /* (t, 2, half) */
    size_t t, half, stride;
    float sign;

    __device__ bool takes(size_t) const { return true; }

    template <int V> __device__ void at(size_t r, size_t c) const
    {
        size_t head = c / half, i = c % half;
        T *a = qkv + r * stride + head * 2 * half + i, *b = a + half;
        const float *angle = turns + r % t * 2 * half + i;
        float x[V], y[V], cosine[V], sine[V];
        load(x, a);
        load(y, b);
        load(cosine, angle);
        load(sine, angle + half);
        UNROLL
        for (int j = 0; j < V; j++) {
            float s = sign * sine[j], turned = x[j] * cosine[j] - y[j] * s;
            y[j] = y[j] * cosine[j] + x[j] * s;
            x[j] = turned;
        }
        store(a, x);
        store(b, y);
    }
};

enum status rotary_cuda(void *qkv, const float *turns, bool back, enum dtype dtype,
    struct attention_size size, cudaStream_t stream)
{
    size_t half = size.head_cols / 2, rows = size.batch * size.t;
    size_t stride = (size.heads + 2 * size.kv_heads) * size.head_cols;
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        turning<T> operation = {(T *)qkv, turns, size.t, half, stride, back ? -1.0f : 1.0f};
        return launch_rows<V>(back ? "rotary_backward" : "rotary_forward", operation, rows,
            (size.heads + size.kv_heads) * half, half % V == 0 && vectors_at(qkv, turns), stream);
    });
}
