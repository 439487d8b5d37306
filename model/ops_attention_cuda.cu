/* ops_attention_cuda: causal attention that never holds a T × T matrix: tiles in shared memory, an
 * online softmax, log Σ exp kept per row, probabilities computed again in backward.
 *
 * A block has a tile of rows and walks the tiles of columns that its rows see:
 *
 *   forward    block = queries   for each tile of keys up to the diagonal:
 *                                    S = q kᵀ, new max, sum
 *                                    out = out · exp(max − new max) + exp(S − new max) v
 *   gradient   block = queries   row_dot = Σ d_out ∘ out             (kept for the next kernel)
 *    of q                        for each tile of keys:
 *                                    P = exp(S/√d − lse)   dP = d_out vᵀ
 *                                    dS = P ∘ (dP − row_dot)/√d    dq += dS k
 *   gradients  block = keys      for each tile of queries from the diagonal on, transposed:
 *    of k, v                         P, dP, dS as before    dv += Pᵀ d_out    dk += dSᵀ q
 *
 * Two kernels backward, seven products instead of five: no block adds to another's tile, so there
 * are no atomics and one order of summation (I2). Where heads share keys and values, the block of
 * keys walks the queries of one head after another.
 *
 * Grid (tiles of rows, heads, batch), the longest rows first; for keys (…, kv_heads, …).
 * attention_tiles_cuda.cuh has the engines: 64 × 64 tiles in 128 threads on tensor cores (backward of heads wider than 64: 64 × 32),
 * at most 48 KiB shared; 32 × 32 (wide heads 16 × 16) in 64 threads by FMA, at most 44 KiB.
 *
 * Bytes per element of q, k or v (s each): forward 2s for q and out, and k, v once per tile of
 * queries, (t/64)/2 times on average, mostly from cache. Arithmetic, not memory, is the bound.
 * source: Dao, "FlashAttention-2", algorithms 1 and 2.
 */
#include "model/ops_cuda.h"

#include "model/attention_tiles_cuda.cuh"

struct attention_shape {
    int t, heads, kv_heads, group, head_cols; /* group: heads that share keys and values */
    float scale;                              /* 1/√head_cols */
    bool vectors; /* all rows begin at 16 bytes and are a multiple of it long */
};

static const float log2_e = 1.44269504f;

/* Head number `head` of the block's sequence in x (batch, t, heads, head_cols). */
template <class T>
__device__ __forceinline__ head_matrix<T> head_of(
    T *x, int head, int heads, const attention_shape &s)
{
    size_t width = (size_t)heads * s.head_cols;
    T *at = x + (size_t)blockIdx.z * s.t * width + (size_t)head * s.head_cols;
    return head_matrix<T>{at, width, s.head_cols, s.vectors};
}

/* A head of queries, of keys, of values in qkv (batch, t, heads + 2·kv_heads, head_cols). */
template <class T>
__device__ __forceinline__ head_matrix<T> queries_of(T *qkv, int head, const attention_shape &s)
{
    return head_of(qkv, head, s.heads + 2 * s.kv_heads, s);
}
template <class T>
__device__ __forceinline__ head_matrix<T> keys_of(T *qkv, int kv_head, const attention_shape &s)
{
    return queries_of(qkv, s.heads + kv_head, s);
}
template <class T>
__device__ __forceinline__ head_matrix<T> values_of(T *qkv, int kv_head, const attention_shape &s)
{
    return queries_of(qkv, s.heads + s.kv_heads + kv_head, s);
}

/* A head of a statistic, in (batch, heads, t). */
template <class P>
__device__ __forceinline__ P *rows_of(P *statistic, int head, const attention_shape &s)
{
    return statistic + ((size_t)blockIdx.z * s.heads + head) * s.t;
}

template <int N, int M> __device__ __forceinline__ void clear(float (&x)[N][M])
{
    UNROLL
    for (int i = 0; i < N; i++) {
        UNROLL
        for (int j = 0; j < M; j++) x[i][j] = 0.0f;
    }
}

/* ---- forward ---- */

