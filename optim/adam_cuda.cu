/* adam_cuda: the optimizer's operations on a CUDA device, with the host's bits.
 *
 *   operation    bytes moved per element (g: of a gradient, w: of a lent weight)
 *   step         24 + g, + w where weights are lent; 16 + g + 2w where lent itself is updated
 *   narrow, add  4 + w, 3g
 *   squares      g, and 16 per piece
 *   scale        2g
 *
 * All are flat, 8 elements (or 16 bytes) a thread, but squares: a warp per piece of 8192.
 *
 * Invariants: every operation of a step rounds as on the host (compiled without contraction;
 * division and square root are IEEE's), so a step gives the same bits on both. The sum of squares
 * keeps norm.h's order: thread t of a warp holds the lanes 8t … 8t + 7, which is an access of 16 or
 * 32 bytes, and halves are folded by shuffles, then within threads:
 *
 *   lane     0 … 7 │ 8 … 15 │ … │ 248 … 255       + 128: thread t ^ 16   …   + 8: thread t ^ 1
 *   thread     0   │    1   │ … │     31          + 4, + 2, + 1: the thread's own
 */
#include "optim/adam.h"

#include "optim/adam_round.h"
#include "optim/norm.h"
#include "verbs/kernel_queue.cuh"
#include "verbs/kernel_vector.cuh"
#include "verbs/plugin.h"

#define NORM_WARPS    8    /* of a block */
#define NORM_AT_ONCE  8191 /* pieces whose sums the scratch has room for, beside the total */
#define SCRATCH_BYTES ((1 + NORM_AT_ONCE) * sizeof(double))

/* ---- step ---- */

struct adam_factors {
    float beta1, beta2, rest1, rest2, epsilon, lr, gradient_scale, decay, m_factor, v_factor;
    uint64_t key, first;
};

__device__ inline float round_by_chance(float x, uint64_t key, uint64_t index)
{
    uint32_t bits = float_bits(x);
    return adam_is_number(bits) ? bits_float((uint32_t)adam_round_bits(bits, key, index) << 16) : x;
}

template <class W, class G> struct adam_stepping {
    float *weights; /* or NULL */
    W *lent;        /* or NULL */
    float *m, *v;
    const G *gradients;
    adam_factors f;
    bool by_chance;

    /* As adam.c's step(), operation by operation. */
    __device__ void update(float &w, float &m_i, float &v_i, float gradient) const
    {
        float g = gradient * f.gradient_scale;
        m_i = f.beta1 * m_i + f.rest1 * g;
        v_i = f.beta2 * v_i + f.rest2 * (g * g);
        w = w - f.lr * (m_i * f.m_factor / (sqrtf(v_i * f.v_factor) + f.epsilon) + f.decay * w);
    }

    template <int V> __device__ void lend(const float (&w)[V], size_t i) const
    {
        float rounded[V]; /* numbers that the dtype holds, so that storing them changes nothing */
        UNROLL
        for (int j = 0; j < V; j++)
            rounded[j] = by_chance ? round_by_chance(w[j], f.key, f.first + i + j) : w[j];
        store(lent + i, rounded);
    }

    template <int V> __device__ void at(size_t i) const
    {
        float g[V], m_i[V], v_i[V], w[V];
        load(g, gradients + i);
        load(m_i, m + i);
        load(v_i, v + i);
        if (weights != NULL) load(w, weights + i);
        else load(w, lent + i);
        UNROLL
        for (int j = 0; j < V; j++) update(w[j], m_i[j], v_i[j], g[j]);
        store(m + i, m_i);
        store(v + i, v_i);
        if (weights != NULL) store(weights + i, w);
        if (lent != NULL) lend(w, i);
    }
};

static adam_factors factors_of(const struct adam_update &u)
{
    return adam_factors{u.config.beta1, u.config.beta2, 1.0f - u.config.beta1,
        1.0f - u.config.beta2, u.config.epsilon, u.lr, u.gradient_scale, u.decay,
        adam_correction(u.config.beta1, u.t), adam_correction(u.config.beta2, u.t),
        adam_key(u.seed, u.t), u.first};
}

