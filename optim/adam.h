/* adam: AdamW on a flat range of numbers. Knows no tensors: the caller says per range whether weights decay.
 *
 *   m = β₁m + (1−β₁)g    v = β₂v + (1−β₂)g²    w −= lr · ( m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε) + decay·w )
 *
 * source: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2. cost: 7 floats of
 * traffic per element. Element-wise: the bits of an element do not depend on where ranges are cut (I3), nor on
 * the device: CUDA rounds every operation as the host does.
 */
#ifndef OPTIM_ADAM_H
#define OPTIM_ADAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs/device.h"
#include "verbs/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

struct adam_config {
    float beta1, beta2, epsilon;
    float weight_decay;
};

/* β₁ 0.9, β₂ 0.95, ε 1e-8, decay 0.1 */
struct adam_config adam_config_default(void);

/* weights, m, v, gradients: count floats each, no overlap. gradient_scale multiplies gradients first
 * (clipping). t counts from 1. decay: weight_decay of the config or 0. Not collective; any thread. */
void adam_step(float *weights, float *m, float *v, const float *gradients, size_t count, float lr,
    float gradient_scale, float decay, uint64_t t, const struct adam_config *config);

/* ---- on any device ---- */

struct adam_ops;

/* Where the operations below run. */
struct adam_context {
    const struct adam_ops *ops;
    struct device *device;
    struct stream *stream; /* that operations are queued on; NULL where !ops->queued */
    void *scratch;         /* ops->scratch_bytes of the device's memory; one stream's at a time */
};

/* count elements of everything; no overlap. */
struct adam_range {
    float *weights; /* in place; NULL: none are kept, and lent itself is updated */
    float *m, *v;   /* in place */
    const void *gradients;
    enum dtype gradients_dtype; /* float32, bfloat16 or float16 */
    void *lent;                 /* = round(weights); NULL: not wanted */
    enum dtype lent_dtype;      /* bfloat16 or float16 */
    size_t count;
};

struct adam_update {
    float lr;
    float gradient_scale; /* multiplies gradients first */
    float decay;          /* weight_decay of the config, or 0 */
    uint64_t t;           /* from 1 */
    struct adam_config config;
    /* lent of bfloat16 is rounded up or down by chance, by how near each is, so that updates smaller
     * than half a digit are not lost on average. The chance is a hash of (seed, t, index). */
    bool stochastic;
    uint64_t seed;
    uint64_t first; /* index of the range's first element among all that are updated */
};

/* The host's step of a range with master weights whose gradients and lent weights are bfloat16,
 * rounded to nearest: in one pass, with the bits of widening, adam_step() and rounding. */
void adam_step_bfloat16(const struct adam_range *range, const struct adam_update *update);

/* What a device brings: on ranges of numbers of its memory, at any address that the dtype allows.
 * Queued on context->stream, and the calls return; what goes wrong is the stream's failure. On the
 * host there is no stream, and all is done on return. Threads: any, one at a time per stream. All
 * members are required. Element-wise operations have the host's bits. */
struct adam_ops {
    const char *name; /* "host" */
    bool queued;
    size_t scratch_bytes; /* a constant */

    /* adam_step() of float32(gradients), and the rounded weights with it. */
    void (*step)(const struct adam_range *range, const struct adam_update *update,
        const struct adam_context *context);

    /* out (count) of dtype = round(in); dtype is bfloat16 or float16. update: NULL, or that of the step
     * that made `in`: where it rounds by chance, out is what that step has lent. */
    void (*narrow)(void *out, const float *in, enum dtype dtype, size_t count,
        const struct adam_update *update, const struct adam_context *context);

    /* sum (count) = round(float32(sum) + float32(x)), both of dtype, float32 among them. */
    void (*add)(void *sum, const void *x, enum dtype dtype, size_t count,
        const struct adam_context *context);

    /* *sum = Σ x² of x (count) of dtype, float32 among them, in double and in the order of norm.h,
     * which is the same on every device; not finite where x is not. count may be 0. sum: host
     * memory, pinned where the device is not the host. */
    void (*squares)(double *sum, const void *x, enum dtype dtype, size_t count,
        const struct adam_context *context);

    /* x (count) of dtype, float32 among them, = round(float32(x) · factor), and *not_finite = 1 if
     * one is then an infinity or a NaN, else it is left alone. not_finite: the device's memory. */
    void (*scale)(void *x, uint32_t *not_finite, enum dtype dtype, float factor, size_t count,
        const struct adam_context *context);
};

extern const struct adam_ops adam_ops_host;

/* The table of a device; device NULL: the host's. NULL: its module was built without one. */
const struct adam_ops *adam_ops_of(const struct device *device);

#ifdef __cplusplus
}
#endif
#endif
