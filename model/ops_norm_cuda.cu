/* ops_norm_cuda: layer norm, RMS norm, and sums over rows. Where a kernel is not CENTERED, the norm
 * is RMS norm: there is no mean, and no bias.
 *
 * A warp takes a row; its lanes take V neighbouring columns each, 32·V apart. s = bytes of an
 * activation:
 *
 *   forward    (rows / 4 blocks, 128 threads)   2s bytes per element: the row is read three times,
 *              once from memory (mean, then variance about it, then the result)
 *   backward   4s bytes per element: d_out, in, d_in in; d_in out
 *
 * Sums over rows (d_weight, d_bias) are made in two steps without atomics: a block adds up its rows
 * into `partial`, then one thread per column adds the blocks' parts in order:
 *
 *   rows        ┌ warp 0: rows 0, w, 2w …  ┐
 *   of block b  │ warp 1: rows 1, w+1 …    ├→ Σ over warps → partial[b]     Σ over b → d_weight
 *               └ …    (in shared memory)  ┘
 *
 * Invariant I2: rows per block are a function of rows and columns alone.
 */
#include "model/ops_cuda.h"

#include "verbs/kernel_vector.cuh"

#define NORM_WARPS     4
#define PARTIAL_BLOCKS 256  /* at most; each with a row of partial sums */
#define PARTIAL_ROWS   32   /* a block has at least so many rows */
#define STRIP_COLS     2048 /* columns whose sums a block of layer norm's backward keeps */
#define SHARED_BYTES   (48 << 10)
#define SUM_COLS       32 /* threads across a block of column_sums, each with V columns */
#define SUM_ROWS       8  /* and down */

static const float norm_epsilon = 1e-5f;

size_t partial_elements_cuda(size_t cols)
{
    return PARTIAL_BLOCKS * cols;
}

/* Rows of a block whose sums become one row of partial. */
static size_t rows_per_block(size_t rows)
{
    size_t share = (rows + PARTIAL_BLOCKS - 1) / PARTIAL_BLOCKS;
    return share > PARTIAL_ROWS ? share : PARTIAL_ROWS;
}

/* ---- forward ---- */

template <int V, bool CENTERED, class T>
__global__ void __launch_bounds__(NORM_WARPS * 32)
    norm_forward_kernel(T *out, float *mean, float *rstd, const T *in, const T *weight,
        const T *bias, size_t rows, size_t cols, float epsilon)
{
    size_t stride = (size_t)gridDim.x * NORM_WARPS;
    unsigned lane = threadIdx.x;
    for (size_t r = (size_t)blockIdx.x * NORM_WARPS + threadIdx.y; r < rows; r += stride) {
        const T *row = in + r * cols;
        float x[V], scale[V], shift[V] = {}, sum = 0.0f, squares = 0.0f;
        for (size_t c = lane * V; c < cols && CENTERED; c += 32 * V) {
            load(x, row + c);
            UNROLL
            for (int j = 0; j < V; j++) sum += x[j];
        }
        float average = CENTERED ? warp_sum(sum) / (float)cols : 0.0f;
        for (size_t c = lane * V; c < cols; c += 32 * V) {
            load(x, row + c);
            UNROLL
            for (int j = 0; j < V; j++) squares += (x[j] - average) * (x[j] - average);
        }
        float inverse = 1.0f / sqrtf(warp_sum(squares) / (float)cols + epsilon);
        for (size_t c = lane * V; c < cols; c += 32 * V) {
            load(x, row + c);
            load(scale, weight + c);
            if constexpr (CENTERED) load(shift, bias + c);
            UNROLL
            for (int j = 0; j < V; j++) x[j] = (x[j] - average) * inverse * scale[j] + shift[j];
            store(out + r * cols + c, x);
        }
        if (lane == 0 && CENTERED) mean[r] = average;
        if (lane == 0) rstd[r] = inverse;
    }
}