/* Scores of the tile in, exp(score − max) out. Rows whose maximum grew have their sums scaled. The
 * first tile holds key 0, which every row sees: no maximum stays −∞. */
template <class E>
__device__ __forceinline__ void softmax_step(float (&s)[E::S_ROWS][E::S_COLS],
    float (&sums)[E::S_ROWS][E::SUM_COLS], float (&max)[E::S_ROWS], float (&sum)[E::S_ROWS],
    int first_row, int first_col, float scale)
{
    bool diagonal = first_col + E::COLS - 1 > first_row;
    UNROLL
    for (int i = 0; i < E::S_ROWS; i++) {
        float top = max[i], total = 0.0f;
        UNROLL
        for (int j = 0; j < E::S_COLS; j++) {
            if (diagonal && first_col + E::score_col(j) > first_row + E::row(i))
                s[i][j] = -INFINITY;
            top = fmaxf(top, s[i][j]);
        }
        top = warp_max<E::LANES>(top);
        float shrink = exp2f((max[i] - top) * scale);
        UNROLL
        for (int j = 0; j < E::S_COLS; j++) {
            s[i][j] = exp2f((s[i][j] - top) * scale);
            total += s[i][j];
        }
        max[i] = top;
        sum[i] = sum[i] * shrink + warp_sum<E::LANES>(total);
        UNROLL
        for (int j = 0; j < E::SUM_COLS; j++) sums[i][j] *= shrink;
    }
}

template <class E>
__global__ void __launch_bounds__(E::THREADS) attention_forward_kernel(
    typename E::element *out, float *lse, const typename E::element *qkv, attention_shape shape)
{
    DYN_SHARED(typename E::stored, q);
    auto *k = q + E::ROW_TILE, *v = k + E::COL_TILE;
    E engine(v + E::COL_TILE);
    int head = (int)blockIdx.y, kv_head = head / shape.group;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * E::ROWS;
    int end = first + E::ROWS < shape.t ? first + E::ROWS : shape.t;
    float s[E::S_ROWS][E::S_COLS], sums[E::S_ROWS][E::SUM_COLS];
    float max[E::S_ROWS], sum[E::S_ROWS];
    clear(sums);
    UNROLL
    for (int i = 0; i < E::S_ROWS; i++) max[i] = -INFINITY, sum[i] = 0.0f;
    E::fetch(q, queries_of(qkv, head, shape), first, shape.t, E::ROWS);
    for (int key = 0; key < end; key += E::COLS) {
        __syncthreads();
        E::fetch(k, keys_of(qkv, kv_head, shape), key, shape.t, E::COLS);
        E::fetch(v, values_of(qkv, kv_head, shape), key, shape.t, E::COLS);
        __syncthreads();
        engine.scores(s, q, k);
        softmax_step<E>(s, sums, max, sum, first, key, shape.scale * log2_e);
        engine.multiply(sums, s, v);
    }
    float inverse[E::S_ROWS];
    UNROLL
    for (int i = 0; i < E::S_ROWS; i++) {
        inverse[i] = 1.0f / sum[i];
        if (threadIdx.x % E::LANES == 0 && first + E::row(i) < shape.t)
            rows_of(lse, head, shape)[first + E::row(i)] = max[i] * shape.scale + logf(sum[i]);
    }
    engine.put(head_of(out, head, shape.heads, shape), first, shape.t, q, sums, inverse);
}

/* ---- backward ---- */

/* row_dot[i] of the thread's rows = Σ over columns of a ∘ b; a tile in shared memory would be read
 * once: the rows come from memory. */
