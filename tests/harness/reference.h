/* reference: the model's operations in double precision, written as their definitions read, and derivatives by
 * central differences of them. Slow and plain: the oracle of the float32 operations.
 */
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "model/ops.h"

/* A tensor in both precisions: f and d hold the same numbers; grad is room for derivatives by d. */
struct tensor {
    float *f;
    double *d, *grad;
    size_t count;
};

/* Numbers in [−scale, scale), a function of (seed, index). */
struct tensor tensor_make(size_t count, uint64_t seed, double scale);
void tensor_free(struct tensor *tensor);

/* A 64-bit word from (seed, index). */
uint64_t reference_word(uint64_t seed, uint64_t index);

/* ‖found − expected‖ / ‖expected‖; the norm of found where expected is 0. */
double relative_error(const float *found, const double *expected, size_t count);

/* x->grad = derivative of objective(context), which reads x->d. */
void differentiate(struct tensor *x, double (*objective)(void *context), void *context);

/* Shapes as in model/ops.h. */
void reference_linear(double *out, const double *in, const double *weight, const double *bias, size_t rows,
    size_t in_cols, size_t out_cols);
void reference_layernorm(
    double *out, const double *in, const double *weight, const double *bias, size_t rows, size_t cols);
double reference_gelu(double x);
void reference_rmsnorm(double *out, const double *in, const double *weight, size_t rows, size_t cols);
double reference_silu(double x);
/* qkv in place; column i of a head's first half and of its second turn by positions · base^(−2i/head_cols). */
void reference_rotary(double *qkv, double base, struct attention_size size);
void reference_attention(double *out, const double *qkv, struct attention_size size);
/* Σ over rows with target ≥ 0 of −log softmax(x weightᵀ)[target]. */
double reference_loss(const double *x, const double *weight, const int32_t *targets, size_t rows, size_t cols,
    size_t vocab);

#endif