template <bool CENTERED>
static enum status norm_forward(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, enum dtype dtype, size_t rows, size_t cols,
    cudaStream_t stream)
{
    if (rows == 0) return STATUS_OK;
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        bool vectors = cols % V == 0 && vectors_at(out, in, weight, bias);
        auto kernel =
            vectors ? norm_forward_kernel<V, CENTERED, T> : norm_forward_kernel<1, CENTERED, T>;
        dim3 grid(launch_blocks(rows, NORM_WARPS, ROW_BLOCKS_MAX)), block(32, NORM_WARPS);
        return launch_status(
            gpu_launch(kernel, grid, block, 0, stream, (T *)out, mean, rstd, (const T *)in,
                (const T *)weight, (const T *)bias, rows, cols, norm_epsilon),
            CENTERED ? "layernorm_forward" : "rmsnorm_forward");
    });
}

enum status layernorm_forward_cuda(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, enum dtype dtype, size_t rows, size_t cols,
    cudaStream_t stream)
{
    return norm_forward<true>(out, mean, rstd, in, weight, bias, dtype, rows, cols, stream);
}

enum status rmsnorm_forward_cuda(void *out, float *rstd, const void *in, const void *weight,
    enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream)
{
    return norm_forward<false>(out, NULL, rstd, in, weight, NULL, dtype, rows, cols, stream);
}

/* ---- backward ---- */

/* With n = (x − mean)·rstd and g = d_out·weight:  d_in += rstd · (g − avg(g) − n·avg(g·n)).
 * Averages run over the whole row; what is written, and summed over rows, are the block's columns:
 * the strip blockIdx.y. `partial` of block b: (SUMS, cols), sums of d_out·n, then of d_out. Without
 * a mean, avg(g) is not taken away, and the second sum is of a bias that is not there. */
template <bool CENTERED, class T> struct norm_backward {
    static constexpr int SUMS = CENTERED ? 2 : 1;
    T *d_in;
    float *partial;
    const T *d_out, *in;
    const float *mean, *rstd;
    const T *weight;
    size_t rows, cols, rows_per_block, strip_cols;

    struct row_state {
        size_t r;
        float mean, rstd, g_average, dot_average;
    };

    /* The two averages of row r. */
    template <int V> __device__ row_state averages(size_t r) const
    {
        float d[V], x[V], scale[V], g_sum = 0.0f, dot = 0.0f;
        float center = CENTERED ? mean[r] : 0.0f, inverse = rstd[r];
        for (size_t c = threadIdx.x * V; c < cols; c += 32 * V) {
            load(d, d_out + r * cols + c);
            load(x, in + r * cols + c);
            load(scale, weight + c);
            UNROLL
            for (int j = 0; j < V; j++) {
                float g = d[j] * scale[j];
                g_sum += g;
                dot += g * ((x[j] - center) * inverse);
            }
        }
        g_sum = CENTERED ? warp_sum(g_sum) / (float)cols : 0.0f;
        dot = warp_sum(dot) / (float)cols;
        return row_state{r, center, inverse, g_sum, dot};
    }

    /* Columns c … c + V − 1 of the row; w_sum and b_sum are where this warp adds up. */
    template <int V>
    __device__ void columns(const row_state &row, size_t c, float *w_sum, float *b_sum) const
    {
        float d[V], x[V], scale[V], dx[V], dw[V], db[V] = {};
        size_t at = row.r * cols + c;
        load(d, d_out + at);
        load(x, in + at);
        load(scale, weight + c);
        load(dx, d_in + at);
        load(dw, w_sum);
        if constexpr (CENTERED) load(db, b_sum);
        UNROLL
        for (int j = 0; j < V; j++) {
            float n = (x[j] - row.mean) * row.rstd;
            dw[j] += d[j] * n;
            db[j] += d[j];
            dx[j] += row.rstd * (d[j] * scale[j] - row.g_average - n * row.dot_average);
        }
        store(d_in + at, dx);
        store(w_sum, dw);
        if constexpr (CENTERED) store(b_sum, db);
    }
};

