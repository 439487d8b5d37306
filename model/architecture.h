/* architecture: what GPT-2 and Llama compute differently. The rest of a model is written once, in
 * block.c and model.c, where what an architecture lacks is NULL: biases, means, turns.
 *
 *                 GPT-2                         Llama
 *   norm          layer norm                    RMS norm
 *   hidden        gelu(fc)                      silu(gate) ∘ value; fc makes gates, then values
 *   positions     wpe, added to the embedding   queries and keys are turned: architecture_turns()
 */
#ifndef MODEL_ARCHITECTURE_H
#define MODEL_ARCHITECTURE_H

#include <stdbool.h>

#include "model/ops.h"
#include "model/params.h"

/* All functions are required. Shapes as in ops.h. */
struct architecture_table {
    bool biases;     /* linear layers and norms have biases, and norms a mean */
    bool turns;      /* positions are rotary */
    size_t fc_parts; /* columns of fc, per column of hidden */

    void (*norm_forward)(void *out, float *mean, float *rstd, const void *in, const void *weight,
        const void *bias, size_t rows, size_t cols, const struct ops_context *context);
    void (*norm_backward)(void *d_in, float *d_weight, float *d_bias, const void *d_out,
        const void *in, const float *mean, const float *rstd, const void *weight, size_t rows,
        size_t cols, const struct ops_context *context);

    /* fc (rows, fc_parts · hidden) = in (rows, in_cols) · weightᵀ + bias, kept for backward; out
     * (rows, hidden). */
    void (*hidden_forward)(void *out, void *fc, const void *in, const void *weight,
        const void *bias, size_t rows, size_t in_cols, size_t hidden,
        const struct ops_context *context);
    /* Through the layer behind it, out · weightᵀ, weight (out_cols, hidden): d_fc =, d_weight +=,
     * d_bias +=; d_out (rows, out_cols). scratch (rows, hidden): anything. */
    void (*hidden_backward)(void *d_fc, void *scratch, float *d_weight, float *d_bias,
        const void *d_out, const void *out, const void *fc, const void *weight, size_t rows,
        size_t hidden, size_t out_cols, const struct ops_context *context);
};

const struct architecture_table *architecture_table(enum architecture architecture);

/* turns (t, 2, head_cols/2), on the host: cosines, then sines, of position · base^(−2i/head_cols).
 * The same bits on every machine. */
void architecture_turns(float *turns, size_t t, const struct model_config *config);

#endif
