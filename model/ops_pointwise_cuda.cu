/* ops_pointwise_cuda: the operations that meet each element once.
 *
 * Each is a struct of pointers with at<V>(place): V elements read, computed in float32, written.
 * kernel_vector.cuh walks the range or the rows, 256 threads a block, at most 4096 blocks, and
 * chooses V: 8 elements of 16 bits or 4 of 32, else 1. s = bytes of an activation, g of a lent
 * gradient:
 *
 *   operation            bytes moved per element
 *   widen                s + 4
 *   narrow_add           8 + 2g
 *   narrow_first         8 + g
 *   gelu forward         2s
 *   gelu backward        3s
 *   bias and gelu        3s (2s without gelu)
 *   bias and residual    3s
 *   embedding forward    2s
 *   positions forward    2s (the table stays in cache over the batch)
 *   positions backward   s, and 8 per element of the table
 */
#include "model/ops_cuda.h"

#include "model/gelu_cuda.cuh"
#include "verbs/kernel_vector.cuh"

/* ---- dtypes ---- */

template <class T> struct widening {
    float *out;
    const T *in;

    template <int V> __device__ void at(size_t i) const
    {
        float x[V];
        load(x, in + i);
        store(out + i, x);
    }
};

enum status widen_cuda(
    float *out, const void *in, enum dtype dtype, size_t count, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<8>(
            "widen", widening<T>{out, (const T *)in}, count, vectors_at(out, in), stream);
    });
}

/* FIRST: to zeros, which are not read; of -0 they make +0. */
template <class T, bool FIRST> struct narrow_adding {
    T *sum;
    float *x;

    template <int V> __device__ void at(size_t i) const
    {
        float total[V] = {}, part[V], zeros[V];
        if (!FIRST) load(total, sum + i);
        load(part, x + i);
        UNROLL
        for (int j = 0; j < V; j++) {
            total[j] += part[j];
            zeros[j] = 0.0f;
        }
        store(sum + i, total);
        store(x + i, zeros);
    }
};

enum status narrow_add_cuda(
    void *sum, float *x, enum dtype dtype, size_t count, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<8>(
            "narrow_add", narrow_adding<T, false>{(T *)sum, x}, count, vectors_at(sum, x), stream);
    });
}

enum status narrow_first_cuda(
    void *sum, float *x, enum dtype dtype, size_t count, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<8>(
            "narrow_first", narrow_adding<T, true>{(T *)sum, x}, count, vectors_at(sum, x), stream);
    });
}

/* ---- GELU ---- */

template <class T> struct gelu_forwards {
    T *out;
    const T *in;

    template <int V> __device__ void at(size_t i) const
    {
        float x[V];
        load(x, in + i);
        UNROLL
        for (int j = 0; j < V; j++) x[j] *= gelu_gate(x[j]);
        store(out + i, x);
    }
};

enum status gelu_forward_cuda(
    void *out, const void *in, enum dtype dtype, size_t count, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<16 / sizeof(T)>("gelu_forward",
            gelu_forwards<T>{(T *)out, (const T *)in}, count, vectors_at(out, in), stream);
    });
}

template <class T> struct gelu_backwards {
    T *d;
    const T *in;

    template <int V> __device__ void at(size_t i) const
    {
        float x[V], slope[V];
        load(x, in + i);
        load(slope, d + i);
        UNROLL
        for (int j = 0; j < V; j++) slope[j] *= gelu_slope(x[j]);
        store(d + i, slope);
    }
};

enum status gelu_backward_cuda(
    void *d, const void *in, enum dtype dtype, size_t count, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<16 / sizeof(T)>("gelu_backward",
            gelu_backwards<T>{(T *)d, (const T *)in}, count, vectors_at(d, in), stream);
    });
}

/* ---- biases ---- */

template <class T> struct bias_gelu {
    T *out, *x;
    const T *bias;
    size_t cols;

    __device__ bool takes(size_t) const { return true; }

    template <int V> __device__ void at(size_t r, size_t c) const
    {
        float value[V], shift[V];
        load(value, x + r * cols + c);
        load(shift, bias + c);
        UNROLL
        for (int j = 0; j < V; j++) value[j] += shift[j];
        store(x + r * cols + c, value);
        if (out == NULL) return;
        load(value, x + r * cols + c); /* as rounded: backward sees no other */
        UNROLL
        for (int j = 0; j < V; j++) value[j] *= gelu_gate(value[j]);
        store(out + r * cols + c, value);
    }
};