template <class E>
__device__ __forceinline__ void row_dots(float (&dot)[E::S_ROWS],
    const head_matrix<const typename E::element> &a,
    const head_matrix<const typename E::element> &b, int first, int count)
{
    constexpr int V = 16 / sizeof(typename E::element);
    UNROLL
    for (int i = 0; i < E::S_ROWS; i++) {
        int r = first + E::row(i);
        float x[V], y[V];
        dot[i] = 0.0f;
        for (int c = (int)(threadIdx.x % E::LANES) * V; c < E::WIDTH && r < count;
             c += E::LANES * V) {
            load_padded(x, a.at + (size_t)r * a.stride, c, a.cols, a.vectors);
            load_padded(y, b.at + (size_t)r * b.stride, c, b.cols, b.vectors);
            UNROLL
            for (int j = 0; j < V; j++) dot[i] += x[j] * y[j];
        }
        dot[i] = warp_sum<E::LANES>(dot[i]);
    }
}

template <class E>
__global__ void __launch_bounds__(E::THREADS) attention_query_kernel(typename E::element *d_qkv,
    float *row_dot, const typename E::element *d_out, const typename E::element *qkv,
    const typename E::element *out, const float *lse, attention_shape shape)
{
    DYN_SHARED(typename E::stored, q);
    auto *d_o = q + E::ROW_TILE, *k = d_o + E::ROW_TILE, *v = k + E::COL_TILE;
    E engine(v + E::COL_TILE);
    int head = (int)blockIdx.y, kv_head = head / shape.group;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * E::ROWS;
    int end = first + E::ROWS < shape.t ? first + E::ROWS : shape.t;
    float p[E::S_ROWS][E::S_COLS], ds[E::S_ROWS][E::S_COLS], sums[E::S_ROWS][E::SUM_COLS];
    float dot[E::S_ROWS], shift[E::S_ROWS];
    clear(sums);
    auto d_rows = head_of(d_out, head, shape.heads, shape);
    row_dots<E>(dot, d_rows, head_of(out, head, shape.heads, shape), first, shape.t);
    UNROLL
    for (int i = 0; i < E::S_ROWS; i++) {
        int r = first + E::row(i);
        shift[i] = r < shape.t ? rows_of(lse, head, shape)[r] * log2_e : 0.0f;
        if (threadIdx.x % E::LANES == 0 && r < shape.t) rows_of(row_dot, head, shape)[r] = dot[i];
    }
    E::fetch(q, queries_of(qkv, head, shape), first, shape.t, E::ROWS);
    E::fetch(d_o, d_rows, first, shape.t, E::ROWS);
    for (int key = 0; key < end; key += E::COLS) {
        __syncthreads();
        E::fetch(k, keys_of(qkv, kv_head, shape), key, shape.t, E::COLS);
        E::fetch(v, values_of(qkv, kv_head, shape), key, shape.t, E::COLS);
        __syncthreads();
        engine.scores(p, q, k);
        engine.scores(ds, d_o, v);
        UNROLL
        for (int i = 0; i < E::S_ROWS; i++) {
            UNROLL
            for (int j = 0; j < E::S_COLS; j++) {
                bool seen = key + E::score_col(j) <= first + E::row(i);
                float prob = exp2f(p[i][j] * (shape.scale * log2_e) - shift[i]);
                ds[i][j] = seen ? prob * (ds[i][j] - dot[i]) * shape.scale : 0.0f;
            }
        }
        engine.multiply(sums, ds, k);
    }
    float one[E::S_ROWS];
    UNROLL
    for (int i = 0; i < E::S_ROWS; i++) one[i] = 1.0f;
    engine.put(queries_of(d_qkv, head, shape), first, shape.t, q, sums, one);
}

/* Scores, and products of d_out with values, in; P and dS out. Rows are keys here, columns queries
 * of this head: both are the transposed ones. */
template <class E>
__device__ __forceinline__ void key_gradients(float (&p)[E::S_ROWS][E::S_COLS],
    float (&ds)[E::S_ROWS][E::S_COLS], const float *lse, const float *row_dot, int first_key,
    int first_query, const attention_shape &shape)
{
    UNROLL
    for (int j = 0; j < E::S_COLS; j++) {
        int r = first_query + E::score_col(j);
        float shift = r < shape.t ? lse[r] * log2_e : 0.0f;
        float dot = r < shape.t ? row_dot[r] : 0.0f;
        UNROLL
        for (int i = 0; i < E::S_ROWS; i++) {
            bool seen = first_key + E::row(i) <= r; /* beyond t, q and d_out are zeros */
            float prob = exp2f(p[i][j] * (shape.scale * log2_e) - shift);
            p[i][j] = seen ? prob : 0.0f;
            ds[i][j] = seen ? prob * (ds[i][j] - dot) * shape.scale : 0.0f;
        }
    }
}

