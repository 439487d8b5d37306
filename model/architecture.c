/* architecture: see architecture.h. Invariant: what a device does is behind the table of operations
 * (I7); no bit of a turn is libm's. */
#include "model/architecture.h"

#include <math.h>

#include "model/portable_math.h"

/* ---- GPT-2 ---- */

static void gpt2_norm_forward(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, size_t rows, size_t cols,
    const struct ops_context *context)
{
    context->ops->layernorm_forward(out, mean, rstd, in, weight, bias, rows, cols, context);
}

static void gpt2_norm_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const float *mean, const float *rstd, const void *weight, size_t rows,
    size_t cols, const struct ops_context *context)
{
    context->ops->layernorm_backward(
        d_in, d_weight, d_bias, d_out, in, mean, rstd, weight, rows, cols, context);
}

static void gpt2_hidden_forward(void *out, void *fc, const void *in, const void *weight,
    const void *bias, size_t rows, size_t in_cols, size_t hidden, const struct ops_context *context)
{
    context->ops->linear_forward(out, fc, in, weight, bias, rows, in_cols, hidden, context);
}

static void gpt2_hidden_backward(void *d_fc, void *scratch, float *d_weight, float *d_bias,
    const void *d_out, const void *out, const void *fc, const void *weight, size_t rows,
    size_t hidden, size_t out_cols, const struct ops_context *context)
{
    (void)scratch;
    context->ops->linear_backward(
        d_fc, d_weight, d_bias, d_out, out, fc, weight, rows, hidden, out_cols, context);
}

/* ---- Llama ---- */

static void llama_norm_forward(void *out, float *mean, float *rstd, const void *in,
    const void *weight, const void *bias, size_t rows, size_t cols,
    const struct ops_context *context)
{
    (void)mean, (void)bias;
    context->ops->rmsnorm_forward(out, rstd, in, weight, rows, cols, context);
}

static void llama_norm_backward(void *d_in, float *d_weight, float *d_bias, const void *d_out,
    const void *in, const float *mean, const float *rstd, const void *weight, size_t rows,
    size_t cols, const struct ops_context *context)
{
    (void)d_bias, (void)mean;
    context->ops->rmsnorm_backward(d_in, d_weight, d_out, in, rstd, weight, rows, cols, context);
}

static void llama_hidden_forward(void *out, void *fc, const void *in, const void *weight,
    const void *bias, size_t rows, size_t in_cols, size_t hidden, const struct ops_context *context)
{
    context->ops->linear_forward(fc, NULL, in, weight, bias, rows, in_cols, 2 * hidden, context);
    context->ops->swiglu_forward(out, fc, rows, hidden, context);
}

static void llama_hidden_backward(void *d_fc, void *scratch, float *d_weight, float *d_bias,
    const void *d_out, const void *out, const void *fc, const void *weight, size_t rows,
    size_t hidden, size_t out_cols, const struct ops_context *context)
{
    context->ops->linear_backward(
        scratch, d_weight, d_bias, d_out, out, NULL, weight, rows, hidden, out_cols, context);
    context->ops->swiglu_backward(d_fc, scratch, fc, rows, hidden, context);
}

const struct architecture_table *architecture_table(enum architecture architecture)
{
    static const struct architecture_table gpt2 = {
        .biases = true,
        .turns = false,
        .fc_parts = 1,
        .norm_forward = gpt2_norm_forward,
        .norm_backward = gpt2_norm_backward,
        .hidden_forward = gpt2_hidden_forward,
        .hidden_backward = gpt2_hidden_backward,
    };
    static const struct architecture_table llama = {
        .biases = false,
        .turns = true,
        .fc_parts = 2,
        .norm_forward = llama_norm_forward,
        .norm_backward = llama_norm_backward,
        .hidden_forward = llama_hidden_forward,
        .hidden_backward = llama_hidden_backward,
    };
    return architecture == ARCHITECTURE_LLAMA ? &llama : &gpt2;
}

void architecture_turns(float *turns, size_t t, const struct model_config *config)
{
    size_t half = (size_t)(config->channels / config->heads) / 2;
    double log_base = portable_log(model_rotary_base(config));
    for (size_t i = 0; i < half; i++) {
        double frequency = portable_exp(-log_base * (double)i / (double)half);
        for (size_t position = 0; position < t; position++) {
            double whole = (double)position * frequency * 0.15915494309189534, cosine,
                   sine; /* 1/2π */
            portable_turn(&cosine, &sine, whole - floor(whole));
            turns[position * 2 * half + i] = (float)cosine;
            turns[position * 2 * half + half + i] = (float)sine;
        }
    }
}