enum status bias_gelu_cuda(void *out, void *x, const void *bias, enum dtype dtype, size_t rows,
    size_t cols, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        return launch_rows<V>("bias_gelu", bias_gelu<T>{(T *)out, (T *)x, (const T *)bias, cols},
            rows, cols, cols % V == 0 && vectors_at(out, x, bias), stream);
    });
}

template <class T> struct bias_residual {
    T *x;
    const T *residual, *bias;
    size_t cols;

    __device__ bool takes(size_t) const { return true; }

    template <int V> __device__ void at(size_t r, size_t c) const
    {
        float sum[V], kept[V], shift[V] = {};
        load(sum, x + r * cols + c);
        load(kept, residual + r * cols + c);
        if (bias != NULL) load(shift, bias + c);
        UNROLL
        for (int j = 0; j < V; j++) sum[j] += kept[j] + shift[j];
        store(x + r * cols + c, sum);
    }
};

enum status bias_residual_add_cuda(void *x, const void *residual, const void *bias,
    enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        return launch_rows<V>("bias_residual_add",
            bias_residual<T>{(T *)x, (const T *)residual, (const T *)bias, cols}, rows, cols,
            cols % V == 0 && vectors_at(x, residual, bias), stream);
    });
}

/* ---- rows of tables ---- */

template <class T> struct embedding_rows {
    T *x;
    const int32_t *tokens;
    const T *table;
    size_t first_row, table_rows, cols;

    /* Below first_row the difference wraps to a large number. */
    __device__ size_t row_of(size_t r) const { return (size_t)tokens[r] - first_row; }

    __device__ bool takes(size_t r) const { return row_of(r) < table_rows; }

    template <int V> __device__ void at(size_t r, size_t c) const
    {
        float value[V];
        load(value, table + row_of(r) * cols + c);
        store(x + r * cols + c, value);
    }
};

enum status embedding_forward_cuda(void *x, const int32_t *tokens, const void *table,
    enum dtype dtype, size_t first_row, size_t table_rows, size_t rows, size_t cols,
    cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        return launch_rows<V>("embedding_forward",
            embedding_rows<T>{(T *)x, tokens, (const T *)table, first_row, table_rows, cols}, rows,
            cols, cols % V == 0 && vectors_at(x, table), stream);
    });
}

template <class T> struct positions_adding {
    T *x;
    const T *table;
    size_t t, cols;

    __device__ bool takes(size_t) const { return true; }

    template <int V> __device__ void at(size_t r, size_t c) const
    {
        float sum[V], position[V];
        load(sum, x + r * cols + c);
        load(position, table + r % t * cols + c);
        UNROLL
        for (int j = 0; j < V; j++) sum[j] += position[j];
        store(x + r * cols + c, sum);
    }
};

enum status positions_forward_cuda(void *x, const void *table, enum dtype dtype, size_t batch,
    size_t t, size_t cols, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        return launch_rows<V>("positions_forward",
            positions_adding<T>{(T *)x, (const T *)table, t, cols}, batch * t, cols,
            cols % V == 0 && vectors_at(x, table), stream);
    });
}

/* One thread sums its columns of one position over the batch, in order. */
template <class T> struct positions_summing {
    float *d_table;
    const T *d_x;
    size_t batch, t, cols;

    __device__ bool takes(size_t) const { return true; }

    template <int V> __device__ void at(size_t position, size_t c) const
    {
        float sum[V] = {}, part[V];
        for (size_t b = 0; b < batch; b++) {
            load(part, d_x + (b * t + position) * cols + c);
            UNROLL
            for (int j = 0; j < V; j++) sum[j] += part[j];
        }
        load(part, d_table + position * cols + c);
        UNROLL
        for (int j = 0; j < V; j++) sum[j] += part[j];
        store(d_table + position * cols + c, sum);
    }
};

enum status positions_backward_cuda(float *d_table, const void *d_x, enum dtype dtype, size_t batch,
    size_t t, size_t cols, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        return launch_rows<V>("positions_backward",
            positions_summing<T>{d_table, (const T *)d_x, batch, t, cols}, t, cols,
            cols % V == 0 && vectors_at(d_table, d_x), stream);
    });
}