template <class E>
__global__ void __launch_bounds__(E::THREADS) attention_key_kernel(typename E::element *d_qkv,
    const float *row_dot, const typename E::element *d_out, const typename E::element *qkv,
    const float *lse, attention_shape shape)
{
    DYN_SHARED(typename E::stored, k);
    auto *v = k + E::ROW_TILE, *q = v + E::ROW_TILE, *d_o = q + E::COL_TILE;
    E engine(d_o + E::COL_TILE);
    int kv_head = (int)blockIdx.y, first = (int)blockIdx.x * E::ROWS;
    int from = kv_head * shape.group, to = from + shape.group;
    float p[E::S_ROWS][E::S_COLS], ds[E::S_ROWS][E::S_COLS];
    float k_sums[E::S_ROWS][E::SUM_COLS], v_sums[E::S_ROWS][E::SUM_COLS];
    clear(k_sums);
    clear(v_sums);
    E::fetch(k, keys_of(qkv, kv_head, shape), first, shape.t, E::ROWS);
    E::fetch(v, values_of(qkv, kv_head, shape), first, shape.t, E::ROWS);
    for (int head = from; head < to; head++) {
        const float *shift = rows_of(lse, head, shape), *dot = rows_of(row_dot, head, shape);
        for (int query = first; query < shape.t; query += E::COLS) {
            __syncthreads();
            E::fetch(q, queries_of(qkv, head, shape), query, shape.t, E::COLS);
            E::fetch(d_o, head_of(d_out, head, shape.heads, shape), query, shape.t, E::COLS);
            __syncthreads();
            engine.scores(p, k, q);
            engine.scores(ds, v, d_o);
            key_gradients<E>(p, ds, shift, dot, first, query, shape);
            engine.multiply(v_sums, p, d_o);
            engine.multiply(k_sums, ds, q);
        }
    }
    float one[E::S_ROWS];
    UNROLL
    for (int i = 0; i < E::S_ROWS; i++) one[i] = 1.0f;
    engine.put(keys_of(d_qkv, kv_head, shape), first, shape.t, k, k_sums, one);
    engine.put(values_of(d_qkv, kv_head, shape), first, shape.t, v, v_sums, one);
}

/* ---- launches ---- */

/* Everything but the engine. */
struct attention_call {
    void *out; /* out, or d_qkv */
    float *lse, *row_dot;
    const void *d_out, *qkv, *attended;
    attention_shape shape;
    unsigned batch;
    cudaStream_t stream;
};

template <class E> static dim3 attention_grid(int heads, const attention_call &call)
{
    return dim3((unsigned)((call.shape.t + E::ROWS - 1) / E::ROWS), (unsigned)heads, call.batch);
}

/* Bytes of shared memory of so many tiles of rows and of columns. */
template <class E> static size_t attention_shared(int row_tiles, int col_tiles)
{
    size_t elements = (size_t)(row_tiles * E::ROW_TILE + col_tiles * E::COL_TILE + E::OWN_TILE);
    return elements * sizeof(typename E::stored);
}

template <class E> static enum status run_forward(const attention_call &call)
{
    typedef typename E::element T;
    return launch_status(
        gpu_launch(attention_forward_kernel<E>, attention_grid<E>(call.shape.heads, call),
            dim3(E::THREADS), attention_shared<E>(1, 2), call.stream, (T *)call.out, call.lse,
            (const T *)call.qkv, call.shape),
        "attention_forward");
}