template <int V, bool CENTERED, class T>
__global__ void __launch_bounds__(256) norm_backward_kernel(norm_backward<CENTERED, T> o)
{
    DYN_SHARED(float, sums); /* per warp: (SUMS, width) */
    constexpr int SUMS = norm_backward<CENTERED, T>::SUMS;
    size_t begin = blockIdx.y * o.strip_cols;
    size_t width = o.cols - begin < o.strip_cols ? o.cols - begin : o.strip_cols;
    unsigned warps = blockDim.y, lane = threadIdx.x;
    float *w_sum = sums + (size_t)threadIdx.y * SUMS * o.strip_cols, *b_sum = w_sum + o.strip_cols;
    for (size_t c = lane; c < SUMS * o.strip_cols; c += 32) w_sum[c] = 0.0f;
    __syncwarp();
    size_t first = blockIdx.x * o.rows_per_block, last = first + o.rows_per_block;
    if (last > o.rows) last = o.rows;
    for (size_t r = first + threadIdx.y; r < last; r += warps) {
        auto row = o.template averages<V>(r);
        for (size_t c = lane * V; c < width; c += 32 * V)
            o.template columns<V>(row, begin + c, w_sum + c, b_sum + c);
    }
    __syncthreads();
    float *to = o.partial + (size_t)blockIdx.x * SUMS * o.cols;
    for (size_t i = threadIdx.y * 32 + lane; i < SUMS * width; i += warps * 32) {
        size_t which = i / width, c = i % width; /* of weight or of bias */
        float sum = 0.0f;
        for (unsigned w = 0; w < warps; w++) sum += sums[(w * SUMS + which) * o.strip_cols + c];
        to[which * o.cols + begin + c] = sum;
    }
}

/* sum (cols) += Σ over blocks of partial, whose rows are `stride` apart. */
struct partial_adding {
    float *sum;
    const float *partial;
    size_t blocks, stride;

    template <int V> __device__ void at(size_t c) const
    {
        float total[V] = {}, part[V];
        for (size_t b = 0; b < blocks; b++) {
            load(part, partial + b * stride + c);
            UNROLL
            for (int j = 0; j < V; j++) total[j] += part[j];
        }
        load(part, sum + c);
        UNROLL
        for (int j = 0; j < V; j++) total[j] += part[j];
        store(sum + c, total);
    }
};

static enum status add_partial(float *sum, const float *partial, size_t blocks, size_t stride,
    size_t cols, cudaStream_t stream)
{
    return launch_flat<1>(
        "sums over blocks", partial_adding{sum, partial, blocks, stride}, cols, false, stream);
}

/* Warps of a block: as many as have room for their sums. */
static unsigned backward_warps(size_t strip_cols)
{
    size_t warps = SHARED_BYTES / (2 * strip_cols * sizeof(float)); /* RMS norm has one less */
    return (unsigned)(warps < 8 ? warps : 8);
}

template <bool CENTERED>
static enum status norm_backwards(void *d_in, float *d_weight, float *d_bias, float *scratch,
    const void *d_out, const void *in, const float *mean, const float *rstd, const void *weight,
    enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream)
{
    constexpr size_t SUMS = CENTERED ? 2 : 1;
    if (rows == 0) return STATUS_OK;
    size_t per_block = rows_per_block(rows), blocks = (rows + per_block - 1) / per_block;
    size_t strip = cols < STRIP_COLS ? (cols + 3) / 4 * 4 : STRIP_COLS;
    TRY(with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        bool vectors = cols % V == 0 && vectors_at(d_in, d_out, in, weight);
        norm_backward<CENTERED, T> operation = {(T *)d_in, scratch, (const T *)d_out, (const T *)in,
            mean, rstd, (const T *)weight, rows, cols, per_block, strip};
        unsigned warps = backward_warps(strip);
        dim3 grid((unsigned)blocks, (unsigned)((cols + strip - 1) / strip)), block(32, warps);
        auto kernel =
            vectors ? norm_backward_kernel<V, CENTERED, T> : norm_backward_kernel<1, CENTERED, T>;
        return launch_status(gpu_launch(kernel, grid, block, warps * SUMS * strip * sizeof(float),
                                 stream, operation),
            CENTERED ? "layernorm_backward" : "rmsnorm_backward");
    }));
    TRY(add_partial(d_weight, scratch, blocks, SUMS * cols, cols, stream));
    if (!CENTERED) return STATUS_OK;
    return add_partial(d_bias, scratch + cols, blocks, SUMS * cols, cols, stream);
}