static enum status step_cuda(
    const struct adam_range &r, const struct adam_update &update, cudaStream_t stream)
{
    enum dtype lent_dtype = r.lent == NULL ? DTYPE_FLOAT32 : r.lent_dtype;
    bool by_chance = update.stochastic && r.lent != NULL && lent_dtype == DTYPE_BFLOAT16;
    return with_float_type(lent_dtype, [&](auto lent_zero) {
        return with_float_type(r.gradients_dtype, [&](auto gradient_zero) {
            typedef decltype(lent_zero) W;
            typedef decltype(gradient_zero) G;
            adam_stepping<W, G> operation = {r.weights, (W *)r.lent, r.m, r.v,
                (const G *)r.gradients, factors_of(update), by_chance};
            return launch_flat<8>("adam_step", operation, r.count,
                vectors_at(r.weights, r.lent, r.m, r.v, r.gradients), stream);
        });
    });
}

/* ---- norm ---- */

/* A warp per piece: sums[piece] = its squares. */
template <int V, class T>
__global__ void __launch_bounds__(NORM_WARPS * 32)
    piece_squares_kernel(double *sums, const T *x, size_t count)
{
    size_t piece = (size_t)blockIdx.x * NORM_WARPS + threadIdx.y, begin = piece * NORM_PIECE;
    if (begin >= count) return;
    size_t end = count - begin < NORM_PIECE ? count : begin + NORM_PIECE;
    double lane[8] = {};
    for (size_t i = begin + threadIdx.x * 8; i < end; i += NORM_LANES) {
        float part[8] = {}; /* zeros change no sum of squares */
        if (V == 8 && i + 8 <= end) {
            load(part, x + i);
        } else {
            UNROLL
            for (int j = 0; j < 8; j++)
                if (i + j < end) part[j] = to_float(x[i + j]);
        }
        UNROLL
        for (int j = 0; j < 8; j++) lane[j] += (double)part[j] * (double)part[j];
    }
    UNROLL
    for (int j = 0; j < 8; j++)
        for (int step = 16; step > 0; step /= 2)
            lane[j] += __shfl_xor_sync(0xffffffffu, lane[j], step);
    if (threadIdx.x == 0)
        sums[piece] = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                      ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* One thread: *total += the pieces in order. */
__global__ void __launch_bounds__(1)
    add_pieces_kernel(double *total, const double *sums, size_t pieces)
{
    double sum = *total;
    for (size_t p = 0; p < pieces; p++) sum += sums[p];
    *total = sum;
}

static enum status squares_cuda(double *sum, const void *x, enum dtype dtype, size_t count,
    double *scratch, cudaStream_t stream)
{
    double *total = scratch, *sums = scratch + 1;
    TRY_CUDA(cudaMemsetAsync(total, 0, sizeof *total, stream));
    for (size_t begin = 0; begin < count; begin += (size_t)NORM_AT_ONCE * NORM_PIECE) {
        size_t most = (size_t)NORM_AT_ONCE * NORM_PIECE;
        size_t part = count - begin < most ? count - begin : most;
        size_t pieces = (part + NORM_PIECE - 1) / NORM_PIECE;
        TRY(with_float_type(dtype, [&](auto zero) {
            typedef decltype(zero) T;
            auto kernel = vectors_at(x) ? piece_squares_kernel<8, T> : piece_squares_kernel<1, T>;
            dim3 grid((unsigned)((pieces + NORM_WARPS - 1) / NORM_WARPS)), block(32, NORM_WARPS);
            return launch_status(
                gpu_launch(kernel, grid, block, 0, stream, sums, (const T *)x + begin, part),
                "squares");
        }));
        TRY(launch_status(gpu_launch(add_pieces_kernel, dim3(1), dim3(1), 0, stream, total,
                              (const double *)sums, pieces),
            "sum of squares"));
    }
    TRY_CUDA(cudaMemcpyAsync(sum, total, sizeof *sum, cudaMemcpyDeviceToHost, stream));
    return STATUS_OK;
}

/* ---- rounding, adding ---- */

struct adam_rounding {
    uint64_t key, first;
    bool by_chance;
};

template <class T> struct narrowing {
    T *out;
    const float *in;
    adam_rounding rounding;

    template <int V> __device__ void at(size_t i) const
    {
        float x[V];
        load(x, in + i);
        UNROLL
        for (int j = 0; j < V; j++)
            if (rounding.by_chance)
                x[j] = round_by_chance(x[j], rounding.key, rounding.first + i + j);
        store(out + i, x);
    }
};

static enum status narrow_cuda(void *out, const float *in, enum dtype dtype, size_t count,
    const adam_rounding &rounding, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<8>(
            "narrow", narrowing<T>{(T *)out, in, rounding}, count, vectors_at(out, in), stream);
    });
}

