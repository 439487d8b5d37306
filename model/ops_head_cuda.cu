/* ops_head_cuda: output head and cross-entropy in one, by blocks of vocabulary rows and tiles of
 * tokens, as ops_head_host.c does it.
 *
 * A tile of logits is float32, however narrow the operands: it is as large as a device's second
 * cache holds, and is made, read and replaced there:
 *
 *   forward    logits = x · weightᵀ     one block of 256 threads per token: max, sum, target
 *   backward   logits again             the same grid: dlogit in place, in the dtype of x
 *              d_x += dlogit · weight   d_weight += dlogitᵀ · x
 *
 *   row of a tile   │ f0 f1 f2 f3 f4 f5 f6 f7 │     stride: count rounded up to 8 floats
 *   in place, 16 bit│ d0d1 d2d3 d4d5 d6d7 ··· │     the same bytes, twice as many elements
 *
 * A dlogit is written at half the place of its logit: into what this step, or one before it, has
 * read. Bytes per logit: forward 4 (written by the product, read here from cache), backward 4 + s.
 * Loss: 16 bytes per token.
 */
#include "model/ops_cuda.h"

#include "verbs/kernel_vector.cuh"

#define HEAD_TILE_BYTES    ((size_t)32 << 20)
#define HEAD_TILE_ROWS_MIN 64
#define HEAD_THREADS       256

static size_t stride_of(size_t count)
{
    return (count + 7) / 8 * 8;
}

static size_t tile_rows(size_t count, size_t rows)
{
    size_t tile = HEAD_TILE_BYTES / sizeof(float) / stride_of(count > 0 ? count : 1);
    if (tile < HEAD_TILE_ROWS_MIN) tile = HEAD_TILE_ROWS_MIN;
    size_t tiles = (rows + tile - 1) / tile;
    return tiles > 1 ? (rows + tiles - 1) / tiles : rows;
}

size_t head_scratch_bytes_cuda(size_t count, size_t rows)
{
    return tile_rows(count, rows) * stride_of(count) * sizeof(float);
}

/* ---- statistics ---- */

struct statistics_begin {
    float *max, *sum, *target_logit;

    template <int V> __device__ void at(size_t r) const
    {
        max[r] = -INFINITY;
        sum[r] = 0.0f;
        target_logit[r] = 0.0f;
    }
};

enum status head_begin_cuda(
    float *max, float *sum, float *target_logit, size_t rows, cudaStream_t stream)
{
    return launch_flat<1>(
        "head_begin", statistics_begin{max, sum, target_logit}, rows, false, stream);
}

/* Σ or the maximum over the block's warps, of numbers that each warp agrees on. */
__device__ __forceinline__ float block_sum(float (&part)[HEAD_THREADS / 32], float x)
{
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < HEAD_THREADS / 32; w++) sum += part[w];
    return sum;
}

__device__ __forceinline__ float block_max(float (&part)[HEAD_THREADS / 32], float x)
{
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    float max = part[0];
    for (int w = 1; w < HEAD_THREADS / 32; w++) max = fmaxf(max, part[w]);
    return max;
}

/* One token per block. A thread keeps a maximum and a sum with respect to it of its own columns. */
template <int V>
__global__ void __launch_bounds__(HEAD_THREADS)
    head_forward_kernel(float *max, float *sum, float *target_logit, const float *logits,
        const int32_t *targets, size_t first_row, size_t count, size_t stride)
{
    __shared__ float max_part[HEAD_THREADS / 32], sum_part[HEAD_THREADS / 32];
    size_t r = blockIdx.x;
    if (targets[r] < 0) return;
    const float *row = logits + r * stride;
    float own_max = -INFINITY, own_sum = 0.0f;
    for (size_t c = (size_t)threadIdx.x * V; c < count; c += HEAD_THREADS * V) {
        float x[V], top = own_max;
        load(x, row + c);
        UNROLL
        for (int j = 0; j < V; j++) top = fmaxf(top, x[j]);
        own_sum *= expf(own_max - top);
        UNROLL
        for (int j = 0; j < V; j++) own_sum += expf(x[j] - top);
        own_max = top;
    }
    float top = fmaxf(block_max(max_part, warp_max(own_max)), max[r]);
    float total = block_sum(sum_part, warp_sum(own_sum * expf(own_max - top)));
    if (threadIdx.x > 0) return;
    size_t target = (size_t)targets[r] - first_row; /* wraps to a large number below first_row */
    if (target < count) target_logit[r] = row[target];
    sum[r] = sum[r] * expf(max[r] - top) + total;
    max[r] = top;
}

/* A tile of logits of block.count columns. */
static enum status tile_logits(float *logits, const void *x, struct head_rows block,
    enum dtype dtype, size_t rows, size_t cols, const struct blas_cuda *blas, cudaStream_t stream)
{
    struct operand_cuda a = {x, cols, false}, b = {block.weight, cols, true};
    return product_cuda(logits, DTYPE_FLOAT32, stride_of(block.count), 0.0f, a, b, dtype, rows,
        block.count, cols, blas, stream);
}

static const void *row_at(const void *x, size_t row, size_t cols, enum dtype dtype)
{
    return (const char *)x + row * cols * dtype_bytes(dtype);
}