template <class E> static enum status run_backward(const attention_call &call)
{
    typedef typename E::element T;
    dim3 queries = attention_grid<E>(call.shape.heads, call), block(E::THREADS);
    dim3 keys = attention_grid<E>(call.shape.kv_heads, call);
    size_t shared = attention_shared<E>(2, 2);
    const T *d_out = (const T *)call.d_out, *qkv = (const T *)call.qkv;
    TRY(launch_status(gpu_launch(attention_query_kernel<E>, queries, block, shared, call.stream,
                          (T *)call.out, call.row_dot, d_out, qkv, (const T *)call.attended,
                          (const float *)call.lse, call.shape),
        "attention_backward (queries)"));
    return launch_status(
        gpu_launch(attention_key_kernel<E>, keys, block, shared, call.stream, (T *)call.out,
            (const float *)call.row_dot, d_out, qkv, (const float *)call.lse, call.shape),
        "attention_backward (keys)");
}

/* Tensor cores multiply the dtype: float16 from sm_75, bfloat16 from sm_80. */
static enum status has_tensor_cores(bool *has, enum dtype dtype)
{
    int device = 0, major = 0;
    *has = false;
    if (dtype == DTYPE_FLOAT32) return STATUS_OK;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    *has = dtype == DTYPE_FLOAT16 || major >= 8;
    return launch_status(error, "cudaDeviceGetAttribute");
}

template <class T, int D> struct engine_of {
    static enum status run(const attention_call &call, bool backward, bool tensor_cores)
    {
        typedef fma_engine<T, D> plain;
        if constexpr (sizeof(T) == 2) {
            if (tensor_cores && !backward) return run_forward<mma_engine<T, D, 64>>(call);
            if (tensor_cores) return run_backward<mma_engine<T, D, D == 64 ? 64 : 32>>(call);
        }
        return backward ? run_backward<plain>(call) : run_forward<plain>(call);
    }
};

static enum status run(const attention_call &call, bool backward, enum dtype dtype)
{
    if (call.shape.head_cols > 128)
        return FAIL(STATUS_INVALID,
            "attention on CUDA with heads of %d columns; expected at most 128: use more heads",
            call.shape.head_cols);
    bool tensor_cores = false;
    TRY(has_tensor_cores(&tensor_cores, dtype));
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return call.shape.head_cols <= 64 ? engine_of<T, 64>::run(call, backward, tensor_cores)
                                          : engine_of<T, 128>::run(call, backward, tensor_cores);
    });
}

static attention_shape shape_of(enum dtype dtype, struct attention_size size, bool aligned)
{
    bool whole = size.head_cols * dtype_bytes(dtype) % 16 == 0;
    return attention_shape{(int)size.t, (int)size.heads, (int)size.kv_heads,
        (int)(size.heads / size.kv_heads), (int)size.head_cols, 1.0f / sqrtf((float)size.head_cols),
        whole && aligned};
}

static bool is_empty(struct attention_size size)
{
    return size.batch == 0 || size.t == 0 || size.heads == 0;
}

enum status attention_forward_cuda(void *out, float *lse, const void *qkv, enum dtype dtype,
    struct attention_size size, cudaStream_t stream)
{
    if (is_empty(size)) return STATUS_OK;
    attention_call call = {};
    call.out = out;
    call.lse = lse;
    call.qkv = qkv;
    call.shape = shape_of(dtype, size, vectors_at(out, qkv));
    call.batch = (unsigned)size.batch;
    call.stream = stream;
    return run(call, false, dtype);
}

enum status attention_backward_cuda(void *d_qkv, float *scratch, const void *d_out, const void *qkv,
    const void *out, const float *lse, enum dtype dtype, struct attention_size size,
    cudaStream_t stream)
{
    if (is_empty(size)) return STATUS_OK;
    attention_call call = {};
    call.out = d_qkv;
    call.lse = (float *)(uintptr_t)lse; /* read only */
    call.row_dot = scratch;
    call.d_out = d_out;
    call.qkv = qkv;
    call.attended = out;
    call.shape = shape_of(dtype, size, vectors_at(d_qkv, d_out, qkv, out));
    call.batch = (unsigned)size.batch;
    call.stream = stream;
    return run(call, true, dtype);
}
