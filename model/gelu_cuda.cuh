/* gelu_cuda: GELU of one number, tanh form, and its derivative; see ops_host.c for the formulas. */
#ifndef MODEL_GELU_CUDA_CUH
#define MODEL_GELU_CUDA_CUH

#include "verbs/kernel.cuh"

/* (1 + tanh(u))/2 = 1/(1 + exp(−2u)), u = √(2/π)·(x + 0.044715 x³). */
__device__ __forceinline__ float gelu_gate(float x)
{
    return 1.0f / (1.0f + expf(-2.0f * 0.7978845608f * (x + 0.044715f * x * x * x)));
}

/* d gelu(x) / dx */
__device__ __forceinline__ float gelu_slope(float x)
{
    float gate = gelu_gate(x), rest = 1.0f - gate;
    if (gate * rest == 0.0f) return gate; /* far out x² may be infinite, and 0 · ∞ is no number */
    float u_slope = 2.0f * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x); /* of 2u */
    return gate + x * gate * rest * u_slope;
}

#endif
