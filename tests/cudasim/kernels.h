/* kernels: those that the simulator is tested with, right and wrong ones. Each call is one
 * launch. */
#ifndef CUDASIM_KERNELS_H
#define CUDASIM_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- right ---- */

/* Every thread writes its linear number in the grid; nothing waits. */
cudaError_t kernel_number(uint32_t *out, dim3 grid, dim3 block, cudaStream_t stream);
/* y (count) += a · x (count) */
cudaError_t kernel_axpy(float *y, const float *x, float a, size_t count, cudaStream_t stream);
/* *out = Σ x (count), by shuffles, shared memory and barriers; blocks in turn add theirs.
 * forget: leave out the barrier between the warps' sums and their use. */
cudaError_t kernel_sum(float *out, const float *x, size_t count, int blocks, int threads,
    int forget, cudaStream_t stream);
/* out (rows, cols) = in (cols, rows)ᵀ, by tiles in dynamic shared memory of dynamic_bytes. */
cudaError_t kernel_transpose(float *out, const float *in, size_t rows, size_t cols,
    size_t dynamic_bytes, cudaStream_t stream);
/* c (16, 8) = a (16, 16) · b (16, 8), of bfloat16 or float16 in memory, by one warp: fragments
 * by matrix loads. */
cudaError_t kernel_product(
    float *c, const void *a, const void *b, int is_bfloat16, cudaStream_t stream);
/* A result of each operation that a warp or block votes with: out (blocks · threads · 8). */
cudaError_t kernel_votes(uint32_t *out, int threads, cudaStream_t stream);
/* out (count) = in (count) through shared memory by asynchronous copies; count ≤ 1024, a
 * multiple of 4. forget: do not wait for them. */
cudaError_t kernel_copy_async(
    uint32_t *out, const uint32_t *in, int count, int forget, cudaStream_t stream);
/* Adds to *value by all kinds of atomics: from all threads of all blocks. */
cudaError_t kernel_atomics(
    uint32_t *value, float *sum, int blocks, int threads, cudaStream_t stream);

/* x (threads) += 1, by each of the blocks, and nothing orders them: a race. */
cudaError_t kernel_blocks_race(float *x, int blocks, int threads, cudaStream_t stream);

/* Two sides of a flag. post: data (count) = value + i, then *flag = value, released (relaxed:
 * not). take: waits until *flag is value, then out (count) = data. */
cudaError_t kernel_post(
    uint64_t *flag, uint32_t *data, uint32_t value, int count, int relaxed, cudaStream_t stream);
cudaError_t kernel_take(uint32_t *out, const uint64_t *flag, const uint32_t *data, uint32_t value,
    int count, cudaStream_t stream);
/* Ping and pong over flag lines, `turns` times; blocks 0 and 1. */
cudaError_t kernel_lines(void *line, uint32_t *turns_done, int turns, cudaStream_t stream);
/* As many blocks as are given wait for each other: they must all be resident. */
cudaError_t kernel_rendezvous(uint32_t *arrived, uint32_t *left, int blocks, cudaStream_t stream);

/* ---- wrong ---- */

/* p[index] = 1 by one thread. */
cudaError_t kernel_write(float *p, ptrdiff_t index, cudaStream_t stream);
struct kernel_pointers {
    int count;
    float *deep; /* in a struct, where no launch sees it by its type */
};
cudaError_t kernel_write_deep(struct kernel_pointers pointers, cudaStream_t stream);
cudaError_t kernel_misaligned(float *p, cudaStream_t stream); /* 16 bytes at p + 1 */
cudaError_t kernel_divergent(float *out, int threads, cudaStream_t stream);
cudaError_t kernel_lonely(
    float *out, cudaStream_t stream); /* one thread waits for one that waits for all */
cudaError_t kernel_wrong_mask(float *out, cudaStream_t stream);
cudaError_t kernel_uninitialised(
    float *out, cudaStream_t stream); /* shared memory that nobody wrote */
cudaError_t kernel_trap(int how, cudaStream_t stream);
cudaError_t kernel_overflow(int *out, int depth, cudaStream_t stream); /* of the stack */

#ifdef __cplusplus
}
#endif
#endif