enum status layernorm_backward_cuda(void *d_in, float *d_weight, float *d_bias, float *scratch,
    const void *d_out, const void *in, const float *mean, const float *rstd, const void *weight,
    enum dtype dtype, size_t rows, size_t cols, cudaStream_t stream)
{
    return norm_backwards<true>(
        d_in, d_weight, d_bias, scratch, d_out, in, mean, rstd, weight, dtype, rows, cols, stream);
}

enum status rmsnorm_backward_cuda(void *d_in, float *d_weight, float *scratch, const void *d_out,
    const void *in, const float *rstd, const void *weight, enum dtype dtype, size_t rows,
    size_t cols, cudaStream_t stream)
{
    return norm_backwards<false>(
        d_in, d_weight, NULL, scratch, d_out, in, NULL, rstd, weight, dtype, rows, cols, stream);
}

/* ---- sums of columns: s bytes per element ---- */

/* Block (SUM_COLS, SUM_ROWS): each thread V columns of every SUM_ROWS-th row of the block's, then a
 * tree over the threads of a column. */
template <int V, class T>
__global__ void __launch_bounds__(SUM_COLS *SUM_ROWS)
    column_sums_kernel(float *partial, const T *x, size_t rows, size_t cols, size_t rows_per_block)
{
    __shared__ float sums[SUM_ROWS][SUM_COLS * V];
    size_t c = ((size_t)blockIdx.y * SUM_COLS + threadIdx.x) * V;
    size_t first = blockIdx.x * rows_per_block, last = first + rows_per_block;
    if (last > rows) last = rows;
    float sum[V] = {}, part[V];
    if (c < cols) {
        for (size_t r = first + threadIdx.y; r < last; r += SUM_ROWS) {
            load(part, x + r * cols + c);
            UNROLL
            for (int j = 0; j < V; j++) sum[j] += part[j];
        }
    }
    UNROLL
    for (int j = 0; j < V; j++) sums[threadIdx.y][j * SUM_COLS + threadIdx.x] = sum[j];
    for (unsigned height = SUM_ROWS / 2; height > 0; height /= 2) {
        __syncthreads();
        if (threadIdx.y >= height) continue;
        UNROLL
        for (int j = 0; j < V; j++)
            sums[threadIdx.y][j * SUM_COLS + threadIdx.x] +=
                sums[threadIdx.y + height][j * SUM_COLS + threadIdx.x];
    }
    if (threadIdx.y > 0 || c >= cols) return;
    UNROLL
    for (int j = 0; j < V; j++) sum[j] = sums[0][j * SUM_COLS + threadIdx.x];
    store(partial + blockIdx.x * cols + c, sum);
}

enum status column_sums_cuda(float *sum, float *scratch, const void *x, enum dtype dtype,
    size_t rows, size_t cols, cudaStream_t stream)
{
    if (rows == 0 || cols == 0) return STATUS_OK;
    size_t per_block = rows_per_block(rows), blocks = (rows + per_block - 1) / per_block;
    TRY(with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        bool vectors = cols % V == 0 && vectors_at(x, scratch);
        size_t across = SUM_COLS * (vectors ? V : 1);
        dim3 grid((unsigned)blocks, (unsigned)((cols + across - 1) / across));
        auto kernel = vectors ? column_sums_kernel<V, T> : column_sums_kernel<1, T>;
        return launch_status(gpu_launch(kernel, grid, dim3(SUM_COLS, SUM_ROWS), 0, stream, scratch,
                                 (const T *)x, rows, cols, per_block),
            "column_sums");
    }));
    return add_partial(sum, scratch, blocks, cols, cols, stream);
}