template <class T> struct adding {
    T *sum;
    const T *x;

    template <int V> __device__ void at(size_t i) const
    {
        float total[V], part[V];
        load(total, sum + i);
        load(part, x + i);
        UNROLL
        for (int j = 0; j < V; j++) total[j] += part[j];
        store(sum + i, total);
    }
};

static enum status add_cuda(
    void *sum, const void *x, enum dtype dtype, size_t count, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<16 / sizeof(T)>(
            "add", adding<T>{(T *)sum, (const T *)x}, count, vectors_at(sum, x), stream);
    });
}

/* ---- scale ---- */

template <class T> struct scaling {
    T *x;
    uint32_t *not_finite;
    float factor;

    template <int V> __device__ void at(size_t i) const
    {
        float value[V];
        bool finite = true;
        load(value, x + i);
        UNROLL
        for (int j = 0; j < V; j++) {
            value[j] = to_float(from_float<T>(value[j] * factor));
            finite &= adam_is_number(float_bits(value[j]));
        }
        store(x + i, value);
        if (!finite) st_relaxed_sys(not_finite, 1);
    }
};

static enum status scale_cuda(void *x, uint32_t *not_finite, enum dtype dtype, float factor,
    size_t count, cudaStream_t stream)
{
    return with_float_type(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return launch_flat<16 / sizeof(T)>(
            "scale", scaling<T>{(T *)x, not_finite, factor}, count, vectors_at(x), stream);
    });
}

/* ---- the table ---- */

template <class Operation>
static void enqueue(const struct adam_context *context, Operation operation)
{
    enqueue(context->stream, context->device, operation);
}

static void table_step(const struct adam_range *range, const struct adam_update *update,
    const struct adam_context *context)
{
    struct adam_range r = *range;
    struct adam_update u = *update;
    enqueue(context, [=](cudaStream_t stream) { return step_cuda(r, u, stream); });
}

static void table_narrow(void *out, const float *in, enum dtype dtype, size_t count,
    const struct adam_update *update, const struct adam_context *context)
{
    bool by_chance = update != NULL && update->stochastic && dtype == DTYPE_BFLOAT16;
    uint64_t key = by_chance ? adam_key(update->seed, update->t) : 0;
    uint64_t first = by_chance ? update->first : 0;
    enqueue(context, [=](cudaStream_t stream) {
        return narrow_cuda(out, in, dtype, count, adam_rounding{key, first, by_chance}, stream);
    });
}

static void table_add(
    void *sum, const void *x, enum dtype dtype, size_t count, const struct adam_context *context)
{
    enqueue(context, [=](cudaStream_t stream) { return add_cuda(sum, x, dtype, count, stream); });
}

static void table_squares(
    double *sum, const void *x, enum dtype dtype, size_t count, const struct adam_context *context)
{
    double *scratch = static_cast<double *>(context->scratch);
    enqueue(context,
        [=](cudaStream_t stream) { return squares_cuda(sum, x, dtype, count, scratch, stream); });
}

static void table_scale(void *x, uint32_t *not_finite, enum dtype dtype, float factor, size_t count,
    const struct adam_context *context)
{
    enqueue(context, [=](cudaStream_t stream) {
        return scale_cuda(x, not_finite, dtype, factor, count, stream);
    });
}

static const struct adam_ops adam_ops_cuda = {
    /* in the order of adam.h: C++17 has no designated initialisers */
    "cuda",
    true,
    SCRATCH_BYTES,
    table_step,
    table_narrow,
    table_add,
    table_squares,
    table_scale,
};

extern "C" const void *const plugin_table_adam = &adam_ops_cuda;
