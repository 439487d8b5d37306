/* gemm: a matrix product as the device does it, for the interfaces of cuBLAS and cuBLASLt.
 * Matrices are stored by columns. */
#ifndef CUDASIM_GEMM_H
#define CUDASIM_GEMM_H

#include <cublas_v2.h>

namespace cudasim {

/* Elements of float32, bfloat16 or float16. */
struct matrix {
    void *at;
    cudaDataType_t type;
    long long ld, batch_stride; /* elements */
    bool transposed;
};

/* What is done with the product before it is stored; in this order. */
struct epilogue {
    bool adds_bias;      /* d += bias (rows), to every column */
    bool gelu;           /* d = gelu(d), the tanh form; aux = what d was, if there is one */
    bool gelu_gradient;  /* d *= gelu′(aux) */
    bool sums_d;         /* bias (rows) = Σ of the columns of d */
    bool sums_a, sums_b; /* bias = Σ over k of a (rows), or of b (columns of d) */
    matrix bias, aux;
};

/* d (m, n) = alpha · a (m, k) · b (k, n) + beta · c (m, n), and the epilogue; `batch` times.
 * Sums are of float32. */
struct gemm {
    matrix a, b, c, d;
    int m, n, k, batch;
    float alpha, beta;
    epilogue then;
};

/* Queues it on the stream, after what cuBLAS checks too. */
cublasStatus_t gemm_submit(const gemm &what, cudaStream_t stream);

} // namespace cudasim
#endif