enum status head_forward_cuda(float *max, float *sum, float *target_logit, void *scratch,
    const void *x, const int32_t *targets, struct head_rows block, enum dtype dtype, size_t rows,
    size_t cols, const struct blas_cuda *blas, cudaStream_t stream)
{
    if (block.count == 0) return STATUS_OK;
    float *logits = (float *)scratch;
    size_t tile = tile_rows(block.count, rows), stride = stride_of(block.count);
    bool vectors = block.count % 4 == 0 && vectors_at(logits);
    auto kernel = vectors ? head_forward_kernel<4> : head_forward_kernel<1>;
    for (size_t r = 0; r < rows; r += tile) {
        size_t n = rows - r < tile ? rows - r : tile;
        TRY(tile_logits(logits, row_at(x, r, cols, dtype), block, dtype, n, cols, blas, stream));
        TRY(launch_status(gpu_launch(kernel, dim3((unsigned)n), dim3(HEAD_THREADS), 0, stream,
                              max + r, sum + r, target_logit + r, (const float *)logits,
                              targets + r, block.first_row, block.count, stride),
            "head_forward"));
    }
    return STATUS_OK;
}

struct statistics_rescale {
    float *sum;
    const float *own_max, *max;

    template <int V> __device__ void at(size_t r) const
    {
        if (sum[r] > 0.0f) sum[r] *= expf(own_max[r] - max[r]);
    }
};

enum status head_rescale_cuda(
    float *sum, const float *own_max, const float *max, size_t rows, cudaStream_t stream)
{
    return launch_flat<1>(
        "head_rescale", statistics_rescale{sum, own_max, max}, rows, false, stream);
}

/* ---- loss ---- */

/* One block: thread i adds up rows i, i + 256, …, and the threads' sums are folded in halves. */
__global__ void __launch_bounds__(HEAD_THREADS)
    head_loss_kernel(double *loss, float *lse, const float *max, const float *sum,
        const float *target_logit, const int32_t *targets, size_t rows)
{
    __shared__ double part[HEAD_THREADS];
    double total = 0.0;
    for (size_t r = threadIdx.x; r < rows; r += HEAD_THREADS) {
        if (targets[r] < 0) continue;
        lse[r] = max[r] + logf(sum[r]);
        total += (double)lse[r] - (double)target_logit[r];
    }
    part[threadIdx.x] = total;
    for (unsigned width = HEAD_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
    }
    if (threadIdx.x == 0) *loss = part[0];
}

enum status head_loss_cuda(double *loss, float *lse, const float *max, const float *sum,
    const float *target_logit, const int32_t *targets, size_t rows, cudaStream_t stream)
{
    return launch_status(gpu_launch(head_loss_kernel, dim3(1), dim3(HEAD_THREADS), 0, stream, loss,
                             lse, max, sum, target_logit, targets, rows),
        "head_loss");
}

/* ---- backward ---- */

/* logits in, scale · (softmax − [target]) out, as T. Every step of the block reads, waits for all,
 * then writes. */
template <int V, class T>
__global__ void __launch_bounds__(HEAD_THREADS)
    head_backward_kernel(float *logits, const float *lse, const int32_t *targets, float scale,
        size_t first_row, size_t count, size_t stride)
{
    size_t r = blockIdx.x, target = (size_t)targets[r] - first_row;
    float *row = logits + r * stride, shift = lse[r];
    T *out = reinterpret_cast<T *>(row);
    bool counted = targets[r] >= 0;
    for (size_t begin = 0; begin < count; begin += HEAD_THREADS * V) {
        size_t c = begin + (size_t)threadIdx.x * V;
        float x[V];
        if (c < count) load(x, row + c);
        if (sizeof(T) < sizeof(float)) __syncthreads();
        if (c >= count) continue;
        UNROLL
        for (int j = 0; j < V; j++) {
            float p = expf(x[j] - shift) - (c + j == target ? 1.0f : 0.0f);
            x[j] = counted ? scale * p : 0.0f;
        }
        store(out + c, x);
    }
}

template <class T>
static enum status tile_gradient(float *logits, const float *lse, const int32_t *targets,
    float scale, struct head_rows block, size_t rows, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    size_t stride = stride_of(block.count);
    bool vectors = block.count % V == 0 && vectors_at(logits);
    auto kernel = vectors ? head_backward_kernel<V, T> : head_backward_kernel<1, T>;
    return launch_status(gpu_launch(kernel, dim3((unsigned)rows), dim3(HEAD_THREADS), 0, stream,
                             logits, lse, targets, scale, block.first_row, block.count, stride),
        "head_backward");
}

enum status head_backward_cuda(void *d_x, float *d_weight, void *scratch, const void *x,
    const float *lse, const int32_t *targets, float scale, struct head_rows block, enum dtype dtype,
    size_t rows, size_t cols, const struct blas_cuda *blas, cudaStream_t stream)
{
    if (block.count == 0) return STATUS_OK;
    float *logits = (float *)scratch;
    size_t tile = tile_rows(block.count, rows);
    size_t stride = stride_of(block.count) * (sizeof(float) / dtype_bytes(dtype));
    struct operand_cuda d = {logits, stride, false}, d_transposed = {logits, stride, true};
    struct operand_cuda weight = {block.weight, cols, false};
    for (size_t r = 0; r < rows; r += tile) {
        size_t n = rows - r < tile ? rows - r : tile;
        const void *rows_x = row_at(x, r, cols, dtype);
        struct operand_cuda tile_x = {rows_x, cols, false};
        TRY(tile_logits(logits, rows_x, block, dtype, n, cols, blas, stream));
        TRY(with_float_type(dtype, [&](auto zero) {
            return tile_gradient<decltype(zero)>(
                logits, lse + r, targets + r, scale, block, n, stream);
        }));
        TRY(product_cuda((void *)(uintptr_t)row_at(d_x, r, cols, dtype), dtype, cols, 1.0f, d,
            weight, dtype, n, cols, block.count, blas, stream));
        TRY(product_cuda(d_weight, DTYPE_FLOAT32, cols, 1.0f, d_transposed, tile_x, dtype,
            block.count, cols, n, blas, stream));
    }
    return STATUS_OK;
}
