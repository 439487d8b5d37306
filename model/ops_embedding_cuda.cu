/* ops_embedding_cuda: the gradient of the embedding, without atomics: every row of the table that
 * occurs is added up by one block, in the order of the tokens.
 *
 *   block r (128 threads), r < rows:    token[r] seen before r?  → nothing to do
 *                                       else sum d_x of r and of every later row of the same token
 *
 * The tokens are searched 512 at a time, four per thread; what is found is a bit mask in shared
 * memory, which all threads then walk, each with V columns of the sum in registers.
 *
 * Bytes per element: s of d_x, each once; 8 of each row of the table that occurs. Searching reads
 * 4 · rows² / 2 bytes at most, from cache: a block stops at the first earlier occurrence.
 * Invariant I2: one order of summation, that of the tokens.
 */
#include "model/ops_cuda.h"

#include "verbs/kernel_vector.cuh"

#define SEARCH_THREADS 128
#define SEARCH_EACH    4
#define SEARCH_TOKENS  (SEARCH_THREADS * SEARCH_EACH)
#define SEARCH_WORDS   (SEARCH_TOKENS / 32)

/* Which of the SEARCH_TOKENS tokens from `begin` on, but below end, are `wanted`: bit l of word
 * 4·k + w is token begin + 128·k + 32·w + l. The same on all threads on return. */
__device__ __forceinline__ void search(uint32_t (&found)[SEARCH_WORDS], const int32_t *tokens,
    size_t begin, size_t end, int32_t wanted)
{
    unsigned thread = threadIdx.x;
    UNROLL
    for (unsigned k = 0; k < SEARCH_EACH; k++) {
        size_t i = begin + k * SEARCH_THREADS + thread;
        uint32_t mask = __ballot_sync(0xffffffffu, i < end && tokens[i] == wanted);
        if (thread % 32 == 0) found[k * (SEARCH_THREADS / 32) + thread / 32] = mask;
    }
    __syncthreads();
}

/* The whole block agrees. */
__device__ __forceinline__ bool occurs_before(
    uint32_t (&found)[SEARCH_WORDS], const int32_t *tokens, size_t r)
{
    for (size_t begin = 0; begin < r; begin += SEARCH_TOKENS) {
        search(found, tokens, begin, r, tokens[r]);
        uint32_t any = 0;
        for (int w = 0; w < SEARCH_WORDS; w++) any |= found[w];
        __syncthreads(); /* all have read before the next search writes */
        if (any != 0) return true;
    }
    return false;
}

template <int V, class T>
__global__ void __launch_bounds__(SEARCH_THREADS)
    embedding_backward_kernel(float *d_table, const int32_t *tokens, const T *d_x, size_t first_row,
        size_t table_rows, size_t rows, size_t cols)
{
    __shared__ uint32_t found[SEARCH_WORDS];
    size_t own = blockIdx.x, row = (size_t)tokens[own] - first_row;
    if (row >= table_rows || occurs_before(found, tokens, own)) return;
    /* Wide rows are added up strip by strip. */
    for (size_t strip = 0; strip < cols; strip += SEARCH_THREADS * V) {
        size_t c = strip + threadIdx.x * V;
        float sum[V] = {}, part[V];
        for (size_t begin = own; begin < rows; begin += SEARCH_TOKENS) {
            search(found, tokens, begin, rows, tokens[own]);
            for (int w = 0; w < SEARCH_WORDS && c < cols; w++) {
                for (uint32_t mask = found[w]; mask != 0; mask &= mask - 1) {
                    size_t r = begin + (size_t)w * 32 + lowest_bit(mask);
                    load(part, d_x + r * cols + c);
                    UNROLL
                    for (int j = 0; j < V; j++) sum[j] += part[j];
                }
            }
            __syncthreads();
        }
        if (c >= cols) continue;
        load(part, d_table + row * cols + c);
        UNROLL
        for (int j = 0; j < V; j++) sum[j] += part[j];
        store(d_table + row * cols + c, sum);
    }
}

enum status embedding_backward_cuda(float *d_table, const int32_t *tokens, const void *d_x,
    enum dtype dtype, size_t first_row, size_t table_rows, size_t rows, size_t cols,
    cudaStream_t stream)
{
    if (rows == 0 || table_rows == 0) return STATUS_OK;
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int V = 16 / sizeof(T);
        bool vectors = cols % V == 0 && vectors_at(d_table, d_x);
        auto kernel = vectors ? embedding_backward_kernel<V, T> : embedding_backward_kernel<1, T>;
        return launch_status(
            gpu_launch(kernel, dim3((unsigned)rows), dim3(SEARCH_THREADS), 0, stream, d_table,
                tokens, (const T *)d_x, first_row, table_rows, rows, cols),
            "embedding_backward");
    });
}
